/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf_report.h - warnings about settings.
 *
 * It changes no setting.
 *
 * Threads: every function may be called from any thread. No function fails.
 */
#ifndef CUPOOL_SHIM_BASE_CONF_REPORT_H
#define CUPOOL_SHIM_BASE_CONF_REPORT_H

/* Warn through log_write about unknown CUPOOL_ names, invalid values and settings without effect. */
void conf_report(void);

/* The known name nearest to name; NULL: none is near. */
const char *conf_nearest(const char *name);

#endif
