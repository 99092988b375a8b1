/*
 * bsp.h - BSPlib: programs in supersteps (libbsp)
 *
 * The processes of a program compute, request communication, and end the superstep together
 * with bsp_sync(), which completes all of it. For details see the manual pages: bsp(7), and a
 * page in section 3 for each group below.
 *
 *     int main(void)
 *     {
 *         int left = -1;
 *         bsp_begin(bsp_nprocs());
 *         int me = bsp_pid(), p = bsp_nprocs();
 *         bsp_push_reg(&left, sizeof left);
 *         bsp_sync();
 *         bsp_put((me + 1) % p, &me, &left, 0, sizeof left);
 *         bsp_sync();
 *         printf("process %d of %d has %d to its left\n", me, p, left);
 *         bsp_end();
 *         return 0;
 *     }
 *
 *     cc program.c $(pkg-config --cflags --libs bsp) && dipole run -n 4 ./a.out
 *
 * There are two dialects. The classic one (Hill et al., 1998; Oxford BSP toolset, BSPonMPI)
 * uses int for processes, sizes and offsets. Define BSP_MULTICORE before this header, or
 * include <mcbsp.h>, for MulticoreBSP's: unsigned int for processes and size_t for sizes, so
 * that areas and messages may exceed 2 GiB. One library serves both, even in one program.
 *
 * A call that breaks a rule ends the whole job. The message names the rule, the process, the
 * superstep, and the file and line of the call. Macros with the names of the functions (in C++,
 * objects) provide file and line, unless BSP_NO_CALL_SITES is defined.
 *
 * The thread that called bsp_begin() must make all calls of a process.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef DIPOLE_BSP_H
#define DIPOLE_BSP_H

#include <stdarg.h>
#include <stddef.h>
#if !defined __cplusplus || __cplusplus >= 201103L
/* MulticoreBSP's header includes this. */
#include <stdint.h>
#endif
/* Programs written for the Oxford toolset rely on this. */
#include <stdio.h>

#ifdef BSP_MULTICORE
/* Portable programs test this macro to detect the types. */
#ifndef _H_MCBSP
#define _H_MCBSP
#endif
typedef unsigned int bsp_pid_t;
typedef unsigned int bsp_nprocs_t;
typedef size_t bsp_size_t;
/* Functions whose types differ have another symbol in the library, but the same name. */
#define BSP_DIALECT_(symbol) __asm__(symbol)
#else
typedef int bsp_pid_t;
typedef int bsp_nprocs_t;
typedef int bsp_size_t;
#define BSP_DIALECT_(symbol)
#endif

#ifdef __GNUC__
#define BSP_PRINTF_(at) __attribute__((format(printf, at, at + 1)))
#define BSP_VPRINTF_(at) __attribute__((format(printf, at, 0)))
#define BSP_NORETURN_ __attribute__((noreturn))
#else
#define BSP_PRINTF_(at)
#define BSP_VPRINTF_(at)
#define BSP_NORETURN_
#endif

