/*
 * Every rule that a program can break, broken by the function that the argument names.
 *
 * The comment before a function contains the expected message, without file and line, which are
 * those of the marked call. "alone" marks cases with a single process, "killed by the launcher"
 * cases whose other processes do not begin, and "rank R" messages that any rank may report.
 */
#include <bsp.h>
#include <bsp_reshuffle.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int p, me, x[4], y[4], z[4];

/* Begins, with x, y and z registered in superstep 0; the rest is in superstep 1. */
static void begin(void)
{
    bsp_begin(bsp_nprocs());
    p = bsp_nprocs();
    me = bsp_pid();
    bsp_push_reg(x, sizeof x);
    /* 4 bytes on rank 0, 8 on rank 1, ... */
    bsp_push_reg(y, (me + 1) * (int)sizeof y[0]);
    bsp_push_reg(me == 2 ? NULL : z, me == 2 ? 0 : sizeof z);
    bsp_sync();
}

static void end(void)
{
    bsp_sync();
    bsp_end();
}

static void nothing(void)
{
}

/* ---- reshuffling ---- */

static bsp_reshuffle_plan *cyclic_to_parts(size_t extent, size_t bytes)
{
    static const size_t one = 1;
    size_t part = (extent + (size_t)p - 1) / (size_t)p;
    return bsp_reshuffle_plan_create(1, &extent, bytes, &p, &one, &p, &part); /* here */
}

/* rank R, superstep 1: bsp_reshuffle_plan_create: elements must have at least 1 byte */
static void reshuffle_empty_elements(void)
{
    size_t extent = 8, one = 1;
    begin();
    bsp_reshuffle_plan_create(1, &extent, 0, &p, &one, &p, &one); /* here */
}

/* rank R, superstep 1: bsp_reshuffle_plan_create: the list of blocks afterwards must not be NULL */
static void reshuffle_no_blocks(void)
{
    size_t extent = 8, one = 1;
    begin();
    bsp_reshuffle_plan_create(1, &extent, 4, &p, &one, &p, NULL); /* here */
}

/* rank R, superstep 1: bsp_reshuffle_plan_create: the number of processes of a dimension must not be negative: -1 */
static void reshuffle_negative_processes(void)
{
    size_t extent = 8, one = 1;
    int few = -1;
    begin();
    bsp_reshuffle_plan_create(1, &extent, 4, &p, &one, &few, &one); /* here */
}

/* rank R, superstep 1: bsp_reshuffle_plan_create: the distributions need 1000 processes, but there are 3: start more, or choose smaller grids */
static void reshuffle_too_many_processes(void)
{
    size_t extent = 8, one = 1;
    int many = 1000;
    begin();
    bsp_reshuffle_plan_create(1, &extent, 4, &p, &one, &many, &one); /* here */
}

/* rank 0, superstep 3: bsp_reshuffle_execute: source and destination overlap: use bsp_reshuffle_in_place for a single memory */
static void reshuffle_overlap(void)
{
    static char memory[300];
    begin();
    bsp_reshuffle_plan *plan = cyclic_to_parts(300, 1);
    bsp_reshuffle_execute(plan, memory, memory + (me == 0 ? 50 : 150)); /* here */
}

/* rank 1, superstep 3: bsp_reshuffle_execute: the source must not be NULL */
static void reshuffle_no_source(void)
{
    static char memory[300];
    begin();
    bsp_reshuffle_plan *plan = cyclic_to_parts(300, 1);
    bsp_reshuffle_execute(plan, me == 1 ? NULL : memory, memory + 150); /* here */
}

/* rank 2, superstep 3: bsp_reshuffle_in_place: the plan is not valid: it was not created, or has been destroyed */
static void reshuffle_with_a_destroyed_plan(void)
{
    static char memory[300];
    begin();
    bsp_reshuffle_plan *plan = cyclic_to_parts(300, 1);
    if (me == 2)
        bsp_reshuffle_plan_destroy(plan);
    bsp_reshuffle_in_place(plan, memory); /* here */
}

/* ---- life ---- */

/* alone: rank 0: bsp_init: called twice */
static void life_init_twice(void)
{
    bsp_init(nothing, 0, NULL);
    bsp_init(nothing, 0, NULL); /* here */
}

/* alone: rank 0: bsp_init: the function must not be NULL */
static void life_init_with_null(void)
{
    bsp_init(NULL, 0, NULL); /* here */
}

