/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill_up.c - the card nearly full: what the driver would serve is served.
 *
 * Random sequences of cudaMalloc and cudaFree raise the live bytes to 95 % of the free memory, several times. A model
 * of the driver (512-byte granules in shared pages of 2 MiB below 2 MiB, whole pages above) decides each request, never
 * an address or an answer, so one seed is one sequence, natively and preloaded (its hash is printed). The model counts
 * no request beyond 95 %, and a driver has no fragmentation above a page, so natively all succeed. The program marks
 * the ends of each block and looks at them when the block goes. It measures no time. It prints, and does not check, how
 * much further than 95 % it gets until the first refusal.
 *
 * Usage: fill_up [--ops N] [--seed X] [--per-mille P] [--free BYTES] [--pattern NAME]
 * Exit: 0 all served, 1 refused or foreign bytes, 2 a call failed that has to succeed.
 */
#define BT_OWN_MAIN
#include "behaviour.h"

#define PAGE       (2 * BT_MIB)
#define GRANULE    ((size_t)512)
#define SLOTS      (PAGE / GRANULE)
#define WORDS      (SLOTS / 64)
#define WAVES      8
#define MARK       64
#define LIVE_MAX   ((size_t)1 << 20)
#define REFUSALS   5 /* this many are printed */
#define CLIMB_END  1005
#define CLIMB_STEP 2 /* per mille */

static struct {
    uint64_t ops, seed, per_mille, free;
    const char *pattern;
} opt = {.ops = 8000, .seed = 1, .per_mille = 950};

/* Of the card, once it is known. */
static size_t memory;

/* --- the model --- */

/* A page that small blocks share. */
struct page {
    uint64_t used[WORDS];
    unsigned int count, longest; /* granules in use; no free run is longer than this */
};

struct live {
    void *p; /* NULL: was refused; the sequence goes on as if it had not been */
    size_t size, page;
    unsigned int first;
    unsigned char mark;
};

static struct page *pages;
static size_t pages_room, pages_used, large_bytes;
static struct live *lives;
static size_t live_count;

static size_t footprint(void)
{
    return large_bytes + pages_used * PAGE;
}

static bool granule_used(const struct page *page, unsigned int i)
{
    return page->used[i / 64] >> i % 64 & 1;
}

static void granules_flip(struct page *page, unsigned int first, unsigned int n)
{
    for (unsigned int i = first; i < first + n; i++)
        page->used[i / 64] ^= (uint64_t)1 << i % 64;
}

/* First fit in a page. True, and *first: done. */
static bool page_take(struct page *page, unsigned int n, unsigned int *first)
{
    unsigned int run = 0, longest = 0;

    if (n > page->longest)
        return false;
    for (unsigned int i = 0; i < SLOTS; i++) {
        run = granule_used(page, i) ? 0 : run + 1;
        longest = run > longest ? run : longest;
        if (run == n) {
            *first = i + 1 - n;
            granules_flip(page, *first, n);
            page->count += n;
            return true;
        }
    }
    page->longest = longest;
    return false;
}

static void model_small_take(struct live *live)
{
    const unsigned int n = (unsigned int)((live->size + GRANULE - 1) / GRANULE);
    size_t at = 0;

    while (at < pages_room && !(pages[at].count && page_take(&pages[at], n, &live->first)))
        at++;
    if (at == pages_room) {
        for (at = 0; at < pages_room && pages[at].count; at++)
            ;
        if (at == pages_room) {
            pages_room = pages_room ? 2 * pages_room : 64;
            pages = (struct page *)realloc(pages, pages_room * sizeof(*pages));
            if (!pages)
                abort();
            memset(pages + at, 0, (pages_room - at) * sizeof(*pages));
        }
        pages[at].longest = SLOTS;
        pages_used++;
        (void)page_take(&pages[at], n, &live->first);
    }
    live->page = at;
}

static void model_take(struct live *live)
{
    if (live->size < PAGE)
        model_small_take(live);
    else
        large_bytes += (live->size + PAGE - 1) / PAGE * PAGE;
}

static void model_give(const struct live *live)
{
    const unsigned int n = (unsigned int)((live->size + GRANULE - 1) / GRANULE);

    if (live->size >= PAGE) {
        large_bytes -= (live->size + PAGE - 1) / PAGE * PAGE;
        return;
    }
    granules_flip(&pages[live->page], live->first, n);
    pages[live->page].count -= n;
    pages[live->page].longest = SLOTS;
    if (!pages[live->page].count)
        pages_used--;
}

