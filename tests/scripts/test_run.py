# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-run against a made-up tree in a temporary folder; what it does is seen in the environment of its command.

Not here: whether the real library, preloaded, does anything; that is tests/e2e. The library here is a small one that cc made;
without a compiler it is an empty file, at which the loader only warns.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "scripts" / "cupool-run"
HAVE_CC = shutil.which("cc") is not None
# Stands in for "the library is loaded": a function that only it has.
LIBRARY = "int cupool_test_marker(void) { return 42; }\n"


class Case(unittest.TestCase):
    tmp: "tempfile.TemporaryDirectory[str]"
    made: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.tmp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.tmp.cleanup)
        folder = Path(cls.tmp.name).resolve()
        cls.made = folder / "made.so"
        if HAVE_CC:
            (folder / "made.c").write_text(LIBRARY)
            subprocess.run(["cc", "-shared", "-fPIC", "-o", cls.made, folder / "made.c"], check=True)
        else:
            cls.made.touch()

    def setUp(self) -> None:
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.dir = Path(tmp.name).resolve()
        self.cwd = self.dir / "cwd"
        self.cwd.mkdir()
        self.run_sh = self.source_tree(self.dir / "src")
        self.lib = self.dir / "src/build/shim/libcupool.so"

    def put(self, path: Path, source: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, path)
        return path

    def source_tree(self, top: Path) -> Path:
        self.put(top / "build/shim/libcupool.so", self.made)
        self.put(top / "build/tests/sim/libcuda.so.1", self.made)
        self.put(top / "meson.build", ROOT / "meson.build")
        return self.put(top / "scripts/cupool-run", RUN)

    def run_it(self, *args: str, env: Optional[dict[str, str]] = None, program: Optional[Path] = None,
               cwd: Optional[Path] = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([program or self.run_sh, *args], env={"PATH": os.environ["PATH"], **(env or {})},
                              cwd=cwd or self.cwd, capture_output=True, text=True, timeout=60)

    def env_of(self, *args: str, env: Optional[dict[str, str]] = None, program: Optional[Path] = None,
               cwd: Optional[Path] = None) -> dict[str, str]:
        """The environment that a command gets. It must be the only thing printed."""
        done = self.run_it(*args, "--", "env", "-0", env=env, program=program, cwd=cwd)
        self.assertEqual(done.returncode, 0, done.stderr)
        if HAVE_CC:
            self.assertEqual(done.stderr, "")
        return dict(item.split("=", 1) for item in done.stdout.split("\0") if item)

    def fails(self, status: int, pattern: str, *args: str, env: Optional[dict[str, str]] = None,
              program: Optional[Path] = None) -> None:
        done = self.run_it(*args, env=env, program=program)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
        self.assertRegex(done.stderr, pattern)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("cupool-run: "), done.stderr)


class Options(Case):
    def test_none(self) -> None:
        env = self.env_of()
        self.assertEqual(env["LD_PRELOAD"], str(self.lib))
        self.assertEqual([k for k in env if k.startswith(("CUPOOL", "SIMGPU", "LD_LIB"))], [])

    def test_each(self) -> None:
        env = self.env_of("--events=segment,alloc", "--free=strict", "--stats", "--trace=/tmp/x%r.jsonl", "--backend=nccl", "--register")
        self.assertEqual({k: v for k, v in env.items() if k.startswith("CUPOOL")}, {
            "CUPOOL_TRACE_EVENTS": "segment,alloc", "CUPOOL_FREE": "strict", "CUPOOL_STATS": "exit",
            "CUPOOL_TRACE_FILE": "/tmp/x%r.jsonl", "CUPOOL_BACKEND": "nccl", "CUPOOL_REGISTER": "1"})
        self.assertEqual(self.env_of("--register=force")["CUPOOL_REGISTER"], "force")
        self.assertEqual({k: v for k, v in self.env_of("--stacks").items() if k.startswith("CUPOOL")},
                         {"CUPOOL_TRACE_EVENTS": "segment,alloc", "CUPOOL_TRACE_STACKS": "1"})

    def test_environment_stays_unless_named(self) -> None:
        env = self.env_of("--free=strict", env={"CUPOOL_FREE": "auto", "CUPOOL_LIMIT": "1G", "CUPOOL_TRACE_FILE": "a"})
        self.assertEqual((env["CUPOOL_FREE"], env["CUPOOL_LIMIT"], env["CUPOOL_TRACE_FILE"]), ("strict", "1G", "a"))

    def test_help_and_version(self) -> None:
        for option in ("-h", "--help"):
            done = self.run_it(option)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertLess(max(map(len, done.stdout.splitlines())), 133)
            for name in ("--trace", "--events", "--stacks", "--free", "--backend", "--register", "--stats", "--sim", "--version", "mpirun", "torchrun"):
                self.assertIn(name, done.stdout)
        found = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())
        assert found
        self.assertEqual(self.run_it("--version").stdout, f"cupool-run {found[1]}\n")

    def test_wrong_usage(self) -> None:
        self.fails(2, r"unknown option --nonsense .*--help", "--nonsense", "--", "true")
        self.fails(2, r"unknown option -x", "-x", "true")
        self.fails(2, r"no command given")
        self.fails(2, r"no command given", "--stats", "--")
        for option in ("--trace", "--events", "--events=", "--free", "--free="):
            self.fails(2, rf"{option.rstrip('=')} needs a value", option, "--", "true")
        for value in ("", "0", "x", "-1", "2x", "01"):
            self.fails(2, r"not a number of GPUs", f"--sim={value}", "--", "true")

    def test_end_of_options(self) -> None:
        (self.cwd / "--stats").write_text("#!/bin/sh\necho \"$CUPOOL_STATS|$*\"\n")
        (self.cwd / "--stats").chmod(0o755)
        echo = ["printf", "%s|"]
        self.assertEqual(self.run_it("--", *echo, "--", "--stats", "a b", "", "*").stdout, "--|--stats|a b||*|")
        # The first word that is no option is the command; what follows is its own.
        self.assertEqual(self.run_it(*echo, "--free=strict", "--").stdout, "--free=strict|--|")
        self.assertEqual(self.run_it("--", "./--stats", "-h").stdout, "|-h\n")


