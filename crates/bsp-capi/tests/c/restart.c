/*
 * Supersteps whose result depends on every former one: put, send, a file and registered memory.
 * What the second argument names goes wrong in the middle, once, when a checkpoint is complete.
 */
#include <bsp.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LENGTH = 20000, MIDDLE = 300 };

static int images(int set)
{
    char pattern[4096];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/set-%d/*.image", getenv("DIPOLE_CHECKPOINT_DIR"), set);
    int count = glob(pattern, 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    globfree(&found);
    return count;
}

static void wait_for_checkpoint(void)
{
    for (;;) {
        for (int set = 1; set < 100; set++)
            if (images(set) == bsp_nprocs())
                return;
        usleep(10000);
    }
}

/* Waits until this process's images are written, so that the next one holds changes only. */
static void wait_for_own_images(void)
{
    char pattern[4096];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/set-*/rank-%d-*.part", getenv("DIPOLE_CHECKPOINT_DIR"),
             bsp_pid());
    while (glob(pattern, 0, NULL, &found) == 0) {
        globfree(&found);
        usleep(1000);
    }
}

/* True in the first process that calls it. */
static int is_first(const char *marker)
{
    int file = open(marker, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (file >= 0)
        close(file);
    return file >= 0;
}

static void *sleep_for_ever(void *unused)
{
    pause();
    return unused;
}

int main(int argc, char **argv)
{
    const char *fault = argc > 2 ? argv[2] : "none";
    bsp_begin(bsp_nprocs());
    int p = bsp_nprocs(), s = bsp_pid();
    char marker[4096], name[4096];
    snprintf(marker, sizeof marker, "%s/marker", argv[1]);
    snprintf(name, sizeof name, "%s/log-%d", argv[1], s);
    FILE *log = fopen(name, "w");
    pthread_t thread;
    if (strcmp(fault, "thread") == 0)
        pthread_create(&thread, NULL, sleep_for_ever, NULL);
    if (strcmp(fault, "socket") == 0 && socket(AF_UNIX, SOCK_STREAM, 0) < 0)
        return 1;
    unsigned long *given = calloc(LENGTH, sizeof *given);
    unsigned long *own = calloc(LENGTH, sizeof *own), sum = 1;
    int tag = sizeof s, from;
    bsp_set_tagsize(&tag);
    bsp_push_reg(given, LENGTH * sizeof *given);
    bsp_sync();
    for (int round = 0; round < 2 * MIDDLE; round++) {
        for (int at = 0; at < LENGTH; at++)
            own[at] = own[at] * 31 + given[at] + (unsigned long)(s + round);
        bsp_put((s + 1) % p, own, given, 0, LENGTH * sizeof *own);
        bsp_send((s + 2) % p, &s, &sum, sizeof sum);
        int is_steady = strcmp(fault, "steady") == 0;
        if (is_steady || strcmp(fault, "linger") == 0)
            wait_for_own_images();
        if (round == MIDDLE && s == 1 && (is_steady || strcmp(fault, "kill") == 0)) {
            wait_for_checkpoint();
            if (is_first(marker))
                raise(SIGKILL);
        }
        if (round == MIDDLE && s == p - 1 && strcmp(fault, "lose") == 0) {
            wait_for_checkpoint();
            if (is_first(marker))
                pause(); /* until its node is lost */
        }
        if (round == MIDDLE && s == p - 1 && strcmp(fault, "linger") == 0) {
            FILE *place = is_first(marker) ? fopen(marker, "w") : NULL;
            if (place) {
                fprintf(place, "%s\n", getenv("DIPOLE_CHECKPOINT_DIR"));
                fclose(place);
                pause(); /* until a node is lost */
            }
        }
        bsp_sync();
        int status;
        unsigned long received = 0;
        bsp_get_tag(&status, &from);
        bsp_move(&received, sizeof received);
        sum = sum * 7 + received + (unsigned long)from + given[round % LENGTH];
        if (round % 100 == 0) {
            fprintf(log, "%d %lx\n", round, sum);
            fflush(log);
        }
    }
    fclose(log);
    printf("rank %d: %lx\n", s, sum);
    bsp_end();
    return 0;
}
