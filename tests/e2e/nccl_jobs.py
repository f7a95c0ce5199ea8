# SPDX-License-Identifier: Apache-2.0
"""Jobs with the stand-in for NCCL, for the tests of registration.

The stand-in holds NCCL's rules against every call and reports: how many operations had all, some or none of their buffers
registered, and breaches, which end the program with 86.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Optional

from e2e import BIN, LIB, SIM, TIMEOUT, Case, Done

NCCL_LIB = LIB.with_name("libcupool-nccl.so")
SIMNCCL = Path(os.environ["E2E_SIMNCCL"])
RANKS = 3
BREACH = 86
OLD, NEW = "22809", "22902"  # before and after the bug of send/recv first


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
            ranks: int = RANKS, version: str = OLD, plugin: bool = False, app: str = "nccl_app", preload: Optional[str] = str(NCCL_LIB), **more: str) -> Run:
        cwd = self.folder()
        report = self.tmp / f"report-{cwd.name}"
        env = dict(LD_LIBRARY_PATH=f"{SIMNCCL}:{SIM}", SIMGPU_DEVICES=str(ranks), SIMNCCL_STRICT="1", SIMNCCL_REPORT=str(report),
                   SIMNCCL_VERSION=version, **more)
        if backend is not None:
            env["CUPOOL_BACKEND"] = backend
        if register is not None:
            env["CUPOOL_REGISTER"] = register
        program = [BIN / "host", "l", BIN / "nccl_plugin.so"] if plugin else [BIN / app]
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
            if e["e"] in ("register", "deregister"):
                self.assertLessEqual(e["us"] * 1000, e["t"])  # the call began after the trace did
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
