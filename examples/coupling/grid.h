/*
 * The computation: heat on a plate whose columns are drawn towards their means after each step. The rows
 * of a part lie between a row of the previous part and one of the next part.
 */
#ifndef EXAMPLES_COUPLING_GRID_H
#define EXAMPLES_COUPLING_GRID_H

#include <stdint.h>

enum { ROWS = 60, COLUMNS = 50, STEPS = 6, ITERATIONS = 20 };

static inline double heat_at_first(int row, int column)
{
    return (double)((uint32_t)(row * COLUMNS + column) * 2654435761u >> 22);
}

/* The first row of a part. */
static inline int first_row(int part, int parts)
{
    return ROWS * part / parts;
}

/* One iteration. `from` and `to` begin one row before `first`. */
static inline void relax(const double *from, double *to, int first, int count)
{
    for (int at = 1; at <= count; at++) {
        for (int column = 0; column < COLUMNS; column++) {
            const double *here = from + at * COLUMNS + column;
            int row = first + at - 1;
            int is_edge = row == 0 || row == ROWS - 1 || column == 0 || column == COLUMNS - 1;
            to[at * COLUMNS + column]
                = is_edge ? *here : (here[-COLUMNS] + here[COLUMNS] + here[-1] + here[1]) / 4;
        }
    }
}

/* The mean of a column over all rows, whose numbers are `stride` apart. */
static inline double mean(const double *column, int stride)
{
    double sum = 0;
    for (int row = 0; row < ROWS; row++)
        sum += column[row * stride];
    return sum / ROWS;
}

static inline void draw(double *rows, int count, const double *means)
{
    for (int at = 0; at < count * COLUMNS; at++)
        rows[at] += (means[at % COLUMNS] - rows[at]) / 8;
}

#endif
