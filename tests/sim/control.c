/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - what the environment says, call counters, injected faults, cuGetProcAddress.
 *
 * Every exported driver function enters through sim_enter, and the table of them is here. Nothing here acts as a GPU.
 *
 * Locking: none of sim_lock(); counters are atomic, settings are written once.
 */
#include "sim.h"

#define FAULTS_MAX 32

struct sim_fault {
    char name[64];
    unsigned long first;
    bool onwards;
    CUresult code;
    _Atomic unsigned long seen;
};

struct sim_row {
    const char *base, *symbol, *pt_symbol;
    int version;
    void *fn, *pt_fn;
};

static const struct sim_row rows[] = {
#define SIM_FN(base, sym, ver)     {#base, #sym, NULL, ver, (void *)(sym), NULL},
#define SIM_PT(base, sym, ver, pt) {#base, #sym, #pt, ver, (void *)(sym), (void *)(pt)},
#include "table.h"
#undef SIM_FN
#undef SIM_PT
#define SIM_STUB(base, sym, ver, params, result)        {#base, #sym, NULL, ver, (void *)(sym), NULL},
#define SIM_STUB_PT(base, sym, ver, pt, params, result) {#base, #sym, #pt, ver, (void *)(sym), (void *)(pt)},
#include "stubs.def"
#undef SIM_STUB
#undef SIM_STUB_PT
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

struct sim_settings sim_settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct sim_fault faults[FAULTS_MAX];
static int n_faults;
static _Atomic(struct sim_counter *) counters;
static _Atomic bool initialized, forked;

static size_t size_parse(const char *s, size_t fallback)
{
    char *end;

    if (!s || !*s)
        return fallback;
    unsigned long long v = strtoull(s, &end, 0);
    switch (*end) {
    case 'k':
    case 'K':
        return v << 10;
    case 'm':
    case 'M':
        return v << 20;
    case 'g':
    case 'G':
        return v << 30;
    default:
        return v;
    }
}

static void faults_parse(const char *s)
{
    while (s && *s && n_faults < FAULTS_MAX) {
        struct sim_fault *f = &faults[n_faults];
        const char *end = strchr(s, ',');
        size_t len = end ? (size_t)(end - s) : strlen(s);
        char text[128], plus = 0;
        int code = 0;
        if (len < sizeof(text)) {
            memcpy(text, s, len);
            text[len] = 0;
            if (sscanf(text, "%63[^:]:%lu:%d", f->name, &f->first, &code) == 3 ||
                (sscanf(text, "%63[^:]:%lu%c:%d", f->name, &f->first, &plus, &code) == 4 && plus == '+')) {
                f->code = (CUresult)code;
                f->onwards = plus == '+';
                n_faults++;
            } else {
                fprintf(stderr, "simgpu: SIMGPU_FAULT: cannot read '%s'\n", text);
            }
        }
        s = end ? end + 1 : NULL;
    }
}

/* A child of fork has no GPU, natively too; its own calls are counted from zero. */
static void child_start(void)
{
    if (atomic_load(&initialized))
        atomic_store(&forked, true);
    for (struct sim_counter *c = counters; c; c = c->next)
        c->calls = 0;
}

static void settings_read(void)
{
    const char *s;

    sim_settings.devices = (s = getenv("SIMGPU_DEVICES")) && *s ? atoi(s) : 2;
    if (sim_settings.devices < 0 || sim_settings.devices > SIM_DEVICES_MAX)
        sim_settings.devices = sim_settings.devices < 0 ? 0 : SIM_DEVICES_MAX;
    sim_settings.memory = size_parse(getenv("SIMGPU_MEMORY"), (size_t)8 << 30) & ~(SIM_PAGE - 1);
    sim_settings.name = (s = getenv("SIMGPU_NAME")) && *s ? s : "Simulated GPU";
    sim_settings.shared = (s = getenv("SIMGPU_SHARED")) && *s ? s : NULL;
    sim_settings.delay_us = (s = getenv("SIMGPU_DELAY_US")) && *s ? (unsigned)atoi(s) : 20;
    sim_settings.seed = (s = getenv("SIMGPU_SEED")) && *s ? strtoull(s, NULL, 0) : 1;
    sim_settings.adversary = (s = getenv("SIMGPU_ADVERSARY")) && *s ? strtoull(s, NULL, 0) : 0;
    sim_settings.driver_version = (s = getenv("SIMGPU_DRIVER_VERSION")) && *s ? atoi(s) : 13000;
    faults_parse(getenv("SIMGPU_FAULT"));
    pthread_atfork(NULL, NULL, child_start);
}

void sim_settings_init(void)
{
    pthread_once(&once, settings_read);
}

void sim_initialized_set(void)
{
    atomic_store(&initialized, true);
}

static const char *base_of(const char *symbol)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].symbol, symbol) == 0 || (rows[i].pt_symbol && strcmp(rows[i].pt_symbol, symbol) == 0))
            return rows[i].base;
    }
    return symbol;
}

static CUresult fault_find(const char *symbol)
{
    const char *base = base_of(symbol);

    for (int i = 0; i < n_faults; i++) {
        struct sim_fault *f = &faults[i];
        if (strcmp(f->name, symbol) != 0 && strcmp(f->name, base) != 0)
            continue;
        unsigned long n = atomic_fetch_add(&f->seen, 1) + 1;
        if (n == f->first || (f->onwards && n > f->first))
            return f->code;
    }
    return CUDA_SUCCESS;
}

/* The call of this symbol that is to be refused; taken away by who refuses it. */
static _Atomic(const char *) refused;
static _Atomic int refusal;

