/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_settings.c - shim/base/conf.c: each type of setting with the values it accepts and those it does not, what the
 * environment gives, and what is said of it.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf_parse.h"
#include "base/conf_report.h"
#include "fake_driver.h"
#include "isolated.h"

#define BAD   (UINT64_MAX - 1) /* not accepted */
#define UNSET UINT64_MAX
#define K     UINT64_C(1024)
#define G     (K * K * K)
#define T     (G * K)

static const struct conf_row *row_of(const char *name)
{
    for (unsigned int i = 0; i < conf_count; i++)
        if (strcmp(conf_rows[i].name + strlen("CUPOOL_"), name) == 0)
            return &conf_rows[i];
    fail_msg("no setting %s", name);
    return NULL;
}

static const struct value {
    const char *setting, *text;
    uint64_t number;
} values[] = {
    /* BOOL */
    {"ENABLE", "0", 0},
    {"ENABLE", "off", 0},
    {"ENABLE", "no", 0},
    {"ENABLE", "false", 0},
    {"ENABLE", "1", 1},
    {"ENABLE", "on", 1},
    {"ENABLE", "YES", 1},
    {"ENABLE", "True", 1},
    {"ENABLE", "", BAD},
    {"ENABLE", "2", BAD},
    {"ENABLE", "o", BAD},
    {"ENABLE", "onn", BAD},
    {"ENABLE", " 1", BAD},
    {"ENABLE", "1 ", BAD},
    {"ENABLE", "0|off", BAD},
    {"ENABLE", "of\x86", BAD},
    /* CHOICE */
    {"FREE", "auto", FREE_AUTO},
    {"FREE", "ordered", FREE_ORDERED},
    {"FREE", "StrIct", FREE_STRICT},
    {"FREE", "relaxed", FREE_RELAXED},
    {"FREE", "RELAXED", FREE_RELAXED},
    {"FREE", "relaxe", BAD},
    {"FREE", "relaxedd", BAD},
    {"FREE", "", BAD},
    {"FREE", "|", BAD},
    {"FREE", "strict|relaxed", BAD},
    {"TRACE_EVENTS", "segment", TRACE_SEGMENT},
    {"TRACE_EVENTS", "segment,alloc", TRACE_ALLOC},
    {"REGISTER", "use", REGISTER_USE},
    {"REGISTER", "force", REGISTER_FORCE},
    {"LOG_LEVEL", "debug", LOG_DEBUG},
    {"LOG_LEVEL", "{off}", BAD},
    {"DEBUG", "guard", DEBUG_GUARD},
    {"BACKEND", "nccl", BACKEND_NCCL},
    {"HOOK", "runtime", HOOK_RUNTIME},
    /* SIZE */
    {"LIMIT", "0", 0},
    {"LIMIT", "512", 512},
    {"LIMIT", "1k", K},
    {"LIMIT", "64K", 64 * K},
    {"LIMIT", "64KB", 64 * K},
    {"LIMIT", "64KiB", 64 * K},
    {"LIMIT", "64Ki", 64 * K},
    {"LIMIT", "64kib", 64 * K},
    {"LIMIT", "3m", 3 * K *K},
    {"LIMIT", "2G", 2 * G},
    {"LIMIT", "1T", T},
    {"LIMIT", "7b", 7},
    {"LIMIT", "1.5G", G + G / 2},
    {"LIMIT", "1.25G", G + G / 4},
    {"LIMIT", "0.05T", T / 20},
    {"LIMIT", "0.0000009T", 989560},
    {"LIMIT", "0.9999999999999999999999T", T - 1},
    {"LIMIT", "0.0000000000000000009T", BAD},
    {"LIMIT", "0.0", 0},
    {"LIMIT", "0.5", BAD},
    {"LIMIT", "2.9", 2},
    {"LIMIT", "0.1K", 102},
    {"LIMIT", "4194303T", 4194303 * T},
    {"LIMIT", "4194304T", BAD},
    {"LIMIT", "4503599627370495K", 4503599627370495 * K},
    {"LIMIT", "4503599627370496K", BAD},
    {"LIMIT", "18446744073709551616", BAD},
    {"LIMIT", "99999999999999999999999", BAD},
    {"LIMIT", "72057594037927939", 72057594037927939},
    {"LIMIT", "72057594037927940", BAD},
    {"LIMIT", "", BAD},
    {"LIMIT", "k", BAD},
    {"LIMIT", "-1", BAD},
    {"LIMIT", "+1", BAD},
    {"LIMIT", " 1", BAD},
    {"LIMIT", ".5G", BAD},
    {"LIMIT", "1.G", BAD},
    {"LIMIT", "1.", BAD},
    {"LIMIT", "1x", BAD},
    {"LIMIT", "1P", BAD},
    {"LIMIT", "1KK", BAD},
    {"LIMIT", "1iB", BAD},
    {"LIMIT", "1Bi", BAD},
    {"LIMIT", "1K ", BAD},
    {"LIMIT", "0x10", BAD},
    {"LIMIT", "1.5.5G", BAD},
    /* NUMBER */
    {"SLACK", "0", 0},
    {"SLACK", "10", 10},
    {"SLACK", "007", 7},
    {"SLACK", "999999999", 999999999},
    {"SLACK", "0000000001", BAD},
    {"SLACK", "1000000000", BAD},
    {"SLACK", "", UNSET},
    {"SLACK", "-1", BAD},
    {"SLACK", "1.5", BAD},
    {"SLACK", "10%", BAD},
    {"SLACK", "x", BAD},
    {"RANK", "12", 12},
    /* SECONDS */
    {"DECAY", "0", 0},
    {"DECAY", "10", 10},
    {"DECAY", "off", UNSET},
    {"DECAY", "OFF", UNSET},
    {"DECAY", "offf", BAD},
    {"DECAY", "of", BAD},
    {"DECAY", "", BAD},
    {"DECAY", "10s", BAD},
    {"DECAY", "1000000000", BAD},
    /* FILL */
    {"FILL", "off", FILL_OFF},
    {"FILL", "native", FILL_NATIVE},
    {"FILL", "NATIVE", FILL_NATIVE},
    {"FILL", "0x00", 0},
    {"FILL", "0xA5", 0xa5},
    {"FILL", "0XfF", 0xff},
    {"FILL", "", BAD},
    {"FILL", "0", BAD},
    {"FILL", "0x", BAD},
    {"FILL", "0x1", BAD},
    {"FILL", "0x123", BAD},
    {"FILL", "1x12", BAD},
    {"FILL", "0y12", BAD},
    {"FILL", "0xg1", BAD},
    {"FILL", "0x1g", BAD},
    /* STATS */
    {"STATS", "off", 0},
    {"STATS", "exit", STATS_EXIT},
    {"STATS", "EXIT", STATS_EXIT},
    {"STATS", "signal:USR1", SIGUSR1 << 8},
    {"STATS", "signal:SIGUSR2", SIGUSR2 << 8},
    {"STATS", "signal:sighup", SIGHUP << 8},
    {"STATS", "signal:URG", SIGURG << 8},
    {"STATS", "signal:IO", SIGIO << 8},
    {"STATS", "signal:PWR", SIGPWR << 8},
    {"STATS", "signal:WINCH", SIGWINCH << 8},
    {"STATS", "signal:10", 10 << 8},
    {"STATS", "signal:1", 1 << 8},
    {"STATS", "signal:34", 34 << 8},
    {"STATS", "signal:64", 64 << 8},
    {"STATS", "signal:65", BAD},
    {"STATS", "signal:33", BAD},
    {"STATS", "signal:010", BAD},
    {"STATS", "signal:9", BAD},
    {"STATS", "signal:0", BAD},
    {"STATS", "signal:11", BAD},
    {"STATS", "signal:KILL", BAD},
    {"STATS", "signal:SEGV", BAD},
    {"STATS", "signal:32", BAD},
    {"STATS", "Timer:5", UINT64_C(5) << 32},
    {"STATS", "timer:1.5s", BAD},
    {"STATS", "exit signal:USR2", BAD},
    {"STATS", "signal:RTMIN+003", BAD},
    {"STATS", "signal:", BAD},
    {"STATS", "signal:USR", BAD},
    {"STATS", "signal:USR11", BAD},
    {"STATS", "signal:RTMIN", 34 << 8},
    {"STATS", "signal:SIGRTMIN+0", 34 << 8},
    {"STATS", "signal:RTMIN+3", 37 << 8},
    {"STATS", "signal:RTMIN+30", 64 << 8},
    {"STATS", "signal:RTMIN+31", BAD},
    {"STATS", "signal:RTMIN+300", BAD},
    {"STATS", "signal:RTMIN+", BAD},
    {"STATS", "signal:RTMIN-1", BAD},
    {"STATS", "signal:RTMIN+x", BAD},
    {"STATS", "signal:RTMIN3", BAD},
    {"STATS", "timer:30", UINT64_C(30) << 32},
    {"STATS", "timer:30s", UINT64_C(30) << 32},
    {"STATS", "timer:5m", UINT64_C(300) << 32},
    {"STATS", "timer:5M", UINT64_C(300) << 32},
    {"STATS", "timer:2h", UINT64_C(7200) << 32},
    {"STATS", "timer:999999h", UINT64_C(3599996400) << 32},
    {"STATS", "timer:0", BAD},
    {"STATS", "timer:", BAD},
    {"STATS", "timer:s", BAD},
    {"STATS", "timer:1000000", BAD},
    {"STATS", "timer:3d", BAD},
    {"STATS", "timer:3mm", BAD},
    {"STATS", "timer:-3", BAD},
    {"STATS", "exit,signal:USR1,timer:1m", UINT64_C(60) << 32 | SIGUSR1 << 8 | STATS_EXIT},
    {"STATS", "timer:1m,exit", UINT64_C(60) << 32 | STATS_EXIT},
    {"STATS", "exit,exit", BAD},
    {"STATS", "signal:USR1,signal:USR2", BAD},
    {"STATS", "timer:1,timer:2", BAD},
    {"STATS", "timer:1,signal:USR1,exit,timer:2", BAD},
    {"STATS", "exit,", BAD},
    {"STATS", ",exit", BAD},
    {"STATS", "", BAD},
    {"STATS", "on", BAD},
    {"STATS", "exit,off", BAD},
    {"STATS", "signal:SIGWINCHWINCHWINC", BAD},
    {"STATS", "signal:SIGWINCHWINCHWINCH", BAD},
    {"STATS", "timer:0000000000000000001", BAD},
    /* STRING */
    {"TRACE_FILE", "", 0},
    {"TRACE_FILE", "anything |,%", 0},
};

