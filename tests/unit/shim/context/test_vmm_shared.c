/* SPDX-License-Identifier: Apache-2.0 */
/* test_vmm_shared.c - virtual memory between processes: memory of another process that is opened
 * (shim/context/ipc_map.c), and the answers to importers while segments go; segments that go beside a free in the
 * driver. test_vmm_memory.c has segments and their descriptors. */

#include "context/ipc_map.h"
#include "context/ipc_server.h"
#include "vmm_driver.h"

#define VMM ORDERED " CUPOOL_BACKEND=vmm"

static CUresult import_handle(CUmemGenericAllocationHandle *ret, void *shared, CUmemAllocationHandleType type)
{
    *ret = ++vmm.made;
    return CUDA_SUCCESS;
}

/* Another process's memory of device 0 is opened in a context of device 1, which gets access once; natively, a device
 * without a way is an error of each open. */
ISOLATED_CASE(test_imported_elsewhere, .environment = VMM)
{
    struct ipc_grant grant = {.how = IPC_DESCRIPTOR, .segment_size = SEGMENT};
    uint64_t addr = 0;
    CUuuid uuid;

    driver_ready();
    (void)pooled(0);
    fake.next_of[REAL_cuMemImportFromShareableHandle] = (void *)import_handle;
    fake.next_of[REAL_cuIpcOpenMemHandle_v2] = (void *)import_handle; /* is looked up, not called */
    assert_int_equal(fake.driver.cuDeviceGetUuid_v2(&uuid, 0), 0);
    memcpy(grant.card, uuid.bytes, sizeof(grant.card));
    fake_current(fake_context(1));
    assert_int_equal(ipc_map_open(&grant, 0, &addr), CUDA_SUCCESS);
    assert_int_equal(mapping_at(addr)->access, 3);
    assert_int_equal(vmm.calls, 2);
    fake_current(fake_context(2));
    vmm.no_way = 4;
    for (int i = 0; i < 2; i++)
        assert_int_equal(ipc_map_open(&grant, 0, &addr), CUDA_ERROR_INVALID_DEVICE);
    assert_int_equal(mappings_count(false), 1);
}

static CUresult next_handle(CUipcMemHandle *handle, CUdeviceptr addr)
{
    memset(handle, 7, sizeof(*handle));
    return CUDA_SUCCESS;
}

/* An older driver does not say which card it is. */
ISOLATED_CASE(test_no_name_of_the_card, .environment = ORDERED)
{
    static const unsigned char none[sizeof(((struct ipc_segment *)0)->card)];
    struct ipc_segment as;
    struct context *context;

    driver_ready();
    context = pooled(0);
    fake.next_of[REAL_cuIpcGetMemHandle] = (void *)next_handle;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ipc_map_describe(context, SEGMENT, SEGMENT, &as), CUDA_SUCCESS);
        assert_int_equal(as.how, IPC_NATIVE);
        assert_int_equal(as.handle[0], 7);
        assert_int_equal(memcmp(as.card, none, sizeof(none)) == 0, i);
        fake.driver.cuDeviceGetUuid_v2 = NULL;
    }
}

static struct ipc_descriptor client;
static unsigned int unmapped, answered;

/* After how many unmaps the importer has its answer. */
static void answer_look(void)
{
    struct ipc_grant grant;
    int fd;

    unmapped++;
    if (!answered && ipc_receive(&client, &grant, sizeof(grant), &fd) == (ssize_t)sizeof(grant))
        answered = unmapped;
}

/* While many segments go with decay, importers are answered. */
ISOLATED_CASE(test_answers_during_decay, .environment = VMM)
{
    struct context *context = with_vmm();
    struct ipc_request request;
    struct ipc_name station;
    uint64_t addrs[8];
    bool is_new;

    for (unsigned int i = 0; i < COUNT(addrs); i++)
        addrs[i] = segment(context);
    for (unsigned int i = 0; i < COUNT(addrs); i++)
        go(context, addrs[i]);
    vmm.over = 99;
    vmm.on_unmap = answer_look;
    assert_int_equal(ipc_server_begin(&station, &is_new), 0);
    assert_int_equal(ipc_connect(&station, 0, &client), 0);
    ipc_request_make(&request, IPC_OPEN, 1, &station); /* of a block that there is not */
    assert_int_equal(ipc_send(&client, &request, sizeof(request), -1), 0);
    context_decay_all(0);
    assert_int_equal(unmapped, COUNT(addrs));
    assert_int_equal(answered, 2);
}

static CUevent event_of_last_free(const struct context *context)
{
    unsigned int i = 0;

    while (!atomic_load(&context->batches[i].event))
        i++;
    return atomic_load(&context->batches[i].event);
}

/* A free in the driver would hold up the record of an event. Beside it a segment goes when the work before all frees is
 * over, or gets its event once that free is. */
VMM_CASE(test_beside_a_free)
{
    const uint64_t over = segment(context), later = segment(context);

    free_one(context);
    atomic_store(&context->freeing, 1);
    go(context, over);
    assert_non_null(mapping_at(over));
    assert_true(arrivals_collect(context, 0));
    assert_null(mapping_at(over));
    event_at[(struct fake_event *)event_of_last_free(context) - fake.events] = 100;
    go(context, later);
    assert_false(arrivals_collect(context, 0));
    assert_int_equal(vmm.recorded, 0);
    atomic_store(&context->freeing, 0);
    assert_false(arrivals_collect(context, 0));
    assert_int_equal(vmm.recorded, 1);
    vmm.over = 1;
    assert_true(arrivals_collect(context, 0));
    assert_null(mapping_at(later));
}

/* A free in the driver that begins while the event is recorded waits for that. */
VMM_CASE(test_free_begins_beside_a_departure)
{
    const uint64_t at_once = segment(context), later = segment(context);

    free_one(context);
    fake_before(FN(cuEventRecord), free_begins, context);
    go(context, at_once);
    assert_left(context, 1);
    event_at[(struct fake_event *)event_of_last_free(context) - fake.events] = 100;
    atomic_store(&context->freeing, 1);
    go(context, later);
    atomic_store(&context->freeing, 0);
    vmm.over = 1;
    assert_true(arrivals_collect(context, 0));
    assert_null(mapping_at(at_once));
    assert_left(context, 2);
}
