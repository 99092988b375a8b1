/* One thread sends and another receives on the same descriptor, while a third echoes; then a waiting
 * thread gets an error because its endpoint is closed. */
#include "check.h"
#include <pthread.h>

enum { MESSAGES = 20000 };
static int own, echo;

static void *send_all(void *unused)
{
    (void)unused;
    for (int number = 0; number < MESSAGES; number++) {
        CHECK(dp_write(own, &number, sizeof number) == sizeof number);
    }
    return NULL;
}

static void *receive_all(void *unused)
{
    (void)unused;
    for (int number = 0; number < MESSAGES; number++) {
        char *message;
        CHECK(dp_read(own, &message) == sizeof number);
        CHECK(memcmp(message, &number, sizeof number) == 0);
        CHECK(dp_fsync(own, 1) == 0);
    }
    return NULL;
}

static void *echo_all(void *unused)
{
    (void)unused;
    for (int number = 0; number < MESSAGES; number++) {
        char *message;
        int length = dp_read(echo, &message);
        CHECK(length == sizeof number);
        CHECK(dp_write(echo, message, length) == length);
        CHECK(dp_fsync(echo, 1) == 0);
    }
    return NULL;
}

static void *wait_for_the_end(void *unused)
{
    (void)unused;
    char *message;
    CHECK(dp_write(own, "ready", 5) == 5);
    /* No more messages arrive, but the other thread closes the endpoint. */
    CHECK_FAILS(dp_read(own, &message), EBADF, "not an open endpoint");
    return NULL;
}

static void run(void *(*bodies[])(void *), int count)
{
    pthread_t threads[3];
    for (int index = 0; index < count; index++) {
        CHECK(pthread_create(&threads[index], NULL, bodies[index], NULL) == 0);
    }
    for (int index = 0; index < count; index++) {
        CHECK(pthread_join(threads[index], NULL) == 0);
    }
}

int main(void)
{
    own = dp_open(1);
    echo = dp_open(2);
    CHECK(own >= 0 && echo >= 0);
    CHECK(dp_target(own, 1, 2) == 0 && dp_target(echo, 1, 1) == 0);
    void *(*bodies[])(void *) = { send_all, receive_all, echo_all };
    run(bodies, 3);
    printf("%d messages to and fro\n", MESSAGES);

    pthread_t waiter;
    CHECK(pthread_create(&waiter, NULL, wait_for_the_end, NULL) == 0);
    char *message;
    CHECK(dp_read(echo, &message) == 5);
    CHECK(dp_close(own) == 0);
    CHECK(pthread_join(waiter, NULL) == 0);
    puts("closed while waiting");
    return 0;
}
