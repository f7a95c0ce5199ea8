/* SPDX-License-Identifier: Apache-2.0 */
/* system.c - see system.h. No locks: one thread. */
#define SYSTEM_ITSELF
#include "system.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>

#include "golden.h"

/* The rest of a page behind a file is filled with this, and the next page cannot be read. */
#define BEHIND 0xa5

struct system system_now;

static int mapped; /* files */
static struct timespec now = {1000, 900000000};

static bool fails(const char *what)
{
    if (!golden_call_fails(what))
        return false;
    errno = EIO;
    return true;
}

static bool is_slow(const char *how)
{
    return system_now.slow && strcmp(system_now.slow, how) == 0;
}

void system_left(void)
{
    if (mapped)
        printf("%d files are mapped\n", mapped);
    if (waitpid(-1, NULL, WNOHANG) >= 0)
        printf("a child is left\n");
}

/* Files of the test's folder. */
static const char *local(const char *path)
{
    return strncmp(path, "/v/", 3) == 0 ? path + 1 : strcmp(path, "/bin/sh") == 0 ? "plain-app" : path;
}

static const struct system_file *described(const char *path)
{
    const struct system_file *file = system_now.files;

    while (file && file->path && strcmp(file->path, path) != 0)
        file++;
    return file && file->path ? file : NULL;
}

int system_stat(const char *path, struct stat *st)
{
    const struct system_file *file = described(path);

    if (fails("stat"))
        return -1;
    memset(st, 0, sizeof(*st));
    if (stat(local(path), st) != 0 && !file)
        return -1;
    st->st_uid = file ? file->uid : system_now.uid;
    st->st_gid = file ? file->gid : system_now.gid;
    if (file)
        st->st_mode = S_IFREG | file->mode;
    return 0;
}

int system_statvfs(const char *path, struct statvfs *fs)
{
    const struct system_file *file = described(path);

    if (fails("statvfs"))
        return -1;
    memset(fs, 0, sizeof(*fs));
    fs->f_flag = file && file->nosuid ? ST_NOSUID : 0;
    return 0;
}

int system_access(const char *path, int mode)
{
    const struct system_file *file = described(path);

    if (fails("access"))
        return -1;
    return file ? (file->mode & 0111 ? 0 : -1) : access(local(path), mode);
}

ssize_t system_getxattr(const char *path, const char *name, void *value, size_t size)
{
    const struct system_file *file = described(path);

    (void)value;
    if (fails("getxattr") || size || strcmp(name, "security.capability") != 0)
        return -1;
    return file ? (ssize_t)file->capabilities - 1 : -1;
}

char *system_realpath(const char *path, char *to)
{
    const char *space = system_now.links ? strchr(system_now.links, ' ') : NULL;

    if (fails("realpath"))
        return NULL;
    if (space && strncmp(system_now.links, path, (size_t)(space - system_now.links)) == 0)
        path = space + 1;
    snprintf(to, PATH_MAX, "%s", path);
    return to;
}

int system_pipe(int fds[2])
{
    return fails("pipe") ? -1 : pipe(fds);
}

pid_t system_fork(void)
{
    return fails("fork") ? -1 : fork();
}

/* The loader. It shows in a line that is passed on how it was asked. All in one write, so that the number of reads does
 * not depend on the moment. */
int system_execl(const char *path, const char *name, const char *option, const char *program)
{
    const char *preload = getenv("LD_PRELOAD"), *driver = preload ? strstr(preload, "libcuda.so.1") : NULL;
    static char text[3 << 20];
    int len = 0;

    if (is_slow("none"))
        return -1;
    for (int i = 0; i < system_now.fillers; i++)
        len += sprintf(text + len, "\t/v/none (0x1)\n");
    if (len < system_now.bytes) {
        memset(text + len, '\n', (size_t)(system_now.bytes - len));
        len = system_now.bytes;
    }

    if (system_now.shows)
        len += snprintf(text + len, sizeof(text) - (size_t)len, "no error: %s as %s %s %s, LD_PRELOAD=%.*s and %s\n",
                        path, name, option, program, driver ? (int)(driver - preload) : 0, preload,
                        driver ? driver + 5 : "no driver");
    len += snprintf(text + len, sizeof(text) - (size_t)len, "%s", system_now.answer);
    for (int done = 0, n; done < len; done += n)
        if ((n = (int)write(STDOUT_FILENO, text + done, (size_t)(len - done))) < 0)
            _exit(1);
    alarm(30); /* where nobody ends it */
    while (is_slow("slow"))
        pause();
    _exit(0);
}

