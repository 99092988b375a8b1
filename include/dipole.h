/*
 * dipole.h - directed-point messaging (libdipole)
 *
 * An endpoint (DPID) belongs to a process on a node (NID). It receives from anybody and
 * sends along the edges that dp_target() and dp_edge() make. Messages of one edge arrive
 * once, whole and in order; a receiver that does not read slows its own senders and nobody
 * else.
 *
 *     int fd = dp_open(7);
 *     dp_target(fd, 1, 8);
 *     dp_write(fd, "hello", 5);
 *     char *message;
 *     int length = dp_read(fd, &message);
 *     dp_fsync(fd, 1);
 *     dp_close(fd);
 *
 * Calls return -1 on failure and set errno; dp_error() has the whole story. The
 * manual pages say more: dipole(7), and one in section 3 for each group below.
 *
 * All functions may be called by many threads at once, also on one descriptor. None may
 * be called by a signal handler.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef DIPOLE_H
#define DIPOLE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; dp_version() tells the library's. */
#define DP_VERSION_MAJOR 0
#define DP_VERSION_MINOR 1
#define DP_VERSION_PATCH 0
#define DP_VERSION "0.1.0"

/*
 * Errors
 *
 *   E2BIG          an option is set that this version of the library does not know
 *   EACCES         the runtime directory or the capture file cannot be used, or the peer is another user's
 *   EADDRINUSE     another process has the endpoint
 *   EADDRNOTAVAIL  the node's network address cannot be bound
 *   EAGAIN         the call would have to wait
 *   EBADF          the number stands for nothing open of this kind, or its endpoint has ended
 *   EBUSY          the node is already open
 *   ECANCELED      the operation was withdrawn before it began
 *   ECONNREFUSED   the receiving process has no such endpoint
 *   ECONNRESET     the peer process is gone
 *   EDEADLK        a handler waits for its own port
 *   EDESTADDRREQ   the endpoint has no target
 *   EFAULT         a pointer is null or misaligned
 *   EHOSTUNREACH   the endpoint cannot be found
 *   EINVAL         an argument, an option or an environment variable is wrong
 *   EIO            the link is broken, or the library has a bug
 *   EKEYREJECTED   the cluster keys of the two processes differ, or one has none
 *   EMFILE         no descriptors or threads are left, or the process has as many endpoints as it may
 *   EMSGSIZE       the message is too long, or the buffer too short
 *   ENFILE         the user has as many processes or endpoints on this node as they may
 *   ENOENT         the process belongs to no job, or the endpoint has no open region with this key
 *   ENOMEM         the pool cannot be had
 *   ENXIO          the node is not open
 *   EOPNOTSUPP     shared memory was asked for and cannot be used
 *   EPERM          the region was not opened for that
 *   EPIPE          the stream is over
 *   EPROTO         members of a group make different calls, or have different lists of members
 *   ERANGE         it would reach beyond the region
 *   ESTALE         the descriptor belongs to the parent process
 *   ETIMEDOUT      it did not happen in the time given
 *   EUSERS         the process, or the peer's, has as many peers as it may
 *
 * A kind of failure keeps its number in all versions.
 */

/* What went wrong in this thread's last call that failed: what, where, why and what to
 * do. Valid until the thread's next call that fails; empty if none did. */
const char *dp_error(void);

/* The line of the table above, or a text that says there is none. */
const char *dp_strerror(int errnum);

/* The version of the library, as in "0.1.0". */
const char *dp_version(void);

/*
 * The seven calls of the papers
 */

/* A token buffer pool. Set size to sizeof (dpmmap_t). */
typedef struct dpmmap {
    size_t size;
    size_t bytes;     /* in: wanted; out: had */
    const void *base; /* out: where its tokens lie */
} dpmmap_t;

/* Opens an endpoint. The descriptor is readable while a message waits, writable while a
 * message can be sent, in poll, select, epoll and their like. It is closed on exec. */
int dp_open(int dpid);

/* Points the endpoint at another. Waits until that exists. Further calls add targets:
 * each gets a copy of every message. */
int dp_target(int fd, int nid, int dpid);

