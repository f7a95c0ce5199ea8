# SPDX-License-Identifier: Apache-2.0
"""A process that shares memory by CUDA IPC as it is told, for test_ipc.py and test_switch.py: ipc_app.c and its commands."""

import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Optional

from e2e import BIN, LIB, MIB, TIMEOUT, Case, stop

UNIT = 2 * MIB  # what virtual memory is mapped in


class Process:
    """ipc_app.c, which does what it is told."""

    def __init__(self, case: Case, preload: Optional[Path] = LIB, kind: str = "shared", user: Optional[int] = None, decay: str = "0", **env: str) -> None:
        self.case, self.cwd = case, case.folder()
        closed = next((p for p in BIN.parents if not p.stat().st_mode & stat.S_IXOTH), None)
        if user and closed:
            case.skipTest(f"other users may not enter {closed}")
        full = case.env(str(preload) if preload else None, CUPOOL_TRACE_FILE="off", CUPOOL_DECAY=decay, **env)
        if user:
            os.chmod(self.cwd.parent, 0o755)
            os.chmod(self.cwd, 0o777)
        with (self.cwd / "err").open("w") as err:
            self.child = subprocess.Popen([BIN / f"ipc_app_{kind}"], env=full, cwd=self.cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          stderr=err, text=True, bufsize=1, user=user, group=user, extra_groups=[] if user else None)
        self.pid = self.child.pid
        case.addCleanup(self.end)

    def send(self, command: str) -> None:
        assert self.child.stdin
        self.child.stdin.write(command + "\n")

    def answer(self) -> "list[str]":
        assert self.child.stdout
        return self.child.stdout.readline().split()

    def ask(self, command: str) -> "list[str]":
        self.send(command)
        return self.answer()

    def __call__(self, command: str) -> int:
        return int(self.ask(command)[0])

    def alloc(self, size: int, seed: int = 0) -> int:
        rc, number = map(int, self.ask(f"alloc {size}"))
        self.case.assertEqual(rc, 0)
        self.case.assertEqual(self(f"fill {number} {seed}"), 0)
        return number

    def alone(self, size: int, seed: int = 0) -> int:
        """A block in a driver allocation that has no other block and does not begin with it, so that its handle is a ticket."""
        first = self.alloc(5000)
        number = self.alloc(size, seed)
        self.case.assertEqual(self(f"free {first}"), 0)
        return number

    def handle(self, number: int, offset: int = 0) -> str:
        rc, text = self.ask(f"handle {number} {offset}")
        self.case.assertEqual(rc, "0")
        return text

    def open(self, handle: str, size: int) -> int:
        rc, number = map(int, self.ask(f"open {handle} {size}"))
        self.case.assertEqual(rc, 0, self.err())
        return number

    def refused(self, handle: str, size: int = 100) -> int:
        return int(self.ask(f"open {handle} {size}")[0])

    def err(self) -> str:
        return (self.cwd / "err").read_text()

    def stop(self) -> None:
        """Returns once no thread of it runs."""
        stop(self.pid)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def end(self) -> int:
        try:
            self.child.send_signal(signal.SIGCONT)
            if self.child.stdin:
                self.child.stdin.close()
            return self.child.wait(TIMEOUT)
        except BrokenPipeError:
            return self.child.wait(TIMEOUT)
        finally:
            self.child.kill()
            self.child.wait()
            if self.child.stdout:
                self.child.stdout.close()


def is_ticket(handle: str) -> bool:
    return bytes.fromhex(handle).startswith(b"cupoolIP")


class Base(Case):
    def wait_for(self, process: Process, command: str, want: int) -> None:
        """Something that the background thread does soon."""
        limit = time.monotonic() + TIMEOUT
        while (got := process(command)) != want and time.monotonic() < limit:
            time.sleep(0.005)
        self.assertEqual(got, want, command)

    def wait_for_at_most(self, process: Process, command: str, most: int) -> None:
        limit = time.monotonic() + TIMEOUT
        while (got := process(command)) > most and time.monotonic() < limit:
            time.sleep(0.005)
        self.assertLessEqual(got, most, command)


class Server(Process):
    """A process with the backend vmm, on the card that all of a test have."""

    def __init__(self, case: "Switch", decay: str = "0", **env: str) -> None:
        super().__init__(case, decay=decay, **{"CUPOOL_BACKEND": "vmm", "SIMGPU_SHARED": str(case.tmp / "card"), **env})

    def ticket(self, number: int) -> str:
        rc, text = self.ask(f"export {number}")
        self.case.assertEqual(rc, "0", self.err())
        return text

    def take(self, ticket: str, size: Optional[int] = None) -> int:
        number, got = map(int, self.ask(f"import {ticket}"))
        self.case.assertGreater(number, 0, self.err())
        if size is not None:
            self.case.assertEqual(got, size)
        return number

    def not_taken(self, ticket: str) -> int:
        return int(self.ask(f"import {ticket}")[0])

    def reserve(self, size: int) -> int:
        rc, number = map(int, self.ask(f"reserve {size}"))
        self.case.assertEqual(rc, 0)
        return number


class Switch(Base):
    """a exports, b imports."""

    def two(self, **env: str) -> "tuple[Server, Server]":
        return Server(self, **env), Server(self, **env)

    def one_inserted(self, size: int = UNIT, **env: str) -> "tuple[Server, Server, int, int, int]":
        """A block of a's that b has inserted: its number, the import's, the range's."""
        a, b = self.two(**env)
        mine = a.alloc(size, 1)
        import_, at = b.take(a.ticket(mine)), b.reserve(size)
        self.assertEqual(b(f"insert {at} 0 {import_}"), 0)
        return a, b, mine, import_, at
