/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_race.c - captures of every kind and end, raced against threads that allocate and free.
 *
 * Some threads capture, end captures in every way there is (capture_race_endings.c) and replay the surviving graphs;
 * others allocate, fill, look and free all the time (capture_race_racers.c). Natively no capture is destroyed in this
 * race that its own thread does not destroy: in the first round the racers' own capture mode is the default and no
 * thread captures globally, in the second all modes are used and the racers have exchanged theirs. So none may be lost
 * preloaded. A thread that allocates inside a capture of its own is in capture.c; nothing runs on the legacy stream.
 *
 * Usage: capture_race [--captures N] [--captors C] [--racers R] [--max-bytes B] [--verify K] [--seconds S] [--seed X]
 * Every K-th surviving graph is replayed. Exit: 0 all is well, 1 a capture lost or foreign bytes, 2 a call failed that
 * has to succeed, 3 no capture ended for a minute.
 *
 * Locking: see capture_race.h.
 */
#include "capture_race.h"

#define STUCK_S 60
#define WITNESS BT_GIB

struct options opt = {
    .captures = 300, .captors = 2, .racers = 4, .max_bytes = 16 << 20, .verify = 4, .seconds = 0, .seed = 1};
struct counters count;

static struct captor captors[THREADS_MAX];
static atomic_ullong counts[ENDINGS][MODES][2]; /* captures, and those that were not FINE */

/* The round's combinations of ending and mode. */
static struct {
    int ending, mode;
} plan[ENDINGS * MODES];
static int plans;

static void plan_make(unsigned int modes)
{
    plans = 0;
    for (int i = 0; i < ENDINGS; i++)
        for (int mode = 0; mode < MODES; mode++)
            if (endings[i].modes & modes & 1u << mode) {
                plan[plans].ending = i;
                plan[plans++].mode = mode;
            }
}

/* Launches a graph and checks the bytes that it writes. */
static enum fate replay(struct captor *c, cudaGraph_t graph)
{
    cudaGraphExec_t exec;

    MUST(cudaGraphInstantiate(&exec, graph, 0));
    memset(c->pinned, 0, 3 * N);
    for (int i = 0; i < 3; i++)
        MUST(cudaMemsetAsync(c->buffer[i], i + 1, N, c->s[0]));
    MUST(cudaGraphLaunch(exec, c->s[0]));
    for (int i = 0; i < 3; i++)
        MUST(cudaMemcpyAsync(c->pinned + (size_t)i * N, c->buffer[i], N, cudaMemcpyDeviceToHost, c->s[0]));
    MUST(cudaStreamSynchronize(c->s[0]));
    MUST(cudaGraphExecDestroy(exec));
    atomic_fetch_add(&count.replayed, 1);
    for (size_t i = 0; i < 3 * N; i++)
        if (c->pinned[i] != 0x21) {
            SAY("replay: byte %zu of buffer %zu is 0x%02x\n", i % N, i / N, c->pinned[i] & 0xff);
            atomic_fetch_add(&count.foreign, 1);
            break;
        }
    return FINE;
}

static enum fate capture(struct captor *c, uint64_t number)
{
    const struct ending *ending = &endings[plan[number % (uint64_t)plans].ending];
    const int mode = plan[number % (uint64_t)plans].mode;
    cudaGraph_t graph = NULL;
    enum fate fate;