class Trace(Case):
    def test_relative_starts_at_the_current_directory(self) -> None:
        self.assertEqual(self.env_of("--trace=t.%p.jsonl")["CUPOOL_TRACE_FILE"], f"{self.cwd}/t.%p.jsonl")

    def test_percent_in_the_directorys_own_name(self) -> None:
        cwd = self.dir / "50%h%%x"
        cwd.mkdir()
        self.assertEqual(self.env_of("--trace=%r", cwd=cwd)["CUPOOL_TRACE_FILE"], f"{self.dir}/50%%h%%%%x/%r")

    def test_makes_its_directory(self) -> None:
        self.env_of("--trace=a/b c/%r.jsonl")
        self.assertTrue((self.cwd / "a/b c").is_dir())
        self.env_of("--trace=a/b c/%r.jsonl")  # and is content with one that is there
        self.env_of(f"--trace={self.dir}/abs/x")
        self.assertTrue((self.dir / "abs").is_dir())
        self.env_of("--trace=-d/x")
        self.assertTrue((self.cwd / "-d").is_dir())

    def test_leaves_a_directory_with_placeholders(self) -> None:
        self.assertEqual(self.env_of("--trace=c/%h/x")["CUPOOL_TRACE_FILE"], f"{self.cwd}/c/%h/x")
        self.assertFalse((self.cwd / "c").exists())

    def test_cannot_make_its_directory(self) -> None:
        (self.cwd / "file").touch()
        self.fails(1, r"cannot make the directory file/x", "--trace=file/x/y", "--", "true")

    def test_off(self) -> None:
        self.assertEqual(self.env_of("--trace=off")["CUPOOL_TRACE_FILE"], "off")
        self.assertEqual(self.env_of("--trace=", env={"CUPOOL_TRACE_FILE": "x"})["CUPOOL_TRACE_FILE"], "")

    def test_names_a_directory(self) -> None:
        self.fails(2, r"names a directory; add a file name, for example out/%r.jsonl", "--trace=out/", "--", "true")
        (self.cwd / "td").mkdir()
        for name in (".", "..", "td", str(self.cwd)):
            self.fails(2, rf"--trace={re.escape(name)} names a directory; add a file name, for example {re.escape(name)}/%r.jsonl", f"--trace={name}", "--", "true")


