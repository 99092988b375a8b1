/*
 * Runs a program in which one system call fails as if a resource had run out.
 *
 *   fail_calls [-e PROGRAM] [-a ARGUMENT] [-w FILE] RESOURCE N REPORT COMMAND [ARGUMENT...]
 *
 * RESOURCE is descriptors, threads, mappings (shared ones) or files. Of the calls that allocate it, the
 * Nth fails, counted from 1; with 0 none fails. -e counts only the calls of processes that run PROGRAM,
 * and -a only those of processes whose first argument contains ARGUMENT; -w counts only while FILE exists. When the last process has ended, the number of counted calls is
 * written to REPORT. The status is that of COMMAND. SIGTERM is passed on to it.
 *
 * A filter of the kernel stops each call until this process has decided about it (seccomp_unotify(2)).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A system call; with an argument that must have one of some bits, or one of two values. */
struct call {
    int number;
    enum { ALWAYS, ANY_BIT, EITHER_VALUE } condition;
    int argument;
    unsigned wanted, other;
};

#define CALL(name) {SYS_##name, ALWAYS, 0, 0, 0}

static const struct call DESCRIPTORS[] = {
    CALL(openat), CALL(openat2), CALL(socket), CALL(socketpair), CALL(accept4), CALL(epoll_create1),
    CALL(eventfd2), CALL(pipe2), CALL(memfd_create), CALL(dup), CALL(dup3), CALL(pidfd_open),
    CALL(timerfd_create), CALL(signalfd4), CALL(inotify_init1),
    {SYS_fcntl, EITHER_VALUE, 1, F_DUPFD, F_DUPFD_CLOEXEC},
    {0}};
static const struct call THREADS[] = {
    CALL(clone), CALL(clone3),
#ifdef SYS_vfork
    CALL(fork), CALL(vfork),
#endif
    {0}};
static const struct call MAPPINGS[] = {{SYS_mmap, ANY_BIT, 3, MAP_SHARED, 0}, {0}};
static const struct call FILES[] = {
    {SYS_openat, ANY_BIT, 2, O_CREAT, 0}, CALL(mkdirat), CALL(symlinkat), CALL(linkat), CALL(renameat),
    CALL(renameat2), CALL(ftruncate), CALL(fallocate), CALL(write), CALL(pwrite64),
#ifdef SYS_mkdir
    CALL(mkdir), CALL(symlink), CALL(link), CALL(rename),
#endif
    {0}};

static const struct resource {
    const char *name;
    const struct call *calls;
    int error;
} RESOURCES[] = {{"descriptors", DESCRIPTORS, EMFILE},
                 {"threads", THREADS, EAGAIN},
                 {"mappings", MAPPINGS, ENOMEM},
                 {"files", FILES, ENOSPC},
                 {NULL, NULL, 0}};

static volatile pid_t child;

static void fail(const char *what)
{
    perror(what);
    exit(120);
}

static void pass_on(int number)
{
    if (child > 0)
        kill(child, number);
}

/* Installs the filter in this process. Returns the descriptor that reports its calls. */
static int install(const struct call *calls)
{
    struct sock_filter code[256];
    unsigned short length = 0;
    const unsigned number = offsetof(struct seccomp_data, nr);
    const unsigned arguments = offsetof(struct seccomp_data, args);
    const struct sock_filter stop = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    const struct sock_filter pass = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number);
    for (const struct call *call = calls; call->number || call->condition; call++) {
        /* The lower half of the argument on a machine of little endian. */
        const unsigned at = arguments + 8 * (unsigned)call->argument;
        const unsigned char length_of_test = call->condition == ALWAYS ? 1 : 5;
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call->number,
                                                      0, length_of_test);
        if (call->condition != ALWAYS) {
            const unsigned short compare = call->condition == ANY_BIT ? BPF_JSET : BPF_JEQ;
            code[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at);
            code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | compare | BPF_K, call->wanted, 2, 0);
            code[length++] = (struct sock_filter)BPF_JUMP(
                BPF_JMP | compare | BPF_K, call->condition == ANY_BIT ? call->wanted : call->other, 1, 0);
            code[length++] = pass;
        }
        code[length++] = stop;
    }
    code[length++] = pass;
    struct sock_fprog program = {length, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        fail("no_new_privs");
    long listener =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (listener < 0)
        fail("seccomp");
    return (int)listener;
}

