/* SPDX-License-Identifier: Apache-2.0 */
/* test_launch.c - shim/base/launch.c: which rank this process is, by the launcher's variables and, where there are
 * several, by what its parent processes are called; and file names made from that. */
#include <limits.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/launch.h"
#include "isolated.h"

#define TORCH "RANK=1 LOCAL_RANK=2"
#define OMPI  "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=4"
#define PMIX  "PMIX_RANK=5"
#define MPICH "PMI_RANK=6 MPI_LOCALRANKID=7"
#define SLURM "SLURM_PROCID=8 SLURM_LOCALID=9 SLURM_STEP_ID=0"

static const struct row {
    const char *environment;
    const char *parents; /* names of parent processes, the outermost first; /WORDS: a command line */
    const char *expected;
} rows[] = {
    {"", "", "none -1 -1"},
    {TORCH, "", "torchrun 1 2"},
    {OMPI, "", "openmpi 3 4"},
    {PMIX, "", "pmix 5 -1"},
    {MPICH, "", "mpich 6 7"},
    {SLURM, "", "slurm 8 9"},
    /* Without what they need, these mean something else. */
    {"RANK=1", "", "none -1 -1"},
    {"RANK=1 LOCAL_RANK=", "", "torchrun 1 -1"},
    {"LOCAL_RANK=1", "", "none -1 -1"},
    {"SLURM_PROCID=8 SLURM_LOCALID=9", "", "none -1 -1"},
    /* Numbers. */
    {"PMIX_RANK=0", "", "pmix 0 -1"},
    {"PMIX_RANK=", "", "none -1 -1"},
    {"PMIX_RANK=-1", "", "none -1 -1"},
    {"PMIX_RANK=1x", "", "none -1 -1"},
    {"PMIX_RANK=x", "", "none -1 -1"},
    {"PMIX_RANK=1073741824", "", "pmix 1073741824 -1"},
    {"PMIX_RANK=1073741825", "", "none -1 -1"},
    {"PMIX_RANK=99999999999999999999", "", "none -1 -1"},
    {"PMI_RANK=6 MPI_LOCALRANKID=y", "", "mpich 6 -1"},
    /* The setting is the last word on the rank, and on nothing else. */
    {"CUPOOL_RANK=77 " OMPI, "", "setting 77 4"},
    {"CUPOOL_RANK=0", "", "setting 0 -1"},
    {"CUPOOL_RANK=x " OMPI, "", "openmpi 3 4"},
    /* Several, and no parent process tells: in the order of precedence. */
    {SLURM " " MPICH " " PMIX " " OMPI " " TORCH, "", "torchrun 1 2"},
    {SLURM " " MPICH " " PMIX " " OMPI, "", "openmpi 3 4"},
    {SLURM " " MPICH " " PMIX, "", "pmix 5 -1"},
    {SLURM " " MPICH, "", "mpich 6 7"},
    /* The innermost process that is a launcher's tells. */
    {TORCH " " SLURM, "slurmstepd", "slurm 8 9"},
    {TORCH " " SLURM, "pt_elastic slurmstepd", "slurm 8 9"},
    {TORCH " " SLURM, "slurmstepd pt_elastic", "torchrun 1 2"},
    {TORCH " " SLURM, "slurmstepd bash python", "slurm 8 9"},
    {OMPI " " SLURM, "slurmstepd orted", "openmpi 3 4"},
    {OMPI " " SLURM, "orted slurmstepd sh", "slurm 8 9"},
    {MPICH " " SLURM, "slurmstepd hydra_pmi_proxy", "mpich 6 7"},
    {MPICH " " SLURM, "slurmstepd pmi_proxy", "slurm 8 9"}, /* a part of a name is none */
    {TORCH " " OMPI, "mpirun", "openmpi 3 4"},
    {TORCH " " OMPI, "slurmstepd", "torchrun 1 2"}, /* of a launcher whose variables are not there */
    {OMPI " " SLURM, "slurmstepd /torch.distributed.run", "slurm 8 9"},
    {TORCH " " SLURM, "torchrun slurmstepd a b c d e f g h i j k l m", "slurm 8 9"},
    {MPICH " " SLURM, "slurmstepd a b c d e f g h i j k l m n o", "slurm 8 9"},
    {MPICH " " SLURM, "slurmstepd a b c d e f g h i j k l m n o p", "mpich 6 7"}, /* not for ever upwards */
    {TORCH " " SLURM, "(odd) slurmstepd a)b", "slurm 8 9"},
    /* torchrun as a module. */
    {TORCH " " SLURM, "slurmstepd /-m,torch.distributed.run", "torchrun 1 2"},
    {TORCH " " SLURM, "slurmstepd /torch.distributed.launch", "torchrun 1 2"},
    {TORCH " " SLURM, "slurmstepd /python,/usr/bin/torchrun", "torchrun 1 2"},
    {TORCH " " SLURM, "slurmstepd /x/bin/deepspeed", "torchrun 1 2"},
    {TORCH " " SLURM, "slurmstepd /torch.distributed", "slurm 8 9"},
    {SLURM " " MPICH, "slurmstepd /bin/torchrun", "slurm 8 9"},
};

static void detected(char *text, size_t len)
{
    struct launch launch;

    launch_detect(&launch);
    snprintf(text, len, "%s %d %d", launch.from, launch.rank, launch.local_rank);
}

