/*
 * Guarantees of the library, rule by rule. Every function begins and ends a superstep.
 * Prints the name of each rule that holds.
 */
#include <bsp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int p, me, left, right;

#define REQUIRE(condition)                                         \
    do {                                                       \
        if (!(condition))                                          \
            bsp_abort("%s:%d: failed: %s", __func__, __LINE__, #condition); \
    } while (0)

/* ---- registration ---- */

static void registration_takes_effect_in_the_next_superstep(void)
{
    int x = -1;
    bsp_push_reg(&x, sizeof x);
    bsp_sync();
    bsp_put(right, &me, &x, 0, sizeof x);
    bsp_sync();
    REQUIRE(x == left);
    bsp_pop_reg(&x);
    bsp_sync();
}

static void sizes_may_differ(void)
{
    int *x = calloc(p, sizeof *x);
    bsp_push_reg(x, (me + 1) * (int)sizeof *x);
    bsp_sync();
    for (int to = 0; to < p; to++)
        bsp_put(to, &me, x, to * (int)sizeof *x, sizeof *x);
    bsp_sync();
    REQUIRE(x[me] >= 0 && x[me] < p);
    for (int i = 0; i < p; i++)
        REQUIRE(i == me || x[i] == 0);
    bsp_pop_reg(x);
    bsp_sync();
    free(x);
}

static void a_process_with_size_0_can_access_others_only(void)
{
    int x = 0;
    bsp_push_reg(&x, me == 0 ? sizeof x : 0);
    bsp_sync();
    if (me == p - 1)
        bsp_put(0, &p, &x, 0, sizeof x);
    bsp_sync();
    REQUIRE(x == (me == 0 ? p : 0));
    bsp_pop_reg(&x);
    bsp_sync();
}

static void null_on_all_processes_is_pushed_and_popped_in_pairs(void)
{
    int x = 0;
    bsp_push_reg(NULL, 0);
    bsp_push_reg(&x, sizeof x);
    bsp_sync();
    bsp_pop_reg(NULL);
    bsp_put(right, &p, &x, 0, sizeof x);
    bsp_sync();
    REQUIRE(x == p);
    bsp_pop_reg(&x);
    bsp_sync();
}

static void null_means_no_part(void)
{
    int x = 0, y = 0;
    int *part = me == p - 1 && p > 1 ? NULL : &x;
    bsp_push_reg(part, part ? sizeof x : 0);
    bsp_push_reg(me == 0 && p > 1 ? NULL : &y, me == 0 && p > 1 ? 0 : sizeof y);
    bsp_sync();
    if (part)
        bsp_put(0, &p, part, 0, sizeof x);
    bsp_sync();
    REQUIRE(x == (me == 0 ? p : 0));
    /* In the order of the areas. */
    bsp_pop_reg(part);
    bsp_pop_reg(me == 0 && p > 1 ? NULL : &y);
    bsp_sync();
}

static void pop_takes_effect_at_the_end_of_the_superstep(void)
{
    int x = 0;
    bsp_push_reg(&x, sizeof x);
    bsp_sync();
    bsp_pop_reg(&x);
    bsp_put(right, &p, &x, 0, sizeof x);
    bsp_sync();
    REQUIRE(x == p);
}

static void push_and_pop_in_one_superstep_cancel(void)
{
    int x[2] = {0, 0};
    bsp_push_reg(x, sizeof x);
    bsp_sync();
    bsp_push_reg(x, sizeof x[0]);
    bsp_pop_reg(x);
    bsp_sync();
    bsp_put(right, &p, x, sizeof x[0], sizeof x[1]);
    bsp_sync();
    REQUIRE(x[0] == 0 && x[1] == p);
    bsp_pop_reg(x);
    bsp_sync();
}

static void the_newest_registration_counts(void)
{
    int x[4] = {0}, y = 0;
    bsp_push_reg(x, sizeof x[0]);
    bsp_sync();
    bsp_push_reg(x, sizeof x);
    bsp_push_reg(&y, sizeof y);
    bsp_sync();
    /* x is registered again with a larger size, and y, which was pushed later, is popped later. */
    bsp_put(right, &p, x, 3 * (int)sizeof x[0], sizeof x[0]);
    bsp_pop_reg(x);
    bsp_sync();
    REQUIRE(x[3] == p);
    bsp_put(right, &p, x, 0, sizeof x[0]);
    bsp_put(right, &p, &y, 0, sizeof y);
    bsp_pop_reg(&y);
    bsp_pop_reg(x);
    bsp_sync();
    REQUIRE(x[0] == p && y == p);
}

static void areas_may_belong_to_different_variables(void)
{
    int x = 0, y = 0;
    bsp_push_reg(me % 2 ? &x : &y, sizeof x);
    bsp_sync();
    bsp_put(right, &p, me % 2 ? &x : &y, 0, sizeof x);
    bsp_pop_reg(me % 2 ? &x : &y);
    bsp_sync();
    REQUIRE((me % 2 ? x : y) == p);
}

static void freed_memory_is_not_accessed(void)
{
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bsp_push_reg(memory, 4096);
    bsp_sync();
    munmap(memory, 4096);
    bsp_sync();
    bsp_pop_reg(memory);
    bsp_sync();
}

/* ---- memory ---- */

static void the_source_of_a_put_may_change_at_once(void)
{
    int x = -1, value = me;
    bsp_push_reg(&x, sizeof x);
    bsp_sync();
    bsp_put(right, &value, &x, 0, sizeof x);
    value = -2;
    REQUIRE(x == -1);
    bsp_sync();
    REQUIRE(x == left);
    bsp_pop_reg(&x);
    bsp_sync();
}

static void a_get_sees_the_results_of_its_superstep(void)
{
    int x = -1, y = -1;
    bsp_push_reg(&x, sizeof x);
    bsp_sync();
    bsp_get(right, &x, 0, &y, sizeof y);
    REQUIRE(y == -1);
    x = me;
    bsp_sync();
    REQUIRE(y == right);
    bsp_pop_reg(&x);
    bsp_sync();
}

static void gets_are_read_before_puts_are_written(void)
{
    int x = me, y = -1;
    bsp_push_reg(&x, sizeof x);
    bsp_sync();
    int other = 100 + me;
    bsp_put(right, &other, &x, 0, sizeof x);
    bsp_get(right, &x, 0, &y, sizeof y);
    bsp_sync();
    REQUIRE(y == right && x == 100 + left);
    bsp_pop_reg(&x);
    bsp_sync();
}

static void gets_are_read_before_gets_are_written(void)
{
    int x = me;
    bsp_push_reg(&x, sizeof x);
    bsp_sync();
    bsp_get(right, &x, 0, &x, sizeof x);
    bsp_sync();
    REQUIRE(x == right);
    bsp_pop_reg(&x);
    bsp_sync();
}

static void a_put_overwrites_a_get(void)
{
    int x = me;
    bsp_push_reg(&x, sizeof x);
    bsp_sync();
    int other = 100 + me;
    bsp_put(right, &other, &x, 0, sizeof x);
    bsp_get(right, &x, 0, &x, sizeof x);
    bsp_sync();
    REQUIRE(x == 100 + left);
    bsp_pop_reg(&x);
    bsp_sync();
}

static void puts_to_the_same_place_take_effect_in_rank_order(void)
{
    /* Between nodes, the longest travel in several messages. */
    static const int words[] = {1, 64, 20000, 80000};
    for (int i = 0; i < 4; i++) {
        int count = words[i], bytes = count * (int)sizeof(int);
        int *x = malloc(bytes), *values = malloc(bytes);
        bsp_push_reg(x, bytes);
        bsp_sync();
        for (int j = 0; j < count; j++)
            values[j] = me;
        for (int to = 0; to < p; to++) {
            bsp_put(to, values, x, 0, bytes);
            if (me == 0)
                bsp_put(to, &p, x, 0, sizeof p);
        }
        bsp_sync();
        for (int j = p > 1 ? 0 : 1; j < count; j++)
            REQUIRE(x[j] == p - 1);
        REQUIRE(x[0] == (p > 1 ? p - 1 : p));
        bsp_pop_reg(x);
        bsp_sync();
        free(x);
        free(values);
    }
}

static void gets_into_the_same_place_take_effect_in_rank_order(void)
{
    enum { WORDS = 10000 };
    int *x = malloc(WORDS * sizeof *x), *y = malloc(WORDS * sizeof *y);
    for (int i = 0; i < WORDS; i++)
        x[i] = me;
    bsp_push_reg(x, WORDS * (int)sizeof *x);
    bsp_sync();
    for (int from = p - 1; from >= 0; from--)
        bsp_get(from, x, 0, y, WORDS * (int)sizeof *x);
    bsp_sync();
    for (int i = 0; i < WORDS; i++)
        REQUIRE(y[i] == p - 1);
    bsp_pop_reg(x);
    bsp_sync();
    free(x);
    free(y);
}

static void arguments_are_not_checked_without_bytes(void)
{
    int x;
    bsp_put(p + 7, NULL, NULL, -3, 0);
    bsp_get(-1, NULL, -3, NULL, 0);
    bsp_hpput(p, NULL, &x, 0, 0);
    bsp_hpget(p, &x, 9, NULL, 0);
    bsp_sync();
}

static void long_and_unbuffered_transfers_arrive(void)
{
    enum { WORDS = 50000 };
    int *x = malloc(WORDS * sizeof *x), *y = malloc(WORDS * sizeof *y),
        *z = malloc(WORDS * sizeof *z);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < WORDS; i++) {
            x[i] = -1;
            y[i] = me * WORDS + i;
            z[i] = -1;
        }
        bsp_push_reg(x, WORDS * (int)sizeof *x);
        bsp_push_reg(y, WORDS * (int)sizeof *y);
        bsp_sync();
        if (round % 2) {
            bsp_hpput(right, y, x, 0, WORDS * (int)sizeof *x);
            bsp_hpget(left, y, 4, z, (WORDS - 1) * (int)sizeof *x);
        } else {
            bsp_put(right, y, x, 0, WORDS * (int)sizeof *x);
            bsp_get(left, y, 4, z, (WORDS - 1) * (int)sizeof *x);
        }
        bsp_sync();
        for (int i = 0; i < WORDS; i++) {
            REQUIRE(x[i] == left * WORDS + i);
            REQUIRE(z[i] == (i + 1 < WORDS ? left * WORDS + i + 1 : -1));
        }
        bsp_pop_reg(y);
        bsp_pop_reg(x);
    }
    bsp_sync();
    free(x);
    free(y);
    free(z);
}

