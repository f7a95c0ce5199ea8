/* SPDX-License-Identifier: Apache-2.0 */
/*
 * differ_stream.c - the differential fuzzer's streams, events, captures and graphs.
 *
 * The operations make and end them, wait for them and query them. A query has one answer only where the host has waited
 * before; after a cudaFree, which natively waits, docs/differences.md allows another. The work in them is in
 * differ_work.c.
 *
 * Locking: none, see differ.h.
 */
#include "differ.h"

void lane_start(int index, int dev, cudaStream_t stream)
{
    struct lane *l = &lanes[index];

    use(dev);
    *l = (struct lane){
        .live = index < LANES, .stream = stream, .dev = dev, .capture = -1, .sent = l->sent, .synced = l->sent};
    if (cudaEventCreateWithFlags(&l->order, cudaEventDisableTiming))
        told("order_event", 1);
}

/* Every mark, so that all can be changed. */
static void marks_change(struct mark (*change)(struct mark m))
{
    for (int i = 0; i < BLOCKS; i++)
        blocks[i].o.mark = change(blocks[i].o.mark);
    for (int i = 0; i < HOSTS; i++)
        hosts[i].o.mark = change(hosts[i].o.mark);
    for (int i = 0; i < COUNTERS; i++)
        counters[i].o.mark = change(counters[i].o.mark);
    for (int i = 0; i < EVENTS; i++)
        events[i].mark = change(events[i].mark);
    for (int i = 0; i < EXECS; i++)
        execs[i].mark = change(execs[i].mark);
}

static int leaving;

static struct mark orphaned(struct mark m)
{
    const int orphan = ORPHANS + lanes[leaving].dev;

    if (m.lane != leaving)
        return m;
    return state_of(m) == DONE ? (struct mark){0, 0} : (struct mark){orphan, lanes[orphan].sent};
}

void lane_dead(int index)
{
    leaving = index;
    marks_change(orphaned);
    lanes[index].live = false;
    lanes[index].capture = -1;
}

static void lane_destroy(int index)
{
    struct lane *l = &lanes[index], *orphan = &lanes[ORPHANS + l->dev];
    int code;

    if (lane_capturing(index) && !chance(8)) {
        out(" -");
        return;
    }
    if (l->sent > l->synced) {
        if (lane_capturing(index)) {
            out(" -");
            return;
        }
        if (orphan->sent > orphan->synced && !TOLD("join", cudaStreamWaitEvent(l->stream, orphan->order, 0)))
            return;
        if (!TOLD("record", cudaEventRecord(orphan->order, l->stream)))
            return;
        orphan->sent++;
    }
    code = chance(2) ? (int)cudaStreamDestroy(l->stream) : (int)cuStreamDestroy(l->stream);
    if (!told("destroy", code))
        return;
    (void)cudaEventDestroy(l->order);
    if (l->capture >= 0)
        capture_end(l->capture);
    lane_dead(index);
}

void op_stream(void)
{
    const int index = DEVICES + (int)pick(LANES_MADE);
    const int dev = (int)pick((uint32_t)devices);
    cudaStream_t s = NULL;
    int code;

    if (lanes[index].live) {
        lane_destroy(index);
        return;
    }
    use(dev);
    switch (pick(4)) {
    case 0:
        code = (int)cudaStreamCreate(&s);
        break;
    case 1:
        code = (int)cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, -1);
        break;
    case 2:
        code = (int)cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
        break;
    default:
        code = (int)cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    }
    if (told("create", code))
        lane_start(index, dev, s);
}

void op_sync(void)
{
    int l = lane_pick(-1);
    struct event *e = &events[pick(EVENTS)];

    if (captured_anywhere() && !chance(8)) {
        out(" -");
        return;
    }
    use(lanes[l].dev);
    switch (pick(4)) {
    case 0:
        if (TOLD("device", cudaDeviceSynchronize()))
            synced(lanes[l].dev);
        break;
    case 1:
        if (TOLD("context", cuCtxSynchronize()))
            synced(lanes[l].dev);
        break;
    case 2:
        /* The mark of an event whose stream is gone stands for all of that stream, which is more than the event. */
        if (e->live && TOLD("event", cudaEventSynchronize(e->e)) && e->mark.lane < ORPHANS &&
            lanes[e->mark.lane].synced < e->mark.n)
            lanes[e->mark.lane].synced = e->mark.n;
        break;
    default:
        if (TOLD("stream", cudaStreamSynchronize(lanes[l].stream)))
            lanes[l].synced = lanes[l].sent;
    }
}

/* The legacy stream's state is that of all blocking streams, too. */
static enum state lane_state(int index)
{
    enum state worst = state_of((struct mark){index, lanes[index].sent});

