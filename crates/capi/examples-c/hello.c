/* Two endpoints of one process: one writes, the other reads the message in place. */
#include "check.h"

int main(void)
{
    int from = dp_open(8);
    CHECK(from >= 0);
    int to = dp_open(7);
    CHECK(to >= 0);
    CHECK(dp_target(from, 1, 7) == 0);
    CHECK(dp_write(from, "first light", 11) == 11);

    char *message;
    int length = dp_read(to, &message);
    CHECK(length == 11);
    printf("%.*s\n", length, message);
    CHECK(dp_fsync(to, 1) == 0);

    CHECK(dp_close(to) == 0);
    CHECK(dp_close(from) == 0);
    return 0;
}