int system_poll(struct pollfd *fds, nfds_t count, int ms)
{
    /* The moments at which signals interrupt the wait for a loader that does not answer: the last milliseconds count.
     */
    static const struct timespec moments[] = {{1005, 250000000}, {1010, 898999999}, {1010, 899000001}, {1012, 0}};
    static unsigned int polls;

    if (fails("poll"))
        return -1;
    if (is_slow("slow")) {
        printf("waits %d ms\n", ms);
        if (polls == sizeof(moments) / sizeof(moments[0]))
            return 0;
        now = moments[polls++];
    } else if (!is_slow("signal") || polls++ % 2) {
        return ms > 0 ? poll(fds, count, -1) : 0;
    }
    errno = EINTR;
    return -1;
}

ssize_t system_read(int fd, void *to, size_t len)
{
    return fails("read") ? -1 : read(fd, to, len);
}

int system_kill(pid_t pid, int number)
{
    printf("kills it by %d\n", number);
    return kill(pid, number);
}

pid_t system_waitpid(pid_t pid, int *status, int options)
{
    if (fails("waitpid")) {
        errno = EINTR;
        return -1;
    }
    pid = waitpid(pid, status, options);
    if (!is_slow("reaped"))
        return pid;
    errno = ECHILD;
    return -1;
}

int system_clock_gettime(clockid_t clock, struct timespec *to)
{
    (void)clock;
    *to = now;
    return 0;
}

char *system_strdup(const char *text)
{
    return fails("strdup") ? NULL : strdup(text);
}

int system_asprintf(char **to, const char *format, const char *a)
{
    const size_t room = strlen(format) + strlen(a);

    *to = fails("asprintf") ? NULL : malloc(room);
    if (!*to)
        return -1;
    return snprintf(*to, room, "%s%s", a, strchr(format, 's') + 1);
}

int system_open(const char *path, int flags)
{
    return fails("open") ? -1 : open(local(path), flags);
}

int system_fstat(int fd, struct stat *st)
{
    return fails("fstat") ? -1 : fstat(fd, st);
}

int system_close(int fd)
{
    return close(fd);
}

/* The file's bytes, behind which nothing can be read. */
void *system_mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (len + page - 1) / page * page;
    unsigned char *map, *data;

    (void)at, (void)protection, (void)flags;
    if (fails("mmap"))
        return MAP_FAILED;
    map = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(map, BEHIND, whole);
    data = map + whole - (len + 7) / 8 * 8; /* numbers stay where the processor wants them */
    if (pread(fd, data, len, offset) != (ssize_t)len)
        return MAP_FAILED;
    mprotect(map + whole, page, PROT_NONE);
    mapped++;
    return data;
}

int system_munmap(void *at, size_t len)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)at / page * page;

    mapped--;
    return munmap((void *)start, ((uintptr_t)at + len - start + page - 1) / page * page + page);
}

FILE *system_fopen(const char *path, const char *mode)
{
    FILE *file;
    const char *text = strcmp(path, "/sys/fs/cgroup/memory.max") == 0 ? system_now.cgroup
                       : strstr(path, "current_clocksource")          ? system_now.clock
                                                                      : path;

    if (fails("fopen"))
        return NULL;
    if (text == path)
        return fopen(path, mode);
    file = text ? tmpfile() : NULL;
    if (!file)
        return NULL;
    fputs(text, file);
    rewind(file);
    return file;
}

int system_fclose(FILE *file)
{
    return fclose(file);
}

/* --- libraries --- */

void *system_dlopen(const char *name, int flags)
{
    const struct system_library *library = system_now.libraries;

    (void)flags;
    if (fails("dlopen"))
        return NULL;
    while (library && library->name && strcmp(library->name, name) != 0)
        library++;
    return library && library->name ? (void *)(uintptr_t)library : NULL;
}

static bool refused(const char *name)
{
    return system_now.refuses && strstr(system_now.refuses, name);
}

