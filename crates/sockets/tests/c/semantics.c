/* Exercises socket calls; the output must be the same with and without the library. The last line,
 * on standard error, has the bytes that TCP carried and the total. */
#define _GNU_SOURCE
#include "connection.h"

static void reading(void)
{
    int a, b;
    warm(&a, &b);
    nonblocking(b);
    CHECK(read(b, in, 10) == -1 && errno == EAGAIN);
    CHECK(recv(a, in, 10, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    fill(out, BIG, 3);
    CHECK(write(a, out, 5) == 5);
    CHECK(write(a, out + 5, BIG - 10) == BIG - 10);
    CHECK(write(a, out + BIG - 5, 5) == 5);
    CHECK(ready(b, POLLIN | POLLOUT) == (POLLIN | POLLOUT));
    arrive(b, BIG);
    memset(in, 0, BIG);
    CHECK(recv(b, in, BIG, MSG_PEEK) == BIG && memcmp(in, out, BIG) == 0);
    memset(in, 0, BIG);
    CHECK(recv(b, in, 3, 0) == 3 && memcmp(in, out, 3) == 0);
    CHECK(recv(b, in, 40, MSG_PEEK) == 40 && memcmp(in, out + 3, 40) == 0);
    struct iovec parts[3] = {{in, 1}, {in + 1, 30000}, {in + 30001, BIG}};
    CHECK(readv(b, parts, 3) == BIG - 3 && memcmp(in, out + 3, BIG - 3) == 0);
    CHECK(ready(b, POLLIN) == 0);
    CHECK(read(b, in, 1) == -1 && errno == EAGAIN);
    CHECK(read(b, in, 0) == 0);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    CHECK(write(a, out, BIG) == BIG && becomes_ready(b, POLLIN) == POLLIN);
    arrive(b, BIG);
    CHECK(recvmsg(b, &message, 0) == BIG && memcmp(in, out, BIG) == 0);
    struct iovec to[2] = {{out, 20000}, {out + 20000, BIG - 20000}};
    CHECK(writev(a, to, 2) == BIG && becomes_ready(b, POLLIN) == POLLIN);
    arrive(b, BIG);
    CHECK(recv(b, in, BIG, 0) == BIG && memcmp(in, out, BIG) == 0);
    struct timeval soon = {0, 50000};
    CHECK(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    CHECK(recv(a, in, 10, 0) == -1 && errno == EAGAIN);
    CHECK(write(b, out, 50) == 50);
    CHECK(recv(a, in, 100, MSG_WAITALL) == 50 && memcmp(in, out, 50) == 0);
    CHECK(send(b, out, BIG, 0) == BIG && recv(a, in, BIG, MSG_WAITALL) == BIG);
    CHECK(memcmp(in, out, BIG) == 0);
    finish(a, b);
    printf("reading: as expected\n");
}

static void readiness(void)
{
    int a, b;
    warm(&a, &b);
    nonblocking(b);
    int set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN | EPOLLET, {.fd = b}}, got;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, b, &event) == 0);
    CHECK(epoll_wait(set, &got, 1, 0) == 0);
    CHECK(write(a, out, BIG) == BIG);
    CHECK(epoll_wait(set, &got, 1, 1000) == 1 && got.events == EPOLLIN);
    arrive(b, BIG);
    while (epoll_wait(set, &got, 1, 0) == 1)
        ;
    CHECK(read(b, in, BIG * 2) == BIG);
    CHECK(epoll_wait(set, &got, 1, 20) == 0);
    CHECK(write(a, out, BIG) == BIG);
    CHECK(epoll_wait(set, &got, 1, 1000) == 1);
    arrive(b, BIG);
    while (epoll_wait(set, &got, 1, 0) == 1)
        ;
    CHECK(read(b, in, 10) == 10 && epoll_wait(set, &got, 1, 0) == 0);
    event.events = EPOLLIN;
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, b, &event) == 0);
    CHECK(epoll_wait(set, &got, 1, 0) == 1 && epoll_wait(set, &got, 1, 0) == 1);
    CHECK(read(b, in, BIG - 11) == BIG - 11 && epoll_wait(set, &got, 1, 0) == 1);
    CHECK(read(b, in, 10) == 1 && epoll_wait(set, &got, 1, 0) == 0);
    event.events = EPOLLIN | EPOLLONESHOT;
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, b, &event) == 0);
    CHECK(write(a, out, BIG) == BIG && epoll_wait(set, &got, 1, 1000) == 1);
    arrive(b, BIG);
    CHECK(epoll_wait(set, &got, 1, 0) == 0);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(b, &readable);
    struct timeval none = {0, 0};
    CHECK(select(b + 1, &readable, NULL, NULL, &none) == 1 && FD_ISSET(b, &readable));
    CHECK(read(b, in, BIG) == BIG);
    CHECK(select(b + 1, &readable, NULL, NULL, &none) == 0);
    close(set);
    finish(a, b);
    printf("readiness: as expected\n");
}

