# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/context/: contexts, order of frees, captures, policy."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("one primary context is known to the runtime, and so all are", ["shim_refused"], [
        ("if (any) atomic_store(&context_unmet, true);", "(void)any;")]),
    Mutant("the runtime is told of a primary context beside a capture", ["shim_refused"], [
        ("if (capture_active() || driver->cuCtxGetCurrent(&handle))", "if (driver->cuCtxGetCurrent(&handle))")]),
    Mutant("each free looks for primary contexts that the runtime does not know", ["shim_refused"], [
        ("atomic_store(&context_unmet, false);", "")]),
    Mutant("a wait with a limit goes on without one", ["shim_waits"], [
        ("result = limit == WAIT_NO_LIMIT ? order_wait(context) : wait_until(context, limit, &late);",
         "late = limit != WAIT_NO_LIMIT && !order_wait_until(context, limit); result = late ? CUDA_SUCCESS : order_wait(context); (void)wait_until;")]),
    Mutant("work is late where the driver cannot be asked", ["shim_waits"], [
        ("*ret_late = now_ns() >= limit;", "*ret_late = true;")]),
    Mutant("work is late where a stream captures", ["shim_waits"], [
        ("if (capture_active_now()) return CUDA_ERROR_NOT_READY; *ret_late = now_ns() >= limit;", "*ret_late = now_ns() >= limit;")]),
    Mutant("the free memory leaves out a context of which a reference is given back", ["shim_memory"], [
        ("if (leaving) { idle += natively_free(context, &rest); used += rest;", "if (leaving) { (void)rest;")]),
    Mutant("memory that goes because little is free counts as decayed", ["shim_trace"], [
        ('(strcmp(why, "reserve") == 0 && conf', '(strcmp(why, "reserve") == 0 || conf')]),
    Mutant("an ending waits for ever for threads that wait for another one", ["shim_ending"], [
        ("i < LET_GO_CALLS && ", "", "ending_begin")]),
    Mutant("neighbours can ask where the setting says that they cannot", ["shim_refused"], [
        ("& bit) && are_asked() &&", "& bit) &&", "neighbours_begin")]),
    Mutant("memory that NCCL cannot share backs the pool", ["shim_nccl_memory"], [
        ("why = \"ncclMemAlloc gives cudaMalloc's memory here\";", "(void)ptr;")]),
    Mutant("a context's entry has what the last one knew of its device's free memory", ["shim_context"], [
        ("atomic_store(&context->free_unsure, false);", ";", "entry_fill")]),
    Mutant("a visit to NCCL asks a driver that is not there", ["shim_nccl_memory"], [
        ("visit->relaxed = visit->driver && capture_mode_relax(", "visit->relaxed = capture_mode_relax(")]),
    Mutant("whether memory is NCCL's is asked of a driver that is not there", ["shim_nccl_memory"], [
        ("return !driver || !driver->cuPointerGetAttribute ||", "return !driver->cuPointerGetAttribute ||")]),
    Mutant("virtual memory is kept while the process exits", ["shim_vmm_kept"], [
        ("return process_serves() && !capture_active() &&", "return !capture_active() &&")]),
    Mutant("ipc: a block that is open is asked for again", ["import"], [
        ("import = *block_bucket(block);", "import = NULL;")]),
    Mutant("ipc: a close whose wait fails is not the library's", ["import"], [
        ("*ret_ours = context != NULL;", "*ret_ours = false;")]),
    Mutant("a thread without host memory looks for contexts for ever", ["shim_pins"], [
        ("if (!pins_possible() || pins_has(context) || is_left_out(context))", "if (pins_has(context) || is_left_out(context))")]),
    Mutant("a device is paused although NCCL may have registered memory for a graph", ["shim_pause"], [
        ('return keeps ? refuse(-EBUSY, "NCCL may have registered memory for a graph") : 0;', "return keeps ? 0 : 0;")]),
    Mutant("a resume that the driver refuses leaves idle memory where it is", ["shim_vmm_memory"], [
        ("if (result == CUDA_ERROR_OUT_OF_MEMORY && device_trim(change->device, NULL))", "if (false)")]),
    Mutant("a refused request is not made again for memory that may be deregistered now", ["shim_memory"], [
        ("retried = context_events.retry_parked_wait(device);", "retried = 0;")]),
    Mutant("memory of a primary context is deregistered before a cuCtxDestroy that never succeeds",
           ["nccl / Registered.test_memory_of_a_context_whose_end_is_refused"], [
        ("if (context && context->pool && !context->primary)", "if (context && context->pool)")]),
    Mutant("a thread that can pin nothing pauses nothing and says that it has", ["shim_pause"], [
        ("return pins_possible() ? 0 : refuse(", "return 1 ? 0 : refuse(")]),
    Mutant("addresses of a context that has gone cannot be freed by others", ["shim_ending"], [
        ("int rc = -ENOENT; /* the context is gone", "int rc = -EINVAL; /* the context is gone")]),
    Mutant("a wait for all contexts fails where one ends meanwhile", ["shim_waits"], [
        ("if ((late || result) && !context_stays(context))", "if (late && !context_stays(context))")]),
    Mutant("a wait for all contexts goes on for one that has ended", ["shim_waits"], [
        ("if ((late || result) && !context_stays(context))", "if (result && !context_stays(context))")]),
    Mutant("a wait for a device where nothing was pooled invalidates a capture", ["shim_waits"], [
        ("if (capture_active_now())", "if (0)", "context_wait_primaries")]),
    Mutant("auto: a texture goes before the wait of another thread's free is over", ["auto_texture static auto", "shim_strict"], [
        ("(void)context_wait_frees(device, /* others: */ true);", ";", "policy_frees_wait")]),
    Mutant("auto: a texture goes before the wait of a free on another device is over", ["auto_texture static auto"], [
        ("(void)context_wait_frees(CONTEXT_ALL, /* others: */ false);", "", "policy_frees_wait")]),
    Mutant("pause: a device where nothing was pooled is not waited for", ["pause / Meanwhile.test_a_device_without_memory"], [
        ("if (!result && change->limit == PAUSE_NO_LIMIT) result = context_wait_primaries();", "")]),
    Mutant("switch: a withdrawal waits where memory is pooled alone", ["switch / Models.test_the_withdrawal_waits_for_another_device"], [
        ("if (!result) result = context_wait_primaries();", "")]),
    Mutant("switch: a segment with several blocks is imported", ["insert", "switch / Wrong.test_blocks_that_share_a_segment"], [
        ("if (grant->segment_size - grant->size > POOL_SEGMENT_UNIT)", "if (false)")]),
    Mutant("switch: a block with guard bytes is not imported", ["insert", "switch / Wrong.test_guard_bytes"], [
        ("if (grant->segment_size - grant->size > POOL_SEGMENT_UNIT)", "if (grant->segment_size - grant->size >= POOL_SEGMENT_UNIT)")]),
    Mutant("ipc: the lower bits of an address choose its bucket", ["ipc_table"], [
        ("table.by_addr[hash_of(addr) >> ADDR_SHIFT]", "table.by_addr[hash_of(addr) % BUCKETS]")]),
    Mutant("ipc: what a holder gives back is another one's", ["ipc_table"], [
        ("while (hold && hold->holder != holder) hold = hold->next_of_block;", "(void)holder;")]),
    Mutant("an old driver is not waited for at this thread's own frees", ["shim_order", "oom_report / Program.test_what_is_freed_on_a_stream"], [
        ("return is_own && result == CUDA_ERROR_NOT_SUPPORTED ? order_wait(context) : result;", "return result;")]),
    Mutant("a driver without the calls is not waited for at this thread's own frees", ["shim_order"], [
        ("return is_own ? order_wait(context) : result;", "return result;")]),
    Mutant("ipc: full books are asked for ever", ["ipc_table"], [
        ("rc = !full && !shared && !segment->size", "rc = !shared && !segment->size")]),
    Mutant("a thread that has pinned memory touched may be cancelled", ["cancelled / Cancelled.test_pinned_memory"], [
        ("sigset_t all, before; int cancel; pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);",
         "sigset_t all, before; int cancel; pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &cancel);")]),
    # --- virtual memory that is kept ---
    Mutant("virtual memory: free memory does not count it", ["vmm_kept / AsNatively.test_every_word", "vmm_kept / Kept.test_decay"], [
        ("return idle + vmm_kept_bytes(device);", "return idle;")]),
    Mutant("virtual memory: refused requests do not get it", ["vmm_kept / AsNatively.test_every_word"], [
        ("bool any = vmm_kept_trim(device) != 0;", "bool any = false;")]),
    Mutant("virtual memory: a refused request does not wait for what is going back", ["vmm_kept / Kept.test_a_request_waits_for_what_is_going_back"], [
        ("vmm_cache_wait(cache); return bytes;", "return bytes;")]),
    Mutant("virtual memory: our hooks wait for a buffer that their own thread gives back", ["vmm_kept / Kept.test_a_library_asks_from_within_the_driver"], [
        ("process_bypass_begin(); \\ relaxed = capture_mode_relax(", "relaxed = capture_mode_relax("),
        ("process_bypass_end(); \\ ns = now_ns() - start;", "ns = now_ns() - start;")]),
    Mutant("virtual memory: a host function loses it", ["vmm_kept / Kept.test_a_host_function"], [
        ("return cache && is_answered() ? cache : NULL;", "return cache;")]),
    Mutant("virtual memory: other processes do not get it", ["vmm_kept / Neighbours"], [
        ("const uint64_t kept = vmm_kept_trim(device); struct context *context; uint64_t after, now;", "const uint64_t kept = 0; struct context *context; uint64_t after, now;")]),
    Mutant("virtual memory: it stays for ever", ["vmm_kept / Kept.test_decay"], [
        ("if (seconds != UINT64_MAX && now > seconds * 1000000000u)", "if (0)")]),
    Mutant("virtual memory: without decay it goes", ["vmm_kept / Kept.test_no_decay"], [
        ("if (seconds != UINT64_MAX && now > seconds * 1000000000u) vmm_cache_trim(cache, CONTEXT_ALL, now - seconds * 1000000000u);", "vmm_cache_trim(cache, CONTEXT_ALL, now);")]),
    Mutant("virtual memory: the last part that was given up stays", ["vmm_kept / Kept.test_the_last_one_goes_in_time"], [
        ("vmm_cache_settle_partial(cache, now - PARTIAL_NS);", "")]),
    Mutant("virtual memory: it is kept although it should be filled", ["vmm_kept / AsNatively.test_off"], [
        ("if (conf->fill.number != FILL_OFF) return \"CUPOOL_FILL", "if (0) return \"CUPOOL_FILL")]),
    Mutant("virtual memory: calls are served while a stream captures", ["vmm_kept / Kept.test_captures"], [
        ("return process_serves() && !capture_active() &&", "return process_serves() &&")]),
    Mutant("virtual memory: a context that ends leaves it", ["vmm_kept / Kept.test_a_context_ends"], [
        ("if (cache && process_serves()) vmm_cache_forget_all(cache);", "")]),

    Mutant("a pause leaves a context out that may be about to end", ["pause / Meanwhile.test_primary_contexts_are_retained_and_released"], [
        ("(context = context_next_decided(i, device)) && !pool_is_suspended", "(context = context_next(i, device)) && !pool_is_suspended")]),
    Mutant("paused memory of a context that has ended is counted for good", ["pause / Meanwhile.test_the_context_ends_and_nothing_is_paused"], [
        ("gone.idle = gone.paused = gone.peak_live", "gone.idle = gone.peak_live")]),

    Mutant("ipc: the bell is rung at whoever has its number", ["ipc / Held.test_the_program_has_the_numbers_of_our_descriptors"], [
        ("if (atomic_load(&server.open) && ipc_is_open(&server.bell[1]))", "if (atomic_load(&server.open) && server.bell[1].fd >= 0)")]),

    Mutant("memory that another thread has exported meanwhile is paused", ["pause / Meanwhile.test_an_export_just_before_the_pools_are_suspended"], [
        ("if (!rc && is_exported(change->device)) rc = -EBUSY;", "")]),
    Mutant("memory is exported while it is about to be paused", ["pause / Meanwhile.test_a_pause_in_the_middle_of_an_export"], [
        ("if (!rc && pool_is_suspended(pool)) {", "if (0) {")]),

    # --- pinned memory ---
    Mutant("populated memory lies on the nodes of the threads that touch it", ["populate / Populate.test_nodes"], [
        ("numa_prefer(start, size);", "")]),
    Mutant("memory is populated where it is scarce", ["populate / Populate.test_where_memory_is_scarce"], [
        ("if (machine_memory_free() / 2 < mapped) return -ENOMEM;", "")]),
    Mutant("write-combined memory is populated", ["populate / Populate.test_what_the_driver_serves"], [
        ("(flags & ~HOST_POPULATE_FLAGS) ||", "")]),
    Mutant("a child inherits populated memory", ["populate / Populate.test_fork"], [
        ("if (madvise(start, size, MADV_DONTFORK)) {", "if (0) {")]),
    Mutant("the threads that touch memory take the program's signals", ["populate / Populate.test_signals_are_the_programs"], [
        ("pthread_sigmask(SIG_SETMASK, &before, NULL); for (unsigned int i = 0; i < THREADS", "for (unsigned int i = 0; i < THREADS")]),
    # --- the order of frees ---
    Mutant("ordered: the device does not wait", ["order static ordered / nonblocking", "examples / Same.test_pipeline"], [
        ("is_enough ? driver->cuCtxWaitEvent(context_handle(context), event) :", "is_enough ? CUDA_SUCCESS :")]),
    Mutant("ordered: nothing is recorded", ["order static ordered / nonblocking"], [
        ("result = context->driver->cuCtxRecordEvent(context_handle(context), *ret_event);", ";")]),
    Mutant("strict: the host does not wait", ["order static strict / nonblocking"], [
        ("result = context->driver->cuCtxSynchronize();", ";")]),
    Mutant("strict is treated as ordered", ["settings"], [
        ("policy->strict = wanted == FREE_STRICT ||", "policy->strict =")]),
    Mutant("guard bytes: those of a context that has gone are looked at", ["contents / Debug"], [
        ("context_events.pool_ending(context);", "")]),
    Mutant("auto: a copy to the host is no work to wait for", ["auto_host static auto / d2h"], [
        ("|| *ret_seq != atomic_load_explicit(&policy->synced_seq, memory_order_relaxed);", ";")]),

    # --- captures ---
    Mutant("a free in a capture is ordered", ["shim_order", "capture static ordered / freed_during"], [
        ("wait = policy_waits(&context->policy, ret_seq) || beside_capture;", "wait = policy_waits(&context->policy, ret_seq);")]),
    Mutant("the gate closes only after a capture has begun", ["capture_beside static ordered / under_load"], [
        ("capture_active_now(); atomic_fetch_add(&capture_count, 1);", "capture_active_now();"),
        ("if (!success) { atomic_fetch_sub(&capture_count, 1);", "if (!success) { ;"),
        ("capture->context = driver ? context_stream(driver, stream) : own;", "capture->context = own; atomic_fetch_add(&capture_count, 1);")], 10),
    Mutant("a capture does not wait for calls in flight", ["capture_beside static ordered / under_load"], [
        ("drain_all(driver, own);", "")], 20),
    Mutant("a capture does not wait for calls in flight in other contexts", ["shim_capture"], [
        ("if (context != own) drain(context, is_own,", "if (!handle) drain(context, is_own,")]),
    Mutant("a capture waits for waits on the host in other contexts", ["shim_capture"], [("if (waits && !is_own) break;", "")]),
    Mutant("a capture waits without a limit for calls in other contexts", ["shim_capture"], [("if (waits || !is_own) {", "if (waits) {")]),
    Mutant("a call in flight is not seen to be", ["capture_beside static ordered / under_load"], [
        ("return atomic_load(&slot->seq) & 1;", "return !slot;")], 20),
    Mutant("a free follows an order that began before it", ["combiner"], [
        (">= seen + 1 + (seen & 1))", ">= seen)")], 5),
    Mutant("an error of another context marks the current one", ["shim_order"], [
        ("order_failed(context, driver->cuMemGetInfo_v2(&free, &total));", "order_failed(context, result);")]),
    Mutant("a free follows an order that failed", ["combiner"], [
        ("if (!result) atomic_store_explicit(&slot->done,", "atomic_store_explicit(&slot->done,")]),
    Mutant("work that the combiner ordered is not asked about", ["combiner"], [
        ("batch_wait(context, own, 0);", ";")]),
    Mutant("work that other threads ordered last is not asked about", ["combiner"], [
        ("late |= batch_wait(context, atomic_load(&combiner->done), others_limit);", "(void)atomic_load(&combiner->done);")]),
    Mutant("a batch that records nothing hides one that has", ["combiner"], [
        ("return combiner; }", "atomic_store(&context->batches[thread_slot_get() % SLOTS].seq, atomic_load(&combiner->seq)); return combiner; }"),
        ("if (at >= seq && (", "if (at == seq && (")]),
    Mutant("frees depend on the combiner", ["combiner"], [
        ("i < COMBINER_POLLS || now_ns() < limit; i++", "1; i++")]),
    Mutant("a thread that waits on the host becomes the combiner", ["combiner"], [
        ("if (wait && slot == combiner)", "if (0)")]),
    Mutant("work that another thread has ordered during a wait on the host counts as over", ["shim_frees"], [
        ("atomic_compare_exchange_strong(&context->slots[SLOT_COMBINER].user, &mark, user);",
         "atomic_store(&context->slots[SLOT_COMBINER].user, user + 0 * mark);")]),
    Mutant("an order in a slot of its own is not seen as the last one", ["shim_frees"], [
        ("const unsigned int mark = slot == combiner ? 0 : user_begin(context);", "const unsigned int mark = 0;")]),
    Mutant("beside a capture on a full device a free does not wait", ["shim_order"], [
        ("result = wait_by_free(context, /* pinned: */ true);", ";")]),
    Mutant("beside a capture each wait makes a piece of the driver's memory anew", ["shim_order"], [
        ("result || atomic_load(&context->kept_byte) ||", "1 || result ||")]),
    Mutant("each wait beside a capture keeps a byte", ["shim_order"], [
        ("result || atomic_load(&context->kept_byte) ||", "result ||"),
        ("!atomic_compare_exchange_strong(&context->kept_byte, &none, *ret_byte)", "(atomic_store(&context->kept_byte, *ret_byte + none), 0)")]),
    Mutant("the byte that a wait beside a capture keeps does not go back", ["shim_order"], [
        ("put = kept_byte_put(other); if (other == except && !put)", "put = false; if (other == except && !put)")]),
    Mutant("the byte that a wait beside a capture keeps is not counted as free", ["shim_order"], [
        ("return atomic_load(&context->kept_byte) ? CAPTURE_KEPT_SIZE : 0;", "(void)context; return 0;")]),
    Mutant("a new context has the byte of the one before it", ["shim_context"], [
        ("atomic_store(&context->kept_byte, 0);", ";")]),
    Mutant("a stream that is destroyed keeps the gate closed", ["faults / Faults.test_without_faults"], [
        ("(destroyed || !capture_active_on(stream))", "(!destroyed && !capture_active_on(stream))")]),
    Mutant("a capture that does not begin keeps the gate closed", ["shim_capture"], [
        ("if (!success) { atomic_fetch_sub(&capture_count, 1);", "if (!success) { ;")]),
    Mutant("a thread takes the gate with it", ["shim_capture"], [
        ("captures_remove(is_of_dead_thread, NULL);", "")]),
    Mutant("each request waits for a slow end of a context", ["shim_context"], [
        ("context_endings || begun == atomic_load(&endings_waited)", "context_endings")]),
    Mutant("a context that is reset keeps the gate closed", ["sweep_contexts"], [
        ("capture_forget(handle, atomic_load(&context->captures));", ""),
        ("if (capture_active()) captures_ask();", "")]),

    # --- errors ---
    Mutant("a block whose free was refused in a host function is handed out", ["shim_order"], [
        ("is_sticky(result) || is_refused(context, result) ?", "is_sticky(result) ?")]),
    Mutant("a capture of a thread without a context waits for nobody", ["shim_capture", "capture_beside shared preloaded / by_new_threads"], [
        ("if (context != own) drain(context,", "if (handle && context != own) drain(context,")], 5),
    Mutant("a capture on a green context's stream waits for no wait on the host", ["shim_capture"], [
        ("is_own = context->device == device;", "")]),
    Mutant("a capture waits for a free that waits for it", ["capture_beside static preloaded"], [
        ("if (now_ns() >= *limit) break;", "")]),
    Mutant("auto: memory that is not the pool's can be exported unseen", ["auto_shared static auto"], [
        ("driver ? strict_device_of(driver, addr) : -1;", "-1;")]),
    Mutant("auto: a strict device says nothing if that was before its first request", ["settings"], [
        ('log_write(LOG_INFO, "device %d: frees wait on the host: %s", device, why);', ";")]),
    Mutant("a stream of another device is not waited for", ["auto_peer static auto"], [
        ("!driver->cuEventDestroy_v2) return result", "true) return result")]),

    # --- blocks and segments ---
    Mutant("cudaMemGetInfo waits for the device", ["waits static ordered / memory_info"], [
        ("context_unpin(context)) arrivals_collect(context, 0); }", "context_unpin(context)) order_wait(context); }")]),
    Mutant("other threads' deferred frees are waited for as one's own", ["waits static relaxed / refused_request"], [
        ("is_own ? thread_slot : SLOT_USER_OTHERS", "thread_slot")]),
    Mutant("one's own deferred frees are waited for as other threads'", ["shim_frees", "waits static relaxed / own_work"], [
        ("is_own ? thread_slot : SLOT_USER_OTHERS", "SLOT_USER_OTHERS")]),
    Mutant("a wait in vain is made again", ["shim_segments"], [
        ("if (!any && patience && now_ns() >= limit)", "if (false)")]),
    Mutant("a stream that could not be queried counts as waited for", ["shim_segments"], [
        ("if (!any && patience && now_ns() >= limit)", "if (!any && patience)")]),
    Mutant("another thread's wait in vain shortens one's own", ["shim_segments"], [
        ("again = atomic_load(&context->gave_up[is_own])", "again = atomic_load(&context->gave_up[0])")]),
    Mutant("idle memory does not go back beside a capture", ["oom static preloaded / beside_capture"], [
        ("return context_defers(context) && !context_events.registers() &&", "return false && !context_events.registers() &&")]),

    # --- out of memory, limits, figures ---
    Mutant("out of memory: other contexts keep what they do not need", ["faults / Faults.test_without_faults"], [
        ("if (other == except && !put) continue;", "if (other) continue;")]),

    # --- contexts and processes ---
    Mutant("the context of a free is not made current", ["contexts static strict / race_across"], [
        ("if (!result && current != handle) {", "if (!result && !handle) {")]),
    Mutant("the caller's context is not put back", ["contexts static strict"], [
        ("visit->pushed = result == CUDA_SUCCESS;", "")]),
    Mutant("a released primary context keeps its pool", ["contexts static preloaded / primary_release"], [
        ("gone = !active || (id && id != context->id);", "gone = false; (void)id;")]),

    # --- NCCL ---
    Mutant("NCCL: force and 1 are the same", ["nccl / Kinds.test_without_care"], [
        ("return conf_get()->registration.number != REGISTER_FORCE && version >=", "return version >=")]),
    Mutant("NCCL: a driver that cannot be asked is taken to be done", ["nccl / Registered.test_before_cuda_12_5"], [
        ("if (result || context_enter(context, &visit)) return false; least", "if (result || context_enter(context, &visit)) return true; least")]),
    Mutant("NCCL: the end of a communicator does not wait for another thread's capture", ["nccl / Registered.test_an_end_beside_another_threads_capture"], [
        ("if (!capturing || now_ns() >= captured || !context_stays(context)) break;", "break;")]),
    Mutant("NCCL: beside a capture nobody waits for work before registered memory goes", ["nccl_used / Used.test_freed_beside_a_capture"], [
        ("if (beside_capture && context->driver->cuThreadExchangeStreamCaptureMode) result = capture_wait(context);", "", "order_wait")]),
    Mutant("a context that may be about to end is not waited for", ["api / Beside.test_releases_of_the_context"], [
        ("return true; limit = now_ns() + CONTEXT_LEAVING_WAIT_NS;", "return true; limit = 0;")]),
    Mutant("cupool_trim leaves what could not go before", ["shim_memory", "window"], [
        ("released = context_events.retry_parked_wait(device) + vmm_kept_trim(device);", "released = vmm_kept_trim(device);")]),
    Mutant("cupool_trim does not wait for other threads that release registered memory", ["shim_memory"], [
        ("released = context_events.retry_parked_wait(device) +", "released = context_events.retry_parked(device) +")]),
    Mutant("NCCL: what a graph has made NCCL register goes", ["nccl / Registered.test_graphs_without_us"], [
        ("if (capture_history_saw(addr) && graphs_register())", "if (false)")]),
    Mutant("NCCL: what a graph has made NCCL register goes where no operation is seen",
           ["nccl / Registered.test_graphs_of_a_program_whose_operations_are_not_seen"], [
        ("return nccl_registry_private && nccl_reg_comm_any(nccl_registry_private);", "return nccl_registry_private != NULL;")]),
    Mutant("NCCL: a segment goes while it is registered", ["nccl / Registered.test_memory_that_goes"], [
        ("if (context_events.segment_removing(addr, puts_of[kind], context)) puts_of[kind](context, addr, size);",
         "puts_of[kind](context, addr, size);")]),
    Mutant("NCCL: memory goes under work that uses it", ["shim_nccl_memory", "nccl / Registered.test_memory_that_goes_under_work"], [
        ("if ((backend_source(kind)->put_needs_wait || context_events.registers()) && order_wait(context))", "if (false)")]),

    # --- memory past the pool that is registered once it is used ---
    Mutant("used memory: records outlive their context", ["nccl_used / Used.test_context_gone"], [
        ("context_events.context_ended(context);", "")]),

    # --- cupool.h ---
    Mutant("cupool.h: memory goes back to where it comes from now", ["api / Backend.test_there_and_back"], [
        ("puts_of[kind](context, addr, size);", "puts_of[context_backed_by_nccl(context)](context, addr, size);")]),

    # --- that no test had noticed once ---
    Mutant("a green context has a policy of its own", ["auto_host alone auto"], [
        ("return context && context->pool ? context : NULL;", "return context;")]),
    Mutant("memory that was freed on a green context's stream is not used again", ["contexts static preloaded"], [
        ("!is_green(context->driver, stream) ||", "true ||")]),
    Mutant("a green context's stream is taken as one of the block's device", ["endings static preloaded", "endings static ordered"], [
        ("context_device_of(context->driver, handle) != context->device;", "false;")]),
    Mutant("where ranks agree: the reserve depends on the device", ["api / Alike"], [
        ("device_free_is_scarce(context)) && !nccl_ranks_agree();", "device_free_is_scarce(context));")]),
    Mutant("where ranks agree: what goes back depends on time", ["api / Alike"], [
        ("if (age && context_defers(context) && !nccl_ranks_agree())", "if (age && atomic_load(&context->defers))")]),
    Mutant("where ranks agree: a growing pool hands back", ["api / Alike"], [
        (".excess_min = idle_bound(EXCESS_MIN, as->defers, backend),", ".excess_min = as->defers ? EXCESS_MIN : SIZE_MAX / 2,")]),
    Mutant("where ranks agree: there is a bound", ["api / Alike"], [
        (".bound_min = idle_bound(BOUND_MIN, as->defers, backend)};", ".bound_min = as->defers ? BOUND_MIN : SIZE_MAX / 2};")]),
    Mutant("ranks need not agree without an NCCL", ["api / Alike"], [
        ("return conf_get()->backend.number == BACKEND_NCCL || atomic_load_explicit(&state.backing", "return atomic_load_explicit(&state.backing")]),
    Mutant("ranks need not agree after a switch", ["api / Alike"], [
        ("conf_get()->backend.number == BACKEND_NCCL || atomic_load_explicit(&state.backing, memory_order_relaxed) ||", "conf_get()->backend.number == BACKEND_NCCL ||")]),
    Mutant("ranks need not agree on what is registered", ["api / Alike"], [
        ("memory_order_relaxed) || (CUPOOL_NCCL_HOOKS && conf_get()->registration.number != REGISTER_OFF);", "memory_order_relaxed);")]),
    Mutant("ranks agree where nothing is registered", ["api / Alike"], [
        ("(CUPOOL_NCCL_HOOKS && conf_get()->registration.number != REGISTER_OFF);", "(conf_get()->registration.number != REGISTER_OFF);")]),
    Mutant("memory of NCCL that was born in a capture was there before", ["capture_history"], [
        ("return atomic_load(&capture_total) - capture_active();", "return atomic_load(&capture_total);")]),
    Mutant("memory of NCCL is as old as what was at its address before", ["capture_history"], [
        ("if (found) *found = (struct entry){.addr", "if (found && found->addr != addr) *found = (struct entry){.addr")]),
    Mutant("NCCL: the program's own memory has a front", ["nccl / Kinds.test_of_the_programs_own"], [
        ("&& addr - start == front ? front : 0;", "? front : 0;")]),
    Mutant("NCCL: cudaMalloc's memory backs the pool", ["nccl / Wrong.test_nccl_has_no_memory_of_its_own"], [
        ("else if (!nccl_memory_is_shareable((uintptr_t)ptr))", "else if (false)")]),
    Mutant("free memory is that of one context", ["meminfo static preloaded"], [
        ("idle += stats.idle + arrivals_outstanding(context) + kept", "idle = stats.idle + arrivals_outstanding(context) + kept")]),
    Mutant("free memory is that of all devices", ["shim_memory", "meminfo static preloaded / each_device"], [
        ("bool leaving; for (unsigned int i = 0; (context = context_next_pool(&i, device, &leaving));",
         "bool leaving; (void)device; for (unsigned int i = 0; (context = context_next_pool(&i, CONTEXT_ALL, &leaving));")]),
    Mutant("free memory does not count deferred blocks", ["shim_memory"], [
        ("continue; } pool_flush(context->pool); pool_stats_get(", "continue; } pool_stats_get(")]),
    Mutant("no large blocks share a segment", ["stats / Packed"], [(".break_max = as->capacity / SHARED_PART,", ".break_max = 0,")]),
    Mutant("a small device has its segments packed like a large one", ["stats / Packed"], [
        (".break_max = as->capacity / SHARED_PART,", ".break_max = as->capacity,")]),
    Mutant("what may be exposed is as much on a full device", ["stats / Packed"], [(".capacity = as->capacity, .excess_min", ".capacity = 0, .excess_min")]),

    # --- neighbours ---
    Mutant("neighbours: asked where ranks have to agree", ["neighbours / Apart.test_ranks_that_agree"], [
        ("return conf_get()->neighbours.number && !nccl_ranks_agree();", "return conf_get()->neighbours.number;")]),
    Mutant("neighbours: the setting is ignored", ["neighbours / Turns.test_switched_off", "setting_rows"], [
        ("return conf_get()->neighbours.number && !nccl_ranks_agree();", "return !nccl_ranks_agree();")]),
    Mutant("neighbours: memory is not waited for", ["neighbours / Turns.test_busy_device"], [
        ("arrivals_collect(context, now < limit ? limit - now : 0);", "arrivals_collect(context, 0); (void)limit; (void)now;")]),
    Mutant("neighbours: nothing is given back", ["neighbours / Turns", "turns auto"], [
        ("pool_yield(context->pool, \"neighbour\");", "{ }")]),
    Mutant("neighbours: a late one has given nothing", ["shim_retry_often"], [
        ("given = outcome.given || outcome.answered < outcome.asked;", "given = outcome.given;")]),
    Mutant("neighbours: a forked child answers for its parent", ["neighbours / Apart.test_forked_child"], [
        ("background_forget(); neighbours_forget();", "background_forget();")]),

    # --- virtual memory ---
    Mutant("vmm: a segment goes under work that uses it", ["shim_vmm_memory", "order static vmm at_once"], [
        ("result = departing_ask(context, mapping);", "result = CUDA_SUCCESS; (void)departing_ask;")]),
    Mutant("vmm: where no event can be recorded, memory goes at once", ["shim_vmm_memory"], [
        ("if (order_wait(context)) log_once(LOG_WARN, \"%zu bytes at %#llx cannot be waited for, and go", "if (false) log_once(LOG_WARN, \"%zu bytes at %#llx cannot be waited for, and go")]),
    Mutant("vmm: the memory of a context that has ended stays", ["shim_vmm_memory", "vmm / Whose.test_it_goes_at_the_end_of_its_context"], [
        ("context_events.pool_ended(context); vmm_memory_ended(context);", "context_events.pool_ended(context);")]),
    Mutant("vmm: a context's own error is hidden", ["shim_vmm_memory"], [
        ("CUresult result = context->driver->cuMemGetInfo_v2(&free, &total); if (!result) result = vmm_map(", "CUresult result = CUDA_SUCCESS; if (!result) result = vmm_map(")]),
    Mutant("vmm: events of a context that has ended are recorded", ["shim_vmm_memory"], [
        ("context->departures.events_unused = 0;", "")]),
    Mutant("vmm: an event that cannot be asked about is over", ["shim_vmm_memory"], [
        ("if (result) { depart(context, mapping,", "if (result == CUDA_ERROR_NOT_READY) { depart(context, mapping,")]),
    Mutant("vmm: a segment that waits for its work counts as arrived", ["shim_vmm_memory"], [
        ("return atomic_load(&context->given) + atomic_load(&context->departures.put);", "return atomic_load(&context->given);")]),
    Mutant("vmm: NCCL's graphs lose their memory", ["shim_vmm_memory", "nccl / Registered.test_graphs_without_us_of_virtual_memory"], [
        ("if (!mapping || nccl_graph_keeps(mapping->captures))", "if (!mapping)")]),
    Mutant("vmm: segments have no front for NCCL's bug", ["nccl / Kinds.test_nobody_waits"], [
        ("context->device, nccl_front_needed(), size,", "context->device, 0, size,")]),
    Mutant("vmm: memory cannot be had where a fabric is not served", ["shim_vmm_memory", "setting_rows"], [
        ("if (!is_of_kind(result) || !reduced(all)) break;", "break;")]),
    Mutant("vmm: what a device has learned to refuse is asked for again", ["shim_vmm_memory"], [
        ("atomic_store(&abilities[device % DEVICES_MAX], all); log_write(", "log_write(")]),
    Mutant("vmm: a handle stays, and with it the memory", ["shim_vmm_memory", "oom static vmm"], [
        ("released = driver->cuMemRelease(handle); if (released) /* tried again, because the memory would be lost */", "released = CUDA_SUCCESS; if (released)")]),
    Mutant("vmm: later segments are not reached", ["shim_vmm_memory"], [
        ("result = access_give_peers(driver, mapping, peers);", "result = CUDA_SUCCESS;")]),
    Mutant("virtual memory: a device without a way has none for good", ["shim_vmm_memory"], [
        ("vmm_reach_anew(const struct real_driver *driver, int device, int from) {", "vmm_reach_anew(const struct real_driver *driver, int device, int from) { if (1) return;")]),
    Mutant("tickets: an open gives access once more", ["shim_vmm_shared"], [
        ("if (owner != current && !vmm_reaches(owner, current) && (result", "if (owner != current && (result")]),
    Mutant("tickets: memory is opened that the device has no way to", ["shim_vmm_shared"], [
        ("if (owner != current && !vmm_reaches(owner, current) && (result", "if (0 && (result")]),
    Mutant("pause: work is not waited for", ["pause / Contents.test_work_is_waited_for"], [
        ("if (!rc) rc = wait_for_all(&change);", "")]),
    Mutant("pause: contents are not copied back", ["pause / Contents.test_they_are_kept"], [
        ("if (!result && !copy_back(change)) return 0;", "if (!result) return 0;")]),
    Mutant("pause: contents of freed segments are copied back", ["pause / Meanwhile.test_requests_and_frees"], [
        ("if (!has_segment(paused, paused->ranges[i].segment))", "if (0)")]),
    Mutant("pause: a range begins at the wrong byte of the host memory", ["pause / Contents.test_more_than_a_piece_of_host_memory"], [
        ("size = CHUNK - at % CHUNK;", "size = CHUNK;")]),
    Mutant("pause: no gap is copied with its neighbours", ["pause / Contents.test_neighbouring_blocks_are_copied_at_once"], [
        ("last->segment == segment && addr - (last->addr + last->size) <= GAP_MAX", "0")]),
    Mutant("pause: what fails half way is not undone", ["pause / Failures.test_each_call_once"], [
        ("if (!rc && !send_away(&change) && undo(&change))", "if (!rc && !send_away(&change))")]),
    Mutant("pause: a resume that fails keeps what it got", ["pause / Failures.test_a_neighbour_has_the_memory"], [
        ("if (wait_for_all(&gone) || !send_away(&gone))", "if (0)")]),
    Mutant("pause: neighbours are not asked", ["pause / Failures.test_a_neighbour_gives_idle_memory_back"], [
        ("while (result == CUDA_ERROR_OUT_OF_MEMORY && neighbours_ask(change->device, missing(change->device), &asking))", "while (asking.over)")]),
    Mutant("pause: not refused while a stream captures", ["pause / Refusals.test_a_capture_keeps_idle_memory"], [
        ('reason = ""; if (capture_active_now()) return refuse(-EBUSY, "a stream captures"); if (context_events.registers())',
         'reason = ""; if (context_events.registers())')]),
    Mutant("pause: refused for ever once the context has ended", ["pause / Meanwhile.test_the_context_ends_and_another_is_paused"], [
        ("if (now == PAUSED && from == RUNNING && !any_suspended(device)) from = PAUSED;", "")]),
    Mutant("pause: the addresses of a freed segment are unmapped again", ["pause / Meanwhile.test_everything_is_freed"], [
        ("if (!mapping->away) result = driver->cuMemUnmap(start, size);", "result = driver->cuMemUnmap(start, size);")]),
    Mutant("pause: the host memory of a pause is lost", ["pause / Contents.test_the_pinned_pool_stays_warm"], [
        ("host_pool_free(host_memory_pool(), paused->chunks[i]);", ";")]),
    Mutant("limit: pools that are there do not have it", ["ctl / Commands.test_trim_and_limit"], [
        ("if (context->pool && (device == CONTEXT_ALL || device == context->device)) pool_limit_set(context->pool, limit);", "")]),
    Mutant("vmm: segments that are there are not reached", ["shim_vmm_memory"], [
        ("all = mappings_of(device, &count);", "all = NULL; count = 0;")]),
    Mutant("vmm: one device without a way takes the others' access", ["shim_vmm_memory"], [
        ("if (!access_give(driver, mapping, devices)) return CUDA_SUCCESS;", "return access_give(driver, mapping, devices);")]),
    Mutant("vmm: contexts of two devices do not reach each other", ["shim_vmm_memory"], [
        ("vmm_reach(driver, other->device, device); vmm_reach(driver, device, other->device);", "")]),
    Mutant("vmm: a device without virtual memory has none at all", ["shim_vmm_memory"], [
        ("return chosen == BACKEND_VMM && !maps ? BACKEND_CUDA : chosen;", "return chosen;")]),
    Mutant("vmm: held memory has no bound where cuMemFreeAsync is missing", ["shim_vmm_memory"], [
        ("return pool_kind_get(context->pool) == BACKEND_VMM || atomic_load(&context->defers);", "return atomic_load(&context->defers);")]),

    # --- CUDA IPC ---
    Mutant("ipc: a held block is free at once", ["fuzz_ipc_random", "ipc / Held.test_until_it_is_closed"], [
        ("} else if (block && block->holds) {", "} else if (false) {")]),
    Mutant("ipc: a block that the program has freed is granted", ["fuzz_ipc_random"], [
        ("if (block && !block->parked) ret_grant->status =", "if (block) ret_grant->status =")]),
    Mutant("ipc: a second free of a held block succeeds", ["fuzz_ipc_random", "ipc / Held.test_until_it_is_closed"], [
        ("if (block && block->parked) { answer = IPC_FREE_AGAIN;", "if (block && block->parked) { answer = IPC_FREE_PARKED;")]),
    Mutant("ipc: a block is granted once for ever", ["fuzz_ipc_random", "ipc / Held.test_until_it_is_closed"], [
        ("block->holds -= count; if (!hold->count)", "if (!hold->count)")]),
    Mutant("ipc: an importer that leaves holds nothing", ["fuzz_ipc_random", "ipc / Held.test_the_connection_is_closed_by_the_program"], [
        ("if (peer_process_lives(&connection->process)) {", "if (false) {", "importers_look")]),
    Mutant("ipc: an importer whose child lives holds for ever", ["fuzz_ipc_random", "ipc / Held.test_a_child_keeps_the_connection"], [
        ("!connection->used || !connection->holder.first", "!connection->used || connection->socket.fd >= 0")]),
    Mutant("ipc: a wrong message is passed over", ["fuzz_ipc_random", "ipc / Messages.test_wrong_ones"], [
        ("if (n <= 0 || !ipc_request_read(raw, (size_t)n, &request)) { connection_lost(connection); return; }",
         "if (n <= 0) { connection_lost(connection); return; } if (!ipc_request_read(raw, (size_t)n, &request)) continue;")]),
    Mutant("ipc: a ticket answers for the driver's handle", ["ipc / Importer.test_a_handle_of_the_driver_and_a_ticket"], [
        ("if (mapping && !import && ipc_native_is_open(mapping->addr))", "if (false)")]),
    Mutant("ipc: what the driver has closed counts as open", ["ipc / Importer.test_a_handle_of_the_driver_and_a_ticket"], [
        ("if (*at && !--(*at)->opens)", "if (false)")]),
    Mutant("ipc: a close does not wait for the importer's work", ["ipc / Held.test_the_close_waits"], [
        ("result = context ? context_wait_handle(context) : CUDA_SUCCESS;", "result = CUDA_SUCCESS;")]),
    Mutant("ipc: each block maps its segment", ["ipc / Bytes.test_blocks_of_one_segment"], [
        ("if (!mapping) { mapping = mapping_reserve() ?", "{ mapping = mapping_reserve() ?")]),
    Mutant("ipc: an exporter without room does not hear of a close", ["ipc_beside / Exporter.test_one_that_is_stopped_hears_of_every_close"], [
        ("peer->unsaid[peer->unsaid_count++] = *block;", "")]),
    Mutant("ipc: a connection ends before its exporter has heard of all closes", ["ipc_beside / Exporter.test_one_that_is_stopped_hears_of_every_close"], [
        ("if (peer->uses || peer->unsaid_count) return;", "if (peer->uses) return;")]),
    Mutant("ipc: importers wait until all idle memory has gone", ["shim_vmm_shared"], [
        ("while (arrivals_collect_one(context)) ipc_server_tick(now_ns());", "arrivals_collect(context, 0);")]),
    Mutant("vmm: one segment goes with each tick of decay", ["shim_vmm_shared"], [
        ("while (arrivals_collect_one(context)) ipc_server_tick(now_ns());", "if (arrivals_collect_one(context)) ipc_server_tick(now_ns());")]),
    Mutant("ipc: a close that becomes the last one does not wait", ["ipc_beside / Importer.test_two_threads_close_it_at_once"], [
        ("if (context || !context_to_wait_for(addr)) break; unclaim(cancel);", "break;")]),
    Mutant("ipc: many mappings are not in order", ["ipc_beside / Importer.test_many_blocks"], [
        ("at = sorted_until(sorted, mapping->addr);", "at = sorted->count;")]),
    Mutant("ipc: the table of mappings does not grow", ["ipc_beside / Importer.test_many_blocks"], [
        ("return grown != NULL;", "return grown != NULL && count < 64;")]),
    Mutant("ipc: what is open in a context that has ended stays", ["ipc / Held.test_a_context_ends"], [
        ("import->lost = true;", "(void)import;")]),
    Mutant("ipc: a block is not where it lies in its segment", ["ipc / Bytes.test_both_ways"], [
        ("grant->offset = segment->front + (block->addr - segment->addr);", "grant->offset = segment->front;")]),
    Mutant("ipc: the exporter is not told of a close", ["ipc / Held.test_until_it_is_closed"], [
        ("request_close(peer, block); peer->uses--;", "peer->uses--;")]),

    Mutant("ipc: the request of a new connection waits for another poll", ["fuzz_ipc_random"], [
        ("connection->used = true; connection_serve(connection);", "connection->used = true;")]),
    Mutant("ipc: a descriptor is closed under the lock of the books", ["ipc_table"], [
        ("leaving->segments = segment;", "leaving->segments = segment; descriptor_close(segment); segment->as.fd = -1;")]),
    Mutant("ipc: a second descriptor is closed under the lock of the books", ["ipc_table"], [
        ("pthread_mutex_unlock(&table.lock); if (spare >= 0) file_drop(spare);", "if (spare >= 0) file_drop(spare); pthread_mutex_unlock(&table.lock);")]),
    Mutant("ipc: memory counts as given up before it is", ["ipc_table"], [
        ("leaving->blocks++;", "atomic_fetch_sub(&ipc_table_blocks, 1);")]),
    Mutant("ipc: a child of fork keeps descriptors that were about to go", ["ipc_table"], [
        ("i ? table.leaving : table.segments;", "i ? NULL : table.segments;")]),
    Mutant("ipc: a descriptor of memory that has gone is kept for what came after it", ["shim_vmm_memory"], [
        ("mapping->number == number && mapping->kept.fd < 0", "mapping->kept.fd < 0")]),
    Mutant("ipc: a pause leaves a descriptor of the memory", ["shim_vmm_memory", "ipc_beside / Exporter.test_a_descriptor_stays_with_its_memory"], [
        ("kept = kept_take(mapping); peers =", "kept.fd = -1; peers =")]),
    Mutant("ipc: memory that goes back leaves a descriptor of itself", ["shim_vmm_memory", "ipc / Deaths.test_of_importers"], [
        ("table.count--; kept = kept_take(mapping);", "table.count--; kept.fd = -1;")]),
    Mutant("ipc: a child of fork keeps the descriptors of the parent's memory", ["shim_vmm_memory"], [
        ("kept = kept_take(mapping); ipc_leave(&kept); }", "kept = kept_take(mapping); (void)kept; }")]),
]
