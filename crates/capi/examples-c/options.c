/* A node with options set by the program: options DIRECTORY HOSTS_FILE */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <fcntl.h>

int main(int count, char **arguments)
{
    CHECK(count == 3);
    struct dp_node_options wrong = { .size = sizeof wrong };
    wrong.link = "pigeon";
    CHECK_FAILS(dp_init(&wrong), EINVAL, "link is \"pigeon\", expected auto, shm, udp or bpf");
    wrong.link = NULL;
    wrong.bind = "nowhere";
    CHECK_FAILS(dp_init(&wrong), EINVAL, "bind is \"nowhere\"");
    wrong.bind = "192.0.2.1";
    CHECK_FAILS(dp_init(&wrong), EADDRNOTAVAIL, "192.0.2.1");
    wrong.bind = NULL;
    wrong.spin_ns = -2;
    CHECK_FAILS(dp_init(&wrong), EINVAL, "-2");
    wrong.spin_ns = 0;
    wrong.hosts = "/nonexistent/hosts";
    CHECK_FAILS(dp_init(&wrong), EINVAL, "/nonexistent/hosts");
    wrong.hosts = NULL;
    wrong.key = "/nonexistent/key";
    CHECK_FAILS(dp_init(&wrong), EINVAL, "/nonexistent/key");
    wrong.key = NULL;
    wrong.runtime_dir = "/proc/nonexistent";
    CHECK_FAILS(dp_init(&wrong), EACCES, "/proc/nonexistent");
    wrong.runtime_dir = NULL;
    wrong.reserved = 1;
    CHECK_FAILS(dp_init(&wrong), EINVAL, "reserved");
    struct {
        struct dp_node_options known;
        uint64_t later;
    } newer = { .known = { .size = sizeof newer }, .later = 1 };
    CHECK_FAILS(dp_init(&newer.known), E2BIG, "update the library");

    struct dp_node_options options = { .size = sizeof options };
    options.nid = 5;
    options.runtime_dir = arguments[1];
    options.hosts = arguments[2];
    options.link = "udp";
    options.spin_ns = DP_ZERO_NS;
    options.connect_timeout_ns = 50000000;
    options.linger_ns = 1000000000;
    CHECK(dp_init(&options) == 0);
    CHECK_FAILS(dp_init(&options), EBUSY, "already open");

    struct dp_open_options nonblocking = { sizeof nonblocking, DP_NONBLOCK, 0, 0 };
    int fd = dp_open_with(9, &nonblocking);
    CHECK(fd >= 0);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    struct dp_address own;
    CHECK(dp_own_address(fd, &own) == 0 && own.nid == 5 && own.dpid == 9);
    int blocking = dp_open(10);
    CHECK(blocking >= 0);
    CHECK((fcntl(blocking, F_GETFL) & O_NONBLOCK) == 0);
    nonblocking.flags = 4;
    CHECK_FAILS(dp_open_with(11, &nonblocking), EINVAL, "flags");
    CHECK_FAILS(dp_target(fd, 5, 77), EHOSTUNREACH, "5:77");
    CHECK_FAILS(dp_target(fd, 6, 77), EHOSTUNREACH, "6:77");

    /* After dp_finalize the next endpoint opens a node from the environment. */
    CHECK(dp_finalize(-1) == 0);
    CHECK_FAILS(dp_own_address(fd, &own), EBADF, "not an open endpoint");
    CHECK(dp_finalize(-1) == 0);
    int next = dp_open(9);
    CHECK(next >= 0);
    CHECK(dp_own_address(next, &own) == 0 && own.nid == 1);
    puts("as told");
    return 0;
}
