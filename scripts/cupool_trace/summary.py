# SPDX-License-Identifier: Apache-2.0
"""cupool-trace summary: what each rank did on each device."""
from __future__ import annotations

import argparse
import json
import sys
from typing import Iterator, Optional

from . import flame, overview, symbols
from .callers import Names, caller_names, names_of
from .check import of_other_runs
from .measures import Durations
from .options import positive
from .physical import Follow
from .reasons import sentence
from .replay import Device, Part, Rank, load
from .schema import Event
from .text import count_of, human_size, human_time, policy_text, table

HELP = "what each rank did on each device"
FEW = 4  # files of which all is printed, asked for or not
DESCRIPTION = """\
Of several ranks, prints first what all of them did together, the problems there were, and which ranks are out of line: unlike most
others in a figure, by a tenth of the median and five times what is usual. Of up to four files, or with -v of all, then each one's
figures; of more, --top N those of the N devices that held most.

Prints, per rank and device, and per backend (cuda, nccl) where a device has several: requests, hits, misses, time saved, peaks,
waste, segments, driver calls and the time in them; moments out of memory, with what was free and why that did not do, trims, the
free policy and why, refused IPC handles, what was registered with NCCL, the largest segments, and with CUPOOL_TRACE_STACKS=1 who
held the most when most was live; and the physical memory that was taken past the pool (cuMemCreate: NCCL's, PyTorch's expandable
segments), by whom. Requests, hits and peaks of a device come from the stats lines; a killed process wrote none at its end, so
they are then as of the last one, or counted from events as far as these tell, and marked with ~.
Peak live is bytes in blocks handed out, rounded up; peak held is bytes in segments; cached is held and not live.
Time saved is an estimate: the hits, each at the median of what it took all ranks that are read to get a segment of the same
backend, so that ranks that did alike have alike. A segment may be larger than the request; what frees would have taken is not in it.
Waste is what was held and not live when held was greatest; it needs allocation events. So does rounding: what blocks had beyond
what was asked for when live was greatest."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help="the figures of each rank, also of many, and the calls that led to what was live at the peak")
    parser.add_argument("--top", type=positive, metavar="N", help="only the figures of the N devices that held most")
    symbols.add_arguments(parser)


CALLERS = 10  # that are listed; --json has all
SAME = 8  # others of the same device that are named


def callers(rank: Rank, dev: Device) -> list[Event]:
    """Callers: functions, or addresses where the functions are not known. Those that held most at the peak first."""
    out: dict[Names, Event] = {}
    stacks = {stack: names_of(stack, rank.replay.frames) for stack in dev.callers}
    called = caller_names(stacks.values())
    for stack, c in dev.callers.items():
        names = stacks[stack]
        o = out.setdefault(names, {"caller": called[names], "stack": names, "live_at_peak": 0, "live_at_end": 0, "requests": 0})
        o["live_at_peak"] += c.at_peak(dev.peaks)
        o["live_at_end"] += c.live
        o["requests"] += c.requests
    return sorted(out.values(), key=lambda o: (-o["live_at_peak"], -o["requests"], o["stack"]))


def events_tell(part: Part, allocs: bool) -> Event:
    """The figures of a part by its events alone; None where they cannot tell. allocs: those of blocks are among them."""
    # Every miss brings one segment, as far as events can tell.
    misses = min(part.allocs, part.segments_alloc)
    return {
        "requests": part.allocs if allocs else None, "hits": part.allocs - misses if allocs else None,
        "misses": misses if allocs else None, "peak_live": part.peak_live if allocs else None, "peak_held": part.peak_held,
    }


Typical = dict[str, Durations]  # by backend: the times that all ranks took to get a segment


def typical_of(ranks: list[Rank]) -> Typical:
    out: Typical = {}
    for r in ranks:
        for dev in r.replay.devices.values():
            for b, part in dev.backends.items():
                out.setdefault(b, Durations()).add_all(part.got)
    return out


def memory_summary(part: Part, allocs: bool, counted: Event, segment_us: Optional[float]) -> Event:
    """The figures that a device and each of its backends have; `counted` is from events_tell, or from the library's own counters.
    segment_us: what it takes to get a segment."""
    # Without a measured call of its own, the time that the hits would have taken is unknown.
    segment_us = segment_us if part.segments_alloc else None
    return {
        **counted, "hit_rate": hit_rate(counted), "segment_us": segment_us,
        "saved_us": None if counted["hits"] is None or segment_us is None else round(counted["hits"] * segment_us, 3),
        "held_at_end": part.held, "live_at_end": part.live if allocs else None, "cached_at_end": part.held - part.live if allocs else None,
        "waste": part.peak_held - part.live_at_peak_held if allocs else None,
        "rounding": part.peak_live - part.asked_at_peak if allocs else None,
        "segments_alloc": part.segments_alloc, "segments_free": part.segments_free,
        "driver_calls": part.driver_calls, "driver_us": round(part.driver_us, 3),
    }


def device_summary(rank: Rank, dev: Device, typical: Optional[Typical] = None) -> Event:
    """The figures of one device. From its stats line where there is one; else from events, None where they cannot tell. typical:
    None if this rank is the only one."""
    s = dev.stats
    took = {b: got.median for b, got in (typical_of([rank]) if typical is None else typical).items()}
    allocs = rank.follows_blocks
    told = events_tell(dev, allocs)
    counted = {"requests": s["allocs"], **{k: s[k] for k in told if k != "requests"}} if s else told
    backends = {b: memory_summary(part, allocs, counted if part is dev else events_tell(part, allocs), took.get(b))
                for b, part in sorted(dev.backends.items())}
    only = took.get(next(iter(backends))) if len(backends) == 1 else None  # several kinds of calls have no median together
    out: Event = {
        "from_stats": s is not None, "stats_at": None if dev.stats_at is None else dev.stats_at / 1e9,
        "bypassed": s["bypassed"] if s else None, **memory_summary(dev, allocs, counted, only), "backends": backends,
        "segments_live": dev.segments_live,
        "oom": dev.oom, "oom_moments": dev.oom_moments,
        "trims": dev.trims, "trimmed": dev.trimmed, "ipc_ok": dev.ipc_ok, "ipc_refused": dev.ipc_refused,
        "registered_at_end": dev.registered.bytes, "peak_registered": dev.registered.peak, "registrations": dev.registered.registered,
        "deregistrations": dev.registered.deregistered, "registrations_refused": dev.registered.refused, "communicators": dev.registered.comms,
        "name": dev.name, "uuid": dev.uuid, "policy": dev.policy, "callers": callers(rank, dev),
        "largest_segments": [{"n": n, "t": -t, "p": p} for n, t, p in sorted(dev.largest, reverse=True)],
    }
    if rank.reader.omitted and s:  # counters have the figures of events that were left out
        out.update(segments_alloc=s["segments_alloc"], segments_free=s["segments_free"])
        if rank.traces_allocs and dev.stats_at is None:
            out.update(live_at_end=s["live"], cached_at_end=max(0, dev.held - s["live"]))
    if len(backends) > 1:
        saved = [f["saved_us"] for f in backends.values()]
        out.update(saved_us=None if None in saved else round(sum(saved), 3))
    return out


def hit_rate(f: Event) -> Optional[float]:
    tried = (f["hits"] or 0) + (f["misses"] or 0)
    return round(f["hits"] / tried, 6) if f["hits"] is not None and tried else None


def summary_total(figures: list[Event]) -> Event:
    out: Event = {}
    for key in ("requests", "hits", "misses", "bypassed", "saved_us", "segments_alloc", "segments_free", "segments_live", "held_at_end",
                "live_at_end", "cached_at_end", "driver_calls", "driver_us", "oom", "trims", "trimmed", "ipc_ok", "ipc_refused"):
        known = [f[key] for f in figures if f[key] is not None]
        out[key] = round(sum(known), 3) if known else None
    for key in ("peak_live", "peak_held", "waste", "rounding"):  # not at the same time, so a sum would say nothing
        out[key] = max((f[key] for f in figures if f[key] is not None), default=None)
    out["hit_rate"] = hit_rate(out)
    return out


def summary_row(names: list[str], f: Event, guessed: bool) -> list[str]:
    def number(v: Optional[int]) -> str:
        return "-" if v is None else f"{'~' if guessed else ''}{v}"

    rate = "-" if f["hit_rate"] is None else f"{'~' if guessed else ''}{100 * f['hit_rate']:.1f}%"
    saved = "-" if f["saved_us"] is None else "~" + human_time(f["saved_us"])
    return [*names, number(f["requests"]), number(f["hits"]), number(f["misses"]), rate, saved, human_size(f["peak_live"]),
            human_size(f["peak_held"]), human_size(f["waste"]), str(f["segments_alloc"]), str(f["driver_calls"]), human_time(f["driver_us"]),
            *(str(f[k]) if k in f else "" for k in ("oom", "trims"))]


def saved_note(f: Event, backend: str) -> str:
    return (f"about {human_time(f['saved_us'])} saved: {count_of(f['hits'], 'hit')} at {f['segment_us']:.1f} us each, the median of what it took to "
            f"get a segment from {backend}")


def oom_note(ev: Event) -> str:
    free = {"device_free": "on the device", "idle": "in idle segments", "holes": "between live blocks", "pending": "kept back",
            "largest": "in the largest piece"}
    said = ", ".join(f"{human_size(ev[k])} {where}" for k, where in free.items() if ev.get(k))
    return (f"out of memory at {ev['t'] / 1e9:.3f} s: {human_size(ev['n'])} asked for, {human_size(ev['held'])} held, "
            f"{human_size(ev['live'])} live" + (f"; free: {said}" if said else "") + (f"; why: {sentence('oom', ev['why'])}" if "why" in ev else ""))


def summary_notes(d: int, f: Event, rank: Rank, of: dict[str, list[str]]) -> Iterator[str]:
    """of: by UUID, whose device that is."""
    who = f"{rank.name} device {d}"
    if f["name"]:
        others = [other for other in of.get(f["uuid"], []) if other != who]
        same = ", ".join(others[:SAME]) + (f" and {len(others) - SAME} more" if len(others) > SAME else "")
        yield f"{who}: {f['name']}" + (f", {f['uuid']}" if f["uuid"] else "") + (f", which is {same} too" if others else "")
    pooled = rank.replay.devices[d].pooled
    if not f["from_stats"] and pooled:
        if rank.follows_blocks:
            yield f"{who}: no stats line; requests counted from events (~), each new segment taken as one miss"
        else:
            yield f"{who}: no stats line and {'not all' if rank.traces_allocs else 'no'} allocation events; requests and hits are unknown"
    elif f["stats_at"] is not None:
        yield f"{who}: requests, hits and peaks as of {f['stats_at']:.3f} s (~), the last stats line"
    for ev in f["policy"]:
        free = policy_text(rank.header, ev["free"])
        so_far = " (ordered so far)" if free == "auto" and ev is f["policy"][-1] else " (ordered)" if free == "auto" else ""
        yield f"{who}: free policy {free}{so_far} from {ev['t'] / 1e9:.3f} s: {ev['why']}"
    for b, of in f["backends"].items():
        if of["saved_us"]:
            yield f"{who}: {saved_note(of, b)}"
    if f["waste"] is not None and f["peak_held"]:
        yield (f"{who}: {human_size(f['waste'])} wasted when most was held; when most was live, "
               f"{human_size(f['rounding'])} of it was rounding; {human_size(f['live_at_end'])} live and "
               f"{human_size(f['cached_at_end'])} cached at the end")
    for ev in f["oom_moments"][:5]:
        yield f"{who}: {oom_note(ev)}"
    if f["oom"] > 5:
        yield f"{who}: out of memory {f['oom']} times in all"
    if f["trims"]:
        yield f"{who}: {count_of(f['trims'], 'trim')} gave back {human_size(f['trimmed'])}"
    if f["ipc_refused"]:
        yield f"{who}: {count_of(f['ipc_refused'], 'request')} for an IPC handle refused"
    if f["registrations"] or f["registrations_refused"] or f["communicators"]:
        refused = f", {f['registrations_refused']} refused" if f["registrations_refused"] else ""
        yield (f"{who}: registered with {count_of(f['communicators'], 'NCCL communicator')}: {human_size(f['peak_registered'])} at most, "
               f"{human_size(f['registered_at_end'])} at the end; {count_of(f['registrations'], 'registration')}, {f['deregistrations']} undone{refused}")
    if f["bypassed"]:
        yield f"{who}: {count_of(f['bypassed'], 'request')} went to the driver unpooled"
    sizes = [human_size(s["n"]) for s in f["largest_segments"]]
    if sizes:
        yield f"{who}: largest segments {', '.join(sizes)}; {f['segments_live']} live at the end ({human_size(f['held_at_end'])})"


def nccl_notes(rank: Rank) -> Iterator[str]:
    """The findings of the process's NCCL operations; beside their number, only those that need a look."""
    f = rank.replay.nccl
    if f is None:
        return
    odd = {"mixed": "with one buffer in registered memory and one outside", "outside": "with none in registered memory",
           "unsafe": "that may meet the bug of NCCL before 2.29.2"}
    yield f"{rank.name}: {count_of(f['ops'], 'NCCL operation')}" + "".join(f"; {f[k]} {text}" for k, text in odd.items() if f[k])
    if f["quarantined"]:
        yield f"{rank.name}: {human_size(f['quarantined'])} can never go back: NCCL did not undo their registration"


