/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_app.c - a process that shares memory with others by CUDA IPC handles, and does as it is told: it reads commands
 * from stdin, a line each, and answers each with a line.
 *
 *   alloc BYTES        error, and the number of the block
 *   free I             the error of cudaFree of block I
 *   async I            the same, of cudaFreeAsync
 *   handle I [OFFSET]  error, and the handle in hexadecimal
 *   open HEX BYTES     error, and the number of the block that was opened
 *   close I            the error of cudaIpcCloseMemHandle
 *   closes HEX I       closes_begin (ipc_closes.h)
 *   closed             closes_end
 *   opening HEX N      openings_begin (the same): N threads open it
 *   opened BYTES       openings_end: error, and the number of the block
 *   fill I SEED        the error of filling it with bytes made of SEED
 *   check I SEED       the number of its bytes that are not so, or -1
 *   range I OFFSET     error, where the range begins relative to block I, and its size, of cuMemGetAddressRange
 *   context I          1 if CU_POINTER_ATTRIBUTE_CONTEXT is the current context
 *   at I               the address
 *   used               the bytes of the device that are in use
 *   fds                the number of open descriptors
 *   busy MS            work of so many milliseconds for the device
 *   idle               the error of cudaStreamQuery of the default stream
 *   device N           the error of cudaSetDevice
 *   reset              the error of cudaDeviceReset
 *   pause              cupool_pause in a thread of its own
 *   paused             the error of that, once it has returned
 *   resume             the error of that, and of cupool_resume, as one number
 *   export I [OFFSET]  the error of cupool_export, and the ticket in hexadecimal
 *   import HEX         of cupool_import: a number or an error, and the bytes that it needs
 *   unimport NUMBER    the error of cupool_import_close
 *   reserve BYTES      the error of cupool_reserve, and the number of the range, which counts as a block
 *   unreserve I        the error of cupool_unreserve
 *   insert I OFFSET NUMBER
 *                      the error of cupool_insert of this import into range I
 *   withdraw I OFFSET  the error of cupool_withdraw
 *   part I OFFSET BYTES
 *                      the number of the block that is this part of block I
 *   race I ROUNDS NUMBER
 *                      four threads insert this import into range I and withdraw it, so many times each: what is wrong
 *   capture I          the error of cupool_withdraw at block I while a stream captures; above 1000: of CUDA
 *   cancelled COMMAND  a command, by a thread with a pending cancellation; "inside" if it is cancelled within it
 *   changed            how many calls for CUDA IPC and of cupool.h, of those above, have changed errno
 *   closefrom FD [TO]  close every descriptor from FD on, to TO alone
 *   taken FD           close the descriptors from FD on, let a socket of ours have 40 of these numbers, and send this
 *                      process SIGUSR1: the bytes that come out at the socket's other end, which nobody sends
 *   fork               a child that does nothing until this process's stdin ends; its number
 *   exit               end without closing anything
 *   exec               become a program that does nothing until its stdin ends
 *
 * It ends with stdin.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/socket.h>

#include "cupool.h"
#include "descriptors.h"
#include "ipc_closes.h"

#define BLOCKS_MAX 4096

static struct {
    void *p;
    size_t size;
} blocks[BLOCKS_MAX];
static int n;

/* Calls that have changed errno. */
static int changed;
#define ERRNO_BEFORE 4242

static long errno_look(long rc)
{
    changed += errno != ERRNO_BEFORE;
    return rc;
}
#define LOOK(call) (errno = ERRNO_BEFORE, errno_look(call))

static void nap(void *ms)
{
    const struct timespec time = {(long)(intptr_t)ms / 1000, (long)(intptr_t)ms % 1000 * 1000000};

    nanosleep(&time, NULL);
}

/* The thread sanitizer would take longer for these bytes than for all else. */
__attribute__((no_sanitize("thread"))) static void pattern(unsigned char *host, size_t size, unsigned int seed)
{
    for (size_t i = 0; i < size; i++)
        host[i] = (unsigned char)((i * 31 + (i >> 8) * 7) ^ seed * 59);
}

