/* One of two ranks that exchange messages: the work of peer.py in C. peer WORK COUNT */
#define _POSIX_C_SOURCE 200809L
#include <bsp.h>
#include <dipole.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(what)                                                          \
    do {                                                                     \
        if (!(what)) {                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what,    \
                    dp_strerror(errno));                                        \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

static const size_t SMALL = 64, LARGE = 64 << 20;
static const int64_t LONG_NS = 60000000000;
static double *times;
static int count;

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void print_times(void)
{
    printf("[");
    for (int at = 0; at < count; at++) {
        printf("%s%.3f", at == 0 ? "" : ", ", times[at]);
    }
    printf("]\n");
}

static void message(int fd, int rank)
{
    static char small[64];
    for (int at = 0; at < count; at++) {
        double begun = now_us();
        if (rank == 0) {
            CHECK(dp_send(fd, small, SMALL, 0, LONG_NS) == (ssize_t)SMALL);
        }
        CHECK(dp_recv_copy(fd, small, SMALL, NULL, 0, LONG_NS) == (ssize_t)SMALL);
        if (rank == 1) {
            CHECK(dp_send(fd, small, SMALL, 0, LONG_NS) == (ssize_t)SMALL);
        }
        times[at] = (now_us() - begun) / 2;
    }
}

/* A long message, and a short one when it is there. */
static void array(int fd, int rank)
{
    char *memory = malloc(LARGE), done = 1;
    memset(memory, 1, LARGE);
    for (int at = 0; at < count; at++) {
        double begun = now_us();
        if (rank == 0) {
            CHECK(dp_send(fd, memory, LARGE, 0, LONG_NS) == (ssize_t)LARGE);
            CHECK(dp_recv_copy(fd, &done, 1, NULL, 0, LONG_NS) == 1);
        } else {
            CHECK(dp_recv_copy(fd, memory, LARGE, NULL, 0, LONG_NS) == (ssize_t)LARGE);
            CHECK(dp_send(fd, &done, 1, 0, LONG_NS) == 1);
        }
        times[at] = now_us() - begun;
    }
}

static void put(int fd, int rank, struct dp_address other)
{
    char *memory = malloc(LARGE), done = 1;
    uint64_t key;
    memset(memory, 1, LARGE);
    if (rank == 1) {
        CHECK(dp_region_open(fd, memory, LARGE, DP_ALLOW_PUT, &key) >= 0);
        CHECK(dp_send(fd, &key, sizeof key, 0, LONG_NS) == sizeof key);
        CHECK(dp_recv_copy(fd, &done, 1, NULL, 0, LONG_NS) == 1);
        return;
    }
    CHECK(dp_recv_copy(fd, &key, sizeof key, NULL, 0, LONG_NS) == sizeof key);
    int edge = dp_edge_open(fd, other);
    CHECK(edge >= 0);
    for (int at = 0; at < count; at++) {
        double begun = now_us();
        CHECK(dp_put(edge, key, 0, memory, LARGE, 0, LONG_NS) == 0);
        CHECK(dp_edge_drain(edge, LONG_NS) == 0);
        times[at] = now_us() - begun;
    }
    CHECK(dp_send(fd, &done, 1, 0, LONG_NS) == 1);
}

static int supersteps(void)
{
    bsp_begin(bsp_nprocs());
    for (int at = 0; at < count; at++) {
        double begun = now_us();
        bsp_sync();
        times[at] = now_us() - begun;
    }
    if (bsp_pid() == 0) {
        print_times();
    }
    bsp_end();
    return 0;
}

int main(int arguments, char **argument)
{
    if (arguments != 3) {
        return 2;
    }
    const char *work = argument[1];
    count = atoi(argument[2]);
    times = calloc((size_t)count, sizeof *times);
    if (strcmp(work, "sync") == 0) {
        return supersteps();
    }
    int rank = dp_rank();
    struct dp_address own, other;
    CHECK(dp_rank_address(rank, &own) == 0 && dp_rank_address(1 - rank, &other) == 0);
    int fd = dp_open_with(own.dpid, NULL);
    CHECK(fd >= 0 && dp_add_target(fd, other) == 0);
    if (strcmp(work, "message") == 0) {
        message(fd, rank);
    } else if (strcmp(work, "array") == 0) {
        array(fd, rank);
    } else {
        put(fd, rank, other);
    }
    if (rank == 0) {
        print_times();
    }
    CHECK(dp_drain(fd, LONG_NS) == 0);
    return 0;
}
