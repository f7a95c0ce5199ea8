# SPDX-License-Identifier: Apache-2.0
"""Names of frames in cupool-trace, in this process: what symbolisers say taken apart, files that are no objects, symbolisers that fail;
and flame graphs, as text and as data.

Not here: real programs with real symbolisers; tests/e2e/test_symbols.py has these.
"""

import argparse
import contextlib
import io
import os
import random
import struct
import sys
import unittest
from pathlib import Path
from typing import Any, Iterator
from unittest import mock

from made_traces import BASE, MIB, Case, Event, ev, header

from cupool_trace import flame, symbols
from cupool_trace.frames import Frames, Place

ID = "00ff" * 10
EU = """\
0x0000000000000010
take(int) inlined at /a b/x.cc:19:7 in forward
/a b/y:z.h:8:3
forward(int)
/a b/x.cc:19:7
0x0000000000000020
main
??:0
0x0000000000000030
??
/a b/x.cc:7 (discriminator 3)
0x0000000000000040
??
??:0
0x0000000000000050
start
x.c:?
"""


def elf(notes: "list[tuple[bytes, int, bytes]]", wide: bool = True, order: str = "<", align: int = 4) -> bytes:
    """A file of the loader's, with one segment of notes."""
    data = b""
    for name, tag, content in notes:
        for piece in (struct.pack(order + "III", len(name), len(content), tag) + name, content):
            data += piece + bytes(-len(data + piece) % align)
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2]) + bytes(10)
    head = 64 if wide else 52
    size = 56 if wide else 32
    rest = (3, 62, 1, 0, head, 0, 0, head, size, 2, 0, 0, 0)
    load, note = (1, 5, 0, 0, 0, 0, 0, 0x1000), (4, 4, head + 2 * size, 0, 0, len(data), len(data), align)
    if not wide:  # the flags are further back
        load, note = (load[0], *load[2:7], load[1], load[7]), (note[0], *note[2:7], note[1], note[7])
    row = order + ("IIQQQQQQ" if wide else "IIIIIIII")
    return ident + struct.pack(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"), *rest) + struct.pack(row, *load) + struct.pack(row, *note) + data


class Symbols(Case):
    def file(self, name: str, content: bytes) -> str:
        path = Path(self.dir) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)

    def test_what_they_say(self) -> None:
        places = {0x10: [Place("take(int)", "/a b/y:z.h", 8), Place("forward(int)", "/a b/x.cc", 19)], 0x20: [Place("main", "", 0)],
                  0x30: [Place("?", "/a b/x.cc", 7)], 0x40: [], 0x50: [Place("start", "", 0)]}
        self.assertEqual(symbols.parse(EU, trusted=True), places)
        self.assertEqual(symbols.parse(EU, trusted=False), {**places, 0x20: [], 0x50: []})
        for odd in ("", "nonsense", "0x10", "0x10\nmain", "main\nx.c:1\n", "0x10\n\n\n"):
            self.assertEqual([p for known in symbols.parse(odd, True).values() for p in known if p.file], [], odd)

    def test_build_ids(self) -> None:
        gnu = (b"GNU\0", 3, bytes.fromhex(ID))
        for wide in (True, False):
            for order in "<>":
                for align in (4, 8):
                    path = self.file("object", elf([(b"GNU\0", 5, b"property"), (b"Go\0\0", 3, b"other"), gnu], wide, order, align))
                    self.assertEqual(symbols.build_id(path), ID)
        self.assertEqual(symbols.build_id(self.file("none", elf([(b"GNU\0", 1, b"abi")]))), "")

    def test_files_that_are_no_objects(self) -> None:
        whole = elf([(b"GNU\0", 3, bytes.fromhex(ID))])
        r = random.Random(1)
        for n in range(len(whole)):
            symbols.build_id(self.file("cut", whole[:n]))
            odd = bytearray(whole)
            odd[r.randrange(len(odd))] = r.randrange(256)
            symbols.build_id(self.file("odd", bytes(odd)))
        os.mkfifo(Path(self.dir) / "pipe")
        for path in (Path(self.dir) / "pipe", self.dir, "/nonexistent", "/dev/zero"):
            self.assertEqual(symbols.build_id(str(path)), "")

    def test_where_files_are_looked_for(self) -> None:
        debug = {name: self.file(name, b"x") for name in (f"a/.build-id/00/{ID[2:]}.debug", f"b/00/{ID[2:]}.debug", f"c/{ID}/debuginfo",
                                                          f"d/buildid/{ID}/debuginfo")}
        self.file(f"empty/{ID}/debuginfo", b"")
        folders = [f"{self.dir}/{name}" for name in ("none", "empty", "a", "b", "c", "d")]
        for name, path in debug.items():
            self.assertEqual(symbols.debug_file(ID, folders), path)
            os.unlink(path)
        self.assertIsNone(symbols.debug_file(ID, folders))
        for odd in ("", "../../etc", "/etc/passwd", ID + "/..", "0"):  # it comes from a trace
            self.assertIsNone(symbols.debug_file(odd, folders))
        with mock.patch.dict(os.environ, {"DEBUGINFOD_CACHE_PATH": "", "XDG_CACHE_HOME": "/x"}):
            self.assertEqual(symbols.debug_folders(["/d"]), ["/d", "/x/debuginfod_client", "/usr/lib/debug"])

    def test_which_file_it_was(self) -> None:
        path = self.file("object", elf([(b"GNU\0", 3, bytes.fromhex(ID))]))
        os.utime(path, ns=(1000, 1000))
        for o, began, found, why in ((symbols.Object(path, ID), 1, path, ""), (symbols.Object(path, "11" * 20), 1, None, "another build id"),
                                     (symbols.Object(path, ""), 1000, path, ""), (symbols.Object(path, ""), 999, None, "newer than the trace"),
                                     (symbols.Object(path, ""), None, path, ""), (symbols.Object("object", ID), 1, None, "not in the trace"),
                                     (symbols.Object("", ""), 1, None, "not in the trace"), (symbols.Object("/a\0b", ID), 1, None, "not in the trace"),
                                     (symbols.Object(path + "x", ID), 1, None, "not found at"), (symbols.Object(str(self.dir), ""), 1, None, "no file")):
            got, said = symbols.file_of(o, [], began)
            self.assertEqual(got, found, o)
            self.assertIn(why, said)

    def frames(self, path: str, id: str = ID, p: int = 0x111) -> Frames:
        frames = Frames()
        frames.object(ev(1, "object", o=7, p=0x100, bias="0x100", id=id, path=path))
        for number, at in ((3, p), (4, p + 0x10)):
            frames.frame(ev(2, "frame", f=number, p=at, o=7, at=f"object+{at - 0x100:#x}"))
        frames.frame(ev(2, "frame", f=5, p=9, at="old+0x9"))
        frames.frame(ev(2, "frame", f=6, p=9, o=8, at="lost+0x9"))
        return frames

    def tool(self, script: str) -> None:
        """Let a program of this text be the only symboliser."""
        path = Path(self.file("bin/eu-addr2line", f"#!{sys.executable}\n{script}".encode()))
        path.chmod(0o755)
        patched = mock.patch.dict(os.environ, {"PATH": str(path.parent), "HOME": str(self.dir), "DEBUGINFOD_URLS": "http://there"})
        patched.start()
        self.addCleanup(patched.stop)

    def named(self, *every: Frames) -> str:
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            symbols.name_frames(list(every), argparse.Namespace(debug_dir=[], no_symbols=False), 10**18)
        return err.getvalue()

    def test_frames_of_many_traces(self) -> None:
        """Each object is asked about once, without the network, and the address is that of the call, not of what follows it."""
        path = self.file("object", elf([(b"GNU\0", 3, bytes.fromhex(ID))]))
        log = Path(self.dir) / "log"
        self.tool(f"import os, sys\nasked = sys.stdin.read()\nopen({str(log)!r}, 'a').write(repr((sys.argv[1:], asked, os.environ['DEBUGINFOD_URLS'])))\n"
                  "for a in asked.split(): print(f'{a}\\nf{a}\\n/src/x.c:{int(a, 16)}')")
        every = [self.frames(path), self.frames(path), self.frames(path, p=0x131)]
        self.assertEqual(self.named(*every), "")
        self.assertEqual(log.read_text(), repr((["-a", "-f", "-i", "-C", "-e", path], "0x10\n0x20\n0x30\n0x40\n", "")))
        self.assertEqual([every[i].names(n) for i, n in ((0, 3), (1, 4), (2, 3), (0, 5), (0, 6), (0, 9))],
                         [("f0x10 (x.c:16)",), ("f0x20 (x.c:32)",), ("f0x30 (x.c:48)",), ("old+0x9",), ("lost+0x9",), ("unknown",)])

    def test_one_that_fails(self) -> None:
        path = self.file("object", elf([(b"GNU\0", 3, bytes.fromhex(ID))]))
        for script, said in (("raise SystemExit(1)", "eu-addr2line cannot read it"), ("import time\ntime.sleep(60)", "took more than 1 s"),
                             ("print('?' * 99)", "eu-addr2line cannot read it"), ("import sys\nsys.stdout.buffer.write(b'\\xff\\n')", "cannot read it")):
            self.tool(script)
            frames = self.frames(path)
            with mock.patch.object(symbols, "PATIENCE", 1):
                self.assertRegex(self.named(frames), rf"^cupool-trace: frames stay object and offset \(object: .*{said}\)\n$")
            self.assertEqual(frames.names(3), ("object+0x11",))

    def test_many_are_missing(self) -> None:
        """One line, whose length does not grow with them."""
        self.tool("")
        said = self.named(*(self.frames(f"/nonexistent/{n:02}") for n in range(20)))
        self.assertEqual(said.count("\n"), 1)
        self.assertIn("(00: not found at /nonexistent/00; 01: ", said)
        self.assertIn("; and 16 more)", said)


