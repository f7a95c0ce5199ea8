# SPDX-License-Identifier: Apache-2.0
"""The RPM: scripts/rpm/build makes it, rpm installs it into an empty folder, and its programs run from there on the simulated GPU.

Not here: the list of files in the spec file, which test_packages holds to what is installed; a system of Fedora or Red Hat.
"""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["PACKAGES_BUILD"])
RPM = all(shutil.which(name) for name in ("rpm", "rpmbuild", "meson", "tar", "xz"))


def go(*args: "str | Path", cwd: "Path | None" = None, **env: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=cwd, env={**os.environ, **env})
    if done.returncode:
        raise AssertionError(f"{args}\n{done.stdout}{done.stderr}")
    return done


@unittest.skipUnless(RPM, "no rpmbuild")
class Built(unittest.TestCase):
    top: Path
    package: Path

    @classmethod
    def setUpClass(cls) -> None:
        tmp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(tmp.cleanup)
        cls.top = Path(tmp.name).resolve()
        cls.package = Path(go(ROOT / "scripts/rpm/build", cls.top / "made").stdout.strip())

    def test_it_needs_libc_and_a_shell(self) -> None:
        needed = go("rpm", "-qp", "--requires", self.package).stdout.split("\n")
        others = {line.split("(")[0].split(" ")[0] for line in needed if line} - {"rpmlib", "rtld"}
        self.assertIn("libc.so.6", others)
        self.assertEqual([n for n in others if n.startswith("lib") and not n.startswith(("libc.so.6", "libm.so.6"))], [])
        self.assertEqual([n for n in others if n.startswith("/") and n not in ("/bin/sh", "/usr/bin/env", "/usr/bin/pkg-config", "/usr/bin/python3")], [])

    @unittest.skipUnless(os.geteuid() == 0, "rpm installs as root alone")
    def test_installed(self) -> None:
        root = self.top / "root"
        root.mkdir()
        go("rpm", "--root", root, "--dbpath", "/rpmdb", "--nodeps", "-i", self.package)
        version = go("rpm", "-qp", "--queryformat", "%{VERSION}", self.package).stdout
        tools = root / "usr/bin"
        for name in ("cupool-run", "cupool-trace", "cupool-info", "cupool-replay"):
            self.assertEqual(go(tools / name, "--version").stdout.split()[-1], version)
        env = {"LD_LIBRARY_PATH": str(BUILD / "tests/sim")}
        done = go(tools / "cupool-run", "--stats", "--trace=t.jsonl", "--", BUILD / "examples/phases", cwd=self.top, **env)
        self.assertIn("held MiB", done.stderr)
        summary = json.loads(go(tools / "cupool-trace", "summary", "--json", "t.jsonl", cwd=self.top).stdout)
        self.assertGreater(summary["ranks"][0]["devices"]["0"]["peak_live"], 0)
        preload = go(tools / "cupool-run", "--", "sh", "-c", "echo $LD_PRELOAD", cwd=self.top).stdout.strip()
        self.assertTrue(preload.startswith(str(root)) and Path(preload).exists(), preload)
        go("rpm", "--root", root, "--dbpath", "/rpmdb", "-e", "cupool")
        self.assertEqual([p for p in root.rglob("*cupool*") if p.is_file()], [])
