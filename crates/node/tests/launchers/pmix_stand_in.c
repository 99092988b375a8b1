/* A stand-in for libpmix whose ranks exchange texts through files in the folder STAND_IN_FOLDER. The
 * structures are those of the PMIx Standard, written down again here: the caller's must be the same.
 * STAND_IN_VERSION is the version that it reports (or 4.2.2), STAND_IN_FAULT the fault that it has. A file
 * `eventSTATUS` whose content is a rank, in the same folder, makes it report an event about that rank. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

typedef struct {
    char nspace[256];
    uint32_t rank;
} proc_t;

typedef struct {
    uint16_t type;
    union {
        bool flag;
        char *string;
        uint32_t uint32;
        struct timeval tv;
        struct {
            char *envar;
            char *value;
            char separator;
        } envar;
        proc_t *proc;
    } data;
} value_t;

typedef struct {
    char key[512];
    uint32_t flags;
    value_t value;
} info_t;

enum { SUCCESS = 0, UNREACH = -25, BAD_PARAM = -27, NOT_FOUND = -46 };
enum { BOOL = 1, STRING = 3, UINT32 = 14, PROC = 22 };
#define WILDCARD (UINT32_MAX - 1)

static int opened, fences;
static char committed[8192], prepared[8192], prepared_key[512];

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

static bool has_fault(const char *fault)
{
    return strcmp(setting("STAND_IN_FAULT"), fault) == 0;
}

static void hang_if(const char *fault)
{
    while (has_fault(fault))
        pause();
}

static uint32_t own_rank(void)
{
    return (uint32_t)atoi(setting("PMIX_RANK"));
}

static uint32_t size(void)
{
    return (uint32_t)atoi(setting("STAND_IN_SIZE"));
}

/* True if the key has zeros up to its end, as versions that copy the array need. */
static bool is_key(const char *key)
{
    for (size_t at = strnlen(key, 512); at < 512; at++)
        if (key[at])
            return false;
    return true;
}

static bool is_own_job(const proc_t *proc)
{
    return strcmp(proc->nspace, setting("PMIX_NAMESPACE")) == 0;
}

static FILE *file(const char *kind, uint32_t rank, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-%u", setting("STAND_IN_FOLDER"), kind, rank);
    return fopen(path, mode);
}

const char *PMIx_Get_version(void)
{
    const char *version = getenv("STAND_IN_VERSION");
    return version ? version : "4.2.2";
}

const char *PMIx_Error_string(int status)
{
    return status == UNREACH ? "UNREACHABLE" : status == NOT_FOUND ? "NOT-FOUND" : "BAD-PARAM";
}

int PMIx_Init(proc_t *proc, info_t info[], size_t ninfo)
{
    hang_if("hangs in init");
    if (has_fault("no server"))
        return UNREACH;
    if (info || ninfo)
        return BAD_PARAM;
    memset(proc, 0, sizeof *proc);
    bool is_alone = has_fault("alone");
    snprintf(proc->nspace, sizeof proc->nspace, "%s",
             is_alone ? "singleton.7" : setting("PMIX_NAMESPACE"));
    proc->rank = is_alone ? 0 : own_rank();
    opened = 1;
    return SUCCESS;
}

int PMIx_Put(uint8_t scope, const char *key, value_t *value)
{
    if (opened != 1 || scope != 3 || !is_key(key) || value->type != STRING)
        return BAD_PARAM;
    snprintf(prepared_key, sizeof prepared_key, "%s", key);
    snprintf(prepared, sizeof prepared, "%s", value->data.string);
    return SUCCESS;
}

int PMIx_Commit(void)
{
    memcpy(committed, prepared, sizeof committed);
    return opened == 1 ? SUCCESS : BAD_PARAM;
}

int PMIx_Fence(const proc_t procs[], size_t nprocs, const info_t info[], size_t ninfo)
{
    hang_if("hangs in the fence");
    if (opened != 1 || nprocs != 1 || !is_own_job(procs) || procs->rank != WILDCARD || ninfo > 1)
        return BAD_PARAM;
    bool is_collecting = ninfo == 1;
    if (is_collecting && (strcmp(info->key, "pmix.collect") || !is_key(info->key) || info->flags ||
                          info->value.type != BOOL || !info->value.data.flag))
        return BAD_PARAM;
    if (is_collecting && !has_fault("no data")) {
        FILE *out = file(prepared_key, own_rank(), "w");
        if (!out)
            return BAD_PARAM;
        fputs(committed, out);
        fclose(out);
    }
    char name[32];
    snprintf(name, sizeof name, "fence%d", ++fences);
    fclose(file(name, own_rank(), "w"));
    for (uint32_t rank = 0; rank < size(); rank++)
        for (FILE *entered = NULL; !entered; usleep(1000)) {
            entered = file(name, rank, "r");
            if (entered)
                fclose(entered);
        }
    return SUCCESS;
}

