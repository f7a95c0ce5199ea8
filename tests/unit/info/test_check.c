/* SPDX-License-Identifier: Apache-2.0 */
/* test_check.c - all that cupool-info --check prints of commands: programs and scripts that the test makes, a loader
 * whose answer the test gives, and each call of the system that fails. */
#include "golden.h"
#include "made_elf.h"
#include "system.h"

#include "info/check_command.h"
#include "info/elf_file.h"

#define LD "/lib64/ld-linux-own.so.2"
/* The loader and its folder are root's. */
#define ROOTS                                                                                                          \
    {LD, 0755, 0, 0, false, 0},                                                                                        \
    {                                                                                                                  \
        "/lib64", 0755, 0, 0, false, 0                                                                                 \
    }
#define CUPOOL "\t/v/libcupool.so (0x1)\n"
#define DRIVER "\t/v/libcuda.so.1 (0x2)\n"
#define CUDART "\tlibcudart.so.13 => /v/libcudart.so.13 (0x3)\n"
#define LIBC   "\tlibc.so.6 => /v/libc.so.6 (0x4)\n"

struct check {
    const char *name, *environment, *command; /* words between blanks; ~: a blank in a word */
    const char *answer;                       /* NULL or empty: the usual one */
    const char *slow, *links;
    struct system_file files[4];
    bool root;
};

static const struct made_elf program = {LD, "-cudaMalloc x", 0, 0, 0};

#define PRELOADED "LD_PRELOAD=/v/libcupool.so"

#define ROW(name_, environment_, command_, ...)                                                                        \
    {                                                                                                                  \
        .name = name_, .environment = environment_, .command = command_, .answer = "" __VA_ARGS__                      \
    }

