# SPDX-License-Identifier: Apache-2.0
"""Tests of traces that a child process reads: everything is as without one, and no child is left, whatever happens.

A child reads long files only; here that is made to be any file. Not here: whether it is faster; tests/bench/readers measures.
"""

import contextlib
import errno
import gzip
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import tool
from made_traces import BASE, MIB, ROOT, Case, good, header, text

sys.path.insert(0, str(ROOT / "scripts"))
from cupool_trace import ahead, brief, cli, offline, reader, replay, source, top  # noqa: E402

# cupool-trace with files from some size on read by a child, on a machine of some processors. At its end the number of children to a file;
# what it had to print before, that is not yet printed when the child begins, is there once, too.
DRIVER = f"""\
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
from cupool_trace import ahead, cli
count, ahead.LEAST, processors, *args = sys.argv[1:]
ahead.LEAST, ahead.processors = int(ahead.LEAST), lambda: int(processors)
started, start = [], ahead._start
ahead._start = lambda items: started.append(start(items)) or started[-1]
print("once")
status = cli.main(args)
with open(count, "w") as out:
    out.write(str(len([s for s in started if s])))
sys.exit(status)
"""
ENV = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}  # what is printed waits, as it does for most people
NEVER = 1 << 60
PIPE = ahead.PIPE
LONG = 25_000  # busy() makes more events of it than are sorted at a time


def driver(words: list[str]) -> int:
    """In a fork of this process."""
    sys.argv, ahead.PIPE = ["-c", *words], PIPE
    exec(DRIVER, {})
    return 0


def busy(seed: int, count: int = 2000, wrong: float = 0.01, end: bool = True) -> bytes:
    """The events of a program of three threads. That many of its lines are no events, and as many frees cannot be."""
    r = random.Random(seed)
    lines = [json.dumps(header(seed))]
    for i in range(1, 9):
        lines.append(f'{{"t":{i},"e":"segment_alloc","tid":1,"d":0,"p":"{BASE + 2 * MIB * i:#x}","n":{2 * MIB},"b":"cuda","us":1.5}}')
    live: dict[int, int] = {}
    for t in range(10, count):
        p = BASE + 2 * MIB + 4096 * r.randrange(8 * 512)
        odd = r.random()
        if odd < wrong:
            lines.append(r.choice(['{"t":1,"e":"alloc"}', "nonsense", '{"t":1,"e":"trim","tid":1,"d":0,"n":-1,"why":"x"}',
                                   f'{{"t":{t - 5},"e":"mark","tid":1,"text":"m"}}']))
        elif odd < 2 * wrong:
            lines.append(f'{{"t":{t},"e":"free_requested","tid":1,"d":0,"p":"{p + 512:#x}","n":512}}')
        elif p in live:
            rest = f'"tid":{t % 3},"d":0,"p":"{p:#x}","n":{live.pop(p)}}}'
            lines += [f'{{"t":{t},"e":"free_requested",{rest}', f'{{"t":{t},"e":"free_completed",{rest}']
        else:
            live[p] = r.randrange(1, 4097)
            lines.append(f'{{"t":{t},"e":"alloc","tid":{t % 3},"d":0,"p":"{p:#x}","n":{live[p]},"f":[{t % 7},1]}}')
    return "\n".join([*lines, *([f'{{"t":{count},"e":"end","tid":1,"dropped":3}}'] if end else []), ""]).encode()


def children() -> bool:
    """Has this process any, ended or not?"""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else []


