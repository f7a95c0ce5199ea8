# SPDX-License-Identifier: Apache-2.0
"""Tests of how cupool-trace reads its inputs, where it stops, and how much memory it takes."""

import bz2
import gzip
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import unittest

from made_traces import BASE, ROOT, TOOL, Case, ev, good, header, peak_kib, text, write_long
from cupool_trace.schema import BLOCKS


class Inputs(Case):
    def test_gzip(self) -> None:
        packed = gzip.compress(text(good()))
        self.check(packed, 0, "ok; complete; 17 lines")
        self.assertEqual(self.run_tool("check", "-", stdin=packed).returncode, 0)

    def test_gzip_cut(self) -> None:
        events = good()[:9] + [ev(1000 + i, "trim", n=i * 7919 % 10007, why="oom") for i in range(2000)]
        packed = gzip.compress(text(events))
        self.check(packed[:len(packed) // 2], 0, r"killed, still running, or its disk was full \(no end line, last line cut\)")
        done = self.run_tool("check", self.write(packed[:100] + b"\0" * 50 + packed[150:]))
        self.assertNotEqual(done.returncode, 0)

    def test_standard_input(self) -> None:
        self.assertEqual(self.run_tool("check", "-", stdin=text(good())).returncode, 0)
        self.assertEqual(self.run_tool("check", "-", "-", stdin=text(good())).returncode, 2)

    def test_cannot_read(self) -> None:
        for command in ("check", "summary"):
            with self.subTest(command=command):
                done = self.run_tool(command, str(self.dir / "none"), self.write(good()))
                self.assertEqual(done.returncode, 2)
                self.assertRegex(done.stderr, r"cupool-trace: .*none: No such file")
                self.assertIn("complete", done.stdout)  # the other file is still reported
                self.assertNotIn("leaves no trace", done.stderr)
                done = self.run_tool(command, str(self.dir / "none" / "cupool.*.jsonl"))
                self.assertIn("No such file or directory (no file has such a name: a process that allocates", done.stderr)
                empty = self.dir / "empty"
                empty.mkdir(exist_ok=True)
                done = self.run_tool(command, str(empty))
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn("no *.jsonl or *.jsonl.gz in it", done.stderr)
                done = self.run_tool(command, sys.executable)
                self.assertEqual(done.returncode, 2)
                self.assertIn("not a cupool trace", done.stderr)
                self.assertEqual(self.run_tool(command, self.write(b"just a text")).returncode, 2)

    def test_folder(self) -> None:
        """It stands for the traces in it."""
        for rank in range(2):
            self.write([header(rank), *good()[1:]], f"{rank}.jsonl")
        (self.dir / "2.jsonl.gz").write_bytes(gzip.compress(text([header(2), *good()[1:]])))
        self.write(b"not a trace", "notes.txt")
        self.assertEqual([r["rank"] for r in self.summary(str(self.dir))["ranks"]], [0, 1, 2])

    def test_json_lines_of_another_program(self) -> None:
        for line in ('{"level":"info","pid":7}', '{"host":"a","version":"1"}', "[1]"):
            for command in ("check", "summary"):
                done = self.run_tool(command, self.write(line.encode() + b"\n"))
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, r"^cupool-trace: \S+: not a cupool trace\n$")

    def test_compressed_otherwise(self) -> None:
        for name, packed in (("xz", lzma.compress(text(good()))), ("bzip2", bz2.compress(text(good()))),
                             ("zstd", b"\x28\xb5\x2f\xfd\x04\x58"), ("zip", b"PK\x03\x04\x14\0")):
            for command in ("check", "summary"):
                done = self.run_tool(command, self.write(packed))
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, rf"^cupool-trace: \S+: compressed by {name}; unpack it first")

    def test_full_standard_output(self) -> None:
        for command in ("check", "summary", "leaks"):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([sys.executable, TOOL, command, self.write(good())], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual((done.returncode, done.stderr), (2, "cupool-trace: standard output: No space left on device\n"))

    def test_closed_streams(self) -> None:
        """As a starter leaves them that has closed them: a line, no traceback, and no other file in their place."""
        path = self.write(good())
        for command in ("check", "summary", "leaks", "merge", "top --once", f"plot -o {self.dir}/page.svg", "--version"):
            for closed, file in (("1>&-", path), ("0<&-", "-"), ("2>&-", f"{path}.none"))[:1 if command == "--version" else 3]:
                with self.subTest(command=command, closed=closed):
                    done = subprocess.run(["sh", "-c", f"exec {closed}; exec \"$@\"", "sh", sys.executable, TOOL, *command.split(), file],
                                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
                    said = {"1>&-": "cupool-trace: standard output: Bad file descriptor\n", "0<&-": "cupool-trace: -: Bad file descriptor\n", "2>&-": ""}
                    self.assertEqual((done.returncode, done.stderr), (2, said[closed]))

    def test_leaks_says_nothing_of_what_it_has_not_read(self) -> None:
        empty = self.dir / "empty"
        empty.mkdir()
        done = self.run_tool("leaks", str(empty))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^cupool-trace: \S+: no \*\.jsonl or \*\.jsonl\.gz in it\n$")
        segments = [{**e, "events": "segment"} if i == 0 else e for i, e in enumerate(good()) if i == 0 or e["e"] not in BLOCKS]
        done = self.run_tool("leaks", self.write(segments))
        self.assertEqual(done.stdout, "", done)
        self.assertIn("it does not tell which blocks are live; CUPOOL_TRACE_EVENTS=segment,alloc does", done.stderr)
        gap = {"t": 500, "e": "gap", "why": "limit", "since": 450, "segments": 3, "blocks": 0, "others": 0, "bytes": 300, "open": 0}
        done = self.run_tool("leaks", self.write([*good()[:-1], gap, good()[-1]]))
        self.assertEqual(done.stdout, "", done)
        self.assertRegex(done.stderr, r"which blocks are live: 3 events were left out from 0.000 s on \(limit\)\n$")

    def test_a_trace_that_is_given_twice(self) -> None:
        """It counts once, under whatever name. Ranks of one host, and processes one after the other, are no such case."""
        path, copy = self.write(good(), "a.jsonl"), self.write(good(), "b.jsonl")
        others = [self.write([{**header(), **more}, *good()[1:]], f"{at}.jsonl") for at, more in enumerate(({"rank": 1}, {"pid": 43}, {"t0_unix_ns": 7}))]
        for again in path, copy:
            done = self.run_tool("summary", "--json", path, again, *others)
            self.assertEqual(len(json.loads(done.stdout)["ranks"]), 4)
            self.assertEqual(done.stderr.count("counted once"), 1)
            self.assertIn(f"cupool-trace: {again}: the trace {path} again", done.stderr)
            done = self.run_tool("to-csv", path, again)
            self.assertEqual(done.stdout, self.run_tool("to-csv", path).stdout)
            self.assertIn(f"cupool-trace: {again}: the trace {path} again", done.stderr)
        headless = [self.write(good()[1:], name) for name in ("c.jsonl", "d.jsonl")]
        self.assertNotIn("again", self.run_tool("summary", *headless).stderr)

    def test_a_statistics_page(self) -> None:
        done = self.run_tool("summary", self.write(b"CUPOOLST\1\0\0\0" + 500 * b"\0\n"))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r": a statistics page, no trace; cupool-trace export reads it\n$")

    def test_one_rank_on_two_hosts(self) -> None:
        """As of two runs: the lines tell them apart."""
        for host in ("one", "two"):
            self.write([{**header(0), "host": host}, *good()[1:]], f"{host}.jsonl")
        said = self.run_tool("summary", str(self.dir)).stdout
        for host in ("one", "two"):
            self.assertRegex(said, rf"(?m)^rank 0 on {host} device \d+: ")
        self.assertNotIn("\nrank 0 device", said)

    def test_what_merge_wrote_is_no_trace(self) -> None:
        merged = self.run_tool("merge", self.write(good()))
        done = self.run_tool("summary", self.write(merged.stdout.encode(), "merged.jsonl"))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("merged.jsonl: written by merge; read the traces", done.stderr)

    def test_usage(self) -> None:
        self.assertEqual(self.run_tool().returncode, 2)
        self.assertEqual(self.run_tool("nonsense").returncode, 2)
        self.assertEqual(self.run_tool("check").returncode, 2)
        path, empty = self.write(good()), str(self.dir / "empty")
        os.mkdir(empty)
        for words, said in (
                (["check", ""], "the name of a file is empty"), (["check", "--ranks=0", path], "'0': a whole number from 1 on is needed"),
                (["leaks", "--top=x", path], "'x': a whole number from 1 on is needed"),
                (["leaks", "--debug-dir=/none", path], "'/none': no such folder"),
                (["to-pytorch", "--max-entries=-1", path], "'-1': a whole number from 0 on is needed"),
                (["to-perfetto", "--every=nan", path], "'nan': microseconds from 0 on are needed"),
                (["to-perfetto", "--every=1e15", path], "'1e15': more microseconds than a trace can have"),
                (["plot", "--from=-1", "-o", "x.html", path], "'-1': seconds from 0 on are needed"),
                (["plot", "--from=5", "--to=1", "-o", "x.html", path], "--from 5 --to 1: no time is between them"),
                (["plot", "--from=inf", "-o", "x.html", path], "no time is between them"),
                (["replay", "--program=/bin/true", empty], "no *.jsonl or *.jsonl.gz in it")):
            done = self.run_tool(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn(said, done.stderr)
        for args in (["--help"], ["check", "--help"], ["summary", "--help"], ["--version"]):
            done = self.run_tool(*args)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_version_is_the_projects(self) -> None:
        found = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())
        assert found
        self.assertEqual(self.run_tool("--version").stdout.strip(), f"cupool-trace {found[1]}")

    def test_through_a_link_and_installed(self) -> None:
        (self.dir / "bin").mkdir()
        (self.dir / "share" / "cupool").mkdir(parents=True)
        (self.dir / "bin" / "cupool-trace").write_bytes(TOOL.read_bytes())
        (self.dir / "share" / "cupool" / "cupool_trace").symlink_to(ROOT / "scripts" / "cupool_trace")
        (self.dir / "link").symlink_to(self.dir / "bin" / "cupool-trace")
        done = subprocess.run([sys.executable, self.dir / "link", "check", self.write(good())], capture_output=True, cwd="/")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_module_is_installed(self) -> None:
        listed = re.findall(r"cupool_trace/(\w+\.py)", (ROOT / "scripts" / "meson.build").read_text())
        self.assertEqual(sorted(listed), sorted(p.name for p in (ROOT / "scripts" / "cupool_trace").glob("*.py")))

    def test_broken_pipe_is_quiet(self) -> None:
        events = [header(), *(ev(i, "free_requested", p=BASE, n=512) for i in range(500))]
        path = self.write(events)
        read, write = os.pipe()
        os.close(read)
        try:
            done = subprocess.run([sys.executable, str(TOOL), "check", path], stdout=write, stderr=subprocess.PIPE)
        finally:
            os.close(write)
        self.assertEqual((done.returncode, done.stderr), (128 + signal.SIGPIPE, b""))

    def test_interrupt_is_quiet(self) -> None:
        with subprocess.Popen([sys.executable, str(TOOL), "check", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as child:
            assert child.stdin and child.stderr
            # Once more than a pipe holds is gone, the reader is at work.
            child.stdin.write(text([header()]) + text([ev(1, "trim", n=1, why="oom")] * 4000))
            child.stdin.flush()
            child.send_signal(signal.SIGINT)
            # Closed by us only after its death: otherwise the end of input could come first.
            self.assertEqual(child.wait(timeout=30), 130)
            self.assertEqual(child.stderr.read(), b"")
            child.stdin.close()


class Size(Case):
    def test_memory_does_not_grow_with_the_trace(self) -> None:
        used = []
        for count in (20_000, 200_000):
            path = self.dir / f"{count}.jsonl"
            write_long(path, count, 10)
            used.append(peak_kib("check", path))
        self.assertLess(used[1], used[0] + 8 * 1024, used)
