/*
 * NAS BT: the flow of flow.h with an implicit step that is factored into the three directions. In
 * each direction it solves systems along the lines whose matrices have blocks of 5 x 5 on three
 * diagonals. A step takes three supersteps: to the order in which lines along z are whole, back,
 * and the exchange of planes at the borders.
 *
 *     bt [S|W|A]                at most one process for each inner plane: 10, 22 or 62
 */
#include "transpose.h"

enum { MAX_POINTS = 64 };

static const struct flow_problem PROBLEMS[] = {
    {12, 60, 0.010,
     {1.7034283709541311e-01, 1.2975252070034097e-02, 3.2527926989486055e-02,
      2.6436421275166801e-02, 1.9211784131744430e-01},
     {4.9976913345811579e-04, 4.5195666782961927e-05, 7.3973765172921357e-05,
      7.3821238632439731e-05, 8.9269630987491446e-04},
     0},
    {24, 200, 0.8e-3,
     {0.1125590409344e+03, 0.1180007595731e+02, 0.2710329767846e+02, 0.2469174937669e+02,
      0.2638427874317e+03},
     {0.4419655736008e+01, 0.4638531260002e+00, 0.1011551749967e+01, 0.9235878729944e+00,
      0.1018045837718e+02},
     0},
    {64, 200, 0.8e-3,
     {1.0806346714637264e+02, 1.1319730901220813e+01, 2.5974354511582465e+01,
      2.3665622544678910e+01, 2.5278963211748344e+02},
     {4.2348416040525025e+00, 4.4390282496995698e-01, 9.6692480136345650e-01,
      8.8302063039765474e-01, 9.7379901770829278e+00},
     0},
};

typedef double block[PARTS][PARTS];

/* The derivatives of the flux in direction d, times `factor`. */
static void flux_derivatives(block a, const struct derived *it, int d, double factor)
{
    const double *v = it->velocity;
    double q = it->half_square, enthalpy = C1 * it->energy - C2 * q;
    memset(a, 0, sizeof(block));
    a[0][1 + d] = factor;
    for (int i = 0; i < 3; i++) {
        a[1 + i][0] = -factor * v[i] * v[d];
        a[1 + i][1 + i] = factor * v[d];
        a[ENERGY][1 + i] = -factor * C2 * v[i] * v[d];
    }
    a[1 + d][0] += factor * C2 * q;
    for (int i = 0; i < 3; i++) {
        a[1 + i][1 + d] += factor * v[i];
        a[1 + d][1 + i] -= factor * C2 * v[i];
    }
    a[1 + d][ENERGY] = factor * C2;
    a[ENERGY][0] = factor * v[d] * (C2 * q - enthalpy);
    a[ENERGY][1 + d] += factor * enthalpy;
    a[ENERGY][ENERGY] = factor * C1 * v[d];
}

/* The derivatives of the viscous and diffusive terms in direction d, times `factor`. */
static void viscous_derivatives(block a, const struct derived *it, int d, double factor)
{
    const double *v = it->velocity;
    double viscosity = factor * C3C4 * it->inverse_density;
    memset(a, 0, sizeof(block));
    for (int i = 0; i < 3; i++) {
        double thickness = i == d ? 4.0 / 3 : 1;
        a[1 + i][0] = -viscosity * thickness * v[i];
        a[1 + i][1 + i] = viscosity * thickness;
        a[ENERGY][1 + i] = viscosity * (1 - C1C5) * v[i];
    }
    a[ENERGY][1 + d] += viscosity * v[d] / 3;
    a[ENERGY][0] = -viscosity * (2 * (1 - C1C5) * it->half_square + v[d] * v[d] / 3 +
                                 C1C5 * it->energy);
    a[ENERGY][ENERGY] = viscosity * C1C5;
    for (int m = 0; m < PARTS; m++)
        a[m][m] += factor * DIFFUSION[d];
}

/* to = p a + q b */
static void combine(block to, double p, block a, double q, block b)
{
    for (int i = 0; i < PARTS; i++)
        for (int j = 0; j < PARTS; j++)
            to[i][j] = p * a[i][j] + q * b[i][j];
}