    atomic_store(&c->at, (int)(ending - endings));
    MUST(thread_mode(cudaStreamCaptureModeGlobal));
    fate = ending->fn(c, (enum cudaStreamCaptureMode)mode, &graph);
    MUST(thread_mode(cudaStreamCaptureModeRelaxed));
    if (fate == FINE && ending->survives != (graph != NULL))
        fate = WRONG;
    atomic_fetch_add(&counts[ending - endings][mode][0], 1);
    if (fate == BROKEN)
        return BROKEN;
    if (fate != FINE) {
        SAY("capture %llu (%s, mode %d) %s\n", (unsigned long long)number, ending->name, mode,
            fate == LOST ? "was destroyed" : "answered wrongly");
        atomic_fetch_add(&counts[ending - endings][mode][1], 1);
        atomic_fetch_add(fate == LOST ? &count.lost : &count.wrong, 1);
        (void)cudaStreamEndCapture(cudaStreamPerThread, &graph);
        (void)cudaGetLastError();
        return streams_renew(c);
    }
    if (graph) {
        if (number / (uint64_t)plans % opt.verify == 0)
            PASS(replay(c, graph));
        MUST(cudaGraphDestroy(graph));
    }
    return FINE;
}

static enum fate captor_run(struct captor *c)
{
    uint64_t number;

    MUST(thread_mode(cudaStreamCaptureModeRelaxed));
    PASS(streams_open(c));
    for (int i = 0; i < 4; i++)
        MUST(cudaEventCreateWithFlags(&c->e[i], cudaEventDisableTiming));
    MUST(cudaMallocHost((void **)&c->pinned, 3 * N));
    for (int i = 0; i < 3; i++)
        MUST(cudaMalloc((void **)&c->buffer[i], N));
    while (!atomic_load(&count.stop) && (number = atomic_fetch_add(&count.next_capture, 1)) < opt.captures / 2) {
        PASS(capture(c, number));
        atomic_fetch_add(&count.ended, 1);
    }
    for (int i = 0; i < 3; i++)
        MUST(cudaFree(c->buffer[i]));
    MUST(cudaFreeHost(c->pinned));
    for (int i = 0; i < 4; i++)
        MUST(cudaEventDestroy(c->e[i]));
    for (int i = 0; i < STREAMS; i++)
        MUST(cudaStreamDestroy(c->s[i]));
    return FINE;
}

static void *captor_main(void *arg)
{
    (void)captor_run((struct captor *)arg);
    atomic_fetch_sub(&count.captors_left, 1);
    return NULL;
}

/* Prints the progress; ends the program if no capture ends, the race if its time is over. */
static void *watchdog(void *arg)
{
    uint64_t seen = 0, still = 0;

    for (uint64_t s = 1; atomic_load(&count.captors_left) >= 0; s++) {
        const uint64_t now = atomic_load(&count.ended);

        bt_nap(1000000);
        still = now == seen && atomic_load(&count.captors_left) > 0 ? still + 1 : 0;
        seen = now;
        if (s % 5 == 0)
            fprintf(stderr, "capture_race: %llu captures, %llu lost; %llu allocations, %llu foreign\n",
                    (unsigned long long)now, (unsigned long long)atomic_load(&count.lost),
                    (unsigned long long)atomic_load(&count.allocs), (unsigned long long)atomic_load(&count.foreign));
        if (still >= STUCK_S) {
            fprintf(stderr, "capture_race: stuck in");
            for (uint64_t i = 0; i < opt.captors; i++)
                fprintf(stderr, " %s", endings[atomic_load(&captors[i].at)].name);
            fprintf(stderr, "\n");
            _exit(3);
        }
        if (opt.seconds && s == opt.seconds)
            atomic_store(&count.stop, 1);
    }
    return NULL;
}

/* Half of the captures. exchanged: the racers have changed their mode, and captures of every mode are made. */
static enum fate round_run(bool exchanged)
{
    static const int modes[] = {cudaStreamCaptureModeRelaxed, cudaStreamCaptureModeThreadLocal};
    size_t before, after, total;
    void *witness;

