/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_settings.c - any bytes as values of settings, as an environment, and as the pattern of a file name: nothing is
 * read or written out of bounds, nothing is accepted that is not documented, and what is accepted can be written down
 * and read again.
 *
 * How to run it: fuzz.h. An input is strings, each up to a zero: the value of one setting, a pattern, a host, the name
 * of an executable, then words of an environment. It has conf.c inside, to load the settings more than once, and
 * conf_report.c.
 */
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/conf.c"        /* NOLINT(bugprone-suspicious-include): see above */
#include "base/conf_report.c" /* NOLINT(bugprone-suspicious-include): see above */
#include "base/launch.h"
#include "fuzz.h"

#define WORDS   64
#define VARS    16
#define NAME_AT 4 /* the first word of the environment */

static char fault[512];

#define FAULT(...) (fault[0] ? 0 : snprintf(fault, sizeof(fault), __VA_ARGS__))

/* --- one value --- */

/* Digits, a fraction, a unit, a B, each but the first optional: what docs/settings.md promises. ret_bytes: its meaning,
 * of many digits not to the last bit. */
static bool is_size(const char *text, long double *ret_bytes)
{
    const char *units = "kmgt", *at = text, *unit;
    long double bytes = 0, weight = 1;

    if (*at < '0' || *at > '9')
        return false;
    for (; *at >= '0' && *at <= '9'; at++)
        bytes = bytes * 10 + (*at - '0');
    if (*at == '.') {
        if (at[1] < '0' || at[1] > '9')
            return false;
        for (at++; *at >= '0' && *at <= '9'; at++)
            bytes += (*at - '0') * (weight /= 10);
    }
    unit = *at ? strchr(units, *at | 32) : NULL;
    if (unit) {
        for (const char *u = units; u <= unit; u++)
            bytes *= 1024;
        at++;
        if ((*at | 32) == 'i')
            at++;
    }
    if ((*at | 32) == 'b')
        at++;
    *ret_bytes = bytes;
    return !*at;
}

static bool is_one_of(const char *choices, const char *text, unsigned int *ret_index)
{
    char list[256], *rest = list, *choice;

    snprintf(list, sizeof(list), "%s", choices);
    for (*ret_index = 0; (choice = strsep(&rest, "|")) != NULL; ++*ret_index)
        if (*choice && strcasecmp(choice, text) == 0)
            return true;
    return false;
}

static void check_size(const struct conf_row *row, const char *text, bool accepted, uint64_t number)
{
    long double bytes = 0;
    const bool valid = is_size(text, &bytes);
    uint64_t again = 0;
    char canonical[32];

    if (valid && !(bytes > 0 && bytes < 1.001) && bytes < (long double)(1ull << 54) && !accepted)
        FAULT("the size %.99s is refused", text);
    if (!accepted)
        return;
    if (!valid)
        FAULT("%.99s is accepted as a size", text);
    else if (number > INT64_MAX || (long double)number > bytes + 0.001 || (long double)number < bytes - 1.001)
        FAULT("the size %.99s is %.1Lf, and is read as %llu", text, bytes, (unsigned long long)number);
    /* The largest that can be written with a unit is more than without. */
    snprintf(canonical, sizeof(canonical), "%llu%s", (unsigned long long)(number >= 1ull << 55 ? number >> 40 : number),
             number >= 1ull << 55 ? "T" : "");
    if (conf_parse(row, canonical, &again) || again != (number >= 1ull << 55 ? number >> 40 << 40 : number))
        FAULT("%.99s is %s, which is read as %llu", text, canonical, (unsigned long long)again);
}

