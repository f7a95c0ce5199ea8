# SPDX-License-Identifier: Apache-2.0
"""The library in programs that have nothing to do with CUDA: they must not notice. And the file itself: what it needs, exports
and promises the loader.

It is preloaded into every shell, compiler and launcher of a job, so here "nothing" means nothing: no output, no file, no
descriptor, no thread, no library, no other exit code.
"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

from e2e import BIN, LIB, SIM, SOURCE, Case, app, need

# The libraries of libc (since 2.34 the first alone has everything).
LIBC_PARTS = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

# Exported beside the hooks and the interface; by the last one copies of the library find each other.
OTHERS = ["dlsym", "dlclose", "InitializeInjectionNvtx2", "cupool_copy"]

# Run in a Python of its own: everything that a library could leave behind in a process.
INSIDE = """
import os
print("threads", len(os.listdir("/proc/self/task")))
print("descriptors", sorted(os.readlink("/proc/self/fd/" + f) for f in os.listdir("/proc/self/fd")
                            if os.path.exists("/proc/self/fd/" + f)) == [] or
      sum(os.path.exists("/proc/self/fd/" + f) for f in os.listdir("/proc/self/fd")))
print("libraries", sorted({line.split()[-1] for line in open("/proc/self/maps") if ".so" in line and "libcupool" not in line}))
print("environment", sorted(k for k in os.environ if k != "LD_PRELOAD"))
with open("/proc/self/status") as status:
    print("signals", [line.split() for line in status if line.startswith("Sig") and not line.startswith("SigQ")])
