/* A token buffer pool of a fixed size, and messages in it. */
#include "check.h"

int main(void)
{
    int from = dp_open(1);
    int to = dp_open(2);
    CHECK(from >= 0 && to >= 0);
    dpmmap_t pool = { sizeof pool, 0, NULL };
    CHECK_FAILS(dp_mmap(to, &pool), EINVAL, "bytes of the pool is 0");
    pool.bytes = SIZE_MAX / 4;
    CHECK_FAILS(dp_mmap(to, &pool), ENOMEM, "not enough memory");
    pool.bytes = 1 << 20;
    CHECK(dp_mmap(to, &pool) == 0);
    CHECK(pool.bytes >= 1 << 20 && pool.base != NULL);
    CHECK(dp_target(from, 1, 2) == 0);
    const char *begin = pool.base;
    for (int number = 0; number < 10000; number++) {
        CHECK(dp_write(from, &number, sizeof number) == sizeof number);
        char *place;
        CHECK(dp_read(to, &place) == sizeof number);
        CHECK(place >= begin && place + sizeof number <= begin + pool.bytes);
        CHECK(memcmp(place, &number, sizeof number) == 0);
        CHECK(dp_fsync(to, 1) == 0);
    }
    puts("within the pool");
    return 0;
}
