/*
 * Sorts by regular sampling: each process sorts its keys and sends p of them to all. From this sample
 * follows which process gets which keys, and messages carry them there.
 *
 *     sample_sort: 20000 keys, median 2130214864
 *
 * With an argument, it sorts that number of keys and prints the time.
 */
#include <bsp.h>
#include <string.h>

#include "common.h"

static int compare(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    int keys_of_all = argc > 1 ? atoi(argv[1]) : 20000;
    int p = bsp_nprocs(), me = bsp_pid();
    REQUIRE(keys_of_all >= p, "%d keys are too few for %d processes", keys_of_all, p);
    int begin = block_begin(keys_of_all, me, p);
    int count = block_begin(keys_of_all, me + 1, p) - begin;

    uint32_t *keys = allocate(count, sizeof *keys);
    uint32_t *sample = allocate((size_t)p * p, sizeof *sample);
    int *counts = allocate(p, sizeof *counts);
    bsp_push_reg(sample, p * p * (int)sizeof *sample);
    bsp_push_reg(counts, p * (int)sizeof *counts);
    for (int i = 0; i < count; i++)
        keys[i] = noise(begin + i);
    bsp_sync();
    double begun = bsp_time();
    qsort(keys, count, sizeof *keys, compare);
    bsp_sync();

    for (int s = 0; s < p; s++) {
        uint32_t key = keys[(int64_t)s * count / p];
        for (int to = 0; to < p; to++)
            bsp_put(to, &key, sample, (me * p + s) * (int)sizeof key, sizeof key);
    }
    bsp_sync();

    qsort(sample, (size_t)p * p, sizeof *sample, compare);
    for (int to = 0, first = 0; to < p; to++) {
        int last = first;
        while (last < count && (to == p - 1 || keys[last] < sample[(to + 1) * p]))
            last++;
        bsp_send(to, NULL, keys + first, (last - first) * (int)sizeof *keys);
        first = last;
    }
    bsp_sync();

    int messages, bytes;
    bsp_qsize(&messages, &bytes);
    int received = bytes / (int)sizeof *keys;
    uint32_t *sorted = allocate(received, sizeof *sorted);
    for (int at = 0; messages > 0; messages--) {
        int length;
        bsp_get_tag(&length, NULL);
        bsp_move(sorted + at, length);
        at += length / (int)sizeof *sorted;
    }
    qsort(sorted, received, sizeof *sorted, compare);
    for (int to = 0; to < p; to++)
        bsp_put(to, &received, counts, me * (int)sizeof received, sizeof received);
    bsp_sync();

    if (me == 0 && argc > 1)
        fprintf(stderr, "%.3f ms\n", 1e3 * (bsp_time() - begun));

    /* The sequential result, a part of which this process should have. */
    uint32_t *all = allocate(keys_of_all, sizeof *all);
    for (int i = 0; i < keys_of_all; i++)
        all[i] = noise(i);
    qsort(all, keys_of_all, sizeof *all, compare);
    int before = 0, total = 0;
    for (int from = 0; from < p; from++) {
        before += from < me ? counts[from] : 0;
        total += counts[from];
    }
    REQUIRE(total == keys_of_all, "%d keys of %d are left", total, keys_of_all);
    REQUIRE(memcmp(sorted, all + before, received * sizeof *sorted) == 0, "not sorted");
    if (me == 0)
        printf("sample_sort: %d keys, median %u\n", keys_of_all, (unsigned)all[keys_of_all / 2]);

    free(all);
    free(sorted);
    free(counts);
    free(sample);
    free(keys);
    bsp_end();
    return 0;
}
