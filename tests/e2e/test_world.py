# SPDX-License-Identifier: Apache-2.0
"""The library in the world as it is: programs of CUDA 12 beside those of 13, plugins that come and go, sandboxes and containers,
several ranks on one GPU, errors of the GPU, and the other processor. Other interposers are in test_world_preloads.
"""

import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

from e2e import BIN, HEADERS, LIB, MIB, SANITIZE, SIM, SOURCE, TIMEOUT, Case, Done, Trace, Word, app, mpirun, need, not_with_coverage
from worlds import CHURN, WORLD, World, counted, load


class Versions(World):
    """Programs built for CUDA 12: another name of cudart, another version of its symbols, other functions of the driver."""

    def test_a_program_of_cuda_12(self) -> None:
        done = self.go(app("shared12"), CHURN)
        self.assertEqual((self.one_trace(done).total("allocs"), counted(done), done.err), (400, 1, ""))

    def test_a_context_as_of_cuda_12(self) -> None:
        """cuCtxCreate_v2 and cuCtxGetDevice, which the headers of CUDA 13 have under the same names no more."""
        done = self.same(load("D", "driver12"), "start:D", "churn:D:100:300000")
        self.assertEqual((self.one_trace(done).total("allocs"), counted(done)), (100, 1))
        self.assertEqual(done.counts["cuCtxCreate_v2"], 1)

    def test_two_cudarts_share_the_pool(self) -> None:
        """Two shared ones, and a shared and a static one: what one has allocated the other frees."""
        for kinds in ("12 13", "13 12", "12 static", "static 12", "13 static", "driver 12", "11 13"):
            a, b = kinds.split()
            with self.subTest(kinds):
                both = [load("A", a), load("B", b), "start:A", "start:B"]
                done = self.same(*both, "alloc:A:1000", f"alloc:B:{5 * MIB}", f"alloc:A:{3 * MIB}", "alloc:B:70000", "check:B:0",
                                 "check:A:1", "free:B:0", "free:A:1", "free:B:2", "free:A:3", f"churn:A:50:{MIB}", f"churn:B:50:{MIB}")
                trace = self.one_trace(done)
                self.assertEqual([trace.total(k) for k in ("allocs", "frees", "live", "bypassed")], [104, 104, 0, 0])
                self.assertEqual(counted(done), trace.total("segments_alloc"))
                self.assert_fine(trace.path)

    def test_errors_of_each_cudart_are_its_own(self) -> None:
        """A call that is passed on goes to the cudart of who called, whichever comes first in the process."""
        for kinds in ("12 13", "13 12", "11 13", "13 11"):
            a, b = kinds.split()
            for flags in ("l", "g"):
                with self.subTest(kinds, flags=flags):
                    done = self.same(load("A", a, flags), load("B", b, flags), "start:A", "start:B", "huge:A", "last:A", "last:B", "last:A",
                                     "huge:B", "last:A", "last:B", "alloc:A:1000", "alloc:B:1000", "free:A:1", "free:B:0", "free:B:0",
                                     "last:A", "last:B", "reset:B", "alloc:A:1000", "free:A:2", "last:A", "last:B")
                    self.assertIn("huge:B: error 2\nlast:A: 0\nlast:B: 2\n", done.out)

    def test_a_function_that_the_first_cudart_lacks(self) -> None:
        """Natively a plugin calls its own cudart, however old the one is that came before."""
        for flags in ("l", "g"):
            for started in ([], ["start:B"]):
                with self.subTest(flags=flags, started=started):
                    done = self.same(load("A", "12", flags), "start:A", load("B", "13", flags), *started, "graph:B", "last:B", "last:A")
                    self.assertEqual(done.out, "graph:B: 0\nlast:B: 0\nlast:A: 0\n")

    def test_a_preload_in_front_of_two_cudarts(self) -> None:
        """It gets what the library passes on, whichever cudart the call was meant for."""
        commands = [load("A", "12", "g"), load("B", "13", "g"), "start:A", "start:B", "huge:B", "huge:A"]
        done = self.go(WORLD, *commands, preload=f"{LIB}:{BIN / 'libsecond.so'}", CUPOOL_LOG_LEVEL="error")
        self.assertIn("second: 2 cudaMalloc", done.out + done.err)

    def test_a_cudart_out_of_a_wheel(self) -> None:
        """Its name has a hash in it."""
        for flags in ("l", "g", "lz"):
            done = self.same(load("A", "11", flags), "start:A", "huge:A", "last:A", "churn:A:50:300000")
            self.assertEqual([self.one_trace(done).total(k) for k in ("allocs", "segments_alloc")], [50, 1])

    def test_errors_of_a_static_cudart_are_its_own(self) -> None:
        done = self.same(load("A", "12"), load("S", "static"), "start:A", "start:S", "huge:S", "last:A", "last:S", "last:S", "huge:A",
                         "last:S", "last:A", "last:A")
        self.assertIn("last:S: 2\nlast:S: 0\n", done.out)


