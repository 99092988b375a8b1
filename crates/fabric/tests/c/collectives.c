/* Compares every collective of MPI-3 with its definition: on the world, on parts of it, and on
 * communicators with another order of ranks; blocking and nonblocking, in place and not. */
#include "common.h"

static MPI_Comm comm;
static int me, all, round_;

static int *numbers(int count)
{
    return allocate(sizeof(int) * (size_t)count);
}

static int *mine(int from, int count)
{
    int *memory = numbers(count);
    for (int i = 0; i < count; i++)
        memory[i] = value(from, i, round_);
    return memory;
}

static void compare(const int *got, int from, int first, int count, const char *what)
{
    for (int i = 0; i < count; i++)
        CHECK(got[i] == value(from, first + i, round_),
              "%s on %d ranks: %d at %d of %d from %d, not %d", what, all, got[i], i, count, from,
              value(from, first + i, round_));
}

static long sum_to(int ranks, int at)
{
    long sum = 0;
    for (int from = 0; from < ranks; from++)
        sum += value(from, at, round_);
    return sum;
}

/* No rank leaves a barrier before all have entered it. */
static void barriers(void)
{
    for (int last = 0; last < all; last++) {
        int came = 0, token = last;
        MPI_Request request;
        if (me == last && all > 1)
            MPI_Send(&token, 1, MPI_INT, (me + 1) % all, 77, comm);
        MPI_Barrier(comm);
        /* The last rank sent this before the barrier, so it has been sent now. */
        if (all > 1 && me == (last + 1) % all) {
            MPI_Recv(&came, 1, MPI_INT, last, 77, comm, MPI_STATUS_IGNORE);
            CHECK(came == last, "token %d, not %d, behind a barrier", came, last);
        }
        int done = 0;
        MPI_Ibarrier(comm, &request);
        while (!done)
            MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
}

static void broadcasts(int count)
{
    for (int root = 0; root < all; root++, round_++) {
        int *memory = me == root ? mine(root, count) : numbers(count);
        MPI_Bcast(memory, count, MPI_INT, root, comm);
        compare(memory, root, 0, count, "Bcast");
        memset(memory, me == root ? 0 : 1, sizeof(int) * (size_t)count);
        if (me == root)
            for (int i = 0; i < count; i++)
                memory[i] = value(root, i, round_);
        MPI_Request request;
        MPI_Ibcast(memory, count, MPI_INT, root, comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        compare(memory, root, 0, count, "Ibcast");
        free(memory);
    }
}

/* Composition of x -> a x + b modulo a prime: associative, not commutative. */
struct map {
    uint32_t a, b;
};
enum { PRIME = 65521 };

static void compose(void *first, void *second, int *count, MPI_Datatype *type)
{
    struct map *f = first, *g = second;
    (void)type;
    for (int i = 0; i < *count; i++) {
        struct map both = {(uint32_t)((uint64_t)f[i].a * g[i].a % PRIME),
                           (uint32_t)(((uint64_t)g[i].a * f[i].b + g[i].b) % PRIME)};
        g[i] = both;
    }
}

static struct map map_of(int from, int at)
{
    struct map map = {(uint32_t)value(from, at, round_) + 1,
                      (uint32_t)value(from, at + 5000, round_)};
    return map;
}

static void check_maps(const struct map *got, int ranks, int count, const char *what)
{
    for (int i = 0; i < count; i++) {
        struct map whole = map_of(0, i);
        for (int from = 1; from < ranks; from++) {
            struct map next = map_of(from, i);
            int one = 1;
            compose(&whole, &next, &one, NULL);
            whole = next;
        }
        CHECK(got[i].a == whole.a && got[i].b == whole.b,
              "%s of maps on %d ranks: wrong at %d of %d", what, all, i, count);
    }
}

static void reductions(int count)
{
    int *own = mine(me, count), *got = numbers(count);
    for (int root = 0; root < all; root++) {
        MPI_Reduce(own, got, count, MPI_INT, MPI_SUM, root, comm);
        for (int i = 0; me == root && i < count; i++)
            CHECK(got[i] == sum_to(all, i), "Reduce to %d: %d at %d of %d, not %ld", root, got[i],
                  i, count, sum_to(all, i));
    }
    MPI_Allreduce(own, got, count, MPI_INT, MPI_SUM, comm);
    for (int i = 0; i < count; i++)
        CHECK(got[i] == sum_to(all, i), "Allreduce: %d at %d of %d, not %ld", got[i], i, count,
              sum_to(all, i));
    memcpy(got, own, sizeof(int) * (size_t)count);
    MPI_Allreduce(MPI_IN_PLACE, got, count, MPI_INT, MPI_MAX, comm);
    for (int i = 0; i < count; i++) {
        int most = 0;
        for (int from = 0; from < all; from++)
            most = value(from, i, round_) > most ? value(from, i, round_) : most;
        CHECK(got[i] == most, "Allreduce of maxima: %d at %d of %d, not %d", got[i], i, count,
              most);
    }
    MPI_Request request;
    MPI_Iallreduce(own, got, count, MPI_INT, MPI_SUM, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int i = 0; i < count; i++)
        CHECK(got[i] == sum_to(all, i), "Iallreduce: %d at %d of %d", got[i], i, count);
    MPI_Scan(own, got, count, MPI_INT, MPI_SUM, comm);
    for (int i = 0; i < count; i++)
        CHECK(got[i] == sum_to(me + 1, i), "Scan: %d at %d of %d", got[i], i, count);
    MPI_Exscan(own, got, count, MPI_INT, MPI_SUM, comm);
    for (int i = 0; me > 0 && i < count; i++)
        CHECK(got[i] == sum_to(me, i), "Exscan: %d at %d of %d", got[i], i, count);
    free(own);
    free(got);

    struct {
        double value;
        int at;
    } place = {value(me, 0, round_), me}, best;
    MPI_Allreduce(&place, &best, 1, MPI_DOUBLE_INT, MPI_MAXLOC, comm);
    int who = 0;
    for (int from = 1; from < all; from++)
        who = value(from, 0, round_) > value(who, 0, round_) ? from : who;
    CHECK(best.at == who && best.value == value(who, 0, round_), "MAXLOC: %g at %d, not at %d",
          best.value, best.at, who);

    MPI_Datatype type;
    MPI_Op op;
    MPI_Type_contiguous(2, MPI_UINT32_T, &type);
    MPI_Type_commit(&type);
    MPI_Op_create(compose, 0, &op);
    struct map *maps = allocate(sizeof *maps * (size_t)count);
    struct map *whole = allocate(sizeof *whole * (size_t)count);
    for (int i = 0; i < count; i++)
        maps[i] = map_of(me, i);
    MPI_Allreduce(maps, whole, count, type, op, comm);
    check_maps(whole, all, count, "Allreduce");
    MPI_Scan(maps, whole, count, type, op, comm);
    check_maps(whole, me + 1, count, "Scan");
    MPI_Reduce(maps, whole, count, type, op, all - 1, comm);
    if (me == all - 1)
        check_maps(whole, all, count, "Reduce");
    free(maps);
    free(whole);
    MPI_Op_free(&op);
    MPI_Type_free(&type);
    round_++;
}

static void reduce_scatters(int count)
{
    int *own = mine(me, count * all), *got = numbers(count);
    MPI_Reduce_scatter_block(own, got, count, MPI_INT, MPI_SUM, comm);
    for (int i = 0; i < count; i++)
        CHECK(got[i] == sum_to(all, me * count + i), "Reduce_scatter_block: wrong at %d", i);
    int *counts = numbers(all), total = 0, before = 0;
    for (int to = 0; to < all; to++) {
        counts[to] = count * to / all;
        before += to < me ? counts[to] : 0;
        total += counts[to];
    }
    CHECK(total <= count * all, "counts are too large");
    MPI_Reduce_scatter(own, got, counts, MPI_INT, MPI_SUM, comm);
    for (int i = 0; i < counts[me]; i++)
        CHECK(got[i] == sum_to(all, before + i), "Reduce_scatter: wrong at %d", i);
    free(own);
    free(got);
    free(counts);
    round_++;
}

/* The number of items of a rank where ranks have different counts; some have none. */
static int share(int of, int count)
{
    return of % 3 == 1 ? 0 : count * (of + 1) / all;
}

static void gathers(int count)
{
    int *own = mine(me, count), *got = numbers(count * all), *counts = numbers(all);
    int *at = numbers(all), next = 0;
    for (int from = 0; from < all; from++) {
        counts[from] = share(from, count);
        at[from] = next + from % 2;
        next = at[from] + counts[from];
    }
    int *parts = numbers(next);
    for (int root = 0; root < all; root++) {
        MPI_Gather(own, count, MPI_INT, got, count, MPI_INT, root, comm);
        for (int from = 0; me == root && from < all; from++)
            compare(got + from * count, from, 0, count, "Gather");
        MPI_Gatherv(own, counts[me], MPI_INT, parts, counts, at, MPI_INT, root, comm);
        for (int from = 0; me == root && from < all; from++)
            compare(parts + at[from], from, 0, counts[from], "Gatherv");
    }
    MPI_Allgather(own, count, MPI_INT, got, count, MPI_INT, comm);
    for (int from = 0; from < all; from++)
        compare(got + from * count, from, 0, count, "Allgather");
    memset(got, 0, sizeof(int) * (size_t)(count * all));
    memcpy(got + me * count, own, sizeof(int) * (size_t)count);
    MPI_Request request;
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_INT, got, count, MPI_INT, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int from = 0; from < all; from++)
        compare(got + from * count, from, 0, count, "Iallgather");
    memset(parts, 0, sizeof(int) * (size_t)next);
    MPI_Allgatherv(own, counts[me], MPI_INT, parts, counts, at, MPI_INT, comm);
    for (int from = 0; from < all; from++)
        compare(parts + at[from], from, 0, counts[from], "Allgatherv");
    free(own);
    free(got);
    free(counts);
    free(at);
    free(parts);
    round_++;
}

static void scatters(int count)
{
    int *counts = numbers(all), *at = numbers(all), next = 0;
    for (int to = 0; to < all; to++) {
        counts[to] = share(to, count);
        at[to] = next;
        next += counts[to];
    }
    for (int root = 0; root < all; root++, round_++) {
        int *from = me == root ? mine(root, count * all) : NULL, *got = numbers(count);
        MPI_Scatter(from, count, MPI_INT, got, count, MPI_INT, root, comm);
        compare(got, root, me * count, count, "Scatter");
        MPI_Scatterv(from, counts, at, MPI_INT, got, counts[me], MPI_INT, root, comm);
        compare(got, root, at[me], counts[me], "Scatterv");
        free(from);
        free(got);
    }
    free(counts);
    free(at);
}

static void exchanges(int count)
{
    int *own = mine(me, count * all), *got = numbers(count * all);
    MPI_Alltoall(own, count, MPI_INT, got, count, MPI_INT, comm);
    for (int from = 0; from < all; from++)
        compare(got + from * count, from, me * count, count, "Alltoall");
    memset(got, 0, sizeof(int) * (size_t)(count * all));
    MPI_Request request;
    MPI_Ialltoall(own, count, MPI_INT, got, count, MPI_INT, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int from = 0; from < all; from++)
        compare(got + from * count, from, me * count, count, "Ialltoall");
    memcpy(got, own, sizeof(int) * (size_t)(count * all));
    MPI_Alltoall(MPI_IN_PLACE, 0, MPI_INT, got, count, MPI_INT, comm);
    for (int from = 0; from < all; from++)
        compare(got + from * count, from, me * count, count, "Alltoall in place");

    /* Rank i sends i + j items to rank j, or none. */
    int *out = numbers(all), *in = numbers(all), *out_at = numbers(all), *in_at = numbers(all);
    int *out_bytes = numbers(all), *in_bytes = numbers(all);
    MPI_Datatype *types = allocate(sizeof *types * (size_t)all);
    for (int other = 0; other < all; other++) {
        int both = (me + other) % 4 == 1 ? 0 : count * (me + other) / (2 * all);
        out[other] = in[other] = both;
        out_at[other] = in_at[other] = other * count;
        out_bytes[other] = in_bytes[other] = other * count * (int)sizeof(int);
        types[other] = MPI_INT;
    }
    memset(got, 0, sizeof(int) * (size_t)(count * all));
    MPI_Alltoallv(own, out, out_at, MPI_INT, got, in, in_at, MPI_INT, comm);
    for (int from = 0; from < all; from++)
        compare(got + from * count, from, me * count, in[from], "Alltoallv");
    memset(got, 0, sizeof(int) * (size_t)(count * all));
    MPI_Alltoallw(own, out, out_bytes, types, got, in, in_bytes, types, comm);
    for (int from = 0; from < all; from++)
        compare(got + from * count, from, me * count, in[from], "Alltoallw");
    free(out);
    free(in);
    free(out_at);
    free(in_at);
    free(out_bytes);
    free(in_bytes);
    free(types);
    free(own);
    free(got);
    round_++;
}

/* Many nonblocking collectives at once, completed in another order. */
static void several_at_once(int count)
{
    enum { EACH = 8 };
    MPI_Request requests[2 * EACH];
    int *sums[EACH], *own[EACH], *from[EACH];
    for (int i = 0; i < EACH; i++) {
        sums[i] = numbers(count);
        own[i] = mine(me, count);
        from[i] = i % all == me ? mine(me, count) : numbers(count);
        MPI_Iallreduce(own[i], sums[i], count, MPI_INT, MPI_SUM, comm, &requests[2 * i]);
        MPI_Ibcast(from[i], count, MPI_INT, i % all, comm, &requests[2 * i + 1]);
    }
    for (int i = 2 * EACH - 1; i >= EACH; i--)
        MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
    MPI_Waitall(EACH, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < EACH; i++) {
        for (int at = 0; at < count; at++)
            CHECK(sums[i][at] == sum_to(all, at), "sum %d of several at once: wrong at %d", i, at);
        compare(from[i], i % all, 0, count, "Ibcast of several at once");
        free(sums[i]);
        free(own[i]);
        free(from[i]);
    }
    round_++;
}

/* Neighbours on a ring and on a graph. */
static void neighbours(int count)
{
    MPI_Comm ring, graph;
    int periodic = 1, sides[2];
    MPI_Cart_create(comm, 1, &all, &periodic, 0, &ring);
    MPI_Cart_shift(ring, 0, 1, &sides[0], &sides[1]);
    int *own = mine(me, 2 * count), *got = numbers(2 * count);
    MPI_Neighbor_alltoall(own, count, MPI_INT, got, count, MPI_INT, ring);
    /* If both neighbours are the same rank, versions of the standard disagree about the order of its
     * parts. */
    if (all > 2) {
        compare(got, sides[0], count, count, "Neighbor_alltoall from the left");
        compare(got + count, sides[1], 0, count, "Neighbor_alltoall from the right");
    }
    int next = (me + 1) % all, previous = (me + all - 1) % all;
    int weight = 1;
    MPI_Dist_graph_create_adjacent(comm, 1, &previous, &weight, 1, &next, &weight, MPI_INFO_NULL, 0,
                                   &graph);
    MPI_Neighbor_allgather(own, count, MPI_INT, got, count, MPI_INT, graph);
    compare(got, previous, 0, count, "Neighbor_allgather");
    MPI_Comm_free(&ring);
    MPI_Comm_free(&graph);
    free(own);
    free(got);
    round_++;
}

static void all_of_them(MPI_Comm on, int most)
{
    static const int COUNTS[] = {0, 1, 7, 400, 5000, 40000};
    comm = on;
    round_ = 0;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &all);
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS && COUNTS[i] <= most; i++) {
        int count = COUNTS[i];
        barriers();
        broadcasts(count);
        reductions(count);
        reduce_scatters(count);
        gathers(count);
        scatters(count);
        exchanges(count);
        several_at_once(count);
        neighbours(count);
    }
}

