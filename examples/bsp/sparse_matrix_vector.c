/*
 * Five products of a sparse matrix and a vector. Rows and vector are distributed in blocks. A process
 * gets the entries of the vector that its rows need.
 *
 *     sparse_matrix_vector: 600 rows, sum 68845
 */
#include <bsp.h>

#include "common.h"

enum { ROWS = 600, PER_ROW = 8, PRODUCTS = 5 };

static int column(int row, int entry)
{
    return (int)(noise(row * PER_ROW + entry) % ROWS);
}

static double weight(int row, int entry)
{
    return (double)(noise(ROWS * PER_ROW + row * PER_ROW + entry) % 5) - 2;
}

int main(void)
{
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), me = bsp_pid();
    int begin = block_begin(ROWS, me, p), end = block_begin(ROWS, me + 1, p);

    double *vector = allocate(end - begin, sizeof *vector);
    double(*needed)[PER_ROW] = allocate(end - begin, sizeof *needed);
    bsp_push_reg(vector, (end - begin) * (int)sizeof *vector);
    for (int i = begin; i < end; i++)
        vector[i - begin] = i % 7;
    bsp_sync();

    for (int product = 0; product < PRODUCTS; product++) {
        for (int i = begin; i < end; i++)
            for (int e = 0; e < PER_ROW; e++) {
                int j = column(i, e), owner = block_owner(ROWS, j, p);
                int offset = (j - block_begin(ROWS, owner, p)) * (int)sizeof *vector;
                bsp_get(owner, vector, offset, &needed[i - begin][e], sizeof *vector);
            }
        bsp_sync();
        for (int i = begin; i < end; i++) {
            vector[i - begin] = 0;
            for (int e = 0; e < PER_ROW; e++)
                vector[i - begin] += weight(i, e) * needed[i - begin][e];
        }
    }

    double x[ROWS], y[ROWS];
    for (int i = 0; i < ROWS; i++)
        x[i] = i % 7;
    for (int product = 0; product < PRODUCTS; product++) {
        for (int i = 0; i < ROWS; i++) {
            y[i] = 0;
            for (int e = 0; e < PER_ROW; e++)
                y[i] += weight(i, e) * x[column(i, e)];
        }
        for (int i = 0; i < ROWS; i++)
            x[i] = y[i];
    }
    double sum = 0;
    for (int i = begin; i < end; i++) {
        REQUIRE(vector[i - begin] == x[i], "row %d is %f, not %f", i, vector[i - begin], x[i]);
        sum += vector[i - begin];
    }
    sum = bsp_sumD(sum);
    if (me == 0)
        printf("sparse_matrix_vector: %d rows, sum %.0f\n", ROWS, sum);

    free(needed);
    free(vector);
    bsp_end();
    return 0;
}
