# SPDX-License-Identifier: Apache-2.0
"""NCCL: memory from it, and registration of the pool with communicators of programs that know nothing of it."""

import subprocess
import unittest

from e2e import LIB, MIB, app
from nccl_jobs import BREACH, NCCL_LIB, NEW, OLD, RANKS, SIMNCCL, Base

SCENARIOS = ["all", "kinds", "own", "comms", "nonblocking", "again"]


class Registered(Base):
    def test_off(self) -> None:
        """As if we knew nothing of NCCL."""
        for scenario in SCENARIOS:
            with self.subTest(scenario):
                run = self.job(scenario, backend=None, register=None)
                own = 6 * RANKS if scenario == "own" else 0
                self.assertEqual((run.reported("registrations"), run.reported("mem_allocs")), (own, own))
                self.assertEqual(run.of("register", "deregister", "comm_init", "comm_destroy", "nccl"), [])
                self.assertEqual({e["b"] for e in run.of("segment_alloc")} - {"cuda"}, set())
                self.assertEqual(run.done.err, "")

    def test_threads(self) -> None:
        for scenario in SCENARIOS:
            for backend in "cuda", "nccl", "vmm":
                with self.subTest(scenario, backend=backend):
                    run = self.job(scenario, backend)
                    self.assert_registered(run, own=6 * RANKS if scenario == "own" else 0)
                    self.assertEqual({e["b"] for e in run.of("segment_alloc")} - {backend}, set())

    def test_processes(self) -> None:
        for scenario in SCENARIOS:
            for backend in "cuda", "nccl", "vmm":
                with self.subTest(scenario, backend=backend):
                    run = self.job(scenario, backend, processes=True)
                    self.assertEqual(len(run.traces), RANKS)
                    self.assert_registered(run, own=6 * RANKS if scenario == "own" else 0)

    def test_a_plugin_that_brings_its_own(self) -> None:
        """As PyTorch does: nobody else sees its NCCL."""
        for scenario in "all", "own", "comms":
            with self.subTest(scenario):
                run = self.job(scenario, plugin=True)
                self.assert_registered(run, own=6 * RANKS if scenario == "own" else 0)
        self.assertEqual(self.job("all", backend=None, register=None, plugin=True).reported("breaches"), 0)

    def test_what_ranks_give_that_send_nothing(self) -> None:
        """NCCL before 2.29.2 looks it up, too: it gets what is received in its place, and finds the same on all ranks."""
        self.job("broadcast_from_root", preload=None, backend=None, register=None)
        for backend in "cuda", "nccl", "vmm":
            for version in OLD, NEW:
                with self.subTest(backend, version=version):
                    self.assert_registered(self.job("broadcast_from_root", backend, version=version))
        self.assert_registered(self.job("broadcast_from_root", "cuda", "use", CUPOOL_LIMIT="1M"))

    def test_memory_to_send_that_is_outside_on_all_ranks(self) -> None:
        """It stays what NCCL looks for, on the ranks that send nothing, too."""
        for backend in "cuda", "nccl", "vmm":
            with self.subTest(backend):
                run = self.job("broadcast_outside", backend)
                self.assertEqual((run.reported("breaches"), run.operations("some"), run.total("mixed")), (0, RANKS, RANKS))

    def test_past_the_limit(self) -> None:
        """Memory that NCCL has not made is registered on no rank or on all: a line says that it may matter."""
        for backend, said in ("cuda", 0), ("nccl", 1):
            run = self.job("all", backend, CUPOOL_LIMIT="1M")
            self.assertEqual(run.done.err.count("bytes come from cudaMalloc, not from NCCL"), said)

    def test_an_end_beside_a_capture(self) -> None:
        """Nothing can be asked then, and waiting would have no limit: the registrations are left to NCCL, and the capture lives."""
        for backend in "cuda", "nccl", "vmm":
            for processes in False, True:
                run = self.job("beside_capture", backend, processes=processes, rc=BREACH)
                self.assertEqual(set(run.done.err.splitlines()), {"simnccl: CONTRACT: ncclCommFinalize: 1 registrations are left"})
                self.assertEqual([e["ok"] for e in run.of("comm_destroy")], [0] * RANKS)

    def test_an_end_beside_another_threads_capture(self) -> None:
        self.assert_registered(self.job("beside_others_capture", ranks=2))

    def test_before_cuda_12_5(self) -> None:
        """The driver cannot be asked: no thread waits, and the registrations are left to NCCL in the end."""
        for scenario in "all", "kinds", "ends_beside_work":
            with self.subTest(scenario):
                run = self.job(scenario, SIMGPU_DRIVER_VERSION="12040", rc=BREACH)
                self.assertRegex(run.done.err, r"\A(simnccl: CONTRACT: nccl\w+: \d registrations are left\n)+\Z")
                self.assertEqual((run.operations("some"), run.operations("none"), run.total("unsafe")), (0, 0, 0))
                self.assertEqual({e["ok"] for e in run.of("comm_destroy")}, {0})

    def test_memory_that_goes(self) -> None:
        """Something larger needs it: deregistered first, by all; and the device is never asked for memory of another kind."""
        for backend in "cuda", "nccl", "vmm":
            for processes in False, True:
                with self.subTest(backend, processes=processes):
                    run = self.job("trim", backend, processes=processes, ranks=2, SIMGPU_MEMORY="64M", CUPOOL_LOG_LEVEL="error")
                    self.assert_registered(run)
                    self.assertEqual({e["b"] for e in run.of("segment_alloc")}, {backend})
                    self.assertGreaterEqual(len(run.of("segment_free")), 2)
                    for trace in run.traces:
                        there: "set[str]" = set()
                        for e in trace.of("segment_alloc", "register", "deregister"):
                            if e["e"] == "register":
                                there.add(e["p"])
                            elif e["e"] == "deregister":
                                there.discard(e["p"])
                            else:
                                self.assertNotIn(e["p"], there, "another segment at an address that is registered")

    def test_memory_that_goes_under_work(self) -> None:
        """The host waits for it: peers write into registered memory, and nothing else would hold NCCL back."""
        for backend in "cuda", "nccl", "vmm":
            with self.subTest(backend):
                run = self.job("busy", backend, ranks=2, SIMGPU_MEMORY="64M", SIMGPU_DELAY_US="2000", CUPOOL_FREE="ordered")
                self.assert_registered(run)
                self.assertGreaterEqual(len(run.of("segment_free")), 2)

    def test_memory_of_the_programs_own_that_goes_under_work(self) -> None:
        """NCCL unmaps it without a wait; the cudaFree before has waited natively."""
        self.job("own_memory_under_work", preload=None, ranks=2)
        for preload in NCCL_LIB, LIB:
            for register in ("0", "1") if preload == NCCL_LIB else ("0",):
                with self.subTest(preload.name, register=register):
                    self.job("own_memory_under_work", backend="cuda", register=register, ranks=2, preload=str(preload))

    def test_memory_of_the_programs_own_that_goes_after_another_threads_free(self) -> None:
        """Natively that free has waited, too. Only NCCL's hooks tell the program's call from one that NCCL makes by itself."""
        for preload in None, str(NCCL_LIB):
            self.job("own_memory_under_work_of_all", backend="cuda", ranks=2, preload=preload)

    def test_graphs(self) -> None:
        """Memory that a graph uses stays until the communicator goes."""
        for backend in "cuda", "nccl", "vmm":
            with self.subTest(backend):
                run = self.job("graph", backend, ranks=2, SIMGPU_MEMORY="72M")
                self.assert_registered(run)
                self.assertEqual(len(run.of("segment_free")), 2 * 2)

    def test_graphs_whose_memory_nccl_does_not_let_us_register(self) -> None:
        """NCCL registers by itself what captured operations use, whatever it has answered to us."""
        for backend, refusal in ("nccl", {"NCCL_LOCAL_REGISTER": "0"}), ("vmm", {"NCCL_LOCAL_REGISTER": "0"}), \
                ("nccl", {"SIMNCCL_FAIL": "ncclCommRegister:1+"}):
            with self.subTest(backend, **refusal):
                run = self.job("graph_trim", backend, ranks=2, SIMGPU_MEMORY="96M", **refusal)
                self.assertEqual(run.reported("breaches"), 0)
                self.assertEqual(len(run.done.warnings), 1, run.done.err)

    def test_graphs_without_us(self) -> None:
        """NCCL registers by itself what captured operations use, and would find later memory in its place."""
        for preload in NCCL_LIB, LIB:
            with self.subTest(preload.name):
                run = self.job("graph_trim", backend="nccl", register="0", ranks=2, SIMGPU_MEMORY="96M", preload=str(preload))
                self.assertEqual(len(run.done.warnings), 1, run.done.err)
                self.assertIn("when a graph was captured", run.done.warnings[0])
                self.assertEqual(run.reported("breaches"), 0)
                # Of each rank what came before the capture stays, and the last two.
                self.assertEqual(run.reported("mem_allocs") - run.reported("mem_frees"), 2 * 3)
                run = self.job("graph_trim", backend="nccl", register="0", ranks=2, SIMGPU_MEMORY="96M", preload=str(preload),
                               NCCL_GRAPH_REGISTER="0")
                self.assertEqual(run.done.err, "")
                self.assertEqual(run.reported("mem_allocs") - run.reported("mem_frees"), 2 * 2)

    def test_graphs_without_us_of_virtual_memory(self) -> None:
        """NCCL registers that, too. It gives the program its own memory besides, whose mappings count here as well."""
        for preload in NCCL_LIB, LIB:
            with self.subTest(preload.name):
                run = self.job("graph_trim", backend="vmm", register="0", ranks=2, SIMGPU_MEMORY="96M", preload=str(preload))
                self.assertEqual(len(run.done.warnings), 1, run.done.err)
                self.assertIn("when a graph was captured", run.done.warnings[0])
                self.assertEqual(run.reported("breaches"), 0)
                self.assertEqual({e["b"] for e in run.of("segment_alloc")}, {"vmm"})
                kept = run.done.counts["cuMemMap"] - run.done.counts["cuMemUnmap"]
                run = self.job("graph_trim", backend="vmm", register="0", ranks=2, SIMGPU_MEMORY="96M", preload=str(preload),
                               NCCL_GRAPH_REGISTER="0")
                self.assertEqual(run.done.err, "")
                self.assertLess(run.done.counts["cuMemMap"] - run.done.counts["cuMemUnmap"], kept)

    def test_graphs_of_a_program_whose_operations_are_not_seen(self) -> None:
        """Registration is on, but no operation passes through the hooks: as without."""
        for backend in "nccl", "vmm":
            with self.subTest(backend):
                run = self.job("graph_trim", backend, ranks=2, SIMGPU_MEMORY="96M", app="nccl_app_unseen")
                self.assertEqual(len(run.done.warnings), 1, run.done.err)
                self.assertIn("when a graph was captured", run.done.warnings[0])
                self.assertEqual((run.reported("breaches"), run.reported("registrations")), (0, 0))
                run = self.job("graph_trim", backend, ranks=2, SIMGPU_MEMORY="96M", app="nccl_app_unseen", NCCL_GRAPH_REGISTER="0")
                self.assertEqual(run.done.err, "")

    def test_memory_after_a_reset(self) -> None:
        """Memory that NCCL has given outlives a context, and goes back when the next one asks for memory."""
        for backend in "nccl", "cuda", "vmm":
            for register in "1", "0":
                with self.subTest(backend, register=register):
                    run = self.job("after_reset", backend, register=register, ranks=2, SIMGPU_MEMORY="64M")
                    self.assertEqual((run.reported("breaches"), run.done.err), (0, ""))

    def test_memory_of_a_context_that_ends(self) -> None:
        """It is deregistered before, from communicators that stay."""
        for backend in "nccl", "cuda", "vmm":
            for processes in False, True:
                with self.subTest(backend, processes=processes):
                    self.assert_registered(self.job("other_context", backend, processes=processes, ranks=2))

    def test_memory_of_a_context_whose_end_is_refused(self) -> None:
        """It is deregistered before the call, and registered again by the next operation that uses it."""
        for backend in "nccl", "cuda", "vmm":
            for processes in False, True:
                with self.subTest(backend, processes=processes):
                    run = self.job("context_stays", backend, processes=processes, ranks=2)
                    self.assert_registered(run)

    def test_memory_for_the_programs_own_allocation(self) -> None:
        """Idle memory goes back for an ncclMemAlloc, but not inside of it: there NCCL is not called."""
        for backend in "nccl", "cuda", "vmm":
            for processes in False, True:
                with self.subTest(backend, processes=processes):
                    self.assert_registered(self.job("own_memory", backend, processes=processes, ranks=2, SIMGPU_MEMORY="64M"))

    def test_revoked(self) -> None:
        """No call is made on it any more, and its memory goes when it has been destroyed."""
        run = self.job("revoked", "cuda", ranks=2, SIMGPU_MEMORY="80M")
        self.assertEqual(run.done.err, "")
        self.assertEqual(run.reported("breaches"), 0)
        for trace in run.traces:
            for device in 0, 1:
                ended = [e for e in trace.of("comm_destroy", "segment_free", "deregister") if e["d"] == device]
                first = next(i for i, e in enumerate(ended) if e["e"] == "comm_destroy")
                self.assertEqual(ended[first]["ok"], 0)
                self.assertNotIn("deregister", [e["e"] for e in ended[:first]])
                self.assertIn("deregister", [e["e"] for e in ended[first:]])

    def test_end_beside_other_work(self) -> None:
        """Nobody waits for it without limit; what could not be undone is NCCL's, and memory registers anew."""
        run = self.job("ends_beside_work", ranks=2, rc=BREACH)
        self.assertEqual(set(run.done.err.splitlines()), {"simnccl: CONTRACT: ncclCommFinalize: 1 registrations are left"})
        self.assertEqual((run.operations("some"), run.operations("none")), (0, 0))
        self.assertEqual(sorted(e["ok"] for e in run.of("comm_destroy")), [0, 0, 1, 1])

    def test_advice(self) -> None:
        """Where its numbers of NCCL come from; the rules have a unit test."""
        run = self.job("all", backend="cuda", SIMNCCL_FAIL="ncclCommRegister:1+", CUPOOL_STATS="exit", CUPOOL_LOG_LEVEL="error")
        count = run.total("failed")
        self.assertIn(f"cupool: advice: NCCL refused {count} of {count} registrations.", run.done.err)
        run = self.job("all", ranks=8, SIMNCCL_FAIL="ncclCommRegister:1+", CUPOOL_STATS="exit", CUPOOL_LOG_LEVEL="error")
        self.assertGreaterEqual(run.total("outside"), 100)
        self.assertIn(f"advice: {run.total('outside')} of {run.total('ops')} NCCL operations had a buffer", run.done.err)
        self.assertNotIn("advice", self.job("all", CUPOOL_STATS="exit").done.err)
        preload = self.tmp / "libnccl.so.2"
        preload.symlink_to(SIMNCCL / "libnccl.so.2")
        done = self.go(app("shared"), "alloc:1:4096", preload=f"{NCCL_LIB}:{preload}", CUPOOL_REGISTER="1", CUPOOL_STATS="exit")
        self.assertIn("advice: CUPOOL_REGISTER had no effect: NCCL is loaded", done.err)

    def test_statistics(self) -> None:
        run = self.job("all", CUPOOL_STATS="exit")
        line = next(line for line in run.done.err.splitlines() if "NCCL:" in line)
        self.assertIn(f"{run.total('ops')} operations, {len(run.of('register'))} registrations", line)
        self.assertEqual(run.total("ops"), run.operations("all"))
        self.assertNotIn("NCCL:", self.job("all", register="0", CUPOOL_STATS="exit").done.err)


