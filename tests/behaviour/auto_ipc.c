/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_ipc.c - what processes that share memory may count on after a cudaFree in either of them.
 *
 * An importing copy of this program does as it is told over a pipe: it writes and reads the exporter's memory on its
 * own streams (auto.h). Which handles can be made and opened is in ipc.c.
 */
#define AUTO_OWN_MAIN
#include "auto.h"

#define N (4 * BT_MIB)

/* The exporter's orders about the block that the importer opened, one byte each; it answers with one byte. */
enum command {
    FILL,      /* all bytes 0xee, and wait */
    FILL_FREE, /* all bytes 0xee behind held work; then a cudaFree, which natively waits */
    RELEASE,   /* what was held may go on; wait */
    SUM,       /* answer with the byte that all of them are, or 0 */
    CLOSE
};

static struct {
    pid_t pid;
    int to, from;
} importer;

static int read_byte(int fd)
{
    unsigned char b;

    return read(fd, &b, 1) == 1 ? b : -1;
}

static int tell(enum command command, int *ret)
{
    unsigned char b = (unsigned char)command;

    CHECK(write(importer.to, &b, 1) == 1);
    *ret = read_byte(importer.from);
    if (*ret < 0)
        return BT_FAIL("the importer failed at command %d", (int)command);
    return 0;
}

/* Start the importer, and wait until it has a context. */
static int importer_start(void)
{
    char in[16], out[16],
        *argv[] = {
            (char *)"auto_ipc", (char *)"--import", in, out, auto_expect_wrong ? (char *)"--expect-wrong" : NULL, NULL};
    int to[2], from[2];

    CHECK(pipe(to) == 0 && pipe(from) == 0);
    snprintf(in, sizeof(in), "%d", to[0]);
    snprintf(out, sizeof(out), "%d", from[1]);
    importer.pid = fork();
    CHECK(importer.pid >= 0);
    if (importer.pid == 0) {
        close(to[1]);
        close(from[0]);
        execv("/proc/self/exe", argv);
        _exit(4);
    }
    close(to[0]);
    close(from[1]);
    importer.to = to[1];
    importer.from = from[0];
    if (read_byte(importer.from) != 1)
        return BT_FAIL("the importer failed to start");
    return 0;
}

/* Have the importer open p. */
static int importer_open(void *p)
{
    cudaIpcMemHandle_t handle;

    OK(cudaIpcGetMemHandle(&handle, p));
    CHECK(write(importer.to, &handle, sizeof(handle)) == (ssize_t)sizeof(handle));
    switch (read_byte(importer.from)) {
    case 1:
        return 0;
    case 77:
        SKIP("the importer could not open the handle");
    default:
        return BT_FAIL("the importer failed to open the handle");
    }
}

static int importer_end(void)
{
    int answer, status = 1;

    TRY(tell(CLOSE, &answer));
    CHECK(waitpid(importer.pid, &status, 0) == importer.pid);
    close(importer.to);
    close(importer.from);
    if (status)
        return BT_FAIL("importer: status 0x%x", status);
    return 0;
}

/* --- the importer --- */

static int obey(int command, char *p, cudaStream_t s, void **own)
{
    unsigned char *copy;
    int answer = 1;

    switch (command) {
    case FILL:
        OK(cudaMemsetAsync(p, 0xee, N, s));
        OK(cudaStreamSynchronize(s));
        return answer;
    case FILL_FREE:
        if (hold(s))
            return -1;
        OK(cudaMemsetAsync(p, 0xee, N, s));
        OK(cudaFree(*own));
        *own = NULL;
        return answer;
    case RELEASE:
        hold_release();
        OK(cudaStreamSynchronize(s));
        return answer;
    case SUM:
        copy = (unsigned char *)malloc(N);
        if (!copy || cudaMemcpyAsync(copy, p, N, cudaMemcpyDeviceToHost, s) || cudaStreamSynchronize(s))
            return -1;
        answer = copy[0];
        for (size_t i = 0; i < N; i++)
            answer = copy[i] == copy[0] ? answer : 0;
        free(copy);
        return answer;
    default:
        return -1;
    }
}

