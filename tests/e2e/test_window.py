# SPDX-License-Identifier: Apache-2.0
"""cupool_window_register: windows of NCCL for a program that asks for them. The stand-in holds NCCL's rules against every call, and
ends the program where a window's memory goes before it.
"""

import json
import os
import unittest
from typing import Any

from e2e import BIN, LIB, SIM, Case, Done
from nccl_jobs import BREACH

NCCL_LIB = LIB.with_name("libcupool-nccl.so")
SIMNCCL = os.environ["E2E_SIMNCCL"]
RANKS = 3
EIO, EBUSY, EXDEV, EINVAL, ENOSYS, ENOTSUP = -5, -16, -18, -22, -38, -95


class Window(Case):
    def answers(self, done: Done) -> "list[tuple[str, int]]":
        """The messages of the ranks, in order; all ranks have equal ones."""
        by_rank: "dict[str, list[tuple[str, int]]]" = {}
        for line in done.out.splitlines():
            rank, what, answer = line.split()
            by_rank.setdefault(rank, []).append((what, int(answer)))
        self.assertEqual(len(by_rank), RANKS)
        for rank in by_rank:
            self.assertEqual(by_rank[rank], by_rank["0"])
        return by_rank["0"]

    def ask(self, *words: str, **env: Any) -> "tuple[list[tuple[str, int]], Done, dict[str, Any]]":
        report = self.folder() / "report"
        done = self.go(BIN / "window", words[0], str(RANKS), *words[1:],
                       **{"preload": str(NCCL_LIB), "LD_LIBRARY_PATH": f"{SIMNCCL}:{SIM}", "SIMNCCL_STRICT": "1", "SIMNCCL_REPORT": str(report),
                          "SIMGPU_DEVICES": str(RANKS), "CUPOOL_BACKEND": "nccl", "CUPOOL_REGISTER": "1", **env})
        return self.answers(done), done, json.loads(report.read_text())

    def test_agree(self) -> None:
        """The second is of a segment that has one already; those that are gone or never were are not known."""
        for version in ("22809", "22902"):
            for words in (["agree"], ["agree", "nonblocking"]):
                answers, done, report = self.ask(*words, SIMNCCL_VERSION=version)
                self.assertEqual(answers, [("first", 0), ("second", 0), ("undone", 0), ("again", EINVAL), ("undone", 0)])
                self.assertEqual((report["windows"], report["breaches"]), (2 * RANKS, 0))
                trace = self.one_trace(done)
                self.assertEqual([(e["ok"], e["n"] > 0) for e in trace.of("window")], [(1, True)] * 2 * RANKS)
                self.assertNotIn("oom", [e["why"] for e in trace.of("trim")])
                self.assertEqual(done.warnings, [])
                self.assert_fine(trace.path)

    def test_memory_that_lies_differently(self) -> None:
        """At another place of its segment, or in a segment of another size."""
        for scenario in "differ", "larger":
            answers, _, report = self.ask(scenario)
            self.assertEqual(answers, [("register", EXDEV)])
            self.assertEqual((report["windows"], report["breaches"]), (0, 0))

    def test_one_rank_has_nothing_to_offer(self) -> None:
        answers, _, report = self.ask("kinds")
        self.assertEqual(answers, [("end", EINVAL), ("host", EINVAL), ("beyond", EINVAL), ("nothing", EINVAL), ("async", ENOTSUP)])
        self.assertEqual(report["windows"], 0)

    def test_where_there_are_none(self) -> None:
        self.assertEqual(self.ask("nowhere")[0], [("group", EBUSY), ("capture", EBUSY), ("deregister", EINVAL), ("device", EINVAL), ("null", EINVAL),
                                                  ("unknown", EINVAL)])
        for env, answer in (({"CUPOOL_REGISTER": "0"}, ENOTSUP), ({"preload": None}, ENOSYS), ({"CUPOOL_ENABLE": "0"}, ENOSYS),
                            ({"preload": str(LIB)}, ENOTSUP), ({"CUPOOL_BACKEND": "cuda"}, ENOTSUP)):
            with self.subTest(str(env)):
                self.assertEqual(self.ask("differ", **env)[0], [("register", answer)])

    def test_what_a_window_holds_stays(self) -> None:
        answers, _, report = self.ask("stays")
        self.assertEqual(answers, [("register", 0), ("undone", 0), ("gone", 1)])
        self.assertEqual(report["breaches"], 0)

    def test_given_up(self) -> None:
        """By a thread that ends the communicator while another one waits for the ranks to agree."""
        self.assertEqual(self.ask("alone")[0], [("register", EIO)])

    def test_other_handles(self) -> None:
        answers, _, report = self.ask("handles")
        self.assertEqual((answers, report["breaches"]), ([("undone", EINVAL)], 0))

    def test_refused(self) -> None:
        """By NCCL, of all ranks: nothing is left of it, and memory goes as if nobody had asked."""
        answers, _, report = self.ask("agree", SIMNCCL_FAIL="ncclCommWindowRegister:1+")
        self.assertEqual(answers, [("first", EIO), ("second", EIO), ("undone", EINVAL), ("again", EINVAL), ("undone", EINVAL)])
        self.assertEqual((report["windows"], report["breaches"]), (0, 0))

    def test_not_undone(self) -> None:
        """NCCL refuses to undo them: they are there as before, and so is their memory, until the communicator goes."""
        answers, done, report = self.ask("agree", SIMNCCL_FAIL="ncclCommWindowDeregister:1+", rc=BREACH)
        self.assertEqual(answers, [("first", 0), ("second", 0), ("undone", EIO), ("again", EIO), ("undone", EIO)])
        self.assertEqual((done.warnings, report["windows"], report["breaches"]), ([], 2 * RANKS, RANKS))
        self.assertEqual(done.err.count("ncclCommDestroy: 4 registrations are left"), RANKS, done.err)
