/*
 * Supersteps whose result depends on every former one, with stops. Before a stop rank 0 writes the
 * file `at-N` and reads a line of its input; the stop ends when the file `go-N` exists. Then each rank
 * writes the number of its process to `pid-RANK`. The second argument says how ranks wait: `syncs` in
 * supersteps, which do not change the result; `computes`: rank 0 ends no superstep meanwhile; `socket`:
 * like syncs, but rank 1 cannot be saved.
 */
#include <bsp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LENGTH = 20000, BETWEEN = 60, STOPS = 4 };

static const char *folder;

static int exists(const char *name, int number)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-%d", folder, name, number);
    return access(path, F_OK) == 0;
}

static void write_number(const char *name, int number, long content)
{
    char path[4096], written[4200];
    snprintf(path, sizeof path, "%s/%s-%d", folder, name, number);
    snprintf(written, sizeof written, "%s.new", path);
    FILE *file = fopen(written, "w");
    fprintf(file, "%ld\n", content);
    fclose(file);
    rename(written, path);
}

/* Reads no byte beyond the line: the rest stays in the pipe. */
static void read_line(char *line, int length)
{
    int at = 0;
    while (at < length - 1 && read(0, line + at, 1) == 1 && line[at] != '\n')
        at++;
    line[at] = 0;
}

static void stop(int number, int computes, int *goes)
{
    int s = bsp_pid();
    if (s == 0) {
        char line[100];
        read_line(line, sizeof line);
        printf("stop %d: input `%s`\n", number, line);
        fflush(stdout);
        write_number("at", number, 0);
    }
    *goes = 0;
    while (!*goes) {
        while (s == 0 && computes && !exists("go", number))
            usleep(2000);
        int is_over = s == 0 && exists("go", number);
        for (int to = 0; s == 0 && to < bsp_nprocs(); to++)
            bsp_put(to, &is_over, goes, 0, sizeof is_over);
        usleep(1000);
        bsp_sync();
    }
    write_number("pid", s, getpid());
}

int main(int argc, char **argv)
{
    folder = argv[1];
    int computes = argc > 2 && strcmp(argv[2], "computes") == 0;
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), s = bsp_pid(), goes = 0;
    char name[4096];
    snprintf(name, sizeof name, "%s/log-%d", folder, s);
    FILE *log = fopen(name, "w");
    if (s == 1 && argc > 2 && strcmp(argv[2], "socket") == 0 && socket(AF_UNIX, SOCK_STREAM, 0) < 0)
        return 1;
    unsigned long *given = calloc(LENGTH, sizeof *given);
    unsigned long *own = calloc(LENGTH, sizeof *own), sum = 1;
    int tag = sizeof s, from;
    bsp_set_tagsize(&tag);
    bsp_push_reg(given, LENGTH * sizeof *given);
    bsp_push_reg(&goes, sizeof goes);
    write_number("pid", s, getpid());
    bsp_sync();
    for (int round = 1; round <= STOPS * BETWEEN; round++) {
        for (int at = 0; at < LENGTH; at++)
            own[at] = own[at] * 31 + given[at] + (unsigned long)(s + round);
        bsp_put((s + 1) % p, own, given, 0, LENGTH * sizeof *own);
        bsp_send((s + 2) % p, &s, &sum, sizeof sum);
        bsp_sync();
        int status;
        unsigned long received = 0;
        bsp_get_tag(&status, &from);
        bsp_move(&received, sizeof received);
        sum = sum * 7 + received + (unsigned long)from + given[round % LENGTH];
        fprintf(log, "%d %lx\n", round, sum);
        if (round % BETWEEN == 0)
            stop(round / BETWEEN, computes, &goes);
    }
    fclose(log);
    printf("rank %d: %lx\n", s, sum);
    bsp_end();
    return 0;
}