    for (int i = 0; index < DEVICES && i < LANES_ALL; i++) {
        const enum state s = state_of((struct mark){i, lanes[i].sent});
        if (lanes[i].dev == lanes[index].dev && s > worst)
            worst = s;
    }
    return worst;
}

static void asked(const char *name, enum state state, int code)
{
    if (state == DONE || (code && code != cudaErrorNotReady))
        told(name, code);
    else if (state == FREED)
        out(" query_after_free{%d}", code);
}

void op_query(void)
{
    const struct event *e = &events[pick(EVENTS)];
    const int l = lane_pick(-1);

    if (captured_anywhere() && !chance(8)) {
        out(" -");
        return;
    }
    use(lanes[l].dev);
    if (!e->live || chance(2))
        asked("stream", lane_state(l),
              chance(2) ? (int)cudaStreamQuery(lanes[l].stream) : (int)cuStreamQuery(lanes[l].stream));
    else
        asked("event", state_of(e->mark), chance(2) ? (int)cudaEventQuery(e->e) : (int)cuEventQuery(e->e));
}

/* ---- events ---- */

void op_event(void)
{
    struct event *e = &events[pick(EVENTS)];
    const int dev = (int)pick((uint32_t)devices);
    int code;

    if (e->live) {
        e->live = !TOLD("destroy", cudaEventDestroy(e->e));
        return;
    }
    use(dev);
    code = chance(2)   ? (int)cudaEventCreate(&e->e)
           : chance(2) ? (int)cudaEventCreateWithFlags(&e->e, cudaEventDisableTiming)
                       : (int)cuEventCreate(&e->e, CU_EVENT_BLOCKING_SYNC);
    if (told("create", code))
        *e = (struct event){.live = true, .e = e->e, .dev = dev};
}

void op_record(void)
{
    struct event *e = &events[pick(EVENTS)];
    const int l = e->live ? lane_pick(e->dev) : -1;

    if (l < 0 || (captured_anywhere() && l < DEVICES && !chance(8))) {
        out(" -");
        return;
    }
    use(lanes[l].dev);
    if (chance(2) && e->mark.n && !e->captured) {
        const int other = lane_pick(-1);
        if (captured_anywhere() && (lane_capturing(other) || other < DEVICES) && !chance(8)) {
            out(" -");
            return;
        }
        use(lanes[other].dev);
        if (TOLD("wait", cudaStreamWaitEvent(lanes[other].stream, e->e, 0)))
            (void)sent(other);
        capture_check(other);
        return;
    }
    if (TOLD("record",
             chance(2) ? (int)cudaEventRecord(e->e, lanes[l].stream) : (int)cuEventRecord(e->e, lanes[l].stream))) {
        e->captured = lane_capturing(l);
        if (!e->captured)
            e->mark = sent(l);
    }
    capture_check(l);
}

static bool own_free(struct mark m)
{
    return m.n <= lanes[m.lane].synced || m.n <= lanes[m.lane].freed_by[self];
}

void op_elapsed(void)
{
    const struct event *a = &events[pick(EVENTS)], *b = &events[pick(EVENTS)];
    float ms;

    if (!a->live || !b->live || a->captured || b->captured || captured_anywhere() || state_of(a->mark) == BUSY ||
        state_of(b->mark) == BUSY) {
        out(" -");
        return;
    }
    const bool over = state_of(a->mark) == DONE && state_of(b->mark) == DONE;
    const bool own = own_free(a->mark) && own_free(b->mark);
    const int code = (int)cudaEventElapsedTime(&ms, a->e, b->e);
    if (over || (code && code != cudaErrorNotReady))
        told("elapsed", code);
    else
        out(" %s{%d}", own ? "elapsed_after_own_free" : "elapsed_after_free", code);
}

/* ---- captures ---- */

void capture_check(int lane)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

    if (!lane_capturing(lane))
        return;
    const int code = (int)cudaStreamIsCapturing(lanes[lane].stream, &status);
    if (code || status != cudaStreamCaptureStatusActive)
        out(" capture=%d,%d", code, (int)status);
}

void capture_end(int index)
{
    for (int i = 0; i < LANES; i++) {
        if (lanes[i].capture == index)
            lanes[i].capture = -1;
    }
    captures[index].live = false;
}

/* Is all memory that the steps name still there? A real driver crashes on a graph with nodes of freed memory. */
static bool usable(const struct step *steps, int n)
{
    for (int i = 0; i < n; i++) {
        const struct step *s = &steps[i];
        if (!s->to->live || s->to->gen != s->to_gen || (s->from && (!s->from->live || s->from->gen != s->from_gen)))
            return false;
    }
    return true;
}

