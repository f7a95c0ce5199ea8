/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_import.c - shim/context/ipc_import.c: the books of blocks that are open, where the driver has a segment at one
 * address for two contexts, where one of them ends, and where an exporter tells nonsense. Between processes:
 * tests/e2e/test_ipc.py.
 */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "cases.h"
#include "context/ipc_import.h"
#include "context/ipc_map.h"
#include "context/ipc_native.h"
#include "context/ipc_peer.h"
#include "context/ipc_sorted.h"
#include "context/lifetime.h"
#include "context/wait_device.h"
#include "real/real.h"

#define AT   UINT64_C(0x600000000000)
#define SIZE ((size_t)2 << 20)

static struct {
    struct real_driver driver;
    CUcontext current;
    struct ipc_grant grant;
    atomic_uint seen; /* calls that let the library know of the current context */
    atomic_uint maps, grants, waits;
    int rc;                /* of ipc_peer_ask */
    CUresult waited;       /* of context_wait_handle */
    void (*during)(void);  /* the next wait, once: what other threads do meanwhile */
    void (*asking)(void);  /* the next request, once */
    void (*mapping)(void); /* and the next mapping */
} fake;

static CUresult get_current(CUcontext *handle)
{
    *handle = fake.current;
    return CUDA_SUCCESS;
}

const struct real_driver *real_driver_get(void)
{
    return &fake.driver;
}

struct context *context_current(const struct real_driver *driver)
{
    fake.seen += driver == &fake.driver;
    return NULL;
}

CUresult context_wait_handle(CUcontext handle)
{
    void (*during)(void) = fake.during;

    assert_non_null(handle);
    fake.waits++;
    if (during) {
        fake.during = NULL;
        during();
    }
    return fake.waited;
}

