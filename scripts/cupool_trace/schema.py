# SPDX-License-Identifier: Apache-2.0
"""The schema of a trace: which keys the header and each event have, and of which type they are; docs/trace.md describes them.

Not here: reading a file; see reader. Nor what an event means; see replay.
"""
from __future__ import annotations

import re
from typing import Any, Callable

from .omitted import LEFT_OUT

FORMAT = 1
BLOCKS, SEGMENTS = ("alloc", "free_requested", "free_completed"), ("segment_alloc", "segment_free")
Event = dict[str, Any]
Check = tuple[str, Callable[[Any], bool], str]  # a key, whether its value is right, and how to name the right type

# The library writes numbers of 64 bits; JSON knows larger ones, with which nobody could calculate.
TOP = 1 << 64
TIME_TOP = 10**19  # ns, 317 years: a time that is later is a negative one, written without its sign


def _is_int(v: Any) -> bool:
    return type(v) is int and -TOP < v < TOP  # not isinstance: true is no number here


def _is_size(v: Any) -> bool:
    return type(v) is int and 0 <= v < TOP


def _is_time(v: Any) -> bool:
    return type(v) is int and 0 <= v < TIME_TOP


def _is_number(v: Any) -> bool:
    return type(v) in (int, float) and 0 <= v < TOP


def _is_str(v: Any) -> bool:
    return isinstance(v, str)


_ADDRESS = re.compile(r"0x[0-9a-fA-F]{1,16}")


def _is_address(v: Any) -> bool:
    return isinstance(v, str) and _ADDRESS.fullmatch(v) is not None


def _or_null(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda v: v is None or test(v)


# The type of a key wherever it occurs, and how to say that. `live`, `held` and the counters of `stats` are sizes.
TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "t": (_is_time, "a time in nanoseconds"), "tid": (_is_int, "a number"), "d": (_is_size, "a device number"),
    "p": (_is_address, "a hexadecimal string"), "n": (_is_size, "a number of bytes"), "b": (_is_str, "a string"),
    "block": (_is_size, "a number of bytes"), "total": (_is_size, "a number of bytes"),
    "name": (_is_str, "a string"), "uuid": (_is_str, "a string"),
    "us": (_is_number, "microseconds"), "why": (_is_str, "a string"), "free": (_is_str, "a string"),
    "ok": (lambda v: _is_int(v) and v in (0, 1), "0 or 1"), "f": (_is_size, "a frame's number"), "at": (_is_str, "a string"),
    "o": (_is_size, "an object's number"), "bias": (_is_address, "a hexadecimal string"), "id": (_is_str, "a string"), "path": (_is_str, "a string"),
    "h": (_is_address, "a hexadecimal string"), "offset": (_is_size, "a number of bytes"), "by": (_is_str, "a string"),
    "result": (_is_size, "an error code"), "text": (_is_str, "a string"), "domain": (_is_str, "a string"), "mode": (_is_str, "a string"),
    "comm": (_is_str, "a string"), "since": (_is_time, "a time in nanoseconds"), "open": (lambda v: _is_int(v) and v in (0, 1), "0 or 1"),
}
_COUNT = (_is_size, "a count")

# Of the event `nccl`, for a whole process.
NCCL = "ops mixed outside unsafe registered deregistered renewed failed comms segments parked quarantined".split()
OOM_FREE = ("idle", "pending", "holes", "largest", "device_free")  # of an `oom`: the free memory
STATS = ("allocs hits misses frees bypassed live held peak_live peak_held segments_alloc segments_free oom order kept").split()  # and bound, helped, paused, of later versions
# The counters of the pool of pinned memory; the second ones are of no device pool.
HOST_OWN = "blocks waiting segments refused passing".split()
HOST_STATS = "allocs hits misses frees failed live held peak_live peak_held idle segments_alloc segments_free bound".split() + HOST_OWN
# The counters of virtual memory that the program takes by itself and that is kept.
VMM_STATS = "hits misses kept peak_kept live returned settled".split()

