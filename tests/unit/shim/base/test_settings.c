/* SPDX-License-Identifier: Apache-2.0 */
/* test_settings.c - shim/base/conf.c: each type of setting with the values it accepts and those it does not, what the
 * environment gives, and what is said of it. */
#include <signal.h>

#include "base/conf_parse.h"
#include "base/conf_report.h"
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

/* Texts with the number that each of them stands for. */
static const struct values {
    const char *setting;
    uint64_t number;
    const char *texts[13 + 1];
} values[] = {
    /* BOOL */
    {"ENABLE", 0, {"0", "off", "no", "false"}},
    {"ENABLE", 1, {"1", "on", "YES", "True"}},
    {"ENABLE", BAD, {"", "2", "o", "onn", " 1", "1 ", "0|off", "of\x86"}},
    /* CHOICE */
    {"FREE", FREE_AUTO, {"auto"}},
    {"FREE", FREE_ORDERED, {"ordered"}},
    {"FREE", FREE_STRICT, {"StrIct"}},
    {"FREE", FREE_RELAXED, {"relaxed", "RELAXED"}},
    {"FREE", BAD, {"relaxe", "relaxedd", "", "|", "strict|relaxed"}},
    {"TRACE_EVENTS", TRACE_SEGMENT, {"segment"}},
    {"TRACE_EVENTS", TRACE_ALLOC, {"segment,alloc"}},
    {"REGISTER", REGISTER_USE, {"use"}},
    {"REGISTER", REGISTER_FORCE, {"force"}},
    {"LOG_LEVEL", LOG_DEBUG, {"debug"}},
    {"LOG_LEVEL", BAD, {"{off}"}},
    {"DEBUG", DEBUG_GUARD, {"guard"}},
    {"BACKEND", BACKEND_NCCL, {"nccl"}},
    {"HOOK", HOOK_RUNTIME, {"runtime"}},
    /* SIZE */
    {"LIMIT", 0, {"0", "0.0"}},
    {"LIMIT", 512, {"512"}},
    {"LIMIT", K, {"1k"}},
    {"LIMIT", 64 * K, {"64K", "64KB", "64KiB", "64Ki", "64kib"}},
    {"LIMIT", 3 * K *K, {"3m"}},
    {"LIMIT", 2 * G, {"2G"}},
    {"LIMIT", T, {"1T"}},
    {"LIMIT", 7, {"7b"}},
    {"LIMIT", G + G / 2, {"1.5G"}},
    {"LIMIT", G + G / 4, {"1.25G"}},
    {"LIMIT", T / 20, {"0.05T"}},
    {"LIMIT", 989560, {"0.0000009T"}},
    {"LIMIT", T - 1, {"0.9999999999999999999999T"}},
    {"LIMIT", 2, {"2.9"}},
    {"LIMIT", 102, {"0.1K"}},
    {"LIMIT", 4194303 * T, {"4194303T"}},
    {"LIMIT", BAD, {"4194304T", "4503599627370496K", "18446744073709551616", "99999999999999999999999"}},
    {"LIMIT", BAD, {"72057594037927940", "", "k", "-1", "+1", " 1", ".5G", "1.G", "1.", "1x", "1P", "1KK", "1iB"}},
    {"LIMIT", BAD, {"1Bi", "1K ", "0x10", "1.5.5G", "0.0000000000000000009T", "0.5"}},
    {"LIMIT", 4503599627370495 * K, {"4503599627370495K"}},
    {"LIMIT", 72057594037927939, {"72057594037927939"}},
    /* NUMBER */
    {"SLACK", 0, {"0"}},
    {"SLACK", 10, {"10"}},
    {"SLACK", 7, {"007"}},
    {"SLACK", 999999999, {"999999999"}},
    {"SLACK", BAD, {"0000000001", "1000000000", "-1", "1.5", "10%", "x"}},
    {"SLACK", UNSET, {""}},
    {"RANK", 12, {"12"}},
    /* SECONDS */
    {"DECAY", 0, {"0"}},
    {"DECAY", 10, {"10"}},
    {"DECAY", UNSET, {"off", "OFF"}},
    {"DECAY", BAD, {"offf", "of", "", "10s", "1000000000"}},
    /* FILL */
    {"FILL", FILL_OFF, {"off"}},
    {"FILL", FILL_NATIVE, {"native", "NATIVE"}},
    {"FILL", 0, {"0x00"}},
    {"FILL", 0xa5, {"0xA5"}},
    {"FILL", 0xff, {"0XfF"}},
    {"FILL", BAD, {"", "0", "0x", "0x1", "0x123", "1x12", "0y12", "0xg1", "0x1g"}},
    /* STATS */
    {"STATS", 0, {"off"}},
    {"STATS", STATS_EXIT, {"exit", "EXIT"}},
    {"STATS", SIGUSR1 << 8, {"signal:USR1"}},
    {"STATS", SIGUSR2 << 8, {"signal:SIGUSR2"}},
    {"STATS", SIGHUP << 8, {"signal:sighup"}},
    {"STATS", SIGURG << 8, {"signal:URG"}},
    {"STATS", SIGIO << 8, {"signal:IO"}},
    {"STATS", SIGPWR << 8, {"signal:PWR"}},
    {"STATS", SIGWINCH << 8, {"signal:WINCH"}},
    {"STATS", 10 << 8, {"signal:10"}},
    {"STATS", 1 << 8, {"signal:1"}},
    {"STATS", 34 << 8, {"signal:34", "signal:RTMIN", "signal:SIGRTMIN+0"}},
    {"STATS", 64 << 8, {"signal:64", "signal:RTMIN+30"}},
    {"STATS", BAD, {"signal:65", "signal:33", "signal:010", "signal:9", "signal:0", "signal:11", "signal:KILL"}},
    {"STATS", BAD, {"signal:SEGV", "signal:32", "timer:1.5s", "exit signal:USR2", "signal:RTMIN+003", "signal:"}},
    {"STATS", BAD, {"signal:USR", "signal:USR11", "signal:RTMIN+31", "signal:RTMIN+300", "signal:RTMIN+"}},
    {"STATS", BAD, {"signal:RTMIN-1", "signal:RTMIN+x", "signal:RTMIN3", "timer:0", "timer:", "timer:s"}},
    {"STATS", BAD, {"timer:1000000", "timer:3d", "timer:3mm", "timer:-3", "exit,exit", "signal:USR1,signal:USR2"}},
    {"STATS", BAD, {"timer:1,timer:2", "timer:1,signal:USR1,exit,timer:2", "exit,", ",exit", "", "on", "exit,off"}},
    {"STATS", BAD, {"signal:SIGWINCHWINCHWINC", "signal:SIGWINCHWINCHWINCH", "timer:0000000000000000001"}},
    {"STATS", UINT64_C(5) << 32, {"Timer:5"}},
    {"STATS", 37 << 8, {"signal:RTMIN+3"}},
    {"STATS", UINT64_C(30) << 32, {"timer:30", "timer:30s"}},
    {"STATS", UINT64_C(300) << 32, {"timer:5m", "timer:5M"}},
    {"STATS", UINT64_C(7200) << 32, {"timer:2h"}},
    {"STATS", UINT64_C(3599996400) << 32, {"timer:999999h"}},
    {"STATS", UINT64_C(60) << 32 | SIGUSR1 << 8 | STATS_EXIT, {"exit,signal:USR1,timer:1m"}},
    {"STATS", UINT64_C(60) << 32 | STATS_EXIT, {"timer:1m,exit"}},
    /* STRING */
    {"TRACE_FILE", 0, {"", "anything |,%"}},
};

