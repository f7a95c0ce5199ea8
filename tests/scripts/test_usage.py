# SPDX-License-Identifier: Apache-2.0
"""Each program in scripts/ says what it is for, and names an option that it does not know."""
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent


class Usage(unittest.TestCase):
    def setUp(self):
        """A tree in which little can go wrong if a program starts to work."""
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.top = Path(tmp.name)
        shutil.copytree(TOP / "scripts", self.top / "scripts")
        (self.top / "tests").symlink_to(TOP / "tests")
        self.programs = [p for p in sorted((self.top / "scripts").rglob("*"))
                         if p.is_file() and os.access(p, os.X_OK) and p.read_bytes()[:2] == b"#!" and p.name != "rules"]

    def run_it(self, program, *words):
        done = subprocess.run([program, *words], cwd=self.top, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(sorted(p.name for p in self.top.iterdir()), ["scripts", "tests"], program)
        return done

    def test_help(self):
        self.assertGreater(len(self.programs), 20)
        for program in self.programs:
            for word in ("--help", "-h"):
                with self.subTest(program.name, word=word):
                    done = self.run_it(program, word)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertIn(program.name, done.stdout)
                    self.assertNotIn("SPDX", done.stdout)

    def test_an_option_that_is_not_known(self):
        for program in self.programs:
            if program.name in ("test", "cupool-trace"):  # meson's options; commands with options of their own
                continue
            with self.subTest(program.name):
                done = self.run_it(program, "--no-such-option")
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                if "usage: " not in done.stderr:  # argparse's has two parts
                    self.assertRegex(done.stderr, r"\A.*--no-such-option.*\n\Z")


if __name__ == "__main__":
    unittest.main()
