/* Replies to every message: echo_server DPID. A client that is gone, or does not read its replies,
 * does not slow down the others. */
#include "check.h"

int main(int count, char **arguments)
{
    CHECK(count == 2);
    int fd = dp_open(atoi(arguments[1]));
    CHECK(fd >= 0);
    puts("ready");
    fflush(stdout);
    for (;;) {
        char *message;
        int length = dp_read(fd, &message);
        CHECK(length >= 0);
        if (length == 3 && memcmp(message, "end", 3) == 0) {
            return 0;
        }
        if (dp_reply(fd, message, message, (size_t)length) < 0) {
            fprintf(stderr, "cannot reply: %s\n", dp_error());
        }
        CHECK(dp_fsync(fd, 1) == 0);
    }
}
