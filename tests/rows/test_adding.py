# SPDX-License-Identifier: Apache-2.0
"""Adds the hooks that docs/adding-a-hook.md adds, and sees their effects.

Each block of the page that follows "In `FILE`:" goes into a copy of that file: a row without an effect, a row with
one, the function of the effect, the simulated GPU's stubs and the expectations. The sources that see these files are compiled
with the copies in front, linked with the other objects of the build, and rows_driver tests the new rows.

The rows that there are have tests of their own. This one needs a build by ninja, without sanitizers.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["ADDING_BUILD"])
BLOCK = re.compile(r"^In `([^`\n]+)`[^\n]*:\n\n```\w*\n(.*?)^```$", re.M | re.S)
SYMBOLS = ["cuStreamCreateNamed", "cuMemSwapAsync", "cuMemSwapAsync_ptsz"]
# Links that are made anew, with the folder of their result.
LINKS = {"shim/libcupool.so": "", "tests/sim/libcuda.so.1": "sim", "tests/rows/librows_next.so": "", "tests/rows/libuct_rows.so": "",
         "tests/rows/libcublas_rows.so": "", "tests/rows/rows_driver": ""}
# Objects that see the lists, and the archive of which they are.
REACHED = re.compile(r"(shim/libcupool(\.so|_dlsym\.a)\.p/(real|exports)_|tests/sim/libcuda\.so\.1\.p/(stubs|control)\.c|tests/rows/\w*(rows_driver|_rows\.so|_next\.so)\.p/)")
# Effects come before the rows that use them, stubs before the end of their list.
ENDS = ("/* --- the exported functions --- */\n", "#undef ACCEPTED\n")
ARCHIVE = "shim/libcupool_dlsym.a"


class Scratch:
    """Copies of the files that are changed, and what is built of them."""

    def __init__(self, top: Path) -> None:
        self.top = top
        for folder in ("shim/hooks", "shim/exports", "tests/rows", "tests/sim", "objects", "sim"):
            (top / folder).mkdir(parents=True)
        # A file that an include in quotes finds beside the including file has to be a copy, too.
        for name in ("shim/hooks.def", "shim/exports/watch.c", "tests/rows/expected.txt", "tests/sim/stubs.def", "tests/sim/sim.h", "tests/sim/cuda_names.h",
                     "tests/sim/stubs.c", "tests/sim/control.c", *(f"shim/hooks/{p.name}" for p in (ROOT / "shim/hooks").iterdir())):
            shutil.copy(ROOT / name, top / name)
        commands = json.loads(subprocess.run(["ninja", "-C", BUILD, "-t", "compdb"], capture_output=True, text=True, check=True).stdout)
        self.commands = {c["output"]: c["command"] for c in commands}
        self.objects = {output: str(top / "objects" / output.replace("/", "_")) for output in self.commands
                        if REACHED.match(output) and output.endswith(".o")}

    def add(self, name: str, text: str) -> None:
        """To the copy of a file: before its end mark, if it has one."""
        path = self.top / name
        old = path.read_text()
        at = min((old.index(mark) for mark in ENDS if mark in old), default=len(old))
        path.write_text(f"{old[:at]}{text}\n{old[at:]}")

    def run(self, command: "list[str]") -> None:
        done = subprocess.run(command, cwd=BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"{shlex.join(command)}\n{done.stdout}")

    def compile(self, output: str) -> None:
        words = shlex.split(self.commands[output])
        at = words.index("-MD")
        del words[at:at + 5]  # -MD -MQ FILE -MF FILE
        words[words.index("-o") + 1] = self.objects[output]
        words[-2:-2] = ["-U_FORTIFY_SOURCE", "-O0", "-g0"]  # quickly: they run for a moment
        source = os.path.relpath(BUILD / words[-1], ROOT)
        if (self.top / source).exists():
            words[-1] = str(self.top / source)
        first = [self.top / "shim", self.top / "tests/rows", self.top / "tests/sim", ROOT / "tests/sim"]
        self.run([*words[:-2], *(word for folder in first for word in ("-iquote", str(folder))), *words[-2:]])

    def link(self, output: str, folder: str) -> None:
        archived = [new for old, new in self.objects.items() if old.startswith(ARCHIVE)]
        words = [word for old in shlex.split(self.commands[output])
                 for word in (archived if old == ARCHIVE else [self.objects.get(old, self.place(old) if old in LINKS else old)])]
        self.run(words)

    def place(self, output: str) -> str:
        return str(self.top / LINKS[output] / Path(output).name)

    def build(self, only: str = "") -> None:
        compiler = shlex.split(self.commands["tests/rows/rows_driver"])[0]
        self.run([sys.executable, str(ROOT / "tests/rows/rows.py"), str(self.top / "shim/hooks.def"), str(self.top / "tests/rows/expected.txt"),
                  str(self.top / "tests/rows/list.h"), compiler])
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self.compile, (output for output in self.objects if only in output)))
        for output, folder in LINKS.items():
            self.link(output, folder)

    def rows(self) -> "tuple[int, list[str]]":
        preload = f"{self.place('shim/libcupool.so')} {self.place('tests/rows/librows_next.so')}"
        done = subprocess.run([self.place("tests/rows/rows_driver"), *SYMBOLS], stdout=subprocess.PIPE, text=True, check=False, env={
            **os.environ, "LD_LIBRARY_PATH": str(self.top / "sim"), "LD_PRELOAD": preload, "SIMGPU_DRIVER_VERSION": "13050", "CUPOOL_DECAY": "off"})
        return done.returncode, done.stdout.splitlines()


class Adding(unittest.TestCase):
    def test_the_page(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            scratch = Scratch(Path(folder))
            blocks = BLOCK.findall((ROOT / "docs/adding-a-hook.md").read_text())
            self.assertGreaterEqual({name for name, _ in blocks}, {"shim/hooks/driver.def", "shim/hooks/watch.def", "shim/exports/watch.c",
                                                                   "tests/sim/stubs.def", "tests/rows/expected.txt"})
            for name, text in blocks:
                scratch.add(name, text)
            scratch.build()
            status, lines = scratch.rows()
            self.assertEqual((status, lines[-1]), (0, "0 failed"), lines)
            # The test of the arguments also looks whether a refused call is made again, which "retry" says.
            for wanted in ("cuStreamCreateNamed: arguments", "cuMemSwapAsync: host-work to", "cuMemSwapAsync_ptsz: foreign from"):
                self.assertIn(f"ok {wanted}", lines)
            # Without the effect a row fails: what was seen above is the function's doing.
            effects = scratch.top / "shim/exports/watch.c"
            before, function, after = effects.read_text().partition("static void swap_after")
            effects.write_text(before + function + after.replace("hazard_host_work_end(w->policy, w->stream);", ";", 1))
            scratch.build(only="exports_watch")
            status, lines = scratch.rows()
            self.assertEqual(status, 1, lines)
            self.assertTrue([line for line in lines if line.startswith("FAIL cuMemSwapAsync: host-work to")], lines)
