/*
 * NAS EP, "embarrassingly parallel": pairs of Gaussian deviates by the polar method, counted by
 * the square ring in which they fall. One superstep adds the results.
 *
 *     ep [S|W|A]                any number of processes
 */
#include "nas.h"

enum { RINGS = 10, BATCH = 1 << 16 };

struct problem {
    int log_pairs;
    double sum_x, sum_y;
};

static const struct problem PROBLEMS[] = {
    {24, -3.247834652034740e+3, -6.958407078382297e+3},
    {25, -2.863319731645753e+3, -6.320053679109499e+3},
    {28, -4.295875165629892e+3, -1.580732573678431e+4},
};

/* Adds the deviates of one batch to sums[0] and sums[1], and their rings to the counts after. */
static void tally(int batch, double *sums)
{
    static double numbers[2 * BATCH];
    uint64_t seed = skip_random(271828183, (uint64_t)batch * 2 * BATCH);
    for (int i = 0; i < 2 * BATCH; i++)
        numbers[i] = 2 * next_random(&seed) - 1;
    for (int i = 0; i < BATCH; i++) {
        double x = numbers[2 * i], y = numbers[2 * i + 1];
        double square = x * x + y * y;
        if (square > 1)
            continue;
        double factor = sqrt(-2 * log(square) / square);
        x *= factor;
        y *= factor;
        sums[0] += x;
        sums[1] += y;
        sums[2 + (int)fmax(fabs(x), fabs(y))]++;
    }
}

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    int class = class_index(argc, argv), me = bsp_pid();
    const struct problem *problem = &PROBLEMS[class];
    int batches = (1 << problem->log_pairs) / BATCH;
    prepare_sums();

    double start = start_clock();
    double sums[2 + RINGS] = {0};
    for (int batch = block_begin(batches, me); batch < block_begin(batches, me + 1); batch++)
        tally(batch, sums);
    SUM(sums, 2 + RINGS);
    double seconds = bsp_time() - start;

    int is_right = is_close("sum of x", sums[0], problem->sum_x, 1e-8) &
                   is_close("sum of y", sums[1], problem->sum_y, 1e-8);
    int status = report("EP", class, seconds, ldexp(2, problem->log_pairs), is_right);
    bsp_end();
    return status;
}
