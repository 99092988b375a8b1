/* What regions refuse, and what they tell: regions DPID. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

static const int64_t LONG_NS = 60000000000;

int main(int count, char **arguments)
{
    static unsigned char memory[4096];
    static uint64_t open[8];
    uint64_t key, other, before;
    CHECK(count == 2);
    int fd = dp_open(atoi(arguments[1]));
    struct dp_address own;
    CHECK(fd >= 0 && dp_own_address(fd, &own) == 0);
    int edge = dp_edge(fd, own);
    CHECK(edge >= 0);
    CHECK_FAILS(dp_region_open(fd, NULL, 1, DP_ALLOW_GET, &key), EFAULT, "memory");
    CHECK_FAILS(dp_region_open(fd, memory, 1, 8, &key), EINVAL, "8");
    CHECK_FAILS(dp_region_open(-1, memory, 1, DP_ALLOW_GET, &key), EBADF, "endpoint");
    CHECK_FAILS(dp_region_close(7), EBADF, "7 is no region");
    int region = dp_region_open(fd, memory, sizeof memory, DP_ALLOW_PUT, &key);
    int words = dp_region_open(fd, open, sizeof open, DP_ALLOW_UPDATE | DP_ALLOW_GET, &other);
    CHECK(region >= 0 && words >= 0 && key != other);

    CHECK(dp_put(edge, key, 4090, "inside", 6, 0, LONG_NS) == 0);
    CHECK(dp_edge_drain(edge, LONG_NS) == 0);
    CHECK(memcmp(memory + 4090, "inside", 6) == 0);
    CHECK(dp_put(edge, key, 4091, "beyond", 6, 0, LONG_NS) == 0);
    CHECK_FAILS(dp_edge_drain(edge, LONG_NS), ERANGE, "beyond the region");
    CHECK(dp_put(edge, key ^ 1, 0, "x", 1, 0, LONG_NS) == 0);
    CHECK_FAILS(dp_edge_drain(edge, LONG_NS), ENOENT, "no open region");
    CHECK_FAILS(dp_get(edge, key, 0, open, 1, LONG_NS), EPERM, "not opened for that");
    CHECK(dp_fetch_add(edge, other, 8, 5, &before, LONG_NS) == 0 && before == 0);
    CHECK(dp_fetch_add(edge, other, 8, 5, NULL, LONG_NS) == 0);
    CHECK(dp_compare_swap(edge, other, 8, 10, 3, &before, LONG_NS) == 0 && before == 10);
    CHECK_FAILS(dp_fetch_add(edge, other, 4, 1, NULL, LONG_NS), EINVAL, "multiple of 8");
    CHECK(dp_get(edge, other, 8, &before, 8, LONG_NS) == 0 && before == 3);

    struct dp_notice notice;
    const void *message;
    CHECK(dp_edge_send(edge, "first", 5, 0, LONG_NS) == 5);
    CHECK(dp_put_notify(edge, key, 10, "abc", 3, 99, 0, LONG_NS) == 0);
    CHECK(dp_recv(fd, &message, NULL, 0, LONG_NS) == 5);
    CHECK(dp_notice(fd, message, &notice) == 0);
    CHECK(dp_fsync(fd, 1) == 0);
    CHECK_FAILS(dp_notice(fd, message, &notice), EINVAL, "");
    CHECK(dp_recv(fd, &message, NULL, 0, LONG_NS) == 0);
    CHECK(dp_notice(fd, message, &notice) == 1);
    CHECK(notice.key == key && notice.offset == 10);
    CHECK(notice.length == 3 && notice.value == 99);
    CHECK(memcmp(memory + 10, "abc", 3) == 0);

    CHECK(dp_region_close(region) == 0);
    CHECK(dp_put(edge, key, 0, "late", 4, 0, LONG_NS) == 0);
    CHECK_FAILS(dp_edge_drain(edge, LONG_NS), ENOENT, "no open region");
    CHECK(memory[0] == 0);
    CHECK(dp_close(fd) == 0);
    CHECK_FAILS(dp_fetch_add(edge, other, 8, 1, NULL, LONG_NS), EBADF, "");
    CHECK(dp_region_close(words) == 0);
    return 0;
}
