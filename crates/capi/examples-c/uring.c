/* An endpoint's descriptor polled by io_uring, once and repeatedly. Prints "no io_uring" if the kernel
 * does not allow it. */
#define _GNU_SOURCE
#include "check.h"
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ring;
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;

static void *map(size_t bytes, off_t what)
{
    void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);
    CHECK(place != MAP_FAILED);
    return place;
}

static int set_up(void)
{
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    ring = (int)syscall(SYS_io_uring_setup, 4, &p);
    if (ring < 0) {
        return 0;
    }
    char *sq = map(p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq = map(p.cq_off.cqes + p.cq_entries * sizeof *cqes, IORING_OFF_CQ_RING);
    sqes = map(p.sq_entries * sizeof *sqes, IORING_OFF_SQES);
    sq_tail = (unsigned *)(sq + p.sq_off.tail);
    sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
    sq_array = (unsigned *)(sq + p.sq_off.array);
    cq_head = (unsigned *)(cq + p.cq_off.head);
    cq_tail = (unsigned *)(cq + p.cq_off.tail);
    cq_mask = (unsigned *)(cq + p.cq_off.ring_mask);
    cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
    return 1;
}

static void poll_add(int fd, unsigned how)
{
    unsigned tail = *sq_tail, index = tail & *sq_mask;
    memset(&sqes[index], 0, sizeof sqes[index]);
    sqes[index].opcode = IORING_OP_POLL_ADD;
    sqes[index].fd = fd;
    sqes[index].len = how;
    sqes[index].poll32_events = POLLIN;
    sq_array[index] = index;
    __atomic_store_n(sq_tail, tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1);
}

static int completions(void)
{
    return (int)(__atomic_load_n(cq_tail, __ATOMIC_ACQUIRE) - *cq_head);
}

static void completed(void)
{
    CHECK(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 0);
    CHECK(completions() >= 1);
    CHECK(cqes[*cq_head & *cq_mask].res & POLLIN);
    __atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
}

int main(void)
{
    if (!set_up()) {
        puts("no io_uring");
        return 0;
    }
    int from = dp_open(1), to = dp_open(2);
    char *message;
    CHECK(from >= 0 && to >= 0 && dp_target(from, 1, 2) == 0);
    for (int round = 0; round < 3; round++) {
        poll_add(to, 0);
        CHECK(completions() == 0);
        CHECK(dp_write(from, "once", 4) == 4);
        completed();
        CHECK(dp_read(to, &message) == 4 && dp_fsync(to, 1) == 0);
    }
    puts("once");
    poll_add(to, IORING_POLL_ADD_MULTI);
    for (int round = 0; round < 3; round++) {
        CHECK(dp_write(from, "often", 5) == 5);
        completed();
        CHECK(dp_read(to, &message) == 5 && dp_fsync(to, 1) == 0);
    }
    puts("often");
    CHECK(dp_close(from) == 0 && dp_close(to) == 0);
    return 0;
}
