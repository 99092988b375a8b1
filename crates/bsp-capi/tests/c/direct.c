/*
 * Reads memory of other processes before the superstep ends.
 */
#include <bsp.h>
#include <stdlib.h>

#define MANY 40000

int main(void)
{
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), me = bsp_pid();
    int *area = calloc(MANY, sizeof *area), *copy = calloc(MANY, sizeof *copy);
    bsp_push_reg(area, MANY * (int)sizeof *area);
    bsp_sync();
    for (int round = 0; round < 50; round++) {
        /* The last process has most to do at the end of the superstep. */
        for (int i = 0; i < MANY; i++)
            copy[i] = round * p + me;
        for (int to = 0; to < p; to++)
            if (to >= me)
                bsp_put(to, copy, area, 0, MANY * (int)sizeof *copy);
        bsp_sync();
        for (int of = 0; of < p; of++) {
            bsp_direct_get(of, area, 0, copy, MANY * (int)sizeof *copy);
            for (int i = 0; i < MANY; i++)
                if (copy[i] / p != round || copy[i] % p > of)
                    bsp_abort("round %d: %d of process %d is %d", round, i, of, copy[i]);
        }
        bsp_direct_get(-1, NULL, 0, NULL, 0);
        bsp_sync();
    }
    if (me == 0)
        puts("read");
    bsp_end();
    return 0;
}
