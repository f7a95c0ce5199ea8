# SPDX-License-Identifier: Apache-2.0
"""The statistics page of real processes (CUPOOL_STATS_FILE): its contents, while they run and after any end, and what it must
never do to the program; and cupool-trace export, which reads it.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import unittest.mock
import urllib.error
import urllib.request
from pathlib import Path

from e2e import BIN, INFO, MIB, SANITIZE, SOURCE, TIMEOUT, TRACE_TOOL, Case, Trace, app, not_with_coverage, tool

sys.path.insert(0, str(SOURCE / "scripts"))
from cupool_trace.live import HALF, HEADER, NotAPage, Page, read_page  # noqa: E402
from cupool_trace.schema import STATS  # noqa: E402

REPORT = BIN / "report_shared"
PAGE = {"CUPOOL_STATS_FILE": "p.%p.page"}


class Base(Case):
    def page_of(self, cwd: Path) -> Page:
        [path] = [p for p in cwd.iterdir() if ".page" in p.name]
        return read_page(str(path))


class Contents(Base):
    def test_at_the_end(self) -> None:
        done = self.go(REPORT, "pid", "many:30:4096", "churn:70:100000", f"alloc:{3 * MIB}", RANK="3", LOCAL_RANK="1", **PAGE)
        page, trace = self.page_of(done.cwd), self.one_trace(done)
        self.assertEqual((f"pid {page.pid}\n", page.host, page.exe, page.rank, page.local_rank, page.ended),
                         (done.out, socket.gethostname(), "report_shared", 3, 1, True))
        self.assertEqual(page.made_by, self.go(INFO, "--version", preload=None).out.split()[1])
        [stats] = trace.of("stats")
        self.assertEqual(list(page.devices), [0])
        self.assertEqual({k: page.devices[0][k] for k in STATS}, {k: stats[k] for k in STATS})
        self.assertEqual(set(page.devices[0]), {*STATS, "failed", "idle", "bound", "helped", "driver_ns", "paused"})
        self.assertEqual((stats["allocs"], page.devices[0]["failed"]), (101, 0))
        self.assertLess(abs(page.updated - time.time()), 60)
        self.assertLess(abs(page.start + page.uptime - page.updated), 1)
        self.assertEqual(done.err, "")

    def test_the_layout_is_as_documented(self) -> None:
        done = self.go(app("shared"), "alloc:1:4096", CUPOOL_STATS_FILE="p")
        text = (SOURCE / "docs" / "live.md").read_text()
        for row in re.findall(r"^\| [\d, ]+ \| u32 \| (?:bytes of the header|slots in a half).*$", text, re.M):
            for at, value in zip(re.findall(r"\d+", row.split("|")[1]), re.findall(r"\((\d+)\)", row)):
                self.assertEqual(int.from_bytes((done.cwd / "p").read_bytes()[int(at):int(at) + 4], sys.byteorder), int(value), row)

    def test_unknown_rank(self) -> None:
        page = self.page_of(self.go(REPORT, "alloc:1", **PAGE).cwd)
        self.assertEqual((page.rank, page.local_rank), (None, None))

    def test_several_devices_and_contexts(self) -> None:
        done = self.go(app("shared"), "churn:10:4096", "reset", "churn:20:4096", **PAGE)
        self.assertEqual(self.page_of(done.cwd).devices[0]["allocs"], 30)
        done = self.go(REPORT, "churn:10:4096", "device:1", "many:5:4096", SIMGPU_DEVICES="2", **PAGE)
        devices = self.page_of(done.cwd).devices
        self.assertEqual({d: c["allocs"] for d, c in devices.items()}, {0: 10, 1: 5})

    def test_while_it_runs(self) -> None:
        """It is true within a second or two, and goes on."""
        def then(child: "subprocess.Popen[str]", cwd: Path) -> None:
            page = self.page_of(cwd)
            self.assertEqual((page.pid, page.ended), (child.pid, False))
            page = self.wait_for(lambda: (p := self.page_of(cwd)).devices.get(0, {}).get("allocs") == 40 and p)
            self.assertTrue(page.running())
            later = self.wait_for(lambda: (p := self.page_of(cwd)).seq > page.seq and p)
            self.assertGreaterEqual(later.updated, page.updated)
            self.assertLess(later.seq, 100)
        _, _, cwd = self.running("alloc:4096", "churn:39:4096", "ready", "await:go", "churn:2:4096", then=then, **PAGE)
        page = self.page_of(cwd)
        self.assertEqual((page.ended, page.running(), page.devices[0]["allocs"]), (True, False, 42))

    def test_killed(self) -> None:
        """The last update stays, and it does not say that the process has ended."""
        def then(child: "subprocess.Popen[str]", cwd: Path) -> None:
            self.wait_for(lambda: self.page_of(cwd).devices.get(0, {}).get("allocs") == 7)
        _, _, cwd = self.running("many:7:4096", "ready", "await:go", "kill", then=then, rc=-signal.SIGKILL, **PAGE)
        page = self.page_of(cwd)
        self.assertEqual((page.ended, page.devices[0]["allocs"]), (False, 7))
        self.assertEqual(page.devices[0]["live"], 7 * 4096)

    def test_none(self) -> None:
        for words, env in ((["alloc:4096"], {"CUPOOL_STATS_FILE": "off"}), (["alloc:4096"], {"CUPOOL_STATS_FILE": ""}),
                           (["alloc:4096"], {**PAGE, "CUPOOL_ENABLE": "0"}), (["limit"], PAGE),
                           (["alloc:4096"], {"CUPOOL_STATS_FILE": "/dev/null"})):
            done = self.go(REPORT, *words, **env)
            self.assertEqual([f for f in done.files if ".jsonl" not in f], [], env)
            self.assertEqual(done.err, "")

    def test_no_thread_of_its_own(self) -> None:
        words = ("alloc:1:4096", "tids")
        self.assertEqual(self.go(app("shared"), *words, **PAGE).out, self.go(app("shared"), *words).out)


class Never(Base):
    def test_overwrites_nothing(self) -> None:
        cwd = self.folder()
        (cwd / "p").write_text("somebody's")
        self.go(REPORT, "alloc:4096", cwd=cwd, CUPOOL_STATS_FILE="p")
        self.assertEqual((cwd / "p").read_text(), "somebody's")
        self.assertTrue(read_page(str(cwd / "p.1")).ended)

    def test_unwritable(self) -> None:
        """The program runs as without one, and one line says so."""
        for path, why in (("no/such/folder", os.strerror(2)), ("/proc/nothing/x", os.strerror(2)), ("x" * 300, os.strerror(36))):
            done = self.go(REPORT, "churn:9:4096", CUPOOL_STATS_FILE=path)
            self.assertEqual(len(done.err.splitlines()), 1, done.err)
            self.assertIn("no statistics page", done.warnings[0])
            self.assertIn(why, done.warnings[0])
            self.assertEqual(self.one_trace(done).total("allocs"), 9)

    @not_with_coverage
    def test_file_size_limit(self) -> None:
        """At the start: no file remains. Later: the updates stop. SIGXFSZ, which would end the program, never comes."""
        done = self.go(REPORT, "other:4096", "fsize:4096", "many:9:4096", "sleep:1200", CUPOOL_TRACE_FILE="off", **PAGE)
        self.assertEqual((done.out, done.files), ("other 0\n", []))
        self.assertEqual(len(done.warnings), 1, done.err)
        done = self.go(app("shared"), "xfsz", "alloc:1:4096", "fsize:100", "churn:9:4096", "sleep:1200", CUPOOL_TRACE_FILE="off", **PAGE)
        self.assertEqual((done.out, len(done.warnings)), ("", 1), done.err)
        self.assertFalse(self.page_of(done.cwd).ended)

    def test_full_disk(self) -> None:
        if not shutil.which("unshare"):
            self.skipTest("no unshare")
        cwd = self.folder()
        script = ('mount -t tmpfs -o size=8k none "$1" 2>/dev/null || exit 77; cd "$1"; shift; "$@"; rc=$?; ls; exit $rc')
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", cwd, REPORT, "churn:9:4096"], capture_output=True, text=True,
                              env=self.env(CUPOOL_TRACE_FILE="off", **PAGE), timeout=TIMEOUT)
        if done.returncode == 77 or "unshare" in done.stderr:
            self.skipTest("no file system of our own to be had")
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertIn(os.strerror(28), done.stderr)

    def test_a_truncated_page_ends_nobody(self) -> None:
        def then(child: "subprocess.Popen[str]", cwd: Path) -> None:
            [path] = [p for p in cwd.iterdir() if ".page" in p.name]
            os.truncate(path, 0)
            self.wait_for(lambda: path.stat().st_size)  # another update came
        self.running("alloc:4096", "ready", "await:go", "churn:5:4096", then=then, **PAGE)

    def test_a_removed_page_stays_removed(self) -> None:
        def then(child: "subprocess.Popen[str]", cwd: Path) -> None:
            [path] = [p for p in cwd.iterdir() if ".page" in p.name]
            path.unlink()
            time.sleep(1.2)
        _, _, cwd = self.running("alloc:4096", "ready", "await:go", then=then, **PAGE)
        self.assertEqual([p for p in cwd.iterdir() if ".page" in p.name], [])

    @unittest.skipIf("thread" in SANITIZE, "a program that closes a descriptor in use is a race by itself")
    def test_closed_descriptors(self) -> None:
        """Its number may be that of a file of the program's then."""
        done = self.go(app("shared"), "alloc:1:4096", "closefrom:3", "occupy:260:mine", "sleep:1200", "churn:9:4096",
                       CUPOOL_TRACE_FILE="off", **PAGE)
        self.assertEqual(set((done.cwd / "mine").read_text().split("\n")), {"mine", ""})
        self.assertEqual(len(done.warnings), 1, done.err)
        self.assertFalse(self.page_of(done.cwd).ended)

    def test_a_child_leaves_the_parents_page_alone(self) -> None:
        for end in ("kill", "pid"):
            done = self.go(REPORT, "pid", "many:3:4096", "fork{", "many:9:4096", "sleep:1200", "}", end, rc=None, **PAGE)
            page = self.page_of(done.cwd)
            self.assertEqual((page.pid, page.ended), (int(done.out.split()[1]), end == "pid"))
            self.assertEqual(page.devices[0]["allocs"], 3)

    def test_the_folder_is_the_one_of_the_first_request(self) -> None:
        cwd = self.folder()
        self.go(REPORT, "alloc:4096", "chdir:/", "sleep:1200", "alloc:4096", cwd=cwd, **PAGE)
        self.assertEqual(self.page_of(cwd).devices[0]["allocs"], 2)

    def test_log_level(self) -> None:
        self.assertEqual(self.go(REPORT, "alloc:4096", CUPOOL_STATS_FILE="no/such", CUPOOL_LOG_LEVEL="error").err, "")