/* In C++, objects with the names of functions add the position to each call: see below. */
#if !defined BSP_NO_CALL_SITES && defined __cplusplus && __cplusplus >= 201103L && defined __GNUC__
#define BSP_CALLABLE_
namespace bsp_functions_ {
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Beginning and end: bsp_begin(3)
 */
void bsp_init(void (*spmd)(void), int argc, char **argv);
void bsp_begin(bsp_nprocs_t maxprocs) BSP_DIALECT_("mcbsp_begin");
void bsp_end(void);
bsp_nprocs_t bsp_nprocs(void);
bsp_pid_t bsp_pid(void);
void bsp_abort(const char *format, ...) BSP_PRINTF_(1) BSP_NORETURN_;
void bsp_vabort(const char *format, va_list arguments) BSP_VPRINTF_(1) BSP_NORETURN_;
void bsp_abort_va(const char *format, va_list arguments) BSP_VPRINTF_(1) BSP_NORETURN_;
/* The same with a plain text, for languages without printf. */
void bsp_abort_text(const char *text) BSP_NORETURN_;
void bsp_fix_argv(int *argc, char ***argv);

/*
 * Supersteps and time: bsp_sync(3), bsp_time(3), bsp_predict(3)
 */
void bsp_sync(void);
double bsp_time(void);
double bsp_dtime(void);
double bsp_cputime(void);
/* Predicts the seconds of a superstep from measurements of this machine; negative without them. */
double bsp_predict(int nprocs, double work, double h);

/*
 * Registration: bsp_push_reg(3)
 */
void bsp_push_reg(const void *address, bsp_size_t size) BSP_DIALECT_("mcbsp_push_reg");
void bsp_pop_reg(const void *address);
void bsp_pushregister(const void *address, bsp_size_t size) BSP_DIALECT_("mcbsp_push_reg");
void bsp_popregister(const void *address);

/*
 * Remote memory: bsp_put(3)
 */
void bsp_put(bsp_pid_t pid, const void *src, void *dst, bsp_size_t offset,
             bsp_size_t nbytes) BSP_DIALECT_("mcbsp_put");
void bsp_hpput(bsp_pid_t pid, const void *src, void *dst, bsp_size_t offset,
               bsp_size_t nbytes) BSP_DIALECT_("mcbsp_hpput");
void bsp_get(bsp_pid_t pid, const void *src, bsp_size_t offset, void *dst,
             bsp_size_t nbytes) BSP_DIALECT_("mcbsp_get");
void bsp_hpget(bsp_pid_t pid, const void *src, bsp_size_t offset, void *dst,
               bsp_size_t nbytes) BSP_DIALECT_("mcbsp_hpget");
/* Copies before it returns, from a process of the same node. */
void bsp_direct_get(bsp_pid_t pid, const void *src, bsp_size_t offset, void *dst,
                    bsp_size_t nbytes) BSP_DIALECT_("mcbsp_direct_get");

/*
 * Messages: bsp_send(3)
 */
void bsp_set_tagsize(bsp_size_t *size) BSP_DIALECT_("mcbsp_set_tagsize");
void bsp_set_tag_size(bsp_size_t *size) BSP_DIALECT_("mcbsp_set_tagsize");
void bsp_send(bsp_pid_t pid, const void *tag, const void *payload, bsp_size_t nbytes)
    BSP_DIALECT_("mcbsp_send");
void bsp_hpsend(bsp_pid_t pid, const void *tag, const void *payload, bsp_size_t nbytes)
    BSP_DIALECT_("mcbsp_hpsend");
void bsp_qsize(bsp_nprocs_t *messages, bsp_size_t *bytes) BSP_DIALECT_("mcbsp_qsize");
void bsp_bsmp_info(bsp_nprocs_t *messages, bsp_size_t *bytes) BSP_DIALECT_("mcbsp_qsize");
void bsp_get_tag(bsp_size_t *status, void *tag) BSP_DIALECT_("mcbsp_get_tag");
void bsp_move(void *payload, bsp_size_t size) BSP_DIALECT_("mcbsp_move");
bsp_size_t bsp_hpmove(void **tag, void **payload) BSP_DIALECT_("mcbsp_hpmove");

/*
 * Collectives: bsp_bcast(3). Each ends the superstep that it is called in.
 */
/* Combines left and right, the earlier process's value, into result. */
typedef void (*bsp_operator)(void *result, void *left, void *right, bsp_size_t *nbytes);

void bsp_bcast(bsp_pid_t root, const void *src, void *dst, bsp_size_t nbytes)
    BSP_DIALECT_("mcbsp_bcast");
void bsp_gather(bsp_pid_t root, const void *src, void *dst, bsp_size_t nbytes)
    BSP_DIALECT_("mcbsp_gather");
void bsp_scatter(bsp_pid_t root, const void *src, void *dst, bsp_size_t nbytes)
    BSP_DIALECT_("mcbsp_scatter");
void bsp_allgather(const void *src, void *dst, bsp_size_t nbytes)
    BSP_DIALECT_("mcbsp_allgather");
void bsp_total_exchange(const void *src, void *dst, bsp_size_t nbytes)
    BSP_DIALECT_("mcbsp_total_exchange");
void bsp_reduce(bsp_pid_t root, bsp_operator op, const void *src, void *dst,
                bsp_size_t nbytes) BSP_DIALECT_("mcbsp_reduce");
void bsp_fold(bsp_operator op, const void *src, void *dst, bsp_size_t nbytes)
    BSP_DIALECT_("mcbsp_fold");
void bsp_scan(bsp_operator op, const void *src, void *dst, bsp_size_t nbytes)
    BSP_DIALECT_("mcbsp_scan");

/* Combine one value of each process: of all processes, or of those up to the caller. */
int bsp_all(int value);
int bsp_any(int value);
int bsp_sumI(int value);
int bsp_productI(int value);
int bsp_minI(int value);
int bsp_maxI(int value);
int bsp_sumI_prefix(int value);
int bsp_productI_prefix(int value);
int bsp_minI_prefix(int value);
int bsp_maxI_prefix(int value);
float bsp_sumR(float value);
float bsp_productR(float value);
float bsp_minR(float value);
float bsp_maxR(float value);
float bsp_sumR_prefix(float value);
float bsp_productR_prefix(float value);
float bsp_minR_prefix(float value);
float bsp_maxR_prefix(float value);
double bsp_sumD(double value);
double bsp_productD(double value);
double bsp_minD(double value);
double bsp_maxD(double value);
double bsp_sumD_prefix(double value);
double bsp_productD_prefix(double value);
double bsp_minD_prefix(double value);
double bsp_maxD_prefix(double value);

/*
 * Position of the next call. The macros below use these.
 */
void bsp_call_site(const char *file, int line);
bsp_pid_t bsp_pid_at(const char *file, int line);
double bsp_time_at(const char *file, int line);

/*
 * For programs compiled with the header of the Oxford toolset, whose macros call these
 * functions with its types.
 */
void bsp_init_cpp(void (*spmd)(void), int argc, char **argv, int line, const char *file);
void bsp_sync_cpp(int line, const char *file);
void bsp_push_reg_cpp(const void *address, int size, int line, const char *file);
void bsp_pop_reg_cpp(const void *address, int line, const char *file);
void bsp_put_cpp(int pid, const void *src, void *dst, int offset, int nbytes, int line,
                 const char *file);
void bsp_hpput_cpp(int pid, const void *src, void *dst, int offset, int nbytes, int line,
                   const char *file);
void bsp_get_cpp(int pid, const void *src, int offset, void *dst, int nbytes, int line,
                 const char *file);
void bsp_hpget_cpp(int pid, const void *src, int offset, void *dst, int nbytes, int line,
                   const char *file);
void bsp_set_tagsize_cpp(int *size, int line, const char *file);
void bsp_send_cpp(int pid, const void *tag, const void *payload, int nbytes, int line,
                  const char *file);
void bsp_qsize_cpp(int *messages, int *bytes, int line, const char *file);
void bsp_get_tag_cpp(int *status, void *tag, int line, const char *file);
void bsp_move_cpp(void *payload, int size, int line, const char *file);
int bsp_hpmove_cpp(void **tag, void **payload, int line, const char *file);

/*
 * Checkpoints: bsp_checkpoint(3). One is taken at the end of the superstep in which any process
 * requests it. The others are MulticoreBSP's.
 */
void bsp_checkpoint(void);
void mcbsp_checkpoint(void);
void mcbsp_enable_checkpoints(void);
void mcbsp_disable_checkpoints(void);
void mcbsp_set_checkpoint_frequency(size_t supersteps);
size_t mcbsp_get_checkpoint_frequency(void);
void mcbsp_set_safe_checkpoint_frequency(size_t supersteps);
size_t mcbsp_get_safe_checkpoint_frequency(void);

#ifdef __cplusplus
}
#endif

