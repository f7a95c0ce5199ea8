# SPDX-License-Identifier: Apache-2.0
"""cupool_export, cupool_import, cupool_insert and cupool_withdraw between processes: another process's memory is at the addresses
that this one has reserved, its bytes are right, and whoever uses the functions wrongly harms nobody. test_switch_ends.py has deaths and
errors of the driver.
"""

import errno
import os
import resource
import signal
import time
import unittest

from e2e import MIB, SANITIZE
from ipc_process import UNIT, Process, Server, Switch, is_ticket

INVALID, BUSY, NOTSUP, NOENT, NOSYS = (-e for e in (errno.EINVAL, errno.EBUSY, errno.ENOTSUP, errno.ENOENT, errno.ENOSYS))
SIZES = (UNIT, 6 * MIB, 5 * MIB + 100)  # of the models


class Models(Switch):
    def test_they_alternate(self) -> None:
        a, b = self.two()
        a.alloc(5000)
        before = a("used")
        mine = [a.alloc(size, seed) for seed, size in enumerate(SIZES)]
        imports = [b.take(a.ticket(i), (size + UNIT - 1) // UNIT * UNIT) for i, size in zip(mine, SIZES)]
        self.assertEqual(len(set(imports)), len(SIZES))
        used = b("used")
        at = b.reserve(max(SIZES))
        views = [int(b.ask(f"part {at} 0 {size}")[0]) for size in SIZES]
        for round in range(3):
            for i, view in enumerate(views):
                self.assertEqual(b(f"insert {at} 0 {imports[i]}"), 0)
                self.assertEqual(b(f"check {view} {i + 10 * round}"), 0)
                self.assertEqual(b(f"fill {view} {i + 10 * round + 10}"), 0)
                self.assertEqual(b("used"), used)  # it is the exporter's
                self.assertEqual(b(f"withdraw {at} 0"), 0)
                self.assertEqual(a(f"check {mine[i]} {i + 10 * round + 10}"), 0)
        for import_ in imports:
            self.assertEqual(b(f"unimport {import_}"), 0)
        self.assertEqual(b(f"unreserve {at}"), 0)
        for i in mine:
            self.assertEqual(a(f"free {i}"), 0)
        self.wait_for(a, "used", before)
        self.assertEqual((a.err(), b.err()), ("", ""))
        self.assertEqual((a.end(), b.end()), (0, 0))

    def test_several_in_a_range(self) -> None:
        a, b = self.two()
        imports = [b.take(a.ticket(a.alloc(2 * UNIT, seed))) for seed in range(3)]
        at = b.reserve(8 * UNIT)
        for place, import_ in zip((5, 0, 2), imports):
            self.assertEqual(b(f"insert {at} {place * UNIT} {import_}"), 0)
        parts = [b(f"part {at} {place * UNIT} {2 * UNIT}") for place in (5, 0, 2)]
        self.assertEqual([b(f"check {part} {seed}") for seed, part in enumerate(parts)], [0] * 3)
        self.assertEqual(b(f"check {b(f'part {at} {4 * UNIT} {UNIT}')} 0"), -1)  # nothing is there
        self.assertEqual(b(f"withdraw {at} 0"), 0)
        self.assertEqual(b(f"check {parts[1]} 1"), -1)
        self.assertEqual(b(f"insert {at} {UNIT} {imports[1]}"), BUSY)  # reaches into the next one
        self.assertEqual(b(f"insert {at} 0 {imports[1]}"), 0)
        self.assertEqual([b(f"check {part} {seed}") for seed, part in enumerate(parts)], [0] * 3)

    def test_what_is_inserted_twice(self) -> None:
        """A block that is imported twice is at two places."""
        a, b = self.two()
        ticket = a.ticket(a.alloc(UNIT, 1))
        imports, ranges = [b.take(ticket) for _ in range(2)], [b.reserve(UNIT) for _ in range(2)]
        for at, import_ in zip(ranges, imports):
            self.assertEqual(b(f"insert {at} 0 {import_}"), 0)
        self.assertEqual(b(f"fill {ranges[0]} 7"), 0)
        self.assertEqual(b(f"check {ranges[1]} 7"), 0)

    def test_importer_and_exporter(self) -> None:
        a, b = self.two()
        mine, its = a.alloc(UNIT, 1), b.alloc(UNIT, 2)
        for p, ticket, seed in ((b, a.ticket(mine), 1), (a, b.ticket(its), 2)):
            at = p.reserve(UNIT)
            self.assertEqual(p(f"insert {at} 0 {p.take(ticket)}"), 0)
            self.assertEqual(p(f"check {at} {seed}"), 0)

    def test_the_calls_of_the_driver(self) -> None:
        """Nothing is copied, and an insert waits for nothing."""
        counts = self.tmp / "counts"
        a, b = Server(self), Server(self, SIMGPU_COUNTS=str(counts))
        imports = [b.take(a.ticket(a.alloc(UNIT, seed))) for seed in range(2)]
        at = b.reserve(UNIT)
        for i in range(10):
            self.assertEqual(b(f"insert {at} 0 {imports[i % 2]}"), 0)
            self.assertEqual(b(f"withdraw {at} 0"), 0)
        self.assertEqual(b.end(), 0)
        calls = {name: int(n) for _, name, n in (line.split() for line in counts.read_text().splitlines())}
        self.assertEqual([calls.get(name, 0) for name in ("cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemImportFromShareableHandle")],
                         [10, 10, 10, 2])
        self.assertEqual([name for name in calls if name.startswith("cuMemcpy") or name == "cuMemCreate"], [])
        self.assertLessEqual(calls.get("cuCtxSynchronize", 0), 10)  # of the withdrawals

    def test_the_withdrawal_waits(self) -> None:
        """For the work that may use the memory."""
        a, b, mine, import_, at = self.one_inserted()
        self.assertEqual(b("busy 300"), 0)
        start = time.monotonic()
        self.assertEqual(b(f"withdraw {at} 0"), 0)
        self.assertGreater(time.monotonic() - start, 0.2)

    def test_the_withdrawal_waits_for_another_device(self) -> None:
        """One where the process has no memory, and which was not current at the insert."""
        a, b = self.two()
        self.assertEqual((a("device 1"), b("device 1")), (0, 0))
        import_, at = b.take(a.ticket(a.alloc(UNIT, 1))), b.reserve(UNIT)
        self.assertEqual(b("device 0"), 0)
        self.assertEqual(b(f"insert {at} 0 {import_}"), 0)
        self.assertEqual(b("device 1"), 0)
        self.assertEqual(b(f"check {at} 1"), 0)
        self.assertEqual((b("busy 500"), b("device 0")), (0, 0))
        self.assertEqual(b(f"withdraw {at} 0"), 0)
        self.assertEqual((b("device 1"), b("idle")), (0, 0))

    def test_at_a_time(self) -> None:
        a, b = self.two()
        import_, at = b.take(a.ticket(a.alloc(UNIT, 3))), b.reserve(UNIT)
        self.assertEqual(b(f"race {at} 500 {import_}"), 0)
        self.assertEqual(b(f"insert {at} 0 {import_}"), 0)
        self.assertEqual(b(f"check {at} 3"), 0)


class Wrong(Switch):
    def test_arguments(self) -> None:
        a, b, mine, import_, at = self.one_inserted(2 * UNIT)
        other = b.take(a.ticket(a.alloc(2 * UNIT, 2)))
        small = b.reserve(UNIT)
        free = b.reserve(3 * UNIT)
        block = b.alloc(4 * UNIT)
        for command, rc in ((f"insert {at} 0 {other}", BUSY), (f"insert {at} {UNIT} {other}", INVALID), (f"insert {free} 0 {import_}", BUSY),
                            (f"insert {small} 0 {other}", INVALID), (f"insert {free} 4096 {other}", INVALID),
                            (f"insert {free} {2 * UNIT} {other}", INVALID), (f"insert {free} {-UNIT} {other}", INVALID),
                            (f"insert {block} 0 {other}", INVALID), (f"insert {free} 0 {other + 1}", INVALID), (f"insert {free} 0 0", INVALID),
                            (f"insert {free} 0 -1", INVALID), (f"withdraw {free} 0", INVALID), (f"withdraw {at} {UNIT}", INVALID),
                            (f"withdraw {block} 0", INVALID), (f"unimport {import_}", BUSY), (f"unimport {other + 1}", INVALID),
                            ("unimport 0", INVALID), (f"unreserve {at}", BUSY), (f"unreserve {block}", INVALID), ("reserve 0", INVALID),
                            (f"reserve {1 << 60}", INVALID), (f"free {at}", 1), (f"free {free}", 1)):
            with self.subTest(command):
                self.assertEqual(b(command), rc)
        # Nothing has changed.
        self.assertEqual(b(f"check {at} 1"), 0)
        self.assertEqual(b(f"insert {free} {UNIT} {other}"), 0)
        self.assertEqual(b(f"check {b(f'part {free} {UNIT} {2 * UNIT}')} 2"), 0)
        for command in (f"withdraw {at} 0", f"withdraw {free} {UNIT}", f"unimport {import_}", f"unimport {other}", f"unreserve {at}", f"unreserve {free}"):
            self.assertEqual(b(command), 0)
        for command in (f"withdraw {at} 0", f"unimport {import_}", f"unreserve {at}", f"insert {at} 0 {import_}", f"insert {small} 0 {other}"):
            self.assertEqual(b(command), INVALID)
        self.assertEqual(b.take(a.ticket(mine)), other + 1)  # no number is used again
        self.assertEqual(b.err(), "")

    def test_tickets(self) -> None:
        a, b = self.two()
        mine = a.alloc(UNIT, 1)
        ticket = a.ticket(mine)
        self.assertEqual(a.ticket(mine), ticket)
        self.assertEqual(a.handle(mine), ticket)  # also CUDA IPC's
        self.assertEqual(b(f"check {b.open(ticket, UNIT)} 1"), 0)
        self.assertEqual(a.not_taken(ticket), INVALID)
        for i in (0, 12, 20, 40, 60):
            damaged = bytearray.fromhex(ticket)
            damaged[i] ^= 1
            self.assertEqual(b.not_taken(damaged.hex()), INVALID)
        self.assertEqual(b.not_taken("00" * 64), INVALID)
        self.assertEqual(a(f"free {mine}"), 0)
        self.assertEqual(b(f"close {2 - 2}"), 0)
        self.assertEqual(b.not_taken(ticket), NOENT)
        self.assertIn("the block has been freed there", b.err())

    def test_blocks_that_are_not_exported(self) -> None:
        a, b = self.two()
        small, tiny, large = a.alloc(1 << 20), a.alloc(100), a.alloc(UNIT)
        for number in (small, tiny):
            self.assertEqual(a(f"export {number}"), NOTSUP)
        self.assertEqual(a(f"export {large} 512"), INVALID)
        self.assertEqual(a(f"export {a.reserve(UNIT)}"), INVALID)
        self.assertEqual(a(f"free {large}"), 0)
        self.assertEqual(a(f"export {large}"), INVALID)
        # CUDA IPC's ticket of a block that lies behind others: what it is asked for is given back.
        ticket = a.handle(tiny)
        self.assertTrue(is_ticket(ticket))
        self.assertEqual(b.not_taken(ticket), NOTSUP)
        before = a("used")
        self.assertEqual((a(f"free {small}"), a(f"free {tiny}")), (0, 0))
        self.wait_for_at_most(a, "used", before - 1)  # its message that it has not taken the block may still be under way

    def test_a_block_that_is_held(self) -> None:
        a, b, mine, import_, at = self.one_inserted()
        self.assertEqual(a(f"free {mine}"), 0)
        self.assertEqual(a(f"export {mine}"), BUSY)
        self.assertEqual(a(f"free {mine}"), 1)

    def test_blocks_that_share_a_segment(self) -> None:
        """They are refused, and those that are allocated later share none."""
        a, b = Server(self, decay="off", SIMGPU_MEMORY="64G"), Server(self, SIMGPU_MEMORY="64G")
        for number in [a.alloc(3 * MIB) for _ in range(100)]:  # enough, and of sizes that leave much of their last 2 MiB
            self.assertEqual(a(f"free {number}"), 0)
        numbers = [a.alloc(5 * MIB) for _ in range(4)]
        self.assertEqual([a(f"export {number}") for number in numbers], [NOTSUP] * 4)
        for number in numbers:  # CUDA IPC's tickets of these: some begin a segment, with others behind them
            self.assertEqual(b.not_taken(a.handle(number)), NOTSUP)
        self.assertIn("it shares virtual memory with other blocks", b.err())
        for seed in range(4):
            b.take(a.ticket(a.alloc(5 * MIB, seed)), 6 * MIB)

    def test_guard_bytes(self) -> None:
        """They are behind the block, and their rounding makes what is imported larger."""
        a, b = Server(self, CUPOOL_DEBUG="guard"), Server(self)
        mine = a.alloc(UNIT, 1)
        import_, at = b.take(a.ticket(mine), 2 * UNIT), b.reserve(2 * UNIT)
        self.assertEqual(b(f"insert {at} 0 {import_}"), 0)
        self.assertEqual(b(f"check {b(f'part {at} 0 {UNIT}')} 1"), 0)
        self.assertEqual(a(f"free {mine}"), 0)
        self.assertEqual(a.err(), "")

    def test_other_backends_and_settings(self) -> None:
        for env in ({"CUPOOL_BACKEND": "cuda"}, {"CUPOOL_IPC": "0"}, {"CUPOOL_HOOK": "runtime"}):
            with self.subTest(str(env)):
                a = Server(self, **env)
                self.assertEqual(a(f"export {a.alloc(UNIT)}"), NOTSUP)
        a, b = Server(self), Server(self, CUPOOL_IPC="0")
        self.assertEqual(b.not_taken(a.ticket(a.alloc(UNIT))), NOTSUP)
        c = Server(self, CUPOOL_BACKEND="cuda")  # the importer's own blocks do not matter
        at = c.reserve(UNIT)
        self.assertEqual(c(f"insert {at} 0 {c.take(a.ticket(a.alloc(UNIT, 6)))}"), 0)
        self.assertEqual(c(f"check {at} 6"), 0)
        d, e = Server(self, CUPOOL_BACKEND="cuda", SIMGPU_VMM="0"), Server(self, CUPOOL_BACKEND="cuda")
        self.assertEqual(d("alloc 100"), 0)
        first = e.alloc(5000)
        self.assertEqual(b.not_taken("00" * 64), INVALID)
        self.assertEqual(c.not_taken(e.handle(e.alone(100 << 10))), NOTSUP)
        self.assertEqual(e(f"free {first}"), 0)

    def test_without_cupool(self) -> None:
        for env in ({"preload": None}, {"CUPOOL_ENABLE": "0"}):
            p = Process(self, **env)  # type: ignore[arg-type]
            self.assertEqual(p("alloc 3000000"), 0)
            for command in ("export 0", "import 00", "unimport 1", "reserve 4096", "unreserve 0", "insert 0 0 1", "withdraw 0 0"):
                self.assertEqual(p(command), NOSYS, command)

    @unittest.skipIf("address" in SANITIZE, "the address sanitizer itself does not get over a cancelled thread")
    def test_threads_that_are_cancelled(self) -> None:
        """They return first from the call that they have made: the import would be nobody's, or be worked on for ever."""
        a, b = self.two()
        mine = a.alloc(UNIT, 1)
        before = a("used")
        rc, ticket = a.ask(f"cancelled export {mine}")
        self.assertEqual((rc, ticket), ("0", a.ticket(mine)))
        self.assertEqual(b.ask(f"cancelled reserve {UNIT}"), ["0", "0"])
        self.assertEqual(b.ask(f"cancelled import {ticket}"), ["1", str(UNIT)])
        self.assertEqual(b.ask("cancelled insert 0 0 1"), ["0"])
        self.assertEqual(b("check 0 1"), 0)
        self.assertEqual(b("busy 50"), 0)
        for command in ("withdraw 0 0", "unimport 1", "unreserve 0"):
            self.assertEqual(b.ask(f"cancelled {command}"), ["0"])
            self.assertEqual(b(command), INVALID)
        self.assertEqual(a(f"free {mine}"), 0)
        self.wait_for_at_most(a, "used", before - UNIT)

    def test_without_descriptors(self) -> None:
        """An importer that may have few more is told so, and the exporter's books stay exact."""
        a, b = self.two()
        mine, hard = a.alloc(UNIT, 1), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        before, ticket = a("used"), a.ticket(mine)
        errors = []
        for limit in range(3, 200):
            resource.prlimit(b.pid, resource.RLIMIT_NOFILE, (limit, hard))
            if (rc := b.not_taken(ticket)) > 0:
                break
            errors.append(rc)
        self.assertEqual(set(errors), {-errno.EMFILE})
        self.assertNotIn("Protocol", b.err())
        self.assertEqual((a(f"free {mine}"), b(f"unimport {rc}")), (0, 0))
        self.wait_for_at_most(a, "used", before - UNIT)

    def test_errno(self) -> None:
        """No function changes it, whatever the system says."""
        a, b, mine, import_, at = self.one_inserted()
        ticket, second = a.ticket(mine), b.take(a.ticket(mine))
        self.assertEqual(a(f"free {mine}"), 0)
        self.assertEqual(b.not_taken(ticket), NOENT)
        a.kill()
        self.assertEqual(b(f"unimport {second}"), 0)
        self.assertEqual((b(f"withdraw {at} 0"), b(f"unimport {import_}"), b(f"unreserve {at}")), (0, 0, 0))
        self.assertEqual(b.not_taken(ticket), -errno.EHOSTDOWN)
        self.assertEqual(b("changed"), 0)

    def test_another_user(self) -> None:
        if os.getuid():
            raise unittest.SkipTest("another user can only be played by root")
        a, b = Server(self), Process(self, user=12345)
        self.assertEqual(int(b.ask(f"import {a.ticket(a.alloc(UNIT))}")[0]), -errno.EPERM)

    def test_an_exporter_that_is_stopped(self) -> None:
        a, b = Server(self), Server(self, CUPOOL_IPC="200")
        mine = a.alloc(UNIT, 1)
        before, ticket = a("used"), a.ticket(mine)
        a.stop()
        self.assertEqual(b.not_taken(ticket), -errno.ETIMEDOUT)
        os.kill(a.pid, signal.SIGCONT)
        self.assertEqual(a(f"free {mine}"), 0)
        self.wait_for_at_most(a, "used", before - UNIT)


class Beside(Switch):
    """Captures, pauses, resets, frees and children while memory is inserted."""

    def test_a_capture(self) -> None:
        """With one device: for a second one, whose context is unknown, a later check would refuse it as well."""
        a, b, mine, import_, at = self.one_inserted(SIMGPU_DEVICES="1")
        self.assertEqual(b(f"capture {at}"), BUSY)
        self.assertEqual(b(f"check {at} 1"), 0)
        self.assertEqual(b(f"withdraw {at} 0"), 0)

    def test_pauses(self) -> None:
        """The importer pauses its own memory, and the exporter cannot."""
        a, b, mine, import_, at = self.one_inserted()
        own = b.alloc(UNIT, 5)
        for _ in range(2):
            self.assertEqual((b("pause"), b("resume")), (0, 0))
            self.assertEqual((b(f"check {at} 1"), b(f"check {own} 5")), (0, 0))
        self.assertEqual((a("pause"), a("resume")), (0, BUSY))

    def test_an_export_while_the_device_is_paused(self) -> None:
        a, b = self.two()
        mine = a.alloc(UNIT, 1)
        self.assertEqual((a("pause"), a("paused")), (0, 0))
        self.assertEqual(a(f"export {mine}"), BUSY)
        self.assertEqual(a(f"handle {mine} 0"), 1)
        self.assertEqual([line.split(": ")[-1] for line in a.err().splitlines()], ["its device is paused, or the block has been freed"])
        self.assertEqual(a("resume"), 0)
        at = b.reserve(UNIT)
        self.assertEqual(b(f"insert {at} 0 {b.take(a.ticket(mine))}"), 0)
        self.assertEqual(b(f"check {at} 1"), 0)

    def test_a_reset(self) -> None:
        """Of the importer: the memory stays. Of the exporter: too, and its block is not there for later imports."""
        a, b, mine, import_, at = self.one_inserted()
        ticket = a.ticket(mine)
        self.assertEqual(b("reset"), 0)
        self.assertEqual(b(f"check {at} 1"), 0)
        self.assertEqual(a("reset"), 0)
        self.assertEqual(b.not_taken(ticket), NOENT)
        a.alloc(UNIT, 9)
        self.assertEqual(b(f"check {at} 1"), 0)
        self.assertEqual((b(f"withdraw {at} 0"), b(f"unimport {import_}"), b(f"unreserve {at}")), (0, 0, 0))

    def test_the_exporter_frees_the_block(self) -> None:
        a, b = self.two()
        before = a("used")
        mine = a.alloc(UNIT, 1)
        import_, at = b.take(a.ticket(mine)), b.reserve(UNIT)
        self.assertEqual(a(f"free {mine}"), 0)
        fresh = [a.alloc(UNIT, 7) for _ in range(4)]
        self.assertNotIn(a(f"at {mine}"), [a(f"at {i}") for i in fresh])
        self.assertEqual(b(f"insert {at} 0 {import_}"), 0)
        self.assertEqual(b(f"check {at} 1"), 0)
        self.assertEqual(b(f"fill {at} 2"), 0)
        self.assertEqual([a(f"check {i} 7") for i in fresh], [0] * 4)
        self.assertEqual(b(f"withdraw {at} 0"), 0)
        for i in fresh:
            self.assertEqual(a(f"free {i}"), 0)
        self.wait_for(a, "used", before + UNIT)
        self.assertEqual(b(f"unimport {import_}"), 0)
        self.wait_for(a, "used", before)

    def test_a_child(self) -> None:
        """It keeps nothing of ours, and cannot use it."""
        a, b, mine, import_, at = self.one_inserted()
        child = b("fork")
        self.assertEqual(a(f"free {mine}"), 0)
        before = a("used")
        b.kill()
        self.wait_for_at_most(a, "used", before - UNIT)
        os.kill(child, signal.SIGKILL)
