/* Derived datatypes: scattered data arrives at the places of the receiver's type, and gaps do not change. */
#include "common.h"
#include <stddef.h>

enum { ROWS = 64, COLUMNS = 48 };

struct particle {
    char kind;
    double position[3];
    int16_t charge;
    int id;
};

static int left, right;

static void swap(const void *out, int out_count, MPI_Datatype out_type, void *in, int in_count,
                 MPI_Datatype in_type)
{
    MPI_Status status;
    int count;
    MPI_Sendrecv(out, out_count, out_type, right, 3, in, in_count, in_type, left, 3,
                 MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, in_type, &count);
    CHECK(count == in_count, "%d items came, not %d", count, in_count);
}

/* Sends a column and receives a row, and the other way round. */
static void columns_and_rows(void)
{
    static int out[ROWS * COLUMNS], in[ROWS * COLUMNS];
    MPI_Datatype column, row;
    MPI_Type_vector(ROWS, 1, COLUMNS, MPI_INT, &column);
    MPI_Type_contiguous(ROWS, MPI_INT, &row);
    MPI_Type_commit(&column);
    MPI_Type_commit(&row);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            out[i * COLUMNS + j] = value(rank, i * COLUMNS + j, 1);
    for (int j = 0; j < COLUMNS; j++) {
        memset(in, 0xff, sizeof in);
        swap(&out[j], 1, column, in, 1, row);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            CHECK(in[i] == (i < ROWS ? value(left, i * COLUMNS + j, 1) : -1),
                  "column %d as a row: wrong at %d", j, i);
        memset(in, 0xff, sizeof in);
        swap(out, 1, row, &in[j], 1, column);
        for (int i = 0; i < ROWS; i++)
            for (int k = 0; k < COLUMNS; k++)
                CHECK(in[i * COLUMNS + k] == (k == j ? value(left, i, 1) : -1),
                      "row as column %d: wrong at %d, %d", j, i, k);
    }
    MPI_Type_free(&column);
    MPI_Type_free(&row);
}

static void structures(int count)
{
    int lengths[] = {1, 3, 1, 1};
    MPI_Aint at[] = {offsetof(struct particle, kind), offsetof(struct particle, position),
                     offsetof(struct particle, charge), offsetof(struct particle, id)};
    MPI_Datatype types[] = {MPI_CHAR, MPI_DOUBLE, MPI_INT16_T, MPI_INT}, fields, type;
    MPI_Type_create_struct(4, lengths, at, types, &fields);
    MPI_Type_create_resized(fields, 0, sizeof(struct particle), &type);
    MPI_Type_commit(&type);
    size_t bytes = sizeof(struct particle) * (size_t)count;
    struct particle *out = allocate(bytes), *in = allocate(bytes);
    memset(out, 0x11, bytes);
    memset(in, 0xee, bytes);
    for (int i = 0; i < count; i++) {
        out[i].kind = (char)value(rank, i, 2);
        out[i].position[0] = value(rank, i, 3);
        out[i].position[1] = value(rank, i, 4) / 8.0;
        out[i].position[2] = -value(rank, i, 5);
        out[i].charge = (int16_t)value(rank, i, 6);
        out[i].id = value(rank, i, 7);
    }
    swap(out, count, type, in, count, type);
    for (int i = 0; i < count; i++) {
        CHECK(in[i].kind == (char)value(left, i, 2) && in[i].position[0] == value(left, i, 3) &&
                  in[i].position[1] == value(left, i, 4) / 8.0 &&
                  in[i].position[2] == -value(left, i, 5) &&
                  in[i].charge == value(left, i, 6) && in[i].id == value(left, i, 7),
              "structure %d of %d is wrong", i, count);
        unsigned char gap = ((unsigned char *)&in[i])[1];
        CHECK(gap == 0xee, "the gap in structure %d was written: %x", i, gap);
    }
    free(out);
    free(in);
    MPI_Type_free(&fields);
    MPI_Type_free(&type);
}

