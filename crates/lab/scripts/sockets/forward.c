/* forward MAP NODE COUNT [spin]: carries the bytes of COUNT TCP connections to and from endpoint 7 of the other NODE.
   Its socket i is in MAP at i; see forward.bpf.c. For the experiment of between_nodes.py. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dipole.h"

enum { PORTS = 21000, BYTES = 4096, AT_ONCE = 64 };

struct message {
    uint32_t connection;
    char bytes[BYTES];
};

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s; %s\n", what, strerror(errno), dp_error());
    exit(1);
}

static int map_command(int command, union bpf_attr *attr)
{
    return syscall(SYS_bpf, command, attr, sizeof *attr);
}

/* A connected socket with port PORTS + number. */
static int joined(int listener, struct sockaddr_in at, uint32_t number)
{
    struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons(PORTS + number), .sin_addr = at.sin_addr };
    int one = 1, made = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(made, (void *)&own, sizeof own) || connect(made, (void *)&at, sizeof at) || accept(listener, 0, 0) < 0)
        fail("a socket");
    return made;
}

int main(int argc, char **argv)
{
    int count = atoi(argv[3]), spins = argc > 4;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, size) || listen(listener, 1) || getsockname(listener, (void *)&at, &size))
        fail("listening");
    union bpf_attr attr = { .pathname = (uintptr_t)argv[1] };
    int map = map_command(BPF_OBJ_GET, &attr);
    if (map < 0)
        fail(argv[1]);
    int *ends = calloc(count, sizeof *ends), wait = epoll_create1(0);
    for (uint32_t number = 0; number < (uint32_t)count; number++) {
        ends[number] = joined(listener, at, number);
        uint64_t value = ends[number];
        union bpf_attr put = { .map_fd = map, .key = (uintptr_t)&number, .value = (uintptr_t)&value };
        struct epoll_event event = { EPOLLIN, { .u32 = number } };
        if (map_command(BPF_MAP_UPDATE_ELEM, &put) || epoll_ctl(wait, EPOLL_CTL_ADD, ends[number], &event))
            fail("the map");
    }
    int endpoint = dp_open(7);
    struct epoll_event event = { EPOLLIN, { .u32 = count } };
    if (endpoint < 0 || dp_target(endpoint, atoi(argv[2]), 7) || epoll_ctl(wait, EPOLL_CTL_ADD, endpoint, &event))
        fail("the endpoint");
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[AT_ONCE];
        int ready = epoll_wait(wait, events, AT_ONCE, spins ? 0 : -1);
        const void *arrived;
        for (ssize_t length; (length = dp_recv(endpoint, &arrived, NULL, DP_DONTWAIT, 0)) >= 0; dp_fsync(endpoint, 1)) {
            const struct message *message = arrived;
            size_t bytes = length - sizeof message->connection;
            if (send(ends[message->connection], message->bytes, bytes, 0) != (ssize_t)bytes)
                fail("send");
        }
        for (int i = 0; i < ready; i++) {
            struct message message = { .connection = events[i].data.u32 };
            if (message.connection == (uint32_t)count)
                continue;
            ssize_t bytes = recv(ends[message.connection], message.bytes, BYTES, MSG_DONTWAIT);
            size_t length = sizeof message.connection + bytes;
            if (bytes > 0 && dp_send(endpoint, &message, length, 0, 5000000000) != (ssize_t)length)
                fail("dp_send");
        }
    }
}
