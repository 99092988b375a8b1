/* Measures supersteps of an MPI library, like `dipole calibrate supersteps` those of Dipole.
 *
 *     mpicc -O3 -o superstep superstep.c
 *     mpirun -n P ./superstep SECONDS SAMPLES MOST_BYTES CORE,CORE,..|-
 *
 * Supersteps are a barrier or MPI_Alltoallv with known counts ("alltoallv"), MPI_Put between fences
 * ("put"), and an exchange of counts before MPI_Alltoallv, as a BSPlib on MPI needs it ("bsponmpi").
 * Prints a line of JSON for each measurement, as `dipole superstep-rank` does. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum call { ALLTOALLV, PUT, BSPONMPI, CALLS };
enum pattern { NOTHING, WORD, EXCHANGE, GATHER, SCATTER, RANDOM, SPRAY };
enum { MOST_EACH = 2000, VECTOR = 1024, MOST_MESSAGES = 1024, TRIALS = 3, FEWEST_SAMPLES = 6 };

static const char *const CALL_NAMES[] = {"alltoallv", "put", "bsponmpi"};

static int rank, size, samples;
static double seconds;
static size_t most;
static char *area, *source;
static MPI_Win window;
static int *out, *in, *out_at, *in_at;

static double now_ns(void)
{
    return MPI_Wtime() * 1e9;
}

/* Returns the n-th number of a random sequence that is the same in all ranks. */
static uint64_t mixed(uint64_t n)
{
    n *= 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return n ^ (n >> 31);
}

static size_t random_bytes(uint64_t step, int from, int to)
{
    return mixed((step * size + from) * size + to) % (2 * most / size);
}

/* Returns the bytes that `from` sends to `to`. */
static size_t bytes_of(enum pattern pattern, size_t h, uint64_t step, int from, int to)
{
    if (from == to && size > 1)
        return 0;
    size_t part = h / (size > 1 ? size - 1 : 1);
    switch (pattern) {
    case WORD:
        return to == (from + 1) % size ? 8 : 0;
    case EXCHANGE:
        return part;
    case GATHER:
        return to == 0 ? part : 0;
    case SCATTER:
        return from == 0 ? part : 0;
    case RANDOM:
        return random_bytes(step, from, to);
    default:
        return 0;
    }
}

static void superstep(enum call call, enum pattern pattern, size_t h, uint64_t step)
{
    if (pattern == NOTHING && call == ALLTOALLV) {
        MPI_Barrier(MPI_COMM_WORLD);
        return;
    }
    size_t slot = pattern == RANDOM ? 2 * most / size : h / (size > 1 ? size - 1 : 1);
    if (pattern == WORD)
        slot = 8;
    for (int other = 0; other < size; other++) {
        out[other] = bytes_of(pattern, h, step, rank, other);
        in[other] = call == BSPONMPI ? 0 : bytes_of(pattern, h, step, other, rank);
        out_at[other] = 0;
        in_at[other] = other * slot;
    }
    if (call == PUT) {
        for (int turn = 0; turn < size; turn++) {
            int to = (rank + 1 + turn) % size;
            if (out[to] > 0)
                MPI_Put(source, out[to], MPI_BYTE, to, rank * slot, out[to], MPI_BYTE, window);
        }
        MPI_Win_fence(0, window);
        return;
    }
    if (call == BSPONMPI)
        MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
    MPI_Alltoallv(source, out, out_at, MPI_BYTE, area, in, in_at, MPI_BYTE, MPI_COMM_WORLD);
}

/* Rank 0 sends messages one by one, rank 1 returns them when it has received all. */
static void spray(enum call call, size_t bytes, int messages)
{
    static MPI_Request requests[MOST_MESSAGES];
    static MPI_Status statuses[MOST_MESSAGES];
    for (int turn = 0; turn < 2; turn++) {
        if (call == PUT) {
            for (int i = 0; rank == turn && i < messages; i++)
                MPI_Put(source, bytes, MPI_BYTE, 1 - turn, i * bytes, bytes, MPI_BYTE, window);
            MPI_Win_fence(0, window);
        } else if (rank < 2) {
            for (int i = 0; i < messages; i++)
                if (rank == turn)
                    MPI_Isend(source, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &requests[i]);
                else
                    MPI_Irecv(area + i * bytes, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD,
                              &requests[i]);
            MPI_Waitall(messages, requests, statuses);
        }
    }
}

static void perform(enum call call, enum pattern pattern, size_t h, uint64_t step, int messages)
{
    if (pattern == SPRAY)
        spray(call, h, messages);
    else
        superstep(call, pattern, h, step);
}

/* Returns the most bytes that a process sends or receives in a superstep. */
static double h_of(enum pattern pattern, size_t h, uint64_t step)
{
    size_t largest = 0;
    for (int one = 0; one < size; one++) {
        size_t sent = 0, received = 0;
        for (int other = 0; other < size; other++) {
            sent += bytes_of(pattern, h, step, one, other);
            received += bytes_of(pattern, h, step, other, one);
        }
        largest = sent > largest ? sent : largest;
        largest = received > largest ? received : largest;
    }
    return (double)largest;
}