/* Sends a message; returns len. Waits while the receiver has no room, unless O_NONBLOCK
 * is set (EAGAIN). The message is copied: msg is free afterwards. */
int dp_write(int fd, const void *msg, int len);

/* Waits for the next message; returns its length, which may be 0, and where it lies. It
 * stays there until dp_fsync() gives it back. EAGAIN with O_NONBLOCK. */
int dp_read(int fd, char **address);

/* Gives the n oldest messages that were read back. EINVAL if fewer are. */
int dp_fsync(int fd, int n);

/* Gives the endpoint a token buffer pool of a size and tells where it lies. Messages of
 * up to 16 KiB are put there from now on, while there is room. */
int dp_mmap(int fd, dpmmap_t *tbp);

/* Ends the endpoint, also if its descriptor was copied, and closes fd. */
int dp_close(int fd);

/*
 * Addresses, several targets
 */

struct dp_address {
    uint32_t nid;
    uint32_t dpid;
};

/* dp_target() for any number. */
int dp_add_target(int fd, struct dp_address to);

/* Takes a target back; the others stay. EDESTADDRREQ if it is none. */
int dp_untarget(int fd, int nid, int dpid);
int dp_remove_target(int fd, struct dp_address to);

/* The endpoint's own address. */
int dp_own_address(int fd, struct dp_address *address);

/*
 * Sending and receiving with sizes, flags and times
 *
 * timeout_ns: negative waits as long as it takes, 0 does not wait (EAGAIN), else the
 * call fails with ETIMEDOUT after so many nanoseconds. With O_NONBLOCK nothing waits.
 */

#define DP_DONTWAIT 1   /* do not wait, whatever timeout_ns says */
#define DP_MORE 2       /* more follows: the message may wait and share its packet */
#define DP_UNRELIABLE 4 /* at most once, maybe never; does not wait */

/* Sends a message; returns len. */
ssize_t dp_send(int fd, const void *msg, size_t len, int flags, int64_t timeout_ns);

/* Sends to one endpoint, whatever the targets are. The first message to it waits until that
 * endpoint exists; its edge is kept. flags: DP_DONTWAIT or 0. */
ssize_t dp_send_to(int fd, struct dp_address to, const void *msg, size_t len, int flags,
                   int64_t timeout_ns);

/* Answers a message of dp_read() or dp_recv() that is not given back yet; returns len. Never
 * waits: ECONNRESET if its sender is gone, EAGAIN if it does not read its answers. */
ssize_t dp_reply(int fd, const void *message, const void *msg, size_t len);

/* The next message where it lies, like dp_read(); source may be NULL. */
ssize_t dp_recv(int fd, const void **address, struct dp_address *source, int flags,
                int64_t timeout_ns);

struct dp_message {
    const void *address; /* where it lies until dp_fsync(fd, 1) gives it back */
    size_t length;
    struct dp_address source;
};

/* Waits for a message and takes all that wait, at most count, oldest first; how many. At less
 * cost than dp_recv() one by one. */
int dp_recv_many(int fd, struct dp_message *messages, int count, int flags, int64_t timeout_ns);

/* Copies the next message; nothing is to be given back. A long one that arrives while the call
 * waits comes into buf without a copy. If it is longer than len, the call fails with EMSGSIZE
 * and the message is there for the next one. */
ssize_t dp_recv_copy(int fd, void *buf, size_t len, struct dp_address *source, int flags,
                     int64_t timeout_ns);

/* Sends what waits because of DP_MORE. The next message without it does so, too. */
int dp_flush(int fd);

/* Sends what waits because of DP_MORE, then waits until everything sent to the targets'
 * processes has been acknowledged: it lies in their token buffer pools. 0 as well if such a
 * process has taken everything and ended since; ECONNRESET if it ended before. A negative
 * time waits as long as it takes, 0 fails with ETIMEDOUT at once. */
int dp_drain(int fd, int64_t timeout_ns);

/*
 * Edges: from an endpoint to one target, and to it alone
 *
 * An edge is a small number, no descriptor. It ends with its endpoint, but keeps its number
 * until dp_edge_close(). O_NONBLOCK of the endpoint means nothing here.
 */

