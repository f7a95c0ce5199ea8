# SPDX-License-Identifier: Apache-2.0
"""Mistakes that people make with cupool-run: what it says, its exit status, and that nothing was started. A list.

Not here: what it does when all is right; that is test_run. The programs are those of the build folder MISTAKES_BUILD.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Sequence

ROOT = Path(__file__).resolve().parents[2]
BUILD = os.environ["MISTAKES_BUILD"]

SIMULATED = int(re.findall(r"(?m)^#define SIM_DEVICES_MAX (\d+)$", (ROOT / "tests/sim/sim.h").read_text())[0])

# Options, exit status, what the one line says.
STARTS_NOTHING = [
    ("--free=foo", 2, r"--free=foo: not accepted; accepted: auto \| ordered \| strict \| relaxed"),
    ("--backend=gpu", 2, r"--backend=gpu: not accepted; accepted: cuda \| nccl"),
    ("--register=yes", 2, r"--register=yes: not accepted; accepted: 0 \| 1 \| force \| use"),
    ("--register=", 2, r"--register needs a value"),
    ("--events=alloc", 2, r"--events=alloc: not accepted; accepted: segment \| segment,alloc"),
    ("--stats=end", 2, r"--stats=end: not accepted; accepted: off \| list of exit, signal:NAME, timer:TIME"),
    ("--stats=exit,timer:x", 2, r"--stats=exit,timer:x: not accepted"),
    (f"--sim={SIMULATED + 1}", 2, rf"--sim={SIMULATED + 1}: not a number of GPUs from 1 to {SIMULATED}"),
    ("--sim=0", 2, r"--sim=0: not a number of GPUs"),
    ("--sim 2", 2, r"--sim 2: a value is behind =: --sim=2"),
    ("--stats timer:30s", 2, r"--stats timer:30s: a value is behind =: --stats=timer:30s"),
    ("--register use", 2, r"--register use: a value is behind =: --register=use"),
    ("--free strict", 2, r"--free needs a value: --free=VALUE"),
    ("--trace=out/%q.jsonl", 2, r"--trace=out/%q.jsonl: %q is none of %h %r %l %p %e, and a percent sign is %%"),
    ("--trace=%%%r%", 2, r"--trace=%%%r%: % is none of"),
    ("--check ./nosuch", 2, r"\./nosuch: no such file"),
    ("--check nosuch", 2, r"nosuch: command not found"),
    ("--check ./", 2, r"\./: is a directory"),
]
RIGHT = ["--free=strict", "--stats=exit,timer:30s,signal:USR2", "--stats=off", "--register=0", "--events=segment,alloc", "--backend=cuda",
         "--trace=%%%r.%h%l%p%e.100%%", "--sim=1", f"--sim={SIMULATED}", "--stats"]


class Mistakes(unittest.TestCase):
    def run_it(self, cwd: str, *args: str, program: "Sequence[str]" = ("touch", "started")) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([ROOT / "scripts/cupool-run", *args, "--", *program], cwd=cwd, capture_output=True, text=True,
                              env={"PATH": os.environ["PATH"], "BUILDDIR": BUILD}, timeout=60)

    def test_nothing_is_started(self) -> None:
        for options, status, pattern in STARTS_NOTHING:
            with self.subTest(options), tempfile.TemporaryDirectory() as cwd:
                done = self.run_it(cwd, *options.split())
                self.assertEqual((done.returncode, done.stdout, os.listdir(cwd)), (status, "", []), done.stderr)
                self.assertRegex(done.stderr, re.compile(rf"^cupool-run: {pattern}.*\n\Z"))

    def test_what_is_right_starts(self) -> None:
        for option in RIGHT:
            with self.subTest(option), tempfile.TemporaryDirectory() as cwd:
                done = self.run_it(cwd, option)
                self.assertEqual((done.returncode, os.listdir(cwd)), (0, ["started"]), done.stderr)

    def test_a_process_without_cuda_says_so_once(self) -> None:
        with tempfile.TemporaryDirectory() as cwd:
            program = [sys.executable, "-c", "import os, subprocess; print(os.getpid()); subprocess.run(['true'])"]
            done = self.run_it(cwd, "--stats", program=program)
            self.assertEqual(done.stderr, f"cupool: nothing was pooled: process {done.stdout.strip()} loaded no CUDA driver (libcuda.so); programs "
                             "that it has started speak for themselves\n")
            for options in ([], ["--stats=off"], ["--stats=timer:1h"]):
                self.assertEqual(self.run_it(cwd, *options, program=program).stderr, "")
