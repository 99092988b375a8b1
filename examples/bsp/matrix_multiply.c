/*
 * C = A B by blocks of rows. Each process multiplies with its present rows of B, while its previous
 * rows travel to its left neighbour. Uses MulticoreBSP's types.
 *
 *     matrix_multiply: 60 x 60, trace 7088
 */
#include <mcbsp.h>

#include "common.h"

enum { N = 60 };

static double a(int i, int j)
{
    return (double)(noise(i * N + j) % 10);
}

static double b(int i, int j)
{
    return (double)(noise(N * N + i * N + j) % 10) - 4;
}

int main(void)
{
    bsp_begin(bsp_nprocs());
    int p = (int)bsp_nprocs(), me = (int)bsp_pid();
    int begin = block_begin(N, me, p), end = block_begin(N, me + 1, p);
    int most = N / p + 1;

    double *product = allocate((size_t)(end - begin) * N, sizeof *product);
    /* The block in use, and the one that is arriving. */
    double *blocks = allocate((size_t)2 * most * N, sizeof *blocks);
    size_t half = (size_t)most * N * sizeof *blocks;
    bsp_push_reg(blocks, 2 * half);
    for (int k = begin; k < end; k++)
        for (int j = 0; j < N; j++)
            blocks[(k - begin) * N + j] = b(k, j);
    bsp_sync();

    for (int step = 0; step < p; step++) {
        int owner = (me + step) % p;
        int first = block_begin(N, owner, p), last = block_begin(N, owner + 1, p);
        double *block = blocks + (size_t)(step % 2) * most * N;
        if (step + 1 < p)
            bsp_hpput((bsp_pid_t)(me + p - 1) % (bsp_pid_t)p, block, blocks,
                      (size_t)((step + 1) % 2) * half, (size_t)(last - first) * N * sizeof *block);
        for (int i = begin; i < end; i++)
            for (int k = first; k < last; k++)
                for (int j = 0; j < N; j++)
                    product[(i - begin) * N + j] += a(i, k) * block[(k - first) * N + j];
        bsp_sync();
    }

    /* All numbers are integers, so the order of additions does not matter. */
    double trace = 0;
    for (int i = begin; i < end; i++) {
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < N; k++)
                sum += a(i, k) * b(k, j);
            REQUIRE(product[(i - begin) * N + j] == sum, "element %d, %d is wrong", i, j);
        }
        trace += product[(i - begin) * N + i];
    }
    trace = bsp_sumD(trace);
    if (me == 0)
        printf("matrix_multiply: %d x %d, trace %.0f\n", N, N, trace);

    free(blocks);
    free(product);
    bsp_end();
    return 0;
}
