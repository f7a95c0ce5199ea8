# SPDX-License-Identifier: Apache-2.0
"""The examples of NCCL, on four simulated GPUs, as docs/examples.md runs them: natively and under cupool-run they compute the same,
and from the traces one sees what was registered, and whose trace is missing.

What it is not: a test of ddp.py and fsdp.py, which need PyTorch.
"""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any, Optional

from e2e import LIB, SANITIZE, SIM, SOURCE, TIMEOUT, Case, need, tool

EXAMPLES = Path(os.environ["E2E_EXAMPLES"])
SIMNCCL = Path(os.environ["E2E_SIMNCCL"])
CUPOOL_RUN = SOURCE / "scripts" / "cupool-run"
RANKS = 4
RING = ["ring", "--iters", "2", "--min", "4096", "--max", "4194304"]
PIPELINE = ["pipeline", "--steps", "2", "--micros", "6", "--width", "65536"]
KINDS: "dict[str, Optional[list[str]]]" = {"native": None, "cuda": [], "nccl": ["--backend=nccl", "--register"]}


class Job:
    """What a job of RANKS processes said, and what it left: traces, and the stand-in's reports."""

    def __init__(self, cwd: Path, outputs: "list[tuple[int, str, str]]") -> None:
        self.cwd = cwd
        self.rcs = [o[0] for o in outputs]
        self.out = "".join(o[1] for o in outputs)
        self.err = "".join(o[2] for o in outputs)
        self.traces = sorted(cwd.glob("*.jsonl"))
        report = cwd / "report"
        self.reports: "list[dict[str, Any]]" = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []

    @property
    def digest(self) -> str:
        found = re.findall(r"digest ([0-9a-f]{16})$", self.out, re.M)
        assert len(found) == 1, self.out + self.err
        return str(found[0])

    def reported(self, key: str) -> int:
        return sum(r[key] for r in self.reports)

    def operations(self, key: str) -> int:
        return sum(r["operations"][key] for r in self.reports)


