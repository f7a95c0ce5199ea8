# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/context/: calls that are made again where the driver fails once."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("a thread waits for the end of a context that waits for the thread", ["shim_lookup"], [
        ("if (!pins_possible() || pins_has(context) || is_left_out(context))", "if (!pins_possible() || is_left_out(context))")]),
    Mutant("entering a context: the driver is not asked again which one is current", ["shim_enter"], [
        ("if (result) result = driver->cuCtxGetCurrent(&current);", "")]),
    Mutant("entering a context: no second try", ["shim_enter"], [
        ("if (result) result = driver->cuCtxPushCurrent_v2(handle); visit->pushed", "visit->pushed")]),
    Mutant("a thread stays in relaxed capture mode after one failure", ["shim_enter"], [
        ("if (relaxed && driver->cuThreadExchangeStreamCaptureMode(&mode)) driver->cuThreadExchangeStreamCaptureMode(&mode);",
         "if (relaxed) driver->cuThreadExchangeStreamCaptureMode(&mode);")]),
    Mutant("a capture mode that could not be changed is brought back", ["shim_enter"], [
        ("if (relaxed && driver->cuThreadExchangeStreamCaptureMode(&mode))", "if (driver->cuThreadExchangeStreamCaptureMode(&mode))")]),
    Mutant("a free does not wait after one failure", ["shim_order"], [
        ("(result = context->driver->cuCtxSynchronize()) != CUDA_SUCCESS)", "(result = context->driver->cuCtxSynchronize()) && false)")]),
    Mutant("work that the driver could not be asked about counts as over", ["shim_frees"], [
        ("return result && result != CUDA_ERROR_NOT_READY ? context->driver->cuEventQuery(event) : result;", "return result;")]),
    Mutant("virtual memory that the driver could not be asked about is not waited for", ["shim_vmm_memory"], [
        ("return result ? result : context_event_ask(context, mapping->event);", "return result ? result : context->driver->cuEventQuery(mapping->event);")]),
    Mutant("memory goes back through a stream at the first attempt or never more", ["shim_segments"], [
        ("if (result && !order_is_sticky(result)) result = driver->cuMemFreeAsync(addr, stream);", "")]),
    Mutant("a device whose pools could not be asked about at once has none", ["shim_segments"], [
        ("if (result) /* asked again, as in free_through */", "if (false)")]),
    Mutant("a segment is lost after one failure", ["shim_segments"], [
        ("if (result && !order_is_sticky(result)) /* tried again", "if (false) /* tried again")]),
    Mutant("a segment is given back again to a context in error", ["shim_segments"], [
        ("if (result && !order_is_sticky(result)) /* tried again", "if (result) /* tried again")]),
    Mutant("a stream's context is asked for once", ["shim_lookup"], [
        ("if (result) /* asked again, because frees wait for the work of this context */", "if (false)")]),
    Mutant("a stream of another device that could not be asked about never comes there", ["shim_lookup"], [
        ("if (result) /* tried again: the memory would never be used again */", "if (false)")]),
    Mutant("a stream of a context without a pool is not waited for", ["shim_lookup", "contexts static preloaded / free_on_another"], [
        ("!is_green(context->driver, stream) ||", "")]),
    Mutant("a green context's stream is in the queue of any context of its device", ["shim_lookup"], [
        ("|| !context->primary ||", "||", "is_foreign")]),
    Mutant("a stream is asked once whether it is a green context's", ["shim_lookup"], [
        ("if (result) /* asked again: a free on", "if (false) /* asked again: a free on")]),
    Mutant("nothing says that a call goes on beside the work before another thread's free", ["shim_strict"], [
        ("late |= slot_wait(", "(void)slot_wait(")]),
    Mutant("the caller's context is brought back at the first attempt or never", ["shim_enter", "shim_lookup"], [
        ("if (driver->cuCtxPopCurrent_v2(&ignored)) driver->cuCtxPopCurrent_v2(&ignored);", "driver->cuCtxPopCurrent_v2(&ignored);")]),
    Mutant("a free does not see that a capture has ended", ["shim_capture_asks"], [
        ("if (capture_active()) /* a capture may have ended unseen; the driver is asked before the slot is taken */ capture_active_now();", "")]),
    Mutant("a stream that the driver could not be asked about captures", ["shim_capture"], [
        ("if (result) /* asked again, because a free on the stream would be refused */", "if (false)")]),
    Mutant("a context that could not be numbered loses its pool when a reference is given back", ["shim_ending"], [
        ("id = active && context->id ?", "id = active ?")]),
    Mutant("a context is numbered at the first attempt or never", ["shim_context"], [
        ("if (result) /* asked again: a context without a number", "if (false) /* asked again: a context without a number")]),
    Mutant("errno is lost where captures of dead threads are looked for", ["shim_capture"], [
        ("errno = saved; return is;", "(void)saved; return is;", "is_of_dead_thread")]),
    Mutant("blocks of a paused pool take memory from an impossible request", ["shim_retry"], [
        ("if (pool_is_suspended(context->pool)) continue;", "")]),
    Mutant("only more than the card has is an impossible request", ["shim_retry"], [
        ("return size <= (live < capacity ? capacity - live : 0);", "return size <= capacity;")]),
    Mutant("ipc: each export makes a descriptor", ["ipc_beside / Exporter.test_a_descriptor_stays_with_its_memory"], [
        ("if (fd >= 0) { *ret_fd = fd; return CUDA_SUCCESS; }", "if (fd >= 0) close(fd);")]),
    Mutant("ipc: as many descriptors are kept as there are segments", ["shim_vmm_memory"], [
        ("&& table.kept < KEPT_MAX", "")]),
    Mutant("ipc: a descriptor that comes with an empty message stays open", ["ipc / Messages.test_a_wrong_exporter"], [
        ("if (rc && *ret_fd >= 0)", "if (0)")]),

    Mutant("a wait where nothing was pooled fails if a device is reset meanwhile", ["shim_waits"], [
        ("return result && primary_is_active(driver, device) ? result : CUDA_SUCCESS;", "return result;")]),
    Mutant("a context that has taken the handle of an ended one is taken for it", ["shim_ending"], [
        ("return context && context != &unknown && context->id && context_id(driver, handle) != context->id;", "return false;")]),
    Mutant("registered memory goes while peers write into it", ["shim_segments"], [
        ("(backend_source(kind)->put_needs_wait || context_events.registers())", "(backend_source(kind)->put_needs_wait)")]),
    Mutant("registered memory goes during a capture", ["shim_memory"], [
        ("context_defers(context) && !context_events.registers()", "context_defers(context)")]),
    Mutant("the limit of one device is set for all", ["shim_context"], [
        ("if (context->pool && (device == CONTEXT_ALL || device == context->device))", "if (context->pool)")]),
    Mutant("an entry is used again while a thread's call ends its context", ["shim_ending"], [
        ("!atomic_load(&context->handle) && !atomic_load(&context->ending) && !atomic_load(&context->leaving)", "!atomic_load(&context->handle) && !atomic_load(&context->ending)")]),
    Mutant("a neighbour gets what only cuMemFree gives back", ["shim_memory"], [
        ("if (context_defers(context)) pool_yield(context->pool, \"neighbour\");", "pool_yield(context->pool, \"neighbour\");")]),
    Mutant("what is used is what the program has, without the rest of its segments", ["shim_memory"], [
        ("used += stats.held - stats.idle;", "used += stats.live;")]),
    Mutant("no bytes in front of memory where NCCL is loaded later", ["shim_nccl_memory"], [
        ("(!nccl || nccl_kinds_matter(nccl)) ? FRONT_BYTES : 0;", "nccl && nccl_kinds_matter(nccl) ? FRONT_BYTES : 0;")]),
    # --- neighbours, asked again ---
    Mutant("neighbours: each question may take the whole time", ["shim_retry_often"], [
        ("wanted, since + wait_ns() - start, &outcome);", "wanted, wait_ns(), &outcome);")]),
    Mutant("neighbours: asked for ever", ["shim_retry_often"], [
        ("start >= since + wait_ns() ||", "")]),
    Mutant("neighbours: asked again although none has given any", ["shim_retry_often"], [
        ("asking->over = !given;", "asking->over = false;")]),
    Mutant("neighbours: memory that came before the question is not found", ["shim_retry_often"], [
        ("return outcome.asked;", "return given;")]),
    Mutant("neighbours: the request is made again where there are none", ["shim_retry_often"], [
        ("return outcome.asked;", "return true;")]),
    Mutant("out of memory: what the pools hold for nobody does not count", ["shim_retry_often"], [
        ("size <= free + unused;", "size <= free;")]),
    Mutant("out of memory: a driver that does not say what is free has nothing", ["shim_retry_often"], [
        ("!driver_free(device, &free) || size", "(!driver_free(device, &free) && (free = 0)) || size")]),
    Mutant("order: a thread's free of the batch after many has nothing to wait for", ["shim_frees"], [
        ("return now - ((now - seq) & BATCH_SEQ_MASK);", "return seq + 0 * now;")]),
    Mutant("order: many batches make a thread's number another one", ["shim_frees"], [
        ("<< BATCH_SEQ_BITS | (seq & BATCH_SEQ_MASK)", "<< BATCH_SEQ_BITS | seq")]),
    Mutant("memory that is filled beside a capture is missing until that ends", ["oom static filled"], [
        ("const CUresult result = order_behind_stream(context, slot);",
         "const CUresult result = capture_active() ? CUDA_ERROR_NOT_READY : order_behind_stream(context, slot);")]),
]
