/* Times the cases of reshuffle.c with ScaLAPACK's pdgemr2d. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

void Cblacs_get(int context, int what, int *value);
void Cblacs_gridinit(int *context, const char *order, int rows, int columns);
void pdgemr2d_(const int *m, const int *n, const double *a, const int *ia, const int *ja,
               const int *desca, double *b, const int *ib, const int *jb, const int *descb,
               const int *context);

static void describe(int *it, int context, int rows, int columns, int leading)
{
    const int all[] = {1, context, N, N, rows, columns, 0, 0, leading};
    memcpy(it, all, sizeof all);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int p, me;
    MPI_Comm_size(MPI_COMM_WORLD, &p);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    int tall, wide, one = 1, n = N;
    Cblacs_get(-1, 0, &tall);
    Cblacs_gridinit(&tall, "R", p, 1);
    Cblacs_get(-1, 0, &wide);
    Cblacs_gridinit(&wide, "R", 1, p);
    size_t most = ((size_t)N * N / (size_t)p + 64 * N) * sizeof(double);
    double *src = malloc(most), *dst = malloc(most);
    if (!src || !dst)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(src, 1, most);
    memset(dst, 1, most);
    for (int which = 0; which < CASES; which++) {
        const int rows = part(cases[which].rows, p);
        const int columns = cases[which].columns ? cases[which].columns : N;
        const int columns_after = part(cases[which].columns_after, p);
        const int rows_after = cases[which].rows_after ? cases[which].rows_after : N;
        int height = 0, width = 0;
        for (int row = 0; row < N; row++)
            height += row / rows % p == me;
        for (int column = 0; column < N; column++)
            width += column / columns_after % p == me;
        int from[9], to[9];
        describe(from, tall, rows, columns, height);
        describe(to, wide, rows_after, columns_after, N);
        size_t at = 0;
        for (int column = 0; column < N; column++)
            for (int place = 0; place < height; place++)
                src[at++] = element((place / rows * p + me) * rows + place % rows, column);
        double least = 1e9;
        for (int time = 0; time < TIMES; time++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double began = MPI_Wtime();
            pdgemr2d_(&n, &n, src, &one, &one, from, dst, &one, &one, to, &tall);
            MPI_Barrier(MPI_COMM_WORLD);
            double took = MPI_Wtime() - began;
            if (took < least)
                least = took;
        }
        for (int column = 0; column < width; column++)
            for (int row = 0; row < N; row++) {
                int block = column / columns_after * p + me;
                int there = block * columns_after + column % columns_after;
                if (dst[(size_t)column * N + row] != element(row, there)) {
                    fprintf(stderr, "%s: wrong\n", cases[which].name);
                    MPI_Abort(MPI_COMM_WORLD, 1);
                }
            }
        if (me == 0)
            printf("%s %.6f\n", cases[which].name, least);
    }
    MPI_Finalize();
    return 0;
}
