/* A counter behind an active port, and calls that ports refuse: port DPID. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

enum { ADDS = 1000 };
static const int64_t LONG_NS = 60000000000;

struct counter {
    uint64_t sum;
    int own_waits_refused;
};

/* Adds the numbers it receives and replies with the sum; an empty message is the last one. */
static void add(int port, const struct dp_message *message, void *context)
{
    struct counter *counter = context;
    uint64_t number;
    if (message->length == 0) {
        CHECK_FAILS(dp_port_wait(port, 1, 0), EDEADLK, "waits for its own port");
        counter->own_waits_refused++;
        CHECK(dp_port_reply(port, "end", 3) == 3);
        return;
    }
    CHECK(message->length == sizeof number && message->source.nid == 1);
    memcpy(&number, message->address, sizeof number);
    counter->sum += number;
    CHECK(dp_port_reply(port, &counter->sum, sizeof counter->sum) == sizeof counter->sum);
}

static void close_own(int port, const struct dp_message *message, void *context)
{
    (void)message;
    *(int *)context = dp_port_close(port) == 0;
}

/* Another process, which sends the requests. */
static void ask(uint32_t dpid)
{
    struct dp_address to = { 1, dpid };
    int fd = dp_open_with(DP_ANY, NULL);
    int edge = dp_edge_open(fd, to);
    CHECK(edge >= 0);
    for (uint64_t number = 1, sum = 0, answer; number <= ADDS; number++) {
        sum += number;
        CHECK(dp_edge_send(edge, &number, sizeof number, 0, LONG_NS) == sizeof number);
        CHECK(dp_recv_copy(fd, &answer, sizeof answer, NULL, 0, LONG_NS) == sizeof answer);
        CHECK(answer == sum);
    }
    char end[3];
    CHECK(dp_edge_send(edge, "", 0, 0, LONG_NS) == 0);
    CHECK(dp_recv_copy(fd, end, sizeof end, NULL, 0, LONG_NS) == 3);
    CHECK(dp_close(fd) == 0);
}

int main(int count, char **arguments)
{
    static struct counter counter;
    CHECK(count == 2);
    uint32_t dpid = (uint32_t)atoi(arguments[1]);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ask(dpid);
        exit(0);
    }
    int port = dp_port_open(dpid, add, &counter);
    CHECK(port >= 0);
    struct dp_address own;
    CHECK(dp_port_address(port, &own) == 0 && own.nid == 1 && own.dpid == dpid);
    CHECK(dp_port_wait(port, ADDS + 1, LONG_NS) == 0);
    CHECK(counter.sum == (uint64_t)ADDS * (ADDS + 1) / 2 && counter.own_waits_refused == 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    CHECK_FAILS(dp_port_wait(port, ADDS + 2, 0), EAGAIN, "have been handled");
    CHECK_FAILS(dp_port_wait(port, ADDS + 2, 1000), ETIMEDOUT, "were handled within");
    CHECK_FAILS(dp_port_reply(port, "x", 1), EINVAL, "is not running on this thread");
    CHECK_FAILS(dp_port_open(dpid, add, NULL), EADDRINUSE, "has it");
    CHECK_FAILS(dp_port_open(dpid + 1, NULL, NULL), EFAULT, "handler");
    CHECK(dp_port_close(port) == 0);
    CHECK_FAILS(dp_port_close(port), EBADF, "is not an open port");

    /* A handler may close its own port; a thread that waits for the port gets an error. */
    int closed = 0;
    int once = dp_port_open(DP_ANY, close_own, &closed);
    CHECK(once >= 0 && dp_port_address(once, &own) == 0);
    int fd = dp_open_with(DP_ANY, NULL);
    CHECK(dp_send_to(fd, own, "", 0, 0, LONG_NS) == 0);
    CHECK_FAILS(dp_port_wait(once, 2, LONG_NS), EBADF, "");
    CHECK(closed);
    CHECK(dp_close(fd) == 0);
    printf("%d answers\n", ADDS + 1);
    return 0;
}