/* b -= a c, and the same for a vector. */
static void subtract_product(block b, block a, block c)
{
    for (int i = 0; i < PARTS; i++)
        for (int k = 0; k < PARTS; k++)
            for (int j = 0; j < PARTS; j++)
                b[i][j] -= a[i][k] * c[k][j];
}

static void subtract_applied(double *b, block a, const double *c)
{
    for (int i = 0; i < PARTS; i++)
        for (int k = 0; k < PARTS; k++)
            b[i] -= a[i][k] * c[k];
}

/* Replaces c and r by the solutions of a x = c and a x = r; destroys a. The diagonal dominates. */
static void solve_block(block a, block c, double *r)
{
    for (int k = 0; k < PARTS; k++) {
        double pivot = 1 / a[k][k];
        for (int j = k + 1; j < PARTS; j++)
            a[k][j] *= pivot;
        for (int j = 0; j < PARTS; j++)
            c[k][j] *= pivot;
        r[k] *= pivot;
        for (int i = 0; i < PARTS; i++) {
            if (i == k)
                continue;
            double factor = a[i][k];
            for (int j = k + 1; j < PARTS; j++)
                a[i][j] -= factor * a[k][j];
            for (int j = 0; j < PARTS; j++)
                c[i][j] -= factor * c[k][j];
            r[i] -= factor * r[k];
        }
    }
}

/*
 * Solves the system of the inner points of a line, in place. Point i has its state in u and its
 * right side in r at i times `step`. The change at the ends of the line is 0.
 */
static void solve_line(const double *u, double *r, int step, int d)
{
    static block fluxes[MAX_POINTS], viscosities[MAX_POINTS], after[MAX_POINTS];
    int points = n - 2;
    for (int i = 0; i < points; i++) {
        struct derived it = derive(u + PARTS * step * i);
        flux_derivatives(fluxes[i], &it, d, dt * first_difference);
        viscous_derivatives(viscosities[i], &it, d, dt * second_difference);
    }
    for (int i = 0; i < points; i++) {
        block before, here;
        combine(here, 0, fluxes[i], 2, viscosities[i]);
        for (int m = 0; m < PARTS; m++)
            here[m][m] += 1;
        if (i + 1 < points)
            combine(after[i], 1, fluxes[i + 1], -1, viscosities[i + 1]);
        double *now = r + PARTS * step * i;
        if (i > 0) {
            combine(before, -1, fluxes[i - 1], -1, viscosities[i - 1]);
            subtract_applied(now, before, now - PARTS * step);
            subtract_product(here, before, after[i - 1]);
        }
        solve_block(here, after[i], now);
    }
    for (int i = points - 2; i >= 0; i--)
        subtract_applied(r + PARTS * step * i, after[i], r + PARTS * step * (i + 1));
}

static void step(void)
{
    compute_right();
    for (int z = begin; z < end; z++) {
        for (int i = PARTS * at(0, 0, z); i < PARTS * at(0, 0, z + 1); i++)
            right[i] *= dt;
        for (int y = 1; y < n - 1; y++)
            solve_line(u + PARTS * at(1, y, z), right + PARTS * at(1, y, z), 1, 0);
        for (int x = 1; x < n - 1; x++)
            solve_line(u + PARTS * at(x, 1, z), right + PARTS * at(x, 1, z), n, 1);
    }
    put_turned(turned_right, right);
    SYNC();
    for (int y = row_begin; y < row_end; y++)
        for (int x = 1; x < n - 1; x++) {
            int i = PARTS * turned_at(x, y, 1);
            solve_line(turned_u + i, turned_right + i, (row_end - row_begin) * n, 2);
        }
    put_back(right, turned_right);
    SYNC();
    add_change(right, 1);
    put_borders();
    put_turned(turned_u, u);
    SYNC();
}

int main(int argc, char **argv)
{
    const double operations[4] = {3478.8, -17655.7, 28023.7, 0};
    return solve("BT", PROBLEMS, step, operations, argc, argv);
}
