/* For examples: exits with the reason if a call fails that should not. */
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

/* The call must fail with this error number and a text that contains `part`. */
#define CHECK_FAILS(call, number, part)                                                   \
    do {                                                                                  \
        errno = 0;                                                                        \
        CHECK((call) == -1);                                                              \
        CHECK(errno == (number));                                                         \
        CHECK(strstr(dp_error(), (part)) != NULL);                                        \
    } while (0)

#endif
