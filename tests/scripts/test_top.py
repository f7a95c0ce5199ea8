# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace top on files that grow while it looks, with and without a terminal.

Not here: what the library writes; the traces are made here.
"""

import gzip
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any, Optional

from made_traces import BASE, MIB, ROOT, TOOL, Case, Event, ev, good, header, text
from tool import terminal

sys.path.insert(0, str(ROOT / "scripts"))
from cupool_trace import top  # noqa: E402


class Once(Case):
    def rows(self, *args: str, status: int = 0, stdin: Optional[bytes] = None) -> list[Event]:
        done = self.run_tool("top", "--once", "--json", *args, stdin=stdin)
        self.assertEqual(done.returncode, status, done.stderr)
        rows: list[Event] = json.loads(done.stdout)["rows"]
        return rows

    def test_figures(self) -> None:
        row = self.rows(self.write(good()))[0]
        expected = {"rank": 0, "device": 0, "host": "a", "pid": 42, "exe": "app", "state": "ended", "held": 2 * MIB, "live": 1536,
                    "peak_held": 66 * MIB, "segments": 1, "driver_calls": 3, "oom": 1, "last_event": "stats", "problems": 0}
        self.assertEqual({k: row[k] for k in expected}, expected)
        self.assertAlmostEqual(row["calls_per_s"], 3 / 410e-9, delta=1)

    def test_table(self) -> None:
        out = self.run_tool("top", "--once", self.write(good())).stdout
        self.assertRegex(out, re.compile(r"^0 +0 +a +42 +app +ended +2.0 MiB +1.5 KiB +66.0 MiB +1 ", re.M))
        self.assertNotIn("\x1b", out)
        self.assertEqual(self.run_tool("top", "--once", self.write([header()])).stdout, "no event on any device\n")

    def test_pinned_memory(self) -> None:
        events = [header(), ev(1, "segment_alloc", p=BASE, n=2 * MIB), ev(2, "host_alloc", p=BASE + 64 * MIB, n=5 * MIB, us=1.0, b="host"),
                  ev(3, "host_alloc", p=BASE + 96 * MIB, n=MIB, us=1.0, b="host"), ev(4, "host_free", p=BASE + 96 * MIB, n=MIB, us=1.0, b="host")]
        path = self.write(events)
        self.assertEqual([(r["held"], r["pinned"]) for r in self.rows(path)], [(2 * MIB, 5 * MIB)])
        head, row = self.run_tool("top", "--once", path).stdout.splitlines()
        self.assertIn("5.0 MiB", row[head.index("oom") + 3:head.index("pinned") + len("pinned") + 1])

    def test_live_unknown(self) -> None:
        events = [e for e in good() if e.get("e") not in ("alloc", "free_requested", "free_completed")]
        events[0]["events"] = "segment"
        self.assertIsNone(self.rows(self.write(events))[0]["live"])

    def test_sorted(self) -> None:
        paths = []
        for rank, n in ((0, 4), (1, 16), (2, 8)):
            paths.append(self.write([header(rank), ev(10**9 * (rank + 1), "segment_alloc", p=BASE, n=n * MIB)], f"{rank}.jsonl"))
        for by, order in (("held", [1, 2, 0]), ("rank", [0, 1, 2]), ("rate", [0, 1, 2]), ("ago", [2, 1, 0]), ("segments", [0, 1, 2])):
            self.assertEqual([r["rank"] for r in self.rows(*paths, "--sort", by)], order, by)
        self.assertEqual([r["rank"] for r in self.rows(*paths)], [1, 2, 0])

    def test_directory(self) -> None:
        self.write(good(), "a.jsonl")
        self.write(gzip.compress(text(good())), "b.jsonl.gz")
        self.write(good(), "c.jsonl.1")
        self.write(good(), "not-by-name.txt")
        self.write(b'{"something": "else"}\n', "d.jsonl")
        self.write(b"", "e.jsonl")
        self.write(b"nonsense\n", "f.jsonl")
        (self.dir / "g.jsonl").mkdir()
        rows = self.rows(str(self.dir))
        self.assertEqual(sorted(Path(r["path"]).name for r in rows), ["a.jsonl", "b.jsonl.gz", "c.jsonl.1"])

    def test_states(self) -> None:
        here = socket.gethostname()
        with subprocess.Popen(["true"]) as child:
            child.wait()
        for host, pid, state in ((here, os.getpid(), "running"), (here, child.pid, "gone"), ("elsewhere", os.getpid(), "silent")):
            path = self.write([header(host=host, pid=pid), *good()[1:-1]])
            self.assertEqual(self.rows(path)[0]["state"], state)

    def test_cut_line_and_standard_input(self) -> None:
        whole = text(good()[:9])
        self.assertEqual(self.rows(self.write(whole[:-5]))[0]["held"], 2 * MIB)
        self.assertEqual(self.rows("-", stdin=whole)[0]["held"], 66 * MIB)
        self.assertEqual(self.rows("-", stdin=gzip.compress(whole)[:-10])[0]["device"], 0)

    def test_cannot_read(self) -> None:
        done = self.run_tool("top", "--once", str(self.dir / "none"), self.write(good()))
        self.assertEqual(done.returncode, 2)
        self.assertIn("none: No such file", done.stderr)
        self.assertIn("ended", done.stdout)
        self.assertEqual(self.run_tool("top", str(self.dir / "none")).returncode, 2)
        self.assertEqual(self.run_tool("top", "--json", self.write(good())).returncode, 2)
        self.assertEqual(self.run_tool("top", "--once", "-i", "0", self.write(good())).returncode, 2)

    def test_names_do_not_command_the_terminal(self) -> None:
        events = good()
        events[0].update(exe="\x1b[2Jx\n\x07", host="\u202e" * 50)
        out = self.run_tool("top", "--once", self.write(events)).stdout
        self.assertNotRegex(out, "[\x1b\x07\u202e]")
        self.assertEqual(len(out.splitlines()), 2)


class Following(Case):
    def follower(self, content: bytes) -> "tuple[top.Follower, Path]":
        path = Path(self.write(content))
        return top.Follower(str(path)), path

    def held(self, f: top.Follower) -> list[int]:
        f.poll(float("inf"))
        f.settle()
        return [r["held"] for r in top.figures(f, time.time_ns())]

    def test_byte_by_byte(self) -> None:
        whole = text(good())
        f, path = self.follower(b"")
        for i in range(0, len(whole), 37):
            with path.open("ab") as out:
                out.write(whole[i:i + 37])
            f.poll(float("inf"))
        self.assertEqual(self.held(f), [2 * MIB])
        self.assertEqual((f.problems.kept, f.reader.lines, f.state()), ([], 17, "ended"))
        self.assertEqual(f.replay.events, 16)

    def test_events_of_threads_in_disorder_across_two_looks(self) -> None:
        p = BASE + 512
        lines = text([header(t0_unix_ns=1 << 62), ev(10, "segment_alloc", p=BASE, n=2 * MIB), ev(20, "alloc", p=p, n=512), ev(40, "alloc", p=p, n=512, tid=7),
                      ev(30, "free_requested", p=p, n=512)]).splitlines(keepends=True)
        f, path = self.follower(b"".join(lines[:4]))
        f.poll(float("inf"))
        with path.open("ab") as out:
            out.write(lines[4])
        f.poll(float("inf"))
        f.settle()
        self.assertEqual(f.problems.kept, [])
        self.assertEqual(top.figures(f, 0)[0]["live"], 512)

    def test_quiet_file_is_shown_whole(self) -> None:
        f, _ = self.follower(text(good()[:9]))
        f.poll(float("inf"))
        f.poll(float("inf"))
        self.assertEqual(top.figures(f, 0)[0]["held"], 66 * MIB)

    def test_rate(self) -> None:
        """calls/s is of the last ten seconds by the events' own times, however often and whenever somebody looks; at the end, of all."""
        t0, second = header()["t0_unix_ns"], 10**9
        calls = [ev(i * second, "segment_alloc", p=BASE + (i + 1 << 30), n=MIB) for i in range(1, 21)]
        end = [ev(40 * second, "end", dropped=0)]
        for looks in (1, 5, 20):
            f, path = self.follower(text([header()]))
            for i in range(0, 20, 20 // looks):
                with path.open("ab") as out:
                    out.write(text(calls[i:i + 20 // looks]))
                f.poll(float("inf"))
            for now, rate in ((20, 1.1), (25, 0.6), (40, 0.0)):
                self.assertEqual(top.figures(f, t0 + now * second)[0]["calls_per_s"], rate, (looks, now))
            with path.open("ab") as out:
                out.write(text(end))
            f.poll(float("inf"))
            self.assertEqual(top.figures(f, t0 + 99 * second)[0]["calls_per_s"], 0.5)

    def test_the_first_look_shows_what_once_does(self) -> None:
        f, path = self.follower(text(good()[:9]))
        f.poll(float("inf"))
        once = top.Follower(str(path))
        once.poll(float("inf"))
        once.settle()
        self.assertEqual(top.figures(f, 0), top.figures(once, 0))

    def test_a_long_past_is_read_in_parts(self) -> None:
        events = [header()] + [ev(i, "trim", n=1, why="decay") for i in range(40000)]
        f, _ = self.follower(text(events))
        f.poll(0.0)
        self.assertTrue(0 < f.reader.lines < 10_000, f.reader.lines)
        self.assertRegex(f.state(), r"reading \d+%")
        while f.behind is not None:
            f.poll(time.monotonic() + 0.05)
        f.poll(float("inf"))
        f.settle()
        self.assertEqual(f.replay.events, 40000)
        self.assertLess(len(f._waiting), 1)

    def test_new_file_of_the_same_name(self) -> None:
        f, path = self.follower(text(good()))
        self.assertEqual(self.held(f), [2 * MIB])
        path.write_bytes(text(good()[:9]))
        self.assertEqual(self.held(f), [66 * MIB])
        path.unlink()
        with self.assertRaises(top.CannotRead):
            f.poll(float("inf"))

    def test_directory_gets_a_trace_later(self) -> None:
        sources = top.Sources([str(self.dir)])
        self.write(b"", "a.jsonl")
        sources.poll(float("inf"))
        self.assertEqual(sources.rows("held"), [])
        whole = text(good())
        self.write(whole[:40], "a.jsonl")
        self.write(b"nonsense\n", "b.jsonl")
        sources.poll(float("inf"))
        self.write(whole, "a.jsonl")
        sources.poll(float("inf"))
        self.assertEqual([r["held"] for r in sources.rows("held")], [2 * MIB])
        self.assertEqual(len(sources.followers), 1)

    def test_removed_trace_goes_from_the_table(self) -> None:
        path = self.write(good())
        sources = top.Sources([path])
        sources.poll(float("inf"))
        os.unlink(path)
        sources.poll(float("inf"))
        self.assertEqual(sources.rows("held"), [])
        self.assertRegex(sources.messages[0], "No such file")

    def test_memory_does_not_grow_with_the_trace(self) -> None:
        measure = ("import resource,subprocess,sys\n"
                   "subprocess.run([sys.executable,*sys.argv[1:]],stdout=subprocess.DEVNULL,check=True)\n"
                   "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        used = []
        for count in (60_000, 200_000):
            path = self.dir / f"{count}.jsonl"
            with path.open("w") as f:
                f.write(json.dumps(header()) + "\n")
                for i in range(count):
                    f.write(f'{{"t":{10 * i},"e":"trim","tid":42,"d":0,"n":1,"why":"decay"}}\n')
            used.append(int(subprocess.run([sys.executable, "-c", measure, str(TOOL), "top", "--once", str(path)], capture_output=True).stdout))
        self.assertLess(used[1], used[0] + 8 * 1024, used)


class Live(Case):
    def start(self, *args: str, stdout: Any = subprocess.PIPE, term: str = "xterm") -> "subprocess.Popen[bytes]":
        child = subprocess.Popen([sys.executable, str(TOOL), "top", "-i", "0.1", *args], stdout=stdout, stderr=subprocess.PIPE,
                                 env={**os.environ, "TERM": term})
        self.addCleanup(lambda: (child.kill(), child.wait(), child.stderr and child.stderr.close(), child.stdout and child.stdout.close()))
        return child

    def wait_for(self, fd: int, pattern: bytes) -> bytes:
        seen, until = b"", time.monotonic() + 30
        while not re.search(pattern, seen):
            if not select.select([fd], [], [], max(0, until - time.monotonic()))[0]:
                self.fail(f"{pattern!r} is not in {seen[-2000:]!r}")
            seen += os.read(fd, 65536)
        return seen

    def end(self, child: "subprocess.Popen[bytes]") -> None:
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(30), 130)
        assert child.stderr
        self.assertEqual(child.stderr.read(), b"")

    def grow(self, path: str, events: list[Event]) -> None:
        with open(path, "ab") as f:
            f.write(text(events))

    def test_plain_follows(self) -> None:
        path = self.write(good()[:3])
        child = self.start(path)
        assert child.stdout
        self.wait_for(child.stdout.fileno(), rb" 2\.0 MiB ")
        self.grow(path, good()[3:9])
        seen = self.wait_for(child.stdout.fileno(), rb" 66\.0 MiB ")
        self.assertNotIn(b"\x1b", seen)
        self.end(child)

    def test_terminal(self) -> None:
        path = self.write(good()[:3])
        main, other = terminal()
        self.addCleanup(os.close, main)
        child = self.start(path, stdout=other)
        os.close(other)
        seen = self.wait_for(main, rb" 2\.0 MiB ")
        self.assertIn(b"\x1b[?1049h", seen)
        self.grow(path, good()[3:9])
        self.wait_for(main, rb"66\.0 MiB ")
        child.send_signal(signal.SIGINT)
        # The terminal is left as it was found.
        self.wait_for(main, rb"\x1b\[\?25h\x1b\[\?1049l")
        self.assertEqual(child.wait(30), 130)

    def test_dumb_terminal(self) -> None:
        main, other = terminal()
        self.addCleanup(os.close, main)
        child = self.start(self.write(good()), stdout=other, term="dumb")
        os.close(other)
        self.assertNotIn(b"\x1b", self.wait_for(main, rb" 2\.0 MiB "))
        self.end(child)

    def test_reader_goes_away(self) -> None:
        child = self.start(self.write(good()))
        assert child.stdout and child.stderr
        self.wait_for(child.stdout.fileno(), rb" 2\.0 MiB ")
        child.stdout.close()
        self.assertEqual(child.wait(30), 128 + signal.SIGPIPE)
        self.assertEqual(child.stderr.read(), b"")

    def test_more_rows_than_the_screen(self) -> None:
        self.assertEqual(top.fit("aaaa\nb\nc\nd", 3, 3), ["aaa", "b", "..."])
        self.assertEqual(top.fit("a\nb", 80, 3), ["a", "b"])
