/* Messages between pairs: order, wildcards, sizes from zero to megabytes, probing, cancelling,
 * synchronous and persistent messages, and many at once. */
#include "common.h"

static const size_t SIZES[] = {0,    1,    7,     8,     63,    64,    200,    1024,   1400,
                               1500, 4000, 8192,  16383, 16384, 16385, 65535,  65536,  65537,
                               100001, 262144, 1048576, 1048577, 4194304};
enum { KINDS = sizeof SIZES / sizeof *SIZES };

static uint64_t id_of(int from, int to, int number)
{
    return ((uint64_t)from << 48) ^ ((uint64_t)to << 32) ^ ((uint64_t)number << 3) ^ 1;
}

/* Every size around a ring, with the receive posted before and after. */
static void every_size(size_t most)
{
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char *out = allocate(most + 1), *in = allocate(most + 1);
    for (int kind = 0; kind < KINDS && SIZES[kind] <= most; kind++)
        for (int early = 0; early < 2; early++) {
            size_t bytes = SIZES[kind];
            MPI_Request requests[2];
            MPI_Status status[2];
            int count;
            fill(out, bytes, id_of(rank, to, kind));
            memset(in, 0, bytes);
            in[bytes] = 0x5a;
            if (early)
                MPI_Irecv(in, (int)bytes, MPI_BYTE, from, kind, MPI_COMM_WORLD, &requests[0]);
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Isend(out, (int)bytes, MPI_BYTE, to, kind, MPI_COMM_WORLD, &requests[1]);
            if (!early) {
                MPI_Barrier(MPI_COMM_WORLD);
                MPI_Irecv(in, (int)bytes, MPI_BYTE, from, kind, MPI_COMM_WORLD, &requests[0]);
            }
            MPI_Waitall(2, requests, status);
            MPI_Get_count(&status[0], MPI_BYTE, &count);
            CHECK((size_t)count == bytes && status[0].MPI_SOURCE == from &&
                      status[0].MPI_TAG == kind,
                  "%d bytes from %d with tag %d, not %zu from %d with tag %d", count,
                  status[0].MPI_SOURCE, status[0].MPI_TAG, bytes, from, kind);
            check_filled(in, bytes, id_of(from, rank, kind), "ring");
            CHECK(in[bytes] == 0x5a, "the byte after a message of %zu bytes was written", bytes);
        }
    free(out);
    free(in);
}

/* Every rank sends many messages of random sizes with random tags to every other. Receives by source
 * and tag, by source, by tag, and from any source; messages from one rank with one tag arrive in
 * order. */
