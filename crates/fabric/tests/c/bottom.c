/* Datatypes of absolute addresses, used with MPI_BOTTOM. Each is one piece, which Open MPI 4.1 passes
 * to libfabric without its address. The job must then end with a message, or be correct, but must
 * not hang. With the argument `fatal` errors end the job; otherwise every rank must get an error
 * from the call concerned. */
#include "common.h"

/* Waits for a request that has begun; returns the error of either step. */
static int ended(int begun, MPI_Request *request)
{
    return begun == MPI_SUCCESS ? MPI_Wait(request, MPI_STATUS_IGNORE) : begun;
}

/* A message from absolute addresses, and one to them; the peer has a buffer. Each call ends with an
 * error or with the right numbers: some paths through Open MPI keep the address. */
static void one_side(MPI_Datatype *from, MPI_Datatype *to, const int *got)
{
    int *buffer = allocate(100 * sizeof *buffer), other = rank ^ 1, ends = 0;
    MPI_Request request;
    for (int turn = 0; turn < 3 && other < size; turn++) {
        if (rank & 1) {
            if (turn == 0)
                ends = ended(MPI_Isend(MPI_BOTTOM, 1, from[other], other, 1, MPI_COMM_WORLD, &request), &request);
            else if (turn == 1)
                ends = ended(MPI_Issend(MPI_BOTTOM, 1, from[other], other, 1, MPI_COMM_WORLD, &request), &request);
            else
                ends = MPI_Send(MPI_BOTTOM, 1, from[other], other, 1, MPI_COMM_WORLD);
            for (int i = 0; i < 100; i++)
                buffer[i] = value(rank, i, turn);
            MPI_Send(buffer, 100, MPI_INT, other, 2, MPI_COMM_WORLD);
        } else {
            ends = MPI_Recv(buffer, 100, MPI_INT, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int i = 0; i < 100 && ends == MPI_SUCCESS; i++)
                CHECK(buffer[i] == value(other, 100 * rank + i, 1), "turn %d: wrong at %d", turn, i);
            ends = ended(MPI_Irecv(MPI_BOTTOM, 1, to[other], other, 2, MPI_COMM_WORLD, &request), &request);
            for (int i = 0; i < 100 && ends == MPI_SUCCESS; i++)
                CHECK(got[100 * other + i] == value(other, i, turn), "turn %d: wrong at %d", turn, i);
        }
    }
    free(buffer);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    int is_fatal = argc > 1 && !strcmp(argv[1], "fatal");
    if (!is_fatal)
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int *given = allocate((size_t)size * 100 * sizeof *given);
    int *got = allocate((size_t)size * 100 * sizeof *got);
    int *counts = allocate((size_t)size * sizeof *counts), *places = allocate((size_t)size * sizeof *places);
    MPI_Datatype *from = allocate((size_t)size * sizeof *from), *to = allocate((size_t)size * sizeof *to);
    for (int other = 0; other < size; other++) {
        counts[other] = 1;
        places[other] = 0;
        MPI_Aint address;
        int length = 100;
        MPI_Get_address(given + 100 * other, &address);
        MPI_Type_create_hindexed(1, &length, &address, MPI_INT, &from[other]);
        MPI_Get_address(got + 100 * other, &address);
        MPI_Type_create_hindexed(1, &length, &address, MPI_INT, &to[other]);
        MPI_Type_commit(&from[other]);
        MPI_Type_commit(&to[other]);
        for (int i = 0; i < 100; i++)
            given[100 * other + i] = value(rank, 100 * other + i, 1);
    }
    int done = MPI_Alltoallw(MPI_BOTTOM, counts, places, from, MPI_BOTTOM, counts, places, to, MPI_COMM_WORLD);
    if (done != MPI_SUCCESS) {
        CHECK(!is_fatal, "an error that is fatal came back");
        one_side(from, to, got);
        printf("bottom: refused\n");
        fflush(stdout);
        MPI_Finalize();
        return 0;
    }
    for (int other = 0; other < size; other++)
        for (int i = 0; i < 100; i++)
            CHECK(got[100 * other + i] == value(other, 100 * rank + i, 1), "from %d at %d", other, i);
    return finish("bottom");
}
