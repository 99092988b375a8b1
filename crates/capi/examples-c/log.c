/* Waits 2.5 s for a message that never arrives: with DIPOLE_LOG=warn the library logs that. */
#include <dipole.h>

#include "check.h"

int main(void)
{
    int fd = dp_open(7);
    char byte;

    CHECK(fd >= 0);
    CHECK(dp_recv_copy(fd, &byte, 1, NULL, 0, 2500000000) < 0);
    CHECK(dp_close(fd) == 0);
    return 0;
}