static const struct check checks[] = {
    ROW("not found", PRELOADED, "app"),
    ROW("not found in a folder", PRELOADED, "./none"),
    ROW("a folder", PRELOADED, "./bin"),
    ROW("a file that cannot be executed", PRELOADED, "./plain"),
    ROW("an empty PATH", "PATH=", "nothing"),
    ROW("here, by an empty piece of PATH", PRELOADED " PATH=/none::/other", "app"),
    ROW("here, by an empty end of PATH", PRELOADED " PATH=/none:", "app"),
    ROW("in the second folder of PATH", PRELOADED " PATH=/none:bin", "nice ./app"),
    ROW("by no PATH at all", PRELOADED " PATH=!", "nothing"),
    ROW("no name", PRELOADED, "~"),
    ROW("usual", PRELOADED, "./app"),
    ROW("by PATH", PRELOADED, "nice ./app"),
    ROW("nothing is preloaded", NULL, "./app", LIBC DRIVER),
    ROW("the preload is not taken", PRELOADED, "./app", LIBC DRIVER CUDART),
    ROW("NCCL's library", "LD_PRELOAD=/v/libcupool-nccl.so", "./app", "\t/v/libcupool-nccl.so (0x1)\n" DRIVER),
    ROW("other preloads", "LD_PRELOAD=/a/libx.so:libcupool.so~liby.so", "./app"),
    ROW("no driver", PRELOADED, "./app", CUPOOL CUDART LIBC),
    ROW("no library at all", PRELOADED, "./app", "\n"),
    ROW("a library is not found", PRELOADED, "./app", CUPOOL "\tlibgone.so => not found\n" DRIVER),
    ROW("a library is not found, and nothing else", PRELOADED, "./app", "\tlibgone.so => not found\n"),
    ROW("it does not start", PRELOADED, "./app", "./app: error while loading shared libraries: libz.so: cannot open\n"),
    ROW("the loader errs", PRELOADED, "./app",
        CUPOOL DRIVER "ERROR: ld.so: object 'libx.so' cannot be preloaded\nsome Error: x\n"),
    ROW("the loader misses a version", PRELOADED, "./app", CUPOOL DRIVER "./app: version `GLIBC_9' not found\n"),
    ROW("the loader says something", PRELOADED, "./app", CUPOOL DRIVER "hello\n\n"),
    ROW("the loader misses the driver", PRELOADED, "./app",
        CUPOOL "ERROR: ld.so: object 'libcuda.so.1' cannot be preloaded\n"),
    ROW("a library without a folder", PRELOADED, "./app", CUPOOL "\tlinux-vdso.so.1 (0x7)\n" DRIVER),
    ROW("a path with words", PRELOADED, "./app", CUPOOL "\tlibw.so => /v/not found.so (0x7)\n" DRIVER),
    ROW("a cudart of a wheel", PRELOADED, "./app", CUPOOL DRIVER "\tx => /v/libcudart-9335.so.12 (0x1)\n"),
    ROW("no cudart by its name", PRELOADED, "./plain-app", CUPOOL DRIVER "\tx => /v/libcudartx.so (0x1)\n"),
    ROW("a static cudart", PRELOADED, "./static"),
    ROW("half a static cudart", PRELOADED, "./half"),
    ROW("a static cudart with the runtime alone", PRELOADED " CUPOOL_HOOK=runtime", "./static"),
    ROW("the driver API", PRELOADED, "./driver"),
    ROW("the driver API with the runtime alone", PRELOADED " CUPOOL_HOOK=runtime", "./driver"),
    ROW("the driver by its name", PRELOADED, "./named"),
    ROW("nothing of CUDA", PRELOADED " CUPOOL_HOOK=runtime", "./plain-app", CUPOOL DRIVER LIBC),
    ROW("a library with a static cudart", PRELOADED, "./plain-app", CUPOOL DRIVER "\tl => /v/libstatic.so (0x1)\n"),
    ROW("its own cudaMalloc", PRELOADED, "./own", CUPOOL DRIVER),
    ROW("its own cuMemAlloc", PRELOADED, "./plain-app", CUPOOL DRIVER "\tl => /v/libown.so (0x1)\n"),
    ROW("AddressSanitizer", PRELOADED, "./app", CUPOOL DRIVER "\tl => /v/libasan.so.8 (0x1)\n"),
    ROW("not pooled, by import", PRELOADED, "./async", CUPOOL DRIVER),
    ROW("not pooled, by name", PRELOADED, "./text", CUPOOL DRIVER),
    ROW("not pooled, all of it", PRELOADED, "./every", CUPOOL DRIVER),
    ROW("not pooled, a static cudart", PRELOADED, "./static-async", CUPOOL DRIVER),
    ROW("not pooled, in libraries", PRELOADED, "./plain-app",
        CUPOOL DRIVER "\tl => /v/libasync.so (0x1)\n\tl => /v/libcublas.so (0x1)\n\tl => /v/libnvasync.so (0x1)\n\tl "
                      "=> /v/libncclx.so (0x1)\n"
                      "\tl => /v/libncc.so (0x1)\n"),
    ROW("switched off", PRELOADED " CUPOOL_ENABLE=0", "./app"),
    ROW("nothing pooled", PRELOADED " CUPOOL_DEBUG=1", "./app"),
    ROW("guards", PRELOADED " CUPOOL_DEBUG=guard", "./app"),
    ROW("expandable segments",
        PRELOADED " PYTORCH_CUDA_ALLOC_CONF=a:1,expandable_segments:True PYTORCH_ALLOC_CONF=expandable_segments:False",
        "./app"),
    ROW("expandable segments, by the other name", PRELOADED " PYTORCH_ALLOC_CONF=expandable_segments:True", "./app"),
    ROW("a wrong setting", PRELOADED " CUPOOL_FREE=x", "./app"),
    ROW("statically linked", PRELOADED, "./no-loader"),
    ROW("another machine", PRELOADED, "./riscv"),
    ROW("32 bits", PRELOADED, "./bits32"),
    ROW("the other order", PRELOADED, "./swapped"),
    ROW("musl", PRELOADED, "./musl"),
    {"set-uid", PRELOADED, "./app", .files = {ROOTS, {"./app", 04755, 7, 1000, false, 0}}},
    {"set-uid, and its owner asks", PRELOADED, "./app", .files = {ROOTS, {"./app", 04755, 1000, 7, false, 0}}},
    {"set-gid", PRELOADED, "./app", .files = {ROOTS, {"./app", 02755, 1000, 7, false, 0}}},
    {"set-gid, and its group asks", PRELOADED, "./app", .files = {ROOTS, {"./app", 02755, 7, 1000, false, 0}}},
    {"set-gid, not executable for the group", PRELOADED, "./app",
     .files = {ROOTS, {"./app", 02745, 1000, 7, false, 0}}},
    {"neither, of another user", PRELOADED, "./app", .files = {ROOTS, {"./app", 0755, 7, 7, false, 0}}},
    {"set-uid where that counts for nothing", PRELOADED, "./app",
     .files = {ROOTS, {"./app", 06755, 7, 7, true, false}}},
    {"capabilities", PRELOADED, "./app", .files = {ROOTS, {"./app", 0755, 7, 7, false, 21}}},
    {"capabilities of a byte", PRELOADED, "./app", .files = {ROOTS, {"./app", 0755, 7, 7, false, 2}}},
    {"capabilities without a byte", PRELOADED, "./app", .files = {ROOTS, {"./app", 0755, 7, 7, false, 1}}},
    {"capabilities, and root asks", PRELOADED, "./app", .files = {ROOTS, {"./app", 0755, 7, 7, false, 21}},
     .root = true},
    {"a loader of another user", PRELOADED, "./app",
     .files = {{LD, 0755, 1, 0, false, 0}, {"/lib64", 0755, 0, 0, false, 0}}},
    {"a loader in a folder of another user", PRELOADED, "./app",
     .files = {{LD, 0755, 0, 0, false, 0}, {"/lib64", 0755, 1, 0, false, 0}}},
    {"a loader that its group may write", PRELOADED, "./app",
     .files = {{LD, 0775, 0, 0, false, 0}, {"/lib64", 0755, 0, 0, false, 0}}},
    {"a loader that all may write", PRELOADED, "./app",
     .files = {{LD, 0757, 0, 0, false, 0}, {"/lib64", 0755, 0, 0, false, 0}}},
    {"a loader in a folder that all may write", PRELOADED, "./app",
     .files = {{LD, 0755, 0, 0, false, 0}, {"/lib64", 0777, 0, 0, false, 0}}},
    {"a loader that cannot be executed", PRELOADED, "./app",
     .files = {{LD, 0644, 0, 0, false, 0}, {"/lib64", 0755, 0, 0, false, 0}}},
    {"a loader that is none", PRELOADED, "./app", .links = LD " /bin/sh",
     .files = {{"/bin/sh", 0755, 0, 0, false, 0}, {"/bin", 0755, 0, 0, false, 0}}},
    {"a loader by a link", PRELOADED, "./app", .links = LD " /usr/ld-2.31.so",
     .files = {{"/usr/ld-2.31.so", 0755, 0, 0, false, 0}, {"/usr", 0755, 0, 0, false, 0}}},
    {"a loader in the root folder", PRELOADED, "./app", .links = LD " /ld.so.1",
     .files = {{"/ld.so.1", 0755, 0, 0, false, 0}, {"/", 0755, 0, 0, false, 0}}},
    {"a loader of PowerPC", PRELOADED, "./app", .links = LD " /usr/ld64.so",
     .files = {{"/usr/ld64.so", 0755, 0, 0, false, 0}, {"/usr", 0755, 0, 0, false, 0}}},
    {"a loader that does not answer", PRELOADED, "./app", .slow = "slow"},
    {"a loader that cannot be run", PRELOADED, "./app", .slow = "none"},
    {"a loader that is forgotten", PRELOADED, "./app", .slow = "reaped"},
    {"signals meanwhile", PRELOADED, "./app", .slow = "signal"},
    ROW("a script", PRELOADED, "./script a b"),
    ROW("a script with an option", PRELOADED, "./script-option a"),
    ROW("a script with two options", PRELOADED, "./script-options"),
    ROW("a script with blanks", PRELOADED, "./script-blanks"),
    ROW("a script without a line", PRELOADED, "./script-bare"),
    ROW("a script by PATH", PRELOADED, "ranks a"),
    ROW("a script that begins with a comment", PRELOADED, "./script-comment"),
    ROW("a script whose interpreter is not there", PRELOADED, "./script-lost"),
    ROW("a script that cannot be read", PRELOADED, "./gone"),
    ROW("an empty script", PRELOADED, "./empty"),
    ROW("bytes", PRELOADED, "./bytes"),
    ROW("a script of a script", PRELOADED, "./script-script"),
    ROW("a circle", PRELOADED, "./circle"),
    ROW("env", PRELOADED, "env A=B ./app"),
    ROW("env alone", PRELOADED, "env"),
    ROW("env -i", PRELOADED, "env -i ./app"),
    ROW("env -", PRELOADED, "env - ./app"),
    ROW("env in words", PRELOADED, "env --ignore-environment ./app -i"),
    ROW("env with another preload", PRELOADED, "env LD_PRELOAD=x.so ./app"),
    ROW("env with this preload", PRELOADED, "env LD_PRELOAD=libcupool.so ./app"),
    ROW("env without the preload", PRELOADED, "env -u LD_PRELOAD ./app"),
    ROW("env without the preload, in one word", PRELOADED, "env -uLD_PRELOAD ./app"),
    ROW("env without the preload, in words", PRELOADED, "env --unset=LD_PRELOAD ./app"),
    ROW("env without another variable", PRELOADED, "env -u X ./app"),
    ROW("env -u at the end", PRELOADED, "env -u"),
    ROW("env -i and no program", PRELOADED, "env -i none"),
    ROW("env -S", PRELOADED, "env -S~./app~x y"),
    ROW("env -S and a word", PRELOADED, "env -S ./app~x y"),
    ROW("env -S and none", PRELOADED, "env -S"),
    ROW("env -S with options", PRELOADED, "env -S~-i~./app"),
    ROW("env --split-string", PRELOADED, "env --split-string ./app~x"),
    ROW("env --split-string=", PRELOADED, "env --split-string=./app~x z"),
    ROW("env --split-string= and none", PRELOADED, "env --split-string= ./app"),
    ROW("env -S in a script", PRELOADED, "./script-env z"),
    ROW("timeout", PRELOADED, "timeout 10 ./app"),
    ROW("timeout and no program", PRELOADED, "timeout 10"),
    ROW("nice with an option", PRELOADED, "nice -n 5 ./app -n"),
    ROW("mpirun", PRELOADED, "bin/mpirun -n 8 -x A=B ./app -n ./script"),
    ROW("mpirun and no program", PRELOADED, "mpirun -n 8 none"),
    ROW("mpirun cupool-run", PRELOADED, "mpirun -n 8 /opt/cupool-run --stats -- ./app x"),
    ROW("mpirun cupool-run and no more", PRELOADED, "mpirun -n 8 cupool-run --stats"),
    ROW("mpirun cupool-run and a program that is not there", PRELOADED, "mpirun cupool-run none"),
    ROW("srun", PRELOADED, "srun ./script"),
    ROW("docker", PRELOADED, "docker run ./app"),
    ROW("docker cupool-run", PRELOADED, "docker run cupool-run -- ./app"),
    ROW("sudo", PRELOADED, "sudo ./app"),
    ROW("sudo cupool-run", PRELOADED, "sudo cupool-run -- ./app"),
    ROW("nice mpirun", PRELOADED, "nice mpirun ./app"),
    ROW("ssh, where nothing is preloaded", NULL, "ssh ./app"),
};

