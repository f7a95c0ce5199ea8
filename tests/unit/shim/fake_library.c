/* SPDX-License-Identifier: Apache-2.0 */
/* fake_library.c - what stands in for shim/real/, and what the linker puts in front of functions of the library and of
 * libc (--wrap in meson.build): the clock, waiting, log lines, events of the trace, system calls. See fake_driver.h. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/membarrier.h>
#include <linux/mempolicy.h>

#include "base/neighbour_socket.h"
#include "fake_driver.h"
#include "real/copies.h"
#include "real/dlsym_next.h"
#include "real/loaded.h"
#include "trace/trace.h"
#include "wrapped.h"

/* A wait that goes on for so long has no limit. */
#define RELAXES_MAX 200000u

/* --- time --- */

WRAPPED(int, clock_gettime, (clockid_t clock, struct timespec *ts))
{
    const uint64_t ns = atomic_fetch_add(&fake.ns, fake.step);

    ts->tv_sec = (time_t)(ns / SECOND_NS);
    ts->tv_nsec = (long)(ns % SECOND_NS);
    return 0;
}

WRAPPED(void, lock_relax, (unsigned int times))
{
    atomic_fetch_add(&fake.ns, fake.relax_step);
    if (++fake.relaxes > RELAXES_MAX) {
        fprintf(stderr, "a wait without a limit\n");
        abort();
    }
    if (fake.relax)
        fake.relax(fake.relax_arg);
}

/* --- what is said --- */

/* A line of its own, as far as there is room. */
static void add(char *text, size_t len, const char *head, const char *format, va_list args)
{
    const size_t used = strlen(text);
    size_t more;

    snprintf(text + used, len - used, "%s:", head);
    more = used + strlen(text + used);
    vsnprintf(text + more, len - more, format, args);
    more += strlen(text + more);
    snprintf(text + more, len - more, "\n");
}

WRAPPED(void, log_write, (enum conf_log_level level, const char *format, ...))
{
    const char head[] = {(char)('0' + level), '\0'};
    va_list args;

    va_start(args, format);
    add(fake.said, sizeof(fake.said), head, format, args);
    va_end(args);
}

/* An event of the trace; the rest is a statement. */
#define TRACED(name, parameters, ...)                                                                                  \
    WRAPPED(void, name, parameters)                                                                                    \
    {                                                                                                                  \
        va_list args;                                                                                                  \
                                                                                                                       \
        __VA_ARGS__;                                                                                                   \
        va_start(args, format);                                                                                        \
        add(fake.traced, sizeof(fake.traced), event, format, args);                                                    \
        va_end(args);                                                                                                  \
    }
TRACED(trace_event, (const char *event, const char *format, ...))
TRACED(trace_frequent, (const char *event, const char *format, ...))
TRACED(trace_frequent_at, (uint64_t clock, const char *event, const char *format, ...), fake.traced_at = clock)
TRACED(trace_segment, (const struct trace_segment *segment, const char *event, const char *format, ...))
TRACED(trace_segment_at,
       (uint64_t clock, const struct trace_segment *segment, const char *event, const char *format, ...),
       fake.traced_at = clock)

WRAPPED(void, trace_open, (void))
{
    fake.opened++;
}

/* The machine has no other process but those that a test invents. One of another test, with the same card, would be
 * waited for: the clock stands. */
WRAPPED(void, neighbour_ask,
        (const struct neighbour_card *card, const struct neighbour_station *own, uint64_t wanted, uint64_t wait_ns,
         struct neighbour_outcome *ret_outcome))
{
    const bool late = fake.answer_ns > wait_ns;
    const bool gives = !late && fake.gives > fake.questions;

    fake.questions++;
    atomic_fetch_add(&fake.ns, !fake.neighbours ? 0 : late ? wait_ns : fake.answer_ns);
    *ret_outcome = (struct neighbour_outcome){
        .asked = fake.neighbours, .answered = late ? 0 : fake.neighbours, .given = gives ? 2 * MIB : 0};
}

