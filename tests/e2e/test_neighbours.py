# SPDX-License-Identifier: Apache-2.0
"""Memory between the processes of one user on one card: a request that the driver refuses asks the others for idle memory.

The simulated GPU's memory is shared by the processes of a test (SIMGPU_SHARED). Python plays a neighbour where one is to be wrong.
"""

import array
import os
import signal
import socket
import struct
import subprocess
import time
import unittest
from pathlib import Path
from typing import Any, Optional

from e2e import BIN, LIB, MIB, SIM, TIMEOUT, Case, Trace, station_of, stop

NCCL_LIB = LIB.with_name("libcupool-nccl.so")
SIMNCCL = Path(os.environ["E2E_SIMNCCL"])

CARD = 256 * MIB
MOST = CARD // 10 * 7
REFUSED = 2
# Of the messages, in the sources: base/neighbour_socket.c.
MAGIC, VERSION, QUESTION, ANSWER = 0x6c6f7063, 1, 1, 2
MESSAGE = struct.Struct("=IHHQ")
NEIGHBOURS_MAX = 64
WAIT_S = 0.1


class Process:
    """neighbour.c, which does what it is told."""

    def __init__(self, case: "Base", preload: Optional[Path] = LIB, **env: str) -> None:
        self.case, self.cwd = case, case.folder()
        # However busy the machine is, neighbours that can answer do.
        env = {"CUPOOL_NEIGHBOURS": "3000", **env}
        full = case.env(str(preload) if preload else None, SIMGPU_SHARED=str(case.tmp / "card"), SIMGPU_MEMORY=str(CARD),
                        LD_LIBRARY_PATH=f"{SIMNCCL}:{SIM}", **env)
        with (self.cwd / "err").open("w") as err:
            self.child = subprocess.Popen([BIN / "neighbour"], env=full, cwd=self.cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          stderr=err, text=True, bufsize=1)
        case.addCleanup(self.end)

    def __call__(self, command: str) -> int:
        assert self.child.stdin and self.child.stdout
        self.child.stdin.write(command + "\n")
        return int(self.child.stdout.readline())

    def alloc(self, n: int = MOST) -> int:
        return self(f"alloc {n}")

    def end(self) -> int:
        """Its exit code, once it has ended by itself."""
        self.child.send_signal(signal.SIGCONT)
        if self.child.stdin:
            self.child.stdin.close()
        try:
            return self.child.wait(TIMEOUT)
        finally:
            self.child.kill()
            self.child.wait()
            if self.child.stdout:
                self.child.stdout.close()

    def trace(self) -> Trace:
        self.case.assertEqual(self.end(), 0)
        [path] = [p for p in self.cwd.iterdir() if p.suffix == ".jsonl"]
        self.case.assert_fine(path)
        return Trace(path)


