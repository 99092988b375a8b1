/* Calls that take data in unusual ways, signal handlers, descriptors that change, and bad addresses. The
 * output must be the same with and without the library. */
#define _GNU_SOURCE
#include "connection.h"

static void into_a_pipe(unsigned flags)
{
    struct unread *it = unread();
    int ends[2];
    CHECK(pipe(ends) == 0);
    take(it, in, read(it->b, in, 1000));
    while (it->got < BIG) {
        ssize_t moved = splice(it->b, NULL, ends[1], NULL, 50000, flags);
        CHECK(moved > 0);
        for (ssize_t left = moved; left > 0;) {
            ssize_t some = read(ends[0], in, (size_t)left);
            take(it, in, some);
            left -= some;
        }
    }
    nonblocking(it->b);
    CHECK(splice(it->b, NULL, ends[1], NULL, 1, flags) == -1 && errno == EAGAIN);
    close(ends[0]);
    close(ends[1]);
    rest(it);
}

static void dropped(void)
{
    struct unread *it = unread();
    ssize_t gone = recv(it->b, NULL, 5000, MSG_TRUNC);
    CHECK(gone > 0 && gone <= 5000);
    it->got += (size_t)gone;
    rest(it);
}

/* All messages are filled in order, and the last one with what has arrived. */
static void messages(void)
{
    struct unread *it = unread();
    struct mmsghdr list[40];
    struct iovec parts[40][2];
    struct timespec bad = {0, -1}, long_enough = {60, 0};
    int count;
    memset(list, 0, sizeof list);
    for (int i = 0; i < 40; i++) {
        parts[i][0] = (struct iovec){in + 10000 * i, 100};
        parts[i][1] = (struct iovec){in + 10000 * i + 100, 9900};
        list[i].msg_hdr.msg_iov = parts[i];
        list[i].msg_hdr.msg_iovlen = 2;
    }
    CHECK(recvmmsg(it->b, list, 2, 0, &bad) == -1 && errno == EINVAL);
    CHECK(recvmmsg(it->b, list, 3, MSG_WAITALL, &long_enough) == 3 && long_enough.tv_sec == 59);
    for (int i = 0; i < 3; i++) {
        CHECK(list[i].msg_len == 10000);
        take(it, in + 10000 * i, 10000);
    }
    count = recvmmsg(it->b, list, 40, MSG_WAITFORONE, NULL);
    CHECK(count > 0 && count < 40);
    for (int i = 0; i < count; i++)
        take(it, in + 10000 * i, list[i].msg_len);
    CHECK(it->got == BIG);
    CHECK(recvmmsg(it->b, list, 40, MSG_DONTWAIT, NULL) == -1 && errno == EAGAIN);
    CHECK(write(it->a, out, 10) == 10);
    CHECK(recvmmsg(it->b, list, 1, 0, NULL) == 1 && list[0].msg_len == 10);
    rest(it);
}

static void with_flags(void)
{
    struct unread *it = unread();
    struct iovec parts[2] = {{in, 100}, {in + 100, 900}};
    CHECK(preadv2(it->b, parts, 2, 0, 0) == -1 && errno == ESPIPE);
    CHECK(preadv2(it->b, parts, 2, -1, 1 << 30) == -1 && errno == EOPNOTSUPP);
    take(it, in, preadv2(it->b, parts, 2, -1, RWF_NOWAIT));
    take(it, in, preadv2(it->b, parts, 2, -1, 0));
    while (it->got < BIG)
        take(it, in, read(it->b, in, sizeof in));
    CHECK(preadv2(it->b, parts, 2, -1, RWF_NOWAIT) == -1 && errno == EAGAIN);
    rest(it);
}

/* Urgent bytes and errors are read next to unread bytes. */
static void outside_the_stream(void)
{
    struct unread *it = unread();
    struct pollfd urgent = {it->b, POLLPRI, 0};
    char byte = 0;
    CHECK(recv(it->b, in, 10, MSG_OOB) == -1 && errno == EINVAL);
    CHECK(recv(it->b, in, 10, MSG_ERRQUEUE) == -1 && errno == EAGAIN);
    CHECK(send(it->a, "u", 1, MSG_OOB) == 1);
    CHECK(poll(&urgent, 1, 5000) == 1 && urgent.revents == POLLPRI);
    CHECK(sockatmark(it->b) == 0);
    CHECK(recv(it->b, &byte, 1, MSG_OOB) == 1 && byte == 'u');
    CHECK(write(it->a, "after", 5) == 5);
    while (it->got < BIG)
        take(it, in, read(it->b, in, sizeof in));
    CHECK(recv(it->b, in, 5, MSG_WAITALL) == 5 && memcmp(in, "after", 5) == 0);
    rest(it);
}

