/* Counters, with the struct of this and of other versions. */
#include "check.h"
#include <stddef.h>

int main(void)
{
    struct dp_stats stats = { .size = sizeof stats };
    CHECK_FAILS(dp_stats(&stats), ENXIO, "not open");
    int from = dp_open(1);
    int to = dp_open(2);
    CHECK(from >= 0 && to >= 0);
    CHECK(dp_target(from, 1, 2) == 0);
    CHECK(dp_stats(&stats) == 0);
    for (int number = 0; number < 10; number++) {
        CHECK(dp_write(from, "0123456789", 10) == 10);
    }
    CHECK(dp_drain(from, -1) == 0);
    struct dp_stats after = { .size = sizeof after };
    CHECK(dp_stats(&after) == 0);
    CHECK(after.size == sizeof after);
    uint64_t sent = after.units_sent - stats.units_sent + after.local_records_sent -
                    stats.local_records_sent;
    CHECK(sent >= 10);
    CHECK(after.pool_used_bytes >= 100);

    /* A program whose struct has only the first counter. */
    struct {
        size_t size;
        uint64_t packets_sent, canary;
    } older = { 16, 0, 42 };
    CHECK(dp_stats((struct dp_stats *)(void *)&older) == 0);
    CHECK(older.size == 16 && older.canary == 42);
    /* A program whose struct has more counters than this library. */
    struct {
        struct dp_stats known;
        uint64_t unknown;
    } newer;
    memset(&newer, 7, sizeof newer);
    newer.known.size = sizeof newer;
    CHECK(dp_stats(&newer.known) == 0);
    CHECK(newer.known.size == sizeof newer.known && newer.unknown == 0);
    stats.size = 3;
    CHECK_FAILS(dp_stats(&stats), EINVAL, "size member of struct dp_stats is 3");
    CHECK_FAILS(dp_stats(NULL), EFAULT, "null");
    puts("counted");
    return 0;
}