static long fill(int i, unsigned int seed)
{
    unsigned char *host = malloc(blocks[i].size);
    int rc;

    pattern(host, blocks[i].size, seed);
    rc = (int)cudaMemcpy(blocks[i].p, host, blocks[i].size, cudaMemcpyHostToDevice);
    if (!rc)
        rc = (int)cudaDeviceSynchronize();
    free(host);
    return rc;
}

static long check(int i, unsigned int seed)
{
    unsigned char *host = malloc(blocks[i].size), *want = malloc(blocks[i].size);
    long wrong = 0;

    pattern(want, blocks[i].size, seed);
    if (cudaMemcpy(host, blocks[i].p, blocks[i].size, cudaMemcpyDeviceToHost))
        wrong = -1;
    else if (memcmp(host, want, blocks[i].size) != 0)
        for (size_t k = 0; k < blocks[i].size; k++)
            wrong += host[k] != want[k];
    free(host);
    free(want);
    return wrong;
}

static void hex_print(int rc, const unsigned char *bytes, size_t size)
{
    printf("%d ", rc);
    for (size_t k = 0; !rc && k < size; k++)
        printf("%02x", bytes[k]);
    printf("\n");
}

static void handle_print(int i, size_t offset)
{
    cudaIpcMemHandle_t handle;
    const int rc = (int)LOOK(cudaIpcGetMemHandle(&handle, (char *)blocks[i].p + offset));

    hex_print(rc, (const unsigned char *)&handle, sizeof(handle));
}

static cudaIpcMemHandle_t handle_read(const char *hex)
{
    cudaIpcMemHandle_t handle = {{0}};
    unsigned int byte;

    for (size_t k = 0; k < sizeof(handle) && sscanf(hex + 2 * k, "%2x", &byte) == 1; k++)
        ((unsigned char *)&handle)[k] = (unsigned char)byte;
    return handle;
}

static void handle_open(const char *hex, size_t size)
{
    const cudaIpcMemHandle_t handle = handle_read(hex);
    int rc;

    blocks[n].size = size;
    rc = (int)LOOK(cudaIpcOpenMemHandle(&blocks[n].p, handle, cudaIpcMemLazyEnablePeerAccess));
    printf("%d %d\n", rc, rc ? -1 : n);
    n += rc == 0;
}

static void openings_print(size_t size)
{
    const long rc = openings_end(&blocks[n].p);

    blocks[n].size = size;
    printf("%ld %d\n", rc, rc ? -1 : n);
    n += rc == 0;
}

static void ticket_print(int i, size_t offset)
{
    struct cupool_ticket ticket;
    const int rc = (int)LOOK(cupool_export((char *)blocks[i].p + offset, &ticket));

    hex_print(rc, ticket.bytes, sizeof(ticket.bytes));
}

static void ticket_import(const char *hex)
{
    struct cupool_ticket ticket;
    unsigned int byte;
    size_t size = 0;
    long rc;

    for (size_t k = 0; k < sizeof(ticket) && sscanf(hex + 2 * k, "%2x", &byte) == 1; k++)
        ticket.bytes[k] = (unsigned char)byte;
    rc = LOOK(cupool_import(&ticket, &size));
    printf("%ld %zu\n", rc, size);
}

static void reserve(size_t size)
{
    const int rc = (int)LOOK(cupool_reserve(size, &blocks[n].p));

    blocks[n].size = size;
    printf("%d %d\n", rc, rc ? -1 : n);
    n += rc == 0;
}

static int part(int i, size_t offset, size_t size)
{
    blocks[n].p = (char *)blocks[i].p + offset;
    blocks[n].size = size;
    return n++;
}

static void *at(int i, long offset)
{
    return (char *)blocks[i].p + offset;
}

/* The capture has a copy, so that it captures something. */
static long withdraw_in_a_capture(int i)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    int rc = (int)cudaStreamCreate(&stream), refused;

    rc += (int)cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    rc += (int)cudaMemsetAsync(blocks[i].p, 0, 16, stream);
    refused = cupool_withdraw(blocks[i].p);
    rc += (int)cudaStreamEndCapture(stream, &graph);
    return rc ? 1000 + rc : refused;
}

static struct {
    int range;
    long rounds, import;
    _Atomic long inserted, withdrawn, wrong;
} race;

