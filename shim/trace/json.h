/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.h - names and messages as the inside of a JSON string.
 *
 * It builds no objects; the callers write the rest of a line.
 *
 * Threads: every function may be called from any thread. No state, and no function fails.
 */
#ifndef CUPOOL_SHIM_TRACE_JSON_H
#define CUPOOL_SHIM_TRACE_JSON_H

#include <stddef.h>
#include <stdint.h>

/*
 * Write text as the inside of a JSON string to buf, of len bytes with the 0 at its end. Longer text is cut off between
 * characters; a byte that is not UTF-8 becomes a question mark.
 */
void json_text(char *buf, size_t len, const char *text);

/* Write a character as UTF-8, without a 0 behind it; returns its bytes, 4 at most. A number that is no character
 * becomes bytes that are not UTF-8. */
unsigned int json_utf8(char *to, uint32_t character);

/* Replace the characters of a name that JSON would have to escape. */
void json_clean(char *text);

#endif