def wait_for(done: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def group_is_gone(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return True
    return False


def end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class Forced(Case):
    """Any file is read by a child. In this process, the pipe holds little, so that a child waits in the middle of its work."""

    def setUp(self) -> None:
        super().setUp()
        forced = unittest.mock.patch.multiple(ahead, LEAST=0, PIPE=4096, processors=lambda: 9)
        forced.start()
        self.addCleanup(forced.stop)
        self.before = descriptors()

    def tearDown(self) -> None:
        self.assertFalse(children())
        self.assertEqual(ahead._children, set())
        self.assertEqual(descriptors(), self.before)

    def drive(self, least: int, *args: str, processors: int = 9, stdin: Optional[bytes] = None) -> "tuple[tuple[int, bytes, bytes], int]":
        """Exit status, standard output and error; how many children there were."""
        count = self.dir / "count"
        words = [str(count), str(least), str(processors), *args]
        if stdin is None:
            said = tool.run(*words, seconds=100, tool=driver)
            return (said.returncode, said.stdout.encode(), said.stderr.encode()), int(count.read_text())
        done = subprocess.run([sys.executable, "-c", DRIVER, *words], input=stdin, capture_output=True, timeout=100, env=ENV)
        return (done.returncode, done.stdout, done.stderr), int(count.read_text())

    def same(self, files: list[str], *args: str) -> "tuple[int, bytes, bytes]":
        """A command's output and files, which must be equal with and without children; one for each file."""
        found = []
        for least in (NEVER, 0):
            out = self.dir / "out.html"  # plot wants such a name
            result, count = self.drive(least, *(a.replace("{out}", str(out)) for a in args), *files)
            found.append((result, out.read_bytes() if out.exists() else b""))
            out.unlink(missing_ok=True)
            self.assertEqual(count, 0 if least else len(files), result)
        self.assertEqual(found[0], found[1], args)
        self.assertEqual(found[0][0][1].count(b"once\n"), 1)
        self.assertNotIn(b"Traceback", found[0][0][2])
        return found[0][0]


    def inside(self, least: int, *args: str) -> "tuple[int, bytes, bytes]":
        """Runs it in this process, which is faster."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))
        with unittest.mock.patch.object(ahead, "LEAST", least), unittest.mock.patch.object(os, "fork", side_effect=os.fork) as fork:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = cli.main(list(args))
        self.assertEqual(fork.call_count, 0 if least else 1)
        out.flush()
        err.flush()
        return status, out.buffer.getvalue(), err.buffer.getvalue()


class Same(Forced):
    def test_a_long_file(self) -> None:
        """The reader's problems and the replay's take turns, and are more than are kept."""
        path = self.write(busy(1, LONG, wrong=0.0025))
        for args in (["summary", "--json"], ["check", "--json"], ["to-csv"]):
            with self.subTest(args=args):
                self.assertEqual(self.same([path], *args)[0], 1)
        out = self.same([path], "check")[1].decode()
        kinds = ["starts there" in line for line in out.splitlines() if re.match(r".*/t\.jsonl:[0-9]+: ", line)]
        self.assertEqual(len(kinds), reader.KEEP)
        self.assertGreater(sum(a != b for a, b in zip(kinds, kinds[1:])), 1)
        self.assertIn("more problems", out)

    def test_commands(self) -> None:
        path = self.write(busy(1))
        for args in (["summary"], ["check"], ["plot", "-o", "{out}"], ["to-csv", "-o", "{out}"], ["to-perfetto", "-o", "{out}"],
                     ["to-pytorch", "-o", "{out}"], ["to-rmm", "-o", "{out}"], ["merge"]):
            with self.subTest(args=args):
                status, _, err = self.same([path], *args)
                self.assertIn(status, (0, 1), err)
        requests = []
        for least in (NEVER, 0):
            with unittest.mock.patch.object(ahead, "LEAST", least):
                one = offline.TraceSource(path)
                one.prepare()
                requests.append((list(one.lines()), one.notes))
        self.assertEqual(requests[0], requests[1])

    def test_several_files(self) -> None:
        paths = [self.write(busy(seed), f"{seed}.jsonl") for seed in range(4)]
        for args in (["summary"], ["check"], ["merge"], ["to-csv"]):
            with self.subTest(args=args):
                self.same(paths, *args)
        self.same(paths[:2], "diff")

    def test_what_is_wrong_with_a_file(self) -> None:
        whole, packed = busy(2), gzip.compress(busy(2))
        damaged = bytearray(packed)
        damaged[len(packed) // 2] ^= 0xff
        files = {
            "good": text(good()), "no header": text(good()[1:]), "second header": text([*good()[:5], header(), *good()[5:]]),
            "killed": busy(3, end=False), "cut": whole[:-1000], "cut header": whole[:40], "header alone": text(good()[:1]), "empty": b"",
            "newline": b"\n", "no trace": b"nonsense\n" + whole, "merged": b'{"merged":1}\n',
            "another format": text([header(cupool=2), *good()[1:]]),
            "bad header": text([{**header(), "rank": "x", "pid": []}, *good()[1:]]),
            "after the end": text([*good(), *good()[1:4]]), "a long line": whole + b"x" * (3 << 20),
            "packed": packed, "packed and cut": packed[:len(packed) // 2], "packed and damaged": bytes(damaged),
            "packed nothing": gzip.compress(b""), "magic alone": b"\x1f\x8b",
        }
        seen = set()
        for name, content in files.items():
            path = self.write(content)
            for args in (["summary", "--json"], ["check"], ["to-csv"]):
                with self.subTest(name=name, args=args):
                    found = [self.inside(least, *args, path) for least in (NEVER, 0)]
                    self.assertEqual(found[0], found[1])
                    seen.add(found[0][0])
        self.assertEqual(seen, {0, 1, 2})

    def test_what_a_reader_knows(self) -> None:
        """With each event, not only at the end; Source and Rank read it then."""
        known = ("header", "lines", "cut", "ended", "dropped", "left_out", "last_t", "name", "order", "complete", "state")

        def follow(path: str, kind: "type[reader.Reader]") -> Iterator[Any]:
            problems = reader.Problems()
            r = kind(path, problems)
            try:
                for entry in r.events():
                    yield entry, problems.count, problems.kept[-1:], [getattr(r, k) for k in known if k != "last_t"]
            except reader.CannotRead as e:
                yield str(e)
            yield problems.count, problems.kept, [getattr(r, k) for k in known], r.last_t

        packed = gzip.compress(busy(5))
        for content in (busy(4), busy(4)[:-77], text(good()), b"", packed, packed[:-2000], packed[:2000] + b"x" * 100):
            path = self.write(content)
            for kind in (reader.Reader, brief.BriefReader):
                with unittest.mock.patch.object(reader, "BLOCK", 1000):
                    with unittest.mock.patch.object(ahead, "made_ahead", side_effect=ahead.made_ahead) as used:
                        got = list(follow(path, kind))
                    self.assertEqual(used.call_count, 1)
                    with unittest.mock.patch.object(ahead, "LEAST", NEVER):
                        self.assertEqual(got, list(follow(path, kind)))

    def test_damaged_at_random(self) -> None:
        r = random.Random(1)
        whole = busy(6, 1500)
        for _ in range(20 * int(os.environ.get("TEST_RUNS", "1"))):
            data = bytearray(whole)
            for _ in range(r.randrange(1, 6)):
                at = r.randrange(len(data))
                data[at:at + r.randrange(3)] = r.choice([b"", b"\n", b"\xff", b'"', b"{", b"}", b"-", b"[" * 3000])
            data[r.randrange(len(data)):] = b""
            path = self.write(bytes(data))
            found = []
            for least in (0, NEVER):
                problems = reader.Problems()
                one = reader.Reader(path, problems)
                with unittest.mock.patch.object(ahead, "LEAST", least), unittest.mock.patch.object(reader, "BLOCK", 5000):
                    try:
                        events: Any = list(one.events())
                    except reader.CannotRead as e:
                        events = str(e)
                found.append((repr(events), problems.count, problems.kept, one.header, one.lines, one.state, one.last_t))
            self.assertEqual(found[0], found[1])


class Without(Forced):
    """Where there is no child."""

    def read(self, path: str) -> list[reader.Entry]:
        return list(reader.Reader(path, reader.Problems()).events())

    def test_when_there_is_one(self) -> None:
        path = self.write(busy(1))
        size = os.path.getsize(path)
        self.assertTrue(ahead.worthwhile(path))
        for name, value, expected in (("LEAST", size, True), ("LEAST", size + 1, False), ("processors", lambda: 1, False),
                                      ("processors", lambda: 2, True)):
            with self.subTest(name=name, value=value), unittest.mock.patch.object(ahead, name, value):
                self.assertEqual(ahead.worthwhile(path), expected)
        self.assertFalse(ahead.worthwhile(str(self.dir)))
        self.assertFalse(ahead.worthwhile(str(self.dir / "none")))
        self.assertFalse(ahead.worthwhile("/dev/null"))
        os.mkfifo(self.dir / "fifo")
        self.assertFalse(ahead.worthwhile(str(self.dir / "fifo")))
        with unittest.mock.patch.object(os, "fork"):
            del os.fork
            self.assertFalse(ahead.worthwhile(path))

    @unittest.skipUnless(hasattr(os, "sched_setaffinity"), "no such call")
    def test_one_processor(self) -> None:
        measure = (f"import os, sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); from cupool_trace import ahead\n"
                   "ahead.LEAST = 0; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(ahead.worthwhile(sys.argv[1]))")
        done = subprocess.run([sys.executable, "-c", measure, self.write(good())], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.stdout, done.stderr), ("False\n", ""))

    def test_no_more_than_there_are_processors(self) -> None:
        paths = [self.write(busy(seed), f"{seed}.jsonl") for seed in range(4)]
        expected = self.drive(NEVER, "merge", *paths)[0]
        self.assertEqual(self.drive(0, "merge", *paths, processors=3), (expected, 2))
        self.assertEqual(self.drive(0, "summary", *paths, processors=2)[1], 4)  # one after the other

    def test_standard_input(self) -> None:
        whole = busy(1)
        path = self.write(whole)
        for command in ("summary", "to-csv"):
            expected = self.drive(NEVER, command, "-", stdin=whole)
            self.assertEqual(self.drive(0, command, "-", stdin=whole), expected)
        # A file of that name is not meant.
        self.write(good(), "-")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.dir)
        with open(path, "rb") as f, unittest.mock.patch.object(sys, "stdin", io.TextIOWrapper(f)), \
                unittest.mock.patch.object(os, "fork", side_effect=AssertionError):
            self.assertEqual(self.read("-")[-1][1], whole.count(b"\n"))

    def test_top_reads_itself(self) -> None:
        """It comes back for what was added."""
        path = Path(self.write(text(good()[:3])))
        follower = top.Follower(str(path))
        with unittest.mock.patch.object(os, "fork", side_effect=AssertionError):
            follower.poll(float("inf"))
            with path.open("ab") as out:
                out.write(text(good()[3:]))
            follower.poll(float("inf"))
        self.assertTrue(follower.reader.ended)

    def test_no_child_can_be_had(self) -> None:
        path = self.write(busy(1))
        with unittest.mock.patch.object(ahead, "LEAST", NEVER):
            expected = self.read(path)
        for call in ("fork", "pipe"):
            with unittest.mock.patch.object(os, call, side_effect=OSError(errno.EAGAIN, "none")) as refused:
                self.assertEqual(self.read(path), expected)
            refused.assert_called_once()
            self.assertEqual(descriptors(), self.before)

    def test_a_child_that_cannot_go_on(self) -> None:
        """The parent makes the entries that the child cannot send, and the error that stopped it."""
        deep: list[Any] = []
        for _ in range(5000):
            deep = [deep]

        def items(last: Any) -> Iterator[Any]:
            yield from range(3)
            if isinstance(last, type):
                raise last
            yield last
            yield 4

        for odd in (object(), deep):
            got = list(ahead.made_ahead(items(odd)))
            self.assertEqual((got[:3], got[4:]), ([0, 1, 2], [4]))
            self.assertIs(got[3], odd)
        got = []
        with self.assertRaises(ZeroDivisionError):
            for each in ahead.made_ahead(items(ZeroDivisionError)):
                got.append(each)
        self.assertEqual(got, [0, 1, 2])


class Ends(Forced):
    def started(self, unwanted: "frozenset[str]" = frozenset()) -> "tuple[Iterator[reader.Entry], int]":
        """A file that is being read, and the child that does so."""
        events = reader.Reader(self.write(busy(1, LONG)), reader.Problems(), unwanted).events()
        next(events)
        pid, = ahead._children
        return events, pid

    def test_a_child_that_is_killed(self) -> None:
        for pause in (0, 0.3):  # after which it has written a part of something
            events, pid = self.started()
            time.sleep(pause)
            os.kill(pid, signal.SIGKILL)
            with self.assertRaisesRegex(reader.CannotRead, r"/t\.jsonl: the process that read it was killed by signal 9$"):
                list(events)

    def test_a_child_that_ends(self) -> None:
        def items() -> Iterator[str]:
            yield "x" * 100_000
            os._exit(3)

        got = []
        with self.assertRaisesRegex(ahead.Lost, "ended early"):
            for each in ahead.made_ahead(items()):
                got.append(each)
        self.assertEqual(len(got), 1)

    def test_an_interrupted_child_goes_on(self) -> None:
        """Its parent decides what becomes of it."""
        events, pid = self.started()
        os.kill(pid, signal.SIGINT)
        self.assertGreater(len(list(events)), LONG)

    def test_of_two(self) -> None:
        """The second child has inherited what the first one's parent reads from, so that the first one would not notice who leaves."""
        first, pid = self.started()
        second = reader.Reader(self.write(busy(2, LONG), "second.jsonl"), reader.Problems()).events()
        next(second)
        del first
        self.assertNotIn(pid, ahead._children)
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)
        self.assertGreater(len(list(second)), LONG)

    def test_what_commands_say_then(self) -> None:
        path, other = self.write(busy(1, LONG)), self.write(good(), "other.jsonl")
        expected = f"cupool-trace: {path}: the process that read it was killed by signal 9\n"

        def killed(items: Iterator[Any]) -> Any:
            child = start(items)
            if len(pids) < 1:
                os.kill(child[0], signal.SIGKILL)  # type: ignore[index]
            pids.append(child)
            return child

        start, pids = ahead._start, []  # type: ignore[var-annotated]
        with unittest.mock.patch.object(ahead, "_start", killed), contextlib.redirect_stderr(io.StringIO()) as err:
            ranks, unreadable = replay.load([path, other])
        self.assertEqual(([r.path for r in ranks], unreadable, err.getvalue()), ([other], 1, expected))
        pids.clear()
        with contextlib.redirect_stderr(io.StringIO()) as err, unittest.mock.patch.object(source, "CannotRead", reader.CannotRead):
            one = source.Source(path, source.Progress())
            os.kill(max(ahead._children), signal.SIGKILL)
            list(one.events())
        self.assertEqual((one.failed, err.getvalue()), (True, expected))

    def test_who_stops_early(self) -> None:
        events, pid = self.started()
        del events
        self.assertFalse(children())
        self.assertEqual(descriptors(), self.before)

        class Interrupted(replay.Replay):
            def apply(self, line: int, ev: reader.Event) -> None:
                assert ahead._children
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            replay.Rank(self.write(busy(1, LONG)), Interrupted)
        self.assertFalse(children())

    def run_alone(self, *args: str) -> "subprocess.Popen[bytes]":
        """cupool-trace in a group of its own, in the middle of a file, whose output nobody has taken yet."""
        path = self.write(busy(1, 40_000))
        child = subprocess.Popen([sys.executable, "-c", DRIVER, str(self.dir / "count"), "0", "9", *args, path],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, start_new_session=True)
        self.addCleanup(end_group, child.pid)
        assert child.stdout
        self.assertEqual([child.stdout.readline(), child.stdout.readline()[:4]], [b"once\n", b"rank"])
        return child

    def test_interrupted(self) -> None:
        """Ctrl-C is for both."""
        child = self.run_alone("to-csv")
        os.killpg(child.pid, signal.SIGINT)
        _, err = child.communicate(timeout=60)
        self.assertEqual((child.returncode, err), (130, b""))
        self.assertTrue(group_is_gone(child.pid))

    def test_nobody_reads_the_output(self) -> None:
        child = self.run_alone("to-csv")
        assert child.stdout and child.stderr
        child.stdout.close()
        self.assertEqual((child.wait(60), child.stderr.read()), (128 + signal.SIGPIPE, b""))
        child.stderr.close()
        self.assertTrue(group_is_gone(child.pid))

    def test_killed(self) -> None:
        """Then nobody ends the child; it does so itself, without a word."""
        child = self.run_alone("to-csv")
        child.kill()
        _, err = child.communicate(timeout=60)  # which waits for all who could still write
        self.assertEqual(err, b"")
        self.assertTrue(wait_for(lambda: group_is_gone(child.pid)))

    def test_children_that_are_not_waited_for(self) -> None:
        """cupool-trace may be started with SIGCHLD ignored; then the system forgets children by itself."""
        path = self.write(busy(1))
        expected = self.drive(NEVER, "check", path)[0]
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            command = [sys.executable, "-c", DRIVER, str(self.dir / "count"), "0", "9", "check", path]
            with open(self.dir / "all", "wb") as out:
                subprocess.Popen(command, stdout=out, stderr=out).wait(60)
        finally:
            signal.signal(signal.SIGCHLD, before)
        self.assertTrue(wait_for(lambda: not children()))
        self.assertEqual((self.dir / "all").read_bytes(), expected[1] + expected[2])
        self.assertEqual((self.dir / "count").read_text(), "1")
