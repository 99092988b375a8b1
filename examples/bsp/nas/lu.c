/*
 * NAS LU: the flow of flow.h with symmetric successive over-relaxation. Each step sweeps once
 * forwards and once backwards through the grid, where a point needs the new values of its
 * predecessors in all directions. Processes own planes of z and sweep one group of rows in each
 * superstep, one superstep after the process before them: a pipeline.
 *
 *     lu [S|W|A]                at most one process for each inner plane: 10, 31 or 62
 */
#include "flow.h"

/* Groups of rows for each further process: more supersteps, but shorter times to fill the pipeline. */
enum { GROUPS = 16 };

#define OMEGA 1.2

static const struct flow_problem PROBLEMS[] = {
    {12, 50, 0.5,
     {1.6196343210976702e-02, 2.1976745164821318e-03, 1.5179927653399185e-03,
      1.5029584435994323e-03, 3.4264073155896461e-02},
     {6.4223319957960924e-04, 8.4144342047347926e-05, 5.8588269616485186e-05,
      5.8474222595157350e-05, 1.3103347914111294e-03},
     7.8418928865937083e+00},
    {33, 300, 1.5e-3,
     {0.1236511638192e+02, 0.1317228477799e+01, 0.2550120713095e+01, 0.2326187750252e+01,
      0.2826799444189e+02},
     {0.4867877144216e+00, 0.5064652880982e-01, 0.9281818101960e-01, 0.8570126542733e-01,
      0.1084277417792e+01},
     0.1161399311023e+02},
    {64, 250, 2.0,
     {7.7902107606689367e+02, 6.3402765259692870e+01, 1.9499249727292479e+02,
      1.7845301160418537e+02, 1.8384760349464247e+03},
     {2.9964085685471943e+01, 2.8194576365003349e+00, 7.3473412698774742e+00,
      6.7139225687777051e+00, 7.0715315688392578e+01},
     2.6030925604886277e+01},
};

/*
 * Adds to `sum` the product of `change` at a neighbour in direction d with the matrix that couples
 * it: derivatives of the flux, with the sign of the side, and of the viscous terms.
 */
static inline void add_coupling(double *sum, const double *u, const struct derived *it,
                                const double *change, int d, double side)
{
    const double *v = it->velocity;
    double velocity[3], pressure = change[ENERGY] + it->half_square * change[0], work = 0;
    for (int i = 0; i < 3; i++) {
        velocity[i] = (change[1 + i] - v[i] * change[0]) * it->inverse_density;
        pressure -= v[i] * change[1 + i];
        work += v[i] * velocity[i];
    }
    pressure *= C2;
    double energy = (change[ENERGY] - it->energy * change[0]) * it->inverse_density;
    double first = side * dt * first_difference, second = dt * second_difference;
    double viscosity = second * C3C4;
    for (int m = 0; m < PARTS; m++)
        sum[m] -= second * DIFFUSION[d] * change[m];
    sum[0] += first * change[1 + d];
    for (int i = 0; i < 3; i++) {
        double thickness = i == d ? 4.0 / 3 : 1;
        sum[1 + i] += first * (change[1 + i] * v[d] + u[1 + i] * velocity[d]) -
                      viscosity * thickness * velocity[i];
    }
    sum[1 + d] += first * pressure;
    sum[ENERGY] += first * ((change[ENERGY] + pressure) * v[d] +
                            (u[ENERGY] + it->pressure) * velocity[d]) -
                   viscosity * ((1 - C1C5) * work + v[d] * velocity[d] / 3 + C1C5 * energy);
}

/*
 * Solves the equations of one point, in place. Their matrix has the derivatives of the viscous terms
 * in all directions, and is triangular: the energy depends on momentum and density, and those only
 * on themselves and the density.
 */
static inline void solve_point(double *change, const struct derived *it)
{
    const double *v = it->velocity;
    double second = 2 * dt * second_difference, viscosity = second * C3C4 * it->inverse_density;
    double diagonal = 1 + second * (DIFFUSION[0] + DIFFUSION[1] + DIFFUSION[2]);
    change[0] /= diagonal;
    double energy = change[ENERGY] + 3 * viscosity * C1C5 * it->energy * change[0];
    for (int i = 0; i < 3; i++) {
        double resistance = viscosity * (4.0 / 3 + 2);
        double *momentum = &change[1 + i];
        *momentum = (*momentum + resistance * v[i] * change[0]) / (diagonal + resistance);
        energy -= viscosity * (3 * (1 - C1C5) + 1.0 / 3) * v[i] * (*momentum - v[i] * change[0]);
    }
    change[ENERGY] = energy / (diagonal + 3 * viscosity * C1C5);
}