static int driver_version(int *to)
{
    *to = system_now.libraries[0].version;
    return refused(" cuDriverGetVersion ") ? 1 : 0;
}

static int runtime_version(int *to)
{
    const struct system_library *library = system_now.libraries;

    while (!strstr(library->name, "cudart"))
        library++;
    *to = library->version;
    return refused(" cudaRuntimeGetVersion ") ? 1 : 0;
}

static int nccl_version(int *to)
{
    const struct system_library *library = system_now.libraries;

    while (!strstr(library->name, "nccl"))
        library++;
    *to = library->version;
    return refused(" ncclGetVersion ") ? 1 : 0;
}

static int init(unsigned int flags)
{
    return flags ? 77 : system_now.init;
}

static int device_count(int *to)
{
    *to = system_now.devices;
    return refused(" cuDeviceGetCount ") ? 3 : 0;
}

static int device_get(int *to, int ordinal)
{
    *to = ordinal + 10;
    return refused(" cuDeviceGet ") ? 1 : 0;
}

static int device_name(char *name, int len, int device)
{
    snprintf(name, (size_t)len, "Device %d", device);
    return refused(" cuDeviceGetName ") ? 1 : 0;
}

static int device_total(size_t *to, int device)
{
    *to = (size_t)system_now.total + ((size_t)(device - 10) << 30);
    return refused(" cuDeviceTotalMem_v2 ") ? 1 : 0;
}

static int device_attribute(int *to, int attribute, int device)
{
    *to = attribute == system_now.lacks ? 0
          : attribute == system_now.has ? system_now.value
          : attribute == 18             ? 0
          : attribute == 20             ? 0
          : attribute == 75             ? device
          : attribute == 76             ? 6
          : attribute == 102            ? 1
                                        : -1;
    return refused(" cuDeviceGetAttribute ") ? 1 : 0;
}

static int other(void)
{
    return 0;
}

void *system_dlsym(void *handle, const char *name)
{
    static const struct {
        const char *name;
        int (*function)(void);
    } known[] = {
#define KNOWN(name, function) {name, (int (*)(void))(void (*)(void))(function)}
        KNOWN("cuDriverGetVersion", driver_version),     KNOWN("cudaRuntimeGetVersion", runtime_version),
        KNOWN("ncclGetVersion", nccl_version),           KNOWN("cuInit", init),
        KNOWN("cuDeviceGetCount", device_count),         KNOWN("cuDeviceGet", device_get),
        KNOWN("cuDeviceGetName", device_name),           KNOWN("cuDeviceTotalMem_v2", device_total),
        KNOWN("cuDeviceGetAttribute", device_attribute),
    };
    const struct system_library *library = handle;
    const char *missing = library->missing ? library->missing : "";
    char word[80];
    void *function;

    snprintf(word, sizeof(word), " %s ", name);
    if (strcmp(missing, "all") == 0 || strstr(missing, word))
        return NULL;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(known[i].name, name) == 0) {
            memcpy(&function, &known[i].function, sizeof(function));
            return function;
        }
    }
    return (void *)(uintptr_t)&other;
}

int system_dlinfo(void *handle, int request, struct link_map **to)
{
    static struct link_map map;

    if (fails("dlinfo") || request != RTLD_DI_LINKMAP)
        return -1;
    map.l_name = (char *)(uintptr_t)((const struct system_library *)handle)->path;
    *to = &map;
    return 0;
}

/* --- limits --- */

int system_getrlimit(int resource, struct rlimit *limit)
{
    const int order = resource == RLIMIT_AS ? 0 : resource == RLIMIT_FSIZE ? 1 : resource == RLIMIT_NOFILE ? 2 : 3;

    if (fails("getrlimit"))
        return -1;
    limit->rlim_cur = system_now.limit ? system_now.limit + (unsigned int)order : RLIM_INFINITY;
    limit->rlim_max = RLIM_INFINITY;
    return 0;
}

int system_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    if (pid || size != sizeof(*set) || fails("sched_getaffinity"))
        return -1;
    CPU_ZERO(set);
    CPU_SET(0, set);
    CPU_SET(3, set);
    CPU_SET(7, set);
    return 0;
}