static void storm(int each, size_t most)
{
    enum { TAGS = 3 };
    int total = each * size;
    MPI_Request *sends = allocate(sizeof *sends * (size_t)total);
    unsigned char **out = allocate(sizeof *out * (size_t)total);
    int *next = allocate(sizeof(int) * (size_t)(size * TAGS));
    int *left = allocate(sizeof(int) * (size_t)(size * TAGS));
    memset(next, 0, sizeof(int) * (size_t)(size * TAGS));
    memset(left, 0, sizeof(int) * (size_t)(size * TAGS));
    for (int from = 0; from < size; from++)
        for (int number = 0; number < each; number++)
            left[from * TAGS + (int)(mixed(id_of(from, rank, number)) % TAGS)]++;
    for (int number = 0; number < each; number++)
        for (int step = 0; step < size; step++) {
            int to = (rank + step) % size, at = number * size + step;
            uint64_t id = id_of(rank, to, number), luck = mixed(id + 7);
            size_t bytes = 4 + luck % (luck % 16 == 0 ? most : luck % 4 == 0 ? 20000 : 200);
            out[at] = allocate(bytes);
            fill(out[at], bytes, id);
            memcpy(out[at], &number, sizeof number);
            MPI_Isend(out[at], (int)bytes, MPI_BYTE, to, (int)(mixed(id) % TAGS), MPI_COMM_WORLD,
                      &sends[at]);
        }
    unsigned char *in = allocate(most + 4), *wanted = allocate(most + 4);
    for (int got = 0; got < total; got++) {
        uint64_t luck = mixed((uint64_t)(got + 1) * 977 + (uint64_t)rank);
        int source = (int)(luck % (uint64_t)size), tag = (int)(luck / 64 % TAGS);
        int any_source = luck / 1024 % 2 == 0, any_tag = luck / 2048 % 2 == 0;
        /* A message that is still outstanding, so that the receive completes. */
        for (int tries = 0; left[source * TAGS + tag] == 0; tries++) {
            CHECK(tries < size * TAGS, "nothing is to come, yet %d of %d came", got, total);
            tag = (tag + 1) % TAGS;
            source = tag == 0 ? (source + 1) % size : source;
        }
        MPI_Status status;
        int bytes, number;
        if (luck / 4096 % 4 == 0) {
            MPI_Message message;
            MPI_Mprobe(any_source ? MPI_ANY_SOURCE : source, any_tag ? MPI_ANY_TAG : tag,
                       MPI_COMM_WORLD, &message, &status);
            MPI_Get_count(&status, MPI_BYTE, &bytes);
            MPI_Mrecv(in, bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, (int)most + 4, MPI_BYTE, any_source ? MPI_ANY_SOURCE : source,
                     any_tag ? MPI_ANY_TAG : tag, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &bytes);
        }
        CHECK((any_source || status.MPI_SOURCE == source) && (any_tag || status.MPI_TAG == tag),
              "asked for %d with tag %d, got %d with tag %d", source, tag, status.MPI_SOURCE,
              status.MPI_TAG);
        int stream = status.MPI_SOURCE * TAGS + status.MPI_TAG;
        memcpy(&number, in, sizeof number);
        uint64_t id = id_of(status.MPI_SOURCE, rank, number);
        CHECK(number >= next[stream] && number < each &&
                  (int)(mixed(id) % TAGS) == status.MPI_TAG,
              "message %d from %d with tag %d, after %d", number, status.MPI_SOURCE,
              status.MPI_TAG, next[stream] - 1);
        for (int between = next[stream]; between < number; between++)
            CHECK((int)(mixed(id_of(status.MPI_SOURCE, rank, between)) % TAGS) != status.MPI_TAG,
                  "message %d from %d with tag %d overtook %d", number, status.MPI_SOURCE,
                  status.MPI_TAG, between);
        next[stream] = number + 1;
        left[stream]--;
        luck = mixed(id + 7);
        size_t sent = 4 + luck % (luck % 16 == 0 ? most : luck % 4 == 0 ? 20000 : 200);
        CHECK((size_t)bytes == sent, "message %d from %d has %d bytes, not %zu", number,
              status.MPI_SOURCE, bytes, sent);
        fill(wanted, sent, id);
        memcpy(wanted, &number, sizeof number);
        CHECK(memcmp(in, wanted, sent) == 0, "message %d from %d is not what was sent", number,
              status.MPI_SOURCE);
    }
    MPI_Waitall(total, sends, MPI_STATUSES_IGNORE);
    for (int at = 0; at < total; at++)
        free(out[at]);
    free(out);
    free(sends);
    free(next);
    free(left);
    free(in);
    free(wanted);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Receives posted in one order take messages in that order, whatever their wildcards. */
static void posted_first_wins(void)
{
    enum { EACH = 200 };
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    int in[EACH], out[EACH];
    MPI_Request receives[EACH], sends[EACH];
    for (int late = 0; late < 2; late++) {
        for (int i = 0; i < EACH; i++) {
            in[i] = -1;
            out[i] = i;
        }
        for (int step = 0; step < 2; step++) {
            if (step == late)
                for (int i = 0; i < EACH; i++)
                    MPI_Irecv(&in[i], 1, MPI_INT, i % 2 ? from : MPI_ANY_SOURCE,
                              i % 3 ? 5 : MPI_ANY_TAG, MPI_COMM_WORLD, &receives[i]);
            else
                for (int i = 0; i < EACH; i++)
                    MPI_Isend(&out[i], 1, MPI_INT, to, 5, MPI_COMM_WORLD, &sends[i]);
            MPI_Barrier(MPI_COMM_WORLD);
        }
        MPI_Waitall(EACH, receives, MPI_STATUSES_IGNORE);
        MPI_Waitall(EACH, sends, MPI_STATUSES_IGNORE);
        for (int i = 0; i < EACH; i++)
            CHECK(in[i] == i, "receive %d took message %d", i, in[i]);
    }
}

static void probes(void)
{
    int to = (rank + 1) % size, from = (rank + size - 1) % size, flag, count;
    static const int COUNTS[] = {0, 3, 5000, 300000};
    for (int kind = 0; kind < 4; kind++) {
        int items = COUNTS[kind];
        int *out = allocate(sizeof(int) * (size_t)items), *in = allocate(sizeof(int) * (size_t)items);
        for (int i = 0; i < items; i++)
            out[i] = value(rank, i, kind);
        MPI_Request request;
        MPI_Status status;
        MPI_Iprobe(MPI_ANY_SOURCE, 1000 + kind, MPI_COMM_WORLD, &flag, &status);
        CHECK(!flag, "a message was found that no rank had sent");
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Isend(out, items, MPI_INT, to, 1000 + kind, MPI_COMM_WORLD, &request);
        do
            MPI_Iprobe(MPI_ANY_SOURCE, 1000 + kind, MPI_COMM_WORLD, &flag, &status);
        while (!flag);
        MPI_Get_count(&status, MPI_INT, &count);
        CHECK(count == items && status.MPI_SOURCE == from, "seen: %d items from %d", count,
              status.MPI_SOURCE);
        MPI_Probe(from, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        CHECK(status.MPI_TAG == 1000 + kind, "seen: tag %d", status.MPI_TAG);
        if (kind % 2) {
            MPI_Message message;
            MPI_Request receive;
            MPI_Improbe(from, 1000 + kind, MPI_COMM_WORLD, &flag, &message, &status);
            CHECK(flag, "a message that was seen cannot be claimed");
            int again;
            MPI_Iprobe(from, 1000 + kind, MPI_COMM_WORLD, &again, MPI_STATUS_IGNORE);
            CHECK(!again, "a claimed message is seen by others");
            MPI_Imrecv(in, items, MPI_INT, &message, &receive);
            MPI_Wait(&receive, &status);
        } else {
            MPI_Recv(in, items, MPI_INT, from, 1000 + kind, MPI_COMM_WORLD, &status);
        }
        for (int i = 0; i < items; i++)
            CHECK(in[i] == value(from, i, kind), "probed message of %d: wrong at %d", items, i);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        free(out);
        free(in);
    }
}

/* A cancelled receive takes no message; the next receive takes it. */
static void cancelled(void)
{
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    int wrong[8], right, out = rank + 1, is_cancelled;
    MPI_Request never[8], receive, send;
    MPI_Status status;
    for (int i = 0; i < 8; i++)
        MPI_Irecv(&wrong[i], 1, MPI_INT, i % 2 ? from : MPI_ANY_SOURCE, 2000, MPI_COMM_WORLD,
                  &never[i]);
    for (int i = 7; i >= 0; i--) {
        MPI_Cancel(&never[i]);
        MPI_Wait(&never[i], &status);
        MPI_Test_cancelled(&status, &is_cancelled);
        CHECK(is_cancelled, "receive %d was not cancelled", i);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Irecv(&right, 1, MPI_INT, from, 2000, MPI_COMM_WORLD, &receive);
    MPI_Isend(&out, 1, MPI_INT, to, 2000, MPI_COMM_WORLD, &send);
    MPI_Wait(&receive, &status);
    MPI_Wait(&send, MPI_STATUS_IGNORE);
    CHECK(right == from + 1, "%d came, not %d", right, from + 1);
}

/* A synchronous send completes only after its receive was posted. */
static void synchronous(void)
{
    int to = (rank + 1) % size, from = (rank + size - 1) % size, done = 0;
    static const int COUNTS[] = {0, 1, 100000};
    for (int kind = 0; kind < 3; kind++) {
        int items = COUNTS[kind];
        int *out = allocate(sizeof(int) * (size_t)items), *in = allocate(sizeof(int) * (size_t)items);
        for (int i = 0; i < items; i++)
            out[i] = value(rank, i, kind + 10);
        MPI_Request send, receive;
        MPI_Issend(out, items, MPI_INT, to, 3000, MPI_COMM_WORLD, &send);
        for (int turn = 0; turn < 50; turn++) {
            MPI_Test(&send, &done, MPI_STATUS_IGNORE);
            CHECK(!done, "a synchronous send of %d items ended before its receive was posted",
                  items);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Irecv(in, items, MPI_INT, from, 3000, MPI_COMM_WORLD, &receive);
        MPI_Wait(&receive, MPI_STATUS_IGNORE);
        MPI_Wait(&send, MPI_STATUS_IGNORE);
        for (int i = 0; i < items; i++)
            CHECK(in[i] == value(from, i, kind + 10), "synchronous: wrong at %d", i);
        free(out);
        free(in);
    }
    if (size > 1) {
        int token = 0;
        if (rank % 2 == 0 && rank + 1 < size)
            MPI_Ssend(&rank, 1, MPI_INT, rank + 1, 3001, MPI_COMM_WORLD);
        if (rank % 2 == 1) {
            MPI_Recv(&token, 1, MPI_INT, rank - 1, 3001, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK(token == rank - 1, "%d came, not %d", token, rank - 1);
        }
    }
}

static void persistent(void)
{
    enum { ITEMS = 3000, TURNS = 50 };
    static int out[2][ITEMS], in[2][ITEMS];
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    MPI_Request requests[4];
    MPI_Recv_init(in[0], ITEMS, MPI_INT, from, 4000, MPI_COMM_WORLD, &requests[0]);
    MPI_Recv_init(in[1], 2, MPI_INT, MPI_ANY_SOURCE, 4001, MPI_COMM_WORLD, &requests[1]);
    MPI_Send_init(out[0], ITEMS, MPI_INT, to, 4000, MPI_COMM_WORLD, &requests[2]);
    MPI_Ssend_init(out[1], 2, MPI_INT, to, 4001, MPI_COMM_WORLD, &requests[3]);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < ITEMS; i++)
            out[0][i] = value(rank, i, turn);
        out[1][1] = turn;
        MPI_Startall(4, requests);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < ITEMS; i++)
            CHECK(in[0][i] == value(from, i, turn), "persistent, turn %d: wrong at %d", turn, i);
        CHECK(in[1][1] == turn, "persistent: turn %d in turn %d", in[1][1], turn);
        /* The source is a wildcard, but a round ends before the next begins. */
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (int i = 0; i < 4; i++)
        MPI_Request_free(&requests[i]);
}

/* All ranks send to a busy one, which then receives in reverse order. */
static void unexpected(int each)
{
    if (rank != 0) {
        for (int number = 0; number < each; number++)
            MPI_Send(&number, 1, MPI_INT, 0, 10000 + number, MPI_COMM_WORLD);
        MPI_Send(&rank, 1, MPI_INT, 0, 9999, MPI_COMM_WORLD);
    } else {
        int got;
        for (int from = 1; from < size; from++) {
            MPI_Recv(&got, 1, MPI_INT, from, 9999, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK(got == from, "%d came from %d", got, from);
        }
        for (int number = each - 1; number >= 0; number--)
            for (int from = 1; from < size; from++) {
                MPI_Recv(&got, 1, MPI_INT, from, 10000 + number, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
                CHECK(got == number, "%d came from %d, not %d", got, from, number);
            }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A message too long for its receive is an error, and the next one still arrives. */
static void truncated(int kinds)
{
    static const int COUNTS[] = {100, 500000};
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    MPI_Comm careful;
    MPI_Comm_dup(MPI_COMM_WORLD, &careful);
    MPI_Comm_set_errhandler(careful, MPI_ERRORS_RETURN);
    /* MPICH calls the world's error handler when it waits. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int kind = 0; kind < kinds; kind++) {
        int *out = allocate(sizeof(int) * (size_t)COUNTS[kind]), in[11], class;
        memset(out, 0, sizeof(int) * (size_t)COUNTS[kind]);
        in[10] = 4711;
        MPI_Request send, receive;
        MPI_Irecv(in, 10, MPI_INT, from, 1, careful, &receive);
        MPI_Isend(out, COUNTS[kind], MPI_INT, to, 1, careful, &send);
        int error = MPI_Wait(&receive, MPI_STATUS_IGNORE);
        MPI_Error_class(error, &class);
        CHECK(class == MPI_ERR_TRUNCATE, "a message of %d items into 10: error class %d",
              COUNTS[kind], class);
        CHECK(in[10] == 4711, "memory beyond a receive was written");
        MPI_Wait(&send, MPI_STATUS_IGNORE);
        MPI_Sendrecv(&rank, 1, MPI_INT, to, 2, in, 1, MPI_INT, from, 2, careful,
                     MPI_STATUS_IGNORE);
        CHECK(in[0] == from, "after a message that was too long came %d", in[0]);
        free(out);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_free(&careful);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    size_t most = argc > 1 ? (size_t)atol(argv[1]) : 4194304;
    int each = argc > 2 ? atoi(argv[2]) : 60;
    every_size(most);
    posted_first_wins();
    probes();
    cancelled();
    synchronous();
    persistent();
    unexpected(2 * each);
    storm(each, most / 4);
    /* Open MPI's own shared memory writes beyond the receive buffer if the message is long. */
    truncated(argc > 3 ? atoi(argv[3]) : 2);
    return finish("messages");
}