/* An edge to another endpoint; its number. Returns at once: the edge connects behind, waiting
 * for the endpoint to be opened, at most as long as dp_target() would. */
int dp_edge(int fd, struct dp_address to);

/* Sends a message along the edge; returns len. Waits also while the edge connects. flags:
 * DP_DONTWAIT or 0. Returns in time for any length: a long message that has begun by then is
 * sent to its end behind the call. */
ssize_t dp_edge_send(int edge, const void *msg, size_t len, int flags, int64_t timeout_ns);

#define DP_ZEROCOPY 8 /* the message is not copied: it stays as it is until the completion, so the
                       * edge must be attached to a queue or counter (EINVAL) */

/* Posts the iovcnt (at most 1024) pieces of iov in a row as a message. They are copied, unless
 * flags say DP_ZEROCOPY, which takes one piece; nothing waits. The message is sent in the edge's
 * order, also if the edge still connects, and then its context appears in the queue that the
 * edge is attached to, or the counter counts it. Long ones complete when they are no longer
 * needed, maybe later than shorter ones that were posted after them. EAGAIN if 1024 operations
 * wait on the edge, or copies of 32 MiB in the process. */
int dp_post(int edge, int flags, const struct iovec *iov, int iovcnt, uint64_t context);

/* Withdraws an operation that was posted with this context. 1 if it had not begun: it
 * completes with ECANCELED. 0 if there is none, because it is done, for example. */
int dp_cancel(int edge, uint64_t context);

/* dp_drain() for the edge's target; waits for what was posted, too, and until what was put is in
 * its place. */
int dp_edge_drain(int edge, int64_t timeout_ns);

/* Closes the edge. What was sent still arrives; what was posted and has not begun is dropped,
 * without a completion. */
int dp_edge_close(int edge);

/*
 * Regions: memory of an endpoint that others put into, get from and update
 *
 * Whoever has a region's key, which nobody guesses, and an edge to its endpoint may do what
 * its owner allows. What is not allowed changes nothing: ENOENT (the endpoint has no open region
 * with this key), ERANGE (beyond its end), EPERM (not opened for that), EINVAL (a word begins at a
 * multiple of 8). Operations of an edge begin in its order; puts have no order among each other. A
 * message that is sent after them on the same edge arrives when they are done.
 */

#define DP_ALLOW_PUT 1    /* others may write into it */
#define DP_ALLOW_GET 2    /* others may read from it */
#define DP_ALLOW_UPDATE 4 /* others may add to its 64-bit words, and swap them */

/* Opens memory to others; the region's number, which is no descriptor, and its key. Until
 * dp_region_close() the memory must stay, and this process reads and writes in it only what
 * nobody operates on meanwhile, words by atomic operations. */
int dp_region_open(int fd, void *memory, size_t length, int rights, uint64_t *key);

/* Closes a region. When this returns nobody accesses its memory any more. */
int dp_region_close(int region);

/* Puts data at an offset of a region of the edge's target. Returns when they are on their way, as
 * dp_edge_send() does; dp_edge_drain() waits until they are there, and fails if a put since
 * the last one was refused. flags: DP_DONTWAIT or 0. */
int dp_put(int edge, uint64_t key, uint64_t offset, const void *data, size_t len, int flags,
           int64_t timeout_ns);

/* The same, and tells the owner once all of the data are there: its endpoint gets a notice,
 * which comes like a message of 0 bytes. */
int dp_put_notify(int edge, uint64_t key, uint64_t offset, const void *data, size_t len,
                  uint64_t value, int flags, int64_t timeout_ns);

struct dp_notice {
    uint64_t key;    /* of the region */
    uint64_t offset; /* where the data lie */
    uint64_t length; /* how many bytes they are */
    uint64_t value;  /* the initiator's */
};

/* 1, and what it says, if a message that was read and not given back is a notice; else 0. */
int dp_notice(int fd, const void *message, struct dp_notice *notice);

/* Gets len bytes at an offset of a region of the edge's target. */
int dp_get(int edge, uint64_t key, uint64_t offset, void *into, size_t len, int64_t timeout_ns);

