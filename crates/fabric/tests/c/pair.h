/* Shared by programs of two processes that use only libfabric: the objects of one process, the
 * exchange of names, and checks that end both. */
#ifndef FABRIC_TESTS_PAIR_H
#define FABRIC_TESTS_PAIR_H

#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each program uses some of these. */
#pragma GCC diagnostic ignored "-Wunused-function"

#define CHECK(is_right, ...)                                                                       \
    do {                                                                                           \
        if (!(is_right)) {                                                                         \
            fprintf(stderr, "%s: line %d: ", is_parent ? "parent" : "child", __LINE__);            \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { SECONDS = 20, LIMIT_MS = 1000 * SECONDS };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t other;
static int is_parent = 1, from_other, to_other;
static pid_t child;

static void did(ssize_t result, const char *what)
{
    CHECK(result == 0, "%s: %s", what, fi_strerror((int)-result));
}

/* Everything except the objects that report completions. */
static void open_domain(void)
{
    struct fi_info *hints = fi_allocinfo();
    hints->fabric_attr->prov_name = strdup("dipole");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV;
    hints->domain_attr->mr_mode = FI_MR_PROV_KEY;
    did(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), "fi_getinfo");
    fi_freeinfo(hints);
    did(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    did(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    did(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    did(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
    did(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
}

static void open_queue(enum fi_wait_obj object)
{
    struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = object};
    did(fi_cq_open(domain, &attr, &cq, NULL), "fi_cq_open");
    did(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
}

/* Exchanges some bytes with the peer. */
static void tell(const void *bytes, size_t length)
{
    CHECK(write(to_other, bytes, length) == (ssize_t)length, "the peer is gone");
}

static void hear(void *bytes, size_t length)
{
    CHECK(read(from_other, bytes, length) == (ssize_t)length, "the peer is gone");
}

static void meet(void)
{
    char own[64], theirs[64];
    size_t length = sizeof own;
    did(fi_enable(ep), "fi_enable");
    did(fi_getname(&ep->fid, own, &length), "fi_getname");
    tell(own, sizeof own);
    hear(theirs, sizeof theirs);
    CHECK(fi_av_insert(av, theirs, 1, &other, 0, NULL) == 1, "fi_av_insert");
}

/* Forks into two processes. */
static void divide(void)
{
    int there[2], back[2];
    CHECK(!pipe(there) && !pipe(back), "pipe");
    fflush(NULL);
    child = fork();
    is_parent = child != 0;
    from_other = is_parent ? back[0] : there[0];
    to_other = is_parent ? there[1] : back[1];
    close(is_parent ? there[0] : back[0]);
    close(is_parent ? back[1] : there[1]);
    alarm(3 * SECONDS);
}

static void child_ended_well(void)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the peer failed: %x", status);
}

static void close_all(void)
{
    if (ep)
        did(fi_close(&ep->fid), "fi_close of an endpoint");
    if (cq)
        did(fi_close(&cq->fid), "fi_close of a queue");
    did(fi_close(&av->fid), "fi_close of an address vector");
    did(fi_close(&domain->fid), "fi_close of a domain");
    did(fi_close(&fabric->fid), "fi_close of a fabric");
    fi_freeinfo(info);
}

#endif
