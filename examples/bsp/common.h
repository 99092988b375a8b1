/*
 * Shared by the examples: input that is the same on all processes, blocks, and error handling.
 */
#ifndef EXAMPLES_BSP_COMMON_H
#define EXAMPLES_BSP_COMMON_H

#include <stdint.h>
#include <stdlib.h>

/* A pseudo-random number that depends on the argument only. */
static inline uint32_t noise(uint32_t of)
{
    of = (of ^ 61) ^ (of >> 16);
    of *= 9;
    of ^= of >> 4;
    of *= 0x27d4eb2d;
    return of ^ (of >> 15);
}

/* The first of n items on process pid of p, with blocks whose sizes differ by at most one. */
static inline int block_begin(int n, int pid, int p)
{
    return (int)((int64_t)n * pid / p);
}

/* The process that owns item i. */
static inline int block_owner(int n, int i, int p)
{
    return (int)(((int64_t)p * (i + 1) - 1) / n);
}

static inline void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        bsp_abort("no memory for %lu items", (unsigned long)count);
    return memory;
}

/* Ends the program if a result is wrong. */
#define REQUIRE(is_right, ...)          \
    do {                                \
        if (!(is_right))                \
            bsp_abort(__VA_ARGS__);     \
    } while (0)

#endif
