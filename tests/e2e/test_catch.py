# SPDX-License-Identifier: Apache-2.0
"""Which programs the library catches, by every way in which programs reach cudaMalloc. Which callers it leaves
alone on purpose is in test_callers.py.

Two witnesses: the statistics in the trace (what the pool thinks it served) and the simulated GPU's own count of calls (what
really arrived at the driver).
"""

import unittest

from e2e import BIN, MIB, SANITIZE, Case, Done, Word, app

N = 400
CHURN = f"churn:{N}:300000"

# Kind of program, arguments, environment; whether it is caught with CUPOOL_HOOK=auto and =runtime.
PROGRAMS: "dict[str, tuple[list[Word], dict[str, str], bool, bool]]" = {
    "shared cudart": ([app("shared")], {}, True, True),
    "static cudart": ([app("static")], {}, True, False),
    "shared cudart, per-thread streams": ([app("shared_ptds")], {}, True, True),
    "static cudart, per-thread streams": ([app("static_ptds")], {}, True, False),
    # Linked to libcuda: conf.def says that runtime catches only what calls a shared libcudart.
    "driver": ([app("driver")], {}, True, False),
    "driver, per-thread streams": ([app("driver_ptds")], {}, True, False),
    "cuGetProcAddress": ([app("proc")], {"E2E_PROC": "1"}, True, False),
    "cuGetProcAddress, asked for itself": ([app("proc")], {"E2E_PROC": "1self"}, True, False),
    "cuGetProcAddress_v2": ([app("proc")], {"E2E_PROC": "2"}, True, False),
    "cuGetProcAddress_v2, asked for itself": ([app("proc")], {"E2E_PROC": "2self"}, True, False),
    "cuGetProcAddress_v2, per-thread streams": ([app("proc")], {"E2E_PROC": "2self", "E2E_FLAGS": "2"}, True, False),
    # ctypes, Numba, JAX: the function comes from libcudart's own handle, where no preload is in the way.
    "dlsym(libcudart)": ([app("dlsym")], {}, True, False),
    "plugin, local": ([BIN / "host", "l", BIN / "plugin_shared.so"], {}, True, True),
    "plugin, local, lazy": ([BIN / "host", "lz", BIN / "plugin_shared.so"], {}, True, True),
    "plugin, global": ([BIN / "host", "g", BIN / "plugin_shared.so"], {}, True, True),
    # RTLD_DEEPBIND puts libc before every preload for the plugin and what it needs: neither names nor dlsym pass by us.
    "plugin, deep": ([BIN / "host", "ld", BIN / "plugin_shared.so"], {}, False, False),
    "plugin with static cudart": ([BIN / "host", "l", BIN / "plugin_static.so"], {}, True, False),
    "plugin with static cudart, deep": ([BIN / "host", "ld", BIN / "plugin_static.so"], {}, False, False),
    "plugin of the driver": ([BIN / "host", "l", BIN / "plugin_driver.so"], {}, True, False),
    "plugin of the driver, deep": ([BIN / "host", "ld", BIN / "plugin_driver.so"], {}, False, False),
}


