# SPDX-License-Identifier: Apache-2.0
"""Tests of what meson install puts where, and that it works from there: installed into an empty folder, moved elsewhere, and run.

Programs are the end-to-end tests', on the simulated GPU, which is taken from the build folder: it is not installed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["INSTALL_BUILD"])
MESON = shutil.which("meson")


def plain_env(**more: str) -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "TMPDIR", "CC")}, **more}


def introspect(what: str) -> "list[dict[str, object]]":
    assert MESON
    done = subprocess.run([MESON, "introspect", what, str(BUILD)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


class Setup(unittest.TestCase):
    def test_ubuntu_without_universe(self) -> None:
        """scripts/setup names the component where apt lacks it."""
        function = re.search(r"(?ms)^universe\(\) \{.*?^\}\n", (ROOT / "scripts/setup").read_text())
        assert function
        with tempfile.TemporaryDirectory() as tmp:
            apt, release = Path(tmp, "apt-get"), Path(tmp, "os-release")
            for system, components, said in (("ubuntu", "main", True), ("ubuntu", "main\nuniverse", False), ("debian", "main", False)):
                apt.write_text(f"#!/bin/sh\necho '{components}'\n")
                apt.chmod(0o755)
                release.write_text(f"NAME=x\nID={system}\n")
                done = subprocess.run(["sh", "-uc", function[0] + "universe"], capture_output=True, text=True,
                                      env={"PATH": f"{tmp}:{os.environ['PATH']}", "CUPOOL_OS_RELEASE": str(release)})
                self.assertEqual(("universe" in done.stdout, done.returncode, done.stderr), (said, 0, ""), (system, components))

    def test_a_release_of_ubuntu_newer_than_debootstrap(self) -> None:
        """scripts/bare-start names the script that debootstrap has for all of them."""
        function = re.search(r"(?ms)^make_base\(\) \{.*?^\}\n", (ROOT / "scripts/bare-start").read_text())
        assert function
        for components, last in (("main,universe", " /usr/share/debootstrap/scripts/gutsy"), ("", "")):
            words = f"apart() {{ echo \"$*\"; }}; carry_network() {{ :; }}; tmp=/nowhere arch= mirror=MIRROR components={components}\n"
            done = subprocess.run(["sh", "-uc", f"{words}{function[0]}make_base newer"], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, rf"\Adebootstrap .*newer /nowhere/newer MIRROR{last}\n\Z")


@unittest.skipUnless(MESON, "no meson")
class Case(unittest.TestCase):
    top: Path
    prefix: Path

    @classmethod
    def setUpClass(cls) -> None:
        tmp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(tmp.cleanup)
        cls.top = Path(tmp.name).resolve()
        assert MESON
        done = subprocess.run([MESON, "install", "-C", str(BUILD), "--no-rebuild", "--quiet", "--destdir", str(cls.top / "dest")],
                              capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        options = {o["name"]: str(o["value"]) for o in introspect("--buildoptions")}
        cls.libdir = options["libdir"]
        cls.mandir = options["mandir"]
        # Elsewhere: the tools find what they need relative to themselves.
        cls.prefix = cls.top / "elsewhere"
        shutil.move(str(cls.top / "dest") + options["prefix"], cls.prefix)

    def go(self, *args: "str | Path", rc: int = 0, **env: str) -> "subprocess.CompletedProcess[str]":
        cwd = Path(tempfile.mkdtemp(dir=self.top))
        self.cwd = cwd
        done = subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=cwd, timeout=60,
                              env=plain_env(LD_LIBRARY_PATH=str(BUILD / "tests/sim"), SIMGPU_DEVICES="2", **env))
        self.assertEqual(done.returncode, rc, done.stdout + done.stderr)
        return done


class Installed(Case):
    def test_files(self) -> None:
        files = {p.relative_to(self.prefix).as_posix() for p in self.prefix.rglob("*") if not p.is_dir() and p.suffix != ".pyc"}
        package = {"share/cupool/" + p.relative_to(ROOT / "scripts").as_posix() for p in (ROOT / "scripts/cupool_trace").rglob("*")
                   if p.is_file() and p.suffix != ".pyc"}
        docs = {"share/doc/cupool/" + p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")}
        expected = {
            "bin/cupool-replay", "bin/cupool-ctl", "bin/cupool-run", "bin/cupool-trace", "bin/cupool-info", f"{self.libdir}/libcupool.so", f"{self.libdir}/libcupool-nccl.so", f"{self.libdir}/pkgconfig/cupool.pc", "include/cupool.h",
            "share/doc/cupool/README.md", "share/doc/cupool/CHANGELOG.md", "share/cupool/version",
            *("share/doc/cupool/examples/" + n for n in ("train_like.c", "phases.c", "ring.c", "pipeline.c", "job.h", "ddp.py", "fsdp.py", "growing.py", "job.py")),
            *(f"{self.mandir}/man{n[-1]}/{n}" for n in
              ("cupool.7", "cupool.3", "cupool-run.1", "cupool-ctl.1", "cupool-trace.1", "cupool-info.1", "cupool-replay.1")),
            *package, *docs}
        self.assertEqual(sorted(expected - files), [], "missing")
        self.assertEqual(sorted(f for f in files - expected if not f.startswith("share/doc/cupool/")), [], "not expected")

    def test_modes(self) -> None:
        for name in ("cupool-run", "cupool-trace", "cupool-ctl", "cupool-info", "cupool-replay"):
            self.assertTrue(os.access(self.prefix / "bin" / name, os.X_OK), name)

    def test_library_needs_no_path(self) -> None:
        if not shutil.which("readelf"):
            self.skipTest("no readelf")
        for file in (f"{self.libdir}/libcupool.so", "bin/cupool-info"):
            self.assertNotRegex(self.go("readelf", "-d", self.prefix / file).stdout, r"RPATH|RUNPATH")

    def test_run_and_read(self) -> None:
        run, trace = self.prefix / "bin/cupool-run", self.prefix / "bin/cupool-trace"
        for kind in ("shared", "static", "driver"):
            done = self.go(run, "--stats", "--trace=out/t.jsonl", "--events=segment,alloc", "--", BUILD / f"tests/e2e/app_{kind}",
                           "churn:50:100000")
            self.assertIn("cupool", done.stderr)
            written = self.cwd / "out/t.jsonl"
            self.assertTrue(written.is_file())
            self.assertIn("50", self.go(trace, "summary", written).stdout)
            self.go(trace, "check", "--complete", written)

    def test_through_a_link_and_path(self) -> None:
        (self.top / "bin").mkdir()
        for name in ("cupool-run", "cupool-trace"):
            (self.top / "bin" / name).symlink_to(self.prefix / "bin" / name)
        path = f"{self.top}/bin:{os.environ['PATH']}"
        done = self.go("env", f"PATH={path}", "cupool-run", "--", "sh", "-c", "echo $LD_PRELOAD; cupool-trace --version")
        self.assertRegex(done.stdout, rf"^{re.escape(str(self.prefix))}/.*libcupool\.so\ncupool-trace \d")

    def test_check(self) -> None:
        done = self.go(self.prefix / "bin/cupool-run", "--check", "--", BUILD / "tests/e2e/app_static")
        self.assertIn("caught", done.stdout)

    def test_info(self) -> None:
        self.assertIn("CUPOOL_FREE=strict", self.go(self.prefix / "bin/cupool-info", "-c", CUPOOL_FREE="strict").stdout)

    def test_every_trace_command_loads(self) -> None:
        trace = self.prefix / "bin/cupool-trace"
        names = re.findall(r"(?m)^    ([a-z][\w-]*)(?: |$)", self.go(trace, "--help").stdout)
        self.assertIn("summary", names)
        # All in one process: most of the time is Python's start.
        loads = ("import runpy, sys\n"
                 "_, tool, *names = sys.argv\n"
                 "for name in names:\n"
                 "    sys.argv = [tool, name, '--help']\n"
                 "    try:\n"
                 "        runpy.run_path(tool, run_name='__main__')\n"
                 "    except SystemExit as e:\n"
                 "        assert not e.code, sys.argv\n")
        said = self.go(sys.executable, "-c", loads, trace, *names).stdout
        self.assertEqual(re.findall(r"(?m)^usage: cupool-trace ([a-z][\w-]*)", said), names)

    def test_pkg_config(self) -> None:
        if not shutil.which("pkg-config"):
            self.skipTest("no pkg-config")
        # The folder was moved, or is mounted elsewhere: installed with DESTDIR it is not where its prefix says.
        folder = next(self.prefix.rglob("cupool.pc")).parent
        done = self.go("pkg-config", "--variable=preload", "cupool", PKG_CONFIG_PATH=str(folder))
        self.assertTrue(Path(done.stdout.strip()).samefile(self.prefix / f"{self.libdir}/libcupool.so"), done.stdout)

    def test_header_is_found(self) -> None:
        if not shutil.which("pkg-config") or not shutil.which("cc"):
            self.skipTest("no pkg-config, or no cc")
        folder = next(self.prefix.rglob("cupool.pc")).parent
        flags = self.go("pkg-config", f"--define-variable=prefix={self.prefix}", "--cflags", "--libs", "cupool", PKG_CONFIG_PATH=str(folder)).stdout.split()
        self.assertEqual([f[:2] for f in flags], ["-I"])
        source = self.top / "asks.c"
        source.write_text("#include <cupool.h>\nint main(void) { return cupool_enabled(); }\n")
        self.go("cc", *flags, source, "-o", self.top / "asks")
        self.go(self.top / "asks")
        self.go(self.prefix / "bin/cupool-run", "--", self.top / "asks", rc=1)

    def test_same_version_everywhere(self) -> None:
        project = introspect("--projectinfo")
        version = project["version"]  # type: ignore[call-overload]
        for name in ("cupool-run", "cupool-trace", "cupool-ctl", "cupool-info", "cupool-replay"):
            self.assertEqual(self.go(self.prefix / "bin" / name, "--version").stdout.split()[-1], version)
            if (ROOT / "scripts" / name).is_file():
                self.assertEqual(self.go(ROOT / "scripts" / name, "--version").stdout.split()[-1], version)
        numbers = [int(n) for n in str(version).split(".")]
        self.assertIn(f"CUPOOL_VERSION_NUMBER {numbers[0] * 10000 + numbers[1] * 100 + numbers[2]} ", (self.prefix / "include/cupool.h").read_text())
        # The newest entry of the changelog is of this version; no other file names it.
        self.assertRegex((ROOT / "CHANGELOG.md").read_text(), rf"(?s)\A(?:(?!## \[).)*## \[{re.escape(str(version))}\] - \d{{4}}-\d\d-\d\d\n")
        self.assertNotRegex((ROOT / "scripts/debian/changelog").read_text(), r"\d\.\d")


@unittest.skipUnless(MESON and shutil.which("git") and (ROOT / ".git").exists(), "no meson, or no git checkout")
class Dist(unittest.TestCase):
    """meson dist: the archive holds what is tracked, and a library can be built from it alone."""

    def test_dist(self) -> None:
        assert MESON
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        top = Path(tmp.name).resolve()
        # A build folder of its own, so that the one under test keeps no archive. The question is whether all files are
        # there: unoptimised, and without debugging information, which names the folder, so that ccache knows the objects.
        setup = [MESON, "setup", "-Dtests=false", "-Doptimization=0", "-Ddebug=false",
                 f"-Dheaders={os.environ['INSTALL_HEADERS']}"]
        self.run_in(ROOT, *setup, top / "build")
        done = subprocess.run([MESON, "dist", "-C", str(top / "build"), "--no-tests", "--allow-dirty", "--formats=gztar"],
                              capture_output=True, text=True, env=plain_env())
        if done.returncode and "dubious ownership" in done.stdout + done.stderr:
            self.skipTest("git does not trust this folder")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        archive = next((top / "build/meson-dist").glob("*.tar.gz"))
        with tarfile.open(archive) as tar:
            names = {n.split("/", 1)[1] for n in tar.getnames() if "/" in n}
            tar.extractall(top / "src")
        tracked = subprocess.run(["git", "ls-tree", "-r", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        self.assertEqual(sorted(set(tracked.stdout.split("\n")) - names - {""}), [])
        source = next((top / "src").iterdir())
        self.run_in(source, *setup, "built")
        self.run_in(source, MESON, "compile", "-C", "built")
        self.assertTrue((source / "built/shim/libcupool.so").is_file())

    def run_in(self, cwd: Path, *args: "str | Path") -> None:
        done = subprocess.run([str(a) for a in args], cwd=cwd, capture_output=True, text=True, env=plain_env())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
