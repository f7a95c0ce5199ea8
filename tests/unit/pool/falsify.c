/* SPDX-License-Identifier: Apache-2.0 */
/* falsify.c - see falsify.h. */
#include "falsify.h"

#include "cases.h"
#include "record.h"

#define SAVED_MAX    1024
#define VERDICTS_MAX 32
#define ROW_MAX      4096

static struct {
    const char *(*check)(void);
    void (*restored)(void);
    size_t saved_count;
    struct saved {
        void *at;
        size_t size;
        unsigned char was[8];
    } saved[SAVED_MAX];
} now;

static const char *verdict(void)
{
    const char *fault = now.check();

    return fault ? fault : "sound";
}

void falsify_place(struct falsify_places *places, void *at, const char *name, ...)
{
    va_list args;

    assert_true(places->count < sizeof(places->at) / sizeof(places->at[0]));
    places->at[places->count].at = at;
    va_start(args, name);
    vsnprintf(places->at[places->count++].name, sizeof(places->at[0].name), name, args);
    va_end(args);
}

void falsify_begin(const char *(*check)(void), void (*restored)(void))
{
    now.check = check;
    now.restored = restored;
    assert_string_equal(verdict(), "sound");
}

void falsify_save(void *at, size_t size)
{
    struct saved *saved = &now.saved[now.saved_count++];

    assert_true(now.saved_count <= SAVED_MAX && size <= sizeof(saved->was));
    saved->at = at;
    saved->size = size;
    memcpy(saved->was, at, size);
}

static void restore(void)
{
    while (now.saved_count) {
        const struct saved *saved = &now.saved[--now.saved_count];

        memcpy(saved->at, saved->was, saved->size);
    }
    now.restored();
}

void falsify_row(const char *name, ...)
{
    char text[64];
    va_list args;

    va_start(args, name);
    vsnprintf(text, sizeof(text), name, args);
    va_end(args);
    record_add("%s: %s\n", text, verdict());
    restore();
    if (now.check())
        fail_msg("not sound after \"%s\"", text);
}

/* False: the place has the wrong value already. */
static bool put(const struct falsify_member *member, size_t i, const char *wrong)
{
    const struct falsify_places *places = member->places;
    unsigned char *at = (unsigned char *)places->at[i].at + member->offset;
    uint64_t value = 0;

    falsify_save(at, member->size);
    memcpy(&value, at, member->size); /* the least significant byte is the first one */
    value = (*wrong == '+' || *wrong == '-' ? value : 0) + (uint64_t)strtoll(wrong, NULL, 10);
    if (*wrong == '~')
        memcpy(&value, (unsigned char *)places->at[(i + 1) % places->count].at + member->offset, member->size);
    memcpy(at, &value, member->size);
    return memcmp(at, now.saved[now.saved_count - 1].was, member->size) != 0;
}

/* The verdicts about each place, those places together that have the same one. */
static void sweep(const struct falsify_member *member, const char *wrong)
{
    struct {
        char fault[160], names[ROW_MAX];
        size_t count;
    } *groups = calloc(VERDICTS_MAX, sizeof(*groups));
    size_t count = 0, total = 0, k;

    assert_non_null(groups);
    for (size_t i = 0; i < member->places->count; i++) {
        if (put(member, i, wrong)) {
            const char *found = verdict();

            for (k = 0; k < count && strcmp(groups[k].fault, found) != 0;)
                k++;
            assert_true(k < VERDICTS_MAX);
            count = k < count ? count : count + 1;
            snprintf(groups[k].fault, sizeof(groups[k].fault), "%s", found);
            strcat(strcat(groups[k].names, " "), member->places->at[i].name);
            groups[k].count++;
            total++;
        }
        restore();
    }
    record_add("%s %s\n", member->name, wrong);
    for (k = 0; k < count; k++)
        record_add("    %s:%s\n", groups[k].fault, groups[k].count == total && total > 1 ? " all" : groups[k].names);
    free(groups);
    if (now.check())
        fail_msg("not sound after \"%s %s\"", member->name, wrong);
}

void falsify_each(const struct falsify_member *members, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char words[64], *rest = words;

        snprintf(words, sizeof(words), "%s", members[i].wrong);
        for (char *wrong; (wrong = strsep(&rest, " "));)
            sweep(&members[i], wrong);
    }
}
