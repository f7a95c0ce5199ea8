# SPDX-License-Identifier: Apache-2.0
"""More mutants of shim/context/: memory of other processes, paused and pinned memory."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("pause: memory that is away counts as free twice once its segment goes", ["shim_pause"], [
        ("unmap(context, mapping); device_free_less(context, size);", "unmap(context, mapping);")]),
    Mutant("pause: devices are given access to memory that is away", ["shim_pause"], [
        ("if (found && !mapping.away &&", "if (found &&")]),
    Mutant("pause: blocks of two segments are copied as one", ["shim_pause"], [
        ("if (last && last->segment == segment &&", "if (last &&")]),
    Mutant("pause: a check does not look whether memory is exported", ["shim_pause"], [
        ("pool_has_withdrawn(context->pool, BACKEND_VMM) || is_exported(context->device)", "pool_has_withdrawn(context->pool, BACKEND_VMM)")]),
    Mutant("pause: another device's exported memory stays where it is", ["pause / Meanwhile.test_another_device_exports"], [
        ("return owner->device != device;", "return false;")]),
    Mutant("ipc: blocks whose descriptor is being closed are not counted", ["ipc_table"], [
        ("ret_counts->blocks = atomic_load(&ipc_table_blocks) - left_out;",
         "for (const struct shared *one = table.segments; one; one = one->next) ret_counts->blocks += one->blocks; ret_counts->blocks -= left_out;")]),
    Mutant("pause: memory that is exported since the check is taken away", ["shim_pause"], [
        ("if (!rc && is_exported(change->device)) rc = -EBUSY;", "")]),
    Mutant("ipc: with a segment go the blocks of all", ["ipc_table"], [
        ("(!segment || block->segment->as.addr == segment)", "true")]),
    Mutant("ipc: what the library has mapped stays when the importer's context ends", ["import"], [
        ("!(import->lost && mapping->how == IPC_NATIVE)", "!import->lost")]),
    Mutant("ipc: of two contexts with a segment at one address one knows its blocks", ["import"], [
        ("!import && i && addr - sorted->at[i - 1]->addr", "!mapping && i && addr - sorted->at[i - 1]->addr")]),
    Mutant("ipc: the library answers for a segment that the driver has opened, too", ["import"], [
        ("if (mapping && !import && ipc_native_is_open(mapping->addr))", "if (false)")]),
    Mutant("ipc: a segment that was opened twice past the library is closed once", ["import"], [
        ("if (*at && !--(*at)->opens) {", "if (*at) {")]),
    Mutant("ipc: an exporter may say two sizes of one segment", ["import"], [
        ("if (mapping && (mapping->size != grant->segment_size ||", "if (mapping && (false ||")]),
    Mutant("ipc: the end of an importer's context is not noticed", ["import"], [
        ("context_current(driver); /* so that its end is noticed;", "/*")]),
    Mutant("ipc: a late answer is taken for that to a later request", ["peer"], [
        ("if (!rc && ret_grant->number == peer->number)", "if (!rc)")]),
    Mutant("ipc: a connection that the program has closed is not made again", ["peer"], [
        ("if (ipc_is_open(&peer->socket)) return 0;", "if (peer->socket.fd >= 0) return 0;")]),
    Mutant("ipc: a connection that the exporter has ended is not made again", ["peer"], [
        ("if (!connected || (rc != -EPIPE && rc != -ECONNRESET))", "if (true)")]),
    Mutant("ipc: an exporter that refuses a new connection is connected to once more", ["peer"], [
        ("if (!connected || (rc != -EPIPE && rc != -ECONNRESET))", "if (rc != -EPIPE && rc != -ECONNRESET)")]),

    # The variable is static so that what it holds is certain: another exporter's connection.
    Mutant("ipc: without a descriptor to be had, an exporter gets another one's connection", ["peer"], [
        ("struct ipc_descriptor socket; int rc;", "static struct ipc_descriptor socket; int rc;"),
        ("ret->fd = -1; return fd < 0 ? -errno : ipc_keep(file_aside(fd), ret);", "return fd < 0 ? -errno : ipc_keep(file_aside(fd), ret);")]),

    # --- requests to exporters ---
    Mutant("ipc: all wait for an exporter that is asked", ["import", "ipc_beside / Exporter.test_one_that_is_stopped_is_waited_for_by_whoever_asks_it"], [
        ("unclaim(cancel); result = again ? CUDA_SUCCESS : open_new(driver, ticket, context, ret_addr);",
         "result = again ? CUDA_SUCCESS : open_new(driver, ticket, context, ret_addr); unclaim(cancel);"),
        ("claim(&cancel); again = open_again(&ticket->block, context, ret_addr); /*", "cancel = 0; again = open_again(&ticket->block, context, ret_addr); /*"),
        ("unclaim(cancel); if (fd >= 0)", "if (fd >= 0)")]),
    Mutant("ipc: a block that two threads open at once is entered twice", ["import"], [
        ("again = open_again(&ticket->block, context, ret_addr); /* opened", "again = false; /* opened")]),
    Mutant("ipc: of two grants of a block one is kept for ever", ["import"], [
        ("if (!rc && (again || result))", "if (!rc && result && !again)")]),
    Mutant("ipc: a grant whose memory cannot be mapped is kept for ever", ["import"], [
        ("if (!rc && (again || result))", "if (!rc && again)")]),
    Mutant("ipc: a request that fails fails for a block that is open by now", ["import"], [
        ("if (again) return CUDA_SUCCESS; if (rc)", "if (again && !rc) return CUDA_SUCCESS; if (rc)")]),
    Mutant("ipc: a context that ends while a segment is mapped keeps it", ["import"], [
        ("if (imports.mapping == handle)", "if (false)")]),
    Mutant("ipc: two threads ask an exporter at once", ["peer"], [
        ("while (peer->busy && !rc)", "while (false)"), ("if (peer->busy) return -ETIMEDOUT;", "")]),
    Mutant("ipc: a thread waits without end for another one that asks", ["peer"], [
        ("while (peer->busy && !rc)", "while (peer->busy)")]),
    Mutant("ipc: whoever waits to ask an exporter is not woken", ["peer"], [
        ("peer->busy = false; pthread_cond_signal(&peer->idle);", "peer->busy = false;")]),
    Mutant("ipc: a request that fails leaves its exporter on the list", ["peer"], [
        ("peer->uses -= rc != 0;", "")]),
    Mutant("ipc: exporters are not told apart", ["peer"], [
        ("while (peer && !ipc_name_equal(&peer->station, station))", "while (false)")]),
    Mutant("ipc: an exporter is asked over a connection for each request", ["peer"], [
        ("while (peer && !ipc_name_equal(&peer->station, station))", "while (peer)")]),
    Mutant("ipc: the kernel's having no memory counts as the end of an exporter", ["peer"], [
        ("return rc != -EAGAIN && rc != -ENOBUFS && rc != -ENOMEM;", "return rc != -EAGAIN;")]),
    Mutant("ipc: an exporter that has ended is to hear of closes", ["peer"], [
        ("return rc != -EAGAIN && rc != -ENOBUFS && rc != -ENOMEM;", "return !rc;")]),
    Mutant("ipc: closes that an exporter has had no room for wait for the next call", ["ipc_beside / Exporter.test_one_that_is_stopped_hears_of_every_close"], [
        ("if (background_start()) background_wake(); } static void segment_added", "} static void segment_added")]),
    Mutant("ipc: the background thread is not told of closes that are left", ["peer"], [
        ("if (is_new) context_events.closes_left();", "")]),
    Mutant("ipc: the background thread does not look again whether there is room", ["peer"], [
        ("return atomic_load(&peers.unsaid) ? now + AGAIN_NS : UINT64_MAX;", "return UINT64_MAX;")]),
    Mutant("ipc: what is said later counts as yet to be said", ["peer"], [
        ("atomic_store(&peers.unsaid, unsaid);", "")]),
    Mutant("ipc: a child of fork keeps the connection of a request", ["peer"], [
        ("for (struct ipc_peer *peer = peers.first; peer; peer = peer->next) ipc_leave(&peer->socket);", "")]),

    Mutant("switch: a range whose return is refused can be given up no more", ["insert"], [
        ('rc = refused(result, "given back", addr, range->size); range_enter(range);',
         'rc = refused(result, "given back", addr, range->size);')]),
    Mutant("switch: a withdrawal does not wait for a context that was not known", ["insert"], [
        ("context_current(driver); /* so that insert_unmap knows", "(void)0; /* so that insert_unmap knows")]),
    Mutant("pinned: a request waits without end for another context's work", ["shim_host_memory"], [
        ("token->count > 1 ? now_ns() + ORDER_OTHERS_WAIT_NS : UINT64_MAX", "UINT64_MAX")]),
    Mutant("pinned: memory that the program has unregistered stays mapped", ["shim_host_populate"], [
        ("(!result || result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)", "!result")]),
    Mutant("pinned memory: an event of a context that has gone is recorded", ["shim_host_memory"], [
        ("!token->events[entry].event || token->events[entry].life != life", "!token->events[entry].event")]),
    Mutant("kept virtual memory stays through a pause", ["vmm_kept / Kept.test_a_pause_gives_all_back"], [
        ("vmm_kept_trim(change->device);", "", "trim_and_suspend")]),

    # --- memory of other processes at reserved addresses ---
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
    Mutant("a context that goes waits for the driver's free of a segment", ["shim_segments"], [
        ("pin_sleep(context); result = driver->cuMemFree_v2(addr);", "result = driver->cuMemFree_v2(addr);")]),
    Mutant("a context without room for an entry ends the program", ["shim_context"], [
        ("context = context_entry_new(); if (context) { context->pool = NULL; context->primary = false;",
         "context = context_entry_new(); if (true) { context->pool = NULL; context->primary = false;")]),
    Mutant("pinned: the kernel's mask has a bit for one node more", ["shim_host_populate"], [
        ("!own_node(&node) || node >= NODES_MAX)", "!own_node(&node) || node > NODES_MAX)")]),
    Mutant("pause: neighbours are asked for less than is away", ["pause / Failures.test_a_neighbour_gives_idle_memory_back"], [
        ("for (size_t k = 0; k < context->paused.segment_count; k++) if ((mapping = vmm_find(context->paused.segments[k])) && mapping->away)",
         "for (size_t k = 1; k < context->paused.segment_count; k++) if ((mapping = vmm_find(context->paused.segments[k])) && mapping->away)")]),
    Mutant("a free that waited on the host is not counted", ["shim_order"], [
        ("if (wait && !result) policy_waited_add(&context->policy);", "(void)wait;", "order_free")]),
    Mutant("filled memory that is in order is warned of", ["shim_enter"], [
        ("if (result && result != CUDA_ERROR_NOT_READY)", "if (1)", "context_filled")]),
    Mutant("NCCL's refusal in a failed context counts as out of memory", ["shim_nccl_memory"], [
        ("return order_is_sticky(result) ? result : CUDA_ERROR_OUT_OF_MEMORY;", "return CUDA_ERROR_OUT_OF_MEMORY;")]),
    Mutant("NCCL's refusal has the error of a question that failed", ["shim_nccl_memory"], [
        ("return order_is_sticky(result) ? result : CUDA_ERROR_OUT_OF_MEMORY;",
         "return result ? result : CUDA_ERROR_OUT_OF_MEMORY;")]),
    Mutant("NCCL keeps memory, and nobody is told", ["shim_nccl_memory"], [
        ("if (result) log_once(LOG_WARN, \"NCCL did not take back", "if (0) log_once(LOG_WARN, \"NCCL did not take back")]),
    Mutant("a capture waits for ever for pinned memory that goes", ["shim_host_memory"], [
        ("atomic_store(&slot->waits, true);", ";", "give_back")]),
    Mutant("pinned memory: the last part is not touched", ["shim_host_populate"], [
        ("if (!part->is_started)", "if (0)")]),
    Mutant("kept virtual memory is looked at without a pause", ["shim_vmm_kept"], [
        ("atomic_store(&kept.tick_at, now + PARTIAL_NS);", "atomic_store(&kept.tick_at, now - PARTIAL_NS);")]),
    Mutant("pause: a device whose paused contexts have ended is still paused", ["shim_pause"], [
        ("if (now == PAUSED && any_suspended(device))", "if (now == PAUSED || any_suspended(device))")]),
    Mutant("pause: larger gaps are copied", ["shim_pause"], [
        ("#define GAP_MAX ((size_t)64 << 10)", "#define GAP_MAX ((size_t)65 << 10)")]),
    Mutant("pause: one piece of host memory too many", ["shim_pause"], [
        ("const size_t count = (bytes + CHUNK - 1) / CHUNK;", "const size_t count = (bytes + CHUNK) / CHUNK;")]),
    Mutant("ipc: without host memory a segment is described for ever", ["ipc_table"], [
        ("!full && !shared && !segment->size", "!full && !segment->size")]),
    Mutant("ipc: a segment goes without the blocks of its contexts", ["ipc_table"], [
        ("if ((!owner || block->owner == owner) &&", "if ((block->owner == owner) &&")]),
    Mutant("ipc: a driver that does not name its cards", ["shim_vmm_shared"], [
        ("if (driver && driver->cuDeviceGetUuid_v2 && !driver", "if (driver && !driver")]),
    Mutant("ipc: a mapping takes others out of the books", ["import"], [
        ("while (*at != mapping)", "while (0)")]),
    Mutant("ipc: of two mappings at one address the other one stays", ["import"], [
        ("while (i && sorted->at[i - 1] != mapping && sorted->at[i - 1]->addr == mapping->addr)", "while (0)")]),
    Mutant("ipc: a block is closed after its context has ended", ["import"], [
        ("imports.busy = true; lost_end();", "imports.busy = true;")]),
    Mutant("memory that could not be sent away: a device that has come meanwhile does not reach it", ["shim_pause"], [
        ("if (access_give_peers(driver, mapping, peers))", "if (access_give_peers(driver, mapping, peers & 1))")]),
    Mutant("pinned: no capture waits any more for calls in the slot by which memory has gone back", ["shim_host_memory"], [
        ("atomic_store(&slot->waits, false); order_slot_give(slot, CUDA_ERROR_NOT_READY); if (result !=",
         "order_slot_give(slot, CUDA_ERROR_NOT_READY); if (result !=")]),
    Mutant("ipc: a descriptor stays open each time that a block has been granted too often", ["ipc_table"], [
        ("if (fd >= 0) file_drop(fd); return IPC_FULL;", "return IPC_FULL;")]),
    Mutant("ipc: a block that is open in another context is open in this one", ["sweep_imports"], [
        ("!(ipc_name_equal(&import->block, block) && import->mapping->context == context))", "!(ipc_name_equal(&import->block, block)))")]),
    Mutant("ipc: a context that ends while a segment is mapped in it keeps it", ["import"], [
        ("if (imports.mapping == handle) imports.mapping = NULL;", "")]),
    Mutant("ipc: a segment that changed its size is the one that is mapped", ["import"], [
        ("if (mapping && (mapping->size != grant->segment_size || mapping->how != (enum ipc_how)grant->how))", "if (mapping && mapping->how != (enum ipc_how)grant->how)")]),
    Mutant("ipc: of two mappings at an address the wrong one goes", ["import"], [
        ("while (i && sorted->at[i - 1] != mapping && sorted->at[i - 1]->addr == mapping->addr) i--;", "")]),
    Mutant("ipc: the handle that a descriptor was made from is kept", ["sweep_imports"], [
        ("real_next(cuMemRelease)(handle); if (result) { *ret_fd = -1;", "if (result) { *ret_fd = -1;")]),
    Mutant("ipc: a block is held by an importer that did not hear of it", ["sweep_processes"], [
        ("if (grant.status == IPC_GRANTED) ipc_table_close(&connection->holder, &request->block);", "")]),
    Mutant("ipc: a block is exported that was freed meanwhile", ["sweep_exports"], [
        ("if (!rc && !pool_is_live(base)) {", "if (0) {")]),
    Mutant("ipc: a descriptor of earlier memory is kept for a segment", ["shim_vmm_memory"], [
        ("if (mapping && mapping->number == number && mapping->kept.fd < 0 &&", "(void)number; if (mapping && mapping->kept.fd < 0 &&")]),
    Mutant("vmm: a way between devices that opens later is one to later memory only", ["shim_vmm_memory"], [
        ("if (are_two(device, from) && (atomic_fetch_and(&unreachable[device], ~bit) & bit)) atomic_fetch_and(&settled[device], ~bit);", "if (are_two(device, from)) atomic_fetch_and(&unreachable[device], ~bit);")]),
]