/* Adds to the 64-bit word at an offset, wrapping around, in one step for all who do. before may be
 * NULL, else it gets what the word was. After ETIMEDOUT or ECONNRESET it may have been done. */
int dp_fetch_add(int edge, uint64_t key, uint64_t offset, uint64_t value, uint64_t *before,
                 int64_t timeout_ns);

/* Sets the 64-bit word at an offset to a new value if it is what is expected, in one step. */
int dp_compare_swap(int edge, uint64_t key, uint64_t offset, uint64_t expected, uint64_t new_value,
                    uint64_t *before, int64_t timeout_ns);

#define DP_PUT 1
#define DP_GET 2
#define DP_FETCH_ADD 3
#define DP_COMPARE_SWAP 4
#define DP_NOTIFY 1 /* DP_PUT: the owner is told, as by dp_put_notify() */

struct dp_operation {
    int kind;          /* one of the four */
    int flags;         /* DP_PUT: DP_NOTIFY or 0; else 0 */
    uint64_t key;      /* of the region */
    uint64_t offset;   /* where in it */
    void *memory;      /* DP_PUT: what is put; DP_GET: where it goes */
    size_t length;     /* of that; a get takes at most 16 MiB */
    uint64_t value;    /* of the notice; what is added; what the word becomes */
    uint64_t expected; /* DP_COMPARE_SWAP: what the word must be */
};

/* Posts an operation on a region of the edge's target, as dp_post() a message. The memory is
 * the library's until the completion, DP_DONE or DP_FAILED, also if the edge is closed before. For
 * DP_PUT and DP_GET the edge must be attached to a queue or counter (EINVAL). */
int dp_post_operation(int edge, const struct dp_operation *operation, uint64_t context);

/*
 * Completion queues: what was posted and is done, what has arrived
 */

#define DP_SENT 1     /* a posted message is on its way; it has not arrived yet */
#define DP_FAILED 2   /* a posted operation was not done */
#define DP_RECEIVED 3 /* a message has arrived at an attached endpoint */
#define DP_DONE 4     /* a posted operation on memory is done */
#define DP_FILLED 5   /* the memory of a posted receive holds a message */

struct dp_completion {
    int kind;                 /* one of the five */
    int error;                /* DP_FAILED: an error number of the table above, else 0 */
    uint64_t context;         /* but for DP_RECEIVED: as it was posted */
    uint64_t value;           /* DP_DONE: what the word was */
    int fd;                   /* DP_RECEIVED, DP_FILLED: the endpoint, else -1 */
    uint32_t reserved;        /* 0 */
    struct dp_address source; /* DP_RECEIVED, DP_FILLED: who sent the message */
    const void *message;      /* DP_RECEIVED: where it lies until dp_fsync(fd, 1) */
    size_t length;            /* DP_RECEIVED, DP_FILLED: its length */
};

/* Opens a completion queue. Its descriptor, one for everything attached to it, is readable
 * while a completion waits, in poll, select, epoll and their like. It is closed on exec. */
int dp_queue_open(void);

/* From now on messages of the endpoint, or completions of what is posted to the edge, appear
 * in the queue. A message that the queue gave can be answered and given back as if dp_recv()
 * had. */
int dp_queue_attach(int queue, int fd);
int dp_queue_attach_edge(int queue, int edge);

/* Posts memory for the next message of the endpoint that none posted before takes; nothing waits.
 * A long message that arrives later comes there straight from the link, or from its sender's
 * memory. The context appears in the queue: DP_FILLED, or DP_FAILED with EMSGSIZE (the message is
 * longer than len and stays for the next), ECANCELED or EBADF (the endpoint was closed). The memory
 * is the library's until then, or until the queue is closed. Messages go to posted memory before
 * they appear in a queue; who else receives at the endpoint meanwhile may be first. EAGAIN if 1024
 * wait. */
int dp_post_receive(int fd, int queue, void *buf, size_t len, uint64_t context);

/* Withdraws the receive that was posted with this context first. 1 if it waited: it completes with
 * ECANCELED. 0 if there is none. */
int dp_cancel_receive(int fd, uint64_t context);

/* Waits for a completion and takes as many as there are, at most count; returns how many. If
 * one is DP_FAILED, dp_error() has the story of the last such one. */
