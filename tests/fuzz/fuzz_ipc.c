/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_ipc.c - any messages of importing processes, at any moment of the life of blocks and processes: a block is
 * granted to a process that names it, and to nobody once the program has freed it; it stays parked exactly while a
 * process holds it that lives; nothing else is sent, and a message that is no request ends its connection.
 *
 * How to run it: fuzz.h. An input is steps: a byte for what happens (enum step), a byte for the block or the process,
 * and what that step needs. It has ipc_server.c inside; the sockets and processes below that are this file's. The
 * oracle keeps books of its own.
 */
#include "context/ipc_server.c" /* NOLINT(bugprone-suspicious-include): see above */

#include "fuzz.h"

#define BLOCKS    8u
#define PEERS     4u
#define SEGMENT   ((uint64_t)1 << 30)
#define HOLDS_MAX 4096u
#define LEFT_MAX  50u

enum step {
    ADD,     /* export the block, unless it is live */
    RELEASE, /* the program frees it */
    CONNECT, /* the process connects, unless it is connected */
    RAW,     /* it sends: length, bytes */
    REQUEST, /* it sends a request: kind, block, number; with the name that the block had last */
    LEAVE,   /* it ends its connection */
    DIE,     /* it is killed; another process comes to its place */
    LOSE,    /* the segment of all blocks is lost */
    STEPS
};

/* The oracle's books. */
static struct {
    bool live, parked;
    struct ipc_name name; /* of the last export */
    size_t size;
} blocks[BLOCKS];

/* Places of processes. */
static struct {
    int pid, fd; /* fd -1: not connected */
    int whose;   /* the connection: a process that is dead by now, or pid */
    bool waits, leaves;
    bool wrong;       /* its message is no request */
    bool ended;       /* by the server */
    bool has_message; /* for the server to read */
    uint8_t message[256];
    size_t len;
    unsigned int holds[BLOCKS];
    bool expects; /* this answer: */
    struct ipc_grant expected;
} peers[PEERS];

/* Blocks that processes have not closed before they left. */
static struct {
    int pid;
    unsigned int holds[BLOCKS];
} left[LEFT_MAX + PEERS];
static unsigned int left_count;

static int pids, fds;
static uint64_t names;
static char fault[256];

#define FAULT(...) (fault[0] ? 0 : snprintf(fault, sizeof(fault), __VA_ARGS__))

static bool lives(int pid)
{
    for (unsigned int i = 0; i < PEERS; i++)
        if (peers[i].pid == pid)
            return true;
    return false;
}

/* --- what is below the server --- */

void ipc_name_make(struct ipc_name *ret_name)
{
    uint64_t rng = ++names;

    for (int i = 0; i < 2; i++) {
        const uint64_t word = next(&rng);

        memcpy(ret_name->bytes + 8 * (size_t)i, &word, 8);
    }
}

static int peer_of(const struct ipc_descriptor *connection)
{
    for (unsigned int i = 0; i < PEERS; i++)
        if (peers[i].fd == connection->fd && connection->fd >= 0)
            return (int)i;
    return -1;
}

int ipc_listen(struct ipc_descriptor *ret_station, struct ipc_name *ret_name)
{
    *ret_station = (struct ipc_descriptor){.fd = 1};
    ipc_name_make(ret_name);
    return 0;
}

int ipc_accept(const struct ipc_descriptor *station, struct ipc_descriptor *ret_connection, int *ret_pid)
{
    *ret_connection = (struct ipc_descriptor){.fd = -1};
    for (unsigned int i = 0; i < PEERS; i++) {
        if (!peers[i].waits)
            continue;
        peers[i].waits = false;
        ret_connection->fd = peers[i].fd;
        *ret_pid = peers[i].pid;
        return 0;
    }
    return -EAGAIN;
}

int ipc_keep(int fd, struct ipc_descriptor *ret)
{
    ret->fd = fd;
    return fd < 0 ? -EIO : 0;
}

bool ipc_is_open(const struct ipc_descriptor *descriptor)
{
    return descriptor->fd == 1 || descriptor->fd >= 1000;
}

