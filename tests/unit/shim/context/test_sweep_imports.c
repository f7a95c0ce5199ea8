/* SPDX-License-Identifier: Apache-2.0 */
/* test_sweep_imports.c - memory of other processes, opened (shim/context/ipc_import.c) or inserted (ipc_insert.c), and
 * the calls of the driver for both (ipc_map.c): each call of the driver, of the exporter's connection and of malloc
 * fails once; the rows in sweep_imports.inc say what follows. test_import.c and test_insert.c say what is right. */
#include "sweep_imports_fake.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* --- stories --- */

__attribute__((constructor)) static void locks_make(void)
{
    ipc_import_forget();
    ipc_native_forget();
    insert_forget();
}

static void begin(bool with_descriptor)
{
    memset(&fake, 0, sizeof(fake));
    fake.driver = (struct real_driver){.cuCtxGetCurrent = get_current,
                                       .cuCtxGetDevice = get_device,
                                       .cuDeviceGetCount = get_count,
                                       .cuDeviceGetUuid_v2 = get_uuid,
                                       .cuMemAddressReserve = reserve,
                                       .cuMemAddressFree = address_free,
                                       .cuMemMap = map,
                                       .cuMemUnmap = unmap,
                                       .cuMemSetAccess = set_access,
                                       .cuMemRelease = release};
    fake.with_descriptor = with_descriptor;
    fake.grant = (struct ipc_grant){.how = with_descriptor ? IPC_DESCRIPTOR : IPC_NATIVE,
                                    .segment = {{9}},
                                    .segment_size = 2 * UNIT,
                                    .size = 2 * UNIT,
                                    .handle = {3}};
    memset(fake.grant.card, 2, sizeof(fake.grant.card)); /* device 1's */
}

static void left(void)
{
    unsigned int mapped = 0;

    for (unsigned int i = 0; i < fake.mapped; i++)
        mapped += fake.mappings[i].size != 0;
    sweep_say("; %d grants %d handles %u mapped %u descriptors %d allocations", fake.grants, fake.handles, mapped,
              system_descriptors(), system_allocations());
}

static uint64_t opened(unsigned char block, uintptr_t in, uint64_t offset, uint64_t size)
{
    const struct ipc_ticket ticket = {.block = {{block}}, .pid = 42};
    CUdeviceptr addr = 0;

    fake.current = (CUcontext)in; /* NOLINT(performance-no-int-to-ptr): never looked at */
    fake.grant.offset = offset;
    fake.grant.size = size;
    sweep_say(" open %d", SWEPT(ipc_import_open(&ticket, &addr)));
    sweep_say(" %llx", (ull)addr);
    return addr;
}

static void closed(uint64_t addr)
{
    bool ours = false;

    sweep_say(" close %d", SWEPT(ipc_import_close(addr, &ours)));
    sweep_say(ours ? "" : " not");
}

static void ranges(uint64_t at)
{
    static const int64_t offsets[] = {-1, 0, 511, 512, 1023, 1024, 4095, 4096, 8191, 8192};

    for (unsigned int i = 0; i < COUNT(offsets); i++) {
        uint64_t base = 1;
        size_t size = 1;
        CUcontext its = NULL;
        const bool is = SWEPT(ipc_import_range(at + (uint64_t)offsets[i], &base, &size, &its));

        sweep_note("range %d %llx %zx %p", is, (ull)base, size, (void *)its);
    }
    sweep_say(" blocks %u", atomic_load(&ipc_import_blocks));
}

