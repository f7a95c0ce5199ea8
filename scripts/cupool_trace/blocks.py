# SPDX-License-Identifier: Apache-2.0
"""Live blocks of one device, followed through many events at a time.

Here: follow, which does what Device.begin_block and end_block do to the events that contradict nothing, all in one loop: a trace has
millions of them. Not here: any other event; Replay has a look at each of those.
"""
from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from .ranges import Range
from .reader import Entry

if TYPE_CHECKING:
    from .replay import Device

MOST_ADDRESSES = 1 << 16  # of which it is remembered to where their segment goes
Ended = tuple[int, int, Range]  # a block that is gone: when, its address, the block


def lies_inside(dev: Device, p: int, n: int) -> bool:
    """Do these bytes lie in one live segment? Its end is remembered."""
    segment = dev.segment_at(p, n)
    if segment is None:
        return False
    if len(dev.inside) >= MOST_ADDRESSES:
        dev.inside.clear()
    dev.inside[p] = segment[0]
    return True


def follow(d: int, dev: Device, entries: list[Entry], at: int, lives: list[int], ended: list[Ended]) -> int:
    """From entries[at] on, all events of blocks of device d; returns where the first other one is. Adds the bytes that are live after
    each, and the blocks that ended."""
    if dev.parts:
        return at  # several backends: each has accounts of its own
    blocks, inside, callers = dev.blocks, dev.inside, dev.callers
    live_blocks, rooms = blocks.of, blocks.rooms
    live, most, peaks, asked, newest = dev.live, dev.peak_live, dev.peaks, dev.asked, dev.newest
    before, gone_before = len(lives), len(ended)
    for t, line, ev in itertools.islice(entries, at, None):
        if type(ev) is not tuple or ev[0] != d:
            break
        _, p, size, n, stack, _ = ev
        if size:
            end = p + size
            if p in live_blocks:
                break
            if rooms.get(p, 0) < end:
                if not blocks.make_room(p, end):
                    break
                rooms = blocks.rooms
            if inside.get(p, 0) < p + n and not lies_inside(dev, p, n):
                break
            who = None
            if stack:
                who = callers.get(stack) or dev.caller(stack)
                who.requests += 1
                if who.peaks != peaks:
                    who.peaks, who.live_before = peaks, who.live
                who.live += size
            live_blocks[p] = end, n, line, who, t
            live += size
            asked += n
            if live > most:
                most = live
                peaks += 1
                dev.asked_at_peak = asked
            if newest and newest[0] <= p < newest[1]:
                dev.live_at_peak_held = live
                newest = None
        else:
            gone = live_blocks.get(p)
            if gone is None or gone[1] != n:
                break
            del live_blocks[p]
            size, who = gone[0] - p, gone[3]
            live -= size
            asked -= n
            if who:
                if who.peaks != peaks:
                    who.peaks, who.live_before = peaks, who.live
                who.live -= size
            ended.append((t, p, gone))
        lives.append(live)
    dev.live, dev.peak_live, dev.peaks, dev.asked, dev.newest = live, most, peaks, asked, newest
    count, frees = len(lives) - before, len(ended) - gone_before
    dev.frees += frees
    dev.allocs += count - frees
    return at + count
