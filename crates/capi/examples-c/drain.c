/* What was sent to addresses can be waited for, and messages have a longest length. */
#include "check.h"

#define MESSAGES 200

int main(void)
{
    static char message[3000];
    struct dp_address to = { 1, 7 }, source;
    int from = dp_open(1), at = dp_open(7);
    CHECK(from >= 0 && at >= 0);
    CHECK_FAILS(dp_drain(from, -1), EDESTADDRREQ, "has no target");
    for (int index = 0; index < MESSAGES; index++)
        CHECK(dp_send_to(from, to, message, sizeof message, 0, -1) == sizeof message);
    CHECK(dp_drain(from, -1) == 0);
    /* All of them are in the pool, so reading does not wait. */
    for (int index = 0; index < MESSAGES; index++)
        CHECK(dp_recv_copy(at, message, sizeof message, &source, DP_DONTWAIT, 0) == sizeof message);

    /* The limits. The length is refused before any byte is read. */
    size_t most = DP_MAX_MESSAGE_BYTES;
    CHECK_FAILS(dp_send_to(from, to, message, most + 1, 0, -1), EMSGSIZE, "the limit is 1073741824");
    CHECK_FAILS(dp_send_to(from, to, message, most, DP_DONTWAIT, 0), EMSGSIZE, "the limit is");
    CHECK(dp_target(from, 1, 7) == 0);
    CHECK_FAILS(dp_send(from, message, most + 1, 0, -1), EMSGSIZE, "the limit is 1073741824");
    CHECK_FAILS(dp_send(from, message, 3UL << 30, 0, -1), EMSGSIZE, "the limit is 1073741824");
    CHECK_FAILS(dp_send(from, message, most, DP_DONTWAIT, 0), EMSGSIZE, "the limit is");
    CHECK(dp_send(from, message, 1, 0, -1) == 1);
    CHECK(dp_drain(from, -1) == 0);
    puts("all of it has arrived");
    return 0;
}
