/*
 * Shared by the NAS kernels: problem class, random numbers, blocks, sums over all processes,
 * timing and the report. Each program includes it once.
 *
 * The kernels follow "The NAS Parallel Benchmarks", report RNR-94-007 of NASA Ames. The sizes and
 * the verification values are those of NPB 3.
 */
#ifndef EXAMPLES_BSP_NAS_H
#define EXAMPLES_BSP_NAS_H

#include <bsp.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAS_PI 3.14159265358979323846

/* Seconds that this process has spent in bsp_sync() since start_clock(). */
static double seconds_in_sync;

/* Ends a superstep. A macro, so that traces name the line of the kernel. */
#define SYNC()                                         \
    do {                                               \
        double entered = bsp_time();                   \
        bsp_sync();                                    \
        seconds_in_sync += bsp_time() - entered;       \
    } while (0)

/* The place of a class in tables: 0, 1 and 2 for S, W and A. */
static inline int class_index(int argc, char **argv)
{
    const char *class = argc > 1 ? argv[1] : "S";
    const char *found = strlen(class) == 1 ? strchr("SWA", class[0]) : NULL;
    if (!found)
        bsp_abort("the class is S, W or A, not %s\n", class);
    return (int)(found - "SWA");
}

static inline void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        bsp_abort("no memory for %lu items\n", (unsigned long)count);
    return memory;
}

/* The first of n items on process `pid`, with blocks whose sizes differ by at most one. */
static inline int block_begin(int n, int pid)
{
    return (int)((int64_t)n * pid / bsp_nprocs());
}

/* The process that owns item i of n. */
static inline int block_owner(int n, int i)
{
    return (int)(((int64_t)bsp_nprocs() * (i + 1) - 1) / n);
}

/*
 * Puts without a copy in between, or copies at once if the destination is this process. The
 * destination must not be in use from now on until the superstep ends.
 */
static inline void deliver(int pid, const void *from, void *to, int offset, int bytes)
{
    if (pid == bsp_pid())
        memcpy((char *)to + offset, from, bytes);
    else
        bsp_hpput(pid, from, to, offset, bytes);
}

/*
 * Random numbers of section 2.3: x' = a x mod 2^46, and the number is x' / 2^46. The 64-bit product
 * wraps, but its lower 46 bits are right.
 */
enum { RANDOM_BITS = 46 };
#define RANDOM_FACTOR UINT64_C(1220703125)

static inline uint64_t random_product(uint64_t a, uint64_t x)
{
    return (a * x) & ((UINT64_C(1) << RANDOM_BITS) - 1);
}

static inline double next_random(uint64_t *seed)
{
    *seed = random_product(RANDOM_FACTOR, *seed);
    return (double)*seed * (1.0 / (double)(UINT64_C(1) << RANDOM_BITS));
}

/* The seed after `count` numbers. */
static inline uint64_t skip_random(uint64_t seed, uint64_t count)
{
    for (uint64_t a = RANDOM_FACTOR; count; count >>= 1) {
        if (count & 1)
            seed = random_product(a, seed);
        a = random_product(a, a);
    }
    return seed;
}

/* Values of all processes for sums: each process puts into its own row of every table. */
enum { SUM_WIDTH = 64 };
static double *sum_table;

static inline void put_summands(const double *values, int n)
{
    for (int pid = 0; pid < bsp_nprocs(); pid++)
        bsp_put(pid, values, sum_table, (bsp_pid() * SUM_WIDTH) * (int)sizeof *values,
                n * (int)sizeof *values);
}

/* In the order of the processes, so that all get the same result. */
static inline void add_summands(double *values, int n)
{
    for (int i = 0; i < n; i++) {
        values[i] = 0;
        for (int pid = 0; pid < bsp_nprocs(); pid++)
            values[i] += sum_table[pid * SUM_WIDTH + i];
    }
}

/* Replaces n values by their sums over all processes, in one superstep. */
#define SUM(values, n)                \
    do {                              \
        put_summands(values, n);      \
        SYNC();                       \
        add_summands(values, n);      \
    } while (0)

/* Registers what SUM() uses. The first superstep of a program. */
static inline void prepare_sums(void)
{
    sum_table = allocate((size_t)bsp_nprocs() * SUM_WIDTH, sizeof *sum_table);
    bsp_push_reg(sum_table, bsp_nprocs() * SUM_WIDTH * (int)sizeof *sum_table);
    bsp_sync();
}

static inline double start_clock(void)
{
    bsp_sync();
    seconds_in_sync = 0;
    return bsp_time();
}

/* Compares a result with the published one, and prints both on process 0. */
static inline int is_close(const char *name, double value, double published, double tolerance)
{
    int is_right = fabs(value - published) <= tolerance * fabs(published);
    if (bsp_pid() == 0)
        printf("  %-12s %22.13e, published %22.13e%s\n", name, value, published,
               is_right ? "" : ": differs");
    return is_right;
}

/*
 * Prints the report on process 0, and returns the exit status. `seconds` is the time since
 * start_clock() on this process, `operations` the number that NPB counts for this problem.
 */
static inline int report(const char *kernel, int class, double seconds, double operations,
                         int is_right)
{
    int p = bsp_nprocs();
    double mine[3] = {seconds, seconds_in_sync, is_right ? 0 : 1};
    put_summands(mine, 3);
    bsp_sync();
    double slowest = 0, in_sync = 0;
    for (int pid = 0; pid < p; pid++) {
        const double *row = sum_table + pid * SUM_WIDTH;
        slowest = fmax(slowest, row[0]);
        in_sync += row[1] / p;
        is_right = is_right && row[2] == 0;
    }
    if (bsp_pid() == 0) {
        printf("%s class %c, %d process%s\n", kernel, "SWA"[class], p, p == 1 ? "" : "es");
        printf("  time          %.4f s\n", slowest);
        printf("  communication %.4f s (%.1f %%), in bsp_sync, mean of the processes\n", in_sync,
               100 * in_sync / slowest);
        printf("  rate          %.1f Mop/s\n", operations / slowest / 1e6);
        printf("VERIFICATION %s\n", is_right ? "SUCCESSFUL" : "FAILED");
    }
    return is_right ? 0 : 1;
}

#endif
