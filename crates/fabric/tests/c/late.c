/*
 * Rank 0 takes 5 ms for each of its messages, for which the others wait. It begins when all have
 * requested one, so that a rank that starts late does not find a message.
 */
#define _POSIX_C_SOURCE 199309L
#include "common.h"

#include <time.h>

static void take(int number)
{
    int got = -1;
    MPI_Send(&number, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    MPI_Recv(&got, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(got == number, "%d came instead of %d", got, number);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int number = 0; number < 100; number++) {
        struct timespec time = {0, 5000000};
        if (rank > 0) {
            take(number);
            continue;
        }
        for (int from = 1; from < size; from++) {
            int asked = -1;
            MPI_Recv(&asked, 1, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK(asked == number, "rank %d asks for %d instead of %d", from, asked, number);
        }
        nanosleep(&time, NULL);
        for (int to = 1; to < size; to++)
            MPI_Send(&number, 1, MPI_INT, to, 0, MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("late: right on %d ranks\n", size);
    MPI_Finalize();
    return 0;
}
