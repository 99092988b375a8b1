/* Symmetric over-relaxation in a box with five numbers at each point, like the kernel LU of the NAS
 * parallel benchmarks, which is named after the lower and the upper half of a matrix that it solves
 * alternately. Columns are distributed over a grid of ranks. A front moves through them plane by
 * plane, so ranks exchange many short messages.
 *
 *     mpicc -O3 -o lu lu.c -lm && mpirun -n 4 ./lu [SIDE [ITERATIONS]]
 */
#include "common.h"
#include <math.h>

enum { NUMBERS = 5, WEST = 0, EAST = 1, SOUTH = 2, NORTH = 3 };

/* Weights of the neighbours before and after a point. The diagonal exceeds the sum of all six. */
#define BEFORE (-1.1)
#define BEHIND (-0.9)
#define DIAGONAL(c) (6.8 + 0.1 * (c))

static int rank, size, wide, deep, high;
static int neighbour[4];
static double *line[4];

/* The numbers of a point. The columns of a rank have a margin of one point around them. */
static double *at(double *of, int x, int y, int z)
{
    size_t row = ((size_t)(z + 1) * (size_t)(deep + 2) + (size_t)(y + 1)) * (size_t)(wide + 2);
    return of + (row + (size_t)(x + 1)) * NUMBERS;
}

/* The edge of a plane: a neighbour's, or the one inside next to it. */
static void edge(double *of, int z, int of_whom, int inside, double *into, const double *from)
{
    int is_row = of_whom == SOUTH || of_whom == NORTH, length = is_row ? wide : deep;
    int last = (is_row ? deep : wide) - 1, is_first = of_whom == WEST || of_whom == SOUTH;
    int across = is_first ? (inside ? 0 : -1) : (inside ? last : last + 1);
    for (int i = 0; i < length; i++) {
        double *point = is_row ? at(of, i, across, z) : at(of, across, i, z);
        for (int c = 0; c < NUMBERS; c++) {
            if (into)
                into[i * NUMBERS + c] = point[c];
            else
                point[c] = from[i * NUMBERS + c];
        }
    }
}

static int length_of(int of_whom)
{
    return (of_whom == SOUTH || of_whom == NORTH ? wide : deep) * NUMBERS;
}

static void send_edge(double *of, int z, int to, double *packed)
{
    edge(of, z, to, 1, packed, NULL);
    MPI_Send(packed, length_of(to), MPI_DOUBLE, neighbour[to], to, MPI_COMM_WORLD);
}