/* rank 1, superstep 1: bsp_init: called after bsp_begin: it must be the first statement of main */
static void life_init_after_begin(void)
{
    begin();
    if (me == 1)
        bsp_init(nothing, 0, NULL); /* here */
    end();
}

/* alone: rank 0: bsp_init: called after bsp_end: it must be the first statement of main */
static void life_init_after_end(void)
{
    begin();
    end();
    bsp_init(nothing, 0, NULL); /* here */
}

/* killed by the launcher: rank 0: exit: the program ends without bsp_begin, in which the other ranks wait */
static void life_init_without_begin(void)
{
    bsp_init(begin, 0, NULL);
}

/* rank 1, superstep 1: bsp_begin: called twice */
static void life_begin_twice(void)
{
    begin();
    if (me == 1)
        bsp_begin(1); /* here */
    end();
}

/* killed by the launcher: rank 0: bsp_begin: a program needs at least one rank, not 0 */
static void life_begin_with_0_processes(void)
{
    bsp_begin(0); /* here */
}

/* killed by the launcher: rank 0: bsp_begin: a program needs at least one rank, not -3 */
static void life_begin_with_a_negative_number(void)
{
    bsp_begin(-3); /* here */
}

/* alone: rank 0: bsp_begin: called after bsp_end: only functions that bsp_init names may follow each other */
static void life_begin_again(void)
{
    begin();
    end();
    bsp_begin(1); /* here */
}

/* alone: rank 0: bsp_end: called before bsp_begin */
static void life_end_without_begin(void)
{
    bsp_end(); /* here */
}

/* alone: rank 0: bsp_end: called after bsp_end */
static void life_end_twice(void)
{
    begin();
    end();
    bsp_end(); /* here */
}

/* rank 0, superstep 1: bsp_sync: rank 0 is in bsp_sync, but rank 1 is in bsp_end: all ranks must do the same in a superstep */
static void life_end_while_others_sync(void)
{
    begin();
    if (me == 1)
        bsp_end();
    bsp_sync(); /* here */
}

/* rank 0, superstep 1: bsp_end: rank 0 is in bsp_end, but rank 1 is in bsp_sync: all ranks must do the same in a superstep */
static void life_sync_while_others_end(void)
{
    begin();
    if (me != 0)
        bsp_sync();
    bsp_end(); /* here */
}

/* rank 1, superstep 1: exit: the program ends without bsp_end */
static void life_exit_without_end(void)
{
    begin();
    if (me == 1)
        exit(0);
    end();
}

/* alone: rank 0: bsp_pid: called before bsp_begin */
static void life_pid_before_begin(void)
{
    x[0] = bsp_pid(); /* here */
}

/* alone: rank 0: bsp_pid: called after bsp_end */
static void life_pid_after_end(void)
{
    begin();
    end();
    x[0] = bsp_pid(); /* here */
}

/* alone: rank 0: bsp_time: called before bsp_begin */
static void life_time_before_begin(void)
{
    x[0] = bsp_time() > 0; /* here */
}

/* alone: rank 0: bsp_sync: called before bsp_begin */
static void life_sync_before_begin(void)
{
    bsp_sync(); /* here */
}

/* alone: rank 0: bsp_put: called after bsp_end */
static void life_put_after_end(void)
{
    begin();
    end();
    bsp_put(0, x, y, 0, 4); /* here */
}

/* rank 2, superstep 1: bsp_abort: 7 of 3.5 are too many */
static void life_abort(void)
{
    begin();
    if (me == 2)
        bsp_abort("%d of %.1f are %s\n", 7, 3.5, "too many"); /* here */
    end();
}

/* killed by the launcher: rank 1: bsp_abort: a b c d e f g h 1.5 */
static void life_abort_before_begin(void)
{
    if (strcmp(getenv("DIPOLE_RANK"), "1") == 0)
        bsp_abort("%s %s %s %s %s %s %s %s %g", "a", "b", "c", "d", "e", "f", "g", "h", 1.5); /* here */
    begin();
    end();
}

/* alone: rank 0: bsp_abort: late */
static void life_abort_after_end(void)
{
    begin();
    end();
    bsp_abort("late"); /* here */
}

static void *elsewhere(void *unused)
{
    bsp_sync(); /* thread */
    return unused;
}