/* Every accepted list of CUPOOL_STATS can be told from its number, but for spelling. */
static bool is_stats(const char *text, uint64_t number)
{
    static const int signals[] = {1, 10, 12, 23, 28, 29, 30};
    const int sig = (int)(number >> 8 & 0xff);
    unsigned int words = 0, known = sig == 0 || (sig >= 34 && sig <= 64);
    const bool off = strcasecmp(text, "off") == 0;

    for (const char *at = text; *at; at++)
        words += *at == ',';
    for (unsigned int i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        known |= sig == signals[i];
    if (off)
        return number == 0;
    return known && !(number & 0xffff00fe) &&
           words + 1 == (unsigned int)((number & 1) + (sig != 0) + (number >> 32 != 0)) &&
           (number & 1) == (strcasestr(text, "exit") != NULL) && (sig != 0) == (strcasestr(text, "signal:") != NULL) &&
           (number >> 32 != 0) == (strcasestr(text, "timer:") != NULL);
}

static void check_value(const struct conf_row *row, const char *text)
{
    uint64_t number = 0x5555555555555555;
    const int rc = conf_parse(row, text, &number);
    const size_t len = strlen(text);
    unsigned int index = 0;
    bool valid = false;

    if (rc != 0 && rc != -EINVAL)
        FAULT("%s: conf_parse returns %d", row->name, rc);
    switch (row->type) {
    case CONF_BOOL:
        valid = is_one_of("0|off|no|false|1|on|yes|true", text, &index);
        if (valid && number != (index >= 4))
            FAULT("%s is read as %llu", text, (unsigned long long)number);
        break;
    case CONF_CHOICE:
        valid = is_one_of(row->choices, text, &index);
        if (valid && number != index)
            FAULT("%s=%s is choice %llu, not %u", row->name, text, (unsigned long long)number, index);
        break;
    case CONF_SIZE:
        check_size(row, text, rc == 0, number);
        return;
    case CONF_NUMBER:
        valid = len <= 9 && strspn(text, "0123456789") == len;
        if (valid && number != (len ? strtoull(text, NULL, 10) : UINT64_MAX))
            FAULT("the number %s is read as %llu", text, (unsigned long long)number);
        break;
    case CONF_SECONDS:
        valid = strcasecmp(text, "off") == 0 || (len && len <= 9 && strspn(text, "0123456789") == len);
        if (valid && number != (*text < '0' || *text > '9' ? UINT64_MAX : strtoull(text, NULL, 10)))
            FAULT("%s seconds are read as %llu", text, (unsigned long long)number);
        break;
    case CONF_FILL:
        valid = is_one_of("off|native", text, &index) || (len == 4 && text[0] == '0' && (text[1] | 32) == 'x' &&
                                                          strspn(text + 2, "0123456789abcdefABCDEF") == 2);
        if (valid && number != (len == 4 ? strtoull(text, NULL, 16) : (uint64_t)(index ? FILL_NATIVE : FILL_OFF)))
            FAULT("%s is read as the byte %llu", text, (unsigned long long)number);
        break;
    case CONF_STATS:
        if (rc == 0 && !is_stats(text, number))
            FAULT("CUPOOL_STATS=%.99s is read as %llx", text, (unsigned long long)number);
        return;
    case CONF_STRING:
        valid = len < CONF_TEXT_MAX;
        break;
    }
    if (valid != (rc == 0))
        FAULT("%s=%.99s is %s", row->name, text, valid ? "refused" : "accepted");
}

/* --- a file name --- */

/* launch_expand, written in another way, without a limit. Returns a text to be freed. */
static char *expanded(const struct launch *launch, const char *pattern)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    for (; *pattern; pattern++) {
        if (pattern[0] != '%' || !pattern[1]) {
            putc(*pattern, out);
            continue;
        }
        pattern++;
        if (*pattern == 'h' || *pattern == 'e')
            fputs(*pattern == 'h' ? launch->host : launch->exe, out);
        else if (*pattern == 'p')
            fprintf(out, "%d", (int)getpid());
        else if ((*pattern == 'r' && launch->rank < 0) || (*pattern == 'l' && launch->local_rank < 0))
            putc('x', out);
        else if (*pattern == 'r' || *pattern == 'l')
            fprintf(out, "%d", *pattern == 'r' ? launch->rank : launch->local_rank);
        else if (*pattern == '%')
            putc('%', out);
        else
            fprintf(out, "%%%c", *pattern);
    }
    fclose(out);
    return text;
}

static void check_expand(const struct launch *launch, const char *pattern, size_t room)
{
    char *want = expanded(launch, pattern), *buf = malloc(room + 1); /* exact: a sanitizer sees one byte too many */
    const bool fits = strlen(want) < room;
    int rc;

    memset(buf, '#', room + 1);
    rc = launch_expand(launch, pattern, buf, room);
    if (rc != (fits ? 0 : -ENAMETOOLONG))
        FAULT("%.99s in %zu bytes: %d", pattern, room, rc);
    if (fits ? strcmp(buf, want) != 0 : room && (!memchr(buf, 0, room) || strncmp(buf, want, strlen(buf)) != 0))
        FAULT("%.99s becomes %.99s, not %.99s", pattern, buf, want);
    if (buf[room] != '#')
        FAULT("%.99s: written beyond %zu bytes", pattern, room);
    free(want);
    free(buf);
}

/* --- an environment --- */

/* The lines of conf_report, by their number. It must end with any settings. */
static unsigned int lines_of_report(void)
{
    const int real = dup(STDERR_FILENO), out = memfd_create("report", MFD_CLOEXEC);
    unsigned int lines = 0;
    char text[4096];
    ssize_t n;

    /* Appended to: else it could be a file of data, for all that the library knows. */
    if (real < 0 || out < 0 || fcntl(out, F_SETFL, O_APPEND) || dup2(out, STDERR_FILENO) < 0)
        abort();
    conf_report();
    dup2(real, STDERR_FILENO);
    close(real);
    for (off_t at = 0; (n = pread(out, text, sizeof(text), at)) > 0; at += n)
        for (ssize_t i = 0; i < n; i++)
            lines += text[i] == '\n';
    close(out);
    return lines;
}

/* Set, and without effect. */
static unsigned int idle_count(const struct conf *conf)
{
    return (conf->trace_stacks.number && conf->trace_events.number != TRACE_ALLOC) +
           (conf->slack.from_env && !conf->slack.invalid && *conf->slack.text && conf->free.number != FREE_RELAXED);
}

