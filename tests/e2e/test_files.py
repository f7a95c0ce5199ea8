# SPDX-License-Identifier: Apache-2.0
"""The names of the files that the library writes: the newest run's has the name that was asked for, none is overwritten, and
whatever else is there is left alone and named in one line on stderr.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import unittest
from pathlib import Path

from e2e import BIN, MIB, SOURCE, TIMEOUT, Case, Done, Trace, app

sys.path.insert(0, str(SOURCE / "scripts"))
from cupool_trace.live import read_page  # noqa: E402

NAMED = {"CUPOOL_TRACE_FILE": "t.jsonl", "CUPOOL_STATS_FILE": "p.page"}


class Base(Case):
    def run_in(self, cwd: Path, *words: str, **env: str) -> Done:
        return self.go(app("shared"), *(words or ("pid", "alloc:1:4096")), cwd=cwd, **{**NAMED, **env})

    def begun(self, cwd: Path, *words: str) -> "subprocess.Popen[str]":
        """A process that has its files; it waits until "go" is there."""
        child = subprocess.Popen([BIN / "report_shared", "alloc:4096", *(words or ("ready", "await:go"))], env=self.env(**NAMED), cwd=cwd, text=True,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.wait_for((cwd / "ready").exists)
        (cwd / "ready").unlink()
        return child

    def pids(self, cwd: Path, name: str = "t.jsonl") -> "dict[str, int]":
        """Each file belongs to one process."""
        if name == "t.jsonl":
            return {p.name: Trace(p).header["pid"] for p in sorted(cwd.iterdir()) if p.name.startswith(name)}
        return {p.name: read_page(str(p)).pid for p in sorted(cwd.iterdir()) if p.name.startswith(name)}


def pid_of(done: Done) -> int:
    return int(done.out.split()[1])


class TooLong(Base):
    def test_names_that_become_too_long(self) -> None:
        """The program runs without the file, and one line says so."""
        for name, what in (("CUPOOL_TRACE_FILE", "no trace"), ("CUPOOL_STATS_FILE", "no statistics page")):
            done = self.go(BIN / "report_shared", "alloc:4096", **{"CUPOOL_TRACE_FILE": "off", name: "%e" * 500})
            self.assertEqual((done.files, done.warnings), ([], [f"warning: {what}: {name} is too long"]))


class Runs(Base):
    def test_the_newest_has_the_name(self) -> None:
        cwd = self.folder()
        first, second, third = (pid_of(self.run_in(cwd)) for _ in range(3))
        for name in ("t.jsonl", "p.page"):
            self.assertEqual(self.pids(cwd, name), {name: third, f"{name}.1": first, f"{name}.2": second})
        self.assert_fine(*cwd.glob("t.jsonl*"))

    def test_a_killed_run_makes_room(self) -> None:
        cwd = self.folder()
        first = pid_of(self.go(app("shared"), "pid", "alloc:1:4096", "kill", cwd=cwd, rc=-signal.SIGKILL, **NAMED))
        with open(cwd / "t.jsonl", "a") as f:
            f.write('{"t":17,"e":"segm')
        second = pid_of(self.run_in(cwd))
        self.assertEqual(json.loads((cwd / "t.jsonl.1").read_text().split("\n")[0])["pid"], first)
        self.assertTrue(Trace(cwd / "t.jsonl.1").cut)
        (cwd / "t.jsonl.1").unlink()
        self.assertEqual(self.pids(cwd), {"t.jsonl": second})
        self.assertEqual(self.pids(cwd, "p.page"), {"p.page": second, "p.page.1": first})

    def test_a_child_does_not_keep_it(self) -> None:
        """Of a killed run there may be processes left that it has forked."""
        cwd = self.folder()
        parent = self.begun(cwd, "fork{", "ready", "await:go", "}")
        parent.kill()
        parent.wait()
        second = pid_of(self.run_in(cwd))
        (cwd / "go").touch()
        parent.communicate(timeout=TIMEOUT)  # until the child has closed it: it looks for "go" in a folder that goes
        self.assertEqual(self.pids(cwd)["t.jsonl"], second)
        self.assertEqual(self.pids(cwd, "p.page")["p.page"], second)

    def test_an_empty_file_is_taken(self) -> None:
        """mktemp makes one, and that is where its trace is looked for."""
        cwd = self.folder()
        (cwd / "t.jsonl").touch(0o600)
        done = self.run_in(cwd)
        self.assertEqual(done.files, ["p.page", "t.jsonl"])
        self.assertEqual((cwd / "t.jsonl").stat().st_mode & 0o777, 0o600)
        self.assertTrue(Trace(cwd / "t.jsonl").ended)


class AtOnce(Base):
    def test_a_running_ones_file_stays(self) -> None:
        cwd = self.folder()
        yesterday = pid_of(self.run_in(cwd))
        running = self.begun(cwd)
        second = pid_of(self.run_in(cwd))
        (cwd / "go").touch()
        running.wait()
        for name in ("t.jsonl", "p.page"):
            self.assertEqual(self.pids(cwd, name), {name: running.pid, f"{name}.1": second, f"{name}.2": yesterday})
        third = pid_of(self.run_in(cwd))
        self.assertEqual(self.pids(cwd), {"t.jsonl": third, "t.jsonl.1": second, "t.jsonl.2": yesterday, "t.jsonl.3": running.pid})
        self.assert_fine(*cwd.glob("t.jsonl*"))

    def test_that_is_said_to_those_who_ask(self) -> None:
        cwd = self.folder()
        self.begun(cwd)
        done = self.run_in(cwd)
        self.assertEqual(done.err, "")
        done = self.run_in(cwd, CUPOOL_LOG_LEVEL="info")
        self.assertIn("info: t.jsonl is being written by another process: the trace is t.jsonl.1", done.err)

    def test_many_at_once(self) -> None:
        """Each has a whole file of its own, and the name is not yesterday's."""
        cwd = self.folder()
        yesterday = pid_of(self.run_in(cwd))
        children = [subprocess.Popen([BIN / "report_shared", "alloc:4096", "await:go"], env=self.env(**NAMED), cwd=cwd,
                                     stderr=subprocess.PIPE, text=True) for _ in range(12)]
        try:
            self.wait_for(lambda: len(list(cwd.glob("t.jsonl*"))) == 13 and len(list(cwd.glob("p.page*"))) == 13)
            (cwd / "go").touch()
            self.assertEqual([c.communicate(timeout=TIMEOUT)[1] for c in children], [""] * 12)
        finally:
            for c in children:
                c.kill()
                c.wait()
        for name in ("t.jsonl", "p.page"):
            pids = self.pids(cwd, name)
            self.assertEqual(sorted(pids.values()), sorted([yesterday, *(c.pid for c in children)]))
            self.assertNotEqual(pids[name], yesterday)
            self.assertEqual(set(pids), {name, *(f"{name}.{i}" for i in range(1, 13))})
        self.assert_fine(*cwd.glob("t.jsonl*"))


