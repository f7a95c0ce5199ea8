# SPDX-License-Identifier: Apache-2.0
"""Which rank of which job a process takes itself for, seen from outside, through cupool-info and the header of a trace; and a
real mpirun. Every launcher's variables, and one launcher inside another, are in tests/unit/shim/base/test_launch.c.
"""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from e2e import INFO, LIB, SIM, Case, Trace, Word, app, mpirun

os.environ.pop("RANK", None)

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}
PMIX = {"PMIX_RANK": "7", "PMIX_NAMESPACE": "x"}
SLURM = {"SLURM_PROCID": "9", "SLURM_LOCALID": "4", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "77"}

# Variables, and what they have to come to: rank, local rank, who says so.
ALONE: "list[tuple[dict[str, str], tuple[int, int, str]]]" = [
    ({}, (-1, -1, "none")),
    ({"CUPOOL_RANK": "12", **TORCHRUN}, (12, 1, "setting")),
    ({**OPENMPI, **PMIX}, (6, 2, "openmpi")),
    ({**TORCHRUN, "LOCAL_RANK": "x"}, (5, -1, "torchrun")),
]


class Case_(Case):
    def info(self, *launcher: Word, **variables: str) -> "tuple[int, int, str]":
        done = self.go(*launcher, INFO, "--process", preload=None, **variables)
        m = re.search(r"rank (-?\d+), local rank (-?\d+) \(from: (\w+)\)", done.out)
        assert m, done.out + done.err
        return int(m[1]), int(m[2]), m[3]

    def named(self, name: str) -> Path:
        """A launcher's process: a program of this name that starts another and stays its parent."""
        path = self.tmp / name
        if not path.exists():
            path.write_text('#!/bin/sh\n"$@"\nexit $?\n')
            path.chmod(0o755)
        return path

    def python_as(self, *words: str) -> "list[Word]":
        """A Python with these words on its command line that starts what follows and stays its parent."""
        return [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[%d:]))" % (len(words) + 1),
                *words]


class Variables(Case_):
    def test_header(self) -> None:
        for variables, (rank, local, source) in ALONE:
            with self.subTest(variables):
                done = self.go(app("shared"), "alloc:1:4096", CUPOOL_TRACE_FILE="t.r%r.l%l.jsonl", **variables)
                header = self.one_trace(done).header
                self.assertEqual((header["rank"], header["local_rank"], header["rank_from"]),
                                 (None if rank < 0 else rank, None if local < 0 else local, source))
                self.assertEqual(done.files, [f"t.r{'x' if rank < 0 else rank}.l{'x' if local < 0 else local}.jsonl"])

    def test_invalid_setting_is_said_and_the_launcher_counts(self) -> None:
        done = self.go(app("shared"), "alloc:1:4096", CUPOOL_RANK="two", **TORCHRUN)
        self.assertEqual(self.one_trace(done).header["rank"], 5)
        self.assertIn("CUPOOL_RANK", "".join(done.warnings))


class Nested(Case_):
    """Two launchers' variables at once: the process tree tells which is the inner one."""

    def test_torchrun_under_srun(self) -> None:
        both = {**SLURM, **TORCHRUN}
        self.assertEqual(self.info(self.named("slurmstepd"), self.named("torchrun"), **both), (5, 1, "torchrun"))
        self.assertEqual(self.info(self.named("slurmstepd"), *self.python_as("-m", "torch.distributed.run"), **both),
                         (5, 1, "torchrun"))

    def test_torchrun_with_a_long_command_line(self) -> None:
        """Its own words stand first; hundreds of arguments of the script follow."""
        self.assertEqual(self.info(self.named("orted"), *self.python_as("torch.distributed.run"), self.named("wrapper"),
                                   *["env"] + [f"A{i}={'x' * 50}" for i in range(100)], **OPENMPI, **TORCHRUN),
                         (5, 1, "torchrun"))

    def test_a_process_name_with_brackets_and_blanks(self) -> None:
        """/proc/PID/stat does not quote the name."""
        self.assertEqual(self.info(self.named("torchrun"), self.named("orted"), self.named("a) R 1 (b"), **TORCHRUN, **OPENMPI),
                         (6, 2, "openmpi"))


class Mpirun(Case_):
    """A real Open MPI."""

    def mpirun(self, *args: Word, **variables: str) -> "subprocess.CompletedProcess[str]":
        env = self.env(None, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_plm_rsh_agent="",
                       **variables)
        cwd = self.folder()
        done = subprocess.run([mpirun(), "-n", "2", "--oversubscribe", *[str(a) for a in args]], env=env, cwd=cwd,
                              capture_output=True, text=True, timeout=60)
        if done.returncode and "Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout:
            self.skipTest("mpirun is not Open MPI's")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.cwd = cwd
        return done

    def test_info(self) -> None:
        out = self.mpirun(INFO, "--process").stdout
        self.assertEqual(sorted(re.findall(r"rank (\d+), local rank (\d+) \(from: (\w+)\)", out)),
                         [("0", "0", "openmpi"), ("1", "1", "openmpi")])

    def test_inside_torchruns_environment(self) -> None:
        """A worker of torchrun that starts mpirun: its variables are inherited by every rank, and mean nothing there."""
        out = self.mpirun(INFO, "--process", **TORCHRUN).stdout
        self.assertEqual(sorted(re.findall(r"rank (\d+), local rank \d+ \(from: (\w+)\)", out)),
                         [("0", "openmpi"), ("1", "openmpi")])

    def test_traces_of_a_preloaded_job(self) -> None:
        """As people start it: the preload for the ranks only, one trace each; nothing from mpirun's own processes."""
        done = self.mpirun("env", f"LD_PRELOAD={LIB}", f"LD_LIBRARY_PATH={SIM}", app("shared"), "churn:50:100000")
        traces = [Trace(p) for p in sorted(self.cwd.iterdir())]
        self.assertEqual([t.header["rank"] for t in traces], [0, 1], done.stderr)
        self.assertTrue(all(t.ended for t in traces))
        self.assert_fine(*[t.path for t in traces])

    def test_mpirun_itself_preloaded(self) -> None:
        """Also started in front of everything, as with cupool-run -- mpirun ...: only the ranks leave a trace."""
        self.mpirun("-x", "LD_PRELOAD", app("shared"), "churn:50:100000", LD_PRELOAD=str(LIB))
        traces = [Trace(p) for p in sorted(self.cwd.iterdir())]
        self.assertEqual([t.header["rank"] for t in traces], [0, 1])