int PMIx_Get(const proc_t *proc, const char *key, const info_t info[], size_t ninfo, value_t **val)
{
    hang_if("hangs in get");
    if (opened != 1 || !is_own_job(proc) || !is_key(key) || info || ninfo)
        return BAD_PARAM;
    value_t found;
    memset(&found, 0xff, sizeof found);
    if (strcmp(key, "pmix.job.size") == 0 && proc->rank == WILDCARD) {
        found.type = has_fault("wrong type") ? BOOL : UINT32;
        found.data.uint32 = has_fault("other size") ? 99 : size();
    } else {
        FILE *in = file(key, proc->rank, "r");
        if (!in)
            return NOT_FOUND;
        char *text = calloc(1, sizeof committed);
        size_t length = fread(text, 1, sizeof committed - 1, in);
        fclose(in);
        text[length] = 0;
        found.type = STRING;
        found.data.string = text;
    }
    *val = malloc(sizeof found);
    memcpy(*val, &found, sizeof found);
    return SUCCESS;
}

typedef void (*op_t)(int status, void *data);
typedef void (*handled_t)(int status, info_t *results, size_t nresults, op_t op, void *op_data,
                          void *data);
typedef void (*handler_t)(size_t id, int status, const proc_t *source, info_t info[], size_t ninfo,
                          info_t *results, size_t nresults, handled_t handled, void *data);
typedef void (*registered_t)(int status, size_t id, void *data);

static handler_t handler;
static int codes[16];
static size_t code_count;

static void handled(int status, info_t *results, size_t nresults, op_t op, void *op_data, void *data)
{
    /* PMIX_EVENT_NO_ACTION_TAKEN */
    if (status != -331 || results || nresults || op || op_data || data != &handler)
        abort();
}

static void *report(void *unused)
{
    (void)unused;
    static bool is_reported[16];
    for (;; usleep(2000))
        for (size_t at = 0; at < code_count; at++) {
            char name[4096], rank[16] = "";
            snprintf(name, sizeof name, "%s/event%d", setting("STAND_IN_FOLDER"), codes[at]);
            FILE *in = is_reported[at] ? NULL : fopen(name, "r");
            if (!in)
                continue;
            bool is_complete = fgets(rank, sizeof rank, in) && strchr(rank, '\n');
            fclose(in);
            if (!is_complete)
                continue;
            is_reported[at] = true;
            proc_t failed = {.rank = (uint32_t)atoi(rank)}, daemon = {.nspace = "daemon", .rank = 0};
            memcpy(failed.nspace, setting("PMIX_NAMESPACE"), strlen(setting("PMIX_NAMESPACE")));
            info_t info[2] = {{.key = "pmix.evtext"}, {.key = "pmix.evproc"}};
            info[0].value.type = STRING;
            info[0].value.data.string = "text";
            info[1].value.type = PROC;
            info[1].value.data.proc = &failed;
            handler(1, codes[at], &daemon, info, 2, NULL, 0, handled, &handler);
        }
    return NULL;
}

int PMIx_Register_event_handler(int given[], size_t count, info_t info[], size_t ninfo,
                                handler_t function, registered_t registered, void *data)
{
    if (opened != 1 || count > 16 || info || ninfo || data)
        abort();
    memcpy(codes, given, count * sizeof *given);
    code_count = count;
    handler = function;
    /* One for all sessions. */
    static pthread_t thread;
    if (has_fault("no events") || (!thread && pthread_create(&thread, NULL, report, NULL)))
        registered(BAD_PARAM, 0, data);
    else
        registered(SUCCESS, 1, data);
    return SUCCESS;
}

int PMIx_Finalize(const info_t info[], size_t ninfo)
{
    if (opened != 1 || info || ninfo)
        return BAD_PARAM;
    opened = 0;
    fclose(file("finalized", own_rank(), "w"));
    return SUCCESS;
}
