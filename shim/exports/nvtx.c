/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvtx.c - ranges and marks of NVTX in the trace. NVTX is a header: each library that uses it has a copy, which at its
 * first call loads the tool that NVTX_INJECTION64_PATH names and calls its InitializeInjectionNvtx2. cupool-run --nvtx
 * puts this library's path there, unless a profiler's is there already; without it nothing here is ever called.
 *
 * A tool takes the place of "no tool", so pushes and pops return as without one. It knows no categories, colours,
 * payloads or names of resources.
 *
 * Threads: any thread. No locks but the trace's. Names of domains and registered strings are kept for good, because
 * NVTX lets a program use them at any time.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "exports/export.h"
#include "exports/nvtx_abi.h"
#include "trace/json.h"
#include "trace/trace.h"

#define TEXT_MAX 320 /* as the inside of a JSON string */

/* A domain, or a registered string; NULL stands for the default domain. */
struct name {
    char text[TEXT_MAX];
};

/* UTF-8 of a wide string, cut off where buf ends. */
static void narrow(char *buf, size_t len, const wchar_t *wide)
{
    size_t used = 0;

    for (; *wide && used + 5 <= len; wide++)
        used += json_utf8(buf + used, (uint32_t)*wide);
    buf[used] = '\0';
}

static void text_of(char buf[TEXT_MAX], const char *text, const wchar_t *wide)
{
    char utf8[TEXT_MAX];

    if (!text && wide) {
        narrow(utf8, sizeof(utf8), wide);
        text = utf8;
    }
    json_text(buf, TEXT_MAX, text ? text : "");
}

static void text_of_attributes(char buf[TEXT_MAX], const struct nvtx_attributes *a)
{
    const bool is_known = a && a->size >= NVTX_ATTRIBUTES_MIN;

    buf[0] = '\0';
    if (is_known && a->message_type == NVTX_MESSAGE_REGISTERED && a->message.registered)
        memcpy(buf, ((const struct name *)a->message.registered)->text, TEXT_MAX);
    else if (is_known && a->message_type == NVTX_MESSAGE_ASCII)
        text_of(buf, a->message.ascii, NULL);
    else if (is_known && a->message_type == NVTX_MESSAGE_UNICODE)
        text_of(buf, NULL, a->message.unicode);
}

/* NULL: no memory; the name is then empty, or the domain the default one. */
static struct name *name_keep(const char *text, const wchar_t *wide)
{
    struct name *name = malloc(sizeof(*name));

    if (name)
        text_of(name->text, text, wide);
    return name;
}

static const char *domain_text(const struct name *domain)
{
    return domain ? domain->text : "";
}

/* Before the first pooled request there is no trace, as for cupool_mark. */
static bool is_traced(void)
{
    return process_serves() && process_has_begun();
}

static void mark(const char *text)
{
    if (is_traced())
        trace_frequent("mark", "\"text\":\"%s\"", text);
}

/* id: 0 for a push, which the thread's next pop in this domain ends. */
static void begin(const struct name *domain, const char *text, uint64_t id)
{
    if (is_traced())
        trace_frequent("range_begin", "\"text\":\"%s\",\"domain\":\"%s\",\"range\":%llu", text, domain_text(domain),
                       (unsigned long long)id);
}

static void end(const struct name *domain, uint64_t id)
{
    if (is_traced())
        trace_frequent("range_end", "\"domain\":\"%s\",\"range\":%llu", domain_text(domain), (unsigned long long)id);
}

static uint64_t start(const struct name *domain, const char *text)
{
    static atomic_uint_fast64_t ids;
    const uint64_t id = atomic_fetch_add(&ids, 1) + 1;

    begin(domain, text, id);
    return id;
}

static int push(const struct name *domain, const char *text)
{
    begin(domain, text, 0);
    return NVTX_NO_TRACKING;
}

static int pop(const struct name *domain)
{
    end(domain, 0);
    return NVTX_NO_TRACKING;
}

