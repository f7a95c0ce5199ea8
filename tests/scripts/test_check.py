# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-run --check: what it says of programs of every kind, and that it starts none of them.

Programs are small ones that cc makes here, the end-to-end tests' where CUDA is in them, and files that are no programs. Its
report about a program is held against the events in tests/e2e/test_catch.py, which runs these programs.
"""

import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "scripts" / "cupool-run"
BUILD = Path(os.environ["CHECK_BUILD"])
SIM = BUILD / "tests" / "sim"
APPS = BUILD / "tests" / "e2e"
SANITIZED = os.environ.get("CHECK_SANITIZE", "none") != "none"
HAVE_CC = shutil.which("cc") is not None


class Case(unittest.TestCase):
    def setUp(self) -> None:
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.dir = Path(tmp.name).resolve()

    def check(self, status: int, *args: "str | Path", env: Optional[dict[str, str]] = None, sim: bool = True,
              program: "str | Path" = RUN) -> str:
        keep = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "GCOV_PREFIX") or k.endswith("SAN_OPTIONS")}
        done = subprocess.run([str(program), "--check", *(["--sim=2"] if sim else []), "--", *map(str, args)],
                              env={**keep, "BUILDDIR": str(BUILD), **(env or {})}, cwd=self.dir, capture_output=True,
                              text=True, timeout=60)
        if SANITIZED:
            # The library needs the sanitizer's own then, which is rightly said of every program.
            self.assertIn(done.returncode, (0, 1, 2), done.stdout + done.stderr)
            self.skipTest("a sanitized library: only that it comes to an end")
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertEqual(status, 2 if "verdict" not in done.stdout else int("NOT CAUGHT" in done.stdout), done.stdout)
        self.assertLessEqual(len(re.findall(r"(?m)^verdict", done.stdout)), 1, done.stdout)
        self.err = done.stderr
        return done.stdout

    def file(self, name: str, text: "str | bytes", mode: int = 0o755) -> Path:
        path = self.dir / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return path

    def compile(self, name: str, *options: "str | Path", source: str = "int main(void) { return 0; }\n") -> Path:
        if not HAVE_CC:
            self.skipTest("no compiler")
        made = self.file(name + ".c", source, 0o644)
        done = subprocess.run(["cc", "-o", self.dir / name, made, *map(str, options)], capture_output=True, text=True)
        if done.returncode:
            self.skipTest(f"cc {options}: {done.stderr}")
        return self.dir / name


class Reach(Case):
    """How the program gets at CUDA."""

    def test_shared(self) -> None:
        out = self.check(0, APPS / "app_shared")
        self.assertRegex(out, rf"(?m)^program .*, dynamically linked\)\ncudart +shared: {re.escape(str(SIM))}/libcudart\.so\.13$")
        self.assertRegex(out, rf"(?m)^driver +{re.escape(str(SIM))}/libcuda\.so\.1$")
        self.assertNotRegex(out, r"libcuda\.so\.1 is not found|(?m:^note )")

    def test_shared_in_a_wheel(self) -> None:
        """PyTorch's packages rename the library that they bring."""
        lib = self.compile("libcudart-9335f6a2.so.12", "-shared", "-fPIC")
        app = self.compile("app", "-Wl,--no-as-needed", lib, f"-Wl,-rpath,{self.dir}")
        self.assertRegex(self.check(0, app), r"(?m)^cudart +shared: .*/libcudart-9335f6a2\.so\.12$")

    def test_static(self) -> None:
        out = self.check(0, APPS / "app_static")
        self.assertRegex(out, r"(?m)^cudart +static, in .*/app_static: caught where it calls the driver$")
        self.assertNotIn("shared:", out)

    def test_static_in_a_library(self) -> None:
        lib = self.dir / "libmine.so"
        archive = SIM / "libcudart_static.a"
        source = "int cudaMalloc(void **, unsigned long);\nint f(void **p) { return cudaMalloc(p, 1); }\n"
        self.compile("libmine.so", "-shared", "-fPIC", archive, "-ldl", "-lpthread", source=source)
        app = self.compile("app", "-Wl,--no-as-needed", lib, f"-Wl,-rpath,{self.dir}")
        out = self.check(0, app)
        if "static, in" not in out:
            self.skipTest("the archive is thin here")
        self.assertRegex(out, r"static, in .*/libmine\.so")

    def test_driver(self) -> None:
        for kind in ("driver", "proc"):
            out = self.check(0, APPS / f"app_{kind}")
            self.assertRegex(out, rf"(?m)^driver API used by .*/app_{kind}$")
            self.assertNotIn("cudart", out)

    def test_loaded_later(self) -> None:
        """It opens libcudart itself, as Python does: nothing to be seen, and nothing in the way."""
        self.assertIn("none is linked", self.check(0, APPS / "app_dlsym"))

    def test_none(self) -> None:
        out = self.check(0, "true")
        self.assertRegex(out, r"(?m)^cudart +none is linked; what the program loads or starts while it runs is caught too")
        self.assertIn("nothing stands in the way", out)

    def test_hook_runtime(self) -> None:
        self.check(0, APPS / "app_shared", env={"CUPOOL_HOOK": "runtime"})
        self.assertIn("CUPOOL_HOOK=runtime", self.check(1, APPS / "app_static", env={"CUPOOL_HOOK": "runtime"}))
        self.assertIn("CUPOOL_HOOK=runtime", self.check(1, APPS / "app_driver", env={"CUPOOL_HOOK": "runtime"}))

    def test_a_real_static_cudart(self) -> None:
        """Where a toolkit is: NVIDIA's library has what we look for, also when stripped."""
        for folder in (os.environ.get("CUDA_HOME", "/usr/local/cuda") + d for d in ("/lib64", "/lib")):
            archive = Path(folder) / "libcudart_static.a"
            if archive.is_file():
                app = self.compile("app", "-s", archive, "-ldl", "-lrt", "-lpthread",
                                   source="int cudaMalloc(void **, unsigned long);\n"
                                          "int main(void) { void *p; return cudaMalloc(&p, 1); }\n")
                self.assertRegex(self.check(0, app), r"static, in .*/app")
                return
        self.skipTest("no libcudart_static.a")


