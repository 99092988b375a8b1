/*
 * dipole.h - directed-point messaging (libdipole)
 *
 * An endpoint (DPID) belongs to a process on a node (NID). It receives from any endpoint and
 * sends along the edges that dp_target() and dp_edge_open() create. Messages of one edge arrive
 * once, complete and in order. A receiver that does not read slows only its own senders.
 *
 *     int fd = dp_open(7);
 *     dp_target(fd, 1, 8);
 *     dp_write(fd, "hello", 5);
 *     char *message;
 *     int length = dp_read(fd, &message);
 *     dp_fsync(fd, 1);
 *     dp_close(fd);
 *
 * Calls return -1 on failure and set errno; dp_error() returns a text that explains the failure.
 * See also dipole(7), and the pages in section 3 for each group of calls below.
 *
 * All functions may be called by many threads at once, also on one descriptor, but not by a
 * signal handler.
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

/* The version of this header; dp_version() returns that of the library. */
#define DP_VERSION_MAJOR 0
#define DP_VERSION_MINOR 1
#define DP_VERSION_PATCH 0
#define DP_VERSION "0.1.0"

/*
 * Errors
 *
 *   E2BIG          an option is set that this version of the library does not support
 *   EACCES         the runtime directory or the capture file is not accessible, or the peer belongs to another user
 *   EADDRINUSE     another process has the endpoint or TCP port
 *   EADDRNOTAVAIL  the node's network address cannot be bound
 *   EAGAIN         the call would have to wait
 *   EBADF          the number is not an open object of this kind, or its endpoint was closed
 *   EBUSY          the node is already open
 *   ECANCELED      the operation was cancelled before it began
 *   ECONNREFUSED   the receiving process has not opened this endpoint, or accepts only shorter messages
 *   ECONNRESET     the peer process is gone
 *   EDEADLK        a handler waits for its own port
 *   EDESTADDRREQ   the endpoint has no target
 *   EFAULT         a pointer is null or misaligned
 *   EHOSTUNREACH   the endpoint was not found
 *   EINTR          a signal handler interrupted the wait
 *   EINVAL         an argument, an option or an environment variable is invalid
 *   EIO            the link is broken, or the library has a bug
 *   EKEYREJECTED   the two processes have different cluster keys, or one has none
 *   EMFILE         the limit of file descriptors, threads or endpoints of the process is reached
 *   EMSGSIZE       the message is too long, or the buffer is too short
 *   ENFILE         the limit of processes or endpoints of the user on this node is reached
 *   ENOENT         the process is not part of a job, or the endpoint has no open region with this key
 *   ENOMEM         the pool cannot be allocated
 *   ENXIO          the node is not open
 *   EOPNOTSUPP     shared memory is required and not available
 *   EPERM          the region does not allow the operation
 *   EPIPE          the stream has ended
 *   EPROTO         members of a group made different calls, or have different lists of members
 *   ERANGE         the operation would exceed the region
 *   ESTALE         the descriptor belongs to the parent process
 *   ETIMEDOUT      the timeout expired
 *   EUSERS         the limit of peers of this process or of the peer's process is reached
 *
 * A kind of failure keeps its number in all versions.
 */

/* Explains this thread's last failed call: what failed, on which object, why and what to do.
 * Valid until the next failed call of the thread; empty if no call has failed. */
const char *dp_error(void);

/* The meaning of an error number from the table above; for others, a text for unknown errors. */
const char *dp_strerror(int errnum);

/* The version of the library, as in "0.1.0". */
const char *dp_version(void);

/*
 * The seven calls of the papers
 */

/* A token buffer pool. Set size to sizeof (dpmmap_t). */
typedef struct dpmmap {
    size_t size;
    size_t bytes;     /* in: requested bytes; out: actual bytes */
    const void *base; /* out: where the pool lies */
} dpmmap_t;

/* Opens an endpoint. The descriptor is readable while a message is waiting, and writable while a
 * message can be sent, in poll, select and epoll. It is closed on exec. */
int dp_open(int dpid);

/* Adds a target to the endpoint. Waits until the target exists. Each target gets a copy of every
 * message. */
int dp_target(int fd, int nid, int dpid);

/* Sends a message; returns len. Waits while the receiver has no room; with O_NONBLOCK it fails
 * with EAGAIN instead. The message is copied, so msg may be reused. */
int dp_write(int fd, const void *msg, int len);

