# SPDX-License-Identifier: Apache-2.0
"""The statistics page of a process (CUPOOL_STATS_FILE; layout: docs/live.md), running or gone.

Here: read_page. Not here: a trace; a page has the latest counters and no history.
"""
from __future__ import annotations

import dataclasses
import os
import stat
import struct
import time
import zlib

from .schema import HOST_OWN, HOST_STATS

MAGIC = b"CUPOOLST"
VERSION = 1
HOST_DEVICE = (1 << 64) - 1  # of the slot of pinned memory
HEADER = struct.Struct("=8sIIIIIIiiiiQ32s256s256s512s")
HALF = struct.Struct("=IIQQQII")
LARGEST = 1 << 20  # a page is smaller; keeps a device or a log that was named by mistake out of memory
TRIES = 20


class NotAPage(Exception):
    """A file that is not there, not readable, or no statistics page."""


@dataclasses.dataclass
class Page:
    path: str
    made_by: str  # the version of the library
    host: str
    exe: str
    pid: int
    rank: "int | None"
    local_rank: "int | None"
    start: float  # seconds since 1970
    updated: float  # the same; when this was true
    uptime: float  # seconds between the two, by a clock that nobody sets
    ended: bool  # the process ended normally; one that was killed just stops writing
    seq: int  # of the update
    devices: "dict[int, dict[str, int]]"  # counters by device and name; sums over the device's contexts
    pinned: "dict[str, int] | None" = None  # counters of the pool of pinned memory; None: there is none

    def age(self) -> float:
        """Seconds since the update, by this machine's clock. A running process updates about once a second."""
        return max(0.0, time.time() - self.updated)

    def running(self, within: float = 10) -> bool:
        return not self.ended and self.age() < within


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def _half(data: bytes, at: int, slot_size: int, slots: int, names: "list[str]") -> "tuple[int, float, float, bool, dict[int, dict[str, int]], dict[str, int] | None] | None":
    """Update number, time, uptime, ended, devices, pinned; None: this half was being written."""
    if at + HALF.size > len(data):
        return None
    crc, count, seq, unix_ns, uptime_ns, ended, _ = HALF.unpack_from(data, at)
    end = at + HALF.size + count * slot_size
    if count > slots or end > len(data) or zlib.crc32(data[at + 4:end]) != crc:
        return None
    devices: "dict[int, dict[str, int]]" = {}
    pinned = None
    for i in range(count):
        values = struct.unpack_from(f"={len(names)}Q", data, at + HALF.size + i * slot_size)
        counters = dict(zip(names, values))
        device = counters.pop("device")
        if device == HOST_DEVICE:
            pinned = {k: v for k, v in counters.items() if k in HOST_STATS}
        else:
            devices[device] = {k: v for k, v in counters.items() if k not in HOST_OWN}
    return seq, unix_ns / 1e9, uptime_ns / 1e9, ended != 0, devices, pinned


def _read_once(path: str) -> "Page | None":
    try:
        # A pipe that was named by mistake is not waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as f:
            if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
                raise NotAPage(f"{path}: not a regular file")
            data = f.read(LARGEST)
    except OSError as e:
        raise NotAPage(f"{path}: {e.strerror or e}") from e
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise NotAPage(f"{path}: not a statistics page")
    (_, version, header_size, half_size, slot_size, slots, n, pid, rank, local_rank, _, start, library, host, exe,
     names_text) = HEADER.unpack_from(data)
    names = _text(names_text).split()
    if version != VERSION:
        raise NotAPage(f"{path}: version {version} of a statistics page; this program knows {VERSION}")
    if len(names) != n or names[:1] != ["device"] or slot_size < 8 * n or header_size < HEADER.size or half_size < HALF.size:
        raise NotAPage(f"{path}: damaged")
    halves = [h for h in (_half(data, header_size + i * half_size, slot_size, slots, names) for i in (0, 1)) if h]
    if not halves:
        return None
    seq, updated, uptime, ended, devices, pinned = max(halves, key=lambda h: h[0])
    return Page(path, _text(library), _text(host), _text(exe), pid, None if rank < 0 else rank, None if local_rank < 0 else local_rank,
                start / 1e9, updated, uptime, ended, seq, devices, pinned)


def read_page(path: str) -> Page:
    """The latest whole update. Raises NotAPage."""
    for i in range(TRIES):
        page = _read_once(path)
        if page:
            return page
        time.sleep(0.01 * i)  # written twice while we read; or damaged
    raise NotAPage(f"{path}: damaged")