WRAPPED(bool, background_start, (void))
{
    fake.clocks++;
    return fake.background;
}

WRAPPED(void, trace_write_behind, (void))
{
}

WRAPPED(bool, nccl_registers, (void))
{
    return fake.registers || __real_nccl_registers();
}

WRAPPED(size_t, nccl_retry_parked_wait, (int device))
{
    const size_t parked = fake.parked;

    fake.parked = 0;
    return parked ? parked : __real_nccl_retry_parked_wait(device);
}

WRAPPED(int, pool_create, (const struct pool_config *config, struct pool **ret_pool))
{
    fake.config = *config;
    if (!fake.pools_refused)
        return __real_pool_create(config, ret_pool);
    fake.pools_refused--;
    return -ENOMEM;
}

WRAPPED(void, pool_defer_never, (struct pool * pool))
{
    fake.defer_never++;
    __real_pool_defer_never(pool);
}

/* --- locks --- */

/* Of this thread; each is given back once, and none is held over a call of the driver. */
static __thread unsigned int held;

unsigned int fake_locks_held(void)
{
    return held;
}

WRAPPED(int, pthread_mutex_lock, (pthread_mutex_t * mutex))
{
    held++;
    return __real_pthread_mutex_lock(mutex);
}

WRAPPED(int, pthread_mutex_trylock, (pthread_mutex_t * mutex))
{
    const int rc = __real_pthread_mutex_trylock(mutex);

    held += !rc;
    return rc;
}

WRAPPED(int, pthread_mutex_unlock, (pthread_mutex_t * mutex))
{
    if (!held--) {
        fprintf(stderr, "a lock is given back that was not taken\n");
        abort();
    }
    return __real_pthread_mutex_unlock(mutex);
}

/* --- memory of the host --- */

static bool lacks_memory(void)
{
    return fake.no_memory || (fake_lacks_memory && fake_lacks_memory());
}

WRAPPED(void *, aligned_alloc, (size_t alignment, size_t size))
{
    void *p = lacks_memory() ? NULL : __real_aligned_alloc(alignment, size);

    return p ? memset(p, 0xa5, size) : NULL; /* what another owner has left there */
}

WRAPPED(void *, calloc, (size_t count, size_t size))
{
    if (fake.allocates)
        fake.allocates();
    return lacks_memory() ? NULL : __real_calloc(count, size);
}

/* --- system calls --- */

/* As the kernel's: refused to who has not registered. */
static long membarrier(int command, int flags)
{
    const bool barrier = command == MEMBARRIER_CMD_PRIVATE_EXPEDITED;

    fake.barriers += barrier;
    fake.registrations += command == MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
    errno = fake.fences ? ENOSYS : flags ? EINVAL : EPERM;
    if (fake.fences || flags || (barrier && (fake.barriers_refused || !fake.registrations)))
        return -1;
    return command == MEMBARRIER_CMD_QUERY ? MEMBARRIER_CMD_PRIVATE_EXPEDITED : 0;
}

