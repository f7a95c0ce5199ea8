/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_random.c - ranks, each a thread with a device of its own, that make, use and end communicators in a random order
 * which is the same on all ranks, and allocate and free beside that, in sizes that differ: nccl_random SEED STEPS
 * [registers].
 *
 * Every operation's data is checked. Exit status 0: all was right; 1: not, with a line on stderr that says what.
 */
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "../program.h"

#define RANKS     3
#define COMMS     4
#define BUFFERS   6
#define IDS       4096
#define BYTES_MAX ((size_t)6 << 20)
#define NC(call)                                                                                                       \
    do {                                                                                                               \
        const int error_ = (int)(call);                                                                                \
        if (error_)                                                                                                    \
            FAIL("line %d: %s: %d (step %u)", __LINE__, #call, error_, now);                                           \
    } while (0)
#define CU(call) NC(call)

static __thread unsigned int now;
static ncclUniqueId ids[IDS];
static unsigned int seed, steps;
static bool registers; /* the program itself does, too */
static atomic_bool over;
static pthread_barrier_t barrier;

struct rng {
    unsigned long long state;
};
static unsigned int draw(struct rng *r, unsigned int below)
{
    r->state = r->state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned int)(r->state >> 33) % below;
}

struct buffer {
    float *at;
    size_t bytes;
    bool nccls;
};
struct rank {
    int rank;
    struct rng common, own;
    cudaStream_t stream;
    ncclComm_t comm[COMMS];
    bool blocks[COMMS];
    struct buffer buffer[BUFFERS];
    unsigned int id;
};

static void settle(ncclComm_t comm, ncclResult_t result, unsigned int line)
{
    while (result == ncclInProgress)
        if (ncclCommGetAsyncError(comm, &result))
            FAIL("line %u: no state", line);
    if (result)
        FAIL("line %u: %d (step %u)", line, (int)result, now);
}

static void get(struct rank *r, int i)
{
    struct buffer *b = &r->buffer[i];
    const bool big = draw(&r->common, 4) == 0;

    b->nccls = draw(&r->common, 4) == 0;
    /* At least what operations use; the rest differs between ranks. */
    b->bytes =
        ((size_t)64 << 10) + (big ? draw(&r->own, (unsigned int)BYTES_MAX) : draw(&r->own, 300 << 10)) / 512 * 512;
    if (b->nccls)
        NC(ncclMemAlloc((void **)&b->at, b->bytes));
    else
        CU(cudaMalloc((void **)&b->at, b->bytes));
}

static void put(struct rank *r, int i)
{
    struct buffer *b = &r->buffer[i];

    if (b->nccls)
        NC(ncclMemFree(b->at));
    else
        CU(cudaFree(b->at));
    b->at = NULL;
}

static int pick(struct rank *r)
{
    const int i = (int)draw(&r->common, BUFFERS);

    if (!r->buffer[i].at)
        get(r, i);
    return i;
}

static float value(int rank, unsigned int step)
{
    return (float)((unsigned int)rank * 1000 + step % 900);
}

#define COUNT 600
static void fill(struct rank *r, float *at, float v, int count)
{
    float host[COUNT * RANKS];

    for (int i = 0; i < count; i++)
        host[i] = v;
    CU(cudaMemcpyAsync(at, host, (size_t)count * 4, cudaMemcpyHostToDevice, r->stream));
    CU(cudaStreamSynchronize(r->stream));
}

static void expect(struct rank *r, const float *at, float v, const char *what)
{
    float host[COUNT];

    CU(cudaMemcpyAsync(host, at, sizeof(host), cudaMemcpyDeviceToHost, r->stream));
    CU(cudaStreamSynchronize(r->stream));
    for (int i = 0; i < COUNT; i++)
        if (host[i] != v)
            FAIL("rank %d step %u: %s: element %d is %g, not %g", r->rank, now, what, i, (double)host[i], (double)v);
}

/* One operation; what it leaves is looked at by check(). */
static ncclResult_t launch(struct rank *r, ncclComm_t comm, unsigned int kind, float *from, float *to)
{
    const int next = (r->rank + 1) % RANKS, last = (r->rank + RANKS - 1) % RANKS;
    ncclResult_t a, b, c;

    switch (kind) {
    case 0:
        return ncclAllReduce(from, to, COUNT, ncclFloat, ncclMax, comm, r->stream);
    case 1:
        return ncclAllGather(from, to, COUNT, ncclFloat, comm, r->stream);
    case 2:
        return ncclBroadcast(from, to, COUNT, ncclFloat, 1, comm, r->stream);
    default:
        NC(ncclGroupStart());
        a = ncclSend(from, COUNT, ncclFloat, next, comm, r->stream);
        b = ncclRecv(to, COUNT, ncclFloat, last, comm, r->stream);
        c = ncclGroupEnd();
        return a && a != ncclInProgress ? a : b && b != ncclInProgress ? b : c;
    }
}

static void check(struct rank *r, unsigned int kind, const float *to)
{
    if (kind == 0)
        expect(r, to, value(RANKS - 1, now), "allreduce");
    else if (kind == 1)
        expect(r, to + COUNT, value(1, now), "allgather");
    else if (kind == 2)
        expect(r, to, value(1, now), "broadcast");
    else
        expect(r, to, value((r->rank + RANKS - 1) % RANKS, now), "sendrecv");
}

static void two(struct rank *r, int *a, int *b)
{
    *a = pick(r);
    do
        *b = pick(r);
    while (*b == *a);
}

