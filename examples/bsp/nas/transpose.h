/*
 * Shared by SP and BT: solving along z. The planes of z go to the processes that own their rows,
 * [row_begin, row_end) of all inner planes, and come back after the solution. Every row is
 * contiguous in both orders, so that a process sends one message per plane to each other process.
 */
#ifndef EXAMPLES_BSP_NAS_TRANSPOSE_H
#define EXAMPLES_BSP_NAS_TRANSPOSE_H

#include "flow.h"

static int row_begin, row_end;

/* The inner planes of u and of the right side, only with the rows of this process. */
static double *turned_u, *turned_right;

static inline int turned_at(int x, int y, int z)
{
    return ((z - 1) * (row_end - row_begin) + y - row_begin) * n + x;
}

static inline void make_turned(void)
{
    row_begin = begin;
    row_end = end;
    int size = doubles((n - 2) * (row_end - row_begin));
    turned_u = allocate(size, sizeof *turned_u);
    turned_right = allocate(size, sizeof *turned_right);
    bsp_push_reg(turned_u, size * (int)sizeof *turned_u);
    bsp_push_reg(turned_right, size * (int)sizeof *turned_right);
}

/* Puts the rows of the planes of this process to their owners. */
static inline void put_turned(double *turned, const double *planes)
{
    for (int pid = 0; pid < bsp_nprocs(); pid++) {
        int first = begin_of(pid), rows = begin_of(pid + 1) - first;
        int bytes = doubles(rows) * (int)sizeof *turned;
        for (int z = begin; z < end; z++)
            deliver(pid, planes + PARTS * at(0, first, z), turned, (z - 1) * bytes, bytes);
    }
}

/* Puts the rows of this process back into the planes. */
static inline void put_back(double *planes, const double *turned)
{
    for (int pid = 0; pid < bsp_nprocs(); pid++)
        for (int z = begin_of(pid); z < begin_of(pid + 1); z++) {
            int there = ((z - begin_of(pid) + 2) * n + row_begin) * n;
            deliver(pid, turned + PARTS * turned_at(0, row_begin, z), planes,
                      PARTS * there * (int)sizeof *planes,
                      doubles(row_end - row_begin) * (int)sizeof *planes);
        }
}

/* Runs the steps of a problem from the initial state, and returns the seconds. */
static inline double run(int steps, void step(void))
{
    start_flow();
    put_turned(turned_u, u);
    double start = start_clock();
    for (int i = 0; i < steps; i++)
        step();
    return bsp_time() - start;
}

/*
 * A whole program: the problem of the class on the command line. operations are the factors of n^3,
 * n^2, n and 1 in NPB's number of operations per step. Returns the exit status.
 */
static inline int solve(const char *kernel, const struct flow_problem *problems, void step(void),
                        const double operations[4], int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    int class = class_index(argc, argv);
    const struct flow_problem *problem = &problems[class];
    make_grid(problem);
    make_turned();
    prepare_sums();

    /* One step before the clock starts, so that all memory is in use. */
    run(1, step);
    double seconds = run(problem->steps, step);
    double sums[2 * PARTS] = {0};
    compute_right();
    add_squares(sums);
    SUM(sums, 2 * PARTS);
    double per_step = ((operations[0] * n + operations[1]) * n + operations[2]) * n + operations[3];
    int status = report(kernel, class, seconds, problem->steps * per_step,
                        are_norms_close(problem, sums));
    bsp_end();
    return status;
}

#endif
