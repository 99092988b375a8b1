/* Measures an MPI library between two ranks and among all. Prints a line for each figure:
 *
 *     NAME UNIT MEDIAN P99
 *
 *     mpicc -O3 -o figures figures.c && mpirun -n 2 ./figures [SECONDS [CORE,CORE,..]]
 *
 * Rank r is pinned to the r-th core in the list. Each figure takes about SECONDS. */
#define _GNU_SOURCE
#include "common.h"
#include <sched.h>
#include <string.h>

enum { MOST = 200000, WINDOW = 64, MIDDLE = 64 << 10, LONG = 1 << 20, LONG_WINDOW = 8, PART = 4096 };

static int rank, size;
static double seconds = 0.5, samples[MOST];
static char *out, *in;
static MPI_Request requests[WINDOW];

static int by_size(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return difference < 0 ? -1 : difference > 0;
}

/* A round trip between ranks 0 and 1. */
static void ping_pong(int bytes)
{
    if (rank == 0) {
        MPI_Send(out, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(in, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(in, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

/* Many messages in one direction; an empty message confirms that all have arrived. */
static void stream(int bytes, int window)
{
    if (rank > 1)
        return;
    for (int i = 0; i < window; i++)
        if (rank == 0)
            MPI_Isend(out, bytes, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &requests[i]);
        else
            MPI_Irecv(in, bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &requests[i]);
    MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
    if (rank == 0)
        MPI_Recv(in, 0, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(out, 0, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
}

static void latency(void) { ping_pong(8); }
static void middle_message(void) { ping_pong(MIDDLE); }
static void long_message(void) { ping_pong(LONG); }
static void rate(void) { stream(8, WINDOW); }
static void bandwidth(void) { stream(LONG, LONG_WINDOW); }
static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }
static void sum(void)
{
    double one = 1, all;
    MPI_Allreduce(&one, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}
static void exchange(void)
{
    MPI_Alltoall(out, PART, MPI_BYTE, in, PART, MPI_BYTE, MPI_COMM_WORLD);
}

/* How the microseconds of an iteration become the figure: a divisor, or an amount per iteration. */
static const struct figure {
    const char *name, *unit;
    void (*iterate)(void);
    double divided, amount;
} FIGURES[] = {
    {"latency-8B", "us", latency, 2, 0},
    {"latency-64KiB", "us", middle_message, 2, 0},
    {"latency-1MiB", "us", long_message, 2, 0},
    {"bandwidth-1MiB", "MB/s", bandwidth, 0, (double)LONG *LONG_WINDOW},
    {"rate-8B", "M/s", rate, 0, WINDOW},
    {"barrier", "us", barrier, 1, 0},
    {"allreduce-8B", "us", sum, 1, 0},
    {"alltoall-4KiB", "us", exchange, 1, 0},
};

/* Iterates until rank 0 announces, after a batch, that the time is over. */
static int measure(const struct figure *figure)
{
    int count = 0, go_on = 1, batch = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (int iteration = 0; iteration < 20; iteration++)
        figure->iterate();
    double each = (MPI_Wtime() - began) / 20;
    batch = each < 1e-3 ? 1000 : 10;
    MPI_Bcast(&batch, 1, MPI_INT, 0, MPI_COMM_WORLD);
    while (go_on) {
        for (int iteration = 0; iteration < batch && count < MOST; iteration++) {
            double from = MPI_Wtime();
            figure->iterate();
            samples[count++] = (MPI_Wtime() - from) * 1e6;
        }
        go_on = count < MOST && MPI_Wtime() - began < seconds;
        MPI_Bcast(&go_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    return count;
}

static void pin(const char *cores)
{
    for (int i = 0; i < rank && cores; i++) {
        cores = strchr(cores, ',');
        cores = cores ? cores + 1 : NULL;
    }
    if (!cores)
        return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)atoi(cores), &set);
    if (sched_setaffinity(0, sizeof set, &set))
        give_up("rank %d cannot be pinned to core %d", rank, atoi(cores));
}

int main(int argc, char **argv)
{
    /* MPI libraries read the affinity when they start, so set it before. */
    const char *own = getenv("OMPI_COMM_WORLD_RANK");
    own = own ? own : getenv("PMI_RANK");
    rank = own ? atoi(own) : 0;
    if (argc > 2 && own)
        pin(argv[2]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size < 2)
        give_up("figures: two ranks at least are needed");
    seconds = argc > 1 ? atof(argv[1]) : seconds;
    size_t bytes = (size_t)(LONG > PART * size ? LONG : PART * size);
    out = allocate(bytes, 1);
    in = allocate(bytes, 1);
    memset(out, 1, bytes);
    memset(in, 1, bytes);
    for (size_t i = 0; i < sizeof FIGURES / sizeof *FIGURES; i++) {
        const struct figure *figure = &FIGURES[i];
        int count = measure(figure);
        qsort(samples, (size_t)count, sizeof *samples, by_size);
        double median = samples[count / 2], late = samples[count - 1 - count / 100];
        if (figure->divided > 0) {
            median /= figure->divided;
            late /= figure->divided;
        } else {
            median = figure->amount / median;
            late = figure->amount / late;
        }
        if (rank == 0)
            printf("%s %s %.3f %.3f\n", figure->name, figure->unit, median, late);
    }
    MPI_Finalize();
    return 0;
}
