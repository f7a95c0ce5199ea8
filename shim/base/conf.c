/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf.c - see conf.h.
 *
 * Locking: the once; settings are written in it and never again.
 */
#include "base/conf.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/log.h"

#define PREFIX "CUPOOL_"

const struct conf_row conf_rows[] = {
#define CONF(field, name, type, def, choices, help) {PREFIX name, CONF_##type, def, choices, help},
#include "conf.def"
};
const unsigned int conf_count = sizeof(conf_rows) / sizeof(conf_rows[0]);

static struct {
    pthread_once_t once;
    atomic_bool loaded; /* set when once is done; cheaper to read */
    union {
        struct conf conf;
        struct conf_value values[sizeof(struct conf) / sizeof(struct conf_value)];
    } u;
} settings = {.once = PTHREAD_ONCE_INIT};

/* Independent of the program's locale: in Turkish, i and I are not a pair. */
static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_same(const char *a, const char *b, size_t len)
{
    size_t i = 0;

    while (i < len && a[i] && lower(a[i]) == lower(b[i]))
        i++;
    return i == len || lower(a[i]) == lower(b[i]);
}

/* The index of text among choices, which are separated by bars; -1: none. */
static int choice_find(const char *choices, const char *text)
{
    const size_t len = strlen(text);

    for (int i = 0; len; i++) {
        const size_t n = strcspn(choices, "|");

        if (n == len && is_same(choices, text, n))
            return i;
        if (!choices[n])
            break;
        choices += n + 1;
    }
    return -1;
}

static int bool_parse(const char *text, uint64_t *ret_number)
{
    int i = choice_find("0|off|no|false|1|on|yes|true", text);

    if (i < 0)
        return -EINVAL;
    *ret_number = i >= 4;
    return 0;
}

/* Sizes such as 512, 64K, 64KB, 64KiB, 1.5G; the units are powers of 1024. */
static int size_parse(const char *text, uint64_t *ret_number)
{
    static const char units[] = "kmgt";
    const char *unit;
    uint64_t whole = 0, tenths = 0, scale = 1;

    if (!isdigit((unsigned char)*text))
        return -EINVAL;
    for (; isdigit((unsigned char)*text); text++) {
        if (whole > (UINT64_MAX >> 8) / 10)
            return -EINVAL;
        whole = whole * 10 + (uint64_t)(*text - '0');
    }
    if (*text == '.' && isdigit((unsigned char)text[1])) {
        tenths = (uint64_t)(text[1] - '0');
        for (text++; isdigit((unsigned char)*text); text++)
            ;
    }
    unit = *text ? strchr(units, lower(*text)) : NULL;
    if (unit) {
        scale = 1ull << (10 * (unit - units + 1));
        text++;
        if (lower(*text) == 'i')
            text++;
    }
    if (lower(*text) == 'b')
        text++;
    if (*text || whole > (INT64_MAX >> 1) / scale)
        return -EINVAL;
    *ret_number = whole * scale + tenths * scale / 10;
    return 0;
}

/* Empty text gives UINT64_MAX: not set. */
static int number_parse(const char *text, uint64_t *ret_number)
{
    if (strspn(text, "0123456789") != strlen(text) || strlen(text) > 9)
        return -EINVAL;
    *ret_number = *text ? strtoull(text, NULL, 10) : UINT64_MAX;
    return 0;
}

static int seconds_parse(const char *text, uint64_t *ret_number)
{
    if (is_same(text, "off", SIZE_MAX)) {
        *ret_number = UINT64_MAX;
        return 0;
    }
    return *text ? number_parse(text, ret_number) : -EINVAL;
}

static int fill_parse(const char *text, uint64_t *ret_number)
{
    const int i = choice_find("off|native", text);

    if (i >= 0) {
        *ret_number = i ? FILL_NATIVE : FILL_OFF;
        return 0;
    }
    if (text[0] != '0' || (text[1] != 'x' && text[1] != 'X') || strlen(text) != 4 ||
        !isxdigit((unsigned char)text[2]) || !isxdigit((unsigned char)text[3]))
        return -EINVAL;
    *ret_number = strtoull(text, NULL, 16);
    return 0;
}

