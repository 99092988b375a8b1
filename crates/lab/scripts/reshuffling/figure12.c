/*
 * Figure 12 of Gigabit Nectar. Left: how fast an array is reshuffled from blocks of each size to blocks of 8 KiB. Right:
 * how fast it gets to a program outside by one stream, reshuffled to blocks of 64 KiB before, or block by block; compared with
 * "streaming", the same bytes one part each, and one process that writes them to a TCP connection.
 *
 * Lines: what, bytes of a block, MB/s of all ranks together, of the fastest run. The outside is a child of rank 0 that reads and
 * forgets, and answers a byte when it has all.
 */
#define _DEFAULT_SOURCE
#include <arpa/inet.h>
#include <bsp.h>
#include <bsp_reshuffle.h>
#include <dipole.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EACH = 16 << 20, TIMES = 3, LEFT_TO = 8 << 10, RIGHT_TO = 64 << 10, INTERFACE = 700 };
/* Maximum number of blocks of a rank that are sent block by block: each is a message. */
enum { MOST_BLOCKS = 512 };
static const int64_t WAIT_NS = 60000000000;

#define NEED(what)                                        \
    do {                                                  \
        if (!(what))                                      \
            bsp_abort("%s: %s", #what, dp_error());       \
    } while (0)

static void serve(int listener)
{
    static char buffer[1 << 20];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        int from = accept(listener, NULL, NULL);
        uint64_t wanted;
        if (from >= 0 && fork() == 0) {
            while (recv(from, &wanted, sizeof wanted, MSG_WAITALL) == sizeof wanted) {
                while (wanted > 0) {
                    ssize_t some = read(from, buffer, wanted < sizeof buffer ? wanted : sizeof buffer);
                    if (some <= 0)
                        _exit(1);
                    wanted -= (uint64_t)some;
                }
                if (write(from, "", 1) != 1)
                    _exit(1);
            }
            _exit(0);
        }
        close(from);
    }
}

static struct sockaddr_in listen_outside(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, size) != 0 || listen(listener, 4) != 0
        || getsockname(listener, (struct sockaddr *)&at, &size) != 0)
        abort();
    signal(SIGCHLD, SIG_IGN);
    if (fork() == 0)
        serve(listener);
    close(listener);
    return at;
}

/* Bytes by one process and one connection. */
static double by_tcp(int to, const char *bytes, uint64_t total)
{
    char answer;
    double began = bsp_time();
    if (write(to, &total, sizeof total) != sizeof total)
        abort();
    for (uint64_t done = 0; done < total;) {
        ssize_t some = write(to, bytes + done, total - done < RIGHT_TO ? total - done : RIGHT_TO);
        if (some <= 0)
            abort();
        done += (uint64_t)some;
    }
    if (read(to, &answer, 1) != 1)
        abort();
    return bsp_time() - began;
}

static void to_outside(int stream, uint64_t block, const void *part, size_t each)
{
    struct dp_layout layout = { .ranks = (uint32_t)bsp_nprocs(), .block = block };
    uint64_t total = each * (uint64_t)bsp_nprocs();
    char answer;
    if (bsp_pid() == 0)
        NEED(dp_stream_write_raw(stream, &total, sizeof total) == 0);
    NEED(dp_stream_write(stream, &layout, total, part, each) == 0);
    if (bsp_pid() == 0)
        NEED(dp_stream_read_raw(stream, &answer, 1) == 1);
}

static bsp_reshuffle_plan *plan(size_t from, size_t to)
{
    int p = bsp_nprocs();
    size_t all = (size_t)p * EACH / sizeof(double);
    size_t before = from / sizeof(double), after = to / sizeof(double);
    return bsp_reshuffle_plan_create(1, &all, sizeof(double), &p, &before, &p, &after);
}

static void say(const char *what, size_t block, size_t each, double seconds)
{
    if (bsp_pid() == 0)
        printf("%s %zu %.1f\n", what, block, (double)each * bsp_nprocs() / seconds / 1e6);
    fflush(stdout);
}

#define FASTEST(least, ...)                            \
    double least = 1e9;                                \
    for (int time = 0; time < TIMES; time++) {         \
        bsp_sync();                                    \
        double began = bsp_time();                     \
        __VA_ARGS__;                                   \
        bsp_sync();                                    \
        double took = bsp_time() - began;              \
        least = took < least ? took : least;           \
    }

static int open_stream(const struct sockaddr_in *outside)
{
    int me = bsp_pid(), p = bsp_nprocs();
    struct dp_address own, *all = calloc((size_t)p, sizeof *all), interface = { 1, INTERFACE };
    char to[32];
    snprintf(to, sizeof to, "127.0.0.1:%d", ntohs(outside->sin_port));
    int fd = dp_open_with(DP_ANY, NULL);
    NEED(fd >= 0 && dp_own_address(fd, &own) == 0);
    bsp_push_reg(all, p * (int)sizeof own);
    bsp_sync();
    for (int rank = 0; rank < p; rank++)
        bsp_put(rank, &own, all, me * (int)sizeof own, sizeof own);
    bsp_sync();
    int stream = dp_stream_open(fd, all, p, me, interface, to, WAIT_NS);
    NEED(stream >= 0);
    return stream;
}

int main(void)
{
    const char *rank = getenv("DIPOLE_RANK");
    struct sockaddr_in outside = { 0 };
    if (rank && strcmp(rank, "0") == 0)
        outside = listen_outside();
    bsp_begin(bsp_nprocs());
    double *src = malloc(EACH), *dst = malloc(EACH);
    if (!src || !dst)
        bsp_abort("no memory");
    memset(dst, 1, EACH);
    for (size_t at = 0; at < EACH / sizeof *src; at++)
        src[at] = (double)at + bsp_pid();
    int tcp = -1;
    if (bsp_pid() == 0) {
        tcp = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(tcp, (struct sockaddr *)&outside, sizeof outside) != 0)
            bsp_abort("no outside");
        NEED(dp_interface_open(INTERFACE, 4, NULL, 0) >= 0);
    }
    int stream = open_stream(&outside);

    FASTEST(bare, memcpy(dst, src, EACH));
    say("copy", 0, EACH, bare);
    double fastest = 1e9;
    for (int time = 0; bsp_pid() == 0 && time < TIMES; time++) {
        double took = by_tcp(tcp, (char *)src, EACH);
        fastest = took < fastest ? took : fastest;
    }
    say("tcp", 0, EACH / (size_t)bsp_nprocs(), fastest);
    FASTEST(streamed, to_outside(stream, EACH, src, EACH));
    say("streaming", EACH, EACH, streamed);
    for (size_t block = sizeof(double); block <= EACH / 2; block *= 4) {
        bsp_reshuffle_plan *left = plan(block, LEFT_TO);
        FASTEST(shuffled, bsp_reshuffle_execute(left, src, dst));
        say("reshuffled", block, EACH, shuffled);
        bsp_reshuffle_plan *right = plan(block, RIGHT_TO);
        FASTEST(both, bsp_reshuffle_execute(right, src, dst);
                to_outside(stream, RIGHT_TO, dst, EACH));
        say("with", block, EACH, both);
        size_t each = block < EACH / MOST_BLOCKS ? block * MOST_BLOCKS : EACH;
        FASTEST(straight, to_outside(stream, block, src, each));
        say("without", block, each, straight);
        bsp_reshuffle_plan_destroy(left);
        bsp_reshuffle_plan_destroy(right);
        bsp_sync();
    }
    NEED(dp_stream_close(stream) == 0);
    bsp_sync();
    bsp_end();
    return 0;
}