int dp_queue_wait(int queue, struct dp_completion *completions, int count, int64_t timeout_ns);

/* Closes the queue and its descriptor. Endpoints and edges stay. */
int dp_queue_close(int queue);

/*
 * Completion counters: how many posted operations are done, for who need not know which
 *
 * A counter is a small number, no descriptor.
 */

struct dp_counts {
    uint64_t sent;   /* messages that are on their way; they have not arrived yet */
    uint64_t failed; /* operations that were not done */
};

/* Opens a completion counter; its number. */
int dp_counter_open(void);

/* From now on completions of what is posted to the edge are counted there, and appear in no
 * queue. */
int dp_counter_attach_edge(int counter, int edge);

/* What has been counted so far. */
int dp_counter_read(int counter, struct dp_counts *counts);

/* Waits until count operations are done since the counter was opened, whether they failed or
 * not. counts may be NULL, else it gets what has been counted by then. */
int dp_counter_wait(int counter, uint64_t count, struct dp_counts *counts, int64_t timeout_ns);

/* Closes the counter. Edges stay. */
int dp_counter_close(int counter);

/*
 * Active ports: endpoints whose messages run a function
 *
 * A port is a small number, no descriptor. Its handler runs once for each message, one at a time, in
 * the order of each edge, on a thread that waits in any call of this library, else on one of the
 * library's own, within half a millisecond. It may make all calls but those of groups; it must not
 * wait for a lock that such a thread holds, and must not leave by longjmp() or a C++ exception.
 * message and what it points to are valid until it returns.
 */

typedef void (*dp_handler)(int port, const struct dp_message *message, void *context);

/* Opens an endpoint with a handler, which gets the context; the port's number. DP_ANY: any free
 * endpoint. */
int dp_port_open(uint32_t dpid, dp_handler handler, void *context);

/* The port's own address, for those who send to it. */
int dp_port_address(int port, struct dp_address *address);

/* In the port's handler: answers the message that it runs for, as dp_reply() does; returns len. */
ssize_t dp_port_reply(int port, const void *msg, size_t len);

/* Runs handlers on this thread until the port has handled so many messages since it was opened.
 * EBADF if it is closed meanwhile, EDEADLK in its own handler. */
int dp_port_wait(int port, uint64_t handled, int64_t timeout_ns);

/* Closes the port. When this returns its handler does not run any more, unless that called this. */
int dp_port_close(int port);

/*
 * Groups: members that make the same calls in the same order
 *
 * A group is a small number, no descriptor; its calls are made by one thread at a time, and not by
 * handlers. If one fails, the group has ended for all members, whose calls fail likewise: ECONNRESET (a
 * member's process is gone), ECONNREFUSED (it closed the group), ETIMEDOUT (it waited in vain),
 * EPROTO (members make different calls, or have different lists); dp_error() names the members.
 */

/* Takes part in a group of count members as number own, and waits for the others. All give the same
 * list, of endpoints that are not open: the group opens own. generation: 0, or as all agree if members
 * of an earlier list are in it. The group's number. */
int dp_group_open(const struct dp_address *members, int count, int own, uint64_t generation,
                  int64_t timeout_ns);

/* This member's rank, which is its place in the list, and how many there are. */
int dp_group_rank(int group);
int dp_group_size(int group);

/* Returns when all members have called it. */
int dp_barrier(int group, int64_t timeout_ns);

/* The len bytes of root, which all know, come to all. */
int dp_broadcast(int group, int root, void *data, size_t len, int64_t timeout_ns);

#define DP_SUM_U64 1 /* operations on uint64_t, int64_t and double; sums of integers wrap around */
#define DP_MIN_U64 2
#define DP_MAX_U64 3
#define DP_SUM_I64 4
#define DP_MIN_I64 5
#define DP_MAX_I64 6
#define DP_SUM_F64 7
#define DP_MIN_F64 8 /* NaN is greater than all others */
#define DP_MAX_F64 9

/* Combines the numbers of all members, each with those at the same place. Then data have the
 * result: at root, where others keep theirs, or everywhere. len is in bytes. */
