/*
 * What the examples share: input that is the same on all processes, blocks, and a way to give up.
 */
#ifndef EXAMPLES_BSP_COMMON_H
#define EXAMPLES_BSP_COMMON_H

#include <stdint.h>
#include <stdlib.h>

/* A number that looks random and depends on its argument only. */
static inline uint32_t noise(uint32_t of)
{
    of = (of ^ 61) ^ (of >> 16);
    of *= 9;
    of ^= of >> 4;
    of *= 0x27d4eb2d;
    return of ^ (of >> 15);
}

/* The first of n items that process pid of p has, in blocks that differ by one at most. */
static inline int block_begin(int n, int pid, int p)
{
    return (int)((int64_t)n * pid / p);
}

/* The process that has item i. */
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

/* Ends the program unless a result is as it should be. */
#define REQUIRE(is_right, ...)          \
    do {                                \
        if (!(is_right))                \
            bsp_abort(__VA_ARGS__);     \
    } while (0)

#endif