/* Between nodes, 64 KiB and more are transferred without intermediate copies. */
static void memory_of_long_transfers_is_free_after_the_superstep(void)
{
    enum { LONG = 1 << 20, SHORT = 70000 };
    char *x = malloc(LONG), *y = malloc(LONG), *z = malloc(LONG);
    bsp_push_reg(x, LONG);
    bsp_push_reg(y, LONG);
    bsp_sync();
    for (int round = 0; round < 3; round++) {
        memset(x, 1 + me, LONG);
        memset(y, 10 + me, LONG);
        /* Gets are read before anything is written, even where another process gets. */
        bsp_get(left, x, 1, x + 1, SHORT);
        bsp_put(right, y, x, SHORT / 2, SHORT);
        bsp_hpput(right, y + 2 * SHORT, x, 2 * SHORT, LONG - 2 * SHORT);
        bsp_hpget(right, y, 1, z, SHORT);
        bsp_sync();
        memset(y, 99, LONG);
        for (int i = 0; i < SHORT; i++)
            REQUIRE(z[i] == 10 + right);
        for (int i = 0; i < LONG; i++) {
            int is_put = (i >= SHORT / 2 && i < SHORT / 2 + SHORT) || i >= 2 * SHORT;
            int is_got = i >= 1 && i <= SHORT;
            REQUIRE(x[i] == (is_put ? 10 + left : is_got ? 1 + left : 1 + me));
        }
    }
    bsp_pop_reg(x);
    bsp_pop_reg(y);
    bsp_put(right, z, x, 0, SHORT);
    bsp_sync();
    REQUIRE(x[0] == 10 + me);
    free(x);
    free(y);
    free(z);
    bsp_sync();
}