int dp_reduce(int group, int root, void *data, size_t len, int operation, int64_t timeout_ns);
int dp_allreduce(int group, void *data, size_t len, int operation, int64_t timeout_ns);

/* Makes of two results one, in the place of the first, which is of lower ranks than the second.
 * Must be associative, need not be commutative; makes no calls of the group. */
typedef void (*dp_combine)(void *left, const void *right, size_t len, void *context);

int dp_reduce_by(int group, int root, void *data, size_t len, dp_combine combine, void *context,
                 int64_t timeout_ns);
int dp_allreduce_by(int group, void *data, size_t len, dp_combine combine, void *context,
                    int64_t timeout_ns);

/* How many members are known to be gone, or to have left; ranks gets the first count of them. */
int dp_group_gone(int group, int *ranks, int count);

/* Goes on without those, and without count ranks more: all who are left call this, and agree. They
 * keep their order and have new ranks. EPROTO if the others took this member for gone. */
int dp_group_without(int group, const int *ranks, int count, int64_t timeout_ns);

/* Leaves the group. What others wait for of calls that this member has made still comes. */
int dp_group_close(int group);

/*
 * Streams: a TCP stream to the outside that several processes read and write together
 *
 * An interface, of some process of the cluster, holds the connection; ranks reach it by their
 * endpoints. A stream and an interface are small numbers, no descriptors. All ranks make the calls of a
 * stream in the same order, each by one thread at a time; dp_stream_write_raw(), dp_stream_read_raw() and
 * dp_stream_finish() are rank 0's. EPIPE: the stream is over for all; dp_error() says why.
 */

/* Serves at most so many streams at once, on threads of its own, at the endpoint dpid, where ranks ask for
 * them; each has one of the endpoints that follow. Ranks may be connected with the count
 * destinations ("host:port"), or with whatever they name if count is 0. The interface's number. */
int dp_interface_open(uint32_t dpid, int streams, const char *const *destinations, int count);

/* Takes no more streams, waits for those that are open, and closes the interface. */
int dp_interface_close(int interface);

struct dp_layout {          /* who has which bytes of a transfer */
    uint32_t ranks;         /* among which they are dealt out */
    uint32_t reserved;      /* 0 */
    uint64_t block;         /* bytes of a block, which ranks have in turn; with owners, of a record */
    const uint32_t *owners; /* the rank of each record; NULL for blocks in turn */
    size_t records;         /* how many owners there are; 0 without */
};

/* How many of total bytes are a rank's. */
ssize_t dp_layout_part(const struct dp_layout *layout, uint32_t rank, uint64_t total);

/* Opens a stream to "host:port" through an interface, as rank own of count ranks. Each gives the same list
 * of endpoints, its own among them, of which fd is the descriptor; nothing else may be sent there while the
 * stream is open. Who does not answer, or take, for patience_ns in a transfer ends the stream
 * for all. The stream's number. */
int dp_stream_open(int fd, const struct dp_address *ranks, int count, int own,
                   struct dp_address interface, const char *to, int64_t patience_ns);

/* Writes bytes as they stand, between transfers. */
int dp_stream_write_raw(int stream, const void *bytes, size_t len);

/* Reads at most len bytes as they come; how many, 0 at the end of the stream. */
ssize_t dp_stream_read_raw(int stream, void *buf, size_t len);

/* Tells the outside that nothing more comes. */
int dp_stream_finish(int stream);

/* Writes total bytes, of which part is this rank's, in the order of the stream. Returns when the interface has
 * handed all to the connection. */
int dp_stream_write(int stream, const struct dp_layout *layout, uint64_t total, const void *part,
                    size_t len);

/* Reads total bytes, of which this rank gets its part; how many came for all, fewer at the end of the
 * stream. */
ssize_t dp_stream_read(int stream, const struct dp_layout *layout, uint64_t total, void *part,
                       size_t len);

/* Closes the stream, also after an error. */
int dp_stream_close(int stream);

/*
 * Options: 0 and NULL always stand for the default. Set size to the struct's size, as
 * in struct dp_open_options options = { sizeof options };
 */

#define DP_NONE (-1) /* for a time: none at all */

