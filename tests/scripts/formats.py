# SPDX-License-Identifier: Apache-2.0
"""Small readers of the formats that cupool-trace converts to. Each fails where the real readers would: RMM, Perfetto, PyTorch's
viewer, whose needs are written beside it.
"""

import collections
import json
import pickle
import pickletools
import re
import sys
from typing import Any, Optional

from made_traces import Event


class RmmLog:
    """Reads as RMM's log parser and replay do (cpp/benchmarks/utilities/log_parser.hpp and replay/replay.cpp): columns by name, three
    actions, hexadecimal pointers or (nil), only the default stream. Blocks are kept by pointer: an allocation of a pointer that is
    there is lost, a free of one that is not there frees null with a size."""

    def __init__(self, out: bytes) -> None:
        lines = out.decode("ascii").split("\n")
        assert lines.pop() == ""
        names = lines[0].split(",")
        assert lines[0] == "Thread,Time,Action,Pointer,Size,Stream", lines[0]
        self.live: dict[int, int] = {}
        self.counts: "collections.Counter[str]" = collections.Counter()
        self.peak = now = 0
        for line in lines[1:]:
            row = dict(zip(names, line.split(","), strict=True) if sys.version_info >= (3, 10) else zip(names, line.split(",")))
            assert re.fullmatch(r"\d+", row["Thread"]) and re.fullmatch(r"\d+", row["Size"]), line
            assert re.fullmatch(r"[012]\d:[0-5]\d:[0-5]\d\.\d{6}", row["Time"]), line
            assert row["Stream"] == "0" and int(row["Size"]) < 1 << 64 and int(row["Thread"]) < 1 << 64, line
            assert row["Pointer"] == "(nil)" or re.fullmatch(r"0x[0-9a-f]{1,16}", row["Pointer"]), line
            p, n = 0 if row["Pointer"] == "(nil)" else int(row["Pointer"], 16), int(row["Size"])
            self.counts[row["Action"]] += 1
            if row["Action"] == "allocate":
                assert p not in self.live, f"allocated twice: {line}"
                self.live[p] = n
                now += n
                self.peak = max(self.peak, now)
            elif row["Action"] == "free":
                assert self.live.pop(p, None) == n, f"not there, or of another size: {line}"
                now -= n
            else:
                assert row["Action"] == "allocate failure", line


class Timeline:
    """The rules of the trace-event format that Perfetto and Chrome go by: microseconds in ts and dur, slices of a thread nest or
    follow each other, counters are numbers, whatever is used is named by metadata, process 0 is the idle one."""

    def __init__(self, out: bytes) -> None:
        whole = json.loads(out)
        self.other = whole["otherData"]
        self.events: list[Event] = whole["traceEvents"]
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        self.counters: dict[tuple[int, str], list[tuple[float, int]]] = {}
        self.slices: dict[tuple[int, int], list[Event]] = {}
        self.marks: list[Event] = []
        last: dict[Any, float] = {}
        for e in self.events:
            assert type(e["pid"]) is int and e["pid"] > 0 and type(e["tid"]) is int and type(e["ts"]) in (int, float), e
            track: Any = None
            if e["ph"] == "M":
                if e["name"] == "process_name":
                    assert e["pid"] not in self.processes
                    self.processes[e["pid"]] = e["args"]["name"]
                elif e["name"] == "thread_name":
                    assert all(tid != e["tid"] for _, tid in self.threads), "one number for two threads"
                    self.threads[e["pid"], e["tid"]] = e["args"]["name"]
                else:
                    assert e["name"] == "process_sort_index"
                continue
            assert e["pid"] in self.processes, e
            if e["ph"] == "C":
                track = (e["pid"], e["name"])
                for k, v in e["args"].items():
                    assert type(v) is int and v >= 0, e
                    self.counters.setdefault((e["pid"], f"{e['name']} {k}"), []).append((e["ts"], v))
            elif e["ph"] == "X":
                assert (e["pid"], e["tid"]) in self.threads and e["dur"] >= 0
                track = (e["pid"], e["tid"])
                before = self.slices.setdefault(track, [])
                assert not before or before[-1]["ts"] + before[-1]["dur"] <= e["ts"] + 1e-4, (before[-1], e)
                before.append(e)
            else:
                assert e["ph"] == "i" and e["s"] == "p" and (e["pid"], e["tid"]) in self.threads, e
                track = (e["pid"], "marks", e.get("cat"), e["name"] if "cat" in e else None)  # those of a peak come when all names are known
                self.marks.append(e)
            assert e["ts"] >= last.get(track, e["ts"]), e
            last[track] = e["ts"]

    def top(self, name: str, pid: int = 1) -> int:
        return max(v for _, v in self.counters[pid, name])


