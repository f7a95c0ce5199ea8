# SPDX-License-Identifier: Apache-2.0
"""The recipes for conda and Spack. With rattler-build's module (py-rattler-build) conda's recipe is rendered for both processors, and
built without its requirements, by the tools of this machine. Spack's package is loaded with stand-ins for Spack's words.

Not here: a channel with compilers and CUDA's headers, or Spack itself.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / ".deps/wheels"))  # where scripts/setup --packages puts rattler-build
BUILD = Path(os.environ["PACKAGES_BUILD"])
VARIANTS = "c_stdlib: [sysroot]\nc_stdlib_version: ['2.28']\nc_compiler: [gcc]\nc_compiler_version: ['14']\n"


class Recipes(unittest.TestCase):
    def setUp(self) -> None:
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.tmp = Path(tmp.name).resolve()
        found = re.search(r"(?m)^  version: '([\d.]+)'", (ROOT / "meson.build").read_text())
        assert found
        self.version = found[1]

    def made(self, kind: str) -> Path:
        done = subprocess.run([ROOT / "scripts/packages", kind, self.tmp / kind], capture_output=True, text=True, check=True)
        path = Path(done.stdout.strip())
        self.assertNotIn("@", re.sub(r'"(meson|cuda|python)@', "", path.read_text()).replace("@run_after", "").replace("@on_package", ""))
        return path

    @unittest.skipUnless(importlib.util.find_spec("rattler_build"), "no py-rattler-build")
    def test_conda_renders(self) -> None:
        from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig
        recipe = Stage0Recipe.from_file(str(self.made("conda")))
        for platform in ("linux-64", "linux-aarch64"):
            config = RenderConfig(platform=PlatformConfig(target_platform=platform, build_platform="linux-64", host_platform=platform))
            [variant] = recipe.render(VariantConfig.from_yaml(VARIANTS), config)
            self.assertEqual((variant.recipe.package.name, str(variant.recipe.package.version)), ("cupool", self.version))
            self.assertIn(f"cuda-crt-dev_{platform} >=13", map(str, variant.recipe.requirements.host))

    @unittest.skipUnless(importlib.util.find_spec("rattler_build"), "no py-rattler-build")
    def test_conda_builds(self) -> None:
        from rattler_build import RenderConfig, Stage0Recipe, VariantConfig
        path = self.made("conda")
        text = re.sub(r"(?s)\nrequirements:.*\ntests:.*\nabout:", "\nabout:", path.read_text())
        # The environment of a build has nothing of the machine's: what the requirements would have brought is named here.
        headers = subprocess.run([ROOT / "scripts/find-headers", "cuda_runtime_api.h"], capture_output=True, text=True, check=True).stdout.strip()
        text = text.replace("  script:\n", f"  script:\n    - export PATH={os.environ['PATH']} CUPOOL_HEADERS={headers}\n")
        path.write_text(text)
        channel = self.tmp / "channel"
        for folder in ("noarch", "linux-64", "linux-aarch64"):
            (channel / folder).mkdir(parents=True)
            (channel / folder / "repodata.json").write_text('{"packages": {}, "packages.conda": {}}')
        [variant] = Stage0Recipe.from_file(str(path)).render(VariantConfig.from_yaml(VARIANTS), RenderConfig())
        built = variant.run_build(output_dir=self.tmp / "out", channels=[channel.as_uri()], package_format="tar.bz2")
        prefix = self.tmp / "prefix"
        prefix.mkdir()
        subprocess.run(["tar", "-xf", str(built.packages[0]), "-C", str(prefix)], check=True)
        done = subprocess.run([prefix / "bin/cupool-run", "--stats", "--trace=t.jsonl", "--", BUILD / "examples/phases"], capture_output=True, text=True,
                              cwd=self.tmp, env={**os.environ, "LD_LIBRARY_PATH": str(BUILD / "tests/sim")})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("held MiB", done.stderr)
        told = json.loads(subprocess.run([prefix / "bin/cupool-trace", "summary", "--json", "t.jsonl"], capture_output=True, text=True, cwd=self.tmp, check=True).stdout)
        self.assertGreater(told["ranks"][0]["devices"]["0"]["peak_live"], 0)

    def test_conda_lists_what_is_installed(self) -> None:
        """Each file of the test in the recipe is one that meson installs."""
        if not shutil.which("meson"):
            self.skipTest("no meson")
        text = self.made("conda").read_text()
        said = subprocess.run(["meson", "introspect", "--installed", str(BUILD)], capture_output=True, text=True, check=True).stdout
        installed = [Path(p) for p in json.loads(said).values()]
        listed = [name for line in re.findall(r"(?m)^ +(?:bin|include|files): \[(.*)\]", text) for name in line.split(", ")]
        self.assertGreater(len(listed), 8)
        self.assertEqual([n for n in listed if not any(p.name == Path(n).name for p in installed)], [])

    def test_spack(self) -> None:
        said: dict[str, Any] = {"depends_on": [], "version": []}

        def note(word: str) -> Any:
            return lambda *args, **_: said.setdefault(word, []).append(args[0]) or (lambda function: function)

        words = types.ModuleType("spack.package")
        for word in ("version", "depends_on", "conflicts", "license", "run_after", "on_package_attributes"):
            setattr(words, word, note(word) if word not in ("run_after", "on_package_attributes") else lambda *_, **__: lambda function: function)
        setattr(words, "Executable", object)
        # From Spack 1.0 on MesonPackage is none of spack.package's words.
        bases = types.ModuleType("spack_repo.builtin.build_systems.meson")
        setattr(bases, "MesonPackage", type("MesonPackage", (), {}))
        path = self.made("spack")
        repository = self.tmp / "spack/spack_repo/cupool"  # Spack refuses a repository that is in no folder spack_repo/
        self.assertEqual(path, repository / "packages/cupool/package.py")
        self.assertTrue((repository / "repo.yaml").read_text().startswith("repo:\n  namespace: cupool\n  api: v2.0\n"))
        parents = ("spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems")
        stand_ins = {**{name: types.ModuleType(name) for name in parents}, "spack.package": words, bases.__name__: bases}
        with unittest.mock.patch.dict(sys.modules, stand_ins):
            space: dict[str, Any] = {}
            exec(compile(path.read_text(), str(path), "exec"), space)
        self.assertEqual(said["version"], [self.version])
        self.assertIn("meson@1.0:", said["depends_on"])
        package = space["Cupool"]()
        package.spec = {"cuda": types.SimpleNamespace(prefix=types.SimpleNamespace(include="/cuda/include"))}
        options = {option["name"] for option in json.loads(subprocess.run(
            ["meson", "introspect", "--buildoptions", str(BUILD)], capture_output=True, text=True, check=True).stdout)}
        for argument in package.meson_args():
            self.assertIn(argument[2:].split("=")[0], options)
