/*
 * The MPI job: heat on a plate, in parts of rows. After each step it offers the rows as the array "heat",
 * and gets the means of the columns, which another job has computed, as "means": heat BOARD
 */
#include <mpi.h>

#include "arrays.h"
#include "grid.h"

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int me, p;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &p);
    if (argc != 2) {
        fprintf(stderr, "usage: heat NID:DPID\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    array_begin(argv[1]);
    int first = first_row(me, p), count = first_row(me + 1, p) - first;
    int above = me > 0 ? me - 1 : MPI_PROC_NULL, below = me + 1 < p ? me + 1 : MPI_PROC_NULL;
    double *now = calloc((size_t)(count + 2) * COLUMNS, sizeof *now);
    double *next = calloc((size_t)(count + 2) * COLUMNS, sizeof *next);
    double means[COLUMNS];
    if (!now || !next)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int at = 0; at < count * COLUMNS; at++)
        now[COLUMNS + at] = heat_at_first(first + at / COLUMNS, at % COLUMNS);

    for (uint64_t step = 1; step <= STEPS; step++) {
        for (int iteration = 0; iteration < ITERATIONS; iteration++) {
            MPI_Sendrecv(now + COLUMNS, COLUMNS, MPI_DOUBLE, above, 0,
                         now + (count + 1) * COLUMNS, COLUMNS, MPI_DOUBLE, below, 0,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Sendrecv(now + count * COLUMNS, COLUMNS, MPI_DOUBLE, below, 1, now, COLUMNS,
                         MPI_DOUBLE, above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            relax(now, next, first, count);
            double *before = now;
            now = next;
            next = before;
        }
        int region = array_offer("heat", step, ROWS, COLUMNS, (uint32_t)first, (uint32_t)count,
                                 now + COLUMNS);
        array_withdraw(region, (uint64_t)count);
        array_get("means", step, 0, COLUMNS, means);
        draw(now + COLUMNS, count, means);
    }
    free(now);
    free(next);
    NEED(dp_finalize(ARRAY_WAIT_NS) == 0);
    MPI_Finalize();
    return 0;
}
