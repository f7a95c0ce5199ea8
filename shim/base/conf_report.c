/* SPDX-License-Identifier: Apache-2.0 */
/* conf_report.c - see conf_report.h. No locks and no state. */
#include "base/conf_report.h"

#include "base/conf.h"
#include "base/log.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* The words are the first or the last ones of the row's name: CUPOOL_TRACE, CUPOOL_STACKS. */
static bool has_words(const struct conf_row *row, const char *words)
{
    const char *own = row->name + sizeof(CONF_PREFIX) - 1;
    const size_t len = strlen(words), own_len = strlen(own);

    if (!len || len >= own_len)
        return false;
    return (strncmp(own, words, len) == 0 && own[len] == '_') ||
           (strcmp(own + own_len - len, words) == 0 && own[own_len - len - 1] == '_');
}

const char *conf_nearest(const char *name)
{
    const size_t prefix = strncmp(name, CONF_PREFIX, sizeof(CONF_PREFIX) - 1) == 0 ? sizeof(CONF_PREFIX) - 1 : 0;
    const size_t len = strlen(name) - prefix;
    const char *nearest = NULL;
    unsigned int least = 5;

    for (unsigned int i = 0; prefix && i < conf_count; i++)
        if (has_words(&conf_rows[i], name + prefix))
            return conf_rows[i].name;
    for (unsigned int i = 0; i < conf_count; i++) {
        const unsigned int d = distance(name, conf_rows[i].name);
        const size_t own = strlen(conf_rows[i].name) - prefix;

        /* At least half of the shorter name must be right: CUPOOL_FOO is no CUPOOL_HOOK. */
        if (d < least && (!prefix || 2 * d <= (own < len ? own : len))) {
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
    const struct conf *conf = conf_get();

    if (conf->trace_stacks.number && conf->trace_events.number != TRACE_ALLOC)
        log_write(LOG_WARN, "CUPOOL_TRACE_STACKS does nothing without CUPOOL_TRACE_EVENTS=segment,alloc");
    if (conf->slack.from_env && !conf->slack.invalid && *conf->slack.text && conf->free.number != FREE_RELAXED)
        log_write(LOG_WARN, "CUPOOL_SLACK does nothing without CUPOOL_FREE=relaxed");
}

void conf_report(void)
{
    report_idle();
    for (unsigned int i = 0; i < conf_count; i++)
        if (conf_value_get(i)->invalid)
            log_write(LOG_WARN, "%s has a value that is not accepted (%s); using %s", conf_rows[i].name,
                      conf_rows[i].choices, *conf_rows[i].def ? conf_rows[i].def : "none");
    for (char **env = environ; env && *env; env++) {
        const size_t len = strcspn(*env, "=");
        char name[64];
        const char *nearest;

        if (strncmp(*env, CONF_PREFIX, sizeof(CONF_PREFIX) - 1) != 0 || known(*env, len))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)len, *env);
        nearest = conf_nearest(name);
        log_write(LOG_WARN, nearest ? "unknown setting %s (did you mean %s?)" : "unknown setting %s", name, nearest);
    }
}