class Preload(Case):
    def test_others_stay_in_order(self) -> None:
        a, b = (str(self.put(self.dir / name, self.made)) for name in ("a.so", "b.so"))
        for value in (f"{a}:{b}", f"{a} {b}", f" {a}: {b}:"):
            self.assertEqual(self.env_of(env={"LD_PRELOAD": value})["LD_PRELOAD"], f"{self.lib}:{a}:{b}")

    def test_not_twice(self) -> None:
        a = str(self.put(self.dir / "a.so", self.made))
        for value in (str(self.lib), f"{self.lib}:{self.lib}"):
            self.assertEqual(self.env_of(env={"LD_PRELOAD": value})["LD_PRELOAD"], str(self.lib))
        for value in (f"{self.lib}:{a}", f"{a}:{self.lib}", f"{a} {self.lib}"):
            self.assertEqual(self.env_of(env={"LD_PRELOAD": value})["LD_PRELOAD"], f"{self.lib}:{a}")
        done = self.run_it("--", str(self.run_sh), "--", "sh", "-c", "echo $LD_PRELOAD")
        self.assertEqual(done.stdout, f"{self.lib}\n")

    def test_another_build_is_replaced_and_a_similar_name_is_not(self) -> None:
        other = self.put(self.dir / "other/libcupool.so", self.made)
        similar = self.put(self.dir / "notlibcupool.so", self.made)
        self.assertEqual(self.env_of(env={"LD_PRELOAD": f"{other}:{similar}"})["LD_PRELOAD"], f"{self.lib}:{similar}")

    def test_no_pattern_is_expanded(self) -> None:
        # Prints the loader's warnings, so not through env_of.
        (self.cwd / "x1.so").touch()
        done = self.run_it("--", "env", env={"LD_PRELOAD": "x*.so"})
        self.assertIn(f"LD_PRELOAD={self.lib}:x*.so\n", done.stdout)

    @unittest.skipUnless(HAVE_CC, "no compiler")
    def test_it_is_really_loaded(self) -> None:
        done = self.run_it("--", sys.executable, "-c", "import ctypes; print(ctypes.CDLL(None).cupool_test_marker())")
        self.assertEqual((done.stdout, done.stderr), ("42\n", ""))


class Library(Case):
    def test_through_links(self) -> None:
        link = self.dir / "bin2/cr"
        link.parent.mkdir()
        link.symlink_to("../link1")
        (self.dir / "link1").symlink_to(self.run_sh)
        self.assertEqual(self.env_of(program=link)["LD_PRELOAD"], str(self.lib))

    def test_through_path_and_relative(self) -> None:
        done = subprocess.run(["cupool-run", "sh", "-c", "echo $LD_PRELOAD"], capture_output=True, text=True, cwd="/",
                              env={"PATH": f"{self.run_sh.parent}:{os.environ['PATH']}"})
        self.assertEqual(done.stdout, f"{self.lib}\n")
        done = subprocess.run(["sh", "cupool-run", "sh", "-c", "echo $LD_PRELOAD"], capture_output=True, text=True,
                              cwd=self.run_sh.parent)
        self.assertEqual(done.stdout, f"{self.lib}\n")

    def test_build_folder(self) -> None:
        other = self.put(self.dir / "elsewhere/shim/libcupool.so", self.made)
        self.assertEqual(self.env_of(env={"BUILDDIR": str(self.dir / "elsewhere")})["LD_PRELOAD"], str(other))
        # Relative to the source tree, like meson's, wherever one stands.
        other = self.put(self.dir / "src/build-asan/shim/libcupool.so", self.made)
        self.assertEqual(self.env_of(env={"BUILDDIR": "build-asan"})["LD_PRELOAD"], str(other))

    def test_installed(self) -> None:
        machine = os.uname().machine
        for number, libdir in enumerate(("lib", "lib64", f"lib/{machine}-linux-gnu")):
            with self.subTest(libdir=libdir):
                prefix = self.dir / f"prefix{number}"
                program = self.put(prefix / "bin/cupool-run", RUN)
                lib = self.put(prefix / libdir / "libcupool.so", self.made)
                # Somebody else's BUILDDIR does not matter to an installed copy.
                env = {"BUILDDIR": str(self.dir / "src/build")}
                self.assertEqual(self.env_of(program=program, env=env)["LD_PRELOAD"], str(lib))

    def test_missing(self) -> None:
        self.lib.unlink()
        self.fails(1, rf"libcupool.so not found; looked at: {self.lib}; build it with scripts/build", "--", "true")
        program = self.put(self.dir / "prefix/bin/cupool-run", RUN)
        self.fails(1, rf"looked at: {self.dir}/prefix/lib/libcupool.so .*lib64/libcupool.so .*-linux-gnu/libcupool.so", "true",
                   program=program)

    def test_path_that_cannot_be_preloaded(self) -> None:
        for name in ("with space", "with:colon"):
            self.fails(1, r"cannot preload .*a space or a colon", "--", "true", program=self.source_tree(self.dir / name))