"""


class Silence(Case):
    def nothing(self, *args: "str | Path", rc: int = 0, out: str = "", **more: "str | None") -> None:
        home = self.folder()
        done = self.go(*args, rc=rc, HOME=str(home), TMPDIR=str(home), **{
            "CUPOOL_LOG_LEVEL": "debug", "CUPOOL_STATS": "exit", "CUPOOL_TRACE_EVENTS": "segment,alloc", "CUPOOL_TYPO": "1", **more})
        self.assertEqual((done.out, done.err, done.files, list(home.iterdir())), (out, "", [], []))

    def test_true_and_false(self) -> None:
        self.nothing("/bin/true")
        self.nothing("/bin/false", rc=1)

    def test_everything_resolved_at_start(self) -> None:
        self.nothing("/bin/true", LD_BIND_NOW="1")

    def test_shells(self) -> None:
        self.nothing("sh", "-c", "/bin/true && echo $((1+1)); exit 7", rc=7, out="2\n")
        self.nothing("sh", "-c", "(/bin/echo a | cat; :) & wait", out="a\n")

    def test_python_with_children(self) -> None:
        self.nothing(sys.executable, "-c", "import subprocess, ctypes, multiprocessing as m\n"
                     "subprocess.run(['true'], check=True)\n"
                     "p = m.get_context('fork').Process(target=print, args=('child',), kwargs={'flush': True})\n"
                     "p.start(); p.join(); print(p.exitcode)", out="child\n0\n")

    def test_empty_environment(self) -> None:
        cwd = self.folder()
        done = subprocess.run(["/bin/true"], env={"LD_PRELOAD": str(LIB)}, cwd=cwd, capture_output=True, text=True, timeout=30)
        self.assertEqual((done.returncode, done.stdout, done.stderr, list(cwd.iterdir())), (0, "", "", []))

    def test_floating_point_traps(self) -> None:
        """Programs that are wary of their own numbers are not ended by ours."""
        words = ["fptraps", "alloc:1:1", "alloc:300:3333333", "free:300", "churn:300:2500000", "tolerate", "alloc:1:9999999999", "sleep:1100"]
        for policy in "auto", "relaxed":
            done = self.go(app("shared"), *words, CUPOOL_FREE=policy, CUPOOL_TRACE_EVENTS="segment,alloc", CUPOOL_STATS="exit,timer:1s")
            self.assertEqual(done.out.splitlines()[-1], "errors 1")
            self.assertIn("9999999999 (9.3 GiB)", done.err)

    def test_closed_standard_descriptors(self) -> None:
        self.nothing("sh", "-c", "exec /bin/true <&- >&- 2>&-")

    def test_a_cuda_program_before_its_first_request(self) -> None:
        for kind in ("shared", "static", "driver"):
            self.nothing(app(kind), "exit:6", rc=6, CUPOOL_STATS="off")

    def test_a_table_is_asked_for_and_nothing_was_pooled(self) -> None:
        """One line says so, once the process ends, if it has a driver; still no file."""
        done = self.go(app("driver"), "exit:6", rc=6, CUPOOL_STATS="exit", CUPOOL_TRACE_EVENTS="segment,alloc")
        self.assertEqual((done.files, len(done.err.splitlines())), ([], 1), done.err)
        self.assertIn("cupool: nothing was pooled", done.err)

    def test_inside(self) -> None:
        """Threads, descriptors, libraries, environment and signals of a process are the same with and without."""
        with_us = self.go(sys.executable, "-c", INSIDE)
        without = self.go(sys.executable, "-c", INSIDE, preload=None)
        self.assertEqual(with_us.out, without.out)
        self.assertEqual(with_us.err, "")

    def test_a_symbol_that_nothing_defines_is_an_error_code(self) -> None:
        """The library's cudaMalloc with no cudart anywhere: a program that looks for it by name gets an error, not a crash."""
        done = self.go(sys.executable, "-c", "import ctypes\np = ctypes.c_void_p()\n"
                       "print(ctypes.CDLL(None).cudaMalloc(ctypes.byref(p), 16) != 0, p.value)")
        self.assertEqual(done.out, "True None\n")
        self.assertEqual(done.files, [])

    def test_loaded_late_or_twice(self) -> None:
        """Not the way to use it, but an environment may name it twice, or by a link, and a program may load it itself."""
        link = self.tmp / "libcupool-link.so"
        link.symlink_to(LIB)
        self.nothing("/bin/true", preload=f"{LIB}:{LIB}")
        self.nothing("/bin/true", preload=f"{LIB}:{link}")
        self.nothing(sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(LIB)!r})", preload=None)
        # NODELETE: its destructor and its hooks must stay when a plugin that pulled it in goes.
        self.nothing(sys.executable, "-c", f"import ctypes, _ctypes; l = ctypes.CDLL({str(LIB)!r}); _ctypes.dlclose(l._handle)\n"
                     "assert 'libcupool' in open('/proc/self/maps').read()", preload=None)