/* Waits for the next message; returns its length, which may be 0, and stores its address. It
 * stays there until dp_fsync() releases it. With O_NONBLOCK it fails with EAGAIN. */
int dp_read(int fd, char **address);

/* Releases the n oldest messages that were read. EINVAL if there are fewer. */
int dp_fsync(int fd, int n);

/* Gives the endpoint a token buffer pool of a size and stores its address. From now on messages
 * of up to 16 KiB are stored there while there is room. */
int dp_mmap(int fd, dpmmap_t *tbp);

/* Closes the endpoint, even if its descriptor was duplicated, and closes fd. */
int dp_close(int fd);

/*
 * Addresses, several targets
 */

struct dp_address {
    uint32_t nid;
    uint32_t dpid;
};

/* dp_target() for any endpoint number. */
int dp_add_target(int fd, struct dp_address to);

/* Removes a target; the others stay. EDESTADDRREQ if the endpoint does not have it. */
int dp_untarget(int fd, int nid, int dpid);
int dp_remove_target(int fd, struct dp_address to);

#define DP_WAIT 0        /* sending waits, also for the other targets; the default */
#define DP_DROP_NEWEST 1 /* the target does not get messages that find its queue full */
#define DP_DROP_OLDEST 2 /* a message that finds the queue full replaces the oldest one in it */
#define DP_KEEP_LATEST 3 /* only the latest message waits */

/* Sets what happens while a target has no room for a message. The queue of DP_DROP_NEWEST and
 * DP_DROP_OLDEST has 1 to 1024 messages (and 32 MiB); with the other policies messages is 0.
 * EDESTADDRREQ if the endpoint does not have this target, as in dp_target_dropped(). */
int dp_target_policy(int fd, struct dp_address to, int policy, int messages);

/* Counts the messages that the target did not get because of its policy. */
int dp_target_dropped(int fd, struct dp_address to, uint64_t *messages);

/* The endpoint's own address. */
int dp_own_address(int fd, struct dp_address *address);

/*
 * Sending and receiving with sizes, flags and times
 *
 * timeout_ns: a negative value waits forever, 0 does not wait (EAGAIN); otherwise the call fails
 * with ETIMEDOUT after that many nanoseconds. With O_NONBLOCK no call waits.
 */

#define DP_DONTWAIT 1   /* do not wait, whatever timeout_ns says */
#define DP_MORE 2       /* more messages follow: this one may wait and share its packet */
#define DP_UNRELIABLE 4 /* deliver at most once, without retransmission; does not wait */

/* The longest message unless DIPOLE_MAX_MESSAGE_BYTES raises this limit (up to 4294967231); a longer
 * one fails with EMSGSIZE. A call that does not wait (DP_DONTWAIT, O_NONBLOCK, timeout_ns 0) takes a
 * shorter one, because all of it must find room at once: for a process of another node as much as
 * seven eighths of DIPOLE_FRAMES packets hold (about 5 MB by default), 32 MiB for one of this node
 * or for several targets. A longer one fails with EMSGSIZE, and dp_error() returns a text with the
 * limit. */
#define DP_MAX_MESSAGE_BYTES 1073741824

/* Sends a message; returns len. */
ssize_t dp_send(int fd, const void *msg, size_t len, int flags, int64_t timeout_ns);

/* Sends to one endpoint, independent of the targets. The first message to it waits until that
 * endpoint exists; the edge stays open. flags: DP_DONTWAIT or 0. */
ssize_t dp_send_to(int fd, struct dp_address to, const void *msg, size_t len, int flags,
                   int64_t timeout_ns);

/* Replies to a message of dp_read() or dp_recv() that has not been released; returns len. Never
 * waits: ECONNRESET if the sender is gone, EAGAIN if it does not read its replies. */
ssize_t dp_reply(int fd, const void *message, const void *msg, size_t len);

/* Receives the next message in place, like dp_read(); source may be NULL. */
ssize_t dp_recv(int fd, const void **address, struct dp_address *source, int flags,
                int64_t timeout_ns);

struct dp_message {
    const void *address; /* where it lies until dp_fsync(fd, 1) releases it */
    size_t length;
    struct dp_address source;
};

/* Waits for a message and receives all that are waiting, at most count, oldest first; returns
 * their number. Costs less than calling dp_recv() for each. */
int dp_recv_many(int fd, struct dp_message *messages, int count, int flags, int64_t timeout_ns);

/* Copies the next message; it need not be released. A long message that arrives during the call
 * is received into buf, without a copy in the endpoint's pool. If it is longer than len, the call
 * fails with EMSGSIZE and the next call can receive the message. */
