/* Messages that land in a ring of slots in the program's own memory: port_slots DPID. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGES = 500, SLOT_BYTES = 100000, SLOTS = 4, TOO_LONG = SLOT_BYTES + 1 };
static const int64_t LONG_NS = 60000000000;

/* The messages land here. */
static unsigned char buffer[SLOTS * SLOT_BYTES];

/* Slots that the handler keeps for the worker, which releases them. */
struct queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int port, slots[SLOTS + 1], count, worked;
    /* Of the handler. */
    uint32_t next;
    int in_handler, outside;
};

static size_t length_of(uint32_t number)
{
    static const size_t lengths[] = { 4, 1000, SLOT_BYTES, 70000 };
    return lengths[number % 4];
}

/* Every third message is handled here, the others by the worker. */
static int keep(int port, const struct dp_message *message, int slot, void *context)
{
    struct queue *queue = context;
    uint32_t number;
    if (slot < 0) {
        CHECK(message->length == TOO_LONG);
        queue->outside++;
        CHECK(dp_port_reply(port, "too long", 8) == 8);
        return 0;
    }
    CHECK(slot < SLOTS && message->source.nid == 1);
    CHECK(message->address == buffer + slot * SLOT_BYTES);
    memcpy(&number, message->address, sizeof number);
    CHECK(number == queue->next++);
    CHECK(message->length == length_of(number));
    if (number % 3 == 0) {
        queue->in_handler++;
        return 0;
    }
    CHECK(pthread_mutex_lock(&queue->lock) == 0);
    queue->slots[queue->count++] = slot;
    CHECK(pthread_cond_signal(&queue->changed) == 0);
    CHECK(pthread_mutex_unlock(&queue->lock) == 0);
    return DP_KEEP;
}

static void *work(void *context)
{
    struct queue *queue = context;
    for (;;) {
        CHECK(pthread_mutex_lock(&queue->lock) == 0);
        while (queue->count == 0)
            CHECK(pthread_cond_wait(&queue->changed, &queue->lock) == 0);
        int slot = queue->slots[0];
        queue->count--;
        memmove(queue->slots, queue->slots + 1, (size_t)queue->count * sizeof *queue->slots);
        queue->worked++;
        CHECK(pthread_mutex_unlock(&queue->lock) == 0);
        if (slot < 0)
            return NULL;
        const unsigned char *message = buffer + slot * SLOT_BYTES;
        uint32_t number;
        memcpy(&number, message, sizeof number);
        for (size_t at = sizeof number; at < length_of(number); at++)
            CHECK(message[at] == number % 251);
        CHECK(dp_port_release(queue->port, slot) == 0);
        CHECK_FAILS(dp_port_release(queue->port, SLOTS), EINVAL, "is not taken");
    }
}

/* Another process, which sends the messages. */
static void feed(uint32_t dpid)
{
    static unsigned char message[TOO_LONG];
    struct dp_address to = { 1, dpid };
    char answer[8];
    int fd = dp_open_with(DP_ANY, NULL);
    CHECK(fd >= 0);
    for (uint32_t number = 0; number < MESSAGES; number++) {
        size_t length = length_of(number);
        memset(message, (int)(number % 251), length);
        memcpy(message, &number, sizeof number);
        CHECK(dp_send_to(fd, to, message, length, 0, LONG_NS) == (ssize_t)length);
    }
    CHECK(dp_send_to(fd, to, message, TOO_LONG, 0, LONG_NS) == TOO_LONG);
    CHECK(dp_recv_copy(fd, answer, sizeof answer, NULL, 0, LONG_NS) == 8);
    CHECK(memcmp(answer, "too long", 8) == 0);
    CHECK(dp_close(fd) == 0);
}

int main(int count, char **arguments)
{
    static struct queue queue = { .lock = PTHREAD_MUTEX_INITIALIZER,
                                  .changed = PTHREAD_COND_INITIALIZER };
    pthread_t worker;
    CHECK(count == 2);
    uint32_t dpid = (uint32_t)atoi(arguments[1]);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        feed(dpid);
        exit(0);
    }
    CHECK_FAILS(dp_port_open_into(dpid, NULL, 1, 1, keep, NULL), EFAULT, "buffer");
    CHECK_FAILS(dp_port_open_into(dpid, buffer, 1, 1, NULL, NULL), EFAULT, "handler");
    CHECK_FAILS(dp_port_open_into(dpid, buffer, 1, 0, keep, NULL), EINVAL, "slots is 0");
    CHECK_FAILS(dp_port_open_into(dpid, buffer, 0, 1, keep, NULL), EINVAL, "slot_bytes is 0");
    CHECK_FAILS(dp_port_open_into(dpid, buffer, SIZE_MAX, 4, keep, NULL), EINVAL, "slot_bytes");
    /* The handler may run before this returns, so the worker starts later. */
    queue.port = dp_port_open_into(dpid, buffer, SLOT_BYTES, SLOTS, keep, &queue);
    CHECK(queue.port >= 0);
    CHECK(pthread_create(&worker, NULL, work, &queue) == 0);
    CHECK(dp_port_wait(queue.port, MESSAGES + 1, LONG_NS) == 0);
    CHECK(pthread_mutex_lock(&queue.lock) == 0);
    queue.slots[queue.count++] = -1;
    CHECK(pthread_cond_signal(&queue.changed) == 0);
    CHECK(pthread_mutex_unlock(&queue.lock) == 0);
    CHECK(pthread_join(worker, NULL) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_FAILS(dp_port_release(queue.port, 0), EINVAL, "slot 0");
    CHECK(dp_port_close(queue.port) == 0);
    CHECK_FAILS(dp_port_release(queue.port, 0), EBADF, "is not an open port");
    printf("%d in the handler, %d by the worker, %d outside\n", queue.in_handler,
           queue.worked - 1, queue.outside);
    return 0;
}