static void tell_opened(bool with_descriptor)
{
    uint64_t addrs[6];

    begin(with_descriptor);
    addrs[0] = opened(1, 1, 0, 512);
    addrs[1] = opened(2, 1, 1024, 512);
    addrs[2] = opened(1, 1, 0, 512);
    addrs[3] = opened(1, 2, 0, 512);
    opened(1, 0, 0, 512);
    ranges(addrs[0]);
    SWEPT_VOID(ipc_native_opened(addrs[0]));
    ranges(addrs[0]);
    SWEPT_VOID(ipc_native_opened(addrs[0]));
    SWEPT_VOID(ipc_native_closed(addrs[0]));
    sweep_say(" native %d", SWEPT(ipc_native_is_open(addrs[0])));
    SWEPT_VOID(ipc_native_closed(addrs[0]));
    sweep_say(" %d", SWEPT(ipc_native_is_open(addrs[0])));
    SWEPT_VOID(ipc_native_closed(addrs[0]));
    closed(addrs[0]);
    closed(addrs[0]);
    ranges(addrs[1]);
    SWEPT_VOID(ipc_import_context_gone((CUcontext)3)); /* NOLINT */
    SWEPT_VOID(ipc_import_context_gone((CUcontext)1)); /* NOLINT */
    ranges(addrs[1]);
    ranges(addrs[3]);
    SWEPT_VOID(ipc_import_settle());
    SWEPT_VOID(ipc_import_settle());
    sweep_say(" settled");
    left();
    addrs[4] = opened(4, 3, 0, 512);                   /* a context that ends before its memory is let go of */
    SWEPT_VOID(ipc_import_context_gone((CUcontext)3)); /* NOLINT */
    fake.grant.segment.bytes[0]++;
    addrs[5] = opened(5, 3, 2048, 512);
    closed(addrs[5]);
    closed(addrs[3]);
    closed(addrs[4]);
    left();
    if (with_descriptor)
        fake.grant.segment_size += UNIT; /* nonsense: it was another size */
    opened(6, 2, 0, 512);
    opened(7, 2, 512, 512);
    fake.grant.segment_size -= UNIT;
    opened(8, 2, 1024, 512);
    SWEPT_VOID(ipc_import_forget());
    sweep_say(" blocks %u", atomic_load(&ipc_import_blocks));
    fake.no_driver = true;
    opened(6, 2, 0, 512);
}

static void tell_native(void)
{
    tell_opened(false);
}

static void tell_mapped(void)
{
    tell_opened(true);
}

/* The device that has the memory, from devices that reach it, or do not. */
static void tell_devices(void)
{
    uint64_t addr;

    begin(true);
    for (unsigned int i = 0; i < 4; i++) {
        fake.current_device = i % 2;
        fake.reaches = i / 2;
        fake.grant.segment.bytes[0]++;
        addr = opened((unsigned char)i, i + 1, 0, 512);
        closed(addr);
        memset(fake.grant.card, 1, sizeof(fake.grant.card)); /* device 0's, which others are not */
        fake.grant.segment.bytes[0]++;
        addr = opened((unsigned char)(i + 4), i + 1, 0, 512);
        closed(addr);
        memset(fake.grant.card, 2, sizeof(fake.grant.card));
    }
    memset(fake.grant.card, 9, sizeof(fake.grant.card)); /* is not visible */
    closed(opened(9, 1, 0, 512));
    sweep_say(" device %d", SWEPT(ipc_map_device(fake.grant.card)));
    for (unsigned char device = 1; device < 5; device++) {
        memset(fake.grant.card, device, sizeof(fake.grant.card));
        sweep_say(" %d", SWEPT(ipc_map_device(fake.grant.card)));
    }
    sweep_say(" close %d", SWEPT(ipc_map_close(IPC_DESCRIPTOR, 4096)));
    left();
}

