# SPDX-License-Identifier: Apache-2.0
"""A job in a few lines, however many ranks it had: how it went in all, its problems, and which rank is unlike the others.

Here: text made of summary's figures. Not here: it reads no events, and judges no run against another one (diff does).
"""
from __future__ import annotations

import statistics
from collections import Counter
from typing import Any, Callable, Iterator, NamedTuple, Optional

from .check import OUTPUT_ONLY
from .comms import ranks_missing
from .reader import UNFINISHED
from .replay import Rank
from .schema import Event
from .text import count_of, human_size, human_time, policy_text, table

SHOWN = 10  # ranks out of line that are listed, and callers
PART = 0.1  # of the median: a smaller difference is normal
SPREADS = 5  # times the median distance from the median: the same


class Row(NamedTuple):
    """One device of one rank."""
    rank: Rank
    device: int
    figures: Event

    @property
    def name(self) -> str:
        return self.rank.name + (f" device {self.device}" if len(self.rank.replay.devices) > 1 else "")


SEGMENT = 2 << 20  # bytes
# Figures that ranks of one job have alike: what to call them, how to print them, and what difference is none. Times are not among
# them: they say more of the machine than of the rank.
ALIKE: list[tuple[str, str, Callable[[Any], str], float]] = [
    ("peak_held", "peak held", human_size, SEGMENT), ("peak_live", "peak live", human_size, SEGMENT),
    ("live_at_end", "live at the end", human_size, SEGMENT), ("requests", "requests", str, 2), ("hit_rate", "hit rate", lambda v: f"{100 * v:.1f}%", 0.01),
    ("driver_calls", "driver calls", str, 2), ("bypassed", "bypassed", str, 2), ("trims", "trims", str, 2)]


def gpus_of(rows: list[Row]) -> int:
    """Different devices, as far as the traces tell: ranks may share one."""
    return len({(row.rank.header.get("host"), row.figures["uuid"]) if row.figures["uuid"] else (id(row.rank), row.device) for row in rows})


def numbers_of(ranks: list[Rank]) -> str:
    """Ranks 0-3 and 7; without a number their processes."""
    known = sorted({r.rank for r in ranks if r.rank is not None})
    runs: list[list[int]] = []
    for n in known:
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    named = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    text = ", ".join(named[:SHOWN]) + (f" and {len(named) - SHOWN} more" if len(named) > SHOWN else "")
    out = [f"{'rank' if len(known) == 1 else 'ranks'} {text}"] if known else []
    others = [r.name for r in ranks if r.rank is None]
    return ", ".join([*out, *others[:SHOWN], *([f"{len(others) - SHOWN} more"] if len(others) > SHOWN else [])])


def spread(rows: list[Row], key: str, show: Callable[[Any], str]) -> str:
    """A figure of each rank: the median, and the rank with the most, if that is more."""
    known = [row for row in rows if row.figures[key] is not None]
    if not known:
        return "-"
    median = statistics.median_high(row.figures[key] for row in known)
    most = max(known, key=lambda row: row.figures[key])  # type: ignore[no-any-return]
    return show(median) + (f" (most {show(most.figures[key])}, {most.name})" if most.figures[key] > median else "")


def heading(ranks: list[Rank], rows: list[Row]) -> str:
    programs = sorted({str(r.header.get("exe", "?")) for r in ranks})
    hosts = {r.header.get("host") for r in ranks}
    seconds = [r.replay.last_t / 1e9 for r in ranks]
    names = ", ".join(programs[:3]) + (f" and {len(programs) - 3} more" if len(programs) > 3 else "")
    return (f"{count_of(len(ranks), 'process', 'processes')} of {names} on {count_of(len(hosts), 'host')}, {count_of(gpus_of(rows), 'device')}; "
            f"{min(seconds):.3f} to {max(seconds):.3f} s" + (", all complete" if all(r.reader.complete for r in ranks) else ""))


def totals(rows: list[Row], total: Event) -> Iterator[str]:
    rate = "-" if total["hit_rate"] is None else f"{100 * total['hit_rate']:.1f}%"
    saved = "" if total["saved_us"] is None else f", about {human_time(total['saved_us'])} saved"
    requests = "-" if total["requests"] is None else str(total["requests"])
    yield (f"in all: {requests} requests, {rate} hits{saved}; {total['driver_calls']} driver calls, {human_time(total['driver_us'])} in them; "
           f"oom {total['oom']}, trims {total['trims']}")
    yield (f"each: peak held {spread(rows, 'peak_held', human_size)}, peak live {spread(rows, 'peak_live', human_size)}, "
           f"requests {spread(rows, 'requests', str)}, driver calls {spread(rows, 'driver_calls', str)}")


def pinned_total(ranks: list[Rank]) -> Iterator[str]:
    """Pinned memory that was pooled, if any was."""
    known = [f for f in (r.replay.host.figures() for r in ranks) if f]
    if known:
        yield (f"pinned memory: {sum(f['requests'] or 0 for f in known)} requests in {count_of(len(known), 'process', 'processes')}, peak held "
               f"{human_size(max(f['peak_held'] for f in known))} at most; {sum(f['driver_calls'] for f in known)} driver calls, "
               f"{human_time(sum(f['driver_us'] for f in known))} in them")


