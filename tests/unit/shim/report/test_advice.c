/* SPDX-License-Identifier: Apache-2.0 */
/* test_advice.c - shim/report/advice.c: each rule of advice.def, at its limit and just beyond it, and the order of the
 * rules. The end-to-end test `stats` has where the facts come from. */

#include "base/conf_types.h"
#include "cases.h"
#include "report/advice.h"

/* A run that went well, of a program with every counter at work. */
#define FINE                                                                                                           \
    .free = FREE_AUTO, .backend = BACKEND_CUDA, .registration = REGISTER_OFF, .hook = HOOK_AUTO, .decay = 10,          \
    .allocs = 50000, .frees = 50000, .waited = 25000, .orders = true, .held = 400 << 20, .held_most = 200 << 20,       \
    .decayed = (1600u << 20) - 1, .refused = 9, .bypassed = 99, .has_torch = true, .torch_caches = true
#define REGISTERED                                                                                                     \
    FINE, .registration = REGISTER_ON, .has_nccl = true, .nccl_ops = 1000, .nccl_unregistered = 500,                   \
          .nccl_registered = 10, .nccl_failed = 9

#pragma GCC diagnostic ignored "-Woverride-init"
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winitializer-overrides"
#endif

static const struct one {
    struct advice_facts facts;
    const char *begins; /* the advice; "": none */
} ones[] = {
    {{0}, ""},
    {{FINE}, ""},
    {{REGISTERED}, ""},

    {{REGISTERED, .nccl_failed = 10}, "NCCL refused 10 of 20 registrations."},
    {{REGISTERED, .nccl_failed = 1, .nccl_registered = 0}, "NCCL refused 1 of 1 registrations."},
    {{REGISTERED, .nccl_failed = 10, .backend = BACKEND_NCCL}, ""},
    {{REGISTERED, .nccl_failed = 0, .nccl_registered = 0}, ""},

    {{REGISTERED, .nccl_ops = 0, .nccl_unregistered = 0}, "CUPOOL_REGISTER had no effect: NCCL is loaded"},
    {{REGISTERED, .nccl_ops = 1, .nccl_unregistered = 0}, ""},
    {{REGISTERED, .nccl_ops = 0, .nccl_unregistered = 0, .has_nccl = false}, ""},

    {{REGISTERED, .nccl_unregistered = 501}, "501 of 1000 NCCL operations had a buffer that is not registered:"},
    {{REGISTERED, .nccl_ops = 100, .nccl_unregistered = 51}, "51 of 100 NCCL"},
    {{REGISTERED, .nccl_ops = 99, .nccl_unregistered = 99}, ""},
    {{REGISTERED, .nccl_unregistered = 501, .registration = REGISTER_FORCE}, "501 of 1000 NCCL"},
    {{REGISTERED, .nccl_unregistered = 501, .registration = REGISTER_USE}, ""},

    {{FINE, .allocs = 0, .hook = HOOK_RUNTIME, .has_torch = false}, "CUPOOL_HOOK=runtime catches only calls of a shar"},
    {{FINE, .allocs = 1, .hook = HOOK_RUNTIME, .has_torch = false}, ""},
    {{FINE, .allocs = 0, .has_torch = false}, ""},

    {{FINE, .allocs = 9999},
     "PyTorch serves its tensors from a cache of its own and asked for memory 9999 times: set "
     "PYTORCH_NO_CUDA_MEMORY_CACHING=1 to have cupool serve them"},
    {{FINE, .allocs = 0}, "PyTorch serves its tensors from a cache of its own and asked for memory 0 times"},
    {{FINE, .allocs = 10000}, ""},
    {{FINE, .allocs = 9999, .torch_caches = false}, ""},
    {{FINE, .allocs = 9999, .has_torch = false}, ""},

    {{FINE, .limit = 400 << 20, .allocs = 900, .bypassed = 100, .has_torch = false},
     "100 of 1000 requests went to the"},
    {{FINE, .limit = 400 << 20, .allocs = 901, .bypassed = 99, .has_torch = false}, ""},
    {{FINE, .limit = 400 << 20, .allocs = 1000, .bypassed = 110, .has_torch = false}, ""},
    {{FINE, .limit = (400 << 20) + 2, .allocs = 900, .bypassed = 100, .has_torch = false}, ""},
    {{FINE, .limit = 0, .allocs = 900, .bypassed = 100, .has_torch = false}, ""},

    {{FINE, .waited = 25001},
     "25001 of 50000 frees waited on the host, because of work that touches host memory: try "
     "CUPOOL_FREE=ordered if the program synchronises before its host reads results"},
    {{FINE, .waited = 25001, .why = "peer access"},
     "25001 of 50000 frees waited on the host, because of peer access: "},
    {{FINE, .waited = 100, .frees = 100}, "100 of 100 frees waited on the host, because of work"},
    {{FINE, .waited = 99, .frees = 99}, ""},
    {{FINE, .waited = 25001, .free = FREE_STRICT},
     "25001 of 50000 frees waited on the host, because of CUPOOL_FREE=str"},
    {{FINE, .waited = 25001, .free = FREE_STRICT, .orders = false}, ""},
    {{FINE, .waited = 25001, .orders = false}, "25001 of 50000 frees waited on the host, because the driver is older "},
    {{FINE, .waited = 25001, .free = FREE_ORDERED, .orders = false},
     "25001 of 50000 frees waited on the host, because "},
    {{FINE, .waited = 25001, .free = FREE_ORDERED}, ""},
    {{FINE, .waited = 25001, .hook = HOOK_RUNTIME},
     "25001 of 50000 frees waited on the host, because CUPOOL_HOOK=runt"},
    {{FINE, .waited = 25001, .hook = HOOK_RUNTIME, .free = FREE_RELAXED}, ""},

    {{FINE, .decayed = 1600u << 20},
     "1600 MiB went back after 10 s of idleness (CUPOOL_DECAY) and were asked for again"},
    {{FINE, .decayed = 1600u << 20, .held = 0}, ""},

    {{FINE, .refused = 10},
     "the driver refused the pool memory 10 times, and all idle memory went back each time: set "
     "CUPOOL_DECAY=1, so that it goes back earlier"},
    {{FINE, .refused = 10, .decay = UINT64_MAX}, "the driver refused"},
    {{FINE, .refused = 10, .decay = 2}, "the driver refused"},
    {{FINE, .refused = 10, .decay = 1}, ""},
    {{FINE, .refused = 10, .backend = BACKEND_NCCL}, ""},
    {{FINE, .refused = 10, .backend = BACKEND_VMM}, "the driver refused"},
    {{REGISTERED, .refused = 10}, ""},

    /* The rules' order. */
    {{FINE, .refused = 10, .decayed = 1600u << 20, .waited = 25001}, "25001 of 50000 frees"},
    {{FINE, .refused = 10, .decayed = 1600u << 20}, "1600 MiB went back"},
    {{FINE, .allocs = 9999, .waited = 25001}, "PyTorch"},
    {{REGISTERED, .allocs = 9999, .nccl_unregistered = 501}, "501 of 1000"},
};

UNIT_CASE(test_rules)
{
    char text[400];

    for (unsigned int i = 0; i < sizeof(ones) / sizeof(ones[0]); i++) {
        const bool there = advice_text(&ones[i].facts, text, sizeof(text));

        if (there != (ones[i].begins[0] != '\0') || strncmp(text, ones[i].begins, strlen(ones[i].begins)) != 0)
            fail_msg("row %u: '%s' in place of '%s'", i, text, ones[i].begins);
        assert_null(strpbrk(text, "{}"));
    }
}

/* Every text fits into a line of the table, and none is written beyond its room. */
UNIT_CASE(test_room)
{
    const struct advice_facts facts = {FINE, .waited = 25001, .why = "peer access"};
    char text[400];

    assert_true(advice_text(&facts, text, sizeof(text)));
    for (size_t len = 1; len <= strlen(text); len++) {
        char room[400];

        memset(room, 'x', sizeof(room));
        assert_true(advice_text(&facts, room, len));
        assert_int_equal(strlen(room), len - 1);
        assert_memory_equal(room, text, len - 1);
        assert_int_equal(room[len], 'x');
    }
}
