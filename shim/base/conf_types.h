/* SPDX-License-Identifier: Apache-2.0 */
/* conf_types.h - the types of settings and their values as numbers. It has no functions, and no state. */
#ifndef CUPOOL_SHIM_BASE_CONF_TYPES_H
#define CUPOOL_SHIM_BASE_CONF_TYPES_H

enum conf_type { CONF_BOOL, CONF_CHOICE, CONF_SIZE, CONF_NUMBER, CONF_SECONDS, CONF_FILL, CONF_STATS, CONF_STRING };

/* In the order of the choices in conf.def, as are the enums below. */
enum conf_free { FREE_AUTO, FREE_ORDERED, FREE_STRICT, FREE_RELAXED };
/* Numbers of CONF_FILL that are not a byte. */
enum conf_fill { FILL_OFF = 256, FILL_NATIVE };
/* The one list of backends, which are sources of the pool's memory: ROW(SYMBOL, name). enum backend, the table of
 * context/memory_source.h and the names in the trace are made from it; enum cupool_backend of cupool.h has the same
 * order. */
#define BACKENDS(ROW)              ROW(CUDA, cuda) ROW(NCCL, nccl) ROW(VMM, vmm)
#define BACKEND_ENUM(symbol, name) BACKEND_##symbol,
enum backend { BACKENDS(BACKEND_ENUM) BACKEND_COUNT };
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

/* One row of conf.def. */
struct conf_row {
    const char *name; /* with its prefix */
    enum conf_type type;
    const char *def, *choices, *help;
};

#endif
