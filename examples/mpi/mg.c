/* Multigrid for Poisson's equation in a periodic cube, like the kernel MG of the NAS parallel
 * benchmarks. Planes are distributed in slabs. Neighbours exchange the planes between them on every
 * grid, from the finest one with long planes to the one with a single plane per rank. Coarser grids
 * are sent to all ranks, each of which computes them completely.
 *
 *     mpicc -O3 -o mg mg.c -lm && mpirun -n 4 ./mg [LOG2_SIDE [CYCLES]]
 */
#include "common.h"
#include <math.h>
#include <string.h>

enum { SWEEPS = 2, MOST_LEVELS = 12 };

/* A grid: a solution u for the right side f, and the residual r. Each has a plane of the neighbours
 * on both sides. */
typedef struct {
    int side, planes;
    double *u, *f, *r;
} grid;

static int rank, size, levels;
static grid grids[MOST_LEVELS];

static size_t area_of(const grid *g)
{
    return (size_t)g->side * (size_t)g->side;
}

static double *plane(const grid *g, double *of, int z)
{
    return of + (size_t)(z + 1) * area_of(g);
}

/* Fetches the neighbours' planes; where each rank has all planes, copies those of the other end. */
static void exchange(const grid *g, double *of)
{
    int area = (int)area_of(g), above = (rank + 1) % size, below = (rank + size - 1) % size;
    if (g->planes == g->side)
        above = below = rank;
    MPI_Sendrecv(plane(g, of, g->planes - 1), area, MPI_DOUBLE, above, 1, plane(g, of, -1), area,
                 MPI_DOUBLE, below, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(plane(g, of, 0), area, MPI_DOUBLE, below, 2, plane(g, of, g->planes), area,
                 MPI_DOUBLE, above, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* r = f - A u, where A u is six times a point minus its neighbours, divided by the square of the distance. */
static void residual(const grid *g)
{
    int n = g->side;
    double scale = (double)n * n;
    exchange(g, g->u);
    for (int z = 0; z < g->planes; z++)
        for (int y = 0; y < n; y++) {
            size_t row = (size_t)y * (size_t)n;
            const double *here = plane(g, g->u, z) + row;
            const double *down = plane(g, g->u, z - 1) + row, *up = plane(g, g->u, z + 1) + row;
            const double *south = plane(g, g->u, z) + (size_t)((y + n - 1) % n) * (size_t)n;
            const double *north = plane(g, g->u, z) + (size_t)((y + 1) % n) * (size_t)n;
            const double *f = plane(g, g->f, z) + row;
            double *r = plane(g, g->r, z) + row;
            for (int x = 0; x < n; x++) {
                double west = here[x ? x - 1 : n - 1], east = here[x < n - 1 ? x + 1 : 0];
                double others = west + east + south[x] + north[x] + down[x] + up[x];
                r[x] = f[x] - (6 * here[x] - others) * scale;
            }
        }
}

/* Jacobi's method, damped so that high frequencies decay first. */
static void smooth(const grid *g, int sweeps)
{
    double step = 6.0 / 7 / 6 / ((double)g->side * g->side);
    size_t points = area_of(g) * (size_t)g->planes;
    for (int sweep = 0; sweep < sweeps; sweep++) {
        residual(g);
        double *u = plane(g, g->u, 0), *r = plane(g, g->r, 0);
        for (size_t i = 0; i < points; i++)
            u[i] += step * r[i];
    }
}

/* The right side of the coarser grid: a mean of the residual around each of its points. */
static void restrict_to(const grid *fine, const grid *coarse, double *to)
{
    int n = fine->side, half = coarse->side, planes = fine->planes / 2;
    exchange(fine, fine->r);
    for (int z = 0; z < planes; z++)
        for (int y = 0; y < half; y++)
            for (int x = 0; x < half; x++) {
                double sum = 0;
                for (int dz = -1; dz <= 1; dz++)
                    for (int dy = -1; dy <= 1; dy++) {
                        size_t row = (size_t)((2 * y + dy + n) % n) * (size_t)n;
                        const double *r = plane(fine, fine->r, 2 * z + dz) + row;
                        double line = 2 * r[2 * x] + r[(2 * x + n - 1) % n] + r[(2 * x + 1) % n];
                        sum += line * (dz ? 1 : 2) * (dy ? 1 : 2);
                    }
                to[((size_t)z * (size_t)half + (size_t)y) * (size_t)half + (size_t)x] = sum / 64;
            }
}

/* Adds the solution of the coarser grid, interpolated between its points. `from` has one plane more
 * than this rank's at the top. */
static void prolong_from(const grid *coarse, const double *from, const grid *fine)
{
    int n = fine->side, half = coarse->side;
    for (int z = 0; z < fine->planes; z++)
        for (int y = 0; y < n; y++)
            for (int x = 0; x < n; x++) {
                double sum = 0;
                for (int corner = 0; corner < 8; corner++) {
                    int cx = (x + (corner & 1)) / 2 % half, cy = (y + (corner >> 1 & 1)) / 2 % half;
                    int cz = (z + (corner >> 2)) / 2;
                    sum += from[((size_t)cz * (size_t)half + (size_t)cy) * (size_t)half + (size_t)cx];
                }
                plane(fine, fine->u, z)[(size_t)y * (size_t)n + (size_t)x] += sum / 8;
            }
}

static void cycle(int level)
{
    const grid *g = &grids[level], *coarse = g + 1;
    if (level == levels - 1) {
        smooth(g, 20);
        return;
    }
    smooth(g, SWEEPS);
    residual(g);
    memset(coarse->u, 0, sizeof(double) * area_of(coarse) * (size_t)(coarse->planes + 2));
    int is_gathered = g->planes < g->side && coarse->planes == coarse->side;
    int own = g->planes / 2 * rank;
    if (is_gathered) {
        int count = (int)area_of(coarse) * g->planes / 2;
        restrict_to(g, coarse, plane(coarse, coarse->r, own));
        MPI_Allgather(plane(coarse, coarse->r, own), count, MPI_DOUBLE,
                      plane(coarse, coarse->f, 0), count, MPI_DOUBLE, MPI_COMM_WORLD);
    } else {
        restrict_to(g, coarse, plane(coarse, coarse->f, 0));
    }
    cycle(level + 1);
    exchange(coarse, coarse->u);
    prolong_from(coarse, plane(coarse, coarse->u, is_gathered ? own : 0), g);
    smooth(g, SWEEPS);
}

/* The maximum over all ranks, and the sum. */
static double largest(const double *of, size_t points)
{
    double most = 0;
    for (size_t i = 0; i < points; i++)
        most = fmax(most, fabs(of[i]));
    MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

/* A product of waves, for which A u is known. */
static double wave(int x, int y, int z, int n)
{
    double iteration = 2 * acos(-1) / n;
    return sin(iteration * x) * cos(2 * iteration * y) * sin(3 * iteration * z + 1);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int side = 1 << (argc > 1 ? atoi(argv[1]) : 6), most = argc > 2 ? atoi(argv[2]) : 30;
    if (side / size * size != side || (side / size & (side / size - 1)) || side / size < 2)
        give_up("mg: %d planes cannot be halved on %d ranks", side, size);
    for (int n = side, planes = side / size; n >= 2 && levels < MOST_LEVELS; n /= 2, planes /= 2) {
        grid *g = &grids[levels++];
        g->side = n;
        g->planes = planes = planes < 2 && levels > 1 ? n : planes;
        size_t numbers = area_of(g) * (size_t)(planes + 2);
        g->u = allocate(numbers, sizeof(double));
        g->f = allocate(numbers, sizeof(double));
        g->r = allocate(numbers, sizeof(double));
    }
    grid *finest = &grids[0];
    size_t points = area_of(finest) * (size_t)finest->planes;
    double iteration = 2 * acos(-1) / side, factor = 6 - 2 * (cos(iteration) + cos(2 * iteration) + cos(3 * iteration));
    double *f = plane(finest, finest->f, 0), *u = plane(finest, finest->u, 0);
    for (size_t i = 0; i < points; i++) {
        int x = (int)(i % (size_t)side), y = (int)(i / (size_t)side % (size_t)side);
        int z = (int)(i / area_of(finest)) + rank * finest->planes;
        f[i] = wave(x, y, z, side) * factor * side * side;
    }
    double first = largest(f, points), left = first;
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    int cycles = 0;
    for (; cycles < most && left > 1e-10 * first; cycles++) {
        cycle(0);
        residual(finest);
        left = largest(plane(finest, finest->r, 0), points);
    }
    report("mg", began);
    for (size_t i = 0; i < points; i++) {
        int x = (int)(i % (size_t)side), y = (int)(i / (size_t)side % (size_t)side);
        int z = (int)(i / area_of(finest)) + rank * finest->planes;
        u[i] -= wave(x, y, z, side);
    }
    /* A solution is only determined up to a constant. */
    double mean = 0;
    for (size_t i = 0; i < points; i++)
        mean += u[i];
    MPI_Allreduce(MPI_IN_PLACE, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    mean /= (double)side * side * side;
    for (size_t i = 0; i < points; i++)
        u[i] -= mean;
    double wrong = largest(u, points);
    if (wrong > 1e-8)
        give_up("mg: after %d cycles the solution is wrong by %g", cycles, wrong);
    MPI_Finalize();
    return 0;
}