static CUresult refusal_take(const char *symbol)
{
    const char *wanted = atomic_load_explicit(&refused, memory_order_relaxed);

    if (!wanted || strcmp(wanted, symbol) != 0 || !atomic_compare_exchange_strong(&refused, &wanted, NULL))
        return CUDA_SUCCESS;
    return (CUresult)atomic_load(&refusal);
}

/* The symbol whose calls take longer, and by how many milliseconds. */
static _Atomic(const char *) slow;
static _Atomic unsigned int slow_ms;

/* The symbol that calls a function first. */
static _Atomic(const char *) patched;
static void (*_Atomic patch)(void);

static void patch_call(const char *symbol)
{
    const char *wanted = atomic_load_explicit(&patched, memory_order_acquire);

    if (wanted && strcmp(wanted, symbol) == 0)
        atomic_load (&patch)();
}

static void nap_if_slow(const char *symbol)
{
    const char *wanted = atomic_load_explicit(&slow, memory_order_acquire);

    if (wanted && strcmp(wanted, symbol) == 0)
        usleep(1000 * atomic_load(&slow_ms));
}

CUresult sim_enter(struct sim_counter *c, bool early)
{
    CUresult r;

    sim_settings_init();
    if (!atomic_load_explicit(&c->listed, memory_order_relaxed) && !atomic_exchange(&c->listed, 1)) {
        struct sim_counter *head = atomic_load(&counters);
        do {
            c->next = head;
        } while (!atomic_compare_exchange_weak(&counters, &head, c));
    }
    atomic_fetch_add_explicit(&c->calls, 1, memory_order_relaxed);
    nap_if_slow(c->symbol);
    patch_call(c->symbol);
    r = refusal_take(c->symbol);
    if (r == CUDA_SUCCESS && n_faults)
        r = fault_find(c->symbol);
    if (r != CUDA_SUCCESS || early)
        return r;
    if (!atomic_load_explicit(&initialized, memory_order_acquire) ||
        atomic_load_explicit(&forked, memory_order_relaxed))
        return CUDA_ERROR_NOT_INITIALIZED;
    return sim_in_hostfn ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

void simgpu_refuse(const char *symbol, int code)
{
    atomic_store(&refusal, code);
    atomic_store(&refused, symbol);
}

void simgpu_slow(const char *symbol, unsigned int ms)
{
    atomic_store(&slow_ms, ms);
    atomic_store_explicit(&slow, symbol, memory_order_release);
}

void simgpu_before(const char *symbol, void (*call)(void))
{
    atomic_store(&patch, call);
    atomic_store_explicit(&patched, symbol, memory_order_release);
}

unsigned long simgpu_count(const char *name)
{
    unsigned long n = 0;

    for (struct sim_counter *c = atomic_load(&counters); c; c = c->next) {
        if (strcmp(c->symbol, name) == 0 || strcmp(base_of(c->symbol), name) == 0)
            n += atomic_load(&c->calls);
    }
    return n;
}

__attribute__((destructor)) static void counts_write(void)
{
    const char *pattern = getenv("SIMGPU_COUNTS");
    static char text[65536];
    char path[4096];
    size_t n = 0, len = 0;
    int cancel;

    if (!pattern || !*pattern || !atomic_load(&counters))
        return;
    for (const char *s = pattern; *s && n < sizeof(path) - 16; s++) {
        if (s[0] == '%' && s[1] == 'p') {
            n += (size_t)snprintf(path + n, 16, "%d", (int)getpid());
            s++;
        } else {
            path[n++] = *s;
        }
    }
    path[n] = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); /* a cancelled thread may be the one that exits */
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    for (struct sim_counter *c = atomic_load(&counters); c; c = c->next) {
        unsigned long calls = atomic_load(&c->calls);
        if (calls && len < sizeof(text) - 160)
            len += (size_t)snprintf(text + len, 160, "%d %s %lu\n", (int)getpid(), c->symbol, calls);
    }
    (void)!write(fd, text, len); /* in one call: processes may share the file, and may be at their limit of its size */
    close(fd);
    pthread_setcancelstate(cancel, NULL);
}

/* The row of a base name for a version: the newest one that is not newer than asked for. Rows beyond
 * SIMGPU_DRIVER_VERSION do not exist; a base of which only newer rows exist is there but not for this version. */
static CUresult proc_find(const char *name, void **pfn, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status)
{
    const struct sim_row *best = NULL;
    bool known = false;

    if (!name || !pfn || version > sim_settings.driver_version ||
        flags > (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
        return CUDA_ERROR_INVALID_VALUE;
    *pfn = NULL;
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].base, name) != 0 || rows[i].version > sim_settings.driver_version)
            continue;
        known = true;
        if (rows[i].version <= version && (!best || rows[i].version >= best->version))
            best = &rows[i];
    }
    if (!best) {
        if (status)
            *status = known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        return CUDA_SUCCESS; /* the status says it, or the pointer */
    }
    /* Per-thread variants came with CUDA 7.0. */
    bool pt = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) && best->pt_fn && version >= 7000;
    *pfn = pt ? best->pt_fn : best->fn;
    if (status)
        *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    SIM_ENTER_EARLY(cuGetProcAddress);
    CUresult r = proc_find(symbol, pfn, version, flags, NULL);

    return r == CUDA_SUCCESS && !*pfn ? CUDA_ERROR_NOT_FOUND : r; /* it has no status */
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    SIM_ENTER_EARLY(cuGetProcAddress_v2);
    return proc_find(symbol, pfn, version, flags, status);
}
