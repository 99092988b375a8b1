/*
 * The inner product of two vectors, distributed cyclically. Every process puts its partial
 * sum into the memory of every other process.
 *
 *     inner_product: 1000 terms, 332833500
 */
#include <bsp.h>

#include "common.h"

static int processes;
static int terms = 1000;

static void spmd(void)
{
    bsp_begin(processes);
    int p = bsp_nprocs(), me = bsp_pid();

    double own = 0;
    double *sums = allocate(p, sizeof *sums);
    bsp_push_reg(sums, p * (int)sizeof *sums);
    /* The arguments exist on process 0 only. */
    bsp_push_reg(&terms, sizeof terms);
    bsp_sync();
    bsp_get(0, &terms, 0, &terms, sizeof terms);
    bsp_sync();

    for (int i = me; i < terms; i += p)
        own += (double)i * i;
    for (int to = 0; to < p; to++)
        bsp_put(to, &own, sums, me * (int)sizeof own, sizeof own);
    bsp_sync();

    double sum = 0;
    for (int from = 0; from < p; from++)
        sum += sums[from];
    double n = terms;
    REQUIRE(sum == (n - 1) * n * (2 * n - 1) / 6, "the sum is %f", sum);
    if (me == 0)
        printf("inner_product: %d terms, %.0f\n", terms, sum);

    bsp_pop_reg(&terms);
    bsp_pop_reg(sums);
    bsp_sync();
    free(sums);
    bsp_end();
}

int main(int argc, char **argv)
{
    bsp_init(spmd, argc, argv);
    processes = bsp_nprocs();
    if (argc > 1)
        terms = atoi(argv[1]);
    spmd();
    return 0;
}
