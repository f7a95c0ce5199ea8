/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_rows.c - every operation of hooks/nccl.def, with buffers at the very end of registered memory: nccl_rows MODE;
 * nccl_rows --list prints the modes that test each row of the list.
 *
 * The mode extents asks: does the library take a buffer for one that lies in registered memory if and only if all bytes
 * that the operation touches do? The mode kinds asks: does it know which operations are point-to-point? The right
 * answers stand in the table below, from NCCL's documentation, and not in hooks/nccl.def. There is one process, which
 * is each rank in turn; the NCCL behind it is nccl_double.c.
 *
 * Exit status 0: all was right; 1: not, with a line on stdout that says what.
 */
#include "nccl_rows.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define COUNT         24 /* elements of one rank */
#define RANKS_MAX     3
#define TYPE_SIZE_MAX 8
/* More than any buffer has, and no whole page. */
#define ZONE ((size_t)RANKS_MAX * COUNT * TYPE_SIZE_MAX + 512)

/* --- calls that are right --- */

/* How many times count elements of a buffer an operation touches: each rank's piece (N), one, or none. */
#define N 100
enum part { FROM, TO };

static const struct expected {
    const char *name;
    struct {
        int at_root, elsewhere;
    } part[2];
    bool point_to_point;
} table[] = {
    {"ncclAllReduce", {{1, 1}, {1, 1}}, false}, {"ncclBroadcast", {{1, 0}, {1, 1}}, false},
    {"ncclBcast", {{0, 0}, {1, 1}}, false},     {"ncclReduce", {{1, 1}, {1, 0}}, false},
    {"ncclAllGather", {{1, 1}, {N, N}}, false}, {"ncclReduceScatter", {{N, N}, {1, 1}}, false},
    {"ncclSend", {{1, 1}, {0, 0}}, true},       {"ncclRecv", {{0, 0}, {1, 1}}, true},
    {"ncclAlltoAll", {{N, N}, {N, N}}, true},   {"ncclGather", {{1, 1}, {N, 0}}, true},
    {"ncclScatter", {{N, 0}, {1, 1}}, true},
};

/* Bytes of each ncclDataType_t, in the order of nccl.h: int8, uint8, int32, uint32, int64, uint64, float16, float32,
 * float64, bfloat16, float8e4m3, float8e5m2. */
static const size_t type_sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
#define TYPES ((int)(sizeof(type_sizes) / sizeof(type_sizes[0])))

/* --- the rows, called --- */

struct call {
    ncclComm_t comm;
    int root, type;
    uintptr_t buffers[2];
};

/* Names of the parameters that a row may have. */
#define NCCL_OP(symbol, parameters, arguments, kind, from_, from_count, to_, to_count)                                 \
    static ncclResult_t call_##symbol(const struct call *c)                                                            \
    {                                                                                                                  \
        const ncclComm_t comm = c->comm;                                                                               \
        const int root = c->root, peer = c->root;                                                                      \
        const ncclDataType_t type = c->type;                                                                           \
        const ncclRedOp_t op = 0;                                                                                      \
        const cudaStream_t stream = NULL;                                                                              \
        const size_t count = COUNT;                                                                                    \
        const void *from = pointer(c->buffers[FROM]);                                                                  \
        void *to = pointer(c->buffers[TO]);                                                                            \
                                                                                                                       \
        (void)root, (void)peer, (void)op, (void)from, (void)to;                                                        \
        return symbol arguments; /* NOLINT(bugprone-macro-parentheses): a list */                                      \
    }
#include "hooks.def"

static const struct row {
    const char *name;
    ncclResult_t (*call)(const struct call *c);
} rows[] = {
#define NCCL_OP(symbol, parameters, arguments, kind, from, from_count, to, to_count) {#symbol, call_##symbol},
#include "hooks.def"
};
#define ROWS ((int)(sizeof(rows) / sizeof(rows[0])))

static const struct expected *expected_of(const struct row *row)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].name, row->name) == 0)
            return &table[i];
    FAIL("no test for %s", row->name);
}

/* --- the library's side --- */

/* Messages that come before the statistics are handed on to stdout. */
struct counters counters_get(void)
{
    struct counters c;
    char line[512];

    fflush(stdout);
    kill(getpid(), SIGUSR2);
    do {
        if (!fgets(line, sizeof(line), stdin))
            FAIL("no statistics");
        if (strncmp(line, "cupool[", 7) == 0) /* a message */
            fputs(line, stdout);
    } while (
        sscanf(line,
               "cupool: NCCL: %llu operations, %llu registrations (%llu undone, %llu made anew, %llu failed), %llu "
               "operations partly and %llu wholly outside of registered memory, %llu at risk",
               &c.ops, &c.registered, &c.undone, &c.renewed, &c.failed, &c.mixed, &c.outside, &c.unsafe) != 8);
    return c;
}