class Plugins(World):
    def test_they_come_and_go(self) -> None:
        """Memory stays when the plugin that asked for it goes, and so does what was found in the cudart that it brought in."""
        for a, b, flags in (("13", "static", "l"), ("13", "static", "g"), ("12", "13", "g"), ("12", "13", "l"), ("driver", "13", "l"),
                            ("static", "12", "g"), ("static", "static", "l")):
            with self.subTest(a=a, b=b, flags=flags):
                done = self.same(load("A", a, flags), "start:A", "alloc:A:1000", f"alloc:A:{4 * MIB}",
                                 load("B", b, flags), "unload:A", "start:B", "huge:B", "check:B:0", "free:B:0", "alloc:B:3000", "unload:B", load("A", a), "start:A", "check:A:1",
                                 "free:A:1", "free:A:2", "churn:A:50:300000")
                trace = self.one_trace(done)
                self.assertEqual((trace.total("allocs"), trace.total("frees"), trace.total("live")), (53, 53, 0))
                self.assert_fine(trace.path)

    def test_their_destructors(self) -> None:
        """They may be the first to call a function of a cudart that goes with them, after others have long used CUDA, or the first to call
        anything of CUDA."""
        for first in ("driver", "static", "12", None):
            for kind in ("13", "static", "driver"):
                for call in ("alloc", "free", "reset"):
                    for more in ({}, {"CUPOOL_ENABLE": "0"}):
                        with self.subTest(first=first, kind=kind, call=call, **more):
                            before = [load("A", first), "start:A", "alloc:A:1000"] if first else []
                            after = [load("C", "13"), "start:C", "churn:C:5:300000", "unload:C"]
                            self.same(*before, load("B", kind), f"leave:B:{call}", "unload:B", *after, CUPOOL_LOG_LEVEL="error", **more)

    def test_a_thread_that_a_destructor_waits_for(self) -> None:
        """It may be the first to call a function of a cudart that was loaded after others had used CUDA: no search may wait for the
        destructor."""
        for first in ("driver", "static", None):
            for kind in ("13", "static"):
                for call in ("Alloc", "Free", "Reset"):
                    self.leaves_in_a_thread(first, kind, call)

    def leaves_in_a_thread(self, first: "str | None", kind: str, call: str) -> None:
        with self.subTest(first=first, kind=kind, call=call):
            before = [load("A", first), "start:A", "alloc:A:1000"] if first else []
            self.same(*before, load("B", kind), "start:B", f"leave:B:{call}", "unload:B", CUPOOL_LOG_LEVEL="error")

    def test_a_thread_that_calls_the_second_cudart(self) -> None:
        """And a destructor waits for it: no search for the cudart that the call belongs to may wait for the destructor."""
        for kinds in ("12 13", "13 12", "11 13"):
            for call in ("Alloc", "Free", "Reset", "Graph"):
                self.leaves_in_a_thread(*kinds.split(), call)

    def test_many_times(self) -> None:
        rounds = [c for _ in range(20) for c in (load("A", "static"), "start:A", "churn:A:5:300000", "unload:A", load("A", "12"),
                                                 "start:A", "churn:A:5:300000", "unload:A")]
        done = self.same(*rounds)
        self.assertEqual((self.one_trace(done).total("allocs"), counted(done)), (200, 1))


class Unloaded(Case):
    def test_a_library_in_the_place_of_another(self) -> None:
        """Calls are pooled by the library that makes them, not by one that was at its address before."""
        paths = [shutil.copy(BIN / "loaded.so", self.tmp / name) for name in ("libnccl_a.so", "libother.so", "libnccl_b.so")]
        native = self.go(BIN / "unload", *paths, preload=None, rc=None)
        if native.rc == 77:
            self.skipTest("they do not come to the same address")
        counts = [int(line.split()[1]) for line in self.go(BIN / "unload", *paths).out.splitlines()]
        self.assertEqual((counts[0], counts[2]), (20, 20))
        self.assertLess(counts[1], 20)


