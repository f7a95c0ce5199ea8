# SPDX-License-Identifier: Apache-2.0
"""CUDA IPC of pooled blocks beside what else a program does: resets of its device, handles of the driver's own, pauses, errors, NCCL.
The plain cases are in test_ipc.py.
"""

import errno
import os
import random
import re
import signal
import time
import unittest

from e2e import LIB, TIMEOUT
from ipc_process import Base, Process, is_ticket

INVALID, MAP_FAILED, ILLEGAL_ADDRESS, NOT_READY = 1, 205, 700, 600
# Of two blocks of this size each has a driver allocation of its own, with room for small ones.
ALONE = 1900 << 10
PAUSE = -1


class Importer(Base):
    def test_an_open_comes_first(self) -> None:
        """The library starts with it: what is wrong with its settings is said."""
        a = Process(self)
        a.alloc(5000)
        handle = a.handle(a.alloc(3000))
        b = Process(self, CUPOOL_TRACE_LIMIT="nonsense")
        self.assertEqual(b.err(), "")
        b.open(handle, 3000)
        self.assertIn("CUPOOL_TRACE_LIMIT", b.err())

    def test_memory_at_the_address_of_a_lost_block(self) -> None:
        """A reset ends what was open. What the driver puts there afterwards is the program's."""
        a, b = Process(self), Process(self)
        a.alloc(5000)
        its = b.open(a.handle(a.alloc(3000, 1)), 3000)
        was = b(f"at {its}")
        self.assertEqual(b("reset"), 0)
        first = b.alloc(3000, 2)
        self.assertEqual(b(f"at {first}") >> 21, was >> 21)
        self.assertEqual(b.ask(f"range {first} 0"), ["0", "0", "3000"])
        self.assertEqual(b(f"context {first}"), 1)

    def test_a_handle_of_the_driver_and_a_ticket(self) -> None:
        """Of two blocks in one driver allocation, the first has the driver's handle. The driver maps both at one address."""
        size = 4900 << 10
        a, b = (Process(self, decay="100") for _ in range(2))
        # A program that frees much of such sizes has two blocks in an allocation.
        for k in [a.alloc(2900 << 10) for _ in range(150)]:
            self.assertEqual(a(f"free {k}"), 0)
        mine = sorted((a.alloc(size, seed) for seed in range(2)), key=lambda k: a(f"at {k}"))
        handles = [a.handle(k) for k in mine]
        self.assertEqual([is_ticket(handle) for handle in handles], [False, True])
        for order in (0, 1), (1, 0):
            its = {i: b.open(handles[i], size) for i in order}
            self.assertEqual(b(f"at {its[1]}") - b(f"at {its[0]}"), a(f"at {mine[1]}") - a(f"at {mine[0]}"))
            self.assertEqual(b.ask(f"range {its[0]} 100")[:2], ["0", "0"])
            self.assertEqual(b.ask(f"range {its[1]} 100"), ["0", "0", str(size)])
            self.assertEqual([b(f"context {its[i]}") for i in order], [1, 1])
            self.assertEqual(b(f"close {its[0]}"), 0)
            self.assertNotEqual(b.ask(f"range {its[0]} 100")[0], "0")
            self.assertEqual(b(f"close {its[1]}"), 0)


    def test_two_threads_close_it_at_once(self) -> None:
        """Neither is the last close when it begins. The one that becomes it waits for the work, and other opens do not wait for it."""
        for backend in ("cuda", "vmm"):
            a, b, stopped = (Process(self, CUPOOL_BACKEND=backend) for _ in range(3))
            for process in (a, stopped):
                process.alloc(5000)  # what follows has tickets
            handle, other, third = (process.handle(process.alloc(3000, 5)) for process in (a, a, stopped))
            its, _ = (b.open(handle, 3000) for _ in range(2))
            stopped.stop()
            self.assertEqual(b(f"closes {third} {its}"), 0)
            os.kill(stopped.pid, signal.SIGCONT)
            k = b.open(other, 3000)
            self.assertEqual(b("idle"), NOT_READY)
            self.assertEqual(b("closed"), 0)
            self.assertNotEqual(b(f"close {its}"), 0)
            self.assertEqual(b(f"check {k} 5"), 0)

    def test_natively_an_open_beside_the_last_close(self) -> None:
        """It gets a mapping of its own, which the close, once its wait is over, does not take away."""
        a, b = (Process(self, preload=None) for _ in range(2))
        handle, other = (a.handle(a.alloc(3000, 5)) for _ in range(2))
        its, _ = (b.open(handle, 3000) for _ in range(2))
        self.assertEqual(b(f"closes {other} {its}"), 0)
        k = b.open(handle, 3000)
        self.assertEqual(b("closed"), 0)
        self.assertEqual(b(f"check {k} 5"), 0)

    def test_many_blocks(self) -> None:
        """In many mappings and many to a mapping, opened and closed in any order: an address is of the block that is open there."""
        rng = random.Random(3)
        a, b = (Process(self, CUPOOL_BACKEND="vmm") for _ in range(2))
        sizes = [rng.choice((100, 3000, (1900 << 10))) for _ in range(240)]
        mine = [int(a.ask(f"alloc {size}")[1]) for size in sizes]
        its: "dict[int, int]" = {}
        for closed in range(len(sizes) * 2 // 3), range(len(sizes)):
            its.update((i, b.open(a.handle(mine[i]), sizes[i])) for i in rng.sample(range(len(sizes)), len(sizes)) if i not in its)
            for i in rng.sample(closed, len(closed)):
                self.assertEqual(b.ask(f"range {its[i]} {sizes[i] - 1}"), ["0", "0", str(sizes[i])])
                self.assertEqual(b(f"close {its[i]}"), 0)
                self.assertNotEqual(b.ask(f"range {its[i]} 0")[0], "0")
                self.assertNotEqual(b(f"close {its.pop(i)}"), 0)
        self.assertEqual((a.err(), b.err()), ("", ""))

    def test_the_calls_of_an_open(self) -> None:
        counts = self.tmp / "counts"
        a, b = (Process(self, CUPOOL_BACKEND="vmm", SIMGPU_COUNTS=str(path)) for path in (self.tmp / "other", counts))
        its = b.open(a.handle(a.alloc(3000, 4)), 3000)
        self.assertEqual((b(f"check {its} 4"), b(f"close {its}"), b.end()), (0, 0, 0))
        calls = {name: int(n) for _, name, n in (line.split() for line in counts.read_text().splitlines())}
        names = ("ImportFromShareableHandle", "AddressReserve", "Map", "SetAccess", "Release", "Unmap", "AddressFree", "ExportToShareableHandle")
        self.assertEqual([calls.get("cuMem" + name, 0) for name in names], [1] * 7 + [0])


class Exporter(Base):
    def test_one_that_is_stopped_is_waited_for_by_whoever_asks_it(self) -> None:
        """Threads of an importer that open and close blocks of another exporter, or close some of this one, get on meanwhile."""
        for backend in ("cuda", "vmm"):
            for held in (False, True):  # whether there is a connection already
                with self.subTest(backend=backend, held=held):
                    a, b, c = (Process(self, CUPOOL_BACKEND=backend, CUPOOL_IPC=str(TIMEOUT * 1000)) for _ in range(3))
                    for process in (a, b):
                        process.alloc(5000)  # what follows has tickets
                    mine, other = a.alone(3000, 1), a.alloc(3000, 2)
                    handle, others = a.handle(mine), a.handle(other)
                    before = a("used")
                    if held:
                        k = c.open(others, 3000)
                    a.stop()
                    self.assertEqual(c(f"opening {handle} 3"), 0)
                    if held:
                        again = c.open(others, 3000)
                        self.assertEqual((c(f"check {k} 2"), c(f"close {again}"), c(f"close {k}")), (0, 0, 0))
                    its = c.open(b.handle(b.alloc(3000, 3)), 3000)
                    self.assertEqual((c(f"check {its} 3"), c(f"close {its}")), (0, 0))
                    os.kill(a.pid, signal.SIGCONT)
                    rc, k = map(int, c.ask("opened 3000"))
                    self.assertEqual((rc, c(f"check {k} 1")), (0, 0))
                    self.assertEqual([c(f"close {k}") for _ in range(3)], [0] * 3)
                    self.assertNotEqual(c(f"close {k}"), 0)
                    self.assertEqual([a(f"free {i}") for i in (mine, other)], [0] * 2)
                    self.wait_for_at_most(a, "used", before)
                    self.assertEqual((a.err(), b.err(), c.err()), ("", "", ""))
                    self.assertEqual(c.end(), 0)

    def test_one_that_ends_while_it_is_asked(self) -> None:
        a, b, c = (Process(self, CUPOOL_IPC=str(TIMEOUT * 1000)) for _ in range(3))
        handle = a.handle(a.alone(3000, 1))
        its = c.open(b.handle(b.alone(3000, 2)), 3000)
        a.stop()
        self.assertEqual(c(f"opening {handle} 3"), 0)
        a.kill()
        self.assertEqual(c.ask("opened 3000"), [str(3 * MAP_FAILED), "-1"])
        self.assertIn("has ended", c.err())
        self.assertEqual((c(f"check {its} 2"), c(f"close {its}")), (0, 0))

    def test_the_importer_resets_its_device_while_one_is_asked(self) -> None:
        """The reset waits for no exporter. What was open is let go of, and an exporter that is stopped hears of it later."""
        for backend in ("cuda", "vmm"):
            with self.subTest(backend=backend):
                a, c = (Process(self, CUPOOL_BACKEND=backend, CUPOOL_IPC=str(TIMEOUT * 1000)) for _ in range(2))
                handle = a.handle(a.alone(3000, 2))
                before = a("used")
                mine = a.alone(ALONE, 1)
                c.open(a.handle(mine), ALONE)
                a.stop()
                self.assertEqual(c(f"opening {handle} 1"), 0)
                self.assertEqual(c("reset"), 0)
                os.kill(a.pid, signal.SIGCONT)
                c("opened 3000")  # whether it finds the new context or none
                self.assertEqual(a(f"free {mine}"), 0)
                self.wait_for(a, "used", before)
                k = c.open(handle, 3000)
                self.assertEqual((c(f"check {k} 2"), c(f"close {k}"), c("used")), (0, 0, 0))

    def test_one_that_is_stopped_hears_of_every_close(self) -> None:
        """It is not waited for, and hears of all when it goes on, without another call of the importer: nothing stays held."""
        a, b = (Process(self, CUPOOL_BACKEND="vmm", CUPOOL_IPC=str(TIMEOUT * 1000)) for _ in range(2))
        before = a("used")
        mine = [int(a.ask("alloc 600")[1]) for _ in range(400)]  # a socket has room for some 280
        its = [b.open(a.handle(i), 600) for i in mine]
        a.stop()
        for k in its:
            self.assertEqual(b(f"close {k}"), 0)
        os.kill(a.pid, signal.SIGCONT)
        for i in mine:
            self.assertEqual(a(f"free {i}"), 0)
        self.wait_for(a, "used", before)

    def test_an_error_of_the_device(self) -> None:
        """A free returns it, as natively, also if another process has the block open."""
        # The first call of cuMemGetInfo is the library's.
        fault = f"cuCtxSynchronize:1+:{ILLEGAL_ADDRESS},cuMemGetInfo_v2:2+:{ILLEGAL_ADDRESS}"
        for held in (False, True):
            a, b = Process(self, SIMGPU_FAULT=fault), Process(self)
            mine = int(a.ask("alloc 3000")[1])
            handle = a.handle(mine)
            self.assertTrue(is_ticket(handle))
            if held:
                b.open(handle, 3000)
            self.assertEqual(a(f"free {mine}"), ILLEGAL_ADDRESS, held)

    def test_a_pause(self) -> None:
        """It replaces the memory, so what is exported while it waits for work would be lost to the importer."""
        a, b = (Process(self, CUPOOL_BACKEND="vmm") for _ in range(2))
        mine = a.alloc(3000, 1)
        self.assertEqual(a("busy 1000"), 0)
        self.assertEqual(a("pause"), 0)
        time.sleep(0.3)
        rc, *handle = a.ask(f"handle {mine}")
        error = a("resume")
        if rc != "0":
            self.assertEqual(error, 0)
            handle = [a.handle(mine)]
        its = b.open(handle[0], 3000)
        self.assertEqual(b(f"check {its} 1"), 0)
        self.assertEqual(b(f"fill {its} 2"), 0)
        self.assertEqual(a(f"check {mine} 2"), 0)
        # And what is exported is not paused.
        self.assertEqual(a("pause"), 0)
        self.assertEqual(a("resume"), -errno.EBUSY)

    def test_a_descriptor_stays_with_its_memory(self) -> None:
        """To make one is dear, so it is made once for a segment, however often its only block is freed and exported; and anew for the
        memory that a pause brings back."""
        counts = self.tmp / "counts"
        a = Process(self, CUPOOL_BACKEND="vmm", decay="100", SIMGPU_COUNTS=str(counts))
        b = Process(self, CUPOOL_BACKEND="vmm")
        for seed in (*range(3), PAUSE, 9):
            if seed == PAUSE:
                limit = time.monotonic() + TIMEOUT  # the last close may not have arrived
                while (error := (a("pause"), a("resume"))[1]) == -errno.EBUSY and time.monotonic() < limit:
                    time.sleep(0.01)
                self.assertEqual(error, 0)
                continue
            mine = a.alloc(3000, seed)
            its = b.open(a.handle(mine), 3000)
            self.assertEqual(b(f"check {its} {seed}"), 0)
            self.assertEqual(b(f"close {its}"), 0)
            self.assertEqual(a(f"free {mine}"), 0)
        self.assertEqual(a.end(), 0)
        self.assertEqual(re.findall(r" cuMemExportToShareableHandle (\d+)", counts.read_text()), ["2"])

    def test_where_ranks_have_to_agree(self) -> None:
        """A block that another process holds would change the memory that this rank registers with NCCL."""
        a = Process(self, preload=LIB.with_name("libcupool-nccl.so"), CUPOOL_REGISTER="1")
        self.assertEqual(a(f"handle {a.alone(3000)}"), INVALID)
        self.assertIn("no IPC handle for", a.err())
