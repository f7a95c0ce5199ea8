# SPDX-License-Identifier: Apache-2.0
"""examples/decoder on simulated GPUs: however it is started and wherever its memory comes from, losses and parameters are equal to
the last bit. Ranks without MPI and without a file meet over TCP (examples/meet.h).

tests/gpu/decoder compares its kernels on a GPU.
"""

import os
import random
import re
import select
import socket
import subprocess
import unittest
from typing import Optional

from e2e import TIMEOUT
from jobs import KINDS, RANKS, Base, Job

SIZES = ["--layers", "2", "--width", "24", "--heads", "3", "--seq", "10", "--batch", "3", "--words", "70"]  # none fills its tiles
DECODER = ["decoder", *SIZES, "--steps", "4"]
WORLDS = ["--gpus", "1,2,4"]
# Policies that do not wait at frees reuse memory while the streams are at work.
THREADS: "dict[str, tuple[Optional[list[str]], dict[str, str]]]" = {
    "native": (None, {}),
    "late": (None, {"SIMGPU_DELAY_US": "300"}),
    **{p: ([f"--free={p}"], {"SIMGPU_DELAY_US": "300"}) for p in ("auto", "ordered", "strict", "relaxed")},
    **{f"{p}, the worst GPU": ([f"--free={p}"], {"SIMGPU_ADVERSARY": "7"}) for p in ("auto", "ordered", "relaxed")},
    "nccl": (KINDS["nccl"], {}),
    "a limit": ([], {"CUPOOL_LIMIT": "1M"}),
    "guards": ([], {"CUPOOL_DEBUG": "1"}),
}


def computed(job: Job) -> "list[str]":
    """The figures that have to be equal: losses, digests."""
    losses = re.findall(r"^world \d+ step \d+ loss \S+", job.out, re.M)
    digests = re.findall(r"^ *(\d+) +\d+ +[\d.]+ +[\d.]+ +\d+ +[\d.]+  ([0-9a-f]{16})$", job.out, re.M)
    return losses + [" ".join(d) for d in digests]


def world(lines: "list[str]", ranks: int) -> "list[str]":
    return [line for line in lines if re.match(rf"(world )?{ranks} ", line)]


class Equal(Base):
    def test_threads(self) -> None:
        jobs = {name: self.one(*DECODER, *WORLDS, options=options, **more) for name, (options, more) in THREADS.items()}
        native = computed(jobs["native"])
        self.assertEqual(len(native), 3 * 5, jobs["native"].out)
        self.assertEqual(len(set(native)), 3 * 5, "worlds that see other tokens compute the same")
        for name, job in jobs.items():
            self.assertEqual(computed(job), native, name)
            self.assertEqual(job.err, "", name)
        self.assertEqual({j.reported("breaches") for j in jobs.values()}, {0})
        for name in "ordered", "nccl":
            self.tool("check", "--complete", *jobs[name].traces)

    def test_processes(self) -> None:
        native = world(computed(self.one(*DECODER, *WORLDS)), RANKS)
        for kind, options in KINDS.items():
            job = self.start(DECODER, options)
            self.assertEqual((computed(job), job.err), (native, ""), kind)
            if kind == "nccl":
                self.assert_registered(job)

    def test_mpirun(self) -> None:
        native = world(computed(self.one(*DECODER, *WORLDS)), RANKS)
        for kind, options in KINDS.items():
            self.assertEqual(computed(self.mpirun(DECODER, options)), native, kind)

    def test_it_learns(self) -> None:
        job = self.one("decoder", *SIZES, "--steps", "60", "--rate", "5e-3", options=["--free=ordered"])
        losses = [float(v) for v in re.findall(r"\((\d+\.\d+)\)$", job.out, re.M)]
        self.assertEqual(len(losses), 60)
        self.assertLess(abs(losses[0] - 4.25), 0.2)  # the logarithm of 70 words
        self.assertLess(sum(losses[-5:]) / 5, 3.0)

    def test_its_first_line_comes_before_its_first_step(self) -> None:
        """Into a pipe, too: without options a step takes minutes here."""
        cwd = self.folder()
        with subprocess.Popen(self.command(["decoder"], [], cwd), env=self.base(cwd), cwd=cwd, text=True, stdout=subprocess.PIPE) as child:
            assert child.stdout
            came = select.select([child.stdout], [], [], TIMEOUT)[0]
            line = child.stdout.readline() if came else "nothing"
            child.kill()
        self.assertEqual(line, "decoder: 12 layers of width 384, 10 steps of 2048 words on each GPU; a line for each step\n")

    def test_wrong_options(self) -> None:
        for args in ["--gpus", "0"], ["--gpus", "1,"], ["--gpus", "1 2"], ["--layers", "0"], ["--heads", "5"], ["--steps"], ["--what", "1"]:
            self.assertTrue(self.one(*DECODER, *args, rc=2).err.startswith("usage: decoder "), args)


class Meet(Base):
    """Ranks that neither MPI nor a file brings together, as torchrun starts them."""

    def address(self) -> str:
        """An address of this host that no other program uses, so that each port is free."""
        pick = random.Random(os.getpid() ^ id(self))
        return f"127.{pick.randrange(1, 255)}.{pick.randrange(1, 255)}.{pick.randrange(1, 255)}"

    def test_by_tcp(self) -> None:
        job = self.start(DECODER, KINDS["nccl"], MASTER_ADDR=self.address(), MASTER_PORT="29417")
        self.assertEqual(computed(job), computed(self.start(DECODER, None)))

    def test_beside_a_store(self) -> None:
        """torchrun's own store has the port, says so, and the ranks take the next one. Where nothing is said, that is an error."""
        where = {"MASTER_ADDR": self.address(), "MASTER_PORT": "29417"}
        with socket.create_server((where["MASTER_ADDR"], 29417)):
            self.start(["ring", "--max", "1024"], None, **where, TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RUN_ID="a job")
            job = self.one("decoder", RANK="0", WORLD_SIZE="4", **where, rc=1)
        self.assertIn("listen on MASTER_ADDR: Address already in use", job.err)