/* Exits 0 if all went well; prints what did not. */
static int import_main(char **argv)
{
    int in = atoi(argv[2]), out = atoi(argv[3]), command;
    cudaIpcMemHandle_t handle;
    unsigned char answer = 1;
    void *own = NULL;
    cudaStream_t s;
    char *p;

    (void)alarm(AUTO_LIMIT);
    if (cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) || cudaMalloc(&own, 1000) || write(out, &answer, 1) != 1 ||
        read(in, &handle, sizeof(handle)) != (ssize_t)sizeof(handle))
        return 4;
    if (cudaIpcOpenMemHandle((void **)&p, handle, cudaIpcMemLazyEnablePeerAccess))
        answer = 77;
    if (write(out, &answer, 1) != 1 || answer != 1)
        return 4;
    while ((command = read_byte(in)) >= 0 && command != CLOSE) {
        int rc = obey(command, p, s, &own);

        answer = (unsigned char)rc;
        if (rc < 0 || bt_why[0]) {
            fprintf(stderr, "importer, command %d: %s\n", command, bt_why);
            return 4;
        }
        if (write(out, &answer, 1) != 1)
            return 4;
    }
    answer = 1;
    return command == CLOSE && cudaIpcCloseMemHandle(p) == cudaSuccess && write(out, &answer, 1) == 1 ? 0 : 4;
}

/* --- tests --- */

/* The exporter frees a block that the importer still has, and gets memory again. Natively that is other memory, or at
 * least nothing that the importer can write. */
RIGHT(late_importer)
{
    char *p, *q;
    int answer;
    long bad;

    TRY(importer_start());
    OK(cudaMalloc((void **)&p, N));
    TRY(bt_fill(p, N, 1));
    TRY(importer_open(p));
    OK(cudaFree(p));
    OK(cudaMalloc((void **)&q, N));
    TRY(bt_fill(q, N, 0x11));
    TRY(tell(FILL, &answer));
    bad = auto_count(q, N, 0x11);
    CHECK(bad >= 0);
    TRY(importer_end());
    OK(cudaFree(q));
    return bad ? WRONG("the importer wrote %ld bytes into the exporter's new block", bad) : 0;
}

/* Here the exporter frees and takes many other blocks before the importer writes. */
RIGHT(late_importer_busy)
{
    char *p, *q[8];
    long bad = 0;
    int answer;

    TRY(importer_start());
    OK(cudaMalloc((void **)&p, N));
    TRY(bt_fill(p, N, 1));
    TRY(importer_open(p));
    OK(cudaFree(p));
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8; i++)
            OK(cudaMalloc((void **)&q[i], N >> i % 3));
        for (int i = 0; i < 8; i++)
            TRY(bt_fill(q[i], N >> i % 3, 0x11));
        TRY(tell(FILL, &answer));
        for (int i = 0; i < 8; i++) {
            long n = auto_count(q[i], N >> i % 3, 0x11);

            CHECK(n >= 0);
            bad += n;
            OK(cudaFree(q[i]));
        }
    }
    TRY(importer_end());
    return bad ? WRONG("the importer wrote %ld bytes into the exporter's new blocks", bad) : 0;
}

/* The importer's cudaFree of memory of its own waits for its write to the exporter's. */
HAZARD(importer_free)
{
    int answer;
    long bad;
    char *p;

    TRY(importer_start());
    OK(cudaMalloc((void **)&p, N));
    TRY(bt_fill(p, N, 1));
    TRY(importer_open(p));
    TRY(tell(FILL_FREE, &answer));
    bad = auto_count(p, N, 0xee);
    TRY(tell(RELEASE, &answer));
    CHECK(bad >= 0);
    CHECK(auto_count(p, N, 0xee) == 0);
    TRY(importer_end());
    OK(cudaFree(p));
    return bad ? WRONG("%ld bytes were not there after the importer's cudaFree", bad) : 0;
}

/* The exporter's cudaFree waits for its write to the memory that the importer then reads. */
static int exporter_read(const char *w, size_t n, int byte)
{
    int answer;

    TRY(tell(SUM, &answer));
    return answer == byte ? 0 : WRONG("the importer read %d instead of %d", answer, byte);
}

HAZARD(exporter_free)
{
    char *w;
    int rc;

    TRY(importer_start());
    OK(cudaMalloc((void **)&w, N));
    TRY(importer_open(w));
    rc = auto_stale_in(w, N, exporter_read);
    return rc == 1 || importer_end() ? 1 : rc;
}

/* The importer fills fresh memory that older work of the exporter still reads. Each serves one round. */
static int fill_by_importer(char *u, size_t n, int byte)
{
    int answer;

    TRY(importer_open(u));
    TRY(tell(FILL, &answer));
    TRY(importer_end());
    return importer_start();
}

HAZARD(fresh_export)
{
    int rc;

    TRY(importer_start());
    rc = auto_race(fill_by_importer);
    close(importer.to); /* the last one has nothing to do */
    close(importer.from);
    CHECK(waitpid(importer.pid, NULL, 0) == importer.pid);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc >= 4 && strcmp(argv[1], "--import") == 0) {
        auto_expect_wrong = argc > 4;
        return import_main(argv);
    }
    return auto_main(argc, argv);
}
