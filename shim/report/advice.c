/* SPDX-License-Identifier: Apache-2.0 */
/* advice.c - see advice.h. No locks. */
#include "report/advice.h"

#include <stdio.h>
#include <string.h>

#include "base/conf_types.h"

/* Fewer frees, operations or requests than this are no reason to change a setting. */
#define MANY 100
/* A program that gets its memory from PyTorch's cache asks for less. */
#define TORCH_FEW 10000
/* Memory that has gone back so many times over is memory that goes back and comes again in turn. */
#define DECAY_TURNS 4
/* The driver's refusals, each of which gives all idle memory back. */
#define REFUSED_MANY 10

/* The values of {n}, {of} and {why} in the text of a rule. */
struct values {
    uint64_t n, of;
    const char *why;
};

static bool nccl_refused(const struct advice_facts *f, struct values *v)
{
    *v = (struct values){.n = f->nccl_failed, .of = f->nccl_failed + f->nccl_registered};
    return f->nccl_failed && f->nccl_failed >= f->nccl_registered && f->backend == BACKEND_CUDA;
}

static bool nccl_unseen(const struct advice_facts *f, struct values *v)
{
    (void)v;
    return f->has_nccl && !f->nccl_ops;
}

static bool nccl_outside(const struct advice_facts *f, struct values *v)
{
    *v = (struct values){.n = f->nccl_unregistered, .of = f->nccl_ops};
    return f->registration != REGISTER_USE && f->nccl_ops >= MANY && f->nccl_unregistered > f->nccl_ops / 2;
}

static bool hook_runtime(const struct advice_facts *f, struct values *v)
{
    (void)v;
    return f->hook == HOOK_RUNTIME && !f->allocs;
}

static bool torch_cache(const struct advice_facts *f, struct values *v)
{
    *v = (struct values){.n = f->allocs};
    return f->has_torch && f->torch_caches && f->allocs < TORCH_FEW;
}

static bool limit(const struct advice_facts *f, struct values *v)
{
    *v = (struct values){.n = f->bypassed, .of = f->bypassed + f->allocs};
    return f->limit && f->held_most >= f->limit / 2 && f->bypassed >= MANY && f->bypassed >= v->of / 10;
}

/* Most frees waited on the host. */
static bool waits(const struct advice_facts *f, struct values *v)
{
    *v = (struct values){.n = f->waited, .of = f->frees, .why = f->why};
    if (!f->why)
        v->why = "work that touches host memory";
    return f->frees >= MANY && f->waited > f->frees / 2;
}

static bool wait_old_driver(const struct advice_facts *f, struct values *v)
{
    return waits(f, v) && !f->orders && f->free != FREE_STRICT;
}

static bool wait_hook(const struct advice_facts *f, struct values *v)
{
    return waits(f, v) && f->free == FREE_AUTO && f->hook == HOOK_RUNTIME;
}

static bool wait_strict(const struct advice_facts *f, struct values *v)
{
    return waits(f, v) && f->orders && f->free == FREE_STRICT;
}

static bool wait_auto(const struct advice_facts *f, struct values *v)
{
    return waits(f, v) && f->free == FREE_AUTO;
}

static bool decay(const struct advice_facts *f, struct values *v)
{
    *v = (struct values){.n = f->decayed >> 20, .of = f->decay};
    return f->held && f->decayed >= DECAY_TURNS * f->held;
}

/* Memory from NCCL, or registered with it, goes back on request alone. */
static bool refused(const struct advice_facts *f, struct values *v)
{
    *v = (struct values){.n = f->refused};
    return f->refused >= REFUSED_MANY && f->decay > 1 && f->backend != BACKEND_NCCL && f->registration == REGISTER_OFF;
}

static const struct rule {
    bool (*fits)(const struct advice_facts *f, struct values *v);
    const char *text;
} rules[] = {
#define ADVICE(name, when, text) {name, text},
#include "report/advice.def"
#undef ADVICE
};

/* Copy text, with the values in their places. */
static void expand(const char *text, const struct values *v, char *to, size_t len)
{
    size_t used = 0;

    while (*text && used + 1 < len) {
        size_t plain = strcspn(text, "{");

        if (plain)
            used += (size_t)snprintf(to + used, len - used, "%.*s", (int)plain, text);
        else if (strncmp(text, "{n}", 3) == 0)
            used += (size_t)snprintf(to + used, len - used, "%llu", (unsigned long long)v->n);
        else if (strncmp(text, "{of}", 4) == 0)
            used += (size_t)snprintf(to + used, len - used, "%llu", (unsigned long long)v->of);
        else
            used += (size_t)snprintf(to + used, len - used, "%s", v->why ? v->why : "");
        text += plain ? plain : strcspn(text, "}") + 1;
    }
}

bool advice_text(const struct advice_facts *facts, char *text, size_t len)
{
    text[0] = '\0';
    for (unsigned int i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        struct values values = {0};

        if (rules[i].fits(facts, &values)) {
            expand(rules[i].text, &values, text, len);
            return true;
        }
    }
    return false;
}
