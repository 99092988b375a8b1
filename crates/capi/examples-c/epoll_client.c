/* Sends to every server endpoint in turn and waits for the echo:
 * epoll_client OWN_DPID FIRST_DPID N ROUNDS */
#include "check.h"

int main(int count, char **arguments)
{
    CHECK(count == 5);
    int own = atoi(arguments[1]);
    int first = atoi(arguments[2]);
    int n = atoi(arguments[3]);
    int rounds = atoi(arguments[4]);
    int fd = dp_open(own);
    CHECK(fd >= 0);
    for (int round = 0; round < rounds; round++) {
        int server = first + (own + round * 37) % n;
        char question[64], reply[64];
        int length = snprintf(question, sizeof question, "%d asks %d", own, server);
        struct dp_address source;
        CHECK(dp_target(fd, 1, server) == 0);
        CHECK(dp_write(fd, question, length) == length);
        CHECK(dp_recv_copy(fd, reply, sizeof reply, &source, 0, -1) == length);
        CHECK(memcmp(question, reply, (size_t)length) == 0);
        CHECK(source.dpid == (uint32_t)server);
        if (round == rounds - 1) {
            CHECK(dp_write(fd, "bye", 3) == 3);
        }
        CHECK(dp_untarget(fd, 1, server) == 0);
    }
    printf("%d rounds\n", rounds);
    CHECK(dp_close(fd) == 0);
    return 0;
}