STACKS: "list[tuple[list[str], int]]" = [(["take", "layer", "main"], 60), (["take", "main"], 30), (["take", "layer", "main"], 9), (["tiny", "main"], 1), (["gone"], 0)]


def callers(stacks: "list[tuple[list[str], int]]" = STACKS) -> "Iterator[Event]":
    return ({"stack": tuple(stack), "live_at_peak": n * MIB} for stack, n in stacks)


class Flame(Case):
    def test_text(self) -> None:
        self.assertEqual(list(flame.lines(flame.tree(callers()))), [
            "100.0%   100.0 MiB  ####################  main",
            " 69.0%    69.0 MiB  ##############          layer",
            " 69.0%    69.0 MiB  ##############            take",
            " 30.0%    30.0 MiB  ######                  take",
            "  1.0%     1.0 MiB                          tiny"])
        few = list(flame.lines(flame.tree(callers([*STACKS, *(([f"f{i}", "main"], 1) for i in range(20)), (["big", "main"], 1000)]))))
        self.assertEqual(few[-1], "  1.9%    21.0 MiB                          21 smaller ones")
        self.assertEqual(len(few), 6)

    def test_data(self) -> None:
        """Every frame comes after the one that called it, and no frame has less than what it called."""
        def check(got: Event, whole: int) -> None:
            self.assertEqual(got["bytes"][0], whole)
            inner = [0] * len(got["bytes"])
            for i, parent in enumerate(got["parent"]):
                self.assertLess(parent, i)
                if i:
                    inner[parent] += got["bytes"][i]
            self.assertTrue(all(a <= b for a, b in zip(inner, got["bytes"])))

        got = flame.data(flame.tree(callers()), 100, 100)
        check(got, 100 * MIB)
        self.assertEqual([got["names"][n] for n in got["name"]], ["all", "main", "layer", "take", "take", "tiny"])
        r = random.Random(1)
        every = [([f"f{r.randrange(5)}" for _ in range(r.randrange(1, 8))], r.randrange(1, 100)) for _ in range(300)]
        for most in (1, 2, 50, 100000):
            got = flame.data(flame.tree(callers(every)), most, 1)
            check(got, sum(n for _, n in every) * MIB)
            self.assertLessEqual(len(got["bytes"]), most)
            self.assertLessEqual(max(map(len, got["names"])), 1)

    def test_summary(self) -> None:
        """With -v, from the stacks of a trace."""
        frames: "list[Any]" = [{"t": 1, "e": "frame", "tid": 42, "f": f, "p": hex(f), "at": f"app+{f:#x}"} for f in (1, 2)]
        path = self.write([header(), *frames, ev(2, "segment_alloc", p=BASE, n=64 * MIB), ev(3, "alloc", p=BASE, n=3 * MIB, f=[1, 2]),
                           ev(4, "alloc", p=BASE + 8 * MIB, n=MIB, f=[2]), ev(9, "end", dropped=0)])
        said = ("\nrank 0 device 0: 4.0 MiB live at the peak, by the calls that led there, the outermost first\n"
                "100.0%     4.0 MiB  ####################  app+0x2\n 75.0%     3.0 MiB  ###############         app+0x1\n")
        self.assertIn(said, self.run_tool("summary", "-v", path).stdout)
        self.assertNotIn("by the calls", self.run_tool("summary", path).stdout)