void ipc_end(struct ipc_descriptor *connection)
{
    const int i = peer_of(connection);

    if (i >= 0)
        peers[i].ended = true;
    connection->fd = -1;
}

void ipc_leave(struct ipc_descriptor *descriptor)
{
    descriptor->fd = -1;
}

int ipc_send(const struct ipc_descriptor *connection, const void *data, size_t len, int fd)
{
    const int i = peer_of(connection);
    struct ipc_grant grant;

    if (i < 0 || !peers[i].expects || len != sizeof(grant) || fd >= 0) {
        FAULT("process %d got %zu bytes that it did not ask for", i, len);
        return 0;
    }
    memcpy(&grant, data, len);
    if (grant.status == IPC_GRANTED) /* a random number */
        peers[i].expected.segment = grant.segment;
    if (memcmp(&grant, &peers[i].expected, len) != 0)
        FAULT("process %d got status %u, offset %llu, size %llu", i, grant.status, (unsigned long long)grant.offset,
              (unsigned long long)grant.size);
    peers[i].expects = false;
    return 0;
}

ssize_t ipc_receive(const struct ipc_descriptor *connection, void *data, size_t len, int *ret_fd)
{
    const int i = peer_of(connection);

    *ret_fd = -1;
    if (i >= 0 && peers[i].has_message) {
        peers[i].has_message = false;
        memcpy(data, peers[i].message, peers[i].len < len ? peers[i].len : len);
        return (ssize_t)peers[i].len;
    }
    return i >= 0 && peers[i].leaves ? 0 : -EAGAIN;
}

struct peer_process peer_process_of(int pid)
{
    return (struct peer_process){.pid = pid, .start = 1};
}

bool peer_process_lives(const struct peer_process *process)
{
    return lives(process->pid);
}

/* --- the oracle --- */

static unsigned int holds_of(unsigned int block)
{
    unsigned int sum = 0;

    for (unsigned int i = 0; i < PEERS; i++)
        sum += peers[i].holds[block];
    for (unsigned int i = 0; i < left_count; i++)
        sum += left[i].holds[block];
    return sum;
}

static void block_gone(unsigned int block)
{
    blocks[block].live = blocks[block].parked = false;
    for (unsigned int i = 0; i < PEERS; i++)
        peers[i].holds[block] = 0;
    for (unsigned int i = 0; i < left_count; i++)
        left[i].holds[block] = 0;
}

/* The process has no connection any more. Its blocks stay held while it lives. */
static void disconnected(unsigned int i)
{
    left[left_count].pid = peers[i].whose;
    memcpy(left[left_count++].holds, peers[i].holds, sizeof(peers[i].holds));
    memset(peers[i].holds, 0, sizeof(peers[i].holds));
    peers[i].fd = -1;
    peers[i].leaves = peers[i].wrong = peers[i].ended = peers[i].waits = false;
}

static void processes_settle(void)
{
    for (unsigned int i = 0; i < PEERS; i++) {
        if (peers[i].expects)
            FAULT("process %u got no answer", i);
        if (peers[i].wrong && !peers[i].ended)
            FAULT("the connection of process %u goes on", i);
        if (peers[i].fd >= 0 && peers[i].ended)
            disconnected(i);
        peers[i].expects = false;
    }
    for (unsigned int i = 0; i < left_count;) {
        static const unsigned int none[BLOCKS];

        if (lives(left[i].pid) && memcmp(left[i].holds, none, sizeof(none)) != 0)
            i++;
        else
            left[i] = left[--left_count];
    }
}

/* Let the server do its work, and free what is released. */
static void work(void)
{
    uint64_t addr;

    for (int i = 0; i < 2; i++) { /* in the first tick processes leave, in the second they are looked at */
        server.look = server.look ? 1 : 0;
        ipc_server_tick(now_ns());
        for (unsigned int k = 0; k < PEERS; k++)
            if (peers[k].expects)
                FAULT("process %u is not answered in the tick in which it connects", k);
    }
    processes_settle();
    while (!fault[0] && ipc_table_released(&addr)) {
        const unsigned int block = (unsigned int)((addr - SEGMENT) >> 20) % BLOCKS;

        if (!blocks[block].parked || holds_of(block) || !ipc_table_take(addr))
            FAULT("block %u is released, and %u hold it", block, holds_of(block));
        block_gone(block);
    }
    for (unsigned int i = 0; i < BLOCKS; i++)
        if (blocks[i].parked && !holds_of(i))
            FAULT("block %u is parked, and nobody holds it", i);
}

