/*
 * mcbsp.h - bsp.h with the name and the types that MulticoreBSP uses
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef MCBSP_COMPATIBILITY_MODE
#ifndef BSP_MULTICORE
#define BSP_MULTICORE
#endif
#endif
#include <bsp.h>
