/* SPDX-License-Identifier: Apache-2.0 */
/*
 * switch.c - a server that alternates two models, as PipeSwitch does: another process, the parameter server, brings the
 * next model's parameters into the card while this one computes, and the switch maps them at the addresses that the
 * last model's had. Nothing is copied for it, and pointers and captured graphs stay as they are.
 *
 *     cc -I/usr/local/cuda/include $(pkg-config --cflags cupool) switch.c -L/usr/local/cuda/lib64 -lcudart -o switch
 *     CUPOOL_BACKEND=vmm cupool-run -- ./switch [--mib N] [--requests N] [--lose N]
 *
 * --mib: the size of a model; --requests: how many the server answers, each for the other model; --lose: the parameter
 * server ends once it has brought so many, and the server goes on with what it has.
 *
 * The two processes are one program here, which forks before it uses CUDA, and talk over a pair of sockets. They could
 * be two programs of one user, over any socket: a ticket is 64 bytes.
 *
 * Not here: arithmetic. A request copies the model's parameters, and the answer is a sum of some of them.
 */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cupool.h"

#define MODELS 2
#define PARTS  16 /* of a model, for a request */

/* Of the parameter server, when a model is in the card. */
struct brought {
    struct cupool_ticket ticket;
    int model;
};

static struct {
    size_t size;
    int requests, lose;
} opt = {.size = (size_t)64 << 20, .requests = 8, .lose = -1};

