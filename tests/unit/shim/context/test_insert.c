/* SPDX-License-Identifier: Apache-2.0 */
/* test_insert.c - memory of other processes at reserved addresses: which ranges, imports and places are accepted, what
 * a refused call leaves, and that a call on an import that another thread works on is refused, and waits for no lock.
 * shim/context/ipc_insert.c alone, over insert_fake.h. */

#include "insert_fake.h"
#include "seeded.h"

static int64_t import_from(unsigned char exporter, unsigned int units)
{
    const struct ipc_ticket ticket = {.station = {{exporter}}, .block = {{3}}};
    size_t size = 0;
    int64_t import;

    fake.grant.segment_size = units * UNIT;
    fake.grant.size = units * UNIT - fake.behind;
    import = insert_import(&ticket, &size);
    assert_int_equal(size, import > 0 ? units * UNIT : 0);
    return import;
}

static int64_t import_units(unsigned int units)
{
    return import_from(1, units);
}

static uint64_t range_of(unsigned int units)
{
    uint64_t range = 0;

    assert_int_equal(insert_reserve(units * UNIT, &range), 0);
    return range;
}

static void nothing_is_left(void)
{
    assert_int_equal(fake.reserved + fake.handles + fake.grants, 0);
    for (unsigned int i = 0; i < MAPS_MAX; i++)
        assert_int_equal(fake.maps[i].size, 0);
}

CASE_WITH(test_ranges, start, NULL)
{
    uint64_t range = 0, other;

    assert_int_equal(insert_reserve(0, &range), -EINVAL);
    assert_int_equal(insert_reserve(SIZE_MAX, &range), -EINVAL);
    assert_int_equal(insert_reserve(((size_t)1 << 47) + 1, &range), -EINVAL);
    assert_int_equal(insert_reserve((size_t)1 << 47, &range), 0); /* more than any device has */
    assert_int_equal(insert_unreserve(range), 0);
    refuse(CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
    assert_int_equal(insert_reserve(1, &range), -ENOMEM);
    assert_int_equal(insert_reserve(1, &range), 0);
    assert_int_equal(fake.reserved, UNIT);
    other = range_of(3);
    assert_int_equal(insert_unreserve(range + UNIT / 2), -EINVAL);
    assert_int_equal(insert_unreserve(other + UNIT), -EINVAL);
    assert_int_equal(insert_unreserve(range), 0);
    assert_int_equal(insert_unreserve(range), -EINVAL);
    assert_int_equal(insert_unreserve(other), 0);
    nothing_is_left();
}

/* Without one of these functions nothing is reserved, nor taken. */
static const size_t needed[] = {
    offsetof(struct real_driver, cuMemAddressReserve),
    offsetof(struct real_driver, cuMemAddressFree),
    offsetof(struct real_driver, cuMemMap),
    offsetof(struct real_driver, cuMemUnmap),
    offsetof(struct real_driver, cuMemSetAccess),
    offsetof(struct real_driver, cuMemRelease),
    offsetof(struct real_driver, cuDeviceGetCount),
    offsetof(struct real_driver, cuDeviceGetUuid_v2),
};

CASE_WITH(test_without_the_driver, start, NULL)
{
    const struct real_driver whole = fake.driver;
    uint64_t range;

    fake.absent = true;
    assert_int_equal(insert_reserve(1, &range), -EAGAIN);
    assert_int_equal(insert_unreserve(UNIT), -EAGAIN);
    assert_int_equal(import_units(1), -EAGAIN);
    assert_int_equal(insert_close(1), -EAGAIN);
    assert_int_equal(insert_map(UNIT, 1), -EAGAIN);
    assert_int_equal(insert_unmap(UNIT), -EAGAIN);
    fake.absent = false;
    fake.no_driver = true;
    assert_int_equal(insert_reserve(1, &range), -EAGAIN);
    fake.no_driver = false;
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        fake.driver = whole;
        memset((char *)&fake.driver + needed[i], 0, sizeof(void *));
        assert_int_equal(insert_reserve(1, &range), -ENOTSUP);
        assert_int_equal(import_units(1), -ENOTSUP);
    }
}