class File(unittest.TestCase):
    def readelf(self, *options: str) -> str:
        done = subprocess.run([need("readelf"), "-W", *options, LIB], capture_output=True, text=True, env={"LC_ALL": "C"})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def symbols(self) -> "list[list[str]]":
        """Num Value Size Type Bind Visibility Index Name of every dynamic symbol."""
        rows = [line.split() for line in self.readelf("--dyn-syms").split("\n")]
        return [r for r in rows if len(r) >= 8 and r[0].rstrip(":").isdigit()]

    def test_needs_libc_only(self) -> None:
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", self.readelf("-d")))
        self.assertLessEqual(needed, LIBC_PARTS)
        self.assertIn("libc.so.6", needed)

    def test_no_undefined_symbol_of_cuda(self) -> None:
        undefined = [r[7].split("@")[0] for r in self.symbols() if r[6] == "UND"]
        self.assertGreater(len(undefined), 10)
        self.assertEqual([n for n in undefined if n.startswith(("cu", "nccl", "nvml"))], [])

    def test_exports_are_the_hooks_the_interface_dlsym_and_dlclose(self) -> None:
        rows = {list_.stem: re.findall(r"^([A-Z]\w+)\((\w+),", list_.read_text(), re.MULTILINE) for list_ in (SOURCE / "shim" / "hooks").glob("*.def")}
        nccl = [name for _, name in rows.pop("nccl")]
        # Of some kinds of rows the index makes a second one, of the form for per-thread default streams.
        forms = dict(re.findall(r"^#define ([A-Z]\w+)\(symbol,(?:[^\n]*\\\n)+[^\n]*symbol##(_pt[sd][sz])", (SOURCE / "shim" / "hooks.def").read_text(),
                                re.MULTILINE))
        hooks = [name + form for kinds in rows.values() for kind, name in kinds for form in {"", forms.get(kind, "")}]
        self.assertGreater(len(hooks), 20)
        api = re.findall(r"^extern .*\b(cupool_lib_\w+)\(", (SOURCE / "include" / "cupool.h").read_text(), re.MULTILINE)
        self.assertGreater(len(api), 3)
        exported = [r[7] for r in self.symbols() if r[6] not in ("UND", "ABS") and r[4] in ("GLOBAL", "WEAK")]
        self.assertEqual(sorted(exported), sorted([*hooks, *api, *OTHERS]))
        # The other library has NCCL's as well: who looks for those names in a process without NCCL finds none of ours.
        self.assertGreater(len(nccl), 10)
        names = subprocess.run([need("nm"), "-D", "--defined-only", LIB.with_name("libcupool-nccl.so")], capture_output=True, text=True, check=True)
        self.assertEqual(sorted(line.split()[-1] for line in names.stdout.splitlines()), sorted([*hooks, *nccl, *api, *OTHERS]))

    def test_exports_have_no_version(self) -> None:
        """A named version would not match the references of programs: nothing would be caught, and nobody would notice."""
        for row in self.symbols():
            if row[6] != "UND":
                self.assertNotIn("@", row[7])
        self.assertNotIn("verdef", self.readelf("--sections").replace(".gnu.version_d", "verdef"))

    def test_dynamic_flags(self) -> None:
        text = self.readelf("-d")
        self.assertRegex(text, r"FLAGS_1\).*NODELETE")
        self.assertNotIn("TEXTREL", text)
        self.assertNotRegex(text, r"\((RPATH|RUNPATH)\)")
        self.assertNotIn("EXECSTACK", text)
        stack = next(line for line in self.readelf("-l").split("\n") if "GNU_STACK" in line)
        self.assertNotIn("E", stack.split()[-2])

    def test_thread_local_storage_is_small_and_static(self) -> None:
        """__tls_get_addr may allocate, which a hook of dlsym must not; static TLS is scarce, which keeps it small."""
        self.assertNotRegex(self.readelf("-r"), r"DTPMOD|TLSDESC")
        self.assertNotIn("__tls_get_addr", [r[7].split("@")[0] for r in self.symbols()])
        self.assertRegex(self.readelf("-d"), r"FLAGS\).*STATIC_TLS")
        tls = [line.split() for line in self.readelf("-l").split("\n") if line.split()[:1] == ["TLS"]]
        self.assertEqual(len(tls), 1)
        self.assertLessEqual(int(tls[0][5], 16), 256)

    def test_stand_ins_are_what_programs_link(self) -> None:
        """Not about the library: if the helpers were linked in another way, the other tests would prove less than they say."""
        for kind, wanted in (("shared", "libcudart"), ("driver", "libcuda.so"), ("static", None), ("proc", None), ("dlsym", None)):
            done = subprocess.run([need("readelf"), "-dW", app(kind)], capture_output=True, text=True)
            cuda = [n for n in re.findall(r"\(NEEDED\).*\[(.*)\]", done.stdout) if n.startswith("libcu")]
            self.assertEqual([c.startswith(wanted or "-") for c in cuda], [True] if wanted else [], (kind, cuda))
        self.assertTrue((SIM / "libcuda.so.1").exists() and BIN.exists())
