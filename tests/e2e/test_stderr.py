# SPDX-License-Identifier: Apache-2.0
"""The library's output on stderr must not end the program, hold it up, or land in a file of the program's own. Each time the
program says something of the kind natively it would not: a warning, a report of refused memory, a table.
"""

import os
import signal
import subprocess
import unittest
from pathlib import Path
from typing import IO

from e2e import BIN, MIB, TIMEOUT, Case, full_pipe, tool

REFUSED = f"alloc:{100 * MIB}"
# A log at the limit; the simulated GPU's memory is a file as well, and below it.
FULL = 512 * MIB
LIMIT = f"fsize:{FULL}"
SAYS = ({"CUPOOL_FREE": "bogus"}, {"CUPOOL_STATS": "exit"}, {"CUPOOL_STATS": "signal:USR2"}, {})


class Stderr(Case):
    def start(self, *words: str, stderr: int, cwd: "Path | None" = None, **env: str) -> "subprocess.Popen[str]":
        return subprocess.Popen([BIN / "report_shared", *words], env=self.env(SIMGPU_MEMORY="64M", **env), cwd=cwd or self.folder(),
                                stdout=subprocess.PIPE, stderr=stderr, text=True)

    def fine(self, child: "subprocess.Popen[str]", out: str) -> None:
        try:
            said, _ = child.communicate(timeout=TIMEOUT)
        finally:
            child.kill()
            child.wait()
        self.assertEqual((child.returncode, said), (0, out))

    def words(self, env: "dict[str, str]") -> "tuple[str, ...]":
        return ("alloc:4096", REFUSED, *((f"raise:{int(signal.SIGUSR2)}", "sleep:100") if "signal" in str(env) else ()), "last")

    def test_a_pipe_without_a_reader(self) -> None:
        for env in SAYS:
            with self.subTest(**env):
                read, write = os.pipe()
                os.close(read)
                child = self.start(*self.words(env), stderr=write, **env)
                os.close(write)
                self.fine(child, "alloc 2\nlast 2 2 0\n")

    def test_a_socket_without_a_peer(self) -> None:
        import socket
        ours, theirs = socket.socketpair()
        ours.close()
        child = self.start("alloc:4096", REFUSED, stderr=theirs.fileno())
        theirs.close()
        self.fine(child, "alloc 2\n")

    def full(self) -> "IO[str]":
        log = open(self.tmp / "log", "a+")
        log.truncate(FULL)
        return log

    def test_the_file_size_limit(self) -> None:
        for env in SAYS:
            with self.subTest(**env), self.full() as log:
                child = self.start(LIMIT, *self.words(env), stderr=log.fileno(), **env)
                self.fine(child, "alloc 2\nlast 2 2 0\n")
                self.assertEqual(os.fstat(log.fileno()).st_size, FULL)

    def test_a_signal_of_the_programs_stays_pending(self) -> None:
        """And one of ours does not stay: SIGXFSZ, whatever SIGPIPE is."""
        read, write = os.pipe()
        os.close(read)
        child = self.start("sigpipe", REFUSED, f"pending:{int(signal.SIGPIPE)}", f"mask:{int(signal.SIGXFSZ)}", stderr=write)
        os.close(write)
        self.fine(child, "alloc 2\npending 1\n")
        with self.full() as log:
            child = self.start("sigpipe", f"mask:{int(signal.SIGXFSZ)}", LIMIT, REFUSED, f"pending:{int(signal.SIGXFSZ)}",
                               f"pending:{int(signal.SIGPIPE)}", stderr=log.fileno())
            self.fine(child, "alloc 2\npending 0\npending 1\n")

    def test_a_terminal_that_stops_those_behind(self) -> None:
        """A job in the background of a terminal that lets none of these write."""
        import fcntl
        import termios
        ours, theirs = tool.terminal()
        child = subprocess.Popen(["sh", "-mc", 'stty tostop && { "$@" & } && wait $!', "sh", BIN / "report_shared", "alloc:4096", REFUSED],
                                 env=self.env(SIMGPU_MEMORY="64M"), cwd=self.folder(), stdin=theirs, stdout=subprocess.PIPE, stderr=theirs,
                                 start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), text=True)
        os.close(theirs)
        self.fine(child, "alloc 2\n")
        self.assertIn(b"out of memory", os.read(ours, 4096))
        os.close(ours)

    def test_signals_are_delivered_again(self) -> None:
        """After each kind of file was written, and stderr."""
        for env in ({}, {"CUPOOL_TRACE_EVENTS": "segment,alloc"}, {"CUPOOL_TRACE_FILE": "off", "CUPOOL_STATS_FILE": "page"},
                    {"CUPOOL_TRACE_FILE": "off", "CUPOOL_FREE": "bogus"}):
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                with self.subTest(number, **env):
                    self.go(BIN / "report_shared", "alloc:4096", f"raise:{int(number)}", rc=-number, **env)

    def test_a_full_pipe(self) -> None:
        """No process reads it; no call waits for one that does."""
        def once() -> None:
            read, write = full_pipe()
            child = self.start(*self.words(env), stderr=write, **env)
            os.close(write)
            self.fine(child, "alloc 2\nlast 2 2 0\n")
            os.close(read)
        for env in SAYS:
            with self.subTest(**env):
                self.assert_quick(1.5, once)

    def test_a_data_file_gets_its_number(self) -> None:
        cwd = self.folder()
        done = self.go(BIN / "report_shared", "open:2:data", "alloc:4096", REFUSED, cwd=cwd, SIMGPU_MEMORY="64M", CUPOOL_STATS="exit")
        self.assertEqual((done.out, (cwd / "data").read_text()), ("alloc 2\n", ""))

    def test_the_program_sends_it_to_a_log(self) -> None:
        cwd = self.folder()
        self.go(BIN / "report_shared", "append:2:log", "alloc:4096", REFUSED, cwd=cwd, SIMGPU_MEMORY="64M", CUPOOL_STATS="exit")
        text = (cwd / "log").read_text()
        self.assertIn("out of memory", text)
        self.assertIn("cupool: device", " ".join(text.split()))

    def test_a_file_from_the_start(self) -> None:
        with open(self.tmp / "log", "w") as log:
            self.fine(self.start("alloc:4096", REFUSED, stderr=log.fileno()), "alloc 2\n")
        self.assertIn("out of memory", (self.tmp / "log").read_text())
