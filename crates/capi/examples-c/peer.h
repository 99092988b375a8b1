/* The TCP peer of the stream examples: a sequence of bytes, and whole reads and writes of a socket. Include
 * check.h before it. */
#include <unistd.h>

static inline char byte_at(size_t at)
{
    return (char)(at * 31 + at / 1000);
}

static inline void get(int from, void *to, size_t length)
{
    for (size_t got = 0; got < length;) {
        ssize_t some = read(from, (char *)to + got, length - got);
        CHECK(some > 0);
        got += (size_t)some;
    }
}

static inline void put(int to, const void *from, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t some = write(to, (const char *)from + done, length - done);
        CHECK(some > 0);
        done += (size_t)some;
    }
}
