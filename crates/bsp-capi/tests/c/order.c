/*
 * The ranks' puts and messages take effect in the order of the ranks. Rank 0 is late for bsp_begin, and
 * lets fewer ranks take part than were launched.
 */
#define _POSIX_C_SOURCE 199309L
#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 300000, ROUNDS = 20 };

static int wanted;

/* The ranks whose number has bit `round % 5` cleared write to rank 0. */
static int writes(int rank, int round)
{
    return !((rank + 1) >> round % 5 & 1);
}

static void overlapping_puts(int p, int me)
{
    char *written = malloc(BYTES), *memory = malloc(BYTES);
    memset(written, 'a' + me, BYTES);
    bsp_push_reg(memory, BYTES);
    bsp_sync();
    for (int round = 0; round < ROUNDS; round++) {
        int last = -1;
        memset(memory, '-', BYTES);
        bsp_sync();
        for (int rank = 0; rank < p; rank++)
            if (writes(rank, round))
                last = rank;
        if (writes(me, round))
            bsp_put(0, written, memory, 0, BYTES);
        bsp_sync();
        for (int at = 0; me == 0 && at < BYTES; at++)
            if (memory[at] != (last < 0 ? '-' : 'a' + last))
                bsp_abort("round %d: byte %d is of %c, not of rank %d", round, at, memory[at], last);
    }
    bsp_pop_reg(memory);
    bsp_sync();
    free(written);
    free(memory);
}

static void messages(int p, int me)
{
    for (int part = 0; part < 2; part++)
        for (int to = 0; to < p; to++) {
            int word[2] = {me, part};
            bsp_send(to, NULL, word, sizeof word);
        }
    bsp_sync();
    for (int from = 0; from < p; from++)
        for (int part = 0; part < 2; part++) {
            int word[2] = {-1, -1};
            bsp_move(word, sizeof word);
            if (word[0] != from || word[1] != part)
                bsp_abort("message %d of rank %d instead of %d of %d", word[1], word[0], part, from);
        }
}

static void program(void)
{
    bsp_begin(wanted);
    int p = bsp_nprocs(), me = bsp_pid();
    overlapping_puts(p, me);
    messages(p, me);
    if (me == 0)
        printf("in order on %d ranks\n", p);
    bsp_end();
}

int main(int argc, char **argv)
{
    bsp_init(program, argc, argv);
    wanted = atoi(argv[1]);
    struct timespec late = {atoi(argv[2]) / 1000, atoi(argv[2]) % 1000 * 1000000L};
    nanosleep(&late, NULL);
    program();
    return 0;
}