struct dp_node_options {
    size_t size;
    uint32_t nid;               /* this node; default DIPOLE_NID, else 1 */
    uint32_t reserved;          /* 0 */
    const char *runtime_dir;    /* default DIPOLE_RUNTIME_DIR */
    const char *hosts;          /* file of the nodes; default DIPOLE_HOSTS */
    const char *bind;           /* IP address; default DIPOLE_BIND, else the hosts file's */
    const char *link;           /* "auto", "shm", "udp" or "bpf"; default DIPOLE_LINK */
    int64_t spin_ns;            /* a waiter spins before it sleeps; default DIPOLE_SPIN_US */
    int64_t connect_timeout_ns; /* how long dp_target() waits; default 30 s */
    int64_t linger_ns;          /* how long exit waits for acknowledgements; default 5 s */
    const char *key;            /* file of the cluster key; default DIPOLE_KEY */
};

/* Opens this process's node. Without it the first dp_open() does so from the
 * environment, as does dp_init(NULL). EBUSY if it is open. */
int dp_init(const struct dp_node_options *options);

/* Waits until everything sent is acknowledged, at most so long, ends all endpoints, edges,
 * queues, counters, regions, ports and groups and closes the node. Exit does so by itself. Descriptors are left to be
 * closed. */
int dp_finish(int64_t timeout_ns);

#define DP_NONBLOCK 1 /* for dp_open_with: as if O_NONBLOCK were set by fcntl */

struct dp_open_options {
    size_t size;
    uint32_t flags;    /* DP_NONBLOCK or 0 */
    uint32_t reserved; /* 0 */
    size_t pool_bytes; /* as dp_mmap(), 0 for none */
};

#define DP_ANY 0xFFFFFFFFu /* for dp_open_with: any free number from 0xC0000000 on */

/* dp_open() for any number, with options or NULL; dp_own_address() tells which it has. */
int dp_open_with(uint32_t dpid, const struct dp_open_options *options);

/*
 * The job, when `dipole run` has started this process; ENOENT if not
 */

/* This process's number, from 0, and how many there are. */
int dp_rank(void);
int dp_size(void);

/* The main endpoint of a rank: what rank dp_rank() should open, and others point at. */
int dp_peer(int rank, struct dp_address *address);

/* The rank whose main endpoint has this address. EINVAL if none has. */
int dp_rank_of(struct dp_address address);

/*
 * Counters of this process, all its endpoints together
 */

struct dp_stats {
    size_t size;
    uint64_t packets_sent;
    uint64_t packets_received;
    uint64_t bytes_sent;         /* of packets */
    uint64_t bytes_received;
    uint64_t packets_dropped;    /* damaged, unknown, twice, out of place */
    uint64_t link_full;          /* times that the network took less than offered */
    uint64_t units_sent;         /* for the first time */
    uint64_t units_received;
    uint64_t repeats;            /* units sent again */
    uint64_t explicit_acks;      /* packets that carried acknowledgements only */
    uint64_t messages_delivered; /* that came in packets */
    uint64_t messages_refused;   /* no such endpoint here */
    uint64_t unreliable_sent;
    uint64_t unreliable_dropped; /* on arrival, too many waiting */
    uint64_t peers;              /* processes reached by packets, now */
    uint64_t local_peers;        /* processes reached by shared memory, now */
    uint64_t local_records_sent; /* through shared memory: short messages are one each */
    uint64_t local_records_received;
    uint64_t local_bytes_sent;
    uint64_t local_bytes_received;
    uint64_t local_bytes_fetched; /* of long messages, from their senders' memory */
    uint64_t local_wakes;         /* sleeping processes woken */
    uint64_t pool_used_bytes;    /* of messages waiting to be read, now */
    uint64_t free_frames;        /* for sending, now */
    uint64_t bpf_received;       /* small packets from the kernel's rings */
    uint64_t bpf_sent;           /* packets sent as raw frames */
    uint64_t bpf_socket_received; /* small packets that came by the socket all the same */
    uint64_t bpf_socket_sent;    /* and that left by it */
};

/* Fills as much of the struct as its size allows; size says afterwards how much that is.
 * ENXIO if the node is not open. */
int dp_stats(struct dp_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