class Sandbox(World):
    """A program's permissions may change after its start, and be few from the start."""

    @not_with_coverage
    def test_seccomp(self) -> None:
        """No file, socket, thread or process can be made any more when the first request comes. The program must not notice;
        that there is no trace is said once."""
        for kind in ("13", "static", "driver"):
            with self.subTest(kind):
                commands = [load("A", kind), "start:A", "seccomp", "churn:A:200:300000", f"alloc:A:{5 * MIB}", "check:A:0", "free:A:0"]
                native = self.go(WORLD, *commands, "count:cuMemAlloc", preload=None)
                done = self.go(WORLD, *commands, "count:cuMemAlloc")
                self.assertEqual((native.out, done.out), ("cuMemAlloc 201\n", "cuMemAlloc 2\n"))
                self.assertEqual(len(done.warnings), 1, done.err)
                self.assertRegex(done.warnings[0], "no trace: cannot create .*: Operation not permitted")
                self.assertEqual(done.files, [])
                self.assertEqual(self.go(WORLD, *commands, CUPOOL_TRACE_FILE="off").err, "")

    @not_with_coverage
    def test_a_trace_that_was_opened_before_goes_on(self) -> None:
        done = self.go(WORLD, load("A", "13"), "start:A", "churn:A:20:300000", "seccomp", "churn:A:200:300000", f"alloc:A:{5 * MIB}")
        self.assertEqual(done.err, "")
        trace = self.one_trace(done)
        self.assertEqual((trace.total("allocs"), trace.ended, len(trace.of("segment_alloc"))), (221, True, 2))

    def namespace(self, *setup: str) -> "list[str]":
        """In front of a command: a mount namespace of its own, prepared by shell commands."""
        if os.getuid() != 0 or not shutil.which("unshare"):
            self.skipTest("needs root and unshare")
        if subprocess.run(["unshare", "-m", "mount", "--make-rprivate", "/"], capture_output=True).returncode:
            self.skipTest("mount namespaces are not allowed here")
        script = " && ".join(["mount --make-rprivate /", *setup, 'exec "$@"'])
        return ["unshare", "-m", "sh", "-c", script, "sh", "env", f"LD_PRELOAD={LIB}"]

    def test_no_proc_no_home_and_nowhere_to_write(self) -> None:
        for kind in ("shared", "static"):
            cwd = self.folder()
            before = self.namespace(f"mount --bind {cwd} {cwd}", f"mount -o remount,ro,bind {cwd}", "mount -t tmpfs none /proc",
                                    f"cd {cwd}")
            done = self.go(*before, app(kind), CHURN, preload=None, cwd=cwd, HOME=None)
            self.assertEqual((counted(done), done.out, done.files), (1, "", []))
            self.assertEqual(len(done.warnings), 1)
            self.assertRegex(done.warnings[0], "no trace: cannot create .*: Read-only file system")

    def test_no_proc(self) -> None:
        """The trace knows less, and is one."""
        done = self.go(*self.namespace("mount -t tmpfs none /proc"), app("shared"), CHURN, preload=None, RANK="5", LOCAL_RANK="1",
                       OMPI_COMM_WORLD_RANK="6")
        trace = self.one_trace(done)
        self.assertEqual((trace.total("allocs"), trace.header["exe"], trace.header["rank"], done.err), (400, "app_shared", 5, ""))
        self.assert_fine(trace.path)

    def test_a_program_that_clears_its_environment(self) -> None:
        """As daemons do. What it was started with holds: it may be what keeps the pool out of the way."""
        for kind in ("13", "static"):
            commands = ["clearenv", load("A", kind), "churn:A:50:300000", "count:cuMemAlloc"]
            self.same(*commands, CUPOOL_ENABLE="0")
            done = self.go(WORLD, *commands, CUPOOL_FREE="strict", CUPOOL_TRACE_FILE="mine.jsonl")
            header = self.one_trace(done).header
            self.assertEqual((done.files, header["settings"]["CUPOOL_FREE"]), (["mine.jsonl"], "strict"))

    @unittest.skipIf("thread" in SANITIZE, "the sanitizer has a thread of its own")
    def test_no_proc_and_the_last_thread_ends_the_process(self) -> None:
        """Where nobody can say how many threads are left, the library's must not be those that remain."""
        for threads, events in (("0", "segment"), ("3", "segment,alloc")):
            done = self.go(*self.namespace("mount -t tmpfs none /proc"), BIN / "ends", "threads", threads, preload=None,
                           CUPOOL_TRACE_EVENTS=events)
            self.assertEqual((done.out, done.err), ("freed at exit: 0\n", ""))
            self.assertTrue(self.one_trace(done).ended)

    def test_set_uid_programs_are_left_alone(self) -> None:
        """Loaded by /etc/ld.so.preload, that is by root; the environment is the caller's, and must not make it write anywhere."""
        need("setpriv")
        self.tmp.chmod(0o755)
        exe, out, etc, libs = self.tmp / "app", self.tmp / "out", self.tmp / "etc", self.tmp / "libs"
        shutil.copy(app("static"), exe)
        exe.chmod(0o4755)
        for folder in (out, etc, libs):
            folder.mkdir()
        out.chmod(0o777)
        # Where anybody may read.
        for path in (LIB, SIM / "libcuda.so.1"):
            (libs / path.name).write_bytes(path.read_bytes())
            (libs / path.name).chmod(0o755)
        before = self.namespace(
            f"mount -t tmpfs none {etc}", f"mkdir {etc}/upper {etc}/work",
            f"mount -t overlay overlay -o lowerdir=/etc,upperdir={etc}/upper,workdir={etc}/work /etc",
            "{ [ ! -d /var/cache/ldconfig ] || mount -t tmpfs none /var/cache/ldconfig; }",
            f"echo {libs / LIB.name} >/etc/ld.so.preload", f"echo {libs} >/etc/ld.so.conf.d/00-world.conf", "ldconfig -X", f"cd {out}")[:-2]
        try:
            self.go(*before, "true", preload=None)
        except AssertionError:
            self.skipTest("no overlay over /etc here")
        for uid, allocs in ((65534, 400), (0, 1)):
            counts = out / f"counts-{uid}"
            done = self.go(*before, "setpriv", f"--reuid={uid}", exe, CHURN, preload=None, SIMGPU_COUNTS=counts,
                           CUPOOL_LOG_LEVEL="debug", CUPOOL_STATS="exit", CUPOOL_TRACE_FILE=f"{out}/trace-{uid}.jsonl")
            self.assertIn(f" cuMemAlloc_v2 {allocs}\n", counts.read_text())
            self.assertEqual((out / f"trace-{uid}.jsonl").exists(), uid == 0)
            self.assertEqual(done.err == "", uid != 0, done.err)

    def test_closed_standard_descriptors(self) -> None:
        """The program's own files get the numbers 0 to 2, before or after the first request; the trace goes nowhere near them."""
        work = [load("A", "13"), "start:A", f"churn:A:50:{5 * MIB}"]
        files = ["write:a", "write:b", "write:c"]
        for commands in (files + work, work + files, work + files + work):
            done = self.go("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", WORLD, *commands, CUPOOL_TRACE_EVENTS="segment,alloc",
                           CUPOOL_LOG_LEVEL="debug", CUPOOL_STATS="exit")
            self.assertEqual([(done.cwd / name).read_text() for name in "ac"], ["mine\n"] * 2)
            # Standard output is b: what the program prints about itself, and nothing else.
            self.assertEqual(re.sub(r"fd \d\n", "", (done.cwd / "b").read_text()), "mine\n")
            trace = self.one_trace(done)
            self.assertEqual(len(trace.of("alloc")), trace.total("allocs"))
            self.assert_fine(trace.path)

    def test_little_address_space(self) -> None:
        """A request that natively fits must go on working, pooled or not. The stand-in takes what it needs at its first allocation, which
        comes from a plugin whose memory is not pooled."""
        for space in (0, 60000, 200000, 1 << 20, 16 << 20):
            with self.subTest(space):
                done = self.same(load("D", "static", "ld"), load("A", "13"), "start:A", "start:D", "alloc:D:1000", f"as:{space}",
                                 "churn:A:30:300000", f"alloc:A:{5 * MIB}", "alloc:A:300", "check:A:1", "check:A:2", "free:A:1",
                                 "free:A:2", "churn:A:30:300000", SIMGPU_MEMORY="256M", CUPOOL_TRACE_EVENTS="segment,alloc")
                self.assertLess(0, counted(done))

    def test_small_stacks(self) -> None:
        for kind in ("13", "static"):
            for stack in (16 << 10, 32 << 10, 64 << 10):  # from the least that there is
                words = (load("A", kind), "start:A", f"stack:{stack}", "churn:A:50:300000", "huge:A", "last:A")
                done = self.go(WORLD, *words, CUPOOL_STATS_FILE="page", CUPOOL_TRACE_EVENTS="segment,alloc")
                self.assertEqual(done.out, self.go(WORLD, *words, preload=None).out)
                self.assertIn("out of memory", done.err)
                self.assertEqual(self.one_trace(done).total("allocs"), 50)


