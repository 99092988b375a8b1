/* Connections between two threads of a program, and what is sent over them. */
#ifndef SOCKETS_TESTS_CONNECTION_H
#define SOCKETS_TESTS_CONNECTION_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define BIG 200000
static char out[BIG], in[BIG * 4];
static uint64_t by_tcp, in_all;

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what)) {                                                         \
            printf("line %d: %s (errno %d)\n", __LINE__, #what, errno);        \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static void fill(char *to, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        to[i] = (char)(i * 31 + (i >> 8) + seed);
}

static void get(int fd, char *to, size_t length)
{
    for (size_t got = 0; got < length;) {
        ssize_t some = read(fd, to + got, length - got);
        CHECK(some > 0);
        got += (size_t)some;
    }
}

struct job {
    int fd;
    size_t length;
    unsigned seed;
};

static void *put(void *argument)
{
    struct job *job = argument;
    char *bytes = malloc(job->length);
    CHECK(bytes);
    fill(bytes, job->length, job->seed);
    for (size_t done = 0; done < job->length;) {
        ssize_t some = write(job->fd, bytes + done, job->length - done);
        CHECK(some > 0);
        done += (size_t)some;
    }
    free(bytes);
    return NULL;
}

/* Sends `length` bytes in one direction with one call, and compares what is read. */
static void pass(int from, int to, size_t length, unsigned seed)
{
    pthread_t thread;
    struct job job = {from, length, seed};
    char *got = malloc(length), *expected = malloc(length);
    CHECK(got && expected);
    CHECK(pthread_create(&thread, NULL, put, &job) == 0);
    get(to, got, length);
    CHECK(pthread_join(thread, NULL) == 0);
    fill(expected, length, seed);
    CHECK(memcmp(got, expected, length) == 0);
    in_all += length;
    free(got);
    free(expected);
}

static int family = AF_INET;
/* The network namespaces of both ends, and the addresses in the second; by default loopback. */
static int here = -1, there = -1;
static const char *addresses[] = {"127.0.0.1", "::1"};

static void enter(int namespace)
{
    CHECK(namespace < 0 || setns(namespace, CLONE_NEWNET) == 0);
}

static void join(int *a, int *b)
{
    struct sockaddr_storage at = {.ss_family = (sa_family_t)family};
    void *place = family == AF_INET ? (void *)&((struct sockaddr_in *)&at)->sin_addr
                                    : (void *)&((struct sockaddr_in6 *)&at)->sin6_addr;
    CHECK(inet_pton(family, addresses[family == AF_INET6], place) == 1);
    socklen_t size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    enter(there);
    int listener = socket(family, SOCK_STREAM, 0);
    enter(here);
    CHECK(bind(listener, (struct sockaddr *)&at, size) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
    *a = socket(family, SOCK_STREAM, 0);
    CHECK(connect(*a, (struct sockaddr *)&at, size) == 0);
    *b = accept(listener, NULL, NULL);
    CHECK(*b >= 0);
    close(listener);
}

/* A connection with large writes in both directions. */
static void warm(int *a, int *b)
{
    join(a, b);
    for (unsigned i = 0; i < 4; i++) {
        pass(*a, *b, BIG, i);
        pass(*b, *a, BIG, i + 7);
    }
}

static void account(int fd)
{
    struct tcp_info info;
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
        by_tcp += info.tcpi_bytes_received;
}

static void finish(int a, int b)
{
    account(a);
    account(b);
    close(a);
    close(b);
}

static inline void nonblocking(int fd)
{
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

static inline int ready_within(int milliseconds, int fd, short what)
{
    struct pollfd one = {fd, what, 0};
    CHECK(poll(&one, 1, milliseconds) >= 0);
    return one.revents;
}

/* For what is ready already, or never. */
static inline int ready(int fd, short what)
{
    return ready_within(200, fd, what);
}

/* For what takes a moment, or longer on a busy machine. */
static inline int becomes_ready(int fd, short what)
{
    return ready_within(30000, fd, what);
}

/* Waits until this many bytes can be read: Nagle may delay the last ones for a moment. */
static inline void arrive(int fd, int length)
{
    int queued = 0;
    for (int tries = 0; tries < 5000 && queued != length; tries++) {
        CHECK(ioctl(fd, FIONREAD, &queued) == 0);
        usleep(1000);
    }
    CHECK(queued == length);
}

/* Data that was sent with one large write and has not been read. */
struct unread {
    int a, b;
    char sent[BIG];
    size_t got;
};

static inline struct unread *unread(void)
{
    struct unread *it = malloc(sizeof *it);
    CHECK(it);
    warm(&it->a, &it->b);
    fill(it->sent, BIG, 77);
    CHECK(write(it->a, it->sent, BIG) == BIG);
    arrive(it->b, BIG);
    it->got = 0;
    return it;
}

static inline void take(struct unread *it, const char *bytes, ssize_t count)
{
    CHECK(count > 0 && it->got + (size_t)count <= BIG);
    CHECK(memcmp(bytes, it->sent + it->got, (size_t)count) == 0);
    it->got += (size_t)count;
}

static inline void rest(struct unread *it)
{
    while (it->got < BIG)
        take(it, in, read(it->b, in, sizeof in));
    finish(it->a, it->b);
    free(it);
}

#endif