/* One point of a sweep; `side` is -1 if its predecessors have lower indices. */
static inline void sweep_point(int i, int side)
{
    const int steps[3] = {side, side * n, side * n * n};
    double sum[PARTS] = {0}, *change = right + PARTS * i;
    for (int d = 0; d < 3; d++) {
        int j = i + steps[d];
        add_coupling(sum, u + PARTS * j, derived + j, right + PARTS * j, d, side);
    }
    if (side < 0) {
        for (int m = 0; m < PARTS; m++)
            change[m] -= OMEGA * sum[m];
        solve_point(change, derived + i);
    } else {
        solve_point(sum, derived + i);
        for (int m = 0; m < PARTS; m++)
            change[m] -= OMEGA * sum[m];
    }
}

static void sweep_forwards(int first, int last)
{
    for (int z = begin; z < end; z++)
        for (int y = first; y < last; y++)
            for (int x = 1; x < n - 1; x++)
                sweep_point(at(x, y, z), -1);
}

static void sweep_backwards(int first, int last)
{
    for (int z = end - 1; z >= begin; z--)
        for (int y = last - 1; y >= first; y--)
            for (int x = n - 2; x > 0; x--)
                sweep_point(at(x, y, z), 1);
}

/* Puts rows of the outermost plane to the process that continues with the plane next to it. */
static void put_rows(int pid, int z, int first, int last)
{
    if (pid < 0 || pid >= bsp_nprocs())
        return;
    int here = at(0, first, z), there = here + (begin - begin_of(pid)) * n * n;
    bsp_hpput(pid, right + PARTS * here, right, PARTS * there * (int)sizeof *right,
              doubles(last - first) * (int)sizeof *right);
}

/* The first row of a group, of which there are `groups`. */
static int first_row(int group, int groups)
{
    return 1 + group * (n - 2) / groups;
}

/* Both sweeps through the grid. */
static void sweep(void)
{
    int p = bsp_nprocs(), me = bsp_pid();
    int groups = p == 1 ? 1 : GROUPS * (p - 1) < n - 2 ? GROUPS * (p - 1) : n - 2;
    for (int step = 0; step < groups + p - 1; step++) {
        int group = step - me;
        if (group >= 0 && group < groups) {
            int first = first_row(group, groups), last = first_row(group + 1, groups);
            sweep_forwards(first, last);
            put_rows(me + 1, end - 1, first, last);
        }
        SYNC();
    }
    for (int step = 0; step < groups + p - 1; step++) {
        int group = groups - 1 - (step - (p - 1 - me));
        if (group >= 0 && group < groups) {
            int first = first_row(group, groups), last = first_row(group + 1, groups);
            sweep_backwards(first, last);
            put_rows(me - 1, begin, first, last);
        }
        SYNC();
    }
}

static void step(void)
{
    for (int i = PARTS * at(0, 0, begin); i < PARTS * at(0, 0, end); i++)
        right[i] *= dt;
    sweep();
    add_change(right, 1 / (OMEGA * (2 - OMEGA)));
    put_borders();
    SYNC();
    compute_right();
}

/* The weight of a point in the integral over [first, last]: half at the ends. */
static double weight(int i, int first, int last)
{
    if (i < first || i > last)
        return 0;
    return i == first || i == last ? 0.5 : 1;
}

/* The part of this process in the integral of the pressure over the surface of an inner box. */
static double surface_integral(void)
{
    const int first[3] = {1, 1, 2}, last[3] = {n - 2, n - 3, n - 2};
    double sum = 0;
    for (int z = begin; z < end; z++)
        for (int y = 1; y < n - 1; y++)
            for (int x = 1; x < n - 1; x++) {
                const int place[3] = {x, y, z};
                double weights[3], area = 0;
                for (int d = 0; d < 3; d++)
                    weights[d] = weight(place[d], first[d], last[d]);
                for (int d = 0; d < 3; d++)
                    if (weights[d] == 0.5)
                        area += weights[(d + 1) % 3] * weights[(d + 2) % 3];
                sum += area * derive(u + PARTS * at(x, y, z)).pressure;
            }
    return sum / second_difference;
}

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    int class = class_index(argc, argv);
    const struct flow_problem *problem = &PROBLEMS[class];
    make_grid(problem);
    prepare_sums();

    /* One step before the clock starts, so that all memory is in use. */
    start_flow();
    compute_right();
    step();
    start_flow();
    compute_right();
    double start = start_clock();
    for (int i = 0; i < problem->steps; i++)
        step();
    double seconds = bsp_time() - start;

    double sums[2 * PARTS + 1] = {0};
    add_squares(sums);
    sums[2 * PARTS] = surface_integral();
    SUM(sums, 2 * PARTS + 1);
    int is_right = are_norms_close(problem, sums) &
                   is_close("surface", sums[2 * PARTS], problem->surface, 1e-8);
    double operations = problem->steps * (1984.77 * pow(n, 3) - 10923.3 * pow(n, 2) +
                                          27770.9 * n - 144010.0);
    int status = report("LU", class, seconds, operations, is_right);
    bsp_end();
    return status;
}
