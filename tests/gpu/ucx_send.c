/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucx_send.c - device memory that UCX sends between two processes, natively or preloaded: whether every byte is right,
 * and what a message costs. It prints one line for each kind of block and direction.
 *
 *     cc -D_GNU_SOURCE -O2 -I$UCX/include -I/usr/local/cuda/include -o ucx_send tests/gpu/ucx_send.c \
 *         -L$UCX/lib -lucp -lucs -L/usr/local/cuda/lib64 -lcudart
 *     export UCX_TLS=cuda_ipc,cuda_copy,sm,self
 *     ./ucx_send; for b in cuda vmm; do CUPOOL_BACKEND=$b scripts/cupool-run -- ./ucx_send; done
 *
 * one: a block alone. many: eight blocks, which a segment may share, then from their middle. again: both sides free
 * their block before each message and ask for another of the size, and the sender frees its own as soon as UCX says
 * that it is sent, and has the memory overwritten. mixed: every message has another size, and blocks of earlier ones
 * are freed in between. Times are medians of a message with its answer, without the filling and comparing.
 *
 * With UCX_LOG_LEVEL=info UCX says which transports it uses. It is no test of what happens when a process dies.
 */
#include <cuda_runtime_api.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include "../program.h"

#define MANY            8
#define ROUNDS          21
#define ROUNDS_OF(size) ((size) > 1 << 20 ? 6 : ROUNDS)

static int is_parent, wire; /* wire: to the other process */
static ucp_worker_h worker;
static ucp_ep_h peer;

/* --- UCX --- */

static void exchange(void *theirs, size_t want, const void *ours, size_t len)
{
    OK(write(wire, ours, len) != (ssize_t)len);
    for (size_t done = 0; done < want;) {
        const ssize_t n = read(wire, (char *)theirs + done, want - done);

        OK(n <= 0);
        done += (size_t)n;
    }
}

static void meet(void)
{
    char byte = 0;

    exchange(&byte, 1, &byte, 1);
}

static void connect_peer(void)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    const ucp_worker_params_t single = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_address_t *ours;
    ucp_config_t *config;
    ucp_context_h context;
    size_t len, their_len;
    void *theirs;

    OK(ucp_config_read(NULL, NULL, &config));
    OK(ucp_init(&params, config, &context));
    OK(ucp_worker_create(context, &single, &worker));
    OK(ucp_worker_get_address(worker, &ours, &len));
    exchange(&their_len, sizeof(their_len), &len, sizeof(len));
    theirs = malloc(their_len);
    exchange(theirs, their_len, ours, len);
    to.address = theirs;
    OK(ucp_ep_create(worker, &to, &peer));
}

static void finish(ucs_status_ptr_t request)
{
    const double limit = now_us() + 30e6;
    ucs_status_t status = UCS_OK;

    if (!request)
        return;
    OK(UCS_PTR_IS_ERR(request) ? UCS_PTR_STATUS(request) : 0);
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS && now_us() < limit)
        ucp_worker_progress(worker);
    OK(status);
    ucp_request_free(request);
}

static void message_send(const void *data, size_t size)
{
    const ucp_request_param_t plain = {0};

    finish(ucp_tag_send_nbx(peer, data, size, 1, &plain));
}

static void message_receive(void *data, size_t size)
{
    const ucp_request_param_t plain = {0};

    finish(ucp_tag_recv_nbx(worker, data, size, 1, ~0ull, &plain));
}

/* --- blocks --- */

/* No two messages have the same bytes. */
static uint64_t word_of(uint64_t message, uint64_t at)
{
    uint64_t x = message << 40 ^ (at + 1) * 0x9e3779b97f4a7c15u;

    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9u;
}

static void fill(void *block, size_t size, uint64_t message)
{
    uint64_t *copy = malloc(size + 8);

    for (size_t i = 0; i <= size / 8; i++)
        copy[i] = word_of(message, i);
    OK(cudaMemcpy(block, copy, size, cudaMemcpyHostToDevice));
    free(copy);
}