ssize_t dp_recv_copy(int fd, void *buf, size_t len, struct dp_address *source, int flags,
                     int64_t timeout_ns);

/* Sends messages that wait because of DP_MORE. The next message without it does so as well. */
int dp_flush(int fd);

/* Sends messages that wait because of DP_MORE, then waits until everything that the endpoint sent is
 * acknowledged, also with dp_send_to() and dp_reply(): it is in the token buffer pools of the
 * receiving processes then. Returns 0 also if such a process received everything and has ended
 * since; ECONNRESET if it ended before; ECONNREFUSED if it has refused a message; ECANCELED if
 * messages waited for room at a target that was removed. EDESTADDRREQ if the endpoint has no targets
 * and has sent nothing otherwise. A negative time waits forever; 0 fails with ETIMEDOUT at once. */
int dp_drain(int fd, int64_t timeout_ns);

/*
 * Edges: from an endpoint to one target, and to it alone
 *
 * An edge is a small number, not a descriptor. It ends with its endpoint, but keeps its number
 * until dp_edge_close(). O_NONBLOCK of the endpoint has no effect on edges.
 */

/* Opens an edge to another endpoint; returns its number at once. The edge connects in the
 * background, and waits for the endpoint to be opened as long as dp_target() would. */
int dp_edge_open(int fd, struct dp_address to);

/* Sends a message along the edge; returns len. Waits also while the edge connects. flags:
 * DP_DONTWAIT or 0. Returns after timeout_ns for messages of any length: a long message that has
 * begun by then is sent in the background. */
ssize_t dp_edge_send(int edge, const void *msg, size_t len, int flags, int64_t timeout_ns);

#define DP_ZEROCOPY 8 /* dp_post() does not copy the message, only the link does: it must not change
                       * until the completion, so the edge must be attached to a queue or counter
                       * (EINVAL) */

/* Posts the iovcnt (at most 1024) pieces of iov as one message; never waits. They are copied, unless
 * flags contain DP_ZEROCOPY, which takes one piece. The message is sent in the edge's order, even
 * if the edge is still connecting. Then its context appears in the queue that the edge is attached
 * to, or the counter counts it. A long message completes when its memory is no longer needed, which
 * may be after shorter messages that were posted later. EAGAIN if 1024 operations wait on the edge,
 * or copies of 32 MiB in the process. */
int dp_post(int edge, int flags, const struct iovec *iov, int iovcnt, uint64_t context);

/* Cancels an operation that was posted with this context. Returns 1 if it had not begun: it
 * completes with ECANCELED. Returns 0 if no such operation is waiting, for example because it is done. */
int dp_cancel(int edge, uint64_t context);

/* dp_drain() for the edge's target. Also waits for what was posted, and until all puts are in
 * place. */
int dp_edge_drain(int edge, int64_t timeout_ns);

/* Closes the edge. What was sent still arrives; posted operations that have not begun are dropped
 * without a completion. */
int dp_edge_close(int edge);

/*
 * Regions: memory of an endpoint that peers put into, get from and update
 *
 * A process that has the key of a region, which cannot be guessed, and an edge to its endpoint may
 * do what the owner allows. A refused operation changes nothing: ENOENT (the endpoint has no open
 * region with this key), ERANGE (beyond its end), EPERM (not allowed), EINVAL (the word does not
 * begin at a multiple of 8). Operations of an edge begin in order; puts are not ordered among each
 * other. A message that is sent after them on the same edge arrives when they are done.
 */

#define DP_ALLOW_PUT 1    /* peers may write into it */
#define DP_ALLOW_GET 2    /* peers may read from it */
#define DP_ALLOW_ATOMIC 4 /* peers may add to its 64-bit words, and swap them */

/* Opens memory to peers; returns the region's number, which is not a descriptor, and stores its
 * key. The memory must stay valid until dp_region_close(). Until then this process accesses only
 * parts that no peer operates on, or uses atomic operations on words. */
int dp_region_open(int fd, void *memory, size_t length, int rights, uint64_t *key);

/* Closes a region. Its memory is not accessed after this returns. */
int dp_region_close(int region);

/* Puts data at an offset of a region of the edge's target. Returns like dp_edge_send() when the data
 * is on its way. dp_edge_drain() waits until it is in place, and fails if a put since the last
 * drain was refused. flags: DP_DONTWAIT or 0. */