/* Set down the answer that has to follow from the message of a process. */
static void message_expect(unsigned int i)
{
    const uint8_t *message = peers[i].message;
    struct ipc_grant *expected = &peers[i].expected;
    uint16_t head[2]; /* version, kind */
    unsigned int k = 0;

    memcpy(head, message + 4, 4);
    peers[i].has_message = true;
    peers[i].wrong =
        peers[i].len != 32 || memcmp(message, "copI", 4) != 0 || head[0] != 1 || head[1] < 1 || head[1] > 2;
    if (peers[i].wrong)
        return;
    while (k < BLOCKS && !(blocks[k].live && memcmp(blocks[k].name.bytes, message + 16, 16) == 0))
        k++;
    if (head[1] == 2) {
        if (k < BLOCKS)
            peers[i].holds[k] -= peers[i].holds[k] > 0;
        return;
    }
    memset(expected, 0, sizeof(*expected));
    memcpy(expected, "copI", 4);
    expected->version = 1;
    expected->kind = 3;
    memcpy(&expected->number, message + 8, 8);
    peers[i].expects = true;
    if (k == BLOCKS || blocks[k].parked || peers[i].holds[k] == HOLDS_MAX) {
        expected->status = k < BLOCKS && !blocks[k].parked ? 2 : 1;
        return;
    }
    peers[i].holds[k]++;
    expected->how = 1;
    expected->segment_size = (uint64_t)BLOCKS << 20;
    expected->offset = (uint64_t)k << 20;
    expected->size = blocks[k].size;
    memset(expected->handle, 0x5a, sizeof(expected->handle));
}

/* --- the steps --- */

static void block_step(enum step step, unsigned int block)
{
    const uint64_t addr = SEGMENT + ((uint64_t)block << 20);
    struct ipc_segment segment = {.addr = SEGMENT, .size = (uint64_t)BLOCKS << 20, .how = IPC_NATIVE, .fd = -1};
    const enum ipc_free expected = blocks[block].parked ? IPC_FREE_AGAIN
                                   : holds_of(block)    ? IPC_FREE_PARKED
                                                        : IPC_FREE_NOW;

    memset(segment.handle, 0x5a, sizeof(segment.handle));
    if (step == ADD && !blocks[block].live) {
        blocks[block].size = 1 + block * 1000;
        if (ipc_table_add(NULL, addr, blocks[block].size, &segment, &blocks[block].name))
            FAULT("block %u cannot be added", block);
        blocks[block].live = true;
    } else if (step == RELEASE) {
        if (ipc_table_free(addr) != expected)
            FAULT("the free of block %u is not %d", block, (int)expected);
        if (blocks[block].live && expected == IPC_FREE_NOW)
            block_gone(block);
        blocks[block].parked = blocks[block].live;
    } else if (step == LOSE) {
        ipc_table_segment_gone(SEGMENT);
        for (unsigned int i = 0; i < BLOCKS; i++)
            block_gone(i);
    }
}

static void die(unsigned int i, bool closes)
{
    static const unsigned int none[BLOCKS];

    /* A child that it has forked may keep the connection open. */
    peers[i].leaves = closes || memcmp(peers[i].holds, none, sizeof(none)) == 0;
    if (peers[i].leaves)
        work();
    peers[i].pid = ++pids;
    work();
    if (peers[i].fd >= 0)
        FAULT("the connection of the dead process %u goes on", i);
}