static void system_for(const struct check *check)
{
    static const struct system_file usual[] = {ROOTS, {NULL, 0, 0, 0, false, 0}};
    system_now = (struct system){.files = check->files[0].path ? check->files : usual,
                                 .answer = check->answer && *check->answer ? check->answer : CUPOOL CUDART LIBC DRIVER,
                                 .slow = check->slow,
                                 .links = check->links,
                                 .uid = check->root ? 0 : 1000,
                                 .gid = check->root ? 0 : 1000,
                                 .shows = check == &checks[8] || check->links};
}

static int check(const void *arg)
{
    const struct check *check = arg;
    char copy[256], *words[32], *save = NULL;
    int count = 0;

    system_for(check);
    snprintf(copy, sizeof(copy), "%s", check->command);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        words[count++] = word;
        if (strcmp(word, "~") == 0)
            *word = '\0';
        for (; *word; word++)
            *word = *word == '~' ? ' ' : *word;
    }
    return check_command(count, words);
}

/* --- bounds --- */

/* A command of so many words, which ends with its number of words as the last program's. */
static int many(const void *arg)
{
    static char word[] = "w", *words[300];
    const int *const count = arg;

    system_for(&checks[9]);
    for (int i = 0; i < *count; i++)
        words[i] = word;
    words[0] = "./script-mpirun"; /* which prints all words */
    return check_command(*count, words);
}

