/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stamp.c - the detector of early reuse.
 *
 * Threads allocate, stamp head and tail of every buffer with a token of its own on some stream, and later enqueue a
 * copy of head and tail back to pinned memory and free the buffer while that copy is still in flight. A copy that
 * brings another token means that the buffer had a new owner too early. Some buffers are overwritten at the end
 * instead, so that a late write into a new owner's buffer shows as well. Streams are of every kind, ordered by events
 * where a buffer changes stream; the owner, other threads and the stream free.
 *
 * As it is, a copy is looked at only after an event that followed it has completed, so 0 errors is right natively, and
 * for every policy that keeps the order of the device. Two options ask for what only a cudaFree that waits on the host
 * gives, so that they go wrong with CUPOOL_FREE=ordered:
 * --host: when the owner's cudaFree has returned, its copies to the host have arrived, and what its copies from the
 * host read is overwritten.
 * --peer: with two devices or more, some buffers are stamped and looked at by streams of the next device.
 *
 * Usage: stamp [--threads T] [--devices D] [--ops N] [--seconds S] [--seed X] [--max-bytes B] [--min-bytes B]
 *              [--total-bytes B] [--streams K] [--live L] [--delay-us U] [--free-async PERCENT] [--host] [--peer]
 *              [--expect-errors]
 * --total-bytes: of all buffers together; --max-bytes: of one. Sizes take K, M, G. Memory does not grow with N.
 * Exit: 0 no error, 1 errors, 2 something else failed; --expect-errors exchanges 0 and 1.
 */
#include "stamp.h"

