/* SPDX-License-Identifier: Apache-2.0 */
/* test_machine.c - all that cupool-info prints, but for --check: of machines that are described here, of settings, and
 * for wrong words. */
#include "golden.h"
#include "system.h"

#include <errno.h>

#include "base/conf.h"
#include "base/conf_report.h"

static const char *const driver_hooks[] = {
#define DRIVER(symbol, parameters) #symbol,
#include "hooks.def"
};
static const char *const runtime_hooks[] = {
#define RUNTIME(symbol, parameters) #symbol,
#include "hooks.def"
};
static const char *const nccl_hooks[] = {
#define NCCL(symbol, parameters) #symbol,
#include "hooks.def"
};

#define DRIVER12(version, missing)                                                                                     \
    {                                                                                                                  \
        "libcuda.so.1", "/usr/lib/libcuda.so.1", missing, version                                                      \
    }
#define CUDART(name, version)                                                                                          \
    {                                                                                                                  \
        name, "/opt/" name, NULL, version                                                                              \
    }
#define NCCL2(version, missing)                                                                                        \
    {                                                                                                                  \
        "libnccl.so.2", "/opt/libnccl.so.2", missing, version                                                          \
    }
#define END                                                                                                            \
    {                                                                                                                  \
        NULL, NULL, NULL, 0                                                                                            \
    }

static const struct system_library none[] = {END};
static const struct system_library usual[] = {DRIVER12(13000, NULL), CUDART("libcudart.so.13", 13010),
                                              NCCL2(22809, NULL), END};
static const struct system_library newer[] = {DRIVER12(12050, NULL), CUDART("libcudart.so.12", 12090),
                                              NCCL2(22902, NULL), END};
static const struct system_library older[] = {DRIVER12(12049, NULL), CUDART("libcudart.so.11.0", 11080),
                                              NCCL2(22901, NULL), END};
static const struct system_library cudart[] = {CUDART("libcudart.so", 10020), CUDART("libcudart.so.12", 12998), END};
static const struct system_library old_nccl[] = {
    DRIVER12(12080, NULL), NCCL2(21803, " ncclMemAlloc ncclCommRegister ncclCommWindowRegister "), END};
static const struct system_library no_memfree[] = {DRIVER12(12080, NULL),
                                                   NCCL2(29998, " ncclMemFree ncclCommWindowRegister "), END};
static const struct system_library stub[] = {DRIVER12(0, "all"), CUDART("libcudart.so.13", 13000), NCCL2(22809, "all"),
                                             END};
static const struct system_library no_init[] = {DRIVER12(12080, " cuInit "), END};
static const struct system_library no_count[] = {DRIVER12(12080, " cuDeviceGetCount "), END};
static const struct system_library no_get[] = {DRIVER12(12080, " cuDeviceGet "), END};
static const struct system_library no_facts[] = {
    DRIVER12(12080, " cuDeviceGetName cuDeviceTotalMem_v2 cuDeviceGetAttribute cuDriverGetVersion "), END};
static char missing_words[8][512];
static const struct system_library few[] = {DRIVER12(13000, missing_words[1]),
                                            {"libcudart.so.13", "/r", missing_words[6], 13000},
                                            NCCL2(22809, missing_words[7]),
                                            END};

#define GIB (UINT64_C(1) << 30)

struct run {
    struct system system;
    bool bare;         /* no limits, no cgroup, no clock */
    const char *words; /* of the command, between blanks; "''": an empty one */
};

static int run(const void *arg)
{
    const struct run *run = arg;
    char copy[256], *words[16] = {"cupool-info"}, *save = NULL;
    int count = 1;

    system_now = run->system;
    if (!run->bare) {
        system_now.cgroup = system_now.cgroup ? system_now.cgroup : "68719476736\n";
        system_now.clock = system_now.clock ? system_now.clock : "tsc\n";
        system_now.limit = 1000;
        system_now.total = system_now.total ? system_now.total : 80 * GIB;
    }
    snprintf(copy, sizeof(copy), "%s", run->words);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
        words[count++] = strcmp(word, "''") == 0 ? "" : word;
    return info_main(count, words);
}