static void many_short_transfers_arrive(void)
{
    enum { EACH = 3000 };
    int *x = calloc((size_t)p * EACH, sizeof *x);
    bsp_push_reg(x, p * EACH * (int)sizeof *x);
    bsp_sync();
    for (int i = 0; i < EACH; i++)
        for (int to = 0; to < p; to++) {
            int value = me * EACH + i;
            bsp_put(to, &value, x, value * (int)sizeof value, sizeof value);
        }
    bsp_sync();
    for (int i = 0; i < p * EACH; i++)
        REQUIRE(x[i] == i);
    bsp_pop_reg(x);
    bsp_sync();
    free(x);
}

/* ---- messages ---- */

static int set_tag_size(int size)
{
    bsp_set_tagsize(&size);
    return size;
}

static void tag_sizes_take_effect_in_the_next_superstep(void)
{
    int status = 7, tag[2] = {-1, -1}, sent[2] = {me, 77};
    /* The last of two calls counts; each returns the size set before. */
    REQUIRE(set_tag_size(12) == 0);
    REQUIRE(set_tag_size(8) == 12);
    /* The tag size is still 0. */
    bsp_send(right, NULL, &me, sizeof me);
    bsp_sync();
    bsp_send(right, sent, NULL, 0);
    bsp_get_tag(&status, tag);
    REQUIRE(status == sizeof me && tag[0] == -1);
    REQUIRE(set_tag_size(0) == 8);
    bsp_sync();
    /* Messages in the queue keep the tag size with which they were sent. */
    bsp_send(right, NULL, NULL, 0);
    bsp_get_tag(&status, tag);
    REQUIRE(status == 0 && tag[0] == left && tag[1] == 77);
    bsp_sync();
    tag[0] = -1;
    bsp_get_tag(&status, tag);
    REQUIRE(status == 0 && tag[0] == -1);
    bsp_sync();
}