CUresult ipc_map_open(const struct ipc_grant *grant, int fd, uint64_t *ret_addr)
{
    void (*mapping)(void) = fake.mapping;

    assert_int_equal(fd, -1);
    if (mapping) {
        fake.mapping = NULL;
        mapping();
    }
    fake.maps++;
    *ret_addr = AT;
    return grant->segment_size ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult ipc_map_close(enum ipc_how how, uint64_t addr)
{
    assert_true(how && addr == AT);
    fake.maps--;
    return CUDA_SUCCESS;
}

uint64_t ipc_peer_limit(void)
{
    return 5;
}

int ipc_peer_ask(const struct ipc_ticket *ticket, uint64_t limit, struct ipc_peer **ret_peer,
                 struct ipc_grant *ret_grant, int *ret_fd)
{
    void (*asking)(void) = fake.asking;

    assert_true(ticket && limit == 5);
    *ret_fd = -1;
    if (asking) {
        fake.asking = NULL;
        asking();
    }
    *ret_peer = fake.rc ? NULL : (struct ipc_peer *)&fake;
    *ret_grant = fake.grant;
    fake.grants += !fake.rc;
    return fake.rc;
}

void ipc_peer_close(struct ipc_peer *peer, const struct ipc_name *block)
{
    assert_true(peer == (struct ipc_peer *)&fake && block);
    fake.grants--;
}

const char *ipc_peer_reason(int rc)
{
    return rc ? "" : NULL;
}

void log_write(enum conf_log_level level, const char *format, ...)
{
    (void)level;
    (void)format;
}

static CUcontext context(uintptr_t number)
{
    return (CUcontext)number; /* NOLINT(performance-no-int-to-ptr): never looked at */
}

/* Open a block of one segment in a context; its address, or 0 if it is refused. */
static uint64_t opened(uintptr_t in, unsigned char block, uint64_t offset)
{
    const struct ipc_ticket ticket = {.block = {{block}}};
    CUdeviceptr addr = 0;

    fake.driver.cuCtxGetCurrent = get_current;
    fake.current = context(in);
    fake.grant.offset = offset;
    return ipc_import_open(&ticket, &addr) ? 0 : addr;
}

static void granted(enum ipc_how how)
{
    memset(&fake, 0, sizeof(fake));
    fake.grant = (struct ipc_grant){.how = how, .segment = {{9}}, .segment_size = SIZE, .size = 512};
}

static bool is_block(uint64_t addr, uintptr_t in)
{
    CUcontext its = NULL;
    uint64_t base = 1;
    size_t size = 1;

    return ipc_import_range(addr, &base, &size, &its) && base == addr && size == 512 && its == context(in);
}

static bool closes(uint64_t addr)
{
    bool ours = false;

    assert_int_equal(ipc_import_close(addr, &ours), CUDA_SUCCESS);
    return ours;
}

UNIT_CASE(test_two_contexts_at_one_address)
{
    granted(IPC_NATIVE);
    for (uintptr_t in = 1; in <= 3; in++)
        assert_int_equal(opened(in, (unsigned char)in, in * 512), AT + in * 512);
    assert_int_equal(fake.seen, 3); /* so that the end of each is noticed */
    assert_int_equal(fake.maps, 3);
    for (uintptr_t closed = 2, left = 3; left; left--, closed = closed % 3 + 1) {
        for (uintptr_t in = 1; in <= 3; in++)
            assert_int_equal(is_block(AT + in * 512, in), left == 3 || (left == 2 ? in != 2 : in == 1));
        assert_true(closes(AT + closed * 512));
        assert_false(closes(AT + closed * 512));
    }
    assert_int_equal(fake.maps + fake.grants, 0);
    assert_false(is_block(AT + 512, 1));
}

/* The mappings of one segment, and those at one address: each goes by itself. */
UNIT_CASE(test_the_middle_one_goes)
{
    granted(IPC_NATIVE);
    for (uintptr_t in = 1; in <= 3; in++)
        assert_int_equal(opened(in, (unsigned char)in, in * 512), AT + in * 512);
    assert_true(closes(AT + 2 * 512));
    assert_int_equal(fake.maps, 2);
    for (uintptr_t in = 1; in <= 3; in += 2)
        assert_int_equal(opened(in, (unsigned char)(3 + in), (3 + in) * 512), AT + (3 + in) * 512);
    assert_int_equal(fake.maps, 2); /* they were found */
    for (uintptr_t in = 1; in <= 3; in += 2)
        assert_true(closes(AT + in * 512) && closes(AT + (3 + in) * 512));
    assert_int_equal(fake.maps + fake.grants, 0);
}

UNIT_CASE(test_sorted)
{
    struct sorted_mappings sorted = {.at = NULL};
    struct mapping three[3] = {{.addr = AT}, {.addr = AT}, {.addr = AT}};

    assert_true(sorted_reserve(&sorted, 0));
    for (unsigned int i = 0; i < 3; i++)
        sorted_add(&sorted, &three[i]);
    sorted_remove(&sorted, &three[1]);
    assert_int_equal(sorted.count, 2);
    assert_ptr_equal(sorted.at[0], &three[0]);
    assert_ptr_equal(sorted.at[1], &three[2]);
    free(sorted.at);
}

/* Whichever was opened first: a block that is open is not asked for again. */
UNIT_CASE(test_an_older_one_again)
{
    granted(IPC_NATIVE);
    assert_int_equal(opened(1, 1, 0), AT);
    assert_int_equal(opened(1, 2, 512), AT + 512);
    fake.rc = -ETIMEDOUT; /* of a request */
    assert_int_equal(opened(1, 1, 0), AT);
    assert_int_equal(opened(1, 2, 512), AT + 512);
    for (int i = 0; i < 2; i++)
        assert_true(closes(AT) && closes(AT + 512));
    assert_int_equal(fake.maps + fake.grants, 0);
}

/* The last close fails with the context's work: the block stays open, and the address is the library's. */
UNIT_CASE(test_a_wait_that_fails)
{
    bool ours = false;

    granted(IPC_NATIVE);
    assert_int_equal(opened(1, 1, 0), AT);
    fake.waited = CUDA_ERROR_LAUNCH_FAILED;
    assert_int_equal(ipc_import_close(AT, &ours), CUDA_ERROR_LAUNCH_FAILED);
    assert_true(ours);
    assert_false(closes(AT + 512)); /* nobody's */
    assert_true(is_block(AT, 1));
    fake.waited = CUDA_SUCCESS;
    assert_true(closes(AT));
    assert_int_equal(fake.maps + fake.grants, 0);
}

/* With a context goes what the driver has mapped there, and not what the library has mapped by itself. */
static void context_ends(enum ipc_how how, unsigned int left)
{
    granted(how);
    assert_int_equal(opened(1, 1, 0), AT);
    ipc_import_context_gone(context(1));
    assert_false(is_block(AT, 1));
    ipc_import_settle();
    assert_int_equal(fake.maps, left);
    assert_int_equal(fake.grants, 0);
    assert_false(ipc_import_any());
}

UNIT_CASE(test_a_context_ends)
{
    context_ends(IPC_NATIVE, 1);
    context_ends(IPC_DESCRIPTOR, 0);
}

/* The end of its context closes a block: by the time that a thread comes to close it, it is nobody's. */
UNIT_CASE(test_closed_after_its_context)
{
    granted(IPC_NATIVE);
    assert_int_equal(opened(1, 1, 0), AT);
    ipc_import_context_gone(context(1));
    assert_false(closes(AT));
    assert_int_equal(fake.grants, 0);
    assert_false(ipc_import_any());
}

UNIT_CASE(test_an_exporter_with_two_words)
{
    granted(IPC_NATIVE);
    assert_int_equal(opened(1, 1, 0), AT);
    fake.grant.segment_size *= 2;
    assert_int_equal(opened(1, 2, 512), 0);
    fake.grant.segment_size /= 2;
    fake.grant.how = IPC_DESCRIPTOR;
    assert_int_equal(opened(1, 2, 512), 0);
    assert_int_equal(fake.grants, 1); /* what was refused has been given back */
    assert_true(closes(AT));
}

/* The driver has a segment that was opened past the library at the same address: it answers for what is in no open
 * block. */
UNIT_CASE(test_the_driver_has_it_too)
{
    CUcontext its;
    uint64_t base;
    size_t size;

    granted(IPC_NATIVE);
    assert_int_equal(opened(1, 1, 0), AT);
    assert_true(ipc_import_range(AT + 512, &base, &size, &its) && !size);
    ipc_native_opened(AT);
    ipc_native_opened(AT);
    ipc_native_closed(AT);
    assert_false(ipc_import_range(AT + 512, &base, &size, &its));
    assert_true(is_block(AT, 1));
    ipc_native_closed(AT);
    assert_true(ipc_import_range(AT + 512, &base, &size, &its));
    assert_true(closes(AT));
}

static void opened_again(void)
{
    assert_int_equal(opened(1, 1, 0), AT);
}

/* The last close waits, and whoever opens meanwhile keeps the block. */
UNIT_CASE(test_opened_beside_the_last_close)
{
    granted(IPC_NATIVE);
    assert_int_equal(opened(1, 1, 0), AT);
    fake.during = opened_again;
    assert_true(closes(AT));
    assert_int_equal(fake.waits, 1);
    assert_true(is_block(AT, 1));
    assert_true(closes(AT));
    assert_int_equal(fake.waits, 2);
    assert_int_equal(fake.maps, 0);
}

/* While an exporter is asked, other threads open and close. */
static void other_blocks(void)
{
    assert_int_equal(opened(1, 2, 512), AT + 512);
    assert_int_equal(opened(1, 2, 512), AT + 512);
    assert_true(closes(AT + 512));
    assert_true(closes(AT + 512));
    fake.grant.offset = 0;
}

UNIT_CASE(test_opens_and_closes_beside_a_request)
{
    granted(IPC_NATIVE);
    alarm(60); /* one that is kept out would wait for itself */
    fake.asking = other_blocks;
    assert_int_equal(opened(1, 1, 0), AT);
    assert_true(is_block(AT, 1));
    assert_int_equal(fake.grants, 1);
    fake.asking = other_blocks; /* and beside one in the same mapping */
    assert_int_equal(opened(1, 3, 0), AT);
    assert_true(closes(AT));
    assert_true(closes(AT));
    alarm(0);
    assert_int_equal(fake.maps + fake.grants, 0);
}

static void opened_again_and_refused(void)
{
    opened_again();
    fake.rc = -ETIMEDOUT;
}

/* Two threads open a block at once: it is mapped once, and held once. It is open as well for one whose own request has
 * failed meanwhile. */
UNIT_CASE(test_two_threads_open_it_at_once)
{
    for (int refused = 0; refused < 2; refused++) {
        granted(IPC_NATIVE);
        fake.asking = refused ? opened_again_and_refused : opened_again;
        assert_int_equal(opened(1, 1, 0), AT);
        assert_int_equal(fake.maps, 1);
        assert_int_equal(fake.grants, 1);
        assert_int_equal(opened(1, 2, 512), refused ? 0 : AT + 512);
        assert_true(refused || closes(AT + 512));
        assert_true(closes(AT));
        assert_true(is_block(AT, 1));
        assert_true(closes(AT));
        assert_false(closes(AT));
        assert_int_equal(fake.maps + fake.grants, 0);
    }
}

static void closed(void)
{
    assert_true(closes(AT));
    assert_int_equal(fake.maps, 0);
}

/* The last close of a segment's only open block, while another block of it is asked for. */
UNIT_CASE(test_closed_beside_a_request)
{
    granted(IPC_NATIVE);
    assert_int_equal(opened(1, 1, 0), AT);
    fake.asking = closed;
    assert_int_equal(opened(1, 2, 512), AT + 512);
    assert_int_equal(fake.maps, 1);
    assert_false(is_block(AT, 1));
    assert_true(is_block(AT + 512, 1));
    assert_true(closes(AT + 512));
    assert_int_equal(fake.maps + fake.grants, 0);
}

static void context_1_ends(void)
{
    ipc_import_context_gone(context(1));
    ipc_import_settle();
}

/* The block that was open there goes, and what is granted is of the context that is current then. */
UNIT_CASE(test_a_context_ends_beside_a_request)
{
    granted(IPC_DESCRIPTOR);
    assert_int_equal(opened(1, 1, 0), AT);
    fake.asking = context_1_ends;
    assert_int_equal(opened(1, 2, 512), AT + 512);
    assert_int_equal(fake.maps, 1);
    assert_int_equal(fake.grants, 1);
    assert_false(is_block(AT, 1));
    assert_true(is_block(AT + 512, 1));
    assert_true(closes(AT + 512));
    assert_int_equal(fake.maps + fake.grants, 0);
}

/* A later context with its handle has nothing of it. */
UNIT_CASE(test_a_context_ends_beside_a_mapping)
{
    granted(IPC_DESCRIPTOR);
    fake.mapping = context_1_ends;
    assert_int_equal(opened(1, 1, 0), AT);
    assert_false(is_block(AT, 1));
    assert_false(closes(AT));
    assert_int_equal(fake.maps + fake.grants, 0);
    assert_false(ipc_import_any());
}

static void *races(void *arg)
{
    const struct ipc_ticket ticket = {.block = {{1}}};
    CUdeviceptr addr = 0;
    bool ours;

    for (int i = 0; i < 2000; i++)
        if (ipc_import_open(&ticket, &addr) || addr != AT || ipc_import_close(addr, &ours) || !ours)
            return arg;
    return NULL;
}

/* Threads open and close one block at any time: each has it from its open to its close. */
UNIT_CASE(test_threads_open_and_close_it)
{
    pthread_t threads[4];
    void *wrong;

    granted(IPC_NATIVE);
    fake.driver.cuCtxGetCurrent = get_current;
    fake.current = context(1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, races, &fake), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    assert_int_equal(fake.maps + fake.grants, 0);
    assert_false(ipc_import_any());
}
