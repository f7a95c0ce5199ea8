# SPDX-License-Identifier: Apache-2.0
"""Tries the hand-written mutants of lists/: each must be noticed by every test that it names."""
from __future__ import annotations

import queue
import re
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import tokens
from lists import MUTANTS
from mutant import Mutant
from tree import TOP, Tree


def pattern(old: str) -> "re.Pattern[str]":
    """Any white space matches any other, and none where a word does not end there."""
    return re.compile(r"\s+".join(re.escape(word) for word in old.split()))


class Sources:
    """The library's texts; read once."""

    def __init__(self, top: Path) -> None:
        self.texts = {file: (top / file).read_text() for file in tokens.sources(top)}

    def places(self, texts: "dict[str, str]", edit: "tuple[str, ...]") -> "list[tuple[str, int, int]]":
        words = pattern(edit[0])
        found = [(file, match.start(), match.end()) for file, text in texts.items() for match in words.finditer(text)]
        if len(edit) > 2:
            inside = {file: [f for f in tokens.functions(tokens.read(texts[file])) if f.name == edit[2]] for file, _, _ in found}
            found = [(file, start, end) for file, start, end in found if any(f.start <= start < f.end for f in inside[file])]
        return found

    def mutate(self, mutant: Mutant) -> "dict[str, str]":
        """The text of each file that the mutant changes. ValueError: it does not apply."""
        texts = dict(self.texts)
        for edit in mutant.edits:
            found = self.places(texts, edit)
            if len(found) != 1:
                raise ValueError(f"{len(found)} places instead of one for: {edit[0]}")
            file, start, end = found[0]
            changed = texts[file][:start] + edit[1] + texts[file][end:]
            if changed == texts[file]:
                raise ValueError(f"nothing is changed in {file} by: {edit[0]}")
            texts[file] = changed
        return {file: text for file, text in texts.items() if text != self.texts[file]}


def named(words: "list[str]") -> "list[Mutant]":
    return [m for m in MUTANTS if all(w in m.name for w in words)]


def check(top: Path, mutants: "list[Mutant]") -> int:
    bad = 0
    sources = Sources(top)
    for mutant in mutants:
        try:
            sources.mutate(mutant)
        except ValueError as e:
            bad += 1
            print(f"does not apply: {mutant.name}: {e}")
    names = [m.name for m in MUTANTS]
    for name in sorted({n for n in names if names.count(n) > 1}):
        bad += 1
        print(f"two mutants are called: {name}")
    print(f"{len(mutants) - bad} of {len(mutants)} mutants apply")
    return 1 if bad else 0


def unaware(tree: Tree, sources: Sources, mutant: Mutant, tests: "list[str]") -> "list[str]":
    """Those of the tests that do not notice."""
    before = tree.write(sources.mutate(mutant))
    try:
        for test in tests:
            tree.prepare(test)
        return [t for t in tests if all(tree.run(t).passed for _ in range(mutant.times))]
    finally:
        tree.write(before)


def whole(tree: Tree, tests: "list[str]") -> "list[str]":
    """Those of the tests that fail without any mutant, or are not there: some need headers or programs that not every machine has."""
    tree.compile()
    return [test for test in tests if test.partition(" / ")[0] not in tree.tests or not tree.run(test).passed]


def verdict(tree: Tree, sources: Sources, mutant: Mutant) -> str:
    try:
        missed = unaware(tree, sources, mutant, mutant.tests)
        return f"SURVIVED {', '.join(missed)}" if missed else "killed"
    except ValueError as e:
        return f"DOES NOT APPLY: {e}"
    except RuntimeError as e:
        return f"ERROR: {e}"


def run(place: Path, mutants: "list[Mutant]", jobs: int) -> int:
    """Several trees share the mutants; each is used by one thread at a time."""
    sources, bad = Sources(TOP), 0
    trees: "queue.SimpleQueue[Tree]" = queue.SimpleQueue()

    def timed(mutant: Mutant) -> "tuple[Mutant, str, float]":
        tree, start = trees.get(), time.monotonic()
        try:
            return mutant, verdict(tree, sources, mutant), time.monotonic() - start
        finally:
            trees.put(tree)

    needed = sorted({t for m in mutants for t in m.tests})
    with ThreadPoolExecutor(jobs) as pool:
        made = list(pool.map(lambda n: Tree(place.with_name(f"{place.name}{n}") if n else place, []), range(jobs)))
        for broken in pool.map(lambda n: whole(made[n], needed[n::jobs]), range(jobs)):
            bad += len(broken)
            for test in broken:
                print(f"fails without any mutant, or is missing: {test}", flush=True)
        for tree in made:
            trees.put(tree)
        for done in as_completed([pool.submit(timed, mutant) for mutant in mutants]):
            mutant, words, seconds = done.result()
            bad += words != "killed"
            print(f"{mutant.name}: {words} ({seconds:.0f} s)", flush=True)
    print(f"{len(mutants)} mutants, {bad} faults")
    return 1 if bad else 0


def find(place: Path, mutants: "list[Mutant]") -> int:
    """Which tests notice? To write a mutant's row."""
    tree, sources = Tree(place, []), Sources(TOP)
    tree.compile()
    every = [t["name"] for t in tree.tests.values() if "native" not in t["name"]]
    broken = [t for t in every if not tree.run(t).passed]
    for mutant in mutants:
        missed = unaware(tree, sources, mutant, [t for t in every if t not in broken])
        print(f"{mutant.name}: {', '.join(t for t in every if t not in missed + broken) or 'no test notices'}", flush=True)
    return 0