static void send_descriptor(int channel, int descriptor)
{
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    if (sendmsg(channel, &message, 0) != 1)
        fail("sending the listener");
}

static int receive_descriptor(int channel)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message))
        exit(120);
    int descriptor;
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

/* True if a link of /proc leads to a path of this kind. */
static int leads_to(const char *link, const char *program)
{
    char target[PATH_MAX];
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0)
        return 0;
    target[length] = 0;
    if (program)
        return strcmp(target, program) == 0;
    return target[0] == '/' && strncmp(target, "/dev/", 5) && strncmp(target, "/proc/", 6);
}

/* True if the first argument of a process contains a word. */
static int has_argument(unsigned process, const char *word)
{
    char path[64], line[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%u/cmdline", process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, line, sizeof line - 1);
    close(file);
    if (length <= 0)
        return 0;
    line[length] = 0;
    const size_t first = strlen(line) + 1;
    return first < (size_t)length && strstr(line + first, word) != NULL;
}

struct counted {
    const char *program, *argument, *file;
};

static int counts(const struct seccomp_notif *call, const struct counted *counted)
{
    char link[64];
    if (counted->file && access(counted->file, F_OK))
        return 0;
    snprintf(link, sizeof link, "/proc/%u/exe", call->pid);
    if (counted->program && !leads_to(link, counted->program))
        return 0;
    if (counted->argument && !has_argument(call->pid, counted->argument))
        return 0;
    if (call->data.nr == SYS_write || call->data.nr == SYS_pwrite64) {
        snprintf(link, sizeof link, "/proc/%u/fd/%d", call->pid, (int)call->data.args[0]);
        return leads_to(link, NULL);
    }
    return 1;
}

int main(int argc, char **argv)
{
    struct counted counted = {NULL, NULL, NULL};
    int option;
    while ((option = getopt(argc, argv, "+e:a:w:")) != -1) {
        if (option == 'e')
            counted.program = optarg;
        else if (option == 'a')
            counted.argument = optarg;
        else if (option == 'w')
            counted.file = optarg;
        else
            return 120;
    }
    if (argc - optind < 4)
        return 120;
    const struct resource *resource = RESOURCES;
    while (resource->name && strcmp(resource->name, argv[optind]))
        resource++;
    if (!resource->name)
        return 120;
    const long failing = atol(argv[optind + 1]);
    const char *report = argv[optind + 2];

    int channel[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel))
        fail("socketpair");
    child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int listener = install(resource->calls);
        send_descriptor(channel[1], listener);
        close(listener);
        execvp(argv[optind + 3], argv + optind + 3);
        fail(argv[optind + 3]);
    }
    close(channel[1]);
    int listener = receive_descriptor(channel[0]);
    signal(SIGTERM, pass_on);

    long seen = 0;
    struct pollfd polled = {listener, POLLIN, 0};
    while (poll(&polled, 1, -1) >= 0 || errno == EINTR) {
        if (polled.revents & POLLHUP)
            break;
        if (!(polled.revents & POLLIN))
            continue;
        struct seccomp_notif call = {0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call))
            continue; /* The caller was killed. */
        struct seccomp_notif_resp answer = {.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        if (counts(&call, &counted) && ++seen == failing) {
            answer.flags = 0;
            answer.error = -resource->error;
        }
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid");
    FILE *out = fopen(report, "w");
    if (!out || fprintf(out, "%ld\n", seen) < 0 || fclose(out))
        fail(report);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