class Kinds(Base):
    """NCCL before 2.29.2 kills jobs that use a registration for send/recv first and for a collective then. The library
    cannot know its choice for the first collective: each that comes after send/recv gets a registration of its own."""

    def test_with_care(self) -> None:
        for backend in "nccl", "vmm":
            with self.subTest(backend):
                run = self.job("kinds", backend, processes=True)
                self.assert_registered(run)
                self.assertEqual(run.total("renewed"), 5 * RANKS)

    def test_collectives_that_use_no_registration(self) -> None:
        """One that was refused, or for which NCCL maps nothing, is not the first."""
        run = self.job("maps_nothing", ranks=2)
        self.assert_registered(run)
        self.assertGreaterEqual(run.total("renewed"), 2 * 2)
        run = self.job("maps_nothing", register="force", ranks=2, rc=BREACH)
        self.assertGreater(run.reported("breaches"), 0)

    def test_of_the_programs_own(self) -> None:
        """There is nothing in front of it, so it is made anew."""
        for backend in "cuda", "nccl", "vmm":
            run = self.job("own_kinds", backend, ranks=2)
            self.assert_registered(run)
            self.assertEqual((run.total("renewed"), {e["n"] for e in run.of("register")}), (2 * 2, {8 * MIB}))

    def test_in_one_group(self) -> None:
        run = self.job("mixed_group", ranks=2)
        self.assert_registered(run)
        self.assertEqual(run.total("renewed"), 2 * 2)

    def test_nobody_waits(self) -> None:
        """A collective after send/recv while a receive is pending, whose sender waits for this rank to have called it."""
        for backend in "cuda", "nccl", "vmm":
            with self.subTest(backend):
                run = self.job("pending", backend, ranks=2)
                self.assert_registered(run)
                self.assertEqual(run.total("renewed"), 0 if backend == "cuda" else 2)

    def test_with_care_for_graphs(self) -> None:
        """For a captured operation NCCL registers the whole allocation; the library registers memory for other operations all the same."""
        run = self.job("graph", ranks=2, SIMGPU_MEMORY="96M")
        self.assert_registered(run)
        self.assertGreaterEqual(run.total("renewed"), 2)

    def test_without_care(self) -> None:
        run = self.job("kinds", register="force", rc=BREACH)
        self.assertGreater(run.reported("breaches"), 0)
        self.assertEqual(run.total("renewed"), 0)

    def test_where_none_is_needed(self) -> None:
        for register in "1", "force":
            run = self.job("kinds", register=register, version=NEW)
            self.assert_registered(run)
            self.assertEqual(run.total("renewed"), 0)


