/* SPDX-License-Identifier: Apache-2.0 */
/* test_sweep_processes.c - the exporter's books and sockets and the importer's side of them (shim/context/ipc_table.c,
 * ipc_server.c, ipc_peer.c): each call of the system fails once, in each way; the rows in sweep_processes.inc say what
 * follows. test_ipc_table.c and test_peer.c say what is right; this process is both. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/conf.h"
#include "base/descriptor.h"
#include "base/ipc_socket.h"
#include "base/log.h"
#include "cases.h"
#include "context/events.h"
#include "context/ipc_peer.h"
#include "context/ipc_server.h"
#include "context/ipc_table.h"
#include "sweep_system.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define FIRST        UINT64_C(0x7f0000000000)
#define SECOND       UINT64_C(0x7f0000400000)

typedef unsigned long long ull;

static void closes_left(void)
{
    sweep_note("closes are left");
}

const struct context_events context_events = {.closes_left = closes_left};

const struct conf *conf_get(void)
{
    static const struct conf conf = {.ipc = {.number = 3}};

    return &conf;
}

/* Mutexes are checked from their making on. */
__attribute__((constructor)) static void locks_make(void)
{
    ipc_table_forget();
    ipc_peer_forget();
    ipc_server_forget();
}

static const char *process_text = "42 (a) S 1 1 1 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 3 0 777 1 2 3 4 5 6666 8 9";

static const char *process_stat(const char *path)
{
    return strcmp(path, "/proc/42/stat") == 0 ? process_text : NULL;
}

static void left(void)
{
    sweep_say("; %u descriptors %d allocations", system_descriptors(), system_allocations());
}

/* --- the books --- */

static const struct context *context(uintptr_t number)
{
    return (const struct context *)number; /* NOLINT(performance-no-int-to-ptr): never looked at */
}

static struct ipc_segment segment_of(uint64_t addr, enum ipc_how how)
{
    struct ipc_segment as = {
        .addr = addr, .size = 1 << 21, .front = 4096, .how = how, .fd = -1, .handle = {5}, .card = {6}};

    if (how == IPC_DESCRIPTOR)
        as.fd = system_given(300);
    return as;
}

static struct ipc_name names[8];

static void added(unsigned int name, uintptr_t owner, uint64_t addr, const struct ipc_segment *as)
{
    const int fd = as->fd;

    sweep_say(" add %d", SWEPT(ipc_table_add(context(owner), addr, 512, as, &names[name])));
    if (fd >= 0)
        sweep_say(fcntl(fd, F_GETFD) < 0 ? " (closed)" : " (kept)");
}

static void counts(void)
{
    struct ipc_table_counts counts;
    uint64_t addr = 7;
    const bool any = SWEPT(ipc_table_released(&addr));

    SWEPT_VOID(ipc_table_count(NULL, 0, &counts));
    sweep_say(" [%u %u %u any %d released %d %llx]", counts.blocks, counts.held, counts.parked, ipc_table_any(), any,
              (ull)(any ? addr : 0));
}

static void granted(struct ipc_holder *holder, unsigned int name)
{
    struct ipc_request request;
    struct ipc_grant grant;
    int fd;

    ipc_request_make(&request, IPC_OPEN, 5, &names[name]);
    SWEPT_VOID(ipc_table_grant(holder, &request, &grant, &fd));
    sweep_say(" grant %u how %u %llx %llx %llx %d %s", grant.status, grant.how, (ull)grant.segment_size,
              (ull)grant.offset, (ull)grant.size, grant.handle[0] + grant.card[0] + (int)grant.number,
              fd < 0 ? "-" : system_name(fd));
    if (fd >= 0)
        SWEPT(close(fd));
}