class InTheWay(Base):
    """Files of others stay as they are."""

    def beside(self, cwd: Path, why: str) -> None:
        done = self.run_in(cwd, CUPOOL_STATS_FILE="off")
        self.assertEqual(done.warnings, [f"warning: {why}: the trace is t.jsonl.1"])
        self.assertEqual(done.files, ["t.jsonl", "t.jsonl.1"])
        self.assertTrue(Trace(cwd / "t.jsonl.1").ended)

    def test_somebodys_file(self) -> None:
        for text in ("somebody's", '{"cup', "\0" * 100):
            cwd = self.folder()
            (cwd / "t.jsonl").write_text(text)
            self.beside(cwd, "t.jsonl exists, and is no trace")
            self.assertEqual((cwd / "t.jsonl").read_text(), text)

    def test_folder(self) -> None:
        cwd = self.folder()
        (cwd / "t.jsonl").mkdir()
        self.beside(cwd, "t.jsonl is a folder")
        self.assertEqual(list((cwd / "t.jsonl").iterdir()), [])

    def test_links(self) -> None:
        """Followed, it might lead anywhere."""
        for to in ("nowhere", "there"):
            cwd = self.folder()
            (self.tmp / "there").write_text('{"cupool":1}')
            (cwd / "t.jsonl").symlink_to(self.tmp / to)
            self.beside(cwd, "t.jsonl is a symbolic link")
            self.assertEqual((self.tmp / "there").read_text(), '{"cupool":1}')
            self.assertFalse((self.tmp / "nowhere").exists())

    def test_a_name_with_a_slash(self) -> None:
        cwd = self.folder()
        (cwd / "sub").mkdir()
        done = self.run_in(cwd, CUPOOL_TRACE_FILE="sub/", CUPOOL_STATS_FILE="off")
        self.assertEqual(done.warnings, [f"warning: no trace: cannot create sub/: {os.strerror(21)}"])

    def test_pages(self) -> None:
        cwd = self.folder()
        (cwd / "p.page").write_text("somebody's")
        done = self.run_in(cwd, CUPOOL_TRACE_FILE="off")
        self.assertEqual(done.warnings, ["warning: p.page exists, and is no statistics page: the statistics page is p.page.1"])

    def test_no_files(self) -> None:
        """A pipe without a reader is not waited for, and nothing is made beside these."""
        cwd = self.folder()
        os.mkfifo(cwd / "pipe")
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(cwd / "socket"))
        (cwd / "link").symlink_to("pipe")
        (cwd / "out").symlink_to("/proc/self/fd/1")
        for path, what in (("pipe", "a pipe"), ("socket", "a socket"), ("link", "a pipe"), ("/dev/full", "a device"),
                           ("out", "an open file of the program"), ("/dev/stdout", "an open file of the program")):
            with self.subTest(path):
                done = self.go(app("shared"), "alloc:1:4096", f"churn:20:{5 * MIB}", "exit:5", rc=5, cwd=cwd, CUPOOL_TRACE_FILE=path,
                               CUPOOL_STATS_FILE=path)
                self.assertEqual(done.warnings, [f"warning: no trace: {path} is {what}", f"warning: no statistics page: {path} is {what}"])
                self.assertEqual(done.files, ["link", "out", "pipe", "socket"])

    def test_removed(self) -> None:
        """A warning says where the trace has gone when its file is removed from under the writer."""
        cwd = self.folder()
        running = self.begun(cwd, "ready", "await:go", f"many:30:{5 * MIB}")
        for path in cwd.glob("[tp].*"):
            path.unlink()
        (cwd / "go").touch()
        err = running.communicate(timeout=TIMEOUT)[1]
        self.assertEqual(running.returncode, 0)
        self.assertEqual(len([line for line in err.splitlines() if "somebody has removed the trace t.jsonl" in line]), 1, err)
        self.assertEqual(list(cwd.glob("[tp].*")), [])
