/* SPDX-License-Identifier: Apache-2.0 */
/* test_vmm_kept.c - shim/context/vmm_kept.c: which calls of the program are for memory that can be kept, what makes two
 * buffers alike, and when CUPOOL_VMM=1 has no effect. The cache itself: tests/unit/pool; a program's calls:
 * tests/e2e/test_vmm_kept.py. */

#include "base/process.h"
#include "context/capture_gate.h"
#include "context/vmm_kept.h"
#include "isolated.h"

#define ON "CUPOOL_VMM=1"

static CUresult unmap(CUdeviceptr addr, size_t size)
{
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    return CUDA_SUCCESS;
}

static void start(void)
{
    fake_start();
    fake.driver.cuMemUnmap = unmap;
    fake.driver.cuMemAddressFree = unmap;
    fake.driver.cuMemRelease = release;
}

/* --- settings and drivers --- */

static const struct setting {
    const char *environment;
    const char *said; /* NULL: it has an effect; "": it is off */
} settings[] = {
    {"CUPOOL_VMM=0", ""},
    {ON, NULL},
    {ON " CUPOOL_HOOK=runtime", ""}, /* calls of the driver are not seen */
    {ON " CUPOOL_ENABLE=0", ""},
    {ON " CUPOOL_DECAY=off", NULL},
    {ON " CUPOOL_REGISTER=1", NULL},
    {ON " CUPOOL_FILL=native", "CUPOOL_FILL"},
    {ON " CUPOOL_FILL=0xff", "CUPOOL_FILL"},
    {ON " CUPOOL_DEBUG=1", "CUPOOL_DEBUG"},
    {ON " CUPOOL_DEBUG=guard", "CUPOOL_DEBUG"},
    {ON " CUPOOL_REGISTER=use", "CUPOOL_REGISTER=use"},
    {ON " CUPOOL_DECAY=0", "CUPOOL_DECAY=0"},
};

ISOLATED_OWN(test_settings, settings)
{
    const struct setting *row = *state;

    start();
    for (unsigned int i = 0; i < 2; i++)
        assert_int_equal(vmm_kept_cache() != NULL, row->said == NULL);
    assert_int_equal(strstr(fake.said, "CUPOOL_VMM=1 has no effect") != NULL, row->said && *row->said);
    assert_non_null(strstr(fake.said, row->said ? row->said : ""));
    assert_ptr_equal(vmm_kept_existing(), vmm_kept_cache());
    /* Nothing has been kept: there is nothing to do, and nothing to wait for. */
    assert_int_equal(vmm_kept_trim(0), 0);
    assert_int_equal(vmm_kept_bytes(0), 0);
    vmm_kept_wait();
    assert_true(vmm_kept_due(0) == UINT64_MAX);
}

static const size_t needed[] = {
    offsetof(struct real_driver, cuMemUnmap),
    offsetof(struct real_driver, cuMemRelease),
    offsetof(struct real_driver, cuMemAddressFree),
};

ISOLATED_ROWS(test_without_a_function, needed, .environment = ON)
{
    start();
    memset((char *)&fake.driver + *(const size_t *)*state, 0, sizeof(void *));
    assert_null(vmm_kept_cache());
    assert_non_null(strstr(fake.said, "the driver lacks the calls"));
}

/* --- which memory --- */

static const CUmemAllocationProp usual = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};

static void prefer_host(CUmemAllocationProp *p)
{
    p->location.type = CU_MEM_LOCATION_TYPE_HOST;
}

static void add_meta_data(CUmemAllocationProp *p)
{
    p->win32HandleMetaData = p;
}

static void set_reserved(CUmemAllocationProp *p)
{
    p->allocFlags.reserved[sizeof(p->allocFlags.reserved) - 1] = 1;
}

static void set_type(CUmemAllocationProp *p)
{
    p->type = CU_MEM_ALLOCATION_TYPE_INVALID;
}

static void set_handles(CUmemAllocationProp *p)
{
    p->requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
}

static void set_device(CUmemAllocationProp *p)
{
    p->location.id = 0;
}

static void set_compression(CUmemAllocationProp *p)
{
    p->allocFlags.compressionType = 1;
}

static void set_rdma(CUmemAllocationProp *p)
{
    p->allocFlags.gpuDirectRDMACapable = 1;
}

