/* SPDX-License-Identifier: Apache-2.0 */
/* test_combiner.c - threads that free together: one orders for the others, for nobody whom it does not cover, and
 * nobody depends on it. shim/context/free_order.c alone, with a driver that is made up here. */
#include <semaphore.h>

#include "base/log.h"
#include "cases.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/free_order.h"
#include "context/registry.h"
#include "context/wait_context.h"
#include "give_way.h"

#define THREADS 8
#define FREES   3000
#define EVENTS  256

/* --- a driver --- */

static struct {
    _Atomic(uint64_t) clock;   /* of what happens, in order */
    _Atomic(uint64_t) covered; /* what came before this is in order */
    atomic_uint records, waits, tries, events, asked, others_asked;
    atomic_uint not_ready;                 /* so often event 1 is not */
    atomic_bool slow;                      /* what is launched is over one after the other: */
    _Atomic(uint64_t) over;                /* up to here */
    _Atomic(uint64_t) recorded_at[EVENTS]; /* by event: what it comes after */
    atomic_bool fails;                     /* now and then */
    atomic_bool blocks;
    sem_t blocked, go_on;
} fake;

static __thread uint64_t recorded; /* when this thread's record began */

static uint64_t now(void)
{
    return atomic_fetch_add(&fake.clock, 1) + 1;
}

static void cover(uint64_t begun)
{
    uint64_t covered = atomic_load(&fake.covered);

    while (covered < begun && !atomic_compare_exchange_weak(&fake.covered, &covered, begun))
        ;
}

static CUresult fake_get_current(CUcontext *handle)
{
    *handle = (CUcontext)&fake;
    return CUDA_SUCCESS;
}

static CUresult fake_event_create(CUevent *event, unsigned int flags)
{
    *event = (CUevent)(uintptr_t)(atomic_fetch_add(&fake.events, 1) + 1 + 0 * flags);
    return CUDA_SUCCESS;
}

static bool goes_wrong(unsigned int part)
{
    return atomic_load(&fake.fails) && atomic_fetch_add(&fake.tries, 1) % part == 0;
}