def host_note(rank: Rank) -> Iterator[str]:
    """The pool of pinned memory of the process."""
    f = rank.replay.host.figures()
    if f is None:
        return
    requests = "requests and hits are unknown" if f["requests"] is None else (
        count_of(f["requests"], "request") + ("" if f["hit_rate"] is None else f", {100 * f['hit_rate']:.1f}% hits")
        + ("" if f["stats_at"] is None else f" as of {f['stats_at']:.3f} s") + f"; peak live {human_size(f['peak_live'])}")
    yield (f"{rank.name}: pinned memory: {requests}, peak held {human_size(f['peak_held'])}, {human_size(f['held_at_end'])} held at the end; "
           f"{count_of(f['driver_calls'], 'driver call')}, {human_time(f['driver_us'])} in them")
    for ev in f["oom_moments"][:5]:
        yield (f"{rank.name}: out of pinned memory at {ev['t'] / 1e9:.3f} s: {human_size(ev['n'])} asked for, {human_size(ev['held'])} held, "
               f"{human_size(ev['live'])} live, {human_size(ev['idle'])} idle; why: {sentence('host_oom', ev['why'])}")
    if f["oom"] > 5:
        yield f"{rank.name}: out of pinned memory {f['oom']} times in all"
    if f["bound"]:
        yield f"{rank.name}: pinned memory: {count_of(f['bound'], 'request')} came to the bound of what the pool holds"


