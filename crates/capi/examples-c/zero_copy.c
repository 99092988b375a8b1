/* Messages are read where they lie and stay there until they are given back. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <poll.h>

enum { HELD = 200, LONG = 100000 };

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
    /* More than are read cannot be given back, and nothing was. */
    CHECK_FAILS(dp_fsync(to, HELD + 1), EINVAL, "201 messages were to be given back, but 200");
    CHECK_FAILS(dp_fsync(to, -1), EINVAL, "n is -1");
    CHECK(dp_fsync(to, HELD / 2) == 0);
    for (int number = HELD / 2; number < HELD; number++) {
        CHECK(memcmp(places[number], &number, sizeof number) == 0);
    }

    /* Long and empty ones, too. */
    char *text = malloc(LONG);
    CHECK(text != NULL);
    memset(text, 'x', LONG);
    while (dp_send(from, text, LONG, DP_DONTWAIT, 0) < 0) {
        /* More than a new edge may send: writable again once it has allowed more. */
        CHECK(errno == EAGAIN);
        struct pollfd room = { .fd = from, .events = POLLOUT };
        CHECK(poll(&room, 1, 10000) == 1);
    }
    CHECK(dp_write(from, NULL, 0) == 0);
    char *place, *empty;
    CHECK(dp_read(to, &place) == LONG && memcmp(place, text, LONG) == 0);
    CHECK(dp_read(to, &empty) == 0);
    CHECK(dp_fsync(to, HELD - HELD / 2) == 0);
    CHECK(memcmp(place, text, LONG) == 0);
    CHECK(dp_fsync(to, 0) == 0);
    CHECK(dp_fsync(to, 2) == 0);
    CHECK_FAILS(dp_fsync(to, 1), EINVAL, "but 0 are read");

    /* A buffer that is too short costs nothing but a second call. */
    CHECK(dp_write(from, "too long", 8) == 8);
    char buffer[8];
    CHECK_FAILS(dp_recv_copy(to, buffer, 7, NULL, 0, -1), EMSGSIZE, "8 bytes, the buffer 7");
    CHECK(dp_recv_copy(to, buffer, 8, NULL, 0, -1) == 8);
    CHECK(memcmp(buffer, "too long", 8) == 0);

    /* Several in one call. */
    struct dp_message many[3];
    CHECK_FAILS(dp_recv_many(to, many, 3, DP_DONTWAIT, 0), EAGAIN, "no message waits");
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
    puts("in place");
    free(text);
    return 0;
}
