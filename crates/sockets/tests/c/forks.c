/* Forks with many open connections; linked with an allocator that locks itself around fork(). */
#include "connection.h"

enum { CONNECTIONS = 200, FORKS = 20 };

int main(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = -1, other = -1;
    CHECK(bind(listener, (void *)&at, size) == 0 && listen(listener, CONNECTIONS) == 0);
    CHECK(getsockname(listener, (void *)&at, &size) == 0);
    for (int i = 0; i < CONNECTIONS; i++) {
        one = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(one, (void *)&at, size) == 0);
        other = accept(listener, NULL, NULL);
        CHECK(other >= 0);
    }
    for (unsigned i = 0; i < FORKS; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            free(malloc(1000));
            _exit(7);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
        pass(one, other, BIG, i);
    }
    puts("forked and allocated");
    return 0;
}