class NotPooled(Case):
    """Calls that pass the pool by, where the program tells of them."""

    def calls(self, program: Path) -> str:
        found = re.search(r"(?m)^note +(\S+ calls .*): what is taken so is not pooled$", self.check(0, program))
        return found[1] if found else ""

    def test_by_linking_and_by_name(self) -> None:
        self.assertEqual(self.calls(APPS / "report_shared"), "report_shared calls cudaMallocAsync, cudaMallocManaged")
        self.assertEqual(self.calls(APPS / "vmm_linked"), "vmm_linked calls cuMemCreate")
        self.assertEqual(self.calls(APPS / "vmm"), "vmm calls cuMemCreate")

    def test_in_a_library(self) -> None:
        """NVIDIA's own libraries take what they need for themselves."""
        for name, calls in (("libmine", "libmine.so calls cuMemCreate"), ("libcufoo", ""), ("libnvfoo", ""), ("libnccl", "")):
            lib = self.compile(f"{name}.so", "-shared", "-fPIC", source="int cuMemCreate();\nint f(void) { return cuMemCreate(); }\n")
            app = self.compile("app", "-Wl,--no-as-needed", lib, f"-Wl,-rpath,{self.dir}", "-Wl,--unresolved-symbols=ignore-all")
            self.assertEqual(self.calls(app), calls, name)

    def test_a_function_of_its_own(self) -> None:
        self.assertEqual(self.calls(self.compile("app", "-rdynamic", source="int cuMemCreate(void) { return 0; }\nint main(void) { return 0; }\n")), "")

    def test_a_static_cudart_has_all_names(self) -> None:
        for program in ("app_static", "report_static", "app_shared", "app_driver", "app_dlsym"):
            self.assertEqual(self.calls(APPS / program), "", program)


