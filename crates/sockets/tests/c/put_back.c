/* Unread bytes of a connection, when something else than the library's calls reads the descriptor from
 * then on: another program, another process, the C library's streams, or the kernel. The output must
 * be the same with and without the library. */
#define _GNU_SOURCE
#include "connection.h"
#include <spawn.h>
#include <sys/resource.h>

extern char **environ;
static const char *self;

/* The rest can be read at once with another descriptor. */
static void rest_at(struct unread *it, int fd)
{
    while (it->got < BIG)
        take(it, in, recv(fd, in, sizeof in, MSG_DONTWAIT));
    CHECK(recv(fd, in, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

/* The connection works in both directions, and both ends see the other's end. */
static void goes_on(int a, int b)
{
    pass(a, b, BIG, 1);
    pass(b, a, 3 * BIG, 2);
    pass(a, b, 5, 3);
    CHECK(shutdown(a, SHUT_WR) == 0 && read(b, in, 1) == 0);
    pass(b, a, BIG, 4);
    close(b);
    CHECK(read(a, in, 1) == 0);
    close(a);
}

static struct sockaddr_storage address(int fd, int (*of)(int, struct sockaddr *, socklen_t *))
{
    struct sockaddr_storage found;
    socklen_t size = sizeof found;
    memset(&found, 0, sizeof found);
    CHECK(of(fd, (struct sockaddr *)&found, &size) == 0);
    if (found.ss_family == AF_INET)
        ((struct sockaddr_in *)&found)->sin_port = 0;
    else
        ((struct sockaddr_in6 *)&found)->sin6_port = 0;
    return found;
}

/* Options, addresses and registrations stay. */
static void stream(void)
{
    struct unread *it = unread();
    struct sockaddr_storage here = address(it->b, getsockname), there = address(it->b, getpeername), found;
    int set = epoll_create1(0), on = 1;
    socklen_t size = sizeof on;
    struct epoll_event event = {EPOLLIN, {.u64 = 12345}}, got;
    struct timeval later = {3, 0}, time;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, it->b, &event) == 0);
    CHECK(setsockopt(it->b, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    CHECK(setsockopt(it->b, SOL_SOCKET, SO_RCVTIMEO, &later, sizeof later) == 0);
    CHECK(fcntl(it->b, F_SETFD, FD_CLOEXEC) == 0);
    nonblocking(it->b);
    FILE *file = fdopen(it->b, "r+");
    CHECK(file && fileno(file) == it->b);
    found = address(it->b, getsockname);
    CHECK(memcmp(&found, &here, sizeof here) == 0);
    found = address(it->b, getpeername);
    CHECK(memcmp(&found, &there, sizeof there) == 0);
    on = 0;
    CHECK(getsockopt(it->b, IPPROTO_TCP, TCP_NODELAY, &on, &size) == 0 && on != 0);
    size = sizeof time;
    CHECK(getsockopt(it->b, SOL_SOCKET, SO_RCVTIMEO, &time, &size) == 0 && time.tv_sec == 3);
    CHECK(fcntl(it->b, F_GETFD) == FD_CLOEXEC && fcntl(it->b, F_GETFL) & O_NONBLOCK);
    CHECK(epoll_wait(set, &got, 1, 1000) == 1 && got.data.u64 == 12345 && got.events == EPOLLIN);
    take(it, in, (ssize_t)fread(in, 1, 1000, file));
    CHECK(fcntl(it->b, F_SETFL, O_RDWR) == 0);
    while (it->got < BIG)
        take(it, in, (ssize_t)fread(in, 1, BIG - it->got < 70000 ? BIG - it->got : 70000, file));
    CHECK(epoll_wait(set, &got, 1, 0) == 0);
    CHECK(write(it->a, "a line\n", 7) == 7 && epoll_wait(set, &got, 1, 1000) == 1);
    CHECK(fgets(in, 100, file) && strcmp(in, "a line\n") == 0);
    CHECK(fputs("answer\n", file) >= 0 && fflush(file) == 0);
    CHECK(recv(it->a, in, 7, MSG_WAITALL) == 7 && memcmp(in, "answer\n", 7) == 0);
    int b = dup(it->b);
    CHECK(fclose(file) == 0);
    goes_on(it->a, b);
    close(set);
    free(it);
}

static int pass_on(int fd)
{
    int pair[2], got;
    char byte = 'x', control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(pair[0], &message, 0) == 1);
    CHECK(recvmsg(pair[1], &message, 0) == 1);
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    close(pair[0]);
    close(pair[1]);
    return got;
}

static void passed_on(void)
{
    struct unread *it = unread();
    take(it, in, read(it->b, in, 1234));
    int copy = dup(it->b), passed = pass_on(it->b);
    take(it, in, read(copy, in, 5));
    take(it, in, read(passed, in, 50000));
    take(it, in, read(it->b, in, 50000));
    close(it->b);
    close(copy);
    rest_at(it, passed);
    goes_on(it->a, passed);
    free(it);
}

/* The kernel's own counts and offsets are of the program's bytes. */
static void kernel_options(void)
{
    struct unread *it = unread();
    int offset = 1000;
    if (setsockopt(it->b, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) == 0) {
        CHECK(recv(it->b, in, 50, MSG_PEEK) == 50 && memcmp(in, it->sent + 1000, 50) == 0);
        CHECK(recv(it->b, in, 50, MSG_PEEK) == 50 && memcmp(in, it->sent + 1050, 50) == 0);
    } else {
        CHECK(errno == EOPNOTSUPP);
    }
    CHECK(setsockopt(it->b, IPPROTO_TCP, TCP_ULP, "tls", 3) == 0 || errno == ENOENT || errno == EPERM);
    rest(it);
    it = unread();
    CHECK(setsockopt(it->b, IPPROTO_TCP, TCP_ULP, "tls", 3) == 0 || errno == ENOENT || errno == EPERM);
    rest(it);
}

/* Standard input and output of a program, started in different ways. */
static void as_standard(int how)
{
    struct unread *it = unread();
    int ends[2], status;
    char *words[] = {"cat", NULL};
    pid_t child;
    CHECK(pipe(ends) == 0);
    if (how == 0 && (child = fork()) == 0) {
        dup2(it->b, 0);
        dup2(ends[1], 1);
        execlp("cat", "cat", (char *)NULL);
        _exit(127);
    }
    if (how == 1 && (child = vfork()) == 0) {
        dup2(it->b, 0);
        dup2(ends[1], 1);
        execvp("cat", words);
        _exit(127);
    }
    if (how == 2) {
        posix_spawn_file_actions_t actions;
        CHECK(posix_spawn_file_actions_init(&actions) == 0);
        CHECK(posix_spawn_file_actions_adddup2(&actions, it->b, 0) == 0);
        CHECK(posix_spawn_file_actions_adddup2(&actions, ends[1], 1) == 0);
        CHECK(posix_spawnp(&child, "cat", &actions, NULL, words, environ) == 0);
        CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
    }
    close(ends[1]);
    while (it->got < BIG)
        take(it, in, read(ends[0], in, BIG - it->got));
    CHECK(write(it->a, out, BIG) == BIG && shutdown(it->a, SHUT_WR) == 0);
    get(ends[0], in, BIG);
    CHECK(memcmp(in, out, BIG) == 0 && read(ends[0], in, 1) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* The child has ended, but the connection is open in this process. */
    pass(it->b, it->a, BIG, 6);
    close(it->b);
    CHECK(read(it->a, in, 1) == 0);
    close(it->a);
    close(ends[0]);
    free(it);
}

static void replaced_standard_input(void)
{
    struct unread *it = unread();
    CHECK(dup2(it->b, 0) == 0);
    close(it->b);
    clearerr(stdin);
    while (it->got < BIG)
        take(it, in, (ssize_t)fread(in, 1, 1000, stdin));
    goes_on(it->a, 0);
    it = unread();
    CHECK(it->a != 0 && it->b != 0);
    CHECK(dup(it->b) == 0);
    rest_at(it, 0);
    close(0);
    rest(it);
    it = unread();
    CHECK(fcntl(it->b, F_DUPFD, 0) == 0);
    close(it->b);
    rest_at(it, 0);
    goes_on(it->a, 0);
}

/* An end that closes with unread bytes resets the connection, and a reset reaches the other end. */
static void resets(void)
{
    struct linger hard = {1, 0};
    struct unread *it = unread();
    int passed = pass_on(it->b);
    close(it->b);
    CHECK(close(passed) == 0);
    CHECK(read(it->a, in, 1) == -1 && errno == ECONNRESET);
    close(it->a);
    it = unread();
    passed = pass_on(it->b);
    close(it->b);
    rest_at(it, passed);
    CHECK(setsockopt(it->a, SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0 && close(it->a) == 0);
    CHECK(read(passed, in, 1) == -1 && errno == ECONNRESET);
    CHECK(send(passed, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    close(passed);
}

/* Urgent bytes keep their place. */
static void urgent(void)
{
    struct unread *it = unread();
    int passed = pass_on(it->b);
    char byte = 0;
    struct pollfd one = {passed, POLLPRI, 0};
    close(it->b);
    rest_at(it, passed);
    CHECK(write(it->a, "before", 6) == 6 && send(it->a, "u", 1, MSG_OOB) == 1);
    CHECK(poll(&one, 1, 5000) == 1 && recv(passed, &byte, 1, MSG_OOB) == 1 && byte == 'u');
    CHECK(write(it->a, "after", 5) == 5);
    get(passed, in, 11);
    CHECK(memcmp(in, "beforeafter", 11) == 0);
    goes_on(it->a, passed);
}

/* More unread bytes than a new socket takes, and a writer that goes on. */
static void much(void)
{
    int a, b;
    pthread_t thread;
    struct job job = {-1, 12 << 20, 3};
    char *got = malloc(job.length), *expected = malloc(job.length);
    CHECK(got && expected);
    warm(&a, &b);
    job.fd = a;
    CHECK(pthread_create(&thread, NULL, put, &job) == 0);
    for (int queued = 0, before = -1; queued == 0 || queued != before;) {
        before = queued;
        usleep(50000);
        CHECK(ioctl(b, FIONREAD, &queued) == 0);
    }
    int passed = pass_on(b);
    close(b);
    get(passed, got, job.length);
    CHECK(pthread_join(thread, NULL) == 0);
    fill(expected, job.length, 3);
    CHECK(memcmp(got, expected, job.length) == 0);
    goes_on(a, passed);
    free(got);
    free(expected);
}

/* This program, executed again by itself: both ends stay open. */
static void begin_exec(void)
{
    struct unread *it = unread();
    char a[12], b[12];
    take(it, in, read(it->b, in, 1000));
    snprintf(a, sizeof a, "%d", it->a);
    snprintf(b, sizeof b, "%d", it->b);
    execl(self, self, "executed", a, b, (char *)NULL);
    CHECK(!"execl returned");
}

static void executed(int a, int b)
{
    char *sent = malloc(BIG);
    CHECK(sent);
    fill(sent, BIG, 77);
    get(b, in, BIG - 1000);
    CHECK(memcmp(in, sent + 1000, BIG - 1000) == 0);
    goes_on(a, b);
    puts("as before exec");
}

static void exec(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, "exec", (char *)NULL);
        _exit(127);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Without a free descriptor the bytes stay where they are, and only this library can read them. */
static void refused(void)
{
    struct unread *it = unread();
    struct rlimit before, none;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK(!fdopen(it->b, "r") && errno == EBUSY);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    rest(it);
}

int main(int count, char **words)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    fill(out, BIG, 5);
    self = words[0];
    alarm(100);
    if (count == 2 && strcmp(words[1], "refused") == 0) {
        refused();
        return 0;
    }
    if (count == 2)
        begin_exec();
    if (count == 4) {
        executed(atoi(words[2]), atoi(words[3]));
        return 0;
    }
    for (int round = 0; round < 2; round++) {
        family = round ? AF_INET6 : AF_INET;
        stream();
        puts("stream");
        passed_on();
        puts("passed on");
        kernel_options();
        puts("options");
        for (int how = 0; how < 3; how++)
            as_standard(how);
        puts("standard input of a child");
        replaced_standard_input();
        puts("own standard input");
        resets();
        puts("resets");
        urgent();
        puts("urgent");
        much();
        puts("much");
        exec();
    }
    return 0;
}