ISOLATED_CASE(test_values)
{
    for (size_t i = 0; i < COUNT(values); i++) {
        const struct conf_row *row = row_of(values[i].setting);
        uint64_t number = BAD;
        const int rc = conf_parse(row, values[i].text, &number);

        if (rc != (values[i].number == BAD ? -EINVAL : 0) || number != values[i].number)
            fail_msg("%s=%s is %#llx (%d)", row->name, values[i].text, (unsigned long long)number, rc);
    }
}

/* The text that is in force has to find room. */
ISOLATED_CASE(test_length)
{
    char text[CONF_TEXT_MAX + 1];
    uint64_t number;

    memset(text, 'x', sizeof(text));
    text[CONF_TEXT_MAX] = '\0';
    assert_int_equal(conf_parse(row_of("TRACE_FILE"), text, &number), -EINVAL);
    text[CONF_TEXT_MAX - 1] = '\0';
    assert_int_equal(conf_parse(row_of("TRACE_FILE"), text, &number), 0);
    assert_int_equal(number, 0);
}

ISOLATED_CASE(test_no_type)
{
    const struct conf_row row = {"NONE", (enum conf_type)99, "", "", ""};
    uint64_t number;

    assert_int_equal(conf_parse(&row, "1", &number), -EINVAL);
}

