# SPDX-License-Identifier: Apache-2.0
"""Draws mutants that generate.py makes, and tries them: whether each compiles, changes the code, and is noticed.

A mutant is drawn by first drawing a place (of all places that have any), then one of the changes of this place, so that places
with many changes do not count for more. Verdicts:
  did not compile  the compiler or the linker says no
  equivalent       the objects are the same, byte for byte, or equivalent.txt lists it
  nearest, suite   a test that executes the line, or one of the others, failed or hung
  lived            no test failed
"""
from __future__ import annotations

import hashlib
import json
import queue
import random
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Optional

import generate
import nearest
import tokens
from tree import TOP, Tree

SETUP = ["-Doptimization=2", "-Ddebug=false", "-Dwerror=false"]
VERDICTS = ["did not compile", "equivalent", "nearest", "suite", "lived"]
LISTED = Path(__file__).resolve().parent / "equivalent.txt"


class Drawn(NamedTuple):
    file: str
    line: int
    last: int
    function: str
    change: generate.Change
    old: str  # the lines that it changes, with single blanks
    new: str  # and what they become

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old}  =>  {self.new}"


def _blanks(text: str) -> str:
    return " ".join(text.split())


def apply(text: str, change: generate.Change) -> str:
    """Keeps the number of lines, so that what follows has the lines that the compiler knew."""
    lost = "\n" * text.count("\n", change.start, change.end)
    if text.find("\\\n", change.start, change.end) >= 0:  # in a macro
        lost = lost.replace("\n", " \\\n")
    return text[:change.start] + change.new + lost + text[change.end:]


def mutants(top: Path, file: str) -> "list[Drawn]":
    text = (top / file).read_text()
    functions = [] if file.endswith(".def") else tokens.functions(tokens.read(text))
    found = []
    for change in generate.row_changes(text) if file.endswith(".def") else generate.changes(text):
        first, last = text.count("\n", 0, change.start) + 1, text.count("\n", 0, change.end) + 1
        start, end = text.rfind("\n", 0, change.start) + 1, text.find("\n", change.end)
        inside = [f.name for f in functions if f.start <= change.start < f.end]
        found.append(Drawn(file, first, last, inside[0] if inside else "", change, _blanks(text[start:end]),
                           _blanks(text[start:change.start] + change.new + text[change.end:end])))
    return found


def all_mutants(top: Path, files: "list[str]") -> "list[Drawn]":
    chosen = [f for f in tokens.sources(top) if not f.endswith(".S")
              and (not files or any(f == name or f.startswith(name.rstrip("/") + "/") for name in files))]
    return [mutant for file in chosen for mutant in mutants(top, file)]


def changed_lines(top: Path, revision: str) -> "dict[str, set[int]]":
    """The lines that differ from the revision, by file."""
    done = subprocess.run(["git", "diff", "-U0", "--no-color", revision, "--", *tokens.FOLDERS], cwd=top, text=True, check=True,
                          stdout=subprocess.PIPE)
    lines: "dict[str, set[int]]" = {}
    file = ""
    for row in done.stdout.splitlines():
        if row.startswith("+++ "):
            file = row[6:]
        match = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", row)
        if match:
            first, count = int(match.group(1)), int(match.group(2) or 1)
            lines.setdefault(file, set()).update(range(first, first + count))
    return lines


def draw(every: "list[Drawn]", seed: int, count: Optional[int]) -> "list[Drawn]":
    places: "dict[tuple[str, int], list[Drawn]]" = {}
    for mutant in every:
        places.setdefault((mutant.file, mutant.change.start), []).append(mutant)
    chance = random.Random(seed)
    order = sorted(places)
    chance.shuffle(order)
    return [chance.choice(places[place]) for place in order[:count]]




def listed() -> "dict[tuple[str, str, str], str]":
    """The equivalents that are known, (function or "", old, new), with their reasons. ValueError: a row lacks something."""
    found: "dict[tuple[str, str, str], str]" = {}
    reason, old, function = "", "", ""
    for number, row in enumerate(LISTED.read_text().splitlines() if LISTED.exists() else [], 1):
        kind, text = row[:2], _blanks(row[2:])
        if kind == "# ":
            continue
        if kind == "= ":
            reason = text
        elif kind == "@ ":
            function = text
        elif kind == "- ":
            old = text
        elif kind == "+ " and reason and old:
            found[function, old, text] = reason
            function = ""
        elif row.strip():
            raise ValueError(f"{LISTED.name}:{number}: not '= reason', '@ function', '- old' or '+ new' in this order")
    return found


def stale(top: Path) -> "list[tuple[str, str, str]]":
    every = all_mutants(top, [])
    made = {(m.function, m.old, m.new) for m in every} | {("", m.old, m.new) for m in every}
    return [key for key in listed() if key not in made]