/* Many segments with blocks in several contexts, which end now and then. */
static void tell_many(void)
{
    CUdeviceptr addrs[40];
    uint64_t chance = 5;
    unsigned int count = 0;

    begin(false);
    for (unsigned int i = 0; i < 1500; i++) {
        const unsigned int kind = (unsigned int)(chance >> 33) % 64, which = (unsigned int)(chance >> 40) % 12;
        const uintptr_t in = 1 + (chance >> 50) % 3;
        const struct ipc_ticket ticket = {.block = {{2, 0, (unsigned char)(which * 4 + kind % 4)}}};
        uint64_t base = 0;
        size_t size = 0;
        CUcontext its = NULL;
        bool ours = false;

        chance = chance * UINT64_C(6364136223846793005) + 1442695040888963407;
        fake.current = (CUcontext)in; /* NOLINT(performance-no-int-to-ptr): never looked at */
        fake.grant.segment = (struct ipc_name){{1, 0, (unsigned char)which}};
        fake.grant.handle[0] = (unsigned char)which;
        fake.grant.offset = kind % 4 * 1024;
        fake.grant.size = 1024;
        if (kind < 36 && count < COUNT(addrs)) {
            addrs[count] = 0;
            sweep_note("open %d", SWEPT(ipc_import_open(&ticket, &addrs[count])));
            sweep_note("%llx", (ull)addrs[count++]);
        } else if (kind < 60 && count) {
            const unsigned int last = --count, one = which % (last + 1);
            const uint64_t addr = addrs[one];

            addrs[one] = addrs[last];
            sweep_note("close %d", SWEPT(ipc_import_close(addr, &ours)));
            sweep_note("%d %llx", ours, (ull)addr);
        } else if (kind == 62) {
            SWEPT_VOID(ipc_import_context_gone((CUcontext)in)); /* NOLINT(performance-no-int-to-ptr) */
            if (which % 2)
                SWEPT_VOID(ipc_import_settle());
        }
        for (unsigned int k = 0; k < 4; k++) {
            const bool is = SWEPT(ipc_import_range(AT + (1024 + 8 * k) * UNIT + which * 512, &base, &size, &its));

            sweep_note("range %d %llx %zx %p", is, (ull)base, size, (void *)its);
        }
    }
    left();
}

static void described(uint64_t addr, const struct context *owner)
{
    struct ipc_segment as = {.fd = 99};

    sweep_say(" describe %d", SWEPT(ipc_map_describe(owner, addr, UNIT, &as)));
    sweep_say(" how %u front %llx card %d handle %d %s", as.how, (ull)as.front, as.card[15], as.handle[63],
              as.fd < 0 ? "-" : system_name(as.fd));
    sweep_note("%llx %llx", (ull)as.addr, (ull)as.size);
    if (as.fd >= 0)
        SWEPT(close(as.fd));
}

static void tell_described(void)
{
    begin(false);
    fake.mapped = 1;
    fake.mappings[0] = (struct vmm_mapping){.addr = AT, .size = UNIT};
    described(AT, NULL);
    described(AT + UNIT, (const struct context *)&fake);
    left();
}

/* A driver that lacks a call. */
static void tell_lacking(void)
{
    static const size_t members[] = {offsetof(struct real_driver, cuMemAddressReserve),
                                     offsetof(struct real_driver, cuMemAddressFree),
                                     offsetof(struct real_driver, cuMemMap),
                                     offsetof(struct real_driver, cuMemUnmap),
                                     offsetof(struct real_driver, cuMemSetAccess),
                                     offsetof(struct real_driver, cuMemRelease),
                                     offsetof(struct real_driver, cuDeviceGetCount),
                                     offsetof(struct real_driver, cuDeviceGetUuid_v2)};
    uint64_t range;

    for (unsigned int i = 0; i <= COUNT(members); i++) {
        begin(true);
        if (i < COUNT(members))
            memset((char *)&fake.driver + members[i], 0, sizeof(void *));
        described(AT + UNIT, NULL);
        sweep_say(" reserve %d", SWEPT(insert_reserve(1, &range)));
        sweep_say(" device %d", SWEPT(ipc_map_device(fake.grant.card)));
        if (members[i % COUNT(members)] != offsetof(struct real_driver, cuMemRelease))
            opened((unsigned char)i, 9 + i, 0, 512);
    }
    fake.no_driver = true;
    sweep_say(" reserve %d", SWEPT(insert_reserve(1, &range)));
    sweep_say(" device %d", SWEPT(ipc_map_device(fake.grant.card)));
    sweep_say(" close %d", SWEPT(ipc_map_close(IPC_DESCRIPTOR, AT)));
    sweep_say(" %d", SWEPT(ipc_map_close(IPC_DESCRIPTOR, fake.mappings[0].addr)));
    sweep_say(" place %d", SWEPT(ipc_map_place(1, AT, UNIT, 0)));
    described(AT + UNIT, NULL);
}

