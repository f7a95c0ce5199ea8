# SPDX-License-Identifier: Apache-2.0
"""NCCL: registration of memory that the pool does not serve, with CUPOOL_REGISTER=use."""

import unittest
from typing import Any

from nccl_jobs import BREACH, NEW, OLD, RANKS, Base, Run


class Used(Base):
    """CUPOOL_REGISTER=use: memory that the pool does not serve is registered once it is used, and released with it."""

    def used(self, scenario: str, limit: str = "1M", **more: Any) -> Run:
        return self.job(scenario, "cuda", register="use", CUPOOL_LIMIT=limit, **more)

    def assert_used(self, run: Run, times: int) -> None:
        """So often was an allocation used for the first time, and nothing else registered."""
        self.assert_registered(run)
        used = run.of("use")
        self.assertEqual(len(used), times)
        self.assertEqual({(e["d"], e["p"], e["n"]) for e in run.of("register")}, {(e["d"], e["p"], e["n"]) for e in used})
        self.assertEqual(run.of("segment_alloc"), [])

    def test_as_the_pool_does(self) -> None:
        """The programs that test the pool's memory, with memory that the pool does not serve."""
        for why in {"limit": "1M"}, {"limit": "0", "CUPOOL_DEBUG": "1"}:
            for scenario, count in ("all", 2), ("kinds", 2), ("comms", 1), ("nonblocking", 1), ("again", 1):
                for more in {}, {"processes": True}, {"plugin": True}:
                    with self.subTest(scenario, **why, **more):
                        run = self.used(scenario, **why, **more)
                        self.assert_used(run, count * RANKS)
                        self.assertEqual(run.total("renewed"), 0)  # peers do not map it
        run = self.used("kinds", NCCL_LEGACY_CUDA_REGISTER="1")
        self.assert_used(run, 2 * RANKS)
        self.assertEqual(run.total("renewed"), 5 * RANKS)

    def test_beside_the_pool(self) -> None:
        """The pool serves what it does; its memory is registered as with 1."""
        for backend in "cuda", "nccl", "vmm":
            with self.subTest(backend):
                run = self.job("mapped", backend, register="use")
                self.assert_used(run, 5 * RANKS)
                run = self.job("all", backend, register="use")
                self.assert_registered(run)
                self.assertEqual(run.of("use"), [])

    def test_mapped(self) -> None:
        """Other memory at the same addresses is registered anew, with each communicator that uses it."""
        for processes in False, True:
            for version in OLD, NEW:
                with self.subTest(version, processes=processes):
                    run = self.used("mapped", version=version, processes=processes)
                    self.assert_used(run, 5 * RANKS)
                    self.assertEqual(len({e["p"] for e in run.of("use") if e["d"] == 0}), 2)
                    # Once it is used there; the second time only one of the two does. One has send/recv first.
                    self.assertEqual(run.total("renewed"), RANKS if version == OLD else 0)
                    self.assertEqual(len(run.of("register")), 9 * RANKS + run.total("renewed"))

    def test_kinds(self) -> None:
        """There is nothing in front of it: what NCCL before 2.29.2 needs waits for the device."""
        run = self.used("past_kinds")
        self.assert_used(run, RANKS)
        self.assertEqual(run.total("renewed"), RANKS)
        self.assertEqual(self.used("past_kinds", version=NEW).total("renewed"), 0)

    def test_reused(self) -> None:
        for processes in False, True:
            with self.subTest(processes=processes):
                self.assert_used(self.used("reused", processes=processes), 5 * RANKS)

    def test_freed_when_it_cannot_go(self) -> None:
        """Within a group, under work, in a capture: nothing waits, and it goes before the next is used."""
        self.assert_used(self.used("later"), 7 * RANKS)

    def test_freed_beside_a_capture(self) -> None:
        """By a thread in relaxed mode: the host waits, and the memory is there."""
        self.assert_used(self.used("freed_beside_capture", ranks=2, SIMGPU_MEMORY="64M"), 2)

    def test_unmapped_when_it_cannot_go(self) -> None:
        """Unmapping does not wait. A line reports it, and the next memory there is registered anew, and right."""
        run = self.used("unmapped", rc=BREACH)
        self.assertEqual(len(run.done.warnings), 1, run.done.err)
        self.assertIn("go although NCCL has them registered", run.done.warnings[0])
        self.assert_anew(run)

    def test_unmapped_beside_others(self) -> None:
        """Another thread's call of NCCL at that moment does not decide which memory is registered."""
        self.assert_used(self.used("beside", ranks=2), (50 + 2) * 2)

    def test_unmapping_refused(self) -> None:
        """By the driver: the memory is there as before, and registered for its next use."""
        self.assert_used(self.used("not_unmapped"), 3 * RANKS)

    def test_freed_unseen(self) -> None:
        for scenario, gone in ("unseen", 1), ("unseen_larger", 2):
            run = self.used(scenario, rc=BREACH)
            self.assertEqual(run.done.warnings, [])
            self.assert_anew(run, gone)

    def test_freed_later_and_before_that_unseen(self) -> None:
        """The later free does not take what is at the address now. The stand-in tells of the registration that is left."""
        self.assertEqual(len(self.used("unseen_later", rc=BREACH).of("use")), 3 * RANKS)

    def assert_anew(self, run: Run, gone: int = 1) -> None:
        """Memory that went with its registration was deregistered later, and the memory there now was registered."""
        self.assertEqual((run.operations("some"), run.operations("none")), (0, 0))
        self.assertEqual(len(run.of("use")), (2 + gone) * RANKS)
        self.assertEqual(len(run.of("deregister")), (2 + gone) * RANKS)
        # The stand-in reports nothing else.
        self.assertEqual(run.reported("breaches"), gone * RANKS)
        self.assertEqual(run.done.err.count("was freed while it was registered"), gone * RANKS)

    def test_under_work(self) -> None:
        run = self.used("busy", ranks=2, SIMGPU_MEMORY="64M", SIMGPU_DELAY_US="2000")
        self.assert_used(run, 4 * 2)

    def test_going(self) -> None:
        """A request that is refused waits for what another thread is about to let go."""
        run = self.used("going", ranks=2, SIMGPU_MEMORY="64M", SIMGPU_DELAY_US="2000")
        self.assert_used(run, 3 * 2)

    def test_slowly_going(self) -> None:
        """A request that is refused waits for memory that another thread deregisters, however long that takes."""
        run = self.used("slowly_going", ranks=2, SIMGPU_MEMORY="64M", SIMNCCL_DEREGISTER_MS="400")
        self.assert_used(run, 2)

    def test_revoked(self) -> None:
        """It is freed when the communicator is destroyed, and a request that is refused meanwhile finds nothing to give back."""
        run = self.used("revoked", ranks=2, SIMGPU_MEMORY="80M")
        self.assertEqual((run.done.err, run.reported("breaches")), ("", 0))
        for device in 0, 1:
            events = [e["e"] for e in run.of("comm_destroy", "deregister") if e["d"] == device]
            self.assertEqual(events, ["comm_destroy", "comm_destroy", "deregister"] if events[1] == "comm_destroy" else
                             ["comm_destroy", "deregister", "comm_destroy"])

    def test_context_gone(self) -> None:
        self.assert_used(self.used("reset"), 5 * RANKS)

    def test_never(self) -> None:
        """Stream-ordered, managed, small, not to be shared, imported: not registered, and counted."""
        run = self.used("never")
        self.assertEqual(run.reported("breaches"), 0)
        self.assertEqual(run.operations("some"), 5 * RANKS)
        self.assertEqual((run.total("mixed"), len(run.of("use"))), (5 * RANKS, RANKS))

    def test_parts(self) -> None:
        """Memory that is mapped only in part, or is not there any more, is not registered."""
        for scenario, times in ("parts", 4), ("unseen_smaller", 1):
            with self.subTest(scenario):
                run = self.used(scenario)
                self.assertEqual((run.done.warnings, run.reported("breaches")), ([run.done.warnings[0]], 0), run.done.err)
                self.assertIn("one buffer in registered memory and one outside", run.done.warnings[0])
                self.assertEqual((run.operations("some"), run.total("mixed"), len(run.of("use"))), (times * RANKS, times * RANKS, RANKS))

    def test_less_than_the_buffer(self) -> None:
        """Memory that does not hold the whole buffer is not registered for it."""
        run = self.used("in_two", SIMNCCL_FAIL="ncclAllGather:1+")
        self.assertEqual((run.done.err, run.total("outside"), run.of("use")), ("", RANKS, []))

    def test_off(self) -> None:
        for register in "0", "1", "force":
            with self.subTest(register):
                run = self.job("mapped", "cuda", register=register, CUPOOL_LIMIT="1M")
                self.assertEqual((run.done.err, run.reported("registrations")), ("", 0))
                self.assertEqual(run.of("use"), [])
        run = self.used("reused", CUPOOL_HOOK="runtime")
        self.assertEqual(len(run.done.warnings), 1, run.done.err)
        self.assertIn("CUPOOL_REGISTER=use is as 1", run.done.warnings[0])
        self.assertEqual(run.reported("registrations"), 0)

    def test_registration_fails(self) -> None:
        run = self.used("mapped", SIMNCCL_FAIL="ncclCommRegister:1+")
        self.assertEqual(run.reported("breaches"), 0)
        self.assertEqual(run.operations("none"), run.total("outside"))
        run = self.used("mapped", SIMNCCL_FAIL="ncclCommDeregister:1+", rc=BREACH, CUPOOL_LOG_LEVEL="error")
        self.assertNotIn("line", run.done.err)
