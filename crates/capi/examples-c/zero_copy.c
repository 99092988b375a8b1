/* Messages are read in place and stay there until they are released. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <poll.h>

enum { HELD = 200, LONG = 100000 };

static void send_long(int from, const char *text)
{
    while (dp_send(from, text, LONG, DP_DONTWAIT, 0) < 0) {
        /* More than a new edge may send: writable again after the receiver has granted more. */
        CHECK(errno == EAGAIN);
        struct pollfd room = { .fd = from, .events = POLLOUT };
        CHECK(poll(&room, 1, 10000) == 1);
    }
}

static struct dp_completion next(int queue)
{
    struct dp_completion done;
    CHECK(dp_queue_wait(queue, &done, 1, 10000000000) == 1);
    return done;
}

int main(void)
{
    int from = dp_open(1);
    int to = dp_open(2);
    CHECK(from >= 0 && to >= 0);
    CHECK(dp_target(from, 1, 2) == 0);

    char *places[HELD];
    for (int number = 0; number < HELD; number++) {
        CHECK(dp_write(from, &number, sizeof number) == sizeof number);
        CHECK(dp_read(to, &places[number]) == sizeof number);
    }
    /* Releasing more messages than were read fails and releases none. */
    CHECK_FAILS(dp_fsync(to, HELD + 1), EINVAL, "cannot release 201 messages, because only 200");
    CHECK_FAILS(dp_fsync(to, -1), EINVAL, "n is -1");
    CHECK(dp_fsync(to, HELD / 2) == 0);
    for (int number = HELD / 2; number < HELD; number++) {
        CHECK(memcmp(places[number], &number, sizeof number) == 0);
    }

    /* Long and empty messages. */
    char *text = malloc(LONG);
    CHECK(text != NULL);
    memset(text, 'x', LONG);
    send_long(from, text);
    CHECK(dp_write(from, NULL, 0) == 0);
    char *place, *empty;
    CHECK(dp_read(to, &place) == LONG && memcmp(place, text, LONG) == 0);
    CHECK(dp_read(to, &empty) == 0);
    CHECK(dp_fsync(to, HELD - HELD / 2) == 0);
    CHECK(memcmp(place, text, LONG) == 0);
    CHECK(dp_fsync(to, 0) == 0);
    CHECK(dp_fsync(to, 2) == 0);
    CHECK_FAILS(dp_fsync(to, 1), EINVAL, "because only 0 have been read");

    /* A buffer that is too short only takes a second call. */
    CHECK(dp_write(from, "too long", 8) == 8);
    char buffer[8];
    CHECK_FAILS(dp_recv_copy(to, buffer, 7, NULL, 0, -1), EMSGSIZE, "8 bytes, the buffer only 7");
    CHECK(dp_recv_copy(to, buffer, 8, NULL, 0, -1) == 8);
    CHECK(memcmp(buffer, "too long", 8) == 0);

    /* Several messages in one call. */
    struct dp_message many[3];
    CHECK_FAILS(dp_recv_many(to, many, 3, DP_DONTWAIT, 0), EAGAIN, "no message is waiting");
    CHECK_FAILS(dp_recv_many(to, many, 0, 0, -1), EINVAL, "count is 0");
    CHECK_FAILS(dp_recv_many(to, NULL, 3, 0, -1), EFAULT, "messages is a null pointer");
    for (int number = 0; number < 5; number++) {
        CHECK(dp_write(from, &number, sizeof number) == sizeof number);
    }
    for (int taken = 0; taken < 5;) {
        int count = dp_recv_many(to, many, 3, 0, -1);
        CHECK(count >= 1 && count <= 3);
        for (int i = 0; i < count; i++) {
            int number = taken + i;
            CHECK(many[i].length == sizeof number);
            CHECK(memcmp(many[i].address, &number, sizeof number) == 0);
            CHECK(many[i].source.dpid == 1);
        }
        CHECK(dp_fsync(to, count) == 0);
        taken += count;
    }

    /* Buffers for messages that arrive later. */
    int queue = dp_queue_open();
    char *posted = calloc(1, LONG);
    CHECK(queue >= 0 && posted != NULL);
    CHECK_FAILS(dp_post_receive(to, from, buffer, 8, 0), EBADF, "completion queue");
    CHECK_FAILS(dp_post_receive(to, queue, NULL, 8, 0), EFAULT, "buf is a null pointer");
    CHECK(dp_post_receive(to, queue, buffer, sizeof buffer, 1) == 0);
    CHECK(dp_post_receive(to, queue, buffer, sizeof buffer, 2) == 0);
    CHECK(dp_post_receive(to, queue, posted, 10, 3) == 0);
    CHECK(dp_post_receive(to, queue, posted, LONG, 4) == 0);
    CHECK(dp_cancel_receive(to, 1) == 1 && dp_cancel_receive(to, 1) == 0);
    struct dp_completion done = next(queue);
    CHECK(done.kind == DP_FAILED && done.error == ECANCELED && done.context == 1);
    CHECK(dp_write(from, "posted", 6) == 6);
    done = next(queue);
    CHECK(done.kind == DP_FILLED && done.context == 2 && done.fd == to && done.length == 6);
    CHECK(done.source.dpid == 1 && done.message == NULL && memcmp(buffer, "posted", 6) == 0);
    send_long(from, text);
    done = next(queue);
    CHECK(done.kind == DP_FAILED && done.error == EMSGSIZE && done.context == 3);
    done = next(queue);
    CHECK(done.kind == DP_FILLED && done.context == 4 && done.length == LONG);
    CHECK(memcmp(posted, text, LONG) == 0);
    CHECK(dp_post_receive(to, queue, posted, LONG, 5) == 0);
    CHECK(dp_close(to) == 0);
    done = next(queue);
    CHECK(done.kind == DP_FAILED && done.error == EBADF && done.context == 5);
    CHECK(dp_queue_close(queue) == 0);
    free(posted);
    puts("in place");
    free(text);
    return 0;
}
