/* Communicators between jobs: two halves meet at a port, and the job starts further processes. Every
 * byte between the two sides is checked, in both directions and in all sizes of the transport. */
#include "common.h"

static const size_t SIZES[] = {0, 1, 64, 1024, 16385, 100001, 1048577};
enum { KINDS = sizeof SIZES / sizeof *SIZES, CHILDREN = 3 };

static uint64_t id_of(int side, int from, int to, int kind)
{
    return ((uint64_t)(side * 10000 + from * 100 + to) << 32) ^ ((uint64_t)kind << 24);
}

/* Each rank exchanges messages with each rank of the other side. */
static void exchange(MPI_Comm other, int own_side)
{
    int own, others;
    MPI_Comm_rank(other, &own);
    MPI_Comm_remote_size(other, &others);
    unsigned char *out = allocate(SIZES[KINDS - 1]), *in = allocate(SIZES[KINDS - 1]);
    for (int peer = 0; peer < others; peer++)
        for (int kind = 0; kind < KINDS; kind++) {
            size_t bytes = SIZES[kind];
            MPI_Status status;
            int count;
            fill(out, bytes, id_of(own_side, own, peer, kind));
            MPI_Sendrecv(out, (int)bytes, MPI_BYTE, peer, kind, in, (int)bytes, MPI_BYTE, peer, kind,
                         other, &status);
            MPI_Get_count(&status, MPI_BYTE, &count);
            CHECK((size_t)count == bytes, "%d bytes instead of %zu", count, bytes);
            check_filled(in, bytes, id_of(!own_side, peer, own, kind), "from the other side");
        }
    free(out);
    free(in);
}

static void port(void)
{
    char name[MPI_MAX_PORT_NAME] = "";
    int side = rank % 2;
    MPI_Comm half, other;
    MPI_Comm_split(MPI_COMM_WORLD, side, rank, &half);
    if (rank == 0)
        MPI_Open_port(MPI_INFO_NULL, name);
    MPI_Bcast(name, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (side == 0)
        MPI_Comm_accept(name, MPI_INFO_NULL, 0, half, &other);
    else
        MPI_Comm_connect(name, MPI_INFO_NULL, 0, half, &other);
    exchange(other, side);
    MPI_Comm_disconnect(&other);
    if (rank == 0)
        MPI_Close_port(name);
    MPI_Comm_free(&half);
}

/* Starts processes of this program, which end when they have exchanged messages with this job. */
static void spawn(const char *program)
{
    char registry[4096];
    snprintf(registry, sizeof registry, "DIPOLE_RUNTIME_DIR=%s", getenv("DIPOLE_RUNTIME_DIR"));
    char *arguments[] = {registry, (char *)(uintptr_t)program, NULL}, command[] = "env";
    int errors[CHILDREN];
    MPI_Comm children;
    MPI_Comm_spawn(command, arguments, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, errors);
    exchange(children, 0);
    MPI_Comm_disconnect(&children);
}

int main(int argc, char **argv)
{
    MPI_Comm parent;
    begin(&argc, &argv);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) {
        exchange(parent, 1);
        MPI_Comm_disconnect(&parent);
        MPI_Finalize();
        return 0;
    }
    for (int round = 0; round < 3; round++)
        port();
    if (argc > 1)
        spawn(argv[0]);
    return finish("dynamic");
}
