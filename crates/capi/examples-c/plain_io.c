/* DP_IO: messages through read, write, readv and writev, in this process and in cat. */
#define _POSIX_C_SOURCE 200809L
#define _XOPEN_SOURCE 700
#include "check.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG = 300000 };

static int open_plain(uint32_t dpid, uint32_t flags)
{
    struct dp_open_options options = { .size = sizeof options, .flags = DP_IO | flags };
    int fd = dp_open_with(dpid, &options);
    CHECK(fd >= 0);
    return fd;
}

static int is_ready(int fd, short events, int timeout_ms)
{
    struct pollfd polled = { fd, events, 0 };
    return poll(&polled, 1, timeout_ms) == 1 && (polled.revents & events);
}

static void shut_down_one_direction(void)
{
    static char filling[100000];
    char answer[8];
    int here = open_plain(83, 0), there = open_plain(84, 0);
    CHECK(dp_target(here, 1, 84) == 0 && dp_target(there, 1, 83) == 0);
    CHECK(shutdown(there, SHUT_RD) == 0);
    CHECK(read(there, answer, sizeof answer) == 0);
    /* More than there is room for: it is discarded. */
    for (int index = 0; index < 1000; index++)
        CHECK(write(here, filling, sizeof filling) == sizeof filling);
    CHECK(write(there, "still", 5) == 5);
    CHECK(read(here, answer, sizeof answer) == 5);

    CHECK(shutdown(here, SHUT_WR) == 0);
    CHECK(write(here, "", 1) == -1 && errno == EPIPE);
    CHECK(write(there, "reads", 5) == 5);
    CHECK(read(here, answer, sizeof answer) == 5);
    CHECK(dp_close(here) == 0 && dp_close(there) == 0);
    puts("one direction");
}

static void close_after_a_failure(void)
{
    int fd = open_plain(85, 0);
    CHECK(write(fd, "no target", 9) == 9);
    while (write(fd, "until it is known", 17) == 17)
        poll(NULL, 0, 1);
    CHECK(errno == EPIPE && close(fd) == 0);
    while ((fd = dp_open(85)) < 0) {
        CHECK(errno == EADDRINUSE);
        poll(NULL, 0, 1);
    }
    CHECK(dp_close(fd) == 0);
    puts("failure");
}

static void echo_by_cat(void)
{
    int here = open_plain(91, 0), there = open_plain(92, 0);
    CHECK(dp_target(here, 1, 92) == 0 && dp_target(there, 1, 91) == 0);
    pid_t cat = fork();
    CHECK(cat >= 0);
    if (cat == 0) {
        dup2(there, 0);
        dup2(there, 1);
        execlp("cat", "cat", (char *)NULL);
        _exit(127);
    }
    char answer[64];
    for (int index = 0; index < 1000; index++) {
        char text[64];
        int length = snprintf(text, sizeof text, "line %d", index);
        CHECK(write(here, text, (size_t)length) == length);
        CHECK(read(here, answer, sizeof answer) == length);
        CHECK(memcmp(text, answer, (size_t)length) == 0);
    }
    CHECK(dp_write(here, "", 0) == 0); /* the end of cat's input */
    int status;
    CHECK(waitpid(cat, &status, 0) == cat && status == 0);
    CHECK(dp_close(here) == 0 && dp_close(there) == 0);
    puts("cat");
}

int main(void)
{
    int from = open_plain(81, 0), to = open_plain(82, DP_NONBLOCK);
    char buffer[LONG];
    CHECK(read(to, buffer, 1) == -1 && errno == EAGAIN);
    CHECK(dp_target(from, 1, 82) == 0);
    CHECK(is_ready(from, POLLOUT, 0) && !is_ready(to, POLLIN, 0));
    CHECK(write(from, "plain", 5) == 5);
    struct iovec halves[2] = { { "in ", 3 }, { "pieces", 6 } };
    CHECK(writev(from, halves, 2) == 9);
    CHECK(is_ready(to, POLLIN, 10000));
    CHECK(read(to, buffer, sizeof buffer) == 5 && memcmp(buffer, "plain", 5) == 0);
    CHECK(is_ready(to, POLLIN, 10000));
    struct iovec parts[2] = { { buffer, 3 }, { buffer + 10, 100 } };
    CHECK(readv(to, parts, 2) == 9 && memcmp(buffer + 10, "pieces", 6) == 0);
    CHECK(!is_ready(to, POLLIN, 0));

    /* A long message by dp_write is read in pieces, and loses nothing. */
    for (int index = 0; index < LONG; index++)
        buffer[index] = (char)(index % 251);
    CHECK(dp_write(from, buffer, LONG) == LONG);
    memset(buffer, 0, sizeof buffer);
    for (ssize_t got = 0; got < LONG;) {
        CHECK(is_ready(to, POLLIN, 10000));
        ssize_t length = read(to, buffer + got, (size_t)(LONG - got));
        CHECK(length > 0);
        got += length;
    }
    for (int index = 0; index < LONG; index++)
        CHECK(buffer[index] == (char)(index % 251));
    puts("plain");

    /* What was written before a close arrives, even empty messages. */
    for (int index = 0; index < 100; index++)
        CHECK(write(from, &index, index % sizeof index) == (ssize_t)(index % sizeof index));
    CHECK(close(from) == 0);
    for (int index = 0, number; index < 100; index++) {
        CHECK(is_ready(to, POLLIN, 10000));
        CHECK(read(to, &number, sizeof number) == (ssize_t)(index % sizeof index));
    }
    CHECK(dp_close(to) == 0);
    puts("closed");
    echo_by_cat();
    shut_down_one_direction();
    close_after_a_failure();
    return 0;
}
