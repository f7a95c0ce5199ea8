/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_tokens.c - which frees are complete; see struct host_tokens for epochs. It owns the tokens that ops->record has
 * made.
 *
 * A token that is over proves that all earlier ones are: it was recorded after them, and covers every context that they
 * cover, unless a context has ended, and its work with it.
 *
 * Locking: host_tokens.lock, for the list; calls the functions of struct host_ops without it. Callers hold no lock.
 */
#include "host_internal.h"

/* How often a request that waits for the combiner looks for news: 10 us and longer, see lock_relax. So many times in a
 * row it looks at nothing else. */
#define NEWS_LOOKS 200u
#define NEWS_ALONE 8u

/* The calling thread's last free: see host_last_free_set. No pool gets the address of an earlier one. */
static __thread struct {
    const struct host_pool *pool;
    uint64_t epoch; /* whose token it has recorded; 0: none */
    uint64_t stamp; /* not less than epoch: what it has left to a combiner, too */
} last_free __attribute__((tls_model("initial-exec")));

void host_tokens_init(struct host_tokens *tokens)
{
    atomic_store(&tokens->epoch, 1);
    for (unsigned int i = 0; i < HOST_TOKENS; i++) {
        tokens->all[i].next = tokens->unused;
        tokens->unused = &tokens->all[i];
    }
}

void host_tokens_drop(struct host_pool *pool)
{
    for (unsigned int i = 0; i < HOST_TOKENS; i++) {
        if (pool->tokens.all[i].token)
            pool->ops->drop(pool->arg, pool->tokens.all[i].token);
        pool->tokens.all[i].token = 0;
    }
    pool->tokens.first = pool->tokens.unused = NULL;
    atomic_store(&pool->tokens.recorded, 0);
}

/* With the lock, as all static functions up to token_leave: a token that is in no list. */
static void token_remove(struct host_tokens *tokens, struct host_token *token)
{
    token->gone = true;
    if (token->users)
        return;
    token->next = tokens->unused;
    tokens->unused = token;
}

/* Give up every second token, but not the last one. The next one covers what it has covered. */
static void tokens_thin(struct host_tokens *tokens)
{
    for (struct host_token **link = &tokens->first; *link && (*link)->next; link = &(*link)->next) {
        struct host_token *token = *link;

        *link = token->next;
        token_remove(tokens, token);
    }
}

/* A token that is in no list. NULL: threads are asking about too many. */
static struct host_token *token_take(struct host_tokens *tokens)
{
    struct host_token *token;

    if (!tokens->unused)
        tokens_thin(tokens);
    token = tokens->unused;
    if (token)
        tokens->unused = token->next;
    return token;
}

/* It has been recorded. */
static void token_enter(struct host_tokens *tokens, struct host_token *token, uint64_t epoch)
{
    struct host_token **link = &tokens->first;

    while (*link && (*link)->epoch < epoch)
        link = &(*link)->next;
    token->epoch = epoch;
    token->gone = false;
    token->next = *link;
    *link = token;
    if (atomic_load_explicit(&tokens->recorded, memory_order_relaxed) < epoch)
        atomic_store(&tokens->recorded, epoch);
}

/* The first token that covers this stamp, with a reference, which token_leave gives back; NULL: there is none. newest:
 * the last one. *ret_older: an earlier one than this one covers it. */
static struct host_token *token_use(const struct host_tokens *tokens, uint64_t stamp, bool newest, bool *ret_older)
{
    struct host_token *token = tokens->first;

    *ret_older = false;
    while (token && token->epoch < stamp)
        token = token->next;
    for (; newest && token && token->next; token = token->next)
        *ret_older = true;
    if (token)
        token->users++;
    return token;
}

/* Take out tokens that are over, too. */
static void token_leave(struct host_tokens *tokens, struct host_token *token, bool over)
{
    uint64_t done = atomic_load_explicit(&tokens->done, memory_order_relaxed);

    if (over && done < token->epoch) {
        done = token->epoch;
        atomic_store_explicit(&tokens->done, done, memory_order_release);
    }
    if (--token->users == 0 && token->gone)
        token_remove(tokens, token);
    while (tokens->first && tokens->first->epoch <= done) {
        struct host_token *first = tokens->first;

        tokens->first = first->next;
        token_remove(tokens, first);
    }
}

