/* An endpoint's descriptor in poll, select, and epoll, level- and edge-triggered. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

static int from, to;

static void say(const char *text)
{
    CHECK(dp_write(from, text, (int)strlen(text)) == (int)strlen(text));
}

static void hear(const char *text)
{
    char *message;
    int length = dp_read(to, &message);
    CHECK(length == (int)strlen(text) && memcmp(message, text, strlen(text)) == 0);
    CHECK(dp_fsync(to, 1) == 0);
}

static int polled(short events, int timeout_ms)
{
    struct pollfd one = { to, events, 0 };
    int ready = poll(&one, 1, timeout_ms);
    CHECK(ready >= 0);
    return one.revents;
}

static int selected(void)
{
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(to, &readable);
    CHECK(select(to + 1, &readable, NULL, NULL, NULL) == 1);
    return FD_ISSET(to, &readable);
}

int main(void)
{
    from = dp_open(1);
    to = dp_open(2);
    CHECK(from >= 0 && to >= 0);
    CHECK(dp_target(from, 1, 2) == 0);

    CHECK(polled(POLLIN | POLLOUT, 0) == POLLOUT);
    say("poll");
    CHECK(polled(POLLIN, -1) == POLLIN);
    CHECK(polled(POLLIN, -1) == POLLIN);
    hear("poll");
    CHECK(polled(POLLIN, 0) == 0);
    puts("poll");

    say("select");
    CHECK(selected());
    hear("select");
    puts("select");

    struct epoll_event event = { .events = EPOLLIN, .data = { .fd = to } };
    int level = epoll_create1(0), edge = epoll_create1(0);
    CHECK(level >= 0 && edge >= 0);
    CHECK(epoll_ctl(level, EPOLL_CTL_ADD, to, &event) == 0);
    event.events = EPOLLIN | EPOLLET;
    CHECK(epoll_ctl(edge, EPOLL_CTL_ADD, to, &event) == 0);
    CHECK(epoll_wait(level, &event, 1, 0) == 0);
    CHECK(epoll_wait(edge, &event, 1, 0) == 0);
    say("one");
    say("two");
    CHECK(epoll_wait(level, &event, 1, -1) == 1 && event.data.fd == to);
    CHECK(epoll_wait(edge, &event, 1, -1) == 1 && event.data.fd == to);
    /* Level-triggered while a message is waiting; edge-triggered until all are read. */
    hear("one");
    CHECK(epoll_wait(level, &event, 1, -1) == 1);
    hear("two");
    CHECK(epoll_wait(level, &event, 1, 0) == 0);
    const void *none;
    CHECK_FAILS(dp_recv(to, &none, NULL, DP_DONTWAIT, 0), EAGAIN, "no message is waiting");
    say("three");
    CHECK(epoll_wait(edge, &event, 1, -1) == 1 && event.data.fd == to);
    hear("three");
    puts("epoll");
    return 0;
}
