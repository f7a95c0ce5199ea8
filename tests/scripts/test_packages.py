# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/packages: the wheel, installed into an empty environment without a network and run there; the files that the
RPM spec file lists; the version that all packages have; the repository for Spack.

Not here: a build of the Debian package or of the RPM, which need their distributions' tools.
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["PACKAGES_BUILD"])
TOOLS = [name for name in ("meson", "readelf") if not shutil.which(name)]
VENV = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))


def plain_env(**more: str) -> "dict[str, str]":
    """Nothing that tells the wheel's programs of the build folder or of a network."""
    return {**{k: v for k, v in os.environ.items() if k in ("HOME", "TMPDIR")}, "PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more}


def make(kind: str, folder: Path) -> Path:
    done = subprocess.run([ROOT / "scripts/packages", kind, folder], capture_output=True, text=True, env={**os.environ, "BUILDDIR": str(BUILD)})
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return Path(done.stdout.strip())


def version() -> str:
    found = re.search(r"(?m)^  version: '([\d.]+)'", (ROOT / "meson.build").read_text())
    assert found
    return found[1]


@unittest.skipIf(TOOLS, f"no {' '.join(TOOLS)}")
class Wheel(unittest.TestCase):
    top: Path
    wheel: Path

    @classmethod
    def setUpClass(cls) -> None:
        tmp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(tmp.cleanup)
        cls.top = Path(tmp.name).resolve()
        cls.wheel = make("wheel", cls.top / "made")

    def glibc(self, folder: Path) -> "tuple[int, int]":
        """The newest version of a symbol of glibc in the files of the wheel, by the linker's own table of versions."""
        found = [(2, 0)]
        for path in (p for p in folder.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"):
            said = subprocess.run(["readelf", "-V", path], capture_output=True, text=True, check=True).stdout
            found += [(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", said)]
        return max(found)

    def test_tag_says_which_glibc(self) -> None:
        match = re.fullmatch(r"cupool-([\d.]+)-py3-none-manylinux_(\d+)_(\d+)_\w+\.whl", self.wheel.name)
        assert match, self.wheel.name
        self.assertEqual(match[1], version())
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(self.top / "files")
            wheel = archive.read(f"cupool-{version()}.dist-info/WHEEL").decode()
        self.assertEqual((int(match[2]), int(match[3])), self.glibc(self.top / "files"))
        self.assertIn(f"Tag: {self.wheel.name[len(f'cupool-{version()}-'):-len('.whl')]}\n", wheel)

    def test_no_promise_for_objects_that_need_more(self) -> None:
        loader = SourceFileLoader("packages", str(ROOT / "scripts/packages"))
        spec = importlib.util.spec_from_loader("packages", loader)
        assert spec
        packages = importlib.util.module_from_spec(spec)
        sys.dont_write_bytecode = True
        loader.exec_module(packages)
        # phases needs libcudart, which is a file of the wheel only in the second case.
        app, runtime = BUILD / "examples/phases", BUILD / "tests/sim/libcudart.so.13"
        self.assertRegex(packages.tag_of([app]), r"^linux_\w+$")
        self.assertRegex(packages.tag_of([app, runtime]), r"^manylinux_2_\d+_\w+$")

    def test_one_build_makes_one_wheel(self) -> None:
        self.assertEqual(make("wheel", self.top / "again").read_bytes(), self.wheel.read_bytes())

    @unittest.skipUnless(VENV, "no venv or ensurepip")
    def test_installed(self) -> None:
        env = self.top / "env"
        made = subprocess.run([sys.executable, "-m", "venv", env], capture_output=True, text=True, env=plain_env())
        if made.returncode:
            self.skipTest(f"venv: {made.stdout}{made.stderr}")
        self.go(env / "bin/python", "-m", "pip", "install", "--quiet", self.wheel)
        tools = env / "bin"
        for name in ("cupool-run", "cupool-trace", "cupool-ctl", "cupool-info", "cupool-replay"):
            self.assertEqual(self.go(tools / name, "--version").stdout.split()[-1], version())
        prefix = Path(self.go(tools / "python", "-c", "import cupool; print(cupool.PREFIX)").stdout.strip())
        demo = prefix / "lib/cupool/sim/phases"
        self.assertEqual(sorted(p.name for p in demo.parent.iterdir()), ["libcuda.so.1", "libcudart.so.13", "libnccl.so.2", "phases"])
        for options in ((), ("--register",)):
            done = self.go(tools / "cupool-run", "--sim", "--stats", *options, "--trace=out/t.jsonl", "--", demo)
            self.assertIn("held MiB", done.stderr)
        summary = json.loads(self.go(tools / "cupool-trace", "summary", "--json", "out/t.jsonl").stdout)
        self.assertGreater(summary["ranks"][0]["devices"]["0"]["peak_live"], 0)
        preload = self.go(tools / "cupool-run", "--sim=3", "--", "sh", "-c", "echo $LD_PRELOAD $LD_LIBRARY_PATH $SIMGPU_DEVICES")
        self.assertEqual(preload.stdout.split(), [str(prefix / "lib/libcupool.so"), str(prefix / "lib/cupool/sim"), "3"])
        self.assertEqual(self.go(tools / "cupool-run", "--", "sh", "-c", "exit 7", rc=7).stdout, "")
        self.go(env / "bin/python", "-m", "pip", "uninstall", "--quiet", "--yes", "cupool")
        self.assertEqual([p for p in env.rglob("*cupool*") if p.is_file()], [])

    def go(self, *args: "str | Path", rc: int = 0) -> "subprocess.CompletedProcess[str]":
        cwd = self.top / "cwd"
        cwd.mkdir(exist_ok=True)
        done = subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=cwd, timeout=120, env=plain_env())
        self.assertEqual(done.returncode, rc, f"{args}\n{done.stdout}{done.stderr}")
        return done


@unittest.skipUnless(shutil.which("meson"), "no meson")
class Rpm(unittest.TestCase):
    def test_files(self) -> None:
        """Every file that is installed is in the list, and nothing else."""
        with tempfile.TemporaryDirectory() as tmp:
            spec = make("rpm", Path(tmp)).read_text()
        self.assertIn(f"\nVersion:        {version()}\n", spec)
        said = subprocess.run(["meson", "introspect", "--installed", "--buildoptions", str(BUILD)], capture_output=True, text=True, check=True)
        told = json.loads(said.stdout)
        options = {o["name"]: str(o["value"]) for o in told["buildoptions"]}
        prefix = Path(options["prefix"])
        folders = {"_bindir": "bindir", "_libdir": "libdir", "_includedir": "includedir", "_datadir": "datadir", "_mandir": "mandir"}
        installed = {str(path) for path in told["installed"].values()}
        listed = []
        for line in spec.split("%files\n")[1].split("\n"):
            name = re.sub(r"^%doc ", "", line).rstrip("*")
            name = re.sub(r"%\{(\w+)\}", lambda m: str(prefix / options[folders[m[1]]]), name)
            if name:
                listed.append(name)
                self.assertTrue([p for p in installed if p == name or p.startswith(name + "/")], f"{line}: not installed")
        self.assertEqual([p for p in sorted(installed) if not any(p == n or p.startswith(n + "/") for n in listed)], [])


class Spack(unittest.TestCase):
    """Its sources; test_recipes.py loads the package. `spack spec` and `spack install` were run by hand (docs/install.md)."""

    top: Path
    recipe: Path
    text: str

    @classmethod
    def setUpClass(cls) -> None:
        tmp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(tmp.cleanup)
        cls.top = Path(tmp.name).resolve()
        cls.recipe = make("spack", cls.top)
        cls.text = cls.recipe.read_text(encoding="utf-8")

    def test_sources(self) -> None:
        """The archive is where the recipe says, with that sum, and has the tree's files and nothing else."""
        url = re.search(r'url = "file://(.*)"', self.text)
        sum_ = re.search(rf'version\("{version()}", sha256="(\w+)"\)', self.text)
        assert url and sum_, self.text
        self.assertEqual(Path(url[1]), self.top / f"cupool-{version()}.tar.xz")
        self.assertEqual(hashlib.sha256(Path(url[1]).read_bytes()).hexdigest(), sum_[1])
        with tarfile.open(url[1]) as tar:
            names = {n.partition("/")[2] for n in tar.getnames()}
        self.assertLessEqual({"meson.build", "shim/conf.def", "scripts/cupool-run"}, names)
        self.assertEqual([n for n in names if n.startswith(("build", ".deps", ".git/")) or "__pycache__" in n], [])
