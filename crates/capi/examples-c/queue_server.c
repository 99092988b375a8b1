/* Replies to messages at several endpoints, all attached to one completion queue:
 * queue_server DPID... Ends when it gets a message for that. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <poll.h>

enum { MOST = 16 };

int main(int count, char **arguments)
{
    int queue = dp_queue_open();
    CHECK(queue >= 0);
    for (int number = 1; number < count; number++) {
        int fd = dp_open(atoi(arguments[number]));
        CHECK(fd >= 0 && dp_queue_attach(queue, fd) == 0);
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct pollfd waited = { .fd = queue, .events = POLLIN };
        CHECK(poll(&waited, 1, -1) == 1);
        struct dp_completion done[MOST];
        int taken = dp_queue_wait(queue, done, MOST, 0);
        CHECK(taken > 0 || errno == EAGAIN);
        for (int place = 0; place < taken; place++) {
            const struct dp_completion *it = &done[place];
            CHECK(it->kind == DP_RECEIVED);
            if (it->length == 3 && memcmp(it->message, "end", 3) == 0) {
                return 0;
            }
            if (dp_reply(it->fd, it->message, it->message, it->length) < 0) {
                fprintf(stderr, "cannot reply: %s\n", dp_error());
            }
            CHECK(dp_fsync(it->fd, 1) == 0);
        }
    }
}
