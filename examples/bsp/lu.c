/*
 * LU decomposition with partial pivoting; rows are distributed cyclically.
 *
 *     lu: 48 x 48, 44 exchanges, determinant 2.914293e+02
 */
#include <bsp.h>
#include <math.h>
#include <string.h>

#include "common.h"

enum { N = 48 };

static double element(int i, int j)
{
    return (double)noise(i * N + j) / 4294967296.0 - 0.5;
}

/* The greatest entry of a column, and where; of equals the first. */
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

/* The same on one process; the number of exchanges. */
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
    for (int i = me; i < N; i += p)
        for (int j = 0; j < N; j++)
            rows[i / p][j] = element(i, j);
    bsp_sync();

    int exchanges = 0;
    for (int k = 0; k < N; k++) {
        struct pivot best = {-1, N};
        for (int i = me; i < N; i += p) {
            struct pivot it = {i < k ? -1 : fabs(rows[i / p][k]), i};
            best = is_better(it, best) ? it : best;
        }
        for (int to = 0; to < p; to++)
            bsp_put(to, &best, found, me * (int)sizeof best, sizeof best);
        bsp_sync();

        for (int from = 0; from < p; from++)
            best = is_better(found[from], best) ? found[from] : best;
        /* Both get the other's row before either is written. */
        if (best.row != k) {
            exchanges++;
            if (k % p == me)
                bsp_get(best.row % p, rows, best.row / p * width, rows[k / p], width);
            if (best.row % p == me)
                bsp_get(k % p, rows, k / p * width, rows[best.row / p], width);
        }
        bsp_sync();

        bsp_bcast(k % p, rows[k / p], pivot_row, width);
        for (int i = me; i < N; i += p)
            if (i > k)
                eliminate(rows[i / p], pivot_row, k);
    }

    /* The same operations in the same order: nothing may differ. */
    double(*expected)[N] = allocate(N, sizeof *expected);
    REQUIRE(sequential(expected) == exchanges, "%d exchanges", exchanges);
    double determinant = exchanges % 2 ? -1 : 1;
    for (int i = 0; i < N; i++) {
        determinant *= expected[i][i];
        if (i % p == me)
            REQUIRE(memcmp(rows[i / p], expected[i], width) == 0, "row %d is wrong", i);
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
