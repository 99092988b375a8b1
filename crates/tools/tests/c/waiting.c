/*
 * Rank 0 sleeps and all others wait for it: waiting MS. Each rank writes the CPU time that it has spent in
 * the call, in microseconds.
 */
#include <bsp.h>
#include <stdlib.h>
#include <time.h>

static long cpu_us(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * 1000000 + used.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    if (argc != 2)
        bsp_abort("waiting MS");
    long ms = atol(argv[1]);
    int left = -1, own = bsp_pid(), next = (own + 1) % bsp_nprocs();
    bsp_push_reg(&left, sizeof left);
    bsp_sync();
    if (own == 0) {
        struct timespec time = {ms / 1000, ms % 1000 * 1000000};
        nanosleep(&time, NULL);
    }
    bsp_put(next, &own, &left, 0, sizeof own);
    long begun = cpu_us();
    bsp_sync();
    long spent = cpu_us() - begun;
    if (left != (own + bsp_nprocs() - 1) % bsp_nprocs())
        bsp_abort("rank %d got %d", own, left);
    printf("%d\n", (int)spent);
    bsp_end();
    return 0;
}
