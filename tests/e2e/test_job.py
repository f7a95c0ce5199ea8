# SPDX-License-Identifier: Apache-2.0
"""cupool-run --stats in front of a launcher: one table of the job when the launcher ends, from what its ranks have left.

The launcher is a script of this test by the name of mpirun, and the real one where there is one.
"""

import os
import re
import sys
import unittest
from pathlib import Path
from typing import Any, Optional

from e2e import BIN, LIB, MIB, SIM, SOURCE, Case, Done, need, not_with_coverage, tool

RUN = SOURCE / "scripts" / "cupool-run"
REPORT = BIN / "report_shared"
# Starts the programs whose command lines are its arguments, separated by ":", as ranks at the same time.
LAUNCHER = f"""#!{sys.executable}
import os, subprocess, sys
commands = " ".join(sys.argv[1:]).split(" : ")
ranks = [subprocess.Popen(c.split(), env={{**os.environ, "OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": str(len(commands))}})
         for r, c in enumerate(commands)]
sys.exit(max(abs(r.wait()) for r in ranks))
"""
ROW = re.compile(r"^cupool: (\S+) +(\S+) +(\S+) +([\d.]+) +([\d.]+) +(\d+) +([\d.]+)% +(\d+\.\d)( \(killed\))?$", re.M)


