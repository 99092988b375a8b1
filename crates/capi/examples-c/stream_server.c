/* Ranks that serve a TCP client together: stream_server DPID RANKS. The client is a thread of the first
 * process that uses only sockets. It connects twice and sends a sequence of bytes in blocks over both
 * connections in turn; the ranks read it as stripes and write it back. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include "peer.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 16, STREAMS = 2, TOTAL = 1000003, STRIPE = 50000, BLOCK = 8192 };
static const int64_t LONG_NS = 60000000000;
static char whole[TOTAL];

/* The client: connects twice, sends the stripes, and gets them back. */
static void *client(void *port)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port = htons((uint16_t)*(int *)port) };
    int to[STREAMS];
    char end;
    for (int stream = 0; stream < STREAMS; stream++) {
        to[stream] = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(to[stream], (struct sockaddr *)&at, sizeof at) == 0);
    }
    for (size_t from = 0, block = 0; from < TOTAL; from += STRIPE, block++) {
        char bytes[STRIPE];
        size_t length = from + STRIPE < TOTAL ? STRIPE : TOTAL - from;
        for (size_t in = 0; in < length; in++)
            bytes[in] = byte_at(from + in);
        put(to[block % STREAMS], bytes, length);
    }
    for (size_t from = 0, block = 0; from < TOTAL; from += STRIPE, block++) {
        size_t length = from + STRIPE < TOTAL ? STRIPE : TOTAL - from;
        get(to[block % STREAMS], whole + from, length);
    }
    for (size_t byte = 0; byte < TOTAL; byte++)
        CHECK(whole[byte] == byte_at(byte));
    for (int stream = 0; stream < STREAMS; stream++) {
        CHECK(read(to[stream], &end, 1) == 0);
        close(to[stream]);
    }
    return NULL;
}

static void run_rank(uint32_t dpid, int count, int own, int port)
{
    struct dp_address ranks[MOST], interface = { 1, dpid };
    struct dp_layout layout = { .ranks = (uint32_t)count, .block = BLOCK };
    struct dp_stream_status status = { .size = sizeof status };
    int fds[STREAMS], streams[STREAMS];
    uint64_t bytes[STREAMS];
    void *parts[STREAMS];
    size_t lengths[STREAMS];
    CHECK(dp_stripes_split(STREAMS, STRIPE, TOTAL, bytes) == 0);
    CHECK(bytes[0] + bytes[1] == TOTAL);
    for (int stream = 0; stream < STREAMS; stream++) {
        for (int rank = 0; rank < count; rank++) {
            ranks[rank].nid = 1;
            ranks[rank].dpid = dpid + 100 + (uint32_t)(rank * STREAMS + stream);
        }
        fds[stream] = dp_open((int)ranks[own].dpid);
        CHECK(fds[stream] >= 0);
        streams[stream] = dp_stream_accept(fds[stream], ranks, count, own, interface, port, LONG_NS, LONG_NS);
        CHECK(streams[stream] >= 0);
        ssize_t length = dp_layout_bytes(&layout, (uint32_t)own, bytes[stream]);
        CHECK(length > 0);
        lengths[stream] = (size_t)length;
        parts[stream] = malloc(lengths[stream]);
        CHECK(parts[stream] != NULL);
    }
    CHECK(dp_stripes_read(streams, STREAMS, STRIPE, &layout, TOTAL, parts, lengths) == TOTAL);
    for (int stream = 0; stream < STREAMS; stream++) {
        size_t in = 0;
        for (size_t at = 0; at < bytes[stream]; at++) {
            if (at / BLOCK % (size_t)count != (size_t)own)
                continue;
            size_t of_whole = (at / STRIPE * STREAMS + (size_t)stream) * STRIPE + at % STRIPE;
            CHECK(((char *)parts[stream])[in++] == byte_at(of_whole));
        }
        CHECK(in == lengths[stream]);
        CHECK(dp_stream_status(streams[stream], &status) == 0);
        CHECK(status.size == sizeof status && status.read_bytes == bytes[stream]);
        CHECK(strncmp(status.peer, "127.0.0.1:", 10) == 0 && status.waits_for >= DP_WAITS_CONNECTION);
    }
    CHECK(dp_stripes_write(streams, STREAMS, STRIPE, &layout, TOTAL, (const void *const *)parts, lengths) == 0);
    /* Invalid calls leave the streams as they are. */
    CHECK_FAILS(dp_stripes_write(streams, STREAMS, 0, &layout, TOTAL, (const void *const *)parts, lengths),
                EINVAL, "block is 0");
    int wrong[STREAMS] = { streams[0], 5 + streams[1] };
    CHECK_FAILS(dp_stripes_read(wrong, STREAMS, STRIPE, &layout, TOTAL, parts, lengths), EBADF, "not an open");
    status.size = 1;
    CHECK_FAILS(dp_stream_status(streams[0], &status), EINVAL, "struct dp_stream_status");
    for (int stream = 0; stream < STREAMS; stream++) {
        CHECK(dp_stream_close(streams[stream]) == 0);
        CHECK(dp_close(fds[stream]) == 0);
        free(parts[stream]);
    }
}

