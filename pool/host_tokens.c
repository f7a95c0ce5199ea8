/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_tokens.c - which frees are complete; see struct host_pool for epochs. It owns the tokens that ops->record
 * returned until it drops them.
 *
 * A token that is over proves that all earlier ones are: it was recorded after them, and covers every context that they
 * cover, unless a context has ended, and its work with it.
 *
 * Locking: host_internal.h says which functions take the pool's lock; calls ops->record, query, wait and drop without
 * it.
 */
#include "host_internal.h"

/* How often a request that waits for the combiner looks for news: 10 us and longer, see lock_relax. */
#define NEWS_LOOKS 200u

/* The calling thread's last free: see host_last_free_set. No pool gets the address of an earlier one. */
static __thread struct {
    const struct host_pool *pool;
    uint64_t epoch;
} last_free __attribute__((tls_model("initial-exec")));

/* With the lock: a token that is in no list. Dropped now, or by its last user. */
static void token_remove(struct host_pool *pool, struct host_token *token, struct host_drops *drops)
{
    token->gone = true;
    if (token->users)
        return;
    drops->tokens[drops->count++] = token->token;
    token->next = pool->unused_token;
    pool->unused_token = token;
}

void host_drops_run(struct host_pool *pool, struct host_drops *drops)
{
    for (unsigned int i = 0; i < drops->count; i++)
        pool->ops->drop(pool->arg, drops->tokens[i]);
    drops->count = 0;
}

/* With the lock: drop every second token, but not the last one. The next one covers what it has covered. */
static void tokens_thin(struct host_pool *pool, struct host_drops *drops)
{
    for (struct host_token **link = &pool->first_token; *link && (*link)->next; link = &(*link)->next) {
        struct host_token *token = *link;

        *link = token->next;
        token_remove(pool, token, drops);
    }
}

/* With the lock: enter a token. False: there are too many that threads are asking about. */
static bool token_enter(struct host_pool *pool, uint64_t value, uint64_t epoch, struct host_drops *drops)
{
    struct host_token **link = &pool->first_token, *token;

    if (!pool->unused_token)
        tokens_thin(pool, drops);
    token = pool->unused_token;
    if (!token)
        return false;
    pool->unused_token = token->next;
    while (*link && (*link)->epoch < epoch)
        link = &(*link)->next;
    *token = (struct host_token){.token = value, .epoch = epoch, .next = *link};
    *link = token;
    return true;
}

uint64_t host_tokens_begin(struct host_pool *pool)
{
    pool->unrecorded = 0;
    return pool->epoch++;
}

/* Record the token of an epoch that has ended, and take the lock. */
static int record_locked(struct host_pool *pool, uint64_t epoch, struct host_drops *drops)
{
    uint64_t token;
    int rc = pool->ops->record(pool->arg, &token);

    lock_take(&pool->lock);
    if (!rc && !token_enter(pool, token, epoch, drops)) {
        drops->tokens[drops->count++] = token;
        rc = -EBUSY;
    }
    return rc;
}

int host_tokens_record(struct host_pool *pool, uint64_t epoch)
{
    struct host_drops drops;
    int rc;

    drops.count = 0;
    rc = record_locked(pool, epoch, &drops);
    lock_give(&pool->lock);
    host_drops_run(pool, &drops);
    return rc;
}

/* With the lock: the first token that covers this stamp, or NULL. */
static struct host_token *token_find(const struct host_pool *pool, uint64_t stamp)
{
    struct host_token *token = pool->first_token;

    while (token && token->epoch < stamp)
        token = token->next;
    return token;
}

/* With the lock: with a reference, which token_leave gives back. newest: the last one that covers it. */
static struct host_token *token_use(const struct host_pool *pool, uint64_t stamp, bool newest)
{
    struct host_token *token = token_find(pool, stamp);

    while (newest && token && token->next)
        token = token->next;
    if (token)
        token->users++;
    return token;
}

/* With the lock: take out tokens that are over, too. */
static void token_leave(struct host_pool *pool, struct host_token *token, bool over, struct host_drops *drops)
{
    if (over && pool->done < token->epoch)
        pool->done = token->epoch;
    if (--token->users == 0 && token->gone)
        token_remove(pool, token, drops);
    while (pool->first_token && host_is_done(pool, pool->first_token->epoch)) {
        struct host_token *first = pool->first_token;

        pool->first_token = first->next;
        token_remove(pool, first, drops);
    }
}

/* With the lock: there is no combiner any more. */
static void combiner_ends(struct host_pool *pool)
{
    pool->combining = false;
    atomic_fetch_add_explicit(&pool->news, 1, memory_order_release);
}

/* With the lock, which is released meanwhile: ask about the first or the newest token that covers this stamp. True: it
 * is over. */
