/*
 * Fourier transform of 1024 points, arranged as a matrix of 32 rows: transforms of the rows,
 * twiddle factors, one transposition with puts, and transforms of the rows again.
 *
 *     fft: 1024 points, greatest 39.31 at 869
 */
#include <bsp.h>
#include <complex.h>
#include <math.h>

#include "common.h"

enum { SIDE = 32, POINTS = SIDE * SIDE };

static double complex point(int i)
{
    return (double)noise(2 * i) / 4294967296.0 - 0.5 + I * ((double)noise(2 * i + 1) / 4294967296.0 - 0.5);
}

/* exp(-2 pi i k / n) */
static double complex root(int k, int n)
{
    double angle = -2 * 3.14159265358979323846 * k / n;
    return cos(angle) + I * sin(angle);
}

/* In place, for a power of 2. */
static void transform(double complex *row, int n)
{
    if (n == 1)
        return;
    double complex even[SIDE / 2], odd[SIDE / 2];
    for (int i = 0; i < n / 2; i++) {
        even[i] = row[2 * i];
        odd[i] = row[2 * i + 1];
    }
    transform(even, n / 2);
    transform(odd, n / 2);
    for (int i = 0; i < n / 2; i++) {
        double complex turned = root(i, n) * odd[i];
        row[i] = even[i] + turned;
        row[i + n / 2] = even[i] - turned;
    }
}

/* The maximum of a spectrum and its index, combined over processes. */
struct peak {
    double height;
    int at;
};

static void higher(struct peak *result, struct peak *left, struct peak *right, int *nbytes)
{
    (void)nbytes;
    int is_left = left->height > right->height ||
                  (left->height == right->height && left->at < right->at);
    *result = is_left ? *left : *right;
}

int main(void)
{
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), me = bsp_pid();
    int begin = block_begin(SIDE, me, p), end = block_begin(SIDE, me + 1, p);

    double complex(*turned)[SIDE] = allocate(end - begin, sizeof *turned);
    bsp_push_reg(turned, (end - begin) * (int)sizeof *turned);
    bsp_sync();

    /* Row r contains the points r, r + 32, r + 64, ... */
    for (int r = begin; r < end; r++) {
        double complex row[SIDE];
        for (int i = 0; i < SIDE; i++)
            row[i] = point(i * SIDE + r);
        transform(row, SIDE);
        for (int k = 0; k < SIDE; k++) {
            double complex value = row[k] * root(r * k, POINTS);
            int owner = block_owner(SIDE, k, p);
            int offset = ((k - block_begin(SIDE, owner, p)) * SIDE + r) * (int)sizeof value;
            bsp_put(owner, &value, turned, offset, sizeof value);
        }
    }
    bsp_sync();

    struct peak peak = {-1, 0}, highest;
    for (int r = begin; r < end; r++) {
        double complex *row = turned[r - begin];
        transform(row, SIDE);
        for (int k = 0; k < SIDE; k++) {
            /* Directly from the definition. */
            int at = k * SIDE + r;
            double complex expected = 0;
            for (int i = 0; i < POINTS; i++)
                expected += point(i) * root((int)((int64_t)i * at % POINTS), POINTS);
            REQUIRE(cabs(row[k] - expected) < 1e-9, "point %d is wrong", at);
            struct peak here = {cabs(row[k]), at};
            peak = here.height > peak.height ? here : peak;
        }
    }
    bsp_fold(higher, &peak, &highest, sizeof peak);
    if (me == 0)
        printf("fft: %d points, greatest %.2f at %d\n", POINTS, highest.height, highest.at);

    free(turned);
    bsp_end();
    return 0;
}
