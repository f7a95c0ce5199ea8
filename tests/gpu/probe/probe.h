/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.h - what the files of the probe share: how a fact is told, slow work without kernels, the list of cases.
 *
 * A case is a function that runs in a process of its own and writes facts, one line each: NAME<TAB>ANSWER. An answer is
 * equal in every run on one driver: words, numbers and error codes, no times and no addresses. The probe asserts
 * nothing; compare holds its facts against those that were recorded on a real GPU.
 *
 * Locking: facts are told by the case's main thread only.
 */
#ifndef PROBE_H
#define PROBE_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* How long something gets to happen that is not expected to, in ms; and the limit of everything that is waited for. */
#define SETTLE_MS   120
#define CALL_MS     400 /* for calls: some are slow while other processes make contexts */
#define PATIENCE_MS 3000

struct probe_case {
    const char *name; /* also the first part of its facts' names */
    void (*fn)(const char *name, int arg);
    int arg;
};

/* Each file's cases, ended by a NULL name. */
extern const struct probe_case cover_cases[], work_cases[], capture_cases[], hostfn_cases[], sticky_cases[],
    context_cases[], memory_cases[], host_cases[], busy_cases[], pinned_cases[], pinned_call_cases[];

/* Tell a fact. ask says before which fact is to come, for calls that may hang or crash: the parent then tells it. */
__attribute__((format(printf, 3, 4))) void fact(const char *name, const char *item, const char *answer, ...);
void ask(const char *name, const char *item);

/* Tell the code of a call, and the runtime's last error after it. The case's name is in name. */
#define TELL_LAST(item, call)                                                                                          \
    do {                                                                                                               \
        int code_, last_;                                                                                              \
        ask(name, item);                                                                                               \
        code_ = (int)(call);                                                                                           \
        last_ = (int)cudaGetLastError();                                                                               \
        fact(name, item, "%d last %d", code_, last_);                                                                  \
    } while (0)

/* A call that the case needs: any result but 0 becomes the fact NAME.setup and ends the process. */
void need_(const char *name, int line, int result);
#define NEED(call) need_(name, __LINE__, (int)(call))

/* Calls that have names: a file lists them once, as #define LIST(CALL) CALL(name, code) ..., in the order in which they
 * are made, and has from that their functions, LIST(PROBE_CALL), their rows, {LIST(PROBE_ROW)}, and their numbers in
 * these. */
struct probe_call {
    const char *name;
    int (*fn)(void);
};
/* NOLINTBEGIN(bugprone-macro-parentheses): the arguments are names */
#define PROBE_CALL(name_, code_)                                                                                       \
    static int call_##name_(void)                                                                                      \
    {                                                                                                                  \
        return (int)(code_);                                                                                           \
    }
#define PROBE_ROW(name_, code_) {#name_, call_##name_},
/* NOLINTEND(bugprone-macro-parentheses) */

/* The primary context of device 0, current; sets up and warms up what the cases use, so that it does not disturb them.
 */
CUcontext probe_primary(const char *name);

static inline CUdeviceptr addr_of(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

/* The code of asking for the allocation that p lies in. */
static inline int range_code(const void *p)
{
    CUdeviceptr base;
    size_t size;

    return (int)cuMemGetAddressRange(&base, &size, addr_of(p));
}

void nap_ms(unsigned int ms);

/* The size in a fact's name, such as 64K. Returns text. */
const char *size_name(size_t size, char *text, size_t n);

/* Can the page be read? Asks the kernel instead of reading. */
bool page_readable(const void *p);

/* Work that goes on until it is let go (at the latest after PATIENCE_MS). Two kinds: a host function, and a stream that
 * waits for a word in host memory (the GPU waits, no thread of ours does). */
enum block_kind { BLOCK_HOSTFN, BLOCK_VALUE };
extern const char *const block_names[];

struct block {
    enum block_kind kind;
    _Atomic(uint32_t) *word; /* host memory that the device sees */
};

struct block block_new(const char *name, enum block_kind kind);
CUresult block_start(struct block *b, CUstream stream);
/* For per-thread streams of other threads: the same in the calling thread's own one. */
void block_end(struct block *b);

/* Runs call(arg) in a thread with that context current; says whether it was still going on after CALL_MS. Then the
 * block, if any, is let go, and the call's end is awaited. */
bool call_waits(const char *name, CUcontext context, int (*call)(void *arg), void *arg, struct block *b, int *result);

/* After ms, by a thread of its own, the block is let go. */
void block_end_later(const char *name, struct block *b, unsigned int ms);

/* Not all of them are in the simulated GPU. */
#pragma weak cuGreenCtxCreate
#pragma weak cuGreenCtxStreamCreate
#pragma weak cuCtxFromGreenCtx
#pragma weak cuDeviceGetDevResource
#pragma weak cuDevSmResourceSplitByCount
#pragma weak cuDevResourceGenerateDesc

#define NOT_SIMULATED "not simulated"
#define ONE_DEVICE    "one device"

#endif