static long wrong_in(const void *block, size_t size, uint64_t message)
{
    uint64_t *copy = malloc(size + 8);
    long wrong = 0;

    OK(cudaMemcpy(copy, block, size, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < size; i++) {
        const uint64_t word = word_of(message, i / 8);

        wrong += ((unsigned char *)copy)[i] != ((const unsigned char *)&word)[i % 8];
    }
    free(copy);
    return wrong;
}

static void *block_new(size_t size)
{
    void *block;

    OK(cudaMalloc(&block, size));
    OK(cudaMemset(block, is_parent ? 0x11 : 0x22, size));
    return block;
}

/* --- messages --- */

static struct {
    double times[MANY * ROUNDS * 2];
    unsigned int count;
    long wrong;
    uint64_t number;
} run;

/* One message from the parent to the child, or the other way. */
static void message(int from_parent, void *block, size_t size)
{
    static char *answer;
    double begin;

    if (!answer)
        answer = calloc(1, 64);
    run.number++;
    if (from_parent == is_parent)
        fill(block, size, run.number);
    else
        OK(cudaMemset(block, 0, size));
    OK(cudaDeviceSynchronize());
    meet();
    begin = now_us();
    if (from_parent == is_parent) {
        message_send(block, size);
        message_receive(answer, 1);
        run.times[run.count++] = now_us() - begin;
    } else {
        message_receive(block, size);
        message_send(answer, 1);
        run.wrong += wrong_in(block, size, run.number);
    }
}

static void one(int from_parent, size_t size)
{
    void *block = block_new(size);

    for (int i = 0; i < ROUNDS_OF(size); i++)
        message(from_parent, block, size);
    OK(cudaFree(block));
}

static void many(int from_parent, size_t size)
{
    void *blocks[MANY];

    for (int i = 0; i < MANY; i++)
        blocks[i] = block_new(size);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < MANY; i++)
            message(from_parent, (char *)blocks[i * 5 % MANY] + round * (size / 2), size - (size_t)round * (size / 2));
    for (int i = 0; i < MANY; i++)
        OK(cudaFree(blocks[i]));
}

static void again(int from_parent, size_t size)
{
    for (int i = 0; i < ROUNDS_OF(size); i++) {
        void *block = block_new(size), *other;

        message(from_parent, block, size);
        OK(cudaFree(block));
        other = block_new(size); /* probably the memory that was sent */
        meet();
        OK(cudaFree(other));
    }
}

static void mixed(int from_parent, size_t size)
{
    static const int parts[] = {64, 1, 16, 3, 256, 5};
    void *kept[3] = {NULL};

    for (int i = 0; i < ROUNDS_OF(size); i++) {
        const size_t some = size / (size_t)parts[i % 6] + 1;
        void *block = block_new(some);

        message(from_parent, block, some);
        cudaFree(kept[i % 3]);
        kept[i % 3] = block;
    }
    for (int i = 0; i < 3; i++)
        cudaFree(kept[i]);
}

/* --- the table --- */

static long line(const char *name, void (*how)(int, size_t), int from_parent, size_t size)
{
    long theirs;

    run.count = 0;
    run.wrong = 0;
    how(from_parent, size);
    exchange(&theirs, sizeof(theirs), &run.wrong, sizeof(run.wrong));
    if (from_parent && is_parent) {
        qsort(run.times, run.count, sizeof(run.times[0]), by_value);
        printf("%-6s %9zu  parent to child  wrong %ld  %10.1f us, first or slowest %.1f\n", name, size, theirs,
               run.times[run.count / 2], run.times[run.count - 1]);
    } else if (is_parent) {
        printf("%-6s %9zu  child to parent  wrong %ld\n", name, size, run.wrong);
    }
    fflush(stdout);
    return theirs + run.wrong;
}

static long lines(void)
{
    static const struct {
        const char *name;
        void (*how)(int, size_t);
        size_t size;
    } kinds[] = {{"one", one, 100},           {"one", one, 300 << 10},    {"one", one, 64 << 20},
                 {"many", many, 100},         {"many", many, 300 << 10},  {"again", again, 100},
                 {"again", again, 300 << 10}, {"again", again, 64 << 20}, {"mixed", mixed, 64 << 20}};
    const char *only = getenv("ONLY"); /* a name of these */
    long wrong = 0;

    for (unsigned int i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        for (int from_parent = 1; from_parent >= 0 && (!only || strcmp(only, kinds[i].name) == 0); from_parent--)
            wrong += line(kinds[i].name, kinds[i].how, from_parent, kinds[i].size);
    return wrong;
}

int main(int argc, char **argv)
{
    int pair[2], status = 0;
    char number[16];
    pid_t child = 0;
    long wrong;

    is_parent = argc < 2;
    if (is_parent) {
        OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
        snprintf(number, sizeof(number), "%d", pair[1]);
        child = fork();
        if (!child) {
            execl("/proc/self/exe", argv[0], number, (char *)NULL);
            _exit(127);
        }
        close(pair[1]);
    }
    wire = is_parent ? pair[0] : atoi(argv[1]);
    OK(cudaFree(NULL));
    connect_peer();
    wrong = lines();
    if (is_parent) {
        meet();
        OK(waitpid(child, &status, 0) != child);
        printf("%ld wrong bytes, child's status %d\n", wrong, status);
        return wrong || status;
    }
    meet();
    return 0;
}
