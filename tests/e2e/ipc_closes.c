/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_closes.c - see ipc_closes.h. No locks. */
#include "ipc_closes.h"
#include "../program.h"

#define LIMIT 3000 /* hundredths of a second: then the work ends, and the test fails */

static struct {
    pthread_t threads[3];
    cudaIpcMemHandle_t handle;
    void *p;
    atomic_bool ends;
    atomic_long errors;
} closes;

static void work(void *unused)
{
    for (int i = 0; i < LIMIT && !atomic_load(&closes.ends); i++)
        nap_ms(10);
}

static void *open_run(void *unused)
{
    void *p;

    atomic_fetch_add(&closes.errors, (long)cudaIpcOpenMemHandle(&p, closes.handle, cudaIpcMemLazyEnablePeerAccess));
    return unused;
}

static void *close_run(void *unused)
{
    atomic_fetch_add(&closes.errors, (long)cudaIpcCloseMemHandle(closes.p));
    return unused;
}

long closes_begin(void *p, const cudaIpcMemHandle_t *handle)
{
    long error = (long)cudaLaunchHostFunc(NULL, work, NULL);

    closes.p = p;
    closes.handle = *handle;
    for (int i = 0; i < 3; i++) {
        error += pthread_create(&closes.threads[i], NULL, i ? close_run : open_run, NULL);
        for (int k = 0; k < 10 && i != 1; k++)
            nap_ms(10);
    }
    return error;
}

long closes_end(void)
{
    atomic_store(&closes.ends, true);
    for (int i = 0; i < 3; i++)
        pthread_join(closes.threads[i], NULL);
    return atomic_load(&closes.errors);
}

static struct {
    pthread_t threads[OPENINGS_MAX];
    int count;
    cudaIpcMemHandle_t handle;
    void *p[OPENINGS_MAX];
    atomic_long errors;
} openings;

static void *opening_run(void *p)
{
    atomic_fetch_add(&openings.errors, (long)cudaIpcOpenMemHandle(p, openings.handle, cudaIpcMemLazyEnablePeerAccess));
    return p;
}

long openings_begin(const cudaIpcMemHandle_t *handle, int count)
{
    long error = 0;

    openings.handle = *handle;
    atomic_store(&openings.errors, 0);
    for (openings.count = 0; openings.count < count && openings.count < OPENINGS_MAX && !error; openings.count++)
        error = pthread_create(&openings.threads[openings.count], NULL, opening_run, &openings.p[openings.count]);
    for (int k = 0; k < 10; k++)
        nap_ms(10);
    return error;
}

long openings_end(void **ret_p)
{
    for (int i = 0; i < openings.count; i++) {
        pthread_join(openings.threads[i], NULL);
        if (openings.p[i] != openings.p[0])
            atomic_fetch_add(&openings.errors, 1);
    }
    *ret_p = openings.p[0];
    return atomic_load(&openings.errors);
}
