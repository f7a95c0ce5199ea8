# SPDX-License-Identifier: Apache-2.0
"""The trace reader on traces that a property-based library makes and makes short: what was written is read, in whatever order threads
wrote it, packed or not, and whatever is put between.

test_trace_fuzz.py damages traces by the thousands. Without hypothesis it is skipped; its examples are the same in every run.
TEST_RUNS=N: N times as many.
"""

import gzip
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
sys.path.append(str(HERE.parents[1] / ".deps" / "hypothesis"))
from cupool_trace import reader  # noqa: E402

try:
    from hypothesis import given, settings
    from hypothesis import strategies as st
except ImportError:
    print("no hypothesis here (scripts/setup --lint)")
    sys.exit(77)

HEADER = (HERE / "traces" / "allocs.jsonl").read_bytes().splitlines()[0]
RUNS = 60 * int(os.environ.get("TEST_RUNS", "1"))

sizes = st.one_of(st.integers(1, 4096), st.integers(1, 1 << 40), st.sampled_from([511, 512, 513, 1 << 21, (1 << 63) - 1]))
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(1 << 64), 1 << 64), st.text(max_size=20))
events = st.fixed_dictionaries({
    "t": st.integers(0, 1 << 50), "e": st.sampled_from(["alloc", "free_requested", "free_completed"]), "tid": st.integers(0, 1 << 22),
    "d": st.integers(0, 15), "p": st.integers(1, 1 << 47).map(lambda p: f"{512 * p:#x}"), "n": sizes,
}, optional={"block": sizes, "x": scalars})
values = st.recursive(scalars, lambda x: st.lists(x, max_size=3), max_leaves=8)
noise = st.one_of(st.binary(max_size=40), values.map(lambda v: json.dumps(v).encode()))


def line(event: "dict[str, Any]", spaces: bool) -> bytes:
    return json.dumps(event, separators=None if spaces else (",", ":")).encode()


def read(data: bytes) -> "tuple[list[dict[str, Any]], int]":
    """The events, and the number of problems."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        path.write_bytes(data)
        problems = reader.Problems()
        found = [event for _, _, event in reader.Reader(str(path), problems).events()]
        return found, problems.count


def plain(found: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    return [{k: v for k, v in e.items() if k in ("t", "e", "tid", "d", "p", "n", "block", "x")} for e in found]


class Properties(unittest.TestCase):
    @settings(max_examples=RUNS, derandomize=True, deadline=None, database=None)
    @given(st.lists(events, max_size=30), st.booleans())
    def test_what_was_written_is_read(self, written: "list[dict[str, Any]]", spaces: bool) -> None:
        data = b"\n".join([HEADER, *(line(e, spaces) for e in written)]) + b"\n"
        self.assertEqual(plain(read(data)[0]), written)

    @settings(max_examples=RUNS, derandomize=True, deadline=None, database=None)
    @given(st.lists(st.one_of(events.map(lambda e: line(e, False)), noise), max_size=30))
    def test_packed_is_read_as_plain(self, lines: "list[bytes]") -> None:
        data = b"\n".join([HEADER, *lines]) + b"\n"
        self.assertEqual(repr(read(data)), repr(read(gzip.compress(data))))

    @settings(max_examples=RUNS, derandomize=True, deadline=None, database=None)
    @given(st.lists(events, min_size=1, max_size=10), noise.filter(lambda b: b"\n" not in b and b"\r" not in b), st.integers(0, 10))
    def test_a_line_that_is_none_hides_no_other(self, written: "list[dict[str, Any]]", wrong: bytes, at: int) -> None:
        lines = [line(e, False) for e in written]
        lines.insert(min(at, len(lines)), b"!" + wrong)
        found, problems = read(b"\n".join([HEADER, *lines]) + b"\n")
        self.assertEqual(plain(found), written)
        self.assertGreater(problems, 0)
