/* Sorts keys by counting, repeatedly, like the kernel IS of the NAS parallel benchmarks. In each
 * iteration all ranks count their keys, then send each other the keys that belong there.
 *
 *     mpicc -O3 -o is is.c && mpirun -n 4 ./is [LOG2_KEYS [ITERATIONS]]
 */
#include "common.h"
#include <string.h>

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int log_keys = argc > 1 ? atoi(argv[1]) : 20, iterations = argc > 2 ? atoi(argv[2]) : 10;
    enum { BUCKETS = 1024, LOG_BUCKETS = 10 };
    int log_most = log_keys > 15 ? log_keys - 4 : 11, shift = log_most - LOG_BUCKETS;
    int64_t keys = INT64_C(1) << log_keys;
    int64_t begin = block_begin(keys, rank, size);
    int own = (int)(block_begin(keys, rank + 1, size) - begin);
    int *key = allocate((size_t)own, sizeof *key), *sorted = allocate((size_t)own, sizeof *key);
    uint64_t state = sequence_at(314159265, 4 * (uint64_t)begin);
    for (int i = 0; i < own; i++) {
        double sum = 0;
        for (int j = 0; j < 4; j++)
            sum += sequence_next(&state);
        key[i] = (int)((1 << log_most) / 4 * sum);
    }
    int *to_count = allocate((size_t)size, sizeof(int)), *to_at = allocate((size_t)size, sizeof(int));
    int *from_count = allocate((size_t)size, sizeof(int));
    int *from_at = allocate((size_t)size, sizeof(int)), *got = NULL;
    int counts[BUCKETS], totals[BUCKETS], next[BUCKETS], owner[BUCKETS], came = 0;

    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (int iteration = 0; iteration < iterations; iteration++) {
        if (own) {
            /* Changes the keys, so that each iteration sorts other ones. */
            key[iteration % own] = iteration;
            key[(iteration + iterations) % own] = (1 << log_most) - 1 - iteration;
        }
        memset(counts, 0, sizeof counts);
        for (int i = 0; i < own; i++)
            counts[key[i] >> shift]++;
        MPI_Allreduce(counts, totals, BUCKETS, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        memset(to_count, 0, sizeof(int) * (size_t)size);
        int64_t before = 0;
        for (int bucket = 0, at = 0; bucket < BUCKETS; bucket++) {
            owner[bucket] = (int)(before * size / keys);
            to_count[owner[bucket]] += counts[bucket];
            before += totals[bucket];
            next[bucket] = at;
            at += counts[bucket];
        }
        for (int i = 0; i < own; i++)
            sorted[next[key[i] >> shift]++] = key[i];
        MPI_Alltoall(to_count, 1, MPI_INT, from_count, 1, MPI_INT, MPI_COMM_WORLD);
        came = 0;
        for (int other = 0, at = 0; other < size; other++) {
            to_at[other] = at;
            at += to_count[other];
            from_at[other] = came;
            came += from_count[other];
        }
        free(got);
        got = allocate((size_t)came, sizeof *got);
        MPI_Alltoallv(sorted, to_count, to_at, MPI_INT, got, from_count, from_at, MPI_INT,
                      MPI_COMM_WORLD);
    }
    /* Sorts the received keys by counting. */
    int *ranked = allocate((size_t)1 << log_most, sizeof *ranked);
    int least = (1 << log_most) - 1, most = 0;
    for (int i = 0; i < came; i++) {
        ranked[got[i]]++;
        least = got[i] < least ? got[i] : least;
        most = got[i] > most ? got[i] : most;
    }
    report("is", began);

    int64_t numbers[2] = {came, 0}, sums[2], given = 0, all_given;
    for (int i = 0; i < came; i++)
        numbers[1] += got[i];
    for (int i = 0; i < own; i++)
        given += key[i];
    MPI_Allreduce(numbers, sums, 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&given, &all_given, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (sums[0] != keys || sums[1] != all_given)
        give_up("is: %lld keys with sum %lld were sorted, %lld with sum %lld given",
                (long long)sums[0], (long long)sums[1], (long long)keys, (long long)all_given);
    int below = -1;
    MPI_Exscan(&most, &below, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (came && rank > 0 && below >= least)
        give_up("is: rank %d has key %d, a rank before it %d", rank, least, below);
    for (int i = 0; came && i < least; i++)
        if (ranked[i])
            give_up("is: rank %d has a key below its least", rank);
    free(got);
    MPI_Finalize();
    return 0;
}
