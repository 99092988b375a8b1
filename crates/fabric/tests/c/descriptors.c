/* Two processes that sleep in poll and epoll (FI_WAIT_FD): their queues and counters wake them
 * whenever something happens, and only then. */
#include "pair.h"
#include <sys/epoll.h>

enum { ROUNDS = 60, LONGEST = 1 << 20 };

static struct fid_cntr *received;
static struct fid_eq *eq;
static int cq_fd, cntr_fd, eq_fd;
static char buffer[LONGEST], area[LONGEST];

static int is_readable(int fd, int timeout_ms)
{
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    return poll(&polled, 1, timeout_ms);
}

/* One process sleeps in poll, the other in epoll with the descriptor inside. */
static void sleep_until_readable(int fd)
{
    static int epoll_fd = -1, inside = -1;
    if (is_parent) {
        CHECK(is_readable(fd, LIMIT_MS) == 1, "nothing came");
        return;
    }
    struct epoll_event event = {.events = EPOLLIN};
    if (inside != fd) {
        if (epoll_fd >= 0)
            close(epoll_fd);
        epoll_fd = epoll_create1(0);
        inside = fd;
        CHECK(!epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
    }
    CHECK(epoll_wait(epoll_fd, &event, 1, LIMIT_MS) == 1, "nothing came");
}

/* Waits for the next completion as described in the manual. */
static struct fi_cq_tagged_entry next(int fails)
{
    struct fi_cq_tagged_entry entry = {0};
    struct fi_cq_err_entry error = {0};
    struct fid *fids[] = {&cq->fid};
    for (;;) {
        ssize_t got = fi_cq_read(cq, &entry, 1);
        if (got == 1) {
            CHECK(!fails, "it was done and should have failed with %s", fi_strerror(fails));
            return entry;
        }
        if (got == -FI_EAVAIL) {
            CHECK(fi_cq_readerr(cq, &error, 0) == 1, "no error");
            CHECK(error.err == fails, "failed: %s", fi_strerror(error.err));
            return entry;
        }
        CHECK(got == -FI_EAGAIN, "no completion: %zd", got);
        int may_sleep = fi_trywait(fabric, fids, 1);
        CHECK(may_sleep == 0 || may_sleep == -FI_EAGAIN, "fi_trywait: %d", may_sleep);
        if (may_sleep == 0)
            sleep_until_readable(cq_fd);
    }
}

static int number_of(struct fid *fid)
{
    int fd = -1, object = -1;
    did(fi_control(fid, FI_GETWAIT, &fd), "FI_GETWAIT");
    did(fi_control(fid, FI_GETWAITOBJ, &object), "FI_GETWAITOBJ");
    CHECK(fd >= 0 && object == FI_WAIT_FD, "descriptor %d, kind %d", fd, object);
    return fd;
}

static void open_waiting(void)
{
    struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_FD};
    struct fi_eq_attr eq_attr = {.flags = FI_WRITE, .wait_obj = FI_WAIT_FD};
    did(fi_cntr_open(domain, &cntr_attr, &received, NULL), "fi_cntr_open");
    did(fi_ep_bind(ep, &received->fid, FI_RECV), "fi_ep_bind");
    did(fi_eq_open(fabric, &eq_attr, &eq, NULL), "fi_eq_open");
    cq_fd = number_of(&cq->fid);
    cntr_fd = number_of(&received->fid);
    eq_fd = number_of(&eq->fid);
    CHECK(number_of(&cq->fid) == cq_fd, "another descriptor");
}

/* Queues that were opened with other wait objects. */
static void others(void)
{
    struct fid_cq *queue;
    int fd;
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC};
    did(fi_cq_open(domain, &attr, &queue, NULL), "fi_cq_open");
    number_of(&queue->fid);
    did(fi_close(&queue->fid), "fi_close");
    attr.wait_obj = FI_WAIT_NONE;
    did(fi_cq_open(domain, &attr, &queue, NULL), "fi_cq_open");
    CHECK(fi_control(&queue->fid, FI_GETWAIT, &fd) == -FI_ENODATA, "a descriptor of no queue");
    did(fi_close(&queue->fid), "fi_close");
    attr.wait_obj = FI_WAIT_MUTEX_COND;
    CHECK(fi_cq_open(domain, &attr, &queue, NULL) == -FI_ENOSYS, "a queue with a mutex");
}

static void events(void)
{
    struct fi_eq_entry entry = {.data = 7}, read;
    uint32_t event;
    struct fid *fids[] = {&eq->fid};
    for (int turn = 0; turn < 3; turn++) {
        CHECK(!is_readable(eq_fd, 0), "an event before there is one");
        did(fi_trywait(fabric, fids, 1), "fi_trywait");
        CHECK(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof entry, 0) == sizeof entry, "fi_eq_write");
        CHECK(is_readable(eq_fd, 0), "readable without an event");
        CHECK(fi_trywait(fabric, fids, 1) == -FI_EAGAIN, "fi_trywait");
        CHECK(fi_eq_read(eq, &event, &read, sizeof read, 0) == sizeof read, "fi_eq_read");
        CHECK(read.data == 7 && event == FI_NOTIFY, "another event");
    }
}

