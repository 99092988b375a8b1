/*
 * NAS MG, "multigrid": V-cycles for the Poisson equation on a periodic cube. Processes own planes
 * of constant z of every grid; a plane of a coarser grid belongs to the process that owns the same
 * plane of the finer one. A superstep exchanges the planes at the borders after each operation.
 *
 *     mg [S|W|A]                any number of processes
 */
#include "nas.h"

enum { MAX_LEVELS = 8, MAX_ROW = (1 << MAX_LEVELS) + 2, CHARGES = 10 };

struct problem {
    int levels, iterations;
    double norm;
};

static const struct problem PROBLEMS[] = {
    {5, 4, 0.5307707005734e-04},
    {7, 4, 0.6467329375339e-05},
    {8, 4, 0.2433365309069e-05},
};

/* The operator and the smoother: factors of the point, its faces, edges and corners. */
static const double OPERATOR[4] = {-8.0 / 3, 0, 1.0 / 6, 1.0 / 12};
static const double SMOOTHER[4] = {-3.0 / 8, 1.0 / 32, -1.0 / 64, 0};

/*
 * A grid of n x n x n points. An array has the planes [begin - 1, end] of this process, and each
 * plane has n + 2 rows of n + 2 points: the first and last plane, row and point are those of the
 * other end of the cube, or of the neighbours.
 */
struct grid {
    int n, begin, end, *begins;
    double *u, *r;
};
static struct grid grids[MAX_LEVELS];

/* The right side on the finest grid. */
static double *right_side;

static size_t row_size(const struct grid *grid)
{
    return grid->n + 2;
}

static size_t plane_size(const struct grid *grid)
{
    return row_size(grid) * row_size(grid);
}

/* The row y of the plane z, where 0 is the first own plane and row. */
static double *row(const struct grid *grid, const double *array, int z, int y)
{
    return (double *)array + (z + 1) * plane_size(grid) + (y + 1) * row_size(grid) + 1;
}

static void make_grids(int levels)
{
    int p = bsp_nprocs();
    for (int level = levels - 1; level >= 0; level--) {
        struct grid *grid = &grids[level];
        grid->n = 2 << level;
        grid->begins = allocate(p + 1, sizeof *grid->begins);
        /* Plane k of a grid lies on plane 2 k + 1 of the next finer one. */
        for (int pid = 0; pid <= p; pid++)
            grid->begins[pid] =
                level == levels - 1 ? block_begin(grid->n, pid) : grids[level + 1].begins[pid] / 2;
        grid->begin = grid->begins[bsp_pid()];
        grid->end = grid->begins[bsp_pid() + 1];
        size_t points = (grid->end - grid->begin + 2) * plane_size(grid);
        grid->u = allocate(points, sizeof *grid->u);
        grid->r = allocate(points, sizeof *grid->r);
        bsp_push_reg(grid->u, (int)(points * sizeof *grid->u));
        bsp_push_reg(grid->r, (int)(points * sizeof *grid->r));
    }
}

/* Copies the last row and point of each own plane before the first, and the first behind the last. */
static void wrap(const struct grid *grid, double *array)
{
    int n = grid->n;
    for (int z = 0; z < grid->end - grid->begin; z++) {
        for (int y = 0; y < n; y++) {
            double *points = row(grid, array, z, y);
            points[-1] = points[n - 1];
            points[n] = points[0];
        }
        size_t bytes = row_size(grid) * sizeof *array;
        memcpy(row(grid, array, z, -1) - 1, row(grid, array, z, n - 1) - 1, bytes);
        memcpy(row(grid, array, z, n) - 1, row(grid, array, z, 0) - 1, bytes);
    }
}

/* Puts plane `z` to process pid as its plane `to`, if this process owns it. */
static void put_plane(const struct grid *grid, double *array, int z, int pid, int to)
{
    z = (z + grid->n) % grid->n;
    if (z < grid->begin || z >= grid->end)
        return;
    int bytes = (int)(plane_size(grid) * sizeof *array);
    deliver(pid, row(grid, array, z - grid->begin, -1) - 1, array,
              (to - grid->begins[pid] + 1) * bytes, bytes);
}

/* Puts the planes next to those of other processes, also to processes without planes of their own. */
static void put_borders(const struct grid *grid, double *array)
{
    wrap(grid, array);
    for (int pid = 0; pid < bsp_nprocs(); pid++) {
        int before = grid->begins[pid] - 1, behind = grid->begins[pid + 1];
        put_plane(grid, array, before, pid, before);
        put_plane(grid, array, behind, pid, behind);
    }
}

