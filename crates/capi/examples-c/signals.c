/* A signal handler ends a wait unless it was installed with SA_RESTART. */
#define _POSIX_C_SOURCE 200809L
#define _XOPEN_SOURCE 700
#include "check.h"

#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t seen;

static void note(int signal)
{
    seen = signal;
}

/* Installs the handler, and lets the signal come in 200 ms. */
static void expect_signal(int flags)
{
    struct sigaction action = { .sa_handler = note, .sa_flags = flags };
    struct itimerval soon = { .it_value = { 0, 200000 } };
    seen = 0;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
}

int main(void)
{
    int to = dp_open(2), from = dp_open(1);
    const void *message;
    CHECK(to >= 0 && from >= 0 && dp_target(from, 1, 2) == 0);

    expect_signal(SA_RESTART);
    CHECK_FAILS(dp_recv(to, &message, NULL, 0, 700000000), ETIMEDOUT, "no message");
    CHECK(seen == SIGALRM);
    puts("restarted");

    char *read;
    expect_signal(0);
    CHECK_FAILS(dp_read(to, &read), EINTR, "a signal interrupted");
    CHECK(seen == SIGALRM);

    /* Nothing is lost: what could not be sent is sent by the next call. */
    char text[1000] = { 0 };
    int sent = 0;
    expect_signal(0);
    while (dp_write(from, text, sizeof text) == sizeof text)
        sent++;
    CHECK(errno == EINTR && seen == SIGALRM);
    for (int got = 0; got < sent; got++)
        CHECK(dp_recv_copy(to, text, sizeof text, NULL, 0, -1) == sizeof text);
    CHECK_FAILS(dp_recv(to, &message, NULL, DP_DONTWAIT, 0), EAGAIN, "no message");

    int queue = dp_queue_open();
    CHECK(queue >= 0 && dp_queue_attach(queue, to) == 0);
    struct dp_completion completion;
    expect_signal(0);
    CHECK_FAILS(dp_queue_wait(queue, &completion, 1, -1), EINTR, "a signal interrupted");
    puts("interrupted");
    return 0;
}
