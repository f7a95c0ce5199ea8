# SPDX-License-Identifier: Apache-2.0
"""cupool-trace on thousands of traces that were damaged in every way that a file can be: it says what is wrong, or that nothing
is, with an exit status that is documented; it does not fall over, and does not run for ever.

The originals, in traces/, were written by the library on the simulated GPU. TEST_RUNS=N damages N times as many (scripts/test --all:
4). By hand: TEST_SEED and TEST_RUNS in the environment; what fails is left in the folder that the message names.
"""

import contextlib
import gzip
import io
import json
import os
import random
import re
import signal
import sys
import tempfile
import traceback
import unittest
import unittest.mock
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
from cupool_trace import reader, schema  # noqa: E402
from cupool_trace.cli import main  # noqa: E402

SEED, COUNT = int(os.environ.get("TEST_SEED", "1")), 500 * int(os.environ.get("TEST_RUNS", "1"))
SECONDS = 30  # for one small file: longer is a hang, not a slow machine
TRACES = [(HERE / "traces" / name).read_bytes() for name in ("allocs.jsonl", "ipc.jsonl", "stacks.jsonl", "vmm.jsonl")]

NUMBERS: "list[Any]" = [0, -1, 1, 511, 1 << 31, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), 10**300, 10**4000, 0.5, -0.0, 1e308,
                        float("inf"), float("-inf"), float("nan")]
DEEP = [json.loads("[" * n + "]" * n) for n in (100, 450, 900)]  # deeper than printing likes, and than reading does
OTHERS: "list[Any]" = [None, True, False, "", "0x", "0x0", "0xffffffffffffffff", "0x7f00", "-1", "segment_alloc", "end", "stats", [], {},
                       [[]], {"e": "end"}, "\0", "\u2028", "\ud800", "ü", "x" * 5000, *DEEP]
RAW = [b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u", b"\\ud800", b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\n", b"\r\n", b"\r", b"\n\n",
       b"\xef\xbb\xbf", b"NaN", b"-Infinity", b"1e999", b"-", b"9" * 400, b"9" * 5000, b",", b":", b" ", b"\t", b"\x1f\x8b", b"e", b"{}",
       b"null\n", b"[" * 3000, b'{"a":' * 3000]


def pick_line(r: random.Random, lines: "list[bytes]") -> int:
    # The header decides about more than any other line.
    return 0 if r.random() < 0.2 else r.randrange(len(lines))


def change_value(r: random.Random, lines: "list[bytes]") -> None:
    """One key of one line is something else, is missing, or is new."""
    at = pick_line(r, lines)
    try:
        o = json.loads(lines[at])
    except (ValueError, RecursionError):
        return
    if not isinstance(o, dict) or not o:
        return
    key = r.choice(sorted(o))
    kind = r.randrange(6)
    if kind == 0:
        del o[key]
    elif kind == 1:
        o[r.choice(["e", "t", "tid", "d", "p", "n", "us", "why", "x", "dropped", "settings"])] = r.choice(NUMBERS + OTHERS)
    elif kind == 2:
        o[key] = r.choice(OTHERS)
    elif kind == 3 and isinstance(o[key], int):
        o[key] += r.choice([-1, 1, -512, 512, 1 << 21, -(1 << 21), 1 << 62])
    elif kind == 4 and isinstance(o.get("settings"), dict):
        o["settings"][r.choice(["CUPOOL_FREE", "x"])] = r.choice(NUMBERS + OTHERS)
    else:
        o[key] = r.choice(NUMBERS)
    try:
        lines[at] = json.dumps(o, ensure_ascii=r.random() < 0.5).encode(errors="surrogatepass") + b"\n"
    except ValueError:  # more digits than Python writes
        pass


def change_lines(r: random.Random, lines: "list[bytes]") -> None:
    """Lines are lost, twice there, elsewhere, or of another trace."""
    a, b = pick_line(r, lines), r.randrange(len(lines))
    kind = r.randrange(5)
    if kind == 0 and len(lines) > 1:
        del lines[a]
    elif kind == 1:
        lines.insert(b, lines[a])
    elif kind == 2:
        lines[a], lines[b] = lines[b], lines[a]
    elif kind == 3:
        lines.insert(b, r.choice(r.choice(TRACES).splitlines(keepends=True)))
    else:
        lines[a:a] = [lines[b]] * r.randrange(50)


def change_bytes(r: random.Random, data: bytearray) -> None:
    at = r.randrange(len(data) + 1)
    kind = r.randrange(5)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << r.randrange(8)
    elif kind == 1:
        data[at:at] = r.choice(RAW)
    elif kind == 2:
        del data[at:at + r.randrange(1, 40)]
    elif kind == 3:
        data[at:at + r.randrange(8)] = r.randbytes(r.randrange(8))
    else:
        del data[at:]  # truncated


