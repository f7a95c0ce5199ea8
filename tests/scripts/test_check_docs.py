#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check-docs finds nothing in a small sound tree, and each kind of mistake that is planted there.

Not here: the project's own pages; the test readme runs scripts/check-docs on them.
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECKER = Path(__file__).resolve().parents[2] / "scripts/check-docs"
SETTINGS = "<!-- settings: printed by a program -->\nA setting.\n<!-- end of settings -->\n"
ADVICE = 'ADVICE(rule, "if N:", "change it")\n'
RULES = '<!-- rules: made -->\n\n* if N: "change it"\n\n<!-- end of rules -->\n'
SOUND = {
    "README.md": "# Top\n\nSee [a heading](docs/page.md#a-heading), `shim/conf.def` and `a_function()`.\n",
    "docs/page.md": "# Page\n\n## A heading\n\nA sentence. What is a question? " + "x" * 60 + "\n\n| a |\n|---|\n| b |\n",
    "docs/settings.md": "# Settings\n\n" + SETTINGS,
    "docs/troubleshooting.md": "# Trouble\n\n" + RULES,
    "shim/conf.def": "int a_function(void);\n",
    "shim/report/advice.def": ADVICE,
}
# The files of the tree that a mistake changes, and the line that check-docs prints.
MISTAKES = (
    ({"docs/page.md": "# Page\n\n## A heading\n\n" + "x" * 121 + "\n"}, "docs/page.md:5: 121 columns, at most 120"),
    ({"docs/measurements/a.md": "# A\n\n| a | b |\n|---|---|\n| " + "x" * 120 + " | 1 |\n"},
     "docs/measurements/a.md:5: 128 columns, at most 120"),
    ({"docs/code.md": "# Code\n\n```sh\n" + "x" * 121 + "\n```\n"}, "docs/code.md:4: 121 columns, at most 120"),
    ({"CONTRIBUTING.md": "| " + "x" * 119 + " |\n"}, "CONTRIBUTING.md:1: 123 columns, at most 120"),
    ({"docs/man/a.1.in": ".TH " + "x" * 117 + "\n"}, "docs/man/a.1.in:1: 121 columns, at most 120"),
    ({"README.md": "# Top\n" + "\n" * 120}, "README.md: 121 lines, at most 120"),
    ({"README.md": "[no page](docs/none.md)\n"}, "README.md: no file docs/none.md"),
    ({"README.md": "[no heading](docs/page.md#another)\n"}, "README.md: no heading docs/page.md#another"),
    ({"README.md": "See `shim/none.c`.\n"}, "README.md: no file shim/none.c"),
    ({"README.md": "See `another_function()`.\n"}, "README.md: no another_function in the sources"),
    ({"README.md": "# Top\n\nWhat it does is unclear.\n"}, "README.md: a sentence begins with What it does is ..."),
    ({"docs/settings.md": SETTINGS.replace("A setting", "Another")}, "docs/settings.md: the settings differ from conf.def"),
    ({"shim/report/advice.def": ADVICE.replace("it", "nothing")}, "docs/troubleshooting.md: the rules differ from advice.def"),
    ({"docs/settings.md": "# Settings\n"}, "docs/settings.md: no place for the settings"),
)


class CheckDocs(unittest.TestCase):
    def check(self, changed: dict[str, str]) -> tuple[int, str]:
        """Exit status and output, for the sound tree with some files changed."""
        with tempfile.TemporaryDirectory() as name:
            top = Path(name)
            for path, text in {**SOUND, **changed}.items():
                (top / path).parent.mkdir(parents=True, exist_ok=True)
                (top / path).write_text(text, encoding="utf-8")
            info = top / "info"
            info.write_text("#!/bin/sh\necho 'A setting.'\n", encoding="utf-8")
            info.chmod(0o755)
            done = subprocess.run([sys.executable, CHECKER, info, top], capture_output=True, text=True, check=False)
            self.assertEqual(done.stderr, "")
            return done.returncode, done.stdout.replace(f"{top}/", "")

    def test_sound(self) -> None:
        self.assertEqual(self.check({}), (0, ""))

    def test_mistakes(self) -> None:
        for changed, expected in MISTAKES:
            with self.subTest(expected):
                status, output = self.check(changed)
                self.assertEqual(status, 1)
                self.assertIn(expected, output)
                self.assertEqual(output.count("\n"), 1, output)
