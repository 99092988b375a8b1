/* Pairs of normally distributed numbers, counted by size, like the kernel EP of the NAS parallel
 * benchmarks, whose sums are known. Ranks communicate only at the end.
 *
 *     mpicc -O3 -o ep ep.c -lm && mpirun -n 4 ./ep [S|W|A]
 */
#include "common.h"
#include <math.h>

static const struct problem {
    char name;
    int log_pairs;
    double x, y;
} PROBLEMS[] = {
    {'S', 24, -3.247834652034740e+3, -6.958407078382297e+3},
    {'W', 25, -2.863319731645753e+3, -6.320053679109499e+3},
    {'A', 28, -4.295875165629892e+3, -1.580732573678431e+4},
};

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const struct problem *problem = &PROBLEMS[0];
    for (int i = 0; argc > 1 && i < 3; i++)
        if (PROBLEMS[i].name == argv[1][0])
            problem = &PROBLEMS[i];

    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    int64_t pairs = INT64_C(1) << problem->log_pairs;
    int64_t first = block_begin(pairs, rank, size), end = block_begin(pairs, rank + 1, size);
    uint64_t state = sequence_at(271828183, 2 * (uint64_t)first);
    double sums[2] = {0, 0}, counts[10] = {0};
    for (int64_t pair = first; pair < end; pair++) {
        double x = 2 * sequence_next(&state) - 1, y = 2 * sequence_next(&state) - 1;
        double square = x * x + y * y;
        if (square > 1)
            continue;
        double factor = sqrt(-2 * log(square) / square);
        x *= factor;
        y *= factor;
        counts[(int)fmax(fabs(x), fabs(y))]++;
        sums[0] += x;
        sums[1] += y;
    }
    MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, counts, 10, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    report("ep", began);
    if (fabs(sums[0] / problem->x - 1) > 1e-8 || fabs(sums[1] / problem->y - 1) > 1e-8)
        give_up("ep: the sums are %.15e and %.15e, not %.15e and %.15e", sums[0], sums[1],
                problem->x, problem->y);
    MPI_Finalize();
    return 0;
}
