/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_vmm_memory.c - shim/context/vmm_memory.c and vmm_map.c: segments that come and go by virtual memory calls, which
 * are counted here, so that nothing is left of one that failed half-way; and which devices reach them.
 *
 * tests/behaviour has the backend on the simulated GPU.
 */
#include <fcntl.h>

#include "base/descriptor.h"
#include "base/process.h"
#include "context/capture_history.h"
#include "context/pause.h"
#include "cupool.h"
#include "vmm_driver.h"

#define VMM ORDERED " CUPOOL_BACKEND=vmm"

VMM_CASE(test_comes)
{
    const uint64_t addr = segment(context);

    assert_int_equal(addr, 0x600000000000);
    assert_int_equal(vmm.types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC);
    assert_int_equal(vmm.rdma, 1);
    assert_int_equal(vmm.released, 1); /* the mapping keeps the memory */
    assert_int_equal(mapping_at(addr)->access, 1);
    assert_string_equal(fake_log(), "");
}

/* A device has a fabric, and the machine no service for it. */
VMM_CASE(test_abilities)
{
    vmm.refused_types = CU_MEM_HANDLE_TYPE_FABRIC;
    segment(context);
    assert_int_equal(vmm.types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    assert_int_equal(vmm.rdma, 1);
    assert_int_equal(fake_calls(FN(cuMemCreate)), 2);
    segment(context);
    assert_int_equal(fake_calls(FN(cuMemCreate)), 3); /* it has learned */
    vmm.refused_types |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    segment(context);
    assert_int_equal(vmm.types, 0);
    assert_non_null(strstr(fake.said, "3:device 0: the driver makes memory with handle types 0x1, for RDMA alone"));
}

/* Nothing is left of a segment that could not be had. */
ISOLATED_CASE(test_comes_not, .environment = VMM)
{
    static const size_t functions[] = {FN(cuMemAddressReserve), FN(cuMemCreate), FN(cuMemMap), FN(cuMemSetAccess)};
    struct context *context = with_vmm();
    uint64_t addr = 1;

    for (size_t i = 0; i < COUNT(functions); i++) {
        fake_fail(functions[i], CUDA_ERROR_UNKNOWN, 1);
        assert_int_equal(segment_ops.alloc(context, BACKEND_VMM, SEGMENT, &addr), -EIO);
        fake_fail(functions[i], CUDA_ERROR_OUT_OF_MEMORY, 1);
        assert_int_equal(segment_ops.alloc(context, BACKEND_VMM, SEGMENT, &addr), -ENOMEM);
        assert_int_equal(mappings_count(false), 0);
        assert_int_equal(vmm.made, vmm.released);
    }
    assert_int_equal(addr, 1);
    /* The context's own error, which these calls do not tell. */
    fake_fail(FN(cuMemGetInfo_v2), CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    assert_int_equal(segment_ops.alloc(context, BACKEND_VMM, SEGMENT, &addr), -EIO);
    assert_int_equal(addr, 1);
    fake_fail(FN(cuMemRelease), CUDA_ERROR_UNKNOWN, 1); /* asked twice */
    segment(context);
    assert_int_equal(vmm.made, vmm.released);
    assert_string_equal(fake.said, "");
    fake_fail(FN(cuMemRelease), CUDA_ERROR_UNKNOWN, 2);
    segment(context);
    assert_non_null(strstr(fake.said, "2:the driver did not take back a handle"));
}

/* It stays until the event is over that was recorded behind the frees, and nobody waits for that here. */
VMM_CASE(test_goes)
{
    const uint64_t first = segment(context), second = segment(context);
    const unsigned int arrivals = context_arrivals();
    size_t arriving = 0;

    go(context, first);
    go(context, second);
    assert_string_equal(fake_log(), "stream:c0,1 event:c0,2 event:c0,2");
    assert_false(segment_ops.collected(context, &arriving));
    assert_int_equal(arriving, 2 * SEGMENT);
    assert_int_equal(mappings_count(true), 2);
    assert_int_equal(context_arrivals(), arrivals);
    vmm.over = 1;
    assert_false(segment_ops.collected(context, &arriving));
    assert_int_equal(arriving, SEGMENT);
    assert_null(mapping_at(first));
    assert_true(mapping_at(second)->mapped);
    assert_int_equal(context_arrivals(), arrivals + 1);
    vmm.over = 2;
    device_collect(0);
    assert_true(segment_ops.collected(context, &arriving));
    assert_int_equal(mappings_count(false), 0);
    go(context, segment(context)); /* with an event that was used before */
    assert_string_equal(fake_log(), "");
    assert_string_equal(fake.said, "");
    assert_true(fake_thread_is_clean(fake_context(0)));
}

VMM_CASE(test_goes_not)
{
    const uint64_t first = segment(context), second = segment(context), third = segment(context);

    fake_fail(FN(cuStreamCreate), CUDA_ERROR_UNKNOWN, 1);
    go(context, segment(context));
    assert_string_equal(fake_log(), "stream:c0,1 sync:c0");
    fake_fail(FN(cuEventRecord), CUDA_ERROR_UNKNOWN, 1);
    go(context, first);
    assert_string_equal(fake_log(), "stream:c0,1 event:c0,2 sync:c0"); /* then the host waits */
    assert_null(mapping_at(first));
    fake_fail(FN(cuEventRecord), CUDA_ERROR_UNKNOWN, 1);
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_UNKNOWN, 2);
    go(context, second);
    assert_true(mapping_at(second)->mapped);
    assert_non_null(strstr(fake.said, "cannot be waited for, and go with their context"));
    vmm.over = 9;
    fake_fail(FN(cuMemUnmap), CUDA_ERROR_UNKNOWN, 1); /* asked twice */
    go(context, third);
    device_collect(0);
    assert_null(mapping_at(third));
    fake_fail(FN(cuMemUnmap), CUDA_ERROR_UNKNOWN, 2);
    go(context, segment(context));
    device_collect(0);
    assert_non_null(strstr(fake.said, "the driver did not take back 2097152 bytes"));
    assert_int_equal(context->departures.put, context->departures.gone);
}

/* An event that cannot be asked about is asked about later, and nobody waits for that. */
VMM_CASE(test_query_fails)
{
    const uint64_t addr = segment(context), start = now();

    go(context, addr);
    vmm.over = 1;
    vmm.query = CUDA_ERROR_UNKNOWN;
    elsewhere(free_one, context);
    segment_ops.collect(context);
    assert_int_equal(now(), start);
    assert_true(mapping_at(addr)->mapped);
    vmm.query = CUDA_SUCCESS;
    segment_ops.collect(context);
    assert_null(mapping_at(addr));
}

static void work_moves(void *arg)
{
    vmm.over = fake.relaxes >= *(unsigned int *)arg ? vmm.recorded : 0;
}

/* A request waits for the memory all the same: it would be refused. */
VMM_CASE(test_query_fails_once)
{
    const uint64_t addr = segment(context);
    unsigned int needed = 5;

    go(context, addr);
    fake.relax = work_moves;
    fake.relax_arg = &needed;
    fake_fail(FN(cuEventQuery), CUDA_ERROR_UNKNOWN, 1);
    segment_ops.collect(context);
    assert_null(mapping_at(addr));
}

/* As for the driver's own memory: half a minute for this thread's frees, 0.3 s for others'. */
ISOLATED_CASE(test_waits, .environment = VMM)
{
    const bool others = *state != NULL;
    struct context *context = with_vmm();
    const uint64_t addr = segment(context);
    unsigned int needed = others ? 200 : 29000;
    uint64_t start;

    go(context, addr);
    fake.relax = work_moves;
    fake.relax_arg = &needed;
    if (others)
        elsewhere(free_one, context);
    start = now();
    segment_ops.collect(context);
    assert_int_equal(now() - start, needed * MS);
    assert_null(mapping_at(addr));
    needed = UINT32_MAX;
    vmm.over = 0;
    go(context, segment(context));
    start = now();
    segment_ops.collect(context);
    assert_int_equal(now() - start, (others ? 300 : 30000) * MS);
    start = now();
    segment_ops.collect(context); /* in vain before */
    assert_int_equal(now() - start, 30 * MS);
}
ISOLATED_AGAIN(test_waits, others, .environment = VMM, .row = "others")

/* The memory does not go with the context by itself. */
ISOLATED_CASE(test_context_ends, .environment = VMM)
{
    struct context *context = with_vmm(), *other = pooled(1);
    const uint64_t departing = segment(context), stays = segment(other);

    go(context, segment(context));
    go(context, departing);
    vmm.over = 1;
    device_collect(0); /* the first one's event is unused now */
    segment(context);
    context_gone(context_leaving(fake_context(0)), true);
    assert_int_equal(mappings_count(false), 1);
    assert_true(mapping_at(stays)->mapped);
    assert_int_equal(arrivals_outstanding(context), 0);
    fake.contexts[0].id = 77;
    context = pooled(0); /* the entry is used again, its events are not */
    fake_log();
    go(context, segment(context));
    assert_string_equal(fake_log(), "stream:c0,1 event:c0,2");
}

VMM_CASE(test_context_stays)
{
    segment(context);
    context_gone(context_leaving(fake_context(0)), false);
    assert_int_equal(mappings_count(true), 1);
}

/* Where a request was refused meanwhile it is made again: there is memory now. */
VMM_CASE(test_pause)
{
    unsigned int arrivals = (block(context, 1000), context_arrivals());
    uint64_t bytes = 0;

    assert_int_equal(pause_device(0, /* keep: */ false, now() + SECOND_NS, &bytes), 0);
    assert_int_equal(bytes, SEGMENT);
    assert_int_equal(context_arrivals(), arrivals + 1);
    assert_int_equal(mappings_count(true), 0);
    arrivals = context_arrivals();
    fake_fail(FN(cuMemCreate), CUDA_ERROR_OUT_OF_MEMORY, 1);
    process_start();
    assert_int_equal(cupool_lib_resume(0), -ENOMEM);
    assert_non_null(strstr(fake.said, "2:device 0 is not resumed: "));
    assert_int_equal(context_arrivals(), arrivals + 1);
    assert_int_equal(resume_device(0, &bytes), 0);
    assert_int_equal(mappings_count(true), 1);
}

/* --- other devices --- */

ISOLATED_CASE(test_reach, .environment = VMM)
{
    struct context *context = with_vmm(), *other;
    const uint64_t before = segment(context);
    uint64_t after, far;

    assert_int_equal(mapping_at(before)->access, 1);
    other = pooled(1); /* its copies reach the memory natively */
    assert_int_equal(mapping_at(before)->access, 3);
    after = segment(context);
    assert_int_equal(mapping_at(after)->access, 3);
    fake_current(fake_context(1));
    far = segment(other);
    fake_current(fake_context(0));
    assert_int_equal(mapping_at(far)->access, 3);
    vmm_reach(&fake.driver, 0, 2); /* by a call of a context that is not pooled */
    assert_int_equal(mapping_at(before)->access, 7);
    assert_int_equal(mapping_at(far)->access, 3);
    assert_int_equal(mapping_at(segment(context))->access, 7);
    vmm.calls = 0;
    vmm_reach(&fake.driver, 0, 2);
    vmm_reach(&fake.driver, 0, 0);
    vmm_reach(&fake.driver, -1, 0);
    vmm_reach(&fake.driver, 0, -1);
    assert_int_equal(vmm.calls, 0);
    assert_string_equal(fake.said, "");
}

/* A device without a way to the memory costs one try, and the others get theirs. */
VMM_CASE(test_no_way)
{
    vmm.no_way = 2;
    vmm_reach(&fake.driver, 0, 1);
    vmm_reach(&fake.driver, 0, 2);
    assert_int_equal(mapping_at(segment(context))->access, 5);
    vmm.calls = 0;
    assert_int_equal(mapping_at(segment(context))->access, 5);
    assert_int_equal(vmm.calls, 2);
    assert_non_null(strstr(fake.said, "3:device 1 has no way to the memory of device 0 (error 101)\n"));
}

/* The driver has a limit of peers: the device is one of those that have no way then, and memory is made without it,
 * until the driver gives it access by peers. */
VMM_CASE(test_too_many_peers)
{
    const uint64_t before = segment(context);
    uint64_t after;

    fake_fail(FN(cuMemSetAccess), CUDA_ERROR_TOO_MANY_PEERS, 2);
    vmm_reach(&fake.driver, 0, 1);
    after = segment(context);
    assert_int_equal(mapping_at(after)->access, 1);
    assert_non_null(strstr(fake.said, "device 1 has no way to the memory of device 0"));
    vmm.calls = 0;
    vmm_reach(&fake.driver, 0, 1);
    assert_int_equal(vmm.calls, 0);
    assert_false(vmm_reaches(0, 1));
    vmm_reach_anew(&fake.driver, 0, 1);
    assert_true(mapping_at(before)->access == 3 && mapping_at(after)->access == 3 && vmm_reaches(0, 1));
    assert_int_equal(mapping_at(segment(context))->access, 3);
    vmm.calls = 0;
    vmm_reach_anew(&fake.driver, 0, 1);
    assert_int_equal(vmm.calls, 0);
    assert_false(vmm_reaches(0, 0) || vmm_reaches(-1, 0) || vmm_reaches(0, 64));
}

VMM_CASE(test_reach_fails)
{
    const uint64_t addr = segment(context);
    uint64_t other = 1;

    fake_fail(FN(cuMemSetAccess), CUDA_ERROR_UNKNOWN, 2);
    vmm_reach(&fake.driver, 0, 1);
    assert_int_equal(mapping_at(addr)->access, 1);
    assert_non_null(strstr(fake.said, "2:device 1 did not get access to all memory of device 0"));
    vmm_reach(&fake.driver, 0, 1);
    assert_int_equal(mapping_at(addr)->access, 3);
    fake_fail_after(FN(cuMemSetAccess), 1, CUDA_ERROR_UNKNOWN, 2); /* of a new one: the driver serves the request */
    assert_int_equal(segment_ops.alloc(context, BACKEND_VMM, SEGMENT, &other), -EIO);
    assert_int_equal(mappings_count(false), 1);
}

/* --- descriptors --- */

/* True if one is kept for the mapping; its memory's number. */
static bool keeps(uint64_t addr, uint64_t *ret_number)
{
    const int fd = vmm_descriptor_get(addr, ret_number);

    return fd >= 0 && close(fd) == 0;
}

/* A descriptor is kept for the memory that it is of, and goes with that. */
VMM_CASE(test_descriptors)
{
    const uint64_t addr = segment(context), other = segment(context);
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    uint64_t number, later;
    int kept;

    assert_false(keeps(addr, &number));
    vmm_descriptor_keep(other, number, fd); /* of other memory */
    assert_false(keeps(other, &later));
    vmm_descriptor_keep(addr, number, fd);
    assert_true(keeps(addr, &later));
    assert_int_equal(later, number);
    kept = vmm_find(addr)->kept.fd;
    assert_int_equal(vmm_send_away(&fake.driver, vmm_find(addr)), 0);
    assert_int_equal(fcntl(kept, F_GETFD), -1);
    assert_int_equal(vmm_bring_back(&fake.driver, vmm_find(addr)), 0);
    vmm_descriptor_keep(addr, number, fd); /* of the memory before */
    assert_false(keeps(addr, &number));
    vmm_descriptor_keep(addr, number, fd);
    assert_true(keeps(addr, &number));
    kept = vmm_find(addr)->kept.fd;
    go(context, addr);
    vmm.over = 9;
    device_collect(0);
    assert_int_equal(fcntl(kept, F_GETFD), -1);
    vmm_descriptor_keep(other, later = vmm_find(other)->number, fd);
    kept = vmm_find(other)->kept.fd;
    vmm_descriptors_forget();
    assert_int_equal(fcntl(kept, F_GETFD), -1);
    assert_false(keeps(other, &later));
    close(fd);
}

/* The program has closed ours and has one of its own under that number, of the same inode. */
VMM_CASE(test_a_number_that_is_the_programs)
{
    const uint64_t addr = segment(context);
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), own = open("/dev/null", O_RDONLY | O_CLOEXEC);
    uint64_t number;
    int kept;

    assert_false(keeps(addr, &number));
    file_mark(fd, number);
    vmm_descriptor_keep(addr, number, fd);
    kept = vmm_find(addr)->kept.fd;
    assert_true(keeps(addr, &number));
    assert_int_equal(dup2(own, kept), kept);
    assert_false(keeps(addr, &number));
    go(context, addr);
    vmm.over = 9;
    device_collect(0);
    assert_int_not_equal(fcntl(kept, F_GETFD), -1);
    close(kept);
    close(own);
    close(fd);
}

