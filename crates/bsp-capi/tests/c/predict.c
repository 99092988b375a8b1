/*
 * A broadcast and a sum; the argument is the number of bytes. Prints predictions.
 */
#include <bsp_level1.h>
#include <stdlib.h>

static void add(int *sum, int *one, int *other, int *nbytes)
{
    for (int i = 0; i < *nbytes / (int)sizeof *sum; i++)
        sum[i] = one[i] + other[i];
}

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    int me = bsp_pid(), p = bsp_nprocs();
    int count = argc > 1 ? atoi(argv[1]) : 1;
    int bytes = count * (int)sizeof(int);
    int *values = malloc(bytes), *sums = malloc(bytes);
    for (int i = 0; i < count; i++)
        values[i] = me == 0 ? i : -1;
    bsp_bcast(0, values, values, bytes);
    bsp_fold(add, values, sums, bytes);
    for (int i = 0; i < count; i++)
        if (values[i] != i || sums[i] != p * i)
            bsp_abort("process %d has %d and %d at place %d", me, values[i], sums[i], i);
    if (me == p - 1)
        printf("%.9f %.9f %.9f; s %g, l %g, g %g, n1/2 %d\n", bsp_predict(0, 0, 0),
               bsp_predict(p, 1e-3, 1e6), bsp_predict(2 * p, 0, 0), bsp_s(), bsp_l(), bsp_g(),
               bsp_nhalf());
    free(values);
    free(sums);
    bsp_end();
    return 0;
}
