/* SPDX-License-Identifier: Apache-2.0 */
/*
 * next.c - librows_next.so: preloaded behind the library, so that what a hook calls comes here first.
 *
 * It has one function for each row of shim/hooks/, which notes the arguments of the call that is looked at and
 * gives the answer that the test has chosen. All other calls go on to the simulated GPU.
 *
 * It is no driver.
 */

#include "rows.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT struct rows_next rows_next_state;

static struct rows_next *const state = &rows_next_state;

/* Is this call to be answered? */
static bool take(const char *symbol, const struct rows_arguments *arguments, int *ret_answer)
{
    if (!state->symbol || strcmp(state->symbol, symbol) != 0)
        return false;
    if (state->calls)
        state->differ |=
            state->got.size != arguments->size || memcmp(state->got.bytes, arguments->bytes, arguments->size) != 0;
    state->got = *arguments;
    *ret_answer = state->calls < state->answers_count ? state->answers[state->calls] : ANSWER_REAL;
    state->calls++;
    return *ret_answer != ANSWER_REAL;
}

#define ARGUMENT(name)                                                                                                 \
    memcpy(arguments_.bytes + arguments_.size, &(name), sizeof(name));                                                 \
    arguments_.size += sizeof(name);
#define NEXT(result, symbol, parameters, names, words)                                                                 \
    EXPORT result symbol parameters                                                                                    \
    {                                                                                                                  \
        static __typeof__(&(symbol)) next_;                                                                            \
        struct rows_arguments arguments_ = {0};                                                                        \
        int answer_;                                                                                                   \
                                                                                                                       \
        words if (take(#symbol, &arguments_, &answer_)) return (result)answer_;                                        \
        if (!next_)                                                                                                    \
            *(void **)&next_ = dlsym(RTLD_NEXT, #symbol);                                                              \
        return next_ names;                                                                                            \
    }
#define DRIVER_ROW(symbol, parameters, names, expected, words, ...)  NEXT(CUresult, symbol, parameters, names, words)
#define RUNTIME_ROW(symbol, parameters, names, expected, words, ...) NEXT(cudaError_t, symbol, parameters, names, words)
#define MISSING_ROW(symbol)
#include "list.h"