static void set_usage(CUmemAllocationProp *p)
{
    p->allocFlags.usage = 1;
}

static const struct change {
    void (*make)(CUmemAllocationProp *p);
    bool kept;
} changes[] = {
    {prefer_host, false}, {add_meta_data, false},  {set_reserved, false}, {set_type, true},  {set_handles, true},
    {set_device, true},   {set_compression, true}, {set_rdma, true},      {set_usage, true},
};

/* Memory that differs in anything is not alike, nor alike with other memory that differs. */
ISOLATED_CASE(test_keys)
{
    CUmemGenericAllocationHandle to = 0;
    struct vmm_key keys[COUNT(changes) + 1];
    CUmemAllocationProp changed;
    unsigned int count = 0;

    assert_true(vmm_kept_key(&to, &usual, 0, &keys[count++]));
    assert_false(vmm_kept_key(NULL, &usual, 0, &keys[count]));
    assert_false(vmm_kept_key(&to, NULL, 0, &keys[count]));
    assert_false(vmm_kept_key(&to, &usual, 1, &keys[count]));
    for (size_t i = 0; i < COUNT(changes); i++) {
        changed = usual;
        changes[i].make(&changed);
        assert_int_equal(vmm_kept_key(&to, &changed, 0, &keys[count]), changes[i].kept);
        count += changes[i].kept;
    }
    for (unsigned int i = 0; i < count; i++)
        for (unsigned int k = 0; k < i; k++)
            assert_memory_not_equal(&keys[i], &keys[k], sizeof(keys[i]));
}

ISOLATED_CASE(test_ranges_and_access)
{
    CUmemAccessDesc access[VMM_ACCESS_MAX + 1];
    struct vmm_access got[VMM_ACCESS_MAX];
    CUdeviceptr to = 0;

    assert_true(vmm_kept_range(&to, 1, 0, 0));
    assert_false(vmm_kept_range(NULL, 1, 0, 0));
    assert_false(vmm_kept_range(&to, 0, 0, 0));
    assert_false(vmm_kept_range(&to, 1, 4096, 0));
    assert_false(vmm_kept_range(&to, 1, 0, 1));
    for (unsigned int i = 0; i <= VMM_ACCESS_MAX; i++)
        access[i] = (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)i},
                                      .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    assert_false(vmm_kept_access(NULL, 1, got));
    assert_false(vmm_kept_access(access, VMM_ACCESS_MAX + 1, got));
    memset(got, 0, sizeof(got));
    assert_true(vmm_kept_access(access, VMM_ACCESS_MAX, got));
    for (unsigned int i = 0; i < VMM_ACCESS_MAX; i++) {
        assert_int_equal(got[i].location, CU_MEM_LOCATION_TYPE_DEVICE);
        assert_int_equal(got[i].id, i);
        assert_int_equal(got[i].flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
}

/* --- the program's calls --- */

#define AT   UINT64_C(0x700000000000)
#define SIZE ((size_t)2 << 20)

static unsigned int unmaps, releases;

static CUresult next_reserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
    *ptr = AT;
    return CUDA_SUCCESS;
}

static CUresult next_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    *handle = 7;
    return CUDA_SUCCESS;
}

static CUresult next_map(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    return CUDA_SUCCESS;
}

static CUresult next_unmap(CUdeviceptr ptr, size_t size)
{
    unmaps++;
    return CUDA_SUCCESS;
}

static CUresult next_release(CUmemGenericAllocationHandle handle)
{
    releases++;
    return CUDA_SUCCESS;
}

static void start_calls(void)
{
    start();
    fake.next_of[REAL_cuMemAddressReserve] = (void *)next_reserve;
    fake.next_of[REAL_cuMemCreate] = (void *)next_create;
    fake.next_of[REAL_cuMemMap] = (void *)next_map;
    fake.next_of[REAL_cuMemUnmap] = (void *)next_unmap;
    fake.next_of[REAL_cuMemRelease] = (void *)next_release;
}

