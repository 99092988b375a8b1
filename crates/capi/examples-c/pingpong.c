/* Two processes send a message back and forth: pingpong ROUNDS BYTES */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int smaller(const void *left, const void *right)
{
    long long difference = *(const long long *)left - *(const long long *)right;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **arguments)
{
    int rounds = count > 1 ? atoi(arguments[1]) : 10000;
    int bytes = count > 2 ? atoi(arguments[2]) : 64;
    char *payload = calloc(1, bytes > 0 ? (size_t)bytes : 1);
    long long *times = calloc((size_t)rounds, sizeof *times);
    CHECK(payload != NULL && times != NULL && rounds > 0);

    /* Each process opens its own node: fork before the first call. */
    pid_t child = fork();
    CHECK(child >= 0);
    int own = child == 0 ? 101 : 100;
    int fd = dp_open(own);
    CHECK(fd >= 0);
    CHECK(dp_target(fd, 1, child == 0 ? 100 : 101) == 0);
    for (int round = 0; round < rounds; round++) {
        char *message;
        long long begun = now_ns();
        if (child != 0) {
            CHECK(dp_write(fd, payload, bytes) == bytes);
        }
        CHECK(dp_read(fd, &message) == bytes);
        CHECK(dp_fsync(fd, 1) == 0);
        times[round] = now_ns() - begun;
        if (child == 0) {
            CHECK(dp_write(fd, payload, bytes) == bytes);
        }
    }
    CHECK(dp_drain(fd, 5000000000) == 0);
    if (child == 0) {
        /* The other process closes first. */
        return 0;
    }
    qsort(times, (size_t)rounds, sizeof *times, smaller);
    printf("%d rounds of %d bytes, one way %lld ns at the median\n", rounds, bytes,
           times[rounds / 2] / 2);
    CHECK(dp_close(fd) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    free(payload);
    free(times);
    return 0;
}