class Base(Case):
    def driver_allocs(self, done: Done) -> int:
        return done.counts.get("cuMemAlloc_v2", 0) + done.counts.get("cuMemAlloc", 0)

    def caught(self, done: Done, requests: int = N, first: int = 0) -> None:
        """first: requests that nobody served, because they came before there was a context to have a pool."""
        trace = self.one_trace(done)
        self.assertEqual(trace.total("allocs"), requests - first)
        self.assertEqual(trace.total("frees"), requests - first)
        self.assertEqual((trace.total("bypassed"), trace.total("live")), (0, 0))
        # Warming up included: the first few make the segments.
        self.assertLessEqual(self.driver_allocs(done), requests * 5 // 100)
        self.assertEqual(self.driver_allocs(done), trace.total("segments_alloc") + first)
        self.assertEqual(done.err, "")
        self.assert_fine(trace.path)

    def missed(self, done: Done, requests: int = N) -> None:
        self.assertEqual(self.driver_allocs(done), requests)
        for trace in done.traces():
            self.assertEqual(trace.total("allocs"), 0)
        self.assertEqual(done.err, "")


class Catch(Base):
    def each(self) -> "list[tuple[str, list[Word], dict[str, str], bool, bool]]":
        # The address sanitizer refuses RTLD_DEEPBIND.
        return [(name, *row) for name, row in PROGRAMS.items() if SANITIZE == "none" or not name.endswith("deep")]

    def test_auto(self) -> None:
        for name, args, env, auto, _ in self.each():
            with self.subTest(name):
                (self.caught if auto else self.missed)(self.go(*args, CHURN, **env))

    def test_runtime_only(self) -> None:
        """The request that makes cudart start up is not served: what it then asks the driver for is not caught."""
        for name, args, env, _, runtime in self.each():
            with self.subTest(name):
                done = self.go(*args, CHURN, CUPOOL_HOOK="runtime", **env)
                if runtime:
                    self.caught(done, first=1)
                else:
                    self.missed(done)

    def test_off(self) -> None:
        """CUPOOL_ENABLE=0: the driver sees exactly the calls that it sees without the library, and there is no trace. The table asked
        for is one line."""
        for name, args, env, _, _ in self.each():
            with self.subTest(name):
                more = ["capture", "reset"] if args[0] in (app("shared"), app("static"), app("driver")) else []
                off = self.go(*args, *more[:1], CHURN, *more, CUPOOL_ENABLE="0", CUPOOL_STATS="exit", **env)
                native = self.go(*args, *more[:1], CHURN, *more, preload=None, **env)
                self.assertEqual(self.driver_allocs(native), N)
                self.assertEqual(off.counts, native.counts)
                self.assertEqual((off.files, off.out), ([], native.out))
                self.assertRegex(off.err, r"^cupool: nothing was pooled: CUPOOL_ENABLE=0 switches cupool off in process \d+\n\Z")

    def test_the_rest_of_the_api_is_untouched(self) -> None:
        """Calls that the library does not serve arrive at the driver as often as without it."""
        ours = {"cuMemAlloc_v2", "cuMemFree_v2", "cuCtxRecordEvent", "cuCtxWaitEvent", "cuEventCreate", "cuCtxGetCurrent",
                "cuCtxGetDevice", "cuDriverGetVersion", "cuCtxSynchronize", "cuDevicePrimaryCtxRetain", "cuMemGetInfo_v2",
                "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxGetState", "cuThreadExchangeStreamCaptureMode", "cuDeviceGetName", "cuDeviceGetAttribute",
                "cuDeviceGetCount", "cuCtxGetId", "cuDeviceGetUuid_v2"}
        for kind in ("shared", "static", "driver"):
            with self.subTest(kind):
                done, native = self.go(app(kind), CHURN), self.go(app(kind), CHURN, preload=None)
                self.assertEqual({k: v for k, v in done.counts.items() if k not in ours},
                                 {k: v for k, v in native.counts.items() if k not in ours})

    def test_old_versions_lead_to_the_driver(self) -> None:
        """cuMemAlloc of CUDA 2.0 has 32-bit addresses: answering with ours would corrupt its caller."""
        for how in ("1", "1self", "2", "2self"):
            out = self.go(app("proc"), "lookup:cuMemAlloc:2000:0", "lookup:cuMemAlloc:3010:0", "lookup:cuMemAlloc:3020:0",
                          "lookup:cuMemFree:13000:0", "lookup:cuInit:13000:0", "lookup:cuMemAlloc:1000:0",
                          "lookup:cuNothing:13000:0", "lookup:cuMemFreeAsync:13000:2", "lookup:cuMemFreeAsync:13000:0",
                          "lookup:cuStreamBeginCapture:13000:2", E2E_PROC=how).out
            self.assertEqual(out.split("\n")[:-1], [
                "cuMemAlloc 2000: libcuda.so.1 cuMemAlloc", "cuMemAlloc 3010: libcuda.so.1 cuMemAlloc",
                "cuMemAlloc 3020: libcupool.so cuMemAlloc_v2", "cuMemFree 13000: libcupool.so cuMemFree_v2",
                "cuInit 13000: libcuda.so.1 cuInit", "cuMemAlloc 1000: nothing", "cuNothing 13000: nothing",
                "cuMemFreeAsync 13000: libcupool.so cuMemFreeAsync_ptsz", "cuMemFreeAsync 13000: libcupool.so cuMemFreeAsync",
                "cuStreamBeginCapture 13000: libcupool.so cuStreamBeginCapture_v2_ptsz"], how)

    def test_the_resolver_has_the_arity_that_was_asked_for(self) -> None:
        out = self.go(app("proc"), "lookup:cuGetProcAddress:11030:0", "lookup:cuGetProcAddress:12000:0", E2E_PROC="2").out
        self.assertEqual(out.split("\n")[:-1], ["cuGetProcAddress 11030: libcupool.so cuGetProcAddress",
                                               "cuGetProcAddress 12000: libcupool.so cuGetProcAddress_v2"])

    def test_switched_off_or_runtime_only_the_driver_answers_for_itself(self) -> None:
        for setting in ({"CUPOOL_ENABLE": "0"}, {"CUPOOL_HOOK": "runtime"}):
            out = self.go(app("proc"), "lookup:cuMemAlloc:13000:0", "lookup:cuGetProcAddress:12000:0", E2E_PROC="2", **setting).out
            self.assertEqual(out.split("\n")[:-1], ["cuMemAlloc 13000: libcuda.so.1 cuMemAlloc_v2",
                                                   "cuGetProcAddress 12000: libcuda.so.1 cuGetProcAddress_v2"])


class Mixed(Base):
    """Several ways in one process."""

    def test_many_threads(self) -> None:
        done = self.go(app("static"), "threads:8:200:100000")
        trace = self.one_trace(done)
        self.assertEqual((trace.total("allocs"), trace.total("frees"), trace.total("bypassed")), (1600, 1600, 0))
        self.assertLessEqual(self.driver_allocs(done), 80)

    def test_large_and_tiny(self) -> None:
        done = self.go(app("shared"), "churn:100:1", f"churn:100:{5 * MIB}", f"churn:100:{2 * MIB}", "churn:100:512")
        self.assertEqual(self.one_trace(done).total("allocs"), 400)
        self.assertLessEqual(self.driver_allocs(done), 20)

    def test_before_and_after_a_reset(self) -> None:
        done = self.go(app("shared"), "alloc:5:4096", "reset", "churn:100:4096")
        trace = self.one_trace(done)
        # The one that brings the context back may pass by.
        self.assertEqual(trace.total("allocs") + trace.total("bypassed"), 105)
        self.assertLessEqual(trace.total("bypassed"), 1)
        self.assertEqual([e["why"] for e in trace.of("segment_free")], ["context"])
        self.assert_fine(trace.path)


    def test_several_resets(self) -> None:
        """Each takes all memory with it; nothing of it may be handed out again."""
        for kind in ("shared", "static", "driver"):
            with self.subTest(kind):
                again = ["reset", "alloc:5:4096", "churn:20:4096"]
                native = self.go(app(kind), "alloc:5:4096", *again * 3, preload=None, rc=None)
                if native.rc:
                    continue  # the driver API wants its context made current again
                done = self.go(app(kind), "alloc:5:4096", *again * 3)
                trace = self.one_trace(done)
                self.assertEqual(trace.total("allocs") + trace.total("bypassed"), 5 + 3 * 25)
                self.assertEqual(len(trace.of("segment_free")), 3)
                self.assert_fine(trace.path)