class Snapshot:
    """Reads as PyTorch's _memory_viz.py and MemoryViz.js do. The page reads a pickle with these opcodes only. It finds the blocks
    of a segment by adding up their sizes, and the past by undoing entries one by one from the state at the end: a block that is
    not inside a segment at that time, or a free_requested of a block that is not there, ends in a TypeError and an empty page."""

    OPCODES = set("PROTO STOP FRAME MARK MEMOIZE BINGET LONG_BINGET EMPTY_DICT SETITEMS SETITEM EMPTY_LIST APPENDS APPEND "
                  "EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE BININT BININT1 BININT2 LONG1 BINUNICODE SHORT_BINUNICODE NONE "
                  "NEWTRUE NEWFALSE BINFLOAT".split())

    def __init__(self, out: bytes) -> None:
        names = set()
        for op, arg, _ in pickletools.genops(out):
            names.add(op.name)
            assert op.name != "PROTO" or arg == 4
            assert not isinstance(arg, int) or -1 << 63 <= arg < 1 << 63
            if isinstance(arg, str):
                arg.encode()  # the page decodes UTF-8
        assert names <= self.OPCODES, names - self.OPCODES
        self.whole = pickle.loads(out)
        self.segments: list[Event] = self.whole["segments"]
        self.traces: list[list[Event]] = self.whole["device_traces"]
        assert isinstance(self.whole["allocator_settings"], dict) and self.whole["external_annotations"] == []
        for seg in self.segments:
            self.check_segment(seg)
        for d, trace in enumerate(self.traces):
            self.check_trace(d, trace)

    def check_frames(self, o: Event) -> None:
        assert o["frames"], o
        for f in o["frames"]:
            assert type(f["filename"]) is str and type(f["line"]) is int and type(f["name"]) is str

    def check_segment(self, seg: Event) -> None:
        self.check_frames(seg)
        assert 0 <= seg["device"] < len(self.traces) and seg["stream"] == 0
        at = seg["address"]
        external = internal = allocated = 0
        for b in seg["blocks"]:
            self.check_frames(b)
            assert b["address"] == at and b["size"] > 0, "the blocks do not tile the segment"
            at += b["size"]
            if b["state"] == "active_allocated":
                assert 0 < b["requested_size"] <= b["size"]
                allocated += b["requested_size"]
                internal += b["size"] - b["requested_size"]
            else:
                assert b["state"] == "inactive" and b["requested_size"] == 0
                external += b["size"]
        assert at == seg["address"] + seg["total_size"] == seg["address"] + external + internal + allocated
        assert seg["allocated_size"] == seg["active_size"] == internal + allocated and seg["requested_size"] == allocated

    def check_trace(self, d: int, trace: list[Event]) -> None:
        segments = {s["address"]: s["total_size"] for s in self.segments if s["device"] == d}
        blocks = {b["address"]: b["requested_size"] for s in self.segments if s["device"] == d for b in s["blocks"]
                  if b["state"] == "active_allocated"}
        pending: Optional[Event] = None
        time_us = None
        for e in reversed(trace):
            self.check_frames(e)
            assert "category" not in e and e["stream"] == 0 and type(e["size"]) is int
            assert type(e["time_us"]) is int and (time_us is None or e["time_us"] <= time_us)
            time_us = e["time_us"]
            p, n = e.get("addr", 0), e["size"]
            if pending:
                assert (e["action"], p, n) == ("free_requested", pending["addr"], pending["size"]), "not a pair"
                assert p not in blocks
                blocks[p] = n
                assert any(s <= p and p + n <= s + m for s, m in segments.items()), "a block outside segments"
                pending = None
            elif e["action"] == "free_completed":
                pending = e
            elif e["action"] == "alloc":
                assert blocks.pop(p) == n, "an allocation of what is not there later"
            elif e["action"] == "segment_free":
                assert p not in segments
                segments[p] = n
            elif e["action"] == "segment_alloc":
                assert segments.pop(p) == n
                assert not any(p <= b < p + n for b in blocks), "blocks of a segment that is not there yet"
            elif e["action"] == "oom":
                assert type(e["device_free"]) is int and "addr" not in e
            else:
                assert e["action"] == "snapshot", e
        assert not pending
        self.before = getattr(self, "before", []) + [(segments, blocks)]

    def blocks(self, d: int = 0) -> dict[int, int]:
        return {b["address"]: b["requested_size"] for s in self.segments if s["device"] == d for b in s["blocks"]
                if b["state"] == "active_allocated"}

    def count(self, action: str, d: int = 0) -> int:
        return sum(e["action"] == action for e in self.traces[d])