/* Invalid calls and their errors. */
static void check_refusals(uint32_t dpid, int interface, int port)
{
    struct dp_address own = { 1, dpid + 90 }, at = { 1, dpid };
    char taken[32];
    snprintf(taken, sizeof taken, "127.0.0.1:%d", port);
    CHECK_FAILS(dp_interface_listen(interface, taken), EADDRINUSE, taken);
    CHECK_FAILS(dp_interface_listen(interface, "nowhere"), EINVAL, "nowhere");
    CHECK_FAILS(dp_interface_listen(interface, NULL), EFAULT, "at");
    CHECK_FAILS(dp_interface_listen(5 + interface, taken), EBADF, "not an open interface");
    int fd = dp_open((int)own.dpid);
    CHECK(fd >= 0);
    CHECK_FAILS(dp_stream_accept(fd, &own, 1, 0, at, 0, 1, LONG_NS), EINVAL, "port is 0");
    CHECK_FAILS(dp_stream_accept(fd, &own, 1, 0, at, 1, 1, LONG_NS), EPIPE, "does not listen at port 1");
    CHECK_FAILS(dp_stream_accept(fd, &own, 1, 0, at, port, 1000000, LONG_NS), EPIPE, "no TCP client");
    CHECK(dp_close(fd) == 0);
}

int main(int argc, char **arguments)
{
    CHECK(argc == 3);
    uint32_t dpid = (uint32_t)atoi(arguments[1]);
    int count = atoi(arguments[2]), ports[2], port;
    CHECK(count >= 1 && count <= MOST && pipe(ports) == 0);
    pid_t children[MOST];
    for (int rank = 0; rank < count; rank++) {
        children[rank] = fork();
        CHECK(children[rank] >= 0);
        if (children[rank] == 0) {
            get(ports[0], &port, sizeof port);
            run_rank(dpid, count, rank, port);
            exit(0);
        }
    }
    int interface = dp_interface_open(dpid, 4, NULL, 0);
    CHECK(interface >= 0);
    port = dp_interface_listen(interface, "127.0.0.1:0");
    CHECK(port > 0);
    for (int rank = 0; rank < count; rank++)
        put(ports[1], &port, sizeof port);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, client, &port) == 0);
    for (int rank = 0; rank < count; rank++) {
        int status;
        CHECK(waitpid(children[rank], &status, 0) == children[rank] && status == 0);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    check_refusals(dpid, interface, port);
    CHECK(dp_interface_close(interface) == 0);
    printf("%d bytes served in %d stripes by %d ranks\n", TOTAL, STREAMS, count);
    return 0;
}
