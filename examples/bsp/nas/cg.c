/*
 * NAS CG, "conjugate gradient": inverse power iterations for the smallest eigenvalue of a sparse
 * matrix with random entries. Processes own blocks of rows. An iteration of the conjugate gradient
 * method takes two supersteps: one adds p.Ap, one exchanges the residual together with r.r, after
 * which each process computes the whole next direction.
 *
 *     cg [S|W|A]                any number of processes
 */
#include "nas.h"

enum { ITERATIONS = 15, STEPS = 25, MAX_NONZERO = 11 };

struct problem {
    int n, nonzero;
    double shift, zeta;
};

static const struct problem PROBLEMS[] = {
    {1400, 7, 10, 8.5971775078648},
    {7000, 8, 12, 10.362595087124},
    {14000, 11, 20, 17.130235054029},
};

static const struct problem *problem;

/* The rows [begin, end) of the matrix; row r has the entries [starts[r - begin], starts[r + 1 - begin]). */
static int begin, end, *starts, *columns;
static double *entries;

/* A sparse random vector; the matrix is a weighted sum of the outer products of n of them. */
struct vector {
    int count, at[MAX_NONZERO + 1];
    double values[MAX_NONZERO + 1];
};

static int find(const struct vector *vector, int at)
{
    int k = 0;
    while (k < vector->count && vector->at[k] != at)
        k++;
    return k;
}

/* Random values at `nonzero` different places, and 1/2 at the place `own`. */
static void make_vector(struct vector *vector, uint64_t *seed, int own)
{
    int bound = 1;
    while (bound < problem->n)
        bound *= 2;
    vector->count = 0;
    while (vector->count < problem->nonzero) {
        double value = next_random(seed);
        int at = (int)(next_random(seed) * bound);
        if (at >= problem->n || find(vector, at) < vector->count)
            continue;
        vector->at[vector->count] = at;
        vector->values[vector->count++] = value;
    }
    int k = find(vector, own);
    vector->at[k] = own;
    vector->values[k] = 0.5;
    vector->count += k == vector->count;
}

static int ascending(const void *left, const void *right)
{
    return *(const int *)left - *(const int *)right;
}

/* Appends row r: the sum of weight[i] vectors[i][r] vectors[i] over the `count` vectors in `those`. */
static void make_row(int r, const struct vector *vectors, const int *those, int count)
{
    static double *sums, condition = 0.1;
    static char *is_used;
    sums = sums ? sums : allocate(problem->n, sizeof *sums);
    is_used = is_used ? is_used : allocate(problem->n, sizeof *is_used);

    int first = starts[r - begin], last = first;
    for (int k = 0; k < count; k++) {
        const struct vector *vector = &vectors[those[k]];
        double weight = pow(condition, (double)those[k] / problem->n);
        double factor = weight * vector->values[find(vector, r)];
        for (int i = 0; i < vector->count; i++) {
            int column = vector->at[i];
            if (!is_used[column]) {
                is_used[column] = 1;
                columns[last++] = column;
            }
            sums[column] += factor * vector->values[i];
        }
    }
    sums[r] += condition - problem->shift;
    qsort(columns + first, last - first, sizeof *columns, ascending);
    for (int k = first; k < last; k++) {
        entries[k] = sums[columns[k]];
        sums[columns[k]] = is_used[columns[k]] = 0;
    }
    starts[r - begin + 1] = last;
}

/* All processes make all vectors, because each random number depends on those that were dropped. */
static void make_matrix(void)
{
    int n = problem->n, bound = 0;
    struct vector *vectors = allocate(n, sizeof *vectors);
    int *counts = allocate(end - begin + 1, sizeof *counts);
    uint64_t seed = skip_random(314159265, 1);
    for (int i = 0; i < n; i++) {
        make_vector(&vectors[i], &seed, i);
        for (int k = 0; k < vectors[i].count; k++) {
            int r = vectors[i].at[k];
            if (r >= begin && r < end) {
                counts[r - begin]++;
                bound += vectors[i].count;
            }
        }
    }
    /* Which vectors are nonzero in each row. */
    int *firsts = allocate(end - begin + 1, sizeof *firsts);
    for (int r = 0; r < end - begin; r++)
        firsts[r + 1] = firsts[r] + counts[r];
    int *those = allocate(firsts[end - begin], sizeof *those);
    for (int i = n - 1; i >= 0; i--)
        for (int k = 0; k < vectors[i].count; k++)
            if (vectors[i].at[k] >= begin && vectors[i].at[k] < end) {
                int r = vectors[i].at[k] - begin;
                those[firsts[r] + --counts[r]] = i;
            }

    starts = allocate(end - begin + 1, sizeof *starts);
    columns = allocate(bound, sizeof *columns);
    entries = allocate(bound, sizeof *entries);
    for (int r = begin; r < end; r++)
        make_row(r, vectors, those + firsts[r - begin], firsts[r - begin + 1] - firsts[r - begin]);
    free(vectors);
    free(counts);
    free(firsts);
    free(those);
}