/* Signals that a program can spare, by name or number; 0: not one of these. */
static int signal_parse(const char *text)
{
    static const struct {
        const char *name;
        int number;
    } known[] = {{"HUP", SIGHUP}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2},  {"URG", SIGURG},
                 {"IO", SIGIO},   {"PWR", SIGPWR},   {"WINCH", SIGWINCH}};
    const size_t digits = strspn(text, "0123456789");
    int number = 0;

    if (digits && digits <= 2 && !text[digits]) {
        number = atoi(text);
    } else {
        if (is_same(text, "SIG", 3))
            text += 3;
        if (is_same(text, "RTMIN", 5)) {
            text += 5;
            if (!*text)
                return SIGRTMIN;
            number = *text == '+' && strlen(text) <= 3 && text[1] && text[strspn(text + 1, "0123456789") + 1] == '\0'
                         ? SIGRTMIN + atoi(text + 1)
                         : 0;
        }
    }
    if (number >= SIGRTMIN && number <= SIGRTMAX)
        return number;
    for (unsigned int i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (number ? number == known[i].number : is_same(text, known[i].name, SIZE_MAX))
            return known[i].number;
    return 0;
}

/* Periods such as 30, 30s, 5m, 1h, in seconds; 0: invalid. */
static uint64_t period_parse(const char *text)
{
    const size_t digits = strspn(text, "0123456789");
    const char unit = lower(text[digits]);
    uint64_t seconds;

    if (!digits || digits > 6 || (text[digits] && text[digits + 1]))
        return 0;
    seconds = strtoull(text, NULL, 10);
    return !unit || unit == 's' ? seconds : unit == 'm' ? seconds * 60 : unit == 'h' ? seconds * 3600 : 0;
}

/* A list of exit, signal:NAME and timer:TIME, each at most once. */
static int stats_parse(const char *text, uint64_t *ret_number)
{
    uint64_t number = 0, part;
    char word[24];

    if (is_same(text, "off", SIZE_MAX)) {
        *ret_number = 0;
        return 0;
    }
    for (;; text++) {
        const size_t len = strcspn(text, ",");

        if (len >= sizeof(word))
            return -EINVAL;
        memcpy(word, text, len);
        word[len] = '\0';
        part = is_same(word, "exit", SIZE_MAX) ? STATS_EXIT
               : is_same(word, "signal:", 7)   ? (uint64_t)signal_parse(word + 7) << 8
               : is_same(word, "timer:", 6)    ? period_parse(word + 6) << 32
                                               : 0;
        if (!part || (part == STATS_EXIT   ? number & STATS_EXIT
                      : STATS_SIGNAL(part) ? STATS_SIGNAL(number) != 0
                                           : STATS_TIMER_S(number) != 0))
            return -EINVAL;
        number |= part;
        text += len;
        if (!*text)
            break;
    }
    *ret_number = number;
    return 0;
}

int conf_parse(const struct conf_row *row, const char *text, uint64_t *ret_number)
{
    int i;

    if (strlen(text) >= CONF_TEXT_MAX)
        return -EINVAL;
    switch (row->type) {
    case CONF_BOOL:
        return bool_parse(text, ret_number);
    case CONF_CHOICE:
        i = choice_find(row->choices, text);
        if (i < 0)
            return -EINVAL;
        *ret_number = (uint64_t)i;
        return 0;
    case CONF_SIZE:
        return size_parse(text, ret_number);
    case CONF_NUMBER:
        return number_parse(text, ret_number);
    case CONF_SECONDS:
        return seconds_parse(text, ret_number);
    case CONF_FILL:
        return fill_parse(text, ret_number);
    case CONF_STATS:
        return stats_parse(text, ret_number);
    case CONF_STRING:
        *ret_number = 0;
        return 0;
    }
    return -EINVAL;
}