/* --- the environment --- */

ISOLATED_CASE(test_defaults)
{
    static const uint64_t numbers[] = {1,
                                       FREE_AUTO,
                                       BACKEND_CUDA,
                                       REGISTER_OFF,
                                       10,
                                       HOOK_AUTO,
                                       0,
                                       10,
                                       100,
                                       10000,
                                       0,
                                       0,
                                       0,
                                       0,
                                       FILL_OFF,
                                       0,
                                       0,
                                       TRACE_SEGMENT,
                                       G,
                                       0,
                                       0,
                                       0,
                                       0,
                                       LOG_WARN,
                                       UNSET};

    assert_int_equal(conf_count, COUNT(numbers));
    for (unsigned int i = 0; i < conf_count; i++) {
        assert_int_equal(conf_value_get(i)->number, numbers[i]);
        assert_string_equal(conf_value_get(i)->text, conf_rows[i].def);
        assert_false(conf_value_get(i)->from_env || conf_value_get(i)->invalid);
    }
    assert_ptr_equal(conf_value_get(0), &conf_get()->enable);
    assert_ptr_equal(conf_value_get(conf_count - 1), &conf_get()->rank);
}

ISOLATED_CASE(
    test_taken,
    .environment = "CUPOOL_FREE=STRICT CUPOOL_LIMIT=5X CUPOOL_TRACE_FILE=a=b CUPOOL_RANK=99999999999999999999")
{
    errno = 77;
    assert_int_equal(conf_get()->free.number, FREE_STRICT);
    assert_int_equal(errno, 77);
    assert_string_equal(conf_get()->free.text, "STRICT");
    assert_true(conf_get()->free.from_env && !conf_get()->free.invalid);
    /* Not accepted: the default, and both are known. */
    assert_int_equal(conf_get()->limit.number, 0);
    assert_string_equal(conf_get()->limit.text, "0");
    assert_true(conf_get()->limit.from_env && conf_get()->limit.invalid);
    assert_int_equal(conf_get()->enable.number, 1);
    /* Read once. */
    setenv("CUPOOL_FREE", "ordered", 1);
    assert_int_equal(conf_get()->free.number, FREE_STRICT);
    assert_string_equal(conf_get()->trace_file.text, "a=b");
    assert_string_equal(fake.said, ""); /* nothing by itself */
}

