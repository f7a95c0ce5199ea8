/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ.c - the differential fuzzer's program: operations by seed, threads, the log.
 *
 *   differ --seed N [--ops N] [--hazards] [--rows] [--simulated] [--flush] [--only FILE]
 *   differ --list [--simulated]
 *
 * Each operation draws from a generator of its own, made of the seed and its number, and names objects by slots. So any
 * part of the operations (--only: a file of numbers) is a sequence, too, and a long one can be made short. The seed
 * also says which kinds of operations there are: what cupool sees of some changes what it does from then on.
 *
 * --rows: nothing but drawn rows of shim/hooks/ (differ_rows.c), which otherwise are in a part of the seeds; --list
 * names them all, with the reason of those that are left out. --simulated: there are more of them on simulated GPUs.
 *
 * It judges nothing; differ.py does. See differ.h.
 *
 * Locking: the main thread hands each operation to the thread that makes it, and waits.
 */
#include "differ.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <unistd.h>

struct lane lanes[LANES_ALL];
struct block blocks[BLOCKS];
struct host hosts[HOSTS];
struct counter counters[COUNTERS];
struct event events[EVENTS];
struct exec execs[EXECS];
struct capture captures[CAPTURES];
struct context contexts[CONTEXTS];
int self, devices;
bool hazards, abandon, pressure, sharing;
uint64_t op_number;

static uint64_t seed, rng;
static bool flush; /* after each operation, for a program that crashes */
static int current[THREADS];
static void *later[8];
static int n_later;

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint32_t pick(uint32_t n)
{
    rng += 0x9e3779b97f4a7c15u;
    return (uint32_t)(((mix(rng) >> 32) * n) >> 32);
}

bool chance(uint32_t n)
{
    return pick(n) == 0;
}

/* ---- the log ---- */

static char log_text[1 << 16];
static size_t log_size;

static void log_flush(void)
{
    for (size_t at = 0; at < log_size;) {
        ssize_t n = write(STDOUT_FILENO, log_text + at, log_size - at);
        if (n <= 0)
            _exit(3);
        at += (size_t)n;
    }
    log_size = 0;
}

void out(const char *format, ...)
{
    va_list list;
    int n;

    va_start(list, format);
    n = vsnprintf(log_text + log_size, 512, format, list);
    va_end(list);
    log_size += n < 0 ? 0 : n < 512 ? (size_t)n : 511;
    if (log_size > sizeof(log_text) - 512)
        log_flush();
}

bool told(const char *name, int code)
{
    out(" %s=%d", name, code);
    return code == 0;
}

uint32_t sum(const void *p, size_t n)
{
    const unsigned char *at = p;
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < n; i++)
        h = (h ^ at[i]) * 16777619u;
    return h;
}

/* ---- threads ---- */

struct worker {
    pthread_t id;
    sem_t go, done;
    void (*fn)(void);
};
static struct worker workers[THREADS];

static void *worker_main(void *arg)
{
    struct worker *w = arg;

    for (;;) {
        sem_wait(&w->go);
        if (!w->fn)
            return NULL;
        w->fn();
        sem_post(&w->done);
    }
}

static void run_on(int thread, void (*fn)(void))
{
    self = thread;
    if (thread == 0) {
        fn();
        return;
    }
    workers[thread].fn = fn;
    sem_post(&workers[thread].go);
    sem_wait(&workers[thread].done);
}

void use(int dev)
{
    if (current[self] == dev)
        return;
    int r = (int)cudaSetDevice(dev);
    if (r)
        told("set_device", r);
    else
        current[self] = dev;
}

void devices_forget(void)
{
    for (int i = 0; i < THREADS; i++)
        current[i] = -1;
}

void free_later(void *p)
{
    if (n_later < (int)(sizeof(later) / sizeof(later[0])))
        later[n_later++] = p;
}

void errors_forget(void)
{
    (void)cudaGetLastError();
}

