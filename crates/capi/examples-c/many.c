/* A send costs the same with one open endpoint and with many: many ENDPOINTS */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <sys/resource.h>
#include <time.h>

enum { ROUNDS = 20000 };

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Sends from the endpoints in turn and reads; returns ns per message. */
static long long measure(const int *senders, int count, int receiver)
{
    long long least = INT64_MAX;
    for (int attempt = 0; attempt < 5; attempt++) {
        long long begun = now_ns();
        for (int round = 0; round < ROUNDS; round++) {
            char *message;
            CHECK(dp_write(senders[round % count], "x", 1) == 1);
            CHECK(dp_read(receiver, &message) == 1);
            CHECK(dp_fsync(receiver, 1) == 0);
        }
        long long each = (now_ns() - begun) / ROUNDS;
        least = each < least ? each : least;
    }
    return least;
}

int main(int count, char **arguments)
{
    int wanted = count > 1 ? atoi(arguments[1]) : 10000;
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    /* Each endpoint has a descriptor, and the library has another one for it. */
    rlim_t needed = (rlim_t)wanted * 2 + 100;
    struct rlimit raised = { needed, needed > limit.rlim_max ? needed : limit.rlim_max };
    if (setrlimit(RLIMIT_NOFILE, &raised) != 0) {
        limit.rlim_cur = limit.rlim_max;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        wanted = (int)((limit.rlim_max - 100) / 2);
        printf("only %d endpoints: the limit of open files is %llu\n", wanted,
               (unsigned long long)limit.rlim_max);
    }

    int receiver = dp_open(0);
    CHECK(receiver >= 0);
    int *senders = calloc((size_t)wanted, sizeof *senders);
    CHECK(senders != NULL);
    for (int index = 0; index < wanted; index++) {
        senders[index] = dp_open(1 + index);
        CHECK(senders[index] >= 0);
        CHECK(dp_target(senders[index], 1, 0) == 0);
        if (index == 0) {
            printf("1 endpoint: %lld ns\n", measure(senders, 1, receiver));
        }
    }
    printf("%d endpoints, the same one: %lld ns\n", wanted, measure(senders, 1, receiver));
    printf("%d endpoints, the last one: %lld ns\n", wanted,
           measure(&senders[wanted - 1], 1, receiver));
    printf("%d endpoints in turn: %lld ns\n", wanted, measure(senders, wanted, receiver));
    for (int index = 0; index < wanted; index++) {
        CHECK(dp_close(senders[index]) == 0);
    }
    puts("done");
    return 0;
}