static const struct {
    const char *name, *environment;
    struct run run;
} machines[] = {
    {"nothing", NULL, {{.libraries = none}, true, ""}},
    {"two devices", NULL, {{.libraries = usual, .devices = 2}, false, ""}},
    {"the first driver that orders",
     NULL,
     {{.libraries = newer, .devices = 1, .clock = "hpet\n", .cgroup = "max\n"}, false, ""}},
    {"the last driver that does not",
     NULL,
     {{.libraries = older, .devices = 1, .clock = "arch_sys_counter"}, false, ""}},
    {"cudart alone", NULL, {{.libraries = cudart, .cgroup = "\n", .clock = " "}, false, ""}},
    {"an old NCCL", NULL, {{.libraries = old_nccl, .devices = 1}, false, ""}},
    {"an NCCL without ncclMemFree", NULL, {{.libraries = no_memfree, .devices = 1}, false, ""}},
    {"no virtual memory", NULL, {{.libraries = usual, .devices = 1, .lacks = 102}, false, ""}},
    {"no virtual memory and an old NCCL", NULL, {{.libraries = old_nccl, .devices = 1, .lacks = 102}, false, ""}},
    {"no device", NULL, {{.libraries = usual}, false, ""}},
    {"cuInit fails", NULL, {{.libraries = usual, .init = 999, .devices = 1}, false, ""}},
    {"the count fails", NULL, {{.libraries = usual, .devices = 0, .refuses = " cuDeviceGetCount "}, false, ""}},
    {"a device has no number", NULL, {{.libraries = usual, .devices = 1, .refuses = " cuDeviceGet "}, false, ""}},
    {"a device says nothing",
     NULL,
     {{.libraries = usual, .devices = 1, .refuses = " cuDeviceGetName cuDeviceTotalMem_v2 cuDeviceGetAttribute "},
      false,
      ""}},
    {"versions that fail",
     NULL,
     {{.libraries = usual, .refuses = " cuDriverGetVersion cudaRuntimeGetVersion ncclGetVersion "}, false, ""}},
    {"a stub", NULL, {{.libraries = stub, .devices = 1}, false, ""}},
    {"no cuInit", NULL, {{.libraries = no_init, .devices = 1}, false, ""}},
    {"no cuDeviceGetCount", NULL, {{.libraries = no_count, .devices = 1}, false, ""}},
    {"no cuDeviceGet", NULL, {{.libraries = no_get, .devices = 1}, false, ""}},
    {"a device without facts", NULL, {{.libraries = no_facts, .devices = 1}, false, ""}},
    {"some functions are missing", NULL, {{.libraries = few, .devices = 1}, false, ""}},
    {"integrated", NULL, {{.libraries = usual, .devices = 1, .has = 18, .value = 1}, false, ""}},
    {"exclusive", NULL, {{.libraries = usual, .devices = 1, .has = 20, .value = 3}, false, ""}},
    {"prohibited", NULL, {{.libraries = usual, .devices = 1, .has = 20, .value = 2}, false, ""}},
    {"another mode", NULL, {{.libraries = usual, .devices = 1, .has = 20, .value = 1}, false, ""}},
    {"141.9 GiB", NULL, {{.libraries = usual, .devices = 1, .total = 142 * GIB - 1}, false, ""}},
    {"0.1 GiB", NULL, {{.libraries = usual, .devices = 1, .total = GIB / 10 + 1}, false, ""}},
    {"0.0 GiB", NULL, {{.libraries = usual, .devices = 1, .total = GIB / 10}, false, ""}},
    {"a wrong setting", "CUPOOL_FREE=x", {{.libraries = none}, false, ""}},
    {"version", NULL, {{.libraries = none}, false, "--version"}},
    {"help", NULL, {{.libraries = none}, false, "--help"}},
    {"help in short", NULL, {{.libraries = none}, false, "-h"}},
    {"words too many", NULL, {{.libraries = none}, false, "-c x"}},
    {"more words too many", NULL, {{.libraries = none}, false, "--version x y"}},
    {"a wrong word", NULL, {{.libraries = none}, false, "-x"}},
    {"an empty word", NULL, {{.libraries = none}, false, "''"}},
    {"a question mark", NULL, {{.libraries = none}, false, "?"}},
    {"check without a command", NULL, {{.libraries = none}, false, "--check"}},
    {"accepts without a setting", NULL, {{.libraries = none}, false, "--accepts"}},
    {"accepts two", NULL, {{.libraries = none}, false, "--accepts CUPOOL_FREE=auto x"}},
    {"accepts", NULL, {{.libraries = none}, false, "--accepts CUPOOL_RANK=3"}},
    {"accepts the first one", NULL, {{.libraries = none}, false, "--accepts CUPOOL_ENABLE=0"}},
    {"accepts a word", NULL, {{.libraries = none}, false, "--accepts CUPOOL_FREE=strict"}},
    {"check", NULL, {{.libraries = none}, false, "--check none"}},
    {"check with words", NULL, {{.libraries = none}, false, "--check none x"}},
    {"accepts over the environment", "CUPOOL_RANK=x", {{.libraries = none}, false, "--accepts CUPOOL_RANK=3"}},
    {"accepts not", "CUPOOL_FREE=auto", {{.libraries = none}, false, "--accepts CUPOOL_FREE=a=b"}},
    {"accepts an unknown one", NULL, {{.libraries = none}, false, "--accepts CUPOOL_NONE=1"}},
    {"accepts no value", NULL, {{.libraries = none}, false, "--accepts CUPOOL_RANK"}},
};

