/* The same computation in one process, for comparison. Prints what the viewer prints. */
#include <stdio.h>

#include "grid.h"

int main(void)
{
    static double plates[2][(ROWS + 2) * COLUMNS];
    double *now = plates[0], *next = plates[1], means[COLUMNS];
    for (int at = 0; at < ROWS * COLUMNS; at++)
        now[COLUMNS + at] = heat_at_first(at / COLUMNS, at % COLUMNS);
    for (int step = 1; step <= STEPS; step++) {
        for (int iteration = 0; iteration < ITERATIONS; iteration++) {
            relax(now, next, 0, ROWS);
            double *before = now;
            now = next;
            next = before;
        }
        double sum = 0, most = 0;
        for (int at = 0; at < ROWS * COLUMNS; at++) {
            sum += now[COLUMNS + at];
            most = now[COLUMNS + at] > most ? now[COLUMNS + at] : most;
        }
        printf("step %d: %d x %d, sum %.17g, most %.17g\n", step, ROWS, COLUMNS, sum, most);
        for (int column = 0; column < COLUMNS; column++)
            means[column] = mean(now + COLUMNS + column, COLUMNS);
        draw(now + COLUMNS, ROWS, means);
    }
    return 0;
}
