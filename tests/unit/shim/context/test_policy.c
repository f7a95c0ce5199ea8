/* SPDX-License-Identifier: Apache-2.0 */
/* test_policy.c - shim/context/free_policy.c: what CUPOOL_FREE means with each driver, and the debts of
 * CUPOOL_FREE=auto: which work makes one, and which wait pays it. test_reach.c has what makes devices strict. */

#include "exports/hazards.h"
#include "host_work.h"
#include "isolated.h"
#include "room.h"
#include "serve/serve.h"

static struct context *ready(void)
{
    struct context *context;

    fake_start();
    fake.devices = 2;
    context = context_current(&fake.driver);
    assert_non_null(context);
    return context;
}

/* --- the setting --- */

#define OLD           "driver older than 12.5"
#define BLIND         "CUPOOL_HOOK=runtime sees too little"
#define WAITS         "3:device 1: frees wait on the host: "
#define NEEDS         " needs driver 12.5 or later; using strict\n"
#define VERSIONS_FAIL 1

static const struct init {
    const char *environment;
    int version; /* VERSIONS_FAIL: it cannot be asked */
    size_t lacks;
    bool strict, automatic, waits; /* waits: the first free does */
    const char *why, *said;
} inits[] = {
    {"", 13000, FNS, false, true, true, "default", ""},
    {"", 12050, FNS, false, true, true, "default", ""},
    {"", 12049, FNS, true, true, true, OLD, WAITS OLD "\n"},
    {"", 12040, FNS, true, true, true, OLD, WAITS OLD "\n"},
    {"", VERSIONS_FAIL, FNS, true, true, true, OLD, WAITS OLD "\n"},
    {"", 13000, FN(cuCtxRecordEvent), true, true, true, OLD, WAITS OLD "\n"},
    {"", 13000, FN(cuCtxWaitEvent), true, true, true, OLD, WAITS OLD "\n"},
    {"", 13000, FN(cuDriverGetVersion), true, true, true, OLD, WAITS OLD "\n"},
    {"CUPOOL_HOOK=runtime", 13000, FNS, true, true, true, BLIND, WAITS BLIND "\n"},
    {"CUPOOL_ENABLE=0", 13000, FNS, true, true, true, BLIND, WAITS BLIND "\n"},
    {"CUPOOL_HOOK=runtime", 12040, FNS, true, true, true, OLD, WAITS OLD "\n"},
    {"CUPOOL_FREE=ordered", 13000, FNS, false, false, false, "CUPOOL_FREE", ""},
    {"CUPOOL_FREE=ordered CUPOOL_HOOK=runtime", 13000, FNS, false, false, false, "CUPOOL_FREE", ""},
    {"CUPOOL_FREE=ordered", 12040, FNS, true, false, true, OLD, "2:CUPOOL_FREE=ordered" NEEDS},
    {"CUPOOL_FREE=relaxed", 13000, FNS, false, false, false, "CUPOOL_FREE", ""},
    {"CUPOOL_FREE=relaxed", 12040, FNS, true, false, true, OLD, "2:CUPOOL_FREE=relaxed" NEEDS},
    {"CUPOOL_FREE=strict", 13000, FNS, true, false, true, "CUPOOL_FREE", ""},
    {"CUPOOL_FREE=strict", 12040, FNS, true, false, true, "CUPOOL_FREE", ""},
    {"CUPOOL_FREE=strict CUPOOL_HOOK=runtime", 13000, FNS, true, false, true, "CUPOOL_FREE", ""},
};

ISOLATED_OWN(test_init, inits)
{
    const struct init *row = *state;
    struct policy policy = {.strict = !row->strict};
    const char *why = NULL;
    uint64_t debts;

    fake.version = row->version;
    if (row->version == VERSIONS_FAIL)
        fake_fail(FN(cuDriverGetVersion), CUDA_ERROR_UNKNOWN, 1);
    if (row->lacks < FNS)
        fake_lack(row->lacks);
    policy_init(&policy, 1, policy_driver_orders(&fake.driver), &why);
    assert_int_equal(policy.strict, row->strict);
    assert_int_equal(policy_is_strict(&policy), row->strict);
    assert_int_equal(policy.automatic, row->automatic);
    assert_int_equal(policy.device, 1);
    assert_int_equal(policy_waits(&policy, &debts), row->waits);
    assert_int_equal(debts, row->automatic); /* for what was launched before the context was known */
    assert_string_equal(why, row->why);
    assert_string_equal(fake.said, row->said);
    policy_synced(&policy, debts);
    assert_int_equal(policy_waits(&policy, &debts), row->strict);
}

