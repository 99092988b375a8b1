/* One-sided communication: put, get, accumulate, fetch and op, compare and swap, between fences,
 * under locks, and between post and wait; on windows of several kinds. */
#include "common.h"

enum { ITEMS = 2000 };

static int left, right;

static void between_fences(MPI_Win window, int *area, int items, const char *kind)
{
    int *own = allocate(sizeof(int) * (size_t)items), *got = allocate(sizeof(int) * (size_t)items);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < items; i++) {
            own[i] = value(rank, i, turn);
            area[i] = -1;
        }
        MPI_Win_fence(0, window);
        MPI_Put(own, items, MPI_INT, right, 0, items, MPI_INT, window);
        MPI_Win_fence(0, window);
        for (int i = 0; i < items; i++)
            CHECK(area[i] == value(left, i, turn), "%s, put: wrong at %d of %d", kind, i, items);
        MPI_Win_fence(0, window);
        MPI_Get(got, items, MPI_INT, right, 0, items, MPI_INT, window);
        MPI_Win_fence(0, window);
        for (int i = 0; i < items; i++)
            CHECK(got[i] == own[i], "%s, get: wrong at %d of %d", kind, i, items);
    }
    for (int i = 0; i < items; i++)
        area[i] = i;
    MPI_Win_fence(0, window);
    for (int to = 0; to < size; to++)
        MPI_Accumulate(own, items, MPI_INT, to, 0, items, MPI_INT, MPI_SUM, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < items; i++) {
        int wanted = i;
        for (int from = 0; from < size; from++)
            wanted += value(from, i, 2);
        CHECK(area[i] == wanted, "%s, accumulate: %d at %d, not %d", kind, area[i], i, wanted);
    }
    MPI_Win_fence(0, window);
    free(own);
    free(got);
}

/* Puts a column into a row of the neighbour. */
static void scattered(MPI_Win window, int *area)
{
    enum { SIDE = 30 };
    MPI_Datatype column;
    MPI_Type_vector(SIDE, 1, SIDE, MPI_INT, &column);
    MPI_Type_commit(&column);
    int own[SIDE * SIDE];
    for (int i = 0; i < SIDE * SIDE; i++) {
        own[i] = value(rank, i, 20);
        area[i] = -1;
    }
    MPI_Win_fence(0, window);
    MPI_Put(&own[4], 1, column, right, 7 * SIDE, SIDE, MPI_INT, window);
    MPI_Put(&own[6 * SIDE], SIDE, MPI_INT, right, 29, 1, column, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            int wanted = i == 7 ? value(left, j * SIDE + 4, 20) : -1;
            /* Both wrote this item; either value is valid. */
            if (i == 7 && j == 29)
                continue;
            wanted = j == 29 ? value(left, 6 * SIDE + i, 20) : wanted;
            CHECK(area[i * SIDE + j] == wanted, "put of a vector: wrong at %d, %d", i, j);
        }
    MPI_Win_fence(0, window);
    MPI_Type_free(&column);
}

