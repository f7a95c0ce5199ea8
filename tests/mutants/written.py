# SPDX-License-Identifier: Apache-2.0
"""Tries the hand-written mutants of lists/: each must be noticed by every test that it names."""
from __future__ import annotations

import re
import time
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
        found = [(file, match.start(), match.end()) for file, text in texts.items() for match in pattern(edit[0]).finditer(text)]
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
        tree.compile()
        return [t for t in tests if all(tree.run(t).passed for _ in range(mutant.times))]
    finally:
        tree.write(before)


def run(place: Path, mutants: "list[Mutant]") -> int:
    tree, sources, bad = Tree(place, []), Sources(TOP), 0
    tree.compile()
    for test in sorted({t for m in mutants for t in m.tests}):
        if test.partition(" / ")[0] not in tree.tests:
            raise RuntimeError(f"no test is called {test}")
        if not tree.run(test).passed:
            bad += 1
            print(f"fails without any mutant: {test}", flush=True)
    for mutant in mutants:
        start = time.monotonic()
        try:
            missed = unaware(tree, sources, mutant, mutant.tests)
            verdict = f"SURVIVED {', '.join(missed)}" if missed else "killed"
        except ValueError as e:
            missed, verdict = [""], f"DOES NOT APPLY: {e}"
        except RuntimeError as e:
            missed, verdict = [""], f"ERROR: {e}"
        bad += bool(missed)
        print(f"{mutant.name}: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
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
