# SPDX-License-Identifier: Apache-2.0
"""The library beside other interposers and plugins that no preload is in the way of."""

import ctypes.util
import re
import shutil
import subprocess
import unittest
from pathlib import Path

from e2e import BIN, HEADERS, LIB, MIB, SIM, SOURCE, Done, app
from worlds import CHURN, WORLD, World, counted, load


class Deep(World):
    """Plugins loaded with RTLD_DEEPBIND, whose own cudart no preload is in the way of."""

    def test_they_do_no_harm(self) -> None:
        """Their memory is the driver's, also if another library frees it."""
        for kind in ("static", "12", "driver"):
            with self.subTest(kind):
                done = self.same(load("A", "13"), load("D", kind, "ld"), "start:A", "start:D", f"alloc:D:{4 * MIB}", "alloc:D:1000",
                                 "churn:D:50:300000", "churn:A:50:300000", "check:A:0", "free:A:0", "free:A:1", f"alloc:A:{4 * MIB}",
                                 "check:D:2", "free:A:2")
                trace = self.one_trace(done)
                self.assertEqual((trace.total("allocs"), trace.total("frees"), trace.total("live")), (51, 51, 0))
                self.assert_fine(trace.path)

    def test_a_cudart_that_is_loaded_already_is_caught(self) -> None:
        """The plugin calls it past us, but it reaches the driver through us."""
        done = self.same(load("A", "13"), "start:A", load("D", "13", "ld"), "alloc:A:1000", f"alloc:A:{4 * MIB}", "free:D:0", "free:D:1",
                         "churn:D:50:300000")
        self.assertEqual((self.one_trace(done).total("allocs"), self.one_trace(done).total("frees")), (52, 52))

    def test_a_large_block_freed_there_is_the_drivers_again(self) -> None:
        """It is a driver allocation of its own, so the driver frees it under the pool, and may hand its memory out to anybody."""
        start = [load("A", "13"), load("D", "static", "ld"), "start:A"]
        for again in (
                # To us, in one piece, in two, and in part; the rest to the plugin.
                [f"alloc:A:{8 * MIB}", "check:A:1", "free:A:1", f"alloc:A:{8 * MIB}", f"alloc:D:{8 * MIB}", "check:A:2", "free:A:2"],
                [f"alloc:A:{4 * MIB}", f"alloc:A:{4 * MIB}", "check:A:1", "free:A:1", f"alloc:A:{4 * MIB}", "check:A:2", "check:A:3"],
                [f"alloc:A:{2 * MIB}", "free:A:1", f"alloc:D:{4 * MIB}", f"alloc:A:{8 * MIB}", "check:A:2", "check:A:3", "free:A:3"],
                ["alloc:A:1000", f"alloc:D:{6 * MIB}", f"alloc:A:{8 * MIB}", "check:A:1", "check:A:2", "check:A:3", "free:A:1"],
                # To the plugin first, then to us.
                [f"alloc:D:{8 * MIB}", f"alloc:A:{8 * MIB}", "free:D:1", f"alloc:A:{3 * MIB}", "check:A:2", "check:A:3", "free:A:3"]):
            with self.subTest(again):
                done = self.same(*start, f"alloc:A:{8 * MIB}", "free:D:0", *again, "churn:A:30:300000")
                self.assert_fine(self.one_trace(done).path)

    def test_a_small_block_freed_there_is_refused(self) -> None:
        """Natively that works. Its neighbours are safe, and its owner can still free it."""
        done = self.go(WORLD, load("A", "13"), load("D", "static", "ld"), "start:A", "alloc:A:1000", "alloc:A:2000", "free:D:0",
                       "check:A:0", "check:A:1", "free:A:0", "free:A:1", "churn:A:50:3000")
        self.assertEqual(done.out, "free:D: error 1\n")
        self.assertEqual(self.one_trace(done).total("live"), 0)


