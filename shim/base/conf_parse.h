/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf_parse.h - the forms of a setting's value.
 *
 * It does not know which settings there are; conf.h does.
 *
 * Threads: every function may be called from any thread. No state. Errors: -EINVAL.
 */
#ifndef CUPOOL_SHIM_BASE_CONF_PARSE_H
#define CUPOOL_SHIM_BASE_CONF_PARSE_H

#include <stdint.h>

struct conf_row;

/* Parse text as the type of a row. 0 or -EINVAL; *ret_number is 0 for strings. */
int conf_parse(const struct conf_row *row, const char *text, uint64_t *ret_number);

#endif