/* A new context of a device that is strict by then. */
ISOLATED_CASE(test_init_strict_device)
{
    static const char why_it_is[] = "for a reason";
    const char *why = NULL;
    struct policy policy = {0};

    policy_strict(1, why_it_is);
    assert_string_equal(fake.said, "");
    policy_init(&policy, 1, true, &why);
    assert_ptr_equal(why, why_it_is);
    assert_true(policy_is_strict(&policy) && !policy.strict);
    assert_string_equal(fake.said, WAITS "for a reason\n");
    policy_init(&policy, 2, true, &why);
    assert_string_equal(why, "default");
    assert_false(policy_is_strict(&policy));
}

/* In place of a context that is gone: its debts do not come back, and nobody pays ours with its. */
ISOLATED_CASE(test_init_again)
{
    struct policy policy = {.host_work_seq = 5, .synced_seq = 3};
    const char *why;
    uint64_t debts;

    policy_init(&policy, 0, true, &why);
    assert_true(policy_waits(&policy, &debts));
    assert_int_equal(debts, 6);
    policy_synced(&policy, 5);
    assert_true(policy_waits(&policy, &debts));
    policy_synced(&policy, 6);
    assert_false(policy_waits(&policy, &debts));
    policy_synced(&policy, 2);
    assert_false(policy_waits(&policy, &debts));
}

/* --- debts --- */

/* Words: H host work, S a wait for a stream, G a stream is gone, each with a stream: a, b of context 0, o of context 1,
 * g of a green context, L the legacy stream, P the per-thread one. C a wait for the current context, D for context 1. B
 * a wait begins, E it ends for a stream, X for the context. T as S, when context 1 has the handle of a. F a free. K
 * another context is current. N, R: H in two steps, the call begins and returns. 0, 1: does the next free in context 0
 * wait? */
static const char *const host_work_seq_of[] = {
    "1",                     /* what was launched before the context was known */
    "1 Sa 1 SL 1 SP 1 C 0",  /* nobody knows in which stream that was */
    "1 F 0",                 /* once */
    "C Ha 1 Sa 0",           /* who waits for the copy has paid */
    "C Ha Ha Ha Sa 0",       /* */
    "C Ha Sb 1 Sa 0",        /* the other stream says nothing of it */
    "C Ha Hb Sa 1 Sb 1 C 0", /* on several streams: the context alone */
    "C Ha Hb Sa Sb Hb Sb 1", /* and as long as one of them is open */
    "C Ha Sa Hb Sa 1 Sb 0",  /* paid, and begun anew on another one */
    "C HL SL 0",             /* */
    "C HP 1 SP 1 C 0",       /* each thread has a stream of that name */
    "C Ha HP Sa 1",          /* */
    "C Ha Ga Sa 1 C 0",      /* the handle may be another stream's by now */
    "C Ha Gb Sa 0",          /* */
    "C Ga Ha Sa 0",          /* */
    "C Na Ga Ra Sa 1 C 0",   /* it may be already when the call returns that has launched the work */
    "C Ga Na Ra Sa 0",       /* */
    "C Ha F 0 Sa 0",         /* */
    "C Ha B Ha Ea 1 Sa 0",   /* work that came while one waited is not over */
    "C Ha B Ha X 1 C 0",     /* */
    "C Ha B C X 0",          /* a wait that began earlier takes nothing back */
    "C Ha B Sa Ha Ea 1",     /* */
    "C Ho 0",                /* another context's work */
    "C Hg 1 Sg 1 Sa 1 C 0",  /* a green context's, whose work every free of the device waits for */
    "C Ha Ta 1",             /* or by now another context's */
    "C Ha K Sa 1",           /* a stream of another context than the current one: the handle is not to be asked about */
    "C Ha D 1",              /* */
    "C Ha K D 1 C 1",        /* */
    "D 1 K C 1",             /* */
};

static CUstream stream_of(char name)
{
    switch (name) {
    case 'L':
        return CU_STREAM_LEGACY;
    case 'P':
        return CU_STREAM_PER_THREAD;
    case 'a':
    case 'b':
        return fake_stream((unsigned int)(name - 'a'), 0);
    case 'o':
        return fake_stream(2, 1);
    default:
        return fake_stream(3, 10); /* a context that is not pooled */
    }
}

static void pay(CUcontext handle)
{
    hazard_context_wait_end(handle, hazard_context_wait_begin(handle));
}

