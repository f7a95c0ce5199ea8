# SPDX-License-Identifier: Apache-2.0
"""Beside others who put themselves between programs and libraries: a second preload that wraps cudaMalloc and malloc, one that
overrides dlsym, and libraries that ask dlsym with RTLD_NEXT. Everybody must get what they got without us.

test_builds runs this again on the library compiled without optimisation, as scripts/coverage does: there a tail call in C would be a
call, and RTLD_NEXT would be answered for the wrong object.
"""

import re
import sys
import unittest

from e2e import BIN, LIB, SANITIZE, Case, app

SECOND = BIN / "libsecond.so"
OVER = BIN / "libdlsym_over.so"
CHURN = "churn:200:100000"


class Second(Case):
    def passes(self, preload: str) -> None:
        done = self.go(app("shared"), CHURN, preload=preload)
        self.assertEqual(self.one_trace(done).total("allocs"), 200)
        self.assertEqual(self.one_trace(done).total("frees"), 200)
        self.assertRegex(done.err, r"^second: \d+ cudaMalloc, \d+ cudaFree, some malloc\n$")

    def count(self, preload: str, kind: str = "shared") -> "tuple[int, int]":
        done = self.go(app(kind), CHURN, preload=preload)
        m = re.search(r"second: (\d+) cudaMalloc, (\d+) cudaFree", done.err)
        assert m, done.err
        return int(m[1]), int(m[2])

    def test_it_works_alone(self) -> None:
        self.assertEqual(self.count(str(SECOND)), (200, 200))

    def test_before_us(self) -> None:
        self.passes(f"{SECOND}:{LIB}")
        self.assertEqual(self.count(f"{SECOND}:{LIB}"), (200, 200))

    def test_after_us(self) -> None:
        """Calls that the library serves do not go further; the others do."""
        self.passes(f"{LIB}:{SECOND}")
        done = self.go(app("shared"), CHURN, preload=f"{LIB}:{SECOND}", CUPOOL_ENABLE="0")
        self.assertIn("second: 200 cudaMalloc, 200 cudaFree", done.err)

    def test_after_us_requests_that_go_to_the_driver_pass_through_both(self) -> None:
        """One more than those: before there is a context, the first goes through cudart, which makes it, and is caught below."""
        done = self.go(app("shared"), "alloc:7:4000000", "free:7", preload=f"{LIB}:{SECOND}", CUPOOL_LIMIT="8M")
        bypassed = self.one_trace(done).total("bypassed")
        self.assertGreater(bypassed, 0)
        self.assertIn(f"second: {bypassed + 1} cudaMalloc, {bypassed} cudaFree", done.err)

    def test_static_cudart(self) -> None:
        """Neither sees cudaMalloc, we see the driver's calls, in either order."""
        for preload in (f"{SECOND}:{LIB}", f"{LIB}:{SECOND}"):
            done = self.go(app("static"), CHURN, preload=preload)
            self.assertEqual(self.one_trace(done).total("allocs"), 200)
            self.assertIn("second: 0 cudaMalloc", done.err)

    def test_programs_without_cuda(self) -> None:
        for preload in (f"{SECOND}:{LIB}", f"{LIB}:{SECOND}"):
            done = self.go(sys.executable, "-c", "print('x'); raise SystemExit(4)", preload=preload, rc=4)
            self.assertEqual((done.out, done.err), ("x\n", "second: 0 cudaMalloc, 0 cudaFree, some malloc\n"))


