# SPDX-License-Identifier: Apache-2.0
"""Memory of another process at reserved addresses: processes that die at any moment, a driver that refuses calls, and the programs of
examples/ and tests/gpu.
"""

import errno
import os
import random
import time
import unittest

from e2e import BIN, SANITIZE, TIMEOUT, Done
from ipc_process import UNIT, Server, Switch

INVALID, BUSY, DOWN = -errno.EINVAL, -errno.EBUSY, -errno.EHOSTDOWN
SIZES = (UNIT, 3 * UNIT, 2 * UNIT + 100)  # of the models


class Deaths(Switch):
    """Importers and exporters die at any moment; the others' books are exact afterwards."""

    ROUNDS = 40 * int(os.environ.get("TEST_RUNS", "1")) if SANITIZE == "none" else 10

    def test_the_exporter_while_it_is_inserted(self) -> None:
        a, b, mine, import_, at = self.one_inserted()
        other, never = a.ticket(a.alloc(UNIT, 2)), a.ticket(a.alloc(UNIT, 3))
        second = b.take(other)
        a.kill()
        self.assertEqual(b(f"check {at} 1"), 0)
        self.assertEqual(b.not_taken(never), DOWN)
        self.assertIn("has ended", b.err())
        self.assertEqual((b(f"withdraw {at} 0"), b(f"insert {at} 0 {second}")), (0, 0))
        self.assertEqual(b(f"check {at} 2"), 0)
        self.assertEqual((b(f"withdraw {at} 0"), b(f"unimport {import_}"), b(f"unimport {second}"), b(f"unreserve {at}")), (0, 0, 0, 0))
        self.assertEqual(b.not_taken(never), DOWN)

    def test_of_importers(self) -> None:
        rng = random.Random(3)
        a = Server(self)
        before = a("used")
        a.ticket(a.alloc(UNIT))
        self.assertEqual(a("free 0"), 0)
        fds = a("fds")
        for _ in range(self.ROUNDS):
            b = Server(self)
            mine = [a.alloc(size, seed) for seed, size in enumerate(SIZES)]
            at = b.reserve(max(SIZES))
            for i in mine:
                b.send(f"import {a.ticket(i)}")
            for _ in range(rng.randrange(6)):
                b.send(f"insert {at} 0 {rng.randrange(1, 4)}")
                b.send(rng.choice((f"withdraw {at} 0", "unimport 1", f"fill {at} 3")))
            time.sleep(rng.random() * 0.02)
            b.kill()
            for i in mine:
                self.assertEqual(a(f"free {i}"), 0)
            self.wait_for(a, "used", before)
            self.wait_for_at_most(a, "fds", fds)

    def test_of_exporters(self) -> None:
        rng = random.Random(4)
        b = Server(self, CUPOOL_IPC="3000")
        at, count, inserted = b.reserve(UNIT), 0, 0
        used, fds = b("used"), 0
        for round in range(self.ROUNDS):
            a = Server(self)
            tickets = [a.ticket(a.alloc(UNIT, seed)) for seed in range(3)]
            when = round % 4  # before all, after all, or, mostly, meanwhile
            if when == 0:
                a.kill()
            for ticket in tickets:
                b.send(f"import {ticket}")
            if when == 1:
                answers = [b.answer() for _ in tickets]
            time.sleep(rng.random() * 0.003)
            a.kill()
            if when != 1:
                answers = [b.answer() for _ in tickets]
            numbers = [int(answer[0]) for answer in answers]
            self.assertLessEqual({n for n in numbers if n < 0}, {DOWN})
            for seed, number in enumerate(numbers):
                if number > 0:
                    self.assertEqual(b(f"insert {at} 0 {number}"), 0)
                    self.assertEqual(b(f"check {at} {seed}"), 0)
                    self.assertEqual(b(f"withdraw {at} 0"), 0)
                    self.assertEqual(b(f"unimport {number}"), 0)
                    inserted += 1
            count += len(tickets)
            fds = b("fds") if round == 0 else fds
            self.assertEqual((b("fds"), b("used")), (fds, used))
        self.assertGreater(inserted, 0)
        self.assertLess(inserted, count)
        self.assertEqual(b(f"unreserve {at}"), 0)