ncclComm_t comm_made(int rank, int ranks)
{
    static const ncclUniqueId id;
    struct double_state *d = double_get();
    ncclComm_t comm = NULL;

    d->rank = rank;
    d->ranks = ranks;
    NC(ncclCommInitRank(&comm, ranks, id, rank));
    return comm;
}

ncclComm_t stranger(void)
{
    static struct ncclComm pool[256];
    static unsigned int used;

    if (used == COUNT_OF(pool))
        FAIL("there are too few strangers");
    pool[used] = (struct ncclComm){.rank = 1, .ranks = 3};
    return &pool[used++];
}

void *pointer(uintptr_t addr)
{
    return (void *)addr; /* NOLINT(performance-no-int-to-ptr): never looked at */
}

uintptr_t memory_made(size_t size)
{
    void *ptr = NULL;

    NC(ncclMemAlloc(&ptr, size));
    return (uintptr_t)ptr;
}

unsigned int calls_of(const char *name, const void *subject)
{
    const struct double_state *d = double_get();
    unsigned int count = 0;

    for (unsigned int i = 0; i < d->count; i++)
        count += strcmp(d->log[i].name, name) == 0 && (!subject || d->log[i].subject == subject);
    return count;
}

unsigned int when(const char *name)
{
    const struct double_state *d = double_get();
    unsigned int i = 0;

    while (i < d->count && strcmp(d->log[i].name, name) != 0)
        i++;
    return i;
}

void prepare(const char *name, ncclResult_t result, void (*inside)(void))
{
    struct double_state *d = double_get();

    d->row = name;
    d->result = result;
    d->inside = inside;
    d->count = 0;
}

/* --- extents --- */

static const uintptr_t nowhere = (uintptr_t)1 << 45;
static uintptr_t zone; /* registered: ZONE bytes from here on */

enum verdict { INSIDE, MIXED, OUTSIDE, VERDICTS };
/* Where one buffer lies, or both, in place. SHORT: an element further than at the end; EARLY: one before the start. */
enum layout {
    FROM_AT_END, /* the other one is nowhere */
    FROM_SHORT,
    FROM_EARLY,
    TO_AT_END,
    TO_SHORT,
    TO_EARLY,
    BOTH_AT_END,
    IN_PLACE_AT_END,
    IN_PLACE_SHORT,
    LAYOUTS
};

static size_t bytes_of(const struct row *row, enum part part, const struct call *c)
{
    const struct expected *e = expected_of(row);
    const int times = c->comm->rank == c->root ? e->part[part].at_root : e->part[part].elsewhere;

    return (size_t)(times == N ? c->comm->ranks : times) * COUNT * type_sizes[c->type];
}

/* A buffer of so many bytes (one that is not touched has a single element) ends with the registered memory. */
static uintptr_t at_end(size_t bytes, size_t element)
{
    return zone + ZONE - (bytes ? bytes : element);
}

/* In place, one buffer is the rank's part of the other, as NCCL says for each operation: the larger one is whole. */
static void lay_in_place(const struct row *row, struct call *c, size_t shift)
{
    const size_t element = type_sizes[c->type], from = bytes_of(row, FROM, c), to = bytes_of(row, TO, c);
    const size_t piece = (size_t)c->comm->rank * COUNT * element;
    const uintptr_t at = at_end(from > to ? from : to, element) + shift;

    c->buffers[FROM] = at + (from && from < to ? piece : 0);
    c->buffers[TO] = at + (to && to < from ? piece : 0);
}

static void lay(const struct row *row, enum layout layout, struct call *c)
{
    const size_t element = type_sizes[c->type];
    const uintptr_t from = at_end(bytes_of(row, FROM, c), element), to = at_end(bytes_of(row, TO, c), element);
    const uintptr_t where[LAYOUTS][2] = {
        [FROM_AT_END] = {from, nowhere},
        [TO_AT_END] = {nowhere, to},
        [FROM_SHORT] = {from + element, nowhere},
        [TO_SHORT] = {nowhere, to + element},
        [FROM_EARLY] = {zone - element, nowhere},
        [TO_EARLY] = {nowhere, zone - element},
        [BOTH_AT_END] = {from, to},
    };

    if (layout >= IN_PLACE_AT_END)
        lay_in_place(row, c, layout == IN_PLACE_SHORT ? element : 0);
    else
        memcpy(c->buffers, where[layout], sizeof(c->buffers));
}

