/* SPDX-License-Identifier: Apache-2.0 */
/* neighbours.c - see neighbours.h. No locks; what several threads use is atomic. */
#include "context/neighbours.h"

#include <stdatomic.h>
#include <string.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/neighbour_socket.h"
#include "clock.h"
#include "context/device.h"
#include "context/limits.h"
#include "context/nccl_memory.h"
#include "pool.h"
#include "real/real.h"
#include "trace/trace.h"

typedef unsigned long long ull;

/* The longest time, in nanoseconds, that this process waits for its memory to arrive when others ask. */
#define YIELD_NS 100000000u
/* The pause, in nanoseconds, after messages: other users of the machine can send as many as they like. */
#define PAUSE_NS 1000000u

static struct {
    struct neighbour_station stations[DEVICES_MAX];
    _Atomic(uint64_t) devices; /* a bit for each whose station has been opened, or tried to */
    uint64_t pause;            /* until then the stations are not listened to; used by the background thread alone */
} neighbours = {.stations = {[0 ... DEVICES_MAX - 1] = {.fd = -1}}};

static bool are_asked(void)
{
    return conf_get()->neighbours.number && !nccl_ranks_agree();
}

/* The longest time, in nanoseconds, that a request waits for all neighbours together. */
static uint64_t wait_ns(void)
{
    const uint64_t ms = conf_get()->neighbours.number;

    return (ms < UINT32_MAX ? ms : UINT32_MAX) * 1000000u;
}

static struct neighbour_station *station_of(int device)
{
    return &neighbours.stations[(unsigned int)device % DEVICES_MAX];
}

static bool card_of(int device, struct neighbour_card *ret_card)
{
    const struct real_driver *driver = real_driver_get();
    CUuuid uuid;

    if (!driver || !driver->cuDeviceGetUuid_v2 || driver->cuDeviceGetUuid_v2(&uuid, device))
        return false;
    memcpy(ret_card->uuid, uuid.bytes, sizeof(ret_card->uuid));
    return true;
}

bool neighbours_ask(int device, size_t wanted, struct pool_asking *asking)
{
    const uint64_t start = now_ns(), since = asking->since ? asking->since : start;
    struct neighbour_outcome outcome;
    struct neighbour_card card;
    bool given;
    uint64_t ns;

    if (asking->over || !are_asked() || start >= since + wait_ns() || wanted > device_capacity(device) ||
        !card_of(device, &card))
        return false;
    asking->since = since;
    neighbour_ask(&card, station_of(device), wanted, since + wait_ns() - start, &outcome);
    ns = now_ns() - start;
    if (outcome.asked)
        trace_frequent("ask", "\"d\":%d,\"n\":%zu,\"asked\":%u,\"answered\":%u,\"given\":%llu,\"us\":%llu.%llu", device,
                       wanted, outcome.asked, outcome.answered, (ull)outcome.given, TRACE_US(ns));
    /* A neighbour that is late may have given memory back, too. */
    given = outcome.given || outcome.answered < outcome.asked;
    asking->given |= given;
    asking->over = !given;
    return outcome.asked;
}

static bool station_open(int device)
{
    struct neighbour_card card;
    int rc;

    if (!card_of(device, &card))
        return false;
    rc = neighbour_listen(station_of(device), &card);
    if (rc)
        log_write(LOG_INFO, "other processes on device %d cannot ask for idle memory: %s", device, strerror(-rc));
    return !rc;
}

bool neighbours_begin(int device)
{
    const uint64_t bit = UINT64_C(1) << (unsigned int)device % DEVICES_MAX;

    return !(atomic_load_explicit(&neighbours.devices, memory_order_relaxed) & bit) && are_asked() &&
           !(atomic_fetch_or(&neighbours.devices, bit) & bit) && station_open(device);
}

/* Answer the neighbours that have asked at the station of a device. True: messages had come. */
static bool station_serve(int device)
{
    struct neighbour_question questions[NEIGHBOUR_BATCH];
    unsigned int count;
    uint64_t given;
    bool quiet;

    count = neighbour_read(station_of(device), questions, &quiet);
    if (!count)
        return !quiet;
    given = are_asked() ? device_yield(device, now_ns() + YIELD_NS) : 0;
    for (unsigned int i = 0; i < count; i++)
        if (neighbour_is_open(station_of(device)))
            neighbour_answer(station_of(device), &questions[i], given);
    return true;
}

uint64_t neighbours_due(uint64_t now)
{
    return now < neighbours.pause ? neighbours.pause : UINT64_MAX;
}

void neighbours_tick(uint64_t now)
{
    bool any = false;

    if (now < neighbours.pause)
        return;
    for (int device = 0; device < DEVICES_MAX; device++)
        if (neighbour_is_open(station_of(device)))
            any |= station_serve(device);
    if (any)
        neighbours.pause = now_ns() + PAUSE_NS;
}

unsigned int neighbours_listen(struct pollfd *fds, unsigned int max)
{
    unsigned int count = 0;

    for (int device = 0; device < DEVICES_MAX && count < max; device++)
        if (now_ns() >= neighbours.pause && neighbour_is_open(station_of(device)))
            fds[count++] = (struct pollfd){.fd = atomic_load(&station_of(device)->fd), .events = POLLIN};
    return count;
}

void neighbours_ring(void)
{
    /* All of them: the poll under way may have begun before some of them were there. */
    for (int device = 0; device < DEVICES_MAX; device++)
        neighbour_ring(station_of(device));
}

void neighbours_end(void)
{
    for (int device = 0; device < DEVICES_MAX; device++)
        neighbour_close(station_of(device));
}

void neighbours_forget(void)
{
    atomic_store(&neighbours.devices, 0);
    neighbours_end();
}