    MUST(cudaMemGetInfo(&before, &total));
    MUST(cudaMalloc(&witness, WITNESS));
    plan_make(exchanged ? ALL : LOCAL | RELAXED);
    atomic_store(&count.next_capture, 0);
    atomic_store(&count.captors_left, (int)opt.captors);
    for (uint64_t i = 0; i < opt.captors; i++) {
        captors[i].seed = opt.seed * 1009 + i * 2 + exchanged;
        MUST(pthread_create(&captors[i].thread, NULL, captor_main, &captors[i]));
    }
    for (uint64_t i = 0; i < opt.racers; i++) {
        MUST(racer_start((unsigned int)i, exchanged ? modes[i % 2] : (int)cudaStreamCaptureModeGlobal,
                         opt.seed * 2003 + i * 2 + exchanged));
    }
    for (uint64_t i = 0; i < opt.captors; i++)
        MUST(pthread_join(captors[i].thread, NULL));
    for (uint64_t i = 0; i < opt.racers; i++)
        MUST(racer_join((unsigned int)i));
    if (atomic_load(&count.broken))
        return BROKEN;
    /* No capture is open any more: memory that was kept back is free again, and a free takes effect at once. */
    MUST(cudaDeviceSynchronize());
    MUST(cudaFree(witness));
    MUST(bt_usable(BT_MIB));
    MUST(cudaMemGetInfo(&after, &total));
    if (after + WITNESS / 4 < before) {
        SAY("%zu MiB of memory are missing after all captures have ended\n", (before - after) / BT_MIB);
        atomic_fetch_add(&count.wrong, 1);
    }
    return FINE;
}

static void table_print(void)
{
    static const char *const names[MODES] = {"global", "thread-local", "relaxed"};

    printf("%-18s", "ending");
    for (int mode = 0; mode < MODES; mode++)
        printf(" %13s %5s", names[mode], "lost");
    printf("\n");
    for (int i = 0; i < ENDINGS; i++) {
        printf("%-18s", endings[i].name);
        for (int mode = 0; mode < MODES; mode++)
            printf(" %13llu %5llu", (unsigned long long)atomic_load(&counts[i][mode][0]),
                   (unsigned long long)atomic_load(&counts[i][mode][1]));
        printf("\n");
    }
    printf("captures %llu lost %llu wrong %llu replayed %llu allocations %llu looked at %llu foreign %llu\n",
           (unsigned long long)atomic_load(&count.ended), (unsigned long long)atomic_load(&count.lost),
           (unsigned long long)atomic_load(&count.wrong), (unsigned long long)atomic_load(&count.replayed),
           (unsigned long long)atomic_load(&count.allocs), (unsigned long long)atomic_load(&count.looked),
           (unsigned long long)atomic_load(&count.foreign));
}

int main(int argc, char **argv)
{
    static const struct bt_option options[] = {{"--captures", &opt.captures}, {"--captors", &opt.captors},
                                               {"--racers", &opt.racers},     {"--max-bytes", &opt.max_bytes},
                                               {"--verify", &opt.verify},     {"--seconds", &opt.seconds},
                                               {"--seed", &opt.seed},         {NULL, NULL}};
    pthread_t dog;

    for (int i = 1; i < argc; i += 2)
        if (i + 1 == argc || bt_option(options, argv[i], argv[i + 1])) {
            fprintf(stderr, "capture_race: bad options; see the head of capture_race.c\n");
            return 2;
        }
    if (!opt.captors || opt.captors > THREADS_MAX || opt.racers > THREADS_MAX || opt.max_bytes < 512 || !opt.verify) {
        fprintf(stderr, "capture_race: out of range; see the head of capture_race.c\n");
        return 2;
    }
    if (cudaFree(NULL) || bt_usable(BT_MIB) || pthread_create(&dog, NULL, watchdog, NULL))
        return 2;
    if (round_run(false) == FINE && !atomic_load(&count.stop))
        (void)round_run(true);
    atomic_store(&count.captors_left, -1);
    pthread_join(dog, NULL);
    table_print();
    if (atomic_load(&count.lost) || atomic_load(&count.foreign) || atomic_load(&count.wrong))
        return 1;
    return atomic_load(&count.broken) ? 2 : 0;
}