static int stream_open(struct worker *w, int k)
{
    struct stream *st = &w->stream[k];
    int least, greatest;

    st->own = true;
    st->generation++;
    switch (k % 6) {
    case 0:
    case 3:
        MUST(cudaStreamCreateWithFlags(&st->s, cudaStreamNonBlocking));
        break;
    case 1:
        MUST(cudaStreamCreate(&st->s));
        break;
    case 2:
        MUST(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        MUST(cudaStreamCreateWithPriority(&st->s, cudaStreamNonBlocking, greatest));
        break;
    case 4:
        st->s = cudaStreamPerThread;
        st->own = false;
        break;
    case 5:
        st->s = cudaStreamLegacy;
        st->own = false;
        break;
    }
    return 0;
}

/* A stream goes with work in flight, and another takes its place. */
static int stream_renew(struct worker *w, int k)
{
    if (!w->stream[k].own)
        return 0;
    MUST(cudaStreamDestroy(w->stream[k].s));
    return stream_open(w, k);
}

static void report(const struct worker *w, const struct slot *s, const char *where, uint64_t found)
{
    unsigned long long n = atomic_fetch_add(&errors, 1);

    if (n < ERRORS_MAX)
        fprintf(stderr,
                "stamp: %s: thread %d device %d p %p n %zu token %llx (op %llu) found %llx (thread %d, op "
                "%llu%s)\n",
                where, w->id, w->device, (void *)s->p, s->n, (unsigned long long)s->token,
                (unsigned long long)(s->token & 0xffffffffff), (unsigned long long)found, (int)(found >> 48) - 1,
                (unsigned long long)(found & 0xffffffffff),
                found >> 47 & 1   ? ", its last write"
                : found >> 46 & 1 ? ", written by the host after a free"
                                  : "");
    if (n + 1 >= ERRORS_MAX)
        atomic_store(&stop, 1);
}

/* Wait for the slot's copy and look at what came home. */
static int slot_verify(struct worker *w, struct slot *s)
{
    MUST(cudaEventSynchronize(s->event));
    s->state = EMPTY;
    if (s->pinned[1] != s->token)
        report(w, s, "foreign head", s->pinned[1]);
    if (s->pinned[2] != s->token)
        report(w, s, "foreign tail", s->pinned[2]);
    atomic_fetch_add_explicit(&checked, 1, memory_order_relaxed);
    return 0;
}

/* Free something that another thread left. */
static int queue_drain(int keep)
{
    for (;;) {
        void *p = NULL;
        size_t n = 0;

        pthread_mutex_lock(&queue.lock);
        if (queue.n > keep) {
            p = queue.p[--queue.n];
            n = queue.size[queue.n];
        }
        pthread_mutex_unlock(&queue.lock);
        if (!p)
            return 0;
        MUST(cudaFree(p));
        atomic_fetch_sub(&live_bytes, n);
    }
}

/* The owner's cudaFree has just returned: all that this thread had launched on its device is over. It looks at the
 * copies that came to the host, and overwrites the words that were read there. */
static void host_look(struct worker *w)
{
    for (int i = 0; i < w->nslots; i++) {
        struct slot *s = &w->slot[i];
        volatile uint64_t *pinned = s->pinned;

        if (s->state == PENDING && (pinned[1] == 0 || pinned[2] == 0)) {
            report(w, s, "not there after a free", pinned[1] ? pinned[2] : pinned[1]);
            s->state = SEEN; /* once is enough */
        }
        if (s->state == LIVE && s->stream != FAR)
            pinned[0] = s->token | (uint64_t)1 << 46;
    }
}

static int slot_free(struct worker *w, struct slot *s, cudaStream_t last)
{
    unsigned how = (unsigned)(bt_random(&w->seed) % 100);
    bool queued = false;

    if (how < opt.free_async) {
        MUST(cudaFreeAsync(s->p, last));
        atomic_fetch_sub(&live_bytes, s->n);
        return 0;
    }
    if (how < opt.free_async + 15) {
        pthread_mutex_lock(&queue.lock);
        queued = queue.n < QUEUE_MAX;
        if (queued) {
            queue.size[queue.n] = s->n;
            queue.p[queue.n++] = s->p;
        }
        pthread_mutex_unlock(&queue.lock);
    }
    if (queued)
        return 0;
    MUST(cudaFree(s->p));
    atomic_fetch_sub(&live_bytes, s->n);
    if (opt.host && how % 4 == 0)
        host_look(w);
    return 0;
}

static uint64_t size_draw(struct worker *w)
{
    uint64_t lo = 63 - (uint64_t)__builtin_clzll(opt.min_bytes), hi = 63 - (uint64_t)__builtin_clzll(opt.max_bytes);
    uint64_t bits = lo + bt_random(&w->seed) % (hi - lo + 1);
    uint64_t n = ((uint64_t)1 << bits) + bt_random(&w->seed) % ((uint64_t)1 << bits);

    n = n > opt.max_bytes ? opt.max_bytes : n;
    return n < opt.min_bytes ? opt.min_bytes : n;
}

/* Wait for every copy in flight; what they hold back can be given up now. */
static int worker_settle(struct worker *w)
{
    for (int i = 0; i < w->nslots; i++)
        if (w->slot[i].state >= PENDING && slot_verify(w, &w->slot[i]))
            return -1;
    return queue_drain(0);
}

/* The stamp comes from the next device, whose streams know nothing of what this one does with that memory. */
static int far_stamp(struct worker *w, struct slot *s)
{
    cudaStream_t stream = w->far_stream;

    MUST(cudaSetDevice(w->far_device));
    MUST(cudaMemcpyAsync(s->far, &s->pinned[0], 8, cudaMemcpyHostToDevice, stream));
    MUST(cudaMemcpyPeerAsync(s->p, w->device, s->far, w->far_device, 8, stream));
    MUST(cudaMemcpyAsync(s->p + s->n - 8, s->far, 8, cudaMemcpyDefault, stream));
    MUST(cudaEventRecord(s->far_event, stream));
    MUST(cudaSetDevice(w->device));
    s->stream = FAR;
    s->stamped = s->far_event;
    return 0;
}

/* The next device looks. Natively cudaFree does not wait for it, so a stream of the buffer's own device has to: then
 * the free waits for that. */
static int far_look(struct worker *w, struct slot *s, cudaStream_t own)
{
    cudaStream_t stream = w->far_stream;

    MUST(cudaSetDevice(w->far_device));
    MUST(cudaStreamWaitEvent(stream, s->stamped, 0));
    MUST(cudaMemcpyPeerAsync(&s->far[0], w->far_device, s->p, w->device, 8, stream));
    MUST(cudaMemcpyAsync(&s->far[1], s->p + s->n - 8, 8, cudaMemcpyDefault, stream));
    MUST(cudaMemcpyAsync(&s->pinned[1], s->far, 16, cudaMemcpyDeviceToHost, stream));
    MUST(cudaEventRecord(s->far_event, stream));
    MUST(cudaSetDevice(w->device));
    MUST(cudaStreamWaitEvent(own, s->far_event, 0));
    return 0;
}

/* Allocate and stamp. */
static int slot_open(struct worker *w, struct slot *s)
{
    cudaStream_t stream;
    int rc;

    s->n = size_draw(w);
    if (atomic_fetch_add(&live_bytes, s->n) + s->n >
        opt.total_bytes) { /* others come to an end; here it goes on then */
        atomic_fetch_sub(&live_bytes, s->n);
        return queue_drain(0);
    }
    rc = (int)cudaMalloc((void **)&s->p, s->n);
    if (rc == cudaErrorMemoryAllocation) { /* no fault of the order: make room, go on */
        (void)cudaGetLastError();
        atomic_fetch_sub(&live_bytes, s->n);
        atomic_fetch_add(&refused, 1);
        return worker_settle(w);
    }
    MUST(rc);
    s->stream = (int)(bt_random(&w->seed) % opt.streams);
    s->generation = w->stream[s->stream].generation;
    stream = w->stream[s->stream].s;
    s->token = (uint64_t)(w->id + 1) << 48 | ++w->counter;
    s->pinned[0] = s->token;
    s->pinned[1] = s->pinned[2] = 0;
    s->state = LIVE;
    if (w->far_device != FAR && bt_random(&w->seed) % 4 == 0)
        return far_stamp(w, s);
    s->stamped = s->event;
    MUST(cudaMemcpyAsync(s->p, &s->pinned[0], 8, cudaMemcpyHostToDevice, stream));
    MUST(cudaMemcpyAsync(s->p + s->n - 8, &s->pinned[0], 8, cudaMemcpyHostToDevice, stream));
    MUST(cudaEventRecord(s->event, stream));
    return 0;
}

/* Enqueue the look at the buffer, and let go of it at once. */
static int slot_close(struct worker *w, struct slot *s)
{
    uint64_t dice = bt_random(&w->seed);
    int k = dice % 4 && s->stream != FAR ? s->stream : (int)((dice >> 8) % opt.streams);
    cudaStream_t stream = w->stream[k].s;

    if (k != s->stream || w->stream[k].generation != s->generation)
        MUST(cudaStreamWaitEvent(stream, s->stamped, 0));
    if (opt.delay_us && (dice >> 16) % 64 == 0)
        MUST(cudaLaunchHostFunc(stream, bt_sleep_fn, (void *)(uintptr_t)opt.delay_us));
    if (w->far_device != FAR && (dice >> 40) % 4 == 0) {
        if (far_look(w, s, stream))
            return -1;
    } else {
        MUST(cudaMemcpyAsync(&s->pinned[1], s->p, 8, cudaMemcpyDeviceToHost, stream));
        MUST(cudaMemcpyAsync(&s->pinned[2], s->p + s->n - 8, 8, cudaMemcpyDeviceToHost, stream));
    }
    if ((dice >> 24) % 8 == 0) {
        s->pinned[3] = s->token | (uint64_t)1 << 47;
        MUST(cudaMemcpyAsync(s->p, &s->pinned[3], 8, cudaMemcpyHostToDevice, stream));
    }
    MUST(cudaEventRecord(s->event, stream));
    s->state = PENDING;
    return slot_free(w, s, stream);
}

/* One operation: recycle the oldest slot, or end a random one early. */
static int worker_step(struct worker *w)
{
    struct slot *s = &w->slot[bt_random(&w->seed) % (uint64_t)w->nslots];
    uint64_t dice = bt_random(&w->seed);

    if (s->state == LIVE)
        return slot_close(w, s);
    if (s->state >= PENDING && slot_verify(w, s))
        return -1;
    if (slot_open(w, s))
        return -1;
    if (s->state == LIVE && dice % 8 == 0 && slot_close(w, s)) /* a very short life */
        return -1;
    if (dice % 4096 < 8)
        return stream_renew(w, (int)((dice >> 32) % opt.streams));
    return dice % 16 == 1 ? queue_drain((int)opt.threads * 4) : 0;
}

static int far_init(struct worker *w)
{
    MUST(cudaSetDevice(w->far_device));
    MUST(cudaStreamCreateWithFlags(&w->far_stream, cudaStreamNonBlocking));
    MUST(cudaMalloc((void **)&w->far, (size_t)w->nslots * 2 * sizeof(uint64_t)));
    for (int i = 0; i < w->nslots; i++) {
        w->slot[i].far = w->far + 2 * i;
        MUST(cudaEventCreateWithFlags(&w->slot[i].far_event, cudaEventDisableTiming));
    }
    return 0;
}

static int worker_init(struct worker *w)
{
    if (w->far_device != FAR && far_init(w))
        return -1;
    MUST(cudaSetDevice(w->device));
    MUST(cudaMallocHost((void **)&w->pinned, (size_t)w->nslots * 4 * sizeof(uint64_t)));
    for (int k = 0; k < (int)opt.streams; k++)
        if (stream_open(w, k))
            return -1;
    for (int i = 0; i < w->nslots; i++) {
        w->slot[i].pinned = w->pinned + 4 * i;
        MUST(cudaEventCreateWithFlags(&w->slot[i].event, cudaEventDisableTiming));
    }
    return 0;
}

static int worker_fini(struct worker *w)
{
    for (int i = 0; i < w->nslots; i++)
        if (w->slot[i].state == LIVE && slot_close(w, &w->slot[i]))
            return -1;
    if (worker_settle(w))
        return -1;
    for (int i = 0; i < w->nslots && w->far_device != FAR; i++)
        MUST(cudaEventDestroy(w->slot[i].far_event));
    if (w->far_device != FAR) {
        MUST(cudaStreamDestroy(w->far_stream));
        MUST(cudaFree(w->far));
    }
    for (int i = 0; i < w->nslots; i++)
        MUST(cudaEventDestroy(w->slot[i].event));
    for (int k = 0; k < (int)opt.streams; k++)
        if (w->stream[k].own)
            MUST(cudaStreamDestroy(w->stream[k].s));
    MUST(cudaStreamSynchronize(cudaStreamPerThread));
    MUST(cudaStreamSynchronize(cudaStreamLegacy));
    MUST(cudaFreeHost(w->pinned));
    return 0;
}

static void *worker_main(void *arg)
{
    struct worker *w = (struct worker *)arg;
    uint64_t share = opt.ops / opt.threads;

    if (worker_init(w))
        return NULL;
    for (uint64_t i = 0; i < share && !atomic_load_explicit(&stop, memory_order_relaxed); i++) {
        if (worker_step(w))
            return NULL;
        if (i % 64 == 63) {
            atomic_fetch_add(&ops_done, 64);
            if (opt.seconds && bt_ns() - started > opt.seconds * 1000000000u)
                atomic_store(&stop, 1);
        }
    }
    worker_fini(w);
    return NULL;
}

static int options_parse(int argc, char **argv)
{
    static const struct bt_option options[] = {{"--threads", &opt.threads},
                                               {"--devices", &opt.devices},
                                               {"--ops", &opt.ops},
                                               {"--seconds", &opt.seconds},
                                               {"--seed", &opt.seed},
                                               {"--max-bytes", &opt.max_bytes},
                                               {"--min-bytes", &opt.min_bytes},
                                               {"--total-bytes", &opt.total_bytes},
                                               {"--streams", &opt.streams},
                                               {"--live", &opt.live},
                                               {"--delay-us", &opt.delay_us},
                                               {"--free-async", &opt.free_async},
                                               {NULL, NULL}};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--expect-errors") == 0)
            opt.expect_errors = true;
        else if (strcmp(argv[i], "--host") == 0)
            opt.host = true;
        else if (strcmp(argv[i], "--peer") == 0)
            opt.peer = true;
        else if (i + 1 >= argc || bt_option(options, argv[i], argv[i + 1]))
            return -1;
        else
            i++;
    }
    return opt.threads < 1 || opt.threads > THREADS_MAX || opt.devices < 1 || opt.streams < 1 ||
                   opt.streams > STREAMS_MAX || opt.live < 1 || opt.live > SLOTS_MAX || opt.min_bytes < 16 ||
                   opt.max_bytes < opt.min_bytes
               ? -1
               : 0;
}