static void check_loaded(unsigned int unknown)
{
    unsigned int invalid = 0, idle;

    settings.kept = settings.once = (pthread_once_t)PTHREAD_ONCE_INIT;
    atomic_store(&settings.loaded, false);
    memset(&settings.u, 0xa5, sizeof(settings.u));
    conf_get();
    for (unsigned int i = 0; i < conf_count; i++) {
        const struct conf_row *row = &conf_rows[i];
        const struct conf_value *value = conf_value_get(i);
        const char *text = getenv(row->name);
        uint64_t number = 0;

        invalid += value->invalid;
        if (!memchr(value->text, 0, sizeof(value->text)))
            FAULT("%s has no end", row->name);
        else if (conf_parse(row, value->text, &number) || number != value->number)
            FAULT("%s: %.99s is in force as %llu", row->name, value->text, (unsigned long long)value->number);
        if (value->from_env != (text != NULL) || (value->invalid && !text))
            FAULT("%s: where it comes from is wrong", row->name);
        else if (strcmp(value->text, text && !value->invalid ? text : row->def) != 0)
            FAULT("%s is %.99s, not %.99s", row->name, value->text, text ? text : row->def);
    }
    idle = idle_count(&settings.u.conf);
    if (settings.u.conf.log_level.number >= LOG_WARN && lines_of_report() != invalid + unknown + idle)
        FAULT("the report has %u lines, for %u invalid values, %u unknown names and %u without effect",
              lines_of_report(), invalid, unknown, idle);
}

/* Words by twos: a name, known by its first byte or made of the word, and its value. */
static void check_environment(char *const *words, unsigned int count)
{
    char names[VARS][300];
    unsigned int vars = 0, unknown = 0;

    clearenv();
    for (unsigned int i = 0; i + 1 < count && vars < VARS; i += 2) {
        const unsigned int row = (unsigned char)words[i][0] % (conf_count * 2);

        if (row < conf_count) {
            snprintf(names[vars], sizeof(names[0]), "%s", conf_rows[row].name);
        } else {
            snprintf(names[vars], sizeof(names[0]), CONF_PREFIX "%.250s", words[i] + !!words[i][0]);
            /* A name with a newline would be two lines; one with = another name. */
            for (char *c = names[vars]; *c; c++)
                *c = *c == '=' || *c == '\n' ? '_' : *c;
            unknown += !getenv(names[vars]) && !known(names[vars], strlen(names[vars]));
        }
        setenv(names[vars], words[i + 1], 1);
        vars++;
    }
    check_loaded(unknown);
    clearenv();
}

static const char *fuzz_run(const uint8_t *data, size_t size)
{
    struct launch launch = {.from = "fuzz"};
    char *copy = malloc(size + 1), *words[WORDS];
    unsigned int count = 0;

    fault[0] = '\0';
    memcpy(copy, data, size);
    copy[size] = '\0';
    for (size_t at = 0; at <= size && count < WORDS; at += strlen(copy + at) + 1)
        words[count++] = copy + at;
    for (unsigned int i = 0; i < conf_count; i++)
        check_value(&conf_rows[i], words[0]);
    if (count > 3) {
        launch.rank = (int)(signed char)words[3][0];
        launch.local_rank = words[2][0] * 1000003;
        snprintf(launch.host, sizeof(launch.host), "%s", words[2]);
        snprintf(launch.exe, sizeof(launch.exe), "%s", words[3]);
    }
    if (count > 1)
        for (size_t room = 0; room < 80; room = room < 4 ? room + 1 : room * 3)
            check_expand(&launch, words[1], room);
    if (count > 1)
        check_expand(&launch, words[1], 4096);
    if (count > NAME_AT)
        check_environment(words + NAME_AT, count - NAME_AT);
    free(copy);
    return fault;
}

/* --- inputs --- */

/* Words of what may stand in such words, so that a part of them is accepted. */
static size_t fuzz_random(uint64_t *rng, uint8_t *buffer)
{
    /* clang-format off */
    static const char *const pieces[] = {
        "0", "1", "9", "18446744073709551616", "9007199254740993", ".5", ".", "K", "MiB", "g", "tb", "B", "ib",
        "on", "no", "true", "strict", "ordered", "auto", "|", ",", "%h", "%r", "%p", "%%", "%", "%l", "%e", "off",
        "exit", "/", "segment,alloc", "LIMIT", "FRE"
    };
    /* clang-format on */
    const unsigned int words = 2 + (unsigned int)(next(rng) % 20);
    size_t size = 0;

    for (unsigned int w = 0; w < words; w++) {
        const unsigned int parts = next(rng) % 16 ? (unsigned int)(next(rng) % 5) : (unsigned int)(next(rng) % 700);

        for (unsigned int i = 0; i < parts && size < FUZZ_INPUT_MAX - 64; i++) {
            const char *piece = pieces[next(rng) % (sizeof(pieces) / sizeof(pieces[0]))];

            if (next(rng) % 8 == 0) {
                buffer[size++] = (uint8_t)next(rng);
            } else {
                memcpy(buffer + size, piece, strlen(piece));
                size += strlen(piece);
            }
        }
        buffer[size++] = 0;
    }
    return size;
}