CASE_WITH(test_imports_that_are_refused, start, NULL)
{
    static const int errors[][2] = {
        {-ECONNREFUSED, -EHOSTDOWN}, {-ECONNRESET, -EHOSTDOWN}, {-EPIPE, -EHOSTDOWN}, {-EPERM, -EPERM},
        {-ETIMEDOUT, -ETIMEDOUT},    {-ENOENT, -ENOENT},        {-ENOSPC, -ENOSPC},   {-EPROTO, -EPROTO}};

    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        fake.rc = errors[i][0];
        assert_int_equal(import_units(1), errors[i][1]);
    }
    fake.rc = 0;
    fake.device = -1;
    assert_int_equal(import_units(1), -ENODEV);
    fake.device = 0;
    fake.behind = UNIT + 1; /* bytes of other blocks */
    assert_int_equal(import_units(2), -ENOTSUP);
    fake.behind = 0;
    fake.grant.offset = UNIT;
    assert_int_equal(import_units(2), -ENOTSUP);
    fake.grant.offset = 0;
    fake.grant.how = IPC_NATIVE;
    assert_int_equal(import_units(1), -ENOTSUP);
    fake.grant.how = IPC_DESCRIPTOR;
    refuse(CUDA_ERROR_INVALID_VALUE, 0, 1);
    assert_int_equal(import_units(1), -EIO);
    nothing_is_left();
    assert_int_equal(import_units(1), 1); /* of these, none had a number */
    fake.behind = UNIT;                   /* guard bytes */
    assert_int_equal(import_units(2), 2);
    assert_int_equal(insert_close(1), 0);
    assert_int_equal(insert_close(2), 0);
}

/* The last event is this one, of an import of one unit, with any time. */
static void told_is(const char *event, uint64_t where)
{
    char wanted[96];

    snprintf(wanted, sizeof(wanted), "%s \"d\":%d,\"p\":\"0x%llx\",\"n\":%llu,\"us\":", event, fake.device,
             (unsigned long long)where, (unsigned long long)UNIT);
    assert_memory_equal(fake.told, wanted, strlen(wanted));
    fake.told[0] = '\0';
}

/* Calls that have succeeded are events of the trace. */
CASE_WITH(test_events, start, NULL)
{
    const uint64_t range = range_of(2);
    int64_t import;

    fake.device = 1;
    import = import_units(1);
    assert_string_equal(fake.told, "");
    refuse(CUDA_ERROR_UNKNOWN, 0, 1);
    assert_int_equal(insert_map(range, import), -EIO);
    assert_string_equal(fake.told, "");
    fake.known = 0;
    assert_int_equal(insert_map(range + UNIT, import), 0);
    assert_int_equal(fake.known, 1); /* for a later withdrawal, which waits for its work */
    told_is("insert", range + UNIT);
    fake.captures = true;
    assert_int_equal(insert_unmap(range + UNIT), -EBUSY);
    fake.captures = false;
    assert_string_equal(fake.told, "");
    assert_int_equal(insert_unmap(range + UNIT), 0);
    told_is("withdraw", range + UNIT);
    assert_int_equal(insert_close(import), 0);
    assert_int_equal(insert_unreserve(range), 0);
    assert_string_equal(fake.told, "");
}

