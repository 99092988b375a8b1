/* Ranks that write and read one TCP stream together: stream DPID RANKS. The peer is a thread of the
 * first process that uses only sockets; it sends back what it gets, framed by lines. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include "peer.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 16, TOTAL = 1000003, BLOCK = 30000 };
static const int64_t LONG_NS = 60000000000;
static char whole[TOTAL];

/* The peer: reads a header and the bytes, replies, sends the bytes back, and closes. */
static void *outside(void *listener)
{
    char head[5];
    int to = accept(*(int *)listener, NULL, NULL);
    CHECK(to >= 0);
    get(to, head, sizeof head);
    CHECK(memcmp(head, "PUT \n", sizeof head) == 0);
    get(to, whole, TOTAL);
    for (size_t at = 0; at < TOTAL; at++) {
        CHECK(whole[at] == byte_at(at));
    }
    put(to, "have\n", 5);
    put(to, whole, TOTAL);
    CHECK(read(to, head, 1) == 0);
    close(to);
    return NULL;
}

static void run_rank(uint32_t dpid, int count, int own, const char *to)
{
    struct dp_address ranks[MOST], interface = { 1, dpid };
    for (int rank = 0; rank < count; rank++) {
        ranks[rank].nid = 1;
        ranks[rank].dpid = dpid + 100 + (uint32_t)rank;
    }
    struct dp_layout layout = { .ranks = (uint32_t)count, .block = BLOCK };
    ssize_t length = dp_layout_bytes(&layout, (uint32_t)own, TOTAL);
    CHECK(length > 0);
    char *part = malloc((size_t)length), *back = malloc((size_t)length);
    CHECK(part && back);
    /* Blocks in turn. */
    for (size_t at = 0, in = 0; at < TOTAL; at++) {
        if (at / BLOCK % (size_t)count == (size_t)own)
            part[in++] = byte_at(at);
    }

    int fd = dp_open((int)ranks[own].dpid);
    CHECK(fd >= 0);
    int stream = dp_stream_open(fd, ranks, count, own, interface, to, LONG_NS);
    CHECK(stream >= 0);
    if (own == 0) {
        CHECK(dp_stream_write_raw(stream, "PUT \n", 5) == 0);
    } else {
        CHECK_FAILS(dp_stream_write_raw(stream, "x", 1), EINVAL, "rank 0");
    }
    CHECK_FAILS(dp_stream_write(stream, &layout, TOTAL, part, 1), EINVAL, "its part of the layout");
    CHECK(dp_stream_write(stream, &layout, TOTAL, part, (size_t)length) == 0);
    if (own == 0) {
        char said[5];
        for (size_t got = 0; got < sizeof said;) {
            ssize_t some = dp_stream_read_raw(stream, said + got, sizeof said - got);
            CHECK(some > 0);
            got += (size_t)some;
        }
        CHECK(memcmp(said, "have\n", sizeof said) == 0);
    }
    CHECK(dp_stream_read(stream, &layout, TOTAL, back, (size_t)length) == TOTAL);
    CHECK(memcmp(part, back, (size_t)length) == 0);
    if (own == 0)
        CHECK(dp_stream_shutdown(stream) == 0);
    CHECK(dp_stream_close(stream) == 0);
    CHECK_FAILS(dp_stream_close(stream), EBADF, "not an open stream");
    free(part);
    free(back);
    CHECK(dp_close(fd) == 0);
}

/* Invalid calls and their errors. */
static void check_refusals(uint32_t dpid)
{
    struct dp_address own = { 1, dpid + 90 }, interface = { 1, dpid };
    struct dp_layout layout = { .ranks = 2, .block = 10, .owners = (const uint32_t[]) { 0, 1, 1 },
                                .records = 3 };
    CHECK(dp_layout_bytes(&layout, 0, 25) == 10 && dp_layout_bytes(&layout, 1, 25) == 15);
    CHECK_FAILS(dp_layout_bytes(&layout, 0, 31), EINVAL, "a rank for each record");
    layout.block = 0;
    CHECK_FAILS(dp_layout_bytes(&layout, 0, 25), EINVAL, "block is 0");
    CHECK_FAILS(dp_layout_bytes(NULL, 0, 25), EFAULT, "layout");
    int fd = dp_open((int)own.dpid);
    CHECK(fd >= 0);
    CHECK_FAILS(dp_stream_open(fd, &own, 1, 0, interface, "127.0.0.1:9", LONG_NS), EPIPE, "127.0.0.1:9");
    CHECK_FAILS(dp_stream_open(fd, &interface, 1, 0, interface, "x", LONG_NS), EINVAL, "list of ranks");
    CHECK_FAILS(dp_stream_open(fd, &own, 1, 0, interface, NULL, LONG_NS), EFAULT, "to");
    CHECK_FAILS(dp_stream_write_raw(5, "x", 1), EBADF, "not an open stream");
    CHECK_FAILS(dp_interface_close(5), EBADF, "not an open interface");
    CHECK_FAILS(dp_interface_open(dpid, 1, NULL, 0), EADDRINUSE, "has it");
    CHECK_FAILS(dp_interface_open(dpid + 50, 1, (const char *[]) { "nowhere" }, 1), EINVAL, "nowhere");
    CHECK(dp_close(fd) == 0);
}

int main(int argc, char **arguments)
{
    CHECK(argc == 3);
    uint32_t dpid = (uint32_t)atoi(arguments[1]);
    int count = atoi(arguments[2]);
    CHECK(count >= 1 && count <= MOST);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, size) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
    char to[32];
    snprintf(to, sizeof to, "127.0.0.1:%d", ntohs(at.sin_port));

    pid_t children[MOST];
    for (int rank = 0; rank < count; rank++) {
        children[rank] = fork();
        CHECK(children[rank] >= 0);
        if (children[rank] == 0) {
            run_rank(dpid, count, rank, to);
            exit(0);
        }
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, outside, &listener) == 0);
    const char *allowed = to;
    int interface = dp_interface_open(dpid, 4, &allowed, 1);
    CHECK(interface >= 0);
    for (int rank = 0; rank < count; rank++) {
        int status;
        CHECK(waitpid(children[rank], &status, 0) == children[rank] && status == 0);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    check_refusals(dpid);
    CHECK(dp_interface_close(interface) == 0);
    CHECK_FAILS(dp_interface_close(interface), EBADF, "not an open interface");
    printf("%d bytes there and back by %d ranks\n", TOTAL, count);
    return 0;
}
