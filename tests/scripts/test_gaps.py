# SPDX-License-Identifier: Apache-2.0
"""Traces that do not tell all: files that were not read, and events that the library left out (`gap`)."""
from __future__ import annotations

import gzip
import os
import unittest

from test_trace import Case, good, header

DAY = 86_400_000_000_000


class Siblings(Case):
    """Earlier runs' files have a number behind the name."""

    def said(self, *args: str) -> str:
        done = self.run_tool(*args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_every_reader_says_it(self) -> None:
        path, old = self.write(good()), self.write(good(), "t.jsonl.1")
        other = self.write(good(), "u.jsonl")
        line = f"cupool-trace: not read: {old} (earlier runs, or other processes of one name)\n"
        for command, *more in (["summary"], ["check"], ["plot", "-o", str(self.dir / "o.html")], ["top", "--once"], ["merge"], ["to-csv"],
                               ["to-rmm"], ["to-perfetto"], ["to-pytorch", "-o", str(self.dir / "o.pickle")]):
            with self.subTest(command):
                self.assertEqual(self.said(command, *more, path), line)
        self.assertEqual(self.said("diff", path, other), line)
        self.assertEqual(self.said("diff", path, old), "")

    def test_which(self) -> None:
        """Both ways, packed or not, the newest first; nothing that is no trace or that is read."""
        path = self.write(good())
        for i in range(1, 8):
            os.utime(self.write(good(), f"t.jsonl.{i}"), (i, i))
        self.write(gzip.compress(b"{}"), "t.jsonl.9.gz")
        self.write(b"somebody's", "t.jsonl.10")
        self.write(good(), "other.jsonl.1")
        (self.dir / "t.jsonl.11").mkdir()
        os.mkfifo(self.dir / "t.jsonl.12")
        err = self.said("summary", path)
        self.assertIn(", ".join(["not read: " + str(self.dir / "t.jsonl.9.gz"), *(str(self.dir / f"t.jsonl.{i}") for i in (7, 6, 5))]) + " and 4 more (", err)
        self.assertIn(f"not read: {self.dir / 't.jsonl.9.gz'}, {path}, {self.dir / 't.jsonl.7'},", self.said("summary", str(self.dir / "t.jsonl.3")))
        self.assertEqual(len(err.splitlines()), 1)

    def test_folders(self) -> None:
        self.write(good())
        old = self.write(good(), "t.jsonl.1")
        self.assertIn(f"not read: {old} (", self.said("summary", str(self.dir)))
        self.assertEqual(self.said("top", "--once", str(self.dir)), "")


class Runs(Case):
    def test_ranks_of_another_run(self) -> None:
        """Yesterday's job had more ranks, so not all of its files were replaced."""
        old = [header(1, t0_unix_ns=header()["t0_unix_ns"] - DAY), *good()[1:]]
        a, b = self.write(good(), "0.jsonl"), self.write(old, "1.jsonl")
        said = "rank 1 ended 24.0 hours before rank 0 began: of another run?"
        self.assertIn(f"warning: {said}", self.run_tool("check", a, b).stdout)
        self.assertIn(f"\n{said}\n", self.run_tool("summary", a, b).stdout)
        late = self.write([header(1, t0_unix_ns=header()["t0_unix_ns"] + 100), *good()[1:]], "2.jsonl")
        for command in ("check", "summary"):
            self.assertNotIn("another run", self.run_tool(command, a, late).stdout)


if __name__ == "__main__":
    unittest.main()
