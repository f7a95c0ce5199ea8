# SPDX-License-Identifier: Apache-2.0
"""Physical memory and its mapping, as NCCL and PyTorch's expandable segments take it: the program must not notice that it is
watched, and the trace has each call, with what the driver said to it."""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any, Optional

from e2e import BIN, LIB, MIB, SIM, Case, Done, Trace, Word, app, tool

# How the program finds the functions.
WAYS: "list[list[Word]]" = [[BIN / "vmm_linked", "linked"], [BIN / "vmm", "dlsym"], [BIN / "vmm", "proc"]]
NAMES = {
    "cuMemCreate": "mem_create", "cuMemImportFromShareableHandle": "mem_import", "cuMulticastCreate": "multicast_create",
    "cuMemRetainAllocationHandle": "mem_retain", "cuMemRelease": "mem_release", "cuMemMap": "mem_map", "cuMemUnmap": "mem_unmap",
    "cuMemAddressReserve": "address_reserve", "cuMemAddressFree": "address_free",
}


def physical(trace: Trace) -> "list[dict[str, Any]]":
    return trace.of(*NAMES.values())


def said(done: Done) -> "list[tuple[str, int]]":
    """The calls that the program made, and what they returned."""
    return [(NAMES[line.split()[1]], int(line.split()[2])) for line in done.out.splitlines() if line.startswith("call ")]


class Taken:
    """Bytes that are taken according to the events: of what has a handle, or is mapped."""

    def __init__(self) -> None:
        self.size: "dict[str, int]" = {}
        self.held: "dict[str, int]" = {}
        self.maps: "dict[str, str]" = {}  # address: handle

    def bytes(self) -> int:
        return sum(n for h, n in self.size.items() if self.held[h] or h in self.maps.values())

    def apply(self, e: "dict[str, Any]") -> None:
        name = e["e"]
        if e["result"]:
            return
        if name == "mem_create":
            self.size[e["h"]], self.held[e["h"]] = e["n"], 1
        elif name == "multicast_create":
            self.size[e["h"]], self.held[e["h"]] = 0, 1
        elif name in ("mem_import", "mem_retain"):
            self.held[e["h"]] += 1
        elif name == "mem_release":
            self.held[e["h"]] -= 1
        elif name == "mem_map":
            self.maps[e["p"]] = e["h"]
        elif name == "mem_unmap":
            del self.maps[e["p"]]


class Base(Case):
    def both(self, way: "list[Word]", scenario: str, **more: str) -> "tuple[Done, Done]":
        """With the library and without; what the program sees is the same."""
        native = self.go(*way, scenario, preload=None, **more)
        done = self.go(*way, scenario, **more)
        self.assertEqual(done.out, native.out)
        self.assertEqual(done.err, "")
        return done, native

    def tool(self, command: str, *args: Word) -> "subprocess.CompletedProcess[str]":
        return tool.run(command, *args)

    def summary(self, path: Path) -> Any:
        return json.loads(self.tool("summary", "--json", path).stdout)["ranks"][0]