static CUresult fake_record(CUcontext handle, CUevent event)
{
    assert_ptr_equal(handle, &fake);
    assert_non_null(event);
    recorded = now();
    atomic_store(&fake.recorded_at[(uintptr_t)event % EVENTS], recorded);
    atomic_fetch_add(&fake.records, 1);
    if (atomic_exchange(&fake.blocks, false)) {
        sem_post(&fake.blocked);
        sem_wait(&fake.go_on);
    }
    give_way_at_times();
    return goes_wrong(3) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult fake_wait(CUcontext handle, CUevent event)
{
    assert_ptr_equal(handle, &fake);
    assert_non_null(event);
    cover(recorded);
    return CUDA_SUCCESS;
}

static CUresult fake_synchronize(void)
{
    const uint64_t begun = now();

    atomic_fetch_add(&fake.waits, 1);
    if (atomic_load(&fake.fails) && !goes_wrong(4)) /* mostly, since it is tried twice */
        return CUDA_ERROR_OUT_OF_MEMORY;
    cover(begun);
    return CUDA_SUCCESS;
}

static CUresult fake_query(CUevent event)
{
    const uint64_t until = atomic_load(&fake.recorded_at[(uintptr_t)event % EVENTS]);
    uint64_t over = atomic_load(&fake.over), next = over + 20 < until ? over + 20 : until;

    assert_non_null(event);
    if (atomic_load(&fake.slow)) { /* the device gets on as long as somebody asks */
        while (over < next && !atomic_compare_exchange_weak(&fake.over, &over, next))
            ;
        return atomic_load(&fake.over) < until ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    }
    if (event != (CUevent)1) {
        atomic_fetch_add(&fake.others_asked, 1);
        return CUDA_SUCCESS;
    }
    return atomic_fetch_add(&fake.asked, 1) < atomic_load(&fake.not_ready) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static const struct real_driver driver = {.cuCtxGetCurrent = fake_get_current,
                                          .cuEventCreate = fake_event_create,
                                          .cuCtxRecordEvent = fake_record,
                                          .cuCtxWaitEvent = fake_wait,
                                          .cuEventQuery = fake_query,
                                          .cuCtxSynchronize = fake_synchronize};

/* --- what free_order.c asks of the rest of the library --- */

static struct context context;
static atomic_bool waits;

atomic_uint capture_count, capture_total;

bool context_stays(const struct context *of)
{
    return true;
}

bool policy_waits(const struct policy *policy, uint64_t *ret_debts)
{
    *ret_debts = 0;
    return policy && atomic_load(&waits);
}

bool policy_is_strict(const struct policy *policy)
{
    return policy && atomic_load(&waits);
}

void policy_waited_add(const struct policy *policy)
{
}

void policy_synced(struct policy *policy, uint64_t debts)
{
    assert_true(policy && !debts);
}

bool capture_active_now(void)
{
    return capture_active();
}

CUcontext context_handle(const struct context *of)
{
    return atomic_load(&of->handle);
}

const struct real_driver *real_driver_get(void)
{
    return &driver;
}

struct context *context_find(CUcontext handle)
{
    return handle ? &context : NULL;
}

struct contexts contexts;
__thread unsigned int context_endings;

bool context_pin(struct context *of)
{
    return of == &context;
}

bool context_pin_staying_once(struct context *of)
{
    return context_pin(of);
}

CUcontext capture_close(CUstream stream)
{
    return NULL;
}

void context_unpin(struct context *of)
{
}

void context_changed(void)
{
}

void pool_defer_never(struct pool *pool)
{
}

void log_write(enum conf_log_level level, const char *format, ...)
{
}

/* --- tests --- */

static int setup(void **state)
{
    memset(&fake, 0, sizeof(fake));
    memset(&context, 0, sizeof(context));
    sem_init(&fake.blocked, 0, 0);
    sem_init(&fake.go_on, 0, 0);
    atomic_store(&context.handle, (CUcontext)&fake);
    atomic_store(&context.pool, (struct pool *)&fake);
    atomic_store(&contexts.entries[0], &context);
    atomic_store(&contexts.count, 1);
    context.driver = &driver;
    atomic_store(&waits, false);
    atomic_store(&capture_count, 0);
    return 0;
}

/* How many of a thread's frees were in order, and how many were said to be and were not. */
struct told {
    unsigned int ordered, wrong;
};

static void *frees(void *arg)
{
    struct told *told = arg;

    for (unsigned int i = 0; i < FREES; i++) {
        const uint64_t launched = now();

        if (order_ops.order(&context, POOL_ORDER_FREE))
            continue;
        told->ordered++;
        told->wrong += atomic_load(&fake.covered) < launched;
    }
    return NULL;
}

static struct told together(void *(*each)(void *))
{
    struct told told[THREADS] = {{0}}, sum = {0};
    pthread_t threads[THREADS];

    for (unsigned int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, each, &told[i]), 0);
    for (unsigned int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum.ordered += told[i].ordered;
        sum.wrong += told[i].wrong;
    }
    return sum;
}

CASE_WITH(test_one_orders_for_others, setup, NULL)
{
    const struct told told = together(frees);

    assert_int_equal(told.wrong, 0);
    assert_int_equal(told.ordered, THREADS * FREES);
    assert_true(atomic_load(&fake.records) < THREADS * FREES);
    assert_int_equal(atomic_load(&fake.waits), 0);
}

CASE_WITH(test_nobody_follows_what_failed, setup, NULL)
{
    struct told told;

    atomic_store(&fake.fails, true);
    told = together(frees);
    assert_int_equal(told.wrong, 0);
    assert_in_range(told.ordered, 1, THREADS * FREES - 1);
}

/* A capture is under way: nothing is recorded, and nobody is told that something was. */
CASE_WITH(test_nobody_follows_beside_a_capture, setup, NULL)
{
    atomic_store(&capture_count, 1);
    assert_int_equal(together(frees).ordered, 0);
    assert_int_equal(atomic_load(&fake.records), 0);
}

CASE_WITH(test_who_waits_waits_himself, setup, NULL)
{
    atomic_store(&waits, true);
    assert_int_equal(together(frees).wrong, 0);
    assert_int_equal(atomic_load(&fake.waits), THREADS * FREES);
}

static void *one(void *arg)
{
    struct told *told = arg;

    told->wrong += order_ops.order(&context, POOL_ORDER_FREE) != 0;
    told->ordered++;
    return NULL;
}

CASE_WITH(test_nobody_depends_on_who_leads, setup, NULL)
{
    struct told told = {0};
    pthread_t thread;

    atomic_store(&fake.blocks, true);
    assert_int_equal(pthread_create(&thread, NULL, one, &told), 0);
    sem_wait(&fake.blocked);
    for (int i = 0; i < 3; i++)
        assert_int_equal(order_ops.order(&context, POOL_ORDER_FREE), 0);
    assert_int_equal(atomic_load(&fake.records), 4);
    sem_post(&fake.go_on);
    pthread_join(thread, NULL);
    assert_int_equal(told.ordered, 1);
    assert_int_equal(told.wrong, 0);
}

static void *look(void *arg)
{
    assert_true(arg && context_wait_frees(CONTEXT_ALL, /* others: */ false));
    return NULL;
}

static void *look_at_all(void *arg)
{
    assert_true(arg && context_wait_frees(CONTEXT_ALL, /* others: */ true));
    return NULL;
}

/* A thread that asks which work came before its frees waits for the turn that ordered the last of them, as long as it
 * takes, and not for frees that others have ordered since; a thread without frees does not wait. */
CASE_WITH(test_what_came_before_ones_frees, setup, NULL)
{
    struct told told = {0};
    pthread_t thread;

    one(&told);
    assert_int_equal(pthread_create(&thread, NULL, look, &told), 0);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&fake.asked), 0);
    assert_int_equal(pthread_create(&thread, NULL, one, &told), 0);
    pthread_join(thread, NULL);
    atomic_store(&fake.not_ready, 3000);
    look(&told);
    assert_int_equal(atomic_load(&fake.asked), 3001);
    assert_int_equal(atomic_load(&fake.others_asked), 0);
    look(&told); /* that is known by now */
    assert_int_equal(atomic_load(&fake.asked), 3001);
    assert_int_equal(told.wrong, 0);
}

