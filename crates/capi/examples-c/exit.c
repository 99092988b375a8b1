/* Messages that were written just before exit arrive: one process writes and exits, and the other
 * begins to read only then. (A receiver that does not read accepts some 32 KiB from each sender, so
 * the messages must not be much larger.) */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGES = 200 };

int main(void)
{
    int open_now[2];
    CHECK(pipe(open_now) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char go;
        CHECK(read(open_now[0], &go, 1) == 1);
        int from = dp_open(1);
        CHECK(from >= 0);
        CHECK(dp_target(from, 1, 2) == 0);
        for (int number = 0; number < MESSAGES; number++) {
            CHECK(dp_send(from, &number, sizeof number, DP_MORE, -1) == sizeof number);
        }
        return 0;
    }
    int to = dp_open(2);
    CHECK(to >= 0);
    CHECK(write(open_now[1], "g", 1) == 1);
    int status;
    /* Meanwhile the library's thread receives the messages. */
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int number = 0; number < MESSAGES; number++) {
        int found;
        CHECK(dp_recv_copy(to, &found, sizeof found, NULL, 0, 5000000000) == sizeof found);
        CHECK(found == number);
    }
    puts("all of it");
    return 0;
}
