/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf.h - settings, read once from the environment.
 *
 * What it is not: it prints nothing by itself; conf_report does when the process has turned out to be a CUDA process.
 * Threads: conf_get is safe from any thread and from inside dlsym: it takes no lock but its own once, and no memory.
 */
#ifndef CUPOOL_SHIM_CONF_H
#define CUPOOL_SHIM_CONF_H

#include <stdbool.h>
#include <stdint.h>

enum conf_type { CONF_BOOL, CONF_CHOICE, CONF_SIZE, CONF_NUMBER, CONF_SECONDS, CONF_FILL, CONF_STATS, CONF_STRING };

/* In the order of their choices in conf.def. */
enum conf_free { FREE_AUTO, FREE_ORDERED, FREE_STRICT, FREE_RELAXED };
/* Numbers of CONF_FILL that are no byte. */
enum conf_fill { FILL_OFF = 256, FILL_NATIVE };
enum conf_backend { BACKEND_CUDA, BACKEND_NCCL };
enum conf_registration { REGISTER_OFF, REGISTER_ON, REGISTER_FORCE, REGISTER_USE };
enum conf_hook { HOOK_AUTO, HOOK_RUNTIME };
enum conf_debug { DEBUG_OFF, DEBUG_OWN, DEBUG_GUARD };
enum conf_trace_events { TRACE_SEGMENT, TRACE_ALLOC };
/* Numbers of CONF_STATS; 0: off. */
#define STATS_EXIT            1u
#define STATS_SIGNAL(number)  ((int)((number) >> 8 & 0xff)) /* 0: none */
#define STATS_TIMER_S(number) ((number) >> 32)              /* seconds; 0: none */
enum conf_log_level { LOG_OFF, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

#define CONF_TEXT_MAX 1024

struct conf_value {
    /* BOOL, CHOICE: its index, SIZE: bytes, NUMBER and SECONDS: UINT64_MAX if not set and off, FILL: a byte or enum
     * conf_fill, STATS: see there */
    uint64_t number;
    char text[CONF_TEXT_MAX]; /* the value in force, as text */
    bool from_env;
    bool invalid; /* the environment had a value that is not accepted; the default is in force */
};

struct conf {
#define CONF(field, name, type, def, choices, help) struct conf_value field;
#include "conf.def"
};

/* One row of conf.def. */
struct conf_row {
    const char *name; /* with its prefix */
    enum conf_type type;
    const char *def, *choices, *help;
};

extern const struct conf_row conf_rows[];
extern const unsigned int conf_count;

const struct conf *conf_get(void);

/* The value of row i, in the order of conf_rows. */
const struct conf_value *conf_value_get(unsigned int i);

/* Warn through log_write of unknown CUPOOL_ names and of invalid values. */
void conf_report(void);

/* Parse text as one row's type. 0 or -EINVAL; ret_number is 0 for strings. For conf_get, tests and fuzzing. */
int conf_parse(const struct conf_row *row, const char *text, uint64_t *ret_number);

/* The known name nearest to name, or NULL if none is near. */
const char *conf_nearest(const char *name);

#endif
