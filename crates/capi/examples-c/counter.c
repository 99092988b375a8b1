/* Counts completed operations, on two edges and from several threads. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 500, THREADS = 4 };
static const int64_t LONG_NS = 60000000000;
static int counter, edge;

static int post(int to, uint64_t context)
{
    struct iovec piece = { "counted", 7 };
    return dp_post(to, 0, &piece, 1, context);
}

static void *post_some(void *unused)
{
    (void)unused;
    for (uint64_t context = 0; context < MANY / THREADS; context++) {
        CHECK(post(edge, context) == 0);
    }
    return NULL;
}

/* Waits for a count that is reached during the call. */
static void *wait_for_all(void *unused)
{
    (void)unused;
    CHECK(dp_counter_wait(counter, MANY, NULL, LONG_NS) == 0);
    return NULL;
}

int main(void)
{
    int from = dp_open(1), to = dp_open(2);
    CHECK(from >= 0 && to >= 0);
    struct dp_address target = { 1, 2 }, nobody = { 1, 999999 };
    counter = dp_counter_open();
    edge = dp_edge_open(from, target);
    CHECK(counter >= 0 && edge >= 0);
    CHECK(dp_counter_attach_edge(counter, edge) == 0);
    struct dp_counts done = { 7, 7 };
    CHECK(dp_counter_read(counter, &done) == 0 && done.sent == 0 && done.failed == 0);
    CHECK(dp_counter_wait(counter, 0, &done, 0) == 0);

    pthread_t waiting, posting[THREADS];
    CHECK(pthread_create(&waiting, NULL, wait_for_all, NULL) == 0);
    for (int number = 0; number < THREADS; number++) {
        CHECK(pthread_create(&posting[number], NULL, post_some, NULL) == 0);
    }
    for (int number = 0; number < MANY; number++) {
        char *message;
        CHECK(dp_read(to, &message) == 7 && dp_fsync(to, 1) == 0);
    }
    for (int number = 0; number < THREADS; number++) {
        CHECK(pthread_join(posting[number], NULL) == 0);
    }
    CHECK(pthread_join(waiting, NULL) == 0);
    CHECK(dp_counter_wait(counter, MANY, &done, -1) == 0);
    CHECK(done.sent == MANY && done.failed == 0);
    puts("counted");

    /* A cancelled operation counts as failed. */
    int connecting = dp_edge_open(from, nobody);
    CHECK(connecting >= 0 && dp_counter_attach_edge(counter, connecting) == 0);
    CHECK(post(connecting, 7) == 0);
    CHECK_FAILS(dp_counter_wait(counter, MANY + 1, &done, 0), EAGAIN, "fewer than 501");
    CHECK_FAILS(dp_counter_wait(counter, MANY + 1, &done, 1000000), ETIMEDOUT, "within 1ms");
    CHECK(dp_cancel(connecting, 7) == 1);
    CHECK(dp_counter_wait(counter, MANY + 1, &done, LONG_NS) == 0);
    CHECK(done.sent == MANY && done.failed == 1);
    puts("cancelled");

    /* Only the counter that was attached last counts an edge's operations. */
    int second = dp_counter_open();
    CHECK(second >= 0 && second != counter);
    CHECK(dp_counter_attach_edge(second, edge) == 0 && post(edge, 0) == 0);
    CHECK(dp_counter_wait(second, 1, &done, LONG_NS) == 0 && done.sent == 1);
    CHECK(dp_counter_read(counter, &done) == 0 && done.sent == MANY);
    CHECK(dp_counter_close(second) == 0);
    CHECK(post(edge, 0) == 0); /* not counted */
    CHECK(dp_edge_drain(edge, LONG_NS) == 0);

    /* Invalid arguments. */
    CHECK_FAILS(dp_counter_close(second), EBADF, "not an open completion counter");
    CHECK_FAILS(dp_counter_read(-1, &done), EBADF, "-1 is not an open completion counter");
    CHECK_FAILS(dp_counter_wait(second, 0, NULL, 0), EBADF, "not an open completion counter");
    CHECK_FAILS(dp_counter_attach_edge(second, edge), EBADF, "not an open completion counter");
    CHECK_FAILS(dp_counter_attach_edge(counter, 999), EBADF, "999 is not an open edge");
    CHECK_FAILS(dp_counter_read(counter, NULL), EFAULT, "counts is a null pointer");
    void *odd = (char *)&done + 1;
    CHECK_FAILS(dp_counter_wait(counter, 0, odd, 0), EFAULT, "counts is not properly aligned");

    /* A forked child does not inherit any of this. */
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK_FAILS(dp_counter_read(counter, &done), ESTALE, "parent process");
        CHECK(dp_counter_close(counter) == 0); /* only the number */
        CHECK_FAILS(dp_counter_close(counter), EBADF, "not an open completion counter");
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(dp_counter_read(counter, &done) == 0 && done.sent == MANY);
    CHECK(dp_finalize(LONG_NS) == 0);
    CHECK_FAILS(dp_counter_read(counter, &done), EBADF, "not an open completion counter");
    puts("closed");
    return 0;
}
