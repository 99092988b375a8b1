/*
 * The other ranks send rank 0 messages that it does not receive yet, and then one that it waits for,
 * which arrives. Meanwhile a tool shows how many messages wait and how much memory they take.
 *
 * Arguments: messages of each rank, bytes of most of them, the most bytes that may wait at rank 0, and
 * the tool.
 */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

#include <time.h>
#include <unistd.h>

/* One in SHARE messages has this length, and is sent by a call after which its buffer is free. */
enum { SHORT = 1000, SHARE = 8, ROUNDS = 2, FLOOD = 1, LAST = 2, PATIENCE = 200 };

static int count, bytes;
static unsigned long long bound;
static const char *tool;

static int length(int at)
{
    return at % SHARE ? bytes : SHORT;
}

static uint64_t id(int round, int from, int at)
{
    return ((uint64_t)round << 48) ^ ((uint64_t)from << 32) ^ (uint64_t)at << 8;
}

/* Reads the counter with this name, as the tool prints it for this process; false if it does not, as
 * before the process has published its counters. */
static int counter(const char *name, unsigned long long *shown)
{
    char command[4096], line[256];
    unsigned long long value = 0;
    int end, is_found = 0;
    snprintf(command, sizeof command, "%s stats --all %d", tool, (int)getpid());
    FILE *lines = popen(command, "r");
    CHECK(lines, "%s does not run", command);
    while (fgets(line, sizeof line, lines)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%llu %n", &value, &end) == 1 && strcmp(line + end, name) == 0) {
            *shown = value;
            is_found = 1;
        }
    }
    CHECK(pclose(lines) == 0, "%s fails", command);
    return is_found;
}

/* Waits until the tool shows this number of unexpected messages, and possibly some of a barrier that
 * the others have entered. */
static void await(unsigned long long wanted)
{
    struct timespec moment = {0, 100000000};
    unsigned long long shown = 0, others = 2 * (unsigned long long)size;
    for (int look = 0; look < PATIENCE; look++) {
        int is_shown = counter("unexpected messages", &shown);
        if (is_shown && shown >= wanted && shown <= wanted + others)
            return;
        nanosleep(&moment, NULL);
    }
    CHECK(0, "%llu unexpected messages are shown instead of %llu", shown, wanted);
}

static void flood(int round)
{
    unsigned char *memory = allocate((size_t)bytes * (size_t)count);
    MPI_Request *requests = allocate(sizeof *requests * (size_t)(count + 1));
    int sent = 0;
    for (int at = 0; at < count; at++) {
        unsigned char *message = memory + (size_t)bytes * (size_t)at;
        fill(message, (size_t)length(at), id(round, rank, at));
        if (at % SHARE)
            MPI_Isend(message, bytes, MPI_BYTE, 0, FLOOD, MPI_COMM_WORLD, &requests[sent++]);
        else
            MPI_Send(message, SHORT, MPI_BYTE, 0, FLOOD, MPI_COMM_WORLD);
    }
    MPI_Isend(&round, 1, MPI_INT, 0, LAST, MPI_COMM_WORLD, &requests[sent++]);
    MPI_Waitall(sent, requests, MPI_STATUSES_IGNORE);
    free(requests);
    free(memory);
}

static void receive(int round)
{
    unsigned char *memory = allocate((size_t)bytes);
    unsigned long long most = 0;
    for (int from = 1; from < size; from++) {
        int got = -1;
        MPI_Recv(&got, 1, MPI_INT, from, LAST, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(got == round, "%d came in round %d", got, round);
    }
    await((unsigned long long)count * (unsigned long long)(size - 1));
    CHECK(counter("most unexpected bytes", &most) && most > 0 && most <= bound, "%llu bytes waited, more than %llu", most, bound);
    for (int from = 1; from < size; from++)
        for (int at = 0; at < count; at++) {
            MPI_Status status;
            int got;
            MPI_Recv(memory, bytes, MPI_BYTE, from, FLOOD, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &got);
            CHECK(got == length(at), "%d bytes came instead of %d", got, length(at));
            check_filled(memory, (size_t)got, id(round, from, at), "flood");
        }
    await(0);
    free(memory);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    CHECK(argc == 5, "four arguments are needed");
    count = atoi(argv[1]);
    bytes = atoi(argv[2]);
    bound = strtoull(argv[3], NULL, 10);
    tool = argv[4];
    for (int round = 0; round < ROUNDS; round++) {
        if (rank == 0)
            receive(round);
        else
            flood(round);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    return finish("flood");
}
