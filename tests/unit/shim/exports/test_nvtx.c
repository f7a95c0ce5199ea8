/* SPDX-License-Identifier: Apache-2.0 */
/* test_nvtx.c - shim/exports/nvtx.c: which of NVTX's functions the library stands in for, and only where NVTX has them.
 * tests/e2e/test_nvtx.py has the effects of these. */
#include "base/process.h"
#include "exports/nvtx_abi.h"
#include "isolated.h"

#define FUNCTIONS 20 /* of both modules */
#define NUMBERS   16

int InitializeInjectionNvtx2(nvtx_export_table *get_export_table);

static nvtx_pointer functions[2][NUMBERS], *tables[2][NUMBERS];
static unsigned int asked, size;

static int get_table(int module, nvtx_pointer ***ret_table, unsigned int *ret_size)
{
    asked++;
    assert_true(module == NVTX_MODULE_CORE || module == NVTX_MODULE_CORE2);
    *ret_table = tables[module == NVTX_MODULE_CORE2];
    *ret_size = size;
    return 1;
}

static const void *exported(uint32_t id)
{
    static const struct nvtx_callbacks callbacks = {sizeof(callbacks), get_table};

    assert_int_equal(id, NVTX_TABLE_CALLBACKS);
    return &callbacks;
}

static unsigned int replaced(void)
{
    unsigned int count = 0;

    for (unsigned int i = 0; i < 2 * NUMBERS; i++)
        count += functions[i / NUMBERS][i % NUMBERS] != NULL;
    return count;
}

static void fill(unsigned int numbers)
{
    size = numbers;
    asked = 0;
    for (unsigned int i = 0; i < 2 * NUMBERS; i++) {
        functions[i / NUMBERS][i % NUMBERS] = NULL;
        tables[i / NUMBERS][i % NUMBERS] = &functions[i / NUMBERS][i % NUMBERS];
    }
}

ISOLATED_CASE(test_functions)
{
    fake_start();
    fill(NUMBERS);
    assert_int_equal(InitializeInjectionNvtx2(exported), 1);
    assert_int_equal(asked, FUNCTIONS); /* nothing behind the list */
    assert_int_equal(replaced(), FUNCTIONS);
    for (unsigned int i = 0; i < 2; i++) /* numbers count from 1 */
        assert_null(functions[i][0]);
}

/* An older NVTX has fewer, and no pointer where it lacks one. */
ISOLATED_CASE(test_older)
{
    fake_start();
    fill(NVTX_MARK_W + 1);
    tables[0][NVTX_MARK_A] = NULL;
    assert_int_equal(InitializeInjectionNvtx2(exported), 1);
    assert_int_equal(replaced(), 2 * NVTX_MARK_W - 1);
}

ISOLATED_CASE(test_off, .environment = "CUPOOL_ENABLE=0")
{
    fake_start();
    fill(NUMBERS);
    assert_int_equal(InitializeInjectionNvtx2(exported), 0);
    assert_int_equal(InitializeInjectionNvtx2(NULL), 0);
    assert_int_equal(asked, 0);
}

/* --- what it cannot use --- */

static struct nvtx_callbacks callbacks;
static bool table_refused, table_none;

static const void *exported_callbacks(uint32_t id)
{
    return id == NVTX_TABLE_CALLBACKS && callbacks.size ? &callbacks : NULL;
}

static int get_table_or_not(int module, nvtx_pointer ***ret_table, unsigned int *ret_size)
{
    get_table(module, ret_table, ret_size);
    if (table_none)
        *ret_table = NULL;
    return !table_refused;
}

/* A copy of NVTX that does not give its tables, or has a shorter list of callbacks, is left alone. */
ISOLATED_CASE(test_useless)
{
    const struct {
        size_t size;
        bool none, refused, table_none;
        int result;
        unsigned int replaced;
    } rows[] = {
        {.size = sizeof(callbacks), .result = 1, .replaced = FUNCTIONS},
        {.size = sizeof(callbacks) + 8, .result = 1, .replaced = FUNCTIONS},
        {.size = sizeof(callbacks) - 1},
        {.size = sizeof(callbacks), .none = true},
        {.size = 0},
        {.size = sizeof(callbacks), .refused = true, .result = 1},
        {.size = sizeof(callbacks), .table_none = true, .result = 1},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        fake_start();
        fill(NUMBERS);
        callbacks = (struct nvtx_callbacks){rows[i].size, rows[i].none ? NULL : get_table_or_not};
        table_refused = rows[i].refused;
        table_none = rows[i].table_none;
        assert_int_equal(InitializeInjectionNvtx2(exported_callbacks), rows[i].result);
        assert_int_equal(replaced(), rows[i].replaced);
    }
    assert_int_equal(InitializeInjectionNvtx2(NULL), 0);
}

/* --- what is traced --- */

