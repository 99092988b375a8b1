/* Each limit of a process and of its user has an error number, and can be raised. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* EMFILE, for any descriptor that the library cannot get. */
static void run_out_of_descriptors(void)
{
    struct rlimit limit, few;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int next = dup(1);
    CHECK(next >= 0 && close(next) == 0);
    int refused = 0;
    for (few = limit, few.rlim_cur = (rlim_t)next; few.rlim_cur < limit.rlim_cur; few.rlim_cur++) {
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        if (dp_open(1) >= 0)
            break;
        CHECK(errno == EMFILE);
        refused++;
    }
    CHECK(refused > 3);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(dp_finalize(0) == 0);
}

int main(void)
{
    run_out_of_descriptors();

    CHECK(setenv("DIPOLE_MAX_ENDPOINTS", "1", 1) == 0);
    int first = dp_open(1);
    CHECK(first >= 0);
    CHECK_FAILS(dp_open(2), EMFILE, "raise DIPOLE_MAX_ENDPOINTS");
    CHECK(dp_close(first) == 0);
    CHECK(dp_open(2) >= 0);
    CHECK(dp_finalize(0) == 0);

    CHECK(setenv("DIPOLE_MAX_ENDPOINTS", "10", 1) == 0);
    CHECK(setenv("DIPOLE_USER_ENDPOINTS", "1", 1) == 0);
    CHECK(dp_open(1) >= 0);
    CHECK_FAILS(dp_open(2), ENFILE, "DIPOLE_USER_ENDPOINTS");
    CHECK(dp_finalize(0) == 0);

    CHECK(setenv("DIPOLE_USER_PROCESSES", "0", 1) == 0);
    CHECK_FAILS(dp_open(1), ENFILE, "DIPOLE_USER_PROCESSES");

    CHECK(setenv("DIPOLE_USER_PROCESSES", "1", 1) == 0);
    CHECK(setenv("DIPOLE_USER_ENDPOINTS", "2", 1) == 0);
    CHECK(dp_open(1) >= 0);
    CHECK(dp_open(2) >= 0);
    puts("all limits have numbers");
    return 0;
}