static void empty_messages_are_counted(void)
{
    int count = -1, bytes = -1;
    for (int to = 0; to < p; to++)
        bsp_send(to, NULL, NULL, 0);
    bsp_send(me, NULL, "five", 5);
    bsp_qsize(&count, &bytes);
    REQUIRE(count == 0 && bytes == 0);
    bsp_sync();
    bsp_qsize(&count, &bytes);
    REQUIRE(count == p + 1 && bytes == 5);
    bsp_qsize(&count, NULL);
    for (; count > 0; count--) {
        int left_over, status;
        bsp_get_tag(&status, NULL);
        bsp_move(NULL, 0);
        bsp_qsize(&left_over, &bytes);
        REQUIRE(left_over == count - 1);
    }
    REQUIRE(bytes == 0);
    bsp_sync();
}

static void an_empty_queue_has_status_minus_1(void)
{
    int status = 5, tag = 6;
    void *no_tag = &tag, *no_payload = &status;
    bsp_get_tag(&status, &tag);
    REQUIRE(status == -1 && tag == 6);
    REQUIRE(bsp_hpmove(&no_tag, &no_payload) == -1);
    REQUIRE(no_tag == &tag && no_payload == &status);
    bsp_sync();
}

static void messages_are_queued_in_rank_order(void)
{
    enum { EACH = 3, BYTES = 50000 };
    char *sent = calloc(BYTES, 1), *received = malloc(BYTES);
    for (int to = 0; to < p; to++)
        for (int i = 0; i < EACH; i++) {
            sent[0] = (char)me;
            sent[1] = (char)i;
            bsp_send(to, NULL, sent, i % 2 ? BYTES : 2);
        }
    bsp_sync();
    for (int from = 0; from < p; from++)
        for (int i = 0; i < EACH; i++) {
            bsp_move(received, BYTES);
            REQUIRE(received[0] == from && received[1] == i);
        }
    bsp_sync();
    free(sent);
    free(received);
}

static void move_copies_what_fits(void)
{
    char buffer[8];
    int status;
    for (int i = 0; i < 3; i++)
        bsp_send(right, NULL, "abcdef", 6);
    bsp_sync();
    for (int max = 2; max <= 8; max += 3) {
        memset(buffer, '.', sizeof buffer);
        bsp_get_tag(&status, NULL);
        bsp_get_tag(&status, NULL);
        REQUIRE(status == 6);
        bsp_move(buffer, max);
        int copied = max < 6 ? max : 6;
        REQUIRE(memcmp(buffer, "abcdef", copied) == 0);
        REQUIRE(buffer[copied] == '.');
    }
    bsp_get_tag(&status, NULL);
    REQUIRE(status == -1);
    bsp_sync();
}