static void options(void)
{
    struct unread *it = unread();
    int mark = 100, on = 1;
    CHECK(setsockopt(it->b, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) == 0);
    CHECK(setsockopt(it->b, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) == 0);
    CHECK(setsockopt(it->b, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0);
    CHECK(setsockopt(it->b, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0);
    rest(it);
}

/* Once TCP_INQ is set, every read returns a control message. */
static void control_messages(void)
{
    int a, b, on = 1;
    warm(&a, &b);
    CHECK(setsockopt(b, IPPROTO_TCP, TCP_INQ, &on, sizeof on) == 0);
    for (int round = 0; round < 5; round++) {
        size_t got = 0;
        CHECK(write(a, out, BIG) == BIG);
        while (got < BIG) {
            char control[64];
            struct iovec part = {in, sizeof in};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
            message.msg_control = control;
            message.msg_controllen = sizeof control;
            ssize_t some = recvmsg(b, &message, 0);
            CHECK(some > 0 && message.msg_controllen > 0);
            got += (size_t)some;
        }
    }
    finish(a, b);
}

static int handler_fd;
static volatile sig_atomic_t handled;

static void writing_handler(int number)
{
    (void)number;
    int before = errno;
    handled += send(handler_fd, "x", 1, MSG_DONTWAIT) == 1;
    errno = before;
}

static void *drain(void *argument)
{
    size_t *total = argument;
    for (ssize_t some; (some = read(handler_fd + 1, in, sizeof in)) > 0;)
        *total += (size_t)some;
    return NULL;
}

static void timer(int number, void (*handler)(int), int flags, int us)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    struct itimerval every = {{0, us}, {0, us}};
    CHECK(sigaction(number, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
}

/* A handler writes to the connection that its thread is writing to. */
static void handlers(void)
{
    int a, b;
    pthread_t thread;
    size_t total = 0, written = 0;
    sigset_t alarms;
    handled = 0;
    warm(&a, &b);
    CHECK(dup2(a, 500) == 500 && dup2(b, 501) == 501);
    close(a);
    close(b);
    handler_fd = 500;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    CHECK(pthread_sigmask(SIG_BLOCK, &alarms, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, drain, &total) == 0);
    timer(SIGALRM, writing_handler, SA_RESTART, 500);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &alarms, NULL) == 0);
    while (handled < 100 || written < 50 * BIG) {
        ssize_t some = write(500, out, BIG);
        CHECK(some > 0);
        written += (size_t)some;
    }
    timer(SIGALRM, SIG_IGN, 0, 0);
    close(500);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(total == written + (size_t)handled);
    close(501);
}

static void nothing(int number)
{
    (void)number;
    handled++;
}

/* A signal without SA_RESTART ends a write whose bytes are not read. */
static void interrupted(void)
{
    int a, b;
    ssize_t some;
    warm(&a, &b);
    handled = 0;
    timer(SIGALRM, nothing, 0, 2500);
    do {
        some = write(a, out, BIG);
    } while (some == BIG);
    CHECK(some >= 0 || errno == EINTR);
    timer(SIGALRM, SIG_IGN, 0, 0);
    CHECK(handled > 0);
    finish(a, b);
}

/* The number of a connection that was closed in another way becomes a file. */
static void reused(int by_stdio)
{
    struct unread *it = unread();
    char text[8];
    int other = open("/proc/self/comm", O_RDONLY);
    take(it, in, read(it->b, in, 1000));
    if (by_stdio) {
        while (it->got < BIG)
            take(it, in, read(it->b, in, sizeof in));
        FILE *file = fdopen(it->b, "r");
        CHECK(file && fclose(file) == 0);
    } else {
        CHECK(syscall(SYS_close, it->b) == 0);
    }
    /* Not through replaced functions. */
    CHECK(syscall(SYS_dup3, other, it->b, 0) == it->b);
    CHECK(read(it->b, text, 5) == 5 && memcmp(text, "edges", 5) == 0);
    close(other);
    close(it->b);
    close(it->a);
    free(it);
}

/* A connection that becomes standard input is read by the C library, which the replacement does not see. */
static void standard_input(void)
{
    int a, b, c;
    warm(&a, &b);
    CHECK(dup2(b, 0) == 0);
    close(b);
    b = dup(a);
    close(a);
    pass(b, 0, BIG, 3);
    CHECK(write(b, out, 1000) == 1000);
    CHECK(fread(in, 1, 1000, stdin) == 1000 && memcmp(in, out, 1000) == 0);
    close(b);
    close(0);
    c = open("/dev/null", O_RDONLY);
    CHECK(c == 0);
}

static void bad_addresses(void)
{
    struct unread *it = unread();
    /* Volatile, so that the compiler does not warn of it. */
    char *volatile where = (char *)8;
    char *bad = where;
    struct iovec part = {bad, 1000};
    CHECK(read(it->b, bad, 1000) == -1 && errno == EFAULT);
    CHECK(readv(it->b, &part, 1) == -1 && errno == EFAULT);
    CHECK(readv(it->b, (struct iovec *)bad, 1) == -1 && errno == EFAULT);
    CHECK(write(it->b, bad, BIG) == -1 && errno == EFAULT);
    CHECK(writev(it->b, &part, 1) == -1 && errno == EFAULT);
    rest(it);
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    fill(out, BIG, 5);
    for (int round = 0; round < 2; round++) {
        into_a_pipe(0);
        into_a_pipe(SPLICE_F_NONBLOCK);
        dropped();
        messages();
        with_flags();
        outside_the_stream();
        options();
        control_messages();
        handlers();
        interrupted();
        reused(0);
        reused(1);
        bad_addresses();
    }
    standard_input();
    puts("all calls do what they do over TCP");
    return 0;
}
