/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stubs.c - functions that do nothing; see stubs.def.
 *
 * A program can make these calls, and a test can count them and have them refused. Graphics, external memory and
 * modules are not simulated.
 *
 * Locking: none.
 */
#include "sim.h"

#define SIM_STUB(base, sym, version, params, result)                                                                   \
    CUresult sym params                                                                                                \
    {                                                                                                                  \
        SIM_ENTER(sym);                                                                                                \
        return result;                                                                                                 \
    }
#define SIM_STUB_PT(base, sym, version, pt_sym, params, result)                                                        \
    SIM_STUB(base, sym, version, params, result)                                                                       \
    SIM_STUB(base, pt_sym, version, params, result)
#include "stubs.def"
