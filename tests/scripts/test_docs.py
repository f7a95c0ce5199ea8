# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of the documentation: every ```sh block of the Markdown files and every .EX block of the manual pages.

The line before a block says what is to be done with it, and one without is a failure:

    <!-- run -->  or  <!-- not run: REASON -->        Markdown
    .\\" run       or  .\\" not run: REASON             manual pages

A block runs by sh -eu in a folder of its own that looks like a source tree that was built, with ./app, train.py and train.sif in
it, on two simulated GPUs. mpirun, srun and torchrun are stand-ins where this machine has none: they start processes with the
variables by which a rank is known, and do nothing else. Eight processes are two here: of more there is nothing else to see. A block
that stands in two places runs once. A program that a block starts with cupool-run has to leave valid traces.

scripts/check-docs checks links, widths and the list of settings.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Iterator

import tool

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("DOCS_BUILD", "build")).resolve()
SIM = BUILD / "tests" / "sim"

LAUNCHER = """\
#!{python}
# Stands in for mpirun, srun and torchrun: so many processes at a time, each with its rank.
import os, subprocess, sys
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
n, env = 1, dict(os.environ)
while args and args[0].startswith("-"):
    word, _, value = args.pop(0).partition("=")
    if word in ("-n", "-np", "--ntasks", "--nproc-per-node", "-N", "--nodes", "-x", "--hostfile", "--export", "--mpi") and not value:
        value = args.pop(0)
    if word in ("-n", "-np", "--ntasks", "--nproc-per-node"):
        n = int(value)
if name == "torchrun":
    args = [sys.executable, *args]
def start(i):
    ranks = {{"mpirun": {{"OMPI_COMM_WORLD_RANK": i, "OMPI_COMM_WORLD_LOCAL_RANK": i}},
             "srun": {{"SLURM_PROCID": i, "SLURM_LOCALID": i, "SLURM_STEP_ID": 0, "SLURM_JOB_ID": 1}},
             "torchrun": {{"RANK": i, "LOCAL_RANK": i, "WORLD_SIZE": n, "TORCHELASTIC_RUN_ID": "x"}}}}[name]
    return subprocess.Popen(args, env={{**env, **{{k: str(v) for k, v in ranks.items()}}}})
sys.exit(max(abs(p.wait()) for p in [start(i) for i in range(n)]))
"""

TRAIN = """\
# Stands in for a program of PyTorch: a Python that loads CUDA by itself, late.
import ctypes
cudart, block = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
for size in (1000, 100000, 10000000):
    assert cudart.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(size)) == 0
    assert cudart.cudaFree(block) == 0
"""


class Block:
    def __init__(self, path: Path, line: int, mark: str, text: str) -> None:
        self.path, self.line, self.mark, self.text = path, line, mark, text

    @property
    def name(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks_of(path: Path) -> "Iterator[Block]":
    lines = path.read_text(encoding="utf-8").split("\n")
    manual = path.suffix == ".in"
    begin, end = (r"\.EX", r"\.EE") if manual else (r"```sh", r"```")
    mark = r'\.\\" (run|not run: .+)' if manual else r"<!-- (run|not run: .+) -->"
    i = 0
    while i < len(lines):
        if re.fullmatch(begin, lines[i]):
            found = re.fullmatch(mark, lines[i - 1])
            stop = next(j for j in range(i + 1, len(lines)) if re.fullmatch(end, lines[j]))
            text = "\n".join(lines[i + 1:stop])
            yield Block(path, i + 1, found[1] if found else "", text.replace("\\-", "-").replace("\\e", "\\") if manual else text)
            i = stop
        i += 1


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs/man").glob("*.in"))]


class Docs(unittest.TestCase):
    def stage(self) -> "tuple[Path, dict[str, str]]":
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        top = Path(tmp.name).resolve()
        for name in ("scripts", "tests", "docs", "shim"):
            (top / name).symlink_to(ROOT / name)
        (top / "build").symlink_to(BUILD)
        shutil.copy(BUILD / "tests/scripts/docs_app", top / "app")
        (top / "train.py").write_text(TRAIN)
        bin_ = top / "bin"
        bin_.mkdir()
        for name in ("mpirun", "srun", "torchrun"):
            # A real srun would ask a cluster, a real torchrun for PyTorch.
            if name != "mpirun" or not shutil.which("mpirun"):
                (bin_ / name).write_text(LAUNCHER.format(python=sys.executable))
                (bin_ / name).chmod(0o755)
        (bin_ / "pkg-config").write_text(f"#!/bin/sh\necho {BUILD}/shim/libcupool.so\n")
        (bin_ / "pkg-config").chmod(0o755)
        for source in (ROOT / "scripts/cupool-run", ROOT / "scripts/cupool-trace", ROOT / "scripts/cupool-ctl", BUILD / "shim/cupool-info",
                       BUILD / "scripts/replay/cupool-replay"):
            (bin_ / source.name).symlink_to(source)
        env = {k: v for k, v in os.environ.items() if k in ("HOME", "TMPDIR") or k.endswith("SAN_OPTIONS")}
        env.update(PATH=f"{bin_}:{os.environ['PATH']}", BUILDDIR=str(BUILD), LD_LIBRARY_PATH=str(SIM), SIMGPU_DEVICES="2",
                   OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_plm_rsh_agent="",
                   PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
        return top, env

    def run_block(self, block: Block) -> None:
        top, env = self.stage()
        text = re.sub(r"(-n |--nproc-per-node[ =])8\b", r"\g<1>2", block.text)
        done = subprocess.run(["sh", "-euc", text], cwd=top, env=env, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, f"{block.text}\n{done.stdout}{done.stderr}")
        self.assertNotRegex(done.stderr, r"unknown setting|not accepted|cannot be preloaded")
        traces = [p for p in top.rglob("*.jsonl*") if p.is_file() and not any(q.is_symlink() for q in p.parents if q != top)]
        starts = re.search(r"cupool-run(?!.*--(check|help))|LD_PRELOAD=", block.text) and not re.search(r"(TRACE_FILE|--trace)=off", block.text)
        self.assertEqual(bool(traces), bool(starts), f"traces: {traces}\n{block.text}\n{done.stdout}{done.stderr}")
        for trace in traces:  # one at a time: together they would have to have the same settings
            check = tool.run("check", trace)
            self.assertEqual(check.returncode, 0, check.stdout + check.stderr)

    def test_every_block_is_marked(self) -> None:
        self.assertEqual([b.name for p in pages() for b in blocks_of(p) if not b.mark], [])

    def test_syntax(self) -> None:
        """Of those that cannot run, too."""
        for block in (b for p in pages() for b in blocks_of(p)):
            done = subprocess.run(["sh", "-n"], input=block.text, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), block.name)

    def test_there_are_some(self) -> None:
        for path in (ROOT / "README.md", ROOT / "docs/troubleshooting.md", ROOT / "docs/man/cupool-run.1.in"):
            self.assertGreater(len([b for b in blocks_of(path) if b.mark == "run"]), 1, path)


def add_tests() -> None:
    seen: "dict[str, Block]" = {}
    for path in pages():
        for block in blocks_of(path):
            same = seen.setdefault(block.text, block) if block.mark == "run" else block

            def test(self: Docs, block: Block = block, same: Block = same) -> None:
                if block.mark != "run":
                    self.skipTest(block.mark)
                if same is not block:
                    self.skipTest(f"the same as {same.name}")
                self.run_block(block)

            setattr(Docs, "test_" + re.sub(r"\W", "_", f"{path.name}_{block.line:04}"), test)


add_tests()