int dp_put(int edge, uint64_t key, uint64_t offset, const void *data, size_t len, int flags,
           int64_t timeout_ns);

/* dp_put() that notifies the owner once all of the data is in place: its endpoint gets a
 * notification, which arrives like a message of 0 bytes. */
int dp_put_notify(int edge, uint64_t key, uint64_t offset, const void *data, size_t len,
                  uint64_t value, int flags, int64_t timeout_ns);

struct dp_notification {
    uint64_t key;    /* of the region */
    uint64_t offset; /* where the data lies */
    uint64_t length; /* of the data, in bytes */
    uint64_t value;  /* passed to dp_put_notify() */
};

/* Returns 1 and stores the notification if a received, unreleased message is one; else 0. */
int dp_is_notification(int fd, const void *message, struct dp_notification *notification);

/* Gets len bytes at an offset of a region of the edge's target. */
int dp_get(int edge, uint64_t key, uint64_t offset, void *into, size_t len, int64_t timeout_ns);

/* Adds to the 64-bit word at an offset, wrapping around, atomically. before may be NULL; otherwise
 * it gets the previous value. After ETIMEDOUT or ECONNRESET the operation may have been done. */
int dp_fetch_add(int edge, uint64_t key, uint64_t offset, uint64_t value, uint64_t *before,
                 int64_t timeout_ns);

/* Atomically replaces the 64-bit word at an offset if it has the expected value. */
int dp_compare_swap(int edge, uint64_t key, uint64_t offset, uint64_t expected, uint64_t new_value,
                    uint64_t *before, int64_t timeout_ns);

#define DP_PUT 1
#define DP_GET 2
#define DP_FETCH_ADD 3
#define DP_COMPARE_SWAP 4
#define DP_NOTIFY 1 /* DP_PUT: notify the owner, like dp_put_notify() */

struct dp_operation {
    int kind;          /* one of the four */
    int flags;         /* DP_PUT: DP_NOTIFY or 0; else 0 */
    uint64_t key;      /* of the region */
    uint64_t offset;   /* in the region */
    void *memory;      /* DP_PUT: source of the data; DP_GET: destination */
    size_t length;     /* of memory; a get takes at most 16 MiB */
    uint64_t value;    /* of the notification; the summand; the new value of the word */
    uint64_t expected; /* DP_COMPARE_SWAP: the expected value of the word */
};

/* Posts an operation on a region of the edge's target, like dp_post(). The memory belongs to the
 * library until the completion, DP_DONE or DP_FAILED, even if the edge is closed before. For DP_PUT
 * and DP_GET the edge must be attached to a queue or counter (EINVAL). */
int dp_post_operation(int edge, const struct dp_operation *operation, uint64_t context);

/*
 * Completion queues: finished operations and received messages
 */

#define DP_SENT 1     /* a posted message has been sent; it may not have arrived yet */
#define DP_FAILED 2   /* a posted operation failed */
#define DP_RECEIVED 3 /* a message has arrived at an attached endpoint */
#define DP_DONE 4     /* a posted operation on memory is done */
#define DP_FILLED 5   /* the memory of a posted receive holds a message */

struct dp_completion {
    int kind;                 /* one of the five above */
    int error;                /* DP_FAILED: an error number of the table above, else 0 */
    uint64_t context;         /* as posted; not for DP_RECEIVED */
    uint64_t value;           /* DP_DONE: the previous value of the word */
    int fd;                   /* DP_RECEIVED, DP_FILLED: the endpoint, else -1 */
    uint32_t reserved;        /* 0 */
    struct dp_address source; /* DP_RECEIVED, DP_FILLED: the sender */
    const void *message;      /* DP_RECEIVED: where it lies until dp_fsync(fd, 1) */
    size_t length;            /* DP_RECEIVED, DP_FILLED: its length */
};

/* Opens a completion queue. Its descriptor, one for everything attached to it, is readable while
 * a completion is waiting, in poll, select and epoll. It is closed on exec. */
int dp_queue_open(void);

/* From now on messages of the endpoint, or completions of operations on the edge, appear in the
 * queue. A message from the queue can be replied to and released like one from dp_recv(). */
int dp_queue_attach(int queue, int fd);
int dp_queue_attach_edge(int queue, int edge);