/* All ranks increment a counter of rank 0 and get distinct values; a lock made of compare-and-swap. */
static void counters(MPI_Win window, int *area)
{
    enum { EACH = 100 };
    for (int i = 0; i < ITEMS; i++)
        area[i] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    MPI_Win_sync(window);
    MPI_Barrier(MPI_COMM_WORLD);
    int one = 1, last = -1, *given = allocate(sizeof(int) * EACH);
    for (int i = 0; i < EACH; i++) {
        MPI_Fetch_and_op(&one, &given[i], MPI_INT, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
        CHECK(given[i] > last && given[i] < EACH * size, "count %d after %d", given[i], last);
        last = given[i];
    }
    int *every = allocate(sizeof(int) * EACH * (size_t)size);
    char *seen = allocate(EACH * (size_t)size);
    memset(seen, 0, EACH * (size_t)size);
    MPI_Allgather(given, EACH, MPI_INT, every, EACH, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < EACH * size; i++) {
        CHECK(!seen[every[i]], "count %d was given out twice", every[i]);
        seen[every[i]] = 1;
    }
    /* Item 1 is a lock, item 2 the data that it protects. */
    int own = rank + 1, nobody = 0, was, guarded;
    for (int i = 0; i < 20; i++) {
        do {
            MPI_Compare_and_swap(&own, &nobody, &was, MPI_INT, 0, 1, window);
            MPI_Win_flush(0, window);
        } while (was != nobody);
        MPI_Get(&guarded, 1, MPI_INT, 0, 2, 1, MPI_INT, window);
        MPI_Win_flush(0, window);
        guarded++;
        MPI_Put(&guarded, 1, MPI_INT, 0, 2, 1, MPI_INT, window);
        MPI_Win_flush(0, window);
        MPI_Compare_and_swap(&nobody, &own, &was, MPI_INT, 0, 1, window);
        MPI_Win_flush(0, window);
        CHECK(was == own, "the lock of rank %d was taken by %d", rank, was - 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Get(&guarded, 1, MPI_INT, 0, 2, 1, MPI_INT, window);
    MPI_Win_flush(0, window);
    CHECK(guarded == 20 * size, "under a lock: %d, not %d", guarded, 20 * size);
    /* The previous value is returned. */
    int ones[50], before[50];
    for (int i = 0; i < 50; i++)
        ones[i] = 1 << (rank % 20);
    MPI_Get_accumulate(ones, 50, MPI_INT, before, 50, MPI_INT, right, 100, 50, MPI_INT, MPI_BOR,
                       window);
    MPI_Win_flush(right, window);
    for (int i = 0; i < 50; i++)
        CHECK(before[i] == 0, "get and accumulate: %d was there at %d", before[i], i);
    MPI_Get_accumulate(NULL, 0, MPI_INT, before, 50, MPI_INT, right, 100, 50, MPI_INT, MPI_NO_OP,
                       window);
    MPI_Win_flush(right, window);
    for (int i = 0; i < 50; i++)
        CHECK(before[i] == ones[i], "accumulated: %d at %d, not %d", before[i], i, ones[i]);
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    free(given);
    free(every);
    free(seen);
}

/* Each rank adds to all under an exclusive lock, then reads under a shared one. */
static void locks(MPI_Win window, int *area)
{
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    area[0] = 0;
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int turn = 0; turn < 10; turn++)
        for (int step = 0; step < size; step++) {
            int to = (rank + step) % size, number;
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, to, 0, window);
            MPI_Get(&number, 1, MPI_INT, to, 0, 1, MPI_INT, window);
            MPI_Win_flush(to, window);
            number++;
            MPI_Put(&number, 1, MPI_INT, to, 0, 1, MPI_INT, window);
            MPI_Win_unlock(to, window);
        }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int to = 0; to < size; to++) {
        int number;
        MPI_Win_lock(MPI_LOCK_SHARED, to, 0, window);
        MPI_Get(&number, 1, MPI_INT, to, 0, 1, MPI_INT, window);
        MPI_Win_unlock(to, window);
        CHECK(number == 10 * size, "under locks: %d at rank %d, not %d", number, to, 10 * size);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void post_and_wait(MPI_Win window, int *area)
{
    MPI_Group world, from, to;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &left, &from);
    MPI_Group_incl(world, 1, &right, &to);
    int own[100], got[100];
    for (int turn = 0; turn < 5; turn++) {
        for (int i = 0; i < 100; i++) {
            own[i] = value(rank, i, turn);
            area[i] = -1;
            area[200 + i] = value(rank, i, turn + 50);
        }
        MPI_Win_post(from, 0, window);
        MPI_Win_start(to, 0, window);
        MPI_Put(own, 100, MPI_INT, right, 0, 100, MPI_INT, window);
        MPI_Get(got, 100, MPI_INT, right, 200, 100, MPI_INT, window);
        MPI_Win_complete(window);
        MPI_Win_wait(window);
        for (int i = 0; i < 100; i++) {
            CHECK(area[i] == value(left, i, turn), "post and wait, put: wrong at %d", i);
            CHECK(got[i] == value(right, i, turn + 50), "post and wait, get: wrong at %d", i);
        }
    }
    MPI_Group_free(&world);
    MPI_Group_free(&from);
    MPI_Group_free(&to);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Requests of single operations, on memory that is attached later. */
static void requests(void)
{
    MPI_Win window;
    static int area[ITEMS];
    MPI_Aint own, *at = allocate(sizeof *at * (size_t)size);
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_attach(window, area, sizeof area);
    MPI_Get_address(area, &own);
    MPI_Allgather(&own, 1, MPI_AINT, at, 1, MPI_AINT, MPI_COMM_WORLD);
    int out[ITEMS], in[ITEMS];
    for (int i = 0; i < ITEMS; i++)
        out[i] = value(rank, i, 90);
    MPI_Win_lock_all(0, window);
    MPI_Request request;
    MPI_Rput(out, ITEMS, MPI_INT, right, at[right], ITEMS, MPI_INT, window, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Win_flush(right, window);
    MPI_Rget(in, ITEMS, MPI_INT, right, at[right], ITEMS, MPI_INT, window, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < ITEMS; i++) {
        CHECK(in[i] == out[i], "dynamic window, get: wrong at %d", i);
        CHECK(area[i] == value(left, i, 90), "dynamic window, put: wrong at %d", i);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_detach(window, area);
    MPI_Win_free(&window);
    free(at);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    left = (rank + size - 1) % size;
    right = (rank + 1) % size;
    int *area, large = argc > 1 ? atoi(argv[1]) : 500000;
    MPI_Win window;
    MPI_Win_allocate(ITEMS * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &area,
                     &window);
    between_fences(window, area, 1, "allocated window");
    between_fences(window, area, ITEMS, "allocated window");
    scattered(window, area);
    counters(window, area);
    locks(window, area);
    post_and_wait(window, area);
    MPI_Win_free(&window);
    area = allocate(sizeof(int) * (size_t)large);
    MPI_Win_create(area, (MPI_Aint)sizeof(int) * large, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD,
                   &window);
    between_fences(window, area, large, "window over own memory");
    locks(window, area);
    MPI_Win_free(&window);
    free(area);
    requests();
    return finish("windows");
}