/* NVTX's functions: of each three kinds of text, and of each one with a domain. */
/* clang-format off */
#define WITH_TEXT(text_from, call)                                                                                     \
    {                                                                                                                  \
        char text[TEXT_MAX];                                                                                           \
                                                                                                                       \
        text_from;                                                                                                     \
        call;                                                                                                          \
    }
#define FAMILY(type, verb, call, domain_call)                                                                          \
    static type verb##_a(const char *t) WITH_TEXT(text_of(text, t, NULL), call)                                        \
    static type verb##_w(const wchar_t *t) WITH_TEXT(text_of(text, NULL, t), call)                                     \
    static type verb##_ex(const struct nvtx_attributes *t) WITH_TEXT(text_of_attributes(text, t), call)                \
    static type verb##_domain(const struct name *domain, const struct nvtx_attributes *t)                              \
        WITH_TEXT(text_of_attributes(text, t), domain_call)

FAMILY(void, mark, mark(text), mark(text))
FAMILY(uint64_t, start, return start(NULL, text), return start(domain, text))
FAMILY(int, push, return push(NULL, text), return push(domain, text))
/* clang-format on */

static void range_end(uint64_t id)
{
    end(NULL, id);
}

static int range_pop(void)
{
    return pop(NULL);
}

static struct name *name_a(const char *text)
{
    return name_keep(text, NULL);
}

static struct name *name_w(const wchar_t *text)
{
    return name_keep(NULL, text);
}

static struct name *string_a(const struct name *domain, const char *text)
{
    return name_keep(text, NULL);
}

static struct name *string_w(const struct name *domain, const wchar_t *text)
{
    return name_keep(NULL, text);
}

struct row {
    int module;
    unsigned int number;
    nvtx_pointer function;
};

#define ROW(module, number, function)                                                                                  \
    {                                                                                                                  \
        NVTX_MODULE_##module, NVTX_##number, (nvtx_pointer)(function)                                                  \
    }

static const struct row rows[] = {
    ROW(CORE, MARK_EX, mark_ex),
    ROW(CORE, MARK_A, mark_a),
    ROW(CORE, MARK_W, mark_w),
    ROW(CORE, RANGE_START_EX, start_ex),
    ROW(CORE, RANGE_START_A, start_a),
    ROW(CORE, RANGE_START_W, start_w),
    ROW(CORE, RANGE_END, range_end),
    ROW(CORE, RANGE_PUSH_EX, push_ex),
    ROW(CORE, RANGE_PUSH_A, push_a),
    ROW(CORE, RANGE_PUSH_W, push_w),
    ROW(CORE, RANGE_POP, range_pop),
    ROW(CORE2, DOMAIN_MARK_EX, mark_domain),
    ROW(CORE2, DOMAIN_RANGE_START_EX, start_domain),
    ROW(CORE2, DOMAIN_RANGE_END, end),
    ROW(CORE2, DOMAIN_RANGE_PUSH_EX, push_domain),
    ROW(CORE2, DOMAIN_RANGE_POP, pop),
    ROW(CORE2, DOMAIN_REGISTER_STRING_A, string_a),
    ROW(CORE2, DOMAIN_REGISTER_STRING_W, string_w),
    ROW(CORE2, DOMAIN_CREATE_A, name_a),
    ROW(CORE2, DOMAIN_CREATE_W, name_w),
};

/* Called by a copy of NVTX at its first use. Returns 1; 0: the copy has no tool then, and its functions do nothing. */
int InitializeInjectionNvtx2(nvtx_export_table *get_export_table);
EXPORT int InitializeInjectionNvtx2(nvtx_export_table *get_export_table)
{
    const struct nvtx_callbacks *callbacks;

    if (!process_serves() || !get_export_table)
        return 0;
    callbacks = get_export_table(NVTX_TABLE_CALLBACKS);
    if (!callbacks || callbacks->size < sizeof(*callbacks) || !callbacks->get_table)
        return 0;
    for (unsigned int i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        nvtx_pointer **table = NULL;
        unsigned int size = 0;

        if (callbacks->get_table(rows[i].module, &table, &size) && table && rows[i].number < size &&
            table[rows[i].number])
            *table[rows[i].number] = rows[i].function;
    }
    return 1;
}
