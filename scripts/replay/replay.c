/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c - cupool-replay: what would the pool, with these settings, have made of these requests?
 *
 * Here: requests from standard input (or made up) run through the pool library, or a model of another allocator,
 * on devices that do not exist; one JSON object on standard output says how much memory that takes. Not here: a
 * benchmark of speed, or a reader of traces; `cupool-trace replay` reads these and feeds this program.
 *
 * Locking: none, there is one thread.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "ids.h"
#include "random.h"
#include "usage.h"

#define NS         1000000000ull
#define CAPACITY   ((size_t)80 << 30)
#define NUMBERS    4
#define TICKS_MANY 64 /* after so many in a row without a request nothing is left to give back */

struct count {
    uint64_t requests, frees, refused;
    size_t live, peak_live; /* bytes that were asked for, of requests that were served */
};

static struct {
    struct settings settings;
    struct mix mix;
    bool print;
    struct device *devices[DEVICES_MAX];
    struct count counts[DEVICES_MAX];
    struct ids ids;
    uint64_t line, unknown; /* unknown: frees of what was not live */
    uint64_t tick, tick_ns; /* when the next one is due; 0: not started yet */
} replay = {
    .settings = {.capacity = CAPACITY, .break_max = SIZE_MAX, .decay = 10, .slack = SLACK_OFF},
    .mix = {.seed = 1, .size_min = 256, .size_max = (size_t)64 << 20},
};

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *format, ...)
{
    va_list args;

    fprintf(stderr, "cupool-replay: ");
    if (replay.line)
        fprintf(stderr, "line %" PRIu64 ": ", replay.line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

/* --- requests --- */

static struct device *device_get(uint64_t number)
{
    if (number >= DEVICES_MAX)
        die("there are no more than %d devices", DEVICES_MAX);
    if (!replay.devices[number])
        replay.devices[number] = device_new((unsigned int)number, &replay.settings);
    if (!replay.devices[number])
        die("out of memory");
    return replay.devices[number];
}

static bool request_free(uint64_t id)
{
    struct request *request = ids_find(&replay.ids, id);

    if (!request)
        return false;
    if (request->place != PLACE_NOWHERE) {
        device_free(replay.devices[request->device], request->place, request->block);
        replay.counts[request->device].frees++;
        replay.counts[request->device].live -= request->size;
    }
    ids_remove(&replay.ids, request);
    return true;
}

static bool request_alloc(uint64_t id, size_t size, uint64_t number)
{
    struct device *device = device_get(number);
    struct count *count = &replay.counts[number];
    struct request request = {.id = id, .size = size, .device = (unsigned char)number};

    if (!size)
        die("a request for 0 bytes");
    if (request_free(id)) /* its free was not recorded */
        replay.unknown++;
    count->requests++;
    request.place = (unsigned char)device_alloc(device, size, &request.block);
    if (request.place == PLACE_NOWHERE) {
        count->refused++;
    } else {
        count->live += size;
        if (count->live > count->peak_live)
            count->peak_live = count->live;
    }
    if (ids_add(&replay.ids, &request))
        die("out of memory");
    return request.place != PLACE_NOWHERE;
}

static void reset(uint64_t number)
{
    struct device *device = device_get(number);

    for (size_t i = 0; i < replay.ids.size; i++) {
        struct request *request = &replay.ids.slots[i];

        if (request->used && request->device == number)
            request->place = PLACE_NOWHERE; /* a late free of it means nothing */
    }
    replay.counts[number].live = 0;
    device_reset(device);
}

static void tick_all(void)
{
    for (unsigned int i = 0; i < DEVICES_MAX; i++)
        if (replay.devices[i])
            device_tick(replay.devices[i]);
}

/* The clock is at ns now. */
static void time_pass(uint64_t ns)
{
    for (unsigned int n = 0; replay.tick && replay.tick <= ns && n < TICKS_MANY; n++) {
        tick_all();
        replay.tick += replay.tick_ns;
    }
    if (replay.tick && replay.tick <= ns)
        replay.tick += (ns - replay.tick) / replay.tick_ns * replay.tick_ns + replay.tick_ns;
}

/* --- input --- */

/* The number at *at, which goes on to what follows it. */
static bool number_read(const char **at, uint64_t *ret_number)
{
    const char *text = *at;
    uint64_t number = 0;
    const bool hex = text[0] == '0' && (text[1] | 32) == 'x';
    const char *const start = text += hex ? 2 : 0;

    for (;; text++) {
        const unsigned int c = (unsigned char)*text | 32u;

        if (*text >= '0' && *text <= '9')
            number = number * (hex ? 16 : 10) + (uint64_t)(*text - '0');
        else if (hex && c >= 'a' && c <= 'f')
            number = number * 16 + c - 'a' + 10;
        else
            break;
    }
    *ret_number = number;
    *at = text;
    return text > start && text - start <= (hex ? 16 : 19) && (!*text || *text == ' ' || *text == '\n');
}

static void line_apply(const char *line)
{
    static const struct {
        char what;
        unsigned int least, most; /* numbers */
        int time;                 /* which of them is the time */
    } forms[] = {{'a', 2, 4, 3}, {'f', 1, 2, 1}, {'r', 1, 2, 1}, {'t', 1, 1, 0}};
    uint64_t n[NUMBERS] = {0};
    unsigned int count = 0, form = 0;
    const char *at = line + 1;

    if (line[0] == '#' || line[0] == '\n' || !line[0])
        return;
    while (form < sizeof(forms) / sizeof(forms[0]) && forms[form].what != line[0])
        form++;
    if (form == sizeof(forms) / sizeof(forms[0]))
        die("it begins with none of a, f, r, t, #");
    while (*at == ' ') {
        at++;
        if (count == forms[form].most || !number_read(&at, &n[count++]))
            die("not a number, or one too many");
    }
    if (count < forms[form].least || (*at && *at != '\n'))
        die("%c has %u to %u numbers after it", line[0], forms[form].least, forms[form].most);
    if ((int)count > forms[form].time) {
        time_pass(n[forms[form].time]);
        /* The library's clock starts with the first segment. */
        if (!replay.tick && replay.tick_ns && line[0] == 'a')
            replay.tick = n[forms[form].time] + replay.tick_ns;
    }
    if (line[0] == 'a')
        request_alloc(n[0], n[1], n[2]);
    else if (line[0] == 'f')
        replay.unknown += !request_free(n[0]);
    else if (line[0] == 'r')
        reset(n[0]);
}

static void input_run(void)
{
    size_t size = 0;
    char *line = NULL;

    setvbuf(stdin, NULL, _IOFBF, 1 << 20);
    while (getline(&line, &size, stdin) > 0) {
        replay.line++;
        line_apply(line);
    }
    free(line);
    replay.line = 0;
    if (ferror(stdin))
        die("cannot read: %s", strerror(errno));
}

/* --- made up requests --- */

static int mix_alloc(void *arg, uint64_t id, size_t size)
{
    (void)arg;
    return request_alloc(id, size, 0);
}

static int mix_free(void *arg, uint64_t id)
{
    (void)arg;
    return request_free(id) ? 0 : -EINVAL;
}

static int print_alloc(void *arg, uint64_t id, size_t size)
{
    (void)arg;
    return printf("a %" PRIu64 " %zu\n", id, size) < 0 ? -EIO : 1;
}

static int print_free(void *arg, uint64_t id)
{
    (void)arg;
    return printf("f %" PRIu64 "\n", id) < 0 ? -EIO : 0;
}

/* --- output --- */

static bool device_print(unsigned int number)
{
    struct device *device = replay.devices[number];
    const struct count *count = &replay.counts[number];
    const struct device_result r = device_result_get(device);

    printf("{\"device\":%u,\"requests\":%" PRIu64 ",\"frees\":%" PRIu64 ",\"refused\":%" PRIu64
           ",\"peak_live_requested\":%zu,\"peak_live\":%" PRIu64 ",\"peak_held\":%" PRIu64 ",\"peak_used\":%" PRIu64
           ",\"waste\":%.4f,",
           number, count->requests, count->frees, count->refused, count->peak_live, r.peak_live, r.peak_held,
           r.peak_used, count->peak_live ? (double)r.peak_used / (double)count->peak_live : 0);
    printf("\"hits\":%" PRIu64 ",\"misses\":%" PRIu64 ",\"bypassed\":%" PRIu64 ",\"oom\":%" PRIu64 ",\"bound\":%" PRIu64
           ",\"segments_alloc\":%" PRIu64 ",\"segments_free\":%" PRIu64 ",\"live_requested\":%zu,\"live\":%" PRIu64
           ",\"held\":%" PRIu64 "}",
           r.hits, r.misses, r.bypassed, r.oom, r.bound, r.segments_alloc, r.segments_free, count->live, r.live,
           r.held);
    return device_check(device);
}

/* All of standard output has arrived; otherwise a line says so. A full disk shows only here, since stdio keeps text. */
static bool output_arrived(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    fprintf(stderr, "cupool-replay: standard output: not all of it could be written\n");
    return false;
}

static bool result_print(void)
{
    static const char *const names[] = {"cupool", "pytorch", "driver"};
    const struct settings *s = &replay.settings;
    const char *separator = "";
    bool fine = true;

    printf("{\"model\":\"%s\",\"capacity\":%zu,\"limit\":%zu,\"decay\":", names[s->allocator], s->capacity, s->limit);
    if (s->decay == DECAY_OFF)
        printf("\"off\"");
    else
        printf("%" PRIu64, s->decay);
    printf(",\"unknown\":%" PRIu64 ",\"devices\":[", replay.unknown);
    for (unsigned int i = 0; i < DEVICES_MAX; i++) {
        if (!replay.devices[i])
            continue;
        printf("%s", separator);
        fine = device_print(i) && fine;
        separator = ",";
    }
    printf("]}\n");
    return fine;
}

/* --- options --- */

__attribute__((noreturn)) static void usage_die(const char *option, const char *value)
{
    if (*option)
        fprintf(stderr, "cupool-replay: --%s: not understood: %s\n", option, value);
    else
        fprintf(stderr,
                "cupool-replay: not understood: %s; it reads standard input, cupool-trace replay reads traces\n",
                value);
    exit(2);
}

static uint64_t size_option(const char *option, const char *text)
{
    static const char units[] = "KMGT";
    const char *unit;
    char *end = NULL;
    const double number = strtod(text, &end);
    uint64_t scale = 1;

    if (*text < '0' || *text > '9' || number > (double)(1ull << 47))
        usage_die(option, text);
    unit = *end ? strchr(units, *end & ~32) : NULL;
    if (unit) {
        scale = 1ull << (10 * (unit - units + 1));
        end++;
    }
    if (*end || number * (double)scale > (double)(1ull << 47))
        usage_die(option, text);
    return (uint64_t)(number * (double)scale);
}

static uint64_t count_option(const char *option, const char *text)
{
    const char *end = text;
    uint64_t number;

    if (!number_read(&end, &number) || *end)
        usage_die(option, text);
    return number;
}

static enum allocator model_option(const char *text)
{
    if (strcmp(text, "cupool") == 0)
        return ALLOCATOR_CUPOOL;
    if (strcmp(text, "pytorch") == 0)
        return ALLOCATOR_PYTORCH;
    if (strcmp(text, "driver") != 0)
        usage_die("model", text);
    return ALLOCATOR_DRIVER;
}

static void options_read(int argc, char **argv)
{
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},
        {"capacity", required_argument, NULL, 'c'},
        {"limit", required_argument, NULL, 'l'},
        {"decay", required_argument, NULL, 'd'},
        {"slack", required_argument, NULL, 'k'},
        {"random", required_argument, NULL, 'r'},
        {"break-max", required_argument, NULL, 'b'},
        {"min", required_argument, NULL, 'n'},
        {"max", required_argument, NULL, 'x'},
        {"live", required_argument, NULL, 'v'},
        {"seed", required_argument, NULL, 's'},
        {"uniform", no_argument, NULL, 'u'},
        {"print", no_argument, NULL, 'p'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {"lag", required_argument, NULL, 'g'},
        {NULL, 0, NULL, 0},
    };
    struct settings *s = &replay.settings;
    struct mix *mix = &replay.mix;
    int c, i = 0;

    while ((c = getopt_long(argc, argv, "", options, &i)) != -1) {
        const char *name = options[i].name;

        switch (c) {
        case 'm':
            s->allocator = model_option(optarg);
            break;
        case 'c':
            s->capacity = size_option(name, optarg);
            if (s->capacity < (size_t)2 << 20 || s->capacity > device_capacity_max())
                usage_die(name, optarg);
            break;
        case 'l':
            s->limit = size_option(name, optarg);
            break;
        case 'd':
            s->decay = strcmp(optarg, "off") == 0 ? DECAY_OFF : count_option(name, optarg);
            break;
        case 'k':
            s->slack = count_option(name, optarg);
            if (s->slack > SLACK_MAX)
                usage_die(name, optarg);
            break;
        case 'b':
            s->break_max = size_option(name, optarg);
            break;
        case 'g':
            s->lag = count_option(name, optarg);
            break;
        case 'r':
            mix->requests = count_option(name, optarg);
            if (!mix->requests || mix->requests >> 32)
                usage_die(name, optarg);
            break;
        case 'n':
            mix->size_min = size_option(name, optarg);
            break;
        case 'x':
            mix->size_max = size_option(name, optarg);
            break;
        case 'v':
            mix->live_max = size_option(name, optarg);
            break;
        case 's':
            mix->seed = count_option(name, optarg);
            break;
        case 'u':
            mix->uniform = true;
            break;
        case 'p':
            replay.print = true;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(output_arrived() ? 0 : 1);
        case 'V':
            puts("cupool-replay " CUPOOL_VERSION);
            exit(output_arrived() ? 0 : 1);
        default:
            exit(2);
        }
    }
    if (optind < argc)
        usage_die("", argv[optind]);
    if (replay.print && !mix->requests)
        usage_die("print", "only with --random");
    if (!mix->size_min || mix->size_min > mix->size_max)
        usage_die("min", "more than --max, or 0");
    if (!mix->live_max)
        mix->live_max = s->capacity / 4 * 3;
    if (s->decay == DECAY_OFF || s->decay > UINT32_MAX)
        s->decay = DECAY_OFF;
    else
        replay.tick_ns = s->decay ? s->decay * NS / DECAY_TICKS : NS / 10;
}

int main(int argc, char **argv)
{
    static const struct mix_ops run = {.alloc = mix_alloc, .free = mix_free};
    static const struct mix_ops print = {.alloc = print_alloc, .free = print_free};
    bool fine = true;
    int rc;

    options_read(argc, argv);
    if (replay.mix.requests) {
        rc = mix_run(&replay.mix, replay.print ? &print : &run, NULL);
        if (rc)
            die("%s", strerror(-rc));
    } else {
        input_run();
    }
    if (!replay.print)
        fine = result_print();
    fine = output_arrived() && fine;
    for (unsigned int i = 0; i < DEVICES_MAX; i++)
        if (replay.devices[i])
            device_delete(replay.devices[i]);
    ids_fini(&replay.ids);
    return fine ? 0 : 1;
}