#ifdef BSP_CALLABLE_
}

/* Everything that is not called with a position below. */
using bsp_functions_::bsp_nprocs;
using bsp_functions_::bsp_abort;
using bsp_functions_::bsp_vabort;
using bsp_functions_::bsp_abort_va;
using bsp_functions_::bsp_abort_text;
using bsp_functions_::bsp_fix_argv;
using bsp_functions_::bsp_dtime;
using bsp_functions_::bsp_cputime;
using bsp_functions_::bsp_operator;
using bsp_functions_::bsp_all;
using bsp_functions_::bsp_any;
using bsp_functions_::bsp_sumI;
using bsp_functions_::bsp_productI;
using bsp_functions_::bsp_minI;
using bsp_functions_::bsp_maxI;
using bsp_functions_::bsp_sumI_prefix;
using bsp_functions_::bsp_productI_prefix;
using bsp_functions_::bsp_minI_prefix;
using bsp_functions_::bsp_maxI_prefix;
using bsp_functions_::bsp_sumR;
using bsp_functions_::bsp_productR;
using bsp_functions_::bsp_minR;
using bsp_functions_::bsp_maxR;
using bsp_functions_::bsp_sumR_prefix;
using bsp_functions_::bsp_productR_prefix;
using bsp_functions_::bsp_minR_prefix;
using bsp_functions_::bsp_maxR_prefix;
using bsp_functions_::bsp_sumD;
using bsp_functions_::bsp_productD;
using bsp_functions_::bsp_minD;
using bsp_functions_::bsp_maxD;
using bsp_functions_::bsp_sumD_prefix;
using bsp_functions_::bsp_productD_prefix;
using bsp_functions_::bsp_minD_prefix;
using bsp_functions_::bsp_maxD_prefix;
using bsp_functions_::bsp_call_site;
using bsp_functions_::bsp_pid_at;
using bsp_functions_::bsp_time_at;
using bsp_functions_::bsp_init_cpp;
using bsp_functions_::bsp_sync_cpp;
using bsp_functions_::bsp_push_reg_cpp;
using bsp_functions_::bsp_pop_reg_cpp;
using bsp_functions_::bsp_put_cpp;
using bsp_functions_::bsp_hpput_cpp;
using bsp_functions_::bsp_get_cpp;
using bsp_functions_::bsp_hpget_cpp;
using bsp_functions_::bsp_set_tagsize_cpp;
using bsp_functions_::bsp_send_cpp;
using bsp_functions_::bsp_qsize_cpp;
using bsp_functions_::bsp_get_tag_cpp;
using bsp_functions_::bsp_move_cpp;
using bsp_functions_::bsp_hpmove_cpp;
using bsp_functions_::mcbsp_enable_checkpoints;
using bsp_functions_::mcbsp_disable_checkpoints;
using bsp_functions_::mcbsp_set_checkpoint_frequency;
using bsp_functions_::mcbsp_get_checkpoint_frequency;
using bsp_functions_::mcbsp_set_safe_checkpoint_frequency;
using bsp_functions_::mcbsp_get_safe_checkpoint_frequency;

