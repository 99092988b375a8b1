/*
 * Rank 0 takes MS for each of COUNT messages: late MS COUNT. The others wait for them.
 */
#include <dipole.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void work(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void check(int is_right)
{
    if (!is_right) {
        perror("late");
        exit(1);
    }
}

static void take(int fd, int count)
{
    for (int message = 0; message < count; message++) {
        char *address;
        check(dp_read(fd, &address) == 100);
        check(dp_fsync(fd, 1) == 0);
    }
}

int main(int argc, char **argv)
{
    check(argc == 3);
    int rank = dp_rank(), size = dp_size(), count = atoi(argv[2]);
    struct dp_address own;
    check(rank >= 0 && dp_rank_address(rank, &own) == 0);
    int fd = dp_open_with(own.dpid, NULL);
    check(fd >= 0);
    char bytes[100] = {0};
    for (int peer = 1; rank == 0 && peer < size; peer++) {
        struct dp_address to;
        check(dp_rank_address(peer, &to) == 0);
        check(dp_add_target(fd, to) == 0);
    }
    for (int message = 0; rank == 0 && message < count; message++) {
        work(atol(argv[1]));
        check(dp_write(fd, bytes, sizeof bytes) == sizeof bytes);
    }
    if (rank > 0)
        take(fd, count);
    check(dp_close(fd) == 0);
    return 0;
}