class Driver(Case):
    def test_none(self) -> None:
        app = APPS / "app_driver"
        look = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]
        if subprocess.run(look, env={}, stderr=subprocess.DEVNULL).returncode == 0:
            self.skipTest("this machine has a driver")
        out = self.check(0, self.compile("plain"), sim=False)
        self.assertIn("libcuda.so.1 is not found", out)
        # Linked to it, the program itself does not start; the tests' own have a run path.
        copy = shutil.copy(app, self.dir / "app")
        self.assertIn("libcuda.so.1 is not found", self.check(0, copy, sim=False) if not self.run_path(app) else out)

    def run_path(self, app: Path) -> bool:
        if not shutil.which("readelf"):
            self.skipTest("no readelf")
        return "PATH)" in subprocess.run(["readelf", "-d", app], capture_output=True, text=True).stdout


class Refused(Case):
    """Programs that no preload gets into."""

    def test_static_executable(self) -> None:
        for option in ("-static", "-static-pie"):
            out = self.check(1, self.compile("app" + option, option))
            self.assertRegex(out, r"(?m)^program .*, statically linked\)$(.|\n)*statically linked: there is no loader")

    def test_set_uid(self) -> None:
        app = self.compile("app")
        if os.geteuid() != 0:
            self.skipTest("needs root to give a file away")
        if os.statvfs(app).f_flag & os.ST_NOSUID:
            self.skipTest("set-uid has no effect in this folder")
        self.check(0, app)
        os.chown(app, 65534, 65534)
        app.chmod(0o4755)
        self.assertIn("set-uid or set-gid", self.check(1, app))
        app.chmod(0o2755)
        self.assertIn("set-uid or set-gid", self.check(1, app))
        app.chmod(0o755)
        self.check(0, app)

    def test_other_machines(self) -> None:
        app = bytearray(Path(APPS / "app_shared").read_bytes())
        own = struct.unpack_from("<H", app, 18)[0]
        struct.pack_into("<H", app, 18, 183 if own != 183 else 62)
        self.assertRegex(self.check(1, self.file("other", bytes(app))), r"made for another machine than libcupool\.so")
        app[4] = 1  # 32 bits
        struct.pack_into("<H", app, 18, 3)
        self.assertRegex(self.check(1, self.file("small", bytes(app))), r"32-bit i386")
        for machine, name in ((40, "arm"), (183, "aarch64"), (21, "ppc64"), (243, "riscv"), (2, "unknown")):
            app[18:20] = machine.to_bytes(2, sys.byteorder)
            self.assertRegex(self.check(1, self.file("small", bytes(app))), rf"32-bit {name}\b")
        app[5] ^= 3  # the other byte order
        self.assertRegex(self.check(1, self.file("small", bytes(app))), r"32-bit unknown\b")

    def test_file_capabilities(self) -> None:
        app, user = self.compile("app"), 65534
        self.dir.chmod(0o755)
        try:  # cap_net_raw, as setcap writes it
            os.setxattr(app, "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0))
            done = subprocess.run([BUILD / "shim/cupool-info", "--check", app], capture_output=True, text=True, user=user, group=user)
        except OSError as e:
            self.skipTest(str(e))
        self.assertEqual(done.returncode, 1)
        self.assertIn("it has file capabilities", done.stdout)

    def test_a_library_that_is_not_found(self) -> None:
        self.compile("libgone.so", "-shared", source="int gone(void) { return 0; }\n")
        program = self.compile("program", f"-L{self.dir}", "-lgone", source="int gone(void);\nint main(void) { return gone(); }\n")
        (self.dir / "libgone.so").unlink()
        self.assertRegex(self.check(0, program), r"the program does not start as it is.*libgone\.so|libgone\.so is not found")

    def test_musl(self) -> None:
        self.assertIn("its libc is musl", self.check(1, self.compile("app", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")))

    def test_loader_that_is_not_there(self) -> None:
        self.assertIn("does not list", self.check(0, self.compile("app", "-Wl,--dynamic-linker=/nonexistent/ld.so")))

    def test_address_sanitizer(self) -> None:
        app = self.compile("app", "-fsanitize=address")
        if not shutil.which("readelf") or "libasan" not in subprocess.run(["readelf", "-d", app], capture_output=True, text=True).stdout:
            self.skipTest("its runtime is linked statically")
        self.assertRegex(self.check(1, app), r"LD_PRELOAD=libasan\.so\.\d+:libcupool\.so")

    def test_switched_off(self) -> None:
        self.assertIn("CUPOOL_ENABLE=0 switches", self.check(1, APPS / "app_shared", env={"CUPOOL_ENABLE": "0"}))

    def test_a_library_that_the_loader_refuses(self) -> None:
        top = self.dir / "src"
        (top / "scripts").mkdir(parents=True)
        (top / "build/shim").mkdir(parents=True)
        (top / "meson.build").touch()
        shutil.copy(RUN, top / "scripts/cupool-run")
        shutil.copy(BUILD / "shim/cupool-info", top / "build/shim/cupool-info")
        (top / "build/shim/libcupool.so").write_text("not a library")
        out = self.check(1, "true", program=top / "scripts/cupool-run", env={"BUILDDIR": "build"}, sim=False)
        self.assertIn("loader does not take libcupool.so", out)
        (top / "build/shim/cupool-info").unlink()
        done = subprocess.run([top / "scripts/cupool-run", "--check", "true"], capture_output=True, text=True,
                              env={"PATH": os.environ["PATH"]})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"--check is done by cupool-info, which is not there: .*; build it with scripts/build")


class Others(Case):
    """Notes."""

    def test_preloaded_too(self) -> None:
        lib = self.compile("libother.so", "-shared", "-fPIC", source="int cudaMalloc(void **p, unsigned long n) { return 1; }\n")
        out = self.check(0, APPS / "app_shared", env={"LD_PRELOAD": str(lib)})
        self.assertRegex(out, r"(?m)^preload +.*/libother\.so is preloaded too, behind cupool$")
        self.assertRegex(out, r"libother\.so has a cudaMalloc or cuMemAlloc of its own")

    @unittest.skipIf(SANITIZED, "the preload would be in front of the sanitizer")
    def test_no_memory(self) -> None:
        lib = self.compile("libnone.so", "-shared", "-fPIC", source="char *strdup(const char *text) { return 0; }\n")
        done = subprocess.run([BUILD / "shim/cupool-info", "--check", APPS / "app_shared"], capture_output=True, text=True,
                              env={"PATH": os.environ["PATH"], "LD_PRELOAD": str(lib)})
        self.assertEqual(done.returncode, 1)
        self.assertIn("LD_PRELOAD does not name libcupool.so", done.stdout)

    @unittest.skipIf(SANITIZED, "the preload would be in front of the sanitizer")
    def test_no_descriptor(self) -> None:
        """Of the script; it is said once."""
        lib = self.compile("libnone.so", "-shared", "-fPIC", source="void *fopen(const char *path, const char *mode) { return 0; }\n"
                           "void *fopen64(const char *path, const char *mode) { return 0; }\n")
        done = subprocess.run([BUILD / "shim/cupool-info", "--check", self.file("one", "#!/bin/sh\n")], capture_output=True, text=True,
                              env={"PATH": os.environ["PATH"], "LD_PRELOAD": str(lib)})
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(len(re.findall("cannot be read", done.stdout)), 1, done.stdout)
        self.assertNotIn("too many", done.stdout)

    @unittest.skipIf(SANITIZED, "the preload would be in front of the sanitizer")
    def test_no_process(self) -> None:
        """For the loader's answer; a child that an earlier program has left is not waited for."""
        lib = self.compile("libnone.so", "-shared", "-fPIC", source="int fork(void) { return -1; }\n")
        done = subprocess.run(["sh", "-c", 'sleep 100 >/dev/null 2>&1 & echo $!; LD_PRELOAD=$1 exec "$2" --check /bin/true', "sh", lib,
                               BUILD / "shim/cupool-info"], capture_output=True, text=True, timeout=50)
        os.kill(int(done.stdout.split()[0]), signal.SIGKILL)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)

    def test_missing_library(self) -> None:
        lib = self.compile("libgone.so", "-shared", "-fPIC")
        app = self.compile("app", "-Wl,--no-as-needed", lib)
        lib.unlink()
        out = self.check(0, app)
        self.assertRegex(out, r"does not start as it is: .*libgone\.so: cannot open")
        self.assertRegex(out, r"(?m)^verdict .*, but the program does not start as it is")
        self.assertNotIn("does not list", out)

    def test_settings(self) -> None:
        self.assertIn("nothing is pooled", self.check(0, "true", env={"CUPOOL_DEBUG": "1"}))
        self.assertIn("not pooled", self.check(0, "true", env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}))
        self.check(0, "true", env={"CUPOOL_FRE": "auto"})
        self.assertIn("did you mean CUPOOL_FREE", self.err)

    def test_without_the_launcher(self) -> None:
        done = subprocess.run([BUILD / "shim/cupool-info", "--check", "true"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("ask with cupool-run --check", done.stdout)


class Chains(Case):
    """Scripts and launchers."""

    def test_scripts(self) -> None:
        tail = self.file("two", f"#! {self.file('one', '#!/bin/sh -e')}\n")
        out = self.check(0, tail)
        self.assertEqual([line.split()[1] for line in out.splitlines()[:2]], [f"{tail},", f"{self.dir}/one,"])
        self.assertRegex(out, r"(?m)^program +(/usr)?/bin/sh ")
        self.assertIn("a shell takes as its own", self.check(0, self.file("bare", "exit 0\n")))

    def test_a_program_that_cannot_be_read(self) -> None:
        """It is larger than the memory that cupool-info may have."""
        path = self.file("large", "")
        os.truncate(path, 1 << 40)
        limit = (1 << 32, 1 << 32)
        done = subprocess.run([BUILD / "shim/cupool-info", "--check", path], capture_output=True, text=True, timeout=60,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
        if not SANITIZED:  # a sanitizer needs more memory itself
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn("large", done.stdout + done.stderr)

    def test_env(self) -> None:
        app = APPS / "app_shared"
        self.assertIn("shared:", self.check(0, self.file("a", f"#!/usr/bin/env {app}\n")))
        self.assertIn("shared:", self.check(0, self.file("b", f"#!/usr/bin/env -S A=1 {app} -x\n")))
        out = self.check(0, "env", "A=1", app)
        self.assertIn("shared:", out)
        self.assertRegex(out, r"(?m)^starter +env hands the environment on$")
        for option in ("-i", "-", "--ignore-environment"):
            self.assertIn(f"env {option} empties", self.check(1, "env", option, app))
        self.assertIn("takes LD_PRELOAD away", self.check(1, "env", "-u", "LD_PRELOAD", app))
        # Without PATH a program is looked for where exec would look.
        done = subprocess.run([BUILD / "shim/cupool-info", "--check", "true"], env={}, cwd=self.dir, capture_output=True, text=True, timeout=60)
        self.assertRegex(done.stdout, r"(?m)^program +(/usr)?/bin/true ", done.stderr)
        self.assertIn("replaces", self.check(1, "env", "LD_PRELOAD=x.so", app))

    def test_env_splits(self) -> None:
        app = APPS / "app_shared"
        self.assertIn("shared:", self.check(0, "env", "-S", f"A=1 {app} -x"))
        self.assertIn("shared:", self.check(0, "env", f"--split-string=A=1 {app}", "-x"))
        self.assertIn("shared:", self.check(0, "env", "--split-string", f"A=1 {app}", "-x"))
        out = self.check(1, "env", "-S", f"-i {app}")
        self.assertRegex(out, r"(?m)^starter +env hands the environment on$(.|\n)*env -i empties")
        for n in (31, 32, 33, 60):
            self.assertIn("shared:", self.check(0, "env", "-S" + "A=1 " * (n - 1) + str(app)))
        self.check(0, "env", "-S" + "A=1 " * 5000 + str(app)[:1])
        self.check(0, "env", "-S")
        self.check(0, "env", "-u")
        self.check(0, "env", "A=1", "-u")

    def test_circle(self) -> None:
        path = self.dir / "circle"
        self.file("circle", f"#!{path}\n")
        self.assertIn("too many", self.check(2, path))

    def test_longer_than_there_is_room_for(self) -> None:
        """Words that are kept of a chain: wherever it ends, that is no crash."""
        folder = self.dir / ("d" * 230) / ("e" * 200)
        folder.mkdir(parents=True)
        ends = set()
        for length in range(400, 540, 10):
            script: Path = APPS / "app_shared"
            for i in range(12):
                path = folder / f"s{i}"
                path.write_text(f"#!{script} {'a' * length}\n")
                path.chmod(0o755)
                script = path
            done = subprocess.run([BUILD / "shim/cupool-info", "--check", script], capture_output=True, text=True, timeout=60)
            ends.add((done.returncode, "too many" in done.stdout))
        self.assertEqual(ends, {(2, True), (2, False)})
        self.check(2, self.file("script", "#!/bin/sh\n"), *["x"] * 300)

    def interpreter(self, name: str, text: str, mode: int = 0o755) -> str:
        """The report about a program that names this script as its loader."""
        path = self.file(name, text, mode)
        app = self.compile(f"app{len(list(self.dir.iterdir()))}", f"-Wl,--dynamic-linker={path}")
        return self.check(0, app)

    def test_an_interpreter_of_its_own(self) -> None:
        """Looking at a file must not run what it names."""
        ran = self.dir / "ran"
        script = f"#!/bin/sh\ntouch {ran}\n"
        for name, mode in (("evil", 0o755), ("ld", 0o755), ("ld-linux-any.so.2", 0o777), ("ld-linux-group.so.2", 0o775)):
            self.assertIn("does not list its libraries", self.interpreter(name, script, mode), name)
            self.assertFalse(ran.exists(), name)
        (self.dir / "ld-linux-link.so.2").symlink_to(self.dir / "evil")
        self.assertIn("does not list", self.check(0, self.compile("linked", f"-Wl,--dynamic-linker={self.dir}/ld-linux-link.so.2")))
        self.dir.chmod(0o777)
        self.assertIn("does not list", self.interpreter("ld-linux-here.so.2", script))
        self.assertFalse(ran.exists())

    def test_a_loader_that_does_not_answer(self) -> None:
        if os.geteuid():
            self.skipTest("only root's loaders are asked")
        before = time.monotonic()
        self.assertIn("does not list", self.interpreter("ld-linux-slow.so.2", "#!/bin/sh\nexec sleep 60\n"))
        self.assertTrue(8 < time.monotonic() - before < 55)

    def test_a_loader_that_lists_what_it_does_not_find(self) -> None:
        if os.geteuid():
            self.skipTest("only root's loaders are asked")
        self.assertRegex(self.interpreter("ld-linux-lists.so.2", "#!/bin/sh\nprintf '\\tlibgone.so => not found\\n'\n"),
                         r"(?m)^note +libgone\.so is not found: the program does not start as it is$")

    def launcher(self, name: str) -> dict[str, str]:
        (self.dir / "bin").mkdir(exist_ok=True)
        self.file(f"bin/{name}", f"#!/bin/sh\ntouch {self.dir}/started\n")
        return {"PATH": f"{self.dir}/bin:{os.environ['PATH']}"}

    def test_ranks(self) -> None:
        for name in ("mpirun", "srun"):
            env = self.launcher(name)
            out = self.check(1, name, "-n", "8", APPS / "app_shared", "-n", env=env)
            self.assertIn(f"           {name} -n 8 cupool-run -- {APPS}/app_shared -n\n", out)
            self.assertIn("shared:", out)
            out = self.check(0, name, "-n", "8", RUN, "--stats", "--", APPS / "app_static", env=env)
            self.assertIn(f"{name} starts cupool-run, which is right", out)
            self.assertIn("static, in", out)
            out = self.check(1, name, "-n", "8", "./missing", "-n", env=env)
            self.assertIn(f"           {name} OPTION... cupool-run -- PROGRAM ARGUMENT...\n", out)
            self.assertIn("is a program that is found here", out)
        self.assertFalse((self.dir / "started").exists())

    def test_containers_and_other_users(self) -> None:
        for name, why in (("docker", "container"), ("apptainer", "container"), ("sudo", "without this environment")):
            self.assertIn(why, self.check(1, name, "run", "true", env=self.launcher(name)))
        env = {**self.launcher("srun"), **self.launcher("docker")}
        out = self.check(0, "docker", "run", "IMAGE", "/opt/cupool/bin/cupool-run", "--", "./app", env=env)
        self.assertIn("what is in the container cannot be seen", out)
        out = self.check(0, "sudo", "-u", "me", RUN, "--stats", "--", APPS / "app_shared", env=self.launcher("sudo"))
        self.assertIn("shared:", out)

    def test_tools_in_between(self) -> None:
        self.assertIn("shared:", self.check(0, "timeout", "10", APPS / "app_shared"))

    def test_it_starts_nothing(self) -> None:
        script = self.file("s", f"#!/bin/sh\ntouch {self.dir}/started\n")
        self.check(0, script)
        self.check(0, sys.executable, "-c", f"open({str(self.dir / 'started')!r}, 'w')")
        self.assertFalse((self.dir / "started").exists())


class Broken(Case):
    """Files that are cut or wrong: an answer of some kind, never a crash."""

    def test_no_program(self) -> None:
        self.assertIn("neither a program nor a script", self.check(2, self.file("x", b"\1\2\0\3")))
        self.assertIn("without #!", self.check(0, self.file("empty", "")))
        # cupool-run looks before it asks.
        for path in ("none", self.dir / "none", self.dir, self.file("text", "", 0o644)):
            done = subprocess.run([BUILD / "shim/cupool-info", "--check", path], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertIn("not found, or not executable", done.stdout)

    def test_children_that_nobody_waits_for(self) -> None:
        """It may be started with SIGCHLD ignored; then the system forgets the loader by itself."""
        ask = [BUILD / "shim/cupool-info", "--check", APPS / "app_shared"]
        said = subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout
        self.assertIn("verdict", said)
        done = subprocess.run(ask, capture_output=True, text=True, timeout=60,
                              preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(done.stdout, said)

    def test_cut(self) -> None:
        whole = (APPS / "app_shared").read_bytes()
        for size in (4, 16, 20, 51, 52, 63, 64, 65, 100, 500, 1000, len(whole) // 2, len(whole) - 64, len(whole) - 1):
            self.runs(whole[:size])

    def test_wrong(self) -> None:
        whole = (APPS / "app_shared").read_bytes()
        for at in range(16, 64):
            for value in (0, 0x7F, 0xFF):
                self.runs(whole[:at] + bytes([value]) + whole[at + 1:])

    def runs(self, data: bytes) -> None:
        # The bytes of a damaged file may be printed, and need not be text.
        done = subprocess.run([BUILD / "shim/cupool-info", "--check", self.file("x", data)], capture_output=True, errors="replace",
                              timeout=60)
        self.assertIn(done.returncode, (0, 1, 2), done.stderr)
