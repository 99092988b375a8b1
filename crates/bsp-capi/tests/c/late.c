/*
 * Rank 1 does what the argument names, while the other ranks wait for it; or rank 0 asks for input.
 */
#include <bsp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    bsp_sync();
    if (argc == 2 && bsp_pid() == 0 && strcmp(argv[1], "asks") == 0)
        sleep(3);
    if (argc == 2 && bsp_pid() == 1) {
        if (strcmp(argv[1], "sleeps") == 0)
            sleep(3);
        if (strcmp(argv[1], "crashes") == 0)
            raise(SIGKILL);
        if (strcmp(argv[1], "leaves") == 0)
            _exit(3);
    }
    bsp_sync(); /* here */
    bsp_end();
    return 0;
}