#define CU(call)                                                                                                       \
    do {                                                                                                               \
        const cudaError_t error_ = (call);                                                                             \
        if (error_)                                                                                                    \
            fail(#call, cudaGetErrorString(error_));                                                                   \
    } while (0)
/* cupool's functions return negative errno values. */
#define POOL(call)                                                                                                     \
    do {                                                                                                               \
        const int64_t error_ = (call);                                                                                 \
        if (error_ < 0)                                                                                                \
            fail(#call, strerror((int)-error_));                                                                       \
    } while (0)

__attribute__((noreturn)) static void fail(const char *what, const char *why)
{
    fprintf(stderr, "switch: %s: %s\n", what, why);
    exit(1);
}

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Word i of a model. */
static uint64_t parameter(int model, size_t i)
{
    return (uint64_t)(model + 1) * UINT64_C(0x9e3779b97f4a7c15) + i;
}

/* --- the parameter server --- */

/*
 * Bring the models that are asked for, one after the other, from host memory. A model's block is freed as soon as its
 * successor is there: the server may still use it, and then cupool keeps the memory until the server has closed it.
 */
static int parameters_serve(int socket)
{
    const size_t words = opt.size / sizeof(uint64_t);
    struct brought brought;
    uint64_t *host[MODELS];
    void *block = NULL, *last = NULL;
    int asked = 0;

    for (int m = 0; m < MODELS; m++) {
        CU(cudaMallocHost((void **)&host[m], opt.size));
        for (size_t i = 0; i < words; i++)
            host[m][i] = parameter(m, i);
    }
    while (read(socket, &brought.model, sizeof(brought.model)) == sizeof(brought.model) && asked++ != opt.lose) {
        CU(cudaMalloc(&block, opt.size));
        CU(cudaMemcpy(block, host[brought.model], opt.size, cudaMemcpyHostToDevice));
        CU(cudaDeviceSynchronize()); /* before the server is told that they are there */
        POOL(cupool_export(block, &brought.ticket));
        if (write(socket, &brought, sizeof(brought)) != sizeof(brought))
            break;
        CU(cudaFree(last));
        last = block;
    }
    return 0;
}

/* --- the server --- */

static void *place;      /* of the parameters of whichever model is there */
static char *activation; /* the server's own memory */
static int64_t there[MODELS];
static int to_parameters;

/* Ask for a model that is not there. */
static void model_ask(int model)
{
    if (!there[model] && write(to_parameters, &model, sizeof(model)) != sizeof(model) && errno != EPIPE)
        fail("write", strerror(errno));
}

/* Take a model that has been asked for, unless it is there. 0; -1: the parameter server has ended. */
static int model_take(int model)
{
    struct brought brought;
    int64_t import;

    if (there[model])
        return 0;
    if (read(to_parameters, &brought, sizeof(brought)) != sizeof(brought))
        return -1;
    import = cupool_import(&brought.ticket, NULL);
    if (import == -EHOSTDOWN)
        return -1;
    if (import < 0)
        fail("cupool_import", strerror((int)-import));
    there[model] = import;
    return 0;
}

/* Launch the work of a request: each part of the parameters goes through the activations. */
static void request_begin(void)
{
    const size_t part = opt.size / PARTS;

    for (int i = 0; i < PARTS; i++)
        CU(cudaMemcpyAsync(activation + (size_t)i * sizeof(uint64_t), (char *)place + (size_t)i * part,
                           sizeof(uint64_t), cudaMemcpyDeviceToDevice, NULL));
}

/* Wait for it. The answer of one model is never that of the other. */
static int request_end(int model)
{
    uint64_t answer[PARTS], sum = 0, want = 0;

    CU(cudaMemcpy(answer, activation, sizeof(answer), cudaMemcpyDeviceToHost));
    for (int i = 0; i < PARTS; i++) {
        sum += answer[i];
        want += parameter(model, (size_t)i * (opt.size / PARTS / sizeof(uint64_t)));
    }
    return sum == want;
}

/* Let the last model go, whose work is over then, and put the next one in its place; the time of that in ms. */
static double model_switch(int last, int next)
{
    const double start = now_ms();
    double end;

    if (last >= 0)
        POOL(cupool_withdraw(place));
    POOL(cupool_insert(place, there[next]));
    end = now_ms();
    if (last >= 0) { /* so that the parameter server has room for it */
        POOL(cupool_import_close(there[last]));
        there[last] = 0;
    }
    return end - start;
}

static int serve(void)
{
    int wrong = 0, lost = 0, last = -1;
    double ms, most = 0;

    CU(cudaMalloc((void **)&activation, PARTS * sizeof(uint64_t)));
    POOL(cupool_reserve(opt.size, &place));
    model_ask(0);
    for (int i = 0; i < opt.requests; i++) {
        const int model = lost ? last : i % MODELS;

        if (!lost && model_take(model)) {
            lost = 1;
            fprintf(stderr, "switch: the parameter server has ended\n");
            if (last < 0)
                return 1;
            i--;
            continue;
        }
        if (model != last) {
            ms = model_switch(last, model);
            most = ms > most ? ms : most;
        }
        request_begin();
        if (!lost && i + 1 < opt.requests)
            model_ask((i + 1) % MODELS); /* it comes while this request computes */
        wrong += !request_end(model);
        last = model;
    }
    POOL(cupool_withdraw(place));
    POOL(cupool_import_close(there[last]));
    POOL(cupool_unreserve(place));
    CU(cudaFree(activation));
    printf("switch: %d requests, %d models of %zu MiB at one address, %d wrong; a switch took %.3f ms at most\n",
           opt.requests, MODELS, opt.size >> 20, wrong, most);
    return wrong != 0;
}

static int options_parse(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--mib") == 0)
            opt.size = (size_t)strtoull(argv[i + 1], NULL, 0) << 20;
        else if (strcmp(argv[i], "--requests") == 0)
            opt.requests = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--lose") == 0)
            opt.lose = atoi(argv[i + 1]);
        else
            return -1;
    }
    return argc % 2 && opt.size >> 21 && opt.size >> 40 == 0 && opt.requests > 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
    int ends[2], rc;
    pid_t child;

    if (options_parse(argc, argv)) {
        fprintf(stderr, "usage: switch [--mib N] [--requests N] [--lose N]\n");
        return 2;
    }
    if (!cupool_enabled())
        fail("cupool", "it is not there");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) || (child = fork()) < 0)
        fail("start", strerror(errno));
    if (child == 0) {
        close(ends[0]);
        return parameters_serve(ends[1]);
    }
    close(ends[1]);
    signal(SIGPIPE, SIG_IGN);
    to_parameters = ends[0];
    rc = serve();
    close(ends[0]);
    waitpid(child, NULL, 0);
    return rc;
}
