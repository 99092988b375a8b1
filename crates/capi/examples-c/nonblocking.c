/* Non-blocking writes: EAGAIN while the receiver has no room, poll until a retry is useful, and at
 * the end everything has arrived in order. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <fcntl.h>
#include <poll.h>

int main(void)
{
    int from = dp_open(1);
    int to = dp_open(2);
    CHECK(from >= 0 && to >= 0);
    CHECK(dp_target(from, 1, 2) == 0);
    CHECK(fcntl(from, F_SETFL, fcntl(from, F_GETFL) | O_NONBLOCK) == 0);

    const int total = 20000;
    int sent = 0, received = 0, refused = 0;
    char payload[512] = { 0 };
    while (received < total) {
        while (sent < total) {
            memcpy(payload, &sent, sizeof sent);
            if (dp_write(from, payload, sizeof payload) < 0) {
                CHECK(errno == EAGAIN);
                refused++;
                break;
            }
            sent++;
        }
        /* Full: read what has arrived. */
        const void *message;
        ssize_t length;
        while ((length = dp_recv(to, &message, NULL, DP_DONTWAIT, 0)) >= 0) {
            CHECK(length == sizeof payload);
            CHECK(memcmp(message, &received, sizeof received) == 0);
            received++;
            CHECK(dp_fsync(to, 1) == 0);
        }
        CHECK(errno == EAGAIN);
        struct pollfd both[] = { { from, 0, 0 }, { to, POLLIN, 0 } };
        both[0].events = sent < total ? POLLOUT : 0;
        if (received < total) {
            CHECK(poll(both, 2, -1) > 0);
        }
    }
    CHECK(refused > 0);
    CHECK_FAILS(dp_send(from, payload, 1, DP_DONTWAIT | 64, 0), EINVAL, "flags are 0x41");
    printf("%d messages, refused now and then\n", received);

    /* A read that does not wait, and one with a timeout. */
    char *message;
    CHECK(fcntl(to, F_SETFL, fcntl(to, F_GETFL) | O_NONBLOCK) == 0);
    CHECK_FAILS(dp_read(to, &message), EAGAIN, "wait until it is readable");
    CHECK(fcntl(to, F_SETFL, fcntl(to, F_GETFL) & ~O_NONBLOCK) == 0);
    const void *address;
    CHECK_FAILS(dp_recv(to, &address, NULL, 0, 1000000), ETIMEDOUT, "no message arrived");
    return 0;
}