CASE_WITH(test_places, start, NULL)
{
    const uint64_t range = range_of(4), beside = range_of(2);
    const int64_t two = import_units(2), one = import_units(1), large = import_units(5);

    assert_int_equal(beside, range + 4 * UNIT);
    assert_int_equal(insert_map(range - UNIT, two), -EINVAL);
    assert_int_equal(insert_map(range + UNIT / 2, two), -EINVAL);
    assert_int_equal(insert_map(range + 3 * UNIT, two), -EINVAL); /* not in one range */
    assert_int_equal(insert_map(range, large), -EINVAL);
    assert_int_equal(insert_map(UINT64_MAX / UNIT * UNIT, two), -EINVAL);
    assert_int_equal(insert_map(range, large + 1), -EINVAL);
    assert_int_equal(insert_map(range, 0), -EINVAL);
    assert_int_equal(insert_map(range + 2 * UNIT, two), 0); /* at the end */
    assert_int_equal(insert_map(range, two), -EBUSY);
    assert_int_equal(insert_map(range + 2 * UNIT, one), -EBUSY);
    assert_int_equal(insert_map(range + 3 * UNIT, one), -EBUSY);
    assert_int_equal(insert_map(range + UNIT, one), 0); /* just before it */
    assert_int_equal(insert_unmap(range + 3 * UNIT), -EINVAL);
    assert_int_equal(insert_unmap(range), -EINVAL);
    assert_int_equal(insert_unreserve(range), -EBUSY);
    assert_int_equal(insert_unreserve(beside), 0);
    assert_int_equal(insert_close(two), -EBUSY);
    assert_int_equal(insert_unmap(range + 2 * UNIT), 0);
    assert_int_equal(insert_unmap(range + 2 * UNIT), -EINVAL);
    assert_int_equal(insert_unmap(range + UNIT), 0);
    assert_int_equal(insert_map(range, two), 0);
    assert_int_equal(insert_unmap(range), 0);
    for (int64_t import = two; import <= large; import++)
        assert_int_equal(insert_close(import), 0);
    assert_int_equal(insert_close(one), -EINVAL);
    assert_int_equal(insert_unreserve(range), 0);
    nothing_is_left();
}

CASE_WITH(test_refused_calls, start, NULL)
{
    const uint64_t range = range_of(2);
    const int64_t import = import_units(2);
    char said[128];

    for (unsigned int i = 0; i < 3; i++) {
        static const CUresult results[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_ALREADY_MAPPED, CUDA_ERROR_UNKNOWN};
        static const int errors[] = {-ENOMEM, -EBUSY, -EIO};

        refuse(results[i], 0, 1);
        fake.said[0] = '\0';
        assert_int_equal(insert_map(range, import), errors[i]);
        snprintf(said, sizeof(said), "%llu bytes at %#llx are not inserted (error %d)", 2 * (unsigned long long)UNIT,
                 (unsigned long long)range, (int)results[i]);
        assert_string_equal(fake.said, said);
        assert_int_equal(insert_unmap(range), -EINVAL);
    }
    assert_int_equal(insert_map(range, import), 0);
    fake.captures = true;
    assert_int_equal(insert_unmap(range), -EBUSY);
    fake.captures = false;
    refuse(CUDA_ERROR_NOT_READY, 0, 1); /* a capture has begun */
    assert_int_equal(insert_unmap(range), -EBUSY);
    refuse(CUDA_ERROR_LAUNCH_FAILED, 0, 1);
    assert_int_equal(insert_unmap(range), -EIO);
    refuse(CUDA_ERROR_LAUNCH_FAILED, 1, 1); /* of a primary context that is not known */
    assert_int_equal(insert_unmap(range), -EIO);
    refuse(CUDA_ERROR_UNKNOWN, 2, 1);
    assert_int_equal(insert_unmap(range), -EIO);
    assert_int_equal(fake.maps[0].size, 2 * UNIT);
    assert_int_equal(insert_close(import), -EBUSY);
    assert_int_equal(insert_unmap(range), 0);
    refuse(CUDA_ERROR_UNKNOWN, 0, 1); /* it is tried again */
    assert_int_equal(insert_close(import), 0);
    refuse(CUDA_ERROR_UNKNOWN, 0, 1);
    assert_int_equal(insert_unreserve(range), -EIO);
    assert_int_equal(insert_unreserve(range), 0); /* it is still the program's */
    assert_int_equal(insert_unreserve(range), -EINVAL);
    assert_int_equal(fake.handles + fake.grants, 0);
}

static uint64_t at;
static int64_t number;
static unsigned int disturbed;

/* Other threads want the import, its place and its range. */
static void disturb(void)
{
    disturbed++;
    assert_int_equal(insert_map(at, number), -EBUSY);
    assert_int_equal(insert_map(at + UNIT, number), -EBUSY);
    assert_int_equal(insert_map(at, number + 1), -EBUSY);
    assert_int_equal(insert_unmap(at), -EBUSY);
    assert_int_equal(insert_close(number), -EBUSY);
    assert_int_equal(insert_unreserve(at), -EBUSY);
}

