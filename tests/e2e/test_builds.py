# SPDX-License-Identifier: Apache-2.0
"""The library compiled in other ways (no optimisation, full optimisation), under the tests that notice: who asked dlsym, what is
exported, who is caught. scripts/coverage runs all tests on a third one.

Only the library is built again, in a temporary folder.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from e2e import HEADERS, SOURCE, need

HERE = Path(__file__).resolve().parent


class Builds(unittest.TestCase):
    def under(self, *options: str, tests: "list[list[str]]") -> None:
        with tempfile.TemporaryDirectory() as tmp:
            build = Path(tmp) / "build"
            log = ""
            for step in ([need("meson"), "setup", str(build), str(SOURCE), "-Dtests=false", f"-Dheaders={HEADERS}", *options],
                         [need("ninja"), "-C", str(build), "shim/libcupool.so", "shim/libcupool-nccl.so"]):
                done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp)
                log += done.stdout
                self.assertEqual(done.returncode, 0, log)
            env = dict(os.environ, E2E_LIB=str(build / "shim" / "libcupool.so"))
            for name, *chosen in tests:
                done = subprocess.run([sys.executable, HERE / f"test_{name}.py", *chosen], env=env, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
                self.assertEqual(done.returncode, 0, f"{options}: {name}\n{done.stdout}")

    def test_no_optimisation(self) -> None:
        self.under("--buildtype=debug", tests=[["interposers"], ["catch", "Catch.test_auto"], ["hygiene"]])

    def test_full_optimisation(self) -> None:
        self.under("--buildtype=release", "-Db_lto=true", tests=[["interposers"], ["catch", "Catch.test_auto"], ["hygiene"]])
