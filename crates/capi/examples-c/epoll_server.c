/* Echoes messages at N endpoints: epoll_server FIRST_DPID N CLIENTS
 * Ends when CLIENTS endpoints have sent "bye". */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <sys/epoll.h>
#include <sys/resource.h>

int main(int count, char **arguments)
{
    CHECK(count == 4);
    uint32_t first = (uint32_t)atoi(arguments[1]);
    int n = atoi(arguments[2]);
    int clients = atoi(arguments[3]);
    /* Each endpoint takes two descriptors, and the default limit is often 1024. */
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int *services = calloc((size_t)n, sizeof *services);
    int loop = epoll_create1(EPOLL_CLOEXEC);
    CHECK(services != NULL && loop >= 0);
    struct dp_open_options options = { sizeof options, DP_NONBLOCK, 0, 0 };
    for (int index = 0; index < n; index++) {
        int fd = services[index] = dp_open_with(first + (uint32_t)index, &options);
        CHECK(fd >= 0);
        struct epoll_event event = { .events = EPOLLIN, .data = { .fd = fd } };
        CHECK(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    puts("ready");
    fflush(stdout);

    long echoed = 0;
    while (clients > 0) {
        struct epoll_event events[64];
        int ready = epoll_wait(loop, events, 64, -1);
        CHECK(ready > 0 || errno == EINTR);
        for (int index = 0; index < ready; index++) {
            int fd = events[index].data.fd;
            const void *message;
            ssize_t length = dp_recv(fd, &message, NULL, DP_DONTWAIT, 0);
            if (length < 0 && errno == EAGAIN) {
                continue;
            }
            CHECK(length >= 0);
            if (length == 3 && memcmp(message, "bye", 3) == 0) {
                clients--;
            } else {
                CHECK(dp_reply(fd, message, message, (size_t)length) == length);
                echoed++;
            }
            CHECK(dp_fsync(fd, 1) == 0);
        }
    }
    printf("echoed %ld messages at %d endpoints\n", echoed, n);
    for (int index = 0; index < n; index++) {
        CHECK(dp_close(services[index]) == 0);
    }
    free(services);
    return 0;
}
