/*
 * Shared by LU, SP and BT, which solve the same equations with different methods: a compressible
 * viscous flow in a cube, whose forcing is such that the exact solution is known. This file has
 * the state of the flow, the spatial operator, its exchange, and the norms that are published.
 *
 * Processes own planes of constant z. The names of the directions x, y and z are 0, 1 and 2.
 */
#ifndef EXAMPLES_BSP_NAS_FLOW_H
#define EXAMPLES_BSP_NAS_FLOW_H

#include "nas.h"

/* Density, momentum in three directions and energy of each point. */
enum { PARTS = 5, ENERGY = 4 };

struct flow_problem {
    int n, steps;
    double dt, residual[PARTS], error[PARTS], surface;
};

/* Ratios of specific heats and related factors, as section 3.2 of the report names them. */
#define C1 1.4
#define C2 0.4
#define C1C5 (1.4 * 1.4)
#define C3C4 0.1
#define DISSIPATION 0.25

/* The coefficient of the second differences in each direction. */
static const double DIFFUSION[3] = {0.75, 0.75, 1};

/* The coefficients of the polynomials in x, y and z that are the exact solution. */
static const double EXACT[PARTS][13] = {
    {2, 0, 0, 4, 5, 3, 0.5, 0.02, 0.01, 0.03, 0.5, 0.4, 0.3},
    {1, 0, 0, 0, 1, 2, 3, 0.01, 0.03, 0.02, 0.4, 0.3, 0.5},
    {2, 2, 0, 0, 0, 2, 3, 0.04, 0.03, 0.05, 0.3, 0.5, 0.4},
    {2, 2, 0, 0, 0, 2, 3, 0.03, 0.05, 0.04, 0.2, 0.1, 0.3},
    {5, 4, 3, 2, 0.1, 0.4, 0.3, 0.05, 0.04, 0.03, 0.1, 0.3, 0.2},
};

/*
 * The grid: n points in each direction, of which the outermost never change. This process owns the
 * planes [begin, end), and has copies of two more on each side.
 */
static int n, begin, end;
static double dt;

/* First and second differences in one direction, over the width of a cell. */
static double first_difference, second_difference;

/* What follows from the state of a point. */
struct derived {
    double inverse_density, velocity[3], pressure, half_square, energy;
};

/* The state, what follows from it, the forcing, and the right side of the equations. */
static double *u, *forcing, *right;
static struct derived *derived;

/* The place of a point in these arrays, times PARTS in those of doubles. */
static inline int at(int x, int y, int z)
{
    return ((z - begin + 2) * n + y) * n + x;
}

static inline int doubles(int rows)
{
    return rows * n * PARTS;
}

/* The first plane of a process. */
static inline int begin_of(int pid)
{
    return 1 + block_begin(n - 2, pid);
}

/* Allocates the grid on at most n - 2 processes, and registers u and the right side. */
static inline void make_grid(const struct flow_problem *problem)
{
    n = problem->n;
    dt = problem->dt;
    if (bsp_nprocs() > n - 2)
        bsp_abort("%d processes for %d planes; use at most one for each plane\n", bsp_nprocs(),
                  n - 2);
    begin = begin_of(bsp_pid());
    end = begin_of(bsp_pid() + 1);
    first_difference = (n - 1) / 2.0;
    second_difference = (double)(n - 1) * (n - 1);
    int planes = end - begin + 4;
    size_t points = (size_t)planes * n * n;
    u = allocate(points, PARTS * sizeof *u);
    forcing = allocate(points, PARTS * sizeof *forcing);
    right = allocate(points, PARTS * sizeof *right);
    derived = allocate(points, sizeof *derived);
    bsp_push_reg(u, doubles(planes * n) * (int)sizeof *u);
    bsp_push_reg(right, doubles(planes * n) * (int)sizeof *right);
}

