/* Operations that regions refuse, and the errors: regions DPID. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

static const int64_t LONG_NS = 60000000000;

static struct dp_completion complete(int queue, int posted, uint64_t context)
{
    struct dp_completion done;
    CHECK(posted == 0);
    CHECK(dp_queue_wait(queue, &done, 1, LONG_NS) == 1 && done.context == context);
    return done;
}

int main(int count, char **arguments)
{
    static unsigned char memory[4096];
    static uint64_t open[8];
    uint64_t key, other, before;
    CHECK(count == 2);
    int fd = dp_open(atoi(arguments[1]));
    struct dp_address own;
    CHECK(fd >= 0 && dp_own_address(fd, &own) == 0);
    int edge = dp_edge_open(fd, own);
    CHECK(edge >= 0);
    CHECK_FAILS(dp_region_open(fd, NULL, 1, DP_ALLOW_GET, &key), EFAULT, "memory");
    CHECK_FAILS(dp_region_open(fd, memory, 1, 8, &key), EINVAL, "8");
    CHECK_FAILS(dp_region_open(-1, memory, 1, DP_ALLOW_GET, &key), EBADF, "endpoint");
    CHECK_FAILS(dp_region_close(7), EBADF, "7 is not an open region");
    int region = dp_region_open(fd, memory, sizeof memory, DP_ALLOW_PUT, &key);
    int words = dp_region_open(fd, open, sizeof open, DP_ALLOW_ATOMIC | DP_ALLOW_GET, &other);
    CHECK(region >= 0 && words >= 0 && key != other);

    CHECK(dp_put(edge, key, 4090, "inside", 6, 0, LONG_NS) == 0);
    CHECK(dp_edge_drain(edge, LONG_NS) == 0);
    CHECK(memcmp(memory + 4090, "inside", 6) == 0);
    CHECK(dp_put(edge, key, 4091, "beyond", 6, 0, LONG_NS) == 0);
    CHECK_FAILS(dp_edge_drain(edge, LONG_NS), ERANGE, "exceeds the region");
    CHECK(dp_put(edge, key ^ 1, 0, "x", 1, 0, LONG_NS) == 0);
    CHECK_FAILS(dp_edge_drain(edge, LONG_NS), ENOENT, "no open region");
    CHECK_FAILS(dp_get(edge, key, 0, open, 1, LONG_NS), EPERM, "do not allow it");
    CHECK(dp_fetch_add(edge, other, 8, 5, &before, LONG_NS) == 0 && before == 0);
    CHECK(dp_fetch_add(edge, other, 8, 5, NULL, LONG_NS) == 0);
    CHECK(dp_compare_swap(edge, other, 8, 10, 3, &before, LONG_NS) == 0 && before == 10);
    CHECK_FAILS(dp_fetch_add(edge, other, 4, 1, NULL, LONG_NS), EINVAL, "multiple of 8");
    CHECK(dp_get(edge, other, 8, &before, 8, LONG_NS) == 0 && before == 3);

    struct dp_notification notice;
    const void *message;
    CHECK(dp_edge_send(edge, "first", 5, 0, LONG_NS) == 5);
    CHECK(dp_put_notify(edge, key, 10, "abc", 3, 99, 0, LONG_NS) == 0);
    CHECK(dp_recv(fd, &message, NULL, 0, LONG_NS) == 5);
    CHECK(dp_is_notification(fd, message, &notice) == 0);
    CHECK(dp_fsync(fd, 1) == 0);
    CHECK_FAILS(dp_is_notification(fd, message, &notice), EINVAL, "");
    CHECK(dp_recv(fd, &message, NULL, 0, LONG_NS) == 0);
    CHECK(dp_is_notification(fd, message, &notice) == 1);
    CHECK(notice.key == key && notice.offset == 10);
    CHECK(notice.length == 3 && notice.value == 99);
    CHECK(memcmp(memory + 10, "abc", 3) == 0);

    /* The same with posted operations. */
    int queue = dp_queue_open();
    CHECK(queue >= 0 && dp_queue_attach_edge(queue, edge) == 0);
    char text[4] = "post";
    uint64_t got = 0;
    struct dp_operation put = { .kind = DP_PUT, .flags = DP_NOTIFY, .key = key, .offset = 20,
                                .memory = text, .length = 4, .value = 7 };
    struct dp_operation get = { .kind = DP_GET, .key = other, .offset = 8, .memory = &got,
                                .length = 8 };
    struct dp_operation add = { .kind = DP_FETCH_ADD, .key = other, .offset = 16, .value = 5 };
    struct dp_operation swap = { .kind = DP_COMPARE_SWAP, .key = other, .offset = 16,
                                 .value = 9, .expected = 5 };
    struct dp_operation wrong = { .kind = DP_GET, .key = key, .memory = &got, .length = 8 };
    CHECK(complete(queue, dp_post_operation(edge, &put, 1), 1).kind == DP_DONE);
    CHECK(memcmp(memory + 20, "post", 4) == 0);
    CHECK(dp_recv(fd, &message, NULL, 0, LONG_NS) == 0);
    CHECK(dp_is_notification(fd, message, &notice) == 1 && notice.value == 7);
    CHECK(complete(queue, dp_post_operation(edge, &get, 2), 2).kind == DP_DONE && got == 3);
    CHECK(complete(queue, dp_post_operation(edge, &add, 3), 3).value == 0);
    struct dp_completion done = complete(queue, dp_post_operation(edge, &swap, 4), 4);
    CHECK(done.kind == DP_DONE && done.value == 5);
    done = complete(queue, dp_post_operation(edge, &wrong, 5), 5);
    CHECK(done.kind == DP_FAILED && done.error == EPERM && got == 3);
    wrong.kind = 5;
    CHECK_FAILS(dp_post_operation(edge, &wrong, 6), EINVAL, "kind is 5");
    wrong.kind = DP_PUT, wrong.memory = NULL;
    CHECK_FAILS(dp_post_operation(edge, &wrong, 6), EFAULT, "memory");
    CHECK_FAILS(dp_post_operation(edge, NULL, 6), EFAULT, "operation");
    get.flags = DP_NOTIFY;
    CHECK_FAILS(dp_post_operation(edge, &get, 6), EINVAL, "flags are 0x1");

    /* A long message that is not copied here, and is received directly into its buffer. */
    size_t length = 3 << 20;
    char *sent = malloc(length), *received = malloc(length);
    CHECK(sent != NULL && received != NULL);
    for (size_t at = 0; at < length; at++) {
        sent[at] = (char)(at / 512 + at);
    }
    struct iovec piece = { sent, length };
    CHECK(dp_post(edge, DP_ZEROCOPY, &piece, 1, 8) == 0);
    CHECK(dp_recv_copy(fd, received, length, NULL, 0, LONG_NS) == (ssize_t)length);
    CHECK(complete(queue, 0, 8).kind == DP_SENT);
    CHECK(memcmp(sent, received, length) == 0);
    free(sent);
    free(received);
    CHECK(dp_queue_close(queue) == 0);

    CHECK(dp_region_close(region) == 0);
    CHECK(dp_put(edge, key, 0, "late", 4, 0, LONG_NS) == 0);
    CHECK_FAILS(dp_edge_drain(edge, LONG_NS), ENOENT, "no open region");
    CHECK(memory[0] == 0);
    CHECK(dp_close(fd) == 0);
    CHECK_FAILS(dp_fetch_add(edge, other, 8, 1, NULL, LONG_NS), EBADF, "");
    CHECK(dp_region_close(words) == 0);
    return 0;
}
