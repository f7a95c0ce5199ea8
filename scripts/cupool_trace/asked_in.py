# SPDX-License-Identifier: Apache-2.0
"""In which range of NVTX was each of some blocks asked for? A second pass over one trace, whose memory is that of these blocks.

Here: the innermost range that the thread had pushed when it asked. Not here: ranges that were started and may end in any thread.
"""
from __future__ import annotations

from .reader import Problems, Reader, in_time_order
from .schema import REQUIRED

NO_RANGE = ""  # none was open, as far as the trace tells
WANTED = ("alloc", "range_begin", "range_end", "gap")


def ranges_of(path: str, blocks: "set[tuple[int, int]]") -> "dict[tuple[int, int], str]":
    """Of blocks that are live at the end, each a device and an address: the name of the range."""
    pushed: "dict[int, list[tuple[str, str]]]" = {}
    found: "dict[tuple[int, int], str]" = {}
    reader = Reader(path, Problems(), frozenset(REQUIRED) - set(WANTED))
    for _, _, ev in in_time_order(reader.events()):
        if ev["e"] == "gap":
            pushed.clear()
        elif ev["e"] == "alloc":
            block = ev["d"], int(ev["p"], 16)
            if block in blocks:
                stack = pushed.get(ev["tid"])
                found[block] = stack[-1][1] if stack else NO_RANGE
        elif not ev["range"]:
            stack = pushed.setdefault(ev["tid"], [])
            if ev["e"] == "range_begin":
                stack.append((ev["domain"], ev["text"]))
            else:  # each domain has a stack of its own
                at = next((i for i in range(len(stack) - 1, -1, -1) if stack[i][0] == ev["domain"]), None)
                if at is not None:
                    del stack[at]
    return found
