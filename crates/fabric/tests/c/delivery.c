/* A send with FI_DELIVERY_COMPLETE completes when a receive has the message, and not before. Uses
 * libfabric itself, between two endpoints. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

enum { SENDER, RECEIVER, SHORT = 100, LONG = 1 << 20 };

static struct fid_ep *endpoint[2];
static struct fid_cq *queue[2];
static fi_addr_t receiver;
static char out[LONG], in[LONG];
static int ignored;

static void check(ssize_t result, const char *call)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", call, fi_strerror((int)-result));
        exit(1);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Polls both endpoints; returns whether this one has a completion within the time. */
static int completes(int side, double seconds)
{
    static int waiting[2];
    double until = now() + seconds;
    do {
        for (int each = 0; each < 2; each++) {
            struct fi_cq_tagged_entry entry;
            ssize_t count = fi_cq_read(queue[each], &entry, 1);
            if (count != -FI_EAGAIN)
                check(count, "fi_cq_read");
            waiting[each] += count > 0;
        }
    } while (!waiting[side] && now() < until);
    if (!waiting[side])
        return 0;
    waiting[side]--;
    return 1;
}

static void expect(int is_so, const char *what, size_t bytes)
{
    if (!is_so) {
        fprintf(stderr, "%zu bytes: %s\n", bytes, what);
        exit(1);
    }
}

static void send_confirmed(size_t bytes)
{
    struct iovec place = {out, bytes};
    struct fi_msg_tagged message = {.msg_iov = &place, .iov_count = 1, .addr = receiver, .tag = 7};
    check(fi_tsendmsg(endpoint[SENDER], &message, FI_DELIVERY_COMPLETE | FI_COMPLETION), "fi_tsendmsg");
}

static void receive(size_t bytes)
{
    check(fi_trecv(endpoint[RECEIVER], in, bytes, NULL, FI_ADDR_UNSPEC, 7, 0, &ignored), "fi_trecv");
}

static void try(size_t bytes)
{
    memset(in, 0, sizeof in);
    for (size_t at = 0; at < bytes; at++)
        out[at] = (char)(at + bytes);
    send_confirmed(bytes);
    expect(!completes(SENDER, 0.05), "complete before there was a receive", bytes);
    receive(bytes);
    expect(completes(RECEIVER, 60), "not received", bytes);
    expect(completes(SENDER, 60), "received, but the send is not complete", bytes);
    expect(memcmp(in, out, bytes) == 0, "wrong contents", bytes);
    /* The receive is there first. */
    receive(bytes);
    send_confirmed(bytes);
    expect(completes(RECEIVER, 60) && completes(SENDER, 60), "an expected message did not complete", bytes);
    /* A message that the receiver throws away is taken, too. */
    send_confirmed(bytes);
    struct fi_msg_tagged criteria = {.addr = FI_ADDR_UNSPEC, .tag = 7};
    expect(!completes(SENDER, 0.05), "complete before it was thrown away", bytes);
    check(fi_trecvmsg(endpoint[RECEIVER], &criteria, FI_PEEK | FI_DISCARD), "fi_trecvmsg");
    expect(completes(RECEIVER, 60) && completes(SENDER, 60), "thrown away, but not complete", bytes);
}

int main(void)
{
    struct fi_info *hints = fi_allocinfo(), *found;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED;
    hints->domain_attr->mr_mode = FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_LOCAL;
    hints->fabric_attr->prov_name = strdup("dipole");
    check(fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &found), "fi_getinfo");
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    check(fi_fabric(found->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_domain(fabric, found, &domain, NULL), "fi_domain");
    struct fid_av *names;
    struct fi_av_attr kind = {.type = FI_AV_TABLE};
    check(fi_av_open(domain, &kind, &names, NULL), "fi_av_open");
    for (int side = 0; side < 2; side++) {
        struct fi_cq_attr format = {.format = FI_CQ_FORMAT_TAGGED};
        check(fi_cq_open(domain, &format, &queue[side], NULL), "fi_cq_open");
        check(fi_endpoint(domain, found, &endpoint[side], NULL), "fi_endpoint");
        check(fi_ep_bind(endpoint[side], &names->fid, 0), "fi_ep_bind");
        check(fi_ep_bind(endpoint[side], &queue[side]->fid, FI_SEND | FI_RECV), "fi_ep_bind");
        check(fi_enable(endpoint[side]), "fi_enable");
    }
    char name[256];
    size_t length = sizeof name;
    check(fi_getname(&endpoint[RECEIVER]->fid, name, &length), "fi_getname");
    check(fi_av_insert(names, name, 1, &receiver, 0, NULL) == 1 ? 0 : -FI_EINVAL, "fi_av_insert");
    try(0);
    try(SHORT);
    try(LONG);
    for (int side = 0; side < 2; side++)
        fi_close(&endpoint[side]->fid);
    puts("sends complete when the messages are taken");
    return 0;
}