WHOLE: "list[Callable[[random.Random, bytes], bytes]]" = [
    lambda r, d: b"", lambda r, d: b"\n", lambda r, d: r.randbytes(r.randrange(2000)), lambda r, d: d + d,
    lambda r, d: d.replace(b"\n", b"\r\n"), lambda r, d: d.replace(b"\n", b""), lambda r, d: b"\xef\xbb\xbf" + d,
    lambda r, d: d.decode(errors="replace").encode("utf-16"), lambda r, d: b"\0" * r.randrange(1, 5000) + d,
    lambda r, d: d + b"\0" * r.randrange(1, 5000), lambda r, d: b"[" * 100000, lambda r, d: b'{"e":' * 50000,
    lambda r, d: gzip.compress(d), lambda r, d: gzip.compress(d)[:r.randrange(1, 400)],
    lambda r, d: bytes(b ^ (r.random() < 0.01) for b in gzip.compress(d)), lambda r, d: gzip.compress(d) + b"junk",
    lambda r, d: gzip.compress(gzip.compress(d)), lambda r, d: b"x" * (3 << 20), lambda r, d: b"\x1f\x8b",
]


def damaged(r: random.Random) -> bytes:
    data = r.choice(TRACES)
    for _ in range(1 + r.randrange(4)):
        kind = r.random()
        if kind < 0.7:
            lines = data.splitlines(keepends=True) or [b"\n"]
            (change_value if kind < 0.5 else change_lines)(r, lines)
            data = b"".join(lines)
        else:
            changed = bytearray(data)
            change_bytes(r, changed)
            data = bytes(changed)
    return r.choice(WHOLE)(r, data) if r.random() < 0.05 else data


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(argv: "list[str]", encoding: str) -> "tuple[Optional[int], str, str]":
    """Exit status, standard output and error; None and the traceback if it fell over."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors) for errors in ("strict", "backslashreplace"))
    try:
        with limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(argv)
            out.flush()
    except BaseException:  # SystemExit and KeyboardInterrupt have no business here either
        return None, "", traceback.format_exc()
    err.flush()
    return status, *(f.buffer.getvalue().decode(encoding) for f in (out, err))  # type: ignore[attr-defined,return-value]


# Values that a line of a known form may hold in the place of a number, a name, an address, or behind them: right, wrong, or only odd.
PLACES = ["0", "1", "-1", "01", "1.0", "1e3", "9" * 19, "9" * 20, "9" * 5000, str((1 << 64) - 1), str(1 << 64), "true", "null", '"1"', " 1", "1 ", "",
          "\u0663", "[]", "[1]", "[-1]", "[1,2,8192]", "[1,2,]", "[true]", "[[1]]", '"cuda"', '"0x1"', '"0X1"', '"0x"', '"0xfG"', '"0xAbC"', '"x\\u0041"', '"\t"',
          '"\u00fc"', '"\udc80"', '"alloc"', '"end"', '"segment_free"', "NaN", "Infinity", "1.5", "0.0", "1" + "0" * 400 + ".5"]
ENDS = ["", '}"x":1', ",", " ", "}", ",}", ", }", "\r", "\t", "\0", "x", "}}", ',"t":1', ',"n":0', ',"e":"end"', ',"p":1', ',"x":{}', ',"x":{"t":1}', ',"x":"\u00fc"',
        ',"x":"\udcff"', ',"us":1.5', ',"us":-1', ',"us":1.5,"us":"x"', ',"b":"cuda","us":0.6', ',"b":3,"us":0.6', ',"b":"cuda","us":1e999', ',"b":"cuda"',
        ',"block":4194304', ',"block":-1', ',"block":' + "9" * 25, ',"f":[1,2,3]', ',"f":7', ',"f":[],"block":512', ',"why":"context"', ',"why":7', "," + "[" * 3000,
        ',"x":' + "[" * 500 + "]" * 500, ',"x":"' + "y" * 2000 + '"', "," + '"a' * 9, ',"f"', ',"f":']


def odd_lines(r: random.Random, count: int) -> bytes:
    """A trace of lines that look as if they were of a known form, and mostly are not quite."""
    lines = [TRACES[2].splitlines()[0]]
    for i in range(count):
        values = [str(i), f'"{r.choice(schema.BLOCKS + schema.SEGMENTS)}"', "7", "0", f'"{512 * i:#x}"', "512"]
        if r.random() < 0.5:
            values[r.randrange(6)] = r.choice(PLACES)
        keys = ["t", "e", "tid", "d", "p", "n"]
        if r.random() < 0.1:
            r.shuffle(keys)
        if r.random() < 0.05:
            keys[r.randrange(6)] = r.choice(["x", "t", "", "block"])
        text = ",".join(f'"{k}":{v}' for k, v in zip(keys, values)) + (r.choice(ENDS) if r.random() < 0.6 else "")
        lines.append((r.choice(["", "", "", "", " ", "\ufeff", "x"]) + "{" + text + r.choice(["}"] * 9 + [""])).encode(errors="surrogateescape"))
    if r.random() < 0.1:
        lines.insert(r.randrange(len(lines)), b'{"t":5,"e":"end","tid":1,"dropped":0}')
    return b"\n".join(lines) + r.choice([b"", b"\n", b"\n\n"])


def busy(r: random.Random) -> bytes:
    """Thousands of events of several threads, a little out of order: blocks that come again where others were, too early or too long
    now and then, in segments that come and go; a line is damaged, and the end is cut off, in some."""
    lines = [TRACES[2].splitlines()[0].decode()]
    live: "dict[int, int]" = {}
    for t in range(1, 3000):
        p, at, tid = 0x7f0000000000 + 512 * r.randrange(400), 1000 * t - r.randrange(3000) + 3000, r.randrange(3)
        start = p & ~0xffff
        if t % 100 == 1:
            e, backend = "alloc" if t % 300 else "free", r.choice(["cuda", "cuda", "nccl"])
            lines.append(f'{{"t":{at},"e":"segment_{e}","tid":{tid},"d":0,"p":"{start:#x}","n":65536,"b":"{backend}","us":1.5}}')
        elif p not in live or r.random() < 0.02:
            live[p] = r.randrange(1, 1600)
            more = r.choice(["", "", f',"block":{(live[p] + 511) // 512 * 512 + 512}']) + r.choice(["", f',"f":[{r.randrange(1, 4)},7]'])
            lines.append(f'{{"t":{at},"e":"alloc","tid":{tid},"d":0,"p":"{p:#x}","n":{live[p]}{more}}}')
        else:
            rest = f'"tid":{tid},"d":0,"p":"{p:#x}","n":{live.pop(p)}}}'
            lines += [f'{{"t":{at},"e":"free_requested",{rest}', f'{{"t":{at + 1},"e":"free_completed",{rest}']
    data = bytearray("\n".join(lines).encode() + b"\n")
    if r.random() < 0.5:
        change_bytes(r, data)
    return bytes(data[:r.randrange(len(data))] if r.random() < 0.3 else data)


def all_of(path: Path) -> "tuple[Any, ...]":
    """The entries that a Reader finds. As text: not-a-number is not equal to itself."""
    problems = reader.Problems()
    r = reader.Reader(str(path), problems)
    try:
        events = list(r.events())
    except reader.CannotRead as e:
        return (str(e),)
    return repr(events), problems.kept, problems.count, repr(r.header), r.lines, r.cut, r.ended, r.dropped


def not_json(constant: str) -> None:
    raise ValueError(constant)


class TraceFuzz(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="trace-fuzz-"))

    def tearDown(self) -> None:
        if not self._kept:
            for path in self.dir.iterdir():
                path.unlink()
            self.dir.rmdir()

    _kept = False

    def fails(self, argv: "list[str]", why: str) -> None:
        self._kept = True
        self.fail(f"cupool-trace {' '.join(argv)}: {why}")

    def test_the_originals_are_fine(self) -> None:
        """Else the damage below would be to what is damaged already."""
        for name in ("allocs.jsonl", "ipc.jsonl", "stacks.jsonl", "vmm.jsonl"):
            for command in ("check", "summary"):
                self.assertEqual(run([command, str(HERE / "traces" / name)], "ascii")[0], 0)

    def test_known_forms_are_read_as_json_is(self) -> None:
        """The quick way through a line and the parser of JSON find the same events and the same problems."""
        r = random.Random(SEED)
        known, none = reader.LINE, re.compile(r"()()()()()(.*)\n")
        path = self.dir / "t.jsonl"
        quick = 0
        for i in range(COUNT):
            content = busy(r) if i % 51 == 0 else damaged(r) if i % 2 else odd_lines(r, 60)
            path.write_bytes(content)
            argv = [("summary", "check", "to-csv", "merge")[i % 4], str(path)]
            found = all_of(path), run(argv, "utf-8")
            with unittest.mock.patch.object(reader, "LINE", none):
                if found != (all_of(path), run(argv, "utf-8")):
                    self.fails(argv, "other events, problems or output than by JSON alone")
            quick += sum(1 for line in content.splitlines(keepends=True) if known.fullmatch(line.decode("latin-1")) and line.startswith(b"{"))
        self.assertGreater(quick, 10 * COUNT)  # lines of a known form were among them

    def test_damaged_traces(self) -> None:
        r = random.Random(SEED)
        statuses = {0: 0, 1: 0, 2: 0}
        for i in range(COUNT):
            # Sometimes beside another file: ranks are then compared.
            paths = [self.dir / f"{k}.jsonl" for k in range(2 if i % 5 == 0 else 1)]
            for path in paths:
                path.write_bytes(damaged(r))
            command = ("summary", "check")[i % 2]
            argv = [command, *(["--json"] if i % 3 == 0 else []), *(["--complete"] if command == "check" and i % 7 == 0 else []),
                    *(str(p) for p in paths)]
            status, out, err = run(argv, ("utf-8", "latin-1", "ascii")[i % 3])
            if status not in (0, 1, 2):
                self.fails(argv, out + err)
            assert status is not None
            statuses[status] += 1
            if status and not (out + err).strip():
                self.fails(argv, f"exit status {status}, and not a word")
            if "--json" in argv:
                try:
                    json.loads(out, parse_constant=not_json)
                except ValueError as e:
                    self.fails(argv, f"no JSON: {e}")
        # All of them occur: the damage is neither too small nor too great to say anything.
        self.assertTrue(all(n >= COUNT // 50 for n in statuses.values()), statuses)
