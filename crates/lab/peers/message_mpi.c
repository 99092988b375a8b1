/* Messages over an MPI library:
 *
 *     mpicc -O2 -o message message_mpi.c
 *     mpirun -n 2 ./message pingpong|stream BYTES SECONDS LEAD_CORE FOLLOW_CORE */
#include "work.h"
#include <mpi.h>

enum { WINDOW = 64 };

static void send_message(const char *from, size_t bytes)
{
    MPI_Send(from, (int)bytes, MPI_BYTE, is_lead, 0, MPI_COMM_WORLD);
}

static void receive_message(char *to, size_t bytes)
{
    MPI_Recv(to, (int)bytes, MPI_BYTE, is_lead, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* Keeps one window of messages in flight. */
static void both(char *memory, size_t bytes, long count)
{
    MPI_Request requests[WINDOW];
    while (count > 0) {
        int now = count < WINDOW ? (int)count : WINDOW;
        for (int i = 0; i < now; i++) {
            if (is_lead)
                MPI_Isend(memory, (int)bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &requests[i]);
            else
                MPI_Irecv(memory, (int)bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Waitall(now, requests, MPI_STATUSES_IGNORE);
        count -= now;
    }
}

static void send_stream(const char *from, size_t bytes, long count)
{
    both((char *)from, bytes, count);
}

static void receive_stream(char *to, size_t bytes, long count)
{
    both(to, bytes, count);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 6 || ranks != 2)
        give_up("usage: mpirun -n 2 message KIND BYTES SECONDS LEAD_CORE FOLLOW_CORE");
    is_lead = rank == 0;
    work(argv + 1);
    MPI_Finalize();
    return 0;
}