/* Programs have few of them. */
VMM_CASE(test_many_descriptors)
{
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    uint64_t addrs[65], number;

    for (unsigned int i = 0; i < COUNT(addrs); i++) {
        addrs[i] = segment(context);
        keeps(addrs[i], &number);
        vmm_descriptor_keep(addrs[i], number, fd);
        assert_int_equal(keeps(addrs[i], &number), i < 64);
    }
    go(context, addrs[7]);
    vmm.over = 9;
    device_collect(0);
    vmm_descriptor_keep(addrs[64], number, fd);
    assert_true(keeps(addrs[64], &number));
    close(fd);
}

/* --- where there is none, and captures --- */

ISOLATED_CASE(test_none, .environment = VMM)
{
    driver_ready();
    vmm.device_without = 0;
    assert_int_equal(pool_kind_get(pooled(0)->pool), BACKEND_CUDA);
    assert_string_equal(fake.said, "2:device 0 has no virtual memory calls (CUPOOL_BACKEND=vmm): its memory comes from "
                                   "cudaMalloc\n");
    assert_int_equal(pool_kind_get(pooled(1)->pool), BACKEND_VMM); /* each device for itself */
    assert_int_equal(backend_find(BACKEND_VMM), -ENOTSUP);
    fake_current(fake_context(1));
    assert_int_equal(backend_find(BACKEND_VMM), 0);
    fake_lack(FN(cuMemSetAccess));
    assert_int_equal(backend_find(BACKEND_VMM), -ENOTSUP);
    fake_current(NULL);
    assert_int_equal(backend_find(BACKEND_VMM), -EAGAIN);
}