static int run(void)
{
    static struct worker w[THREADS_MAX];
    int devices = 0;

    MUST(cudaGetDeviceCount(&devices));
    if (opt.devices > (uint64_t)devices)
        opt.devices = (uint64_t)devices;
    started = bt_ns();
    for (int i = 0; i < (int)opt.threads; i++) {
        w[i].id = i;
        w[i].device = i % (int)opt.devices;
        w[i].far_device = opt.peer && opt.devices > 1 ? (i + 1) % (int)opt.devices : FAR;
        w[i].seed = opt.seed * 1000003 + (uint64_t)i;
        w[i].nslots = (int)opt.live;
        MUST(pthread_create(&w[i].thread, NULL, worker_main, &w[i]));
    }
    for (int i = 0; i < (int)opt.threads; i++)
        pthread_join(w[i].thread, NULL);
    return queue_drain(0);
}

int main(int argc, char **argv)
{
    double seconds;
    bool bad;

    if (options_parse(argc, argv)) {
        fprintf(stderr, "stamp: bad options; see the head of stamp.c\n");
        return 2;
    }
    (void)run();
    seconds = (double)(bt_ns() - started) * 1e-9;
    bad = atomic_load(&errors) > 0;
    printf("{\"stamp\":1,\"threads\":%d,\"devices\":%d,\"seed\":%llu,\"ops\":%llu,\"checked\":%llu,\"errors\":%llu,"
           "\"refused\":%llu,\"seconds\":%.2f,\"ops_per_s\":%.0f}\n",
           (int)opt.threads, (int)opt.devices, (unsigned long long)opt.seed, (unsigned long long)atomic_load(&ops_done),
           (unsigned long long)atomic_load(&checked), (unsigned long long)atomic_load(&errors),
           (unsigned long long)atomic_load(&refused), seconds, (double)atomic_load(&ops_done) / seconds);
    /* Early reuse may also end in a failing call, so errors come first. */
    if (atomic_load(&broken) && !bad)
        return 2;
    return bad != opt.expect_errors;
}