/* result = A x for the rows of this process; both have all n places. */
static void multiply(double *result, const double *x)
{
    for (int r = begin; r < end; r++) {
        double sum = 0;
        for (int k = starts[r - begin]; k < starts[r - begin + 1]; k++)
            sum += entries[k] * x[columns[k]];
        result[r] = sum;
    }
}

/* The part of the inner product over the rows of this process. */
static double dot(const double *x, const double *y)
{
    double sum = 0;
    for (int r = begin; r < end; r++)
        sum += x[r] * y[r];
    return sum;
}

/* Puts the rows of this process into the registered vector of the others. */
static void put_rows(double *x)
{
    for (int pid = 0; pid < bsp_nprocs(); pid++)
        if (pid != bsp_pid())
            bsp_hpput(pid, x + begin, x, begin * (int)sizeof *x, (end - begin) * (int)sizeof *x);
}

static double *x, *z, *r, *p, *q;

/* Solves A z = x approximately; returns this process' part of the squared norm of the residual. */
static double solve(void)
{
    int n = problem->n;
    double rho = 0, sums[2];
    for (int i = 0; i < n; i++) {
        z[i] = 0;
        r[i] = p[i] = x[i];
        rho += x[i] * x[i];
    }
    for (int step = 1;; step++) {
        multiply(q, p);
        sums[0] = dot(p, q);
        SUM(sums, 1);
        double alpha = rho / sums[0];
        for (int i = begin; i < end; i++) {
            z[i] += alpha * p[i];
            r[i] -= alpha * q[i];
        }
        if (step == STEPS)
            break;
        put_rows(r);
        sums[0] = dot(r, r);
        SUM(sums, 1);
        double beta = sums[0] / rho;
        rho = sums[0];
        for (int i = 0; i < n; i++)
            p[i] = r[i] + beta * p[i];
    }
    put_rows(z);
    SYNC();
    multiply(q, z);
    double residual = 0;
    for (int i = begin; i < end; i++)
        residual += (x[i] - q[i]) * (x[i] - q[i]);
    return residual;
}

/* One step of the power iteration: returns zeta, and makes x the direction of z. */
static double iterate(double *residual)
{
    *residual = solve();
    double xz = 0, zz = 0;
    for (int i = 0; i < problem->n; i++) {
        xz += x[i] * z[i];
        zz += z[i] * z[i];
    }
    for (int i = 0; i < problem->n; i++)
        x[i] = z[i] / sqrt(zz);
    return problem->shift + 1 / xz;
}

static void reset(void)
{
    for (int i = 0; i < problem->n; i++)
        x[i] = 1;
}

int main(int argc, char **argv)
{
    bsp_begin(bsp_nprocs());
    int class = class_index(argc, argv);
    problem = &PROBLEMS[class];
    begin = block_begin(problem->n, bsp_pid());
    end = block_begin(problem->n, bsp_pid() + 1);
    double **vectors[] = {&x, &z, &r, &p, &q};
    for (int i = 0; i < 5; i++) {
        *vectors[i] = allocate(problem->n, sizeof **vectors[i]);
        bsp_push_reg(*vectors[i], problem->n * (int)sizeof **vectors[i]);
    }
    prepare_sums();

    make_matrix();
    double residual, zeta = 0;
    reset();
    iterate(&residual);
    reset();
    double start = start_clock();
    for (int i = 0; i < ITERATIONS; i++)
        zeta = iterate(&residual);
    SUM(&residual, 1);
    double seconds = bsp_time() - start;

    if (bsp_pid() == 0)
        printf("  residual     %22.13e\n", sqrt(residual));
    int is_right = is_close("zeta", zeta, problem->zeta, 1e-10);
    double factor = problem->nonzero * (problem->nonzero + 1);
    double operations = 2.0 * ITERATIONS * problem->n * (6 + factor + STEPS * (5 + factor));
    int status = report("CG", class, seconds, operations, is_right);
    bsp_end();
    return status;
}