static int64_t imported(unsigned char block)
{
    const struct ipc_ticket ticket = {.block = {{block}}, .pid = 42};
    size_t size = 0;
    const int64_t number = SWEPT(insert_import(&ticket, &size));

    sweep_say(" import %lld %zu", (long long)number, size);
    return number;
}

static void tell_inserted(void)
{
    static const size_t sizes[] = {
        0, 1, POOL_SEGMENT_UNIT, POOL_SEGMENT_UNIT + 1, (size_t)1 << 47, ((size_t)1 << 47) + 1};
    static const int64_t places[] = {-2, 0, 1, 2, 3, 4, 6};
    uint64_t range = 0, more = 0;
    int64_t first, second;

    begin(true);
    for (unsigned int i = 0; i < COUNT(sizes); i++)
        sweep_say(" reserve %d", SWEPT(insert_reserve(sizes[i], &more)));
    sweep_say(" reserve %d", SWEPT(insert_reserve(6 * UNIT, &range)));
    first = imported(1);
    second = imported(2);
    for (unsigned int i = 0; i < COUNT(places); i++) {
        const uint64_t at = range + (uint64_t)places[i] * UNIT;

        sweep_say(" map %d", SWEPT(insert_map(at, first)));
        sweep_say(" other %d", SWEPT(insert_map(range + 2 * UNIT, second)));
        sweep_say(" close %d", SWEPT(insert_close(first)));
        sweep_say(" unreserve %d", SWEPT(insert_unreserve(range)));
        sweep_say(" unmap %d", SWEPT(insert_unmap(at)));
        sweep_say(" %d", SWEPT(insert_unmap(range + 2 * UNIT)));
    }
    sweep_say(" map %d", SWEPT(insert_map(range + 1, first)));
    sweep_say(" map %d", SWEPT(insert_map(range, 99)));
    sweep_say(" close %d", SWEPT(insert_close(second)));
    sweep_say(" %d", SWEPT(insert_close(second)));
    sweep_say(" %d", SWEPT(insert_close(first)));
    sweep_say(" unreserve %d", SWEPT(insert_unreserve(range)));
    sweep_say(" %d", SWEPT(insert_unreserve(range)));
    left();
    SWEPT_VOID(insert_forget());
}

/* Grants whose memory cannot be inserted. */
static void tell_not_inserted(void)
{
    for (unsigned int i = 0; i < 7; i++) {
        begin(i != 0);
        fake.grant.offset = i == 1 ? 512 : 0;
        fake.grant.segment_size += i == 2 ? 4096 : i == 3 ? UNIT : i == 4 ? 2 * UNIT : 0;
        if (i == 5)
            memset(fake.grant.card, 9, sizeof(fake.grant.card));
        imported(1);
        left();
    }
}

UNIT_CASE(test_sweep)
{
    static const struct sweep_story stories[] = {{"native", tell_native, SWEEP_CALLS},
                                                 {"mapped", tell_mapped, SWEEP_CALLS},
                                                 {"its descriptors", tell_mapped, SWEEP_DESCRIPTORS},
                                                 {"devices", tell_devices, SWEEP_CALLS},
                                                 {"many", tell_many, SWEEP_ONCE},
                                                 {"described", tell_described, SWEEP_CALLS},
                                                 {"lacking", tell_lacking, SWEEP_ONCE},
                                                 {"inserted", tell_inserted, SWEEP_CALLS},
                                                 {"its descriptors", tell_inserted, SWEEP_DESCRIPTORS},
                                                 {"not inserted", tell_not_inserted, SWEEP_CALLS}};

    sweep_test("shim/context/sweep_imports", stories, COUNT(stories));
}
