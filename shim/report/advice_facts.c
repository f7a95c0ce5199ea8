/* SPDX-License-Identifier: Apache-2.0 */
/* advice_facts.c - collects the facts of this process for advice.h. No locks. */
#include <stdlib.h>

#include "base/conf.h"
#include "context/counters.h"
#include "context/free_policy.h"
#include "context/pool_observer.h"
#include "nccl/register_calls.h"
#include "real/loaded.h"
#include "report/advice.h"
#include "report/oom.h"

static void add_device(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed)
{
    struct advice_facts *facts = arg;

    facts->allocs += stats->allocs;
    facts->bypassed += bypassed;
    /* A refusal that became an error of the program was for lack of memory, which no setting makes more. */
    facts->refused += stats->oom > oom_count(device) ? stats->oom - oom_count(device) : 0;
    facts->held += stats->peak_held;
    facts->held_most = stats->peak_held > facts->held_most ? stats->peak_held : facts->held_most;
    if (policy_waited(device) < facts->waited || !policy_waited(device))
        return;
    facts->frees = stats->frees;
    facts->waited = policy_waited(device);
    facts->orders = policy_device_orders(device);
    facts->why = policy_strict_why(device);
}

/* PyTorch reads the variable alike: it caches unless the variable is set. */
static bool torch_caches(void)
{
    return !getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
}

void advice_facts_get(struct advice_facts *ret_facts)
{
    const struct conf *conf = conf_get();
    struct nccl_reg_stats nccl;

    *ret_facts = (struct advice_facts){.free = (unsigned int)conf->free.number,
                                       .backend = (unsigned int)conf->backend.number,
                                       .registration = (unsigned int)conf->registration.number,
                                       .hook = (unsigned int)conf->hook.number,
                                       .limit = conf->limit.number,
                                       .decay = conf->decay.number,
                                       .decayed = observe_decayed(),
                                       .has_torch = loaded_path("libc10_cuda.so") != NULL,
                                       .torch_caches = torch_caches()};
    context_stats_each(/* ending: */ true, add_device, ret_facts);
    if (!nccl_stats_get(&nccl))
        return;
    ret_facts->has_nccl = loaded_path("libnccl.so") != NULL;
    ret_facts->nccl_ops = nccl.ops;
    ret_facts->nccl_unregistered = nccl.mixed + nccl.outside;
    ret_facts->nccl_registered = nccl.attached;
    ret_facts->nccl_failed = nccl.failed;
}
