/* Conjugate gradients with a sparse matrix whose nonzero entries are at random positions, like the
 * kernel CG of the NAS parallel benchmarks. Rows are distributed in blocks. In each iteration all
 * ranks exchange their parts of a vector and add up two numbers.
 *
 *     mpicc -O3 -o cg cg.c -lm && mpirun -n 4 ./cg [ROWS [NONZEROS [ITERATIONS [SOLVES]]]]
 */
#include "common.h"
#include <math.h>

static int rank, size;

static double dot(const double *x, const double *y, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * y[i];
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int rows = argc > 1 ? atoi(argv[1]) : 14000, each = argc > 2 ? atoi(argv[2]) : 11;
    int iterations = argc > 3 ? atoi(argv[3]) : 60, solves = argc > 4 ? atoi(argv[4]) : 10;
    int begin = (int)block_begin(rows, rank, size), end = (int)block_begin(rows, rank + 1, size);
    int own = end - begin;

    /* Entry k of row i is at (i, j) and, so that the matrix is symmetric, at (j, i). All ranks
     * generate all entries and keep those in their rows: a first pass counts, a second one stores. */
    int *first = allocate((size_t)own + 1, sizeof *first);
    int *next = allocate((size_t)own, sizeof *next), *column = NULL;
    double *entry = NULL, *sum = allocate((size_t)own, sizeof *sum);
    for (int pass = 0; pass < 2; pass++) {
        uint64_t state = 314159265;
        for (int i = 0; i < rows; i++)
            for (int k = 0; k < each; k++) {
                int j = (int)(sequence_next(&state) * rows);
                double number = sequence_next(&state) - 0.5;
                int ends[2] = {i, j};
                for (int side = 0; side < (i == j ? 1 : 2); side++) {
                    int row = ends[side] - begin;
                    if (row < 0 || row >= own)
                        continue;
                    if (pass) {
                        column[next[row]] = ends[1 - side];
                        entry[next[row]] = number;
                        sum[row] += fabs(number);
                    }
                    next[row]++;
                }
            }
        if (pass)
            break;
        for (int i = 0; i < own; i++) {
            first[i + 1] = first[i] + next[i];
            next[i] = first[i];
        }
        column = allocate((size_t)first[own], sizeof *column);
        entry = allocate((size_t)first[own], sizeof *entry);
    }
    int *count = allocate((size_t)size, sizeof *count), *at = allocate((size_t)size, sizeof *at);
    for (int other = 0; other < size; other++) {
        at[other] = (int)block_begin(rows, other, size);
        count[other] = (int)block_begin(rows, other + 1, size) - at[other];
    }

    /* A dominant diagonal makes the matrix positive definite. The right side is chosen so that the
     * solution is 1 everywhere. */
    double *x = allocate((size_t)own, sizeof *x), *r = allocate((size_t)own, sizeof *r);
    double *p = allocate((size_t)own, sizeof *p), *ap = allocate((size_t)own, sizeof *ap);
    double *whole = allocate((size_t)rows, sizeof *whole);
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (int solve = 0; solve < solves; solve++) {
        for (int i = 0; i < own; i++) {
            x[i] = 0;
            r[i] = sum[i] + 0.1;
            for (int k = first[i]; k < first[i + 1]; k++)
                r[i] += entry[k];
            p[i] = r[i];
        }
        double square = dot(r, r, own), first_square = square;
        for (int iteration = 0; iteration < iterations && square > first_square * 1e-26; iteration++) {
            MPI_Allgatherv(p, own, MPI_DOUBLE, whole, count, at, MPI_DOUBLE, MPI_COMM_WORLD);
            for (int i = 0; i < own; i++) {
                ap[i] = (sum[i] + 0.1) * p[i];
                for (int k = first[i]; k < first[i + 1]; k++)
                    ap[i] += entry[k] * whole[column[k]];
            }
            double step = square / dot(p, ap, own);
            for (int i = 0; i < own; i++) {
                x[i] += step * p[i];
                r[i] -= step * ap[i];
            }
            double now = dot(r, r, own);
            for (int i = 0; i < own; i++)
                p[i] = r[i] + now / square * p[i];
            square = now;
        }
    }
    report("cg", began);
    for (int i = 0; i < own; i++)
        if (fabs(x[i] - 1) > 1e-8)
            give_up("cg: after %d iterations number %d is %.12g, not 1", iterations, begin + i, x[i]);
    MPI_Finalize();
    return 0;
}