/* ---- operations ---- */

enum group { BASIC, WORK, CAPTURE, CONTEXT, PEER, HOST, RESET, IPC, PRESSURE, DRAWN, GROUPS };

static const struct {
    const char *name;
    op_fn *fn;
    unsigned weight;
    enum group group;
} ops[] = {
    {"block", op_block, 30, BASIC},
    {"errors", op_errors, 4, BASIC},
    {"attributes", op_attributes, 4, BASIC},
    {"info", op_info, 2, BASIC},
    {"stale", op_stale, 2, BASIC},
    {"fill", op_fill, 16, WORK},
    {"copy", op_copy, 10, WORK},
    {"transfer", op_transfer, 10, WORK},
    {"read", op_read, 12, WORK},
    {"host_look", op_host_look, 5, WORK},
    {"count", op_count, 5, WORK},
    {"stream", op_stream, 3, WORK},
    {"sync", op_sync, 2, WORK},
    {"query", op_query, 5, WORK},
    {"event", op_event, 3, WORK},
    {"record", op_record, 5, WORK},
    {"elapsed", op_elapsed, 1, WORK},
    {"host", op_host, 4, HOST},
    {"host_errors", op_host_errors, 1, HOST},
    {"capture", op_capture, 8, CAPTURE},
    {"launch", op_launch, 8, CAPTURE},
    {"exchange", op_exchange, 2, CAPTURE},
    {"fork", op_fork, 2, CAPTURE},
    {"context", op_context, 2, CONTEXT},
    {"context_use", op_context_use, 5, CONTEXT},
    {"primary", op_primary, 2, CONTEXT},
    {"popped", op_popped, 2, CONTEXT},
    {"peer", op_peer, 2, PEER},
    {"peer_copy", op_peer_copy, 6, PEER},
    {"reset", op_reset, 1, RESET},
    {"ipc", op_ipc, 2, IPC},
    {"device", op_device, 2, BASIC},
    {"near_full", op_near_full, 1, PRESSURE},
    {"rows", op_rows, 12, DRAWN},
};
#define OPS (sizeof(ops) / sizeof(ops[0]))

static bool groups[GROUPS];
static unsigned weight_all, threads_used;
static bool rows_only;
static size_t op_now;

/* Each group but the basic ones is in a part of the seeds; what makes every later free wait in few. */
static void groups_choose(void)
{
    static const unsigned rarity[DRAWN] = {1, 1, 2, 8, 6, 2, 5, 8, 8};

    rng = mix(seed);
    for (int g = 0; g < DRAWN; g++)
        groups[g] = chance(rarity[g]) && !rows_only;
    pressure = groups[PRESSURE];
    sharing = chance(6);
    threads_used = chance(2) ? THREADS : 1;
    if (!groups[PEER] && !chance(3))
        devices = 1;
    groups[DRAWN] = chance(4) || rows_only;
    sharing = rows_only ? seed % 2 : sharing;
    for (size_t i = 0; i < OPS; i++)
        weight_all += groups[ops[i].group] ? ops[i].weight : 0;
}

static void op_run(void)
{
    int last;

    ops[op_now].fn();
    if (abandon)
        errors_forget();
    last = (int)cudaPeekAtLastError();
    if (last)
        out(" last=%d", last);
    if (last && chance(2))
        TOLD("get", cudaGetLastError());
}

static int ending;

static void end_one(void)
{
    cudaGraph_t graph = NULL;

    if (cudaStreamEndCapture(lanes[captures[ending].lane].stream, &graph) == cudaSuccess)
        (void)cudaGraphDestroy(graph);
    errors_forget();
    capture_end(ending);
}

static void free_rest(void)
{
    while (n_later)
        (void)cudaFree(later[--n_later]);
    errors_forget();
}