ISOLATED_CASE(test_secure, .environment = "CUPOOL_FREE=strict CUPOOL_ENABLE=1")
{
    fake.secure = true;
    assert_int_equal(conf_get()->enable.number, 0);
    assert_int_equal(conf_get()->free.number, FREE_STRICT);
}

/* --- what is said --- */

static const struct said {
    const char *environment, *text;
} reports[] = {
    {"", ""},
    {"CUPOOL_FREE=strict CUPOOL_LIMIT=5G XCUPOOL_FREE=1 CUPOO=1 CUPOOLER=1 CUPOOL=1 cupool_free=1", ""},
    {"CUPOOL_FREE=fast", "2:CUPOOL_FREE has a value that is not accepted (auto|ordered|strict|relaxed); using auto\n"},
    {"CUPOOL_RANK=x", "2:CUPOOL_RANK has a value that is not accepted (number); using none\n"},
    {"CUPOOL_FREEE=1", "2:unknown setting CUPOOL_FREEE (did you mean CUPOOL_FREE?)\n"},
    {"CUPOOL_FRE=1", "2:unknown setting CUPOOL_FRE (did you mean CUPOOL_FREE?)\n"},
    {"CUPOOL_ZZZZZZZZZZZZ=1", "2:unknown setting CUPOOL_ZZZZZZZZZZZZ\n"},
    {"CUPOOL_=1", "2:unknown setting CUPOOL_\n"},
    {"CUPOOL_HHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHH=1",
     "2:unknown setting CUPOOL_HHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHH\n"},
    {"CUPOOL_TRACE_STACKS=1", "2:CUPOOL_TRACE_STACKS does nothing without CUPOOL_TRACE_EVENTS=segment,alloc\n"},
    {"CUPOOL_TRACE_STACKS=1 CUPOOL_TRACE_EVENTS=segment,alloc", ""},
    {"CUPOOL_TRACE_STACKS=0", ""},
    {"CUPOOL_SLACK=20", "2:CUPOOL_SLACK does nothing without CUPOOL_FREE=relaxed\n"},
    {"CUPOOL_SLACK=20 CUPOOL_FREE=relaxed", ""},
    {"CUPOOL_SLACK=", ""},
    {"CUPOOL_SLACK=x", "2:CUPOOL_SLACK has a value that is not accepted (percent); using 10\n"},
};