static void ends(void)
{
    int a, b;
    warm(&a, &b);
    CHECK(write(a, out, BIG) == BIG && shutdown(a, SHUT_WR) == 0);
    CHECK(send(a, out, BIG, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    get(b, in, BIG);
    CHECK(memcmp(in, out, BIG) == 0 && read(b, in, 1) == 0 && read(b, in, 1) == 0);
    pass(b, a, BIG, 9);
    CHECK(close(b) == 0 && read(a, in, 1) == 0);
    close(a);

    warm(&a, &b);
    CHECK(write(a, out, BIG) == BIG && close(a) == 0);
    get(b, in, BIG);
    CHECK(memcmp(in, out, BIG) == 0 && read(b, in, 1) == 0);
    close(b);

    warm(&a, &b);
    struct linger hard = {1, 0};
    CHECK(setsockopt(a, SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0 && close(a) == 0);
    CHECK(read(b, in, 1) == -1 && errno == ECONNRESET);
    CHECK(read(b, in, 1) == 0);
    CHECK(send(b, out, BIG, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    close(b);

    /* Unread bytes at close cause a reset, however they arrived. */
    warm(&a, &b);
    CHECK(write(b, out, BIG) == BIG && becomes_ready(a, POLLIN) == POLLIN && close(a) == 0);
    CHECK(read(b, in, 1) == -1 && errno == ECONNRESET);
    close(b);

    int refused = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(1)};
    nobody.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(refused, (struct sockaddr *)&nobody, sizeof nobody) == -1);
    CHECK(errno == ECONNREFUSED);
    close(refused);
    printf("ends: as expected\n");
}

static void *echo(void *argument)
{
    int fd = *(int *)argument;
    ssize_t got;
    char *bytes = malloc(70000);
    CHECK(bytes);
    while ((got = read(fd, bytes, 70000)) > 0)
        for (ssize_t done = 0; done < got;) {
            ssize_t some = write(fd, bytes + done, (size_t)(got - done));
            CHECK(some > 0);
            done += some;
        }
    free(bytes);
    shutdown(fd, SHUT_WR);
    return NULL;
}

/* Both directions at once, with more than all buffers hold. */
static void both_ways(void)
{
    int a, b;
    warm(&a, &b);
    pthread_t echoing, writing;
    size_t length = 8 << 20;
    struct job job = {a, length, 5};
    char *got = malloc(length), *expected = malloc(length);
    CHECK(got && expected);
    CHECK(pthread_create(&echoing, NULL, echo, &b) == 0);
    CHECK(pthread_create(&writing, NULL, put, &job) == 0);
    get(a, got, length);
    CHECK(pthread_join(writing, NULL) == 0 && shutdown(a, SHUT_WR) == 0);
    CHECK(pthread_join(echoing, NULL) == 0 && read(a, in, 1) == 0);
    fill(expected, length, 5);
    CHECK(memcmp(got, expected, length) == 0);
    in_all += 2 * length;
    free(got);
    free(expected);
    finish(a, b);
    printf("both ways at once: as expected\n");
}

static void full(void)
{
    int a, b;
    warm(&a, &b);
    nonblocking(a);
    nonblocking(b);
    fill(out, BIG, 0);
    size_t sent = 0, got = 0;
    ssize_t some;
    /* The receiver's buffer may still grow: repeat until poll and write agree. */
    do {
        while ((some = write(a, out, BIG)) > 0)
            sent += (size_t)some;
        CHECK(some == -1 && errno == EAGAIN);
    } while (ready(a, POLLOUT) & POLLOUT);
    while ((some = read(b, in, sizeof in)) > 0 || got < sent) {
        if (some > 0)
            got += (size_t)some;
        else
            CHECK(becomes_ready(b, POLLIN) == POLLIN);
    }
    CHECK(got == sent && read(b, in, 1) == -1 && errno == EAGAIN);
    CHECK(becomes_ready(a, POLLOUT) & POLLOUT);
    finish(a, b);
    printf("full: as expected\n");
}

static void pass_on(int through, int fd)
{
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(through, &message, 0) == 1);
}

static void copies(void)
{
    int a, b;
    warm(&a, &b);
    int copy = dup(b);
    CHECK(copy >= 0 && write(a, out, BIG) == BIG);
    get(copy, in, 10);
    CHECK(close(b) == 0);
    get(copy, in + 10, BIG - 10);
    CHECK(memcmp(in, out, BIG) == 0);
    b = fcntl(copy, F_DUPFD, 100);
    CHECK(b >= 100 && close(copy) == 0);
    pass(a, b, BIG, 1);

    /* A child reads the rest of what its parent has begun to read, and answers. */
    CHECK(write(a, out, BIG) == BIG);
    get(b, in, 1000);
    pid_t child = fork();
    if (child == 0) {
        get(b, in + 1000, BIG - 1000);
        _exit(memcmp(in, out, BIG) != 0 || write(b, out, BIG) != BIG);
    }
    int status;
    get(a, in, BIG);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    pass(a, b, BIG, 2);
    pass(b, a, BIG, 3);

    /* Another program uses the other end. */
    child = fork();
    if (child == 0) {
        dup2(b, 0);
        dup2(b, 1);
        execlp("cat", "cat", (char *)NULL);
        _exit(127);
    }
    close(b);
    pass(a, a, BIG, 4);
    CHECK(shutdown(a, SHUT_WR) == 0 && read(a, in, 1) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(a);

    /* Passed to a process, spliced, or sent from a file: over TCP. */
    warm(&a, &b);
    int pair[2], pipes[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pipe(pipes) == 0);
    pass_on(pair[0], b);
    pass(a, b, BIG, 5);
    close(pair[0]);
    close(pair[1]);
    finish(a, b);
    warm(&a, &b);
    CHECK(write(a, out, 1000) == 1000);
    arrive(b, 1000);
    CHECK(splice(b, NULL, pipes[1], NULL, 1000, 0) == 1000);
    CHECK(splice(pipes[0], NULL, a, NULL, 1000, 0) == 1000);
    get(b, in, 1000);
    pass(a, b, BIG, 6);
    CHECK(memcmp(in, out, 1000) == 0);
    finish(a, b);
    warm(&a, &b);
    FILE *file = tmpfile();
    CHECK(file && fwrite(out, 1, BIG, file) == BIG && fflush(file) == 0);
    off_t start = 0;
    CHECK(sendfile(a, fileno(file), &start, BIG) == BIG);
    get(b, in, BIG);
    CHECK(memcmp(in, out, BIG) == 0);
    fclose(file);
    pass(a, b, BIG, 7);
    FILE *stream = fdopen(b, "r+");
    CHECK(stream && write(a, out, BIG) == BIG && fread(in, 1, BIG, stream) == BIG);
    CHECK(memcmp(in, out, BIG) == 0);
    account(b);
    fclose(stream);
    close(a);
    close(pipes[0]);
    close(pipes[1]);
    printf("copies, children, passed on: as expected\n");
}

static void on_signal(int number)
{
    (void)number;
}

static void *interrupt(void *argument)
{
    usleep(50000);
    pthread_kill(*(pthread_t *)argument, SIGUSR1);
    return NULL;
}

static void signals(void)
{
    int a, b;
    warm(&a, &b);
    pthread_t self = pthread_self(), thread;
    struct sigaction action = {.sa_handler = on_signal};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, interrupt, &self) == 0);
    CHECK(read(b, in, 1) == -1 && errno == EINTR);
    pthread_join(thread, NULL);
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, interrupt, &self) == 0);
    struct job job = {a, 10, 1};
    pthread_t writer;
    pthread_join(thread, NULL);
    CHECK(pthread_create(&writer, NULL, put, &job) == 0);
    CHECK(read(b, in, 100) == 10);
    pthread_join(writer, NULL);
    finish(a, b);
    printf("signals: as expected\n");
}

