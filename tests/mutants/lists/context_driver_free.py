# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/context/: what happens beside a call that waits in the driver."""
from __future__ import annotations

from mutant import Mutant


def scenes(*names: str) -> "list[str]":
    return [f"waits static preloaded / {name}" for name in names]


MUTANTS = [
    Mutant("a thread that ends inside the gate stays there", ["shim_driver_free"], [
        ("if (record->inside) atomic_fetch_sub(record->inside, 1);", "")]),
    Mutant("a thread that has left the gate leaves it once more at its end", ["shim_driver_free"], [
        ("pin_inside(NULL);", "")]),
    Mutant("a question is held up by another thread's free in the driver", ["shim_driver_free", *scenes("beside_pitched_free")], [
        ("result = capture_active() ? CUDA_ERROR_NOT_READY : order_unheld(", "result = capture_active() ? CUDA_ERROR_NOT_READY : order_on_device(")]),
    Mutant("a free in the driver holds up a question under way", ["shim_driver_free"], [
        ("if (free_gate_enter(context)) { result = order_on_device(context, slot, is_enough); free_gate_leave(context); }",
         "if (!atomic_load(&context->freeing)) { result = order_on_device(context, slot, is_enough); }")]),
    Mutant("a thread enters the gate while it is being closed", ["shim_driver_free"], [
        ("if (!atomic_load(&context->freeing)) { pin_inside(&context->inside); return true; } atomic_fetch_sub(&context->inside, 1); return false;", "return true;")]),
    Mutant("a thread that finds the gate closed stays inside", ["shim_driver_free"], [
        ("if (!atomic_load(&context->freeing)) { pin_inside(&context->inside); return true; } atomic_fetch_sub(&context->inside, 1); return false;",
         "return !atomic_load(&context->freeing);")]),
    Mutant("a free in the driver waits for no thread inside the gate", ["shim_driver_free"], [
        ("for (unsigned int i = 0; atomic_load(&context->inside) && now_ns() < limit; i++) lock_relax(i);", "(void)limit;")]),
    Mutant("a free in the driver waits for a thread inside the gate without limit", ["shim_driver_free"], [
        ("now_ns() + INSIDE_WAIT_NS", "UINT64_MAX")]),
    Mutant("a free in the driver holds up a record behind a free on a stream", ["shim_driver_free"], [
        ("freed = record_free(context, stream); free_gate_leave(context);", "free_gate_leave(context); freed = record_free(context, stream);")]),
    Mutant("a free in the driver holds up a record on another context's stream", ["shim_driver_free"], [
        ("result = event_behind(driver, stream, &event); if (result) /* tried",
         "free_gate_leave(other); result = event_behind(driver, stream, &event); if (other) atomic_fetch_add(&other->inside, 1); if (result) /* tried")]),
    Mutant("a free in the driver holds up the end of an event on another context's stream", ["shim_driver_free"], [
        ("driver->cuEventDestroy_v2(event); free_gate_leave(other);", "free_gate_leave(other); driver->cuEventDestroy_v2(event);")]),
    Mutant("a free in the driver holds up the event of virtual memory that goes back", ["shim_vmm_shared"], [
        ("if (!result && free_gate_enter(context)) { result = event_record(context, &mapping->event); free_gate_leave(context); }",
         "if (!result && !atomic_load(&context->freeing)) { result = event_record(context, &mapping->event); }")]),
    Mutant("a free in the driver holds up the event of virtual memory that has waited for one", ["shim_vmm_shared"], [
        ("if (!mapping->event) { result = event_record(context, &mapping->event); free_gate_leave(context); }",
         "if (!mapping->event) { free_gate_leave(context); result = event_record(context, &mapping->event); }")]),
    Mutant("a free in the driver holds up the order of a refused request", ["shim_driver_free"], [
        ("pin_hurry_begin(); /* a free", "/* a free")]),
    Mutant("a refused request goes without an order that a free in the driver has kept from it", ["shim_driver_free"], [
        ("freeing |= pin_hurry_end();", "(void)pin_hurry_end();")]),
    Mutant("a thread stays in a hurry", ["shim_driver_free"], [
        ("if (own) own->hurry = 0;", "")]),
    Mutant("a thread that was cancelled in a hurry leaves it to the next", ["shim_driver_free"], [
        ("record->hurry = 0;", "")]),
    Mutant("a free of the pool's that waits beside a capture holds up a record under way", ["shim_driver_free"], [
        ("closed = free_gate_close(context);", "closed = pin_count(&context->freeing);", "wait_by_free")]),
    Mutant("a refused request of a stream orders deferred blocks beside a free in the driver",
           ["shim_driver_free"], [
        ("freeing = atomic_load(&context->freeing); pin_hurry_begin();", "freeing = false;")]),
    Mutant("virtual memory that goes back beside a free in the driver gets an event", ["shim_vmm_shared", "waits static vmm / freed_beside_free"], [
        ("if (!result && free_gate_enter(context)) {", "if (!result && (free_gate_enter(context) || atomic_fetch_add(&context->inside, 1) + 1)) {")]),
    Mutant("virtual memory goes back beside a free in the driver while it is used", ["shim_vmm_shared"], [
        ("if (!mapping->event && order_is_over(context)) return CUDA_SUCCESS;", "if (!mapping->event) return CUDA_SUCCESS;")]),
    Mutant("virtual memory waits for a free in the driver", ["waits static vmm / freed_beside_free"], [
        ("if (!mapping->event && order_is_over(context)) return CUDA_SUCCESS;", "")]),
    Mutant("an order by a combiner counts as over", ["shim_vmm_shared"], [
        ("i < SLOTS_ALL + SLOTS; i++) { event =", "i < SLOTS_ALL; i++) { event =")]),
    Mutant("deferred blocks are not there beside a free in the driver", ["waits static relaxed / freed_beside_free"], [
        ("deferred = bytes || !freeing ? POOL_DEFERRED_NONE : pool_deferred_by(context->pool);", "deferred = POOL_DEFERRED_NONE;")]),
    Mutant("what cudaFreeAsync has freed is waited for beside a free in the driver", ["deferred"], [
        ("else if (!freed_is_marked(block->freed) && by ==", "else if (by ==")]),
    Mutant("others' deferred blocks are waited for as one's own", ["deferred"], [
        ("if (!block->freed && block->freed_by == &magazine_index) return", "if (!block->freed) return")]),
    Mutant("one's own deferred blocks are waited for as others'", ["deferred", "waits static relaxed / freed_beside_free"], [
        ("if (!block->freed && block->freed_by == &magazine_index) return POOL_DEFERRED_OWN;", "")]),
    Mutant("another thread's deferred block on top hides one's own below", ["deferred"], [
        ("if (!block->freed) by = POOL_DEFERRED_OTHERS;", "if (!block->freed) return POOL_DEFERRED_OTHERS;")]),
    Mutant("others' deferred blocks shorten the wait for one's own", ["deferred"], [
        ("most = by > most ? by : most;", "most = by && (!most || by < most) ? by : most;")]),
    Mutant("what a stream has freed beside a free in the driver hides what its thread has freed", ["deferred"], [
        ("if (!block->freed && block->freed_by == &magazine_index) return", "if (!block->freed && by == POOL_DEFERRED_NONE && block->freed_by == &magazine_index) return")]),
    Mutant("what a stream has freed beside a free in the driver is not there after that",
           ["deferred", *scenes("freed_by_stream_beside_free")], [("by = POOL_DEFERRED_UNKNOWN;", "by = POOL_DEFERRED_NONE;")]),
    Mutant("what a stream has freed beside a free in the driver is waited for as one's own",
           scenes("beside_captured_free"), [
        ("freed ? freed : POOL_FREED_UNMARKED", "freed")]),
    Mutant("a request waits as long again for a free in the driver", ["shim_driver_free"], [
        ("return again && patience > ARRIVALS_AGAIN_NS ?", "return again && false ?")]),
    Mutant("nothing is asked any more after a free in the driver", ["shim_driver_free"], [
        ("if (context) free_gate_open(context);", "")]),
    Mutant("nothing is asked any more after a thread was cancelled in a free in the driver", ["shim_driver_free"], [
        ("if (record->count) atomic_fetch_sub(record->count, 1);", "")]),
    Mutant("a thread that was cancelled in a free in the driver is taken back twice", ["shim_driver_free"], [
        ("record->count = NULL;", "")]),
    Mutant("a thread that is in a free in the driver counts again", ["shim_driver_free"], [
        ("if (own && own->count) return false;", "")]),
    Mutant("a free in the driver that is over counts for the thread", ["shim_driver_free"], [
        ("atomic_fetch_sub(count, 1); if (own) own->count = NULL;", "atomic_fetch_sub(count, 1); (void)own;")]),
    Mutant("a give-back makes the library's stream beside a free in the driver", ["shim_driver_free", "waits static first"], [
        ("if (!context_enter(context, &visit)) (void)own_stream(context);", "(void)context_enter(context, &visit);")]),
    Mutant("a free in the driver that begins beside a capture does not count", ["shim_driver_free", *scenes("beside_captured_free")], [
        ("const struct real_driver *driver = addr ? driver_get() : NULL;",
         "extern atomic_uint capture_count; const struct real_driver *driver = addr && !atomic_load(&capture_count) ? driver_get() : NULL;")]),
    Mutant("a free of the pool's that waits beside a capture does not count", scenes("beside_captured_pooled_free"), [
        ("closed = free_gate_close(context);", "closed = false;", "wait_by_free")]),
    Mutant("pinned memory that is freed in the driver does not count", ["sweep_exports", *scenes("beside_pinned_free")], [
        ("struct context *const context = driver_free_begin((uintptr_t)ptr);", "struct context *const context = NULL;")]),
    Mutant("the end of an array does not count", scenes("beside_array_end", "beside_mipmapped_end"), [
        ("return driver_free_begin_current();", "return NULL;")]),
    Mutant("memory that is registered no more does not count", scenes("beside_unregistering"), [
        ("return driver_free_begin((uintptr_t)ptr);", "return NULL;")]),
    Mutant("with CUPOOL_HOOK=runtime no free counts", ["waits shared runtime pitched_free"], [
        ("context = process_hooks_driver() ? NULL : driver_free_begin((CUdeviceptr)ptr);", "context = NULL;")]),
    Mutant("with CUPOOL_HOOK=runtime other calls that wait in the driver do not count", ["waits shared runtime pinned_free"], [
        ("process_hooks_driver() ? NULL : (of)", "NULL")]),
    Mutant("the memory of another process that is closed does not count", ["sweep_exports"], [
        ("context = driver_free_begin(ptr); result = real_next(cuIpcCloseMemHandle)(ptr);",
         "context = NULL; result = real_next(cuIpcCloseMemHandle)(ptr);")]),
    Mutant("a segment that goes back by a free that waits holds up a record under way", ["shim_driver_free"], [
        ("const bool closed = free_gate_close(context);", "const bool closed = pin_count(&context->freeing);", "free_waiting")]),
]
