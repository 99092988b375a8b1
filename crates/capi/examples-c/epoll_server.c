/* Echoes what comes to N endpoints: epoll_server FIRST_DPID N CLIENTS
 * Ends when CLIENTS endpoints have said "bye". */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <sys/epoll.h>

struct service {
    int fd;
    struct dp_address target; /* whom it answered last */
};

static void answer(struct service *service, struct dp_address to, const void *text,
                   size_t length)
{
    if (to.nid != service->target.nid || to.dpid != service->target.dpid) {
        if (service->target.nid != 0) {
            CHECK(dp_remove_target(service->fd, service->target) == 0);
        }
        CHECK(dp_add_target(service->fd, to) == 0);
        service->target = to;
    }
    CHECK(dp_send(service->fd, text, length, 0, -1) == (ssize_t)length);
}

int main(int count, char **arguments)
{
    CHECK(count == 4);
    uint32_t first = (uint32_t)atoi(arguments[1]);
    int n = atoi(arguments[2]);
    int clients = atoi(arguments[3]);
    struct service *services = calloc((size_t)n, sizeof *services);
    int loop = epoll_create1(EPOLL_CLOEXEC);
    CHECK(services != NULL && loop >= 0);
    struct dp_open_options options = { sizeof options, DP_NONBLOCK, 0, 0 };
    for (int index = 0; index < n; index++) {
        struct service *service = &services[index];
        service->fd = dp_open_with(first + (uint32_t)index, &options);
        CHECK(service->fd >= 0);
        struct epoll_event event = { .events = EPOLLIN, .data = { .ptr = service } };
        CHECK(epoll_ctl(loop, EPOLL_CTL_ADD, service->fd, &event) == 0);
    }
    puts("ready");
    fflush(stdout);

    long echoed = 0;
    while (clients > 0) {
        struct epoll_event events[64];
        int ready = epoll_wait(loop, events, 64, -1);
        CHECK(ready > 0 || errno == EINTR);
        for (int index = 0; index < ready; index++) {
            struct service *service = events[index].data.ptr;
            const void *message;
            struct dp_address source;
            ssize_t length = dp_recv(service->fd, &message, &source, DP_DONTWAIT, 0);
            if (length < 0 && errno == EAGAIN) {
                continue;
            }
            CHECK(length >= 0);
            if (length == 3 && memcmp(message, "bye", 3) == 0) {
                clients--;
            } else {
                answer(service, source, message, (size_t)length);
                echoed++;
            }
            CHECK(dp_fsync(service->fd, 1) == 0);
        }
    }
    printf("echoed %ld messages at %d endpoints\n", echoed, n);
    for (int index = 0; index < n; index++) {
        CHECK(dp_close(services[index].fd) == 0);
    }
    free(services);
    return 0;
}
