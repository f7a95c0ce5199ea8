/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ_order.c - the differential fuzzer's order: what work comes after which, and what the host knows of it.
 *
 * Every object knows the work that used it last. Other work comes after that by an event, or the host waits for it; so
 * the bytes read are defined by CUDA, on every GPU. The work is in differ_work.c.
 *
 * Locking: none, see differ.h.
 */
#include "differ.h"

enum state state_of(struct mark m)
{
    const struct lane *l = &lanes[m.lane];

    return m.n <= l->synced ? DONE : m.n <= l->freed ? FREED : BUSY;
}

static bool settled(struct mark m)
{
    const enum state s = state_of(m);

    return s == DONE || (hazards && s == FREED);
}

bool lane_capturing(int lane)
{
    return lane < LANES && lanes[lane].capture >= 0;
}

bool captured_anywhere(void)
{
    for (int i = 0; i < CAPTURES; i++) {
        if (captures[i].live)
            return true;
    }
    return false;
}

bool unsafe_here(void)
{
    for (int i = 0; i < CAPTURES; i++) {
        const struct capture *c = &captures[i];
        if (c->live &&
            (c->thread == self ? c->mode != cudaStreamCaptureModeRelaxed : c->mode == cudaStreamCaptureModeGlobal))
            return true;
    }
    return false;
}

struct mark sent(int lane)
{
    return (struct mark){lane, ++lanes[lane].sent};
}

void synced(int dev)
{
    for (int i = 0; i < LANES_ALL; i++) {
        if (lanes[i].dev == dev)
            lanes[i].synced = lanes[i].sent;
    }
}

/* In a capture it waits natively, too, if it is allowed; under cupool for nothing (docs/differences.md, "`cudaFree` in
 * a capture").
 */
void freed(int dev)
{
    if (captured_anywhere())
        return;
    for (int i = 0; i < LANES_ALL; i++) {
        if (lanes[i].dev == dev)
            lanes[i].freed = lanes[i].freed_by[self] = lanes[i].sent;
    }
}

/* Only failures are told of calls that make order alone. */
static bool quiet(const char *name, cudaError_t r)
{
    return r == cudaSuccess || told(name, (int)r);
}

/* Uses of the legacy stream end captures of blocking ones: not too often. */
bool disturbs(int lane)
{
    return lane < DEVICES && captured_anywhere() && !chance(8);
}

bool order(int lane, struct mark m)
{
    struct lane *to = &lanes[lane], *from = &lanes[m.lane];

    if (settled(m) || m.lane == lane)
        return true;
    if (lane_capturing(lane) || lane_capturing(m.lane) || disturbs(lane) || disturbs(m.lane))
        return false;
    if (m.lane < ORPHANS) {
        use(from->dev);
        if (!quiet("order", cudaEventRecord(from->order, from->stream)))
            return false;
        (void)sent(m.lane);
    }
    use(to->dev);
    if (!quiet("after", cudaStreamWaitEvent(to->stream, from->order, 0)))
        return false;
    (void)sent(lane);
    return true;
}

bool settle(struct mark m)
{
    struct lane *l = &lanes[m.lane];

    if (settled(m))
        return true;
    if (lane_capturing(m.lane) || disturbs(m.lane) || (m.lane >= ORPHANS && unsafe_here()))
        return false;
    use(l->dev);
    if (!quiet("settle", m.lane >= ORPHANS ? cudaEventSynchronize(l->order) : cudaStreamSynchronize(l->stream)))
        return false;
    l->synced = l->sent;
    return true;
}

int lane_pick(int dev)
{
    for (int tries = 0; tries < 8; tries++) {
        int l = (int)pick(LANES);
        if (lanes[l].live && (dev < 0 || lanes[l].dev == dev) &&
            (tries > 3 || !captured_anywhere() || lane_capturing(l)))
            return l;
    }
    return dev < 0 ? (int)pick((uint32_t)devices) : dev;
}
