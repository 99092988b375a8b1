/* A client of an echo server: echo_client DPID TEXT. With the text "gone" it ends without waiting
 * for the reply. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <poll.h>

int main(int count, char **arguments)
{
    CHECK(count == 3);
    struct dp_address server = { 1, (uint32_t)atoi(arguments[1]) };
    size_t length = strlen(arguments[2]);
    int fd = dp_open_with(DP_ANY, NULL);
    CHECK(fd >= 0);
    CHECK(dp_send_to(fd, server, arguments[2], length, 0, 10000000000) == (ssize_t)length);
    if (strcmp(arguments[2], "gone") == 0 || strcmp(arguments[2], "end") == 0) {
        return 0;
    }
    char answer[64];
    struct pollfd waited = { .fd = fd, .events = POLLIN };
    CHECK(poll(&waited, 1, 10000) == 1);
    /* Too long for the buffer: the message stays, and the descriptor stays readable. */
    CHECK_FAILS(dp_recv_copy(fd, answer, 1, NULL, 0, -1), EMSGSIZE, "1");
    CHECK(poll(&waited, 1, 0) == 1);
    ssize_t got = dp_recv_copy(fd, answer, sizeof answer, NULL, 0, -1);
    CHECK(got == (ssize_t)length);
    printf("%.*s\n", (int)got, answer);
    return 0;
}
