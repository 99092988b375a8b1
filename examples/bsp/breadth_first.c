/*
 * Breadth-first search: a process that reaches a vertex sends messages to the owners of its
 * neighbours, tagged with the vertex.
 *
 *     breadth_first: 3000 vertices, 2819 reached, 14 levels
 */
#include <bsp.h>

#include "common.h"

enum { VERTICES = 3000, DEGREE = 3 };

static int neighbour(int vertex, int edge)
{
    return (int)(noise(vertex * DEGREE + edge) % VERTICES);
}

static int sequential(int *level)
{
    int queue[VERTICES], first = 0, last = 1, reached = 0;
    for (int v = 0; v < VERTICES; v++)
        level[v] = -1;
    queue[0] = level[0] = 0;
    while (first < last) {
        int v = queue[first++];
        reached++;
        for (int e = 0; e < DEGREE; e++) {
            int w = neighbour(v, e);
            if (level[w] < 0) {
                level[w] = level[v] + 1;
                queue[last++] = w;
            }
        }
    }
    return reached;
}

int main(void)
{
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), me = bsp_pid();

    /* Process v % p owns vertex v. */
    int *level = allocate(VERTICES, sizeof *level);
    int *parent = allocate(VERTICES, sizeof *parent);
    int *frontier = allocate(VERTICES, sizeof *frontier), size = 0;
    for (int v = 0; v < VERTICES; v++)
        level[v] = -1;
    if (me == 0)
        level[0] = frontier[size++] = 0;
    int tag_size = sizeof(int);
    bsp_set_tagsize(&tag_size);
    bsp_sync();

    int depth = 0;
    for (; bsp_any(size > 0); depth++) {
        for (int i = 0; i < size; i++)
            for (int e = 0; e < DEGREE; e++) {
                int to = neighbour(frontier[i], e);
                bsp_send(to % p, &frontier[i], &to, sizeof to);
            }
        bsp_sync();
        size = 0;
        void *tag, *payload;
        while (bsp_hpmove(&tag, &payload) != -1) {
            int vertex = *(int *)payload;
            if (level[vertex] < 0) {
                level[vertex] = depth + 1;
                parent[vertex] = *(int *)tag;
                frontier[size++] = vertex;
            }
        }
    }

    int *expected = allocate(VERTICES, sizeof *expected);
    int reached = sequential(expected), own = 0;
    for (int v = me; v < VERTICES; v += p) {
        REQUIRE(level[v] == expected[v], "vertex %d is at level %d", v, level[v]);
        REQUIRE(level[v] < 1 || expected[parent[v]] == level[v] - 1, "%d has no parent", v);
        own += level[v] >= 0;
    }
    own = bsp_sumI(own);
    REQUIRE(own == reached, "%d vertices are reached", own);
    if (me == 0)
        printf("breadth_first: %d vertices, %d reached, %d levels\n", VERTICES, reached, depth);

    free(expected);
    free(frontier);
    free(parent);
    free(level);
    bsp_end();
    return 0;
}
