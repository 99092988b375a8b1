/* Every rank of a job sends to the next one: run it with `dipole run -n P job`. */
#include "check.h"

int main(void)
{
    int rank = dp_rank(), size = dp_size();
    CHECK(rank >= 0 && size > 0);
    struct dp_address own, next;
    CHECK(dp_rank_address(rank, &own) == 0);
    CHECK(dp_rank_address((rank + 1) % size, &next) == 0);
    CHECK(dp_rank_of(next) == (rank + 1) % size);
    struct dp_address stranger = { next.nid, next.dpid + 100000 };
    CHECK_FAILS(dp_rank_of(stranger), EINVAL, "main endpoint");
    CHECK_FAILS(dp_rank_address(size, &stranger), EINVAL, "rank is");
    int fd = dp_open_with(own.dpid, NULL);
    CHECK(fd >= 0);
    CHECK(dp_add_target(fd, next) == 0);
    CHECK(dp_send(fd, &rank, sizeof rank, 0, -1) == sizeof rank);
    int before;
    struct dp_address source;
    CHECK(dp_recv_copy(fd, &before, sizeof before, &source, 0, -1) == sizeof before);
    CHECK(before == (rank + size - 1) % size);
    CHECK(dp_rank_of(source) == before);
    printf("rank %d of %d received from %d\n", rank, size, before);
    return 0;
}