class Trial:
    """Tries mutants in some trees, one thread for each. Verdicts of killed mutants are kept in the folder: tests are added, seldom
    lost, so that a second run tries only what lived; again: forget them."""

    def __init__(self, place: Path, suites: "list[str]", all_tests: bool, budget: float, again: bool, jobs: int = 1,
                 top: Path = TOP) -> None:
        self.place, self.suites, self.all_tests, self.budget, self.top = place, suites, all_tests, budget, top
        self.nearest = nearest.Nearest(place, top)
        self.nearest.measure(suites, jobs)
        self.listed = listed()
        self.lock = threading.Lock()
        self.file = place / "verdicts.jsonl"
        rows = [json.loads(row) for row in self.file.read_text().splitlines()] if self.file.exists() and not again else []
        self.before = {row["key"]: (row["verdict"], row["by"]) for row in rows if row["verdict"] != "lived"}
        self.results: "dict[Drawn, tuple[str, str]]" = {}

    def run(self, drawn: "list[Drawn]", jobs: int) -> None:
        waiting: "queue.SimpleQueue[Drawn]" = queue.SimpleQueue()
        for mutant in drawn:
            waiting.put(mutant)
        with ThreadPoolExecutor(jobs) as pool:
            trees = list(pool.map(lambda n: Tree(self.place / f"worker{n}", SETUP, self.top), range(jobs)))
        trees[0].fingerprints()  # so that ccache has the objects for the others
        workers = [threading.Thread(target=self._work, args=(tree, waiting), daemon=True) for tree in trees]
        for worker in workers:
            worker.start()
        for worker in workers:
            while worker.is_alive():
                worker.join(1)  # so that an interrupt is noticed

    def _work(self, tree: Tree, waiting: "queue.SimpleQueue[Drawn]") -> None:
        clean: "dict[str, str]" = {}
        while True:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                return
            key = hashlib.sha1(f"{mutant.file} {mutant.change} {(self.top / mutant.file).read_text()}".encode()).hexdigest()
            verdict = self.before.get(key)
            if not verdict:
                clean = clean or tree.fingerprints()
                verdict = self._try(tree, mutant, clean)
            with self.lock:
                self.results[mutant] = verdict
                with self.file.open("a") as out:
                    print(json.dumps({"key": key, "verdict": verdict[0], "by": verdict[1]}), file=out)
                print(f"{len(self.results)}: {verdict[0]}{' by ' + verdict[1] if verdict[1] else ''}: {mutant}", flush=True)

    def _try(self, tree: Tree, mutant: Drawn, clean: "dict[str, str]") -> "tuple[str, str]":
        reason = self.listed.get((mutant.function, mutant.old, mutant.new)) or self.listed.get(("", mutant.old, mutant.new))
        if reason:
            return "equivalent", reason
        before = tree.write({mutant.file: apply((tree.source / mutant.file).read_text(), mutant.change)})
        try:
            if tree.fingerprints() == clean:
                return "equivalent", ""
            near = self.nearest.tests(mutant.file, mutant.line, mutant.last, mutant.function)
            noticed = self._first(tree, near, self.budget)
            if noticed:
                return "nearest", noticed
            if self.all_tests:
                rest = [name for name in nearest.chosen(tree, nearest.SUITES) if name not in near]
                noticed = self._first(tree, rest, float("inf"))
            return ("suite", noticed) if noticed else ("lived", f"{len(near)} tests" if near else "no test executes it")
        except RuntimeError:
            return "did not compile", ""
        finally:
            tree.write(before)

    def _first(self, tree: Tree, tests: "list[str]", budget: float) -> str:
        """The first test that notices; which are left when the budget is spent are not run."""
        for name in tests:
            if budget <= 0:
                break
            tree.prepare(name)
            result = tree.run(name, self.nearest.limit(name))
            budget -= result.cpu
            if not result.passed:
                return name + (", which hangs" if result.hung else "")
        return ""

    def table(self) -> str:
        rows = ["| folder | drawn | did not compile | equivalent | killed by the nearest | by the suite | lived | lived, of those that count |",
                "|---|---|---|---|---|---|---|---|"]
        for folder in [*tokens.FOLDERS, "all"]:
            verdicts = [v for m, (v, _) in self.results.items() if folder == "all" or m.file.startswith(folder + "/")]
            if verdicts:
                counts = [verdicts.count(v) for v in VERDICTS]
                real = sum(counts[2:])
                share = f"{100 * counts[4] / real:.1f} %" if real else "-"
                rows.append(f"| {folder} | {len(verdicts)} | {' | '.join(map(str, counts))} | {share} |")
        return "\n".join(rows)

    def report(self, seed: int) -> str:
        lived = sorted((m for m, (v, _) in self.results.items() if v == "lived"), key=lambda m: (m.file, m.line))
        lines = [f"Seed {seed}, tests of {', '.join(self.suites)} that execute the line{', then all others' if self.all_tests else ''}.", "", self.table(), "", "Lived:", ""]
        return "\n".join(lines + [f"* `{m.file}:{m.line}` `{m.old}` => `{m.new}` ({self.results[m][1]})" for m in lived]) + "\n"