class Copies(World):
    """Several copies of the library in one process."""

    def test_the_first_one_works_alone(self) -> None:
        """Two pools would serve each other's memory, and a free would not wait for work that the other copy has seen."""
        copy = Path(shutil.copy(LIB, self.tmp / "libcopy.so"))
        nccl = LIB.with_name("libcupool-nccl.so")
        for preload in (f"{LIB}:{copy}", f"{copy}:{LIB}", f"{LIB}:{nccl}", f"{nccl}:{LIB}"):
            for kind in ("shared", "static", "driver"):
                with self.subTest(preload, kind=kind):
                    done = self.go(app(kind), CHURN, preload=preload)
                    self.assertEqual((self.one_trace(done).total("allocs"), counted(done)), (400, 1))
                    self.assertEqual(len(done.warnings), 1, done.err)
                    self.assertIn(f"{preload.split(':')[1]} is another copy of cupool in this process", done.warnings[0])

    def test_one_that_is_loaded_later_does_nothing(self) -> None:
        copy = Path(shutil.copy(LIB, self.tmp / "libcopy.so"))
        for flags in ("l", "g"):
            with self.subTest(flags):
                done = self.same(f"object:{flags}:{copy}", load("A", "static"), "start:A", "churn:A:50:300000")
                self.assertEqual((self.one_trace(done).total("allocs"), counted(done)), (50, 1))

    def test_a_program_that_asks_for_the_library(self) -> None:
        """It refers to functions of the library, and has entries of its own for them."""
        source, program = self.tmp / "asks.c", self.tmp / "asks"
        source.write_text("extern int cupool_lib_version(void), cudaMalloc(void **, unsigned long);\n"
                          "int main(void) { void *p; return cudaMalloc(&p, 1000) || &cupool_lib_version == 0; }\n")
        subprocess.run(["cc", "-no-pie", "-fno-pic", "-o", program, source, "-Wl,--no-as-needed", f"-L{SIM}", "-lcudart", LIB], check=True)
        done = self.go(program)
        self.assertEqual((self.one_trace(done).total("allocs"), done.err), (1, ""))

    def test_no_error_of_the_loader_is_left(self) -> None:
        """A program that asks for one before it has used the loader."""
        source, program = self.tmp / "error.c", self.tmp / "error"
        source.write_text("#include <dlfcn.h>\nint main(void) { return dlerror() != 0; }\n")
        subprocess.run(["cc", "-o", program, source, "-ldl"], check=True)
        self.go(program)