class Reader(Base):
    def setUp(self) -> None:
        super().setUp()
        def then(_: "subprocess.Popen[str]", cwd: Path) -> None:
            self.wait_for(lambda: self.page_of(cwd).devices.get(0, {}).get("allocs") == 5)
        _, _, self.cwd = self.running("many:5:4096", "ready", "await:go", "many:2:4096", then=then, **PAGE)
        [self.path] = [p for p in self.cwd.iterdir() if ".page" in p.name]
        self.data = self.path.read_bytes()
        self.header_size, self.half_size = HEADER.unpack_from(self.data)[2:4]
        self.newer = max((0, 1), key=lambda i: HALF.unpack_from(self.data, self.header_size + i * self.half_size)[2])

    def read(self, data: bytes) -> Page:
        path = self.cwd / "changed"
        path.write_bytes(data)
        return read_page(str(path))

    def spoiled(self, *halves: int, at: int = 60) -> bytes:
        data = bytearray(self.data)
        for half in halves:
            data[self.header_size + half * self.half_size + at] ^= 1
        return bytes(data)

    def test_half_an_update_is_not_read(self) -> None:
        """A process that was killed while it wrote one half leaves the other."""
        whole, before = self.read(self.data), self.read(self.spoiled(self.newer))
        self.assertEqual((whole.ended, before.ended, whole.seq - before.seq), (True, False, 1))
        self.assertEqual((whole.devices[0]["allocs"], before.devices[0]["allocs"]), (7, 5))
        self.assertEqual(self.read(self.spoiled(1 - self.newer)).seq, whole.seq)
        for at in range(0, HALF.size + 17 * 8):  # every byte counts
            self.assertEqual(self.read(self.spoiled(self.newer, at=at)).seq, before.seq, at)

    @unittest.mock.patch("cupool_trace.live.time.sleep")
    def test_what_is_no_page(self, _: unittest.mock.Mock) -> None:
        """A reader looks several times before it says so; nobody writes meanwhile here, so it need not pause."""
        for data in (b"", b"x" * 40000, self.data[:100], self.data[:self.header_size], b"CUPOOLST" + b"\xff" * 30000, self.spoiled(0, 1),
                     self.data[:8] + b"\x02" + self.data[9:]):
            with self.assertRaises(NotAPage):
                self.read(data)
        with self.assertRaises(NotAPage):
            read_page(str(self.cwd / "missing"))
        with self.assertRaises(NotAPage):
            read_page(str(self.cwd))


