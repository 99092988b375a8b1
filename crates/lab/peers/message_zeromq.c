/* Messages over ZeroMQ, between two PAIR sockets. Calls block, because a thread behind the socket
 * does the work.
 *
 *     cc -O2 -o message message_zeromq.c -lzmq
 *     ./message lead|follow ADDRESS pingpong|stream BYTES SECONDS LEAD_CORE FOLLOW_CORE */
#include "work.h"
#include <zmq.h>

enum { PATIENCE_MS = 10000 };

static void *channel;

static void send_message(const char *from, size_t bytes)
{
    if (zmq_send(channel, from, bytes, 0) != (int)bytes)
        give_up(zmq_strerror(zmq_errno()));
}

static void receive_message(char *to, size_t bytes)
{
    int got = zmq_recv(channel, to, bytes, 0);
    if (got < 0)
        give_up(zmq_strerror(zmq_errno()));
    if (got != (int)bytes)
        give_up("received an unexpected message");
}

static void send_stream(const char *from, size_t bytes, long count)
{
    for (long i = 0; i < count; i++)
        send_message(from, bytes);
}

static void receive_stream(char *to, size_t bytes, long count)
{
    for (long i = 0; i < count; i++)
        receive_message(to, bytes);
}

int main(int argc, char **argv)
{
    if (argc != 8)
        give_up("usage: message lead|follow ADDRESS KIND BYTES SECONDS LEAD_CORE FOLLOW_CORE");
    is_lead = strcmp(argv[1], "lead") == 0;
    /* Pin before ZeroMQ starts its thread, which inherits the core. */
    int core = atoi(argv[is_lead ? 6 : 7]);
    if (core >= 0)
        pin(core);
    void *context = zmq_ctx_new();
    channel = context ? zmq_socket(context, ZMQ_PAIR) : NULL;
    if (!channel)
        give_up(zmq_strerror(zmq_errno()));
    int patience = PATIENCE_MS;
    zmq_setsockopt(channel, ZMQ_RCVTIMEO, &patience, sizeof patience);
    zmq_setsockopt(channel, ZMQ_SNDTIMEO, &patience, sizeof patience);
    zmq_setsockopt(channel, ZMQ_LINGER, &patience, sizeof patience);
    int failed = is_lead ? zmq_connect(channel, argv[2]) : zmq_bind(channel, argv[2]);
    if (failed)
        give_up(zmq_strerror(zmq_errno()));
    work(argv + 3);
    zmq_close(channel);
    zmq_ctx_term(context);
    return 0;
}
