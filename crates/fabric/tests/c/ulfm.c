/* Ranks die one after the other; the others leave them behind and go on with right results (ULFM). */
#include "common.h"
#include <mpi-ext.h>
#include <signal.h>
#include <unistd.h>

/* Sums over the communicator until a rank is missing; returns the class of the error. */
static int sum_until_one_is_missing(MPI_Comm comm, int dies)
{
    int members, me, class = MPI_SUCCESS;
    MPI_Comm_size(comm, &members);
    MPI_Comm_rank(comm, &me);
    for (int turn = 0; class == MPI_SUCCESS; turn++) {
        if (dies && turn == 50)
            raise(SIGKILL);
        int mine = value(me, 0, turn), sum = 0, wanted = 0;
        int error = MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, comm);
        MPI_Error_class(error, &class);
        for (int other = 0; other < members; other++)
            wanted += value(other, 0, turn);
        CHECK(class != MPI_SUCCESS || sum == wanted, "sum %d instead of %d", sum, wanted);
        CHECK(turn < 100, "no rank has died after 100 turns");
    }
    return class;
}

/* A long message from each member to the next. */
static void exchange(MPI_Comm comm)
{
    enum { BYTES = 300000 };
    int members, me;
    MPI_Comm_size(comm, &members);
    MPI_Comm_rank(comm, &me);
    unsigned char *out = allocate(BYTES), *in = allocate(BYTES);
    int to = (me + 1) % members, from = (me + members - 1) % members;
    fill(out, BYTES, (uint64_t)me);
    MPI_Sendrecv(out, BYTES, MPI_BYTE, to, 1, in, BYTES, MPI_BYTE, from, 1, comm,
                 MPI_STATUS_IGNORE);
    check_filled(in, BYTES, (uint64_t)from, "after a death");
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    for (int left = size; left > 2; left--) {
        int class = sum_until_one_is_missing(comm, rank == left - 1);
        CHECK(class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_REVOKED, "error class %d", class);
        MPIX_Comm_revoke(comm);
        MPI_Comm rest;
        CHECK(MPIX_Comm_shrink(comm, &rest) == MPI_SUCCESS, "%d ranks do not shrink", left);
        MPI_Comm_free(&comm);
        comm = rest;
        int members, agreed = 1;
        MPI_Comm_size(comm, &members);
        CHECK(members == left - 1, "%d ranks are left instead of %d", members, left - 1);
        CHECK(MPIX_Comm_agree(comm, &agreed) == MPI_SUCCESS && agreed, "no agreement");
        exchange(comm);
    }
    if (rank == 0) {
        printf("ulfm: all right on 2 of %d ranks\n", size);
        fflush(stdout);
    }
    MPI_Barrier(comm);
    /* Two of ten times, MPI_Finalize of Open MPI 5.0.11 does not return after deaths, over TCP as well. */
    _exit(0);
}
