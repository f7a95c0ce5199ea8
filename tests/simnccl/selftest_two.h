/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_two.h - two ranks in one thread, each with memory and a stream: what the cases of selftest_contract.c use.
 *
 * Locking: none.
 */
#ifndef SIMNCCL_SELFTEST_TWO_H
#define SIMNCCL_SELFTEST_TWO_H

#include "selftest.h"

#define BYTES ((size_t)2 << 20)
#define N     ((size_t)1000)

struct two {
    ncclComm_t comm[2];
    int *at[2];
    void *handle[2];
    cudaStream_t s[2];
};
extern struct two two;

void both(void);
void both_registered(void);
void wait_both(void);
void deregister_both(void);
void destroy_both(void);
void sum_both(size_t n0, size_t n1);
void send_begin(size_t n0, size_t n1);
void send_both(size_t n0, size_t n1);

/* The calls of a case, the number of breaches, a text that has to be on stderr, the environment beside the usual. */
struct contract {
    const char *name;
    void (*run)(void);
    int breaches;
    const char *text, *env;
};
/* NOLINTBEGIN(bugprone-macro-parentheses): the arguments are names and initialisers */
/* Puts a case into a section of the program, which contracts() goes through. */
#define CONTRACT_ADD(name_, run_, ...)                                                                                 \
    static const struct contract name_##_contract = {.name = #name_, .run = run_, __VA_ARGS__};                        \
    static const struct contract *const name_##_place __attribute__((used, section("contract_cases"))) =               \
        &name_##_contract;
/* The head of a case's function. */
#define CONTRACT(name_, ...)                                                                                           \
    static void name_(void);                                                                                           \
    CONTRACT_ADD(name_, name_, __VA_ARGS__)                                                                            \
    static void name_(void)
/* NOLINTEND(bugprone-macro-parentheses) */

#endif