static void settings_load(void)
{
    for (unsigned int i = 0; i < conf_count; i++) {
        const struct conf_row *row = &conf_rows[i];
        struct conf_value *value = &settings.u.values[i];
        const char *text = secure_getenv(row->name);

        value->from_env = text != NULL;
        value->invalid = text && conf_parse(row, text, &value->number) != 0;
        if (!text || value->invalid) {
            text = row->def;
            conf_parse(row, text, &value->number);
        }
        memcpy(value->text, text, strlen(text) + 1);
    }
    /* The environment must not configure a set-uid program, nor make it leave files in its folder. */
    if (getauxval(AT_SECURE))
        settings.u.conf.enable.number = 0;
    atomic_store_explicit(&settings.loaded, true, memory_order_release);
}

const struct conf *conf_get(void)
{
    if (!atomic_load_explicit(&settings.loaded, memory_order_acquire))
        pthread_once(&settings.once, settings_load);
    return &settings.u.conf;
}

const struct conf_value *conf_value_get(unsigned int i)
{
    conf_get();
    return &settings.u.values[i];
}

/* The edit distance of two short names. */
static unsigned int distance(const char *a, const char *b)
{
    unsigned int row[64], diagonal, above;
    const unsigned int n = (unsigned int)strnlen(b, 63);

    for (unsigned int j = 0; j <= n; j++)
        row[j] = j;
    for (unsigned int i = 1; *a; a++, i++) {
        diagonal = row[0];
        row[0] = i;
        for (unsigned int j = 1; j <= n; j++) {
            above = row[j];
            row[j] = diagonal + (*a != b[j - 1]);
            if (above + 1 < row[j])
                row[j] = above + 1;
            if (row[j - 1] + 1 < row[j])
                row[j] = row[j - 1] + 1;
            diagonal = above;
        }
    }
    return row[n];
}

const char *conf_nearest(const char *name)
{
    const char *nearest = NULL;
    unsigned int least = 5;

    for (unsigned int i = 0; i < conf_count; i++) {
        const unsigned int d = distance(name, conf_rows[i].name);

        if (d < least) {
            least = d;
            nearest = conf_rows[i].name;
        }
    }
    return nearest;
}

static bool known(const char *name, size_t len)
{
    for (unsigned int i = 0; i < conf_count; i++)
        if (strlen(conf_rows[i].name) == len && memcmp(conf_rows[i].name, name, len) == 0)
            return true;
    return false;
}

/* Warn about settings that have no effect with the other settings. */
static void report_idle(void)
{
    const struct conf *conf = &settings.u.conf;

    if (conf->trace_stacks.number && conf->trace_events.number != TRACE_ALLOC)
        log_write(LOG_WARN, "CUPOOL_TRACE_STACKS does nothing without CUPOOL_TRACE_EVENTS=segment,alloc");
    if (conf->slack.from_env && !conf->slack.invalid && *conf->slack.text && conf->free.number != FREE_RELAXED)
        log_write(LOG_WARN, "CUPOOL_SLACK does nothing without CUPOOL_FREE=relaxed");
}

void conf_report(void)
{
    conf_get();
    report_idle();
    for (unsigned int i = 0; i < conf_count; i++)
        if (settings.u.values[i].invalid)
            log_write(LOG_WARN, "%s has a value that is not accepted (%s); using %s", conf_rows[i].name,
                      conf_rows[i].choices, *conf_rows[i].def ? conf_rows[i].def : "none");
    for (char **env = environ; env && *env; env++) {
        const size_t len = strcspn(*env, "=");
        char name[64];
        const char *near;

        if (strncmp(*env, PREFIX, sizeof(PREFIX) - 1) != 0 || known(*env, len))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)len, *env);
        near = conf_nearest(name);
        log_write(LOG_WARN, near ? "unknown setting %s (did you mean %s?)" : "unknown setting %s", name, near);
    }
}
