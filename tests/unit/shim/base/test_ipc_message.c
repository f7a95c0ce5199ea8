/* SPDX-License-Identifier: Apache-2.0 */
/* test_ipc_message.c - shim/base/ipc_message.c: which tickets and messages are accepted, to the last value, and that
 * their bytes stay what other versions of the library understand. Processes that exchange them:
 * tests/e2e/test_ipc.py. */

#include "base/ipc_message.h"
#include "cases.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define GRANT(member) offsetof(struct ipc_grant, member), sizeof(((struct ipc_grant *)NULL)->member)

/* A grant of 100 bytes at 50 of 200, with one member changed. */
static const struct row {
    size_t at, size;
    uint64_t value;
    bool descriptor, accepted;
} rows[] = {
    {GRANT(number), 9, false, true},
    {GRANT(number), 9, true, false}, /* it says that none comes */
    {GRANT(how), IPC_DESCRIPTOR, true, true},
    {GRANT(how), IPC_DESCRIPTOR, false, false},
    {GRANT(how), 3, true, false},
    {GRANT(how), 0, false, false},
    {GRANT(magic), 1, false, false},
    {GRANT(version), IPC_VERSION + 1, false, false},
    {GRANT(kind), IPC_OPEN, false, false},
    {GRANT(status), IPC_GONE, false, true},
    {GRANT(status), IPC_GONE, true, false},
    {GRANT(status), IPC_FULL, false, true},
    {GRANT(status), IPC_FULL + 1, false, false},
    {GRANT(segment_size), 0, false, false},
    {GRANT(segment_size), 149, false, false},
    {GRANT(segment_size), 150, false, true},
    {GRANT(segment_size), IPC_SEGMENT_MAX, false, true},
    {GRANT(segment_size), IPC_SEGMENT_MAX + 1, false, false},
    {GRANT(offset), 0, false, true},
    {GRANT(offset), 100, false, true},
    {GRANT(offset), 101, false, false},
    {GRANT(offset), 201, false, false},
    {GRANT(offset), UINT64_MAX, false, false},
    {GRANT(size), 0, false, false},
    {GRANT(size), 1, false, true},
    {GRANT(size), 150, false, true},
    {GRANT(size), 151, false, false},
    {GRANT(size), UINT64_MAX, false, false},
};

UNIT_CASE(test_grants)
{
    struct ipc_grant grant, copy;

    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct row *row = &rows[i];

        ipc_grant_begin(&grant, 7, IPC_GRANTED);
        grant.how = IPC_NATIVE;
        grant.segment_size = 200;
        grant.offset = 50;
        grant.size = 100;
        memcpy((char *)&grant + row->at, &row->value, row->size); /* the lower bytes come first */
        if (ipc_grant_read(&grant, sizeof(grant), row->descriptor, &copy) != row->accepted)
            fail_msg("row %zu", i);
        assert_memory_equal(&copy, &grant, sizeof(grant));
        assert_false(ipc_grant_read(&grant, sizeof(grant) - 1, row->descriptor, &copy));
        assert_false(ipc_grant_read(&grant, sizeof(grant) + 1, row->descriptor, &copy));
    }
    /* An offset at the end, where nothing is. */
    grant.size = 1;
    grant.offset = grant.segment_size;
    assert_false(ipc_grant_read(&grant, sizeof(grant), false, &copy));
}

UNIT_CASE(test_requests_and_tickets)
{
    const struct ipc_name station = {{1, 2, 3}}, block = {{[15] = 4}};
    struct ipc_request request, copy;
    struct ipc_ticket ticket, read;

    for (unsigned int kind = 0; kind < 5; kind++) {
        ipc_request_make(&request, (enum ipc_kind)kind, 5, &block);
        assert_int_equal(ipc_request_read(&request, sizeof(request), &copy), kind == IPC_OPEN || kind == IPC_CLOSE);
    }
    ipc_request_make(&request, IPC_CLOSE, 5, &block);
    for (size_t i = 0; i < 8; i++) { /* magic, version and kind */
        memcpy(&copy, &request, sizeof(copy));
        ((unsigned char *)&copy)[i] ^= 0x10;
        assert_false(ipc_request_read(&copy, sizeof(copy), &copy));
    }
    assert_false(ipc_request_read(&request, sizeof(request) - 1, &copy));
    assert_false(ipc_request_read(&request, sizeof(request) + 1, &copy));
    assert_int_equal(request.number, 5);
    assert_true(ipc_name_equal(&request.block, &block));
    assert_false(ipc_name_equal(&(struct ipc_name){{[15] = 5}}, &block));
    ipc_ticket_make(&ticket, 77, &station, &block);
    assert_true(ipc_ticket_read(&ticket, &read));
    assert_int_equal(read.pid, 77);
    assert_true(ipc_name_equal(&read.station, &station) && ipc_name_equal(&read.block, &block));
    for (size_t i = 0; i < 8 * sizeof(ticket); i++) {
        ((unsigned char *)&ticket)[i / 8] ^= (unsigned char)(1 << i % 8);
        assert_false(ipc_ticket_read(&ticket, &read));
        ((unsigned char *)&ticket)[i / 8] ^= (unsigned char)(1 << i % 8);
    }
}

/* FNV-1a of all but the last 8 bytes, which it becomes. */
static void seal(struct ipc_ticket *ticket)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < sizeof(*ticket) - 8; i++)
        hash = (hash ^ ((const unsigned char *)ticket)[i]) * UINT64_C(0x100000001b3);
    ticket->check = hash;
}

/* As every version of the library writes them, on processors whose lower bytes come first. */
UNIT_CASE(test_bytes)
{
    const struct ipc_name name = {"0123456789abcdef"};
    struct ipc_request request;
    struct ipc_ticket ticket, other;
    struct ipc_grant grant;

    ipc_ticket_make(&ticket, 0x0102, &name, &name);
    assert_memory_equal(&ticket,
                        "cupoolIP\1\0\0\0\2\1\0\0"
                        "0123456789abcdef"
                        "0123456789abcdef\0\0\0\0\0\0\0\0",
                        56);
    other = ticket;
    seal(&other);
    assert_int_equal(other.check, ticket.check);
    other.version++;
    seal(&other);
    assert_false(ipc_ticket_read(&other, &other));
    other = ticket;
    other.magic[7]++;
    seal(&other);
    assert_false(ipc_ticket_read(&other, &other));
    ipc_request_make(&request, IPC_OPEN, 3, &name);
    assert_memory_equal(&request,
                        "copI\1\0\1\0\3\0\0\0\0\0\0\0"
                        "0123456789abcdef",
                        sizeof(request));
    ipc_grant_begin(&grant, 3, IPC_FULL);
    assert_memory_equal(&grant, "copI\1\0\3\0\3\0\0\0\0\0\0\0\2\0\0\0", 20);
}