/* A queue that reports registered memory. */
static void registered(void)
{
    struct fi_eq_entry read;
    struct fid_mr *mr;
    uint32_t event;
    did(fi_domain_bind(domain, &eq->fid, FI_REG_MR), "fi_domain_bind");
    did(fi_mr_reg(domain, area, sizeof area, FI_REMOTE_READ, 0, 0, 0, &mr, buffer), "fi_mr_reg");
    CHECK(is_readable(eq_fd, 0), "readable without an event");
    CHECK(fi_eq_read(eq, &event, &read, sizeof read, 0) == sizeof read, "fi_eq_read");
    CHECK(event == FI_MR_COMPLETE && read.fid == &mr->fid && read.context == buffer,
          "another event");
    did(fi_close(&mr->fid), "fi_close");
}

/* After everything was read, nothing is readable. */
static void is_quiet(void)
{
    struct fid *fids[] = {&cq->fid}, *counters[] = {&received->fid};
    while (fi_trywait(fabric, fids, 1) == -FI_EAGAIN || fi_trywait(fabric, counters, 1))
        ;
    CHECK(!is_readable(cq_fd, 0), "a queue with nothing in it is readable");
    CHECK(!is_readable(cntr_fd, 0), "a counter that has not changed is readable");
}

static void pingpong(size_t length)
{
    for (int round = 0; round < ROUNDS; round++) {
        char mark = (char)(round + 1);
        did(fi_trecv(ep, buffer, length, NULL, other, 5, 0, buffer), "fi_trecv");
        if (is_parent) {
            memset(area, mark, length);
            did(fi_tsend(ep, area, length, NULL, other, 5, area), "fi_tsend");
        }
        void *waits[2] = {buffer, is_parent ? area : NULL};
        while (waits[0] || waits[1]) {
            struct fi_cq_tagged_entry entry = next(0);
            CHECK(entry.op_context == buffer || entry.op_context == area, "another operation");
            waits[entry.op_context == area] = NULL;
        }
        CHECK(buffer[0] == mark && buffer[length - 1] == mark, "another message");
        if (!is_parent) {
            memset(area, mark, length);
            did(fi_tsend(ep, area, length, NULL, other, 5, area), "fi_tsend");
            CHECK(next(0).op_context == area, "another operation");
        }
    }
}

/* Only the counter reports that messages arrive. */
static void counted(void)
{
    char byte = 0;
    struct fid *fids[] = {&received->fid};
    if (!is_parent) {
        hear(&byte, 1);
        for (int i = 0; i < 3; i++) {
            did(fi_tsend(ep, &byte, 1, NULL, other, 6, NULL), "fi_tsend");
            next(0);
        }
        return;
    }
    uint64_t before = fi_cntr_read(received);
    for (int i = 0; i < 3; i++)
        did(fi_trecv(ep, buffer, 1, NULL, other, 6, 0, NULL), "fi_trecv");
    is_quiet();
    tell(&byte, 1);
    while (fi_cntr_read(received) < before + 3)
        if (fi_trywait(fabric, fids, 1) == 0)
            sleep_until_readable(cntr_fd);
    for (int i = 0; i < 3; i++)
        next(0);
}

static void signalled(void)
{
    is_quiet();
    did(fi_cq_signal(cq), "fi_cq_signal");
    CHECK(is_readable(cq_fd, 0), "a signal does not wake a waiter");
    is_quiet();
}

/* The memory of a process that makes no libfabric calls. */
static void got(void)
{
    struct {
        uint64_t key, address;
    } theirs = {0};
    struct fid_mr *mr;
    char byte = 0;
    if (!is_parent) {
        memset(area, 'g', sizeof area);
        did(fi_mr_reg(domain, area, sizeof area, FI_REMOTE_READ, 0, 0, 0, &mr, NULL), "fi_mr_reg");
        theirs.key = fi_mr_key(mr);
        tell(&theirs, sizeof theirs);
        hear(&byte, 1);
        did(fi_close(&mr->fid), "fi_close");
        return;
    }
    hear(&theirs, sizeof theirs);
    did(fi_read(ep, buffer, sizeof buffer, NULL, other, 0, theirs.key, NULL), "fi_read");
    next(0);
    CHECK(buffer[0] == 'g' && buffer[sizeof buffer - 1] == 'g', "other bytes");
    tell(&byte, 1);
}

/* A process that sleeps while it waits for a dead peer is woken by an error. */
static void died(void)
{
    char byte = 0;
    if (!is_parent) {
        tell(&byte, 1);
        pause();
    }
    hear(&byte, 1);
    did(fi_trecv(ep, buffer, 8, NULL, other, 9, 0, NULL), "fi_trecv");
    CHECK(!kill(child, SIGKILL), "kill");
    next(FI_ECONNABORTED);
}

int main(void)
{
    divide();
    open_domain();
    open_queue(FI_WAIT_FD);
    open_waiting();
    meet();
    others();
    events();
    registered();
    is_quiet();
    size_t lengths[] = {8, 8192, 50000, LONGEST};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        pingpong(lengths[i]);
    counted();
    got();
    signalled();
    is_quiet();
    died();
    CHECK(fi_close(&eq->fid) == -FI_EBUSY, "a queue that a domain uses is closed");
    did(fi_close(&ep->fid), "fi_close");
    ep = NULL;
    did(fi_close(&received->fid), "fi_close");
    close_all();
    puts("descriptors: right");
    return 0;
}
