/* SPDX-License-Identifier: Apache-2.0 */
/* retry.c - the variable of retry.h, which each thread has for itself. No locks. */
#include "exports/retry.h"

__thread struct retry_later retry_later __attribute__((tls_model("initial-exec")));
