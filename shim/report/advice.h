/* SPDX-License-Identifier: Apache-2.0 */
/*
 * advice.h - the last line of the statistics at exit: the one setting that the user should change, by the rules of
 * advice.def over the counters of the run.
 *
 * It counts nothing and changes nothing, and has no advice where no rule fits.
 *
 * Threads: advice_text may be called from any thread; it reads its arguments alone. advice_facts_get is for exit: it
 * waits for no lock, and makes no CUDA call.
 */
#ifndef CUPOOL_SHIM_REPORT_ADVICE_H
#define CUPOOL_SHIM_REPORT_ADVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The facts that the rules read. */
struct advice_facts {
    /* Settings. */
    unsigned int free, backend, registration, hook; /* enums of base/conf_types.h */
    uint64_t limit;                                 /* CUPOOL_LIMIT, in bytes; 0: none */
    uint64_t decay;                                 /* CUPOOL_DECAY, in seconds; UINT64_MAX: off */
    /* Sums over devices. */
    uint64_t allocs, bypassed, refused; /* refused: by the driver, and served in the end */
    uint64_t held_most;                 /* bytes: the greatest peak of a device */
    uint64_t held;                      /* bytes: the sum of the peaks */
    uint64_t decayed;                   /* bytes given back because they were idle */
    /* Of the device with the most frees that waited on the host. */
    uint64_t frees, waited;
    bool orders;     /* its driver can order on the device */
    const char *why; /* the reason why auto made it strict; NULL: it did not */
    /* The process. */
    bool has_torch, torch_caches;
    /* NCCL; 0 and false without registration. */
    bool has_nccl;                        /* it is loaded */
    uint64_t nccl_ops, nccl_unregistered; /* operations; of these, with a buffer that is not registered */
    uint64_t nccl_registered, nccl_failed;
};

/* Collect the facts of this process. */
void advice_facts_get(struct advice_facts *ret_facts);

/* The advice for these facts as text, cut to len bytes with its zero. False: there is none, and text is empty. */
bool advice_text(const struct advice_facts *facts, char *text, size_t len);

#endif
