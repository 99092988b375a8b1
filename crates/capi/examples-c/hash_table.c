/* A hash table in the memory of several processes: hash_table DPID PROCESSES KEYS.
 *
 * Each process owns a region with one part of the table and puts keys into all parts. A key goes to
 * the owner that its hash selects: a compare-and-swap of the slot's key, and a put of its value,
 * whose notification the owner counts. At the end every process gets all values and compares them
 * with what was put. If a process is killed, its part is lost, and calls that access it fail. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 4096, MOST = 16 };
static const int64_t LONG_NS = 60000000000;

struct slot {
    uint64_t key; /* 0 if the slot is free */
    uint64_t value;
};

static struct slot table[SLOTS];

/* SplitMix64's finalizer. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

struct owner {
    int edge;
    uint64_t region;
};

/* The slot of a key: an offset in its owner's region, which is allocated for a new key. */
static int find(const struct owner *owner, uint64_t key, uint64_t *offset)
{
    for (uint64_t step = 0; step < SLOTS; step++) {
        uint64_t before, at = ((mix(key) >> 16) + step) % SLOTS * sizeof(struct slot);
        if (dp_compare_swap(owner->edge, owner->region, at, 0, key, &before, LONG_NS) < 0) {
            return -1;
        }
        if (before == 0 || before == key) {
            *offset = at;
            return 0;
        }
    }
    CHECK(!"the table is full");
    return -1;
}

/* Messages between the processes. */
enum phase { REGION, HAS_PUT, HAS_GOT, IS_LEFT, PHASES };

struct news {
    uint64_t phase;
    uint64_t region;
};

struct process {
    int fd;
    int count;
    uint32_t first;
    struct owner owners[MOST];
    int heard[PHASES];
    uint64_t noticed;
};

/* Sends a number to all processes. */
static void tell(struct process *own, int others, enum phase phase, uint64_t region)
{
    struct news news = { phase, region };
    for (int other = 0; other < others; other++) {
        ssize_t sent = dp_edge_send(own->owners[other].edge, &news, sizeof news, 0, LONG_NS);
        CHECK(sent == (ssize_t)sizeof news);
    }
}

/* Receives the next message, or the notification of a put. */
static void take(struct process *own)
{
    const void *message;
    struct dp_address source;
    struct dp_notification notice;
    ssize_t length = dp_recv(own->fd, &message, &source, 0, LONG_NS);
    CHECK(length >= 0);
    int is_notice = dp_is_notification(own->fd, message, &notice);
    CHECK(is_notice >= 0);
    if (is_notice) {
        CHECK(length == 0 && notice.length == 8);
        uint64_t value;
        memcpy(&value, (unsigned char *)table + notice.offset, 8);
        CHECK(value == ~notice.value);
        own->noticed++;
    } else {
        struct news news;
        CHECK(length == (ssize_t)sizeof news);
        memcpy(&news, message, sizeof news);
        CHECK(news.phase < PHASES);
        own->heard[news.phase]++;
        if (news.phase == REGION) {
            own->owners[source.dpid - own->first].region = news.region;
        }
    }
    CHECK(dp_fsync(own->fd, 1) == 0);
}

static void hear(struct process *own, enum phase phase, int count)
{
    while (own->heard[phase] < count) {
        take(own);
    }
}

static uint64_t key_of(uint64_t number)
{
    return mix(number + 1) | 1;
}

static int owner_of(const struct process *own, uint64_t key)
{
    return (int)(mix(key) % (uint64_t)own->count);
}

/* One process: its rank, the number of processes, the first endpoint, and the keys per process. */
static void run(int rank, int count, uint32_t first, uint64_t keys)
{
    static struct process own;
    uint64_t region, expected = 0, all = (uint64_t)count * keys;
    own.count = count;
    own.first = first;
    own.fd = dp_open_with(first + (uint32_t)rank, NULL);
    CHECK(own.fd >= 0);
    int rights = DP_ALLOW_PUT | DP_ALLOW_GET | DP_ALLOW_ATOMIC;
    CHECK(dp_region_open(own.fd, table, sizeof table, rights, &region) >= 0);
    for (int other = 0; other < count; other++) {
        struct dp_address to = { 1, first + (uint32_t)other };
        own.owners[other].edge = dp_edge_open(own.fd, to);
        CHECK(own.owners[other].edge >= 0);
    }
    tell(&own, count, REGION, region);
    hear(&own, REGION, count);

    for (uint64_t number = 0; number < keys; number++) {
        uint64_t offset, key = key_of((uint64_t)rank * keys + number), value = ~key;
        const struct owner *owner = &own.owners[owner_of(&own, key)];
        CHECK(find(owner, key, &offset) == 0);
        CHECK(dp_put_notify(owner->edge, owner->region, offset + 8, &value, 8, key, 0,
                            LONG_NS) == 0);
    }
    for (int other = 0; other < count; other++) {
        CHECK(dp_edge_drain(own.owners[other].edge, LONG_NS) == 0);
    }
    tell(&own, count, HAS_PUT, 0);
    hear(&own, HAS_PUT, count);
    for (uint64_t number = 0; number < all; number++) {
        expected += owner_of(&own, key_of(number)) == rank;
    }
    /* A notification arrives before what was sent after it. */
    CHECK(own.noticed == expected);

    for (uint64_t number = 0; number < all; number++) {
        uint64_t offset, value, key = key_of(number);
        const struct owner *owner = &own.owners[owner_of(&own, key)];
        CHECK(find(owner, key, &offset) == 0);
        CHECK(dp_get(owner->edge, owner->region, offset + 8, &value, 8, LONG_NS) == 0);
        CHECK(value == ~key);
    }
    tell(&own, count, HAS_GOT, 0);
    hear(&own, HAS_GOT, count);
    if (rank == count - 1) {
        raise(SIGKILL);
    }

    /* The last process is dead: access to its part fails. */
    uint64_t number = 0, offset;
    while (owner_of(&own, key_of(number)) != count - 1) {
        number++;
    }
    while (find(&own.owners[count - 1], key_of(number), &offset) == 0) {
    }
    CHECK(errno == ECONNRESET || errno == ECONNREFUSED || errno == EHOSTUNREACH);
    tell(&own, count - 1, IS_LEFT, 0);
    hear(&own, IS_LEFT, count - 1);
}

int main(int count, char **arguments)
{
    CHECK(count == 4);
    uint32_t first = (uint32_t)atoi(arguments[1]);
    int processes = atoi(arguments[2]);
    uint64_t keys = (uint64_t)atoi(arguments[3]);
    CHECK(processes > 1 && processes <= MOST);
    pid_t children[MOST];
    for (int rank = 0; rank < processes; rank++) {
        children[rank] = fork();
        CHECK(children[rank] >= 0);
        if (children[rank] == 0) {
            run(rank, processes, first, keys);
            exit(0);
        }
    }
    for (int rank = 0; rank < processes; rank++) {
        int status;
        CHECK(waitpid(children[rank], &status, 0) == children[rank]);
        int is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        int is_done = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        CHECK(rank == processes - 1 ? is_killed : is_done);
    }
    printf("%d processes, %llu keys each\n", processes, (unsigned long long)keys);
    return 0;
}
