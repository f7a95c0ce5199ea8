# SPDX-License-Identifier: Apache-2.0
"""Run the program differ without cupool and under it, with the same seeds, and compare what it says line by line.

    differ.py PROGRAM --library LIBCUPOOL [--sim FOLDER] [--seed N] [--count N] [--ops N] [--adversary] [--policies LIST]
        [--rows] [--set NAME=VALUE]

For each seed: natively and with CUPOOL_FREE=auto and strict where the program relies on cudaFree having waited
(--hazards), and natively and with ordered and relaxed where it does not. A difference is a failure unless one of RULES,
each of which cites a heading of docs/differences.md, allows it. Of a failure the seed is told, and a short part of its
operations that shows it. With --rows nothing but rows of shim/hooks/ is called, and a row that is called by no seed is a failure,
too, unless the program says why it leaves it out (differ --list). Without --sim it runs on the real GPUs, with a program of
`python3 tests/rows/rows.py --drawn shim/hooks.def tests/rows/expected.txt drawn.h cc` and then
`cc -D_GNU_SOURCE -pthread -I. -Ishim -Itests/rows -o differ tests/fuzz/differ*.c -lcudart -lcuda`.

It does not judge CUDA: an answer on which both runs agree is right.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Rule(NamedTuple):
    """A field's answers natively and under cupool. heading: how the heading of docs/differences.md begins; backend: the one
    that the difference is of."""

    native: str
    cupool: str
    heading: str
    policies: str = "auto ordered strict relaxed"
    backend: str = ""


RULES = {
    "malloc_in_capture": Rule("900", "0|900", "`cudaMalloc` in a capture in global mode"),
    "free_in_capture": Rule("900", "0|900", "`cudaFree` in a capture"),
    "query_after_free": Rule("0", "0|600", "`cudaEventQuery` and `cudaStreamQuery` right after", "auto ordered relaxed"),
    "elapsed_after_free": Rule("0", "0|600", "`cudaEventQuery` and `cudaStreamQuery` right after", "auto ordered relaxed"),
    "elapsed_after_own_free": Rule("0", "0|600", "`cudaEventQuery` and `cudaStreamQuery` right after", "relaxed"),
    "fresh": Rule("zero", "zero|other", "contents of fresh memory of 2 MiB and more"),
    "aligned": Rule("1", "0|1", "address of a block of 2 MiB and more"),
    "ipc": Rule("0:201", "0:201|1", "CUDA IPC handle of a block that shares"),
    "buffer_id": Rule("own", "own|shared", "`CU_POINTER_ATTRIBUTE_BUFFER_ID`, `SYNC_MEMOPS`"),
    "stale_read": Rule("1", "0|1", "out-of-bounds accesses and uses after the free"),
    "popped": Rule("1", "0|1", "`cudaFree` by a thread that had a context and has popped it"),
    "cuIpcOpenMemHandle": Rule(r"\d+", "1|201", "CUDA IPC handle of a block that shares"),
    "cuIpcOpenMemHandle_v2": Rule(r"\d+", "1|201", "CUDA IPC handle of a block that shares"),
    "cuMemGetHandleForAddressRange": Rule("0|1", "0|1", "address of a block of 2 MiB and more"),
    "cuPointerSetAttribute": Rule(r"\d+", "801", "pointer attributes of virtual memory", backend="vmm"),
    "ipc_capable": Rule(r"\w+", r"\w+", "CUDA IPC handle of virtual memory", backend="vmm"),
    "p2p_tokens": Rule(r"\d+", "801", "pointer attributes of virtual memory", backend="vmm"),
    "rdma_capable": Rule(r"\w+", r"\w+", "pointer attributes of virtual memory", backend="vmm"),
    "near_full": Rule("0|2", "0|2", "a request for nearly all of the card"),
}
FIELD = re.compile(r"(\w+)\{([^}]*)\}")
ROW = re.compile(r" (cu\w+)[={]")
QUERY = re.compile(r"((?:\bstream=|\bevent=|\bquery_after_free\{))600")

DIFFERENCES = Path(__file__).resolve().parents[2] / "docs" / "differences.md"

# Does the program rely on cudaFree having waited? The policies that promise that.
MODES = [(True, ["auto", "strict"]), (False, ["ordered", "relaxed"])]


def headings_missing() -> list[str]:
    """Rules whose heading is not in docs/differences.md any more."""
    text = DIFFERENCES.read_text(encoding="utf-8") if DIFFERENCES.exists() else None
    return [name for name, rule in RULES.items() if text is not None and f"\n### {rule.heading}" not in text]


def allowed(native: str, cupool: str, policy: str, backend: str = "") -> bool:
    """May these two lines differ as they do?"""
    if native == cupool:
        return True
    if FIELD.sub(r"\1", native) != FIELD.sub(r"\1", cupool):
        return False
    for (name, said), (_, answer) in zip(FIELD.findall(native), FIELD.findall(cupool)):
        rule = RULES[name]
        if not re.fullmatch(rule.native, said):
            return False
        if said != answer and not (re.fullmatch(rule.cupool, answer) and policy in rule.policies.split()
                                   and rule.backend in ("", backend)):
            return False
    return True


@dataclass
class Fuzzer:
    """How the program is run."""

    program: str
    library: str
    sim: str
    ops: int
    adversary: bool
    timeout: float
    rows: bool
    settings: dict[str, str]
    called: set[str] = field(default_factory=set)

    def run(self, seed: int, policy: str, hazards: bool, only: list[int] | None = None) -> list[str]:
        """The lines that the program wrote; the last one says how it ended. policy: empty for no cupool."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "LD_PRELOAD"))}
        if self.sim:
            env.update(LD_LIBRARY_PATH=self.sim, SIMGPU_SEED=str(seed + 1))
            # The rows' even seeds look whether frees wait, so there has to be something to wait for.
            env.setdefault("SIMGPU_DELAY_US", "2" if seed % 4 and not (self.rows and seed % 2 == 0) else "40")
        if self.adversary:
            env["SIMGPU_ADVERSARY"] = str(seed + 1)
        if policy:
            env.update(LD_PRELOAD=self.library, CUPOOL_FREE=policy, CUPOOL_TRACE_FILE="off", CUPOOL_LOG_LEVEL="error", **self.settings)
        command = [self.program, "--seed", str(seed), "--ops", str(self.ops)] + ["--hazards"] * hazards
        command += ["--rows"] * self.rows + ["--simulated"] * bool(self.sim)
        with tempfile.NamedTemporaryFile("w") as file:
            if only is not None:
                file.write("\n".join(map(str, only)))
                file.flush()
                command += ["--only", file.name]
            try:
                done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      timeout=self.timeout, check=False)
            except subprocess.TimeoutExpired as late:
                return (late.stdout or b"").decode(errors="replace").splitlines() + ["hangs"]
        return done.stdout.decode(errors="replace").splitlines() + [f"ends with {done.returncode}"]

    def rows_missed(self) -> list[str]:
        """Rows that should have been called and were not."""
        env = {**os.environ, **({"LD_LIBRARY_PATH": self.sim} if self.sim else {})}
        command = [self.program, "--list"] + ["--simulated"] * bool(self.sim)
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
        named = [line.partition(" ") for line in done.stdout.decode().splitlines()]
        return [name for name, _, why in named if not why and name not in self.called]

    def difference(self, seed: int, policy: str, hazards: bool, native: list[str], cupool: list[str]) -> str:
        """The first difference that no rule allows, in words, or nothing."""
        for a, b in zip(native, cupool):
            if self.adversary:  # which answers queries as it likes
                a, b = QUERY.sub(r"\g<1>0", a), QUERY.sub(r"\g<1>0", b)
            if not allowed(a, b, policy, self.settings.get("CUPOOL_BACKEND", "")):
                return f"natively  {a}\n  {policy:8}  {b}"
        if len(native) != len(cupool):
            return f"natively  {len(native)} lines, {native[-1]}\n  {policy:8}  {len(cupool)} lines, {cupool[-1]}"
        if native[-1] != "ends with 0":
            return f"natively  {native[-1]}"
        return ""

    def differs(self, seed: int, policy: str, hazards: bool, only: list[int]) -> bool:
        """Does this part of the operations show a difference?"""
        native = self.run(seed, "", hazards, only)
        return bool(self.difference(seed, policy, hazards, native, self.run(seed, policy, hazards, only)))

    def shrink(self, seed: int, policy: str, hazards: bool, numbers: list[int], budget: float) -> list[int]:
        """A short part that still differs: delta debugging, as long as there is time."""
        end, parts = time.monotonic() + budget, 2
        while len(numbers) > 1 and time.monotonic() < end:
            size = (len(numbers) + parts - 1) // parts
            for at in range(0, len(numbers), size):
                rest = numbers[:at] + numbers[at + size :]
                if rest and self.differs(seed, policy, hazards, rest):
                    numbers, parts = rest, max(parts - 1, 2)
                    break
                if time.monotonic() > end:
                    return numbers
            else:
                if size == 1:
                    break
                parts = min(parts * 2, len(numbers))
        return numbers

    def report(self, seed: int, policy: str, hazards: bool, what: str, native: list[str], budget: float) -> None:
        """Tell of a failure, with a short part of its operations."""
        print(f"seed {seed}, CUPOOL_FREE={policy}{', --hazards' * hazards}:\n  {what}", flush=True)
        numbers = [int(line.split(" ", 1)[0]) for line in native if line[:1].isdigit()]
        for number, line in enumerate(what.splitlines()):
            found = re.search(r"  (\d+) \d ", line)
            if number == 0 and found:
                numbers = [n for n in numbers if n <= int(found[1])]
        idle = {int(line.split(" ", 1)[0]) for line in native if line.endswith(" -")}
        without = [n for n in numbers if n not in idle]
        if self.differs(seed, policy, hazards, without):
            numbers = without
        elif not self.differs(seed, policy, hazards, numbers):
            print("  not again with these operations alone", flush=True)
            return
        numbers = self.shrink(seed, policy, hazards, numbers, budget)
        a, b = self.run(seed, "", hazards, numbers), self.run(seed, policy, hazards, numbers)
        print(f"  --only {' '.join(map(str, numbers))}")
        for x, y in zip(a + [""] * len(b), b + [""] * (len(a) - len(b))):
            print(f"    {x}" if x == y else f"  - {x}\n  + {y}", flush=True)

    def seed(self, seed: int, policies: list[str]) -> tuple[int, int, list[tuple[str, bool, str, list[str]]]]:
        """Calls made natively, lines compared, and failures."""
        calls, compared, failures = 0, 0, []
        for hazards, names in MODES:
            names = [name for name in names if name in policies]
            native = self.run(seed, "", hazards) if names else []
            self.called.update(*(ROW.findall(line) for line in native))
            calls += sum(line.count("=") + line.count("{") for line in native)
            for policy in names:
                compared += len(native)
                what = self.difference(seed, policy, hazards, native, self.run(seed, policy, hazards))
                if what:
                    failures.append((policy, hazards, what, native))
        return calls, compared, failures


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="compare a random program without and with cupool")
    parser.add_argument("program")
    parser.add_argument("--library", required=True)
    parser.add_argument("--sim", default="", help="folder of the simulated GPU; without: the real ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0, help="go on with further seeds for so long")
    parser.add_argument("--ops", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--shrink", type=float, default=60, help="seconds for making a failure short")
    parser.add_argument("--adversary", action="store_true", help="the simulated GPU behaves as badly as CUDA allows")
    parser.add_argument("--policies", default="auto,ordered,strict,relaxed")
    parser.add_argument("--rows", action="store_true", help="call rows of shim/hooks/ alone, and every one")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of cupool's")
    parser.add_argument("--failures", type=int, default=3, help="stop after so many")
    args = parser.parse_args()
    for name in headings_missing():
        print(f"docs/differences.md has no heading that begins with: {RULES[name].heading} (rule {name})")
        return 1
    fuzzer = Fuzzer(args.program, os.path.abspath(args.library), args.sim, args.ops, args.adversary, args.timeout,
                    args.rows, dict(word.split("=", 1) for word in args.set))
    calls = compared = failed = seeds = 0
    begin = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        while True:
            batch = range(args.seed + seeds, args.seed + seeds + min(args.count, args.jobs * 8))
            if not args.seconds:
                batch = range(batch.start, min(batch.stop, args.seed + args.count))
            for number, result in zip(batch, pool.map(lambda n: fuzzer.seed(n, args.policies.split(",")), batch)):
                calls, compared = calls + result[0], compared + result[1]
                for policy, hazards, what, native in result[2]:
                    failed += 1
                    fuzzer.report(number, policy, hazards, what, native, args.shrink)
            seeds += len(batch)
            late = time.monotonic() - begin > args.seconds if args.seconds else seeds >= args.count
            if late or failed >= args.failures:
                break
    missed = fuzzer.rows_missed() if args.rows and seeds > 1 else []  # some are called with every other seed
    if missed:
        print(f"never called: {' '.join(missed)}")
    print(f"{seeds} seeds, {calls} answers natively, {compared} lines compared, {failed} failures")
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
