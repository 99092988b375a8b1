/* Posts to three targets, one of which is gone, and takes completions and replies from one queue:
 * edges DPID DPID DPID. queue_server replies at the first two. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static const int64_t LONG_NS = 60000000000;

/* Opens an endpoint in another process, which ends after one message. */
static pid_t begin_mortal(int dpid)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = dp_open(dpid);
        char *message;
        CHECK(fd >= 0 && dp_read(fd, &message) == 5);
        exit(0);
    }
    return child;
}

static int post(int edge, const char *head, const char *tail, uint64_t context)
{
    struct iovec pieces[] = {
        { (void *)head, strlen(head) },
        { (void *)tail, strlen(tail) },
    };
    return dp_post(edge, 0, pieces, 2, context);
}

static struct dp_completion next(int queue)
{
    struct dp_completion done;
    CHECK(dp_queue_wait(queue, &done, 1, LONG_NS) == 1);
    return done;
}

int main(int count, char **arguments)
{
    CHECK(count == 4);
    uint32_t targets[3];
    for (int number = 0; number < 3; number++) {
        targets[number] = (uint32_t)atoi(arguments[number + 1]);
    }
    pid_t mortal = begin_mortal((int)targets[2]);

    int fd = dp_open_with(DP_ANY, NULL);
    int queue = dp_queue_open();
    CHECK(fd >= 0 && queue >= 0);
    CHECK(dp_queue_attach(queue, fd) == 0);
    int edges[3];
    for (int number = 0; number < 3; number++) {
        struct dp_address to = { 1, targets[number] };
        edges[number] = dp_edge_open(fd, to);
        CHECK(edges[number] >= 0);
        CHECK(dp_queue_attach_edge(queue, edges[number]) == 0);
    }
    CHECK(dp_edge_send(edges[2], "hello", 5, 0, LONG_NS) == 5);
    int status;
    CHECK(waitpid(mortal, &status, 0) == mortal && status == 0);

    /* The two live targets get their messages and reply; each edge has its own order. */
    CHECK(post(edges[0], "to ", "the first", 0) == 0);
    CHECK(post(edges[1], "to the ", "second", 1) == 0);
    CHECK(post(edges[2], "unread", "", 2) == 0);
    int sent[2] = { 0, 0 }, answered[2] = { 0, 0 }, gone = 0;
    while (!gone || sent[0] + sent[1] + answered[0] + answered[1] < 4) {
        struct dp_completion done = next(queue);
        if (done.kind == DP_RECEIVED) {
            int which = done.source.dpid == targets[1];
            const char *text = which == 0 ? "to the first" : "to the second";
            CHECK(done.source.nid == 1 && done.source.dpid == targets[which]);
            CHECK(done.fd == fd && done.length == strlen(text));
            CHECK(memcmp(done.message, text, done.length) == 0);
            CHECK(dp_fsync(fd, 1) == 0);
            answered[which]++;
        } else if (done.context < 2) {
            CHECK(done.kind == DP_SENT && done.error == 0 && done.fd == -1);
            sent[done.context]++;
        } else if (done.kind == DP_SENT) {
            /* Not detected yet. */
            CHECK(post(edges[2], "unread", "", 2) == 0);
        } else {
            CHECK(done.kind == DP_FAILED && done.error == ECONNRESET);
            CHECK(strstr(dp_error(), "is gone") != NULL);
            gone++;
        }
    }
    CHECK(sent[0] == 1 && sent[1] == 1 && answered[0] == 1 && answered[1] == 1);
    CHECK(dp_edge_drain(edges[0], LONG_NS) == 0);
    puts("two replied, one is gone");

    /* Posted operations wait while the edge connects, and can be cancelled. */
    struct dp_address nobody = { 1, 999999 };
    int connecting = dp_edge_open(fd, nobody);
    CHECK(connecting >= 0 && dp_queue_attach_edge(queue, connecting) == 0);
    CHECK(post(connecting, "x", "", 7) == 0 && post(connecting, "y", "", 8) == 0);
    CHECK(dp_cancel(connecting, 99) == 0);
    CHECK(dp_cancel(connecting, 7) == 1);
    struct dp_completion done = next(queue);
    CHECK(done.kind == DP_FAILED && done.context == 7 && done.error == ECANCELED);
    CHECK_FAILS(dp_edge_send(connecting, "z", 1, DP_DONTWAIT, -1), EAGAIN, "1:999999");
    CHECK_FAILS(dp_edge_send(connecting, "z", 1, 0, 1000000), ETIMEDOUT, "1:999999");
    CHECK_FAILS(dp_edge_drain(connecting, 1000000), ETIMEDOUT, "1:999999");
    CHECK(dp_edge_close(connecting) == 0);
    /* Operations that have not begun are cancelled with the edge, once. */
    done = next(queue);
    CHECK(done.kind == DP_FAILED && done.context == 8 && done.error == ECANCELED);
    CHECK_FAILS(dp_queue_wait(queue, &done, 1, 0), EAGAIN, "is empty");
    CHECK_FAILS(dp_queue_wait(queue, &done, 1, 1000000), ETIMEDOUT, "was empty for");
    puts("cancelled");

    /* Invalid arguments. */
    struct iovec piece = { NULL, 1 };
    CHECK_FAILS(dp_edge_close(connecting), EBADF, "not an open edge");
    CHECK_FAILS(dp_edge_send(-1, "x", 1, 0, -1), EBADF, "-1 is not an open edge");
    CHECK_FAILS(dp_edge_send(edges[0], "x", 1, DP_MORE, -1), EINVAL, "flags are 0x2");
    CHECK_FAILS(dp_post(edges[0], 1, NULL, 0, 0), EINVAL, "flags are 0x1");
    CHECK_FAILS(dp_post(edges[0], DP_ZEROCOPY, NULL, 2, 0), EINVAL, "iovcnt is 2");
    int alone = dp_edge_open(fd, (struct dp_address){ 1, 999998 });
    char lent[1];
    struct iovec whole = { lent, sizeof lent };
    CHECK_FAILS(dp_post(alone, DP_ZEROCOPY, &whole, 1, 0), EINVAL, "not attached to a completion queue or counter");
    CHECK(dp_post(alone, 0, &whole, 1, 0) == 0 && dp_edge_close(alone) == 0);
    CHECK_FAILS(dp_post(edges[0], 0, NULL, 1, 0), EFAULT, "iov is a null pointer");
    CHECK_FAILS(dp_post(edges[0], 0, &piece, 1, 0), EFAULT, "iov_base is a null");
    CHECK_FAILS(dp_post(edges[0], 0, &piece, -1, 0), EINVAL, "iovcnt is -1");
    CHECK_FAILS(dp_queue_wait(queue, &done, 0, 0), EINVAL, "count is 0");
    CHECK_FAILS(dp_queue_wait(queue, NULL, 1, 0), EFAULT, "completions is a null pointer");
    CHECK_FAILS(dp_queue_wait(fd, &done, 1, 0), EBADF, "not an open completion queue");
    CHECK_FAILS(dp_queue_attach(queue, queue), EBADF, "not an open endpoint");
    CHECK_FAILS(dp_queue_attach_edge(fd, edges[0]), EBADF, "not an open completion queue");

    /* A forked child does not inherit any of this. */
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK_FAILS(dp_edge_send(edges[0], "x", 1, 0, -1), ESTALE, "parent process");
        CHECK_FAILS(dp_queue_wait(queue, &done, 1, 0), EBADF, "not an open completion queue");
        CHECK(dp_edge_close(edges[0]) == 0); /* only the number */
        CHECK_FAILS(dp_edge_close(edges[0]), EBADF, "not an open edge");
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    CHECK(dp_edge_send(edges[1], "end", 3, 0, LONG_NS) == 3);
    CHECK(dp_edge_drain(edges[1], LONG_NS) == 0);
    CHECK(dp_queue_close(queue) == 0);
    CHECK_FAILS(dp_queue_wait(queue, &done, 1, 0), EBADF, "not an open completion queue");
    CHECK(dp_close(fd) == 0);
    CHECK_FAILS(dp_edge_send(edges[0], "x", 1, 0, -1), EBADF, "is closed");
    CHECK(dp_edge_close(edges[0]) == 0);
    CHECK(dp_finalize(LONG_NS) == 0);
    CHECK_FAILS(dp_edge_close(edges[1]), EBADF, "not an open edge");
    puts("closed");
    return 0;
}
