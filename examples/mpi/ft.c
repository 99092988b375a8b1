/* A Fourier transform in two dimensions and back, like the kernel FT of the NAS parallel
 * benchmarks. Rows are distributed in blocks. Between the dimensions all ranks transpose the matrix.
 *
 *     mpicc -O3 -o ft ft.c -lm && mpirun -n 4 ./ft [LOG2_SIDE [ITERATIONS]]
 */
#include "common.h"
#include <complex.h>
#include <math.h>
#include <string.h>

typedef double complex number;

static int rank, size, side, own;
static number *roots;
static number *packed;

/* Transforms one row in place. The inverse is not divided by the length. */
static void transform(number *row, int inverse)
{
    for (int i = 1, j = 0; i < side; i++) {
        int bit = side >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            number other = row[i];
            row[i] = row[j];
            row[j] = other;
        }
    }
    for (int length = 2; length <= side; length *= 2)
        for (int begin = 0; begin < side; begin += length)
            for (int i = 0; i < length / 2; i++) {
                number root = roots[side / length * i];
                number even = row[begin + i];
                number odd = row[begin + i + length / 2] * (inverse ? conj(root) : root);
                row[begin + i] = even + odd;
                row[begin + i + length / 2] = even - odd;
            }
}

/* Transposes the matrix: each pair of ranks exchanges a square. */
static void transpose(number *from, number *to)
{
    for (int other = 0; other < size; other++)
        for (int i = 0; i < own; i++)
            for (int j = 0; j < own; j++)
                packed[(other * own + j) * own + i] = from[i * side + other * own + j];
    MPI_Alltoall(packed, own * own, MPI_C_DOUBLE_COMPLEX, from, own * own, MPI_C_DOUBLE_COMPLEX,
                 MPI_COMM_WORLD);
    for (int other = 0; other < size; other++)
        for (int j = 0; j < own; j++)
            memcpy(&to[j * side + other * own], &from[(other * own + j) * own],
                   sizeof(number) * (size_t)own);
}

static void both_dimensions(number *area, number *other, int inverse)
{
    for (int i = 0; i < own; i++)
        transform(area + i * side, inverse);
    transpose(area, other);
    for (int i = 0; i < own; i++)
        transform(other + i * side, inverse);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    side = 1 << (argc > 1 ? atoi(argv[1]) : 9);
    int iterations = argc > 2 ? atoi(argv[2]) : 5;
    own = side / size;
    if (own * size != side)
        give_up("ft: %d rows cannot be dealt out evenly to %d ranks", side, size);
    size_t numbers = (size_t)own * (size_t)side;
    number *given = allocate(numbers, sizeof *given), *area = allocate(numbers, sizeof *area);
    number *other = allocate(numbers, sizeof *other);
    packed = allocate(numbers, sizeof *packed);
    roots = allocate((size_t)side / 2 + 1, sizeof *roots);
    for (int i = 0; i < side / 2; i++)
        roots[i] = cexp(-2 * acos(-1) * I * i / side);
    uint64_t state = sequence_at(314159265, 2 * numbers * (uint64_t)rank);
    double energy[2] = {0, 0};
    for (size_t i = 0; i < numbers; i++) {
        double real = sequence_next(&state);
        given[i] = area[i] = real + sequence_next(&state) * I;
        energy[0] += creal(given[i] * conj(given[i]));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime(), scale = 1.0 / side / side;
    for (int iteration = 0; iteration < iterations; iteration++) {
        both_dimensions(area, other, 0);
        if (iteration == 0)
            for (size_t i = 0; i < numbers; i++)
                energy[1] += creal(other[i] * conj(other[i])) * scale;
        both_dimensions(other, area, 1);
        for (size_t i = 0; i < numbers; i++)
            area[i] *= scale;
    }
    report("ft", began);
    MPI_Allreduce(MPI_IN_PLACE, energy, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (fabs(energy[1] / energy[0] - 1) > 1e-10)
        give_up("ft: the energy was %.12g and is %.12g", energy[0], energy[1]);
    for (size_t i = 0; i < numbers; i++)
        if (cabs(area[i] - given[i]) > 1e-9)
            give_up("ft: number %zu of rank %d differs after there and back", i, rank);
    MPI_Finalize();
    return 0;
}
