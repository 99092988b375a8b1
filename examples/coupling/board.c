/*
 * The board stores which arrays are offered where. As an interface of streams it also holds the TCP
 * connections: board DPID INTERFACE VIEWER. It ends on request, after its streams have ended.
 */
#include "arrays.h"

enum { MOST = 4 * ARRAY_PARTS };

static struct array_part known[MOST];
static int count, ended;

static void hear(int port, const struct dp_message *message, void *context)
{
    static struct board_answer answer;
    struct board_message told;
    (void)context;
    if (message->length != sizeof told)
        return;
    memcpy(&told, message->address, sizeof told);
    told.part.name[ARRAY_NAME - 1] = 0;
    if (told.kind == BOARD_OFFER) {
        /* No process reads steps before the last one any more. */
        int kept = 0;
        for (int at = 0; at < count; at++) {
            int is_old = strcmp(known[at].name, told.part.name) == 0
                         && known[at].step + 1 < told.part.step;
            if (!is_old)
                known[kept++] = known[at];
        }
        count = kept;
        if (count < MOST)
            known[count++] = told.part;
    } else if (told.kind == BOARD_ASK) {
        memset(&answer, 0, sizeof answer);
        for (int at = 0; at < count && answer.parts < ARRAY_PARTS; at++) {
            if (strcmp(known[at].name, told.part.name) == 0 && known[at].step == told.part.step)
                answer.part[answer.parts++] = known[at];
        }
        dp_port_reply(port, &answer, sizeof answer);
    } else if (told.kind == BOARD_END) {
        ended = 1;
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: board DPID DPID HOST:PORT\n");
        return 2;
    }
    int port = dp_port_open((uint32_t)atoi(argv[1]), hear, NULL);
    NEED(port >= 0);
    const char *viewer = argv[3];
    int interface = dp_interface_open((uint32_t)atoi(argv[2]), 1, &viewer, 1);
    NEED(interface >= 0);
    puts("ready");
    fflush(stdout);
    for (uint64_t handled = 1; !ended; handled++)
        NEED(dp_port_wait(port, handled, -1) == 0);
    NEED(dp_interface_close(interface) == 0 && dp_port_close(port) == 0);
    return 0;
}