class Ranks(World):
    def test_four_on_one_gpu(self) -> None:
        """Each has a pool and a trace of its own."""
        if "Open MPI" not in subprocess.run([mpirun(), "--version"], capture_output=True, text=True).stdout:
            self.skipTest("mpirun is not Open MPI's")
        done = self.go(mpirun(), "-n", "4", "--oversubscribe", "-x", f"LD_PRELOAD={LIB}", app("static"), CHURN, f"alloc:2:{5 * MIB}",
                       preload=None, SIMGPU_DEVICES="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_plm_rsh_agent="")
        traces = done.traces()
        self.assertEqual(sorted(t.header["rank"] for t in traces), [0, 1, 2, 3])
        self.assertEqual(sorted(t.header["local_rank"] for t in traces), [0, 1, 2, 3])
        for t in traces:
            self.assertEqual((t.total("allocs"), len(t.of("segment_alloc")), t.ended), (402, 3, True))
            self.assertEqual({e["d"] for e in t.events if "d" in e}, {0})
        self.assert_fine(*[t.path for t in traces])
        self.assertEqual(counted(done), 12)


class Errors(World):
    """Where an error of the GPU surfaces. docs/differences.md names every difference."""

    def lines(self, kind: str, what: str, preload: "str | None" = str(LIB), **more: str) -> "list[str]":
        done = self.go(BIN / f"world_errors_{kind}", what, preload=preload, **more)
        self.assertEqual(done.err, "")
        return done.out.splitlines()

    def test_after_an_illegal_access(self) -> None:
        """Every call answers as natively, but cudaMalloc and cudaFree may succeed; not with strict, as for cudaFree."""
        for kind in ("shared", "static"):
            native = self.lines(kind, "sticky", preload=None)
            self.assertGreater(len([x for x in native if " 700 " in x]), 10)
            for policy in ("ordered", "relaxed", "strict"):
                with self.subTest(kind, policy=policy):
                    ours = self.lines(kind, "sticky", CUPOOL_FREE=policy)
                    self.assertEqual(len(ours), len(native))
                    for a, b in zip(native, ours):
                        may = a.startswith("cudaMalloc(") or (a.startswith("cudaFree(") and policy != "strict")
                        self.assertIn(b, (a, a.replace(" 700 ", " 0 ")) if may else (a,))

    def test_frees_by_a_thread_in_another_context(self) -> None:
        """Natively a free returns the error of the memory's own context, whichever is current, and if none is."""
        for kind in ("shared", "static"):
            native = self.lines(kind, "elsewhere", preload=None)
            self.assertEqual(len([x for x in native if "Free" in x and " 700 " in x]), 5)
            for policy in ("auto", "ordered", "relaxed", "strict"):
                with self.subTest(kind, policy=policy):
                    self.assertEqual(self.lines(kind, "elsewhere", CUPOOL_FREE=policy), native)

    def test_memory_that_was_given_back(self) -> None:
        """Copies and fills of it are errors natively. Here they are not, as long as the pool holds it; freeing it again is."""
        native, ours = self.lines("shared", "freed", preload=None), self.lines("shared", "freed")
        self.assertEqual([x for x in native if " 1 " in x][:4], native[:4])
        self.assertEqual(ours[:4], [re.sub(" 1 1$", " 0 0", x) for x in native[:4]])
        self.assertEqual(ours[5:], native[5:])


class Aarch64(World):
    """The library compiled for the other processor, with another assembly stub, run by qemu."""

    build: "Path | None" = None

    @classmethod
    def setUpClass(cls) -> None:
        for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64", "meson", "ninja"):
            need(tool)
        if not Path("/usr/aarch64-linux-gnu/lib/libc.so.6").exists():
            raise unittest.SkipTest("no C library for aarch64")

    def setUp(self) -> None:
        super().setUp()
        self.gcc = ["aarch64-linux-gnu-gcc", "-std=gnu11", "-D_GNU_SOURCE", *[f for h in HEADERS.split(":") for f in ("-isystem", h)]]
        self.sources = SOURCE / "tests"

    def run_or_fail(self, *args: Word) -> None:
        done = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.tmp)
        self.assertEqual(done.returncode, 0, done.stdout)

    def cross_built(self, buildtype: str) -> Path:
        cross = self.tmp / "aarch64.cross"
        cross.write_text("[binaries]\nc = 'aarch64-linux-gnu-gcc'\nar = 'aarch64-linux-gnu-ar'\nstrip = 'aarch64-linux-gnu-strip'\n"
                         "[host_machine]\nsystem = 'linux'\ncpu_family = 'aarch64'\ncpu = 'aarch64'\nendian = 'little'\n")
        build = self.tmp / buildtype
        self.run_or_fail("meson", "setup", build, SOURCE, "--cross-file", cross, f"-Dbuildtype={buildtype}", "-Dtests=false",
                         "-Dwerror=true", f"-Dheaders={HEADERS}")
        self.run_or_fail("ninja", "-C", build, "shim/libcupool.so")
        return build / "shim" / "libcupool.so"

    def compile(self, name: str, *options: Word) -> Path:
        self.run_or_fail(*self.gcc, "-o", self.tmp / name, *options, "-lpthread", "-ldl")
        return self.tmp / name

    def stand_ins(self) -> None:
        sim = self.sources / "sim"
        hidden = ["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-Bsymbolic"]
        cuda = [p for p in sorted(sim.glob("*.c")) if not p.name.startswith(("rt_", "selftest"))]
        self.compile("libcuda.so.1", *hidden, "-Wl,-soname,libcuda.so.1", "-Wl,-z,nodelete", *cuda)
        self.runtime = sorted(sim.glob("rt_*.c"))
        self.compile("libcudart.so.13", *hidden, "-Wl,-soname,libcudart.so.13", f"-Wl,--version-script={sim / 'rt.map'}", *self.runtime)

    def emulate(self, preload: "str | None", *args: Word, **more: Word) -> Done:
        env = {"LD_LIBRARY_PATH": str(self.tmp), **({"LD_PRELOAD": preload} if preload else {}), **more}
        words = [w for k, v in env.items() for w in ("-E", f"{k}={v}")]
        return self.go("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", *words, *args, preload=None, LD_LIBRARY_PATH=None,
                       timeout=4 * TIMEOUT)

    def test_it(self) -> None:
        built = [self.cross_built(kind) for kind in ("debug", "release")]
        self.stand_ins()
        e2e, rt = self.sources / "e2e", self.tmp / "libcudart.so.13"
        apps = [self.compile("app_shared", "-DAPI_RUNTIME", e2e / "app.c", rt),
                self.compile("app_static", "-DAPI_RUNTIME", "-DSIM_STATIC", "-fvisibility=hidden", e2e / "app.c", *self.runtime)]
        second = self.compile("libsecond.so", "-fPIC", "-shared", e2e / "second.c")
        for level in ("-O0", "-O2"):
            # Callers in a library and in the program, compiled each way.
            self.compile("libnextlib.so", level, "-fPIC", "-shared", e2e / "nextlib.c")
            names = self.compile(f"names{level}", level, e2e / "names.c", self.tmp / "libnextlib.so", rt)
            native = self.emulate(None, names)
            self.assertIn("library next cudaMalloc: libcudart.so.13 cudaMalloc\n", native.out)
            self.assertRegex(native.out, r"program next getpid: libc.so.6 \w*getpid\n")
            beside = self.emulate(str(second), names)
            for lib in built:
                with self.subTest("look-ups", level=level, lib=lib.parent.parent.name):
                    self.assertEqual(self.emulate(str(lib), names).out, native.out)
                    for preload in (f"{lib}:{second}", f"{second}:{lib}"):
                        self.assertEqual(self.emulate(preload, names).out, beside.out)
        for lib in built:
            for exe in apps:
                with self.subTest("programs", lib=lib.parent.parent.name, exe=exe.name):
                    done = self.emulate(str(lib), exe, CHURN, "threads:4:50:300000", "capture")
                    trace: Trace = self.one_trace(done)
                    self.assertEqual([trace.total(k) for k in ("allocs", "frees", "live")], [600, 600, 0])
                    self.assertEqual(counted(done), trace.total("segments_alloc"))
                    self.assert_fine(trace.path)
                    self.assertEqual((done.out, done.err), ("", ""))
