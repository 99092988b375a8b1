/* Times bsp_reshuffle_execute, a bare copy, and one bsp_put of the bytes that change their process, at once in all
 * processes: prints "NAME seconds memcpy seconds stream seconds" of the fastest of some runs. */
#include <bsp.h>
#include <bsp_reshuffle.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

int main(void)
{
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), me = bsp_pid();
    /* By columns: the slowest dimension is the second index. */
    const size_t extents[] = {N, N};
    const int before[] = {1, p}, after[] = {p, 1};
    size_t most = ((size_t)N * N / (size_t)p + 64 * N) * sizeof(double);
    double *src = malloc(most), *dst = malloc(most), *copy = malloc(most);
    if (!src || !dst || !copy)
        bsp_abort("no memory");
    memset(dst, 1, most);
    memset(copy, 1, most);
    memset(src, 1, most);
    for (int which = 0; which < CASES; which++) {
        const int rows = part(cases[which].rows, p);
        const int columns = cases[which].columns ? cases[which].columns : N;
        const int columns_after = part(cases[which].columns_after, p);
        const int rows_after = cases[which].rows_after ? cases[which].rows_after : N;
        const size_t from[] = {(size_t)columns, (size_t)rows};
        const size_t to[] = {(size_t)columns_after, (size_t)rows_after};
        bsp_reshuffle_plan *plan =
            bsp_reshuffle_plan_create(2, extents, sizeof(double), before, from, after, to);
        size_t own = bsp_distribution_elements(2, extents, before, from, me);
        size_t got = bsp_distribution_elements(2, extents, after, to, me);
        size_t height = own / N, at = 0;
        for (int column = 0; column < N; column++)
            for (size_t place = 0; place < height; place++) {
                int block = (int)place / rows * p + me;
                src[at++] = element(block * rows + (int)place % rows, column);
            }
        double least = 1e9, bare = 1e9, streamed = 1e9;
        /* Of p parts of an array all but one go to others, in these cases. */
        int moved = (int)(own / (size_t)p * (size_t)(p - 1) * sizeof(double));
        bsp_push_reg(copy, (int)most);
        bsp_sync();
        for (int time = 0; time < TIMES; time++) {
            bsp_sync();
            double began = bsp_time();
            memcpy(copy, src, own * sizeof(double));
            bsp_sync();
            double took = bsp_time() - began;
            if (took < bare)
                bare = took;
            began = bsp_time();
            bsp_hpput((me + 1) % p, src, copy, 0, moved);
            bsp_sync();
            took = bsp_time() - began;
            if (took < streamed)
                streamed = took;
            bsp_sync();
            began = bsp_time();
            bsp_reshuffle_execute(plan, src, dst);
            bsp_sync();
            took = bsp_time() - began;
            if (took < least)
                least = took;
        }
        bsp_pop_reg(copy);
        for (size_t place = 0; place < got; place++) {
            int column = (int)(place / N), row = (int)(place % N);
            int block = column / columns_after * p + me;
            if (dst[place] != element(row, block * columns_after + column % columns_after))
                bsp_abort("%s: element %d is wrong", cases[which].name, (int)place);
        }
        bsp_reshuffle_plan_destroy(plan);
        bsp_sync();
        if (me == 0)
            printf("%s %.6f memcpy %.6f stream %.6f\n", cases[which].name, least, bare, streamed);
    }
    bsp_end();
    return 0;
}
