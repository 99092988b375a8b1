/* Duplicates of a descriptor: dup, fork, close. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

static int hears(int fd, const char *text)
{
    char copy[32];
    ssize_t length = dp_recv_copy(fd, copy, sizeof copy, NULL, 0, -1);
    CHECK(length >= 0);
    return (size_t)length == strlen(text) && memcmp(copy, text, strlen(text)) == 0;
}

int main(void)
{
    int from = dp_open(1);
    int to = dp_open(2);
    CHECK(from >= 0 && to >= 0);
    CHECK(dp_target(from, 1, 2) == 0);

    /* A duplicate works like the original. */
    int copy = dup(from);
    CHECK(copy >= 0);
    CHECK(dp_write(copy, "by the copy", 11) == 11);
    CHECK(hears(to, "by the copy"));
    CHECK(close(from) == 0);
    CHECK(dp_write(copy, "by the copy alone", 17) == 17);
    CHECK(hears(to, "by the copy alone"));

    /* The freed number is now likely to be a duplicate of another endpoint. */
    int other = dup(to);
    CHECK(other >= 0);
    struct dp_address own;
    CHECK(dp_own_address(other, &own) == 0 && own.dpid == 2);
    CHECK(dp_write(copy, "to the other", 12) == 12);
    CHECK(hears(other, "to the other"));
    CHECK_FAILS(dp_write(other, "x", 1), EDESTADDRREQ, "1:2 has no target");
    CHECK(close(other) == 0);
    puts("dup");

    /* A child inherits the numbers, but not the endpoints. */
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char *message;
        CHECK_FAILS(dp_write(copy, "x", 1), ESTALE, "belongs to the parent process");
        CHECK_FAILS(dp_read(to, &message), ESTALE, "inherited by fork");
        CHECK_FAILS(dp_target(to, 1, 1), ESTALE, "inherited by fork");
        CHECK_FAILS(dp_fsync(to, 0), ESTALE, "inherited by fork");
        CHECK_FAILS(dp_own_address(to, &own), ESTALE, "inherited by fork");
        struct dp_stats stats = { .size = sizeof stats };
        CHECK_FAILS(dp_stats(&stats), ENXIO, "not open");
        CHECK(dp_close(copy) == 0); /* only the number */
        CHECK_FAILS(dp_write(copy, "x", 1), EBADF, "not an open endpoint");
        int mine = dp_open(3);
        CHECK(mine >= 0);
        CHECK(dp_target(mine, 1, 2) == 0);
        CHECK(dp_write(mine, "from the child", 14) == 14);
        return 0;
    }
    CHECK(hears(to, "from the child"));
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(dp_write(copy, "still here", 10) == 10);
    CHECK(hears(to, "still here"));
    puts("fork");

    /* close() of the last duplicate closes the endpoint. */
    int watcher = dp_open(4);
    CHECK(watcher >= 0);
    CHECK(dp_target(watcher, 1, 2) == 0);
    CHECK(close(to) == 0);
    while (dp_write(watcher, "respond?", 8) == 8) {
        CHECK(dp_drain(watcher, -1) == 0 || errno == ECONNREFUSED);
    }
    CHECK(errno == ECONNREFUSED);
    CHECK_FAILS(dp_write(to, "x", 1), EBADF, "not an open endpoint");
    CHECK_FAILS(dp_close(to), EBADF, "not an open endpoint");
    /* Its number becomes free a moment after its messages are refused. */
    int again;
    while ((again = dp_open(2)) < 0) {
        CHECK(errno == EADDRINUSE);
    }
    CHECK(dp_close(again) == 0);
    CHECK_FAILS(dp_close(again), EBADF, "not an open endpoint");
    puts("close");
    return 0;
}
