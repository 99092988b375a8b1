/*
 * Bodies attract each other. Each process has some of them. Copies of all bodies travel around the
 * ring of processes, so that each process combines its own with all others.
 *
 *     n_body: 90 bodies, 10 steps, energy -0.857835
 */
#include <bsp.h>
#include <math.h>

#include "common.h"

enum { BODIES = 90, STEPS = 10 };

struct body {
    double place[3], speed[3], mass;
};

static const double step_time = 1e-3, softening = 1e-2;

static struct body initial(int i)
{
    struct body it = {.mass = 1.0 / BODIES};
    for (int d = 0; d < 3; d++) {
        it.place[d] = (double)noise(6 * i + d) / 4294967296.0 - 0.5;
        it.speed[d] = (double)noise(6 * i + 3 + d) / 4294967296.0 - 0.5;
    }
    return it;
}

/* Adds the acceleration of a body by another one. Returns the potential per mass of both. */
static double attract(const struct body *one, const struct body *other, double *acceleration)
{
    double away[3], square = softening;
    for (int d = 0; d < 3; d++) {
        away[d] = other->place[d] - one->place[d];
        square += away[d] * away[d];
    }
    for (int d = 0; d < 3; d++)
        acceleration[d] += other->mass * away[d] / (square * sqrt(square));
    return -other->mass / sqrt(square);
}

static void move(struct body *it, const double *acceleration)
{
    for (int d = 0; d < 3; d++) {
        it->speed[d] += step_time * acceleration[d];
        it->place[d] += step_time * it->speed[d];
    }
}

int main(void)
{
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), me = bsp_pid();
    int begin = block_begin(BODIES, me, p), count = block_begin(BODIES, me + 1, p) - begin;
    int most = BODIES / p + 1;
    const int size = sizeof(struct body);

    struct body *own = allocate(count, sizeof *own);
    struct body *guests = allocate((size_t)2 * most, sizeof *guests);
    double(*acceleration)[3] = allocate(count, sizeof *acceleration);
    bsp_push_reg(guests, 2 * most * size);
    for (int i = 0; i < count; i++)
        own[i] = initial(begin + i);
    bsp_sync();

    double energy = 0;
    for (int step = 0; step < STEPS; step++) {
        energy = 0;
        for (int i = 0; i < count; i++) {
            guests[i] = own[i];
            for (int d = 0; d < 3; d++) {
                acceleration[i][d] = 0;
                energy += own[i].mass * own[i].speed[d] * own[i].speed[d] / 2;
            }
        }
        for (int hop = 0; hop < p; hop++) {
            int home = (me + hop) % p, first = block_begin(BODIES, home, p);
            int here = block_begin(BODIES, home + 1, p) - first;
            struct body *visiting = guests + hop % 2 * most;
            if (hop + 1 < p)
                bsp_hpput((me + p - 1) % p, visiting, guests, (hop + 1) % 2 * most * size,
                          here * size);
            for (int i = 0; i < count; i++)
                for (int j = 0; j < here; j++)
                    if (begin + i != first + j)
                        energy += own[i].mass * attract(&own[i], &visiting[j], acceleration[i]) / 2;
            bsp_sync();
        }
        for (int i = 0; i < count; i++)
            move(&own[i], acceleration[i]);
    }
    energy = bsp_sumD(energy);

    struct body all[BODIES];
    for (int i = 0; i < BODIES; i++)
        all[i] = initial(i);
    for (int step = 0; step < STEPS; step++) {
        double pull[BODIES][3] = {{0}};
        for (int i = 0; i < BODIES; i++)
            for (int j = 0; j < BODIES; j++)
                if (i != j)
                    attract(&all[i], &all[j], pull[i]);
        for (int i = 0; i < BODIES; i++)
            move(&all[i], pull[i]);
    }
    for (int i = 0; i < count; i++)
        for (int d = 0; d < 3; d++)
            REQUIRE(fabs(own[i].place[d] - all[begin + i].place[d]) < 1e-12, "body %d is lost",
                    begin + i);
    if (me == 0)
        printf("n_body: %d bodies, %d steps, energy %.6f\n", BODIES, STEPS, energy);

    free(acceleration);
    free(guests);
    free(own);
    bsp_end();
    return 0;
}