ISOLATED_OWN(test_report, reports)
{
    const struct said *row = *state;

    conf_report();
    assert_string_equal(fake.said, row->text);
}

ISOLATED_CASE(test_nearest)
{
    static const struct {
        const char *name, *nearest;
    } rows[] = {
        {"CUPOOL_FREE", "CUPOOL_FREE"},
        {"CUPOOL_ENABL", "CUPOOL_ENABLE"},
        {"CUPOOL_ENABLED", "CUPOOL_ENABLE"},
        {"CUPOOL_LOGLEVEL", "CUPOOL_LOG_LEVEL"},
        {"CUPOOL_DECYA", "CUPOOL_DECAY"},
        {"CUPOOL_TRACE_FILES", "CUPOOL_TRACE_FILE"},
        {"CUPOOL_STAT", "CUPOOL_STATS"},
        {"CUPOOL_HOOKS", "CUPOOL_HOOK"},
        {"CUPOOL_LOG_LEVELabcd", "CUPOOL_LOG_LEVEL"},
        {"CUPOOL_LOG_LEVELabcde", NULL},
        {"xxxxCUPOOL_FREE", "CUPOOL_FREE"},
        {"", NULL},
        {"POOL_FREE", "CUPOOL_FREE"},
        {"xxxxxCUPOOL_FREE", NULL},
        {"OOL_LOG_LEVEL", "CUPOOL_LOG_LEVEL"},
        {"OL_LOG_LEVEL", "CUPOOL_LOG_LEVEL"},
        {"L_LOG_LEVEL", NULL},
        {"CUPOOL_LOGLEV", "CUPOOL_LOG_LEVEL"},
        {"CUPOOL_trace_file", NULL},
        {"CUPOOL_X", NULL},
        {"CUPOOL_", NULL},
        {"CUPOOL_NOPE", NULL},
        {"CUPOOL_FEE", "CUPOOL_FREE"},
        {"CUPOOL_FOO", NULL},
        {"CUPOOL_TRACE", "CUPOOL_TRACE_FILE"},
        {"CUPOOL_STACKS", "CUPOOL_TRACE_STACKS"},
        {"CUPOOL_ACKS", NULL},
        {"CUPOOL_TRACE_", NULL},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *nearest = conf_nearest(rows[i].name);

        if (!nearest || !rows[i].nearest)
            assert_ptr_equal(nearest, rows[i].nearest);
        else
            assert_string_equal(nearest, rows[i].nearest);
    }
}

/* The setting accepts the backends that there are, in the order of their numbers. */
ISOLATED_CASE(test_backends)
{
#define BAR_NAME(symbol, name) "|" #name
    static const char names[] = BACKENDS(BAR_NAME);

    for (size_t i = 0; i < conf_count; i++)
        if (strcmp(conf_rows[i].name, "CUPOOL_BACKEND") == 0)
            assert_string_equal(conf_rows[i].choices, names + 1);
}
