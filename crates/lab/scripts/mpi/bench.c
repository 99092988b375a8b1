/* Communication between two ranks of an MPI library, measured like `dipole bench` measures Dipole:
 * each rank spins on a core of its own.
 *
 *     mpicc -O2 -o bench bench.c
 *     mpirun -n 2 ./bench pingpong|stream BYTES SECONDS
 *
 * Prints one line of JSON: p50_ns and p99_ns one way, or bytes_per_s. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64, WARM_UP = 1000, MAX_SAMPLES = 1 << 20 };

static int rank;
static char *buffer;
static int bytes;

static int by_size(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static void round_trip(void)
{
    if (rank == 0) {
        MPI_Send(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
}

/* Messages one after the other, as many outstanding as the window allows, then a reply. */
static void window(void)
{
    MPI_Request requests[WINDOW];
    MPI_Status statuses[WINDOW];
    for (int i = 0; i < WINDOW; i++) {
        if (rank == 0)
            MPI_Isend(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &requests[i]);
        else
            MPI_Irecv(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Waitall(WINDOW, requests, statuses);
    if (rank == 0)
        MPI_Recv(NULL, 0, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(NULL, 0, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
}

/* Both ranks repeat something for the given time. */
static long count_for(double seconds, void (*what)(void), int trials)
{
    double begun = MPI_Wtime();
    for (int i = 0; i < trials; i++)
        what();
    long count = (long)(seconds / ((MPI_Wtime() - begun) / trials));
    MPI_Bcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    return count < 1 ? 1 : count;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 4 || size != 2) {
        fprintf(stderr, "usage: mpirun -n 2 bench pingpong|stream BYTES SECONDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(rank, &own);
    sched_setaffinity(0, sizeof own, &own);
    bytes = atoi(argv[2]);
    double seconds = atof(argv[3]);
    buffer = malloc(bytes > 0 ? bytes : 1);
    memset(buffer, 1, bytes);
    if (strcmp(argv[1], "pingpong") == 0) {
        long count = count_for(seconds, round_trip, WARM_UP);
        count = count > MAX_SAMPLES ? MAX_SAMPLES : count;
        double *samples = malloc(count * sizeof *samples);
        for (long i = 0; i < count; i++) {
            double begun = MPI_Wtime();
            round_trip();
            samples[i] = (MPI_Wtime() - begun) / 2;
        }
        qsort(samples, count, sizeof *samples, by_size);
        if (rank == 0)
            printf("{\"p50_ns\": %.1f, \"p99_ns\": %.1f}\n", samples[count / 2] * 1e9,
                   samples[count - 1 - count / 100] * 1e9);
        free(samples);
    } else {
        long count = count_for(seconds, window, 20);
        double begun = MPI_Wtime();
        for (long i = 0; i < count; i++)
            window();
        if (rank == 0)
            printf("{\"bytes_per_s\": %.0f}\n",
                   (double)count * WINDOW * bytes / (MPI_Wtime() - begun));
    }
    free(buffer);
    MPI_Finalize();
    return 0;
}
