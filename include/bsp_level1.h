/*
 * bsp_level1.h - the collectives and the parameters of the machine, as in the Oxford BSP toolset
 *
 * Most collectives are functions of bsp.h. The rest is described in bsp_fold(3) and bsp_s(3).
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BSP_LEVEL1_H
#define BSP_LEVEL1_H

#include <bsp.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 1 if all processes give the same value. */
int bsp_constantI(int value);

/* Sort one value of each process; process i gets the one at place i. */
int bsp_sortI(int value);
float bsp_sortR(float value);
double bsp_sortD(double value);
char bsp_sortC(char value);

/*
 * Measured parameters for the present number of processes, in Mflop/s, flop, flop per 32-bit word, and
 * words; -1 if they are not known.
 */
double bsp_s(void);
double bsp_l(void);
double bsp_g(void);
int bsp_nhalf(void);

#ifdef __cplusplus
}
#endif

#endif
