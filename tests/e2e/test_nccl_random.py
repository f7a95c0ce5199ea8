# SPDX-License-Identifier: Apache-2.0
"""NCCL: communicators that come and go in a random order, blocking or not, in groups or not, beside allocations and frees of
other threads; every operation's data is right and registered, and the stand-in finds no breach.
"""

import json
import unittest

from e2e import BIN, SIM, Case
from nccl_jobs import NCCL_LIB, NEW, OLD, SIMNCCL

SEEDS = range(1, 4)


class Random(Case):
    def run_with(self, seed: int, version: str, *args: str, **settings: str) -> "dict[str, int]":
        cwd = self.folder()
        report = cwd / "report"
        preload = str(NCCL_LIB) if settings else None
        done = self.go(BIN / "nccl_random", str(seed), "120", *args, preload=preload, cwd=cwd, SIMGPU_DEVICES="3", SIMNCCL_STRICT="1",
                       SIMNCCL_REPORT=str(report), SIMNCCL_VERSION=version, LD_LIBRARY_PATH=f"{SIMNCCL}:{SIM}", CUPOOL_TRACE_FILE="off",
                       **settings)
        self.assertEqual(done.err, "")
        said = json.loads(report.read_text())
        self.assertEqual(said["breaches"], 0)
        operations: "dict[str, int]" = said["operations"]
        return operations

    def test_all_is_registered(self) -> None:
        for backend in "nccl", "cuda", "vmm":
            for seed in SEEDS:
                for version, args in (OLD, []), (NEW, ["registers"]):
                    with self.subTest(backend, seed=seed, version=version):
                        operations = self.run_with(seed, version, *args, CUPOOL_BACKEND=backend, CUPOOL_REGISTER="1")
                        self.assertEqual((operations["some"], operations["none"]), (0, 0))
                        self.assertGreater(operations["all"], 100)

    def test_as_natively(self) -> None:
        """Without registration: what the program registers, and no more."""
        for seed in SEEDS:
            with self.subTest(seed):
                self.assertEqual(self.run_with(seed, NEW, "registers", CUPOOL_BACKEND="nccl", CUPOOL_REGISTER="0"),
                                 self.run_with(seed, NEW, "registers"))
