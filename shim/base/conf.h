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
#ifndef CUPOOL_SHIM_CONF_H
#define CUPOOL_SHIM_CONF_H

#include <stdbool.h>
#include <stdint.h>

enum conf_type { CONF_BOOL, CONF_CHOICE, CONF_SIZE, CONF_NUMBER, CONF_SECONDS, CONF_FILL, CONF_STATS, CONF_STRING };

/* In the order of the choices in conf.def, as are the enums below. */
enum conf_free { FREE_AUTO, FREE_ORDERED, FREE_STRICT, FREE_RELAXED };
/* Numbers of CONF_FILL that are not a byte. */
enum conf_fill { FILL_OFF = 256, FILL_NATIVE };
enum conf_backend { BACKEND_CUDA, BACKEND_NCCL };
enum conf_registration { REGISTER_OFF, REGISTER_ON, REGISTER_FORCE, REGISTER_USE };
enum conf_hook { HOOK_AUTO, HOOK_RUNTIME };
enum conf_debug { DEBUG_OFF, DEBUG_OWN, DEBUG_GUARD };
enum conf_trace_events { TRACE_SEGMENT, TRACE_ALLOC };
/* The number of CONF_STATS; 0: off. */
#define STATS_EXIT            1u
#define STATS_SIGNAL(number)  ((int)((number) >> 8 & 0xff)) /* 0: none */
#define STATS_TIMER_S(number) ((number) >> 32)              /* seconds; 0: none */
enum conf_log_level { LOG_OFF, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

#define CONF_TEXT_MAX 1024

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

/* One row of conf.def. */
struct conf_row {
    const char *name; /* with its prefix */
    enum conf_type type;
    const char *def, *choices, *help;
};

/* The rows of conf.def, conf_count of them. */
extern const struct conf_row conf_rows[];
extern const unsigned int conf_count;

/* The settings; the first call reads the environment. */
const struct conf *conf_get(void);

/* The value of row i, in the order of conf_rows. */
const struct conf_value *conf_value_get(unsigned int i);

#endif
