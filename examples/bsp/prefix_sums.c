/*
 * Prefix sums over blocks, in log p supersteps. Each superstep doubles the number of preceding blocks
 * in the sum of a process. The result is compared with the collective.
 *
 *     prefix_sums: 5000 numbers, the last sum is 2460425
 */
#include <bsp.h>

#include "common.h"

enum { NUMBERS = 5000 };

static long number(int i)
{
    return (long)(noise(i) % 1000);
}

static void add(long *result, long *left, long *right, int *nbytes)
{
    (void)nbytes;
    *result = *left + *right;
}

int main(void)
{
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), me = bsp_pid();
    int begin = block_begin(NUMBERS, me, p), end = block_begin(NUMBERS, me + 1, p);

    long own = 0, left = 0;
    bsp_push_reg(&left, sizeof left);
    for (int i = begin; i < end; i++)
        own += number(i);
    bsp_sync();

    long upto = own;
    for (int distance = 1; distance < p; distance *= 2) {
        left = 0;
        /* The put arrives after the superstep, so it is not overwritten with 0. */
        if (me + distance < p)
            bsp_put(me + distance, &upto, &left, 0, sizeof upto);
        bsp_sync();
        upto += left;
    }
    long scanned;
    bsp_scan(add, &own, &scanned, sizeof own);
    REQUIRE(scanned == upto, "bsp_scan found %ld, not %ld", scanned, upto);

    long expected = 0, sum = upto - own;
    for (int i = 0; i < begin; i++)
        expected += number(i);
    for (int i = begin; i < end; i++) {
        expected += number(i);
        sum += number(i);
        REQUIRE(sum == expected, "sum %d is %ld, not %ld", i, sum, expected);
    }
    bsp_sync();
    if (me == p - 1)
        printf("prefix_sums: %d numbers, the last sum is %ld\n", NUMBERS, sum);

    bsp_end();
    return 0;
}
