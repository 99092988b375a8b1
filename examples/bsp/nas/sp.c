/*
 * NAS SP: the flow of flow.h with an implicit step that is factored into the three directions and
 * made diagonal in each: it solves systems along the lines whose matrices have five diagonals, one
 * for each wave. A step takes three supersteps: to the order in which lines along z are whole,
 * back, and the exchange of planes at the borders.
 *
 *     sp [S|W|A]                at most one process for each inner plane: 10, 34 or 62
 */
#include "transpose.h"

enum { MAX_POINTS = 64, LANES = 8 };

static const struct flow_problem PROBLEMS[] = {
    {12, 100, 0.015,
     {2.7470315451339479e-02, 1.0360746705285417e-02, 1.6235745065095532e-02,
      1.5840557224455615e-02, 3.4849040609362460e-02},
     {2.7289258557377227e-05, 1.0364446640837285e-05, 1.6154798287166471e-05,
      1.5750704994480102e-05, 3.4177666183390531e-05},
     0},
    {36, 400, 0.0015,
     {0.1893253733584e-02, 0.1717075447775e-03, 0.2778153350936e-03, 0.2887475409984e-03,
      0.3143611161242e-02},
     {0.7542088599534e-04, 0.6512852253086e-05, 0.1049092285688e-04, 0.1128838671535e-04,
      0.1212845639773e-03},
     0},
    {64, 400, 0.0015,
     {2.4799822399300195e+00, 1.1276337964368832e+00, 1.5028977888770491e+00,
      1.4217816211695179e+00, 2.1292113035138280e+00},
     {1.0900140297820550e-04, 3.7343951769282091e-05, 5.0092785406541633e-05,
      4.7671093939528255e-05, 1.3621613399213001e-04},
     0},
};

#define ROOT_HALF 0.70710678118654752440

/* The speed of sound. */
static double speed_of_sound(const struct derived *it)
{
    return sqrt(C1 * it->pressure * it->inverse_density);
}

/* From changes of the state to amplitudes of the waves along x: three with the flow, two of sound. */
static void to_waves_of_x(double *r, const struct derived *it)
{
    const double *v = it->velocity;
    double sound = speed_of_sound(it), density = ROOT_HALF * it->inverse_density;
    double first = C2 / (sound * sound) *
                   (it->half_square * r[0] - v[0] * r[1] - v[1] * r[2] - v[2] * r[3] + r[4]);
    double push = density * (v[0] * r[0] - r[1]), squeeze = density * sound * first;
    double along_y = it->inverse_density * (r[3] - v[2] * r[0]);
    double along_z = it->inverse_density * (v[1] * r[0] - r[2]);
    r[0] -= first;
    r[1] = along_y;
    r[2] = along_z;
    r[3] = squeeze - push;
    r[4] = squeeze + push;
}

static void from_x_to_y(double *r)
{
    double first = r[0], mean = 0.5 * (r[3] + r[4]), turn = ROOT_HALF * r[2];
    r[0] = -r[1];
    r[1] = first;
    r[2] = ROOT_HALF * (r[3] - r[4]);
    r[3] = mean - turn;
    r[4] = mean + turn;
}

static void from_y_to_z(double *r)
{
    double second = r[1], mean = 0.5 * (r[3] + r[4]), turn = ROOT_HALF * r[0];
    r[0] = ROOT_HALF * (r[3] - r[4]);
    r[1] = -r[2];
    r[2] = second;
    r[3] = mean - turn;
    r[4] = mean + turn;
}

/* From amplitudes of the waves along z back to changes of the state. */
static void from_waves_of_z(double *r, const double *u, const struct derived *it)
{
    const double *v = it->velocity;
    double sound = speed_of_sound(it), density = ROOT_HALF * u[0];
    double squeeze = density / sound * (r[3] + r[4]), push = density * (r[3] - r[4]);
    double mass = r[2] + squeeze, x = -u[0] * r[1], y = u[0] * r[0];
    r[0] = mass;
    r[1] = x + v[0] * mass;
    r[2] = y + v[1] * mass;
    r[3] = push + v[2] * mass;
    r[4] = v[0] * x + v[1] * y + v[2] * push + it->half_square * mass +
           sound * sound * squeeze / C2;
}

/*
 * Lines that are solved together, so that the compiler can use vector instructions: the speeds of
 * the flow and of sound, the diffusion and the amplitudes at their inner points.
 */
struct lines {
    double flow[MAX_POINTS][LANES], sound[MAX_POINTS][LANES], diffusion[MAX_POINTS][LANES];
    double amplitudes[MAX_POINTS][PARTS][LANES];
};

/* The factors of a row of the matrix after elimination: of the next point, and of the one after. */
struct factors {
    double next[LANES], second[LANES];
};

