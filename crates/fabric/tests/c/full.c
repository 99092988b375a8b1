/*
 * Full queues lose nothing and hold up only their own peer. 3 ranks on one node.
 *
 * First rank 0 has more short messages on the way to rank 1, which does not look, than its queues take,
 * while it receives long messages from there. Then it receives more long messages of rank 2, which is
 * stopped, than it may request at once. A message of rank 1 arrives nevertheless.
 */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { LONG = 1 << 20, LONGS = 8, HELD = 100000, HELDS = 2000 };

static void without_room(int shorts, int bytes)
{
    MPI_Request *requests = allocate(sizeof *requests * (size_t)(shorts + LONGS));
    unsigned char *sent = allocate((size_t)bytes), *memory = allocate((size_t)LONG * LONGS);
    fill(sent, (size_t)bytes, 1);
    if (rank == 1) {
        struct timespec second = {1, 0};
        for (int at = 0; at < LONGS; at++) {
            fill(memory + (size_t)LONG * at, LONG, 100 + at);
            MPI_Isend(memory + (size_t)LONG * at, LONG, MPI_BYTE, 0, 100 + at, MPI_COMM_WORLD,
                      requests + at);
        }
        nanosleep(&second, NULL);
        for (int at = 0; at < shorts; at++) {
            MPI_Recv(sent, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check_filled(sent, (size_t)bytes, 1, "short");
        }
        MPI_Waitall(LONGS, requests, MPI_STATUSES_IGNORE);
    } else if (rank == 0) {
        struct timespec moment = {0, 100000000};
        nanosleep(&moment, NULL);
        for (int at = 0; at < shorts / 2; at++)
            MPI_Isend(sent, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, requests + at);
        for (int at = 0; at < LONGS; at++)
            MPI_Irecv(memory + (size_t)LONG * at, LONG, MPI_BYTE, 1, 100 + at, MPI_COMM_WORLD,
                      requests + shorts + at);
        for (int at = shorts / 2; at < shorts; at++)
            MPI_Isend(sent, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, requests + at);
        MPI_Waitall(shorts + LONGS, requests, MPI_STATUSES_IGNORE);
        for (int at = 0; at < LONGS; at++)
            check_filled(memory + (size_t)LONG * at, LONG, 100 + at, "long");
    }
    free(requests);
    free(sent);
    free(memory);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void beside_a_stopped_rank(void)
{
    MPI_Request *requests = allocate(sizeof *requests * HELDS);
    unsigned char *memory = allocate((size_t)HELD * HELDS);
    int pid = (int)getpid();
    if (rank == 2) {
        for (int at = 0; at < HELDS; at++) {
            fill(memory + (size_t)HELD * at, HELD, at);
            MPI_Isend(memory + (size_t)HELD * at, HELD, MPI_BYTE, 0, 1, MPI_COMM_WORLD,
                      requests + at);
        }
        MPI_Send(&pid, 1, MPI_INT, 0, 2, MPI_COMM_WORLD);
        MPI_Waitall(HELDS, requests, MPI_STATUSES_IGNORE);
    } else if (rank == 1) {
        fill(memory, HELD, 5000);
        MPI_Send(memory, HELD, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
    } else {
        unsigned char *other = allocate(HELD);
        MPI_Recv(&pid, 1, MPI_INT, 2, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        kill(pid, SIGSTOP);
        for (int at = 0; at < HELDS; at++)
            MPI_Irecv(memory + (size_t)HELD * at, HELD, MPI_BYTE, 2, 1, MPI_COMM_WORLD,
                      requests + at);
        MPI_Recv(other, HELD, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check_filled(other, HELD, 5000, "of rank 1");
        kill(pid, SIGCONT);
        MPI_Waitall(HELDS, requests, MPI_STATUSES_IGNORE);
        for (int at = 0; at < HELDS; at++)
            check_filled(memory + (size_t)HELD * at, HELD, at, "of the stopped rank");
        free(other);
    }
    free(requests);
    free(memory);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    without_room(atoi(argv[1]), atoi(argv[2]));
    beside_a_stopped_rank();
    return finish("full");
}
