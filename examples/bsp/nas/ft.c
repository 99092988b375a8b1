/*
 * NAS FT: a partial differential equation solved with Fourier transforms in three dimensions.
 * Processes own planes of constant z, or after a transposition planes of constant y. Each
 * transform takes one superstep, the transposition; one more adds all checksums at the end.
 *
 *     ft [S|W|A]                any number of processes
 */
#include "nas.h"

enum { ITERATIONS = 6, TERMS = 1024, COLUMNS = 8, MAX_POINTS = 256 };

struct problem {
    int nx, ny, nz;
    double sums[ITERATIONS][2];
};

static const struct problem PROBLEMS[] = {
    {64, 64, 64,
     {{554.6087004964, 484.5363331978}, {554.6385409189, 486.5304269511},
      {554.6148406171, 488.3910722336}, {554.5423607415, 490.1273169046},
      {554.4255039624, 491.7475857993}, {554.2683411902, 493.2597244941}}},
    {128, 128, 32,
     {{567.3612178944, 529.3246849175}, {563.1436885271, 528.2149986629},
      {559.4024089970, 527.0996558037}, {556.0698047020, 526.0027904925},
      {553.0898991250, 524.9400845633}, {550.4159734538, 523.9212247086}}},
    {256, 256, 128,
     {{504.6735008193, 511.4047905510}, {505.9412319734, 509.8809666433},
      {506.9376896287, 509.8144042213}, {507.7892868474, 510.1336130759},
      {508.5233095391, 510.4914655194}, {509.1487099959, 510.7917842803}}},
};

struct complex {
    double re, im;
};

/* The size of the grid, and the planes of this process: z in [z0, z1) and y in [y0, y1). */
static int nx, ny, nz, y0, y1, z0, z1;

/* exp(-2 pi i k / MAX_POINTS) */
static struct complex roots[MAX_POINTS];

/* Columns that are transformed together: real and imaginary parts of each point. */
typedef double block[MAX_POINTS][COLUMNS];
struct columns {
    block re, im;
};

/* One pass of Stockham's algorithm for n points in groups of m; sign is -1 for the inverse. */
static void pass(struct columns *to, const struct columns *from, int n, int m, int sign)
{
    int half = n / 2;
    for (int j = 0; j < half; j += m) {
        struct complex root = roots[j * (MAX_POINTS / n)];
        root.im *= sign;
        for (int k = j; k < j + m; k++)
            for (int c = 0; c < COLUMNS; c++) {
                double re = from->re[k][c] - from->re[k + half][c];
                double im = from->im[k][c] - from->im[k + half][c];
                to->re[j + k][c] = from->re[k][c] + from->re[k + half][c];
                to->im[j + k][c] = from->im[k][c] + from->im[k + half][c];
                to->re[j + k + m][c] = re * root.re - im * root.im;
                to->im[j + k + m][c] = re * root.im + im * root.re;
            }
    }
}

/* How the points and columns of one direction lie in memory. */
struct layout {
    int point, column;
};

/*
 * Transforms `count` columns of n points. The result goes to the same columns, or to another array
 * in the order that a transposition needs.
 */
static void transform(struct complex *to, struct layout out, const struct complex *from,
                      struct layout in, int n, int count, int sign)
{
    static struct columns here, there;
    for (int first = 0; first < count; first += COLUMNS) {
        for (int k = 0; k < n; k++)
            for (int c = 0; c < COLUMNS; c++) {
                struct complex value = from[k * in.point + (first + c) * in.column];
                here.re[k][c] = value.re;
                here.im[k][c] = value.im;
            }
        struct columns *now = &here, *next = &there;
        for (int m = 1; m < n; m *= 2) {
            pass(next, now, n, m, sign);
            struct columns *last = now;
            now = next;
            next = last;
        }
        for (int k = 0; k < n; k++)
            for (int c = 0; c < COLUMNS; c++) {
                struct complex value = {now->re[k][c], now->im[k][c]};
                to[k * out.point + (first + c) * out.column] = value;
            }
    }
}

/* Along x and y in planes of z; the result has the planes of y outside, for put_by_y(). */
static void transform_to_y(struct complex *to, struct complex *by_z)
{
    struct layout along_x = {1, nx}, along_y = {nx, 1}, outside = {(z1 - z0) * nx, 1};
    for (int z = 0; z < z1 - z0; z++) {
        struct complex *plane = by_z + z * ny * nx;
        transform(plane, along_x, plane, along_x, nx, ny, 1);
        transform(to + z * nx, outside, plane, along_y, ny, nx, 1);
    }
}

static void inverse_in_z(struct complex *by_z)
{
    struct layout along_x = {1, nx}, along_y = {nx, 1};
    for (int z = 0; z < z1 - z0; z++) {
        struct complex *plane = by_z + z * ny * nx;
        transform(plane, along_y, plane, along_y, ny, nx, -1);
        transform(plane, along_x, plane, along_x, nx, ny, -1);
    }
}

static void transform_along_z(struct complex *by_y)
{
    struct layout along_z = {nx, 1};
    for (int y = 0; y < y1 - y0; y++)
        transform(by_y + y * nz * nx, along_z, by_y + y * nz * nx, along_z, nz, nx, 1);
}

/* The inverse along z in planes of y; the result has the planes of z outside, for put_by_z(). */
static void inverse_to_z(struct complex *to, const struct complex *by_y)
{
    struct layout along_z = {nx, 1}, outside = {(y1 - y0) * nx, 1};
    for (int y = 0; y < y1 - y0; y++)
        transform(to + y * nx, outside, by_y + y * nz * nx, along_z, nz, nx, -1);
}