/* Sums of the four neighbours of each point in a plane across x, and of the four diagonal ones. */
static void add_around(const struct grid *grid, const double *array, int z, int y, double *faces,
                       double *edges)
{
    const double *north = row(grid, array, z, y + 1), *south = row(grid, array, z, y - 1);
    const double *above = row(grid, array, z + 1, y), *below = row(grid, array, z - 1, y);
    const double *a = row(grid, array, z + 1, y + 1), *b = row(grid, array, z + 1, y - 1);
    const double *c = row(grid, array, z - 1, y + 1), *d = row(grid, array, z - 1, y - 1);
    for (int x = -1; x <= grid->n; x++) {
        faces[x] = north[x] + south[x] + above[x] + below[x];
        edges[x] = a[x] + b[x] + c[x] + d[x];
    }
}

/* to = from + sign * (factors applied to the array), for the planes of this process. */
static void apply(const struct grid *grid, double *to, const double *from, double sign,
                  const double *factors, const double *array)
{
    static double face_room[MAX_ROW], edge_room[MAX_ROW];
    double *faces = face_room + 1, *edges = edge_room + 1;
    double f0 = sign * factors[0], f1 = sign * factors[1], f2 = sign * factors[2],
           f3 = sign * factors[3];
    for (int z = 0; z < grid->end - grid->begin; z++)
        for (int y = 0; y < grid->n; y++) {
            add_around(grid, array, z, y, faces, edges);
            const double *center = row(grid, array, z, y), *old = row(grid, from, z, y);
            double *new = row(grid, to, z, y);
            for (int x = 0; x < grid->n; x++)
                new[x] = old[x] + f0 * center[x] + f1 * (center[x - 1] + center[x + 1] + faces[x]) +
                         f2 * (faces[x - 1] + faces[x + 1] + edges[x]) +
                         f3 * (edges[x - 1] + edges[x + 1]);
        }
}

/* The residual of the next coarser grid: weighted means of the residual around its points. */
static void restrict_to(const struct grid *coarse, const struct grid *fine)
{
    static double face_room[MAX_ROW], edge_room[MAX_ROW];
    double *faces = face_room + 1, *edges = edge_room + 1;
    for (int z = coarse->begin; z < coarse->end; z++)
        for (int y = 0; y < coarse->n; y++) {
            int fine_z = 2 * z + 1 - fine->begin, fine_y = 2 * y + 1;
            add_around(fine, fine->r, fine_z, fine_y, faces, edges);
            const double *center = row(fine, fine->r, fine_z, fine_y);
            double *to = row(coarse, coarse->r, z - coarse->begin, y);
            for (int x = 0; x < coarse->n; x++) {
                int i = 2 * x + 1;
                to[x] = 0.5 * center[i] + 0.25 * (center[i - 1] + center[i + 1] + faces[i]) +
                        0.125 * (faces[i - 1] + faces[i + 1] + edges[i]) +
                        0.0625 * (edges[i - 1] + edges[i + 1]);
            }
        }
}

/* The coarse points around point f: it lies on (f - 1) / 2 if f is odd. */
static int coarse_before(int f)
{
    return f & 1 ? (f - 1) / 2 : f / 2 - 1;
}

static int coarse_after(int f)
{
    return f & 1 ? (f - 1) / 2 : f / 2;
}

/*
 * Adds the solution of the coarser grid, interpolated, to that of the finer one; also in the planes
 * of the neighbours, which saves an exchange.
 */
static void interpolate(const struct grid *fine, const struct grid *coarse)
{
    static double mean_room[MAX_ROW];
    double *mean = mean_room + 1;
    for (int z = fine->begin - 1; z <= fine->end; z++)
        for (int y = -1; y <= fine->n; y++) {
            int low_z = coarse_before(z) - coarse->begin, high_z = coarse_after(z) - coarse->begin;
            int low_y = coarse_before(y), high_y = coarse_after(y);
            const double *a = row(coarse, coarse->u, low_z, low_y);
            const double *b = row(coarse, coarse->u, low_z, high_y);
            const double *c = row(coarse, coarse->u, high_z, low_y);
            const double *d = row(coarse, coarse->u, high_z, high_y);
            for (int x = -1; x <= coarse->n; x++)
                mean[x] = 0.25 * (a[x] + b[x] + c[x] + d[x]);
            double *to = row(fine, fine->u, z - fine->begin, y);
            for (int x = 0; x < coarse->n; x++) {
                to[2 * x] += 0.5 * (mean[x - 1] + mean[x]);
                to[2 * x + 1] += mean[x];
            }
            to[-1] += mean[-1];
            to[fine->n] += 0.5 * (mean[coarse->n - 1] + mean[coarse->n]);
        }
}

/* r = right side - A u on the finest grid, up to its exchange. */
static void put_residual(const struct grid *grid)
{
    apply(grid, grid->r, right_side, -1, OPERATOR, grid->u);
    put_borders(grid, grid->r);
}