def kept_note(rank: Rank) -> Iterator[str]:
    """Virtual memory that the program takes by itself, and that is kept for its next requests."""
    f = rank.replay.kept
    if f is not None:
        yield (f"{rank.name}: virtual memory of the program's own: {count_of(f['hits'] + f['misses'], 'request')}, {f['hits']} of them with kept "
               f"memory; {human_size(f['kept'])} kept at the end (most {human_size(f['peak_kept'])}), {human_size(f['returned'])} given back")


def print_callers(who: str, every: list[Event]) -> None:
    if not every:
        return
    print(f"\n{who}: {count_of(len(every), 'caller')}, by what they held when most was live"
          + (f"; the first {CALLERS}" if len(every) > CALLERS else ""))
    print(table(["caller", "live at peak", "live at end", "requests"],
                [[o["caller"], human_size(o["live_at_peak"]), human_size(o["live_at_end"]), str(o["requests"])] for o in every[:CALLERS]], left=1))


def print_flame(who: str, every: list[Event]) -> None:
    root = flame.tree(every)
    if root.bytes:
        print(f"\n{who}: {human_size(root.bytes)} live at the peak, by the calls that led there, the outermost first")
        print("\n".join(flame.lines(root)))


def physical(rank: Rank) -> list[Event]:
    assert isinstance(rank.replay, Follow)
    return rank.replay.physical.figures()


