/* Messages over Aeron: a publication and a subscription on each side. The thread that measures also
 * runs the media driver and the client's conductor, as Aeron recommends for processes with one core
 * each. With IPC the following side has the driver of both.
 *
 *     cc -O2 -o message message_aeron.c -laeron_driver
 *     ./message lead|follow DIRECTORY OWN_CHANNEL OTHER_CHANNEL
 *         pingpong|stream BYTES SECONDS LEAD_CORE FOLLOW_CORE */
#include "work.h"
#include <aeronmd.h>
#include <aeronc.h>
#include <inttypes.h>
#include <stdbool.h>

enum { TO_FOLLOW = 1001, TO_LEAD = 1002, FRAGMENTS = 10, OFFERS_PER_TURN = 8 };
static const double PATIENCE_NS = 10e9;

static aeron_driver_t *driver;
static aeron_t *client;
static aeron_publication_t *publication;
static aeron_subscription_t *subscription;
static aeron_fragment_assembler_t *assembler;
static char *target;
static size_t due;
static bool has_come;

static void check(int failed)
{
    if (failed < 0)
        give_up(aeron_errmsg());
}

static void turn(void)
{
    if (driver)
        check(aeron_driver_main_do_work(driver));
    check(aeron_main_do_work(client));
}

static void still_patient(double begun)
{
    if (now_ns() - begun > PATIENCE_NS)
        give_up("nothing happened for 10 s");
}

static void take(void *unused, const uint8_t *from, size_t bytes, aeron_header_t *header)
{
    (void)unused, (void)header;
    if (bytes != due || has_come)
        give_up("received an unexpected message");
    memcpy(target, from, bytes);
    has_come = true;
}

static void send_message(const char *from, size_t bytes)
{
    double begun = 0;
    for (;;) {
        int64_t at = aeron_publication_offer(publication, (const uint8_t *)from, bytes, NULL, NULL);
        if (at >= 0)
            return;
        if (at != AERON_PUBLICATION_BACK_PRESSURED && at != AERON_PUBLICATION_ADMIN_ACTION)
            give_up(aeron_errmsg());
        turn();
        if (begun == 0)
            begun = now_ns();
        still_patient(begun);
    }
}

/* One fragment at a time, so that the next message is not consumed as well. */
static void receive_message(char *to, size_t bytes)
{
    double begun = 0;
    target = to, due = bytes, has_come = false;
    while (!has_come) {
        int got = aeron_subscription_poll(subscription, aeron_fragment_assembler_handler, assembler, 1);
        check(got);
        if (got > 0)
            continue;
        turn();
        if (begun == 0)
            begun = now_ns();
        still_patient(begun);
    }
}

static void send_stream(const char *from, size_t bytes, long count)
{
    for (long i = 0; i < count; i++) {
        send_message(from, bytes);
        if (i % OFFERS_PER_TURN == 0)
            turn();
    }
}

static void receive_stream(char *to, size_t bytes, long count)
{
    for (long i = 0; i < count; i++)
        receive_message(to, bytes);
}

static void start_driver(const char *directory)
{
    aeron_driver_context_t *context;
    check(aeron_driver_context_init(&context));
    check(aeron_driver_context_set_dir(context, directory));
    check(aeron_driver_context_set_dir_delete_on_start(context, true));
    check(aeron_driver_context_set_dir_delete_on_shutdown(context, true));
    check(aeron_driver_context_set_threading_mode(context, AERON_THREADING_MODE_INVOKER));
    check(aeron_driver_init(&driver, context));
    check(aeron_driver_start(driver, true));
}

static void open_both(const char *own, const char *other)
{
    double begun = now_ns();
    aeron_async_add_subscription_t *adding_in;
    aeron_async_add_publication_t *adding_out;
    check(aeron_async_add_subscription(&adding_in, client, own, is_lead ? TO_LEAD : TO_FOLLOW, NULL,
                                       NULL, NULL, NULL));
    while (!subscription) {
        check(aeron_async_add_subscription_poll(&subscription, adding_in));
        turn();
        still_patient(begun);
    }
    check(aeron_async_add_publication(&adding_out, client, other, is_lead ? TO_FOLLOW : TO_LEAD));
    while (!publication) {
        check(aeron_async_add_publication_poll(&publication, adding_out));
        turn();
        still_patient(begun);
    }
    while (!aeron_publication_is_connected(publication) || !aeron_subscription_is_connected(subscription)) {
        turn();
        still_patient(begun);
    }
}

int main(int argc, char **argv)
{
    if (argc != 10)
        give_up("usage: message lead|follow DIRECTORY OWN OTHER KIND BYTES SECONDS LEAD_CORE FOLLOW_CORE");
    is_lead = strcmp(argv[1], "lead") == 0;
    bool is_ipc = strcmp(argv[3], "aeron:ipc") == 0;
    if (!is_ipc || !is_lead)
        start_driver(argv[2]);
    aeron_context_t *context;
    check(aeron_context_init(&context));
    check(aeron_context_set_dir(context, argv[2]));
    check(aeron_context_set_use_conductor_agent_invoker(context, true));
    check(aeron_init(&client, context));
    check(aeron_start(client));
    check(aeron_fragment_assembler_create(&assembler, take, NULL));
    open_both(argv[3], argv[4]);
    work(argv + 5);
    /* The other side may still wait for the last message of this one. */
    double begun = now_ns();
    while (!is_lead && now_ns() - begun < 50e6)
        turn();
    aeron_fragment_assembler_delete(assembler);
    aeron_close(client);
    if (driver)
        aeron_driver_close(driver);
    return 0;
}