/* Blocks of different lengths, in reverse order. */
static void indexed(int blocks)
{
    int *lengths = allocate(sizeof(int) * (size_t)blocks), *at = allocate(sizeof(int) * (size_t)blocks);
    int total = 0;
    for (int i = 0; i < blocks; i++) {
        lengths[i] = 1 + i % 5;
        at[i] = (blocks - 1 - i) * 6 + 1;
        total += lengths[i];
    }
    MPI_Datatype type;
    MPI_Type_indexed(blocks, lengths, at, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    double *area = allocate(sizeof(double) * (size_t)(6 * blocks + 1));
    double *flat = allocate(sizeof(double) * (size_t)total);
    for (int i = 0; i < 6 * blocks + 1; i++)
        area[i] = value(rank, i, 8);
    swap(area, 1, type, flat, total, MPI_DOUBLE);
    for (int i = 0, next = 0; i < blocks; i++)
        for (int j = 0; j < lengths[i]; j++, next++)
            CHECK(flat[next] == value(left, at[i] + j, 8), "block %d of %d is wrong at %d", i,
                  blocks, j);
    for (int i = 0; i < 6 * blocks + 1; i++)
        area[i] = -1;
    swap(flat, total, MPI_DOUBLE, area, 1, type);
    int before = (left + size - 1) % size, filled = 0;
    for (int i = 0; i < blocks; i++)
        for (int j = 0; j < 6; j++) {
            double wanted = j < lengths[i] ? value(before, at[i] + j, 8) : -1;
            filled += j < lengths[i];
            CHECK(area[at[i] + j] == wanted, "into block %d of %d: wrong at %d", i, blocks, j);
        }
    CHECK(filled == total, "%d items, not %d", filled, total);
    free(lengths);
    free(at);
    free(area);
    free(flat);
    MPI_Type_free(&type);
}

/* A cube from a cube, and packed data. */
static void cubes(void)
{
    enum { SIDE = 24, PART = 10 };
    static int out[SIDE * SIDE * SIDE], in[SIDE * SIDE * SIDE];
    int sizes[] = {SIDE, SIDE, SIDE}, parts[] = {PART, PART, PART}, starts[] = {3, 5, 7};
    MPI_Datatype type;
    MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_C, MPI_INT, &type);
    MPI_Type_commit(&type);
    for (int i = 0; i < SIDE * SIDE * SIDE; i++) {
        out[i] = value(rank, i, 9);
        in[i] = -1;
    }
    swap(out, 1, type, in, 1, type);
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            for (int k = 0; k < SIDE; k++) {
                int inside = i >= 3 && i < 3 + PART && j >= 5 && j < 5 + PART && k >= 7 &&
                             k < 7 + PART;
                int wanted = inside ? value(left, (i * SIDE + j) * SIDE + k, 9) : -1;
                CHECK(in[(i * SIDE + j) * SIDE + k] == wanted, "cube: wrong at %d, %d, %d", i, j, k);
            }
    int bytes, at = 0, number = rank + 100, got[2];
    MPI_Pack_size(1, type, MPI_COMM_WORLD, &bytes);
    bytes += 64;
    char *packed = allocate((size_t)bytes), *arrived = allocate((size_t)bytes);
    MPI_Pack(&number, 1, MPI_INT, packed, bytes, &at, MPI_COMM_WORLD);
    MPI_Pack(out, 1, type, packed, bytes, &at, MPI_COMM_WORLD);
    MPI_Pack(&number, 1, MPI_INT, packed, bytes, &at, MPI_COMM_WORLD);
    swap(packed, at, MPI_PACKED, arrived, at, MPI_PACKED);
    at = 0;
    memset(in, 0xff, sizeof in);
    MPI_Unpack(arrived, bytes, &at, &got[0], 1, MPI_INT, MPI_COMM_WORLD);
    MPI_Unpack(arrived, bytes, &at, in, 1, type, MPI_COMM_WORLD);
    MPI_Unpack(arrived, bytes, &at, &got[1], 1, MPI_INT, MPI_COMM_WORLD);
    CHECK(got[0] == left + 100 && got[1] == left + 100, "packed: %d and %d", got[0], got[1]);
    CHECK(in[(4 * SIDE + 6) * SIDE + 8] == value(left, (4 * SIDE + 6) * SIDE + 8, 9), "packed cube is wrong");
    free(packed);
    free(arrived);
    MPI_Type_free(&type);
}

/* Scattered memory in collectives. */
static void in_collectives(void)
{
    MPI_Datatype every_third, spaced;
    MPI_Type_vector(100, 1, 3, MPI_INT, &every_third);
    MPI_Type_create_resized(every_third, 0, 300 * sizeof(int), &spaced);
    MPI_Type_commit(&spaced);
    int *area = allocate(sizeof(int) * 300 * (size_t)size);
    for (int i = 0; i < 300 * size; i++)
        area[i] = i / 300 == rank ? value(rank, i % 300, 10) : -1;
    MPI_Allgather(MPI_IN_PLACE, 0, spaced, area, 1, spaced, MPI_COMM_WORLD);
    for (int from = 0; from < size; from++)
        for (int i = 0; i < 300; i++) {
            int came = from == rank || i % 3 == 0;
            CHECK(area[from * 300 + i] == (came ? value(from, i, 10) : -1),
                  "Allgather of a vector: wrong at %d from %d", i, from);
        }
    for (int i = 0; i < 300; i++)
        area[i] = rank == 0 ? value(0, i, 11) : -1;
    MPI_Bcast(area, 1, spaced, 0, MPI_COMM_WORLD);
    for (int i = 0; i < 300; i++)
        CHECK(area[i] == (rank == 0 || i % 3 == 0 ? value(0, i, 11) : -1),
              "Bcast of a vector: wrong at %d", i);
    free(area);
    MPI_Type_free(&every_third);
    MPI_Type_free(&spaced);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    left = (rank + size - 1) % size;
    right = (rank + 1) % size;
    columns_and_rows();
    for (int count = 1; count <= 100000; count *= 10)
        structures(count);
    for (int blocks = 1; blocks <= 10000; blocks *= 10)
        indexed(blocks);
    cubes();
    in_collectives();
    return finish("datatypes");
}
