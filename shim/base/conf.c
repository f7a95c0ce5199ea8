/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf.c - see conf.h.
 *
 * Locking: the two onces; settings are written in them and never again.
 */
#include "base/conf.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/conf_parse.h"

const struct conf_row conf_rows[] = {
#define CONF(field, name, type, def, choices, help) {CONF_PREFIX name, CONF_##type, def, choices, help},
#include "conf.def"
};
const unsigned int conf_count = sizeof(conf_rows) / sizeof(conf_rows[0]);

static struct {
    pthread_once_t kept, once;
    atomic_bool loaded; /* set when once is done; cheaper to read */
    union {
        struct conf conf;
        struct conf_value values[sizeof(struct conf) / sizeof(struct conf_value)];
    } u;
} settings = {.kept = PTHREAD_ONCE_INIT, .once = PTHREAD_ONCE_INIT};

/* Keep what the environment has at the program's start, in the place of the values: a daemon that clears its
 * environment, or writes its name over it, must not lose what it was started with. */
static void settings_keep(void)
{
    for (unsigned int i = 0; i < conf_count; i++) {
        struct conf_value *value = &settings.u.values[i];
        const char *text = secure_getenv(conf_rows[i].name);

        value->from_env = text && strlen(text) < sizeof(value->text);
        if (value->from_env)
            memcpy(value->text, text, strlen(text) + 1);
    }
}

__attribute__((constructor)) static void started(void)
{
    pthread_once(&settings.kept, settings_keep);
}

static void settings_load(void)
{
    pthread_once(&settings.kept, settings_keep);
    for (unsigned int i = 0; i < conf_count; i++) {
        const struct conf_row *row = &conf_rows[i];
        struct conf_value *value = &settings.u.values[i];
        const char *text = secure_getenv(row->name);

        if (!text && value->from_env)
            text = value->text;
        value->from_env = text != NULL;
        value->invalid = text && conf_parse(row, text, &value->number) != 0;
        if (!text || value->invalid) {
            text = row->def;
            conf_parse(row, text, &value->number);
        }
        memmove(value->text, text, strlen(text) + 1);
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
