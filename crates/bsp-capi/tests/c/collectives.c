/*
 * Every collective, with lengths for which it uses different algorithms.
 */
#include <bsp.h>
#include <bsp_level1.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int p, me;

#define REQUIRE(condition)                                         \
    do {                                                       \
        if (!(condition))                                          \
            bsp_abort("%s:%d: failed: %s", __func__, __LINE__, #condition); \
    } while (0)

/* The value of process pid at index i. */
static int item(int pid, int i)
{
    return (pid + 1) * 1000003 + i * 7;
}

/* The composition of affine maps x -> a x + b depends on their order. */
struct map {
    uint32_t a, b;
};

static void compose(struct map *result, struct map *first, struct map *second, int *nbytes)
{
    for (int i = 0; i < *nbytes / (int)sizeof *result; i++) {
        result[i].a = second[i].a * first[i].a;
        result[i].b = second[i].a * first[i].b + second[i].b;
    }
}

static struct map map(int pid, int i)
{
    struct map it = {2u * (uint32_t)item(pid, i) + 1, (uint32_t)item(pid, i)};
    return it;
}

/* The result over the processes up to one. */
static struct map composed(int upto, int i)
{
    struct map all = map(0, i);
    for (int pid = 1; pid <= upto; pid++) {
        struct map next = map(pid, i), before = all;
        int size = sizeof next;
        compose(&all, &before, &next, &size);
    }
    return all;
}

static int same(struct map one, struct map other)
{
    return one.a == other.a && one.b == other.b;
}

static void copies(int count, int root)
{
    int bytes = count * (int)sizeof(int);
    int *own = malloc(bytes + 1), *one = malloc(bytes + 1);
    int *all = malloc((size_t)bytes * p + 1), *other = malloc((size_t)bytes * p + 1);
    for (int i = 0; i < count; i++) {
        own[i] = item(me, i);
        one[i] = -1;
        for (int pid = 0; pid < p; pid++) {
            all[pid * count + i] = item(me * p + pid, i);
            other[pid * count + i] = -1;
        }
    }
    bsp_bcast(root, own, one, bytes);
    for (int i = 0; i < count; i++)
        REQUIRE(one[i] == item(root, i));
    /* In place. */
    memcpy(one, own, bytes);
    bsp_bcast(root, one, one, bytes);
    for (int i = 0; i < count; i++)
        REQUIRE(one[i] == item(root, i));
    bsp_gather(root, own, me == root ? other : NULL, bytes);
    for (int i = 0; me == root && i < count * p; i++)
        REQUIRE(other[i] == item(i / count, i % count));
    bsp_scatter(root, me == root ? all : NULL, one, bytes);
    for (int i = 0; i < count; i++)
        REQUIRE(one[i] == item(root * p + me, i));
    memset(other, 0xff, (size_t)bytes * p);
    bsp_allgather(own, other, bytes);
    for (int i = 0; i < count * p; i++)
        REQUIRE(other[i] == item(i / count, i % count));
    bsp_total_exchange(all, other, bytes);
    for (int i = 0; i < count * p; i++)
        REQUIRE(other[i] == item(i / count * p + me, i % count));
    free(own);
    free(one);
    free(all);
    free(other);
}

static void combinations(int count, int root)
{
    int bytes = count * (int)sizeof(struct map);
    struct map *own = malloc(bytes), *result = malloc(bytes);
    for (int i = 0; i < count; i++)
        own[i] = map(me, i);
    bsp_fold(compose, own, result, bytes);
    for (int i = 0; i < count; i++)
        REQUIRE(same(result[i], composed(p - 1, i)));
    bsp_scan(compose, own, result, bytes);
    for (int i = 0; i < count; i++)
        REQUIRE(same(result[i], composed(me, i)));
    bsp_reduce(root, compose, own, result, bytes);
    for (int i = 0; me == root && i < count; i++)
        REQUIRE(same(result[i], composed(p - 1, i)));
    /* In place. */
    bsp_fold(compose, own, own, bytes);
    for (int i = 0; i < count; i++)
        REQUIRE(same(own[i], composed(p - 1, i)));
    free(own);
    free(result);
}

static void one_value_each(void)
{
    REQUIRE(bsp_all(1) && !bsp_all(me != 0) && bsp_any(me == p - 1) && !bsp_any(0));
    REQUIRE(bsp_sumI(me) == p * (p - 1) / 2 && bsp_sumI_prefix(1) == me + 1);
    REQUIRE(bsp_productI(2) == 1 << p && bsp_productI_prefix(2) == 2 << me);
    REQUIRE(bsp_minI(me - 3) == -3 && bsp_maxI(me) == p - 1);
    REQUIRE(bsp_minI_prefix(-me) == -me && bsp_maxI_prefix(-me) == 0);
    REQUIRE(bsp_sumR(0.5f) == 0.5f * p && bsp_sumR_prefix(0.5f) == 0.5f * (me + 1));
    REQUIRE(bsp_productR(2) == 1 << p && bsp_productR_prefix(2) == 2 << me);
    REQUIRE(bsp_minR(me) == 0 && bsp_maxR(me) == p - 1);
    REQUIRE(bsp_minR_prefix(-me) == -me && bsp_maxR_prefix(-me) == 0);
    REQUIRE(bsp_sumD(0.25) == 0.25 * p && bsp_sumD_prefix(0.25) == 0.25 * (me + 1));
    REQUIRE(bsp_productD(2) == 1 << p && bsp_productD_prefix(2) == 2 << me);
    REQUIRE(bsp_minD(me) == 0 && bsp_maxD(me) == p - 1);
    REQUIRE(bsp_minD_prefix(-me) == -me && bsp_maxD_prefix(-me) == 0);
    REQUIRE(bsp_constantI(7) && bsp_constantI(me) == (p == 1) && bsp_constantI(me > 0) == (p == 1));
    REQUIRE(bsp_sortI(p - me) == me + 1 && bsp_sortI((p - 1 - me) / 2) == me / 2);
    REQUIRE(bsp_sortR(-0.5f * me) == -0.5f * (p - 1 - me) && bsp_sortD(-me) == me - p + 1);
    REQUIRE(bsp_sortC((char)('p' - me)) == 'p' - (p - 1 - me));
}

static void what_was_asked_for_before_happens_too(void)
{
    int x = -1, right = (me + 1) % p, left = (me + p - 1) % p;
    bsp_push_reg(&x, sizeof x);
    bsp_sync();
    bsp_put(right, &me, &x, 0, sizeof x);
    REQUIRE(bsp_sumI(1) == p);
    REQUIRE(x == left);
    bsp_pop_reg(&x);
    bsp_sync();
}

int main(void)
{
    static const int counts[] = {0, 1, 3, 300, 3000, 30000};
    bsp_begin(bsp_nprocs());
    p = bsp_nprocs();
    me = bsp_pid();
    one_value_each();
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (int root = 0; root < p; root += p > 2 ? p - 1 : 1) {
            copies(counts[i], root);
            if (counts[i] > 0)
                combinations(counts[i], root);
        }
    what_was_asked_for_before_happens_too();
    bsp_sync();
    if (me == 0)
        printf("collected\n");
    bsp_end();
    return 0;
}