static void finish(int index)
{
    struct capture *c = &captures[index];
    struct exec *e = &execs[pick(EXECS)];
    cudaGraph_t graph = NULL;
    int code;

    if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != self && !chance(16)) {
        out(" -");
        return;
    }
    code = chance(2) ? (int)cudaStreamEndCapture(lanes[c->lane].stream, &graph)
                     : (int)cuStreamEndCapture(lanes[c->lane].stream, &graph);
    told("end", code);
    if (code == cudaErrorStreamCaptureWrongThread)
        return;
    if (!code) {
        if (e->live)
            TOLD("destroy", cudaGraphExecDestroy(e->e));
        *e = (struct exec){.dev = lanes[c->lane].dev, .n = c->n};
        memcpy(e->steps, c->steps, sizeof(e->steps));
        e->live = usable(c->steps, c->n) && TOLD("instantiate", cudaGraphInstantiate(&e->e, graph, 0));
        TOLD("graph", cudaGraphDestroy(graph));
    }
    capture_end(index);
}

void op_capture(void)
{
    const int index = (int)pick(CAPTURES);
    struct capture *c = &captures[index];
    int l, code;

    if (c->live) {
        if (chance(2))
            finish(index);
        else
            out(" -");
        return;
    }
    l = chance(16) ? (int)pick((uint32_t)devices) : DEVICES + (int)pick(LANES_MADE);
    if (!lanes[l].live || (lane_capturing(l) && !chance(4))) {
        out(" -");
        return;
    }
    const enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)pick(3);
    use(lanes[l].dev);
    code = chance(2) ? (int)cudaStreamBeginCapture(lanes[l].stream, mode)
                     : (int)cuStreamBeginCapture(lanes[l].stream, (CUstreamCaptureMode)mode);
    out(" mode=%d", (int)mode);
    if (!told("begin", code))
        return;
    *c = (struct capture){.live = true, .lane = l, .thread = self, .mode = mode};
    lanes[l].capture = index;
}

void op_launch(void)
{
    struct exec *e = &execs[pick(EXECS)];
    int l = e->live ? lane_pick(e->dev) : -1;

    if (l < 0 || lane_capturing(l) || (l < DEVICES && captured_anywhere())) {
        out(" -");
        return;
    }
    if (!usable(e->steps, e->n)) {
        e->live = !TOLD("destroy", cudaGraphExecDestroy(e->e));
        return;
    }
    bool ok = order(l, e->mark);
    for (int i = 0; ok && i < e->n; i++)
        ok = order(l, e->steps[i].to->mark) && (!e->steps[i].from || order(l, e->steps[i].from->mark));
    if (!ok) {
        out(" -");
        return;
    }
    use(e->dev);
    if (!TOLD("launch",
              chance(2) ? (int)cudaGraphLaunch(e->e, lanes[l].stream) : (int)cuGraphLaunch(e->e, lanes[l].stream)))
        return;
    e->mark = sent(l);
    for (int i = 0; i < e->n; i++) {
        e->steps[i].to->mark = e->mark;
        if (e->steps[i].from)
            e->steps[i].from->mark = e->mark;
        step_done(&e->steps[i]);
    }
}

/* With the thread's mode exchanged memory can be had and given back in any capture. */
void op_exchange(void)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    const int dev = (int)pick((uint32_t)devices);
    void *p = NULL;

    use(dev);
    TOLD("exchange", cudaThreadExchangeStreamCaptureMode(&mode));
    if (TOLD("malloc", cudaMalloc(&p, 1 + pick(4096))) && TOLD("free", cudaFree(p)))
        freed(dev);
    TOLD("back", cudaThreadExchangeStreamCaptureMode(&mode));
    for (int i = 0; i < CAPTURES; i++) {
        if (captures[i].live)
            capture_check(captures[i].lane);
    }
}

/* Another stream is drawn into a capture, or joined again. */
void op_fork(void)
{
    const struct capture *c = &captures[pick(CAPTURES)];
    struct event *e = &events[pick(EVENTS)];
    const int other = DEVICES + (int)pick(LANES_MADE);

    if (!c->live || !e->live || !lanes[other].live || other == c->lane || e->dev != lanes[c->lane].dev ||
        lanes[other].dev != e->dev) {
        out(" -");
        return;
    }
    const bool join = lanes[other].capture == lanes[c->lane].capture;
    const int from = join ? other : c->lane, to = join ? c->lane : other;
    if (!join && lane_capturing(other) && !chance(4)) {
        out(" -");
        return;
    }
    use(e->dev);
    if (!TOLD("record", cudaEventRecord(e->e, lanes[from].stream)))
        return;
    e->captured = true;
    if (TOLD("wait", cudaStreamWaitEvent(lanes[to].stream, e->e, 0)) && !join && !lane_capturing(other))
        lanes[other].capture = (int)(c - captures);
    capture_check(c->lane);
}