static void word_do(struct policy *policy, const char *word)
{
    static struct policy *launched_for;
    static uint64_t begun;
    const CUstream stream = stream_of(word[1]);
    uint64_t debts;

    switch (word[0]) {
    case 'H':
        host_launched(stream);
        break;
    case 'N':
        launched_for = hazard_host_work_begin(stream);
        break;
    case 'R':
        hazard_host_work_end(launched_for, stream);
        break;
    case 'S':
        hazard_stream_wait_end(stream, hazard_context_wait_begin(NULL));
        break;
    case 'G':
        hazard_stream_gone(stream);
        break;
    case 'C':
        pay(NULL);
        break;
    case 'D':
        pay(fake_context(1));
        break;
    case 'B':
        begun = hazard_context_wait_begin(NULL);
        break;
    case 'E':
        hazard_stream_wait_end(stream, begun);
        break;
    case 'X':
        hazard_context_wait_end(NULL, begun);
        break;
    case 'K':
        fake_current(fake_context(1));
        break;
    case 'T':
        fake.streams[0].context = &fake.contexts[1];
        hazard_stream_wait_end(stream, hazard_context_wait_begin(NULL));
        break;
    case 'F':
        assert_true(policy_waits(policy, &debts));
        policy_synced(policy, debts);
        break;
    default:
        assert_int_equal(policy_waits(policy, &debts), word[0] - '0');
    }
}

ISOLATED_ROWS(test_debts, host_work_seq_of)
{
    struct policy *policy = &ready()->policy;
    char text[128], *rest = text, *word;

    fake_current(fake_context(1));
    assert_non_null(context_current(&fake.driver));
    fake_current(fake_context(0));
    snprintf(text, sizeof(text), "%s", **(const char *const **)state);
    while ((word = strsep(&rest, " ")))
        word_do(policy, word);
}

/* --- what work it is --- */

static bool owes(const struct policy *policy)
{
    uint64_t debts;

    return policy_waits(policy, &debts);
}

#define HOST    0x10000
#define DEVICE  0x20000
#define MANAGED 0x30000
#define UNKNOWN 0x40000
#define POOLED  1 /* memory of the pool: its address is not known beforehand */

static const struct copy {
    CUdeviceptr to, from;
    bool owes;
    unsigned int asked; /* addresses that the driver was asked about */
} copies[] = {
    {DEVICE, DEVICE, false, 2}, {HOST, DEVICE, true, 1},    {DEVICE, HOST, true, 2},     {HOST, HOST, true, 1},
    {UNKNOWN, DEVICE, true, 1}, {DEVICE, UNKNOWN, true, 2}, {MANAGED, DEVICE, false, 2}, {0, DEVICE, false, 1},
    {DEVICE, 0, false, 1},      {0, 0, false, 0},           {0, HOST, true, 1},          {POOLED, POOLED, false, 0},
    {POOLED, DEVICE, false, 1}, {POOLED, HOST, true, 1},    {HOST, 0, true, 1},
};

static CUdeviceptr pooled(struct context *context)
{
    uint64_t addr = 0;

    assert_int_equal(pool_alloc(context->pool, 1000, &addr), 0);
    return addr;
}

static struct context *with_memory(CUdeviceptr *ret_pooled)
{
    struct context *context = ready();

    fake_range_add(HOST, 4096, CU_MEMORYTYPE_HOST, 0);
    fake_range_add(DEVICE, 4096, CU_MEMORYTYPE_DEVICE, 0);
    fake_range_add(MANAGED, 4096, CU_MEMORYTYPE_UNIFIED, 0);
    *ret_pooled = pooled(context);
    pay(NULL);
    assert_false(owes(&context->policy));
    fake.scripts[FN(cuPointerGetAttribute)].calls = 0;
    return context;
}

ISOLATED_ROWS(test_copy, copies)
{
    const struct copy *row = *state;
    CUdeviceptr block;
    struct context *context = with_memory(&block);

    copied(row->to == POOLED ? block : row->to, row->from == POOLED ? block : row->from, stream_of('a'));
    assert_int_equal(owes(&context->policy), row->owes);
    assert_int_equal(fake_calls(FN(cuPointerGetAttribute)), row->asked);
    pay(NULL);
    fake_lack(FN(cuPointerGetAttribute)); /* nobody can say */
    copied(DEVICE, DEVICE, stream_of('a'));
    assert_true(owes(&context->policy));
}

/* Launching a graph is host work once one may hold such a node. */
enum graph { GRAPH_NONE, GRAPH_NODE, GRAPH_CAPTURED, GRAPH_SET };
static const struct graph_row {
    enum graph how;
    CUdeviceptr to;
    bool owes;
} graphs[] = {
    {GRAPH_NONE, 0, false},     {GRAPH_NODE, 0, true},      {GRAPH_CAPTURED, 0, true},   {GRAPH_SET, HOST, true},
    {GRAPH_SET, DEVICE, false}, {GRAPH_SET, UNKNOWN, true}, {GRAPH_SET, MANAGED, false}, {GRAPH_SET, 0, false},
};