/* A chain of so many scripts. */
static int chain(const void *arg)
{
    const int *const count = arg;
    char name[16], line[32], *words[] = {name};

    system_for(&checks[9]);
    for (int i = 1; i < *count; i++) {
        snprintf(name, sizeof(name), "c%d", i);
        snprintf(line, sizeof(line), i + 1 < *count ? "#!./c%d\n" : "#!./plain-app\n", i + 1);
        made_text(name, line, 0755);
    }
    strcpy(name, "./c1");
    return check_command(1, words);
}

/* A script whose interpreter has so long a path. */
static int long_words(const void *arg)
{
    const int *const count = arg;
    static char line[2048], *words[] = {"./script-long"};

    system_for(&checks[9]);
    snprintf(line, sizeof(line), "#!./");
    memset(line + 4, 'x', sizeof(line) - 5);
    line[*count] = '\n';
    made_text("script-long", line, 0755);
    return check_command(1, words);
}

/* env -S has so many bytes, which have to be kept. */
static int kept(const void *arg)
{
    const int *const count = arg;
    static char text[1 << 15], *words[] = {"env", "-Sbin/env", text, NULL};

    system_for(&checks[9]);
    snprintf(text, sizeof(text), "-S./app ");
    memset(text + 8, 'x', (size_t)*count - 8);
    return check_command(3, words);
}