/* With cupool a capture may have survived what natively ends it: end all, and free what was not freed, or was got. */
static void captures_abandon(void)
{
    const int thread = self;

    for (ending = 0; ending < CAPTURES; ending++) {
        if (captures[ending].live)
            run_on(captures[ending].thread, end_one);
    }
    run_on(thread, free_rest);
    abandon = false;
}

static void op_make(uint64_t i)
{
    op_number = i;
    rng = mix(seed * 0x9e3779b97f4a7c15u + i);
    uint32_t w = pick(weight_all);
    const int thread = (int)pick(threads_used);

    for (op_now = 0;; op_now++) {
        const unsigned weight = groups[ops[op_now].group] ? ops[op_now].weight : 0;
        if (w < weight)
            break;
        w -= weight;
    }
    out("%llu %d %s", (unsigned long long)i, thread, ops[op_now].name);
    if (flush)
        log_flush();
    run_on(thread, op_run);
    if (abandon)
        captures_abandon();
    out("\n");
    if (flush)
        log_flush();
}

static void thread_start(void)
{
    TOLD("start", cudaSetDevice(0));
    TOLD("context", cudaFree(NULL));
    current[self] = 0;
}

static void start(void)
{
    int count = 0;

    TOLD("devices", cudaGetDeviceCount(&count));
    devices = count < devices ? count : devices;
    devices_forget();
    for (int t = 0; t < THREADS; t++) {
        sem_init(&workers[t].go, 0, 0);
        sem_init(&workers[t].done, 0, 0);
        if (t && pthread_create(&workers[t].id, NULL, worker_main, &workers[t]))
            exit(3);
        run_on(t, thread_start);
    }
    self = 0;
    for (int d = 0; d < devices; d++) {
        lane_start(d, d, NULL);
        lane_start(ORPHANS + d, d, NULL);
    }
    for (int i = 0; i < COUNTERS; i++)
        counters[i].o = (struct object){.live = true, .defined = true};
    out("\n");
}

/* All objects end, so that what the library does then is part of the test. */
static void finish(void)
{
    self = 0;
    out("end");
    for (int d = 0; d < devices; d++) {
        use(d);
        TOLD("sync", cudaDeviceSynchronize());
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].o.live)
            TOLD("free", cudaFree(blocks[i].p));
    }
    out("\n");
    log_flush();
    for (int t = 1; t < THREADS; t++) {
        workers[t].fn = NULL;
        sem_post(&workers[t].go);
        pthread_join(workers[t].id, NULL);
    }
}

static void only(const char *path)
{
    unsigned long long i;
    FILE *file = fopen(path, "r");

    if (!file)
        exit(2);
    while (fscanf(file, "%llu", &i) == 1)
        op_make(i);
    fclose(file);
}

int main(int argc, char **argv)
{
    const char *only_path = NULL;
    uint64_t n = 1000;
    bool usage = false, list = false;

    devices = DEVICES;
    for (int i = 1; i < argc && argv[i]; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--hazards"))
            hazards = true;
        else if (!strcmp(argv[i], "--rows"))
            rows_only = true;
        else if (!strcmp(argv[i], "--simulated"))
            simulated = true;
        else if (!strcmp(argv[i], "--list"))
            list = true;
        else if (!strcmp(argv[i], "--flush"))
            flush = true;
        else if (!strcmp(argv[i], "--seed") && value)
            seed = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--ops") && value)
            n = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--only") && value)
            only_path = argv[++i];
        else
            usage = true;
    }
    if (usage) {
        fprintf(stderr,
                "usage: differ --seed N [--ops N] [--hazards] [--rows] [--simulated] [--flush] [--only FILE]\n");
        return 2;
    }
    if (list) {
        rows_list();
        log_flush();
        return 0;
    }
    groups_choose();
    start();
    if (only_path) {
        only(only_path);
    } else {
        for (uint64_t i = 0; i < n; i++)
            op_make(i);
    }
    captures_abandon();
    finish();
    return 0;
}
