/* Cases that both reshuffle.c and pdgemr2d.c measure: N x N doubles, stored by columns. */
#include <stddef.h>

enum { N = 2048, TIMES = 9 };

static const struct {
    const char *name;
    /* Blocks before, over a grid of p x 1 processes, and afterwards, over 1 x p; 0: one part each. */
    int rows, columns, rows_after, columns_after;
} cases[] = {
    {"row-parts-to-column-parts", 0, 0, 0, 0},
    {"tiles-of-64-to-tiles-of-64", 64, 64, 64, 64},
    {"tiles-of-8-to-tiles-of-64", 8, 8, 64, 64},
    {"cyclic-to-tiles-of-64", 1, 1, 64, 64},
};

enum { CASES = sizeof cases / sizeof cases[0] };

static int part(int block, int procs)
{
    return block ? block : (N + procs - 1) / procs;
}

static double element(int row, int column)
{
    return row + 10000.0 * column;
}