/* Any pointer to a function, or lambda: most operators are declared with the type that they combine. */
struct bsp_any_operator_ {
    bsp_operator op;
    template <class Operator> bsp_any_operator_(Operator given) : op((bsp_operator)(given)) {}
};

/*
 * Objects that are called like the functions and add the position of the call. They are no macros, so
 * that methods and functions of other namespaces may have the same names. They convert to pointers to
 * the functions.
 */
namespace bsp_calls_ {
#define BSP_PLACE_ const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define BSP_CALL_(type, name, call, ...)                                      \
    struct name##_call_ {                                                     \
        typedef decltype(&bsp_functions_::name) pointer;                      \
        type operator()(__VA_ARGS__) const                                    \
        {                                                                     \
            call;                                                             \
        }                                                                     \
        operator pointer() const { return &bsp_functions_::name; }            \
        pointer operator&() const { return &bsp_functions_::name; }           \
    };                                                                        \
    static constexpr name##_call_ name = {};
#define BSP_CALL_AT_(type, name, arguments, ...)                              \
    BSP_CALL_(type, name, bsp_call_site(file, line); return bsp_functions_::name arguments, \
              __VA_ARGS__)
BSP_CALL_AT_(void, bsp_init, (spmd, argc, argv),
             void (*spmd)(void), int argc, char **argv, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_begin, (maxprocs), bsp_nprocs_t maxprocs, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_end, (), BSP_PLACE_)
