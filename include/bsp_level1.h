/*
 * bsp_level1.h - the collectives, under the name that the Oxford BSP toolset uses
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include <bsp.h>
