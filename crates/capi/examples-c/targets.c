/* One endpoint, several targets: each gets a copy. */
#include "check.h"

static int hears(int fd, const char *text)
{
    char copy[32];
    struct dp_address source;
    ssize_t length = dp_recv_copy(fd, copy, sizeof copy, &source, 0, -1);
    CHECK(length >= 0 && source.nid == 1 && source.dpid == 1);
    return (size_t)length == strlen(text) && memcmp(copy, text, strlen(text)) == 0;
}

int main(void)
{
    int from = dp_open(1);
    CHECK(from >= 0);
    CHECK_FAILS(dp_write(from, "x", 1), EDESTADDRREQ, "has no target");
    int receivers[3];
    for (int index = 0; index < 3; index++) {
        receivers[index] = dp_open(10 + index);
        CHECK(receivers[index] >= 0);
        CHECK(dp_target(from, 1, 10 + index) == 0);
    }
    CHECK(dp_target(from, 1, 10) == 0); /* a second time: still one copy */
    CHECK(dp_write(from, "to all", 6) == 6);
    CHECK(dp_untarget(from, 1, 11) == 0);
    CHECK_FAILS(dp_untarget(from, 1, 11), EDESTADDRREQ, "no target");
    CHECK(dp_send(from, "part", 4, DP_MORE, -1) == 4);
    CHECK(dp_send(from, "rest", 4, DP_MORE, -1) == 4);
    CHECK(dp_flush(from) == 0);
    for (int index = 0; index < 3; index++) {
        CHECK(hears(receivers[index], "to all"));
        if (index != 1) {
            CHECK(hears(receivers[index], "part"));
            CHECK(hears(receivers[index], "rest"));
        }
        char nothing[1];
        CHECK_FAILS(dp_recv_copy(receivers[index], nothing, 1, NULL, DP_DONTWAIT, 0), EAGAIN,
                    "no message");
    }
    CHECK(dp_drain(from, -1) == 0);

    /* A slow target gets the latest message, and does not hold up the other one. */
    struct dp_address slow = { 1, 12 }, none = { 1, 11 };
    uint64_t dropped = 0;
    char large[4000] = { 0 };
    int last_number = 2999, number = -1, got = 0;
    CHECK_FAILS(dp_target_policy(from, slow, DP_DROP_OLDEST, 0), EINVAL, "1 to 1024");
    CHECK_FAILS(dp_target_policy(from, slow, 4, 0), EINVAL, "DP_KEEP_LATEST");
    CHECK_FAILS(dp_target_policy(from, none, DP_WAIT, 0), EDESTADDRREQ, "no target");
    CHECK_FAILS(dp_target_dropped(from, none, &dropped), EDESTADDRREQ, "no target");
    CHECK(dp_target_policy(from, slow, DP_KEEP_LATEST, 0) == 0);
    for (int index = 0; index <= last_number; index++) {
        memcpy(large, &index, sizeof index);
        CHECK(dp_write(from, large, sizeof large) == sizeof large);
        CHECK(dp_recv_copy(receivers[0], large, sizeof large, NULL, 0, -1) == sizeof large);
    }
    CHECK(dp_target_dropped(from, slow, &dropped) == 0 && dropped > 0);
    for (; number < last_number; got++) {
        CHECK(dp_recv_copy(receivers[2], large, sizeof large, NULL, 0, -1) == sizeof large);
        memcpy(&number, large, sizeof number);
    }
    CHECK((uint64_t)got + dropped == (uint64_t)last_number + 1);
    struct dp_stats stats = { .size = sizeof stats };
    CHECK(dp_stats(&stats) == 0 && stats.target_dropped == dropped);

    /* Numbers above INT_MAX need the calls with unsigned numbers. */
    struct dp_address last = { 1, UINT32_MAX - 1 };
    int far = dp_open_with(last.dpid, NULL);
    CHECK(far >= 0);
    struct dp_address own;
    CHECK(dp_own_address(far, &own) == 0 && own.nid == 1 && own.dpid == UINT32_MAX - 1);
    CHECK(dp_untarget(from, 1, 10) == 0 && dp_untarget(from, 1, 12) == 0);
    CHECK(dp_add_target(from, last) == 0);
    CHECK(dp_send(from, "far", 3, DP_UNRELIABLE, 0) == 3);
    CHECK(hears(far, "far"));
    CHECK(dp_remove_target(from, last) == 0);
    puts("copies");
    return 0;
}