/* Posts a buffer for the next message of the endpoint that no earlier posted buffer takes; never
 * waits. A long message that arrives later is received directly into the buffer. The context
 * appears in the queue: DP_FILLED, or DP_FAILED with EMSGSIZE (the message is longer than len and
 * stays for the next receive), ECANCELED or EBADF (the endpoint was closed). Until then, or until
 * the queue is closed, the buffer belongs to the library. Messages go to posted buffers before they
 * appear in a queue; another call that receives at the endpoint meanwhile may get them first.
 * EAGAIN if 1024 buffers are posted. */
int dp_post_receive(int fd, int queue, void *buf, size_t len, uint64_t context);

/* Cancels the oldest receive that was posted with this context. Returns 1 if it was waiting: it
 * completes with ECANCELED. Returns 0 if no such receive is waiting. */
int dp_cancel_receive(int fd, uint64_t context);

/* Waits for a completion and takes all that are waiting, at most count; returns their number. If
 * one is DP_FAILED, dp_error() explains the last such one. */
int dp_queue_wait(int queue, struct dp_completion *completions, int count, int64_t timeout_ns);

/* Closes the queue and its descriptor. Endpoints and edges stay. */
int dp_queue_close(int queue);

/*
 * Completion counters: the number of finished operations, where it does not matter which
 *
 * A counter is a small number, not a descriptor.
 */

struct dp_counts {
    uint64_t sent;   /* messages that have been sent; they may not have arrived yet */
    uint64_t failed; /* operations that failed */
};

/* Opens a completion counter; returns its number. */
int dp_counter_open(void);

/* From now on completions of operations on the edge are counted, and do not appear in a queue. */
int dp_counter_attach_edge(int counter, int edge);

/* Stores the current counts. */
int dp_counter_read(int counter, struct dp_counts *counts);

/* Waits until count operations have completed since the counter was opened, successfully or not.
 * counts may be NULL; otherwise it gets the current counts. */
int dp_counter_wait(int counter, uint64_t count, struct dp_counts *counts, int64_t timeout_ns);

/* Closes the counter. Edges stay. */
int dp_counter_close(int counter);

/*
 * Active ports: endpoints whose messages run a function
 *
 * A port is a small number, not a descriptor. Its handler runs once for each message, one at a time, in
 * the order of each edge: on a thread that is waiting in any call of this library, or within half a
 * millisecond on a thread of the library. It may make all calls except those of groups; it must not
 * wait for a lock that such a thread holds, and must not leave by longjmp() or a C++ exception.
 * message and what it points to are valid until the handler returns.
 */

typedef void (*dp_handler)(int port, const struct dp_message *message, void *context);

/* Opens an endpoint with a handler, which is passed the context; returns the port's number.
 * DP_ANY: any free endpoint. */
int dp_port_open(uint32_t dpid, dp_handler handler, void *context);

/*
 * A port with a buffer: messages land in slots of it as they arrive, and the handler runs once for
 * each, with the number of the slot (-1: the message is longer than a slot and lies elsewhere until
 * the handler returns). The slot is free again when the handler returns 0. If it returns DP_KEEP, the
 * slot stays taken until dp_port_release(). While no slot is free, senders wait; none of their
 * messages is lost.
 */

#define DP_KEEP 1

typedef int (*dp_slot_handler)(int port, const struct dp_message *message, int slot, void *context);

/* Opens an endpoint with a handler and a buffer of slots * slot_bytes bytes, one slot after the
 * other. Until dp_port_close() has returned, the program may access only slots that are taken. */
int dp_port_open_into(uint32_t dpid, void *buffer, size_t slot_bytes, int slots, dp_slot_handler handler,
                      void *context);

/* Frees a slot; from any thread, also before the handler returns. EINVAL if it is free. */
int dp_port_release(int port, int slot);

/* Stores the address of the port's endpoint. */
int dp_port_address(int port, struct dp_address *address);

/* In the port's handler: replies to the message that it is running for, like dp_reply(); returns len. */
ssize_t dp_port_reply(int port, const void *msg, size_t len);

/* Runs handlers on this thread until the port has handled this many messages since it was opened.
 * EBADF if it is closed meanwhile, EDEADLK in its own handler. */
int dp_port_wait(int port, uint64_t handled, int64_t timeout_ns);

/* Closes the port. Its handler does not run after this returns, except if the handler called this. */
int dp_port_close(int port);

/*
 * Groups: members that make the same calls in the same order
 *
 * A group is a small number, not a descriptor; its calls are made by one thread at a time, and not by
 * handlers. If one fails, the group has ended for all members, whose calls fail as well: ECONNRESET (a
 * member's process is gone), ECONNREFUSED (it closed the group), ETIMEDOUT (a member did not call in
 * time), EPROTO (members made different calls, or have different lists); dp_error() names the members.
 */

