/*
 * bsp_reshuffle.h - moves arrays between block-cyclic distributions (libbsp)
 *
 * An array of any number of dimensions is distributed over the processes of a program. A
 * distribution gives, for each dimension, the number of processes and the size of the blocks
 * of indices that they have in turn. From rows of a matrix to columns:
 *
 *     size_t extents[] = {1000, 800};
 *     int rows[] = {p, 1}, columns[] = {1, p};
 *     size_t by_rows[] = {(1000 + p - 1) / p, 800}, by_columns[] = {1000, (800 + p - 1) / p};
 *     bsp_reshuffle_plan *plan = bsp_reshuffle_plan_create(2, extents, sizeof(double),
 *                                                          rows, by_rows, columns, by_columns);
 *     bsp_reshuffle_execute(plan, before, after);
 *     bsp_reshuffle_plan_destroy(plan);
 *
 * The first dimension is the slowest, as in C arrays. Processes have the same order, and so
 * have the elements of a part, which lie in memory without gaps. All processes make the same
 * calls. See bsp_reshuffle_plan_create(3). The types are the same in both dialects.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef DIPOLE_BSP_RESHUFFLE_H
#define DIPOLE_BSP_RESHUFFLE_H

#include "bsp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bsp_reshuffle_plan bsp_reshuffle_plan;

/*
 * Reshuffling: bsp_reshuffle_plan_create(3)
 */
size_t bsp_distribution_elements(int ndims, const size_t *extents, const int *procs,
                                 const size_t *blocks, int pid);
bsp_reshuffle_plan *bsp_reshuffle_plan_create(int ndims, const size_t *extents,
                                              size_t element_size, const int *from_procs,
                                              const size_t *from_blocks, const int *to_procs,
                                              const size_t *to_blocks);
void bsp_reshuffle_execute(bsp_reshuffle_plan *plan, const void *src, void *dst);
void bsp_reshuffle_in_place(bsp_reshuffle_plan *plan, void *memory);
void bsp_reshuffle_plan_destroy(bsp_reshuffle_plan *plan);

#ifdef __cplusplus
}
#endif

#ifdef BSP_AT_
#define bsp_distribution_elements(...) BSP_AT_(bsp_distribution_elements(__VA_ARGS__))
#define bsp_reshuffle_plan_create(...) BSP_AT_(bsp_reshuffle_plan_create(__VA_ARGS__))
#define bsp_reshuffle_execute(...) BSP_AT_(bsp_reshuffle_execute(__VA_ARGS__))
#define bsp_reshuffle_in_place(...) BSP_AT_(bsp_reshuffle_in_place(__VA_ARGS__))
#define bsp_reshuffle_plan_destroy(...) BSP_AT_(bsp_reshuffle_plan_destroy(__VA_ARGS__))
#endif

#endif
