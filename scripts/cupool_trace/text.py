# SPDX-License-Identifier: Apache-2.0
"""Sizes, times and tables for people. Nothing here knows what a trace is."""
from __future__ import annotations

from typing import Any, Optional


def human_size(n: Optional[float]) -> str:
    if n is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        # 1023.95 would round to 1024.0 of its own unit.
        if n < 1023.95 or unit == "TiB":
            break
        n /= 1024
    return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"


def human_time(us: float) -> str:
    if us < 1000:
        return f"{us:.0f} us"
    return f"{us / 1000:.1f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def human_span(s: float) -> str:
    for unit, seconds in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if s >= 2 * seconds:
            return f"{s / seconds:.1f} {unit}"
    return f"{s:.0f} seconds"


def count_of(n: int, noun: str, plural: str = "") -> str:
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def table(head: list[str], rows: list[list[str]], left: int) -> str:
    """Aligned columns: the first `left` to the left, the others, being numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    lines = []
    for row in [head, *rows]:
        lines.append("  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip())
    return "\n".join(lines)


def policy_text(header: dict[str, Any], free: str) -> str:
    """A free policy that a trace names. With CUPOOL_FREE=auto it names the state of the device, ordered or strict: the policy is auto
    all the same."""
    if header.get("settings", {}).get("CUPOOL_FREE") != "auto":
        return free
    return {"ordered": "auto", "strict": "auto, strict"}.get(free, free)