class Calls(Base):
    def test_every_call_is_there(self) -> None:
        """In order, with its result; and the events add up to the memory that the driver has given out."""
        for way in WAYS:
            with self.subTest(way[1]):
                done, _ = self.both(way, "life")
                trace = self.one_trace(done)
                events = physical(trace)
                self.assertEqual([(e["e"], e["result"]) for e in events], said(done))
                self.assertEqual({e["e"] for e in events}, set(NAMES.values()))
                taken = Taken()
                told = dict(map(int, line.split()[1:]) for line in done.out.splitlines() if line.startswith("taken "))
                self.assertGreater(max(told.values()), 8 * MIB)
                for number, e in enumerate(events, 1):
                    taken.apply(e)
                    if number in told:
                        self.assertEqual(taken.bytes(), told.pop(number), number)
                self.assertEqual((told, taken.bytes()), ({}, 0))
                self.assertTrue(trace.ended)
                self.assert_fine(trace.path)

    def test_what_the_readers_make_of_it(self) -> None:
        trace = self.one_trace(self.go(*WAYS[0], "life"))
        device, = self.summary(trace.path)["physical"]
        self.assertEqual({k: device[k] for k in ("device", "now", "peak", "handles", "created", "refused")},
                         {"device": 0, "now": 0, "peak": 12 * MIB, "handles": 0, "created": 3, "refused": 0})
        self.assertEqual([(c["by"], c["object"], c["peak"]) for c in device["callers"]], [("program", "vmm_linked", 12 * MIB)])
        self.assertIn("12.0 MiB", self.tool("summary", trace.path).stdout)

    def test_what_is_said_of_a_call(self) -> None:
        trace = self.one_trace(self.go(*WAYS[1], "life"))
        create, reserve, mapped = physical(trace)[:3]
        self.assertEqual((create["d"], create["n"], create["by"], create["result"]), (0, 2 * MIB, "program", 0))
        self.assertRegex(create["at"], r"^vmm\+0x[0-9a-f]+")
        self.assertEqual((mapped["p"], mapped["h"], mapped["n"], mapped["offset"]), (reserve["p"], create["h"], 2 * MIB, 0))
        for e in physical(trace):
            self.assertGreaterEqual(e["us"], 0)
            self.assertEqual(e["tid"], trace.header["pid"])

    def test_a_part_of_a_device(self) -> None:
        """A place that CUDA 13.5 has brought: part 1 of device 1."""
        code = ("import ctypes, struct\nrt, cu = ctypes.CDLL('libcudart.so.13'), ctypes.CDLL('libcuda.so.1')\n"
                "assert rt.cudaFree(None) == 0\nhandle = ctypes.c_uint64()\n"
                "properties = ctypes.create_string_buffer(struct.pack('IIII4Q', 1, 0, 6, 0x101, 0, 0, 0, 0))\n"
                f"assert cu.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t({2 * MIB}), properties, ctypes.c_uint64(0)) == 0\n")
        trace = self.one_trace(self.go(sys.executable, "-c", code))
        self.assertEqual([(e["d"], e["n"]) for e in trace.of("mem_create")], [(1, 2 * MIB)])

    def test_errors(self) -> None:
        """Codes are the driver's, out-parameters stay as they were, and the trace says that it was refused."""
        for way in WAYS:
            with self.subTest(way[1]):
                done, _ = self.both(way, "errors")
                trace = self.one_trace(done)
                self.assertEqual([(e["e"], e["result"]) for e in physical(trace)], said(done))
                self.assertEqual({e["e"] for e in physical(trace) if e["result"]}, set(NAMES.values()))
                self.assertEqual({e["h"] for e in physical(trace) if e["result"] and e["e"] == "mem_create"}, {"0x0"})
                self.assert_fine(trace.path)
                self.assertEqual([d["refused"] for d in self.summary(trace.path)["physical"]], [3, 1, 1])

    def test_idle_memory_is_there_for_it(self) -> None:
        for way in WAYS:
            with self.subTest(way[1]):
                done, _ = self.both(way, "pressure")
                self.assertEqual([r for _, r in said(done)], [2, 0, 0])
                trace = self.one_trace(done)
                # Functions found by dlsym are not pooled, and before the first of them is called there is no message.
                pooled = way[1] != "dlsym"
                self.assertEqual([e["result"] for e in trace.of("mem_create")], [2, 0] if pooled else [0])
                self.assertEqual(len(trace.of("segment_free")), int(pooled))

    def test_threads(self) -> None:
        """They get each other's handles and addresses; by their times the events are in an order that makes sense."""
        for way in WAYS:
            trace = self.one_trace(self.go(*way, "threads"))
            self.assertEqual(len(physical(trace)), 4 * 200 * 6)
            self.assertGreater(len({e["tid"] for e in physical(trace)}), 1)
            self.assert_fine(trace.path)

    def test_a_driver_without_some_of_them(self) -> None:
        done = self.go(*WAYS[2], "life", SIMGPU_DRIVER_VERSION="12000", rc=1)
        self.assertIn("no cuMulticastCreate", done.err)