static void tell_books(void)
{
    struct ipc_segment as = segment_of(FIRST, IPC_DESCRIPTOR), native = segment_of(SECOND, IPC_NATIVE),
                       none = {.addr = FIRST, .fd = -1};
    struct ipc_holder holders[2] = {{NULL}, {NULL}};

    counts();
    added(0, 1, FIRST + 512, &as);
    added(1, 2, FIRST + 1024, &none);
    added(2, 1, SECOND, &native);
    as = segment_of(FIRST, IPC_DESCRIPTOR); /* a second description is closed */
    added(3, 1, FIRST, &as);
    as = segment_of(SECOND + 512, IPC_DESCRIPTOR);
    added(4, 1, SECOND + 512, &as); /* there is no room */
    added(0, 1, FIRST + 512, &none);
    sweep_say(" has %d", SWEPT(ipc_table_has_segment(FIRST)));
    sweep_say(" %d", SWEPT(ipc_table_has_segment(FIRST + 512)));
    sweep_say(" named %d", SWEPT(ipc_table_name(SECOND, &names[5])));
    sweep_say(" %d", SWEPT(ipc_table_name(1, &names[6])));
    counts();
    for (unsigned int i = 0; i < 2; i++)
        for (unsigned int name = 0; name < 3; name++)
            granted(&holders[i], name);
    granted(&holders[0], 0);
    granted(&holders[0], 7);
    counts();
    for (uint64_t addr = FIRST; addr < FIRST + 2048; addr += 512) {
        sweep_say(" free %d", SWEPT(ipc_table_free(addr)));
        sweep_say(" parked %d", SWEPT(ipc_table_parked(addr)));
        sweep_say(" again %d", SWEPT(ipc_table_free(addr)));
    }
    granted(&holders[1], 0);
    added(0, 1, FIRST + 512, &none);
    sweep_say(" named %d", SWEPT(ipc_table_name(FIRST + 512, &names[6])));
    for (unsigned int i = 0; i < 4; i++) {
        sweep_say(" close %d", SWEPT(ipc_table_close(&holders[i % 2], &names[0])));
        counts();
        sweep_say(" take %d", SWEPT(ipc_table_take(FIRST + 512)));
    }
    sweep_say(" take %d", SWEPT(ipc_table_take(FIRST + 512)));
    counts();
    SWEPT_VOID(ipc_table_end(&holders[0]));
    counts();
    SWEPT_VOID(ipc_table_context_gone(context(2)));
    counts();
    sweep_say(" close %d", SWEPT(ipc_table_close(&holders[1], &names[1])));
    added(4, 1, FIRST, &none);
    as = segment_of(FIRST, IPC_DESCRIPTOR);
    added(4, 1, FIRST, &as);
    SWEPT_VOID(ipc_table_segment_gone(SECOND));
    counts();
    SWEPT_VOID(ipc_table_end(&holders[1]));
    left();
    SWEPT_VOID(ipc_table_forget());
    counts();
    left();
}

/* --- both sides --- */

static void tick(void)
{
    ipc_server_tick(sys.ns);
}

static void due_say(uint64_t due)
{
    if (due == UINT64_MAX)
        sweep_say(" due never");
    else
        sweep_say(" due in %lld ns", (long long)(due - sys.ns));
}

static void served(void)
{
    struct pollfd fds[IPC_POLLED_MAX];
    unsigned int count, most = SWEPT(ipc_server_listen(fds, 2));
    uint64_t due;

    count = SWEPT(ipc_server_listen(fds, COUNT(fds)));
    for (unsigned int i = 0; i < count; i++)
        sweep_note("listen %s %d", system_name(fds[i].fd), fds[i].events);
    due = SWEPT(ipc_server_due(sys.ns));
    sweep_say(" polls %u %u", count, most);
    due_say(due);
    SWEPT_VOID(tick());
}

struct asked {
    struct ipc_peer *peer;
    int rc;
};

static struct asked asked(const struct ipc_name *station, const struct ipc_name *block)
{
    struct asked asked = {.peer = NULL};
    struct ipc_ticket ticket;
    struct ipc_grant grant = {.status = 99};
    int fd = 99;

    ipc_ticket_make(&ticket, 42, station, block);
    sys.waits = tick;
    asked.rc = SWEPT(ipc_peer_ask(&ticket, ipc_peer_limit(), &asked.peer, &grant, &fd));
    sys.waits = NULL;
    sweep_say(" ask %d %s", asked.rc, fd < 0 ? "-" : system_name(fd));
    if (!asked.rc)
        sweep_say(" how %u %llx", grant.how, (ull)grant.offset);
    else
        sweep_note("%s", ipc_peer_reason(asked.rc));
    if (fd >= 0)
        SWEPT(close(fd));
    return asked;
}

static void peer_served(void)
{
    sweep_say(" unsaid");
    due_say(SWEPT(ipc_peer_due(sys.ns)));
    SWEPT_VOID(ipc_peer_tick(sys.ns));
}

static void tell_both(void)
{
    struct ipc_segment as = segment_of(FIRST, IPC_DESCRIPTOR), native = segment_of(SECOND, IPC_NATIVE);
    struct ipc_name station = {{0}};
    struct asked open[3];
    bool is_new = false;

    sys.file = process_stat;
    sys.peer_pid = 42;
    added(0, 1, FIRST, &as);
    added(1, 1, SECOND, &native);
    served();
    for (unsigned int i = 0; i < 2; i++) {
        sweep_say(" begin %d", SWEPT(ipc_server_begin(&station, &is_new)));
        sweep_say(" new %d", is_new);
    }
    sweep_say(" is %d", SWEPT(ipc_server_is(&station)));
    sweep_say(" other %d", SWEPT(ipc_server_is(&names[0])));
    served();
    for (unsigned int i = 0; i < COUNT(open); i++)
        open[i] = asked(&station, &names[i]); /* the last one is none */
    counts();
    served();
    sys.ns += 1000000000;
    served();
    SWEPT_VOID(ipc_server_ring());
    SWEPT_VOID(ipc_server_ring());
    served();
    for (unsigned int i = 0; i < 2; i++) {
        if (open[i].peer)
            SWEPT_VOID(ipc_peer_close(open[i].peer, &names[i]));
        peer_served();
        served();
        counts();
    }
    open[0] = asked(&station, &names[0]);
    sweep_say(" free %d", SWEPT(ipc_table_free(FIRST)));
    process_text =
        "42 (a) S 1 1 1 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 3 0 778 1 2 3 4 5 6666 8 9"; /* the importer ends */
    SWEPT_VOID(ipc_peer_forget());
    served();
    sys.ns += 2000000000;
    served();
    counts();
    SWEPT_VOID(ipc_server_end());
    sweep_say(" is %d", SWEPT(ipc_server_is(&station)));
    SWEPT_VOID(ipc_server_end());
    SWEPT_VOID(ipc_server_ring());
    left();
}