def count_problems(ranks: list[Rank], rows: list[Row]) -> Iterator[tuple[str, list[tuple[Rank, int]]]]:
    """Each kind of problem, and in which ranks how often it was."""
    kinds: list[tuple[str, Callable[[Event], int]]] = [
        ("out of memory", lambda f: int(f["oom"])), ("IPC handles refused", lambda f: int(f["ipc_refused"])),
        ("registrations refused", lambda f: int(f["registrations_refused"]))]
    for kind, count in kinds:
        yield kind, [(row.rank, count(row.figures)) for row in rows]
    yield "out of pinned memory", [(r, r.replay.host.oom) for r in ranks]
    yield "faults in the trace, which check names", [(r, r.problems.count) for r in ranks]
    yield "events left out of the trace", [(r, 1 if r.reader.omitted else 0) for r in ranks]
    yield f"{UNFINISHED}, no end line", [(r, 0 if r.reader.ended else 1) for r in ranks]
    yield "lines dropped", [(r, int(r.reader.dropped)) for r in ranks]


def problems(ranks: list[Rank], rows: list[Row], others: list[str]) -> Iterator[str]:
    for kind, counts in count_problems(ranks, rows):
        hit = [(r, n) for r, n in counts if n]
        times = sum(n for _, n in hit)
        if hit:
            yield f"{kind}: {numbers_of([r for r, _ in hit])}" + (f"; {times} times" if times > len(hit) else "")
    known = {r.rank for r in ranks if r.rank is not None}
    missing = ranks_missing(known, max(known, default=-1) + 1)
    if missing:
        yield missing
    yield from others[:SHOWN]
    if len(others) > SHOWN:
        yield f"and {len(others) - SHOWN} more of other runs"


def kinds_of(row: Row) -> dict[str, str]:
    """Facts that hold for all ranks of a job alike, and are no numbers."""
    header, policy = row.rank.header, row.figures["policy"]
    settings = {k: str(v) for k, v in header.get("settings", {}).items() if k not in OUTPUT_ONLY}
    return {"program": str(header.get("exe")), "cupool": str(header.get("version")), "GPU": str(row.figures["name"]),
            "free policy": policy_text(row.rank.header, str(policy[-1]["free"] if policy else None)), "devices": str(len(row.rank.replay.devices)), **settings}


def out_of_line(rows: list[Row]) -> list[tuple[Row, list[str]]]:
    """The devices that are unlike most others, and in what; those that differ in most first."""
    found: dict[int, list[str]] = {}
    kinds = [kinds_of(row) for row in rows]
    for kind in dict.fromkeys(k for one in kinds for k in one):
        values = [one.get(kind, "not there") for one in kinds]
        usual = Counter(values).most_common(1)[0][0]
        for i, value in enumerate(values):
            if value != usual:
                found.setdefault(i, []).append(f"{kind} {value} (others {usual})")
    for key, name, show, least in ALIKE:
        known = [row.figures[key] for row in rows if row.figures[key] is not None]
        if not known:
            continue
        median = statistics.median_high(known)
        distance = statistics.median(abs(v - median) for v in known)
        for i, row in enumerate(rows):
            v = row.figures[key]
            if v is not None and abs(v - median) > max(PART * median, SPREADS * distance, least):
                found.setdefault(i, []).append(f"{name} {show(v)} (median {show(median)})")
    return sorted(((rows[i], texts) for i, texts in found.items()), key=lambda item: -len(item[1]))


def callers(rows: list[Row]) -> Optional[str]:
    """Callers, over all ranks."""
    held: dict[str, list[int]] = {}
    for row in rows:
        for c in row.figures["callers"]:
            known = held.setdefault(c["caller"], [0, 0, 0, 0])
            for i, n in enumerate((1, c["live_at_peak"], c["live_at_end"], c["requests"])):
                known[i] += n
    if not held:
        return None
    most = sorted(held.items(), key=lambda item: (-item[1][1], -item[1][3], item[0]))
    head = f"{count_of(len(held), 'caller')}, by what they held in all ranks when most was live in each"
    return (head + (f"; the first {SHOWN}" if len(most) > SHOWN else "") + "\n"
            + table(["caller", "ranks", "live at peak", "live at end", "requests"],
                    [[name, str(n), human_size(peak), human_size(end), str(requests)] for name, (n, peak, end, requests) in most[:SHOWN]], left=1))


def lines(ranks: list[Rank], rows: list[Row], total: Event, others: list[str]) -> Iterator[str]:
    """others: the remark on ranks of other runs among these."""
    yield heading(ranks, rows)
    if rows:
        yield from totals(rows, total)
    yield from pinned_total(ranks)
    yield from listed("problems", list(problems(ranks, rows, others)))
    unlike = out_of_line(rows) if len(rows) > 2 else []  # of two neither is the unusual one
    yield from listed("out of line", [f"{row.name}: {', '.join(texts)}" for row, texts in unlike[:SHOWN]]
                      + ([f"and {len(unlike) - SHOWN} more"] if len(unlike) > SHOWN else []))


def listed(title: str, texts: list[str]) -> Iterator[str]:
    if len(texts) < 2:
        yield f"{title}: {texts[0] if texts else 'none'}"
    else:
        yield f"{title}:"
        yield from (f"  {text}" for text in texts)