/* Only the lines of these settings: the others' texts are no business of the program's. */
static const char *const shown[] = {"CUPOOL_ENABLE", "CUPOOL_FREE",     "CUPOOL_FILL",
                                    "CUPOOL_RANK",   "CUPOOL_REGISTER", "CUPOOL_TRACE_FILE"};

static int settings(const void *arg)
{
    char *line = NULL;
    size_t room = 0;
    bool on = true;
    int status;
    FILE *file = tmpfile();
    const int out = dup(STDOUT_FILENO);

    dup2(fileno(file), STDOUT_FILENO);
    status = run(arg);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    rewind(file);
    while (getline(&line, &room, file) > 0) {
        if (strstr(line, "CUPOOL_") == line || strncmp(line, "## `CUPOOL_", 11) == 0 ||
            strncmp(line, ".BR CUPOOL_", 11) == 0) {
            const char *name = strstr(line, "CUPOOL_");

            on = false;
            for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
                on = on || (strncmp(name, shown[i], strlen(shown[i])) == 0 && strchr("=` ", name[strlen(shown[i])]));
        }
        if (on)
            fputs(line, stdout);
    }
    free(line);
    fclose(file);
    return status;
}

static const struct {
    const char *name, *environment;
    struct run run;
} printed[] = {
    {"settings", NULL, {{.libraries = none}, false, "-c"}},
    {"settings from the environment",
     "CUPOOL_FILL=0x3F CUPOOL_RANK=x CUPOOL_TRACE_FILE= CUPOOL_NONE=1",
     {{.libraries = none}, false, "--settings"}},
    {"settings as Markdown", "CUPOOL_FREE=x", {{.libraries = none}, false, "--markdown"}},
    {"settings for the manual", "CUPOOL_FREE=x", {{.libraries = none}, false, "--man"}},
    {"all", "CUPOOL_FREE=x CUPOOL_TRACE_FILE=%e.%l RANK=3 LOCAL_RANK=1", {{.libraries = none}, false, "-a"}},
    {"all in words",
     "CUPOOL_FREE=x CUPOOL_TRACE_FILE=off SLURM_PROCID=3 SLURM_STEP_ID=1",
     {{.libraries = none}, false, "--all"}},
    {"process",
     "CUPOOL_TRACE_FILE=%e.%r.%l.%%.%x CUPOOL_STATS_FILE=%r.page CUPOOL_RANK=7",
     {{.libraries = none}, false, "--process"}},
    {"process without a page",
     "CUPOOL_TRACE_FILE=%e.%r CUPOOL_STATS_FILE=off PMI_RANK=2 MPI_LOCALRANKID=1",
     {{.libraries = none}, false, "--process"}},
    {"process with an empty page",
     "CUPOOL_TRACE_FILE=%e.%r CUPOOL_STATS_FILE= OMPI_COMM_WORLD_RANK=5",
     {{.libraries = none}, false, "--process"}},
};

/* The list that conf.def is, but for its sentences. */
static int list(const void *arg)
{
    (void)arg;
    for (unsigned int i = 0; i < conf_count; i++)
        printf("%s=%s (%s)\n", conf_rows[i].name, conf_rows[i].def, conf_rows[i].choices);
    return 0;
}

/* The number that each word of the choices gives, and how that is known by name. */
static int numbers(const void *arg)
{
    const struct conf *conf = conf_get();

    (void)arg;
    for (unsigned int i = 0; i < conf_count; i++)
        printf("%s: %llx%s\n", conf_rows[i].name, (unsigned long long)conf_value_get(i)->number,
               conf_value_get(i)->invalid ? ", invalid" : "");
    printf("free %d backend %d registration %d trace_events %d debug %d log_level %d\n", (int)conf->free.number,
           (int)conf->backend.number, (int)conf->registration.number, (int)conf->trace_events.number,
           (int)conf->debug.number, (int)conf->log_level.number);
    return 0;
}