class Job(Case):
    def setUp(self) -> None:
        super().setUp()
        self.scratch = self.tmp / "scratch"
        self.scratch.mkdir()
        self.mpirun = self.launcher("mpirun")

    def launcher(self, name: str) -> Path:
        path = self.tmp / name
        path.write_text(LAUNCHER)
        path.chmod(0o755)
        return path

    def job(self, *words: "str | Path", launcher: Optional[Path] = None, stats: str = "--stats", rc: int = 0, **env: Any) -> Done:
        done = self.go(RUN, stats, "--trace=%r.jsonl", "--", launcher or self.mpirun, *words, preload=None, rc=rc,
                       **{"BUILDDIR": LIB.parent.parent, "TMPDIR": self.scratch, "SIMGPU_DEVICES": "2", **env})
        self.assertEqual(list(self.scratch.iterdir()), [], "the folder is removed")
        return done

    def rows(self, done: Done) -> "list[tuple[str, ...]]":
        """The table, which is the last of all."""
        rows = ROW.findall(done.err)
        if rows:
            self.assertEqual(done.err.splitlines()[-len(rows) - 2:-len(rows)],
                             ["cupool: job:", "cupool: host                  rank device    peak MiB    held MiB      allocs    hits   driver ms"])
            self.assertEqual(ROW.findall("\n".join(done.err.splitlines()[-len(rows):])), rows)
        return rows

    def test_a_row_for_each_rank_and_their_sum(self) -> None:
        done = self.job(REPORT, f"churn:30:{3 * MIB}", ":", REPORT, f"churn:10:{5 * MIB}", ":", REPORT, f"churn:60:{MIB}")
        host = os.uname().nodename
        rows = [(*row[:7], row[8]) for row in self.rows(done)]
        self.assertEqual(rows, [(host, "0", "0", "3.0", "4.0", "30", "96.67", ""), (host, "1", "0", "5.0", "6.0", "10", "90.00", ""),
                                (host, "2", "0", "1.0", "2.0", "60", "98.33", ""), ("all", "-", "-", "9.0", "12.0", "100", "97.00", "")])
        ms = [float(row[7]) for row in self.rows(done)]
        traces = {t.header["rank"]: t for t in done.traces()}
        for rank in range(3):  # as long as the traces say
            self.assertAlmostEqual(ms[rank], sum(e["us"] for e in traces[rank].of("segment_alloc", "trim")) / 1000, delta=0.11)
        self.assertAlmostEqual(ms[-1], sum(ms[:-1]), delta=0.1 * len(ms))
        # The ranks' own tables are there as well, and the traces say so, too.
        self.assertEqual(done.err.count("hits       frees"), 3)
        for rank, row in enumerate(self.rows(done)[:-1]):
            self.assertIn(row[5], tool.run("summary", done.cwd / f"{rank}.jsonl").stdout)

    def test_two_devices_and_a_rank_that_was_killed(self) -> None:
        done = self.job(REPORT, "alloc:4096", "kill", ":", REPORT, "device:1", "alloc:4096", "device:0", "alloc:4096", rc=9)
        self.assertEqual([(r[1], r[2], r[8]) for r in self.rows(done)],
                         [("0", "0", " (killed)"), ("1", "0", ""), ("1", "1", ""), ("-", "-", " (killed)")])

    def test_exit_status_and_ranks_that_cupool_run_starts(self) -> None:
        """Such a rank, without CUDA, ends before the other, and takes nothing away."""
        done = self.job(RUN, "--", "true", ":", "sh", "-c", f"sleep\t1;{REPORT}\talloc:4096;exit\t3".replace("\t", "${IFS}"), rc=3)
        self.assertEqual([r[1] for r in self.rows(done)], ["1", "-"])

    def test_ranks_on_other_hosts_are_silent(self) -> None:
        """Where the folder is not there."""
        done = self.job("env", "_CUPOOL_JOB=1:/nowhere", "CUPOOL_STATS_FILE=/nowhere/%r.page", REPORT, "alloc:4096", ":", REPORT, "alloc:4096")
        self.assertEqual([r[1] for r in self.rows(done)], ["1", "-"])
        self.assertNotIn("statistics", done.err)
        # A page that somebody wants himself, or where there is no job, is warned of all the same.
        for job, page in (("1:/nowhere", "/other"), ("1x/nowhere", "/nowhere"), ("1:nowhere", "/nowhere")):
            done = self.job("env", f"_CUPOOL_JOB={job}", f"CUPOOL_STATS_FILE={page}/%r.page", REPORT, "alloc:4096", ":", REPORT, "alloc:4096")
            self.assertIn("statistics page", done.err)

    def test_none(self) -> None:
        self.assertEqual(self.rows(self.job("true")), [])
        words = (REPORT, "alloc:4096")
        self.assertEqual(self.rows(self.job(*words, stats="--stats=timer:1h")), [])
        self.assertEqual(self.rows(self.job(*words, launcher=self.launcher("other"))), [])
        done = self.job(*words, CUPOOL_STATS_FILE="%r.page")
        self.assertEqual((self.rows(done), "0.page" in done.files), ([], True))
        percent = self.tmp / "a%b"
        percent.mkdir()
        self.assertEqual(self.rows(self.job(*words, TMPDIR=percent)), [])
        self.assertEqual(list(percent.iterdir()), [])

    def test_with_other_times(self) -> None:
        self.assertEqual(len(self.rows(self.job(REPORT, "alloc:4096", stats="--stats=timer:1h,exit"))), 2)

    @not_with_coverage
    def test_damaged_files(self) -> None:
        """A launcher whose ranks leave no pages, or others' files."""
        for what in ("head${IFS}-c${IFS}30000${IFS}/dev/zero", "head${IFS}-c${IFS}100${IFS}/dev/urandom", "echo"):
            done = self.job("sh", "-c", f"{what}>${{_CUPOOL_JOB#*:}}/x.page", ":", REPORT, "alloc:4096")
            self.assertEqual([r[1] for r in self.rows(done)], ["1", "-"])

    def test_mpirun(self) -> None:
        real = Path(need("mpirun"))
        done = self.job("-n", "2", REPORT, f"churn:20:{MIB}", launcher=real, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                        OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_plm_rsh_agent="", LD_LIBRARY_PATH=str(SIM), TMPDIR="/tmp")
        self.assertEqual([(r[1], r[5]) for r in self.rows(done)], [("0", "20"), ("1", "20"), ("-", "40")])
