# SPDX-License-Identifier: Apache-2.0
"""A copy of the project with a build folder of its own, in which mutants are built and tests are run. Not the place to decide
which mutants or tests. One thread at a time for each tree.
"""
from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple, Optional

TOP = Path(__file__).resolve().parents[2]
COPIED = ["meson.build", "meson_options.txt", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "examples", "include", "nccl_reg", "pool",
          "scripts", "shim", "tests"]
END = 1500  # bytes of the output of a test
HANG_SECONDS = 60  # how long a test may take whose usual time is not known
MARK = "of-scripts-mutate"


class Result(NamedTuple):
    passed: bool
    hung: bool
    wall: float
    cpu: float
    end: str  # of what it said


def copy(source: Path, target: Path) -> None:
    """Only what differs, and as of now: a run that was cut short leaves a mutant behind, and objects made from it."""
    if not source.is_dir():
        if not target.exists() or target.read_bytes() != source.read_bytes():
            shutil.copy(source, target)
        return
    target.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in source.iterdir()} - {"__pycache__"}
    for name in names:
        copy(source / name, target / name)
    for path in target.iterdir():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Tree:
    def __init__(self, place: Path, setup: "list[str]", top: Path = TOP) -> None:
        """RuntimeError: the place holds something else, or the project does not configure."""
        mark = place / MARK
        if place.exists() and any(place.iterdir()) and not mark.exists():
            raise RuntimeError(f"{place} is not empty, and none of mine")
        place.mkdir(parents=True, exist_ok=True)
        mark.touch()
        self.source, self.build = place / "source", place / "build"
        self.source.mkdir(exist_ok=True)
        for name in COPIED:
            if (top / name).exists():
                copy(top / name, self.source / name)
        os.environ["PATH"] = f"{TOP / '.deps' / 'bin'}:{os.environ['PATH']}"
        if not (self.build / "build.ninja").exists():
            if (top / "scripts" / "find-headers").exists():
                setup = ["-Dheaders=" + self.command(str(top / "scripts" / "find-headers"), "cuda_runtime_api.h").strip(), *setup]
            self.command("meson", "setup", str(self.build), str(self.source), *setup)
        self.compile("build.ninja")  # meson runs again if its files have changed
        self.tests = {t["name"]: t for t in json.loads(self.command("meson", "introspect", "--tests", str(self.build)))}
        self.whole = False
        self.objects = self._objects()
        self.others = self._others()

    def command(self, *words: str) -> str:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.source, errors="replace")
        if done.returncode:
            raise RuntimeError(f"{' '.join(words[:6])} failed:\n{done.stdout[-3000:]}")
        return done.stdout

    def compile(self, *targets: str) -> None:
        self.command("ninja", "-C", str(self.build), *targets)

    def _objects(self) -> "list[str]":
        """The objects that hold code of the library, or of its headers."""
        found = []
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            file = (self.build / entry["file"]).resolve()
            if file.relative_to(self.source.resolve()).as_posix().startswith(("pool/", "nccl_reg/", "shim/", "tests/unit/", "tests/fuzz/")):
                found.append(entry["output"])
        return sorted(set(found))

    def _unit_program(self, test: str) -> str:
        """The test's own program, if that holds all of the code; else nothing."""
        program = Path(self.tests[test]["cmd"][0])
        alone = any(suite.endswith(":unit") for suite in self.tests[test]["suite"]) and self.build in program.parents
        return program.relative_to(self.build).as_posix() if alone else ""

    def _others(self) -> "list[str]":
        """All that other tests need: to link the programs of the unit tests, each with the library's objects, takes most of the time."""
        alone = {self._unit_program(test) for test in self.tests}
        made = [Path(name).relative_to(self.build).as_posix() for target in json.loads(self.command("meson", "introspect", "--targets", str(self.build)))
                if target["build_by_default"] for name in target["filename"]]
        return sorted(set(made) - alone)

    def fingerprints(self) -> "dict[str, str]":
        """Builds the objects. The tree's build has no debugging information, so what is left is code and data."""
        self.compile(*self.objects)
        return {name: hashlib.sha1((self.build / name).read_bytes()).hexdigest() for name in self.objects}

    def write(self, texts: "dict[str, str]") -> "dict[str, str]":
        """Replaces files; what was in them."""
        before = {file: (self.source / file).read_text() for file in texts}
        for file, text in texts.items():
            (self.source / file).write_text(text)
        self.whole = False
        return before

    def prepare(self, test: str) -> None:
        """Builds what the test, or one argument of it, runs: its own program if that holds all of the code, else everything but such programs."""
        name = test.partition(" / ")[0]
        if name not in self.tests:
            raise RuntimeError(f"no test is called {name}")
        program = self._unit_program(name)
        if program:
            self.compile(program)
        elif not self.whole:
            self.compile(*self.others)
            self.whole = True
        test = self.tests[name]  # meson runs it in the folder of the build, where its programs are now
        test["cmd"] = [str(self.build / word) if (self.build / word).is_file() else word for word in test["cmd"]]

    def run(self, row: str, limit: float = HANG_SECONDS, more: "Optional[dict[str, str]]" = None) -> Result:
        """Runs a test, or one argument of it: NAME / ARGUMENT, with more in its environment. Its programs must have been built. Several
        threads may run tests of one tree, if all is built."""
        name, _, argument = row.partition(" / ")
        known = self.tests[name]
        env = {"MALLOC_PERTURB_": "90", **os.environ, **known["env"], **(more or {})}  # new memory is not zero, as under meson test
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as cwd, tempfile.TemporaryFile() as out:
            run = subprocess.Popen(known["cmd"] + ([argument] if argument else []), env=env, cwd=cwd, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=out, start_new_session=True)
            late = threading.Timer(limit, _kill, [run.pid])
            late.start()
            try:
                _, status, used = os.wait4(run.pid, 0)  # what it and its children have used, and not those of other threads
            finally:
                late.cancel()
                _kill(run.pid)  # what it has started, too
            run.returncode = os.waitstatus_to_exitcode(status)
            out.seek(max(0, out.seek(0, os.SEEK_END) - END))
            end = out.read().decode(errors="replace")
        wall = time.monotonic() - start
        return Result(wall < limit and run.returncode in (0, 77), wall >= limit, wall, used.ru_utime + used.ru_stime, end)