static enum verdict verdict_of(const struct row *row, const struct call *c)
{
    bool inside = false, outside = false;

    for (int part = FROM; part <= TO; part++) {
        const size_t bytes = bytes_of(row, part, c);
        const bool in = c->buffers[part] >= zone && c->buffers[part] + bytes <= zone + ZONE;

        inside |= bytes && in;
        outside |= bytes && !in;
    }
    return inside && outside ? MIXED : inside ? INSIDE : OUTSIDE;
}

static bool as_expected(const struct counters *before, enum verdict verdict, unsigned int ops)
{
    const struct counters now = counters_get();

    return now.ops - before->ops == ops && now.mixed - before->mixed == (verdict == MIXED ? ops : 0) &&
           now.outside - before->outside == (verdict == OUTSIDE ? ops : 0) && now.unsafe == 0;
}

/* Every type in every layout for which this is the verdict: one after the other, or all and then a look. */
static bool run_all(const struct row *row, struct call c, enum verdict verdict, bool one_by_one)
{
    struct counters before = counters_get();
    unsigned int ops = 0;

    for (c.type = 0; c.type < TYPES; c.type++) {
        for (enum layout layout = 0; layout < LAYOUTS; layout++) {
            lay(row, layout, &c);
            if (verdict_of(row, &c) != verdict)
                continue;
            NC(row->call(&c));
            ops++;
            if (one_by_one && !as_expected(&before, verdict, 1))
                FAIL(
                    "%s: rank %d of %d, root %d, type %d, layout %d: the library does not find it %s registered memory",
                    row->name, c.comm->rank, c.comm->ranks, c.root, c.type, (int)layout,
                    verdict == INSIDE  ? "in"
                    : verdict == MIXED ? "partly in"
                                       : "outside of");
            if (one_by_one)
                before = counters_get();
        }
    }
    return one_by_one || as_expected(&before, verdict, ops);
}

static void extents_of(const struct row *row, ncclComm_t comm)
{
    for (int root = 0; root < comm->ranks; root++) {
        for (enum verdict verdict = 0; verdict < VERDICTS; verdict++) {
            const struct call c = {.comm = comm, .root = root};

            /* All alike add up to one number, which no two errors can make right again. */
            if (!run_all(row, c, verdict, /* one_by_one: */ false) && run_all(row, c, verdict, /* one_by_one: */ true))
                FAIL("%s: wrong together, and right one by one", row->name);
        }
    }
}

/* The first that is done with a communicator that nobody saw being made. */
static void extents_of_first(const struct row *row)
{
    for (enum layout layout = 0; layout < LAYOUTS; layout++) {
        const struct counters before = counters_get();
        struct call c = {.comm = stranger(), .root = 1, .type = 7};

        lay(row, layout, &c);
        NC(row->call(&c));
        if (!as_expected(&before, verdict_of(row, &c), 1))
            FAIL("%s: layout %d: wrong as the first operation", row->name, (int)layout);
    }
}

static void extents(void)
{
    zone = memory_made(ZONE);
    for (int i = 0; i < ROWS; i++)
        extents_of_first(&rows[i]);
    for (int ranks = 2; ranks <= RANKS_MAX; ranks++)
        for (int rank = 0; rank < ranks; rank++)
            for (int i = 0; i < ROWS; i++)
                extents_of(&rows[i], comm_made(rank, ranks));
}

/* --- kinds --- */

static ncclResult_t probe(const struct call *c, bool send)
{
    return send ? ncclSend(pointer(c->buffers[0]), COUNT, c->type, 0, c->comm, NULL)
                : ncclAllReduce(pointer(c->buffers[0]), pointer(c->buffers[0]), COUNT, c->type, 0, c->comm, NULL);
}

/* A collective on what point-to-point has used gets a registration of its own, and nothing else does. */
static void kinds_of(const struct row *row, struct call c)
{
    const bool point_to_point = expected_of(row)->point_to_point;

    for (int first = 0; first < 2; first++) {
        struct counters before = counters_get();

        c.buffers[FROM] = c.buffers[TO] = memory_made(ZONE);
        /* The row is first, and a collective follows; or it follows a send. */
        NC(first ? row->call(&c) : probe(&c, /* send: */ true));
        NC(first ? probe(&c, /* send: */ false) : row->call(&c));
        if (counters_get().renewed - before.renewed != (unsigned int)(point_to_point == (first != 0)))
            FAIL("%s: it is not taken for %s", row->name, point_to_point ? "point-to-point" : "a collective");
        NC(ncclMemFree(pointer(c.buffers[FROM])));
    }
}

