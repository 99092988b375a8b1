/*
 * The differences of the MulticoreBSP dialect.
 */
#include <mcbsp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REQUIRE(condition)                                         \
    do {                                                       \
        if (!(condition))                                          \
            bsp_abort("%s:%d: failed: %s", __func__, __LINE__, #condition); \
    } while (0)

#ifndef _H_MCBSP
#error portable programs would take the types for int
#endif

static bsp_nprocs_t processes;

static void spmd(void)
{
    /* A surplus process may start after the others have ended. */
    if (getenv("LATE") && strcmp(getenv("LATE"), getenv("DIPOLE_RANK")) == 0)
        sleep(1);
    bsp_begin(processes);
    bsp_nprocs_t p = bsp_nprocs();
    bsp_pid_t me = bsp_pid(), right = (me + 1) % p, left = (me + p - 1) % p;
    REQUIRE((bsp_pid_t)-1 > 0 && sizeof(bsp_size_t) == sizeof(size_t));

    /* More than 2 GiB, little of which is touched. */
    const size_t far = (size_t)5 << 29, length = far + 4096;
    char *area = mmap(NULL, length, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(area != MAP_FAILED);
    bsp_push_reg(area, length);
    bsp_sync();
    unsigned came = 99;
    bsp_put(right, &me, area, far, sizeof me);
    bsp_sync();
    REQUIRE(*(unsigned *)(area + far) == left);
    bsp_get(left, area, far, &came, sizeof came);
    bsp_sync();
    REQUIRE(came == (left + p - 1) % p);
    bsp_pop_reg(area);

    size_t status = 1, bytes = 1, tag_size = sizeof(size_t);
    bsp_nprocs_t count = 1;
    bsp_get_tag(&status, NULL);
    REQUIRE(status == SIZE_MAX);
    bsp_move(NULL, 0);
    void *tag = NULL, *payload = NULL;
    REQUIRE(bsp_hpmove(&tag, &payload) == SIZE_MAX);
    bsp_set_tagsize(&tag_size);
    REQUIRE(tag_size == 0);
    bsp_sync();
    tag_size = me;
    bsp_send(right, &tag_size, "mc", 3);
    bsp_hpsend(right, &tag_size, "bsp", 4);
    bsp_sync();
    bsp_qsize(&count, &bytes);
    REQUIRE(count == 2 && bytes == 7);
    bsp_get_tag(&status, &tag_size);
    REQUIRE((status == 3 || status == 4) && tag_size == left);

    size_t own = (size_t)1 << 40, sum = 0;
    bsp_bcast(0, &own, &sum, sizeof own);
    REQUIRE(sum == own);
    bsp_sync();
    if (me == 0)
        printf("%u processes\n", p);
    bsp_end();
}

int main(int argc, char **argv)
{
    bsp_init(spmd, argc, argv);
    /* Processes other than the first do not return from bsp_end. */
    REQUIRE(argc == 2);
    processes = (bsp_nprocs_t)atoi(argv[1]);
    printf("first\n");
    spmd();
    printf("last\n");
    return 0;
}
