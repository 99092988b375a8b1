/*
 * LU decomposition with partial pivoting. Rows are distributed cyclically. With -DBLOCKS each process
 * has consecutive rows, so that those with the first rows soon run out of work; `dipole trace` shows this.
 *
 *     lu: 48 x 48, 44 exchanges, determinant 2.914293e+02
 */
#include <bsp.h>
#include <math.h>
#include <string.h>

#include "common.h"

#ifndef ORDER
#define ORDER 48
#endif
enum { N = ORDER };

/* The owner of a row, and the index of the row on that process. */
#ifdef BLOCKS
static int owner(int i, int p) { return i / (N / p + 1); }
static int place(int i, int p) { return i % (N / p + 1); }
#else
static int owner(int i, int p) { return i % p; }
static int place(int i, int p) { return i / p; }
#endif

static double element(int i, int j)
{
    return (double)noise(i * N + j) / 4294967296.0 - 0.5;
}

/* The largest entry of a column, and its index; the first one if several are equal. */
struct pivot {
    double value;
    int row;
};

static int is_better(struct pivot it, struct pivot than)
{
    return it.value > than.value || (it.value == than.value && it.row < than.row);
}

static void eliminate(double *row, const double *pivot, int k)
{
    row[k] /= pivot[k];
    for (int j = k + 1; j < N; j++)
        row[j] -= row[k] * pivot[j];
}

/* Decomposes on one process, for comparison. Returns the number of exchanges. */
static int sequential(double (*m)[N])
{
    int exchanges = 0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            m[i][j] = element(i, j);
    for (int k = 0; k < N; k++) {
        struct pivot best = {-1, N};
        for (int i = k; i < N; i++) {
            struct pivot found = {fabs(m[i][k]), i};
            best = is_better(found, best) ? found : best;
        }
        if (best.row != k) {
            double row[N];
            memcpy(row, m[k], sizeof row);
            memcpy(m[k], m[best.row], sizeof row);
            memcpy(m[best.row], row, sizeof row);
            exchanges++;
        }
        for (int i = k + 1; i < N; i++)
            eliminate(m[i], m[k], k);
    }
    return exchanges;
}

int main(void)
{
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), me = bsp_pid();
    const int width = N * (int)sizeof(double);

    double(*rows)[N] = allocate(N / p + 1, sizeof *rows);
    struct pivot *found = allocate(p, sizeof *found);
    double pivot_row[N];
    bsp_push_reg(rows, (N / p + 1) * width);
    bsp_push_reg(found, p * (int)sizeof *found);
    for (int i = 0; i < N; i++)
        if (owner(i, p) == me)
            for (int j = 0; j < N; j++)
                rows[place(i, p)][j] = element(i, j);
    bsp_sync();

    int exchanges = 0;
    for (int k = 0; k < N; k++) {
        struct pivot best = {-1, N};
        for (int i = k; i < N; i++)
            if (owner(i, p) == me) {
                struct pivot it = {fabs(rows[place(i, p)][k]), i};
                best = is_better(it, best) ? it : best;
            }
        for (int to = 0; to < p; to++)
            bsp_put(to, &best, found, me * (int)sizeof best, sizeof best);
        bsp_sync();

        for (int from = 0; from < p; from++)
            best = is_better(found[from], best) ? found[from] : best;
        /* Each process reads the other's row before either is written. */
        if (best.row != k) {
            exchanges++;
            int here = owner(k, p), there = owner(best.row, p);
            if (here == me)
                bsp_get(there, rows, place(best.row, p) * width, rows[place(k, p)], width);
            if (there == me)
                bsp_get(here, rows, place(k, p) * width, rows[place(best.row, p)], width);
        }
        bsp_sync();

        bsp_bcast(owner(k, p), rows[place(k, p)], pivot_row, width);
        for (int i = k + 1; i < N; i++)
            if (owner(i, p) == me)
                eliminate(rows[place(i, p)], pivot_row, k);
    }

    /* The operations and their order are the same, so the results must be equal. */
    double(*expected)[N] = allocate(N, sizeof *expected);
    REQUIRE(sequential(expected) == exchanges, "%d exchanges", exchanges);
    double determinant = exchanges % 2 ? -1 : 1;
    for (int i = 0; i < N; i++) {
        determinant *= expected[i][i];
        if (owner(i, p) == me)
            REQUIRE(memcmp(rows[place(i, p)], expected[i], width) == 0, "row %d is wrong", i);
    }
    bsp_sync();
    if (me == 0)
        printf("lu: %d x %d, %d exchanges, determinant %.6e\n", N, N, exchanges, determinant);

    free(expected);
    free(found);
    free(rows);
    bsp_end();
    return 0;
}
