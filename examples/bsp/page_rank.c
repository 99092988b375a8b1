/*
 * PageRank: in each superstep a vertex sends equal parts of its rank to its neighbours. Contributions
 * to the same vertex are added up before they are sent.
 *
 *     page_rank: 1000 vertices, the first is 9 with 0.009270
 */
#include <bsp.h>
#include <math.h>

#include "common.h"

enum { VERTICES = 1000, DEGREE = 4, STEPS = 15 };

static const double damping = 0.85;

/* Some vertices have more links than others. */
static int neighbour(int vertex, int edge)
{
    uint32_t random = noise(vertex * DEGREE + edge);
    return (int)(edge == 0 ? random % (VERTICES / 20) : random % VERTICES);
}

static void sequential(double *rank)
{
    double came[VERTICES];
    for (int v = 0; v < VERTICES; v++)
        rank[v] = 1.0 / VERTICES;
    for (int step = 0; step < STEPS; step++) {
        for (int v = 0; v < VERTICES; v++)
            came[v] = 0;
        for (int v = 0; v < VERTICES; v++)
            for (int e = 0; e < DEGREE; e++)
                came[neighbour(v, e)] += rank[v] / DEGREE;
        for (int v = 0; v < VERTICES; v++)
            rank[v] = (1 - damping) / VERTICES + damping * came[v];
    }
}

int main(void)
{
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), me = bsp_pid();

    double *rank = allocate(VERTICES, sizeof *rank), *sum = allocate(VERTICES, sizeof *sum);
    int tag_size = sizeof(int);
    bsp_set_tagsize(&tag_size);
    bsp_sync();

    for (int v = me; v < VERTICES; v += p)
        rank[v] = 1.0 / VERTICES;
    for (int step = 0; step < STEPS; step++) {
        for (int v = 0; v < VERTICES; v++)
            sum[v] = 0;
        for (int v = me; v < VERTICES; v += p)
            for (int e = 0; e < DEGREE; e++)
                sum[neighbour(v, e)] += rank[v] / DEGREE;
        for (int v = 0; v < VERTICES; v++)
            if (sum[v] > 0)
                bsp_send(v % p, &v, &sum[v], sizeof sum[v]);
        bsp_sync();
        for (int v = me; v < VERTICES; v += p)
            rank[v] = (1 - damping) / VERTICES;
        int status, vertex;
        double came;
        for (bsp_get_tag(&status, &vertex); status != -1; bsp_get_tag(&status, &vertex)) {
            bsp_move(&came, sizeof came);
            rank[vertex] += damping * came;
        }
    }

    /* The order of additions differs. */
    double *expected = allocate(VERTICES, sizeof *expected);
    sequential(expected);
    int best = 0;
    for (int v = 0; v < VERTICES; v++) {
        best = expected[v] > expected[best] ? v : best;
        if (v % p == me)
            REQUIRE(fabs(rank[v] - expected[v]) < 1e-12, "the rank of %d is %g", v, rank[v]);
    }
    bsp_sync();
    if (me == 0)
        printf("page_rank: %d vertices, the first is %d with %.6f\n", VERTICES, best,
               expected[best]);

    free(expected);
    free(sum);
    free(rank);
    bsp_end();
    return 0;
}