class Wrong(Base):
    def test_no_nccl(self) -> None:
        done = self.go(app("shared"), "churn:60:100000", preload=str(NCCL_LIB), CUPOOL_BACKEND="nccl", CUPOOL_REGISTER="1")
        self.assertEqual(len(done.warnings), 1, done.err)
        self.assertIn("CUPOOL_BACKEND=nccl is not possible: no NCCL is loaded", done.warnings[0])
        self.assertEqual({e["b"] for e in self.one_trace(done).of("segment_alloc")}, {"cuda"})
        self.assertEqual(self.go(app("shared"), "churn:60:100000", preload=str(NCCL_LIB), CUPOOL_REGISTER="1").err, "")

    def test_library_without_its_names(self) -> None:
        """A program that looks for NCCL by its names finds none in libcupool.so; registering takes the other library, and a warning says so."""
        names = [s.split()[-1] for s in subprocess.run(["nm", "-D", LIB], capture_output=True, text=True, check=True).stdout.splitlines()]
        self.assertEqual([n for n in names if n.startswith("nccl")], [])
        done = self.go(app("shared"), "churn:60:100000", CUPOOL_REGISTER="1")
        self.assertEqual(len(done.warnings), 1, done.err)
        self.assertIn("takes libcupool-nccl.so", done.warnings[0])

    def test_nccl_has_no_memory(self) -> None:
        run = self.job("all", SIMNCCL_FAIL="ncclMemAlloc:1+")
        self.assertEqual(len(run.done.warnings), 1, run.done.err)
        self.assertIn("CUPOOL_BACKEND=nccl is not possible: ncclMemAlloc gives no memory", run.done.warnings[0])
        self.assertEqual({e["b"] for e in run.of("segment_alloc")}, {"cuda"})
        self.assertEqual((run.operations("some"), run.operations("none")), (0, 0))

    def test_nccl_has_no_memory_of_its_own(self) -> None:
        """Memory that NCCL takes from cudaMalloc instead cannot be registered for peers."""
        run = self.job("all", NCCL_CUMEM_ENABLE="0")
        self.assertEqual(len(run.done.warnings), 1, run.done.err)
        self.assertIn("CUPOOL_BACKEND=nccl is not possible: ncclMemAlloc gives cudaMalloc's memory here", run.done.warnings[0])
        self.assertEqual({e["b"] for e in run.of("segment_alloc")}, {"cuda"})
        self.assertEqual((run.operations("some"), run.operations("none"), run.reported("breaches")), (0, 0, 0))

    def test_memory_is_refused_later(self) -> None:
        """No memory of another kind in its place. (Every rank may ask once whether there is any.)"""
        run = self.job("all", rc=1, SIMNCCL_FAIL=f"ncclMemAlloc:{RANKS + 1}+", CUPOOL_LOG_LEVEL="error")
        self.assertIn("cudaMalloc", run.done.err)
        self.assertLessEqual({e["b"] for e in run.of("segment_alloc")}, {"nccl"})

    def test_registration_fails(self) -> None:
        run = self.job("all", SIMNCCL_FAIL="ncclCommRegister:1+")
        self.assertEqual(len(run.done.warnings), 1, run.done.err)
        self.assertIn("NCCL did not register", run.done.warnings[0])
        self.assertEqual(run.operations("none"), run.total("outside"))
        self.assertEqual(run.total("failed"), len(run.of("register")))
        self.assertEqual({e["ok"] for e in run.of("register")}, {0})

    def test_each_call_of_ours_fails(self) -> None:
        """The program does not notice. (On all ranks: registrations that some ranks alone have are what NCCL forbids.)"""
        for name in ("ncclCommRegister", "ncclCommDeregister", "ncclCommGetAsyncError", "ncclCommCuDevice", "ncclCommUserRank",
                     "ncclCommCount", "ncclGetVersion", "ncclMemFree"):
            for scenario in "all", "kinds":
                for backend in "cuda", "nccl", "vmm":
                    with self.subTest(name, scenario=scenario, backend=backend):
                        # Registrations that could not be undone are there when the communicator ends, the only breach.
                        left = name == "ncclCommDeregister"
                        run = self.job(scenario, backend, rc=BREACH if left else 0, SIMNCCL_FAIL=f"{name}:1+", CUPOOL_LOG_LEVEL="error")
                        breaches = [line for line in run.done.err.splitlines() if not left or "registrations are left" not in line]
                        self.assertEqual(breaches, [])
                        self.assertEqual(run.operations("some"), 0)

    def test_nothing_is_registered(self) -> None:
        run = self.job("all", NCCL_LOCAL_REGISTER="0")
        self.assertEqual(len(run.done.warnings), 1, run.done.err)
        self.assertIn("NCCL_LOCAL_REGISTER=0", run.done.warnings[0])

    def test_deregistration_fails(self) -> None:
        """Memory that may still be in use is not given back."""
        run = self.job("lose", processes=True, ranks=2, SIMGPU_MEMORY="96M", SIMNCCL_FAIL="ncclCommDeregister:1")
        self.assertEqual(len(run.done.warnings), 2, run.done.err)
        self.assertIn("NCCL did not deregister", run.done.warnings[0])
        failed = [e for e in run.of("deregister") if not e["ok"]]
        self.assertEqual(len(failed), 2)
        self.assertEqual(run.total("quarantined"), sum(e["n"] for e in failed))
        self.assertEqual(run.reported("breaches"), 0)
        # Of each rank the last, and what was lost.
        self.assertEqual(run.reported("mem_allocs") - run.reported("mem_frees"), 2 * 2)
        self.assertEqual(self.job("lose", ranks=2, SIMGPU_MEMORY="96M").total("quarantined"), 0)
