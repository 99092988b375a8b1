/*
 * NAS SP: the flow of flow.h with an implicit step that is factored into the three directions and
 * made diagonal in each: it solves systems along the lines whose matrices have five diagonals, one
 * for each wave. A step takes three supersteps: to the order in which lines along z are whole,
 * back, and the exchange of planes at the borders.
 *
 *     sp [S|W|A]                at most one process for each inner plane: 10, 34 or 62
 */
#include "transpose.h"

enum { MAX_POINTS = 64 };

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

/* Speed of the flow, speed of sound and diffusion at the inner points of a line. */
struct line {
    double flow[MAX_POINTS], sound[MAX_POINTS], diffusion[MAX_POINTS];
};

/*
 * Solves the systems of `count` amplitudes that move with flow + sign * sound, in place. Point i
 * has its amplitudes in r at i times `step` points. The change at the ends of the line is 0.
 */
static void solve_waves(const struct line *line, double sign, double *r, int count, int step)
{
    double next[MAX_POINTS], second[MAX_POINTS];
    double advection = dt * first_difference, diffusion = dt * second_difference;
    double damping = dt * DISSIPATION;
    int points = n - 2, stride = PARTS * step;
    for (int i = 0; i < points; i++) {
        double here = 1 + 2 * diffusion * line->diffusion[i] +
                      damping * (6 - (i == 0) - (i == points - 1));
        double after = 0, after_next = i + 2 < points ? damping : 0;
        double *now = r + stride * i;
        if (i + 1 < points)
            after = advection * (line->flow[i + 1] + sign * line->sound[i + 1]) -
                    diffusion * line->diffusion[i + 1] - 4 * damping;
        if (i > 0) {
            double before = -advection * (line->flow[i - 1] + sign * line->sound[i - 1]) -
                            diffusion * line->diffusion[i - 1] - 4 * damping;
            if (i > 1) {
                before -= damping * next[i - 2];
                here -= damping * second[i - 2];
                for (int m = 0; m < count; m++)
                    now[m] -= damping * now[m - 2 * stride];
            }
            here -= before * next[i - 1];
            after -= before * second[i - 1];
            for (int m = 0; m < count; m++)
                now[m] -= before * now[m - stride];
        }
        double pivot = 1 / here;
        next[i] = pivot * after;
        second[i] = pivot * after_next;
        for (int m = 0; m < count; m++)
            now[m] *= pivot;
    }
    for (int i = points - 2; i >= 0; i--)
        for (int m = 0; m < count; m++) {
            double *now = r + stride * i + m;
            *now -= next[i] * now[stride] + (i + 2 < points ? second[i] * now[2 * stride] : 0);
        }
}

static void solve_line(const double *u, double *r, int step, int d)
{
    struct line line;
    for (int i = 0; i < n - 2; i++) {
        struct derived it = derive(u + PARTS * step * i);
        line.flow[i] = it.velocity[d];
        line.sound[i] = speed_of_sound(&it);
        /* The largest coefficient of all equations is that of the energy. */
        line.diffusion[i] = DIFFUSION[d] + C1C5 * C3C4 * it.inverse_density;
    }
    solve_waves(&line, 0, r, 3, step);
    solve_waves(&line, 1, r + 3, 1, step);
    solve_waves(&line, -1, r + 4, 1, step);
}

/* The first two directions, in a plane of z. */
static void solve_plane(int z)
{
    for (int y = 1; y < n - 1; y++) {
        int row = at(0, y, z);
        for (int i = row + 1; i < row + n - 1; i++) {
            for (int m = 0; m < PARTS; m++)
                right[PARTS * i + m] *= dt;
            to_waves_of_x(right + PARTS * i, derived + i);
        }
        solve_line(u + PARTS * (row + 1), right + PARTS * (row + 1), 1, 0);
        for (int i = row + 1; i < row + n - 1; i++)
            from_x_to_y(right + PARTS * i);
    }
    for (int x = 1; x < n - 1; x++) {
        int first = at(x, 1, z);
        solve_line(u + PARTS * first, right + PARTS * first, n, 1);
        for (int y = 0; y < n - 2; y++)
            from_y_to_z(right + PARTS * (first + y * n));
    }
}

static void step(void)
{
    compute_right();
    for (int z = begin; z < end; z++)
        solve_plane(z);
    put_turned(turned_right, right);
    SYNC();
    int plane = (row_end - row_begin) * n;
    for (int y = row_begin; y < row_end; y++)
        for (int x = 1; x < n - 1; x++) {
            int first = turned_at(x, y, 1);
            solve_line(turned_u + PARTS * first, turned_right + PARTS * first, plane, 2);
            for (int i = first; i < first + (n - 2) * plane; i += plane) {
                struct derived it = derive(turned_u + PARTS * i);
                from_waves_of_z(turned_right + PARTS * i, turned_u + PARTS * i, &it);
            }
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
    bsp_begin(bsp_nprocs());
    int class = class_index(argc, argv);
    const struct flow_problem *problem = &PROBLEMS[class];
    make_grid(problem);
    make_turned();
    prepare_sums();

    /* One step before the clock starts, so that all memory is in use. */
    run(1, step);
    double seconds = run(problem->steps, step);
    double operations = problem->steps * (881.174 * pow(n, 3) - 4683.91 * pow(n, 2) +
                                          11484.5 * n - 19272.4);
    int status = verify("SP", class, problem, seconds, operations);
    bsp_end();
    return status;
}
