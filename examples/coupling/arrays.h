/*
 * Named arrays that programs of any kind share, as processes of a cluster.
 *
 * A board, which is an active port (board.c), knows where the parts of the arrays are. The owner of a part
 * offers it as a region from which others may get. A reader requests from the board the parts of an array, gets
 * the rows that it needs straight from the memory of their owners, whatever the distribution, and notifies
 * the owners.
 */
#ifndef EXAMPLES_COUPLING_ARRAYS_H
#define EXAMPLES_COUPLING_ARRAYS_H

#include <dipole.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ARRAY_NAME = 32, ARRAY_PARTS = 64 };
enum { BOARD_OFFER = 1, BOARD_ASK, BOARD_END };

/* Rows `first` to `first + count` of a matrix of doubles. */
struct array_part {
    char name[ARRAY_NAME];
    uint64_t step;
    uint32_t rows, columns, first, count;
    struct dp_address owner;
    uint64_t key;
};

struct board_message {
    uint64_t kind;
    struct array_part part;
};

struct board_answer {
    uint64_t parts;
    struct array_part part[ARRAY_PARTS];
};

/* Ends the process if a call fails. */
#define NEED(what)                                                                    \
    do {                                                                              \
        if (!(what)) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, dp_error()); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

/* Longer than any wait here takes, unless a process has died. */
static const int64_t ARRAY_WAIT_NS = 30000000000;

/* The endpoints of this process: one for requests to the board, one for notifications by readers. */
static struct {
    int asking, owning, board, edges;
    struct dp_address own;
    struct {
        struct dp_address to;
        int edge;
    } edge[ARRAY_PARTS];
} arrays;

static inline void array_begin(const char *board)
{
    struct dp_address at;
    NEED(sscanf(board, "%u:%u", &at.nid, &at.dpid) == 2);
    arrays.asking = dp_open_with(DP_ANY, NULL);
    arrays.owning = dp_open_with(DP_ANY, NULL);
    NEED(arrays.asking >= 0 && arrays.owning >= 0);
    NEED(dp_own_address(arrays.owning, &arrays.own) == 0);
    arrays.board = dp_edge_open(arrays.asking, at);
    NEED(arrays.board >= 0);
}

static inline void array_tell_board(uint64_t kind, const struct array_part *part)
{
    struct board_message message = { .kind = kind };
    if (part)
        message.part = *part;
    NEED(dp_edge_send(arrays.board, &message, sizeof message, 0, ARRAY_WAIT_NS) >= 0);
}

/* Offers rows of an array. Returns the number of their region. */
static inline int array_offer(const char *name, uint64_t step, uint32_t rows, uint32_t columns,
                              uint32_t first, uint32_t count, double *data)
{
    struct array_part part = { .step = step, .rows = rows, .columns = columns, .first = first,
                               .count = count, .owner = arrays.own };
    snprintf(part.name, sizeof part.name, "%s", name);
    size_t bytes = (size_t)count * columns * sizeof *data;
    int region = dp_region_open(arrays.owning, data, bytes, DP_ALLOW_GET, &part.key);
    NEED(region >= 0);
    array_tell_board(BOARD_OFFER, &part);
    return region;
}

/* Waits until readers have taken this number of rows in total, and closes the region. */
static inline void array_withdraw(int region, uint64_t rows)
{
    for (uint64_t taken = 0; taken < rows;) {
        uint64_t now;
        NEED(dp_recv_copy(arrays.owning, &now, sizeof now, NULL, 0, ARRAY_WAIT_NS) == sizeof now);
        taken += now;
    }
    NEED(dp_region_close(region) == 0);
}

static inline int array_edge(struct dp_address to)
{
    for (int at = 0; at < arrays.edges; at++) {
        if (arrays.edge[at].to.nid == to.nid && arrays.edge[at].to.dpid == to.dpid)
            return arrays.edge[at].edge;
    }
    NEED(arrays.edges < ARRAY_PARTS);
    int edge = dp_edge_open(arrays.asking, to);
    NEED(edge >= 0);
    arrays.edge[arrays.edges].to = to;
    arrays.edge[arrays.edges++].edge = edge;
    return edge;
}

/* Gets rows of an array, once all of its parts have been offered. */
static inline void array_get(const char *name, uint64_t step, uint32_t first, uint32_t count,
                             double *into)
{
    struct array_part wanted = { .step = step };
    struct board_answer found;
    snprintf(wanted.name, sizeof wanted.name, "%s", name);
    for (uint32_t offered = 0, rows = 1; offered < rows;) {
        array_tell_board(BOARD_ASK, &wanted);
        ssize_t length = dp_recv_copy(arrays.asking, &found, sizeof found, NULL, 0, ARRAY_WAIT_NS);
        NEED(length == sizeof found && found.parts <= ARRAY_PARTS);
        offered = 0;
        for (uint64_t at = 0; at < found.parts; at++) {
            rows = found.part[at].rows;
            offered += found.part[at].count;
        }
        struct timespec pause = { 0, 200000 };
        if (offered < rows)
            nanosleep(&pause, NULL);
    }
    for (uint64_t at = 0; at < found.parts; at++) {
        const struct array_part *part = &found.part[at];
        uint32_t begin = part->first > first ? part->first : first;
        uint32_t end = part->first + part->count, own_end = first + count;
        end = end < own_end ? end : own_end;
        if (begin >= end)
            continue;
        size_t row = part->columns * sizeof *into;
        int edge = array_edge(part->owner);
        NEED(dp_get(edge, part->key, (begin - part->first) * row,
                    into + (size_t)(begin - first) * part->columns, (end - begin) * row,
                    ARRAY_WAIT_NS) == 0);
        uint64_t taken = end - begin;
        NEED(dp_edge_send(edge, &taken, sizeof taken, 0, ARRAY_WAIT_NS) >= 0);
    }
}

#endif