# Required keys beside t and e. segment_free is written before the driver is called, so it may lack `us`.
REQUIRED: dict[str, list[str]] = {
    "segment_alloc": ["tid", "d", "p", "n", "b", "us"],
    "segment_free": ["tid", "d", "p", "n", "b"],
    "trim": ["tid", "d", "n", "why"],
    "ask": ["tid", "d", "n", "asked", "answered", "given", "us"],
    "bound": ["tid", "d", "held", "bound", "us", "count"],
    "oom": ["tid", "d", "n", "held", "live"],
    "device": ["tid", "d", "name", "uuid"],
    "policy": ["tid", "d", "free", "why"],
    "ipc": ["tid", "d", "p", "ok"],
    "alloc": ["tid", "d", "p", "n"],
    "free_requested": ["tid", "d", "p", "n"],
    "free_completed": ["tid", "d", "p", "n"],
    "comm_init": ["tid", "d", "comm", "ranks"],
    "comm_destroy": ["tid", "d", "comm", "ok"],
    "use": ["tid", "d", "p", "n"],
    "register": ["tid", "d", "p", "n", "comm", "us", "ok"],
    "deregister": ["tid", "d", "p", "n", "comm", "us", "ok"],
    "nccl": NCCL,
    "stats": ["d", *STATS],
    "host_alloc": ["tid", "d", "p", "n", "b", "us"],
    "host_free": ["tid", "d", "p", "n", "b", "us"],
    "host_held": ["d", "b", "n", "segments"],
    "host_oom": ["tid", "b", "n", "held", "live", "idle", "waiting", "why"],
    "host_stats": ["tid", "b", *HOST_STATS],
    "vmm_stats": ["tid", "by", *VMM_STATS],
    "object": ["tid", "o", "p", "bias", "id", "path"],
    "frame": ["tid", "f", "p", "at"],
    "mark": ["tid", "text"],
    "range_begin": ["tid", "text", "domain", "range"],
    "range_end": ["tid", "domain", "range"],
    "backend": ["tid", "b"],
    "pause": ["tid", "d", "mode", "n", "copied", "segments", "us"],
    "resume": ["tid", "d", "n", "copied", "segments", "us"],
    "insert": ["tid", "d", "p", "n", "us"],
    "withdraw": ["tid", "d", "p", "n", "us"],
    "limit": ["tid", "n"],
    "mem_create": ["tid", "h", "n", "us", "result", "by", "at"],
    "mem_import": ["tid", "h", "us", "result", "by", "at"],
    "multicast_create": ["tid", "h", "n", "us", "result", "by", "at"],
    "mem_retain": ["tid", "h", "p", "us", "result"],
    "mem_release": ["tid", "h", "us", "result"],
    "mem_map": ["tid", "p", "n", "h", "offset", "us", "result"],
    "mem_unmap": ["tid", "p", "n", "us", "result"],
    "address_reserve": ["tid", "p", "n", "us", "result", "by", "at"],
    "address_free": ["tid", "p", "n", "us", "result"],
    "gap": ["why", "since", *LEFT_OUT, "bytes", "open"],
    "held": ["d", "b", "n", "segments"],
    "end": ["dropped"],
}
CHECKS: dict[str, list[Check]] = {e: [(k, *TYPES.get(k, _COUNT)) for k in ["t", *keys]] for e, keys in REQUIRED.items()}
_OPTIONAL: list[Check] = [(k, *TYPES[k]) for k in ("tid", "d", "us", "block", "total")]
_OPTIONAL_OF: dict[str, list[Check]] = {
    "oom": [*_OPTIONAL, *((k, _is_size, "a number of bytes") for k in OOM_FREE), ("why", *TYPES["why"])],
    "frame": [*_OPTIONAL, ("o", *TYPES["o"])],
    "alloc": [*_OPTIONAL, ("f", lambda v: isinstance(v, list) and all(map(_is_size, v)), "a list of frames' numbers")],
}


def optional_of(name: str) -> list[Check]:
    """The keys of an event that are checked if they are there."""
    return _OPTIONAL_OF.get(name, _OPTIONAL)


def optional_keys(name: str) -> list[str]:
    return [k for k, _, _ in optional_of(name)]


HEADER: list[Check] = [
    ("version", _is_str, "a string"), ("host", _is_str, "a string"), ("pid", _is_int, "a number"),
    ("rank", _or_null(_is_size), "a number or null"), ("local_rank", _or_null(_is_size), "a number or null"),
    ("exe", _is_str, "a string"), ("t0_unix_ns", _is_int, "nanoseconds"), ("events", _is_str, "a string"),
    ("settings", lambda v: isinstance(v, dict), "an object"),
]
