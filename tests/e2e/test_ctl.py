# SPDX-License-Identifier: Apache-2.0
"""cupool-ctl and CUPOOL_CTL: what it says of running processes, what it has them do, and those that refuse, are stopped, dead, lie,
or talk nonsense to the library.
"""

import ast
import functools
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any
from unittest import mock

from e2e import BIN, LIB, MIB, SOURCE, TIMEOUT, Case, Word, stop, tool
from ipc_process import Process

CTL = SOURCE / "scripts" / "cupool-ctl"
REQUEST, REPLY, MAGIC = struct.Struct("=IHHiIQII"), struct.Struct("=IHHiI"), 0x74637063


@functools.lru_cache(None)
def loaded() -> Any:
    """cupool-ctl as a module."""
    spec = spec_from_loader("cupool_ctl", SourceFileLoader("cupool_ctl", str(CTL)))
    assert spec and spec.loader
    ctl = module_from_spec(spec)
    with mock.patch.object(sys, "dont_write_bytecode", True):
        spec.loader.exec_module(ctl)
    return ctl


class Base(Case):
    def setUp(self) -> None:
        super().setUp()
        self.dir = self.tmp / "ctl"

    def start(self, *words: str, **more: Word) -> "subprocess.Popen[str]":
        """A program that says when it waits."""
        env = self.env(**{"CUPOOL_CTL": self.dir, "CUPOOL_BACKEND": "vmm", "CUPOOL_TRACE_FILE": "off", **more})
        child = subprocess.Popen([str(BIN / "pause_app"), *words, "mark:waits", "wait", "mark:on", "check"], env=env, cwd=self.folder(),
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        assert child.stdout
        while child.stdout.readline().strip() not in ("waits", ""):
            pass
        return child

    def end(self, child: "subprocess.Popen[str]") -> "list[str]":
        """Let it go on to its end; what it has said since."""
        out, _ = child.communicate("\n", timeout=TIMEOUT)
        self.assertEqual(child.returncode, 0)
        return out.split("\n")[:-1]

    def ctl(self, *words: Word, rc: int = 0) -> "subprocess.CompletedProcess[str]":
        env = {**self.env(None), "CUPOOL_CTL": str(self.dir)}
        done = tool.run(*words, env=env, seconds=TIMEOUT, path=CTL, tool=loaded().main)
        self.assertEqual(done.returncode, rc, done.stdout + done.stderr)
        return done

    def devices(self, *words: str) -> "dict[int, Any]":
        """By process, its first device."""
        return {p["pid"]: p["devices"][0] for p in json.loads(self.ctl("list", "--json", *words).stdout)}


class Commands(Base):
    def test_list_and_stats(self) -> None:
        a = self.start("alloc:600", "alloc:3000000", CUPOOL_RANK="4")
        b = self.start("device:1", "alloc:600")
        self.assertEqual({pid: (d["device"], d["held"]) for pid, d in self.devices().items()}, {a.pid: (0, 6 * MIB), b.pid: (1, 2 * MIB)})
        table = self.ctl("list").stdout.splitlines()
        self.assertEqual(table[0].split()[:3], ["PID", "RANK", "DEVICE"])
        self.assertEqual({tuple(row.split()[:3]) for row in table[1:]}, {(str(a.pid), "4", "0"), (str(b.pid), "-", "1")})
        self.assertIn("pause_app", table[1])
        stats = json.loads(self.ctl("stats", "--json", "--rank=4").stdout)
        self.assertEqual([(p["pid"], p["devices"][0]["allocs"], p["devices"][0]["bypassed"]) for p in stats], [(a.pid, 2, 0)])
        counters = re.findall(r"^COUNTER\((\w+),", (SOURCE / "pool" / "counters.def").read_text(), re.M)
        self.assertEqual(set(stats[0]["devices"][0]), {"device", "bypassed", *counters})
        self.assertRegex(self.ctl("stats", f"--pid={a.pid}").stdout, r"allocs +2\n")
        self.assertEqual(json.loads(self.ctl("list", "--json", f"--pid={a.pid}", "--device=0").stdout)[0]["pid"], a.pid)
        self.assertIn("does not use this device", self.ctl("list", f"--pid={a.pid}", "--device=1", rc=1).stderr)
        for to, why, word in (("1>/dev/full", "No space left on device", "list"), ("1>&-", "Bad file descriptor", "list"),
                              ("1>&-", "Bad file descriptor", "--version")):
            done = subprocess.run(["sh", "-c", f"exec {to}; exec \"$@\"", "sh", sys.executable, str(CTL), f"--dir={self.dir}", word],
                                  env=self.env(None), stderr=subprocess.PIPE, text=True, timeout=TIMEOUT)
            self.assertEqual((done.returncode, done.stderr), (1, f"cupool-ctl: standard output: {why}\n"))

    def test_trim_and_limit(self) -> None:
        a = self.start("alloc:600", "alloc:3000000", "free:1", "alloc:3000000", "free:2", CUPOOL_DECAY="off")
        self.assertEqual(self.devices()[a.pid]["held"], 6 * MIB)
        self.assertIn("gave back 4.0 MiB", self.ctl("trim", f"--pid={a.pid}").stdout)
        self.assertEqual(self.devices()[a.pid]["held"], 2 * MIB)
        b = self.start("alloc:600", "mark:waits", "wait", "alloc:30000000", "stats")
        self.ctl("limit", "18446744073709551615", "--all")
        self.ctl("limit", "10M", "--all")
        out, _ = b.communicate("\n\n", timeout=TIMEOUT)
        self.assertIn("stats 2097152 1024 0", out)

    def test_pause_and_resume(self) -> None:
        a, b = self.start("alloc:600", "alloc:3000000"), self.start("alloc:5000")
        self.assertEqual(self.ctl("pause", f"--pid={a.pid}").stdout, f"process {a.pid}: paused 6.0 MiB\n")
        self.assertEqual({pid: d["is_paused"] for pid, d in self.devices().items()}, {a.pid: True, b.pid: False})
        self.assertEqual(self.devices()[a.pid]["paused"], 6 * MIB)
        self.assertIn("it is paused", self.ctl("pause", "--all").stderr)
        self.assertEqual({d["is_paused"] for d in self.devices().values()}, {True})
        self.assertEqual(set(self.ctl("resume", "--all").stdout.split("\n")[:-1]),
                         {f"process {a.pid}: resumed 6.0 MiB", f"process {b.pid}: resumed 2.0 MiB"})
        self.assertEqual({d["is_paused"] for d in self.devices().values()}, {False})
        self.assertEqual((self.end(a), self.end(b)), (["on", "check 0 2"], ["on", "check 0 1"]))

    def test_one_device_is_paused_already(self) -> None:
        """The other one is paused, and is resumed if nobody hears of it; the first one stays as it was."""
        a = self.start("alloc:600", "device:1", "alloc:3000000")
        self.assertEqual(self.ctl("pause", "--all", "--device=0").stdout, f"process {a.pid}: paused 2.0 MiB\n")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf:
            deaf.connect(str(self.dir / f"cupool-{a.pid}.sock"))
            deaf.shutdown(socket.SHUT_RD)
            deaf.send(REQUEST.pack(MAGIC, 1, 6, -1, 1, 0, TIMEOUT * 1000, 0))
            self.assertEqual(self.paused(), [True, False])
        done = self.ctl("pause", "--all")
        self.assertEqual((done.stdout, done.stderr, self.paused()), (f"process {a.pid}: paused 4.0 MiB\n", "", [True, True]))
        self.assertIn("it is paused", self.ctl("pause", "--all").stderr)
        self.assertEqual(self.ctl("resume", "--all").stdout, f"process {a.pid}: resumed 6.0 MiB\n")
        self.assertEqual(self.end(a), ["on", "check 0 2"])

    def paused(self) -> "list[bool]":
        """Of the only process, each device."""
        return [d["is_paused"] for d in json.loads(self.ctl("list", "--json").stdout)[0]["devices"]]

    def test_pause_without_contents(self) -> None:
        a = self.start("alloc:600")
        self.ctl("pause", "--discard", "--all")
        self.ctl("resume", "--all")
        self.assertEqual(self.end(a), ["on", "check 1 1"])

    def test_usage(self) -> None:
        for words in ((), ("pause",), ("limit", "--all"), ("trim", "5", "--all"), ("list", "--pid=1", "--all"), ("sing",), ("limit", "x", "--all"),
                      ("limit", "16777216T", "--all"), ("limit", "18446744073709551616", "--all"), ("limit", "0.5", "--all"),
                      ("limit", "9" * 400 + ".5", "--all"), ("limit", "0." + "0" * 400 + "1", "--all"), ("list", "--device=-2"), ("list", "--device=9999999999")):
            done = self.ctl(*words, rc=2)
            self.assertNotIn("Traceback", done.stderr)
        self.assertIn("Exit status: 0 done", self.ctl("--help").stdout)
        old = ast.parse(CTL.read_text(), feature_version=(3, 6))
        self.assertNotIn("__future__", [n.module for n in old.body if isinstance(n, ast.ImportFrom)])
        self.assertRegex(self.ctl("--version").stdout, r"^cupool-ctl \d+\.\d+\.\d+\n$")
        self.assertIn("No such file", self.ctl("list", rc=1).stderr)
        self.dir.mkdir(0o700)
        self.assertRegex(self.ctl("list", rc=1).stderr, r"^cupool-ctl: /.*: no process answers there\n$")
        self.assertIn("there is no such process", self.ctl("pause", "--pid=1", rc=1).stderr)


class Others(Base):
    """Processes that do not do as they are told."""

    def nobody_is_paused(self) -> None:
        self.assertEqual({d["is_paused"] for d in self.devices().values()}, {False})

    def test_one_refuses(self) -> None:
        """And so none is paused: the one that could has not been touched."""
        for words, more, why in ((["alloc:600", "begin"], {}, "a stream captures"), (["alloc:600"], {"CUPOOL_BACKEND": "cuda"}, "virtual memory calls")):
            with self.subTest(why):
                willing, other = self.start("alloc:600"), self.start(*words, **more)
                done = self.ctl("pause", "--all", rc=1)
                self.assertRegex(done.stderr, rf"process {other.pid} does not pause: device 0: .*{re.escape(why)}")
                self.assertIn("none is paused", done.stderr)
                self.nobody_is_paused()
                willing.kill()
                other.kill()
                willing.wait()
                other.wait()

    def test_one_fails_in_the_second_phase(self) -> None:
        """Work does not end: the one that had paused is resumed."""
        willing, other = self.start("alloc:600"), self.start("alloc:600", "busy:60000")
        done = self.ctl("pause", "--all", "--wait=0.3", rc=1)
        self.assertIn(f"process {other.pid} does not pause: device 0: work on the device has not ended in time", done.stderr)
        self.assertIn(f"process {willing.pid}: resumed 2.0 MiB", done.stdout)
        self.nobody_is_paused()
        self.assertEqual(self.end(willing), ["on", "check 0 1"])

    def test_one_is_stopped(self) -> None:
        willing, other = self.start("alloc:600"), self.start("alloc:600")
        stop(other.pid)
        for command in ("list", "stats", "pause", "resume", "trim"):
            done = self.ctl(command, "--all", "--timeout=0.3", "--slow=0.3", rc=1)
            self.assertIn(f"process {other.pid} does not answer; perhaps it is stopped", done.stderr)
        for _ in range(12):  # more than there are places in its queue
            self.ctl("list", f"--pid={other.pid}", "--timeout=0", rc=1)
        other.send_signal(signal.SIGCONT)
        self.nobody_is_paused()
        self.assertEqual((self.end(willing), self.end(other)), (["on", "check 0 1"], ["on", "check 0 1"]))

    def test_nobody_waits_for_it(self) -> None:
        """Where cupool-ctl has gone before a process came to its request, or before it had paused, it is not paused: nobody would resume it."""
        stopped, deaf = self.start("alloc:600"), self.start("alloc:600")
        stop(stopped.pid)
        for pid, flags in ((stopped.pid, 2), (deaf.pid, 1)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect(str(self.dir / f"cupool-{pid}.sock"))
                if pid == deaf.pid:
                    peer.shutdown(socket.SHUT_RD)  # it has not gone, and its answer cannot be delivered
                peer.send(REQUEST.pack(MAGIC, 1, 6, -1, flags, 0, TIMEOUT * 1000, 0))
                if pid == deaf.pid:
                    self.devices(f"--pid={pid}")  # comes behind it
        stopped.send_signal(signal.SIGCONT)
        self.nobody_is_paused()
        self.assertEqual((self.end(stopped), self.end(deaf)), (["on", "check 0 1"], ["on", "check 0 1"]))

    def test_it_is_interrupted(self) -> None:
        """In the second phase, by Ctrl-C: nobody stays paused."""
        idle, busy = self.start("alloc:600"), self.start("alloc:3000000", "busy:60000")
        tool = subprocess.Popen([sys.executable, str(CTL), "pause", "--all", "--wait=60", f"--dir={self.dir}"], env=self.env(None),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.wait_for(lambda: self.devices(f"--pid={idle.pid}")[idle.pid]["is_paused"], "pause")
        tool.send_signal(signal.SIGINT)
        self.wait_for(lambda: not self.devices(f"--pid={idle.pid}")[idle.pid]["is_paused"], "resume")
        busy.kill()
        out, err = tool.communicate(timeout=TIMEOUT)
        self.assertEqual((tool.returncode, out), (130, f"process {idle.pid}: resumed 2.0 MiB\n"), err)
        self.assertIn("interrupted", err)
        self.assertEqual(self.end(idle), ["on", "check 0 1"])

    def test_one_is_dead(self) -> None:
        """Its socket is still there, and cupool-ctl removes it."""
        living, dead = self.start("alloc:600"), self.start("alloc:600")
        dead.kill()
        dead.wait()
        self.assertEqual(len(list(self.dir.iterdir())), 2)
        self.ctl("pause", "--all")
        self.assertEqual([p.name for p in self.dir.iterdir()], [f"cupool-{living.pid}.sock"])
        self.assertIn("there is no such process", self.ctl("pause", f"--pid={dead.pid}", rc=1).stderr)
        self.ctl("resume", "--all")
        self.end(living)
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_one_begins(self) -> None:
        """A socket that does not listen yet is not taken for one that is left over."""
        look = f"env -u LD_PRELOAD {sys.executable} {CTL} list --dir={self.dir} >/dev/null 2>&1; test $? -le 1"
        a = self.start("alloc:600", LD_PRELOAD=f"{BIN}/libbefore_listen.so:{LIB}", BEFORE_LISTEN=look, CUPOOL_NEIGHBOURS="0")
        self.assertEqual(list(self.devices()), [a.pid])
        self.assertEqual(self.end(a), ["on", "check 0 1"])
        self.assertEqual(list(self.dir.iterdir()), [])

    def liar(self, answer: bytes) -> str:
        """The output of cupool-ctl for a process that answers so."""
        self.dir.mkdir(0o700, exist_ok=True)
        path = self.dir / "cupool-77777777.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(str(path))
            server.listen(1)
            tool = subprocess.Popen([sys.executable, str(CTL), "list", "--timeout=5", f"--dir={self.dir}"], env=self.env(None),
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            peer, _ = server.accept()
            with peer:
                self.assertEqual(len(peer.recv(4096)), REQUEST.size)
                if answer:
                    peer.send(answer)
            out, err = tool.communicate(timeout=TIMEOUT)
            self.assertEqual(tool.returncode, 1)
            path.unlink()
            return out + err

    def test_one_lies(self) -> None:
        def reply(text: bytes, rc: int = 0, magic: int = MAGIC, version: int = 1, size: int = -1) -> bytes:
            return REPLY.pack(magic, version, 0, rc, size if size >= 0 else len(text)) + text

        for answer in (reply(b"{}", magic=1), reply(b"{}", version=9), reply(b"{}", size=99), reply(b"[]"), reply(b"{"), reply(b'{"pid":1}'),
                       reply(b"{}", rc=5), b"x", reply(b"x" * 40000), reply(b"[" * 30000)):
            self.assertIn("process 77777777 answers what cannot be understood", self.liar(answer))
        self.assertIn("has dropped the request", self.liar(b""))
        self.assertIn("?[2J", self.liar(reply(b"\x1b[2J", rc=-16)))

    def test_an_answer_at_the_last_moment(self) -> None:
        """One that comes while cupool-ctl gives up counts: the process has paused."""
        ctl = loaded()
        for data in (REPLY.pack(MAGIC, 1, 0, 0, 2) + b"{}", b""):
            call, (ours, peer) = ctl.Call.__new__(ctl.Call), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            call.pid, call.socket = 1, ours

            def late(*_: object, data: bytes = data, peer: socket.socket = peer) -> "tuple[Any, Any, Any]":
                if data:
                    peer.send(data)
                return [], [], []

            with peer, mock.patch.object(ctl.select, "select", late):
                if data:
                    self.assertEqual(call.answer(0.0), {})
                else:
                    self.assertRaisesRegex(ctl.Failed, "does not answer", call.answer, 0.0)


class Library(Base):
    """The library's side of the socket."""

    def connect(self, peer: socket.socket, pid: int) -> None:
        while True:
            try:  # a queue that is full is empty in a moment
                peer.connect(str(self.dir / f"cupool-{pid}.sock"))
                return
            except BlockingIOError:
                time.sleep(0.001)

    def talk(self, pid: int, data: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(TIMEOUT)
            self.connect(peer, pid)
            try:
                peer.send(data)
                return peer.recv(1 << 16)
            except (ConnectionResetError, BrokenPipeError):
                return b""

    def test_only_what_is_right_is_answered(self) -> None:
        a = self.start("alloc:600")
        good = REQUEST.pack(MAGIC, 1, 1, -1, 0, 0, 0, 0)
        self.assertEqual(REPLY.unpack_from(self.talk(a.pid, good))[:4], (MAGIC, 1, 0, 0))
        for bad in (good[:-1], good + b"\0", b"", REQUEST.pack(MAGIC + 1, 1, 1, -1, 0, 0, 0, 0), REQUEST.pack(MAGIC, 2, 1, -1, 0, 0, 0, 0), good * 9):
            if bad:
                self.assertEqual(self.talk(a.pid, bad), b"", bad)
        for command, flags, device, rc in ((0, 0, -1, -22), (8, 0, -1, -22), (65535, 0, -1, -22), (6, 0, -1, -22), (6, 3, -1, -22), (5, 7, -1, -22),
                                           (1, 0, 64, -19), (1, 0, 1, -19), (1, 0, 2147483647, -19), (1, 0, -2147483648, 0)):
            self.assertEqual(REPLY.unpack_from(self.talk(a.pid, REQUEST.pack(MAGIC, 1, command, device, flags, 0, 0, 0)))[3], rc, (command, flags, device))
        self.assertEqual(self.end(a), ["on", "check 0 1"])

    def test_nonsense_at_random(self) -> None:
        """Messages that begin right and go on wrong, and peers that say nothing: it goes on, and does nothing that it was not told."""
        a = self.start("alloc:600", "alloc:3000000")
        rng = random.Random(5)
        silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(20)]
        for peer in silent:
            self.addCleanup(peer.close)
            self.connect(peer, a.pid)
        for i in range(3000):
            message = bytearray(REQUEST.pack(MAGIC, 1, rng.choice((1, 2, 3, 5, 9)), rng.choice((-1, 0, 1, 63, 64, 1 << 30)), rng.getrandbits(2),
                                             rng.getrandbits(64), rng.getrandbits(8), 0))
            if rng.random() < 0.5:
                message[rng.randrange(8)] ^= 1 << rng.randrange(8)
            if message[6] in (4, 6):  # limit and pause are commands that it would obey
                message[6] = 1
            self.talk(a.pid, bytes(message[:rng.choice((len(message), len(message), rng.randrange(1, 33))) if i % 7 else len(message)]))
        for peer in silent:
            peer.close()
        self.assertEqual(self.devices()[a.pid]["is_paused"], False)
        self.assertEqual(self.end(a), ["on", "check 0 2"])

    def test_the_folder(self) -> None:
        """It is made, and has to be this user's alone."""
        a = self.start("alloc:600")
        self.assertEqual(self.dir.stat().st_mode & 0o777, 0o700)
        self.assertEqual(self.end(a), ["on", "check 0 1"])
        self.assertEqual(list(self.dir.iterdir()), [])
        wide, file, link = self.folder(), self.tmp / "file", self.tmp / "link"
        wide.chmod(0o755)
        file.write_text("")
        link.symlink_to(self.dir)
        for place, why in ((wide, "mode has to be 0700"), (file, "it is no folder"), (link, "it is no folder"),
                           (self.tmp / "no" / "such", "No such file"), (self.tmp / ("x" * 120), "too long")):
            done = self.go(BIN / "pause_app", "alloc:600", "check", CUPOOL_CTL=place, CUPOOL_TRACE_FILE="off")
            self.assertEqual((len(done.warnings), done.out), (1, "check 0 1\n"), done.err)
            self.assertIn(why, done.warnings[0])
        self.assertIn("yours alone", self.mode_755())

    def mode_755(self) -> str:
        self.dir.chmod(0o755)
        return self.ctl("list", rc=1).stderr

    def test_nothing_without_the_setting(self) -> None:
        for value in (None, "off", ""):
            done = self.go(BIN / "pause_app", "alloc:600", CUPOOL_CTL=value, CUPOOL_TRACE_FILE="off")
            self.assertEqual((done.files, done.err), ([], ""))

    def test_before_the_first_request(self) -> None:
        """Nothing is opened."""
        child = self.start()
        self.assertFalse(self.dir.exists())
        child.kill()

    def test_without_neighbours(self) -> None:
        """The background thread has this socket alone to wait at."""
        a = self.start("alloc:600", CUPOOL_NEIGHBOURS="0")
        for _ in range(3):
            self.ctl("list")
        self.assertEqual(self.end(a), ["on", "check 0 1"])

    def test_no_descriptor_is_left(self) -> None:
        """A connection that cannot be taken keeps nobody busy, and is taken later."""
        a = self.start("alloc:600")
        before = resource.prlimit(a.pid, resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(TIMEOUT)
            peer.connect(str(self.dir / f"cupool-{a.pid}.sock"))
            peer.send(REQUEST.pack(MAGIC, 1, 1, -1, 0, 0, 0, 0))
            used = self.ticks(a.pid)
            time.sleep(1)
            self.assertLess(self.ticks(a.pid) - used, 10)
            resource.prlimit(a.pid, resource.RLIMIT_NOFILE, before)
            self.assertEqual(REPLY.unpack_from(peer.recv(1 << 16))[3], 0)
        self.assertEqual(self.end(a), ["on", "check 0 1"])

    def ticks(self, pid: int) -> int:
        """Of the processor, that the process has used."""
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))

    def test_the_program_closes_one_of_our_descriptors(self) -> None:
        """Whichever, it is no error, and a signal that wakes the background thread ends nobody."""
        for fd in range(200, 205):
            a = Process(self, CUPOOL_CTL=str(self.dir), CUPOOL_STATS="signal:USR1")
            a.alloc(600)
            self.assertEqual(a(f"closefrom {fd} {fd}"), 0)
            a.child.send_signal(signal.SIGUSR1)
            self.assertGreater(a("fds"), 3)
            self.assertEqual(a.end(), 0)

    def test_at_exit(self) -> None:
        """A request that comes beside the end is answered or dropped, and the process ends."""
        for _ in range(20):
            a = self.start("alloc:600")
            tool = subprocess.Popen([sys.executable, str(CTL), "pause", "--all", f"--dir={self.dir}"], env=self.env(None),
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            time.sleep(random.random() * 0.1)
            a.send_signal(signal.SIGTERM)
            self.assertEqual(a.wait(TIMEOUT), -signal.SIGTERM)
            tool.communicate(timeout=TIMEOUT)
