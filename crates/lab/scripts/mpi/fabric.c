/* Communication between two processes over a libfabric provider, without MPI. The difference from
 * `figures.c` in the same run is the cost of MPI itself.
 *
 *     cc -O2 -o fabric fabric.c -lfabric
 *     FI_PROVIDER_PATH=... ./fabric PROVIDER pingpong|rate BYTES COUNT [WHERE WHERE]
 *
 * The processes are pinned to the first two cores. WHERE is a network namespace for one of them
 * and variables of its environment, as NETNS[,NAME=VALUE]... COUNT is in messages one way. Prints
 * one line of JSON: p50_ns one way, or messages_per_s.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 64, WARM_UP = 1000, NAME_BYTES = 256 };

static struct fid_ep *endpoint;
static struct fid_cq *queue;
static fi_addr_t peer;
static char *out, *in;
static size_t bytes;
static struct fi_context2 contexts[2 * WINDOW];
/* Completions that were read before they were waited for. */
static int sent, received;

static void give_up(const char *what, long number)
{
    fprintf(stderr, "fabric: %s: %s\n", what, fi_strerror((int)-number));
    exit(1);
}

static void check(const char *what, long number)
{
    if (number < 0)
        give_up(what, number);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int by_size(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static void progress(void)
{
    struct fi_cq_tagged_entry entries[WINDOW];
    long read = fi_cq_read(queue, entries, WINDOW);
    if (read == -FI_EAGAIN)
        return;
    check("fi_cq_read", read);
    for (long i = 0; i < read; i++)
        *(entries[i].flags & FI_SEND ? &sent : &received) += 1;
}

static void wait_for(int *count, int many)
{
    while (*count < many)
        progress();
    *count -= many;
}

static void post(int place)
{
    check("fi_trecv", fi_trecv(endpoint, in, bytes, NULL, peer, 7, 0, &contexts[WINDOW + place]));
}

static void send_one(int place)
{
    long done;
    while ((done = fi_tsend(endpoint, out, bytes, NULL, peer, 7, &contexts[place])) == -FI_EAGAIN)
        progress();
    check("fi_tsend", done);
}

/* Like MPI_Send and MPI_Recv. */
static void round_trip(int rank)
{
    for (int turn = 0; turn < 2; turn++)
        if (turn == rank) {
            send_one(0);
            wait_for(&sent, 1);
        } else {
            post(0);
            wait_for(&received, 1);
        }
}

/* Many messages one way, like MPI_Isend and MPI_Irecv, then a reply. */
static void stream(int rank)
{
    for (int i = 0; i < WINDOW; i++)
        if (rank == 0)
            send_one(i);
        else
            post(i);
    wait_for(rank == 0 ? &sent : &received, WINDOW);
    if (rank == 0) {
        post(0);
        wait_for(&received, 1);
    } else {
        send_one(0);
        wait_for(&sent, 1);
    }
}

/* Moves this process to the place that WHERE names, and sets its environment. */
static void enter(char *where)
{
    char path[256];
    char *namespace = strtok(where, ","), *variable;
    while ((variable = strtok(NULL, ",")))
        putenv(variable);
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    int space = open(path, O_RDONLY);
    if (space < 0 || setns(space, CLONE_NEWNET)) {
        perror(path);
        exit(1);
    }
    close(space);
}

static void open_endpoint(const char *provider)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED | FI_DIRECTED_RECV;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(provider);
    check("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED};
    struct fi_av_attr av = {.type = FI_AV_MAP};
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *vector;
    check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    check("fi_domain", fi_domain(fabric, info, &domain, NULL));
    check("fi_cq_open", fi_cq_open(domain, &cq, &queue, NULL));
    check("fi_av_open", fi_av_open(domain, &av, &vector, NULL));
    check("fi_endpoint", fi_endpoint(domain, info, &endpoint, NULL));
    check("fi_ep_bind", fi_ep_bind(endpoint, &vector->fid, 0));
    check("fi_ep_bind", fi_ep_bind(endpoint, &queue->fid, FI_SEND | FI_RECV));
    check("fi_enable", fi_enable(endpoint));
    fi_freeinfo(hints);
    int link = *(int *)(void *)in;
    char name[NAME_BYTES] = {0};
    size_t length = sizeof name;
    check("fi_getname", fi_getname(&endpoint->fid, name, &length));
    if (write(link, name, sizeof name) != sizeof name || read(link, name, sizeof name) != sizeof name) {
        perror("fabric: the other process");
        exit(1);
    }
    if (fi_av_insert(vector, name, 1, &peer, 0, NULL) != 1)
        give_up("fi_av_insert", -FI_EINVAL);
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 7) {
        fprintf(stderr, "usage: fabric PROVIDER pingpong|rate BYTES COUNT [WHERE WHERE]\n");
        return 2;
    }
    bytes = strtoul(argv[3], NULL, 10);
    size_t room = bytes + sizeof(int);
    out = calloc(1, room);
    in = calloc(1, room);
    int is_rate = strcmp(argv[2], "rate") == 0, ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) {
        perror("socketpair");
        return 1;
    }
    pid_t child = fork();
    int rank = child == 0;
    close(ends[!rank]);
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET((size_t)rank, &core);
    sched_setaffinity(0, sizeof core, &core);
    if (argc == 7)
        enter(argv[5 + rank]);
    *(int *)(void *)in = ends[rank];
    open_endpoint(argv[1]);
    long each = is_rate ? WINDOW : 2, turns = strtol(argv[4], NULL, 10) / each;
    turns = turns < 1 ? 1 : turns;
    double *samples = calloc((size_t)turns, sizeof *samples);
    for (long turn = -WARM_UP / each; turn < turns; turn++) {
        double began = now_s();
        is_rate ? stream(rank) : round_trip(rank);
        if (turn >= 0)
            samples[turn] = now_s() - began;
    }
    qsort(samples, (size_t)turns, sizeof *samples, by_size);
    double median = samples[turns / 2];
    if (rank == 0 && is_rate)
        printf("{\"messages_per_s\": %.0f}\n", WINDOW / median);
    else if (rank == 0)
        printf("{\"p50_ns\": %.0f}\n", median * 1e9 / 2);
    fflush(stdout);
    /* Outstanding messages are lost when their sender ends. */
    char end = 0;
    if (write(ends[rank], &end, 1) != 1 || read(ends[rank], &end, 1) != 1)
        perror("fabric: the other process");
    fi_close(&endpoint->fid);
    int status = 0;
    return rank == 0 && (waitpid(child, &status, 0) < 0 || status) ? 1 : 0;
}