ISOLATED_CASE(test_values)
{
    for (const struct values *v = values; v < values + COUNT(values); v++) {
        for (const char *const *text = v->texts; *text; text++) {
            uint64_t number = BAD;
            const int rc = conf_parse(row_of(v->setting), *text, &number);

            if (rc != (v->number == BAD ? -EINVAL : 0) || number != v->number)
                fail_msg("%s=%s is %#llx (%d)", v->setting, *text, (unsigned long long)number, rc);
        }
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
    /* clang-format off */
    static const uint64_t numbers[] = {
        1, FREE_AUTO, BACKEND_CUDA, REGISTER_OFF, 10, HOOK_AUTO, 0, 10, 100, 10000, 0, 0, 0, 0, FILL_OFF, 0, 0,
        TRACE_SEGMENT, G, 0, 0, 0, 0, LOG_WARN, UNSET
    };
    /* clang-format on */

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
    {"CUPOOL_RANK=x",
     "2:CUPOOL_RANK has a value that is not accepted (a whole number from 0 to 999999999); using none\n"},
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
    {"CUPOOL_SLACK=x",
     "2:CUPOOL_SLACK has a value that is not accepted (percent, a whole number from 0 to 999999999); using 10\n"},
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
        {"CUPOOL_FREEXYZ", NULL}, /* three letters are wrong, and FREE has four */
        {"CUPOOL_TRACE", "CUPOOL_TRACE_FILE"},
        {"CUPOOL_STACKS", "CUPOOL_TRACE_STACKS"},
        {"CUPOOL_ACKS", NULL},
        {"CUPOOL_TRACE_", NULL},
        {"STACKS", NULL}, /* words of a name count behind the prefix alone */
        {"XSTACKS", NULL},
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