static void hpmove_returns_aligned_bytes_that_stay_valid(void)
{
    enum { MESSAGES = 10 };
    double *payloads[MESSAGES];
    int *tags[MESSAGES], size = sizeof(int);
    bsp_set_tagsize(&size);
    bsp_sync();
    for (int i = 0; i < MESSAGES; i++) {
        double values[3] = {i, i * 0.5, me};
        bsp_send(right, &i, values, (i % 3 + 1) * (int)sizeof values[0]);
    }
    bsp_sync();
    for (int i = 0; i < MESSAGES; i++) {
        void *tag, *payload;
        int length = bsp_hpmove(&tag, &payload);
        tags[i] = tag;
        payloads[i] = payload;
        REQUIRE((uintptr_t)tag % sizeof(int) == 0 && (uintptr_t)payload % sizeof(double) == 0);
        REQUIRE(length == (*tags[i] % 3 + 1) * (int)sizeof(double));
    }
    int seen = 0;
    for (int i = 0; i < MESSAGES; i++) {
        seen |= 1 << *tags[i];
        REQUIRE(payloads[i][0] == *tags[i]);
        REQUIRE(*tags[i] % 3 < 2 || payloads[i][2] == left);
    }
    REQUIRE(seen == (1 << MESSAGES) - 1);
    size = 0;
    bsp_set_tagsize(&size);
    bsp_sync();
}

static void the_queue_is_dropped_at_the_next_sync(void)
{
    int count;
    bsp_send(right, NULL, "lost", 4);
    bsp_sync();
    bsp_sync();
    bsp_qsize(&count, NULL);
    REQUIRE(count == 0);
}

static void long_messages_arrive(void)
{
    enum { BYTES = 300000 };
    char *sent = malloc(BYTES), *received = malloc(BYTES);
    memset(sent, 'a' + me % 26, BYTES);
    bsp_send(right, NULL, sent, BYTES);
    memset(sent, '-', BYTES);
    bsp_sync();
    bsp_move(received, BYTES);
    for (int i = 0; i < BYTES; i++)
        REQUIRE(received[i] == 'a' + left % 26);
    bsp_hpsend(right, NULL, received, BYTES);
    bsp_sync();
    bsp_move(sent, BYTES);
    REQUIRE(sent[BYTES - 1] == 'a' + (left + p - 1) % p % 26);
    bsp_sync();
    free(sent);
    free(received);
}

/* ---- life ---- */

static void clocks_go_forward(void)
{
    double before = bsp_time(), used = bsp_cputime();
    REQUIRE(before >= 0 && used >= 0);
    bsp_dtime();
    bsp_sync();
    double lap = bsp_dtime();
    REQUIRE(lap >= 0 && bsp_time() >= before + lap && bsp_cputime() >= used);
}

static void functions_have_addresses(void)
{
    void (*sync)(void) = bsp_sync;
    int (*pid)(void) = bsp_pid;
    void (*put)(int, const void *, void *, int, int) = &bsp_put;
    int x = 0;
    bsp_push_reg(&x, sizeof x);
    sync();
    put((pid() + 1) % p, &p, &x, 0, sizeof x);
    (bsp_sync)();
    REQUIRE(x == p && pid() == me);
    bsp_pop_reg(&x);
    sync();
}

static void children_may_exit(void)
{
    pid_t child = fork();
    if (child == 0)
        exit(7);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    bsp_sync();
}

static void names_of_the_oxford_toolset_work(void)
{
    int x = 0, size = 4, count, bytes;
    bsp_pushregister(&x, sizeof x);
    bsp_set_tag_size(&size);
    bsp_sync();
    bsp_put(right, &p, &x, 0, sizeof x);
    bsp_send(right, &me, "abc", 3);
    bsp_popregister(&x);
    bsp_sync();
    bsp_bsmp_info(&count, &bytes);
    REQUIRE(x == p && count == 1 && bytes == 3);
    size = 0;
    bsp_set_tag_size(&size);
    bsp_sync();
}

/* ---- calls of other libraries ---- */

#define HERE __LINE__, __FILE__

