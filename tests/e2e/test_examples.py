# SPDX-License-Identifier: Apache-2.0
"""The examples of NCCL, on four simulated GPUs, as docs/examples.md runs them: natively and under cupool-run they compute the same,
and from the traces one sees what was registered, and whose trace is missing.

ddp.py and fsdp.py, which need PyTorch, are not tested here.
"""

import re
import unittest

from jobs import KINDS, RANKS, Base, Job

RING = ["ring", "--iters", "2", "--min", "4096", "--max", "4194304"]
PIPELINE = ["pipeline", "--steps", "2", "--micros", "6", "--width", "65536"]


class Same(Base):
    """The results are equal for every kind of memory."""

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
    def test_one_rank(self) -> None:
        self.assertIn("ring: 0 wrong", self.one("ring", "--max", "4096").out)
        self.assertIn("all ranks agree", self.one("pipeline", "--steps", "1", "--width", "4096").out)

    def test_wrong_options(self) -> None:
        for program in "ring", "pipeline":
            for args in ["--what", "1"], ["--id"], ["--iters", "0"], ["--steps", "0"], ["--width", "100"], ["--min", "12"]:
                self.assertTrue(self.one(program, *args, rc=2).err.startswith(f"usage: {program} "))

    def test_nowhere_to_meet(self) -> None:
        for program in "ring", "pipeline":
            self.assertIn("need MASTER_ADDR or --id FILE", self.one(program, rc=1, RANK="0", WORLD_SIZE="4").err)

    def test_where_others_have_met(self) -> None:
        there = self.tmp / "id"
        there.write_text("of another job")
        done = self.one("ring", "--id", str(there), rc=1, RANK="0", WORLD_SIZE="4")
        self.assertIn("File exists", done.err)
        self.assertEqual(there.read_text(), "of another job")
        self.assertIn("not what rank 0 wrote", self.one("ring", "--id", str(there), rc=1, RANK="1", WORLD_SIZE="4").err)
