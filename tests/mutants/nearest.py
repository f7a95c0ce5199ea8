# SPDX-License-Identifier: Apache-2.0
"""Which tests execute a line, found by running each test once with gcov, and what each costs. Kept in the folder of the work and
measured again for tests whose program, script or library has changed. The lines of a process that is killed are not known, nor those
of one that has no GCOV_PREFIX in its environment, which tells gcov's library where the counts of this test go.
"""
from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tree import HANG_SECONDS, TOP, Tree

SETUP = ["-Db_coverage=true", "-Doptimization=1", "-Ddebug=false", "-Dwerror=false"]
FIRST_SECONDS = 5  # of the processor: what a unit test costs that comes before the others
SUITES = ["unit", "rows", "behaviour", "e2e", "info"]  # those that run the library or cupool-info; others are slow, or of scripts and stand-ins


def chosen(tree: Tree, suites: "list[str]") -> "list[str]":
    """The names of the tests that may be near: those of the suites, unit tests first."""
    found = [(name, [suite.rpartition(":")[2] for suite in test["suite"]]) for name, test in tree.tests.items()]
    return [name for suite in suites for name, of in found if suite in of and "slow" not in of]


class Nearest:
    """lines[file][line] and functions[file][(first, last)]: the tests that execute it. cost[test]: seconds of the processor."""

    def __init__(self, place: Path, top: Path = TOP) -> None:
        self.place, self.top, self.file = place, top, place / "coverage.json"
        self.known: "dict[str, dict]" = json.loads(self.file.read_text()) if self.file.exists() else {}

    def measure(self, suites: "list[str]", jobs: int) -> None:
        tree = Tree(self.place / "coverage", SETUP, self.top)
        names = chosen(tree, suites)
        for name in names:
            tree.prepare(name)
        keys = {name: self._key(tree, name) for name in names}
        changed = [name for name in names if self.known.get(name, {}).get("key") != keys[name]]
        folders = {path.parent for path in tree.build.rglob("*.gcno")}
        with ThreadPoolExecutor(jobs) as pool:
            for name, row in zip(changed, pool.map(lambda name: self._measure(tree, folders, name), changed)):
                self.known[name] = dict(row, key=keys[name])
                self.file.write_text(json.dumps(self.known))  # at once: to measure all takes long
        self.known = {name: self.known[name] for name in names}
        self.first = {name for name in chosen(tree, ["unit"]) if name in self.known and self.known[name]["cost"] < FIRST_SECONDS}

    @staticmethod
    def _key(tree: Tree, name: str) -> str:
        """The test's own files, and the library's if it is preloaded."""
        test, sha = tree.tests[name], hashlib.sha1()
        for word in [*test["cmd"], *(v for value in test["env"].values() for v in value.split(":"))]:
            path = Path(word)
            if path.is_absolute() and path.is_file() and tree.source.parent in path.parents:
                sha.update(path.read_bytes())
        return sha.hexdigest()

    @staticmethod
    def _measure(tree: Tree, folders: "set[Path]", name: str) -> dict:
        with tempfile.TemporaryDirectory() as counts:
            for folder in folders:  # else gcov's library makes them, by calls that a sweep would count
                (Path(counts) / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
            result = tree.run(name, 10 * HANG_SECONDS, {"GCOV_PREFIX": counts})
            documents = Nearest._read(tree, Path(counts)) if result.passed else []
        if not result.passed:
            print(f"fails without any mutant, and is not used: {name}\n{result.end}", flush=True)
        lines: "dict[str, set[int]]" = {}
        functions: "dict[str, set[str]]" = {}
        for file in documents:
            path = (tree.build / file["file"]).resolve()
            if tree.source.resolve() not in path.parents:
                continue
            short = path.relative_to(tree.source.resolve()).as_posix()
            lines.setdefault(short, set()).update(row["line_number"] for row in file["lines"] if row["count"])
            functions.setdefault(short, set()).update(f["name"] for f in file["functions"] if f["execution_count"])
        kept = ("pool/", "nccl_reg/", "shim/")
        return {"cost": result.cpu, "wall": result.wall,
                "lines": {f: sorted(rows) for f, rows in lines.items() if f.startswith(kept)},
                "functions": {f: sorted(rows) for f, rows in functions.items() if f.startswith(kept)}}

    @staticmethod
    def _read(tree: Tree, counts: Path) -> "list[dict]":
        """Gcov's word on each source file; it wants the notes of the compiler beside the counts."""
        data = []
        for name in tree.objects:
            made = counts / (tree.build / name).relative_to("/")
            if made.with_suffix(".gcda").exists():  # of a.c.o: a.c.gcda
                os.symlink((tree.build / name).with_suffix(".gcno"), made.with_suffix(".gcno"))
                data.append(str(made.with_suffix(".gcda")))
        done = subprocess.run(["gcov", "--json-format", "--stdout", *data], cwd=tree.build, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True) if data else None
        return [file for line in (done.stdout.splitlines() if done else []) if line.startswith("{") for file in json.loads(line)["files"]]

    def tests(self, file: str, first: int, last: int, function: str) -> "list[str]":
        """The tests that execute a line from first to last; if no test does, as for macros, those that run the function, else, of a
        header, where there is no function, or of a file that is built without coverage, those that run anything of the file, or of its
        folder where nothing of it is known. Unit tests that cost little first, which look at more than a program's results, then by cost;
        for a list of hooks before them those that call each of its rows."""
        rows = self.known
        found = [n for n, row in rows.items() if any(first <= line <= last for line in row["lines"].get(file, ()))]
        if not found and function:
            found = [n for n, row in rows.items() if function in row["functions"].get(file, ())]
        if not found and (not function or file.endswith(".h") or not any(file in row["lines"] for row in rows.values())):
            found = [n for n, row in rows.items() if row["lines"].get(file)]
            folder = file.split("/")[0] + "/"
            found = found or [n for n, row in rows.items() if any(f.startswith(folder) for f in row["lines"])]
        rows_first = file.startswith("shim/hooks/")
        return sorted(found, key=lambda name: (rows_first and not name.startswith("rows "), name not in self.first, self.known[name]["cost"]))

    def limit(self, name: str) -> float:
        """How long the test may take: several times what it took, on a machine that is busy."""
        return max(15.0, 8 * self.known.get(name, {}).get("wall", HANG_SECONDS / 8))
