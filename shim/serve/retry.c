/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve/retry.c - idle memory goes back: for a request that the driver has refused (exports/retry.h), or because the
 * program wants it; and it is collected, published and counted. See serve.h.
 *
 * Locking: none.
 */
#include "base/process.h"
#include "context/arrivals.h"
#include "context/device.h"
#include "context/limits.h"
#include "context/neighbours.h"
#include "real/real.h"
#include "serve/serve.h"

unsigned int serve_arrivals(void)
{
    return context_arrivals();
}

/* No memory given back on this device could make that fit. */
static bool never_fits(int device, size_t wanted)
{
    return wanted && !device_may_fit(device, wanted);
}

/* Giving back does not help. often: it has not, several times; then the driver's figure decides. It alone does not,
 * because the driver also takes back managed memory, which it does not call free. */
static bool is_hopeless(int device, size_t wanted, bool often)
{
    return never_fits(device, wanted) || (often && wanted && !device_has(device, wanted));
}

/* As is_hopeless, on the current device. */
static bool is_hopeless_here(size_t wanted, bool often)
{
    const struct real_driver *driver = wanted ? real_driver_get() : NULL;
    CUdevice device;

    return driver && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS && is_hopeless(device, wanted, often);
}

bool serve_give_back(unsigned int before, size_t wanted, bool often)
{
    /* Also inside a bypass: giving memory back never comes through our hooks. */
    return process_has_begun() && !is_hopeless_here(wanted, often) && context_trim(before);
}

/* The exit handlers of the program run after those of CUDA, where the driver has been deinitialised. */
static bool driver_answers(void)
{
    const struct real_driver *driver = process_has_begun() ? real_driver_get() : NULL;
    CUcontext handle;

    return driver && driver->cuCtxGetCurrent(&handle) == CUDA_SUCCESS;
}

bool serve_give_back_on(int device, unsigned int before, size_t wanted, bool often)
{
    return driver_answers() && !is_hopeless(device, wanted, often) && context_trim_on(device, before);
}

static bool give_back_anywhere(unsigned int before, size_t wanted)
{
    bool any = false;

    if (!wanted)
        return serve_give_back_on(CONTEXT_ALL, before, wanted, /* often: */ false);
    for (int i = 0; i < DEVICES_MAX && device_exists(i); i++)
        any |= serve_give_back_on(i, before, wanted, /* often: */ false);
    return any;
}

bool serve_give_back_anywhere(size_t wanted)
{
    const unsigned int before = serve_arrivals();
    bool any;

    /* All devices begin before the first is waited for, and are waited for together. */
    arrivals_share_begin(0);
    any = give_back_anywhere(before, wanted);
    arrivals_share_begin(ARRIVALS_OTHERS_NS);
    any |= give_back_anywhere(before, wanted);
    arrivals_share_end();
    return any;
}

bool serve_ask_on(int device, size_t wanted, struct pool_asking *asking)
{
    return process_has_begun() && !never_fits(device, wanted) && neighbours_ask(device, /* wanted: */ 0, asking);
}

bool serve_ask(size_t wanted, size_t enough, struct pool_asking *asking)
{
    const struct real_driver *driver = process_has_begun() ? real_driver_get() : NULL;
    CUdevice device;

    return driver && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS && !never_fits(device, wanted) &&
           neighbours_ask(device, enough, asking);
}

uint64_t serve_release(int device, const char *why)
{
    return driver_answers() ? context_release(device, why) : 0;
}

static bool current_device(CUdevice *ret_device)
{
    const struct real_driver *driver = process_is_passive() ? NULL : real_driver_get();

    return driver && driver->cuCtxGetDevice(ret_device) == CUDA_SUCCESS;
}

void serve_collect(void)
{
    CUdevice device;

    if (current_device(&device))
        device_collect(device);
}

void serve_publish(void)
{
    device_publish(CONTEXT_ALL);
}

uint64_t serve_idle_bytes(uint64_t *ret_used)
{
    CUdevice device;

    *ret_used = 0;
    return current_device(&device) ? context_idle_bytes(device, ret_used) : 0;
}
