/* Fifty clients of an echo server in one process, each with one request open, until the input ends
 * and for some rounds more: echo_clients DPID FIRST_DPID */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <poll.h>

enum { CLIENTS = 50, LAST_ROUNDS = 5, LONGEST = 200 };
static const int64_t PATIENCE_NS = 60000000000;
static struct dp_address server = { 1, 0 };

/* The request of a client in a round; the echo must be the same. */
static size_t question(int client, int round, char *text)
{
    memset(text, 'a' + round % 26, LONGEST);
    int begin = snprintf(text, LONGEST, "%d %d", client, round);
    size_t length = (size_t)begin + (size_t)(client * 37 + round * 101) % 150;
    return length;
}

static void ask(int fd, int client, int round)
{
    char text[LONGEST];
    size_t length = question(client, round, text);
    CHECK(dp_send_to(fd, server, text, length, 0, PATIENCE_NS) == (ssize_t)length);
}

static void hear(int fd, int client, int round)
{
    char text[LONGEST], echo[LONGEST];
    size_t length = question(client, round, text);
    CHECK(dp_recv_copy(fd, echo, sizeof echo, NULL, 0, PATIENCE_NS) == (ssize_t)length);
    CHECK(memcmp(echo, text, length) == 0);
}

/* True at the end of the input, which is always empty. */
static int input_has_ended(void)
{
    struct pollfd waited = { .fd = 0, .events = POLLIN };
    return poll(&waited, 1, 0) == 1;
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    server.dpid = (uint32_t)atoi(arguments[1]);
    int fds[CLIENTS];
    for (int client = 0; client < CLIENTS; client++) {
        fds[client] = dp_open(atoi(arguments[2]) + client);
        CHECK(fds[client] >= 0);
        ask(fds[client], client, 0);
    }
    int round = 0, left = LAST_ROUNDS;
    while (left > 0) {
        /* From here on all clients but one are waiting for their echoes at any time. */
        for (int client = 0; client < CLIENTS; client++) {
            hear(fds[client], client, round);
            ask(fds[client], client, round + 1);
        }
        if (round++ == 0) {
            puts("up");
            fflush(stdout);
        }
        left -= input_has_ended();
    }
    for (int client = 0; client < CLIENTS; client++) {
        hear(fds[client], client, round);
    }
    puts("heard everything");
    return 0;
}