/* alone: rank 0: bsp_sync: called by another thread than the one that called bsp_begin */
static void life_sync_by_another_thread(void)
{
    pthread_t thread;
    begin();
    pthread_create(&thread, NULL, elsewhere, NULL);
    pthread_join(thread, NULL);
}

/* rank 0, superstep 1: mcbsp_checkpoint: the job was started without a place for checkpoints: start it with dipole run --checkpoint-every or --checkpoint-dir */
static void life_checkpoint(void)
{
    begin();
    if (me == 0)
        mcbsp_checkpoint(); /* here */
    end();
}

/* alone: rank 0, superstep 3: bsp_sync: the job was started without a place for checkpoints: start it with dipole run --checkpoint-every or --checkpoint-dir */
static void life_checkpoint_that_is_due(void)
{
    begin();
    mcbsp_set_checkpoint_frequency(2);
    mcbsp_disable_checkpoints();
    bsp_sync();
    mcbsp_enable_checkpoints();
    for (int i = 0; i < 2; i++)
        bsp_sync(); /* here */
}

/* ---- registration ---- */

/* rank 1, superstep 1: bsp_push_reg: the size must not be negative: -4 */
static void registration_of_a_negative_size(void)
{
    begin();
    bsp_push_reg(x, me == 1 ? -4 : 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_push_reg: NULL can be registered with size 0 only, not 4 */
static void registration_of_null_with_a_size(void)
{
    begin();
    bsp_push_reg(me == 1 ? NULL : x, 4); /* here */
    end();
}

/* rank 0, superstep 1: bsp_sync: rank 0 has called bsp_push_reg 0 times, but rank 1 has called bsp_push_reg once: all ranks must do the same in a superstep */
static void registration_by_one_rank_only(void)
{
    begin();
    if (me == 1)
        bsp_push_reg(x, 4);
    bsp_sync(); /* here */
}

/* rank 0, superstep 1: bsp_sync: rank 0 has called bsp_push_reg 3 times, but rank 1 has called bsp_push_reg 2 times: all ranks must do the same in a superstep */
static void registration_called_more_often(void)
{
    begin();
    bsp_push_reg(x, 4);
    bsp_push_reg(NULL, 0);
    if (me == 0)
        bsp_push_reg(y, 4);
    bsp_sync(); /* here */
}

/* rank 1, superstep 1: bsp_pop_reg: has not been pushed, or has been popped already */
static void registration_popped_without_push(void)
{
    begin();
    bsp_pop_reg(me == 1 ? x + 1 : x); /* here */
    end();
}

/* rank 1, superstep 1: bsp_pop_reg: has not been pushed, or has been popped already */
static void registration_popped_twice(void)
{
    begin();
    bsp_pop_reg(x);
    bsp_pop_reg(me == 1 ? x : y); /* here */
    end();
}

/* rank 0, superstep 1: bsp_sync: rank 0 has called bsp_pop_reg 0 times, but rank 1 has called bsp_pop_reg once: all ranks must do the same in a superstep */
static void registration_popped_by_one_rank_only(void)
{
    begin();
    if (me == 1)
        bsp_pop_reg(x);
    bsp_sync(); /* here */
}

/* rank 0, superstep 1: bsp_sync: rank 0 has popped registration 0 (counted from 0), but rank 1 has popped registration 1 (counted from 0): all ranks must do the same in a superstep */
static void registration_popped_of_another_area(void)
{
    begin();
    bsp_pop_reg(me == 1 ? y : x);
    bsp_sync(); /* here */
}

/* rank 0, superstep 1: bsp_sync: rank 0 has popped registration 0, 1 (counted from 0), but rank 1 has popped registration 1, 0 (counted from 0): all ranks must do the same in a superstep */
static void registration_popped_in_another_order(void)
{
    begin();
    bsp_pop_reg(me == 1 ? y : x);
    bsp_pop_reg(me == 1 ? x : y);
    bsp_sync(); /* here */
}

/* ---- memory ---- */

/* rank 1, superstep 1: bsp_direct_get: 8 bytes at offset 0 reach beyond the 4 bytes that rank 0 has registered */
static void memory_direct_get_beyond_the_area(void)
{
    begin();
    if (me == 1)
        bsp_direct_get(0, y, 0, x, 8); /* here */
    end();
}

/* rank 1, superstep 1: bsp_direct_get: the destination must not be NULL */
static void memory_direct_get_to_null(void)
{
    begin();
    if (me == 1)
        bsp_direct_get(0, x, 0, NULL, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_hpget: rank 7 does not exist: this program has 3 ranks */
static void memory_get_compiled_with_another_header(void)
{
    begin();
    if (me == 1)
        bsp_hpget_cpp(7, x, 0, y, 4, __LINE__, __FILE__); /* here */
    end();
}

/* rank R, superstep 1: bsp_put: rank 3 does not exist: this program has 3 ranks */
static void memory_put_wrong_on_all_ranks(void)
{
    begin();
    bsp_put(p, y, x, 0, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_put: rank 3 does not exist: this program has 3 ranks */
static void memory_put_to_a_missing_rank(void)
{
    begin();
    bsp_put(me == 1 ? p : 0, x, x, 0, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_put: rank -1 does not exist: this program has 3 ranks */
static void memory_put_to_a_negative_rank(void)
{
    begin();
    bsp_put(me == 1 ? -1 : 0, x, x, 0, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_hpput: rank 3 does not exist: this program has 3 ranks */
static void memory_hpput_to_a_missing_rank(void)
{
    begin();
    bsp_hpput(me == 1 ? p : 0, x, y, 0, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_get: rank 3 does not exist: this program has 3 ranks */
static void memory_get_from_a_missing_rank(void)
{
    begin();
    bsp_get(me == 1 ? p : 0, x, 0, y, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_hpget: rank -2 does not exist: this program has 3 ranks */
static void memory_hpget_from_a_missing_rank(void)
{
    begin();
    bsp_hpget(me == 1 ? -2 : 0, x, 0, y, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_put: the offset must not be negative: -4 */
static void memory_put_at_a_negative_offset(void)
{
    begin();
    bsp_put(0, x, x, me == 1 ? -4 : 0, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_get: the offset must not be negative: -4 */
static void memory_get_at_a_negative_offset(void)
{
    begin();
    bsp_get(0, x, me == 1 ? -4 : 0, y, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_put: the number of bytes must not be negative: -1 */
static void memory_put_of_negative_bytes(void)
{
    begin();
    bsp_put(0, x, x, 0, me == 1 ? -1 : 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_get: the number of bytes must not be negative: -1 */
static void memory_get_of_negative_bytes(void)
{
    begin();
    bsp_get(0, x, 0, y, me == 1 ? -1 : 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_put: the destination must not be NULL */
static void memory_put_to_null(void)
{
    begin();
    bsp_put(0, x, me == 1 ? NULL : x, 0, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_put: the source must not be NULL */
static void memory_put_of_null(void)
{
    begin();
    bsp_put(0, me == 1 ? NULL : x, x, 0, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_get: the source must not be NULL */
static void memory_get_of_null(void)
{
    begin();
    bsp_get(0, me == 1 ? NULL : x, 0, y, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_get: the destination must not be NULL */
static void memory_get_to_null(void)
{
    begin();
    bsp_get(0, x, 0, me == 1 ? NULL : y, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_put: is not registered here: register it with bsp_push_reg and bsp_sync, and give the address itself, not one inside the area */
static void memory_put_to_an_address_within(void)
{
    begin();
    bsp_put(0, y, me == 1 ? x + 1 : x, 0, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_get: is not registered here: register it with bsp_push_reg and bsp_sync, and give the address itself, not one inside the area */
static void memory_get_from_an_unregistered_address(void)
{
    int other[1];
    begin();
    bsp_get(0, me == 1 ? other : x, 0, y, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_put: has been registered in this superstep only, which takes effect after the next bsp_sync */
static void memory_put_to_a_new_registration(void)
{
    int other[1];
    begin();
    bsp_push_reg(other, sizeof other);
    bsp_put(0, y, me == 1 ? other : x, 0, 4); /* here */
    end();
}

/* rank 1, superstep 2: bsp_put: is not registered here: register it with bsp_push_reg and bsp_sync, and give the address itself, not one inside the area */
static void memory_put_to_a_popped_registration(void)
{
    begin();
    bsp_pop_reg(x);
    bsp_sync();
    bsp_put(0, z, me == 1 ? x : y, 0, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_put: rank 2 holds no part of this area: it has registered NULL */
static void memory_put_to_a_rank_without_a_part(void)
{
    begin();
    bsp_put(me == 1 ? 2 : 0, x, me == 2 ? x : z, 0, 4); /* here */
    end();
}

/* rank 2, superstep 1: bsp_get: is not registered here: register it with bsp_push_reg and bsp_sync, and give the address itself, not one inside the area */
static void memory_get_by_a_rank_without_a_part(void)
{
    begin();
    bsp_get(0, me == 2 ? z : x, 0, y, 4); /* here */
    end();
}

/* rank 2, superstep 1: bsp_put: 4 bytes at offset 4 reach beyond the 4 bytes that rank 0 has registered */
static void memory_put_beyond_the_end(void)
{
    begin();
    bsp_put(0, x, y, me == 2 ? 4 : 0, 4); /* here */
    end();
}

/* rank 0, superstep 1: bsp_get: 12 bytes at offset 0 reach beyond the 8 bytes that rank 1 has registered */
static void memory_get_beyond_the_end(void)
{
    begin();
    bsp_get(1, y, 0, x, me == 0 ? 12 : 8); /* here */
    end();
}

/* rank 0, superstep 1: bsp_hpput: 8 bytes at offset 4 reach beyond the 8 bytes that rank 1 has registered */
static void memory_hpput_beyond_the_end(void)
{
    begin();
    if (me == 0)
        bsp_hpput(1, x, y, 4, 8); /* here */
    end();
}

/* rank 1, superstep 1: bsp_hpget: 5 bytes at offset 0 reach beyond the 4 bytes that rank 0 has registered */
static void memory_hpget_beyond_the_end(void)
{
    begin();
    if (me == 1)
        bsp_hpget(0, y, 0, x, 5); /* here */
    end();
}

/* rank 1, superstep 2: bsp_put: 4 bytes at offset 0 reach beyond the 0 bytes that rank 2 has registered */
static void memory_put_to_a_rank_with_size_0(void)
{
    begin();
    bsp_push_reg(x, me == 2 ? 0 : 4);
    bsp_sync();
    if (me == 1)
        bsp_put(2, y, x, 0, 4); /* here */
    end();
}

/* ---- messages ---- */

/* rank 1, superstep 1: bsp_set_tagsize: the pointer to the size must not be NULL */
static void messages_tag_size_null(void)
{
    int size = 4;
    begin();
    bsp_set_tagsize(me == 1 ? NULL : &size); /* here */
    end();
}

/* rank 1, superstep 1: bsp_set_tagsize: the size of tags must not be negative: -4 */
static void messages_tag_size_negative(void)
{
    begin();
    int size = me == 1 ? -4 : 4;
    bsp_set_tagsize(&size); /* here */
    end();
}

/* rank 0, superstep 1: bsp_sync: rank 0 has called bsp_set_tagsize 2 times, but rank 1 has called bsp_set_tagsize once: all ranks must do the same in a superstep */
static void messages_tag_size_set_more_often(void)
{
    int size = 4;
    begin();
    bsp_set_tagsize(&size);
    size = 4;
    if (me != 1)
        bsp_set_tagsize(&size);
    bsp_sync(); /* here */
}

/* rank 0, superstep 1: bsp_sync: rank 0 has set a tag size of 4 bytes, but rank 1 has set a tag size of 8 bytes: all ranks must do the same in a superstep */
static void messages_tag_size_differs(void)
{
    begin();
    int size = me == 1 ? 8 : 4;
    bsp_set_tagsize(&size);
    bsp_sync(); /* here */
}

/* rank 1, superstep 1: bsp_send: rank 3 does not exist: this program has 3 ranks */
static void messages_to_a_missing_rank(void)
{
    begin();
    bsp_send(me == 1 ? p : 0, NULL, x, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_send: rank -1 does not exist: this program has 3 ranks */
static void messages_to_a_negative_rank(void)
{
    begin();
    bsp_send(me == 1 ? -1 : 0, NULL, NULL, 0); /* here */
    end();
}

/* rank 1, superstep 1: bsp_send: the number of bytes must not be negative: -4 */
static void messages_of_negative_bytes(void)
{
    begin();
    bsp_send(0, NULL, x, me == 1 ? -4 : 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_send: the payload must not be NULL */
static void messages_without_payload(void)
{
    begin();
    bsp_send(0, NULL, me == 1 ? NULL : x, 4); /* here */
    end();
}

/* rank 1, superstep 2: bsp_send: the tag must not be NULL */
static void messages_without_tag(void)
{
    int size = 4;
    begin();
    bsp_set_tagsize(&size);
    bsp_sync();
    bsp_send(0, me == 1 ? NULL : y, x, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_qsize: the pointer to the number of messages must not be NULL */
static void messages_qsize_null(void)
{
    int count, bytes;
    begin();
    bsp_qsize(me == 1 ? NULL : &count, &bytes); /* here */
    end();
}

/* rank 1, superstep 1: bsp_get_tag: the pointer to the status must not be NULL */
static void messages_get_tag_status_null(void)
{
    int status;
    begin();
    bsp_get_tag(me == 1 ? NULL : &status, NULL); /* here */
    end();
}

/* rank 1, superstep 3: bsp_get_tag: the tag must not be NULL */
static void messages_get_tag_null(void)
{
    int size = 4, status;
    begin();
    bsp_set_tagsize(&size);
    bsp_sync();
    bsp_send(1, x, y, 4);
    bsp_sync();
    bsp_get_tag(&status, me == 1 ? NULL : x); /* here */
    end();
}

/* rank 1, superstep 1: bsp_move: the queue is empty: call bsp_qsize or bsp_get_tag before */
static void messages_moved_from_an_empty_queue(void)
{
    begin();
    if (me == 1)
        bsp_move(x, 4); /* here */
    end();
}

/* rank 1, superstep 2: bsp_move: the size of the buffer must not be negative: -1 */
static void messages_moved_to_a_negative_buffer(void)
{
    begin();
    bsp_send(me, NULL, x, 4);
    bsp_sync();
    bsp_move(x, me == 1 ? -1 : 4); /* here */
    end();
}

/* rank 1, superstep 2: bsp_move: the buffer must not be NULL */
static void messages_moved_to_null(void)
{
    begin();
    bsp_send(me, NULL, x, 4);
    bsp_sync();
    bsp_move(me == 1 ? NULL : x, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_hpmove: the pointer to the tag must not be NULL */
static void messages_hpmoved_without_a_tag(void)
{
    void *tag, *payload;
    begin();
    bsp_hpmove(me == 1 ? NULL : &tag, &payload); /* here */
    end();
}

/* rank 1, superstep 1: bsp_hpmove: the pointer to the payload must not be NULL */
static void messages_hpmoved_without_a_payload(void)
{
    void *tag, *payload;
    begin();
    bsp_hpmove(&tag, me == 1 ? NULL : &payload); /* here */
    end();
}

/* ---- collectives ---- */

/* rank 1, superstep 1: bsp_bcast: rank 3 does not exist: this program has 3 ranks */
static void collectives_with_a_missing_root(void)
{
    begin();
    bsp_bcast(me == 1 ? p : 0, x, y, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_gather: the number of bytes must not be negative: -4 */
static void collectives_of_negative_bytes(void)
{
    begin();
    bsp_gather(0, x, y, me == 1 ? -4 : 0); /* here */
    end();
}

/* rank 1, superstep 1: bsp_scatter: the destination must not be NULL */
static void collectives_to_null(void)
{
    begin();
    bsp_scatter(0, x, me == 1 ? NULL : y, 4); /* here */
    end();
}

/* rank 1, superstep 1: bsp_fold: the operator must not be NULL */
static void collectives_without_an_operator(void)
{
    begin();
    if (me == 1)
        bsp_fold(NULL, x, y, 4); /* here */
    end();
}

static void communicating(int *result, int *left, int *right, int *nbytes)
{
    *result = *left + *right + *nbytes;
    bsp_sync(); /* operator */
}

/* alone: rank 0, superstep 1: bsp_scan: the source must not be NULL */
static void collectives_of_null(void)
{
    begin();
    bsp_scan(communicating, NULL, y, 4); /* here */
}

static void addition(int *result, int *left, int *right, int *nbytes)
{
    *result = *left + *right;
    (void)nbytes;
}

/* rank 1, superstep 3: bsp_sync: an operator of a collective may not communicate */
static void collectives_that_call_others(void)
{
    begin();
    if (me == 1)
        bsp_reduce(1, communicating, x, y, 4);
    else
        bsp_reduce(1, addition, x, y, 4);
    end();
}

/* The test generates this list from the comments above. */
#include "cases.h"

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    return 99;
}