class Faults(Switch):
    """The importer's driver refuses a call: the caller is told, and can go on."""

    def importer(self, fault: str) -> "tuple[Server, Server, int, str]":
        a, b = Server(self), Server(self, SIMGPU_FAULT=fault)
        mine = a.alloc(UNIT, 4)
        return a, b, mine, a.ticket(mine)

    def test_of_an_insert(self) -> None:
        for fault, rc in (("cuMemMap:1:2", -errno.ENOMEM), ("cuMemMap:1:999", -errno.EIO), ("cuMemMap:1:208", BUSY), ("cuMemSetAccess:1:999", -errno.EIO)):
            with self.subTest(fault):
                a, b, mine, ticket = self.importer(fault)
                import_, at = b.take(ticket), b.reserve(UNIT)
                self.assertEqual(b(f"insert {at} 0 {import_}"), rc)
                self.assertIn("are not inserted", b.err())
                self.assertEqual(b(f"withdraw {at} 0"), INVALID)
                self.assertEqual(b(f"insert {at} 0 {import_}"), 0)
                self.assertEqual(b(f"check {at} 4"), 0)

    def test_of_a_withdrawal(self) -> None:
        a, b, mine, ticket = self.importer("cuMemUnmap:1:999")
        import_, at = b.take(ticket), b.reserve(UNIT)
        self.assertEqual(b(f"insert {at} 0 {import_}"), 0)
        self.assertEqual(b(f"withdraw {at} 0"), -errno.EIO)
        self.assertIn("are not withdrawn", b.err())
        self.assertEqual(b(f"check {at} 4"), 0)
        self.assertEqual(b(f"unimport {import_}"), BUSY)
        self.assertEqual((b(f"withdraw {at} 0"), b(f"unimport {import_}")), (0, 0))

    def test_of_an_import(self) -> None:
        """The exporter does not keep the block for it."""
        a, b, mine, ticket = self.importer("cuMemImportFromShareableHandle:1:999")
        before = a("used")
        self.assertEqual(b.not_taken(ticket), -errno.EIO)
        self.assertEqual(a(f"free {mine}"), 0)
        self.wait_for_at_most(a, "used", before - UNIT)
        for how in ({"SIMGPU_FAULT": "cuDeviceGetUuid_v2:1+:999"}, {"SIMGPU_SHARED": ""}):  # the other card is not here
            c = Server(self, **how)
            mine = a.alloc(UNIT)
            self.assertEqual(c.not_taken(a.ticket(mine)), -errno.ENODEV)
            self.assertIn("not visible", c.err())
            before = a("used")
            self.assertEqual(a(f"free {mine}"), 0)
            self.wait_for_at_most(a, "used", before - UNIT)

    def test_of_a_close(self) -> None:
        for fault, rc in (("cuMemRelease:1:999", 0), ("cuMemRelease:1+:999", -errno.EIO)):
            a, b, mine, ticket = self.importer(fault)
            before, import_ = a("used"), b.take(ticket)
            self.assertEqual(a(f"free {mine}"), 0)
            self.assertEqual(b(f"unimport {import_}"), rc)
            self.wait_for_at_most(a, "used", before - UNIT)
            self.assertEqual(b(f"unimport {import_}"), INVALID)

    def test_of_ranges(self) -> None:
        _, b, _, _ = self.importer("cuMemAddressReserve:1:2,cuMemAddressFree:1:999")
        self.assertEqual(b(f"reserve {UNIT}"), -errno.ENOMEM)
        at = b.reserve(100)
        self.assertEqual(b(f"unreserve {at}"), -errno.EIO)
        self.assertEqual(b(f"unreserve {at}"), 0)
        self.assertEqual(b(f"unreserve {at}"), INVALID)


class Example(Switch):
    """examples/switch.c"""

    def run_it(self, *words: str, rc: int = 0, **env: "str | None") -> Done:
        return self.go(BIN.parent.parent / "examples" / "switch", "--mib", "6", *words, rc=rc, timeout=TIMEOUT,
                       **{"CUPOOL_BACKEND": "vmm", "SIMGPU_SHARED": str(self.tmp / "card"), **env})

    def test_it_alternates(self) -> None:
        done = self.run_it("--requests", "9")
        self.assertRegex(done.out, r"^switch: 9 requests, 2 models of 6 MiB at one address, 0 wrong; a switch took [\d.]+ ms at most\n$")
        self.assertEqual(done.err, "")
        self.assertEqual(len(done.traces()), 2)
        inserts = []
        for trace in done.traces():
            self.assert_fine(trace.path)
            inserts += [(e["e"], e["d"], e["n"]) for e in trace.of("insert", "withdraw")]
            self.assertLessEqual(len({e["p"] for e in trace.of("insert", "withdraw")}), 1)
        self.assertEqual(inserts, [("insert", 0, 3 * UNIT), ("withdraw", 0, 3 * UNIT)] * 9)

    def test_the_parameter_server_ends(self) -> None:
        for count in (1, 2, 5):
            done = self.run_it("--lose", str(count))
            self.assertIn("8 requests, 2 models of 6 MiB at one address, 0 wrong", done.out)
            self.assertEqual(done.err, "switch: the parameter server has ended\n")
        self.assertEqual(self.run_it("--lose", "0", rc=1).err, "switch: the parameter server has ended\n")

    def test_the_program_for_gpus(self) -> None:
        """tests/gpu/switch.c, whose times say nothing here."""
        done = self.go(BIN / "switch_table", "4", "3", CUPOOL_BACKEND="vmm", SIMGPU_SHARED=str(self.tmp / "card"))
        self.assertEqual([line[:18].rstrip() for line in done.out.splitlines()[1:]],
                         ["stop and restart", "copy", "insert", "  withdraw", "  insert", "first use", "wrong bytes: 0"])

    def test_what_it_cannot_do(self) -> None:
        self.assertEqual(self.run_it(rc=1, preload=None).err, "switch: cupool: it is not there\n")
        self.assertIn("cupool_export", self.run_it(rc=1, CUPOOL_BACKEND="cuda").err)
        for words in (["--mib"], ["--mib", "1"], ["--what", "1"], ["--requests", "0"]):
            self.assertEqual(self.run_it(*words, rc=2).err, "usage: switch [--mib N] [--requests N] [--lose N]\n")