/* Which NCCL needs that care: from 2.23 to before 2.29.2; and of cudaMalloc's memory only what its peers map, before
 * 2.24 or where the user asks for it. */
static void versions(void)
{
    static const struct {
        int version;
        const char *legacy; /* NCCL_LEGACY_CUDA_REGISTER */
        bool cares, cares_plain;
    } cases[] = {
        {22299, NULL, false, false},
        {22300, NULL, true, true},
        {22399, "0", true, true},
        {22400, NULL, true, false},
        {22400, "0", true, false},
        {22400, "1", true, true},
        {22901, NULL, true, false},
        {22901, "1", true, true},
        {22902, NULL, false, false},
        {22902, "1", false, false},
        {0, NULL, true, true} /* it does not say */,
    };
    void *plain;

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        double_get()->version = cases[i].version;
        unsetenv("NCCL_LEGACY_CUDA_REGISTER");
        if (cases[i].legacy)
            setenv("NCCL_LEGACY_CUDA_REGISTER", cases[i].legacy, 1);
        if (cudaMalloc(&plain, (size_t)4 << 20))
            FAIL("no memory");
        for (int is_plain = 0; is_plain < 2; is_plain++) {
            const uintptr_t at = is_plain ? (uintptr_t)plain : memory_made(ZONE);
            const struct call c = {.comm = comm_made(0, 2), .type = 7, .buffers = {at, at}};
            const unsigned long long before = counters_get().renewed;

            NC(probe(&c, /* send: */ true));
            NC(probe(&c, /* send: */ false));
            if (counters_get().renewed - before != (is_plain ? cases[i].cares_plain : cases[i].cares))
                FAIL("version %d, %s memory: %s", cases[i].version, is_plain ? "cudaMalloc's" : "NCCL's",
                     "no care, or too much");
            NC(ncclCommDestroy(c.comm));
        }
        if (cudaFree(plain))
            FAIL("it cannot be freed");
    }
}

static void kinds(void)
{
    double_get()->version = 22809;
    for (int i = 0; i < ROWS; i++)
        for (int rank = 0; rank < 2; rank++)
            kinds_of(&rows[i], (struct call){.comm = comm_made(rank, 2), .root = 0, .type = 7});
    versions();
}

/* --- memory of the pool --- */

/* ncclMemFree of a block is for NCCL to refuse, and the segment stays registered. */
static void pool_memory(void)
{
    const ncclComm_t comm = comm_made(1, 3);
    void *block = NULL;

    EXPECT(!cudaMalloc(&block, (size_t)4 << 20), "ncclMemFree", "no memory");
    NC(ncclAllReduce(block, block, 8, 7, 0, comm, NULL));
    prepare("ncclMemFree", REFUSED, NULL);
    EXPECT(ncclMemFree(block) == REFUSED, "ncclMemFree", "another result");
    EXPECT(calls_of("ncclMemFree", block) == 1, "ncclMemFree", "it does not reach NCCL");
    EXPECT(calls_of("ncclCommDeregister", NULL) == 0, "ncclMemFree", "a segment of the pool is deregistered");
    EXPECT(!cudaFree(block), "ncclMemFree", "the pool has lost a block");
    /* Now the pool has memory to give back, but the driver has not refused any. */
    prepare("ncclMemAlloc", REFUSED, NULL);
    EXPECT(ncclMemAlloc(&block, (size_t)4 << 20) == REFUSED, "ncclMemAlloc", "another result");
    EXPECT(calls_of("ncclMemAlloc", NULL) == 1, "ncclMemAlloc", "it is called again");
    EXPECT(calls_of("ncclCommDeregister", NULL) == 0, "ncclMemAlloc", "the pool's memory goes");
}

static const struct {
    const char *name;
    void (*run)(void);
} modes[] = {{"extents", extents},  {"kinds", kinds},       {"nested", lives_nested}, {"incapable", lives_incapable},
             {"made", lives_made},  {"used", lives_used},   {"ends", lives_ends},     {"rest", lives_rest},
             {"pool", pool_memory}, {"polls", lives_polls}, {"passes", rows_pass},    {"look_up", rows_look_up}};

int main(int argc, char **argv)
{
    void *first;

    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        rows_list();
        return 0;
    }
    /* The first request makes the context, and starts the thread that writes statistics. */
    if (argc != 2 || cudaMalloc(&first, 4096))
        FAIL("usage: nccl_rows MODE");
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(modes[i].name, argv[1]) == 0) {
            modes[i].run();
            return 0;
        }
    }
    FAIL("no such mode");
}