class Export(Base):
    def export(self, *args: "str | Path", rc: int = 0) -> "subprocess.CompletedProcess[str]":
        done = tool.run("export", *args)
        self.assertEqual(done.returncode, rc, done.stdout + done.stderr)
        return done

    def pages(self) -> "list[Path]":
        self.cwd = self.folder()
        for rank in "10":
            self.go(REPORT, f"many:{3 + int(rank)}:4096", cwd=self.cwd, CUPOOL_RANK=rank, **PAGE)
        return sorted(p for p in self.cwd.iterdir() if ".page" in p.name)

    def samples(self, text: str) -> "dict[tuple[str, str | None, str | None], float]":
        """Value by name, rank and device; every line is of the format, every name has its type before it."""
        out, typed = {}, {}
        for line in text.splitlines():
            if line.startswith("# "):
                kind, name, rest = line[2:].split(" ", 2)
                self.assertIn(kind, ("HELP", "TYPE"))
                if kind == "TYPE":
                    self.assertIn(rest, ("gauge", "counter"))
                    self.assertEqual(rest == "counter", name.endswith("_total"))
                    typed[name] = rest
                continue
            match = re.fullmatch(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\]|\\["\\n])*",?)+)\} (\S+)', line)
            assert match, line
            self.assertIn(match[1], typed)
            labels = dict(re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', match[2]))
            out[match[1], labels.get("rank"), labels.get("device")] = float(match[3])
        return out

    def test_prometheus(self) -> None:
        samples = self.samples(self.export(*self.pages()).stdout)
        self.assertEqual([samples["cupool_allocs_total", r, "0"] for r in "01"], [3, 4])
        self.assertEqual([samples["cupool_live_bytes", r, "0"] for r in "01"], [3 * 4096, 4 * 4096])
        self.assertEqual(samples["cupool_up", "0", None], 0)
        self.assertGreater(samples["cupool_updated_time_seconds", "1", None], 1e9)

    def test_patterns_and_doubles(self) -> None:
        pages = self.pages()
        wanted = self.export(*pages).stdout
        self.assertEqual(self.export(f"{self.cwd}/*.page").stdout, wanted)
        self.assertEqual(self.export(f"{self.cwd}/*.page", *pages).stdout, wanted)
        none = self.export(f"{self.cwd}/none*")
        self.assertEqual((none.stdout, none.stderr), ("", f"cupool-trace: {self.cwd}/none*: no file has such a name (yet)\n"))
        self.assertEqual(self.export(self.cwd / "none", rc=2).stdout, "")

    def test_json(self) -> None:
        both = json.loads(self.export("--json", *self.pages()).stdout)
        self.assertEqual([(p["rank"], p["ended"], p["running"], p["devices"]["0"]["allocs"]) for p in both], [(0, True, False, 3), (1, True, False, 4)])

    def test_odd_names(self) -> None:
        odd = self.tmp / 'a "b\\c\nd \xe9'
        shutil.copy(REPORT, odd)
        done = self.go(odd, "alloc:4096", **PAGE)
        text = self.export(*[done.cwd / f for f in done.files if ".page" in f]).stdout
        self.assertEqual(self.samples(text)["cupool_allocs_total", None, "0"], 1)
        self.assertIn('exe="a \\"b\\\\c\\nd \xe9"', text)

    def test_a_bad_one_among_good_ones(self) -> None:
        pages = self.pages()
        done = self.export(*pages, self.cwd / "missing", *[p for p in self.cwd.iterdir() if ".jsonl" in p.name], rc=2)
        self.assertEqual(len(done.stderr.splitlines()), 3)
        self.assertEqual(self.samples(done.stdout), self.samples(self.export(*pages).stdout))

    def test_textfile(self) -> None:
        pages = self.pages()
        to = self.cwd / "x.prom"
        to.write_text("old")
        self.assertEqual(self.export("--textfile", to, *pages).stdout, "")
        self.assertEqual(to.read_text(), self.export(*pages).stdout)
        self.assertEqual(to.stat().st_mode & 0o777, 0o644)
        self.assertEqual([p.name for p in self.cwd.iterdir() if "cupool-" in p.name], [])
        self.export("--textfile", self.cwd / "no" / "x", *pages, rc=2)
        (self.cwd / "folder").mkdir()
        self.export("--textfile", self.cwd / "folder", *pages, rc=2)
        self.assertEqual([p.name for p in self.cwd.iterdir() if "cupool-" in p.name], [])

    def test_listen(self) -> None:
        pages = self.pages()
        server = subprocess.Popen([sys.executable, TRACE_TOOL, "export", "--listen", "127.0.0.1:0", f"{self.cwd}/*.page"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert server.stdout
            url = server.stdout.readline().split()[-1]
            with urllib.request.urlopen(url, timeout=30) as answer:
                self.assertIn("text/plain", answer.headers["Content-Type"])
                self.assertEqual(self.samples(answer.read().decode()), self.samples(self.export(*pages).stdout))
            self.go(REPORT, "many:9:4096", cwd=self.cwd, CUPOOL_RANK="7", **PAGE)
            with urllib.request.urlopen(url, timeout=30) as answer:
                self.assertEqual(self.samples(answer.read().decode())["cupool_allocs_total", "7", "0"], 9)
            with self.assertRaises(urllib.error.HTTPError):
                urllib.request.urlopen(url + "/else", timeout=30)
        finally:
            server.terminate()  # not SIGINT, which the tests may have inherited as ignored
            server.communicate(timeout=30)

    def test_listen_on_ipv6(self) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("no IPv6 here")
        pages = self.pages()
        for address in ("::1:0", "[::1]:0"):
            server = subprocess.Popen([sys.executable, TRACE_TOOL, "export", "--listen", address, *pages], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                assert server.stdout
                line = server.stdout.readline()
                self.assertIn("http://[::1]:", line)
                with urllib.request.urlopen(line.split()[-1], timeout=30) as answer:
                    self.assertEqual(self.samples(answer.read().decode()), self.samples(self.export(*pages).stdout))
            finally:
                server.terminate()
                server.communicate(timeout=30)

    def test_what_is_no_file(self) -> None:
        """A pipe that nobody writes is not waited for."""
        folder = self.folder()
        os.mkfifo(folder / "pipe")
        for path in (folder / "pipe", folder, "/dev/zero"):
            self.assertIn(str(path), self.export(path, rc=2).stderr)

    def test_listen_where(self) -> None:
        [page, _] = self.pages()
        for where in ("0.0.0.0:0", "::1", "localhost:1", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "8.8.8.8:9400"):
            self.assertIn("listen" if "8.8" not in where and "0.0.0.0" not in where else "--beyond-this-host",
                          self.export("--listen", where, page, rc=2).stderr)


class Bare(Case):
    def test_a_child_by_the_system_call(self) -> None:
        """No handler of ours runs in it; its exit neither ends the parent's files nor waits for a thread that it has not got."""
        done = self.assert_quick(1.5, lambda: self.go(BIN / "report_shared", "alloc:4096", "_fork{", "}", "alloc:4096", CUPOOL_STATS_FILE="page",
                                                      CUPOOL_STATS="exit", CUPOOL_TRACE_EVENTS="segment,alloc", CUPOOL_DEBUG="guard"))
        self.assertIn("child ended: exit 0", done.out)
        trace = Trace(next(p for p in done.cwd.iterdir() if ".jsonl" in p.name))
        self.assertEqual((len(trace.of("end")), len(trace.of("alloc")), trace.total("allocs")), (1, 2, 2))
        self.assert_fine(trace.path)
        self.assertEqual(len([e for e in trace.of("stats")]), 1)
        self.assertEqual(done.err.count("cupool: device"), 1, done.err)
        self.assertEqual(done.err.count("not freed"), 1, done.err)
