# SPDX-License-Identifier: Apache-2.0
"""NCCL: memory from it, and registration with communicators of programs that know nothing of it.

The stand-in for NCCL holds its rules against every call and reports: how many operations had all, some or none of their buffers
registered, and breaches, which end the program with 86.
"""
from __future__ import annotations

import json
import os
import subprocess
import unittest
from pathlib import Path
from typing import Any, Optional

from e2e import BIN, LIB, MIB, SIM, TIMEOUT, Case, Done, app

NCCL_LIB = LIB.with_name("libcupool-nccl.so")
SIMNCCL = Path(os.environ["E2E_SIMNCCL"])
RANKS = 3
BREACH = 86
OLD, NEW = "22809", "22902"  # before and after the bug of send/recv first
SCENARIOS = ["all", "kinds", "own", "comms", "nonblocking", "again"]


class Run:
    """One job: what the library and the stand-in said, summed over its processes."""

    def __init__(self, done: Done, reports: "list[dict[str, Any]]") -> None:
        self.done, self.reports = done, reports
        self.traces = done.traces()
        self.events = [e for t in self.traces for e in t.events]

    def of(self, *names: str) -> "list[dict[str, Any]]":
        return [e for e in self.events if e["e"] in names]

    def total(self, key: str) -> int:
        return sum(e[key] for e in self.of("nccl") if "why" not in e)

    def reported(self, key: str) -> int:
        return sum(r[key] for r in self.reports)

    def operations(self, key: str) -> int:
        return sum(r["operations"][key] for r in self.reports)


