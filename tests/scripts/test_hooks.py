# SPDX-License-Identifier: Apache-2.0
"""scripts/check-hooks: every function of CUDA's headers is hooked, or stands in shim/not-hooked.txt; and it notices what is not."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADERS = os.environ["HOOKS_HEADERS"]  # folders, separated by colons
LIST = (ROOT / "shim" / "not-hooked.txt").read_text()


class Hooks(unittest.TestCase):
    def setUp(self) -> None:
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.tmp = Path(tmp.name)

    def said(self, *sets: str, text: str = LIST, rc: int = 1) -> "list[str]":
        listed = self.tmp / "listed.txt"
        listed.write_text(text)
        done = subprocess.run([ROOT / "scripts" / "check-hooks", f"--list={listed}", *sets], capture_output=True, text=True)
        self.assertEqual(done.returncode, rc, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def header(self, name: str, text: str) -> str:
        """A set of headers with this one in front."""
        (self.tmp / name).write_text(text)
        return f"{self.tmp}:{HEADERS}"

    def found(self, name: str) -> str:
        return next(p for p in (Path(f) / name for f in HEADERS.split(":")) if p.is_file()).read_text(errors="replace")

    def test_all_are_looked_at(self) -> None:
        self.assertEqual(self.said(HEADERS, rc=0), [])

    def test_a_new_function(self) -> None:
        more = "CUresult CUDAAPI cuMemAnything(CUdeviceptr ptr);\n/* CUresult CUDAAPI cuMemNothing(void); */\n"
        lines = self.said(self.header("cuda.h", self.found("cuda.h") + more))
        self.assertEqual([line.split(":")[0] for line in lines], ["cuMemAnything"])

    def test_a_new_version_and_a_new_form(self) -> None:
        """Of functions that are hooked, versions and forms that are not."""
        more = ("#define cuMemAlloc cuMemAlloc_v3\n#define cuStreamCreate __CUDA_API_PTSZ(cuStreamCreate)\n"
                "#define cuMemFree __CUDA_API_PTDS(cuMemFree_v2)\n")
        lines = self.said(self.header("cuda.h", self.found("cuda.h") + more))
        self.assertEqual([line.split(":")[0] for line in lines], ["cuMemAlloc_v3", "cuMemFree_v2_ptds", "cuStreamCreate_ptsz"])

    def test_of_the_runtime_and_of_graphics(self) -> None:
        self.header("cudaGL.h", "CUresult CUDAAPI cuGLAnything(GLuint buffer);\n")
        sets = self.header("cuda_runtime_api.h", self.found("cuda_runtime_api.h") +
                           "extern __host__ cudaError_t CUDARTAPI cudaMallocAnything(void **p);\n")
        names = [line.split(":")[0] for line in self.said(sets) if "neither hooked" in line]
        self.assertEqual(names, ["cuGLAnything", "cudaMallocAnything"])

    def test_listed_and_hooked(self) -> None:
        for name in ("cuMemAlloc_v2", "cuGraphAddMem*", "cuMemset{D8,D16}Async", "cudaMalloc+"):
            with self.subTest(name):
                lines = self.said(HEADERS, text=f"{LIST}\nA reason.\n  {name}\n")
                self.assertTrue(lines and all(" is hooked: " in line for line in lines), lines)

    def test_listed_and_gone(self) -> None:
        rest = self.tmp / "rest"
        rest.mkdir()
        for name in re.findall(r"\w+\.h\b", (ROOT / "scripts" / "check-hooks").read_text()):
            (rest / name).touch()  # what these headers lack
        lines = self.said(f"{HEADERS}:{rest}", text=LIST + "\nA reason.\n  cuCtxGetNothing cuOldThing- cuNewThing+ cuNo*\n")
        for gone in "cuCtxGetNothing", "cuNo*":
            self.assertIn(f"there is no {gone}", [line.split(": ")[-1] for line in lines])

    def test_a_header_is_missing(self) -> None:
        """Wheels have none of the profiler's, whose functions the list has."""
        (self.tmp / "some").mkdir()
        for name in "cuda.h", "cuda_runtime_api.h":
            (self.tmp / "some" / name).write_text(self.found(name))
        self.assertEqual(self.said(str(self.tmp / "some"), rc=0), [])

    def test_listed_no_more(self) -> None:
        lines = self.said(HEADERS, text=LIST.replace(" cuLinkComplete", ""))
        self.assertEqual([line.split(":")[0] for line in lines], ["cuLinkComplete"])

    def test_rows_are_facts(self) -> None:
        """Each watched row names an effect, and gives it the call, parameters, numbers and texts: no expression."""
        text = (ROOT / "shim" / "hooks" / "watch.def").read_text()
        facts = re.findall(r"\b\w+,\s+\(w((?:, (?:\w+|\"[^\"]*\"))*)\)\)$", text, re.M)
        self.assertEqual(len(facts), len(re.findall(r"^WATCH_", text, re.M)))

    def test_no_headers(self) -> None:
        self.assertEqual(self.said(str(self.tmp), rc=2), [])