/* Joins a group of count members as number own, and waits for the others. All pass the same list of
 * endpoints, none of which is open: the group opens its own. generation: 0, or a number that all
 * agree on if members of an earlier group are in the list. Returns the group's number. */
int dp_group_open(const struct dp_address *members, int count, int own, uint64_t generation,
                  int64_t timeout_ns);

/* This member's rank, which is its index in the list, and the number of members. */
int dp_group_rank(int group);
int dp_group_size(int group);

/* Returns when all members have called it. */
int dp_barrier(int group, int64_t timeout_ns);

/* Copies the len bytes of root to all members. All must pass the same root and len. */
int dp_broadcast(int group, int root, void *data, size_t len, int64_t timeout_ns);

#define DP_SUM_U64 1 /* on uint64_t, int64_t and double; sums of integers wrap around */
#define DP_MIN_U64 2
#define DP_MAX_U64 3
#define DP_SUM_I64 4
#define DP_MIN_I64 5
#define DP_MAX_I64 6
#define DP_SUM_F64 7
#define DP_MIN_F64 8 /* NaN is greater than all others */
#define DP_MAX_F64 9

/* Combines the numbers of all members element by element. The result is stored in data at root,
 * where the other members keep theirs, or at all members. len is in bytes. */
int dp_reduce(int group, int root, void *data, size_t len, int operation, int64_t timeout_ns);
int dp_allreduce(int group, void *data, size_t len, int operation, int64_t timeout_ns);

/* Combines two partial results and stores the result in left, which comes from lower ranks than right.
 * Must be associative, need not be commutative; must not call functions of the group. */
typedef void (*dp_combine)(void *left, const void *right, size_t len, void *context);

int dp_reduce_with(int group, int root, void *data, size_t len, dp_combine combine, void *context,
                 int64_t timeout_ns);
int dp_allreduce_with(int group, void *data, size_t len, dp_combine combine, void *context,
                    int64_t timeout_ns);

/* The number of members that are known to be gone or to have left; stores the first count of their
 * ranks. */
int dp_group_failed(int group, int *ranks, int count);

/* Continues without those members, and without count more ranks: all remaining members must call this
 * with the same ranks. They keep their order and get new ranks. EPROTO if the others consider this
 * member gone. */
int dp_group_shrink(int group, const int *ranks, int count, int64_t timeout_ns);

/* Leaves the group. Results of calls that this member has completed still reach the others. */
int dp_group_close(int group);

/*
 * Streams: a TCP stream to the outside that several processes read and write together
 *
 * An interface, in some process of the cluster, holds the connection; ranks reach it through their
 * endpoints. A stream and an interface are small numbers, not descriptors. All ranks make the calls of a
 * stream in the same order, each from one thread at a time; only rank 0 calls dp_stream_write_raw(),
 * dp_stream_read_raw() and dp_stream_shutdown(). EPIPE: the stream has ended for all; dp_error() explains why.
 */

/* Serves at most that many streams at once, on threads of its own. Ranks request them at the endpoint
 * dpid; each stream uses one of the endpoint numbers that follow. Ranks may connect to the count
 * destinations ("host:port"), or to any if count is 0. Returns the interface's number. */
int dp_interface_open(uint32_t dpid, int streams, const char *const *destinations, int count);

/* Accepts TCP clients at "host:port" for dp_stream_accept(); port 0 selects a free one. Clients that
 * connect earlier wait. Returns the port. */
int dp_interface_listen(int interface, const char *at);

/* Accepts no more streams, waits for the open ones, and closes the interface. */
int dp_interface_close(int interface);

struct dp_layout {          /* which rank has which bytes of a transfer */
    uint32_t ranks;         /* number of ranks that share the bytes */
    uint32_t reserved;      /* 0 */
    uint64_t block;         /* bytes of a block; ranks have blocks in turn. With owners: of a record */
    const uint32_t *owners; /* the rank of each record; NULL for blocks in turn */
    size_t records;         /* length of owners; 0 without */
};

/* The number of bytes that a rank has of a transfer of total bytes. */
ssize_t dp_layout_bytes(const struct dp_layout *layout, uint32_t rank, uint64_t total);

/* Opens a stream to "host:port" through an interface, as rank own of count ranks. All pass the same list
 * of endpoints, including their own, whose descriptor is fd; nothing else may be sent there while the
 * stream is open. A rank or interface that makes no progress in a transfer for idle_timeout_ns ends the
 * stream for all. Returns the stream's number. */
