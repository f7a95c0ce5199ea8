# SPDX-License-Identifier: Apache-2.0
"""Tests of the manual pages as they were built: they format without a warning, and nothing that the programs know is missing.

test_docs.py tests their examples.
"""

import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = Path(os.environ["MAN_PAGES"])
INFO, REPLAY = os.environ["MAN_INFO"], os.environ["MAN_REPLAY"]
NAMES = ("cupool.7", "cupool.3", "cupool-run.1", "cupool-ctl.1", "cupool-trace.1", "cupool-info.1", "cupool-replay.1")


def text_of(name: str) -> str:
    return (PAGES / name).read_text().replace("\\-", "-").replace("\\&", "")


class Format(unittest.TestCase):
    @unittest.skipUnless(shutil.which("groff"), "no groff")
    def test_groff(self) -> None:
        for name in NAMES:
            with self.subTest(name):
                done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-K", "utf8", "-rLL=80n", PAGES / name],
                                      capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertGreater(len(done.stdout.splitlines()), 30)

    @unittest.skipUnless(shutil.which("man") and shutil.which("groff"), "no man")
    def test_man(self) -> None:
        for name in NAMES:
            with self.subTest(name):
                done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", PAGES / name], capture_output=True, text=True,
                                      env={"PATH": os.environ["PATH"], "MANPAGER": "cat", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"})
                if "--warnings" in done.stderr and done.returncode:
                    self.skipTest("not man-db")
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    @unittest.skipUnless(shutil.which("mandoc"), "no mandoc")
    def test_mandoc(self) -> None:
        for name in NAMES:
            with self.subTest(name):
                done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", PAGES / name], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_nothing_was_left_out(self) -> None:
        for name in NAMES:
            self.assertNotRegex(text_of(name), r"(?m)^@|@VERSION@|\bNone\b(?!\))")


class Contents(unittest.TestCase):
    def test_functions(self) -> None:
        header = (ROOT / "include" / "cupool.h").read_text()
        functions = re.findall(r"(?m)^static inline \w+ (cupool_\w+)\(", header)
        self.assertGreater(len(functions), 3)
        for function in functions:
            self.assertRegex(text_of("cupool.3"), rf'(?m)^\.BI? "?int(64_t)? {function}\(')
            self.assertIn(f"\n.TP\n.BR {function} ()\n", text_of("cupool.3"))
            self.assertIn(function, text_of("cupool.3").split(".SH SYNOPSIS")[0])
        for error in set(re.findall(r"-(E[A-Z]+)", header)):
            self.assertIn(f"\n.B {error}\n", text_of("cupool.3"))

    def test_settings(self) -> None:
        rows = re.findall(r'(?m)^CONF\(\w+, "(\w+)"', (ROOT / "shim" / "conf.def").read_text())
        self.assertGreater(len(rows), 5)
        for row in rows:
            self.assertRegex(text_of("cupool.7"), rf'(?m)^\.BR CUPOOL_{row} " \(\S.*; default: \S.*\)"$')
        self.assertIn('.BR CUPOOL_FREE " (auto | ordered | strict | relaxed; default: auto)"', text_of("cupool.7"))

    def options(self, command: "list[str | Path]") -> list[str]:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.findall(r"(?m)^  +(?:-\w, )?(--[\w-]+)", done.stdout)
        self.assertGreater(len(found), 0, command)
        return found

    def test_options(self) -> None:
        for name, program in (("cupool-run.1", str(ROOT / "scripts" / "cupool-run")), ("cupool-ctl.1", str(ROOT / "scripts" / "cupool-ctl")),
                              ("cupool-info.1", INFO),
                              ("cupool-replay.1", REPLAY)):
            for option in self.options([program, "--help"]):
                self.assertRegex(text_of(name), rf"(?m)^\.B .*{re.escape(option)}", option)

    def test_input_of_replay(self) -> None:
        """Each kind of line that the help tells of is in the page."""
        said = subprocess.run([REPLAY, "--help"], capture_output=True, text=True, check=True).stdout
        lines = re.findall(r"(?m)^  [a-z#] .*$", said)
        self.assertEqual([line[2] for line in lines], list("afrt#"))
        for line in lines:
            self.assertIn(f"\n{line}\n", text_of("cupool-replay.1"))

    def test_commands(self) -> None:
        sys.path.insert(0, str(ROOT / "scripts"))
        sys.dont_write_bytecode = True
        from cupool_trace import cli

        text = text_of("cupool-trace.1")
        for command in cli.COMMANDS:
            self.assertIn(f"\n.SS {command}\n", text)
            part = text.split(f"\n.SS {command}\n")[1].split("\n.S")[0]
            for option in self.options([ROOT / "scripts" / "cupool-trace", command, "--help"]):
                if option != "--help":
                    self.assertRegex(part, rf"(?m)^\.B .*{re.escape(option)}", command)