static void calls_with_line_and_file_do_the_same(void)
{
    int x[3] = {-1, -1, me}, y = -1, size = sizeof me, count = 0, bytes = 0, tag = -1;
    void *where = NULL, *payload = NULL;
    bsp_push_reg_cpp(x, sizeof x, HERE);
    bsp_set_tagsize_cpp(&size, HERE);
    REQUIRE(size == 0);
    bsp_sync_cpp(HERE);
    bsp_put_cpp(right, &me, x, 0, sizeof me, HERE);
    bsp_hpput_cpp(right, &me, x, sizeof me, sizeof me, HERE);
    bsp_get_cpp(right, x, 2 * sizeof me, &y, sizeof y, HERE);
    bsp_send_cpp(left, &me, "abc", 3, HERE);
    bsp_send_cpp(left, &me, "abc", 3, HERE);
    bsp_sync_cpp(HERE);
    REQUIRE(x[0] == left && x[1] == left && y == right);
    bsp_qsize_cpp(&count, &bytes, HERE);
    REQUIRE(count == 2 && bytes == 6);
    bsp_get_tag_cpp(&size, &tag, HERE);
    REQUIRE(size == 3 && tag == right);
    bsp_move_cpp(x, 2, HERE);
    REQUIRE(bsp_hpmove_cpp(&where, &payload, HERE) == 3);
    REQUIRE(memcmp(payload, "abc", 3) == 0 && memcmp(where, &right, sizeof right) == 0);
    bsp_hpget_cpp(left, x, 2 * sizeof me, &y, sizeof y, HERE);
    size = 0;
    bsp_set_tagsize_cpp(&size, HERE);
    bsp_pop_reg_cpp(x, HERE);
    bsp_sync_cpp(HERE);
    REQUIRE(y == left);
}

static void checkpoint_frequencies_are_stored(void)
{
    REQUIRE(mcbsp_get_checkpoint_frequency() == 0);
    mcbsp_set_checkpoint_frequency(1000000);
    REQUIRE(mcbsp_get_checkpoint_frequency() == 1000000);
    REQUIRE(mcbsp_get_safe_checkpoint_frequency() == 1000000);
    mcbsp_set_safe_checkpoint_frequency(3);
    REQUIRE(mcbsp_get_safe_checkpoint_frequency() == 3);
    mcbsp_set_checkpoint_frequency(0);
    bsp_sync();
}

#define RULE(name) {#name, name}
static const struct {
    const char *name;
    void (*holds)(void);
} rules[] = {
    RULE(calls_with_line_and_file_do_the_same),
    RULE(checkpoint_frequencies_are_stored),
    RULE(registration_takes_effect_in_the_next_superstep),
    RULE(sizes_may_differ),
    RULE(a_process_with_size_0_can_access_others_only),
    RULE(null_on_all_processes_is_pushed_and_popped_in_pairs),
    RULE(null_means_no_part),
    RULE(pop_takes_effect_at_the_end_of_the_superstep),
    RULE(push_and_pop_in_one_superstep_cancel),
    RULE(the_newest_registration_counts),
    RULE(areas_may_belong_to_different_variables),
    RULE(freed_memory_is_not_accessed),
    RULE(the_source_of_a_put_may_change_at_once),
    RULE(a_get_sees_the_results_of_its_superstep),
    RULE(gets_are_read_before_puts_are_written),
    RULE(gets_are_read_before_gets_are_written),
    RULE(a_put_overwrites_a_get),
    RULE(puts_to_the_same_place_take_effect_in_rank_order),
    RULE(gets_into_the_same_place_take_effect_in_rank_order),
    RULE(arguments_are_not_checked_without_bytes),
    RULE(long_and_unbuffered_transfers_arrive),
    RULE(memory_of_long_transfers_is_free_after_the_superstep),
    RULE(many_short_transfers_arrive),
    RULE(tag_sizes_take_effect_in_the_next_superstep),
    RULE(empty_messages_are_counted),
    RULE(an_empty_queue_has_status_minus_1),
    RULE(messages_are_queued_in_rank_order),
    RULE(move_copies_what_fits),
    RULE(hpmove_returns_aligned_bytes_that_stay_valid),
    RULE(the_queue_is_dropped_at_the_next_sync),
    RULE(long_messages_arrive),
    RULE(clocks_go_forward),
    RULE(functions_have_addresses),
    RULE(children_may_exit),
    RULE(names_of_the_oxford_toolset_work),
};

int main(void)
{
    int launched = bsp_nprocs();
    bsp_begin(launched);
    p = bsp_nprocs();
    me = bsp_pid();
    left = (me + p - 1) % p;
    right = (me + 1) % p;
    REQUIRE(p == launched && me >= 0 && me < p);
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        rules[i].holds();
        if (me == 0)
            puts(rules[i].name);
        /* Otherwise a child would print buffered output again. */
        fflush(stdout);
    }
    bsp_end();
    return 0;
}
