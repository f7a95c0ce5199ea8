# SPDX-License-Identifier: Apache-2.0
"""CUDA IPC handles of pooled blocks, between processes under cupool: each reads what the other wrote, a block that another process
holds is used for nothing else, and whoever dies, is stopped, or talks nonsense harms nobody.
"""

import fcntl
import os
import random
import signal
import socket
import struct
import subprocess
import time
import unittest
from pathlib import Path

from e2e import MIB, SANITIZE, TIMEOUT
from ipc_process import Base, Process, is_ticket

INVALID, OWN, MAP_FAILED, NOT_READY = 1, 201, 205, 600
# Of two blocks of this size each has a driver allocation of its own, with room for small ones.
ALONE = 1900 << 10
SIZES = (100, 300 << 10, 64 * MIB)
# Of the messages, in the sources: base/ipc_message.h.
TICKET = struct.Struct("=8sIi16s16sQQ")
REQUEST = struct.Struct("=IHHQ16s")
GRANT = struct.Struct("=IHHQII16sQQQ16s64s")
MAGIC, VERSION, OPEN, CLOSE = 0x49706f63, 1, 1, 2
F_GETSIG = 11  # fcntl has it from Python 3.13 on


class Bytes(Base):
    def test_both_ways(self) -> None:
        for backend in ("cuda", "vmm"):
            for kinds in (("shared", "static"), ("static", "shared")):
                a, b = (Process(self, kind=kind, CUPOOL_BACKEND=backend) for kind in kinds)
                a.alloc(5000)
                before = a("used")
                numbers = [a.alloc(size, seed) for seed, size in enumerate(SIZES)]
                for seed, size in enumerate(SIZES):
                    with self.subTest(backend=backend, kinds=kinds, size=size):
                        mine = numbers[seed]
                        handle = a.handle(mine)
                        self.assertEqual(is_ticket(handle), backend == "vmm" or size < 2 * MIB)
                        self.assertEqual(a.handle(mine, size // 2), handle)  # of the block, as natively
                        its = b.open(handle, size)
                        self.assertEqual(b(f"check {its} {seed}"), 0)
                        self.assertEqual(b(f"fill {its} {seed + 50}"), 0)
                        self.assertEqual(a(f"check {mine} {seed + 50}"), 0)
                        self.assertEqual(a(f"fill {mine} {seed + 60}"), 0)
                        self.assertEqual(b(f"check {its} {seed + 60}"), 0)
                        if is_ticket(handle):
                            for offset in (0, size // 2, size - 1):
                                self.assertEqual(b.ask(f"range {its} {offset}"), ["0", "0", str(size)])
                            self.assertNotEqual(b.ask(f"range {its} {size}")[0], "0")
                        self.assertEqual(b(f"context {its}"), 1)
                        self.assertEqual(b(f"free {its}"), INVALID)
                        self.assertEqual(b(f"close {its}"), 0)
                        self.assertNotEqual(b(f"close {its}"), 0)
                for mine in numbers:
                    self.assertEqual(a(f"free {mine}"), 0)
                self.wait_for(a, "used", before)
                self.assertEqual((a("changed"), b("changed")), (0, 0), "calls that changed errno")
                self.assertEqual((a.err(), b.err()), ("", ""))
                self.assertEqual((a.end(), b.end()), (0, 0))

    def test_blocks_of_one_segment(self) -> None:
        """A segment is mapped once; each block counts for itself."""
        for backend in ("cuda", "vmm"):
            with self.subTest(backend):
                a, b = (Process(self, CUPOOL_BACKEND=backend) for _ in range(2))
                mine = [a.alloc(3000, i) for i in range(4)]
                its = [b.open(a.handle(i), 3000) for i in mine]
                self.assertEqual({b(f"at {k}") - b(f"at {its[0]}") for k in its}, {a(f"at {i}") - a(f"at {mine[0]}") for i in mine})
                again = b.open(a.handle(mine[1]), 3000)
                self.assertEqual(b(f"at {again}"), b(f"at {its[1]}"))
                self.assertEqual(b(f"close {again}"), 0)
                self.assertEqual(b(f"close {its[0]}"), 0)
                for i, k in list(enumerate(its))[1:]:
                    self.assertEqual(b(f"check {k} {i}"), 0)
                    self.assertEqual(b.ask(f"range {k} 10"), ["0", "0", "3000"])
                    self.assertEqual(b(f"close {k}"), 0)

    def test_an_importer_exports_nothing_of_it(self) -> None:
        for backend in ("cuda", "vmm"):
            with self.subTest(backend):
                a, b = (Process(self, CUPOOL_BACKEND=backend) for _ in range(2))
                its = b.open(a.handle(a.alloc(3000)), 3000)
                self.assertEqual(b(f"handle {its}"), INVALID)

    def test_whoever_opens_its_own(self) -> None:
        for backend in ("cuda", "vmm"):
            a = Process(self, CUPOOL_BACKEND=backend)
            self.assertEqual(a.refused(a.handle(a.alloc(3000))), OWN)


class Held(Base):
    """A block that is held is used for nothing else."""

    def held(self, backend: str, free: str = "free", size: int = 3000, **env: str) -> "tuple[Process, Process, int, int, int]":
        """Two processes, the block in both, which the exporter has freed, and the bytes in use before."""
        a, b = (Process(self, CUPOOL_BACKEND=backend, **env) for _ in range(2))
        before = a("used")
        mine = a.alone(size, 1)
        its = b.open(a.handle(mine), size)
        self.assertEqual(a(f"{free} {mine}"), 0)
        return a, b, mine, its, before

    def test_until_it_is_closed(self) -> None:
        for backend in ("cuda", "vmm"):
            for free in ("free", "async"):
                with self.subTest(backend=backend, free=free):
                    a, b, mine, its, before = self.held(backend, free)
                    self.assertEqual(a(f"free {mine}"), INVALID)
                    self.assertNotEqual(a.ask(f"range {mine} 0")[0], "0")
                    self.assertNotEqual(a.ask(f"handle {mine}")[0], "0")
                    fresh = [a.alloc(3000, 7) for _ in range(40)]
                    self.assertNotIn(a(f"at {mine}"), [a(f"at {i}") for i in fresh])
                    self.assertEqual(b(f"check {its} 1"), 0)
                    self.assertEqual(b(f"fill {its} 2"), 0)
                    self.assertEqual([a(f"check {i} 7") for i in fresh], [0] * 40)
                    self.assertEqual(b(f"close {its}"), 0)
                    for i in fresh:
                        self.assertEqual(a(f"free {i}"), 0)
                    self.wait_for(a, "used", before)

    def test_until_the_importer_is_gone(self) -> None:
        for backend in ("cuda", "vmm"):
            for how in ("kill", "exit", "end", "zombie", "exec"):
                with self.subTest(backend=backend, how=how):
                    a, b, mine, its, before = self.held(backend, size=ALONE)
                    self.assertGreater(a("used"), before)
                    if how == "exit":
                        b.send("exit")
                        b.child.wait(TIMEOUT)
                    elif how == "exec":  # it is another program now, without the driver's files
                        b.send("exec")
                    elif how == "zombie":  # nobody has waited for it
                        os.kill(b.pid, signal.SIGKILL)
                    else:
                        b.kill() if how == "kill" else b.end()
                    self.wait_for(a, "used", before)

    def test_the_importer_resets_its_device(self) -> None:
        """The exporter hears of it at once, not with the importer's next open or close."""
        for backend in ("cuda", "vmm"):
            with self.subTest(backend=backend):
                a, b, mine, its, before = self.held(backend, size=ALONE)
                self.assertEqual(b("reset"), 0)
                self.wait_for(a, "used", before)
                self.assertEqual(b("used"), 0)

    def test_a_child_keeps_the_connection(self) -> None:
        a, b, mine, its, before = self.held("vmm", size=ALONE)
        child = b("fork")
        b.kill()
        self.assertEqual(Path(f"/proc/{child}/comm").read_text()[:7], "ipc_app")
        self.wait_for(a, "used", before)
        os.kill(child, signal.SIGKILL)

    def test_the_connection_is_closed_by_the_program(self) -> None:
        """The importer may still use the block, so it is held until the importer is gone."""
        a, b, mine, its, before = self.held("vmm", size=ALONE)
        self.assertEqual(b("closefrom 3"), 0)
        time.sleep(0.2)
        self.assertGreater(a("used"), before)
        b.kill()
        self.wait_for(a, "used", before)

    def test_the_program_has_the_numbers_of_our_descriptors(self) -> None:
        """Nothing is written to them, they are not sent to importers, and they stay open."""
        a = Process(self, CUPOOL_BACKEND="vmm", CUPOOL_STATS="signal:USR1")
        mine = a.alloc(5000)
        a.handle(mine)
        self.assertEqual(a("taken 200"), -1)
        before = a("fds")
        self.assertEqual((a(f"free {mine}"), a("fds")), (0, before))

    def test_two_importers(self) -> None:
        a, b, mine, its, before = self.held("vmm", size=ALONE)
        other = a.alloc(3000, 3)
        c = Process(self, CUPOOL_BACKEND="vmm")
        k, l = b.open(a.handle(other), 3000), c.open(a.handle(other), 3000)
        self.assertEqual(a(f"free {other}"), 0)
        self.assertEqual(b(f"close {k}"), 0)
        self.assertEqual(c(f"check {l} 3"), 0)
        for _ in range(20):
            self.assertNotEqual(a(f"at {a.alloc(3000, 9)}"), a(f"at {other}"))
        self.assertEqual(c(f"check {l} 3"), 0)

    def test_three_exporters(self) -> None:
        exporters, b = [Process(self) for _ in range(3)], Process(self)
        its = [b.open(a.handle(a.alloc(3000, i)), 3000) for i, a in enumerate(exporters)]
        for i in 1, 0, 2:
            self.assertEqual(b(f"check {its[i]} {i}"), 0)
            self.assertEqual(b(f"close {its[i]}"), 0)

    def test_the_free_waits(self) -> None:
        """As natively, for the work that uses the block."""
        a, b = Process(self), Process(self)
        mine = a.alloc(3000, 1)
        b.open(a.handle(mine), 3000)
        self.assertEqual(a("busy 300"), 0)
        start = time.monotonic()
        self.assertEqual(a(f"free {mine}"), 0)
        self.assertGreater(time.monotonic() - start, 0.2)
        # cudaFreeAsync does not: the work is still under way afterwards.
        other = a.alloc(3000, 1)
        b.open(a.handle(other), 3000)
        self.assertEqual(a(f"busy {TIMEOUT * 1000}"), 0)
        self.assertEqual((a(f"async {other}"), a("idle")), (0, NOT_READY))
        a.kill()

    def test_the_close_waits(self) -> None:
        """A block that is closed may be used again, so the importer's work on it has ended."""
        for backend in ("cuda", "vmm"):
            a, b = (Process(self, CUPOOL_BACKEND=backend) for _ in range(2))
            its = [b.open(a.handle(a.alloc(3000)), 3000) for _ in range(2)]
            for k in its:
                self.assertEqual(b("busy 300"), 0)
                start = time.monotonic()
                self.assertEqual(b(f"close {k}"), 0)
                self.assertGreater(time.monotonic() - start, 0.2)

    def test_a_context_ends(self) -> None:
        for backend in ("cuda", "vmm"):
            with self.subTest(backend):
                a, b, mine, its, before = self.held(backend)
                handle = a.handle(a.alloc(3000, 4))
                self.assertEqual(a("reset"), 0)
                self.assertEqual(b.refused(handle), MAP_FAILED)
                fresh = [a.alloc(3000, 5) for _ in range(10)]
                self.assertEqual(b(f"close {its}"), 0)
                other = b.open(a.handle(fresh[0]), 3000)
                self.assertEqual(b("reset"), 0)
                self.assertNotEqual(b(f"close {other}"), 0)
                again = b.open(a.handle(fresh[0]), 3000)
                self.assertEqual(b(f"check {again} 5"), 0)
                self.assertEqual([a(f"check {i} 5") for i in fresh], [0] * 10)


class Refused(Base):
    def test_a_block_that_is_freed(self) -> None:
        for backend in ("cuda", "vmm"):
            with self.subTest(backend):
                a, b = (Process(self, CUPOOL_BACKEND=backend) for _ in range(2))
                a.alloc(5000)
                mine = a.alloc(3000, 1)
                handle = a.handle(mine)
                self.assertEqual(a(f"free {mine}"), 0)
                self.assertEqual(b.refused(handle), MAP_FAILED)
                self.assertIn("the block has been freed there", b.err())
                # At its place there is another block.
                others = [a.alloc(3000, 2) for _ in range(20)]
                self.assertIn(a(f"at {mine}"), [a(f"at {i}") for i in others])
                for i in others:
                    self.assertNotEqual(a.handle(i), handle)
                self.assertEqual(b.refused(handle), MAP_FAILED)

    def test_a_process_that_is_gone(self) -> None:
        a, b = Process(self), Process(self)
        mine = a.alloc(3000, 1)
        handle = a.handle(mine)
        its = b.open(handle, 3000)
        other = a.handle(a.alloc(3000, 1))
        a.kill()
        self.assertEqual(b(f"check {its} 1"), 0)
        self.assertEqual(b.refused(other), MAP_FAILED)
        self.assertEqual(b(f"close {its}"), 0)
        self.assertEqual(b.refused(handle), MAP_FAILED)
        self.assertIn("has ended", b.err())

    def test_a_process_that_is_stopped(self) -> None:
        a, b = Process(self), Process(self, CUPOOL_IPC="200")
        mine = a.alone(ALONE, 1)
        before = a("used")
        handle = a.handle(mine)
        a.stop()
        start = time.monotonic()
        self.assertEqual(b.refused(handle), MAP_FAILED)
        self.assertGreater(time.monotonic() - start, 0.15)
        self.assertIn("did not answer within CUPOOL_IPC milliseconds", b.err())
        os.kill(a.pid, signal.SIGCONT)
        # The grant came too late, so nobody holds the block.
        self.assertEqual(a(f"free {mine}"), 0)
        self.assertLess(a("used"), before)

    def test_off(self) -> None:
        a, b = Process(self, CUPOOL_IPC="0"), Process(self, CUPOOL_IPC="0")
        self.assertEqual(a(f"handle {a.alloc(3000)}"), INVALID)
        self.assertIn("no IPC handle for", a.err())
        c = Process(self)
        self.assertNotEqual(b.refused(c.handle(c.alloc(3000))), 0)
        for kind in "shared", "static":
            a = Process(self, CUPOOL_IPC="0", CUPOOL_BACKEND="vmm", kind=kind)
            self.assertEqual(a(f"handle {a.alloc(4 << 20)}"), INVALID)
            self.assertIn("memory of CUPOOL_BACKEND=vmm has none", a.err())

    def test_a_process_without_cupool(self) -> None:
        """It opens what begins a driver allocation, and the driver refuses a ticket."""
        for backend in ("cuda", "vmm"):
            a, b = Process(self, CUPOOL_BACKEND=backend), Process(self, preload=None)
            self.assertEqual(b.refused(a.handle(a.alloc(3000))), INVALID)
            if backend == "cuda":
                self.assertEqual(b(f"check {b.open(a.handle(a.alloc(8 * MIB, 5)), 8 * MIB)} 5"), 0)

    @unittest.skipIf(os.getuid() != 0, "another user can only be played by root")
    def test_another_user(self) -> None:
        a, b = Process(self), Process(self, user=12345)
        mine = a.alone(300 << 10, 1)
        handle = a.handle(mine)
        self.assertEqual(b.refused(handle), MAP_FAILED)
        self.assertIn("another user's", b.err())
        # Nor does an exporter answer one who does not look.
        code = f"""
import os, socket
os.setgroups([]); os.setgid(12345); os.setuid(12345)
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.settimeout(20)
s.connect({station_of(handle)!r})
try:
    s.send({request_of(handle)!r})
    print(len(s.recv(4096)))
except OSError:
    print(0)
"""
        done = subprocess.run(["python3", "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.stdout, "0\n", done.stderr)
        c = Process(self)
        self.assertEqual(c(f"check {c.open(handle, 300 << 10)} 1"), 0)


def station_of(handle: str) -> bytes:
    station = TICKET.unpack(bytes.fromhex(handle))[3]
    return f"\0cupool-ipc-{VERSION}-{station.hex()}".encode()


def request_of(handle: str, kind: int = OPEN, number: int = 1) -> bytes:
    return REQUEST.pack(MAGIC, VERSION, kind, number, TICKET.unpack(bytes.fromhex(handle))[4])


class Messages(Base):
    """This test plays an importer that is wrong."""

    def connect(self, handle: str) -> socket.socket:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(s.close)
        s.settimeout(TIMEOUT)
        s.connect(station_of(handle))
        return s

    def test_wrong_ones(self) -> None:
        a, b = Process(self), Process(self)
        mine = a.alloc(3000, 1)
        handle = a.handle(mine)
        good = request_of(handle)
        for wrong in (good[:-1], good + b"x", good * 3, b"x", good[:4] + b"\2\0" + good[6:], b"abcd" + good[4:],
                      good[:6] + b"\3\0" + good[8:], os.urandom(64)):
            s = self.connect(handle)
            s.send(wrong)
            self.assertEqual(s.recv(4096), b"")
        s = self.connect(handle)
        s.send(good)
        self.assertEqual(GRANT.unpack(s.recv(4096))[3:6], (1, 0, 1))
        s.send(good[:8] + struct.pack("=Q", 77) + bytes(16))  # no such block
        self.assertEqual(GRANT.unpack(s.recv(4096))[3:5], (77, 1))
        s.send(request_of(handle, CLOSE))
        s.send(request_of(handle, CLOSE))  # once too often
        s.send(request_of(handle, CLOSE)[:16] + bytes(16))
        s.send(good)
        self.assertEqual(GRANT.unpack(s.recv(4096))[4], 0)
        self.assertEqual(b(f"check {b.open(handle, 3000)} 1"), 0)

    def test_descriptors_that_nobody_asked_for(self) -> None:
        a = Process(self)
        handle = a.handle(a.alloc(3000, 1))
        s = self.connect(handle)
        s.send(request_of(handle))
        self.assertEqual(GRANT.unpack(s.recv(4096))[4], 0)
        before = a("fds")
        for _ in range(20):
            socket.send_fds(s, [request_of(handle)], [0, 1, 2])
            self.assertEqual(GRANT.unpack(s.recv(4096))[4], 0)
        self.assertEqual(a("fds"), before)

    def test_a_damaged_ticket(self) -> None:
        """It is the driver's business, which does not know it."""
        a, b = Process(self), Process(self)
        handle = bytearray.fromhex(a.handle(a.alloc(3000, 1)))
        for at in range(len(handle)):
            wrong = bytearray(handle)
            wrong[at] ^= 1 << at % 8
            self.assertEqual(b.refused(wrong.hex()), INVALID, at)

    def test_a_wrong_exporter(self) -> None:
        """Whatever it answers, the importer gets an error."""
        a, b = Process(self, CUPOOL_BACKEND="vmm"), Process(self, CUPOOL_IPC="1000")
        handle = a.handle(a.alloc(3000, 1))
        real = self.connect(handle)
        real.send(request_of(handle))
        good, fds, _, _ = socket.recv_fds(real, 4096, 4)
        self.addCleanup(os.close, fds[0])
        self.assertGreater(fcntl.fcntl(fds[0], F_GETSIG), 0)  # by which the exporter knows it
        fields = list(GRANT.unpack(good))
        station = os.urandom(16)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as fake:
            fake.bind(f"\0cupool-ipc-{VERSION}-{station.hex()}".encode())
            fake.listen()
            fake.settimeout(TIMEOUT)
            ticket = list(TICKET.unpack(bytes.fromhex(handle)))
            ticket[3] = station
            ticket[6] = fnv(TICKET.pack(*ticket)[:-8])
            text = TICKET.pack(*ticket).hex()
            for change, send_fd in (({}, False), ({4: 9}, True), ({5: 1}, True), ({7: 0}, True), ({8: 1 << 60}, True), ({9: 0}, True),
                                    ({9: 1 << 63}, True), ({7: 1 << 60, 9: 1 << 59}, True), ({7: 64 * MIB}, True), ({0: 1}, True),
                                    ({1: 2}, True), ({2: 1}, True)):
                wrong = list(fields)
                for at, value in change.items():
                    wrong[at] = value
                b.send(f"open {text} 100")
                peer, _ = fake.accept()
                wrong[3] = REQUEST.unpack(peer.recv(4096))[3]
                socket.send_fds(peer, [GRANT.pack(*wrong)], fds if send_fd else [])
                self.assertNotEqual(b.answer()[0], "0", change)
                peer.close()
            b.send(f"open {text} 100")
            peer, _ = fake.accept()
            peer.close()
            self.assertEqual(b.answer()[0], str(MAP_FAILED))
            open_now = len(os.listdir(f"/proc/{b.pid}/fd"))
            for word, data in ((word, data) for word in ("open", "import") for data in (b"", b"x", good[:-1])):
                b.send(f"{word} {text} 100")
                peer, _ = fake.accept()
                peer.recv(4096)
                socket.send_fds(peer, [data], fds)
                got = int(b.answer()[0])
                self.assertTrue(got == MAP_FAILED if word == "open" else got < 0, (word, data, got))
                peer.close()
            self.assertEqual(len(os.listdir(f"/proc/{b.pid}/fd")), open_now, "a descriptor stays")
        self.assertEqual(b(f"check {b.open(handle, 3000)} 1"), 0)


def fnv(data: bytes) -> int:
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return value


class Deaths(Base):
    """Importers and exporters die at any moment; the others' books are exact afterwards."""

    ROUNDS = 120 * int(os.environ.get("TEST_RUNS", "1")) if SANITIZE == "none" else 20

    def test_of_importers(self) -> None:
        rng = random.Random(1)
        for backend in ("cuda", "vmm"):
            a = Process(self, CUPOOL_BACKEND=backend)
            before = a("used")
            first = a.alone(3000)
            a.handle(first)
            self.assertEqual(a(f"free {first}"), 0)
            fds = a("fds")
            for round in range(self.ROUNDS // 4):
                b = Process(self, CUPOOL_BACKEND=backend)
                first = a.alloc(5000)
                mine = [a.alloc(size, i) for i, size in enumerate((100, 3000, ALONE))]
                for i, size in zip(mine, (100, 3000, ALONE)):
                    handle = a.handle(i)
                    for _ in range(rng.randrange(4)):
                        b.send(f"open {handle} {size}")
                    if rng.randrange(2):
                        b.send("close 0")
                time.sleep(rng.random() * 0.03)
                b.kill()
                for i in mine + [first]:
                    self.assertEqual(a(f"free {i}"), 0)
                self.wait_for(a, "used", before)
                self.wait_for_at_most(a, "fds", fds)

    def test_of_exporters(self) -> None:
        rng = random.Random(2)
        for backend in ("cuda", "vmm"):
            b = Process(self, CUPOOL_BACKEND=backend, CUPOOL_IPC="3000")
            count, fds = 0, b("fds")
            for round in range(self.ROUNDS // 4):
                a = Process(self, CUPOOL_BACKEND=backend)
                handles = [a.handle(a.alloc(3000, 6)) for _ in range(4)]
                for handle in handles:
                    b.send(f"open {handle} 3000")
                time.sleep(rng.random() * 0.005)
                a.kill()
                opened = [int(number) for rc, number in (b.answer() for _ in handles) if rc == "0"]
                for k in opened:
                    self.assertEqual(b(f"check {k} 6"), 0)
                    self.assertEqual(b(f"close {k}"), 0)
                count += len(opened)
                fds = b("fds") if round == 0 else fds
                self.assertEqual(b("fds"), fds)
            self.assertGreater(count, 0)