/* In this order: the bytes of a free that reads the new epoch are not forgotten. */
uint64_t host_tokens_begin(struct host_pool *pool)
{
    uint64_t epoch;

    atomic_store_explicit(&pool->tokens.unrecorded, 0, memory_order_relaxed);
    epoch = atomic_fetch_add(&pool->tokens.epoch, 1);
#if !defined(__x86_64__)
    atomic_thread_fence(memory_order_seq_cst); /* see host_stamp */
#endif
    return epoch;
}

int host_tokens_record(struct host_pool *pool, uint64_t epoch)
{
    struct host_tokens *tokens = &pool->tokens;
    struct host_token *token;
    int rc;

    lock_take(&tokens->lock);
    token = token_take(tokens);
    lock_give(&tokens->lock);
    if (!token)
        return -EBUSY;
    rc = pool->ops->record(pool->arg, &token->token);
    lock_take(&tokens->lock);
    if (rc)
        token_remove(tokens, token);
    else
        token_enter(tokens, token, epoch);
    lock_give(&tokens->lock);
    return rc;
}

/* Ask about the first or the newest token that covers this stamp. True: it is over. *ret_older: it is not, but an
 * earlier one that covers the stamp may be. */
static bool ask(struct host_pool *pool, uint64_t stamp, bool newest, bool *ret_older)
{
    struct host_tokens *tokens = &pool->tokens;
    struct host_token *token;
    unsigned int luck;
    bool over;

    lock_take(&tokens->lock);
    token = token_use(tokens, stamp, newest, ret_older);
    newest |= token && !token->next;
    lock_give(&tokens->lock);
    if (!token)
        return host_is_done(pool, stamp);
    over = pool->ops->query(pool->arg, token->token) == 1;
    lock_take(&tokens->lock);
    luck = atomic_load_explicit(&tokens->luck, memory_order_relaxed);
    luck = !over ? 0 : newest ? HOST_LUCK : luck + 1;
    atomic_store_explicit(&tokens->luck, luck, memory_order_relaxed);
    token_leave(tokens, token, over);
    lock_give(&tokens->lock);
    return over;
}

static bool combiner_try(struct host_tokens *tokens)
{
    return !atomic_load_explicit(&tokens->combining, memory_order_relaxed) &&
           !atomic_exchange_explicit(&tokens->combining, true, memory_order_acquire);
}

static void combiner_ends(struct host_tokens *tokens)
{
    atomic_store_explicit(&tokens->combining, false, memory_order_release);
}

static bool is_due(const struct host_tokens *tokens)
{
    return atomic_load(&tokens->unrecorded) >= HOST_TOKEN_BYTES;
}

/* The combiner's free: its own token comes first. Then, once, a token for the frees of threads that found this one at
 * work, and an answer for requests that wait: the driver's lock and state are at hand. No more than that, because the
 * free has to return. */
static int combine(struct host_pool *pool)
{
    struct host_tokens *tokens = &pool->tokens;
    uint64_t epoch = host_tokens_begin(pool);
    const int rc = host_tokens_record(pool, epoch);
    bool older;

    if (!rc && is_due(tokens)) {
        const uint64_t more = host_tokens_begin(pool);

        if (host_tokens_record(pool, more) == 0)
            epoch = more;
    }
    if (!rc && atomic_load(&tokens->awaited)) {
        atomic_store(&tokens->awaited, false);
        (void)ask(pool, epoch, true, &older);
    }
    combiner_ends(tokens);
    if (!rc)
        host_last_free_set(pool, epoch);
    return rc == -EBUSY ? 0 : rc;
}