class Base(Case):
    def command(self, program: "list[str]", options: "Optional[list[str]]", cwd: Path) -> "list[str]":
        """options: cupool-run's; None: without it."""
        run = [] if options is None else [str(CUPOOL_RUN), f"--sim={RANKS}", f"--trace={cwd}/%r.jsonl", *options, "--"]
        return [*run, str(EXAMPLES / program[0]), *program[1:]]

    def base(self, cwd: Path, **more: str) -> "dict[str, str]":
        return self.env(None, LD_LIBRARY_PATH=f"{SIM}:{SIMNCCL}", SIMGPU_DEVICES=str(RANKS), BUILDDIR=str(LIB.parent.parent),
                        SIMNCCL_REPORT=str(cwd / "report"), **{"SIMNCCL_STRICT": "1", **more})

    def start(self, program: "list[str]", options: "Optional[list[str]]", other: "dict[int, Optional[list[str]]]" = {}, rc: int = 0,
              **more: str) -> Job:
        """As by torchrun or srun: ranks in the environment. other: some ranks' options, where they differ."""
        cwd = self.folder()
        running = []
        for rank in range(RANKS):
            command = self.command([*program, "--id", str(cwd / "id")], other.get(rank, options), cwd)
            env = {**self.base(cwd, **more), "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
            running.append(subprocess.Popen(command, env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        said = []
        try:
            for p in running:
                said.append(p.communicate(timeout=4 * TIMEOUT))
        finally:
            for p in running:
                p.kill()
                p.wait()
        job = Job(cwd, [(p.returncode, *s) for p, s in zip(running, said)])
        self.assertEqual(job.rcs, [rc] * RANKS, job.out + job.err)
        self.assertFalse((cwd / "id").exists(), "the file where they met is left")
        return job

    def mpirun(self, program: "list[str]", options: "Optional[list[str]]") -> Job:
        cwd = self.folder()
        env = self.base(cwd, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
        done = subprocess.run([need("mpirun"), "-n", str(RANKS), *self.command(program, options, cwd)], env=env, cwd=cwd, text=True,
                              capture_output=True, timeout=4 * TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return Job(cwd, [(done.returncode, done.stdout, done.stderr)])

    def tool(self, *args: "str | Path", rc: int = 0) -> str:
        done = tool.run(*args, seconds=2 * TIMEOUT)
        self.assertEqual(done.returncode, rc, done.stdout + done.stderr)
        return done.stdout

    def assert_registered(self, job: Job) -> None:
        """All buffers of all operations were, by both accounts."""
        self.assertEqual((job.reported("breaches"), job.operations("some"), job.operations("none")), (0, 0, 0), job.err)
        self.assertGreater(job.operations("all"), 0)
        ranks = json.loads(self.tool("summary", "--json", *job.traces))["ranks"]
        self.assertEqual([r["rank"] for r in ranks], list(range(RANKS)))
        for r in ranks:
            device, = r["devices"].values()
            self.assertEqual((device["communicators"], device["registrations_refused"], device["registered_at_end"]), (1, 0, 0))
            self.assertEqual(device["registrations"], device["deregistrations"])
            self.assertEqual((r["nccl"]["mixed"], r["nccl"]["outside"], r["nccl"]["unsafe"]), (0, 0, 0))
        self.assertEqual(sum(d["registrations"] for r in ranks for d in r["devices"].values()), job.reported("registrations"))
        self.assertEqual(sum(r["nccl"]["ops"] for r in ranks), job.operations("all"))


class Same(Base):
    """Whatever the memory is, what is computed is the same."""

    def all_kinds(self, program: "list[str]", **more: str) -> "dict[str, Job]":
        jobs = {kind: self.start(program, options, **more) for kind, options in KINDS.items()}
        self.assertEqual({kind: j.digest for kind, j in jobs.items()}, dict.fromkeys(KINDS, jobs["native"].digest))
        self.assertEqual({kind: j.err for kind, j in jobs.items()}, dict.fromkeys(KINDS, ""))
        self.assertEqual([len(j.traces) for j in jobs.values()], [0, RANKS, RANKS])
        self.assertEqual(jobs["cuda"].reported("registrations"), 0)
        for kind in "cuda", "nccl":
            out = self.tool("check", "--complete", "--ranks", str(RANKS), *jobs[kind].traces)
            self.assertNotRegex(out, "warning|missing|no trace")
        self.assert_registered(jobs["nccl"])
        return jobs

    def test_ring(self) -> None:
        jobs = self.all_kinds(RING)
        for kind, job in jobs.items():
            rows = re.findall(r"^ *(\d+) +[\d.]+ +[\d.]+ +[\d.]+ +(\d+)$", job.out, re.M)
            self.assertEqual(rows, [(str(4096 << 2 * i), "0") for i in range(6)], job.out)
            self.assertIn("ring: 0 wrong", job.out)
            if kind != "native":
                self.assertIn("information: all 4 files took segments of the same sizes in the same order", self.tool("check", *job.traces))
        self.assertEqual({b for t in jobs["nccl"].traces for b in re.findall(r'"b":"(\w+)"', t.read_text())}, {"nccl"})

    def test_pipeline(self) -> None:
        jobs = self.all_kinds(PIPELINE)
        for job in jobs.values():
            self.assertIn("pipeline: all ranks agree", job.out)

    def test_pipeline_with_slow_streams(self) -> None:
        """Buffers are freed while the network has yet to send them."""
        self.all_kinds(PIPELINE, SIMGPU_DELAY_US="500")

    def test_more_stages_than_micro_batches(self) -> None:
        short = ["pipeline", "--steps", "2", "--micros", "2", "--width", "8192"]
        self.assertEqual(self.start(short, None).digest, self.start(short, KINDS["nccl"]).digest)

    def test_mpirun(self) -> None:
        if SANITIZE != "none":
            self.skipTest("MPI itself is not built with it")
        names = subprocess.run([need("nm"), "-DPu", EXAMPLES / "ring"], capture_output=True, text=True, check=True).stdout
        if "MPI_Init " not in names:
            self.skipTest("the examples were built without MPI")
        for program in RING, PIPELINE:
            native = self.mpirun(program, None)
            self.assertEqual(native.digest, self.start(program, None).digest)
            job = self.mpirun(program, KINDS["nccl"])
            self.assertEqual(job.digest, native.digest)
            self.assert_registered(job)
            self.tool("check", "--complete", "--ranks", str(RANKS), *job.traces)


class RanksDisagree(Base):
    """The library of one rank cannot know; from the traces it is seen."""

    def test_one_without_the_preload(self) -> None:
        for program in RING, PIPELINE:
            job = self.start(program, KINDS["nccl"], {2: None}, SIMNCCL_STRICT="0")
            self.assertGreater(job.reported("breaches"), 0)  # what real NCCL may hang at
            self.assertEqual([t.name for t in job.traces], ["0.jsonl", "1.jsonl", "3.jsonl"])
            self.assertIn("warning: 1 communicator of 4 ranks: rank 2 missing", self.tool("check", *job.traces))
            self.assertIn("\nrank 2 of 4: no trace given", "\n" + self.tool("check", "--ranks", "4", *job.traces, rc=1))

    def test_one_without_registration(self) -> None:
        job = self.start(RING, KINDS["nccl"], {3: ["--backend=nccl", "--register=0"]}, SIMNCCL_STRICT="0")
        out = self.tool("check", *job.traces, rc=1)
        self.assertRegex(out, r"/3\.jsonl: CUPOOL_REGISTER is '0', in .*/0\.jsonl '1'")
        self.assertIn("warning: 1 communicator of 4 ranks: rank 3 missing", out)


class Alone(Base):
    def one(self, *program: str, rc: int, **more: str) -> "subprocess.CompletedProcess[str]":
        cwd = self.folder()
        done = subprocess.run(self.command(list(program), None, cwd), env=self.base(cwd, **more), cwd=cwd, capture_output=True, text=True,
                              timeout=4 * TIMEOUT)
        self.assertEqual(done.returncode, rc, done.stdout + done.stderr)
        return done

    def test_one_rank(self) -> None:
        self.assertIn("ring: 0 wrong", self.one("ring", "--max", "4096", rc=0).stdout)
        self.assertIn("all ranks agree", self.one("pipeline", "--steps", "1", "--width", "4096", rc=0).stdout)

    def test_wrong_options(self) -> None:
        for program in "ring", "pipeline":
            for args in ["--what", "1"], ["--id"], ["--iters", "0"], ["--steps", "0"], ["--width", "100"], ["--min", "12"]:
                self.assertTrue(self.one(program, *args, rc=2).stderr.startswith(f"usage: {program} "))

    def test_nowhere_to_meet(self) -> None:
        for program in "ring", "pipeline":
            self.assertIn("need --id FILE", self.one(program, rc=1, RANK="0", WORLD_SIZE="4").stderr)

    def test_where_others_have_met(self) -> None:
        there = self.tmp / "id"
        there.write_text("of another job")
        done = self.one("ring", "--id", str(there), rc=1, RANK="0", WORLD_SIZE="4")
        self.assertIn("File exists", done.stderr)
        self.assertEqual(there.read_text(), "of another job")
        self.assertIn("not what rank 0 wrote", self.one("ring", "--id", str(there), rc=1, RANK="1", WORLD_SIZE="4").stderr)


if __name__ == "__main__":
    unittest.main()
