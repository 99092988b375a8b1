/*
 * Supersteps of which one rank takes longer than the others: slowed RANK MS STEPS BYTES. Each puts BYTES
 * to the next rank.
 */
#include <bsp.h>
#include <stdlib.h>
#include <time.h>

static void work(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void exchange(char *area, const char *own, int bytes)
{
    if (bytes > 0)
        bsp_put((bsp_pid() + 1) % bsp_nprocs(), own, area, 0, bytes);
    bsp_sync();
}

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    if (argc != 5)
        bsp_abort("slowed RANK MS STEPS BYTES");
    int slow = atoi(argv[1]), steps = atoi(argv[3]), bytes = atoi(argv[4]);
    long ms = atol(argv[2]);
    char *area = calloc(1, bytes + 1), *own = calloc(1, bytes + 1);
    bsp_push_reg(area, bytes);
    bsp_sync();
    for (int step = 0; step < steps; step++) {
        work(bsp_pid() == slow ? 20 * ms : ms);
        exchange(area, own, bytes);
    }
    bsp_pop_reg(area);
    bsp_sync();
    bsp_end();
    free(own);
    free(area);
    return 0;
}