/* The cache forgets a mapping that the driver has undone: the handle's release gives the memory back. */
ISOLATED_CASE(test_unmapped_during_a_capture, .environment = ON)
{
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr ptr = 0;

    start_calls();
    assert_int_equal(cuMemAddressReserve(&ptr, SIZE, 0, 0, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemCreate(&handle, SIZE, &usual, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemMap(ptr, SIZE, 0, handle, 0), CUDA_SUCCESS);
    atomic_store(&capture_count, 1);
    assert_int_equal(cuMemUnmap(ptr, SIZE), CUDA_SUCCESS);
    assert_int_equal(unmaps, 1);
    atomic_store(&capture_count, 0);
    assert_int_equal(cuMemRelease(handle), CUDA_SUCCESS);
    assert_int_equal(releases, 1);
}

/* --- beside a thread that gives kept memory back --- */

static atomic_bool gives, asked, waits;
static size_t driver_free = 100 * SIZE;
static pthread_t giver;

static void *give_back(void *arg)
{
    vmm_kept_trim(0);
    return arg;
}

static CUresult release_slowly(CUmemGenericAllocationHandle handle)
{
    atomic_store(&gives, true);
    while (!atomic_load(&waits))
        usleep(10);
    driver_free += SIZE;
    return CUDA_SUCCESS;
}

static int next_info(size_t *free, size_t *total)
{
    if (!giver) {
        assert_int_equal(pthread_create(&giver, NULL, give_back, NULL), 0);
        while (!atomic_load(&gives))
            usleep(10);
    }
    *free = driver_free;
    *total = FAKE_CAPACITY;
    atomic_store(&asked, true);
    return 0;
}

static void relaxes(void *arg)
{
    if (atomic_load(&asked))
        atomic_store(&waits, true);
    usleep(10);
}

/* Memory on its way back is no longer kept and not yet free: a query waits for it. */
ISOLATED_CASE(test_free_memory, .environment = ON)
{
    CUmemAllocationProp here = usual;
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr ptr = 0;
    size_t free, total;

    here.location.id = 0;
    start_calls();
    fake.relax = relaxes;
    fake.driver.cuMemRelease = release_slowly;
    fake.next_of[REAL_cuMemGetInfo_v2] = (void *)next_info;
    assert_int_equal(cuMemAddressReserve(&ptr, SIZE, 0, 0, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemCreate(&handle, SIZE, &here, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemMap(ptr, SIZE, 0, handle, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemUnmap(ptr, SIZE), CUDA_SUCCESS);
    assert_int_equal(cuMemRelease(handle), CUDA_SUCCESS);
    assert_int_equal(cuMemAddressFree(ptr, SIZE), CUDA_SUCCESS);
    assert_int_equal(cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    assert_int_equal(free, 101 * SIZE);
    assert_int_equal(pthread_join(giver, NULL), 0);
}

/* After each look at what is kept, the next one is due later: the thread sleeps meanwhile. */
ISOLATED_CASE(test_the_next_look, .environment = ON)
{
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr ptr = 0;
    uint64_t due;

    start_calls();
    assert_int_equal(cuMemAddressReserve(&ptr, SIZE, 0, 0, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemCreate(&handle, SIZE, &usual, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemMap(ptr, SIZE, 0, handle, 0), CUDA_SUCCESS);
    assert_true(vmm_kept_due(0) == UINT64_MAX);
    assert_int_equal(cuMemUnmap(ptr, SIZE), CUDA_SUCCESS);
    assert_int_equal(cuMemRelease(handle), CUDA_SUCCESS);
    due = vmm_kept_due(0);
    assert_true(due < UINT64_MAX);
    vmm_kept_tick(due);
    assert_true(vmm_kept_due(due) > due);
}

static bool end_looks;

/* Runs behind the library's destructor, which has no priority. */
__attribute__((destructor(101))) static void end_look(void)
{
    if (end_looks && process_serves())
        _exit(1);
}

/* Destructors of the program that run after the library's are served no more. */
ISOLATED_CASE(test_destructors)
{
    process_start();
    assert_true(process_has_begun() && process_serves());
    end_looks = true;
}

/* Once the process has begun to exit, nothing is kept: nobody would make the deferred calls. */
ISOLATED_CASE(test_exit, .environment = ON)
{
    start();
    assert_non_null(vmm_kept_cache());
    assert_true(vmm_kept_serves());
    process_end();
    assert_false(vmm_kept_serves());
}
