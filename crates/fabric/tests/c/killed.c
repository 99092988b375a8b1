/* Messages go around until one rank dies silently; the others must not wait forever. */
#include "common.h"
#include <signal.h>

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    int to = (rank + 1) % size, from = (rank + size - 1) % size, number = 0;
    for (int turn = 0;; turn++) {
        if (turn == 100 && rank == size - 1)
            raise(SIGKILL);
        MPI_Sendrecv(&turn, 1, MPI_INT, to, 1, &number, 1, MPI_INT, from, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        CHECK(number == turn, "turn %d in turn %d", number, turn);
    }
}