/* One row of the matrix of the waves that move with flow + sign * sound, eliminated. */
static void eliminate(struct lines *lines, struct factors *factors, int i, double sign, int first,
                      int last)
{
    double advection = dt * first_difference, diffusion = dt * second_difference;
    double damping = dt * DISSIPATION, points = n - 2;
    double at_0 = 1 + damping * (6 - (i == 0) - (i == points - 1)), at2 = i < points - 2 ? damping : 0;
    /* Points at the border and beyond have no part in the system. */
    double at_1 = i > 0, at1 = i < points - 1, at_2 = i > 1 ? damping : 0;
    int low = i > 0 ? i - 1 : 0, lower = i > 1 ? i - 2 : 0, high = i < points - 1 ? i + 1 : i;
    for (int l = 0; l < LANES; l++) {
        double before = -at_1 * (advection * (lines->flow[low][l] + sign * lines->sound[low][l]) +
                                 diffusion * lines->diffusion[low][l] + 4 * damping);
        double after = at1 * (advection * (lines->flow[high][l] + sign * lines->sound[high][l]) -
                              diffusion * lines->diffusion[high][l] - 4 * damping);
        double here = at_0 + 2 * diffusion * lines->diffusion[i][l];
        before -= at_2 * factors[lower].next[l];
        here -= at_2 * factors[lower].second[l] + before * factors[low].next[l];
        after -= before * factors[low].second[l];
        double pivot = 1 / here;
        factors[i].next[l] = pivot * after;
        factors[i].second[l] = pivot * at2;
        for (int m = first; m < last; m++)
            lines->amplitudes[i][m][l] =
                pivot * (lines->amplitudes[i][m][l] - at_2 * lines->amplitudes[lower][m][l] -
                         before * lines->amplitudes[low][m][l]);
    }
}

/* Solves for the amplitudes [first, last), in place. The change at the ends of the lines is 0. */
static void solve_waves(struct lines *lines, double sign, int first, int last)
{
    static struct factors factors[MAX_POINTS];
    memset(factors, 0, sizeof factors[0]);
    for (int i = 0; i < n - 2; i++)
        eliminate(lines, factors, i, sign, first, last);
    for (int i = n - 4; i >= 0; i--) {
        int next = i + 1, second = i < n - 4 ? i + 2 : i + 1;
        for (int m = first; m < last; m++)
            for (int l = 0; l < LANES; l++)
                lines->amplitudes[i][m][l] -=
                    factors[i].next[l] * lines->amplitudes[next][m][l] +
                    factors[i].second[l] * lines->amplitudes[second][m][l];
    }
}

/*
 * Solves the systems of direction d along parallel lines, in place. Points of a line are `step`
 * apart, and the `count` lines are `across` apart.
 */
static void solve_lines(const double *u, double *r, int step, int across, int count, int d)
{
    static struct lines lines;
    for (int first = 0; first < count; first += LANES) {
        for (int i = 0; i < n - 2; i++)
            for (int l = 0; l < LANES; l++) {
                int line = first + l < count ? first + l : first;
                int place = PARTS * (i * step + line * across);
                struct derived it = derive(u + place);
                lines.flow[i][l] = it.velocity[d];
                lines.sound[i][l] = speed_of_sound(&it);
                /* The largest coefficient of all equations is that of the energy. */
                lines.diffusion[i][l] = DIFFUSION[d] + C1C5 * C3C4 * it.inverse_density;
                for (int m = 0; m < PARTS; m++)
                    lines.amplitudes[i][m][l] = r[place + m];
            }
        solve_waves(&lines, 0, 0, 3);
        solve_waves(&lines, 1, 3, 4);
        solve_waves(&lines, -1, 4, 5);
        for (int i = 0; i < n - 2; i++)
            for (int l = 0; l < LANES && first + l < count; l++)
                for (int m = 0; m < PARTS; m++)
                    r[PARTS * (i * step + (first + l) * across) + m] = lines.amplitudes[i][m][l];
    }
}

/* The first two directions, in a plane of z. */
static void solve_plane(int z)
{
    int first = at(1, 1, z);
    for (int y = 0; y < n - 2; y++)
        for (int i = first + y * n; i < first + y * n + n - 2; i++) {
            for (int m = 0; m < PARTS; m++)
                right[PARTS * i + m] *= dt;
            to_waves_of_x(right + PARTS * i, derived + i);
        }
    solve_lines(u + PARTS * first, right + PARTS * first, 1, n, n - 2, 0);
    for (int y = 0; y < n - 2; y++)
        for (int i = first + y * n; i < first + y * n + n - 2; i++)
            from_x_to_y(right + PARTS * i);
    solve_lines(u + PARTS * first, right + PARTS * first, n, 1, n - 2, 1);
    for (int y = 0; y < n - 2; y++)
        for (int i = first + y * n; i < first + y * n + n - 2; i++)
            from_y_to_z(right + PARTS * i);
}

/* The third direction, in the order in which its lines are whole. */
static void solve_turned_row(int y)
{
    int first = turned_at(1, y, 1), plane = (row_end - row_begin) * n;
    solve_lines(turned_u + PARTS * first, turned_right + PARTS * first, plane, 1, n - 2, 2);
    for (int z = 0; z < n - 2; z++)
        for (int i = first + z * plane; i < first + z * plane + n - 2; i++) {
            struct derived it = derive(turned_u + PARTS * i);
            from_waves_of_z(turned_right + PARTS * i, turned_u + PARTS * i, &it);
        }
}

static void step(void)
{
    compute_right();
    for (int z = begin; z < end; z++)
        solve_plane(z);
    put_turned(turned_right, right);
    SYNC();
    for (int y = row_begin; y < row_end; y++)
        solve_turned_row(y);
    put_back(right, turned_right);
    SYNC();
    add_change(right, 1);
    put_borders();
    put_turned(turned_u, u);
    SYNC();
}

int main(int argc, char **argv)
{
    const double operations[4] = {881.174, -4683.91, 11484.5, -19272.4};
    return solve("SP", PROBLEMS, step, operations, argc, argv);
}