/* Two halves communicate as groups, then as one group. */
static void between_groups(void)
{
    if (size < 2)
        return;
    MPI_Comm half, between, whole;
    int upper = rank >= size / 2, sum, ranks;
    MPI_Comm_split(MPI_COMM_WORLD, upper, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, upper ? 0 : size / 2, 9, &between);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, between);
    int wanted = 0;
    for (int other = 0; other < size; other++)
        wanted += (other >= size / 2) != upper ? other : 0;
    CHECK(sum == wanted, "Allreduce between groups: %d, not %d", sum, wanted);
    MPI_Intercomm_merge(between, upper, &whole);
    MPI_Comm_size(whole, &ranks);
    CHECK(ranks == size, "merged groups have %d ranks, not %d", ranks, size);
    all_of_them(whole, 7);
    MPI_Comm_free(&whole);
    MPI_Comm_free(&between);
    MPI_Comm_free(&half);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    int most = argc > 1 ? atoi(argv[1]) : 40000;
    all_of_them(MPI_COMM_WORLD, most);
    MPI_Comm part, reversed, copy;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &part);
    all_of_them(part, 400);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    all_of_them(reversed, 400);
    MPI_Comm_dup(part, &copy);
    all_of_them(copy, 7);
    MPI_Comm_free(&copy);
    MPI_Comm_free(&part);
    MPI_Comm_free(&reversed);
    between_groups();
    return finish("collectives");
}
