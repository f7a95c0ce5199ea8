# SPDX-License-Identifier: Apache-2.0
"""Tests of what cupool-trace check and merge say of NCCL: communicators, their ranks, registrations."""

import json
import unittest
from typing import Any

from made_traces import BASE, MIB, Case, Event, ev, good, header, stats


def comm(t: int, e: str, **keys: Any) -> Event:
    return ev(t, e, comm="0xc1", **keys)


def registered(rank: "int | None", ranks: int, *more: Event) -> "list[Event]":
    """A process of a job with NCCL: one communicator, one segment that is registered with it."""
    a = BASE
    return [
        {**header(rank), "pid": 42 + (rank or 0)},
        comm(100, "comm_init", rank=rank or 0, ranks=ranks, nccl=22809),
        ev(110, "segment_alloc", p=a, n=2 * MIB, b="nccl"),
        comm(120, "register", p=a, n=2 * MIB, us=7.5, ok=1),
        *more,
        comm(200, "deregister", p=a, n=2 * MIB, us=5.5, ok=1),
        comm(210, "comm_destroy", ok=1),
        stats(300, held=2 * MIB, peak_held=2 * MIB, segments_alloc=1),
        {"t": 310, "e": "nccl", "ops": 9, "mixed": 1, "outside": 2, "unsafe": 3, "registered": 1, "deregistered": 1, "renewed": 4, "failed": 0,
         "comms": 0, "segments": 1, "parked": 0, "quarantined": 0},
        ev(320, "end", dropped=0),
    ]


class Registrations(Case):
    def test_fine(self) -> None:
        out = self.check(registered(0, 1), 0, "ok; complete")
        self.assertNotIn("missing", out)

    def test_no_pool_on_the_device(self) -> None:
        """Memory that the program took from NCCL itself has no counters of a pool."""
        out = self.check([e for e in registered(0, 1) if e.get("e") not in ("segment_alloc", "stats")], 0)
        self.assertNotIn("warning", out)

    def test_contradictions(self) -> None:
        p = dict(p=BASE, n=2 * MIB, us=1)
        for event, expected in (
                (comm(150, "deregister", ok=1, **{**p, "p": BASE + MIB}), r":5: deregister .*: not registered with 0xc1"),
                (comm(150, "deregister", ok=1, **p), r":6: deregister .*: not registered with 0xc1"),
                (ev(150, "register", comm="0xc2", ok=1, **p), r":5: register .*: there is no communicator 0xc2"),
                (ev(150, "comm_destroy", comm="0xc2", ok=1), r":5: comm_destroy: there is no communicator 0xc2"),
                (ev(150, "comm_init", comm="0xc2", rank=4, ranks=4, nccl=22809), r":5: comm_init: rank 4 of 4")):
            self.check(registered(0, 1, event), 1, expected)
        # A call that NCCL refused has changed nothing; the next one has a registration of its own.
        self.check(registered(0, 1, comm(150, "deregister", ok=0, **p), comm(151, "register", ok=0, **p)), 0)
        self.check(registered(0, 1, comm(150, "register", ok=1, **p), comm(160, "deregister", ok=1, **p)), 0)
        self.check(registered(0, 1, comm(150, "deregister", ok=1, **p), comm(151, "register", ok=0, **p)), 1, r":7: deregister .*: not registered")
        # A communicator that was forgotten and made again at its address begins with none.
        self.check(registered(0, 1, comm(150, "comm_init", rank=0, ranks=1, nccl=22809)), 1, r":6: deregister .*: not registered")

    def many(self, status: int, ranks: "list[int]", size: int = 4, cut: bool = False, args: "tuple[str, ...]" = ()) -> str:
        paths = []
        for rank in ranks:
            events = registered(rank, size)
            paths.append(self.write(events[:4] if cut else events, f"r{rank}.jsonl"))
        done = self.run_tool("check", *args, *paths)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout

    def test_missing_ranks(self) -> None:
        self.assertNotIn("missing", self.many(0, [0, 1, 2, 3]))
        for cut in (False, True):
            self.assertIn("warning: 1 communicator of 4 ranks: rank 3 missing", self.many(0, [0, 1, 2], cut=cut))
        self.assertIn("warning: 1 communicator of 4 ranks: ranks 1 and 3 missing", self.many(0, [0, 2]))
        alone = self.many(0, [0])
        self.assertIn("information: 1 communicator of 4 ranks: ranks 1, 2 and 3 missing", alone)
        self.assertNotIn("warning", alone)
        big = (1 << 64) - 1
        self.assertIn(f"ranks 1, 3, 4, 5, 6, 7, 8, 9 and {big - 10} more missing", self.many(0, [0, 2], big))

    def test_a_rank_that_made_fewer(self) -> None:
        second = comm(150, "comm_init", rank=0, ranks=2, nccl=22809)
        again = registered(0, 2, comm(130, "deregister", p=BASE, n=2 * MIB, us=1, ok=1), comm(131, "comm_destroy", ok=1), second,
                           comm(160, "register", p=BASE, n=2 * MIB, us=1, ok=1))
        first, other = self.write(again, "r0.jsonl"), registered(1, 2)
        self.assertIn("warning: 2 communicators of 2 ranks: rank 1 missing", self.run_tool("check", first, self.write(other, "r1.jsonl")).stdout)
        # One that was killed may have been about to.
        self.assertNotIn("missing", self.run_tool("check", first, self.write(other[:4], "r1.jsonl")).stdout)

    def test_expected_ranks(self) -> None:
        self.many(0, [0, 1, 2, 3], args=("--ranks", "4"))
        self.assertRegex(self.many(1, [0, 1, 3], args=("--ranks", "4")), "(?m)^rank 2 of 4: no trace given$")
        self.assertRegex(self.many(1, [0], args=("--ranks", "3")), "(?m)^ranks 1 and 2 of 3: no trace given$")
        self.assertIn("information: rank 2 of 4: no trace given", self.many(0, [0, 1, 3]))
        self.assertEqual(self.run_tool("check", "--ranks", "0", self.write(good())).returncode, 2)

    def test_merge(self) -> None:
        """A communicator's rank is not the process's."""
        done = self.run_tool("merge", self.write([{**e, "rank": 1} if e.get("e") == "comm_init" else e for e in registered(0, 2)]))
        inits = [e for e in map(json.loads, done.stdout.splitlines()) if e.get("e") == "comm_init"]
        self.assertEqual([(e["rank"], e["comm_rank"], e["ranks"]) for e in inits], [(0, 1, 2)])
