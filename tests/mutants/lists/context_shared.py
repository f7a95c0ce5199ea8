# SPDX-License-Identifier: Apache-2.0
"""More mutants of shim/context/: memory of other processes, paused and pinned memory."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("pause: memory that is away counts as free twice once its segment goes", ["shim_pause"], [
        ("unmap(context, mapping); atomic_fetch_sub_explicit(&context->device_free, size, memory_order_relaxed);", "unmap(context, mapping);")]),
    Mutant("pause: devices are given access to memory that is away", ["shim_pause"], [
        ("if (found && !mapping.away &&", "if (found &&")]),
    Mutant("pause: blocks of two segments are copied as one", ["shim_pause"], [
        ("if (last && last->segment == segment &&", "if (last &&")]),
    Mutant("pause: a check does not look whether memory is exported", ["shim_pause"], [
        ("pool_has_withdrawn(context->pool, BACKEND_VMM) || ipc_table_any()", "pool_has_withdrawn(context->pool, BACKEND_VMM)")]),
    Mutant("pause: memory that is exported since the check is taken away", ["shim_pause"], [
        ("if (!rc && ipc_table_any()) rc = -EBUSY;", "")]),
    Mutant("ipc: with a segment go the blocks of all", ["ipc_table"], [
        ("(!segment || block->segment->as.addr == segment)", "true")]),
    Mutant("ipc: what the library has mapped stays when the importer's context ends", ["import"], [
        ("!(import->lost && mapping->how == IPC_NATIVE)", "!import->lost")]),
    Mutant("ipc: of two contexts with a segment at one address one knows its blocks", ["import"], [
        ("!import && i && addr - imports", "!mapping && i && addr - imports")]),
    Mutant("ipc: the library answers for a segment that the driver has opened, too", ["import"], [
        ("if (mapping && !import && ipc_native_is_open(mapping->addr))", "if (false)")]),
    Mutant("ipc: a segment that was opened twice past the library is closed once", ["import"], [
        ("if (*at && !--(*at)->opens) {", "if (*at) {")]),
    Mutant("ipc: an exporter may say two sizes of one segment", ["import"], [
        ("if (mapping && (mapping->size != grant->segment_size ||", "if (mapping && (false ||")]),
    Mutant("ipc: the end of an importer's context is not noticed", ["import"], [
        ("context_current(driver); /* so that its end is noticed */", "")]),
    Mutant("ipc: a late answer is taken for that to a later request", ["peer"], [
        ("if (!rc && ret_grant->number == peer->number)", "if (!rc)")]),
    Mutant("ipc: a connection that the program has closed is not made again", ["peer"], [
        ("if (peer && !ipc_is_open(&peer->socket))", "if (false)")]),
    Mutant("switch: a withdrawal does not wait for a context that was not known", ["insert"], [
        ("context_current(driver); /* so that insert_unmap knows", "(void)0; /* so that insert_unmap knows")]),
    Mutant("pinned: a request waits without end for another context's work", ["shim_host_memory"], [
        ("token->count > 1 ? now_ns() + ORDER_OTHERS_WAIT_NS : UINT64_MAX", "UINT64_MAX")]),
    Mutant("pinned: memory that the program has unregistered stays mapped", ["shim_host_memory"], [
        ("(!result || result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)", "!result")]),
    Mutant("pinned memory: an event of a context that has gone is recorded", ["shim_host_memory"], [
        ("!token->events[entry].event || token->events[entry].life != life", "!token->events[entry].event")]),
    Mutant("kept virtual memory stays through a pause", ["vmm_kept / Kept.test_a_pause_gives_all_back"], [
        ("vmm_kept_trim(change->device);", "", "trim_and_suspend")]),

    # --- memory of other processes at reserved addresses ---
    Mutant("switch: all exporters are asked one after the other", ["insert"], [
        ("while (exporter && !ipc_name_equal(&exporter->station, station))", "while (0)")]),
    Mutant("switch: an exporter that is asked is forgotten with its last import", ["insert"], [
        ("last = !--exporter->uses;", "last = --exporter->uses <= 1;")]),
    Mutant("switch: a withdrawal does not wait", ["insert", "switch / Models.test_the_withdrawal_waits"], [
        ("result = context_wait_all(WAIT_NO_LIMIT, &late);", "result = CUDA_SUCCESS; (void)late;")]),
    Mutant("switch: memory is withdrawn in a capture", ["insert", "switch / Beside.test_a_capture"], [
        ("if (capture_active_now()) return -EBUSY; context_current(driver);", "context_current(driver);")]),
    Mutant("switch: what is not withdrawn counts as away", ["insert", "switch_ends / Faults.test_of_a_withdrawal"], [
        ("state_set(import, rc ? INSERTED : OUTSIDE);", "state_set(import, OUTSIDE);")]),
    Mutant("switch: what is not inserted counts as there", ["insert", "switch_ends / Faults.test_of_an_insert"], [
        ("state_set(import, rc ? OUTSIDE : INSERTED);", "state_set(import, INSERTED);")]),
    Mutant("switch: an import is inserted at two places", ["insert", "switch / Wrong.test_arguments"], [
        ("else if (import->state != OUTSIDE || is_used(at, import->size))", "else if (is_used(at, import->size))")]),
    Mutant("switch: an import is inserted where another one is", ["insert"], [
        ("else if (import->state != OUTSIDE || is_used(at, import->size))", "else if (import->state != OUTSIDE)")]),
    Mutant("switch: an import reaches beyond its range", ["insert"], [
        ("!is_reserved(at, import->size))", "!is_reserved(at, 1))")]),
    Mutant("switch: a place is anywhere in a page", ["insert", "switch / Wrong.test_arguments"], [
        ("if (!import || at % POOL_SEGMENT_UNIT || !is_reserved", "if (!import || !is_reserved")]),
    Mutant("switch: what is inserted is closed", ["insert", "switch / Wrong.test_arguments"], [
        ("rc = !import ? -EINVAL : import->state != OUTSIDE ? -EBUSY : 0;", "rc = !import ? -EINVAL : 0;")]),
    Mutant("switch: two threads withdraw it", ["insert"], [
        ("rc = !import ? -EINVAL : import->state != INSERTED ? -EBUSY : 0;", "rc = !import ? -EINVAL : 0;")]),
    Mutant("switch: a range goes with what is inserted", ["insert", "switch / Wrong.test_arguments"], [
        ("rc = !range ? -EINVAL : is_used(addr, range->size) ? -EBUSY : 0;", "rc = !range ? -EINVAL : 0;")]),
    Mutant("switch: memory that is of no use stays granted", ["insert", "switch_ends / Faults.test_of_an_import"], [
        ("if (rc) { let_go(import); return rc; } *ret_size", "if (rc) { free(import); return rc; } *ret_size")]),
    Mutant("switch: an exporter that has just ended is an error without a name", ["insert", "switch_ends / Deaths.test_the_exporter_while_it_is_inserted"], [
        ("rc == -ECONNREFUSED || rc == -ECONNRESET || rc == -EPIPE ?", "rc == -ECONNREFUSED ?")]),
    Mutant("switch: memory that begins elsewhere is taken", ["insert", "switch / Wrong.test_blocks_that_are_not_exported"], [
        ("if (grant->how != IPC_DESCRIPTOR || grant->offset ||", "if (grant->how != IPC_DESCRIPTOR ||")]),
    Mutant("switch: a mapping without access stays", ["switch_ends / Faults.test_of_an_insert"], [
        ("if (!result && (result = driver->cuMemSetAccess(addr, size, &access, 1))) driver->cuMemUnmap(addr, size); return result; }",
         "if (!result) result = driver->cuMemSetAccess(addr, size, &access, 1); return result; }")]),
]
