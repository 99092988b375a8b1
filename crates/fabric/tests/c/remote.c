/* Two processes with one endpoint each: writes with immediate data, and atomic operations of every
 * kind on each other's memory, in both directions at once. All results are checked. */
#include <complex.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 4096, COUNTS = 500 };

static struct fid_ep *ep;
static struct fid_cq *cq;
static uint64_t area[WORDS];
static fi_addr_t own, other;
static uint64_t own_key, other_key;

#define CHECK(is_right, ...)                                                                       \
    do {                                                                                           \
        if (!(is_right)) {                                                                         \
            fprintf(stderr, "line %d: ", __LINE__);                                                \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Repeats a call until it finds room. */
#define did(call, what)                                                                           \
    do {                                                                                          \
        ssize_t result_;                                                                          \
        do                                                                                        \
            result_ = (call);                                                                     \
        while (result_ == -FI_EAGAIN);                                                            \
        CHECK(result_ == 0, "%s: %s", what, fi_strerror((int)-result_));                          \
    } while (0)

/* Waits for the next completion, which must be an error if `fails` is set. */
static struct fi_cq_tagged_entry next(int fails)
{
    struct fi_cq_tagged_entry entry = {0};
    struct fi_cq_err_entry error = {0};
    for (;;) {
        ssize_t got = fi_cq_sread(cq, &entry, 1, NULL, 20000);
        if (got == 1) {
            CHECK(!fails, "it was done and should have failed with %s", fi_strerror(fails));
            return entry;
        }
        if (got == -FI_EAVAIL) {
            fi_cq_readerr(cq, &error, 0);
            CHECK(error.err == fails, "failed: %s", fi_strerror(error.err));
            return entry;
        }
        CHECK(got == -FI_EAGAIN, "no completion: %zd", got);
    }
}

#define done(call, what)                                                                          \
    do {                                                                                          \
        did(call, what);                                                                          \
        next(0);                                                                                  \
    } while (0)

/* Waits until the peer is here. Meanwhile makes progress, because progress is manual. */
static void everybody(int *pipes)
{
    char byte = 1;
    struct pollfd other_side = {.fd = pipes[0], .events = POLLIN};
    struct fi_cq_tagged_entry entry;
    CHECK(write(pipes[1], &byte, 1) == 1, "the peer is gone");
    while (poll(&other_side, 1, 1) == 0)
        CHECK(fi_cq_read(cq, &entry, 1) == -FI_EAGAIN, "a completion too many");
    CHECK(read(pipes[0], &byte, 1) == 1, "the peer is gone");
}

static void written_with_data(fi_addr_t to, uint64_t key)
{
    static char bytes[300000];
    memset(bytes, 'x', sizeof bytes);
    struct iovec iov = {bytes, 24};
    struct fi_rma_iov there = {0, 24, key};
    struct fi_msg_rma message = {&iov, NULL, 1, to, &there, 1, bytes, 0xfeed};
    size_t lengths[] = {8000, 24, 16384, 0};
    uint64_t data[] = {0x123456789abcdef0, 0xfeed, 7, 8};
    did(fi_writedata(ep, bytes, lengths[0], NULL, data[0], to, 0, key, bytes), "fi_writedata");
    did(fi_writemsg(ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION), "fi_writemsg");
    did(fi_writedata(ep, bytes, lengths[2], NULL, data[2], to, 0, key, bytes), "fi_writedata");
    did(fi_inject_writedata(ep, bytes, 0, data[3], to, 0, key), "fi_inject_writedata");
    int written = 0, told = 0, seen = 0;
    while (written < 3 || told < 4) {
        struct fi_cq_tagged_entry entry = next(0);
        if (entry.flags & FI_REMOTE_WRITE) {
            CHECK(entry.flags & FI_REMOTE_CQ_DATA, "without data");
            int index = 0;
            while (index < 4 && data[index] != entry.data)
                index++;
            CHECK(index < 4 && entry.len == lengths[index], "%zu bytes with %llx", entry.len,
                  (unsigned long long)entry.data);
            CHECK(!entry.len || ((char *)area)[entry.len - 1] == 'x', "reported before it was there");
            seen |= 1 << index;
            told++;
        } else {
            CHECK(entry.op_context == bytes && entry.flags & FI_WRITE, "another completion");
            written++;
        }
    }
    CHECK(seen == 15, "missing events: %x", seen);
}

/* One operation on one element at the beginning: its previous and its new value. */
#define TRY(type, datatype, op, was, by, is)                                                       \
    do {                                                                                           \
        type start = was, operand = by, wanted = is, found, result;                                \
        done(fi_atomic(ep, &start, 1, NULL, to, at, key, datatype, FI_ATOMIC_WRITE, NULL), #op);   \
        done(fi_fetch_atomic(ep, &operand, 1, NULL, &result, NULL, to, at, key, datatype, op,      \
                             NULL),                                                                \
             #op);                                                                                 \
        CHECK(result == start, #type " " #op ": another value was there");                         \
        done(fi_fetch_atomic(ep, NULL, 1, NULL, &found, NULL, to, at, key, datatype,               \
                             FI_ATOMIC_READ, NULL),                                                \
             #op);                                                                                 \
        CHECK(found == wanted, #type " " #op ": wrong");                                           \
    } while (0)

/* Operands need no alignment. */
static void one_of_each(fi_addr_t to, uint64_t key, uint64_t at)
{
    TRY(int8_t, FI_INT8, FI_SUM, 100, 100, (int8_t)200);
    TRY(uint8_t, FI_UINT8, FI_MAX, 100, 200, 200);
    TRY(int16_t, FI_INT16, FI_MIN, -5, 3, -5);
    TRY(uint16_t, FI_UINT16, FI_PROD, 300, 300, (uint16_t)90000);
    TRY(int32_t, FI_INT32, FI_BOR, 5, 10, 15);
    TRY(uint32_t, FI_UINT32, FI_BXOR, 5, 4, 1);
    TRY(int64_t, FI_INT64, FI_LAND, -5, 4, 1);
    TRY(uint64_t, FI_UINT64, FI_BAND, UINT64_MAX, 1ull << 63, 1ull << 63);
    TRY(float, FI_FLOAT, FI_SUM, 0.5f, 0.25f, 0.75f);
    TRY(double, FI_DOUBLE, FI_LXOR, 2, 0, 1);
    TRY(float complex, FI_FLOAT_COMPLEX, FI_PROD, 1 + 2 * I, 3 + 4 * I, -5 + 10 * I);
    TRY(double complex, FI_DOUBLE_COMPLEX, FI_SUM, 1 + 2 * I, 3 + 4 * I, 4 + 6 * I);
    TRY(int64_t, FI_INT64, FI_LOR, 0, 0, 0);
}

static void refused(fi_addr_t to, uint64_t key)
{
    double number = 1;
    long double longer = 1;
    size_t count = 0;
    CHECK(!fi_atomicvalid(ep, FI_INT32, FI_SUM, &count) && count >= 512, "fi_atomicvalid");
    CHECK(!fi_compare_atomicvalid(ep, FI_UINT64, FI_MSWAP, &count) && count, "compare_atomicvalid");
    CHECK(fi_fetch_atomicvalid(ep, FI_DOUBLE, FI_BAND, &count) == -FI_EOPNOTSUPP, "bits of floats");
    CHECK(fi_atomicvalid(ep, FI_LONG_DOUBLE, FI_SUM, &count) == -FI_EOPNOTSUPP, "long double");
    CHECK(fi_atomicvalid(ep, FI_INT32, FI_CSWAP, &count) == -FI_EOPNOTSUPP, "swap without compare");
    CHECK(fi_atomic(ep, &longer, 1, NULL, to, 0, key, FI_LONG_DOUBLE, FI_SUM, NULL) ==
              -FI_EOPNOTSUPP,
          "long double");
    CHECK(fi_atomic(ep, &number, 1 << 20, NULL, to, 0, key, FI_DOUBLE, FI_SUM, NULL) ==
              -FI_EMSGSIZE,
          "too many elements");
    did(fi_atomic(ep, &number, 1, NULL, to, sizeof area - 7, key, FI_DOUBLE, FI_SUM, NULL),
        "beyond the end");
    next(FI_EINVAL);
    did(fi_atomic(ep, &number, 1, NULL, to, 0, key + 1, FI_DOUBLE, FI_SUM, NULL), "another key");
    next(FI_ENOKEY);
}

/* Both increment both counters and get distinct values; a lock made of compare-and-swap. */
static void counted(fi_addr_t to, uint64_t key)
{
    uint64_t one = 1, last = 0, given;
    for (int i = 0; i < COUNTS; i++) {
        done(fi_fetch_atomic(ep, &one, 1, NULL, &given, NULL, to, 8, key, FI_UINT64, FI_SUM, NULL),
             "count");
        CHECK(i == 0 || given > last, "count %d after %d", (int)given, (int)last);
        last = given;
    }
    int32_t ones[100], none[100] = {0}, before[100];
    for (int i = 0; i < 100; i++)
        ones[i] = i;
    struct fi_ioc halves[2] = {{ones, 50}, {ones + 50, 50}}, compared = {none, 100};
    struct fi_ioc results[2] = {{before, 99}, {before + 99, 1}};
    done(fi_atomicv(ep, halves, NULL, 2, to, 800, key, FI_INT32, FI_SUM, NULL), "fi_atomicv");
    did(fi_inject_atomic(ep, ones, 100, to, 800, key, FI_INT32, FI_SUM), "fi_inject_atomic");
    done(fi_compare_atomicv(ep, halves, NULL, 2, &compared, NULL, 1, results, NULL, 2, to, 1600,
                            key, FI_INT32, FI_CSWAP, NULL),
         "fi_compare_atomicv");
    for (int i = 0; i < 100; i++)
        CHECK(before[i] == 0 || before[i] == i, "%d at %d", before[i], i);
}

/* Events that the program writes can be read, and insertions into an address vector are reported. */
static void events(struct fid_fabric *fabric, struct fid_domain *domain, const char *name)
{
    struct fi_eq_attr attr = {.flags = FI_WRITE, .wait_obj = FI_WAIT_UNSPEC};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .flags = FI_EVENT};
    struct fid_eq *eq, *silent;
    struct fid_av *av;
    struct fi_eq_entry entry = {.data = 77};
    uint32_t event;
    fi_addr_t address;
    did(fi_eq_open(fabric, &attr, &eq, NULL), "fi_eq_open");
    CHECK(fi_eq_sread(eq, &event, &entry, sizeof entry, 1, 0) == -FI_EAGAIN, "an event");
    CHECK(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof entry, 0) == sizeof entry, "fi_eq_write");
    entry.data = 0;
    CHECK(fi_eq_read(eq, &event, &entry, 4, 0) == -FI_ETOOSMALL, "a buffer that is too short");
    struct fid *fids[] = {&eq->fid};
    CHECK(fi_trywait(fabric, fids, 1) == -FI_EAGAIN, "fi_trywait");
    CHECK(fi_eq_read(eq, &event, &entry, sizeof entry, FI_PEEK) == sizeof entry, "FI_PEEK");
    CHECK(fi_eq_sread(eq, &event, &entry, sizeof entry, -1, 0) == sizeof entry, "fi_eq_sread");
    CHECK(event == FI_NOTIFY && entry.data == 77, "another event");
    did(fi_trywait(fabric, fids, 1), "fi_trywait");
    did(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
    CHECK(fi_av_insert(av, name, 1, &address, 0, &event) == -FI_ENOEQ, "nowhere to tell");
    did(fi_av_bind(av, &eq->fid, 0), "fi_av_bind");
    did(fi_av_insert(av, name, 1, &address, 0, &event), "fi_av_insert");
    CHECK(fi_eq_sread(eq, &event, &entry, sizeof entry, -1, 0) == sizeof entry, "fi_eq_sread");
    CHECK(event == FI_AV_COMPLETE && entry.fid == &av->fid && entry.context == &event &&
              entry.data == 1,
          "another event");
    CHECK(fi_close(&eq->fid) == -FI_EBUSY, "in use");
    did(fi_close(&av->fid), "fi_close");
    did(fi_close(&eq->fid), "fi_close");
    attr.flags = 0;
    did(fi_eq_open(fabric, &attr, &silent, NULL), "fi_eq_open");
    CHECK(fi_eq_write(silent, FI_NOTIFY, &entry, sizeof entry, 0) == -FI_ENOSYS, "not asked for");
    did(fi_close(&silent->fid), "fi_close");
}

static void run(int *pipes)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup("dipole");
    did(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), "fi_getinfo");
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_mr *mr;
    did(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    did(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    did(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC};
    did(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    did(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
    did(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    did(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
    did(fi_enable(ep), "fi_enable");
    did(fi_mr_reg(domain, area, sizeof area, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL),
        "fi_mr_reg");
    struct fi_atomic_attr attr;
    did(fi_query_atomic(domain, FI_DOUBLE, FI_SUM, &attr, FI_FETCH_ATOMIC), "fi_query_atomic");
    CHECK(attr.size == 8 && attr.count >= 512, "%zu elements", attr.count);
    struct {
        char name[64];
        uint64_t key;
    } mine = {{0}, fi_mr_key(mr)}, theirs;
    size_t length = sizeof mine.name;
    did(fi_getname(&ep->fid, mine.name, &length), "fi_getname");
    events(fabric, domain, mine.name);
    CHECK(write(pipes[1], &mine, sizeof mine) == sizeof mine, "write");
    CHECK(read(pipes[0], &theirs, sizeof theirs) == sizeof theirs, "read");
    CHECK(fi_av_insert(av, mine.name, 1, &own, 0, NULL) == 1, "fi_av_insert");
    CHECK(fi_av_insert(av, theirs.name, 1, &other, 0, NULL) == 1, "fi_av_insert");
    own_key = mine.key;
    other_key = theirs.key;

    written_with_data(own, own_key);
    everybody(pipes);
    written_with_data(other, other_key);
    everybody(pipes);
    one_of_each(own, own_key, 8 * (WORDS - 8) + 1);
    one_of_each(other, other_key, 8 * (WORDS - 4) + 1);
    refused(own, own_key);
    refused(other, other_key);
    everybody(pipes);
    memset(area, 0, sizeof area);
    everybody(pipes);
    counted(own, own_key);
    counted(other, other_key);
    everybody(pipes);
    CHECK(area[1] == 2 * COUNTS, "%d counts, not %d", (int)area[1], 2 * COUNTS);
    int32_t *sums = (int32_t *)(area + 100), *swapped = (int32_t *)(area + 200);
    for (int i = 0; i < 100; i++) {
        CHECK(sums[i] == 4 * i, "sum %d at %d", sums[i], i);
        CHECK(swapped[i] == i, "swapped %d at %d", swapped[i], i);
    }
    everybody(pipes);
    /* One makes no libfabric calls: its process serves requests anyway. */
    char byte = 1;
    if (pipes[2]) {
        CHECK(read(pipes[0], &byte, 1) == 1, "the peer is gone");
    } else {
        done(fi_atomic(ep, &own_key, 1, NULL, other, 0, other_key, FI_UINT64, FI_MAX, NULL),
             "one who does not look");
        CHECK(write(pipes[1], &byte, 1) == 1, "the peer is gone");
    }
    everybody(pipes);
    did(fi_close(&ep->fid), "fi_close");
    did(fi_close(&mr->fid), "fi_close");
    did(fi_close(&cq->fid), "fi_close");
    did(fi_close(&av->fid), "fi_close");
    did(fi_close(&domain->fid), "fi_close");
    did(fi_close(&fabric->fid), "fi_close");
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

int main(void)
{
    int there[2], back[2], status;
    CHECK(!pipe(there) && !pipe(back), "pipe");
    pid_t child = fork();
    int pipes[3] = {child ? back[0] : there[0], child ? there[1] : back[1], child == 0};
    close(child ? there[0] : back[0]);
    close(child ? back[1] : there[1]);
    run(pipes);
    if (child == 0)
        return 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the peer failed");
    puts("remote: right");
    return 0;
}