int dp_stream_open(int fd, const struct dp_address *ranks, int count, int own,
                   struct dp_address interface, const char *to, int64_t idle_timeout_ns);

/* Like dp_stream_open(), but accepts the next TCP client that connects to a port of the interface, within
 * wait_ns. EPIPE if none does. */
int dp_stream_accept(int fd, const struct dp_address *ranks, int count, int own,
                     struct dp_address interface, int port, int64_t wait_ns, int64_t idle_timeout_ns);

/* Writes bytes as they stand, between transfers. */
int dp_stream_write_raw(int stream, const void *bytes, size_t len);

/* Reads at most len bytes as they come; how many, 0 at the end of the stream. */
ssize_t dp_stream_read_raw(int stream, void *buf, size_t len);

/* Closes the output of the connection, like shutdown(SHUT_WR). */
int dp_stream_shutdown(int stream);

/* Writes total bytes, of which part belongs to this rank, in the order of the layout. Returns when the
 * interface has written all of them to the connection. */
int dp_stream_write(int stream, const struct dp_layout *layout, uint64_t total, const void *part,
                    size_t len);

/* Reads total bytes, of which this rank gets its part; returns the number of bytes of all ranks, which is
 * less than total at the end of the stream. */
ssize_t dp_stream_read(int stream, const struct dp_layout *layout, uint64_t total, void *part,
                       size_t len);

/* Closes the stream; also necessary after an error. */
int dp_stream_close(int stream);

/* The party that a stream waits for */
#define DP_WAITS_CONNECTION 1    /* its TCP connection */
#define DP_WAITS_CALLER 2        /* a TCP client */
#define DP_WAITS_CALL 3          /* the next call of rank 0 */
#define DP_WAITS_DATA 4          /* the data of ranks, in a write */
#define DP_WAITS_READER 5        /* a rank that accepts its data, in a read */
#define DP_WAITS_PEER_TO_READ 6  /* the TCP peer to accept bytes */
#define DP_WAITS_PEER_TO_WRITE 7 /* the TCP peer to send bytes */

struct dp_stream_status {
    size_t size;
    uint64_t read_bytes;          /* from the TCP peer */
    uint64_t written_bytes;       /* to the TCP peer */
    uint64_t read_bytes_per_s;    /* during the last second or longer */
    uint64_t written_bytes_per_s;
    uint64_t open_ns;             /* how long it has been open */
    uint64_t waited_ns;           /* how long it has waited for the present party */
    int32_t waits_for;            /* DP_WAITS_CONNECTION and so on */
    int32_t rank;                 /* the first rank that it waits for, else -1 */
    char peer[64];                /* the address of the TCP peer */
};

/* Fills as much of the struct as its size allows, and sets size to that length. Any rank, between its other
 * calls. */
int dp_stream_status(int stream, struct dp_stream_status *status);

/*
 * Stripes: one sequence of bytes over several streams at once. Block k goes over stream k modulo their
 * number. Within each stream, the layout (without owners) distributes the bytes over the ranks.
 */

/* Stores in bytes[i] how many of total bytes go over stream i of count streams. */
int dp_stripes_split(int count, uint64_t block, uint64_t total, uint64_t *bytes);

/* Writes total bytes over all streams; parts[i], of lengths[i] bytes, is this rank's part of stream i. */
int dp_stripes_write(const int *streams, int count, uint64_t block, const struct dp_layout *layout,
                     uint64_t total, const void *const *parts, const size_t *lengths);

/* Reads total bytes from all streams; returns the number of bytes of all ranks. */
ssize_t dp_stripes_read(const int *streams, int count, uint64_t block, const struct dp_layout *layout,
                        uint64_t total, void *const *parts, const size_t *lengths);

/*
 * Options: 0 and NULL always select the default. Set size to the size of the struct, for example
 * struct dp_open_options options = { sizeof options };
 */

#define DP_ZERO_NS (-1) /* a time of zero, because 0 selects the default */

struct dp_node_options {
    size_t size;
    uint32_t nid;               /* this node; default DIPOLE_NID, else 1 */
    uint32_t reserved;          /* 0 */
    const char *runtime_dir;    /* default DIPOLE_RUNTIME_DIR */
    const char *hosts;          /* hosts file; default DIPOLE_HOSTS */
    const char *bind;           /* IP address; default DIPOLE_BIND, else the hosts file's */
    const char *link;           /* "auto", "shm", "udp" or "bpf"; default DIPOLE_LINK */
    int64_t spin_ns;            /* how long waiting calls spin before they sleep; default DIPOLE_SPIN_US */
    int64_t connect_timeout_ns; /* how long dp_target() waits; default 30 s */
    int64_t linger_ns;          /* how long exit() waits for acknowledgements; default 5 s */
    const char *key;            /* file of the cluster key; default DIPOLE_KEY */
};