static void receive_edge(double *of, int z, int from, double *packed)
{
    if (neighbour[from] == MPI_PROC_NULL)
        return;
    MPI_Recv(packed, length_of(from), MPI_DOUBLE, neighbour[from], from ^ 1, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    edge(of, z, from, 0, NULL, packed);
}

/* Exchanges all edges, before a product with the matrix. */
static void exchange(double *of, double *packed, double *coming)
{
    for (int to = 0; to < 4; to++) {
        size_t length = (size_t)length_of(to);
        for (int z = 0; z < high; z++)
            edge(of, z, to, 1, packed + (size_t)z * length, NULL);
        MPI_Sendrecv(packed, (int)length * high, MPI_DOUBLE, neighbour[to], to, coming,
                     (int)length * high, MPI_DOUBLE, neighbour[to ^ 1], to, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        if (neighbour[to ^ 1] == MPI_PROC_NULL)
            continue;
        length = (size_t)length_of(to ^ 1);
        for (int z = 0; z < high; z++)
            edge(of, z, to ^ 1, 0, NULL, coming + (size_t)z * length);
    }
}

static double product(double *of, int x, int y, int z, int c)
{
    return DIAGONAL(c) * at(of, x, y, z)[c] +
           BEFORE * (at(of, x - 1, y, z)[c] + at(of, x, y - 1, z)[c] + at(of, x, y, z - 1)[c]) +
           BEHIND * (at(of, x + 1, y, z)[c] + at(of, x, y + 1, z)[c] + at(of, x, y, z + 1)[c]);
}

/* The lower half: each point depends on those before it. */
static void forward(double *r)
{
    for (int z = 0; z < high; z++) {
        receive_edge(r, z, WEST, line[WEST]);
        receive_edge(r, z, SOUTH, line[SOUTH]);
        for (int y = 0; y < deep; y++)
            for (int x = 0; x < wide; x++)
                for (int c = 0; c < NUMBERS; c++) {
                    double before = at(r, x - 1, y, z)[c] + at(r, x, y - 1, z)[c];
                    double *here = at(r, x, y, z) + c;
                    *here = (*here - BEFORE * (before + at(r, x, y, z - 1)[c])) / DIAGONAL(c);
                }
        send_edge(r, z, EAST, line[EAST]);
        send_edge(r, z, NORTH, line[NORTH]);
    }
}

/* The upper half, in the opposite direction. */
static void backward(double *r)
{
    for (int z = high - 1; z >= 0; z--) {
        receive_edge(r, z, EAST, line[EAST]);
        receive_edge(r, z, NORTH, line[NORTH]);
        for (int y = deep - 1; y >= 0; y--)
            for (int x = wide - 1; x >= 0; x--)
                for (int c = 0; c < NUMBERS; c++) {
                    double behind = at(r, x + 1, y, z)[c] + at(r, x, y + 1, z)[c];
                    double *here = at(r, x, y, z) + c;
                    *here -= BEHIND * (behind + at(r, x, y, z + 1)[c]) / DIAGONAL(c);
                }
        send_edge(r, z, WEST, line[WEST]);
        send_edge(r, z, SOUTH, line[SOUTH]);
    }
}

/* Margins without a neighbouring rank must be 0, and so must those that a sweep does not receive. */
static void clear_margins(double *r)
{
    for (int z = -1; z <= high; z++)
        for (int y = -1; y <= deep; y++)
            for (int x = -1; x <= wide; x++)
                if (x < 0 || y < 0 || z < 0 || x == wide || y == deep || z == high)
                    for (int c = 0; c < NUMBERS; c++)
                        at(r, x, y, z)[c] = 0;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int side = argc > 1 ? atoi(argv[1]) : 48, iterations = argc > 2 ? atoi(argv[2]) : 40;
    int grid[2] = {0, 0};
    MPI_Dims_create(size, 2, grid);
    int column = rank % grid[0], row = rank / grid[0];
    int left = (int)block_begin(side, column, grid[0]), front = (int)block_begin(side, row, grid[1]);
    wide = (int)block_begin(side, column + 1, grid[0]) - left;
    deep = (int)block_begin(side, row + 1, grid[1]) - front;
    high = side;
    neighbour[WEST] = column > 0 ? rank - 1 : MPI_PROC_NULL;
    neighbour[EAST] = column < grid[0] - 1 ? rank + 1 : MPI_PROC_NULL;
    neighbour[SOUTH] = row > 0 ? rank - grid[0] : MPI_PROC_NULL;
    neighbour[NORTH] = row < grid[1] - 1 ? rank + grid[0] : MPI_PROC_NULL;
    for (int i = 0; i < 4; i++)
        line[i] = allocate((size_t)length_of(i), sizeof(double));
    size_t points = (size_t)(wide + 2) * (size_t)(deep + 2) * (size_t)(high + 2) * NUMBERS;
    double *u = allocate(points, sizeof *u), *b = allocate(points, sizeof *b);
    double *r = allocate(points, sizeof *r);
    size_t faces = (size_t)(wide > deep ? wide : deep) * (size_t)high * NUMBERS;
    double *packed = allocate(faces, sizeof *packed), *coming = allocate(faces, sizeof *coming);

    /* The right side is chosen so that the solution is known. */
#define SOLUTION(x, y, z, c) (1 + ((left + (x)) * 7 + (front + (y)) * 3 + (z)*5 + (c)) % 11)
#define EVERYWHERE                                                                                 \
    for (int z = 0; z < high; z++)                                                                 \
        for (int y = 0; y < deep; y++)                                                             \
            for (int x = 0; x < wide; x++)                                                         \
                for (int c = 0; c < NUMBERS; c++)
    EVERYWHERE
        at(u, x, y, z)[c] = SOLUTION(x, y, z, c);
    exchange(u, packed, coming);
    EVERYWHERE
        at(b, x, y, z)[c] = product(u, x, y, z, c);
    for (size_t i = 0; i < points; i++)
        u[i] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime(), norm = 0;
    for (int iteration = 0; iteration < iterations; iteration++) {
        exchange(u, packed, coming);
        norm = 0;
        EVERYWHERE
        {
            double rest = at(b, x, y, z)[c] - product(u, x, y, z, c);
            at(r, x, y, z)[c] = rest;
            norm += rest * rest;
        }
        MPI_Allreduce(MPI_IN_PLACE, &norm, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        clear_margins(r);
        forward(r);
        clear_margins(r);
        backward(r);
        EVERYWHERE
            at(u, x, y, z)[c] += at(r, x, y, z)[c];
    }
    report("lu", began);
    EVERYWHERE
        if (fabs(at(u, x, y, z)[c] - SOLUTION(x, y, z, c)) > 1e-6)
            give_up("lu: after %d iterations number %d at (%d, %d, %d) is %.12g, not %d", iterations, c,
                    left + x, front + y, z, at(u, x, y, z)[c], SOLUTION(x, y, z, c));
    MPI_Finalize();
    return 0;
}
