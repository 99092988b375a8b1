/*
 * Several parallel sections in sequence, with different functions and numbers of processes. Between
 * them the first process computes alone.
 */
#include <bsp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int wanted, result;

static void sum(void)
{
    bsp_begin(wanted);
    int p = bsp_nprocs(), me = bsp_pid(), left = -1;
    int *all = calloc(p, sizeof(int));
    bsp_push_reg(all, p * sizeof(int));
    bsp_push_reg(&left, sizeof left);
    bsp_sync();
    for (int to = 0; to < p; to++)
        bsp_put(to, &me, all, me * sizeof(int), sizeof(int));
    bsp_put((me + 1) % p, &me, &left, 0, sizeof left);
    bsp_sync();
    if (left != (me + p - 1) % p)
        bsp_abort("process %d has %d", me, left);
    result = 0;
    for (int i = 0; i < p; i++)
        result += all[i];
    free(all);
    bsp_end();
}

/* Long enough for direct writes between nodes. */
static void broadcast(void)
{
    bsp_begin(wanted);
    int bytes = 300000;
    char *block = malloc(bytes);
    memset(block, bsp_pid() == 0 ? 'x' : 'y', bytes);
    bsp_bcast(0, block, block, bytes);
    if (block[0] != 'x' || block[bytes - 1] != 'x')
        bsp_abort("process %d has %c", bsp_pid(), block[0]);
    result = bsp_sumI(1);
    free(block);
    bsp_end();
}

static void require(int expected)
{
    if (result != expected) {
        fprintf(stderr, "%d instead of %d\n", result, expected);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    int p = bsp_nprocs();
    bsp_init(sum, argc, argv);
    wanted = p > 1 ? p - 1 : 1;
    sum();
    require(wanted * (wanted - 1) / 2);

    /* Longer than the others look for messages. */
    usleep(700000);
    bsp_init(broadcast, argc, argv);
    wanted = p;
    broadcast();
    require(p);

    for (int round = 0; round < 10; round++) {
        bsp_init(round % 2 ? sum : broadcast, argc, argv);
        wanted = 1 + round % p;
        if (round % 2) {
            sum();
            require(wanted * (wanted - 1) / 2);
        } else {
            broadcast();
            require(wanted);
        }
    }
    /* The function named last, again. */
    wanted = p;
    sum();
    require(p * (p - 1) / 2);
    if (argc > 1 && !strcmp(argv[1], "_exit")) {
        write(1, "ended\n", 6);
        _exit(0);
    }
    puts("ended");
    return 0;
}
