# SPDX-License-Identifier: Apache-2.0
"""Many files read by several processes: the result is that of one process, whatever happens to the others.

Not here: how long it takes.
"""

import os
import signal
import unittest
from pathlib import Path
from typing import Iterator
from unittest import mock

import many
from made_traces import Case

from cupool_trace import ahead, apart


class Apart(Case):
    def setUp(self) -> None:
        super().setUp()
        self.here = os.getpid()
        for target, name, value in ((apart, "LEAST", 1), (ahead, "processors", lambda: 3)):
            patched = mock.patch.object(target, name, value)
            patched.start()
            self.addCleanup(patched.stop)

    def files(self, count: int) -> "list[str]":
        paths = [str(Path(self.dir) / f"f{i:02}") for i in range(count)]
        for i, path in enumerate(paths):
            Path(path).write_text(str(i) * 10)
        return paths

    def test_results(self) -> None:
        """In the order of the files, made by others; what only this process can read it reads."""
        paths = self.files(20)
        os.mkfifo(Path(self.dir) / "pipe")
        paths[7:7] = [str(Path(self.dir) / "pipe"), "-", "/nonexistent"]
        got = apart.each(paths, lambda path: (path, os.getpid() == self.here, ahead.worthwhile(path)))
        self.assertEqual(got, [(path, not Path(path).is_file(), False) for path in paths])
        self.assertFalse(ahead._alone)

    def test_few_bytes(self) -> None:
        with mock.patch.object(apart, "LEAST", 1000):
            self.assertEqual(set(apart.each(self.files(20), lambda _: os.getpid())), {self.here})

    def test_one_that_is_killed(self) -> None:
        """Its work and that of the others is done here."""
        def work(path: str) -> int:
            if path.endswith("f05") and os.getpid() != self.here:
                os.kill(os.getpid(), signal.SIGKILL)
            return int(Path(path).read_text()[0])
        self.assertEqual(apart.each(self.files(10), work), list(range(10)))

    def test_no_process(self) -> None:
        with mock.patch.object(os, "fork", side_effect=OSError):
            self.assertEqual(apart.each(self.files(10), lambda path: os.getpid()), [self.here] * 10)

    def test_an_exception(self) -> None:
        def work(path: str) -> str:
            raise KeyError(path)
        with self.assertRaises(KeyError):
            apart.each(self.files(10), work)

    def test_traces(self) -> None:
        """Each command that reads many traces prints equal text for any number of processes, also of files that are no traces."""
        paths = many.job(Path(self.dir), 12, changes={5: lambda events: events.pop(2)}, steps=6)
        Path(paths[3]).write_text("no trace\n")
        paths.append(str(Path(self.dir) / "missing.jsonl"))

        def said() -> "Iterator[object]":
            for command in (["summary"], ["summary", "-v"], ["summary", "--json"], ["check"], ["leaks"], ["plot", "-o", str(Path(self.dir) / "page.html")]):
                done = self.run_tool(command[0], *command[1:], *paths)
                yield (command, done.returncode, done.stdout, done.stderr)
            yield (Path(self.dir) / "page.html").read_text()
        apart_said = list(said())
        with mock.patch.object(ahead, "processors", lambda: 1):
            self.assertEqual(apart_said, list(said()))
