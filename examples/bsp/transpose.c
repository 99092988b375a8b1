/*
 * Reshuffles a matrix from blocks of rows to blocks of columns, in which each process sums up its
 * columns, then to small tiles that are distributed cyclically, and in place back to the first
 * distribution.
 *
 *     transpose: 90 x 70, sum of squares of columns' sums 11612401
 */
#include <bsp.h>
#include <bsp_reshuffle.h>

#include "common.h"

enum { ROWS = 90, COLUMNS = 70 };

static double element(size_t row, size_t column)
{
    return noise((uint32_t)(row * COLUMNS + column)) % 10;
}

int main(void)
{
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), me = bsp_pid();
    size_t parts = (size_t)p;

    const size_t extents[] = {ROWS, COLUMNS};
    const int row_procs[] = {p, 1}, column_procs[] = {1, p};
    const size_t row_blocks[] = {(ROWS + parts - 1) / parts, COLUMNS};
    const size_t column_blocks[] = {ROWS, (COLUMNS + parts - 1) / parts};
    const size_t tiles[] = {3, 4};
    size_t rows = bsp_distribution_elements(2, extents, row_procs, row_blocks, me);
    size_t columns = bsp_distribution_elements(2, extents, column_procs, column_blocks, me);
    size_t dealt = bsp_distribution_elements(2, extents, row_procs, tiles, me);

    bsp_reshuffle_plan *to_columns = bsp_reshuffle_plan_create(
        2, extents, sizeof(double), row_procs, row_blocks, column_procs, column_blocks);
    bsp_reshuffle_plan *to_tiles = bsp_reshuffle_plan_create(
        2, extents, sizeof(double), column_procs, column_blocks, row_procs, tiles);
    bsp_reshuffle_plan *to_rows = bsp_reshuffle_plan_create(
        2, extents, sizeof(double), row_procs, tiles, row_procs, row_blocks);

    double *by_rows = allocate(rows, sizeof *by_rows);
    double *by_columns = allocate(columns, sizeof *by_columns);
    double *again = allocate(dealt > rows ? dealt : rows, sizeof *again);
    size_t first = (size_t)me * row_blocks[0];
    for (size_t at = 0; at < rows; at++)
        by_rows[at] = element(first + at / COLUMNS, at % COLUMNS);

    bsp_reshuffle_execute(to_columns, by_rows, by_columns);
    size_t width = columns / ROWS;
    size_t left = (size_t)me * column_blocks[1];
    double squares = 0;
    for (size_t column = 0; column < width; column++) {
        double sum = 0, wanted = 0;
        for (size_t row = 0; row < ROWS; row++) {
            sum += by_columns[row * width + column];
            wanted += element(row, left + column);
        }
        REQUIRE(sum == wanted, "column %lu is wrong", (unsigned long)(left + column));
        squares += sum * sum;
    }
    squares = bsp_sumD(squares);

    bsp_reshuffle_execute(to_tiles, by_columns, again);
    bsp_reshuffle_in_place(to_rows, again);
    for (size_t at = 0; at < rows; at++)
        REQUIRE(again[at] == by_rows[at], "element %lu did not come back", (unsigned long)at);

    if (me == 0)
        printf("transpose: %d x %d, sum of squares of columns' sums %.0f\n", ROWS, COLUMNS,
               squares);
    bsp_reshuffle_plan_destroy(to_rows);
    bsp_reshuffle_plan_destroy(to_tiles);
    bsp_reshuffle_plan_destroy(to_columns);
    bsp_sync();
    free(again);
    free(by_columns);
    free(by_rows);
    bsp_end();
    return 0;
}
