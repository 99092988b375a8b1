/* Shared by the examples: random numbers that any rank can compute, blocks, and error handling. */
#ifndef EXAMPLES_MPI_COMMON_H
#define EXAMPLES_MPI_COMMON_H

#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Prints an error and ends the job. */
static inline void give_up(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

static inline void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count ? count : 1, bytes);
    if (!memory)
        give_up("no memory for %zu items of %zu bytes", count, bytes);
    return memory;
}

/* The sequence of the NAS parallel benchmarks: x -> 5^13 x modulo 2^46. */
#define SEQUENCE_FACTOR UINT64_C(1220703125)
#define SEQUENCE_MASK ((UINT64_C(1) << 46) - 1)

/* The number n steps after a seed. */
static inline uint64_t sequence_at(uint64_t seed, uint64_t n)
{
    uint64_t factor = SEQUENCE_FACTOR;
    for (; n; n >>= 1) {
        if (n & 1)
            seed = seed * factor & SEQUENCE_MASK;
        factor = factor * factor & SEQUENCE_MASK;
    }
    return seed;
}

/* The next number, between 0 and 1. */
static inline double sequence_next(uint64_t *state)
{
    *state = *state * SEQUENCE_FACTOR & SEQUENCE_MASK;
    return (double)*state * (1.0 / (double)(UINT64_C(1) << 46));
}

/* The first of n items on a rank, with blocks whose sizes differ by at most one. */
static inline int64_t block_begin(int64_t n, int rank, int size)
{
    return n * rank / size;
}

/* Prints the time of the slowest rank. */
static inline void report(const char *name, double began)
{
    double took = MPI_Wtime() - began, longest;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s: right on %d ranks, %.3f s\n", name, size, longest);
}

#endif