ISOLATED_ROWS(test_graph, graphs)
{
    const struct graph_row *row = *state;
    CUdeviceptr block;
    struct context *context = with_memory(&block);
    const CUstream stream = stream_of('a');

    switch (row->how) {
    case GRAPH_NODE:
        hazard_graph_node();
        break;
    case GRAPH_SET:
        hazard_graph_set(row->to);
        break;
    case GRAPH_CAPTURED:
        capture_begun(capture_begin(stream), stream, true);
        ((struct fake_stream *)stream)->captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        host_launched(stream);
        ((struct fake_stream *)stream)->captures = CU_STREAM_CAPTURE_STATUS_NONE;
        capture_check(stream, true, 1);
        break;
    default:
        break;
    }
    assert_false(owes(&context->policy)); /* not before it is launched */
    for (unsigned int i = 0; i < 2; i++) {
        graph_launched(stream);
        assert_int_equal(owes(&context->policy), row->owes);
        pay(NULL);
    }
    if (row->how == GRAPH_NONE) {
        fake_lack(FN(cuPointerGetAttribute));
        hazard_graph_set(DEVICE);
        graph_launched(stream);
        assert_true(owes(&context->policy));
    }
}

/* Beside a capture, on a stream that does not take part in it. */
READY_CASE(test_beside_capture)
{
    pay(NULL);
    capture_begun(capture_begin(stream_of('b')), stream_of('b'), true);
    host_launched(stream_of('a'));
    assert_true(owes(&context->policy));
}

/* The driver does not say whether the stream captures: the work may run now, or be a graph's. */
READY_CASE(test_beside_capture_unsure)
{
    pay(NULL);
    capture_begun(capture_begin(stream_of('b')), stream_of('b'), true);
    fake_fail(FN(cuStreamIsCapturing), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 2);
    host_launched(CU_STREAM_LEGACY);
    assert_true(owes(&context->policy));
    pay(NULL);
    fake_fail(FN(cuStreamIsCapturing), CUDA_SUCCESS, 0);
    graph_launched(stream_of('a'));
    assert_true(owes(&context->policy));
}

/* While another thread gives up a reference that is not the last one. */
READY_CASE(test_beside_leaving)
{
    struct context *leaving;

    pay(NULL);
    leaving = context_leaving(context->handle);
    assert_non_null(leaving);
    host_launched(stream_of('g'));
    context_gone(leaving, false);
    assert_true(owes(&context->policy));
    pay(NULL);
    host_launched(stream_of('a'));
    leaving = context_leaving(context->handle);
    hazard_stream_gone(stream_of('a'));
    context_gone(leaving, false);
    hazard_stream_wait_end(stream_of('a'), hazard_context_wait_begin(NULL));
    assert_true(owes(&context->policy)); /* the handle may be another stream's by now */
}

/* Where the user has decided, nothing of this counts, and nothing is asked; and in a process without a driver. */
READY_CASE(test_no_effect)
{
    const bool waits = owes(&context->policy);

    fake_range_add(HOST, 4096, CU_MEMORYTYPE_HOST, 0);
    fake.absent = conf_get()->free.number == FREE_AUTO;
    if (fake.absent)
        policy_synced(&context->policy, 1);
    hazard_graph_node();
    graph_launched(stream_of('a'));
    hazard_graph_set(HOST);
    copied(HOST, HOST, stream_of('a'));
    hazard_stream_gone(stream_of('a'));
    hazard_stream_wait_end(stream_of('a'), 1);
    assert_int_equal(hazard_context_wait_begin(NULL), 0);
    assert_int_equal(hazard_context_wait_begin(fake_context(0)), 0);
    hazard_context_wait_end(NULL, 1);
    assert_int_equal(fake_calls(FN(cuPointerGetAttribute)), 0);
    if (!fake.absent) /* else a context of which nobody knows owes */
        assert_int_equal(owes(&context->policy), waits);
    assert_int_equal(context->policy.host_work_seq, fake.absent ? 2 : 0);
}
ISOLATED_AGAIN(test_no_effect, ordered, .environment = "CUPOOL_FREE=ordered")
ISOLATED_AGAIN(test_no_effect, strict, .environment = "CUPOOL_FREE=strict")

/* A strict context has no use for debts. */
READY_CASE(test_strict_owes_nothing)
{
    policy_strict(0, "test");
    host_launched(stream_of('a'));
    assert_int_equal(context->policy.host_work_seq, 1);
    assert_true(owes(&context->policy));
}