ISOLATED_CASE(test_switch, .environment = ORDERED)
{
    struct context *context, *without;

    driver_ready();
    vmm.device_without = 1;
    context = pooled(0);
    without = pooled(1);
    assert_int_equal(pool_kind_get(context->pool), BACKEND_CUDA);
    atomic_store(&context->defers, false);
    assert_false(context_defers(context));
    context_back(BACKEND_VMM);
    assert_int_equal(pool_kind_get(context->pool), BACKEND_VMM);
    assert_true(context_defers(context));
    assert_int_equal(pool_kind_get(without->pool), BACKEND_CUDA);
    context_back(BACKEND_CUDA);
    assert_int_equal(pool_kind_get(context->pool), BACKEND_CUDA);
}

/* NCCL may have registered the memory for a graph, if there is an NCCL that has done anything. */
static const struct captured {
    bool loaded, works, keeps;
    const char *environment;
} captures_of[] = {
    {false, true, false, VMM},
    {true, false, false, VMM},
    {true, true, true, VMM},
    {true, false, true, VMM " CUPOOL_HOOK=runtime"},
    {true, true, false, VMM " NCCL_GRAPH_REGISTER=0"},
};

ISOLATED_OWN(test_captured, captures_of)
{
    static const struct real_nccl copy;
    const struct captured *row = *state;
    const CUstream stream = (driver_ready(), fake_stream(0, 0));
    struct context *context = pooled(0);
    const uint64_t before = segment(context);
    uint64_t after;

    fake.nccl = row->loaded ? &copy : NULL;
    if (row->works)
        nccl_works();
    capture_begun(capture_begin(stream), stream, true);
    capture_check(stream, true, atomic_load(&capture_total));
    after = segment(context);
    go(context, before);
    go(context, after);
    vmm.over = 9;
    device_collect(0);
    assert_int_equal(mapping_at(before) != NULL, row->keeps);
    assert_null(mapping_at(after));
    assert_int_equal(strstr(fake.said, "2:memory that was there when a graph was captured") != NULL, row->keeps);
}