class Base(Case):
    def job(self, scenario: str, backend: Optional[str] = "nccl", register: Optional[str] = "1", processes: bool = False, rc: int = 0,
            ranks: int = RANKS, version: str = OLD, plugin: bool = False, preload: Optional[str] = str(NCCL_LIB), **more: str) -> Run:
        cwd = self.folder()
        report = self.tmp / f"report-{cwd.name}"
        env = dict(LD_LIBRARY_PATH=f"{SIMNCCL}:{SIM}", SIMGPU_DEVICES=str(ranks), SIMNCCL_STRICT="1", SIMNCCL_REPORT=str(report),
                   SIMNCCL_VERSION=version, **more)
        if backend is not None:
            env["CUPOOL_BACKEND"] = backend
        if register is not None:
            env["CUPOOL_REGISTER"] = register
        program = [BIN / "host", "l", BIN / "nccl_plugin.so"] if plugin else [BIN / "nccl_app"]
        if processes:
            done = self.processes([*program, scenario, ranks], ranks, cwd, rc, env)
        else:
            done = self.go(*program, scenario, str(ranks), preload=preload, cwd=cwd, rc=rc, **env)
        lines = report.read_text().splitlines() if report.exists() else []
        return Run(done, [json.loads(line) for line in lines])

    def processes(self, args: "list[Any]", ranks: int, cwd: Path, rc: int, env: "dict[str, str]") -> Done:
        meeting = self.tmp / f"id-{cwd.name}"
        counts = self.tmp / f"counts-{cwd.name}"
        running = [subprocess.Popen([*map(str, args), str(rank), str(meeting)], cwd=cwd, text=True, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, env=self.env(str(NCCL_LIB), SIMGPU_COUNTS=str(counts), RANK=str(rank), **env))
                   for rank in range(ranks)]
        said = []
        try:
            for p in running:
                said.append(p.communicate(timeout=TIMEOUT))
        finally:
            for p in running:
                p.kill()
        self.assertEqual([p.returncode for p in running], [rc] * ranks, said)
        return Done(subprocess.CompletedProcess(args, rc, "".join(s[0] for s in said), "".join(s[1] for s in said)), cwd, counts)

    def assert_registered(self, run: Run, own: int = 0) -> None:
        """Every buffer of every operation was, and nothing is left; the trace tells of each."""
        self.assertEqual(run.reported("breaches"), 0, run.done.err)
        self.assertEqual((run.operations("some"), run.operations("none")), (0, 0))
        self.assertGreater(run.operations("all"), 0)
        self.assertEqual(len(run.of("register")) + own, run.reported("registrations"))
        self.assertEqual(len(run.of("deregister")) + own, run.reported("deregistrations"))
        self.assertEqual(len(run.of("register")), run.total("registered"))
        self.assertEqual(run.total("mixed") + run.total("outside") + run.total("unsafe") + run.total("failed"), 0)
        self.assertEqual(len(run.of("comm_init")), len(run.of("comm_destroy")))
        self.assertEqual(run.done.err, "")
        for trace in run.traces:
            self.assert_order(trace.events)
        self.assert_fine(*(t.path for t in run.traces))

    def assert_order(self, events: "list[dict[str, Any]]") -> None:
        """A segment is registered with each communicator once, while both are there."""
        registered: "set[tuple[str, str]]" = set()
        comms: "set[str]" = set()
        for e in events:
            if e["e"] == "comm_init":
                comms.add(e["comm"])
            elif e["e"] == "comm_destroy":
                comms.remove(e["comm"])
                if e["ok"]:
                    self.assertEqual([r for r in registered if r[0] == e["comm"]], [])
                registered = {r for r in registered if r[0] != e["comm"]}
            elif e["e"] == "register":
                self.assertIn(e["comm"], comms)
                self.assertNotIn((e["comm"], e["p"]), registered)
                registered.add((e["comm"], e["p"]))
            elif e["e"] == "deregister":
                registered.remove((e["comm"], e["p"]))


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
            for backend in "cuda", "nccl":
                with self.subTest(scenario, backend=backend):
                    run = self.job(scenario, backend)
                    self.assert_registered(run, own=6 * RANKS if scenario == "own" else 0)
                    self.assertEqual({e["b"] for e in run.of("segment_alloc")} - {backend}, set())

    def test_processes(self) -> None:
        for scenario in SCENARIOS:
            for backend in "cuda", "nccl":
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

    def test_an_end_beside_a_capture(self) -> None:
        """Nothing can be asked then, and waiting would have no limit: what is registered is NCCL's, and the capture lives."""
        for backend in "cuda", "nccl":
            for processes in False, True:
                run = self.job("beside_capture", backend, processes=processes, rc=BREACH)
                self.assertEqual(set(run.done.err.splitlines()), {"simnccl: CONTRACT: ncclCommFinalize: 1 registrations are left"})
                self.assertEqual([e["ok"] for e in run.of("comm_destroy")], [0] * RANKS)

    def test_an_end_beside_another_threads_capture(self) -> None:
        self.assert_registered(self.job("beside_others_capture", ranks=2))

    def test_before_cuda_12_5(self) -> None:
        """The driver cannot be asked: nobody waits, and what is registered is NCCL's in the end."""
        for scenario in "all", "kinds", "ends_beside_work":
            with self.subTest(scenario):
                run = self.job(scenario, SIMGPU_DRIVER_VERSION="12040", rc=BREACH)
                self.assertRegex(run.done.err, r"\A(simnccl: CONTRACT: nccl\w+: \d registrations are left\n)+\Z")
                self.assertEqual((run.operations("some"), run.operations("none"), run.total("unsafe")), (0, 0, 0))
                self.assertEqual({e["ok"] for e in run.of("comm_destroy")}, {0})

    def test_memory_that_goes(self) -> None:
        """Something larger needs it: deregistered first, by all; and the device is never asked for memory of another kind."""
        for backend in "cuda", "nccl":
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
        for backend in "cuda", "nccl":
            with self.subTest(backend):
                run = self.job("busy", backend, ranks=2, SIMGPU_MEMORY="64M", SIMGPU_DELAY_US="2000", CUPOOL_FREE="ordered")
                self.assert_registered(run)
                self.assertGreaterEqual(len(run.of("segment_free")), 2)

    def test_graphs(self) -> None:
        """What a graph uses stays until the communicator goes."""
        for backend in "cuda", "nccl":
            with self.subTest(backend):
                run = self.job("graph", backend, ranks=2, SIMGPU_MEMORY="72M")
                self.assert_registered(run)
                self.assertEqual(len(run.of("segment_free")), 2 * 2)

    def test_graphs_without_us(self) -> None:
        """NCCL registers by itself what captured operations use, and would find what is there later in its place."""
        for preload in NCCL_LIB, LIB:
            with self.subTest(preload.name):
                run = self.job("graph_trim", backend="nccl", register="0", ranks=2, SIMGPU_MEMORY="96M", preload=str(preload))
                self.assertEqual(len(run.done.warnings), 1, run.done.err)
                self.assertIn("when a graph was captured", run.done.warnings[0])
                self.assertEqual(run.reported("breaches"), 0)
                # Of each rank what came before the capture stays, and the last.
                self.assertEqual(run.reported("mem_allocs") - run.reported("mem_frees"), 2 * 2)
                run = self.job("graph_trim", backend="nccl", register="0", ranks=2, SIMGPU_MEMORY="96M", preload=str(preload),
                               NCCL_GRAPH_REGISTER="0")
                self.assertEqual(run.done.err, "")
                self.assertEqual(run.reported("mem_allocs") - run.reported("mem_frees"), 2)

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

    def test_statistics(self) -> None:
        run = self.job("all", CUPOOL_STATS="exit")
        line = next(line for line in run.done.err.splitlines() if "NCCL:" in line)
        self.assertIn(f"{run.total('ops')} operations, {len(run.of('register'))} registrations", line)
        self.assertEqual(run.total("ops"), run.operations("all"))
        self.assertNotIn("NCCL:", self.job("all", register="0", CUPOOL_STATS="exit").done.err)


