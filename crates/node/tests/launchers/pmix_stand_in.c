/* A stand-in for libpmix whose ranks exchange texts through files in the folder STAND_IN_FOLDER. The
 * structures are those of the PMIx Standard, written down again here: the caller's must be the same.
 * STAND_IN_VERSION is the version that it reports, STAND_IN_FAULT the fault that it has. */
#define _GNU_SOURCE
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
    } data;
} value_t;

typedef struct {
    char key[512];
    uint32_t flags;
    value_t value;
} info_t;

enum { SUCCESS = 0, UNREACH = -25, BAD_PARAM = -27, NOT_FOUND = -46 };
enum { BOOL = 1, STRING = 3, UINT32 = 14 };
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
    return setting("STAND_IN_VERSION");
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
    opened++;
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

int PMIx_Finalize(const info_t info[], size_t ninfo)
{
    if (opened != 1 || info || ninfo)
        return BAD_PARAM;
    opened++;
    fclose(file("finalized", own_rank(), "w"));
    return SUCCESS;
}