class Simulated(Case):
    def test_two_by_default(self) -> None:
        env = self.env_of("--sim")
        self.assertEqual((env["SIMGPU_DEVICES"], env["LD_LIBRARY_PATH"]),
                         ("2", f"{self.dir}/src/build/tests/sim:{self.dir}/src/build/tests/simnccl"))

    def test_number_and_existing_path(self) -> None:
        sim = f"{self.dir}/src/build/tests/sim:{self.dir}/src/build/tests/simnccl"
        env = self.env_of("--sim=8", env={"LD_LIBRARY_PATH": "/a:/b"})
        self.assertEqual((env["SIMGPU_DEVICES"], env["LD_LIBRARY_PATH"]), ("8", f"{sim}:/a:/b"))
        self.assertEqual(self.env_of("--sim", env={"LD_LIBRARY_PATH": f"{sim}:/a"})["LD_LIBRARY_PATH"], f"{sim}:/a")

    def test_build_folder(self) -> None:
        self.put(self.dir / "b/shim/libcupool.so", self.made)
        self.put(self.dir / "b/tests/sim/libcuda.so.1", self.made)
        self.assertEqual(self.env_of("--sim", env={"BUILDDIR": str(self.dir / "b")})["LD_LIBRARY_PATH"],
                         f"{self.dir}/b/tests/sim:{self.dir}/b/tests/simnccl")

    def test_not_built(self) -> None:
        shutil.rmtree(self.dir / "src/build/tests")
        self.fails(1, r"the simulated GPU is not built: no libcuda.so.1 in .*/src/build/tests/sim", "--sim", "--", "true")

    def test_installed(self) -> None:
        """It takes the simulated GPU of its own folder, as in a wheel, and never one of the current folder or of BUILDDIR."""
        program = self.put(self.dir / "prefix/bin/cupool-run", RUN)
        self.put(self.dir / "prefix/lib/libcupool.so", self.made)
        self.put(self.cwd / "build/tests/sim/libcuda.so.1", self.made)
        for env in ({}, {"BUILDDIR": str(self.dir / "src/build")}):
            done = subprocess.run([program, "--sim", "--", "true"], env={"PATH": os.environ["PATH"], **env}, cwd=self.cwd, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr),
                             (1, f"cupool-run: --sim is of the source tree and of wheels: no libcuda.so.1 in {self.dir}/prefix/lib/cupool/sim\n"))
        self.put(self.dir / "prefix/lib/cupool/sim/libcuda.so.1", self.made)
        self.assertEqual(self.env_of("--sim", program=program)["LD_LIBRARY_PATH"], f"{self.dir}/prefix/lib/cupool/sim")


class Command(Case):
    def test_exit_status(self) -> None:
        self.assertEqual(self.run_it("--", "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(self.run_it("--", "sh", "-c", "kill -TERM $$").returncode, -signal.SIGTERM)

    def test_same_process(self) -> None:
        with subprocess.Popen([self.run_sh, "--stats", "--", "sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout
            self.assertEqual(child.stdout.read().strip(), str(child.pid))

    def test_name_is_as_given(self) -> None:
        done = self.run_it("--", "sh", "-c", "tr '\\0' '\\n' < /proc/$$/cmdline | head -n 1")
        self.assertEqual(done.stdout, "sh\n")

    def test_input_and_output_are_its_own(self) -> None:
        done = subprocess.run([self.run_sh, "cat"], input="a\0b\n", capture_output=True, text=True)
        self.assertEqual((done.stdout, done.stderr if HAVE_CC else ""), ("a\0b\n", ""))

    def test_missing(self) -> None:
        self.fails(127, r"no-such-command-here: command not found", "--", "no-such-command-here")
        self.fails(127, r"\./none: no such file", "./none")
        self.fails(127, r": no such file", "--", "/nonexistent/x")
        self.fails(127, r": command not found", "--", "")

    def test_not_executable(self) -> None:
        folder = self.dir / "p"
        folder.mkdir()
        (folder / "plain").write_text("#!/bin/sh\n")
        self.fails(126, r"/p/plain: not executable", "--", str(folder / "plain"))
        self.fails(126, r"/p/plain: not executable", "--", "plain", env={"PATH": f"{folder}:{os.environ['PATH']}"})
        self.fails(126, r": is a directory", "--", str(folder))
        # An executable of that name later in PATH is what exec would take.
        self.put(self.dir / "q/plain", folder / "plain").chmod(0o755)
        done = self.run_it("plain", env={"PATH": f"{folder}:{self.dir}/q:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_shell_words_are_no_commands(self) -> None:
        # Names of functions and keywords of the script itself.
        for name in ("die", "usage", "in_path", "while"):
            self.fails(127, rf"{name}: command not found", "--", name)

    @unittest.skipUnless(shutil.which("shellcheck"), "no shellcheck")
    def test_shellcheck(self) -> None:
        done = subprocess.run(["shellcheck", RUN], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