class Kinds(Base):
    """NCCL before 2.29.2 kills jobs that use a registration for send/recv first and for a collective then. What it makes of the
    first collective is not to be known: each that comes after send/recv gets a registration of its own."""

    def test_with_care(self) -> None:
        run = self.job("kinds", processes=True)
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
        for backend in "cuda", "nccl":
            run = self.job("own_kinds", backend, ranks=2)
            self.assert_registered(run)
            self.assertEqual((run.total("renewed"), {e["n"] for e in run.of("register")}), (2 * 2, {8 * MIB}))

    def test_in_one_group(self) -> None:
        run = self.job("mixed_group", ranks=2)
        self.assert_registered(run)
        self.assertEqual(run.total("renewed"), 2 * 2)

    def test_nobody_waits(self) -> None:
        """A collective after send/recv while a receive is pending, whose sender waits for this rank to have called it."""
        for backend in "cuda", "nccl":
            with self.subTest(backend):
                run = self.job("pending", backend, ranks=2)
                self.assert_registered(run)
                self.assertEqual(run.total("renewed"), 2 if backend == "nccl" else 0)

    def test_with_care_for_graphs(self) -> None:
        """For a captured operation NCCL registers the whole allocation; what is used elsewhere is registered all the same."""
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
        """The programs that the pool's memory is tested with, whoever does not serve them."""
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
        for backend in "cuda", "nccl":
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
        """Nothing holds up who unmaps; that is said, and what is there next is registered anew, and right."""
        run = self.used("unmapped", rc=BREACH)
        self.assertEqual(len(run.done.warnings), 1, run.done.err)
        self.assertIn("go although NCCL has them registered", run.done.warnings[0])
        self.assert_anew(run)

    def test_unmapped_beside_others(self) -> None:
        """Who calls NCCL at the same time does not decide what is registered."""
        self.assert_used(self.used("beside", ranks=2), (50 + 2) * 2)

    def test_freed_unseen(self) -> None:
        for scenario, gone in ("unseen", 1), ("unseen_larger", 2):
            run = self.used(scenario, rc=BREACH)
            self.assertEqual(run.done.warnings, [])
            self.assert_anew(run, gone)

    def assert_anew(self, run: Run, gone: int = 1) -> None:
        """What went with its registration was deregistered later, and what is there now was registered."""
        self.assertEqual((run.operations("some"), run.operations("none")), (0, 0))
        self.assertEqual(len(run.of("use")), (2 + gone) * RANKS)
        self.assertEqual(len(run.of("deregister")), (2 + gone) * RANKS)
        # What the stand-in holds against it is that alone.
        self.assertEqual(run.reported("breaches"), gone * RANKS)
        self.assertEqual(run.done.err.count("was freed while it was registered"), gone * RANKS)

    def test_under_work(self) -> None:
        run = self.used("busy", ranks=2, SIMGPU_MEMORY="64M", SIMGPU_DELAY_US="2000")
        self.assert_used(run, 4 * 2)

    def test_going(self) -> None:
        """A request that is refused waits for what another thread is about to let go."""
        run = self.used("going", ranks=2, SIMGPU_MEMORY="64M", SIMGPU_DELAY_US="2000")
        self.assert_used(run, 3 * 2)

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
        """Of what is mapped only in part, or is not there any more, nothing is registered."""
        for scenario, times in ("parts", 4), ("unseen_smaller", 1):
            with self.subTest(scenario):
                run = self.used(scenario)
                self.assertEqual((run.done.warnings, run.reported("breaches")), ([run.done.warnings[0]], 0), run.done.err)
                self.assertIn("one buffer in registered memory and one outside", run.done.warnings[0])
                self.assertEqual((run.operations("some"), run.total("mixed"), len(run.of("use"))), (times * RANKS, times * RANKS, RANKS))

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


class Wrong(Base):
    def test_no_nccl(self) -> None:
        done = self.go(app("shared"), "churn:60:100000", preload=str(NCCL_LIB), CUPOOL_BACKEND="nccl", CUPOOL_REGISTER="1")
        self.assertEqual(len(done.warnings), 1, done.err)
        self.assertIn("CUPOOL_BACKEND=nccl is not possible: no NCCL is loaded", done.warnings[0])
        self.assertEqual({e["b"] for e in self.one_trace(done).of("segment_alloc")}, {"cuda"})
        self.assertEqual(self.go(app("shared"), "churn:60:100000", preload=str(NCCL_LIB), CUPOOL_REGISTER="1").err, "")

    def test_library_without_its_names(self) -> None:
        """Who looks for NCCL by its names finds none in libcupool.so; registering takes the other one, and it says so."""
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
        """What it takes from cudaMalloc instead is of no use to it."""
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
                for backend in "cuda", "nccl":
                    with self.subTest(name, scenario=scenario, backend=backend):
                        # What could not be undone is there when the communicator ends, which alone is told.
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
        """What may still be in use is not given back."""
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


if __name__ == "__main__":
    unittest.main()
