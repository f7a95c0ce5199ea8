# SPDX-License-Identifier: Apache-2.0
"""Every row of hooks/nccl.def: what it does to buffers, communicators, memory and registrations, with a NCCL that is made from the
same list and writes every call down (nccl_double.c). Jobs of several ranks and their data are in test_nccl.py.
"""

import os
import re
import subprocess
import unittest
from pathlib import Path

from e2e import BIN, LIB, SIM, SOURCE, TIMEOUT, Case, Trace

NCCL_LIB = LIB.with_name("libcupool-nccl.so")
ROWS = re.findall(r"^NCCL\w*\((nccl\w+),", (SOURCE / "shim" / "hooks" / "nccl.def").read_text(), re.M)


def rows_listed() -> "dict[str, list[str]]":
    """The tests of each row, by its name."""
    tests = {"passes": "test_arguments_and_results", "rest": "test_groups_and_memory"}
    out = subprocess.run([BIN / "nccl_rows", "--list"], env={**os.environ, "LD_LIBRARY_PATH": f"{BIN}:{SIM}"}, stdout=subprocess.PIPE, text=True,
                         timeout=TIMEOUT, check=True).stdout
    return {name: [tests.get(mode, f"test_{mode}") for mode in modes.split("; ")] for name, modes in re.findall(r"^(\w+): (.+)$", out, re.M)}


class Rows(Case):
    def rows(self, mode: str, register: str = "1", preload: "str | None" = str(NCCL_LIB), double: Path = BIN) -> "tuple[str, list[Trace]]":
        """The program's stdout, with the library's messages, and its trace. It reads the library's stderr itself,
        where the statistics are."""
        cwd = self.folder()
        env = self.env(preload, LD_LIBRARY_PATH=f"{double}:{SIM}", CUPOOL_REGISTER=register, CUPOOL_STATS="signal:USR2")
        reading, writing = os.pipe()
        with open(reading) as stdin, open(writing, "w") as stderr:
            done = subprocess.run([BIN / "nccl_rows", mode], env=env, cwd=cwd, stdin=stdin, stderr=stderr, stdout=subprocess.PIPE,
                                  text=True, timeout=TIMEOUT)
            stderr.close()
            out = done.stdout + "".join(line for line in stdin if line.startswith("cupool["))
        self.assertEqual(done.returncode, 0, out[-400:])
        # Said where it is so, once, and nowhere else.
        self.assertEqual(out.count("one buffer in registered memory and one outside"), mode == "extents", out)
        return out, [Trace(p) for p in cwd.iterdir()]

    def test_the_list_was_read(self) -> None:
        self.assertGreaterEqual(len(ROWS), 40)
        self.assertIn("ncclReduceScatter", ROWS)

    def test_each_row_has_tests(self) -> None:
        """Of its arguments, and of what it does."""
        listed = rows_listed()
        self.assertEqual(list(listed), ROWS)
        for name, tests in listed.items():
            with self.subTest(name):
                self.assertGreaterEqual(len(tests), 2)
                for test in tests:
                    self.assertTrue(hasattr(self, test), test)

    def test_arguments_and_results(self) -> None:
        """Of every row; with registration and without, and with the double alone."""
        for register in "0", "1":
            with self.subTest(register):
                out, _ = self.rows("passes", register)
                self.assertEqual(sorted(set(re.findall(r"^row (\w+)$", out, re.M))), sorted(ROWS))
        self.rows("passes", preload=None)

    def test_extents(self) -> None:
        """Of every operation: a buffer lies in registered memory if all of it does that the operation touches."""
        self.rows("extents")

    def test_what_ranks_give_that_send_nothing(self) -> None:
        """NCCL looks it up: in place of what is not there, it gets the memory to receive."""
        self.rows("look_up")

    def test_kinds(self) -> None:
        self.rows("kinds")

    def test_a_nccl_that_lacks_a_function(self) -> None:
        """Nothing is registered, and that is said once."""
        for name in ("ncclCommRegister", "ncclCommDeregister", "ncclCommGetAsyncError", "ncclCommCuDevice", "ncclCommUserRank",
                     "ncclCommCount"):
            with self.subTest(name):
                folder = self.folder()
                with_all = (BIN / "libnccl_double.so").read_bytes()
                without = with_all.replace(f"\0{name}\0".encode(), f"\0_{name[1:]}\0".encode())
                self.assertNotEqual(without, with_all)
                (folder / "libnccl_double.so").write_bytes(without)
                out, _ = self.rows("incapable", double=folder)
                self.assertEqual(out.count("this NCCL cannot register memory"), 1, out)

    def test_calls_of_nccls_own(self) -> None:
        self.rows("nested")

    def test_made(self) -> None:
        _, (trace,) = self.rows("made")
        self.assertLessEqual({(1, 3, 22902)}, {(e["rank"], e["ranks"], e["nccl"]) for e in trace.of("comm_init")})

    def test_used(self) -> None:
        self.rows("used")

    def test_ends(self) -> None:
        """Each communicator once, says the trace, and with its registrations undone or without."""
        _, (trace,) = self.rows("ends")
        known: "set[str]" = set()
        for e in trace.of("comm_init", "comm_destroy"):
            (known.add if e["e"] == "comm_init" else known.remove)(e["comm"])
        self.assertEqual({e["ok"] for e in trace.of("comm_destroy")}, {0, 1})

    def test_polls(self) -> None:
        """The library does not ask beside the program, and memory goes once the program has seen the end of the work."""
        self.rows("polls")

    def test_groups_and_memory(self) -> None:
        self.rows("rest")
        self.rows("pool")
