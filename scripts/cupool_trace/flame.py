# SPDX-License-Identifier: Apache-2.0
"""A flame graph: the bytes that were live at the peak of a device, by the calls that led to them, from the outermost frame inwards.

Here: the tree, as text and as data for the page. Not here: the callers and their bytes; summary has them. A stack has eight frames at
most, so a tree may begin anywhere in a deep program.
"""
from __future__ import annotations

import heapq
from typing import Iterable, Iterator

from .schema import Event
from .text import human_size

ELSEWHERE = "smaller ones"
LEAST = 0.01  # of all bytes: smaller parts are one line of the text
BAR = 20  # letters


class Node:
    """A frame that was reached in one way, and the bytes that were live by it."""

    __slots__ = ("name", "bytes", "inner")

    def __init__(self, name: str) -> None:
        self.name, self.bytes = name, 0
        self.inner: dict[str, Node] = {}

    @property
    def largest_first(self) -> list[Node]:
        return sorted(self.inner.values(), key=lambda node: (-node.bytes, node.name))


def tree(callers: Iterable[Event]) -> Node:
    """callers: as summary has them, each with its stack and its bytes at the peak. The root is all of them."""
    root = Node("all")
    for c in callers:
        if not c["live_at_peak"]:
            continue
        node = root
        node.bytes += c["live_at_peak"]
        for name in reversed(c["stack"]):
            node = node.inner.setdefault(name, Node(name))
            node.bytes += c["live_at_peak"]
    return root


def lines(root: Node) -> Iterator[str]:
    """One line a frame: its part of all bytes, these bytes, and a bar of that length; a frame that it calls is indented."""
    def below(node: Node, depth: int) -> Iterator[str]:
        rest = [inner for inner in node.largest_first if inner.bytes < LEAST * root.bytes]
        for inner in node.largest_first[:len(node.inner) - len(rest)]:
            yield line(inner.bytes, depth, inner.name)
            yield from below(inner, depth + 1)
        if rest:
            yield line(sum(inner.bytes for inner in rest), depth, f"{len(rest)} {ELSEWHERE}")

    def line(n: int, depth: int, name: str) -> str:
        part = n / root.bytes
        return f"{100 * part:5.1f}%  {human_size(n):>10}  {'#' * round(BAR * part):<{BAR}}  {'  ' * depth}{name}".rstrip()

    return below(root, 0)


def data(root: Node, most: int, letters: int) -> Event:
    """Columns, one row a frame: the index of the frame that called it (the first is all), its name as an index into names, its bytes.
    At most so many frames, of which the smallest are left out; a frame comes after the one that called it."""
    parents, kept = [-1], [root]
    count = 0  # so that nodes themselves are never compared
    waiting: list[tuple[int, int, int, Node]] = []

    def add(node: Node, index: int) -> None:
        nonlocal count
        for inner in node.largest_first:
            count += 1
            heapq.heappush(waiting, (-inner.bytes, count, index, inner))

    add(root, 0)
    while waiting and len(kept) < most:
        _, _, parent, node = heapq.heappop(waiting)
        parents.append(parent)
        kept.append(node)
        add(node, len(kept) - 1)
    names = sorted({node.name[:letters] for node in kept})
    number = {name: i for i, name in enumerate(names)}
    return {"names": names, "parent": parents, "name": [number[node.name[:letters]] for node in kept], "bytes": [node.bytes for node in kept]}