class Dlsym(Case):
    def answers(self, preload: "str | None", *args: str, **env: str) -> str:
        done = self.go(BIN / "names", *args, preload=preload, **env)
        self.assertEqual((done.err, done.files), ("", []))
        return done.out

    def test_the_same_answers(self) -> None:
        """Every look-up of a plain library, with RTLD_NEXT and RTLD_DEFAULT and handles, and dlerror after each."""
        native, ours = self.answers(None), self.answers(str(LIB))
        self.assertEqual(ours, native)
        # That there was something to see:
        for line in ("library next getpid: libc.so.6 ", "library next cudaMalloc: libcudart.so.13 cudaMalloc",
                     "library next nothing: none; dlerror: ", "program next getpid: libc.so.6"):
            self.assertIn("\n" + line, "\n" + native)

    def test_libcudas_handle(self) -> None:
        """The resolvers' answers are ours, those of calls that CUPOOL_FREE=auto watches, and CUDA's names in the program's own
        scope; functions that give memory are not."""
        native, ours = self.answers(None, "driver").splitlines(), self.answers(str(LIB), "driver").splitlines()
        changed = [b for a, b in zip(native, ours) if a != b]
        self.assertEqual(len(native), len(ours))
        self.assertEqual(changed, ["program libcuda cuCtxSynchronize: libcupool.so cuCtxSynchronize",
                                   "program libcuda cuGetProcAddress: libcupool.so cuGetProcAddress",
                                   "program libcuda cuGetProcAddress_v2: libcupool.so cuGetProcAddress_v2",
                                   "program default cudaMalloc: libcupool.so cudaMalloc"])

    @unittest.skipIf(SANITIZE != "none", "a second sanitizer would come with the second driver")
    def test_a_driver_in_a_namespace_of_its_own(self) -> None:
        """Its functions are its own: the pool's would pass a call for it to another driver, which has no such context."""
        native, ours = [self.answers(preload, "namespace").replace("libcupool.so cudaMalloc", "libcudart.so.13 cudaMalloc")
                        for preload in (None, str(LIB))]
        self.assertIn("\nprogram libcuda cuCtxSynchronize: libcuda.so.1 cuCtxSynchronize", "\n" + native)
        self.assertEqual(ours, native)

    def test_a_library_of_the_programs_own(self) -> None:
        """It may have functions of the driver's names; they are its own."""
        native, ours = [[line for line in self.answers(preload, "driver", str(BIN / "libown_driver.so")).splitlines()
                         if line.startswith("program own ")] for preload in (None, str(LIB))]
        self.assertEqual(len(native), 5)
        self.assertEqual(sum(line.count(": libown_driver.so ") for line in native), 4)
        self.assertEqual(ours, native)

    def test_a_search_that_leads_back(self) -> None:
        """The library itself in place of the driver: a function that is not there, rather than one that calls itself."""
        folder = self.folder()
        (folder / "libcuda.so.1").symlink_to(LIB)
        code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1024)))"
        done = self.go(sys.executable, "-c", code, LD_LIBRARY_PATH=str(folder), CUPOOL_STATS="off", CUPOOL_TRACE_FILE="off")
        self.assertEqual(done.out, "500\n")  # CUDA_ERROR_NOT_FOUND

    def test_not_even_those_when_switched_off(self) -> None:
        native = self.answers(None, "driver")
        for setting in ({"CUPOOL_ENABLE": "0"}, {"CUPOOL_HOOK": "runtime"}):
            changed = [b for a, b in zip(native.splitlines(), self.answers(str(LIB), "driver", **setting).splitlines()) if a != b]
            self.assertEqual(changed, ["program default cudaMalloc: libcupool.so cudaMalloc"])

    def test_beside_a_second_preload(self) -> None:
        alone = self.go(BIN / "names", preload=str(SECOND))
        for preload in (f"{SECOND}:{LIB}", f"{LIB}:{SECOND}"):
            self.assertEqual(self.go(BIN / "names", preload=preload).out, alone.out)


class Override(Case):
    """Somebody who overrides dlsym as we do."""

    def test_it_works_alone(self) -> None:
        self.assertIn("dlsym_over: asked", self.go(app("static"), CHURN, preload=str(OVER)).err)

    def test_programs_work(self) -> None:
        for preload in (f"{OVER}:{LIB}", f"{LIB}:{OVER}"):
            for kind in ("shared", "static", "dlsym"):
                with self.subTest(preload, kind=kind):
                    self.go(app(kind), CHURN, preload=preload)
            self.assertEqual(self.go("sh", "-c", "/bin/echo x", preload=preload).out, "x\n")

    def test_exported_calls_are_pooled_in_either_order(self) -> None:
        """Behind it the driver's functions are out of reach, so the request that makes the context is not served, nor is the one
        that is passed on because the runtime seems not to know the context."""
        for preload, n in ((f"{OVER}:{LIB}", 198), (f"{LIB}:{OVER}", 200)):
            self.assertEqual(self.one_trace(self.go(app("shared"), CHURN, preload=preload)).total("allocs"), n)

    def test_first_in_line_answers_the_program(self) -> None:
        """In front of it we catch static cudart; behind it its look-ups do not reach us, and the calls go to the driver."""
        self.assertEqual(self.one_trace(self.go(app("static"), CHURN, preload=f"{LIB}:{OVER}")).total("allocs"), 200)
        done = self.go(app("static"), CHURN, preload=f"{OVER}:{LIB}")
        self.assertIn("dlsym_over: asked", done.err)
        self.assertEqual(done.counts["cuMemAlloc_v2"], 200)


class Missing(Case):
    """A program that calls our functions although it is linked to no CUDA: it gets an error, and one line each says why."""

    CALLS = {"cudaMalloc": 302, "cudaFree": 302, "cuMemAlloc_v2": 500, "cuCtxSynchronize": 500, "ncclGroupStart": 5}

    def test_what_nobody_defines(self) -> None:
        code = "import ctypes\nfor name in %r: print(getattr(ctypes.CDLL(None), name)(None, None))" % list(self.CALLS)
        done = self.go(sys.executable, "-c", code, preload=str(LIB.with_name("libcupool-nccl.so")))
        self.assertEqual(done.out.split(), [str(rc) for rc in self.CALLS.values()])
        self.assertEqual([w for w in done.warnings if "nothing that is loaded defines it" in w],
                         [f"error: {name} was called, but nothing that is loaded defines it" for name in self.CALLS])