/* Opens this process's node. Without it the first dp_open() opens the node from the environment,
 * like dp_init(NULL). EBUSY if it is open. */
int dp_init(const struct dp_node_options *options);

/* Waits until everything sent is acknowledged, for at most timeout_ns, closes all endpoints, edges,
 * queues, counters, regions, ports and groups, and closes the node. exit() does so by itself.
 * Descriptors stay open and have to be closed. */
int dp_finalize(int64_t timeout_ns);

#define DP_NONBLOCK 1 /* for dp_open_with: sets O_NONBLOCK */
/* For dp_open_with: read() and write() of the descriptor carry messages. Without it, write() fails with
 * EPIPE (EMSGSIZE if it is long) and read() returns no message. */
#define DP_IO 2

struct dp_open_options {
    size_t size;
    uint32_t flags;    /* DP_NONBLOCK, DP_IO, both or 0 */
    uint32_t reserved; /* 0 */
    size_t pool_bytes; /* as for dp_mmap(); 0 for none */
};

#define DP_ANY 0xFFFFFFFFu /* for dp_open_with: any free number from 0xC0000000 on */

/* dp_open() for any number, with options or NULL; dp_own_address() returns the actual number. */
int dp_open_with(uint32_t dpid, const struct dp_open_options *options);

/*
 * The job, if `dipole run` has started this process; ENOENT otherwise
 */

/* This process's rank, from 0, and the number of ranks. */
int dp_rank(void);
int dp_size(void);

/* Stores the address of a rank's main endpoint: rank dp_rank() opens it, and others send to it. */
int dp_rank_address(int rank, struct dp_address *address);

/* The rank whose main endpoint has this address. EINVAL if no rank has it. */
int dp_rank_of(struct dp_address address);

/*
 * Counters of this process, summed over all its endpoints
 */

struct dp_stats {
    size_t size;
    uint64_t packets_sent;
    uint64_t packets_received;
    uint64_t bytes_sent;         /* in packets */
    uint64_t bytes_received;
    uint64_t packets_dropped;    /* damaged, unknown, duplicate or out of order */
    uint64_t link_full;          /* times that the network took less than it was offered */
    uint64_t units_sent;         /* without retransmissions */
    uint64_t units_received;
    uint64_t repeats;            /* units retransmitted */
    uint64_t explicit_acks;      /* packets with acknowledgements only */
    uint64_t messages_delivered; /* received, through the network or shared memory */
    uint64_t messages_refused;   /* the endpoint was not open */
    uint64_t unreliable_sent;
    uint64_t unreliable_dropped; /* on arrival, because too many were waiting */
    uint64_t target_dropped;     /* messages that targets did not get because of their policies */
    uint64_t peers;              /* processes reached through the network, currently */
    uint64_t local_peers;        /* processes reached through shared memory, currently */
    uint64_t local_records_sent; /* through shared memory; a short message is one record */
    uint64_t local_records_received;
    uint64_t local_bytes_sent;
    uint64_t local_bytes_received;
    uint64_t local_bytes_fetched; /* of long messages, from the memory of their senders */
    uint64_t local_wakes;         /* wake-ups of sleeping processes */
    uint64_t pool_used_bytes;    /* of messages waiting to be read, currently */
    uint64_t free_frames;        /* for sending, currently */
    uint64_t bpf_received;       /* small packets from the rings of the kernel program */
    uint64_t bpf_sent;           /* packets sent as raw frames */
    uint64_t bpf_socket_received; /* small packets of the bpf link from its socket */
    uint64_t bpf_socket_sent;    /* small packets of the bpf link through its socket */
    uint64_t messages_sent;      /* without unreliable ones, like messages_delivered */
    uint64_t message_bytes_sent; /* of these messages */
    uint64_t message_bytes_received;
    uint64_t waits;              /* calls that had to wait */
    uint64_t wait_ns;            /* the sum of their waits */
};

/* Fills as much of the struct as its size allows, and sets size to that length. ENXIO if the node is
 * not open. */
int dp_stats(struct dp_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
