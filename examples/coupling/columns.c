/*
 * The BSP job: gets the plate in its own parts of rows, whatever parts the job that offers it has. It
 * reshuffles the plate to parts of columns, offers the means of the columns, and sends the plate to a program
 * that does not use Dipole, over one stream that all ranks write: columns BOARD INTERFACE VIEWER TAKERS
 */
#include <bsp.h>
#include <bsp_reshuffle.h>

#include "arrays.h"
#include "grid.h"

/* The endpoints of all ranks for the stream; rank 0 distributes the list. */
static int open_stream(const char *interface, const char *viewer)
{
    int me = bsp_pid(), p = bsp_nprocs();
    struct dp_address at, own, *all = calloc((size_t)p, sizeof *all);
    NEED(all && sscanf(interface, "%u:%u", &at.nid, &at.dpid) == 2);
    int fd = dp_open_with(DP_ANY, NULL);
    NEED(fd >= 0 && dp_own_address(fd, &own) == 0);
    bsp_push_reg(all, p * (int)sizeof *all);
    bsp_sync();
    for (int rank = 0; rank < p; rank++)
        bsp_put(rank, &own, all, me * (int)sizeof own, sizeof own);
    bsp_sync();
    int stream = dp_stream_open(fd, all, p, me, at, viewer, ARRAY_WAIT_NS);
    NEED(stream >= 0);
    bsp_pop_reg(all);
    bsp_sync();
    free(all);
    return stream;
}

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    if (argc != 5)
        bsp_abort("usage: columns NID:DPID NID:DPID HOST:PORT TAKERS");
    array_begin(argv[1]);
    int me = bsp_pid(), p = bsp_nprocs();
    uint64_t takers = strtoull(argv[4], NULL, 10);
    int stream = open_stream(argv[2], argv[3]);

    const size_t extents[] = { ROWS, COLUMNS };
    const int by_rows[] = { p, 1 }, by_columns[] = { 1, p };
    const size_t of_rows[] = { (size_t)(ROWS + p - 1) / (size_t)p, COLUMNS };
    const size_t of_columns[] = { ROWS, (size_t)(COLUMNS + p - 1) / (size_t)p };
    size_t have = bsp_distribution_elements(2, extents, by_rows, of_rows, me);
    size_t want = bsp_distribution_elements(2, extents, by_columns, of_columns, me);
    bsp_reshuffle_plan *plan = bsp_reshuffle_plan_create(2, extents, sizeof(double), by_rows,
                                                         of_rows, by_columns, of_columns);
    double *rows = calloc(have + 1, sizeof *rows), *columns = calloc(want + 1, sizeof *columns);
    double *means = calloc(COLUMNS, sizeof *means);
    if (!rows || !columns || !means)
        bsp_abort("no memory");
    uint32_t width = (uint32_t)(want / ROWS), left = (uint32_t)me * (uint32_t)of_columns[1];
    struct dp_layout layout = { .ranks = (uint32_t)p,
                                .block = of_rows[0] * COLUMNS * sizeof(double) };

    for (uint64_t step = 1; step <= STEPS; step++) {
        array_get("heat", step, (uint32_t)me * (uint32_t)of_rows[0],
                  (uint32_t)(have / COLUMNS), rows);
        bsp_reshuffle_execute(plan, rows, columns);
        for (uint32_t column = 0; column < width; column++)
            means[column] = mean(columns + column, (int)width);
        int region = width ? array_offer("means", step, COLUMNS, 1, left, width, means) : -1;
        if (me == 0) {
            char head[64];
            int length = snprintf(head, sizeof head, "%d %d\n", ROWS, COLUMNS);
            NEED(dp_stream_write_raw(stream, head, (size_t)length) == 0);
        }
        NEED(dp_stream_write(stream, &layout, ROWS * COLUMNS * sizeof(double), rows,
                             have * sizeof(double)) == 0);
        if (width)
            array_withdraw(region, width * takers);
    }
    NEED(dp_stream_close(stream) == 0);
    bsp_sync();
    if (me == 0)
        array_tell_board(BOARD_END, NULL);
    bsp_reshuffle_plan_destroy(plan);
    bsp_sync();
    free(rows);
    free(columns);
    free(means);
    NEED(dp_finalize(ARRAY_WAIT_NS) == 0);
    bsp_end();
    return 0;
}