static void *race_run(void *unused)
{
    int rc;

    for (long i = 0; i < race.rounds; i++) {
        rc = cupool_insert(blocks[race.range].p, race.import);
        race.inserted += rc == 0;
        race.wrong += rc != 0 && rc != -EBUSY;
        rc = cupool_withdraw(blocks[race.range].p);
        race.withdrawn += rc == 0;
        race.wrong += rc != 0 && rc != -EBUSY && rc != -EINVAL;
    }
    return unused;
}

static long race_all(int range, long rounds, long import)
{
    pthread_t threads[4];

    race.range = range;
    race.rounds = rounds;
    race.import = import;
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, race_run, NULL))
            return -1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    return race.wrong + (race.inserted != race.withdrawn || !race.inserted);
}

static void range_print(int i, size_t offset)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    const int rc = (int)cuMemGetAddressRange(&base, &size, (CUdeviceptr)(uintptr_t)blocks[i].p + offset);

    printf("%d %ld %zu\n", rc, rc ? 0 : (long)(base - (CUdeviceptr)(uintptr_t)blocks[i].p), size);
}

static long context_is(int i)
{
    CUcontext current = NULL, its = NULL;

    return cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
           cuPointerGetAttribute(&its, CU_POINTER_ATTRIBUTE_CONTEXT, (CUdeviceptr)(uintptr_t)blocks[i].p) ==
               CUDA_SUCCESS &&
           its == current;
}

static long used(void)
{
    size_t free = 0, total = 0;

    return cudaMemGetInfo(&free, &total) ? -1 : (long)(total - free);
}

static long taken(int from)
{
    char bytes[64];
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) || ends[0] >= from || ends[1] >= from)
        return -1;
    syscall(SYS_close_range, (unsigned int)from, 499u, 0u); /* those of the simulated driver begin at 500 */
    for (int fd = from; fd < from + 40; fd++)
        if (dup2(ends[0], fd) < 0)
            return -1;
    raise(SIGUSR1);
    return (long)recv(ends[1], bytes, sizeof(bytes), 0);
}

/* Without the fork handlers, so that the child keeps every descriptor. */
static long child_make(void)
{
    const long pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    char c;

    while (pid == 0 && read(0, &c, 1) > 0)
        ;
    if (pid == 0)
        _exit(0);
    return pid;
}

static void *pause_run(void *ret)
{
    *(long *)ret = cupool_pause(0, CUPOOL_KEEP);
    return NULL;
}

static pthread_t pausing;
static bool is_pausing;
static long pause_error;

/* So that the program goes on while the device pauses. */
static long pause_begin(void)
{
    const int rc = pthread_create(&pausing, NULL, pause_run, &pause_error);

    is_pausing = !rc;
    return rc;
}

static long pause_join(void)
{
    if (is_pausing)
        pthread_join(pausing, NULL);
    is_pausing = false;
    return pause_error;
}

static long pause_end(void)
{
    const long error = pause_join();

    return error ? error : cupool_resume(0);
}

static long number(const char *word, long a, long b)
{
    if (strcmp(word, "free") == 0)
        return (long)cudaFree(blocks[a].p);
    if (strcmp(word, "async") == 0)
        return (long)cudaFreeAsync(blocks[a].p, NULL);
    if (strcmp(word, "close") == 0)
        return LOOK((long)cudaIpcCloseMemHandle(blocks[a].p));
    if (strcmp(word, "closed") == 0)
        return closes_end();
    if (strcmp(word, "fill") == 0)
        return fill((int)a, (unsigned int)b);
    if (strcmp(word, "check") == 0)
        return check((int)a, (unsigned int)b);
    if (strcmp(word, "context") == 0)
        return context_is((int)a);
    if (strcmp(word, "at") == 0)
        return (long)(uintptr_t)blocks[a].p;
    if (strcmp(word, "used") == 0)
        return used();
    if (strcmp(word, "fds") == 0)
        return descriptors();
    if (strcmp(word, "busy") == 0)
        return (long)cudaLaunchHostFunc(NULL, nap, (void *)(intptr_t)a);
    if (strcmp(word, "idle") == 0)
        return (long)cudaStreamQuery(NULL);
    if (strcmp(word, "device") == 0)
        return (long)cudaSetDevice((int)a);
    if (strcmp(word, "reset") == 0)
        return (long)cudaDeviceReset();
    if (strcmp(word, "pause") == 0)
        return pause_begin();
    if (strcmp(word, "paused") == 0)
        return pause_join();
    if (strcmp(word, "resume") == 0)
        return pause_end();
    if (strcmp(word, "unimport") == 0)
        return LOOK(cupool_import_close(a));
    if (strcmp(word, "unreserve") == 0)
        return LOOK(cupool_unreserve(blocks[a].p));
    if (strcmp(word, "withdraw") == 0)
        return LOOK(cupool_withdraw(at((int)a, b)));
    if (strcmp(word, "capture") == 0)
        return withdraw_in_a_capture((int)a);
    if (strcmp(word, "changed") == 0)
        return changed;
    if (strcmp(word, "closefrom") == 0)
        return syscall(SYS_close_range, (unsigned int)a, b ? (unsigned int)b : ~0u, 0u);
    if (strcmp(word, "taken") == 0)
        return taken((int)a);
    if (strcmp(word, "fork") == 0)
        return child_make();
    if (strcmp(word, "exit") == 0)
        _exit(0);
    if (strcmp(word, "exec") == 0)
        execl("/bin/sh", "sh", "-c", "read nothing", (char *)NULL);
    return -1;
}

