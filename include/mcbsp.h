/*
 * mcbsp.h - bsp.h under the name and with the types that MulticoreBSP has
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef MCBSP_COMPATIBILITY_MODE
#ifndef BSP_MULTICORE
#define BSP_MULTICORE
#endif
#endif
#include <bsp.h>