static void *put_later(void *argument)
{
    usleep(50000);
    return put(argument);
}

/* A read that waits for more than has arrived. */
static void low_water(void)
{
    int a, b, least = 100;
    pthread_t writer;
    join(&a, &b);
    CHECK(setsockopt(b, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0);
    CHECK(write(a, out, 10) == 10);
    arrive(b, 10);
    struct job job = {a, 190, 1};
    CHECK(pthread_create(&writer, NULL, put_later, &job) == 0);
    CHECK(read(b, in, 300) == 200 && memcmp(in, out, 10) == 0);
    pthread_join(writer, NULL);
    finish(a, b);
    printf("low water: as expected\n");
}

/* A descriptor number that refers to another file without a call of close. */
static void reused(void)
{
    int a, b, ends[2];
    for (int of_datagrams = 0; of_datagrams < 2; of_datagrams++) {
        join(&a, &b);
        if (of_datagrams) {
            close(b);
            b = socket(family, SOCK_DGRAM, 0);
        }
        CHECK(pipe(ends) == 0);
        CHECK(write(ends[1], "text", 4) == 4);
        /* Not through a replaced function. */
        CHECK(syscall(SYS_dup3, ends[0], b, 0) == b);
        CHECK(read(b, in, 10) == 4 && memcmp(in, "text", 4) == 0);
        CHECK(write(ends[1], "more", 4) == 4 && read(b, in, 10) == 4);
        finish(a, b);
        close(ends[0]);
        close(ends[1]);
    }
    printf("numbers used again: as expected\n");
}

static void datagrams(void)
{
    struct sockaddr_storage at = {.ss_family = (sa_family_t)family}, from;
    socklen_t size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6), length;
    void *place = family == AF_INET ? (void *)&((struct sockaddr_in *)&at)->sin_addr
                                    : (void *)&((struct sockaddr_in6 *)&at)->sin6_addr;
    CHECK(inet_pton(family, addresses[family == AF_INET6], place) == 1);
    enter(there);
    int b = socket(family, SOCK_DGRAM, 0);
    enter(here);
    CHECK(bind(b, (struct sockaddr *)&at, size) == 0 && getsockname(b, (struct sockaddr *)&at, &size) == 0);
    int a = socket(family, SOCK_DGRAM, 0);
    CHECK(connect(a, (struct sockaddr *)&at, size) == 0);
    struct timeval soon = {0, 50000};
    CHECK(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    CHECK(recv(b, in, 10, 0) == -1 && errno == EAGAIN);
    for (int time = 0; time < 50; time++) {
        /* Each is read as it is: empty, truncated, with its sender. */
        CHECK(send(a, out, 0, 0) == 0 && read(b, in, 10) == 0);
        CHECK(send(a, out, 100, 0) == 100 && send(a, out + 100, 100, 0) == 100);
        CHECK(recv(b, in, 30, MSG_TRUNC) == 100 && memcmp(in, out, 30) == 0);
        memset(&from, 0, sizeof from);
        length = sizeof from;
        CHECK(recvfrom(b, in, 200, 0, (struct sockaddr *)&from, &length) == 100);
        CHECK(memcmp(in, out + 100, 100) == 0 && length == size && from.ss_family == family);
        CHECK(sendto(b, out, 300, 0, (struct sockaddr *)&from, length) == 300);
        struct iovec part = {in, 200};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_name = &from, .msg_namelen = sizeof from};
        CHECK(recvmsg(a, &message, 0) == 200 && (message.msg_flags & MSG_TRUNC) && message.msg_namelen == size);
        CHECK(recv(b, in, 10, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    }
    struct job job = {a, 10, 1};
    pthread_t writer;
    soon.tv_usec = 0;
    CHECK(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    CHECK(pthread_create(&writer, NULL, put_later, &job) == 0);
    CHECK(recv(b, in, 100, 0) == 10);
    pthread_join(writer, NULL);
    CHECK(pthread_create(&writer, NULL, put_later, &job) == 0);
    CHECK(becomes_ready(b, POLLIN) == POLLIN && read(b, in, 100) == 10);
    pthread_join(writer, NULL);
    nonblocking(b);
    CHECK(read(b, in, 10) == -1 && errno == EAGAIN);
    CHECK(fcntl(b, F_SETFL, fcntl(b, F_GETFL) & ~O_NONBLOCK) == 0);
    CHECK(pthread_create(&writer, NULL, put_later, &job) == 0);
    CHECK(read(b, in, 10) == 10);
    pthread_join(writer, NULL);
    /* No receiver. */
    close(b);
    CHECK(send(a, out, 10, 0) == 10 && recv(a, in, 10, 0) == -1 && errno == ECONNREFUSED);
    int c = dup(a);
    CHECK(c >= 0 && recv(c, in, 10, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    close(c);
    close(a);
    printf("datagrams: as expected\n");
}

/* [NAMESPACE ADDRESS-4 ADDRESS-6]: file and addresses of another network namespace. */
int main(int count, char **words)
{
    if (count == 4) {
        here = open("/proc/self/ns/net", O_RDONLY);
        there = open(words[1], O_RDONLY);
        CHECK(here >= 0 && there >= 0);
        addresses[0] = words[2];
        addresses[1] = words[3];
    }
    setvbuf(stdout, NULL, _IONBF, 0);
    alarm(60);
    for (int round = 0; round < 2; round++) {
        family = round ? AF_INET6 : AF_INET;
        reading();
        readiness();
        ends();
        both_ways();
        full();
        copies();
        signals();
        low_water();
        reused();
        datagrams();
    }
    fprintf(stderr, "%llu of %llu\n", (unsigned long long)by_tcp, (unsigned long long)in_all);
    return 0;
}