BSP_CALL_(bsp_pid_t, bsp_pid, return bsp_functions_::bsp_pid_at(file, line), BSP_PLACE_)
BSP_CALL_AT_(void, bsp_sync, (), BSP_PLACE_)
BSP_CALL_(double, bsp_time, return bsp_functions_::bsp_time_at(file, line), BSP_PLACE_)
BSP_CALL_AT_(double, bsp_predict, (nprocs, work, h),
             int nprocs, double work, double h, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_push_reg, (address, size),
             const void *address, bsp_size_t size, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_pop_reg, (address), const void *address, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_pushregister, (address, size),
             const void *address, bsp_size_t size, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_popregister, (address), const void *address, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_put, (pid, src, dst, offset, nbytes),
             bsp_pid_t pid, const void *src, void *dst, bsp_size_t offset, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_hpput, (pid, src, dst, offset, nbytes),
             bsp_pid_t pid, const void *src, void *dst, bsp_size_t offset, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_get, (pid, src, offset, dst, nbytes),
             bsp_pid_t pid, const void *src, bsp_size_t offset, void *dst, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_hpget, (pid, src, offset, dst, nbytes),
             bsp_pid_t pid, const void *src, bsp_size_t offset, void *dst, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_direct_get, (pid, src, offset, dst, nbytes),
             bsp_pid_t pid, const void *src, bsp_size_t offset, void *dst, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_set_tagsize, (size), bsp_size_t *size, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_set_tag_size, (size), bsp_size_t *size, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_send, (pid, tag, payload, nbytes),
             bsp_pid_t pid, const void *tag, const void *payload, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_hpsend, (pid, tag, payload, nbytes),
             bsp_pid_t pid, const void *tag, const void *payload, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_qsize, (messages, bytes),
             bsp_nprocs_t *messages, bsp_size_t *bytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_bsmp_info, (messages, bytes),
             bsp_nprocs_t *messages, bsp_size_t *bytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_get_tag, (status, tag), bsp_size_t *status, void *tag, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_move, (payload, size), void *payload, bsp_size_t size, BSP_PLACE_)
BSP_CALL_AT_(bsp_size_t, bsp_hpmove, (tag, payload), void **tag, void **payload, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_bcast, (root, src, dst, nbytes),
             bsp_pid_t root, const void *src, void *dst, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_gather, (root, src, dst, nbytes),
             bsp_pid_t root, const void *src, void *dst, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_scatter, (root, src, dst, nbytes),
             bsp_pid_t root, const void *src, void *dst, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_allgather, (src, dst, nbytes),
             const void *src, void *dst, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_total_exchange, (src, dst, nbytes),
             const void *src, void *dst, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_reduce, (root, op.op, src, dst, nbytes),
             bsp_pid_t root, bsp_any_operator_ op, const void *src, void *dst, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_fold, (op.op, src, dst, nbytes),
             bsp_any_operator_ op, const void *src, void *dst, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_scan, (op.op, src, dst, nbytes),
             bsp_any_operator_ op, const void *src, void *dst, bsp_size_t nbytes, BSP_PLACE_)
BSP_CALL_AT_(void, bsp_checkpoint, (), BSP_PLACE_)
BSP_CALL_AT_(void, mcbsp_checkpoint, (), BSP_PLACE_)
#undef BSP_CALL_AT_
#undef BSP_CALL_
#undef BSP_PLACE_
}
using namespace bsp_calls_;
#endif

