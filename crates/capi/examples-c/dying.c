/* Threads that end while they hold messages, or are cancelled in a call, while others continue. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <pthread.h>
#include <time.h>

enum { ROUNDS = 200 };
static int from, to;

/* Ends while it holds a message. */
static void *take_and_go(void *unused)
{
    (void)unused;
    char *message;
    CHECK(dp_read(to, &message) == 5);
    pthread_exit(NULL);
}

/* Is cancelled at a random point. */
static void *talk_for_ever(void *unused)
{
    (void)unused;
    for (;;) {
        char *message;
        CHECK(dp_write(from, "hello", 5) == 5);
        CHECK(dp_read(to, &message) == 5);
        CHECK(dp_fsync(to, 1) == 0);
        pthread_testcancel();
    }
}

static void drain(void)
{
    const void *message;
    while (dp_recv(to, &message, NULL, DP_DONTWAIT, 0) >= 0) {
        CHECK(dp_fsync(to, 1) == 0);
    }
    CHECK(errno == EAGAIN);
}

int main(void)
{
    from = dp_open(1);
    to = dp_open(2);
    CHECK(from >= 0 && to >= 0 && dp_target(from, 1, 2) == 0);
    pthread_t thread;
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(pthread_create(&thread, NULL, take_and_go, NULL) == 0);
        CHECK(dp_write(from, "first", 5) == 5);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(dp_fsync(to, 1) == 0); /* released by another thread */
    }
    printf("%d threads went with a message\n", ROUNDS);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(pthread_create(&thread, NULL, talk_for_ever, NULL) == 0);
        struct timespec moment = { 0, (round % 20) * 20000L };
        nanosleep(&moment, NULL);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        drain();
    }
    printf("%d threads were cancelled\n", ROUNDS);
    char *message;
    CHECK(dp_write(from, "still", 5) == 5 && dp_read(to, &message) == 5);
    CHECK(dp_close(from) == 0 && dp_close(to) == 0);
    return 0;
}