static inline void exact_solution(double *result, double x, double y, double z)
{
    for (int m = 0; m < PARTS; m++) {
        const double *c = EXACT[m];
        result[m] = c[0] + x * (c[1] + x * (c[4] + x * (c[7] + x * c[10]))) +
                    y * (c[2] + y * (c[5] + y * (c[8] + y * c[11]))) +
                    z * (c[3] + z * (c[6] + z * (c[9] + z * c[12])));
    }
}

static inline void exact_at(double *result, int x, int y, int z)
{
    double width = 1.0 / (n - 1);
    exact_solution(result, x * width, y * width, z * width);
}

/* The exact solution at the borders, and a blend of it inside. */
static inline void initial_state(double *result, int x, int y, int z)
{
    double corner[2][PARTS], blend[3][PARTS];
    const int place[3] = {x, y, z};
    for (int d = 0; d < 3; d++) {
        if (place[d] == 0 || place[d] == n - 1) {
            exact_at(result, x, y, z);
            return;
        }
        for (int side = 0; side < 2; side++) {
            int there[3] = {x, y, z};
            there[d] = side * (n - 1);
            exact_at(corner[side], there[0], there[1], there[2]);
        }
        double share = place[d] / (n - 1.0);
        for (int m = 0; m < PARTS; m++)
            blend[d][m] = share * corner[1][m] + (1 - share) * corner[0][m];
    }
    for (int m = 0; m < PARTS; m++) {
        double a = blend[0][m], b = blend[1][m], c = blend[2][m];
        result[m] = a + b + c - a * b - a * c - b * c + a * b * c;
    }
}

/* Sets u in all planes of this process, also in the copies. */
static inline void set_state(void state_at(double *, int, int, int))
{
    for (int z = begin - 2; z < end + 2; z++)
        for (int y = 0; y < n && z >= 0 && z < n; y++)
            for (int x = 0; x < n; x++)
                state_at(u + PARTS * at(x, y, z), x, y, z);
}

static inline struct derived derive(const double *u)
{
    struct derived it;
    double inverse = 1 / u[0], square = 0;
    for (int d = 0; d < 3; d++) {
        it.velocity[d] = u[1 + d] * inverse;
        square += it.velocity[d] * it.velocity[d];
    }
    it.inverse_density = inverse;
    it.half_square = 0.5 * square;
    it.energy = u[ENERGY] * inverse;
    it.pressure = C2 * (u[ENERGY] - it.half_square * u[0]);
    return it;
}

/* What flows in direction d: mass, momentum and energy. */
static inline void flux(double *result, const double *u, const struct derived *it, int d)
{
    double velocity = it->velocity[d];
    result[0] = u[1 + d];
    for (int i = 1; i < ENERGY; i++)
        result[i] = u[i] * velocity;
    result[1 + d] += it->pressure;
    result[ENERGY] = (u[ENERGY] + it->pressure) * velocity;
}

/* The quantities that viscosity and heat conduction even out in direction d. */
static inline void viscous(double *result, const struct derived *it, int d)
{
    result[0] = 0;
    for (int i = 0; i < 3; i++)
        result[1 + i] = C3C4 * it->velocity[i];
    result[1 + d] *= 4.0 / 3;
    result[ENERGY] = C3C4 * ((1 - C1C5) * it->half_square +
                             it->velocity[d] * it->velocity[d] / 6 + C1C5 * it->energy);
}

/* Adds the part of the operator in direction d at place i of a line; neighbours are `step` apart. */
static inline void add_direction(double *sum, const double *u, const struct derived *it, int step,
                                 int d, int i)
{
    double inflow[PARTS], outflow[PARTS], low[PARTS], here[PARTS], high[PARTS];
    flux(inflow, u - PARTS * step, it - step, d);
    flux(outflow, u + PARTS * step, it + step, d);
    viscous(low, it - step, d);
    viscous(here, it, d);
    viscous(high, it + step, d);
    /* Fourth differences, without points at the border or beyond. */
    double at_2 = i >= 3, at_1 = i >= 2, at1 = i <= n - 3, at2 = i <= n - 4;
    double at_0 = 6 - (i == 1) - (i == n - 2);
    for (int m = 0; m < PARTS; m++) {
        double before = u[m - PARTS * step], center = u[m], after = u[m + PARTS * step];
        sum[m] += second_difference * (DIFFUSION[d] * (before - 2 * center + after) + low[m] -
                                       2 * here[m] + high[m]) -
                  first_difference * (outflow[m] - inflow[m]) -
                  DISSIPATION * (at_2 * u[m - 2 * PARTS * step] - 4 * at_1 * before +
                                 at_0 * center - 4 * at1 * after + at2 * u[m + 2 * PARTS * step]);
    }
}