/* Carry out a line, and answer it with one. The caller flushes stdout. */
static void command(const char *line)
{
    char word[32], text[256];
    long a = 0, b = 0, c = 0;

    text[0] = '\0';
    if (sscanf(line, "%31s %255s %ld %ld", word, text, &b, &c) < 1)
        return;
    a = strtol(text, NULL, 10);
    if (strcmp(word, "alloc") == 0) {
        const int rc = (int)cudaMalloc(&blocks[n].p, (size_t)a);

        blocks[n].size = (size_t)a;
        printf("%d %d\n", rc, rc ? -1 : n);
        n += rc == 0;
    } else if (strcmp(word, "handle") == 0) {
        handle_print((int)a, (size_t)b);
    } else if (strcmp(word, "open") == 0) {
        handle_open(text, (size_t)b);
    } else if (strcmp(word, "closes") == 0) {
        const cudaIpcMemHandle_t handle = handle_read(text);

        printf("%ld\n", closes_begin(blocks[b].p, &handle));
    } else if (strcmp(word, "opening") == 0) {
        const cudaIpcMemHandle_t handle = handle_read(text);

        printf("%ld\n", openings_begin(&handle, (int)b));
    } else if (strcmp(word, "opened") == 0) {
        openings_print((size_t)a);
    } else if (strcmp(word, "range") == 0) {
        range_print((int)a, (size_t)b);
    } else if (strcmp(word, "export") == 0) {
        ticket_print((int)a, (size_t)b);
    } else if (strcmp(word, "import") == 0) {
        ticket_import(text);
    } else if (strcmp(word, "reserve") == 0) {
        reserve((size_t)a);
    } else if (strcmp(word, "part") == 0) {
        printf("%d\n", part((int)a, (size_t)b, (size_t)c));
    } else if (strcmp(word, "race") == 0) {
        printf("%ld\n", race_all((int)a, b, c));
    } else if (strcmp(word, "insert") == 0) {
        printf("%ld\n", LOOK(cupool_insert(at((int)a, b), c)));
    } else {
        printf("%ld\n", number(word, a, b));
    }
}

static bool got_behind;

static void *cancelled_run(void *line)
{
    int before;

    if (cudaFree(NULL)) /* the thread has a context */
        return NULL;
    pthread_cancel(pthread_self());
    command(line);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    got_behind = true;
    return NULL;
}

/* Nothing is written before the end, since that would be a cancellation point. */
static void cancelled(char *line)
{
    pthread_t thread;

    got_behind = false;
    if (pthread_create(&thread, NULL, cancelled_run, line) || pthread_join(thread, NULL))
        return;
    if (!got_behind)
        printf("inside\n");
}

int main(void)
{
    char line[512];

    if (cudaFree(NULL))
        return 3;
    while (fgets(line, sizeof(line), stdin)) {
        if (strncmp(line, "cancelled ", 10) == 0)
            cancelled(line + 10);
        else
            command(line);
        fflush(stdout);
    }
    return 0;
}