static void operate(struct rank *r, int c)
{
    const unsigned int kind = draw(&r->common, 4), how = draw(&r->common, 6);
    int a, b;

    two(r, &a, &b);
    fill(r, r->buffer[a].at, value(r->rank, now), COUNT);
    void *handle = NULL, *other = NULL;
    if (how == 1 && registers) {
        NC(ncclCommRegister(r->comm[c], r->buffer[a].at, 32 << 10, &handle));
        NC(ncclCommRegister(r->comm[c], r->buffer[b].at, 32 << 10, &other));
    }
    if (how == 2 && kind != 3) { /* in a group, with an allocation and a free inside */
        const int x = (int)draw(&r->common, BUFFERS);
        NC(ncclGroupStart());
        ncclResult_t one = launch(r, r->comm[c], kind, r->buffer[a].at, r->buffer[b].at);
        if (x != a && x != b && r->buffer[x].at)
            put(r, x);
        if (x != a && x != b && draw(&r->common, 2))
            get(r, x);
        if (one && one != ncclInProgress)
            FAIL("in a group: %d", one);
        settle(r->comm[c], ncclGroupEnd(), __LINE__);
    } else
        settle(r->comm[c], launch(r, r->comm[c], kind, r->buffer[a].at, r->buffer[b].at), __LINE__);
    if (how == 3 && !r->buffer[a].nccls) /* the source goes under the operation; ncclMemFree would not wait */
        put(r, a);
    check(r, kind, r->buffer[b].at);
    if (handle) {
        NC(ncclCommDeregister(r->comm[c], handle));
        NC(ncclCommDeregister(r->comm[c], other));
    }
}

static void make(struct rank *r, int c)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const unsigned int how = draw(&r->common, 3);
    int parent = (int)draw(&r->common, COMMS);

    r->blocks[c] = draw(&r->common, 3) != 0;
    config.blocking = r->blocks[c];
    if (r->comm[parent] && how == 1) {
        ncclResult_t result = ncclCommSplit(r->comm[parent], 0, r->rank, &r->comm[c], &config);
        settle(r->comm[parent], result, __LINE__);
        while (!r->comm[c])
            usleep(100);
        settle(r->comm[c], r->blocks[c] ? ncclSuccess : ncclInProgress, __LINE__);
        return;
    }
    if (how == 2)
        NC(ncclGroupStart());
    ncclResult_t result = ncclCommInitRankConfig(&r->comm[c], RANKS, ids[r->id++], r->rank, &config);
    if (how == 2)
        result = ncclGroupEnd();
    settle(r->comm[c], result, __LINE__);
}

static void end(struct rank *r, int c)
{
    const unsigned int how = draw(&r->common, 5);
    ncclResult_t result;

    if (how == 3 || how == 4) {
        if (how == 4 && r->blocks[c])
            NC(ncclCommRevoke(r->comm[c], NCCL_REVOKE_DEFAULT));
        pthread_barrier_wait(&barrier);
        NC(ncclCommAbort(r->comm[c]));
        r->comm[c] = NULL;
        return;
    }
    if (how == 0)
        settle(r->comm[c], ncclCommFinalize(r->comm[c]), __LINE__);
    if (how == 2)
        NC(ncclGroupStart());
    result = ncclCommDestroy(r->comm[c]);
    if (result && result != ncclInProgress)
        FAIL("destroy: %d", result);
    if (how == 2) {
        result = ncclGroupEnd();
        if (result && result != ncclInProgress)
            FAIL("destroy in a group: %d", result);
    }
    r->comm[c] = NULL;
}

static void step(struct rank *r)
{
    const int c = (int)draw(&r->common, COMMS), i = (int)draw(&r->common, BUFFERS);
    const unsigned int what = draw(&r->common, 20);

    if (what < 4) {
        if (r->buffer[i].at)
            put(r, i);
        if (draw(&r->common, 2))
            get(r, i);
    } else if (!r->comm[c])
        make(r, c);
    else if (what < 6)
        end(r, c);
    else
        operate(r, c);
}

/* Beside: memory that no operation uses. */
static void *beside(void *arg)
{
    struct rng rng = {seed * 77 + (unsigned int)(size_t)arg};
    void *at[4] = {NULL};

    CU(cudaSetDevice((int)(size_t)arg));
    while (!atomic_load(&over)) {
        void **one = &at[draw(&rng, 4)];
        if (*one) {
            CU(cudaFree(*one));
            *one = NULL;
        } else if (cudaMalloc(one, draw(&rng, 12 << 20) + 1))
            *one = NULL, cudaGetLastError();
        usleep(draw(&rng, 300));
    }
    return NULL;
}

static void *run(void *arg)
{
    struct rank r = {.rank = (int)(size_t)arg, .common = {seed}, .own = {seed * 31 + (unsigned int)(size_t)arg}};

    CU(cudaSetDevice(r.rank));
    CU(cudaStreamCreate(&r.stream));
    for (now = 0; now < steps; now++)
        step(&r);
    CU(cudaStreamSynchronize(r.stream));
    for (int c = 0; c < COMMS; c++)
        if (r.comm[c])
            end(&r, c);
    for (int i = 0; i < BUFFERS; i++)
        if (r.buffer[i].at)
            put(&r, i);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[RANKS], others[RANKS];

    seed = argc > 1 ? (unsigned int)atoi(argv[1]) : 1;
    steps = argc > 2 ? (unsigned int)atoi(argv[2]) : 200;
    registers = argc > 3;
    for (int i = 0; i < IDS && i < (int)steps + COMMS; i++)
        NC(ncclGetUniqueId(&ids[i]));
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (size_t i = 0; i < RANKS; i++) {
        pthread_create(&threads[i], NULL, run, (void *)i);
        pthread_create(&others[i], NULL, beside, (void *)i);
    }
    join_all(threads, RANKS);
    atomic_store(&over, true);
    join_all(others, RANKS);
    return 0;
}