/* In the innermost process: 0 if it finds what is expected. */
static int leaf(const char *expected)
{
    char text[128];

    detected(text, sizeof(text));
    if (strcmp(text, expected) != 0)
        fprintf(stderr, "%s, not %s\n", text, expected);
    return strcmp(text, expected) != 0;
}

/* One process within the other, as rest names them, and one more, which looks; its exit status. */
static int nest(char *rest, const char *expected)
{
    char none[] = "", *args[16] = {"test_launch", "--detect", (char *)expected};
    char *word = rest ? strsep(&rest, " ") : none;
    int status = 1;
    pid_t pid;

    pid = fork();
    if (pid == 0) {
        if (!*word)
            _exit(leaf(expected));
        if (*word == '/') {
            /* The words of a command line are separated by NULs. */
            for (unsigned int i = 3; i < 15 && (args[i] = strsep(&word, ",")); i++)
                ;
            execv("/proc/self/exe", args);
        }
        prctl(PR_SET_NAME, word);
        _exit(nest(rest, expected));
    }
    waitpid(pid, &status, 0);
    return status != 0;
}

/* A process whose command line names torchrun, with a child that looks. */
static int detect(const char *expected)
{
    int status = 1;
    const pid_t pid = fork();

    prctl(PR_SET_NAME, "python3");
    if (pid == 0) {
        prctl(PR_SET_NAME, "worker");
        _exit(leaf(expected));
    }
    waitpid(pid, &status, 0);
    return status != 0;
}

ISOLATED_OWN(test_rank, rows)
{
    const struct row *row = *state;
    char parents[256];

    snprintf(parents, sizeof(parents), "%s", row->parents);
    assert_int_equal(nest(parents, row->expected), 0);
}

ISOLATED_CASE(test_names)
{
    struct launch launch;
    char host[256] = "", path[PATH_MAX] = "";

    memset(&launch, 0x7f, sizeof(launch));
    launch_detect(&launch);
    assert_int_equal(gethostname(host, sizeof(host)), 0);
    assert_string_equal(launch.host, host);
    assert_true(readlink("/proc/self/exe", path, sizeof(path) - 1) > 0);
    assert_string_equal(launch.exe, strrchr(path, '/') + 1);
}

/* Names that are long, odd or not to be had. */
ISOLATED_CASE(test_odd_names)
{
    static char longest[2001];
    struct launch launch;

    memset(longest, 'h', sizeof(longest) - 1);
    fake.host = longest;
    fake.exe = longest;
    launch_detect(&launch);
    assert_int_equal(strlen(launch.host), sizeof(launch.host) - 1);
    assert_string_equal(launch.exe, "exe");
    longest[1] = '/';
    fake.host = "a/b";
    launch_detect(&launch);
    assert_string_equal(launch.host, "a");
    assert_int_equal(strlen(launch.exe), 200);
    assert_int_equal(strspn(launch.exe, "h"), 200);
    fake.host = fake.exe = "";
    launch_detect(&launch);
    assert_string_equal(launch.host, "host");
    assert_string_equal(launch.exe, program_invocation_short_name); /* without /proc */
    longest[0] = 'h';
    longest[1000] = '/'; /* the path is read as far as there is room */
    fake.exe = longest;
    launch_detect(&launch);
    assert_int_equal(strlen(launch.exe), 1023 - 1001);
    fake.exe = "/bin/app";
    launch_detect(&launch);
    assert_string_equal(launch.exe, "app");
}

/* With several launchers it looks into files, and leaves none open. */
ISOLATED_CASE(test_files_closed, .environment = TORCH " " SLURM)
{
    struct launch launch;
    const int before = dup(STDIN_FILENO);
    int after;

    close(before);
    launch_detect(&launch);
    after = dup(STDIN_FILENO);
    assert_int_equal(after, before);
    close(after);
}

ISOLATED_CASE(test_expand)
{
    const struct launch launch = {.rank = 5, .local_rank = -1, .host = "node", .exe = "app"};
    char pid[32], text[64];
    const struct {
        const char *pattern, *text;
    } patterns[] = {
        {"", ""},
        {"plain", "plain"},
        {"%h.%e", "node.app"},
        {"r%r", "r5"},
        {"l%l", "lx"},
        {"%%", "%"},
        {"%%r", "%r"},
        {"%z", "%z"},
        {"100%", "100%"},
        {"%p", pid},
        {"%h%h%h", "nodenodenode"},
        {"%r%p", NULL},
    };

    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    for (size_t i = 0; i < COUNT(patterns); i++) {
        memset(text, 'x', sizeof(text));
        assert_int_equal(launch_expand(&launch, patterns[i].pattern, text, sizeof(text)), 0);
        if (patterns[i].text)
            assert_string_equal(text, patterns[i].text);
    }
    /* To the last byte, and one less. */
    assert_int_equal(launch_expand(&launch, "ab%h", text, 7), 0);
    assert_string_equal(text, "abnode");
    assert_int_equal(launch_expand(&launch, "ab%h", text, 6), -ENAMETOOLONG);
    assert_string_equal(text, "ab");
    assert_int_equal(launch_expand(&launch, "ab%hc", text, 6), -ENAMETOOLONG);
    assert_int_equal(launch_expand(&launch, "%h", text, 4), -ENAMETOOLONG);
    assert_string_equal(text, "");
    assert_int_equal(launch_expand(&launch, "", text, 0), -ENAMETOOLONG);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--detect") == 0)
        return detect(argv[2]);
    return isolated_run_all(argc > 1 ? argv[1] : NULL);
}