static void *frees_and_looks(void *arg)
{
    struct told *told = arg;

    for (unsigned int i = 0; i < FREES / 10; i++) {
        const uint64_t launched = now();

        told->wrong += order_ops.order(&context, POOL_ORDER_FREE) != 0;
        for (unsigned int k = 0; k < i % 8; k++)
            give_way_at_times(); /* others order meanwhile */
        look(told);
        told->wrong += atomic_load(&fake.over) < launched;
        told->ordered++;
    }
    return NULL;
}

/* Many threads wait so, for any thread that has ordered the free and however often it has ordered since. */
CASE_WITH(test_what_came_before_frees_together, setup, NULL)
{
    atomic_store(&fake.slow, true);
    assert_int_equal(together(frees_and_looks).wrong, 0);
}

/* A thread that makes a device strict sees every order, finished or not. */
CASE_WITH(test_what_came_before_everybodys_frees, setup, NULL)
{
    struct told told = {0};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, one, &told), 0);
    pthread_join(thread, NULL);
    atomic_store(&fake.not_ready, 100);
    assert_int_equal(pthread_create(&thread, NULL, look_at_all, &told), 0);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&fake.asked), 101);
}

/* Turns that record nothing, beside a capture or because they wait on the host, hide none that has recorded. */
CASE_WITH(test_what_came_before_is_not_forgotten, setup, NULL)
{
    struct told told = {0};
    pthread_t thread;

    one(&told);
    for (unsigned int i = 0; i < 2; i++) {
        atomic_store(&capture_count, i == 0);
        atomic_store(&waits, i == 1);
        one(&told);
    }
    atomic_store(&capture_count, 0);
    atomic_store(&fake.not_ready, 100);
    assert_int_equal(pthread_create(&thread, NULL, look_at_all, &told), 0);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&fake.asked), 101);
}
