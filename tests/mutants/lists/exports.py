# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/exports/: the exported functions, and what each call tells the policy."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("a free tells the runtime of no primary context", ["endings shared preloaded / primary_shared_by_others", "shim_refused"], [
        ("if (atomic_load_explicit(&context_unmet, memory_order_relaxed))", "if (false)")]),
    Mutant("cudaFreeAsync tells the runtime of a primary context", ["endings shared preloaded / primary_shared_by_others"], [
        ("context_give(caller); return cudaSuccess;", "context_meet(caller); return cudaSuccess;")]),
    Mutant("a primary context that the runtime could not take counts as known to it", ["shim_refused"], [
        ("if (context && !BYPASS(real_runtime(cudaFree, caller)(NULL)))", "if (context && (BYPASS(real_runtime(cudaFree, caller)(NULL)), true))")]),
    Mutant("CUPOOL_HOOK=runtime: cuMemFreeAsync of a thread without a context", ["contexts shared runtime fresh_thread_free_async"], [
        ("/* to_driver: */ true);", "process_hooks_driver());")]),
    Mutant("virtual memory: the cache keeps a mapping that the driver has undone", ["shim_vmm_kept"], [
        ("vmm_cache_unmapped(cache, ptr, size);", "(void)0;")]),
    Mutant("a device that is not resumed is not said", ["shim_vmm_memory"], [
        ('log_write(LOG_WARN, "device %d is not resumed: %s", device, pause_reason());', "(void)0;")]),
    Mutant("switch: a thread that works on an import may be cancelled", ["switch / Wrong.test_threads_that_are_cancelled"], [
        ("pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &call->cancel);", "call->cancel = PTHREAD_CANCEL_ENABLE;")]),
    Mutant("pinned memory: flags that the driver does not know are pooled", ["pinned / Flags.test_unknown_ones"], [
        ("if (ptr && flags < HOST_MEMORY_PLAIN && process_hooks_driver()", "if (ptr && process_hooks_driver()")]),
    Mutant("NCCL: a stream that captures frees what is registered", ["nccl_used / Used.test_freed_when_it_cannot_go"], [
        ("return !capture_active_on(stream) && direct_free", "return direct_free")]),
    Mutant("virtual memory that NCCL exports is kept", ["vmm_kept / Kept.test_memory_that_nccl_exports_is_not_kept"], [
        ("if (!result && cache && caller_is_outside(caller_of(CALLER)))", "if (false)")]),
    Mutant("virtual memory: addresses that are asked for again are kept", ["vmm_kept / Kept.test_addresses_that_are_asked_for_again"], [
        ("if (cache && addr) /* natively addresses", "if (false) /* natively addresses")]),
    Mutant("switch: errno changes", ["switch / Wrong.test_errno"], [
        ("errno = call->error;", "")]),
    Mutant("cuCtxDetach ends no context", ["teardown static preloaded", "rows driver"], [
        ("is_over = going.context && !did_nothing(result) && context_is_over(going.context, handle);", "is_over = false;")]),
    Mutant("each cuCtxDetach ends its context", ["teardown static preloaded"], [
        ("!did_nothing(result) && context_is_over(going.context, handle);", "!did_nothing(result);")]),
    Mutant("ipc: other devices do not reach what was opened", ["ipc static vmm"], [
        ("if (pool || ipc_import_any())", "if (pool)")]),
    # --- virtual memory that is kept ---
    Mutant("virtual memory: what was exported is kept", ["vmm_kept / Kept.test_exported_memory_is_not_kept"], [
        ("if (cache) vmm_cache_forget_handle(cache, handle); } static void shared_after", "(void)cache; } static void shared_after")]),
    Mutant("virtual memory: an address that was given up is known", ["vmm_kept / AsNatively.test_every_word"], [
        ("if (cache) vmm_cache_settle_range(cache, ptr, 1);", "(void)cache;")]),

    Mutant("cupool_trim of all devices leaves pinned memory", ["api"], [
        ("if (device == CUPOOL_ALL_DEVICES && host_memory_pool())", "if (0)")]),
    Mutant("cuEventElapsedTime waits for frees of other threads", ["rows driver"], [
        ("context_wait_frees(CONTEXT_ALL, /* others: */ false);", "context_wait_frees(CONTEXT_ALL, /* others: */ true);", "elapsed_again")]),
    Mutant("a context that could not be destroyed is forgotten", ["rows driver"], [
        ("if (!result) policy_context_gone(handle);", "policy_context_gone(handle);", "destroy")]),
    Mutant("virtual memory that a network card may write to is kept", ["vmm_kept / Kept.test_memory_that_a_network_card_reaches_is_not_kept"], [
        ("vmm_served_shared(ptr, 1);", ";", "cuPointerSetAttribute")]),
    Mutant("virtual memory of which there is a handle is kept", ["vmm_kept / Kept.test_memory_that_a_network_card_reaches_is_not_kept"], [
        ("vmm_served_shared(ptr, size);", ";", "cuMemGetHandleForAddressRange")]),
    Mutant("there is a handle of freed memory", ["driver static preloaded / freed_address"], [
        ("(handle, asked_for(ptr, CALLER), size, type, flags);", "(handle, ptr, size, type, flags);")]),
    Mutant("host memory is no host memory of the nearest processor", ["rows driver"], [
        ("|| type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;", ";")]),
    Mutant("cuEventElapsedTime of a library that orders its own work waits for frees", ["rows driver"], [
        ("result != CUDA_ERROR_NOT_READY || !serve_watches(caller))", "result != CUDA_ERROR_NOT_READY || !caller)")]),
    # --- captures ---
    Mutant("cudaFreeAsync in the capture of its stream succeeds", ["faults / Faults.test_without_faults"], [
        ("if (ours && capture_active_on(stream)) return SERVE_INVALID;", "")]),

    Mutant("auto: host work that the driver cannot say to be captured is not waited for", ["shim_policy"], [
        ("return !unsure && status != CU_STREAM_CAPTURE_STATUS_NONE;", "return unsure || status != CU_STREAM_CAPTURE_STATUS_NONE;")]),
    Mutant("auto: a stream is asked about once its work runs", ["shim_launches"], [
        ("w->policy = hazard_host_work_begin(w->stream);", ";", "host_work_before"),
        ("launched(w);", "hazard_host_work_end(hazard_host_work_begin(w->stream), w->stream);", "host_work_after")]),
    Mutant("auto: a stream that has gone while its work was launched is known by its handle", ["shim_policy"], [
        ("&(struct policy_host_work){stream, streams_gone}", "&(struct policy_host_work){stream, policy_streams_gone(policy)}")]),

    # --- errors ---
    Mutant("cuMemFreeAsync after an error that did not last frees nothing", ["shim_refused"], [
        ("(void)serve_free(ptr);", ";")]),
    Mutant("cudaFreeAsync after an error that did not last frees nothing", ["shim_refused"], [
        ("(void)serve_free((uintptr_t)ptr);", ";")]),
    Mutant("cuMemFree after an error that did not last frees a second time", ["shim_refused"], [
        ("if (!result && verdict == SERVE_UNFREED)", "if (!result)")]),
    Mutant("cudaFree after an error that did not last frees a second time", ["shim_refused"], [
        ("if (!error && verdict == SERVE_UNFREED)", "if (!error)")]),
    Mutant("the last error is lost", ["free_errors shared preloaded / interior", "free_errors shared preloaded / twice"], [
        ("return BYPASS(real_runtime(cudaFree, caller)((void *)NOWHERE));", "return cudaErrorInvalidValue;")]),
    Mutant("cudaMalloc of NULL crashes", ["basic shared preloaded"], [
        ("switch (ptr ? serve_alloc(size, CALLER, /* by_runtime: */ true, &addr) : SERVE_FORWARD)",
         "switch (serve_alloc(size, CALLER, /* by_runtime: */ true, &addr))")]),
    Mutant("auto: stream-ordered memory is freed before an earlier free's wait is over", ["driver static preloaded / async_after_free"], [
        ("addr) && pool) hazard_memory_goes(caller);", "addr) && pool) (void)caller;")]),
    Mutant("auto: memory of a graph is freed before an earlier free's wait is over", ["shim_exports"], [
        ("has no pool */ policy_frees_wait(/* others: */ false);", "has no pool */ ;")]),
    Mutant("auto: memory is unmapped before an earlier free's wait is over", ["driver static preloaded / unmap_after_free"], [
        ("hazard_memory_goes(CALLER); if (cache && vmm_cache_unmap(", "if (cache && vmm_cache_unmap(")]),
    Mutant("auto: kept virtual memory is unmapped before an earlier free's wait is over", ["driver static kept"], [
        ("hazard_memory_goes(CALLER); if (cache &&", "if (!cache) hazard_memory_goes(CALLER); if (cache &&")]),
    Mutant("auto: NCCL frees the program's memory before an earlier free's wait is over", ["nccl / Registered.test_memory_of_the_programs_own_that_goes_under_work"], [
        ("else if (!process_is_passive()) policy_frees_wait(/* others: */ false);", "")]),
    Mutant("ncclMemFree takes memory before the wait of another thread's free is over",
           ["nccl / Registered.test_memory_of_the_programs_own_that_goes_after_another_threads_free"], [
        ("policy_frees_wait(/* others: */ true); /* NCCL waits for no work */", "policy_frees_wait(/* others: */ false);")]),
    Mutant("ncclCommShrink: each flag aborts the parent's work", ["nccl_rows"], [
        ("if (flags & NCCL_SHRINK_ABORT)", "if (flags)")]),
    Mutant("memory that NCCL has not registered counts as registered by the program", ["nccl_rows"], [
        ("if (!result && handle && *handle) nccl_user_registered(", "if (!result && handle) nccl_user_registered(")]),
    Mutant("auto: registered memory of NCCL's goes before an earlier free's wait is over", ["nccl / Registered.test_memory_of_the_programs_own_that_goes_under_work"], [
        ("policy_frees_wait(/* others: */ true); /* NCCL waits for no work */", "")]),
    Mutant("ncclMemFree of a block of the pool deregisters its segment", ["nccl_rows / Rows.test_groups_and_memory"], [
        ("return context_pool_at((uintptr_t)ptr) ? next(ptr) : nccl_user_memory_free(ptr, next);", "return nccl_user_memory_free(ptr, next);")]),
    Mutant("virtual memory of the pool can be unmapped", ["free_errors static vmm unmapped"], [
        ("(context_pool_at(ptr) && nccl_memory_is_shareable(ptr))", "false", "vmm_served_refuses")]),
    Mutant("memory of another process can be unmapped", ["ipc static vmm"], [
        ("(ipc_import_any() && ipc_import_range(ptr, &base, &size, &context))", "false", "vmm_served_refuses")]),
    Mutant("auto: access is taken back before an earlier free's wait is over", ["driver static preloaded / no_access_after_free"], [
        ("if (none && device >= 0) memory_goes();", "if (none && device >= 0) ;")]),
    Mutant("auto: a texture is destroyed before an earlier free's wait is over", ["auto_texture static auto", "rows driver"], [
        ("policy_frees_wait(/* others: */ true);", ";", "texture_goes_before")]),
    Mutant("auto: a texture that is destroyed makes the devices strict", ["rows driver"], [
        ("policy_frees_wait(/* others: */ true);", 'policy_strict(POLICY_ALL, "");', "texture_goes_before")]),
    Mutant("auto: a wait for another device's event is not seen", ["auto_peer static auto", "rows driver"], [
        ("return hazard_host_work_begin(stream);", "return NULL;", "hazard_event_wait_begin")]),
    Mutant("auto: a wait for an event of the same device counts as one for another's", ["auto_nowait static auto"], [
        ("if (event_is_of(event, device))", "if (false)")]),
    Mutant("auto: a wait that draws a stream of another device into a capture is not seen", ["auto_peer static auto", "shim_launches"], [
        ("if (capture_active()) hazard_graph_node();", "")]),
    Mutant("auto: an event that is destroyed is remembered", ["shim_launches"], [
        ("hazard_event_gone(event)", "NOTHING")]),
    Mutant("auto: an event's device is not looked at", ["auto_peer static auto"], [
        ("(uint64_t)(device + 1) << DEVICE_SHIFT", "(uint64_t)(0 * device + 1) << DEVICE_SHIFT")]),
    Mutant("auto: a graph's nodes are taken to be of its stream's context", ["rows driver"], [
        ("policy && context_several() ? &every_policy : policy", "policy")]),
    Mutant("auto: memory that is mapped for another device is not seen", ["auto_peer static auto"], [
        ('policy_strict(POLICY_ALL, "memory of other devices");', ";")]),
    Mutant("auto: a node of any type that touches host memory is not seen", ["auto_graph static auto"], [
        ("hazard_graph_set(parameters->memset.dst);", ";")]),
    Mutant("auto: a host function as a node of any type is not seen", ["auto_graph static auto"], [
        ("case CU_GRAPH_NODE_TYPE_EMPTY:", "case CU_GRAPH_NODE_TYPE_EMPTY: case CU_GRAPH_NODE_TYPE_HOST:")]),
    Mutant("auto: a copy between devices as a node of any type is not seen", ["auto_peer static auto"], [
        ("ends_sync(w, ENDS(&parameters->memcpy.copyParams));", ";")]),
    Mutant("auto: a copy that a structure describes is not seen where host memory is called device memory", ["auto_host static auto"], [
        ("has_address(ends.to_type) ? ends.to : 0", "ends.to_type == CU_MEMORYTYPE_UNIFIED ? ends.to : 0")]),
    Mutant("what a stream has freed is not published after a wait for the stream", ["waits static preloaded / freed_by_stream"], [
        ("hazard_freed_end(w->freed);", "", "stream_wait_after")]),
    Mutant("what a stream has freed is not published after a wait for the device", ["waits static preloaded / freed_by_context"], [
        ("hazard_freed_end(w->freed);", "", "context_wait_after")]),
    Mutant("auto: a batch of copies to the host is not seen", ["auto_host static auto"], [
        ("launched(w);", ";", "copy_batch_after")]),
    Mutant("auto: a batch node's copies between devices are not seen", ["auto_later static auto"], [
        ("hazard_foreign_accesses(copies->to, copies->from, copies->count, w->stream);", ";")]),
    Mutant("auto: a later kind of node is taken for one that touches no host memory", ["auto_later static auto"], [
        ("case CU_GRAPH_NODE_TYPE_CONDITIONAL: return true; default: return false;",
         "case CU_GRAPH_NODE_TYPE_CONDITIONAL: return true; default: return (int)type > 13;")]),
    Mutant("auto: what others share changes nothing", ["rows driver"], [
        ("policy_strict(POLICY_ALL, why);", ";", "strict_then_after")]),
    Mutant("auto: every pool of the driver's is taken for the host's", ["auto_shared static auto"], [
        ("return type == CU_MEM_ALLOCATION_TYPE_MANAGED || is_host_location(location->type);",
         "return type == CU_MEM_ALLOCATION_TYPE_MANAGED || location->type;")]),
    Mutant("auto: a fill of the device's own memory before the first request makes it strict", ["auto_shared static auto"], [
        ("known = driver->cuCtxGetDevice(&device) == CUDA_SUCCESS;", "known = false;")]),
    Mutant("memory is freed on a default stream without a context", ["contexts static preloaded / fresh_thread_free_async"], [
        ("!memory_has_context()) return SERVE_FORWARD;", "false) return SERVE_FORWARD;")]),
    Mutant("the runtime's refusal of an IPC handle is not explained", ["ipc / Refused.test_off"], [
        ("else if (is == SERVE_IPC_DRIVER) serve_ipc_refused((uintptr_t)ptr);", "")]),
    Mutant("a free leaves a thread of the runtime without a context", ["contexts shared preloaded / fresh_thread_runtime"], [
        ("if (verdict == SERVE_DONE) { context_meet(CALLER); return cudaSuccess; }", "if (verdict == SERVE_DONE) { return cudaSuccess; }")]),
    Mutant("a free in a stream leaves a thread of the runtime without a context", ["contexts shared runtime"], [
        ("context_give(caller); return cudaSuccess;", "; return cudaSuccess;")]),
    Mutant("a first IPC handle takes no reference to the primary context", ["endings shared preloaded / primary_shared_by_others"], [
        ("if (handle && pool_of((uintptr_t)ptr)) context_meet(CALLER);", "")]),
    Mutant("a thread without a context gets an IPC handle", ["contexts static preloaded / fresh_thread_free_async"], [
        ("!memory_has_context()) return real_next(cuIpcGetMemHandle)", "false) return real_next(cuIpcGetMemHandle)")]),
    Mutant("a green context that has gone stays exempt", ["contexts static preloaded"], [
        ("going = leaving(handle); if (device >= 0)", "going = leaving(NULL); if (device >= 0)")]),
    Mutant("a context that is not pooled leaves its captures", ["shim_exports"], [
        ("if (is_over) capture_forget(going->handle, going->captures);", "")]),
    Mutant("a primary context that is not pooled leaves its captures", ["shim_exports"], [
        ("if (driver && context_primary_is_over(driver, device)) capture_forget(going->handle, going->captures);", "")]),
    Mutant("a primary context that stays takes its captures along", ["shim_exports"], [
        ("if (driver && context_primary_is_over(driver, device)) capture_forget(", "if (driver) capture_forget(")]),
    Mutant("a context that is refused is not asked for again", ["rows driver"], [
        ("gave = serve_give_back_on(device, retry->arrivals, retry->wanted, retry_is_often(retry));", "gave = false;")]),
    Mutant("a call that may take another device's memory gets the current one's idle memory alone", ["shim_retry"], [
        ("gave = serve_give_back_anywhere(retry->wanted);", "")]),
    Mutant("a call for memory of the current device empties the other devices' pools", ["shim_retry"], [
        ("= kind == UNPOOLED_ARRAY || kind == UNPOOLED_PITCH ? retry_begin() : retry_begin_elsewhere();", "= retry_begin_elsewhere();")]),
    Mutant("an impossible request on a stream empties the pools", ["shim_retry"], [
        ("retry.wanted = wanted; return retry;", "retry.wanted = 0 * wanted; return retry;")]),
    Mutant("lines that never fit count as few", ["shim_retry"], [
        ("__builtin_mul_overflow(width, height, &size) ? SIZE_MAX : size;", "__builtin_mul_overflow(width, height, &size) ? size : size;")]),
    Mutant("host memory of more than the device has is refused at once", ["shim_retry"], [
        ("hazard_location_device(&properties->location) >= 0 ? size : 0;", "true ? size : 0;")]),
    Mutant("a capture keeps idle memory from a call for a device", ["shim_retry"], [
        ("gave = serve_give_back_on(device, retry->arrivals, retry->wanted, retry_is_often(retry));", 'gave = serve_release(device, "oom") || serve_arrivals() != retry->arrivals;')]),
    Mutant("physical memory of another device gets the current one's idle memory", ["shim_retry"], [
        ("while (create_again(&retry, result, properties));", "while (retry_again_outside(&retry, result));")]),

    # --- out of memory, limits, figures ---
    Mutant("out of memory: calls that are not pooled fail at once", ["pressure static preloaded"], [
        ("if (lasts) gave = serve_give_back(retry->arrivals, retry->wanted, retry_is_often(retry));", "")]),
    Mutant("out of memory: other devices are passed over if the current one has taken the time", ["shim_retry"], [
        ("(lasts || !retry->went)", "lasts")]),
    Mutant("out of memory: a hopeless call is made again as long as others free", ["shim_retry_often"], [
        ("return retry->tries > RETRY_HOPES && !retry->elsewhere;", "return retry->limit == 1;")]),
    Mutant("out of memory: what a pool of the driver's has gathered for a request makes it hopeless", ["shim_retry_often"], [
        ("return retry->tries > RETRY_HOPES && !retry->elsewhere;", "return retry->tries > RETRY_HOPES;")]),
    Mutant("out of memory: idle memory goes back once for calls that are not pooled", ["shim_retry_often"], [
        ("return now < retry->limit;", "return now + ARRIVALS_OTHERS_NS == retry->limit;")]),
    Mutant("out of memory: idle memory goes back for calls that are not pooled without an end", ["shim_retry_often"], [
        ("return now < retry->limit;", "return true;")]),
    Mutant("out of memory: what has arrived once counts each time", ["shim_retry_often"], [
        ("retry->arrivals = serve_arrivals();", "", "retry_by_own")]),
    Mutant("out of memory: what has arrived once on a device counts each time", ["shim_retry_often"], [
        ("retry->arrivals = serve_arrivals();", "", "retry_again_on_device")]),
    Mutant("memory that has arrived counts as on its way, too", ["meminfo static preloaded / never_more_than_is_left"], [
        ("*free = *free + idle > most ? most : *free + idle;", "*free = *free + idle > all ? all : *free + idle;")]),
    Mutant("free memory is what the driver says", ["meminfo static preloaded", "meminfo shared preloaded"], [
        ("const uint64_t idle = serve_idle_bytes(&used),", "const uint64_t idle = 0 * serve_idle_bytes(&used),")]),

    # --- contexts and processes ---
    Mutant("a destroyed context keeps its pool", ["contexts static preloaded", "teardown static preloaded / looked_up_destroy"], [
        ("leaving(handle);", "NULL;", "destroy")]),
    Mutant("a reset device keeps its pool", ["catch"], [
        ("leaving_primary(device);", "NULL;", "primary_reset"),
        ("const bool alone = !process_is_passive() && !process_hooks_driver();", "const bool alone = false;")]),

    # --- whose call it is ---
    Mutant("a request that is passed on is pooled further down", ["settings / Effects.test_limit"], [
        ("error = BYPASS(real_runtime(cudaMalloc, CALLER)(ptr, size));", "error = real_runtime(cudaMalloc, CALLER)(ptr, size);")]),
    Mutant("cuGetProcAddress answers with the driver's functions", ["catch"], [
        ("return symbol == REAL_COUNT ? function : hooks[symbol];", "return symbol || hooks[0] ? function : NULL;")]),
    Mutant("dlsym answers for RTLD_NEXT", ["next preloaded"], [
        ("if (!name || handle == RTLD_NEXT || handle == RTLD_DEFAULT ||", "if (!name || handle == RTLD_DEFAULT ||")]),

    Mutant("dlsym: a driver in a namespace of its own is the first one", [
        "interposers / Dlsym.test_a_driver_in_a_namespace_of_its_own"], [("|| namespace == LM_ID_BASE);", "|| true);")]),
    Mutant("dlsym: UCX finds our functions among the driver's", ["world_preloads / Interposers.test_under_its_real_name"], [
        (" && !is_patcher(caller) ? ", " ? ")]),

    # --- NCCL ---
    Mutant("NCCL: a communicator that could not shrink is used", ["nccl_rows / Rows.test_ends"], [
        ("nccl_after(parent, used, result); return result;",
         "nccl_after(parent, used, result); if (flags & NCCL_SHRINK_ABORT) nccl_comm_ended(parent, NCCL_END_CLOSE, result); return result;")]),
    Mutant("NCCL: what the program takes from NCCL is not registered", ["nccl / Registered.test_threads"], [
        ("nccl_user_memory((uintptr_t)*ptr, size);", ";")]),

    # --- cupool.h ---
    Mutant("cupool.h: trim gives back in a group", ["api / Trim.test_not_in_a_group"], [
        ("if (nccl_reg_group_depth()) return 0;", "")]),
    Mutant("cupool.h: what a newer program asks for is not cleared", ["api / Stats.test_other_versions_of_the_struct"], [
        ("memset(stats, 0, size);", "")]),

    # --- physical memory in the trace ---
    Mutant("physical memory: a mapping is not told", ["vmm / Calls.test_every_call_is_there"], [
        ("direct_mapped(ptr, size, handle); if (took(&call, result))",
         "direct_mapped(ptr, size, handle); if (false)")]),
    Mutant("physical memory: what was given up is told too late", ["vmm / Calls.test_threads"], [
        ("call->t = taken ? now : call->start;", "call->t = now;")], 5),
    Mutant("physical memory: what failed is not told", ["vmm / Calls.test_errors"], [
        ("if (!call->start)", "if (!call->start || result)")]),
    Mutant("NCCL: memory of a context that has ended is lost", ["nccl / Registered.test_memory_after_a_reset"], [
        ("while ((left = nccl_given_left(device))) give_back(left, 0);", "(void)left;")]),
    Mutant("NCCL: what has gone back is taken for lost", ["nccl / Registered.test_memory_after_a_reset"], [
        ("nccl_given_remove(addr); nccl_visit_begin(&visit);", "nccl_visit_begin(&visit);")]),
    Mutant("an ncclMemAlloc has its memory looked for inside of it", ["nccl / Registered.test_memory_for_the_programs_own_allocation"], [
        ("return !retry_later.on;", "return true;")]),
    Mutant("an ncclMemAlloc that was refused is not made again", ["nccl / Registered.test_memory_for_the_programs_own_allocation"], [
        ("while (result && retry_later.refused && retry_again(&retry, CUDA_ERROR_OUT_OF_MEMORY));", "while (false);")]),
    Mutant("physical memory: idle memory is not given back for it", ["vmm / Calls.test_idle_memory_is_there_for_it"], [
        ("return !process_is_inside() && retry_again(retry, result);", "return false;")]),
    Mutant("physical memory: idle memory is given back from inside of NCCL", ["nccl / Wrong.test_deregistration_fails"], [
        ("return !process_is_inside() && retry_again(retry, result);", "return retry_again(retry, result);")]),
    Mutant("physical memory: a program that pools nothing has no trace", ["vmm / Calls.test_every_call_is_there"], [
        ("serve_begin();", ";", "call_ended")]),
    Mutant("physical memory: the library's own calls are taken for NCCL's", ["vmm / Whose.test_nccl"], [
        ("if (process_is_inside())", "if (false)")]),

    # --- that no test had noticed once ---
    Mutant("green contexts are pooled", ["contexts static preloaded"], [
        ("if (!result && !process_is_passive()) context_exempt(*context);", "")]),
    Mutant("free memory may be more than all", ["meminfo static preloaded"], [
        ("*free = *free + idle > most ? most : *free + idle;", "*free = *free + idle;")]),
    Mutant("free memory counts what is idle twice", ["meminfo shared preloaded"], [
        ("error = BYPASS(real_runtime(cudaMemGetInfo, CALLER)(free, total));", "error = real_runtime(cudaMemGetInfo, CALLER)(free, total);")]),
    Mutant("the driver says what freed memory was", ["driver static preloaded"], [
        ("return serve_is_freed(ptr, caller) ? NOWHERE : ptr;", "return serve_is_freed(ptr, caller) ? ptr : ptr;")]),
    Mutant("profiler: a stop is marked as a start", ["rows driver"], [
        ('real_next(cuProfilerStop)(), "cudaProfilerStop"', 'real_next(cuProfilerStop)(), "cudaProfilerStart"')]),

    # --- NVTX ---
    Mutant("nvtx: a pop ends a range of the default domain", ["nvtx / Nvtx.test_each_kind"], [
        ("static int pop(const struct name *domain) { end(domain, 0);", "static int pop(const struct name *domain) { end(NULL, 0);")]),
    Mutant("nvtx: started ranges have one number", ["nvtx / Nvtx.test_each_kind"], [
        ("atomic_fetch_add(&ids, 1) + 1", "atomic_fetch_add(&ids, 0) + 1")]),
    Mutant("nvtx: a push returns its depth", ["nvtx / Nvtx.test_returns_are_as_without_a_tool"], [
        ("begin(domain, text, 0); return NVTX_NO_TRACKING;", "begin(domain, text, 0); return 0;")]),
    Mutant("nvtx: wide characters lose their first byte", ["nvtx / Nvtx.test_each_kind", "shim_json"], [
        ("0xf00u >> len | character)", "0xe00u >> len | character)")]),

    # --- neighbours ---
    Mutant("neighbours: not asked for a cudaMalloc that is not pooled", ["shim_retry_often"], [
        ("while (again || retry_by_others(&retry, result));", "while (again);")]),
    Mutant("neighbours: not asked for calls that are not pooled", ["neighbours / Turns.test_of_a_call_that_is_not_pooled"], [
        ("return retry_by_own(retry, result) || retry_by_others(retry, result);", "return retry_by_own(retry, result);")]),
    Mutant("neighbours: asked before the pool's own free memory serves beside a capture", ["shim_retry_often"], [
        ("again = retry_by_own(&retry, result);", "again = retry_again(&retry, result);")]),
    Mutant("neighbours: asked twice for one request", ["neighbours / Refused.test_nothing_idle"], [
        (".asking.over = serve_has_asked()", ".asking.over = serve_has_asked() && false")]),

    # --- virtual memory ---
    Mutant("vmm: peer access does not reach it", ["peers static vmm access_first"], [
        ("vmm_reach_anew(driver, hazard_context_device(driver, peer), device);", "")]),
    Mutant("vmm: a copy in a context that never allocated does not reach it", ["peers static vmm copies_alone"], [
        ("vmm_reach(driver, device, from);", "", "hazard_foreign_access")]),
    Mutant("peer access is no hazard", ["rows driver"], [
        ("policy_strict(POLICY_ALL, \"peer access\");", "")]),
    Mutant("vmm: a program sees that its block can be shared", ["driver static vmm"], [
        ("attribute != CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)", "true)")]),
    Mutant("vmm: a block has no context", ["driver static vmm"], [
        ("if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) serve_context(ptr, data);", "")]),

    Mutant("a green context gets a context for its end in a process that passes everything through", ["shim_exports"], [
        ("driver = process_is_passive() ? NULL : real_driver_get(); struct going going, primary", "driver = real_driver_get(); struct going going, primary")]),
    Mutant("the primary context ends unseen with a green one", ["shim_exports", "endings static preloaded"], [
        ("if (device >= 0) primary = leaving_primary(device);", "")]),
    Mutant("memory that is used is said to be free", ["shim_info"], [
        ("most = all > used ? all - used : 0;", "most = all;")]),
    Mutant("memory that arrives while the driver is asked is said to be free twice", ["shim_info"], [
        ("serve_collect(); vmm_kept_wait(); /* then", "vmm_kept_wait(); /* then")]),
    Mutant("free memory is said to be less than the driver has", ["shim_info"], [
        ("if (free && *free < most)", "if (free)")]),
    Mutant("a block that is freed while the driver is asked has a range", ["shim_refused"], [
        ("if (!length) return CUDA_ERROR_NOT_FOUND;", "")]),
    Mutant("a context whose destruction was not permitted loses its pool", ["shim_refused"], [
        ("case CUDA_ERROR_NOT_PERMITTED: case CUDA_ERROR_DEINITIALIZED: return true;", "case CUDA_ERROR_DEINITIALIZED: return true;")]),
    Mutant("a call for a device is not made again after memory has arrived", ["shim_retry"], [
        ("return device_trim(device, NULL) || retried || context_arrivals() != before;", "return device_trim(device, NULL) || retried;")]),
    Mutant("NCCL: a communicator that is shrunk with one more flag stays open", ["nccl_rows"], [
        ("if (flags & NCCL_SHRINK_ABORT)", "if (flags == NCCL_SHRINK_ABORT)")]),
    Mutant("NCCL: memory is asked for again whatever the reason of the refusal", ["nccl_rows / Rows.test_groups_and_memory"], [
        ("while (result && retry_later.refused && retry_again", "while (result && retry_again")]),
    Mutant("SYNC_MEMOPS among other flags does not matter", ["rows driver"], [
        ("flags & CU_CTX_SYNC_MEMOPS", "flags == CU_CTX_SYNC_MEMOPS")]),
    Mutant("kept memory is mapped with an offset", ["vmm_kept / AsNatively.test_every_word"], [
        ("handle, whole && vmm_kept_serves()", "handle, vmm_kept_serves()")]),
    Mutant("a library's call counts as the program's that took pinned memory before", ["callers"], [
        ("error = real_runtime(cudaMallocHost, CALLER)(ptr, size); serve_call_from(NULL);", "error = real_runtime(cudaMallocHost, CALLER)(ptr, size);")]),
    Mutant("nvtx: functions behind the list are taken for some of it", ["shim_nvtx"], [
        ("i < sizeof(rows) / sizeof(rows[0])", "i <= sizeof(rows) / sizeof(rows[0])")]),
    Mutant("api: registrations that fail are not counted", ["api / Beside.test_registrations_are_counted"], [
        ("to->nccl_failed = nccl.failed;", "")]),
    Mutant("api: the counters of a context that may end are read", ["shim_refused"], [
        ("context_stats_each(/* ending: */ false, add, &sum);", "context_stats_each(/* ending: */ true, add, &sum);")]),
    Mutant("api: a device that cannot be is resumed", ["shim_refused"], [
        ("if (device < 0 || device >= DEVICES_MAX) return -EINVAL;", "")]),
    Mutant("ipc: nothing is said where memory has no handle", ["shim_refused"], [
        ("else serve_ipc_refused(ptr);", "", "cuIpcGetMemHandle")]),
    Mutant("a memset node is taken for a batch of copies", ["rows driver"], [
        ("hazard_foreign_access(parameters->memset.dst, w->stream); break;",
         "hazard_foreign_access(parameters->memset.dst, w->stream); __attribute__((fallthrough));")]),
    Mutant("vmm: memory that the program retains is not kept", ["vmm_kept / Kept.test_memory_that_the_program_retains_is_kept"], [
        ("if (!result && cache && caller_is_outside(caller_of(CALLER)))", "if (!result && cache)", "cuMemRetainAllocationHandle")]),
    Mutant("api: a device that is not there is trimmed", ["shim_api"], [
        ("if (device < CUPOOL_ALL_DEVICES || !device_exists(device)) return -EINVAL;", "if (device < CUPOOL_ALL_DEVICES) return -EINVAL;")]),
    Mutant("api: a device that is not there has counters", ["shim_api"], [
        ("|| !device_exists(device) || stats->size < STATS_SIZE_MIN", "|| stats->size < STATS_SIZE_MIN")]),
    Mutant("api: a device that is not there is paused", ["shim_api"], [
        ("if (!device_exists(device)) return -EINVAL;", "", "cupool_lib_pause")]),
    Mutant("api: no device is there where the driver does not say", ["shim_api"], [
        ("driver->cuDeviceGetCount(&count) != CUDA_SUCCESS || device < count;", "(driver->cuDeviceGetCount(&count) == CUDA_SUCCESS && device < count);")]),
    Mutant("api: a call for tickets loses errno", ["shim_api"], [
        ("errno = call->error;", "")]),
    Mutant("a call that a device refuses is made again after another device's idle memory has gone", ["shim_retry"], [
        ("serve_give_back_on(device, retry->arrivals,", "serve_give_back_on(0, retry->arrivals,")]),
    Mutant("idle memory of a context that a call may end, and does not, is not given back", ["shim_retry"], [
        ("if (gives && context_pin_staying_once(context)) return context;", "(void)gives;")]),
    Mutant("a library's call counts as the program's whose cudaMalloc the runtime served before", ["callers"], [
        ("error = real_runtime(cudaMalloc, CALLER)(ptr, size); serve_call_from(NULL);", "error = real_runtime(cudaMalloc, CALLER)(ptr, size);")]),
    Mutant("vmm: memory that NCCL has a handle of is kept", ["vmm_kept / Kept.test_memory_that_nccl_has_a_handle_of_is_not_kept"], [
        ("vmm_cache_forget_range(cache, (uintptr_t)ptr, 1); /*", "(void)0; /*")]),
    Mutant("vmm: a handle that the program retains does not count", ["vmm_kept / Kept.test_memory_that_the_program_retains_is_kept"], [
        ("vmm_cache_retained(cache, (uintptr_t)ptr, *handle);", "(void)0;")]),
    Mutant("free memory is told while another thread is giving kept memory back", ["shim_vmm_kept"], [
        ("vmm_kept_wait(); /* then", "(void)0; /* then")]),
    Mutant("auto: mapped host memory is not seen if it is registered with a further flag", ["rows driver"], [
        ("if (flags & CU_MEMHOSTALLOC_DEVICEMAP) host_pointer_before(w);", "if (flags == CU_MEMHOSTALLOC_DEVICEMAP) host_pointer_before(w);")]),
    Mutant("auto: mapped host memory is not seen if it is allocated with a further flag", ["rows driver"], [
        ("if (flags & CU_MEMHOSTALLOC_DEVICEMAP && serve_watches(caller)", "if (flags == CU_MEMHOSTALLOC_DEVICEMAP && serve_watches(caller)")]),
    Mutant("peer access opens the way in the other direction", ["peers static vmm access_first"], [
        ("vmm_reach_anew(driver, hazard_context_device(driver, peer), device);", "vmm_reach_anew(driver, device, hazard_context_device(driver, peer));")]),
    Mutant("a wait for another context's stream pays this one's debt", ["shim_policy"], [
        ("if (policy && policy == of_stream(stream))", "if (policy)")]),
    Mutant("a free is forgotten where the driver's error did not last", ["shim_refused"], [
        ("if (!result && verdict == SERVE_UNFREED)", "if (0)")]),
    Mutant("cudaHostAlloc: later calls of the driver count as its caller's", ["sweep_exports"], [
        ("error = real_runtime(cudaHostAlloc, CALLER)(ptr, size, flags); serve_call_from(NULL);", "error = real_runtime(cudaHostAlloc, CALLER)(ptr, size, flags);")]),
    Mutant("a capture that begins beside the end of the one before is forgotten", ["shim_capture"], [
        ("capture_check(call->stream, /* destroyed: */ false, call->total);", "capture_check(call->stream, /* destroyed: */ false, atomic_load(&capture_total));")]),
]