/* Of an import that is in no list. */
static void disturb_others(void)
{
    uint64_t range;

    disturbed++;
    assert_int_equal(insert_reserve(1, &range), 0);
    assert_int_equal(insert_unreserve(range), 0);
    assert_int_equal(insert_close(99), -EINVAL);
    assert_int_equal(insert_unmap(at), -EINVAL);
}

CASE_WITH(test_other_threads_meanwhile, start, NULL)
{
    at = range_of(3);
    fake.during = disturb_others;
    number = import_units(1);
    assert_int_equal(import_units(1), number + 1);
    fake.during = disturb;
    assert_int_equal(insert_map(at, number), 0);
    fake.during = disturb; /* while it waits for the device */
    assert_int_equal(insert_unmap(at), 0);
    fake.during = disturb_others;
    assert_int_equal(insert_close(number), 0);
    assert_int_equal(insert_close(number + 1), 0);
    fake.during = disturb_others;
    assert_int_equal(insert_unreserve(at), 0);
    assert_int_equal(disturbed, 5);
    nothing_is_left();
}

/* While one exporter lets a thread wait. */
static void ask_another(void)
{
    disturbed++;
    number = import_from(2, 1);
    assert_true(number > 0);
    assert_int_equal(insert_close(number), 0);
    number = import_from(2, 1);
}

CASE_WITH(test_exporters_are_asked_at_the_same_time, start, NULL)
{
    int64_t first, second;

    disturbed = 0;
    alarm(60); /* with one lock for both it would wait for itself */
    fake.during = ask_another;
    first = import_from(1, 1);
    second = number;
    assert_int_equal(disturbed, 1);
    assert_true(first > second && second > 0);
    fake.during = ask_another; /* and one that is known */
    assert_int_equal(insert_close(import_from(1, 1)), 0);
    assert_int_equal(disturbed, 2);
    assert_int_equal(insert_close(number), 0);
    assert_int_equal(insert_close(second), 0);
    assert_int_equal(insert_close(first), 0);
    alarm(0);
    nothing_is_left();
}

/* Random calls, compared with a list of what is where. */
CASE_WITH(test_random, start, NULL)
{
    enum { IMPORTS = 6, UNITS = 8 };
    uint64_t rng = env_number("CUPOOL_TEST_SEED", 11), range = range_of(UNITS);
    int64_t imports[IMPORTS];
    int place[IMPORTS];

    for (int i = 0; i < IMPORTS; i++) {
        imports[i] = import_units(1 + (unsigned int)i / 2);
        place[i] = -1;
    }
    for (uint64_t op = env_number("CUPOOL_TEST_OPS", 20000); op; op--) {
        const int i = (int)(next(&rng) % IMPORTS), to = (int)(next(&rng) % (UNITS + 1)), units = 1 + i / 2;
        bool used = false;
        int k = 0;

        if (next(&rng) % 2) {
            for (int j = 0; j < IMPORTS; j++)
                used |= place[j] >= 0 && place[j] < to + units && to < place[j] + 1 + j / 2;
            assert_int_equal(insert_map(range + (uint64_t)to * UNIT, imports[i]), to + units > UNITS      ? -EINVAL
                                                                                  : used || place[i] >= 0 ? -EBUSY
                                                                                                          : 0);
            place[i] = to + units > UNITS || used || place[i] >= 0 ? place[i] : to;
        } else {
            while (k < IMPORTS && place[k] != to)
                k++;
            assert_int_equal(insert_unmap(range + (uint64_t)to * UNIT), k < IMPORTS ? 0 : -EINVAL);
            if (k < IMPORTS)
                place[k] = -1;
        }
    }
    for (int i = 0; i < IMPORTS; i++) {
        if (place[i] >= 0)
            assert_int_equal(insert_unmap(range + (uint64_t)place[i] * UNIT), 0);
        assert_int_equal(insert_close(imports[i]), 0);
    }
    assert_int_equal(insert_unreserve(range), 0);
    nothing_is_left();
}