static bool ask(struct host_pool *pool, uint64_t stamp, bool newest, struct host_drops *drops)
{
    struct host_token *token = token_use(pool, stamp, newest);
    bool over;

    if (!token)
        return host_is_done(pool, stamp);
    newest |= !token->next;
    lock_give(&pool->lock);
    host_drops_run(pool, drops);
    over = pool->ops->query(pool->arg, token->token) == 1;
    lock_take(&pool->lock);
    pool->luck = !over ? 0 : newest ? HOST_LUCK : pool->luck + 1;
    token_leave(pool, token, over, drops);
    return over;
}

bool host_tokens_freed(struct host_pool *pool, size_t size, uint64_t *ret_epoch)
{
    pool->unrecorded += size;
    if (pool->combining || pool->unrecorded < HOST_TOKEN_BYTES)
        return false;
    pool->combining = true;
    *ret_epoch = host_tokens_begin(pool);
    return true;
}

/* The free's own token comes first. Then, once, a token for the frees of threads that found this one at work, and an
 * answer for requests that wait: the driver's lock and state are at hand. No more than that, because the free has to
 * return. */
int host_tokens_combine(struct host_pool *pool, uint64_t epoch)
{
    struct host_drops drops;
    int rc;

    drops.count = 0;
    rc = record_locked(pool, epoch, &drops);
    if (!rc && pool->unrecorded >= HOST_TOKEN_BYTES) {
        const uint64_t more = host_tokens_begin(pool);

        lock_give(&pool->lock);
        host_drops_run(pool, &drops);
        if (record_locked(pool, more, &drops) == 0)
            epoch = more;
    }
    if (!rc && pool->waiters)
        (void)ask(pool, epoch, true, &drops);
    combiner_ends(pool);
    lock_give(&pool->lock);
    host_drops_run(pool, &drops);
    if (!rc)
        host_last_free_set(pool, epoch);
    return rc;
}

/* With the lock, which is released meanwhile: wait for the combiner's news. False: none came. */
static bool news_await(struct host_pool *pool, struct host_drops *drops)
{
    const unsigned int seen = atomic_load_explicit(&pool->news, memory_order_relaxed);
    bool came = false;

    pool->waiters++;
    lock_give(&pool->lock);
    host_drops_run(pool, drops);
    for (unsigned int i = 0; !came && i < NEWS_LOOKS; i++) {
        lock_relax(i);
        came = atomic_load_explicit(&pool->news, memory_order_acquire) != seen;
    }
    lock_take(&pool->lock);
    pool->waiters--;
    return came;
}

bool host_tokens_news(struct host_pool *pool, uint64_t stamp, struct host_drops *drops)
{
    const struct host_token *token;
    bool over, hopes, combines;

    if (pool->combining && news_await(pool, drops))
        return true;
    combines = !pool->combining; /* else beside one that is held up */
    pool->combining = true;
    hopes = pool->luck >= HOST_LUCK;
    token = token_find(pool, stamp);
    if (!token || pool->unrecorded >= HOST_TOKEN_BYTES) {
        const uint64_t epoch = host_tokens_begin(pool);

        lock_give(&pool->lock);
        host_drops_run(pool, drops);
        (void)record_locked(pool, epoch, drops);
    }
    over = ask(pool, stamp, hopes, drops);
    token = token_find(pool, stamp);
    if (!over && hopes && token && token->next)
        over = ask(pool, stamp, false, drops);
    if (combines)
        combiner_ends(pool);
    return over;
}

bool host_tokens_ask(struct host_pool *pool, uint64_t stamp)
{
    struct host_drops drops;
    bool done;

    drops.count = 0;
    lock_take(&pool->lock);
    for (int i = 0; !(done = host_is_done(pool, stamp)) && i < HOST_NEWS; i++)
        if (!host_tokens_news(pool, stamp, &drops))
            break;
    lock_give(&pool->lock);
    host_drops_run(pool, &drops);
    return done;
}

int host_tokens_wait(struct host_pool *pool, uint64_t epoch, bool exact)
{
    struct host_drops drops;
    struct host_token *token;
    bool done;
    int rc;

    drops.count = 0;
    lock_take(&pool->lock);
    done = host_is_done(pool, epoch);
    token = done ? NULL : token_use(pool, epoch, false);
    lock_give(&pool->lock);
    if (!token)
        return done ? 0 : -ESRCH;
    rc = exact && token->epoch != epoch ? -ESRCH : pool->ops->wait(pool->arg, token->token);
    lock_take(&pool->lock);
    token_leave(pool, token, rc == 0, &drops);
    lock_give(&pool->lock);
    host_drops_run(pool, &drops);
    return rc;
}

void host_last_free_set(const struct host_pool *pool, uint64_t epoch)
{
    last_free.pool = pool;
    last_free.epoch = epoch;
}

bool host_last_free_wait(struct host_pool *pool)
{
    if (last_free.pool != pool || host_tokens_wait(pool, last_free.epoch, true))
        return false;
    last_free.pool = NULL;
    return true;
}