class Whose(Base):
    def nccl_app(self, scenario: str, **more: str) -> Trace:
        return self.one_trace(self.go(BIN / "nccl_app", scenario, "2", LD_LIBRARY_PATH=f"{os.environ['E2E_SIMNCCL']}:{SIM}",
                                      SIMGPU_DEVICES="2", **more))

    def test_nccl(self) -> None:
        """The memory that it takes for the program, and the memory that the pool takes from it."""
        trace = self.nccl_app("own")
        self.assertEqual({(e["by"], e["at"].split(".so")[0]) for e in trace.of("mem_create")}, {("nccl", "libnccl")})
        self.assert_fine(trace.path)
        trace = self.nccl_app("all", CUPOOL_BACKEND="nccl")
        self.assertEqual({(e["by"], e["at"].split(".so")[0]) for e in trace.of("mem_create")}, {("cupool", "libnccl"), ("nccl", "libnccl")})
        self.assert_fine(trace.path)
        # The pool's segments are the memory that was taken by its calls; what it asked for to see what NCCL gives is gone.
        where = {e["h"]: e["p"] for e in trace.of("mem_map")}
        ours = {(where[e["h"]], e["n"]) for e in trace.of("mem_create") if e["by"] == "cupool"}
        segments = {(e["p"], e["n"]) for e in trace.of("segment_alloc")}
        self.assertTrue(segments and segments <= ours, (segments, ours))
        by = {c["by"] for d in self.summary(trace.path)["physical"] for c in d["callers"]}
        self.assertEqual(by, {"cupool", "nccl"})

    def test_the_pool(self) -> None:
        """With CUPOOL_BACKEND=vmm its segments are told as segments, and the program's own calls as before."""
        for way in WAYS:
            done = self.go(*way, "life", CUPOOL_BACKEND="vmm")
            trace = self.one_trace(done)
            mine = {(e["by"], e["at"].split("+")[0]) for e in trace.of("mem_create", "address_reserve")}
            self.assertEqual(mine, {("program", str(way[0]).rsplit("/", 1)[-1])})
            self.assertEqual({e["b"] for e in trace.of("segment_alloc")} - {"vmm"}, set())
            self.assert_fine(trace.path)
        done = self.go(app("shared"), "churn:9:4096", CUPOOL_BACKEND="vmm")
        trace = self.one_trace(done)
        self.assertEqual(([e["b"] for e in trace.of("segment_alloc")], trace.of("mem_create", "mem_map", "mem_release")), (["vmm"], []))
        self.assertGreater(done.counts["cuMemMap"], 0)

    def test_a_device_without(self) -> None:
        """It is said once, and the driver's own memory is pooled."""
        done = self.go(app("shared"), "churn:9:4096", CUPOOL_BACKEND="vmm", SIMGPU_VMM="0")
        self.assertEqual(len(done.warnings), 1, done.err)
        self.assertIn("device 0 has no virtual memory calls", done.warnings[0])
        self.assertEqual([e["b"] for e in self.one_trace(done).of("segment_alloc")], ["cuda"])

    def test_a_fabric(self) -> None:
        """Asked for where the device has it, and left out for good where the machine does not let it be had."""
        for words, without in (("churn:9:4096", 2), ("alloc:1:4096 alloc:1:3000000 alloc:1:30000000", 4)):
            done = self.go(app("shared"), *words.split(), CUPOOL_BACKEND="vmm", SIMGPU_FABRIC="1")
            self.assertEqual(done.counts["cuMemCreate"], without - 1)
            done = self.go(app("shared"), *words.split(), CUPOOL_BACKEND="vmm")
            self.assertEqual((done.counts["cuMemCreate"], done.warnings), (without, []))

    def test_it_goes_at_the_end_of_its_context(self) -> None:
        """Virtual memory does not go with a context by itself."""
        done = self.go(app("shared"), "alloc:1:3000000", "alloc:1:600", "reset", "alloc:1:600", CUPOOL_BACKEND="vmm")
        self.assertEqual((done.counts["cuMemMap"], done.counts["cuMemUnmap"], done.counts["cuMemAddressFree"]), (3, 2, 2))

    def test_a_library(self) -> None:
        """Told by the name of its file, as everywhere."""
        for way in ("dlsym", "proc"):
            done, _ = self.both([BIN / "host", "l", BIN / "libucp_vmm.so", way], "life")
            trace = self.one_trace(done)
            self.assertEqual([(e["e"], e["result"]) for e in physical(trace)], said(done))
            self.assertEqual({(e["by"], e["at"].split("+")[0]) for e in trace.of("mem_create")}, {("library", "libucp_vmm.so")})


class Files(Base):
    """When there is a trace, and the contents of one that was cut."""

    def nothing(self, scenario: str = "life", preload: Optional[str] = str(LIB), **more: str) -> None:
        for way in WAYS:
            done = self.go(*way, scenario, preload=preload, **more)
            self.assertEqual((done.files, done.err), ([], ""), way[1])

    def test_none_is_wanted(self) -> None:
        self.nothing(CUPOOL_TRACE_FILE="off", CUPOOL_LOG_LEVEL="debug")
        self.nothing(CUPOOL_ENABLE="0")

    def test_only_the_runtime_is_caught(self) -> None:
        """By linking they would still come by, through dlsym not: half of the truth is none."""
        self.nothing(CUPOOL_HOOK="runtime")

    def test_nothing_was_taken(self) -> None:
        self.nothing("refused")

    def test_no_file_can_be_made(self) -> None:
        for way in WAYS:
            done = self.go(*way, "life", CUPOOL_TRACE_FILE="no/such/folder")
            self.assertEqual(len(done.warnings), 1)

    def test_a_child(self) -> None:
        for word in "forked", "forked_bare":
            done, _ = self.both(WAYS[0], word)
            trace = self.one_trace(done)
            self.assertEqual([(e["e"], e["result"]) for e in physical(trace)], said(done), word)
            self.assert_fine(trace.path)

    def test_killed_and_cut(self) -> None:
        """Each call is in the file as soon as it has returned; a line that is cut is no problem."""
        trace = self.one_trace(self.go(*WAYS[0], "killed", rc=-9))
        self.assertEqual([e["e"] for e in physical(trace)], ["mem_create", "address_reserve", "mem_map"])
        self.assert_fine(trace.path, complete=False)
        self.assertEqual(self.summary(trace.path)["physical"][0]["now"], 2 * MIB)
        cut = self.tmp / "cut.jsonl"
        whole = trace.text.encode()
        for at in range(whole.index(b"\n") + 1, len(whole) + 1, 59):
            cut.write_bytes(whole[:at])
            done = self.tool("check", cut)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