/* A function's name without parentheses still refers to the function. */
#if !defined BSP_NO_CALL_SITES && !defined __cplusplus && \
    (!defined __STRICT_ANSI__ || \
     (defined __STDC_VERSION__ && __STDC_VERSION__ >= 199901L))
#define BSP_AT_(call) (bsp_call_site(__FILE__, __LINE__), call)
#define bsp_init(...) BSP_AT_(bsp_init(__VA_ARGS__))
#define bsp_begin(...) BSP_AT_(bsp_begin(__VA_ARGS__))
#define bsp_end() BSP_AT_(bsp_end())
#define bsp_abort(...) BSP_AT_(bsp_abort(__VA_ARGS__))
#define bsp_sync() BSP_AT_(bsp_sync())
#define bsp_push_reg(...) BSP_AT_(bsp_push_reg(__VA_ARGS__))
#define bsp_pop_reg(...) BSP_AT_(bsp_pop_reg(__VA_ARGS__))
#define bsp_pushregister(...) BSP_AT_(bsp_pushregister(__VA_ARGS__))
#define bsp_popregister(...) BSP_AT_(bsp_popregister(__VA_ARGS__))
#define bsp_put(...) BSP_AT_(bsp_put(__VA_ARGS__))
#define bsp_hpput(...) BSP_AT_(bsp_hpput(__VA_ARGS__))
#define bsp_get(...) BSP_AT_(bsp_get(__VA_ARGS__))
#define bsp_hpget(...) BSP_AT_(bsp_hpget(__VA_ARGS__))
#define bsp_direct_get(...) BSP_AT_(bsp_direct_get(__VA_ARGS__))
#define bsp_set_tagsize(...) BSP_AT_(bsp_set_tagsize(__VA_ARGS__))
#define bsp_set_tag_size(...) BSP_AT_(bsp_set_tag_size(__VA_ARGS__))
#define bsp_send(...) BSP_AT_(bsp_send(__VA_ARGS__))
#define bsp_hpsend(...) BSP_AT_(bsp_hpsend(__VA_ARGS__))
#define bsp_qsize(...) BSP_AT_(bsp_qsize(__VA_ARGS__))
#define bsp_bsmp_info(...) BSP_AT_(bsp_bsmp_info(__VA_ARGS__))
#define bsp_get_tag(...) BSP_AT_(bsp_get_tag(__VA_ARGS__))
#define bsp_move(...) BSP_AT_(bsp_move(__VA_ARGS__))
#define bsp_hpmove(...) BSP_AT_(bsp_hpmove(__VA_ARGS__))
#define bsp_checkpoint() BSP_AT_(bsp_checkpoint())
#define mcbsp_checkpoint() BSP_AT_(mcbsp_checkpoint())
#define bsp_predict(...) BSP_AT_(bsp_predict(__VA_ARGS__))
#define bsp_bcast(...) BSP_AT_(bsp_bcast(__VA_ARGS__))
#define bsp_gather(...) BSP_AT_(bsp_gather(__VA_ARGS__))
#define bsp_scatter(...) BSP_AT_(bsp_scatter(__VA_ARGS__))
#define bsp_allgather(...) BSP_AT_(bsp_allgather(__VA_ARGS__))
#define bsp_total_exchange(...) BSP_AT_(bsp_total_exchange(__VA_ARGS__))
/* Most operators are declared with pointers to the type that they combine. */
#define bsp_reduce(root, op, ...) BSP_AT_(bsp_reduce(root, (bsp_operator)(op), __VA_ARGS__))
#define bsp_fold(op, ...) BSP_AT_(bsp_fold((bsp_operator)(op), __VA_ARGS__))
#define bsp_scan(op, ...) BSP_AT_(bsp_scan((bsp_operator)(op), __VA_ARGS__))
/* These are used as arguments of other calls. */
#define bsp_pid() bsp_pid_at(__FILE__, __LINE__)
#define bsp_time() bsp_time_at(__FILE__, __LINE__)
#endif

#endif