/* --- the sequence --- */

struct pattern {
    const char *name;
    size_t lo, hi; /* in bytes, or */
    size_t part;   /* of the memory, if hi is 0 */
    bool shifting; /* each wave has two octaves of its own */
};

static const struct pattern patterns[] = {
    {"mixed", 256, BT_GIB, 128, false},
    {"large", 2 * BT_MIB, 4 * BT_GIB, 32, false},
    {"medium", 64 * BT_KIB, BT_GIB, 1024, false},
    {"shifting", 256 * BT_KIB, BT_GIB, 128, true},
};

static struct {
    uint64_t seed, hash, asked, refused, foreign, ops;
    size_t peak;
} run;

static size_t pattern_hi(const struct pattern *pattern)
{
    return memory / pattern->part < pattern->hi ? memory / pattern->part : pattern->hi;
}

/* Log-uniform. */
static size_t size_draw(const struct pattern *pattern, int wave)
{
    const size_t hi = pattern_hi(pattern);
    const int octaves = 63 - __builtin_clzll(hi / pattern->lo);
    int octave = (int)(bt_random(&run.seed) % (uint64_t)(octaves + 1));
    size_t base, size;

    if (pattern->shifting) /* large ones first, then every other wave smaller ones */
        octave = octaves - (wave * 3 % octaves + octave % 2) % octaves;
    base = pattern->lo << octave;
    size = base + bt_random(&run.seed) % base;
    return size > hi ? hi : size;
}

static void hash_add(uint64_t value)
{
    run.hash = (run.hash ^ value) * 0x100000001b3u;
}