static void measure(const char *what, enum call call, enum pattern pattern, size_t h, int messages)
{
    int is_each = strcmp(what, "each-sync") == 0;
    double begun, once = 1e18;
    for (int trial = 0; trial < TRIALS; trial++) {
        begun = now_ns();
        perform(call, pattern, h, 0, messages);
        double took = now_ns() - begun;
        once = took < once ? took : once;
    }
    /* Long supersteps are repeated less often, but as often as a confidence interval needs. */
    long fitting = (long)(seconds * 1e9 / once);
    long fewest = samples < FEWEST_SAMPLES ? samples : FEWEST_SAMPLES;
    fewest = fitting < fewest ? fewest : fitting < samples ? fitting : samples;
    long plan[2] = {fewest, fitting / fewest};
    if (is_each)
        plan[0] = fitting < fewest ? fewest : fitting > MOST_EACH ? MOST_EACH : fitting;
    if (is_each || pattern == RANDOM || plan[1] < 1)
        plan[1] = 1;
    MPI_Bcast(plan, 2, MPI_LONG, 0, MPI_COMM_WORLD);
    double *took = malloc(plan[0] * sizeof *took);
    MPI_Barrier(MPI_COMM_WORLD);
    if (call == PUT)
        MPI_Win_fence(0, window);
    for (long sample = 0; sample < plan[0]; sample++) {
        begun = now_ns();
        for (long i = 0; i < plan[1]; i++)
            perform(call, pattern, h, sample, messages);
        took[sample] = (now_ns() - begun) / plan[1];
    }
    if (rank == 0) {
        const char *name = CALL_NAMES[call];
        printf("{\"what\":\"%s\",\"call\":\"%s\",\"rank\":0,\"bytes\":%zu,\"messages\":%d,\"ns\":[",
               what, name, h, messages);
        for (long i = 0; i < plan[0]; i++)
            printf("%s%.1f", i ? "," : "", took[i]);
        printf("],\"h\":[");
        for (long i = 0; pattern == RANDOM && i < plan[0]; i++)
            printf("%s%.0f", i ? "," : "", h_of(pattern, h, i));
        printf("]}\n");
        fflush(stdout);
    }
    free(took);
}

/* Multiplications and additions of y += a x; rank 0 prints what all ranks measured. */
static void flops(void)
{
    static double x[VECTOR], y[VECTOR];
    double *own = malloc(samples * sizeof *own), *all = malloc(size * samples * sizeof *all);
    for (int i = 0; i < VECTOR; i++)
        x[i] = i, y[i] = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int sample = 0; sample < samples; sample++) {
        double begun = now_ns(), took;
        long turns = 0;
        do {
            double a = turns % 2 ? -0.5 : 0.5;
            for (int i = 0; i < VECTOR; i++)
                y[i] += a * x[i];
            __asm__ volatile("" : : "r"(y) : "memory");
            turns++;
            took = now_ns() - begun;
        } while (took < seconds * 1e9 / samples);
        own[sample] = took / (2.0 * VECTOR * turns);
    }
    MPI_Gather(own, samples, MPI_DOUBLE, all, samples, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (int from = 0; rank == 0 && from < size; from++) {
        printf("{\"what\":\"flops\",\"call\":\"\",\"rank\":%d,\"bytes\":0,\"messages\":0,\"ns\":[",
               from);
        for (int sample = 0; sample < samples; sample++)
            printf("%s%.3f", sample ? "," : "", all[from * samples + sample]);
        printf("],\"h\":[]}\n");
    }
    fflush(stdout);
    free(own);
    free(all);
}

static void pin(const char *cores)
{
    int own = rank, core = 0;
    char *end;
    do {
        core = (int)strtol(cores, &end, 10);
        cores = *end == ',' ? end + 1 : end;
    } while (own-- > 0 && *end == ',');
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 5) {
        fprintf(stderr, "usage: superstep SECONDS SAMPLES MOST_BYTES CORE,..|-\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    seconds = atof(argv[1]);
    samples = atoi(argv[2]);
    most = strtoull(argv[3], NULL, 10);
    if (argv[4][0] != '-')
        pin(argv[4]);
    size_t room = 2 * most + (size_t)MOST_MESSAGES * 1400;
    source = malloc(room);
    memset(source, 1, room);
    MPI_Win_allocate(room, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &area, &window);
    memset(area, 0, room);
    MPI_Win_fence(0, window);
    int *counts = calloc(4 * size, sizeof *counts);
    out = counts, in = counts + size, out_at = counts + 2 * size, in_at = counts + 3 * size;
    flops();
    for (enum call call = 0; call < CALLS; call++) {
        measure("sync", call, NOTHING, 0, 0);
        measure("each-sync", call, NOTHING, 0, 0);
        if (size > 1)
            measure("put", call, WORD, 8, 0);
        for (size_t h = 64; h < most; h *= 16)
            measure("exchange", call, EXCHANGE, h, 0);
        measure("exchange", call, EXCHANGE, most, 0);
        if (size == 1)
            continue;
        measure("gather", call, GATHER, most, 0);
        measure("scatter", call, SCATTER, most, 0);
        measure("random", call, RANDOM, most, 0);
        static const size_t LENGTHS[] = {4, 256, 1400};
        for (int i = 0; call != BSPONMPI && i < 3; i++)
            for (int messages = 1; messages <= MOST_MESSAGES; messages *= 4)
                measure("spray", call, SPRAY, LENGTHS[i], messages);
    }
    MPI_Win_free(&window);
    free(counts);
    free(source);
    MPI_Finalize();
    return 0;
}