def print_physical(rank: Rank) -> None:
    for f in physical(rank):
        where = "host" if f["device"] is None else f"device {f['device']}"
        print(f"\n{rank.name} {where}: physical memory, by who took it")
        print(table(["by", "object", "now", "peak", "handles", "created", "refused"],
                    [[o["by"], o["object"], human_size(o["now"]), human_size(o["peak"]), *(str(o[k]) for k in ("handles", "created", "refused"))]
                     for o in [*f["callers"], *([{**f, "by": "all", "object": ""}] if len(f["callers"]) > 1 else [])]], left=2))


def as_json(ranks: list[Rank], figures: list[dict[int, Event]], total: Event) -> Event:
    every = rows_of(ranks, figures)
    return {"ranks": [{
        "path": r.path, "rank": r.rank, "host": r.header.get("host"), "pid": r.header.get("pid"), "exe": r.header.get("exe"),
        "seconds": r.replay.last_t / 1e9, "complete": r.reader.complete, "state": r.reader.state, "lines": r.reader.lines,
        "problems": r.problems.count, "nccl": r.replay.nccl, "pinned": r.replay.host.figures(), "kept": r.replay.kept, "devices": {str(d): f for d, f in devices.items()}, "physical": physical(r),
    } for r, devices in zip(ranks, figures)], "total": total,
        "problems": list(overview.problems(ranks, every, list(of_other_runs(ranks)))),
        "out_of_line": [{"rank": row.rank.rank, "path": row.rank.path, "device": row.device, "what": what}
                        for row, what in overview.out_of_line(every)] if len(every) > 2 else []}


def rows_of(ranks: list[Rank], figures: list[dict[int, Event]]) -> list[overview.Row]:
    """All devices on which the pool did something."""
    return [overview.Row(r, d, f) for r, devices in zip(ranks, figures) for d, f in devices.items() if r.replay.devices[d].pooled]