class Interposers(World):
    """Others who watch allocations: by relocation slots or by overwriting functions, as UCX does, and through the loader."""

    UCM = BIN / "libworld_ucm.so"

    def watched(self, done: Done) -> "dict[str, int]":
        return {name: int(n) for name, n in re.findall(r"^ucm: (\w+) (\d+)$", done.err, re.M)}

    def test_it_works_alone(self) -> None:
        for how in ("reloc", "bistro", "driver"):
            seen = self.watched(self.go(app("shared"), CHURN, preload=str(self.UCM), WORLD_UCM=how))
            name = "cuMemAlloc_v2" if how == "driver" else "cudaMalloc"
            self.assertEqual(seen[name], 400, how)

    def test_from_the_start(self) -> None:
        """In either order the program is pooled, and they see either what it asks for or what the pool asks for."""
        for how in ("reloc", "bistro", "driver"):
            for preload in (f"{self.UCM}:{LIB}", f"{LIB}:{self.UCM}"):
                for kind in ("shared", "static", "driver"):
                    if (how, kind) == ("reloc", "driver") and preload.startswith(str(LIB)):
                        continue  # what comes after them in line is libcuda: see test_past_us
                    with self.subTest(how, preload=preload, kind=kind):
                        done = self.go(app(kind), CHURN, preload=preload, WORLD_UCM=how)
                        trace, seen = self.one_trace(done), self.watched(done)
                        self.assertEqual((trace.total("allocs"), trace.total("frees"), trace.total("live")), (400, 400, 0))
                        self.assertEqual(counted(done), 1)
                        if how == "driver":
                            self.assertEqual(seen, {"cudaMalloc": 0, "cudaFree": 0, "cuMemAlloc_v2": 1, "cuMemFree_v2": 0})
                        elif how == "reloc" and kind != "static":  # that one has no slots
                            self.assertEqual(seen["cudaMalloc" if kind == "shared" else "cuMemAlloc_v2"], 400)

    def test_after_our_first_use(self) -> None:
        """They are loaded in the middle: functions that we found before that are overwritten now."""
        for how in ("reloc", "bistro", "driver"):
            for kind in ("13", "static", "driver"):
                with self.subTest(how, kind=kind):
                    done = self.go(WORLD, load("A", kind), "start:A", "alloc:A:1000", f"alloc:A:{4 * MIB}", "churn:A:50:300000",
                                   f"object:g:{self.UCM}", "churn:A:50:300000", f"alloc:A:{9 * MIB}", "check:A:0", "check:A:1",
                                   "free:A:0", "free:A:1", "free:A:2", WORLD_UCM=how)
                    trace, seen = self.one_trace(done), self.watched(done)
                    self.assertEqual((done.out, trace.total("allocs"), trace.total("frees")), ("", 103, 103))
                    if how == "driver":
                        self.assertEqual(seen["cuMemAlloc_v2"], 1)  # the segment of the 9 MiB
                    elif (how, kind) != ("reloc", "static"):  # that one has no slots
                        self.assertGreater(sum(seen.values()), 0)

    def test_past_us(self) -> None:
        """They come after us in line and write what comes after them into the program's slots: its calls of a driver that it is
        linked to do not reach us any more. That is no harm as long as no memory of the pool is given back that way."""
        done = self.go(app("driver"), CHURN, preload=f"{LIB}:{self.UCM}", WORLD_UCM="reloc")
        self.assertEqual((self.watched(done)["cuMemAlloc_v2"], counted(done), done.files), (400, 400, []))
        done = self.go(BIN / "world_linked", load("A", "driver"), "start:A", "call:world_ucm_install", "churn:A:50:300000",
                       preload=f"{LIB}:{self.UCM}", WORLD_UCM="later")
        self.assertEqual((self.watched(done)["cuMemAlloc_v2"], counted(done), done.out), (50, 50, ""))
        # Small blocks that were pooled before cannot be given back that way. Natively they can.
        done = self.go(BIN / "world_linked", load("A", "driver"), "start:A", "alloc:A:1000", "alloc:A:2000", "call:world_ucm_install",
                       "free:A:0", "check:A:1", preload=f"{LIB}:{self.UCM}", WORLD_UCM="later")
        self.assertEqual(done.out, "free:A: error 1\n")

    def test_under_its_real_name(self) -> None:
        """A caller called libucm is taken for UCX itself, whose memory is the driver's: no harm, but no pool."""
        real = shutil.copy(self.UCM, self.tmp / "libucm.so.0")
        done = self.go(app("shared"), CHURN, preload=f"{real}:{LIB}", WORLD_UCM="reloc")
        self.assertEqual(self.watched(done)["cudaMalloc"], 400)
        self.assertEqual(counted(done), 400)
        # To overwrite the driver's functions it must find all of them: with one of ours it fails, and UCX then knows of no memory.
        done = self.go(app("shared"), CHURN, preload=f"{real}:{LIB}", WORLD_UCM="driver")
        self.assertRegex(done.err, r"ucm: found in \S*/libcuda\.so\.1\n")
        done = self.go(app("shared"), CHURN, preload=f"{self.UCM}:{LIB}", WORLD_UCM="driver")
        self.assertIn(f"ucm: found in {LIB}\n", done.err)

    def test_an_auditor(self) -> None:
        """The loader's own interface for watching: with it, bindings and look-ups go another way through the loader."""
        audit = str(BIN / "libworld_audit.so")
        for kind in ("shared", "static"):
            native = self.go(app(kind), CHURN, preload=None, LD_AUDIT=audit)
            done = self.go(app(kind), CHURN, LD_AUDIT=audit)
            self.assertEqual((self.one_trace(done).total("allocs"), counted(done), done.out), (400, 1, native.out))
            if kind == "shared":
                self.assertIn(f"audit: cudaMalloc of {LIB}\n", done.err)

    def test_another_malloc(self) -> None:
        path = ctypes.util.find_library("jemalloc")
        if not path:
            self.skipTest("no libjemalloc")
        for preload in (f"{path}:{LIB}", f"{LIB}:{path}"):
            for kind in ("shared", "static"):
                done = self.go(app(kind), CHURN, "threads:4:50:300000", preload=preload)
                self.assertEqual((self.one_trace(done).total("allocs"), done.err), (600, ""))
            self.assertEqual(self.go("sh", "-c", "/bin/echo x", preload=preload).out, "x\n")

    def test_programs_built_with_the_address_sanitizer(self) -> None:
        """Linked to its runtime as a shared object (gcc), it insists on coming first, before any other preload; as a static one
        (clang) it does not mind."""
        tried = 0
        for cc, first in (("gcc", "libasan.so"), ("clang", None)):
            if not shutil.which(cc):
                continue
            exe = self.tmp / f"asan_{cc}"
            done = subprocess.run([cc, "-g", "-fsanitize=address", "-D_GNU_SOURCE", "-DAPI_RUNTIME",
                                   *[f for h in HEADERS.split(":") for f in ("-isystem", h)], SOURCE / "tests/e2e/app.c", "-o", exe,
                                   SIM / "libcudart.so.13", "-lpthread", "-ldl"], capture_output=True, text=True)
            if done.returncode:
                continue  # no sanitizer for this compiler
            preload = str(LIB)
            if first:
                path = subprocess.run([cc, f"-print-file-name={first}"], capture_output=True, text=True, check=True).stdout.strip()
                preload = f"{path}:{LIB}"
            with self.subTest(cc):
                ran = self.go(exe, CHURN, "alloc:3:5000000", preload=preload, ASAN_OPTIONS="detect_leaks=0")
                self.assertEqual((self.one_trace(ran).total("allocs"), ran.out, ran.err), (403, "", ""))
            tried += 1
        if not tried:
            self.skipTest("no compiler with the address sanitizer")