static void put_smoothed(const struct grid *grid)
{
    apply(grid, grid->u, grid->u, 1, SMOOTHER, grid->r);
    put_borders(grid, grid->u);
}

/* Improves u by one V-cycle; begins with the residual of the finest grid. */
static void cycle(int levels)
{
    for (int level = levels - 1; level > 0; level--) {
        struct grid *coarse = &grids[level - 1];
        restrict_to(coarse, &grids[level]);
        put_borders(coarse, coarse->r);
        /* Before the exchange, after which the neighbours may put planes of u. */
        memset(coarse->u, 0, (coarse->end - coarse->begin + 2) * plane_size(coarse) * sizeof *coarse->u);
        SYNC();
    }
    put_smoothed(&grids[0]);
    SYNC();
    for (int level = 1; level < levels; level++) {
        struct grid *grid = &grids[level];
        interpolate(grid, &grids[level - 1]);
        if (level == levels - 1) {
            put_residual(grid);
        } else {
            apply(grid, grid->r, grid->r, -1, OPERATOR, grid->u);
            put_borders(grid, grid->r);
        }
        SYNC();
        put_smoothed(grid);
        SYNC();
    }
}

/* The greatest values so far in falling order, and where they are. */
struct extremes {
    double values[CHARGES], at[CHARGES];
};

static void insert(struct extremes *extremes, double value, double at)
{
    if (value <= extremes->values[CHARGES - 1])
        return;
    int k = CHARGES - 1;
    for (; k > 0 && extremes->values[k - 1] < value; k--) {
        extremes->values[k] = extremes->values[k - 1];
        extremes->at[k] = extremes->at[k - 1];
    }
    extremes->values[k] = value;
    extremes->at[k] = at;
}

/* Sets the right side to `charge` at the greatest values of all processes. */
static void set_charges(const struct grid *grid, const struct extremes *mine, double charge)
{
    put_summands(mine->values, 2 * CHARGES);
    bsp_sync();
    struct extremes all = {{0}, {0}};
    for (int pid = 0; pid < bsp_nprocs(); pid++) {
        const double *theirs = sum_table + pid * SUM_WIDTH;
        for (int k = 0; k < CHARGES; k++)
            insert(&all, theirs[k], theirs[CHARGES + k]);
    }
    for (int k = 0; k < CHARGES; k++) {
        int at = (int)all.at[k], n = grid->n, z = at / (n * n);
        if (z >= grid->begin && z < grid->end)
            row(grid, right_side, z - grid->begin, at / n % n)[at % n] = charge;
    }
}

/* A right side of 0, but 1 at the ten greatest of n^3 random numbers and -1 at the ten smallest. */
static void make_right_side(const struct grid *grid)
{
    struct extremes greatest = {{0}, {0}}, smallest = {{0}, {0}};
    int n = grid->n;
    uint64_t seed = skip_random(314159265, (uint64_t)n * n * grid->begin);
    for (int at = n * n * grid->begin; at < n * n * grid->end; at++) {
        double value = next_random(&seed);
        insert(&greatest, value, at);
        insert(&smallest, 1 - value, at);
    }
    set_charges(grid, &greatest, 1);
    set_charges(grid, &smallest, -1);
}

/* The iterations from u = 0; returns the norm of the residual. */
static double run(const struct problem *problem)
{
    const struct grid *finest = &grids[problem->levels - 1];
    put_residual(finest);
    SYNC();
    for (int i = 0; i < problem->iterations; i++) {
        cycle(problem->levels);
        put_residual(finest);
        SYNC();
    }
    double sum = 0;
    for (int z = 0; z < finest->end - finest->begin; z++)
        for (int y = 0; y < finest->n; y++) {
            const double *points = row(finest, finest->r, z, y);
            for (int x = 0; x < finest->n; x++)
                sum += points[x] * points[x];
        }
    SUM(&sum, 1);
    return sqrt(sum / pow(finest->n, 3));
}

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    int class = class_index(argc, argv);
    const struct problem *problem = &PROBLEMS[class];
    struct grid *finest = &grids[problem->levels - 1];
    make_grids(problem->levels);
    size_t points = (finest->end - finest->begin + 2) * plane_size(finest);
    right_side = allocate(points, sizeof *right_side);
    prepare_sums();
    make_right_side(finest);

    /* Once before the clock starts, so that all memory is in use. */
    run(problem);
    memset(finest->u, 0, points * sizeof *finest->u);
    double start = start_clock();
    double norm = run(problem);
    double seconds = bsp_time() - start;

    int is_right = is_close("norm", norm, problem->norm, 1e-8);
    double operations = 58.0 * problem->iterations * pow(finest->n, 3);
    int status = report("MG", class, seconds, operations, is_right);
    bsp_end();
    return status;
}