WRAPPED(long, syscall, (long number, ...))
{
    va_list args;
    long a[6];

    va_start(args, number);
    for (unsigned int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_tgkill && fake.dead_threads) {
        errno = ESRCH;
        return -1;
    }
    if (number == SYS_renameat2 && fake.old_rename) {
        errno = fake.old_rename;
        return -1;
    }
    if (number == SYS_futex)
        fake.futexes++;
    if (number == SYS_get_mempolicy && fake.policy_hidden) {
        errno = EPERM;
        return -1;
    }
    if (number == SYS_get_mempolicy) {
        *(int *)a[0] = MPOL_DEFAULT;
        return 0;
    }
    if (number == SYS_mbind) {
        fake.bound = __builtin_ffsl(*(const long *)a[3]);
        fake.binds++;
        return 0;
    }
    if (number == SYS_membarrier)
        return membarrier((int)a[0], (int)a[1]);
    if (number == SYS_nanosleep) {
        atomic_fetch_add(&fake.ns, (uint64_t)((const struct timespec *)a[0])->tv_nsec);
        return 0;
    }
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

WRAPPED(int, open64, (const char *path, int flags, ...))
{
    char under[PATH_MAX];
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (fake.root && (strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0)) {
        snprintf(under, sizeof(under), "%s%s", fake.root, path);
        path = under;
    }
    return __real_open64(path, flags, mode);
}

WRAPPED(ssize_t, write, (int fd, const void *data, size_t len))
{
    if (fake.disk_full) {
        fake.disk_full = false;
        errno = ENOSPC;
        return -1;
    }
    fake.disk_full = fake.writes_short;
    fake.writes_short -= fake.disk_full;
    if (!fake.writes_interrupted)
        return __real_write(fd, data, len - fake.disk_full);
    fake.writes_interrupted--;
    errno = EINTR;
    return -1;
}

WRAPPED(ssize_t, pwrite64, (int fd, const void *data, size_t len, off_t at))
{
    if (!fake.writes_interrupted)
        return __real_pwrite64(fd, data, len, at);
    fake.writes_interrupted--;
    errno = EINTR;
    return -1;
}

WRAPPED(int, ftruncate64, (int fd, off_t length))
{
    fake.shortened = dup(fd);
    errno = EPERM;
    return fake.append_only ? -1 : __real_ftruncate64(fd, length);
}

WRAPPED(int, flock, (int fd, int operation))
{
    const char *const from = fake.renames[0];

    fake.renames[0] = NULL;
    if (from && rename(from, fake.renames[1]) == 0 && creat(from, 0600) < 0)
        return -1;
    errno = ENOLCK;
    return fake.no_locks ? -1 : __real_flock(fd, operation);
}

WRAPPED(unsigned long, getauxval, (unsigned long type))
{
    return type == AT_SECURE && fake.secure;
}

/* As the system: without a NUL where there is no room. */
WRAPPED(int, gethostname, (char *name, size_t len))
{
    const size_t n = fake.host ? strnlen(fake.host, len) : 0;

    if (!fake.host)
        return __real_gethostname(name, len);
    memcpy(name, fake.host, n);
    if (n < len)
        name[n] = '\0';
    return n ? 0 : -1;
}

WRAPPED(ssize_t, readlink, (const char *path, char *to, size_t len))
{
    const size_t n = fake.exe ? strnlen(fake.exe, len) : 0;

    if (!fake.exe)
        return __real_readlink(path, to, len);
    memset(to, 'x', len);
    memcpy(to, fake.exe, n);
    return n ? (ssize_t)n : -1;
}

/* --- shim/real/ --- */

const struct real_driver *real_driver_get(void)
{
    return fake.absent ? NULL : &fake.driver;
}

void *real_find(enum real_symbol symbol)
{
    if (!fake.next_of[symbol])
        abort();
    return fake.next_of[symbol];
}

void *real_find_for(enum real_symbol symbol, const void *caller)
{
    return real_find(symbol);
}

const struct real_nccl *real_nccl_get(const void *caller)
{
    return fake.nccl;
}

void *real_nccl_find(enum real_nccl_symbol symbol, const void *caller)
{
    if (!fake.nccl || !fake.nccl->next[symbol])
        abort();
    return fake.nccl->next[symbol];
}

void *dlsym_real(void *handle, const char *name)
{
    return dlsym(handle, name);
}

bool real_is_loaded(const char *name)
{
    return name && !*name;
}

enum real_symbol real_symbol_of(const void *function)
{
    for (unsigned int i = 0; function && i < REAL_COUNT; i++)
        if (fake.next_of[i] == function)
            return i;
    return REAL_COUNT;
}

const char *loaded_path(const char *prefix)
{
    return NULL;
}

bool copies_is_first(void)
{
    return true;
}

const char *copies_next(void)
{
    return NULL;
}