/* The combiner that is at work will record the token. It may cover later work of this thread. */
static void last_free_leave(const struct host_pool *pool)
{
    if (last_free.pool != pool)
        host_last_free_set(pool, 0);
    last_free.stamp = atomic_load(&pool->tokens.epoch);
}

int host_tokens_freed(struct host_pool *pool, size_t size)
{
    if (size < HOST_TOKEN_BYTES)
        host_tokens_deferred(pool, size);
    else
        atomic_store_explicit(&pool->tokens.unrecorded, size, memory_order_release); /* more does not count */
    if (!is_due(&pool->tokens))
        return 0;
    if (combiner_try(&pool->tokens))
        return combine(pool);
    last_free_leave(pool);
    return 0;
}

/* Wait for the combiner: until its news are that the stamp is done (true), until this thread is the combiner
 * (*ret_combines), or for a short time. */
static bool news_await(struct host_pool *pool, uint64_t stamp, bool *ret_combines)
{
    struct host_tokens *tokens = &pool->tokens;
    uint64_t done, last = 0;

    *ret_combines = false;
    for (unsigned int i = 0; i < NEWS_LOOKS; i++, last = done) {
        done = atomic_load_explicit(&tokens->done, memory_order_acquire);
        if (stamp <= done)
            return true;
        if (i % NEWS_ALONE == 0 || done != last) { /* perhaps it has finished */
            *ret_combines = combiner_try(tokens);
            if (*ret_combines)
                return false;
            if (!atomic_load_explicit(&tokens->awaited, memory_order_relaxed))
                atomic_store(&tokens->awaited, true);
        }
        lock_relax(i);
    }
    return false;
}

bool host_tokens_news(struct host_pool *pool, uint64_t stamp)
{
    struct host_tokens *tokens = &pool->tokens;
    bool over, combines, hopes, older;

    if (news_await(pool, stamp, &combines))
        return true;
    hopes = atomic_load_explicit(&tokens->luck, memory_order_relaxed) >= HOST_LUCK;
    if (atomic_load(&tokens->recorded) < stamp || is_due(tokens))
        (void)host_tokens_record(pool, host_tokens_begin(pool));
    over = ask(pool, stamp, hopes, &older);
    if (!over && older)
        over = ask(pool, stamp, false, &older);
    if (combines) /* else beside one that is held up */
        combiner_ends(tokens);
    return over;
}

bool host_tokens_ask(struct host_pool *pool, uint64_t stamp)
{
    for (int i = 0; !host_is_done(pool, stamp); i++)
        if (i == HOST_NEWS || !host_tokens_news(pool, stamp))
            return false;
    return true;
}

int host_tokens_wait(struct host_pool *pool, uint64_t epoch, uint64_t owner)
{
    struct host_tokens *tokens = &pool->tokens;
    struct host_token *token;
    bool older, over;
    int rc;

    if (host_is_done(pool, epoch))
        return 0;
    lock_take(&tokens->lock);
    token = token_use(tokens, epoch, false, &older);
    lock_give(&tokens->lock);
    if (!token)
        return host_is_done(pool, epoch) ? 0 : -ESRCH;
    rc = token->epoch != epoch ? -ESRCH : pool->ops->wait(pool->arg, token->token, owner);
    over = !rc && pool->ops->query(pool->arg, token->token) == 1;
    lock_take(&tokens->lock);
    token_leave(tokens, token, over);
    lock_give(&tokens->lock);
    return rc;
}

void host_last_free_set(const struct host_pool *pool, uint64_t epoch)
{
    last_free.pool = pool;
    last_free.epoch = last_free.stamp = epoch;
}

bool host_last_free_wait(struct host_pool *pool, uint64_t owner)
{
    int rc;

    if (last_free.pool != pool || !last_free.epoch)
        return false;
    rc = host_tokens_wait(pool, last_free.epoch, owner);
    if (!rc || rc == -ETIMEDOUT) /* once is enough */
        last_free.epoch = 0;
    return !rc;
}

bool host_last_free_unfinished(struct host_pool *pool)
{
    return last_free.pool == pool && !host_tokens_ask(pool, last_free.stamp);
}
