# SPDX-License-Identifier: Apache-2.0
"""A job of four ranks on simulated GPUs, natively and under cupool-run, for the tests of the example programs."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Optional

from e2e import LIB, SANITIZE, SIM, SOURCE, TIMEOUT, Case, mpirun, need, tool

EXAMPLES = Path(os.environ["E2E_EXAMPLES"])
SIMNCCL = Path(os.environ["E2E_SIMNCCL"])
CUPOOL_RUN = SOURCE / "scripts" / "cupool-run"
RANKS = 4
# How a program is run: cupool-run's options; None: without it.
KINDS: "dict[str, Optional[list[str]]]" = {"native": None, "cuda": [], "nccl": ["--backend=nccl", "--register"]}


class Job:
    """The output of a job of RANKS processes, and its files: traces, and the stand-in's reports."""

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
        """As by torchrun or srun: ranks in the environment, which meet at MASTER_ADDR if more has it, else by a file. other: some
        ranks' options, where they differ."""
        cwd = self.folder()
        where = [] if "MASTER_ADDR" in more else ["--id", str(cwd / "id")]
        running = []
        for rank in range(RANKS):
            command = self.command([*program, *where], other.get(rank, options), cwd)
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

    def one(self, *program: str, options: "Optional[list[str]]" = None, rc: int = 0, **more: str) -> Job:
        """One process."""
        cwd = self.folder()
        done = subprocess.run(self.command(list(program), options, cwd), env=self.base(cwd, **more), cwd=cwd, capture_output=True,
                              text=True, timeout=4 * TIMEOUT)
        self.assertEqual(done.returncode, rc, done.stdout + done.stderr)
        return Job(cwd, [(done.returncode, done.stdout, done.stderr)])

    def need_mpi(self, program: str) -> None:
        if SANITIZE != "none":
            self.skipTest("MPI itself is not built with it")
        names = subprocess.run([need("nm"), "-DPu", EXAMPLES / program], capture_output=True, text=True, check=True).stdout
        if "MPI_Init " not in names:
            self.skipTest("the examples were built without MPI")

    def mpirun(self, program: "list[str]", options: "Optional[list[str]]", fine: bool = True) -> Job:
        self.need_mpi(program[0])
        cwd = self.folder()
        env = self.base(cwd, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                        OMPI_MCA_plm_rsh_agent="", PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
        done = subprocess.run([mpirun(), "-n", str(RANKS), *self.command(program, options, cwd)], env=env, cwd=cwd, text=True,
                              capture_output=True, timeout=4 * TIMEOUT)
        self.assertEqual(done.returncode == 0, fine, done.stdout + done.stderr)
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