/* right = forcing + operator(u) at the inner points of this process. */
static inline void compute_right(void)
{
    for (int i = at(0, 0, begin - 1); i < at(0, 0, end + 1); i++)
        derived[i] = derive(u + PARTS * i);
    for (int z = begin; z < end; z++)
        for (int y = 1; y < n - 1; y++)
            for (int x = 1; x < n - 1; x++) {
                int i = at(x, y, z);
                double sum[PARTS];
                for (int m = 0; m < PARTS; m++)
                    sum[m] = forcing[PARTS * i + m];
                add_direction(sum, u + PARTS * i, derived + i, 1, 0, x);
                add_direction(sum, u + PARTS * i, derived + i, n, 1, y);
                add_direction(sum, u + PARTS * i, derived + i, n * n, 2, z);
                for (int m = 0; m < PARTS; m++)
                    right[PARTS * i + m] = sum[m];
            }
}

/* Sets the forcing so that the exact solution is a steady state, and then the initial state. */
static inline void start_flow(void)
{
    int count = PARTS * at(0, 0, end + 2);
    memset(forcing, 0, count * sizeof *forcing);
    memset(right, 0, count * sizeof *right);
    set_state(exact_at);
    compute_right();
    for (int i = 0; i < count; i++)
        forcing[i] = -right[i];
    set_state(initial_state);
}

/* Adds factor * change to u at all points of this process. The change is 0 at the borders. */
static inline void add_change(const double *change, double factor)
{
    for (int i = PARTS * at(0, 0, begin); i < PARTS * at(0, 0, end); i++)
        u[i] += factor * change[i];
}

/* Puts the planes of u that other processes have copies of. */
static inline void put_borders(void)
{
    int bytes = doubles(n) * (int)sizeof *u;
    for (int pid = 0; pid < bsp_nprocs(); pid++) {
        int first = begin_of(pid), last = begin_of(pid + 1);
        const int copies[4] = {first - 2, first - 1, last, last + 1};
        for (int k = 0; k < 4 && pid != bsp_pid(); k++)
            if (copies[k] >= begin && copies[k] < end)
                bsp_hpput(pid, u + PARTS * at(0, 0, copies[k]), u, (copies[k] - first + 2) * bytes,
                          bytes);
    }
}

/* Adds the squares at inner points: of the right side, and of the error of u after those. */
static inline void add_squares(double *squares)
{
    for (int z = begin; z < end; z++)
        for (int y = 1; y < n - 1; y++)
            for (int x = 1; x < n - 1; x++) {
                double exact[PARTS];
                exact_at(exact, x, y, z);
                for (int m = 0; m < PARTS; m++) {
                    int i = PARTS * at(x, y, z) + m;
                    squares[m] += right[i] * right[i];
                    squares[PARTS + m] += (u[i] - exact[m]) * (u[i] - exact[m]);
                }
            }
}

/* Compares the norms with the published ones, where `squares` has the sums of add_squares(). */
static inline int are_norms_close(const struct flow_problem *problem, const double *squares)
{
    double points = pow(n - 2, 3);
    int is_right = 1;
    for (int m = 0; m < PARTS; m++)
        is_right &= is_close("residual", sqrt(squares[m] / points), problem->residual[m], 1e-8);
    for (int m = 0; m < PARTS; m++)
        is_right &= is_close("error", sqrt(squares[PARTS + m] / points), problem->error[m], 1e-8);
    return is_right;
}

#endif
