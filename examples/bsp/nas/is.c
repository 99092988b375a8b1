/*
 * NAS IS, "integer sort": ranks keys by buckets. An iteration takes two supersteps: processes
 * exchange the sizes of their buckets, then the keys, each to the process that ranks its bucket.
 *
 *     is [S|W|A]                any number of processes up to 512
 */
#include "nas.h"

enum { ITERATIONS = 10, TESTS = 5, BUCKET_BITS = 9, BUCKETS = 1 << BUCKET_BITS };

/* Keys whose ranks are published. Ranks rise or fall by one in each iteration, from `first` on. */
struct problem {
    int log_keys, log_range;
    int test_at[TESTS], test_rank[TESTS], rising, rising_first, falling_first;
};

static const struct problem PROBLEMS[] = {
    {16, 11, {48427, 17148, 23627, 62548, 4431}, {0, 18, 346, 64917, 65463}, 3, 0, 0},
    {20, 16, {357773, 934767, 875723, 898999, 404505},
     {1249, 11698, 1039987, 1043896, 1048018}, 2, 2, 0},
    {23, 19, {2112377, 662041, 5336171, 3642833, 4250760},
     {104, 17523, 123928, 8288932, 8388264}, 3, 1, 1},
};

static const struct problem *problem;
static int keys, range;

/* Keys of this process, in the given order and sorted by buckets, and the keys that it ranks. */
static int begin, end;
static int *own, *by_bucket, *received, room;

/* The sizes of the buckets on each process, and the keys whose ranks are tested. */
static int *sizes, tested[TESTS];

/* The buckets, keys and counts of this process; below[k] is the number of keys up to lowest + k. */
static int first_bucket, last_bucket, lowest, received_count, keys_before, *below;

static void make_keys(void)
{
    uint64_t seed = skip_random(314159265, (uint64_t)begin * 4);
    for (int i = 0; i < end - begin; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++)
            sum += next_random(&seed);
        own[i] = (int)(sum * (range / 4));
    }
}

static void set_key(int at, int key)
{
    if (at >= begin && at < end)
        own[at - begin] = key;
}

/* Sends everyone the sizes of the buckets here, and the tested keys that are here. */
static void put_sizes(int shift)
{
    int *mine = sizes + bsp_pid() * BUCKETS;
    memset(mine, 0, BUCKETS * sizeof *mine);
    for (int i = 0; i < end - begin; i++)
        mine[own[i] >> shift]++;
    for (int pid = 0; pid < bsp_nprocs(); pid++) {
        if (pid != bsp_pid())
            bsp_put(pid, mine, sizes, bsp_pid() * BUCKETS * (int)sizeof *mine,
                    BUCKETS * (int)sizeof *mine);
        for (int test = 0; test < TESTS; test++) {
            int at = problem->test_at[test];
            if (at >= begin && at < end)
                bsp_put(pid, &own[at - begin], tested, test * (int)sizeof *tested,
                        sizeof *tested);
        }
    }
}

/*
 * Gives each process consecutive buckets with about the same number of keys, and puts the keys:
 * those of lower processes come first in the memory of the receiver.
 */
static void put_keys(int shift)
{
    int p = bsp_nprocs(), me = bsp_pid();
    const int *mine = sizes + me * BUCKETS;
    int place[BUCKETS], sum = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        place[bucket] = sum;
        sum += mine[bucket];
    }
    for (int i = 0; i < end - begin; i++)
        by_bucket[place[own[i] >> shift]++] = own[i];

    int next = 0, ranked = 0, sent = 0;
    for (int pid = 0; pid < p; pid++) {
        int offset = 0, count = 0, total = 0, first = next;
        for (; next < BUCKETS && (pid == p - 1 || ranked + total < block_begin(keys, pid + 1)); next++) {
            for (int from = 0; from < p; from++) {
                int size = sizes[from * BUCKETS + next];
                total += size;
                offset += from < me ? size : 0;
            }
            count += mine[next];
        }
        if (total > room)
            bsp_abort("%d keys for process %d, but it has room for %d; use fewer processes\n",
                      total, pid, room);
        deliver(pid, by_bucket + sent, received, offset * (int)sizeof *received,
                  count * (int)sizeof *received);
        if (pid == me) {
            first_bucket = first;
            last_bucket = next;
            received_count = total;
            keys_before = ranked;
        }
        sent += count;
        ranked += total;
    }
}

static void count_keys(int shift)
{
    int width = (last_bucket - first_bucket) << shift;
    lowest = first_bucket << shift;
    memset(below, 0, (size_t)width * sizeof *below);
    for (int i = 0; i < received_count; i++)
        below[received[i] - lowest]++;
    for (int sum = 0, k = 0; k < width; k++)
        below[k] = sum += below[k];
}

/* The number of tested keys here whose rank is the published one. */
static int right_ranks(int iteration, int shift)
{
    int right = 0;
    for (int test = 0; test < TESTS; test++) {
        int key = tested[test] - 1;
        if (key < lowest || key >= last_bucket << shift)
            continue;
        int change = test < problem->rising ? iteration - problem->rising_first
                                            : problem->falling_first - iteration;
        right += keys_before + below[key - lowest] == problem->test_rank[test] + change;
    }
    return right;
}

static int iterate(int iteration)
{
    int shift = problem->log_range - BUCKET_BITS;
    set_key(iteration, iteration);
    set_key(iteration + ITERATIONS, range - iteration);
    put_sizes(shift);
    SYNC();
    put_keys(shift);
    SYNC();
    count_keys(shift);
    return right_ranks(iteration, shift);
}

/* The number of keys that have a place by their ranks, if these are in order here. */
static int sorted_keys(void)
{
    int *sorted = allocate(received_count, sizeof *sorted);
    for (int i = 0; i < received_count; i++)
        sorted[--below[received[i] - lowest]] = received[i];
    int is_sorted = 1;
    for (int i = 1; i < received_count; i++)
        is_sorted &= sorted[i - 1] <= sorted[i];
    free(sorted);
    return is_sorted ? received_count : 0;
}

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    int class = class_index(argc, argv), p = bsp_nprocs(), me = bsp_pid();
    if (p > BUCKETS)
        bsp_abort("%d processes, but there are only %d buckets\n", p, BUCKETS);
    problem = &PROBLEMS[class];
    keys = 1 << problem->log_keys;
    range = 1 << problem->log_range;
    begin = block_begin(keys, me);
    end = block_begin(keys, me + 1);
    /* A bucket in the middle of the distribution has less than 1/100 of the keys. */
    room = keys / p + keys / 100;
    own = allocate(end - begin, sizeof *own);
    by_bucket = allocate(end - begin, sizeof *by_bucket);
    received = allocate(room, sizeof *received);
    sizes = allocate(p * BUCKETS, sizeof *sizes);
    below = allocate(range, sizeof *below);
    bsp_push_reg(received, room * (int)sizeof *received);
    bsp_push_reg(sizes, p * BUCKETS * (int)sizeof *sizes);
    bsp_push_reg(tested, sizeof tested);
    prepare_sums();

    make_keys();
    iterate(1);
    double start = start_clock();
    double results[2] = {0, 0};
    for (int iteration = 1; iteration <= ITERATIONS; iteration++)
        results[0] += iterate(iteration);
    double seconds = bsp_time() - start;

    results[1] = sorted_keys();
    SUM(results, 2);
    int is_right = is_close("right ranks", results[0], ITERATIONS * TESTS, 0) &
                   is_close("sorted keys", results[1], keys, 0);
    int status = report("IS", class, seconds, (double)ITERATIONS * keys, is_right);
    bsp_end();
    return status;
}
