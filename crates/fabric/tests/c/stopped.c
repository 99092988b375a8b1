/* The last rank is stopped for longer than the usual limit of 3 s; it only makes the others wait. */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 300000 };

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    int last = size - 1, pid = (int)getpid();
    unsigned char *memory = allocate(BYTES);
    if (rank == last) {
        MPI_Send(&pid, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
        MPI_Recv(memory, 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(&pid, 1, MPI_INT, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(memory, BYTES, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check_filled(memory, BYTES, 7, "to the stopped rank");
        MPI_Send(memory, BYTES, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
    } else if (rank == 1) {
        struct timespec stopped = {5, 0};
        MPI_Recv(&pid, 1, MPI_INT, last, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        kill(pid, SIGSTOP);
        MPI_Send(&pid, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
        nanosleep(&stopped, NULL);
        kill(pid, SIGCONT);
    } else if (rank == 0) {
        fill(memory, BYTES, 7);
        MPI_Recv(&pid, 1, MPI_INT, last, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(memory, 1, MPI_BYTE, last, 1, MPI_COMM_WORLD);
        MPI_Recv(&pid, 1, MPI_INT, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(memory, BYTES, MPI_BYTE, last, 2, MPI_COMM_WORLD);
        MPI_Recv(memory, BYTES, MPI_BYTE, last, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check_filled(memory, BYTES, 7, "of the stopped rank");
    }
    free(memory);
    return finish("stopped");
}