/*
 * Puts the rows [begin, end) of each of n planes, which have n_rows rows, to the owner of the plane:
 * one put for each plane.
 */
static void put_planes(struct complex *to, const struct complex *from, int n, int n_rows, int begin,
                       int end)
{
    int size = (end - begin) * nx;
    for (int plane = 0; plane < n; plane++) {
        int owner = block_owner(n, plane);
        int offset = ((plane - block_begin(n, owner)) * n_rows + begin) * nx;
        deliver(owner, from + plane * size, to, offset * (int)sizeof *from,
                size * (int)sizeof *from);
    }
}

static void put_by_y(struct complex *by_y, const struct complex *from)
{
    put_planes(by_y, from, ny, nz, z0, z1);
}

static void put_by_z(struct complex *by_z, const struct complex *from)
{
    put_planes(by_z, from, nz, ny, y0, y1);
}

static void fill_with_random(struct complex *by_z)
{
    uint64_t seed = skip_random(314159265, (uint64_t)2 * nx * ny * z0);
    for (int i = 0; i < (z1 - z0) * ny * nx; i++) {
        by_z[i].re = next_random(&seed);
        by_z[i].im = next_random(&seed);
    }
}

/* The square of the frequency of index i of n. */
static double frequency(int i, int n)
{
    int signed_index = i < n / 2 ? i : i - n;
    return (double)signed_index * signed_index;
}

/* decay = exp(-4 alpha pi^2 |frequency|^2) for one unit of time, in planes of y. */
static void make_decay(double *decay)
{
    double factor = -4e-6 * NAS_PI * NAS_PI;
    for (int y = y0; y < y1; y++)
        for (int z = 0; z < nz; z++)
            for (int x = 0; x < nx; x++)
                *decay++ = exp(factor * (frequency(x, nx) + frequency(y, ny) + frequency(z, nz)));
}

/* Lets the spectrum decay for one unit of time, and copies it. */
static void evolve(struct complex *copy, struct complex *spectrum, const double *decay)
{
    for (int i = 0; i < (y1 - y0) * nz * nx; i++) {
        spectrum[i].re *= decay[i];
        spectrum[i].im *= decay[i];
        copy[i] = spectrum[i];
    }
}

/* The part of the checksum in the planes of this process. */
static void add_terms(double *sum, const struct complex *by_z)
{
    double points = (double)nx * ny * nz;
    sum[0] = sum[1] = 0;
    for (int j = 1; j <= TERMS; j++) {
        int x = j % nx, y = 3 * j % ny, z = 5 * j % nz;
        if (z < z0 || z >= z1)
            continue;
        sum[0] += by_z[((z - z0) * ny + y) * nx + x].re / points;
        sum[1] += by_z[((z - z0) * ny + y) * nx + x].im / points;
    }
}

/* Arrays in planes of z, in planes of y (the spectrum, and a copy that decays), and to send from. */
static struct complex *by_z, *spectrum, *scratch, *outgoing;
static double *decay;

static void run(double (*sums)[2])
{
    for (int k = 0; k < MAX_POINTS; k++) {
        roots[k].re = cos(-2 * NAS_PI * k / MAX_POINTS);
        roots[k].im = sin(-2 * NAS_PI * k / MAX_POINTS);
    }
    make_decay(decay);
    fill_with_random(by_z);
    transform_to_y(outgoing, by_z);
    put_by_y(spectrum, outgoing);
    SYNC();
    transform_along_z(spectrum);
    for (int t = 0; t < ITERATIONS; t++) {
        evolve(scratch, spectrum, decay);
        inverse_to_z(outgoing, scratch);
        put_by_z(by_z, outgoing);
        SYNC();
        inverse_in_z(by_z);
        add_terms(sums[t], by_z);
    }
    SUM(sums[0], 2 * ITERATIONS);
}

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    int class = class_index(argc, argv), me = bsp_pid();
    const struct problem *problem = &PROBLEMS[class];
    nx = problem->nx;
    ny = problem->ny;
    nz = problem->nz;
    y0 = block_begin(ny, me);
    y1 = block_begin(ny, me + 1);
    z0 = block_begin(nz, me);
    z1 = block_begin(nz, me + 1);
    size_t z_points = (size_t)(z1 - z0) * ny * nx, y_points = (size_t)(y1 - y0) * nz * nx;
    by_z = allocate(z_points, sizeof *by_z);
    spectrum = allocate(y_points, sizeof *spectrum);
    scratch = allocate(y_points, sizeof *scratch);
    outgoing = allocate(z_points > y_points ? z_points : y_points, sizeof *outgoing);
    decay = allocate(y_points, sizeof *decay);
    bsp_push_reg(by_z, (int)(z_points * sizeof *by_z));
    bsp_push_reg(spectrum, (int)(y_points * sizeof *spectrum));
    prepare_sums();

    /* Once before the clock starts, so that all memory is in use. */
    double sums[ITERATIONS][2];
    run(sums);
    double start = start_clock();
    run(sums);
    double seconds = bsp_time() - start;

    int is_right = 1;
    for (int t = 0; t < ITERATIONS; t++) {
        is_right &= is_close("real sum", sums[t][0], problem->sums[t][0], 1e-12);
        is_right &= is_close("imaginary", sums[t][1], problem->sums[t][1], 1e-12);
    }
    double points = (double)nx * ny * nz;
    double operations = points * (14.8157 + 7.19641 * log(points) +
                                  (5.23518 + 7.21113 * log(points)) * ITERATIONS);
    int status = report("FT", class, seconds, operations, is_right);
    bsp_end();
    return status;
}
