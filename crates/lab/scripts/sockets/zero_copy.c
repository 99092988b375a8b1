/* zero_copy ADDRESS [NAMESPACE]: a stream of writes of 256 KiB over TCP to ADDRESS, whose reader is in NAMESPACE, with
   each way to avoid a copy. Prints for each: GB/s; CPU seconds per GB of writer and reader; the share of bytes that the
   kernel did not copy for the writer, and that it mapped for the reader. For speed.py zero-copy. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LENGTH = 256 << 10, MESSAGES = 8192 };

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double used(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void on(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

struct result {
    double cpu, share;
};

static struct result read_all(int end, int maps)
{
    static char bytes[LENGTH];
    size_t all = (size_t)LENGTH * MESSAGES, got = 0, mapped = 0;
    char *room = maps ? mmap(0, LENGTH, PROT_READ, MAP_SHARED, end, 0) : 0;
    double before = used();
    while (got < all) {
        size_t skip = LENGTH;
        if (maps) {
            struct tcp_zerocopy_receive take = { .address = (uintptr_t)room, .length = LENGTH };
            socklen_t size = sizeof take;
            if (getsockopt(end, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &take, &size))
                exit(3);
            got += take.length;
            mapped += take.length;
            /* What does not fill a page must be read. */
            skip = take.recv_skip_hint;
            if (!skip && take.length)
                continue;
        }
        ssize_t some = recv(end, bytes, skip && skip < LENGTH ? skip : LENGTH, 0);
        if (some <= 0)
            exit(4);
        got += some;
    }
    return (struct result) { used() - before, (double)mapped / all };
}

/* Counts completions, and those for which the kernel made a copy. */
static void complete(int end, unsigned *done, unsigned *copied)
{
    char control[128];
    struct msghdr message = { .msg_control = control, .msg_controllen = sizeof control };
    while (recvmsg(end, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) {
        struct sock_extended_err *error = (void *)CMSG_DATA(CMSG_FIRSTHDR(&message));
        unsigned count = error->ee_data - error->ee_info + 1;
        *done += count;
        if (error->ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
            *copied += count;
        message.msg_controllen = sizeof control;
    }
}

static struct result write_all(int end, int flags)
{
    char *bytes = mmap(0, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned calls = 0, done = 0, copied = 0;
    int one = 1;
    memset(bytes, 1, LENGTH);
    if (flags && setsockopt(end, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one))
        exit(5);
    double before = used();
    for (int i = 0; i < MESSAGES; i++)
        for (size_t sent = 0; sent < LENGTH;) {
            ssize_t some = send(end, bytes + sent, LENGTH - sent, flags);
            if (some > 0)
                calls++, sent += some;
            if (flags)
                complete(end, &done, &copied);
        }
    while (flags && done < calls)
        complete(end, &done, &copied);
    return (struct result) { used() - before, flags ? 1 - (double)copied / calls : 0 };
}

int main(int argc, char **argv)
{
    for (int way = 0; way < 3; way++) {
        int results[2], port[2];
        if (pipe(results) || pipe(port))
            return 1;
        pid_t reader = fork();
        if (!reader) {
            if (argc > 2 && setns(open(argv[2], O_RDONLY), CLONE_NEWNET))
                _exit(2);
            on(1);
            struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = inet_addr(argv[1]) };
            socklen_t size = sizeof at;
            int listener = socket(AF_INET, SOCK_STREAM, 0);
            if (bind(listener, (void *)&at, size) || listen(listener, 1) || getsockname(listener, (void *)&at, &size)
                || write(port[1], &at, size) != size)
                _exit(2);
            struct result result = read_all(accept(listener, 0, 0), way == 2);
            _exit(write(results[1], &result, sizeof result) != sizeof result);
        }
        on(0);
        struct sockaddr_in to;
        struct result theirs, own;
        int end = socket(AF_INET, SOCK_STREAM, 0);
        if (read(port[0], &to, sizeof to) != sizeof to || connect(end, (void *)&to, sizeof to))
            return 1;
        double begun = now(CLOCK_MONOTONIC);
        own = write_all(end, way == 1 ? MSG_ZEROCOPY : 0);
        if (read(results[0], &theirs, sizeof theirs) != sizeof theirs)
            return 1;
        double gigabytes = (double)LENGTH * MESSAGES / 1e9, took = now(CLOCK_MONOTONIC) - begun;
        printf("%.2f %.3f %.3f %.2f %.2f\n", gigabytes / took, own.cpu / gigabytes, theirs.cpu / gigabytes, own.share, theirs.share);
        fflush(stdout);
        close(end);
        waitpid(reader, 0, 0);
    }
    return 0;
}
