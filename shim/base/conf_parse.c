/* SPDX-License-Identifier: Apache-2.0 */
/* conf_parse.c - see conf_parse.h. No locks and no state. */
#include "base/conf_parse.h"

#include "base/conf_types.h"
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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
    uint64_t whole = 0, part = 0, of = 1, scale = 1;
    bool any = false;

    if (!isdigit((unsigned char)*text))
        return -EINVAL;
    for (; isdigit((unsigned char)*text); text++) {
        if (whole > (UINT64_MAX >> 8) / 10)
            return -EINVAL;
        whole = whole * 10 + (uint64_t)(*text - '0');
    }
    if (*text == '.' && isdigit((unsigned char)text[1])) {
        for (text++; isdigit((unsigned char)*text); text++) {
            any |= *text != '0';
            if (of < UINT64_C(1000000000000000000)) { /* further digits are less than a byte of any unit */
                part = part * 10 + (uint64_t)(*text - '0');
                of *= 10;
            }
        }
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
    whole = whole * scale + (uint64_t)((unsigned __int128)part * scale / of);
    if (any && !whole) /* 0 would be no limit */
        return -EINVAL;
    *ret_number = whole;
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