class Base(Case):
    def setUp(self) -> None:
        super().setUp()
        (self.tmp / "card").touch()

    def name_of(self, number: int, device: int = 0, version: int = VERSION) -> str:
        return station_of(self.tmp / "card", number, device, version)

    def listening(self, process: Process) -> "list[str]":
        """The names of the sockets of a process, on any card."""
        inodes = set()
        for fd in Path(f"/proc/{process.child.pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(fd))
            except OSError:
                pass
        lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        return [w[7] for w in lines if len(w) > 7 and f"socket:[{w[6]}]" in inodes and w[7].startswith("@cupool-")]

    def idle(self, n: int = MOST, **env: str) -> Process:
        """A process that holds so much without need, and can be asked for it."""
        process = Process(self, **env)
        self.assertEqual(process.alloc(n), 0)
        self.assertEqual(process("free"), 0)
        self.assertEqual(len(self.listening(process)), 1)
        return process

    def station(self, number: int) -> socket.socket:
        """A neighbour that this test plays."""
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(s.close)
        s.bind(self.name_of(number))
        s.settimeout(TIMEOUT)
        return s


class Turns(Base):
    def test_most_of_the_card_in_turns(self) -> None:
        """As natively, none of 12 requests is refused; each but the first has to ask."""
        for policy in ("auto", "ordered", "strict", "relaxed"):
            with self.subTest(policy):
                both = [Process(self, CUPOOL_FREE=policy, CUPOOL_DECAY="off") for _ in range(2)]
                for i in range(12):
                    self.assertEqual(both[i % 2].alloc(), 0, i)
                    self.assertEqual(both[i % 2]("free"), 0)
                traces = [process.trace() for process in both]
                for trace, asks in zip(traces, (5, 6)):
                    self.assertEqual([(e["d"], e["asked"], e["answered"], e["given"] >= MOST) for e in trace.of("ask")],
                                     [(0, 1, 1, True)] * asks)
                    self.assertEqual(trace.total("helped"), asks)
                    self.assertEqual(trace.total("oom"), 0)
                    self.assertEqual(trace.total("bypassed"), 0)
                    # Each gives back when the other asks, the second one not after its last request.
                    self.assertEqual(sum(e["why"] == "neighbour" for e in trace.of("trim")), 11 - asks)

    def test_switched_off(self) -> None:
        for off in ("asker", "other"):
            with self.subTest(off):
                other = Process(self, CUPOOL_NEIGHBOURS="0" if off == "other" else "3000")
                self.assertEqual((other.alloc(), other("free")), (0, 0))
                asker = Process(self, CUPOOL_NEIGHBOURS="0" if off == "asker" else "3000")
                self.assertEqual(asker.alloc(), REFUSED)
                self.assertEqual(self.listening(other) != [], off == "asker")
                self.assertEqual(asker.trace().of("ask"), [])
                self.assertEqual(other.trace().of("trim"), [])

    def test_of_a_call_that_is_not_pooled(self) -> None:
        self.idle()
        asker = Process(self)
        self.assertEqual(asker.alloc(4096), 0)
        self.assertEqual(asker(f"plain {MOST}"), 0)
        [ask] = asker.trace().of("ask")
        self.assertEqual((ask["n"], ask["answered"]), (0, 1))

    def test_several_give(self) -> None:
        others = [self.idle(CARD // 10 * 3) for _ in range(3)]
        asker = Process(self)
        self.assertEqual(asker.alloc(CARD // 10 * 9), 0)
        [ask] = asker.trace().of("ask")
        self.assertEqual((ask["asked"], ask["answered"]), (3, 3))
        for other in others:
            self.assertEqual([e["why"] for e in other.trace().of("trim")], ["neighbour"])

    def test_busy_device(self) -> None:
        """Memory that was freed behind work arrives with the end of that work, and is waited for."""
        for _ in range(10):
            other = Process(self, CUPOOL_FREE="ordered")
            self.assertEqual(other.alloc(), 0)
            self.assertEqual((other("busy 40"), other("free")), (0, 0))
            asker = Process(self)
            rc = asker.alloc()
            [ask] = asker.trace().of("ask")
            self.assertEqual(other.end(), 0)
            if rc == 0:
                self.assertGreaterEqual(ask["given"], MOST)
                return
        self.fail("each of ten requests was refused")

    def test_other_card(self) -> None:
        other = self.idle()
        asker = Process(self)
        self.assertEqual((asker("device 1"), asker.alloc(), asker("free")), (0, 0, 0))
        self.assertEqual(self.listening(asker), ["@" + self.name_of(0, device=1)[1:]])
        # It has two cards from now on, and is asked by either one's name.
        self.assertEqual((asker("device 0"), asker.alloc()), (0, 0))
        self.assertEqual(len(self.listening(asker)), 2)
        third = Process(self)
        self.assertEqual((third("device 1"), third.alloc()), (0, 0))
        self.assertEqual([e["d"] for e in third.trace().of("ask")], [1])
        self.assertEqual(len(other.trace().of("trim")), 1)


class Refused(Base):
    def test_nothing_idle(self) -> None:
        """Each request asks once, also where the driver is asked a second time past the pool."""
        other = Process(self)
        self.assertEqual(other.alloc(), 0)
        asker = Process(self)
        for _ in range(3):
            self.assertEqual(asker.alloc(), REFUSED)
            self.assertEqual(asker(f"plain {MOST}"), REFUSED)
        trace = asker.trace()
        self.assertEqual([(e["n"], e["asked"], e["answered"], e["given"]) for e in trace.of("ask")],
                         [(MOST // (2 * MIB) * 2 * MIB + 2 * MIB, 1, 1, 0), (0, 1, 1, 0)] * 3)
        self.assertEqual((trace.total("helped"), trace.total("oom"), len(trace.of("oom"))), (0, 3, 3))

    def test_nobody_there(self) -> None:
        asker = Process(self)
        self.assertEqual(asker.alloc(MOST), 0)
        self.assertEqual(asker.alloc(MOST), REFUSED)
        trace = asker.trace()
        self.assertEqual(trace.of("ask"), [])

    def test_more_than_there_is(self) -> None:
        """Nobody could help, so nobody has to give."""
        other, asker = self.idle(), Process(self)
        self.assertEqual((asker.alloc(2 * CARD), asker.alloc(4096), asker.alloc(2 * CARD)), (REFUSED, 0, REFUSED))
        self.assertEqual(asker.trace().of("ask"), [])
        self.assertEqual(other.trace().of("trim"), [])

    def test_stopped(self) -> None:
        """It costs the bound of the wait, and nothing once its queue is full; it gives when it goes on."""
        other = self.idle()
        asker = Process(self, CUPOOL_NEIGHBOURS="100")
        stop(other.child.pid)
        for _ in range(20):
            self.assertEqual(asker.alloc(), REFUSED)
        os.kill(other.child.pid, signal.SIGCONT)
        limit = time.monotonic() + TIMEOUT
        while asker.alloc():
            self.assertLess(time.monotonic(), limit)
        asks = [e for e in asker.trace().of("ask") if not e["given"]]
        self.assertTrue(all(e["answered"] == 0 for e in asks[:10]), asks)
        self.assertGreaterEqual(asks[0]["us"], WAIT_S * 1e6)
        self.assertLess(min(e["us"] for e in asks), WAIT_S * 1.5e6)  # the best of them, however busy the machine is
        self.assertLess(len(asks), 15)

    def test_late(self) -> None:
        """A neighbour that is late may have given memory back, too."""
        other, station, asker = Process(self, None), self.station(0), Process(self)
        self.assertEqual((other.alloc(), asker.alloc(4096)), (0, 0))
        assert asker.child.stdin and asker.child.stdout
        asker.child.stdin.write(f"alloc {MOST}\n")
        station.recv(4096)
        self.assertEqual(other("free"), 0)
        self.assertEqual(int(asker.child.stdout.readline()), 0)
        trace = asker.trace()
        [ask] = trace.of("ask")
        self.assertEqual((ask["asked"], ask["answered"], ask["given"]), (1, 0, 0))
        self.assertEqual((trace.total("helped"), trace.total("bypassed")), (1, 0))

    def test_killed(self) -> None:
        other = self.idle()
        other.child.kill()
        other.child.wait()
        asker = Process(self)
        self.assertEqual((asker.alloc(), asker.alloc()), (0, REFUSED))
        self.assertEqual(asker.trace().of("ask"), [])


class Apart(Base):
    """Processes that neither ask nor answer."""

    def test_nothing_before_the_first_request(self) -> None:
        process = Process(self)
        self.assertEqual(process("free"), -1)
        self.assertEqual(self.listening(process), [])
        self.assertEqual(process.alloc(4096), 0)
        self.assertEqual(self.listening(process), ["@" + self.name_of(0)[1:]])

    def test_ranks_that_agree(self) -> None:
        """Memory is laid out by requests alone there, also while they are refused."""
        station = self.station(0)
        station.setblocking(False)
        for env in ({"CUPOOL_REGISTER": "1"}, {"CUPOOL_BACKEND": "nccl"}):
            with self.subTest(env):
                asker = Process(self, NCCL_LIB, **env)
                self.assertEqual((asker.alloc(), asker.alloc(), asker(f"plain {MOST}")), (0, REFUSED, REFUSED))
                self.assertEqual((asker("free"), self.listening(asker)), (0, []))
                self.assertEqual(asker.trace().of("ask"), [])
                with self.assertRaises(BlockingIOError):
                    station.recv(4096)

    def test_forked_child(self) -> None:
        parent = self.idle()
        self.assertEqual(parent("fork"), 0)
        [child] = Path(f"/proc/{parent.child.pid}/task/{parent.child.pid}/children").read_text().split()
        self.assertEqual(len(self.listening(parent)), 1)
        names = [os.readlink(fd) for fd in Path(f"/proc/{child}/fd").iterdir()]
        self.assertEqual([n for n in names if n.startswith("socket:")], [])
        asker = Process(self)
        self.assertEqual(asker.alloc(), 0)
        [ask] = asker.trace().of("ask")
        self.assertEqual((ask["asked"], ask["answered"]), (1, 1))

    def test_descriptors_closed_by_the_program(self) -> None:
        other = self.idle()
        self.assertEqual(other("closefrom 3"), 0)
        asker = Process(self)
        self.assertEqual((asker.alloc(), asker.alloc()), (REFUSED, REFUSED))
        # The thread that polled the socket had it still, until the first message came.
        self.assertLessEqual(len(asker.trace().of("ask")), 1)
        self.assertEqual((other.alloc(), other("free")), (0, 0))
        self.assertEqual(other.end(), 0)

    def test_descriptors_taken_by_the_program(self) -> None:
        """A descriptor that was the library's may be any file of the program's by now: nothing is read from that."""
        other = self.idle()
        self.assertEqual((other("closefrom 3"), other("sockets 300"), other("messages")), (0, 0, 300))
        self.assertEqual(Process(self).alloc(), REFUSED)
        self.assertEqual((other("messages"), other.alloc(), other.end()), (300, 0, 0))

    def test_exit(self) -> None:
        """A process that ends is not asked any more, even if its end takes long."""
        other = self.idle()
        assert other.child.stdin
        other.child.stdin.write("exit\n")
        limit = time.monotonic() + TIMEOUT
        while self.listening(other):
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.001)
        self.assertIsNone(other.child.poll())
        asker = Process(self)
        self.assertEqual(asker.alloc(), REFUSED)
        self.assertEqual(asker.trace().of("ask"), [])

    def test_exit_is_not_delayed(self) -> None:
        """It wakes the thread that listens."""
        def end() -> int:
            process = self.idle()
            time.sleep(0.05)  # for the thread to listen; if it does not yet, the end is quick in any case
            return process.end()

        self.assert_quick(0.5, end)

    def test_all_numbers_taken(self) -> None:
        stations = [self.station(i) for i in range(NEIGHBOURS_MAX)]
        process = Process(self, CUPOOL_LOG_LEVEL="info")
        self.assertEqual((process.alloc(), process.alloc()), (0, REFUSED))
        self.assertEqual(self.listening(process), [])
        [ask] = process.trace().of("ask")
        self.assertEqual((ask["asked"], ask["answered"]), (NEIGHBOURS_MAX, 0))
        self.assertIn("other processes on device 0 cannot ask", (process.cwd / "err").read_text())
        for station in stations:
            self.assertEqual(station.recv(4096), MESSAGE.pack(MAGIC, VERSION, QUESTION, 0))


class Messages(Base):
    """A process trusts no message: Python plays neighbours that are wrong."""

    def asker(self) -> socket.socket:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(s.close)
        s.bind("")  # the kernel finds a name
        s.settimeout(TIMEOUT)
        return s

    def ask(self, s: socket.socket, name: str) -> int:
        """The bytes that a process says it has given back."""
        s.sendto(MESSAGE.pack(MAGIC, VERSION, QUESTION, 0), name)
        magic, version, kind, given = MESSAGE.unpack(s.recv(4096))
        self.assertEqual((magic, version, kind), (MAGIC, VERSION, ANSWER))
        return given

    def test_garbage_for_a_neighbour(self) -> None:
        other = self.idle()
        before = other("fds")
        good = MESSAGE.pack(MAGIC, VERSION, QUESTION, 0)
        garbage = [b"", b"x", good[:-1], good + b"x", good * 2000, bytes(len(good)), MESSAGE.pack(MAGIC + 1, VERSION, QUESTION, 0),
                   MESSAGE.pack(MAGIC, VERSION + 1, QUESTION, 0), MESSAGE.pack(MAGIC, VERSION, ANSWER, MOST),
                   MESSAGE.pack(MAGIC, VERSION, 7, 0)]
        s = self.asker()
        for data in garbage * 20:
            s.sendto(data, self.name_of(0))
        # Descriptors that come along do not stay.
        for _ in range(20):
            s.sendmsg([garbage[1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()] * 8))], 0, self.name_of(0))
        self.assertEqual(other.alloc(), 0)  # from its pool: nobody has got that
        self.assertEqual(other("free"), 0)
        self.assertGreaterEqual(self.ask(s, self.name_of(0)), MOST)
        self.assertEqual(other("fds"), before)
        s.setblocking(False)
        with self.assertRaises(BlockingIOError):
            s.recv(4096)
        self.assertEqual([e["why"] for e in other.trace().of("trim")], ["neighbour"])

    def test_questions_that_nobody_waits_for(self) -> None:
        other = self.idle()
        for _ in range(50):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            s.bind("")
            s.sendto(MESSAGE.pack(MAGIC, VERSION, QUESTION, 0), self.name_of(0))
            s.close()
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # without a name
        s.sendto(MESSAGE.pack(MAGIC, VERSION, QUESTION, 0), self.name_of(0))
        s.close()
        self.assertEqual(self.ask(self.asker(), self.name_of(0)), 0)
        self.assertEqual(other.end(), 0)

    @unittest.skipUnless(os.geteuid() == 0, "only root can be another user")
    def test_another_user(self) -> None:
        other, name = self.idle(), self.name_of(0)
        pid = os.fork()
        if not pid:
            try:
                os.setuid(12345)
                s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                s.bind("")
                for _ in range(3):
                    s.sendto(MESSAGE.pack(MAGIC, VERSION, QUESTION, 0), name)
                os._exit(0)
            except OSError:
                os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        # A question of ours comes behind those, and finds all that was idle.
        self.assertGreaterEqual(self.ask(self.asker(), name), MOST)
        self.assertEqual(len(other.trace().of("trim")), 1)

    def answer(self, *answers: "tuple[int, bytes]", stations: int = 2) -> "tuple[int, dict[str, Any]]":
        """A request that is refused: two stations are asked, and (station, message) is answered to it. Station 2 was not asked."""
        played = [self.station(i) for i in range(stations)] + [self.asker()]
        asker = Process(self)
        self.assertEqual(asker.alloc(), 0)
        assert asker.child.stdin and asker.child.stdout
        asker.child.stdin.write(f"alloc {MOST}\n")
        for s in played[:stations]:
            data, to = s.recvfrom(4096)
            self.assertEqual(data, MESSAGE.pack(MAGIC, VERSION, QUESTION, 0))
        for i, message in answers:
            played[i].sendto(message, to)
        rc = int(asker.child.stdout.readline())
        for s in played:
            s.close()
        return rc, asker.trace().of("ask")[0]  # those who have given something are asked again, and do not answer

    def test_wrong_answers(self) -> None:
        def message(given: int, kind: int = ANSWER, version: int = VERSION, magic: int = MAGIC) -> bytes:
            return MESSAGE.pack(magic, version, kind, given)

        for answers, counted in (
                # These do not count; those who were asked are still waited for.
                ([(0, b""), (0, message(1)[:-1]), (0, message(1) + b"x"), (0, message(1, kind=QUESTION)), (0, message(1, version=2)),
                  (0, message(1, magic=1))], (2, 0, 0)),
                ([(2, message(MOST))], (2, 0, 0)),
                ([(0, message(7)), (0, message(9))], (2, 1, 7)),
                ([(0, message(7)), (1, message(9))], (2, 2, 16)),
                ([(0, message(0)), (1, message(0))], (2, 2, 0)),
                # Enough is enough, also if it is a lie.
                ([(0, message((1 << 64) - 1))], (2, 1, (1 << 64) - 1)),
        ):
            with self.subTest(answers=answers):
                rc, ask = self.answer(*answers)
                self.assertEqual(rc, REFUSED)
                self.assertEqual((ask["asked"], ask["answered"], ask["given"]), counted)

    def test_another_version(self) -> None:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(s.close)
        s.bind(self.name_of(0, version=VERSION + 1))
        asker = Process(self)
        self.assertEqual((asker.alloc(), asker.alloc()), (0, REFUSED))
        self.assertEqual(asker.trace().of("ask"), [])