def print_ranks(ranks: list[Rank]) -> None:
    print(table(["rank", "host", "pid", "program", "state", "seconds", "lines"],
                [["-" if r.rank is None else str(r.rank), *(str(r.header.get(k, "?")) for k in ("host", "pid", "exe")),
                  r.reader.state, f"{r.replay.last_t / 1e9:.3f}", str(r.reader.lines)] for r in ranks], left=5))


def device_rows(row: overview.Row) -> tuple[list[list[str]], bool]:
    """The rows of one device in the table, and whether one of them is guessed."""
    r, d, f = row
    free = f["policy"][-1]["free"] if f["policy"] else r.header.get("settings", {}).get("CUPOOL_FREE", "-")
    free = policy_text(r.header, str(free))
    names = ["-" if r.rank is None else str(r.rank), str(d)]
    approximate = not f["from_stats"] or f["stats_at"] is not None
    backends = f["backends"]
    rows = [summary_row([*names, "all" if len(backends) > 1 else next(iter(backends), "-"), free], f, approximate)]
    if len(backends) > 1:
        rows.extend(summary_row([*names, b, ""], one, True) for b, one in backends.items())
    return rows, approximate


def print_devices(devices: list[overview.Row], total: Optional[Event]) -> None:
    rows: list[list[str]] = []
    guessed = False
    for row in devices:
        more, approximate = device_rows(row)
        rows.extend(more)
        guessed = guessed or approximate
    if total:
        rows.append(summary_row(["all", "", "", ""], total, guessed))
    if rows:
        print()
        print(table(["rank", "device", "backend", "free", "requests", "hits", "misses", "hit rate", "saved", "peak live", "peak held", "waste",
                     "segments", "driver calls", "in driver", "oom", "trims"], rows, left=4))
    if total:
        print("all: counts are sums, peaks and waste the largest of any device")


def notes_of(ranks: list[Rank], figures: list[dict[int, Event]]) -> Iterator[str]:
    of: dict[str, list[str]] = {}
    for r, devices in zip(ranks, figures):
        for d, f in devices.items():
            if f["uuid"]:
                of.setdefault(f["uuid"], []).append(f"{r.name} device {d}")
    for r, devices in zip(ranks, figures):
        for d, f in devices.items():
            yield from summary_notes(d, f, r, of)
        yield from nccl_notes(r)
        yield from host_note(r)
        yield from kept_note(r)
        if r.reader.omitted:
            yield f"{r.name}: {r.reader.omitted}; driver calls, the time in them, trims and physical memory are only what is in the file"
        if not devices and not physical(r):
            yield f"{r.name}: no event on any device"
        if r.problems.count:
            yield f"{r.path}: {count_of(r.problems.count, 'problem')}; see cupool-trace check"
    yield from of_other_runs(ranks)


def print_all(ranks: list[Rank], figures: list[dict[int, Event]], every: list[overview.Row], total: Event, verbose: bool) -> None:
    print_ranks(ranks)
    print_devices(every, total if len(every) > 1 else None)
    notes = list(notes_of(ranks, figures))
    if notes:
        print()
        print("\n".join(notes))
    for r, devices in zip(ranks, figures):
        for d, f in devices.items():
            print_callers(f"{r.name} device {d}", f["callers"])
            if verbose:
                print_flame(f"{r.name} device {d}", f["callers"])
        print_physical(r)


def run(args: argparse.Namespace) -> int:
    ranks, unreadable = load(args.files, Follow)
    symbols.name_ranks(ranks, args)
    typical = typical_of(ranks)
    figures = [{d: device_summary(r, dev, typical) for d, dev in sorted(r.replay.devices.items())} for r in ranks]
    total = summary_total([f for devices in figures for f in devices.values()])
    status = 2 if unreadable else 1 if any(r.problems.count for r in ranks) else 0
    if args.json:
        json.dump(as_json(ranks, figures, total), sys.stdout, indent=1)
        print()
        return status
    if not ranks:
        return status
    every = rows_of(ranks, figures)
    if len(ranks) > 1:
        print("\n".join(overview.lines(ranks, every, total, list(of_other_runs(ranks)))))
    if args.top:
        print_devices(sorted(every, key=lambda row: -row.figures["peak_held"])[:args.top], None)
    elif args.verbose or len(ranks) <= FEW:
        if len(ranks) > 1:
            print()
        print_all(ranks, figures, every, total, args.verbose)
    else:
        text = overview.callers(every)
        if text:
            print("\n" + text)
    return status