static const struct golden others[] = {
    {"the settings", NULL, list, NULL},
    {"the numbers of defaults", NULL, numbers, NULL},
    {"the numbers of first words",
     "CUPOOL_ENABLE=0 CUPOOL_FREE=auto CUPOOL_BACKEND=cuda CUPOOL_REGISTER=0 CUPOOL_HOOK=auto CUPOOL_FILL=off "
     "CUPOOL_DEBUG=0 "
     "CUPOOL_TRACE_EVENTS=segment CUPOOL_STATS=off CUPOOL_LOG_LEVEL=off CUPOOL_DECAY=off CUPOOL_LIMIT=5M",
     numbers, NULL},
    {"the numbers of second words",
     "CUPOOL_FREE=ordered CUPOOL_BACKEND=nccl CUPOOL_REGISTER=1 CUPOOL_HOOK=runtime CUPOOL_FILL=native CUPOOL_DEBUG=1 "
     "CUPOOL_TRACE_EVENTS=segment,alloc CUPOOL_STATS=exit CUPOOL_LOG_LEVEL=error CUPOOL_DECAY=0 CUPOOL_LIMIT=5G",
     numbers, NULL},
    {"the numbers of third words",
     "CUPOOL_FREE=strict CUPOOL_BACKEND=vmm CUPOOL_REGISTER=force CUPOOL_FILL=0x7f CUPOOL_DEBUG=guard "
     "CUPOOL_STATS=exit,signal:USR1,timer:5m CUPOOL_LOG_LEVEL=info CUPOOL_LIMIT=1.5T",
     numbers, NULL},
    {"the numbers of fourth words", "CUPOOL_FREE=relaxed CUPOOL_REGISTER=use CUPOOL_LOG_LEVEL=debug CUPOOL_FILL=0x7g",
     numbers, NULL},
};

/* The names of hooks that a library lacks. */
static void miss(unsigned int count, const char *const *names, size_t all)
{
    char *to = missing_words[count];

    size_t len = 1;

    snprintf(to, sizeof(missing_words[count]), " ");
    for (unsigned int i = 0; i < count; i++)
        len += (size_t)snprintf(to + len, sizeof(missing_words[count]) - len, "%s ",
                                names[i == 0   ? 0
                                      : i == 1 ? all - 1
                                               : i]);
}

/* How many hooks there are changes with the lists. */
static void replace_counts(const char *by, size_t all)
{
    static char names[3][12][32];
    static unsigned int list;
    char text[32];

    for (unsigned int less = 0; less < 8; less++) {
        snprintf(text, sizeof(text), less ? "%zu of" : "%zu functions", all - less);
        snprintf(names[list][less], sizeof(names[0][0]), less ? "(%s - %u) of" : "%s functions", by, less);
        golden_replace(text, names[list][less]);
    }
    snprintf(text, sizeof(text), "of %zu", all);
    snprintf(names[list][8], sizeof(names[0][0]), "of %s", by);
    golden_replace(text, names[list][8]);
    snprintf(text, sizeof(text), "and %zu more", all - 6);
    snprintf(names[list][9], sizeof(names[0][0]), "and (%s - 6) more", by);
    golden_replace(text, names[list++][9]);
}

const char golden_name[] = "info/machine";

void golden_cases(void)
{
    struct golden golden;
    char name[64], host[80];

    miss(1, driver_hooks, sizeof(driver_hooks) / sizeof(driver_hooks[0]));
    miss(6, runtime_hooks, sizeof(runtime_hooks) / sizeof(runtime_hooks[0]));
    miss(7, nccl_hooks, sizeof(nccl_hooks) / sizeof(nccl_hooks[0]));
    replace_counts("DRIVER", sizeof(driver_hooks) / sizeof(driver_hooks[0]));
    replace_counts("CUDART", sizeof(runtime_hooks) / sizeof(runtime_hooks[0]));
    replace_counts("NCCL", sizeof(nccl_hooks) / sizeof(nccl_hooks[0]));
    gethostname(name, sizeof(name));
    snprintf(host, sizeof(host), "host %s,", name);
    golden_replace(host, "host HOST,");
    golden_replace(program_invocation_short_name, "PROGRAM");
    golden_replace(CUPOOL_VERSION, "VERSION");
    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        golden = (struct golden){machines[i].name, machines[i].environment, run, &machines[i].run};
        golden_run(&golden);
    }
    for (size_t i = 0; i < sizeof(printed) / sizeof(printed[0]); i++) {
        golden = (struct golden){printed[i].name, printed[i].environment, settings, &printed[i].run};
        golden_run(&golden);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        golden_run(&others[i]);
    golden = (struct golden){machines[1].name, NULL, run, &machines[1].run};
    golden_sweep(&golden);
}
