/* SPDX-License-Identifier: Apache-2.0 */
/* stubs.h - what stubs.c answers. One thread; no locks. */
#ifndef CUPOOL_TESTS_FILES_STUBS_H
#define CUPOOL_TESTS_FILES_STUBS_H

#include <stdbool.h>

extern bool stub_elsewhere; /* job_is_elsewhere */
extern bool stub_foreign;   /* process_is_foreign */
extern bool stub_host;      /* there is pinned memory */
extern unsigned int stub_devices;

#endif
