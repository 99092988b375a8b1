/* Each limit of a process and of its user has an error number; raising it helps. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <stdlib.h>

int main(void)
{
    CHECK(setenv("DIPOLE_MAX_ENDPOINTS", "1", 1) == 0);
    int first = dp_open(1);
    CHECK(first >= 0);
    CHECK_FAILS(dp_open(2), EMFILE, "raise DIPOLE_MAX_ENDPOINTS");
    CHECK(dp_close(first) == 0);
    CHECK(dp_open(2) >= 0);
    CHECK(dp_finish(0) == 0);

    CHECK(setenv("DIPOLE_MAX_ENDPOINTS", "10", 1) == 0);
    CHECK(setenv("DIPOLE_USER_ENDPOINTS", "1", 1) == 0);
    CHECK(dp_open(1) >= 0);
    CHECK_FAILS(dp_open(2), ENFILE, "DIPOLE_USER_ENDPOINTS");
    CHECK(dp_finish(0) == 0);

    CHECK(setenv("DIPOLE_USER_PROCESSES", "0", 1) == 0);
    CHECK_FAILS(dp_open(1), ENFILE, "DIPOLE_USER_PROCESSES");

    CHECK(setenv("DIPOLE_USER_PROCESSES", "1", 1) == 0);
    CHECK(setenv("DIPOLE_USER_ENDPOINTS", "2", 1) == 0);
    CHECK(dp_open(1) >= 0);
    CHECK(dp_open(2) >= 0);
    puts("all limits have numbers");
    return 0;
}