#define CORE(number, type)  ((type)functions[0][NVTX_##number])
#define CORE2(number, type) ((type)functions[1][NVTX_##number])
typedef void (*mark_text)(const char *text);
typedef void (*mark_wide)(const wchar_t *text);
typedef void (*mark_attributes)(const struct nvtx_attributes *text);
typedef void (*mark_in_domain)(const void *domain, const struct nvtx_attributes *text);
typedef uint64_t (*start_text)(const char *text);
typedef uint64_t (*start_in_domain)(const void *domain, const struct nvtx_attributes *text);
typedef void (*end_range)(uint64_t range);
typedef void (*end_in_domain)(const void *domain, uint64_t range);
typedef int (*push_text)(const char *text);
typedef int (*push_in_domain)(const void *domain, const struct nvtx_attributes *text);
typedef int (*pop_range)(void);
typedef int (*pop_in_domain)(const void *domain);
typedef const void *(*name_text)(const char *text);
typedef const void *(*name_wide)(const wchar_t *text);
typedef const void *(*string_text)(const void *domain, const char *text);

static void all_call(void)
{
    struct nvtx_attributes attributes = {
        .version = 3, .size = sizeof(attributes), .message_type = NVTX_MESSAGE_ASCII, .message = {.ascii = "ex"}};
    const void *domain = CORE2(DOMAIN_CREATE_A, name_text)("domain");
    uint64_t range;

    CORE(MARK_A, mark_text)("a \"mark\"");
    CORE(MARK_W, mark_wide)(L"wide \u00e9");
    CORE(MARK_EX, mark_attributes)(&attributes);
    range = CORE(RANGE_START_A, start_text)("range");
    CORE(RANGE_END, end_range)(range);
    assert_int_equal(CORE(RANGE_PUSH_A, push_text)("push"), NVTX_NO_TRACKING);
    assert_int_equal(CORE(RANGE_POP, pop_range)(), NVTX_NO_TRACKING);
    attributes.message_type = NVTX_MESSAGE_UNICODE;
    attributes.message.unicode = L"wide";
    CORE2(DOMAIN_MARK_EX, mark_in_domain)(domain, &attributes);
    range = CORE2(DOMAIN_RANGE_START_EX, start_in_domain)(domain, &attributes);
    CORE2(DOMAIN_RANGE_END, end_in_domain)(domain, range);
    attributes.message_type = NVTX_MESSAGE_REGISTERED;
    attributes.message.registered = CORE2(DOMAIN_REGISTER_STRING_A, string_text)(domain, "string");
    domain = CORE2(DOMAIN_CREATE_W, name_wide)(L"other");
    assert_int_equal(CORE2(DOMAIN_RANGE_PUSH_EX, push_in_domain)(domain, &attributes), NVTX_NO_TRACKING);
    assert_int_equal(CORE2(DOMAIN_RANGE_POP, pop_in_domain)(domain), NVTX_NO_TRACKING);
    attributes.size--; /* of another version */
    CORE(MARK_EX, mark_attributes)(&attributes);
    attributes.size += 2;
    attributes.message_type = NVTX_MESSAGE_NONE;
    CORE(MARK_EX, mark_attributes)(&attributes);
    CORE(MARK_EX, mark_attributes)(NULL);
    CORE(MARK_A, mark_text)(NULL);
}

/* Before the first pooled request there is no trace. */
ISOLATED_CASE(test_traced)
{
    fake_start();
    fill(NUMBERS);
    assert_int_equal(InitializeInjectionNvtx2(exported), 1);
    all_call();
    assert_string_equal(fake.traced, "");
    process_start();
    all_call();
    assert_string_equal(fake.traced, "mark:\"text\":\"a \\\"mark\\\"\"\n"
                                     "mark:\"text\":\"wide \u00e9\"\n"
                                     "mark:\"text\":\"ex\"\n"
                                     "range_begin:\"text\":\"range\",\"domain\":\"\",\"range\":3\n"
                                     "range_end:\"domain\":\"\",\"range\":3\n"
                                     "range_begin:\"text\":\"push\",\"domain\":\"\",\"range\":0\n"
                                     "range_end:\"domain\":\"\",\"range\":0\n"
                                     "mark:\"text\":\"wide\"\n"
                                     "range_begin:\"text\":\"wide\",\"domain\":\"domain\",\"range\":4\n"
                                     "range_end:\"domain\":\"domain\",\"range\":4\n"
                                     "range_begin:\"text\":\"string\",\"domain\":\"other\",\"range\":0\n"
                                     "range_end:\"domain\":\"other\",\"range\":0\n"
                                     "mark:\"text\":\"\"\n"
                                     "mark:\"text\":\"\"\n"
                                     "mark:\"text\":\"\"\n"
                                     "mark:\"text\":\"\"\n");
}
