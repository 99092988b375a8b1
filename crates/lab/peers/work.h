/* Measures messages between two processes over a library, like `dipole bench` measures Dipole: round
 * trips one by one, or a stream that ends with a reply of 4 bytes, minus one single trip. The
 * including source defines how the library sends and receives. Prints one line of JSON. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARM_UP = 200, FEWEST = 200, MOST_TRIPS = 1 << 20, ACKNOWLEDGEMENT = 4 };

/* Operations of the library: messages of known lengths, in order. */
static void send_message(const char *from, size_t bytes);
static void receive_message(char *to, size_t bytes);
/* Sends this many messages from the same memory, as many in flight as the library allows. */
static void send_stream(const char *from, size_t bytes, long count);
static void receive_stream(char *to, size_t bytes, long count);

static int is_lead;

static void give_up(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static double clock_ns(clockid_t which)
{
    struct timespec now;
    clock_gettime(which, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static double cpu_ns(void)
{
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static void pin(int core)
{
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    if (sched_setaffinity(0, sizeof own, &own) != 0)
        give_up("cannot pin the process to its core");
}

/* The first and the last byte of a message carry its number. */
static void mark(char *message, size_t bytes, unsigned number)
{
    message[0] = message[bytes - 1] = (char)(number & 0x7f);
}

static void check_mark(const char *message, size_t bytes, unsigned number)
{
    char expected = (char)(number & 0x7f);
    if (message[0] != expected || message[bytes - 1] != expected)
        give_up("received an unexpected message");
}

static void round_trips(char *buffer, size_t bytes, long count, double *trips)
{
    for (long i = 0; i < count; i++) {
        if (is_lead) {
            double begun = now_ns();
            mark(buffer, bytes, (unsigned)i);
            send_message(buffer, bytes);
            receive_message(buffer, bytes);
            check_mark(buffer, bytes, (unsigned)i);
            if (trips)
                trips[i] = (now_ns() - begun) / 2;
        } else {
            receive_message(buffer, bytes);
            check_mark(buffer, bytes, (unsigned)i);
            send_message(buffer, bytes);
        }
    }
}

/* Returns how many messages fit the duration, as measured by the leading side. */
static long agree(double each_ns, double seconds, long fewest, long most)
{
    int64_t count = 0;
    if (is_lead) {
        double fit = seconds * 1e9 / (each_ns > 1 ? each_ns : 1);
        count = fit < (double)fewest ? fewest : fit > (double)most ? most : (int64_t)fit;
        send_message((char *)&count, sizeof count);
    } else {
        receive_message((char *)&count, sizeof count);
    }
    return (long)count;
}

/* Returns the CPU time of both sides. */
static double together(double own_ns)
{
    double other_ns = own_ns;
    if (is_lead)
        receive_message((char *)&other_ns, sizeof other_ns);
    else
        send_message((char *)&other_ns, sizeof other_ns);
    return own_ns + other_ns;
}

static int by_size(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static void pingpong(char *buffer, size_t bytes, double seconds)
{
    double begun = now_ns();
    round_trips(buffer, bytes, WARM_UP, NULL);
    long count = agree((now_ns() - begun) / WARM_UP, seconds, FEWEST, MOST_TRIPS);
    double *trips = malloc((size_t)count * sizeof *trips);
    if (!trips)
        give_up("out of memory for the samples");
    double cpu = cpu_ns();
    round_trips(buffer, bytes, count, trips);
    cpu = together(cpu_ns() - cpu);
    if (is_lead) {
        qsort(trips, (size_t)count, sizeof *trips, by_size);
        double sum = 0;
        long cut = count / 10;
        for (long i = cut; i < count - cut; i++)
            sum += trips[i];
        printf("{\"p50_ns\": %.1f, \"mean80_ns\": %.1f, \"p99_ns\": %.1f, \"p999_ns\": %.1f, "
               "\"cpu_ns_per_message\": %.1f}\n",
               trips[count / 2], sum / (double)(count - 2 * cut), trips[count - 1 - count / 100],
               trips[count - 1 - count / 1000], cpu / (2.0 * (double)count));
    }
    free(trips);
}

static void flow(char *buffer, size_t bytes, long count)
{
    char end[ACKNOWLEDGEMENT] = {0};
    if (is_lead) {
        send_stream(buffer, bytes, count);
        receive_message(end, sizeof end);
    } else {
        receive_stream(buffer, bytes, count);
        send_message(end, sizeof end);
    }
}

static void stream(char *buffer, size_t bytes, double seconds)
{
    char small[ACKNOWLEDGEMENT] = {0};
    double trips[FEWEST];
    round_trips(small, sizeof small, FEWEST, trips);
    qsort(trips, FEWEST, sizeof *trips, by_size);
    long trial = bytes < (1 << 16) ? 1024 : 64;
    flow(buffer, bytes, trial);
    double begun = now_ns();
    flow(buffer, bytes, trial);
    /* At least ten million bytes, or enough messages of any length. */
    long least = (long)(10000000 / bytes) + 1;
    least = least > 20000 ? 20000 : least;
    long count = agree((now_ns() - begun) / (double)trial, seconds, least, 1L << 30);
    double cpu = cpu_ns();
    begun = now_ns();
    flow(buffer, bytes, count);
    double took = now_ns() - begun - trips[FEWEST / 2];
    cpu = together(cpu_ns() - cpu);
    if (is_lead)
        printf("{\"messages_per_s\": %.1f, \"bytes_per_s\": %.1f, \"cpu_ns_per_message\": %.1f}\n",
               (double)count / took * 1e9, (double)count * (double)bytes / took * 1e9,
               cpu / (double)count);
}

/* `words`: KIND BYTES SECONDS LEAD_CORE FOLLOW_CORE; with a core below 0 the side is not pinned. */
static void work(char **words)
{
    size_t bytes = (size_t)strtoul(words[1], NULL, 10);
    double seconds = strtod(words[2], NULL);
    int core = atoi(words[is_lead ? 3 : 4]);
    if (core >= 0)
        pin(core);
    char *buffer = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!buffer || bytes == 0)
        give_up("out of memory for messages of this length");
    memset(buffer, 0x5a, bytes);
    if (strcmp(words[0], "pingpong") == 0)
        pingpong(buffer, bytes, seconds);
    else
        stream(buffer, bytes, seconds);
    fflush(stdout);
    free(buffer);
}
