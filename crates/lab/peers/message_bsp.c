/* Messages over a BSPlib in C: a put and the end of a superstep, which both sides must reach.
 *
 *     mpicc -O2 -o message message_bsp.c -lbsponmpi
 *     mpirun -n 2 ./message pingpong|stream BYTES SECONDS LEAD_CORE FOLLOW_CORE */
#include "work.h"
#include <bsp.h>

enum { WINDOW = 64 };

static char *area;
static size_t area_bytes;
static char **words;

static void put(const char *from, size_t bytes, size_t at)
{
    bsp_put(is_lead, from, area, (int)at, (int)bytes);
}

static void send_message(const char *from, size_t bytes)
{
    put(from, bytes, 0);
    bsp_sync();
}

static void receive_message(char *to, size_t bytes)
{
    bsp_sync();
    memcpy(to, area, bytes);
}

/* Puts as many messages per superstep as fit the area. */
static long at_once(size_t bytes, long count)
{
    long most = (long)(area_bytes / bytes);
    most = most < WINDOW ? most : WINDOW;
    return count < most ? count : most;
}

static void send_stream(const char *from, size_t bytes, long count)
{
    while (count > 0) {
        long now = at_once(bytes, count);
        for (long i = 0; i < now; i++)
            put(from, bytes, (size_t)i * bytes);
        bsp_sync();
        count -= now;
    }
}

static void receive_stream(char *to, size_t bytes, long count)
{
    (void)to;
    for (; count > 0; count -= at_once(bytes, count))
        bsp_sync();
}

static void spmd(void)
{
    bsp_begin(2);
    if (bsp_nprocs() != 2)
        give_up("two processes are needed");
    is_lead = bsp_pid() == 0;
    size_t bytes = (size_t)strtoul(words[1], NULL, 10);
    area_bytes = bytes * WINDOW < (4 << 20) ? bytes * WINDOW : 4 << 20;
    area_bytes = area_bytes < bytes ? bytes : area_bytes < 64 ? 64 : area_bytes;
    area = malloc(area_bytes);
    if (!area)
        give_up("out of memory for messages of this length");
    bsp_push_reg(area, (int)area_bytes);
    bsp_sync();
    work(words);
    bsp_end();
}

int main(int argc, char **argv)
{
    if (argc != 6)
        give_up("usage: message KIND BYTES SECONDS LEAD_CORE FOLLOW_CORE");
    words = argv + 1;
    /* This call may return in the first process only. */
    bsp_init(spmd, argc, argv);
    spmd();
    return 0;
}