/* --- a crowd --- */

static struct ipc_descriptor importer_of(const struct ipc_name *station)
{
    struct ipc_descriptor importer = {.fd = -1};

    ipc_connect(station, 0, &importer);
    return importer;
}

static void request(const struct ipc_descriptor *importer, enum ipc_kind kind, const struct ipc_name *block)
{
    struct ipc_request request;

    ipc_request_make(&request, kind, 9, block);
    (void)ipc_send(importer, &request, sizeof(request), -1);
}

static unsigned int answers(const struct ipc_descriptor *importers, unsigned int count)
{
    unsigned int answers = 0;
    struct ipc_grant grant;
    int fd;

    for (unsigned int i = 0; i < count; i++)
        answers += ipc_receive(&importers[i], &grant, sizeof(grant), &fd) == sizeof(grant);
    return answers;
}

/* More importers, and more messages of one, than are taken in a tick or at all. */
static void tell_crowd(void)
{
    static struct ipc_descriptor importers[IPC_CONNECTIONS_MAX + 2];
    struct ipc_segment native = segment_of(SECOND, IPC_NATIVE);
    struct pollfd fds[IPC_POLLED_MAX];
    struct ipc_name station;
    unsigned int many = 0;
    bool is_new;

    sys.file = process_stat;
    sys.peer_pid = 42;
    added(0, 1, SECOND, &native);
    sweep_say(" begin %d", SWEPT(ipc_server_begin(&station, &is_new)));
    for (unsigned int i = 0; i < 20; i++) {
        importers[many++] = importer_of(&station);
        request(&importers[i], IPC_OPEN, &names[0]);
    }
    for (unsigned int i = 0; i < 2; i++) {
        SWEPT_VOID(tick());
        sweep_say(" answers %u", answers(importers, many));
    }
    for (unsigned int i = 0; i < 100; i++)
        request(&importers[0], i % 2 ? IPC_OPEN : IPC_CLOSE, &names[0]);
    for (unsigned int i = 0; i < 3; i++) {
        unsigned int heard = 0;

        SWEPT_VOID(tick());
        while (answers(importers, 1))
            heard++;
        sweep_say(" heard %u", heard);
    }
    while (many < COUNT(importers)) {
        importers[many++] = importer_of(&station);
        if (many % 16 == 0)
            SWEPT_VOID(tick());
    }
    for (unsigned int i = 0; i < 2; i++) {
        sweep_say(" polls %u", SWEPT(ipc_server_listen(fds, COUNT(fds))));
        SWEPT_VOID(tick());
    }
    for (unsigned int max = 1; max < 4; max++)
        sweep_say(" of %u: %u", max, SWEPT(ipc_server_listen(fds, max)));
    request(&importers[IPC_CONNECTIONS_MAX - 1], IPC_OPEN, &names[0]);
    SWEPT_VOID(tick());
    sweep_say(" last %u", answers(importers, many));
    ipc_end(&importers[0]); /* it holds a block, and lives */
    ipc_end(&importers[100]);
    request(&importers[101], (enum ipc_kind)7, &names[0]);
    for (unsigned int i = 0; i < 3; i++) {
        SWEPT_VOID(tick());
        sweep_say(" polls %u", SWEPT(ipc_server_listen(fds, COUNT(fds))));
        due_say(SWEPT(ipc_server_due(sys.ns)));
        sys.ns += 15000000;
    }
    process_text = "42 (a) Z 1 1 1 0 -1 4194304 1 0 0 0 1 2 3 4 20 0 1 0 777 1 2 3 4 5 0 8 9";
    for (unsigned int i = 0; i < 3; i++) {
        sys.ns += 1000000000;
        SWEPT_VOID(tick());
        counts();
        due_say(SWEPT(ipc_server_due(sys.ns)));
    }
    SWEPT_VOID(ipc_server_forget());
    sweep_say(" forget %u", answers(importers, many));
    left();
}

UNIT_CASE(test_sweep)
{
    static const struct sweep_story stories[] = {{"books", tell_books, SWEEP_CALLS},
                                                 {"both", tell_both, SWEEP_CALLS},
                                                 {"their descriptors", tell_both, SWEEP_DESCRIPTORS},
                                                 {"crowd", tell_crowd, SWEEP_ONCE}};

    sweep_test("shim/context/sweep_processes", stories, COUNT(stories));
}
