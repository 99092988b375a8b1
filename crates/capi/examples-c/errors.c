/* Every mistake gets an error number and a text, and changes nothing. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <unistd.h>

int main(void)
{
    CHECK(strcmp(dp_error(), "") == 0);
    CHECK(strcmp(dp_version(), DP_VERSION) == 0);
    CHECK_FAILS(dp_open(-1), EINVAL, "dp_open: dpid is -1");
    CHECK_FAILS(dp_open((int)DP_ANY), EINVAL, "dp_open_with(DP_ANY, NULL)");
    int fd = dp_open(1);
    CHECK(fd >= 0);
    CHECK_FAILS(dp_open(1), EADDRINUSE, "cannot open endpoint 1:1");
    CHECK_FAILS(dp_target(fd, 0, 1), EINVAL, "nid is 0");
    CHECK_FAILS(dp_target(fd, 1, -7), EINVAL, "dpid is -7");
    CHECK_FAILS(dp_write(fd, "x", -1), EINVAL, "len is -1");
    CHECK_FAILS(dp_write(fd, NULL, 1), EFAULT, "msg is a null pointer");
    CHECK_FAILS(dp_read(fd, NULL), EFAULT, "address is a null pointer");
    CHECK_FAILS(dp_recv_copy(fd, NULL, 1, NULL, 0, 0), EFAULT, "buf is a null pointer");
    CHECK_FAILS(dp_own_address(fd, NULL), EFAULT, "address is a null pointer");
    CHECK_FAILS(dp_mmap(fd, NULL), EFAULT, "dpmmap_t is a null pointer");
    CHECK_FAILS(dp_recv_copy(fd, NULL, 0, NULL, DP_MORE, 0), EINVAL, "flags");

    /* Only DP_IO makes a descriptor carry messages: others lose none silently. */
    CHECK(write(fd, "lost", 4) == -1 && errno == EPIPE);
    int queue = dp_queue_open();
    CHECK(queue >= 0 && write(queue, "lost", 4) == -1 && errno == EPIPE);
    CHECK(dp_queue_close(queue) == 0);

    /* Numbers that are not endpoints. */
    int file = dup(0);
    const int numbers[] = { -1, file, 999999, INT32_MAX };
    for (int index = 0; index < 4; index++) {
        char *message;
        int number = numbers[index];
        CHECK_FAILS(dp_write(number, "x", 1), EBADF, "not an open endpoint");
        CHECK_FAILS(dp_read(number, &message), EBADF, "not an open endpoint");
        CHECK_FAILS(dp_target(number, 1, 1), EBADF, "not an open endpoint");
        CHECK_FAILS(dp_fsync(number, 0), EBADF, "not an open endpoint");
        CHECK_FAILS(dp_drain(number, 0), EBADF, "not an open endpoint");
        CHECK_FAILS(dp_close(number), EBADF, "not an open endpoint");
    }
    CHECK(close(file) == 0); /* dp_close has not closed it */

    CHECK(dp_target(fd, 1, 1) == 0);
    size_t too_long = (size_t)1 << 31;
    char *text = malloc(too_long);
    CHECK(text != NULL);
    CHECK_FAILS(dp_send(fd, text, too_long, 0, -1), EMSGSIZE, "split it");
    free(text);
    CHECK(dp_send(fd, "unread", 6, 0, 0) == 6);

    CHECK_FAILS(dp_rank(), ENOENT, "does not belong to a job");
    CHECK(strcmp(dp_strerror(ESTALE), "the descriptor belongs to the parent process") == 0);
    CHECK(strcmp(dp_strerror(12345), "no error of this library") == 0);
    puts("no mistake unnoticed");
    return 0;
}
