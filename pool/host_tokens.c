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

bool host_tokens_begin(struct host_pool *pool, bool must, uint64_t *ret_epoch)
{
    if (pool->recording && !must)
        return false;
    pool->recording++;
    *ret_epoch = pool->epoch++;
    return true;
}

int host_tokens_record(struct host_pool *pool, uint64_t epoch)
{
    struct host_drops drops;
    uint64_t token;
    int rc = pool->ops->record(pool->arg, &token);

    drops.count = 0;
    lock_take(&pool->lock);
    pool->recording--;
    if (!rc && !token_enter(pool, token, epoch, &drops)) {
        drops.tokens[drops.count++] = token;
        rc = -EBUSY;
    }
    lock_give(&pool->lock);
    host_drops_run(pool, &drops);
    return rc;
}

struct host_token *host_token_use(struct host_pool *pool, uint64_t stamp)
{
    struct host_token *token = pool->first_token;

    while (token && token->epoch < stamp)
        token = token->next;
    if (token)
        token->users++;
    return token;
}

void host_token_leave(struct host_pool *pool, struct host_token *token, bool over, struct host_drops *drops)
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

/* As host_token_leave, without the lock. */
static void token_leave(struct host_pool *pool, struct host_token *token, bool over)
{
    struct host_drops drops;

    drops.count = 0;
    lock_take(&pool->lock);
    host_token_leave(pool, token, over, &drops);
    lock_give(&pool->lock);
    host_drops_run(pool, &drops);
}

/* As host_token_use, without the lock. *ret_done: memory with this stamp is known to be complete. */
static struct host_token *token_use(struct host_pool *pool, uint64_t stamp, bool *ret_done)
{
    struct host_token *token = NULL;

    lock_take(&pool->lock);
    *ret_done = host_is_done(pool, stamp);
    if (!*ret_done)
        token = host_token_use(pool, stamp);
    lock_give(&pool->lock);
    return token;
}

bool host_tokens_ask(struct host_pool *pool, uint64_t stamp)
{
    struct host_token *token;
    uint64_t epoch;
    bool done, over;

    token = token_use(pool, stamp, &done);
    if (!token && !done) {
        lock_take(&pool->lock);
        (void)host_tokens_begin(pool, true, &epoch);
        lock_give(&pool->lock);
        if (host_tokens_record(pool, epoch))
            return false;
        token = token_use(pool, stamp, &done);
    }
    if (!token)
        return done;
    over = pool->ops->query(pool->arg, token->token) == 1;
    token_leave(pool, token, over);
    return over;
}

int host_tokens_wait(struct host_pool *pool, uint64_t epoch, bool exact)
{
    bool done;
    struct host_token *token = token_use(pool, epoch, &done);
    int rc;

    if (!token)
        return done ? 0 : -ESRCH;
    rc = exact && token->epoch != epoch ? -ESRCH : pool->ops->wait(pool->arg, token->token);
    token_leave(pool, token, rc == 0);
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