/* A launcher whose name is so long. */
static int long_name(const void *arg)
{
    const int *const count = arg;
    static char name[80], *words[] = {name, "./app"};

    system_for(&checks[9]);
    snprintf(name, sizeof(name), "bin/");
    memset(name + 4, 'n', (size_t)*count - 4);
    made_elf(name, &program);
    return check_command(2, words);
}

/* So many libraries before those that count. */
static int libraries(const void *arg)
{
    static char *words[] = {"./app", NULL};

    system_for(&checks[9]);
    system_now.fillers = *(const int *)arg;
    return check_command(1, words);
}

/* So many bytes in all. */
static int bytes_of_answer(const void *arg)
{
    static char *words[] = {"./app", NULL};

    system_for(&checks[9]);
    system_now.bytes = *(const int *)arg - (int)strlen(system_now.answer);
    return check_command(1, words);
}

static void bounds(const char *what, int (*run)(const void *), const int *counts)
{
    char name[64];

    for (; *counts; counts++) {
        const struct golden golden = {name, PRELOADED, run, counts};

        snprintf(name, sizeof(name), "%s, %d", what, *counts);
        golden_run(&golden);
    }
}

static void files_make(void)
{
    static const struct {
        const char *path;
        struct made_elf made;
    } elves[] = {
        {"app", {LD, "-cudaMalloc x", 0, 0, 0}},
        {"plain-app", {LD, "x", 0, 0, 0}},
        {"static", {LD, "libcuda.so.1 cudaErrorMissingConfiguration", 0, 0, 0}},
        {"half", {LD, "cudaErrorMissingConfiguration", 0, 0, 0}},
        {"static-async", {LD, "-cuMemCreate libcuda.so.1 cudaErrorMissingConfiguration cudaMallocAsync", 0, 0, 0}},
        {"driver", {LD, "-cuMemAlloc_v2", 0, 0, 0}},
        {"named", {LD, "libcuda.so.1", 0, 0, 0}},
        {"own", {LD, "+cudaMalloc", 0, 0, 0}},
        {"async", {LD, "-cudaMallocAsync -cuMemAllocManaged", 0, 0, 0}},
        {"text", {LD, "cudaMallocManaged", 0, 0, 0}},
        {"every",
         {LD,
          "cudaMallocAsync cudaMallocAsync_ptsz cudaMallocFromPoolAsync cudaMallocManaged cuMemCreate cuMemAllocAsync "
          "cuMemAllocManaged",
          0, 0, 0}},
        {"no-loader", {NULL, "x", 0, 0, 0}},
        {"riscv", {LD, "x", EM_RISCV, 0, 0}},
        {"bits32", {LD, "x", 0, ELFCLASS32, 0}},
        {"swapped", {LD, "x", 0, 0, __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2MSB : ELFDATA2LSB}},
        {"musl", {"/lib/ld-musl-x86_64.so.1", "x", 0, 0, 0}},
        {"v/libcudart.so.13", {NULL, "+cudaMalloc -cuMemCreate", 0, 0, 0}},
        {"v/libcudart-9335.so.12", {NULL, "+cudaMalloc", 0, 0, 0}},
        {"v/libcudartx.so", {NULL, "x", 0, 0, 0}},
        {"v/libc.so.6", {NULL, "x", 0, 0, 0}},
        {"v/libcuda.so.1", {NULL, "+cuMemAlloc_v2 libcuda.so.1", 0, 0, 0}},
        {"v/libcupool.so", {NULL, "+cuMemAlloc_v2 libcuda.so.1", 0, 0, 0}},
        {"v/libcupool-nccl.so", {NULL, "+cuMemAlloc_v2 libcuda.so.1", 0, 0, 0}},
        {"v/libstatic.so", {NULL, "libcuda.so.1 cudaErrorMissingConfiguration", 0, 0, 0}},
        {"v/libown.so", {NULL, "+cuMemAlloc_v2", 0, 0, 0}},
        {"v/libasan.so.8", {NULL, "x", 0, 0, 0}},
        {"v/libasync.so", {NULL, "-cuMemCreate", 0, 0, 0}},
        {"v/libcublas.so", {NULL, "-cuMemCreate", 0, 0, 0}},
        {"v/libnvasync.so", {NULL, "-cuMemCreate", 0, 0, 0}},
        {"v/libncclx.so", {NULL, "-cuMemCreate", 0, 0, 0}},
        {"v/libncc.so", {NULL, "-cuMemCreate", 0, 0, 0}},
    };
    static const char *const launchers[] = {"env", "nice", "timeout", "mpirun", "srun", "docker", "sudo", "ssh"};
    static const char *const scripts[][2] = {
        {"script", "#!./app\nx\n"},
        {"script-option", "#!./app -x\n"},
        {"script-options", "#! ./app\t -x  y\nz"},
        {"script-blanks", "#! \t./app \t \n"},
        {"script-comment", "#echo\n"},
        {"bin/ranks", "#!bin/mpirun ./app\n"},
        {"script-bare", "echo\n"},
        {"script-lost", "#!./none\n"},
        {"empty", ""},
        {"script-script", "#!./script\n"},
        {"circle", "#!./circle\n"},
        {"script-env", "#!bin/env -S ./app x\n"},
        {"script-mpirun", "#!bin/mpirun ./app\n"},
    };
    char path[64];

    mkdir("bin", 0755);
    mkdir("v", 0755);
    for (size_t i = 0; i < sizeof(elves) / sizeof(elves[0]); i++)
        made_elf(elves[i].path, &elves[i].made);
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        snprintf(path, sizeof(path), "bin/%s", launchers[i]);
        made_elf(path, &program);
    }
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++)
        made_text(scripts[i][0], scripts[i][1], 0755);
    made_text("plain", "x", 0644);
    made_file("bytes", "\1\2\0\3\n", 5, 0755);
}

