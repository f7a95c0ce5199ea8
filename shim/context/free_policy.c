/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_policy.c - see free_policy.h.
 *
 * Locking: the reasons why devices are strict are atomic; each policy has a lock for its own members.
 */
#include "context/free_policy.h"

#include "base/conf.h"
#include "base/log.h"
#include "base/process.h"

/* Host work on several streams, or on the per-thread stream, whose one handle means another stream on every thread. */
#define STREAM_MIXED POLICY_STREAM_MIXED

static _Atomic(const char *) strict_why[DEVICES_MAX]; /* the reason why a device is strict; NULL: it is not */
static atomic_bool device_lacks_order[DEVICES_MAX];   /* the driver of a context there was too old */
static _Atomic(uint64_t) waited[DEVICES_MAX];         /* frees that waited on the host */

bool policy_driver_orders(const struct real_driver *driver)
{
    int version = 0;

    return driver->cuCtxRecordEvent && driver->cuCtxWaitEvent && driver->cuDriverGetVersion &&
           driver->cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= 12050;
}

void policy_init(struct policy *policy, int device, bool orders, const char **ret_why)
{
    const uint64_t wanted = conf_get()->free.number;
    const char *why = wanted == FREE_AUTO ? atomic_load(&strict_why[device % DEVICES_MAX]) : NULL;

    policy->device = device % DEVICES_MAX;
    policy->automatic = wanted == FREE_AUTO;
    /* The counter starts with one report, for work launched in the context before we knew it. */
    atomic_store(&policy->synced_seq, atomic_fetch_add(&policy->host_work_seq, policy->automatic));
    policy->host_work_stream = STREAM_MIXED;
    policy->strict = wanted == FREE_STRICT || !orders || (policy->automatic && !process_hooks_driver());
    if (wanted == FREE_STRICT)
        why = "CUPOOL_FREE";
    else if (!orders)
        why = "driver older than 12.5";
    else if (wanted == FREE_AUTO && !process_hooks_driver())
        why = "CUPOOL_HOOK=runtime sees too little";
    if (why && (wanted == FREE_ORDERED || wanted == FREE_RELAXED))
        log_once(LOG_WARN, "CUPOOL_FREE=%s needs driver 12.5 or later; using strict", conf_get()->free.text);
    else if (why && wanted == FREE_AUTO)
        log_write(LOG_INFO, "device %d: frees wait on the host: %s", device, why);
    if (!orders)
        atomic_store(&device_lacks_order[device % DEVICES_MAX], true);
    *ret_why = why ? why : wanted == FREE_AUTO ? "default" : "CUPOOL_FREE";
}

const char *policy_strict_why(int device)
{
    return atomic_load(&strict_why[device % DEVICES_MAX]);
}

bool policy_device_orders(int device)
{
    return !atomic_load(&device_lacks_order[device % DEVICES_MAX]);
}

uint64_t policy_waited(int device)
{
    return atomic_load(&waited[device % DEVICES_MAX]);
}

void policy_waited_add(const struct policy *policy)
{
    atomic_fetch_add_explicit(&waited[policy->device], 1, memory_order_relaxed);
}

bool policy_is_strict(const struct policy *policy)
{
    return policy->strict || (policy->automatic && atomic_load(&strict_why[policy->device]) != NULL);
}

bool policy_waits(const struct policy *policy, uint64_t *ret_seq)
{
    *ret_seq = atomic_load(&policy->host_work_seq);
    return policy_is_strict(policy) || *ret_seq != atomic_load_explicit(&policy->synced_seq, memory_order_relaxed);
}

void policy_synced(struct policy *policy, uint64_t seq)
{
    if (atomic_load_explicit(&policy->synced_seq, memory_order_relaxed) >= seq)
        return;
    pthread_mutex_lock(&policy->lock);
    if (atomic_load(&policy->synced_seq) < seq)
        atomic_store(&policy->synced_seq, seq);
    pthread_mutex_unlock(&policy->lock);
}

bool policy_strict_set(int device, const char *why)
{
    const char *none = NULL;

    return atomic_compare_exchange_strong(&strict_why[device], &none, why);
}

unsigned int policy_streams_gone(const struct policy *policy)
{
    return atomic_load(&policy->streams_gone);
}

void policy_host_work_add(struct policy *policy, const void *host_work)
{
    const struct policy_host_work *work = host_work;
    CUstream stream = work->stream;

    if (policy_is_strict(policy))
        return;
    pthread_mutex_lock(&policy->lock);
    if (stream == CU_STREAM_PER_THREAD || work->streams_gone != atomic_load(&policy->streams_gone))
        stream = STREAM_MIXED;
    if (atomic_load(&policy->synced_seq) == atomic_load(&policy->host_work_seq))
        policy->host_work_stream = stream;
    else if (policy->host_work_stream != stream)
        policy->host_work_stream = STREAM_MIXED;
    atomic_fetch_add(&policy->host_work_seq, 1);
    pthread_mutex_unlock(&policy->lock);
}

uint64_t policy_host_work_seq(const struct policy *policy)
{
    return policy ? atomic_load(&policy->host_work_seq) : 0;
}

void policy_stream_synced(struct policy *policy, CUstream stream, uint64_t seq)
{
    if (atomic_load_explicit(&policy->synced_seq, memory_order_relaxed) >= seq)
        return;
    pthread_mutex_lock(&policy->lock);
    if (policy->host_work_stream == stream && atomic_load(&policy->synced_seq) < seq)
        atomic_store(&policy->synced_seq, seq);
    pthread_mutex_unlock(&policy->lock);
}

void policy_host_work_stream_gone(struct policy *policy, const void *stream)
{
    pthread_mutex_lock(&policy->lock);
    atomic_fetch_add(&policy->streams_gone, 1);
    if (policy->host_work_stream == stream)
        policy->host_work_stream = STREAM_MIXED;
    pthread_mutex_unlock(&policy->lock);
}