static void peer_step(enum step step, unsigned int i, const uint8_t **data, size_t *size)
{
    const uint8_t *at = *data;
    size_t take = step == RAW && *size ? 1 + (size_t)at[0] : step == REQUEST ? 3 : 0;

    take = take < *size ? take : *size;
    *data += take;
    *size -= take;
    if (step == CONNECT && peers[i].fd < 0 && left_count < LEFT_MAX) {
        peers[i].fd = ++fds;
        peers[i].whose = peers[i].pid;
        peers[i].waits = true;
    } else if (step == DIE && peers[i].fd >= 0) {
        die(i, at - *data ? true : pids % 2);
    } else if (step == LEAVE) {
        peers[i].leaves = peers[i].fd >= 0;
    } else if (step == RAW && take && peers[i].fd >= 0) {
        memset(peers[i].message, 0, sizeof(peers[i].message));
        memcpy(peers[i].message, at + 1, take - 1);
        peers[i].len = at[0] ? at[0] : 1;
        message_expect(i);
    } else if (step == REQUEST && take == 3 && peers[i].fd >= 0) {
        const struct ipc_request request = {.magic = UINT32_C(0x49706f63),
                                            .version = 1,
                                            .kind = at[0],
                                            .number = at[2],
                                            .block = blocks[at[1] % BLOCKS].name};

        memcpy(peers[i].message, &request, sizeof(request));
        peers[i].len = sizeof(request);
        message_expect(i);
    }
}

static void begin(void)
{
    fault[0] = '\0';
    memset(blocks, 0, sizeof(blocks));
    memset(peers, 0, sizeof(peers));
    left_count = 0;
    names = 0;
    fds = 1000;
    for (unsigned int i = 0; i < PEERS; i++) {
        peers[i].fd = -1;
        peers[i].pid = ++pids;
    }
    memset(server.connections, 0, sizeof(server.connections));
    server.bell[0].fd = server.bell[1].fd = -1;
    server.station.fd = 1;
    server.look = server.pause = 0;
    atomic_store(&server.open, true);
}

static const char *fuzz_run(const uint8_t *data, size_t size)
{
    struct ipc_table_counts counts;

    begin();
    while (size >= 2 && !fault[0]) {
        const enum step step = (enum step)(data[0] % STEPS);
        const unsigned int which = data[1];

        data += 2;
        size -= 2;
        if (step == ADD || step == RELEASE || step == LOSE)
            block_step(step, which % BLOCKS);
        else
            peer_step(step, which % PEERS, &data, &size);
        if (step != CONNECT || size < 2 || data[0] % STEPS != REQUEST) /* an importer connects and asks */
            work();
    }
    /* At the end all die, and the books are as at the beginning. */
    for (unsigned int i = 0; i < PEERS && !fault[0]; i++)
        if (peers[i].fd >= 0)
            die(i, true);
        else
            peers[i].pid = ++pids;
    if (!fault[0])
        work();
    for (unsigned int i = 0; i < BLOCKS; i++)
        if (!fault[0] && blocks[i].parked)
            FAULT("block %u is parked for ever", i);
    ipc_table_segment_gone(SEGMENT);
    ipc_table_count(NULL, 0, &counts);
    if (counts.blocks || atomic_load(&ipc_table_blocks))
        FAULT("%u blocks are left", counts.blocks);
    return fault;
}

static size_t fuzz_random(uint64_t *rng, uint8_t *buffer)
{
    size_t size = 0;

    for (uint64_t n = next(rng) % 200; n; n--) {
        const uint64_t what = next(rng) % 100;
        const enum step step = what < 20   ? ADD
                               : what < 35 ? RELEASE
                               : what < 47 ? CONNECT
                               : what < 52 ? RAW
                               : what < 90 ? REQUEST
                               : what < 94 ? LEAVE
                               : what < 99 ? DIE
                                           : LOSE;

        buffer[size++] = (uint8_t)step;
        buffer[size++] = (uint8_t)next(rng);
        if (step == RAW) {
            const uint8_t len = (uint8_t)(next(rng) % 4 ? 32 : next(rng));

            buffer[size++] = len;
            for (unsigned int i = 0; i < len; i++)
                buffer[size++] = (uint8_t)next(rng);
            if (len >= 8 && next(rng) % 4)
                memcpy(buffer + size - len, "copI\1\0\1", 8);
        } else if (step == REQUEST) {
            buffer[size++] = next(rng) % 16 ? (uint8_t)(1 + next(rng) % 2) : (uint8_t)next(rng);
            buffer[size++] = (uint8_t)next(rng);
            buffer[size++] = (uint8_t)next(rng);
        }
    }
    return size;
}
