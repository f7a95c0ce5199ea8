# SPDX-License-Identifier: Apache-2.0
"""Traces of a job of many ranks, made up: eight ranks a host, each with one GPU and the events of some training steps, all alike.

Not here: a test, nor what the library writes to the byte; `check` finds them right.
"""

import copy
import json
from pathlib import Path
from typing import Any, Callable

from test_trace import BASE, MIB, Event, ev, header, stats

A_HOST = 8
Change = Callable[["list[Event]"], Any]


def life(steps: int, layers: int = 6) -> "list[Event]":
    """One rank: a segment for each layer in the first step, and blocks in them in every step."""
    events, t, requests = [ev(10, "policy", free="ordered", why="default")], 100, 0
    for step in range(steps):
        for layer in range(layers):
            p, n = BASE + layer * 64 * MIB, (layer + 1) * MIB
            if step == 0:
                events.append(ev(t, "segment_alloc", p=p, n=32 * MIB, us=100.0 + layer))
            events.append(ev(t + 1, "alloc", p=p, n=n))
            requests, t = requests + 1, t + 1000
        for layer in reversed(range(layers)):
            at = {"p": BASE + layer * 64 * MIB, "n": (layer + 1) * MIB}
            events += [ev(t, "free_requested", **at), ev(t + 1, "free_completed", **at)]
            t += 1000
    live, held = sum(range(1, layers + 1)) * MIB, layers * 32 * MIB
    events.append(stats(t, allocs=requests, hits=requests - layers, misses=layers, frees=requests, held=held, peak_live=live, peak_held=held,
                        segments_alloc=layers, order=requests))
    return [*events, ev(t + 1, "end", dropped=0)]


def written(events: "list[Event]") -> bytes:
    """As the library writes lines, which readers take apart several times as fast as any other JSON."""
    first = ("t", "e", "tid", "d", "p", "n")
    return b"".join(json.dumps({**{k: e[k] for k in first if k in e}, **e}, separators=(",", ":")).encode() + b"\n" for e in events)


def job(folder: Path, ranks: int, steps: int = 20, changes: "dict[int, Change]" = {}) -> "list[str]":
    """The files. changes: by rank, a function that alters its events, the header among them, before they are written."""
    events, paths = life(steps), []
    same = written(events)
    for rank in range(ranks):
        head = header(rank, local_rank=rank % A_HOST, host=f"node{rank // A_HOST}", pid=1000 + rank)
        path = folder / f"r{rank:04}.jsonl"
        if rank in changes:
            own = [head, *copy.deepcopy(events)]
            changes[rank](own)
            path.write_bytes(written(own))
        else:
            path.write_bytes(written([head]) + same)
        paths.append(str(path))
    return paths