static int marks_check(const struct live *live)
{
    unsigned char host[2 * MARK];

    OK(cudaMemcpy(host, live->p, MARK, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(host + MARK, (char *)live->p + live->size - MARK, MARK, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 2 * MARK; i++)
        if (host[i] != live->mark) {
            run.foreign++;
            printf("byte %d of the marks of %zu bytes is 0x%02x, was 0x%02x\n", i, live->size, host[i], live->mark);
            break;
        }
    return 0;
}

static int live_free(size_t index)
{
    struct live *live = &lives[index];

    hash_add(index);
    model_give(live);
    if (live->p) {
        TRY(marks_check(live));
        OK(cudaFree(live->p));
    }
    *live = lives[--live_count];
    return 0;
}

/* Ask for what the model has just taken. */
static int live_alloc(struct live *live)
{
    int rc;

    hash_add(live->size);
    run.asked++;
    run.peak = footprint() > run.peak ? footprint() : run.peak;
    live->mark = (unsigned char)(1 + run.asked % 250);
    rc = (int)cudaMalloc(&live->p, live->size);
    if (rc == cudaErrorMemoryAllocation) {
        LAST(cudaErrorMemoryAllocation);
        live->p = NULL;
        if (run.refused++ < REFUSALS)
            printf("refused: request %llu, %zu bytes, with it %.2f %% of the memory would be live\n",
                   (unsigned long long)run.asked, live->size, 100.0 * (double)footprint() / (double)memory);
        return 0;
    }
    OK(rc);
    OK(cudaMemset(live->p, live->mark, MARK));
    OK(cudaMemset((char *)live->p + live->size - MARK, live->mark, MARK));
    return 0;
}

/* One step: a request if it stays within target, else a free. */
static int step(const struct pattern *pattern, int wave, size_t target)
{
    struct live *live = &lives[live_count];

    run.ops++;
    live->size = size_draw(pattern, wave);
    model_take(live);
    if (footprint() <= target && live_count + 1 < LIVE_MAX) {
        live_count++;
        return live_alloc(live);
    }
    model_give(live);
    return live_count ? live_free(bt_random(&run.seed) % live_count) : 0;
}

static int drain(size_t target)
{
    while (live_count && footprint() > target)
        TRY(live_free(bt_random(&run.seed) % live_count));
    return 0;
}

/* Up to a peak, a while there, and down to a fifth. */
static int wave_run(const struct pattern *pattern, int wave)
{
    static const uint64_t peaks[WAVES] = {50, 70, 85, 100, 100, 100, 100, 100};
    const size_t per_mille = memory / 1000, peak = per_mille * opt.per_mille / 100 * peaks[wave];
    const uint64_t settled = run.ops + opt.ops * 8; /* however small the blocks are */

    while (run.ops < settled && live_count + 1 < LIVE_MAX && footprint() < peak - peak / 50)
        TRY(step(pattern, wave, peak));
    for (uint64_t i = 0; i < opt.ops / WAVES; i++)
        TRY(step(pattern, wave, peak));
    return wave + 1 < WAVES ? drain(memory / 5) : 0;
}

/* On from there, until the first refusal. */
static int climb(const struct pattern *pattern)
{
    uint64_t per_mille = opt.per_mille;

    while (per_mille < CLIMB_END && !run.refused) {
        per_mille += CLIMB_STEP;
        for (int i = 0; i < 200 && !run.refused; i++)
            TRY(step(pattern, WAVES - 1, memory / 1000 * per_mille));
    }
    return 0;
}

static int pattern_run(const struct pattern *pattern)
{
    uint64_t refused, asked;
    size_t avail, total, peak;

    memset(&run, 0, sizeof(run));
    run.seed = opt.seed;
    for (int wave = 0; wave < WAVES; wave++)
        TRY(wave_run(pattern, wave));
    OK(cudaMemGetInfo(&avail, &total));
    printf("%-9s %llu of %llu refused, %llu foreign; peak %.2f %%, sequence %016llx; at the end %.2f %% by the model, "
           "%zu blocks; "
           "free %zu MiB\n",
           pattern->name, (unsigned long long)run.refused, (unsigned long long)run.asked,
           (unsigned long long)run.foreign, 100.0 * (double)run.peak / (double)memory, (unsigned long long)run.hash,
           100.0 * (double)footprint() / (double)memory, live_count, avail / BT_MIB);
    fflush(stdout);
    refused = run.refused;
    asked = run.asked;
    run.refused = 0;
    TRY(climb(pattern));
    peak = run.peak;
    if (run.refused)
        printf("%-9s first refusal %llu requests later, at %.2f %%\n", pattern->name,
               (unsigned long long)(run.asked - asked), 100.0 * (double)peak / (double)memory);
    else
        printf("%-9s no refusal up to %.2f %%\n", pattern->name, 100.0 * (double)peak / (double)memory);
    TRY(drain(0));
    if (run.foreign)
        return BT_FAIL("%llu blocks had foreign marks", (unsigned long long)run.foreign);
    return refused ? BT_FAIL("%llu of %llu requests refused", (unsigned long long)refused, (unsigned long long)asked)
                   : 0;
}

/* The free memory, rounded down so that a few pages more or less change no sequence. */
static int memory_measure(void)
{
    size_t avail, total, unit = PAGE;

    TRY(bt_usable(4096));
    TRY(bt_usable(PAGE));
    OK(cudaMemGetInfo(&avail, &total));
    while (unit < avail / 512)
        unit *= 2;
    memory = opt.free ? opt.free : avail / unit * unit;
    printf("free %zu of %zu MiB, reckoned with %zu\n", avail / BT_MIB, total / BT_MIB, memory / BT_MIB);
    return 0;
}

static int option(const char *name, const char *value)
{
    static const struct bt_option options[] = {{"--ops", &opt.ops},
                                               {"--seed", &opt.seed},
                                               {"--per-mille", &opt.per_mille},
                                               {"--free", &opt.free},
                                               {NULL, NULL}};

    if (strcmp(name, "--pattern") != 0)
        return bt_option(options, name, value);
    opt.pattern = value;
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0, found = 0;

    for (int i = 1; i < argc; i += 2)
        if (i + 1 == argc || option(argv[i], argv[i + 1])) {
            fprintf(stderr, "fill_up: bad options; see the head of fill_up.c\n");
            return 2;
        }
    lives = (struct live *)calloc(LIVE_MAX, sizeof(*lives));
    if (!lives || cudaFree(NULL) || memory_measure()) {
        fprintf(stderr, "fill_up: %s\n", bt_why);
        return 2;
    }
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        if (opt.pattern && strcmp(opt.pattern, patterns[i].name) != 0)
            continue;
        found++;
        if (pattern_run(&patterns[i])) {
            failed = 1;
            printf("FAIL %s: %s\n", patterns[i].name, bt_why);
            (void)drain(0);
        }
    }
    return found ? failed : 2;
}