const char golden_name[] = "info/check";

void golden_cases(void)
{
    static const int words[] = {253, 254, 255, 256, 257, 258, 0}, hops[] = {11, 12, 13, 14, 0},
                     lengths[] = {1020, 1021, 1022, 1023, 1024, 0};
    static const int bytes[] = {16370, 16375, 16376, 16377, 16378, 16379, 0}, names[] = {64, 65, 66, 67, 68, 0};
    static const int fillers[] = {1020, 1021, 1022, 1023, 1024, 0}, answers[] = {1048574, 1048575, 1048576, 1048577, 0};
    struct golden golden;

    golden_after = system_left;
    files_make();
    golden_replace(elf_machine_name(made_machine()), "MACHINE");
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        golden = (struct golden){checks[i].name, checks[i].environment, check, &checks[i]};
        golden_run(&golden);
    }
    bounds("words", many, words);
    bounds("scripts", chain, hops);
    bounds("a long line", long_words, lengths);
    bounds("bytes of words", kept, bytes);
    bounds("libraries and four", libraries, fillers);
    bounds("bytes of the answer", bytes_of_answer, answers);
    bounds("a long name", long_name, names);
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        golden = (struct golden){checks[i].name, checks[i].environment, check, &checks[i]};
        if (strcmp(golden.name, "by PATH") == 0 || strcmp(golden.name, "env -S in a script") == 0)
            golden_sweep(&golden);
    }
}
