/* What the examples do when a call fails that should not: say why and give up. */
#ifndef CHECK_H
#define CHECK_H

#include <dipole.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s: errno %d (%s), dp_error: %s\n", __FILE__,        \
                    __LINE__, #condition, errno, strerror(errno), dp_error());            \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

/* The call fails with this error number, and its text has this in it. */
#define CHECK_FAILS(call, number, part)                                                   \
    do {                                                                                  \
        errno = 0;                                                                        \
        CHECK((call) == -1);                                                              \
        CHECK(errno == (number));                                                         \
        CHECK(strstr(dp_error(), (part)) != NULL);                                        \
    } while (0)

#endif
