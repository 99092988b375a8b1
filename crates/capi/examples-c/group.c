/* A group of processes, one of which is killed: group DPID PROCESSES. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 16, ROUNDS = 200 };
static const int64_t LONG_NS = 60000000000;

/* Composition of "x -> factor * x + term", modulo 2^64: associative, not commutative. */
struct affine {
    uint64_t factor;
    uint64_t term;
};

static void compose(void *left, const void *right, size_t len, void *context)
{
    struct affine first, second;
    CHECK(len == sizeof first);
    memcpy(&first, left, len);
    memcpy(&second, right, len);
    first.term = second.factor * first.term + second.term;
    first.factor *= second.factor;
    memcpy(left, &first, len);
    ++*(int *)context;
}

static struct affine of_rank(int rank)
{
    struct affine own = { (uint64_t)rank + 2, 3 * (uint64_t)rank + 1 };
    return own;
}

/* Makes every call once and compares the results. */
static void check_calls(int group, int round)
{
    int rank = dp_group_rank(group), size = dp_group_size(group), combined = 0;
    CHECK(rank >= 0 && size > rank);
    CHECK(dp_barrier(group, LONG_NS) == 0);
    static char text[100000], expected[100000];
    int root = round % size;
    memset(expected, 'a' + root, sizeof expected);
    memset(text, rank == root ? 'a' + root : '.', sizeof text);
    CHECK(dp_broadcast(group, root, text, sizeof text, LONG_NS) == 0);
    CHECK(memcmp(text, expected, sizeof text) == 0);

    uint64_t sum = (uint64_t)rank + 1;
    CHECK(dp_allreduce(group, &sum, sizeof sum, DP_SUM_U64, LONG_NS) == 0);
    CHECK(sum == (uint64_t)size * ((uint64_t)size + 1) / 2);
    double least[2] = { -rank, rank };
    CHECK(dp_reduce(group, root, least, sizeof least, DP_MIN_F64, LONG_NS) == 0);
    CHECK(least[0] == (rank == root ? 1 - size : -rank));
    CHECK(least[1] == (rank == root ? 0 : rank));

    struct affine all = of_rank(0), own = of_rank(rank);
    for (int other = 1; other < size; other++) {
        struct affine next = of_rank(other);
        compose(&all, &next, sizeof all, &combined);
    }
    struct affine everywhere = own;
    CHECK(dp_allreduce_with(group, &everywhere, sizeof own, compose, &combined, LONG_NS) == 0);
    CHECK(memcmp(&everywhere, &all, sizeof all) == 0);
    struct affine at_root = own;
    CHECK(dp_reduce_with(group, root, &at_root, sizeof own, compose, &combined, LONG_NS) == 0);
    CHECK(memcmp(&at_root, rank == root ? &all : &own, sizeof all) == 0);
}

static void run(int rank, int size, const struct dp_address *members)
{
    int group = dp_group_open(members, size, rank, 0, LONG_NS), gone[MOST];
    CHECK(group >= 0 && dp_group_rank(group) == rank && dp_group_size(group) == size);
    CHECK(dp_group_failed(group, gone, MOST) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        check_calls(group, round);
    }
    CHECK_FAILS(dp_barrier(group + 1, LONG_NS), EBADF, "is not an open group");
    CHECK_FAILS(dp_broadcast(group, size, gone, 1, LONG_NS), EINVAL, "no rank");
    CHECK_FAILS(dp_allreduce(group, gone, 7, DP_SUM_U64, LONG_NS), EINVAL, "multiple of 8");
    CHECK_FAILS(dp_allreduce(group, gone, 8, 10, LONG_NS), EINVAL, "DP_MAX_F64");
    CHECK_FAILS(dp_reduce_with(group, 0, gone, 8, NULL, NULL, LONG_NS), EFAULT, "combine");
    if (rank == 1) {
        raise(SIGKILL);
    }
    while (dp_barrier(group, LONG_NS) == 0) {
    }
    CHECK(errno == ECONNRESET && strstr(dp_error(), "rank 1") != NULL);
    CHECK(dp_group_failed(group, gone, MOST) == 1 && gone[0] == 1);
    CHECK(dp_group_shrink(group, NULL, 0, LONG_NS) == 0);
    CHECK(dp_group_size(group) == size - 1);
    for (int round = 0; round < ROUNDS; round++) {
        check_calls(group, round);
    }
    CHECK(dp_group_close(group) == 0);
    CHECK_FAILS(dp_group_close(group), EBADF, "is not an open group");
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    uint32_t first = (uint32_t)atoi(arguments[1]);
    int size = atoi(arguments[2]);
    CHECK(size > 1 && size <= MOST);
    struct dp_address members[MOST];
    pid_t children[MOST];
    for (int rank = 0; rank < size; rank++) {
        members[rank].nid = 1;
        members[rank].dpid = first + (uint32_t)rank;
    }
    for (int rank = 0; rank < size; rank++) {
        children[rank] = fork();
        CHECK(children[rank] >= 0);
        if (children[rank] == 0) {
            run(rank, size, members);
            exit(0);
        }
    }
    for (int rank = 0; rank < size; rank++) {
        int status;
        CHECK(waitpid(children[rank], &status, 0) == children[rank]);
        CHECK(rank == 1 ? WIFSIGNALED(status) : status == 0);
    }
    printf("%d went on without rank 1\n", size - 1);
    return 0;
}
