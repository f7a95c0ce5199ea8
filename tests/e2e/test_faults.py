# SPDX-License-Identifier: Apache-2.0
"""Driver functions that fail, each in turn: those that shim/real/calls.def lists, because the library calls them for itself at moments
when the program did not ask for anything like that.

docs/faults.md says what may then happen, a row for each function; the tests read it and hold it against the events in
faults.c. In no case does the program crash, hang, or find other bytes than it wrote.
"""

import os
import re
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from e2e import BIN, COVERAGE, SANITIZE, SOURCE, Case, app

sys.path.insert(0, str(SOURCE / "scripts"))
from cupool_trace.replay import Rank  # noqa: E402

FUNCTIONS = re.findall(r"^DRIVER_\w+\((\w+),", (SOURCE / "shim" / "real" / "calls.def").read_text(), re.M)
TABLE = SOURCE / "docs" / "faults.md"

# This many of the calls that a scenario makes of a function fail, one in each run.
CALLS = 20
# One in so many runs is made, and the first for each function: all of them with TEST_RUNS=2 or more, fewer where each costs more and
# shows what the others show.
STEP = max(1, 3 // int(os.environ.get("TEST_RUNS", "1"))) if SANITIZE == "none" and not COVERAGE else 9
# Unknown error, out of memory, an error of an earlier kernel, not permitted, the driver is going, capture. One for each run, in turn.
CODES = [999, 2, 700, 800, 4, 900]
KINDS = ["driver", "runtime"]
NOT_READY = 600
KEPT = 2 << 20  # bytes that a wait beside a capture keeps
STICKY = [700]  # of CODES
HOST_FUNCTION = ("cuCtxGetCurrent", 800)  # the answer on the driver's own threads, where no free is permitted

STRICT, ORDERED, SCARCE = {"CUPOOL_FREE": "strict"}, {"CUPOOL_FREE": "ordered"}, {"SIMGPU_MEMORY": "48M"}
PINNED = {"CUPOOL_HOST_POOL": "1", "CUPOOL_HOST_LIMIT": "8M"}
# Work that depends on the clock would make other calls than the n-th fail, so it has a scenario to itself, for these functions only.
CLOCK = ["cuStreamQuery"]
# So much memory takes long, so it has a scenario to itself, too.
POPULATED = ["cuMemHostRegister_v2", "cuMemHostUnregister"]
# Only what the backend adds, and what says when its segments may go.
VMM = {"CUPOOL_BACKEND": "vmm"}
# That no scenario calls: test_pause.py makes these fail.
ELSEWHERE = {"cuMemcpyHtoDAsync_v2"}
VIRTUAL = ["cuMemCreate", "cuMemRelease", "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
           "cuEventRecord", "cuEventQuery", "cuEventCreate", "cuStreamCreate", "cuCtxGetCurrent", "cuDeviceGetAttribute"]
LARGE = {"CUPOOL_HOST_POOL": "1", "CUPOOL_HOST_POPULATE": "1"}
SCENARIOS: "list[tuple[str, dict[str, str]]]" = [
    ("plain", {}), ("plain", STRICT), ("plain", {"CUPOOL_FILL": "0xa5"}), ("plain", {"CUPOOL_DEBUG": "guard"}),
    ("contexts", ORDERED), ("contexts", {}), ("renew", ORDERED), ("renew", {}), ("scarce", {**ORDERED, **SCARCE}), ("scarce", SCARCE),
    ("capture", {}), ("capture", STRICT), ("threads", {}), ("copies", ORDERED), ("copies", {}), ("idle", {"CUPOOL_DECAY": "0"}), ("later", STRICT),
    ("pinned", PINNED), ("pinned", {**ORDERED, **PINNED}), ("pinned", LARGE),
    ("plain", VMM), ("plain", {**STRICT, **VMM}), ("contexts", VMM), ("scarce", {**ORDERED, **SCARCE, **VMM}), ("capture", VMM), ("copies", VMM),
]


def functions_of(scenario: str, env: "dict[str, str]") -> "list[str]":
    return CLOCK if scenario == "idle" else POPULATED if LARGE.items() <= env.items() else VIRTUAL if VMM.items() <= env.items() else FUNCTIONS


@dataclass
class Row:
    """One function's row in docs/faults.md."""
    sees: "set[str]"
    loses: bool
    unpooled: int
    for_good: "set[str]"


def table_read() -> "dict[str, Row]":
    rows = {}
    for line in TABLE.read_text().split("\n"):
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if re.fullmatch(r"`cu\w+`", cells[0]):
            name, sees, loses, unpooled, for_good = cells
            rows[name.strip("`")] = Row(set(re.findall(r"`(\w+)`", sees)), loses != "no", int(unpooled),
                                        set(re.findall(r"`(\w+)`", for_good)))
    return rows


@dataclass
class Outcome:
    """The result of one run of faults.c."""
    errors: "list[tuple[str, int, str]]" = field(default_factory=list)  # "error" or "again", code, call
    calls: "dict[str, tuple[int, int]]" = field(default_factory=dict)  # function: first call, the one after the last
    total = before = native = shown = 0  # bytes of device 0, see faults.c
    strange: "list[str]" = field(default_factory=list)
    problems: "list[str]" = field(default_factory=list)  # of the trace
    held = live = allocs = 0  # held: bytes of device 0
    captures: bool = False

    @property
    def lost(self) -> int:
        """Bytes that the driver counts as taken and that have no holder. A wait beside a capture keeps a byte."""
        lost = self.before - self.native - self.held
        return 0 if self.captures and lost == KEPT else lost


class Faults(Case):
    def outcome(self, kind: str, scenario: str, *functions: str, **env: str) -> Outcome:
        done = self.go(BIN / f"faults_{kind}", scenario, *functions, **{"CUPOOL_DECAY": "off", **env})
        outcome = Outcome(captures=scenario == "capture")
        for line in done.out.splitlines():
            words = line.split()
            if words[0] in ("error", "again"):
                outcome.errors.append((words[0], int(words[1]), words[3]))
            elif words[0] == "calls":
                outcome.calls[words[1]] = (int(words[2]), int(words[3]))
            elif words[0] == "memory":
                outcome.total, outcome.before, outcome.native, outcome.shown = (int(w) for w in words[1:])
            else:
                outcome.strange.append(line)
        for name in done.files:
            rank = Rank(str(done.cwd / name))
            outcome.problems += [text for _, text in rank.problems.kept]
            if not rank.reader.complete:
                outcome.problems.append(rank.reader.state)
            for d, dev in rank.replay.devices.items():
                stats = dev.stats or {key: 0 for key in ("allocs", "live", "held")}
                outcome.allocs += stats["allocs"]
                outcome.live += stats["live"]
                outcome.held += dev.held if d == 0 else 0
                if stats["held"] != dev.held:
                    outcome.problems.append(f"held: {stats['held']} in the counters, {dev.held} in the events")
        return outcome

    plain: "dict[tuple[str, str, str], Outcome]" = {}

    def without_faults(self, scenario: str, env: "dict[str, str]") -> "dict[str, Outcome]":
        """For each kind. Run once for all tests: which calls a scenario makes, the clock does not change."""
        for kind in KINDS:
            key = (kind, scenario, str(env))
            if key not in self.plain:
                self.plain[key] = self.outcome(kind, scenario, *FUNCTIONS, **env)
        return {kind: self.plain[kind, scenario, str(env)] for kind in KINDS}

    def assert_fine(self, outcome: Outcome) -> None:  # type: ignore[override]
        self.assertEqual(outcome.strange, [])
        self.assertEqual(outcome.problems, [])

    def assert_once(self, function: str, row: Row, code: int, outcome: Outcome, allocs: int) -> None:
        """One call has failed."""
        self.assert_fine(outcome)
        lost = outcome.lost if row.loses else 0
        for how, seen, call in outcome.errors:
            self.assertTrue((how == "error" and seen == code and (call in row.sees or call == function))
                            or (how == "error" and (call, seen) == ("elapsed", NOT_READY) and call in row.sees)
                            or (lost and seen == 2 and call == "alloc"), f"{how} {seen} in {call}, which {TABLE.name} does not allow")
        self.assertEqual(outcome.lost, lost, "memory that nobody holds and the driver counts as taken")
        # Natively, too, a free that returns such an error has freed nothing.
        if code not in STICKY and (function, code) != HOST_FUNCTION:
            self.assertEqual(outcome.before - outcome.shown, lost, "memory that the program is not told to be free in the end")
            self.assertEqual(outcome.live, 0, "bytes never handed out again")
        if not lost and code not in STICKY:
            self.assertLessEqual(allocs - outcome.allocs, row.unpooled, "requests that were not pooled")

    def assert_for_good(self, function: str, row: Row, code: int, outcome: Outcome) -> None:
        """It has never worked again."""
        self.assert_fine(outcome)
        if function in (call for _, _, call in outcome.errors):
            return  # the program needs it itself, and what comes of that is CUDA's
        for how, seen, call in outcome.errors:
            self.assertIn(call, row.for_good, f"{how} {seen}")
            # 1: a free that reported an error has freed, so its second call is one too many.
            self.assertIn(seen, (code, NOT_READY) if call == "elapsed" else (code, 2) if call == "alloc" else (code, 1) if call == "free" else (code,), call)

    def setUp(self) -> None:
        super().setUp()
        self.table = table_read()

    def test_every_function_has_a_row(self) -> None:
        self.assertGreaterEqual(len(FUNCTIONS), 15)
        missing, strange = set(FUNCTIONS) - set(self.table), set(self.table) - set(FUNCTIONS)
        self.assertFalse(missing, "shim/real/calls.def has these: a row in docs/faults.md has to say what happens when they fail")
        self.assertFalse(strange, "docs/faults.md has rows for these, which shim/real/calls.def has not")
        unexplained = [name for name in FUNCTIONS if TABLE.read_text().count(f"`{name}`") < 2]
        self.assertFalse(unexplained, "docs/faults.md does not say why the library calls these")

    def test_the_injection_works(self) -> None:
        """Otherwise everything below would pass for nothing."""
        for kind in KINDS:
            outcome = self.outcome(kind, "plain", SIMGPU_FAULT="cuMemAlloc_v2:3:999,cuMemFree_v2:2:999", CUPOOL_ENABLE="0")
            self.assertEqual(outcome.errors, [("error", 999, "alloc"), ("error", 999, "free")])
            self.assertEqual((outcome.lost, outcome.before - outcome.shown), (0, 0))

    def test_without_faults(self) -> None:
        for scenario, env in SCENARIOS:
            for kind in KINDS:
                with self.subTest(scenario, kind=kind, **env):
                    outcome = self.without_faults(scenario, env)[kind]
                    self.assert_fine(outcome)
                    self.assertEqual((outcome.errors, outcome.lost, outcome.live, outcome.shown), ([], 0, 0, outcome.before))

    def test_each_call_fails(self) -> None:
        runs = []
        reached: "set[tuple[str, str]]" = set()  # scenario, function
        with ThreadPoolExecutor(2) as workers:  # most of a run is waiting
            for scenario, env in SCENARIOS:
                plain = self.without_faults(scenario, env)
                for i, function in enumerate(f for f in self.table if f in functions_of(scenario, env)):
                    # With other settings, one in three of those that have had their turn.
                    turn = (scenario, function) in reached
                    step = STEP * 3 if turn else STEP
                    for j in range(CALLS):
                        kind, code = KINDS[(i + j) % 2], CODES[(i + j) % len(CODES)]
                        first, end = plain[kind].calls.get(function, (0, 0))
                        if first + j >= end:
                            break
                        reached.add((scenario, function))
                        if (i + j) % step and (turn or j):
                            continue
                        fault = f"{function}:{first + j}:{code}"
                        runs.append((function, fault, code, scenario, kind, env, plain[kind].allocs,
                                     workers.submit(self.outcome, kind, scenario, SIMGPU_FAULT=fault, **env)))
            for function, fault, code, scenario, kind, env, allocs, outcome in runs:
                with self.subTest(fault, scenario=scenario, kind=kind, **env):
                    self.assert_once(function, self.table[function], code, outcome.result(), allocs)
        self.assertEqual(set(self.table) - {function for _, function in reached}, ELSEWHERE, "no scenario of faults.c makes the library call these: it needs one that does")

    def test_each_fails_for_good(self) -> None:
        """From its first call by the library on, and from a later one."""
        runs = []
        done: "set[str]" = set()
        with ThreadPoolExecutor(2) as workers:
            for scenario, env in SCENARIOS:
                plain = self.without_faults(scenario, env)
                for i, function in enumerate(f for f in self.table if f in functions_of(scenario, env)):
                    for j in (0, 1, 6):
                        kind, code = KINDS[(i + j // 2) % 2], CODES[(i + j) % len(CODES)]
                        first, end = plain[kind].calls.get(function, (0, 0))
                        if first + j < end and ((i + j) % STEP == 0 or function not in done):
                            done.add(function)
                            fault = f"{function}:{first + j}+:{code}"
                            runs.append((function, fault, code, scenario, kind, env,
                                         workers.submit(self.outcome, kind, scenario, SIMGPU_FAULT=fault, **env)))
            for function, fault, code, scenario, kind, env, outcome in runs:
                with self.subTest(fault, scenario=scenario, kind=kind, **env):
                    self.assert_for_good(function, self.table[function], code, outcome.result())

    def test_an_error_of_the_context_is_seen_at_the_free(self) -> None:
        """As natively, where cudaFree waits and returns the error of an earlier kernel."""
        for kind in ("shared", "static", "driver"):
            done = self.go(app(kind), "tolerate", "alloc:20:4096", "free:19",
                           SIMGPU_FAULT="cuCtxRecordEvent:2+:700,cuCtxWaitEvent:2+:700,cuMemGetInfo_v2:4+:700")
            # Not the first few: how often we ask for other reasons is our business.
            self.assertGreaterEqual(done.out.count("error 700 in free"), 10, done.out)
