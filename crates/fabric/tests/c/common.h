/* Shared by the test programs: checks that end the job, and numbers that all ranks can compute. */
#ifndef FABRIC_TESTS_COMMON_H
#define FABRIC_TESTS_COMMON_H

#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

/* Prints what was wrong and ends the job. */
static inline void fail(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "rank %d: %s:%d: ", rank, file, line);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

#define CHECK(condition, ...)                                                                     \
    do {                                                                                          \
        if (!(condition))                                                                         \
            fail(__FILE__, __LINE__, __VA_ARGS__);                                                \
    } while (0)

/* A pseudo-random number that depends only on its argument. */
static inline uint64_t mixed(uint64_t n)
{
    n *= 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return n ^ (n >> 31);
}

/* The item of rank `from` at index `at` in round `round`: small, so that sums stay exact. */
static inline int value(int from, int at, int round)
{
    return (int)(mixed(((uint64_t)round << 40) ^ ((uint64_t)from << 24) ^ (uint64_t)at) % 1000);
}

static inline void *allocate(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    CHECK(memory, "no memory for %zu bytes", bytes);
    return memory;
}

/* The bytes of message number `id`. */
static inline void fill(unsigned char *memory, size_t bytes, uint64_t id)
{
    size_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        uint64_t word = mixed(id + at);
        memcpy(memory + at, &word, 8);
    }
    for (; at < bytes; at++)
        memory[at] = (unsigned char)mixed(id + at);
}

static inline void check_filled(const unsigned char *memory, size_t bytes, uint64_t id,
                                const char *what)
{
    size_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        uint64_t word, wanted = mixed(id + at);
        memcpy(&word, memory + at, 8);
        CHECK(word == wanted, "%s: byte %zu of %zu of message %llu is wrong", what, at, bytes,
              (unsigned long long)id);
    }
    for (; at < bytes; at++)
        CHECK(memory[at] == (unsigned char)mixed(id + at),
              "%s: byte %zu of %zu of message %llu is wrong", what, at, bytes,
              (unsigned long long)id);
}

static inline void begin(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
}

static inline int finish(const char *name)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s: all right on %d ranks\n", name, size);
    MPI_Finalize();
    return 0;
}

#endif
