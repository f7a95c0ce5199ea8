/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf.h - settings, read once from the environment.
 *
 * It prints nothing; conf_report.h does, once the process has turned out to be a CUDA process. conf_parse.h has the
 * forms of the values.
 *
 * Threads: every function may be called from any thread. conf_get is safe inside dlsym: it takes no lock but its own
 * once, and allocates no memory. Pointers returned stay valid for ever.
 */
#ifndef CUPOOL_SHIM_BASE_CONF_H
#define CUPOOL_SHIM_BASE_CONF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/conf_types.h"

/* The value of one setting. */
struct conf_value {
    /* BOOL: 0 or 1. CHOICE: the index. SIZE: bytes. NUMBER and SECONDS: UINT64_MAX if not set or off. FILL: a byte or
     * enum conf_fill. STATS: see above. */
    uint64_t number;
    char text[CONF_TEXT_MAX]; /* the value in effect, as text */
    bool from_env;
    bool invalid; /* the environment's value was not accepted; the default is in effect */
};

struct conf {
#define CONF(field, name, type, def, choices, help) struct conf_value field;
#include "conf.def"
};

#define CONF_PREFIX "CUPOOL_"

/* The rows of conf.def, conf_count of them. */
extern const struct conf_row conf_rows[];
extern const unsigned int conf_count;

/* The settings; the first call reads the environment, and takes what the program was started with for a setting that it
 * has removed since. */
const struct conf *conf_get(void);

/* The value of row i, in the order of conf_rows. */
const struct conf_value *conf_value_get(unsigned int i);

#endif
