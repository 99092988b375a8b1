/*
 * The same total of work by any number of ranks: virtual sleep|compute SUPERSTEPS MS. MS is the time of all
 * ranks together in each superstep, of computation or of requests that take 5 ms each.
 */
#include <bsp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    if (argc != 4)
        bsp_abort("virtual sleep|compute SUPERSTEPS MS");
    int p = bsp_nprocs(), steps = atoi(argv[2]), sleeps = !strcmp(argv[1], "sleep");
    double ms = atof(argv[3]);
    long left = 0, own = bsp_pid();
    bsp_push_reg(&left, sizeof left);
    bsp_sync();
    double begun = bsp_time();
    for (int step = 0; step < steps; step++) {
        if (sleeps) {
            long n = (long)(ms / 5 / p + 0.999);
            struct timespec request = {0, 5000000};
            for (long i = 0; i < n; i++)
                nanosleep(&request, NULL);
        } else {
            volatile double x = 1;
            for (long i = 0; i < (long)(ms * 250000 / p); i++)
                x = x * 1.0000001;
        }
        bsp_put((bsp_pid() + 1) % p, &own, &left, 0, sizeof own);
        bsp_sync();
    }
    if (bsp_pid() == 0)
        printf("%d ranks, %s: %.1f ms a superstep\n", p, argv[1], (bsp_time() - begun) * 1e3 / steps);
    bsp_end();
    return 0;
}
