# SPDX-License-Identifier: Apache-2.0
"""The reports on pinned memory that is pooled (CUPOOL_HOST_POOL=1): counters, and their readers."""

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

from e2e import BIN, LIB, MIB, SANITIZE, SOURCE, Case, Done, Trace, tool

sys.path.insert(0, str(SOURCE / "scripts"))
from cupool_trace.live import read_page  # noqa: E402
from cupool_trace.schema import HOST_OWN, HOST_STATS  # noqa: E402

# Of 3 + 100 KiB, in a slab of 2 MiB; of 3 MiB and 5 MiB, each an allocation of the driver. The larger one becomes idle.
WORDS = (f"pin:{3 * MIB}", "pin:3072", "pin:102400", f"pin:{5 * MIB}", "unpin:3", f"pinchurn:9:{5 * MIB}")


class Base(Case):
    def pinned(self, *words: str, pool: str = "1", **env: Any) -> Done:
        return self.go(BIN / "report_shared", *words, **{"CUPOOL_HOST_POOL": pool, "CUPOOL_DECAY": "600", "CUPOOL_FREE": "strict", **env})

    def counters(self, done: Done) -> "dict[str, Any]":
        [event] = [e for e in self.one_trace(done).of("host_stats") if "why" not in e]
        return event


class Threads(Base):
    @unittest.skipIf(SANITIZE != "none", "a sanitizer needs more stack itself")
    def test_small_stack(self) -> None:
        """The first request reads the cgroup's limit, wherever it is made."""
        done = self.pinned("alloc:4096", f"pinsmall:{20 << 10}:100000")
        self.assertEqual(done.out, "pinsmall 0 0\n")
        self.assertEqual(self.counters(done)["allocs"], 1)


class Counters(Base):
    def test_in_the_trace(self) -> None:
        done = self.pinned(*WORDS)
        event = self.counters(done)
        self.assertEqual(set(event) - {"t", "e", "tid"}, {"b", *HOST_STATS})
        self.assertEqual(event["b"], "host")
        self.assertEqual((event["allocs"], event["hits"], event["misses"], event["frees"], event["failed"]), (13, 10, 3, 10, 0))
        self.assertEqual((event["held"], event["peak_held"], event["segments"]), (10 * MIB, 10 * MIB, 3))
        self.assertEqual((event["live"], event["peak_live"]), (3 * MIB + 105472, 8 * MIB + 105472))
        self.assertEqual((event["idle"], event["segments_alloc"], event["segments_free"]), (5 * MIB, 3, 0))
        self.assertGreaterEqual(event["blocks"], event["live"])
        self.assert_fine(self.one_trace(done).path)

    def test_without_a_pool(self) -> None:
        """Nothing is said of it, anywhere."""
        done = self.pinned("alloc:4096", *WORDS, pool="0", CUPOOL_STATS="exit", CUPOOL_STATS_FILE="page")
        self.assertEqual(self.one_trace(done).of("host_stats"), [])
        self.assertNotIn("host", done.err)
        self.assertIsNone(read_page(str(done.cwd / "page")).pinned)

    def test_in_the_table(self) -> None:
        done = self.pinned("alloc:4096", *WORDS, CUPOOL_STATS="exit")
        rows = [line.split()[1:] for line in done.err.splitlines() if re.match(r"cupool: +(0|host) ", line)]
        self.assertEqual([row[0] for row in rows], ["0", "host"])
        self.assertEqual(rows[1][1:], ["13", "76.92%", "10", "0", "3", "0", "8.1", "10.0"])
        self.assertIn("cupool: pinned host memory, MiB: 10.0 held in 3 allocations, 3.1 live, 5.0 idle, 5.0 freed and perhaps in use; "
                      "0 requests at the bound\n", done.err)

    def test_in_the_table_at_a_signal(self) -> None:
        done = self.pinned(*WORDS, "raise:10", "sleep:200", CUPOOL_STATS="signal:USR1")
        self.assertRegex(done.err, r"(?m)^cupool: +host +13 ")
        self.assertEqual([e.get("why") for e in self.one_trace(done).of("host_stats")], ["signal", None])

    def test_in_the_page(self) -> None:
        """A slot behind those of the devices, with the counters of the trace."""
        done = self.pinned("alloc:4096", *WORDS, CUPOOL_STATS_FILE="page")
        page = read_page(str(done.cwd / "page"))
        event = self.counters(done)
        self.assertEqual(page.pinned, {k: event[k] for k in HOST_STATS})
        self.assertEqual((list(page.devices), page.devices[0]["allocs"]), ([0], 1))
        self.assertEqual(set(page.devices[0]) & set(HOST_OWN), set())

    def test_for_prometheus(self) -> None:
        done = self.pinned("alloc:4096", *WORDS, CUPOOL_STATS_FILE="page")
        text = tool.run("export", done.cwd / "page").stdout
        values = dict(re.findall(r"^cupool_(\w+)\{[^}]*\} (\d+)$", text, re.M))
        event = self.counters(done)
        self.assertEqual((values["host_allocs_total"], values["host_held_bytes"], values["host_segments"]), ("13", str(10 * MIB), "3"))
        self.assertEqual((values["host_blocks_bytes"], values["held_bytes"]), (str(event["blocks"]), str(2 * MIB)))
        self.assertEqual(len([name for name in values if name.startswith("host_")]), len(HOST_STATS))

    def test_in_the_programs_own_call(self) -> None:
        done = self.go(BIN / "api_app", f"pin:{3 * MIB}", "unpin", f"pin:{3 * MIB}", "stats:0", "stats:-1", CUPOOL_HOST_POOL="1",
                       CUPOOL_FREE="strict", SIMGPU_DEVICES="2")
        first, both = (json.loads(line.split(" ", 2)[2]) for line in done.out.splitlines())
        self.assertEqual({k: v for k, v in first.items() if k.startswith("host_")}, {k: v for k, v in both.items() if k.startswith("host_")})
        event = self.counters(done)
        self.assertEqual({k: first[f"host_{k}"] for k in HOST_STATS}, {k: event[k] for k in HOST_STATS})
        self.assertEqual((event["allocs"], event["hits"], event["live"]), (2, 1, 3 * MIB))


class Debug(Base):
    def test_each_request_is_the_drivers(self) -> None:
        """With CUPOOL_DEBUG=1 nothing is pooled, so that tools find what is natively wrong."""
        names = ("cuMemAllocHost_v2", "cuMemHostAlloc", "cuMemFreeHost")
        native = self.go(BIN / "report_shared", *WORDS, preload=None)
        self.assertEqual(native.counts["cuMemFreeHost"], 10)
        for kind, calls in (("1", [native.counts.get(name, 0) for name in names]), ("guard", [0, 3, 0])):
            done = self.pinned(*WORDS, CUPOOL_DEBUG=kind)
            with self.subTest(kind=kind):
                self.assertEqual([done.counts.get(name, 0) for name in names], calls)
                self.assertEqual(done.out, native.out)


class Events(Base):
    def test_from_the_driver_and_back(self) -> None:
        """As sizes and addresses go; a request that the bound leaves no room for gives idle memory back first."""
        done = self.pinned(f"pin:{3 * MIB}", f"pin:{200 * MIB}", "unpin:1", f"pinchurn:2:{160 * MIB}", "unpin:0")
        trace = self.one_trace(done)
        self.assert_fine(trace.path)
        got, gone = trace.of("host_alloc"), trace.of("host_free")
        self.assertEqual([e["n"] for e in got], [3 * MIB, 200 * MIB, 160 * MIB])
        self.assertEqual([(e["n"], e["p"]) for e in gone], [(200 * MIB, got[1]["p"])])
        for e in got + gone:
            self.assertEqual((e["d"], e["b"], "why" in e), (0, "host", False))
            self.assertGreaterEqual(e["us"], 0)
        self.assertEqual(trace.total("held"), 0)  # of the device
        f = json.loads(tool.run("summary", "--json", trace.path).stdout)["ranks"][0]["pinned"]
        self.assertEqual((f["requests"], f["hits"], f["peak_held"], f["held_at_end"], f["driver_calls"]), (4, 1, 203 * MIB, 163 * MIB, 4))
        self.assertEqual(f["driver_us"], round(sum(e["us"] for e in got + gone), 3))

    def test_a_context_takes_its_memory_along(self) -> None:
        trace = self.one_trace(self.pinned(f"pin:{3 * MIB}", "pin:4096", "reset", f"pin:{5 * MIB}"))
        self.assertEqual(sorted((e["n"], e["why"], e["d"]) for e in trace.of("host_free")), [(2 * MIB, "lost", 0), (3 * MIB, "lost", 0)])
        self.assert_fine(trace.path)

    def test_an_error_of_the_driver(self) -> None:
        trace = self.one_trace(self.pinned(f"pin:{200 * MIB}", "unpin:0", f"pin:{160 * MIB}", SIMGPU_FAULT="cuMemFreeHost:1:999"))
        self.assertEqual([(e["n"], e["why"]) for e in trace.of("host_free")], [(200 * MIB, "error")])

    def test_a_wait_that_fails(self) -> None:
        """The block is freed all the same, as the program is told."""
        event = self.counters(self.pinned("pin:3072", "unpin:0", SIMGPU_FAULT="cuCtxSynchronize:1:999"))
        self.assertEqual((event["frees"], event["live"]), (1, 0))

    def test_what_is_left_out_is_told(self) -> None:
        """Device memory and pinned memory each have their own sum."""
        trace = self.one_trace(self.pinned(f"pin:{60 * MIB}", "unpin:0", "pinchurn:1:1000", CUPOOL_TRACE_LIMIT="1", CUPOOL_HOST_LIMIT="64M"))
        self.assertEqual((trace.of("host_alloc"), trace.of("held")), ([], []))
        [told] = trace.of("host_held")[-1:]
        self.assertEqual((told["d"], told["b"], told["n"], told["segments"]), (0, "host", 62 * MIB, 2))
        f = json.loads(tool.run("summary", "--json", trace.path).stdout)["ranks"][0]["pinned"]
        self.assertEqual((f["held_at_end"], f["peak_held"]), (62 * MIB, 62 * MIB))

    def test_device_memory_beside(self) -> None:
        """Pinned memory changes no figure of a device, in the trace and for its readers."""
        words = ("alloc:4096", f"alloc:{5 * MIB}")
        figures = [json.loads(tool.run("summary", "--json", self.one_trace(done).path).stdout)["ranks"][0]["devices"]["0"]
                   for done in (self.pinned(*words), self.pinned(words[0], *WORDS, words[1]))]
        self.assertEqual(*([f[k] for k in ("held_at_end", "peak_held", "segments_alloc", "driver_calls", "requests")] for f in figures))
        self.assertEqual(figures[0]["held_at_end"], 8 * MIB)


class OutOfMemory(Base):
    def test_of_a_device(self) -> None:
        """The report names pinned memory, and its own figures are as without."""
        words = ("alloc:4096", f"alloc:{100 * MIB}")
        plain = self.pinned(*words, SIMGPU_MEMORY="64M")
        done = self.pinned(words[0], *WORDS, words[1], SIMGPU_MEMORY="64M")
        [before], [event] = self.one_trace(plain).of("oom"), self.one_trace(done).of("oom")
        self.assertNotIn("host_held", before)
        self.assertEqual((event["host_held"], event["host_idle"]), (10 * MIB, 5 * MIB))
        self.assertEqual(*({k: v for k, v in e.items() if k not in ("t", "tid", "host_held", "host_idle")} for e in (before, event)))
        said = [w for w in done.warnings if "pinned" in w]
        self.assertRegex(said[0], rf"pinned host memory, of which nothing is the device's: {10 * MIB} \(10.0 MiB\) held; {3 * MIB + 105472} "
                                  rf"\(3.1 MiB\) live, {5 * MIB} \(5.0 MiB\) idle$")
        self.assertEqual(len(said), 1)
        self.assertNotIn("pinned", plain.err)

    def test_of_pinned_memory(self) -> None:
        """All that is idle has gone back, and the driver still refuses; the program gets the native error."""
        done = self.pinned(*WORDS, f"pin:{80 * MIB}", "last", SIMGPU_FAULT="cuMemAllocHost_v2:4+:2,cuMemHostAlloc:4+:2")
        native = self.pinned(*WORDS, f"pin:{80 * MIB}", "last", pool="0", SIMGPU_FAULT="cuMemAllocHost_v2:14+:2,cuMemHostAlloc:14+:2")
        self.assertEqual(done.out, native.out)
        self.assertIn("last 2 2 0", done.out)
        trace = self.one_trace(done)
        [event] = trace.of("host_oom")
        self.assertEqual((event["n"], event["held"], event["idle"], event["waiting"], event["why"]), (80 * MIB, 5 * MIB, 0, 0, "driver"))
        self.assertEqual(sum("out of pinned host memory: a request of" in w for w in done.warnings), 1)
        self.assertRegex(done.err, rf"pool of pinned memory: {5 * MIB} \(5.0 MiB\) held in 2 allocations; ")
        self.assert_fine(trace.path)
        self.assertEqual((self.counters(done)["failed"], self.counters(done)["refused"]), (1, 1))
        self.assertEqual((native.err, self.one_trace(native).of("host_oom") if native.traces() else []), ("", []))

    def test_while_work_is_under_way(self) -> None:
        """A capture keeps what is idle."""
        done = self.pinned(f"pin:{8 * MIB}", "begin", "unpin:0", f"pin:{7 * MIB}", "end", SIMGPU_FAULT="cuMemAllocHost_v2:2+:2,cuMemHostAlloc:2+:2")
        [event] = self.one_trace(done).of("host_oom")
        self.assertEqual((event["n"], event["idle"], event["why"]), (7 * MIB, 8 * MIB, "busy"))


class Fork(Base):
    CHILD = (f"pin:{3 * MIB}", "unpin:0", "unpin:1", f"pinchurn:3:{MIB}", "last")

    def test_a_child_of_a_process_that_has_used_it(self) -> None:
        """It gets the driver's answers, native to the byte, has no memory of the pool, and takes nothing from its parent's."""
        words = (f"pin:{3 * MIB}", f"pin:{5 * MIB}", "fork{", *self.CHILD, "}", f"pinchurn:1:{3 * MIB}", "unpin:0", "unpin:1", f"pin:{3 * MIB}", "unpin:2")
        native = self.pinned(*words, preload=None)
        for env in ({}, {"CUPOOL_FREE": "ordered"}, {"CUPOOL_DECAY": "0"}):
            with self.subTest(**env):
                done = self.pinned(*words, **env)
                self.assertEqual((done.out, done.err), (native.out, ""))
                self.assertIn("child ended: exit 0", done.out)
                # One trace, whose requests are the parent's.
                trace = self.one_trace(done)
                self.assertEqual((self.counters(done)["allocs"], self.counters(done)["frees"]), (4, 4))
                self.assertEqual({e["tid"] for e in trace.of("host_alloc")}, {trace.header["pid"]})
                self.assert_fine(trace.path)

    def test_a_child_of_threads(self) -> None:
        """A thread that is not in the child may have held the pool's lock at the fork."""
        words = ("pin:4096", "pinforks:200:0", "unpin:0")
        for preload in (None, str(LIB)):
            done = self.pinned(*words, preload=preload)
            self.assertEqual((done.out, done.err), ("children ended: 200\nunpin 0\n", ""))

    def test_without_handlers(self) -> None:
        """A fork by the bare system call."""
        words = (f"pin:{3 * MIB}", f"pin:{5 * MIB}", "_fork{", *self.CHILD, "}", "unpin:0", "unpin:1")
        done = self.pinned(*words)
        self.assertEqual((done.out, done.err), (self.pinned(*words, preload=None).out, ""))
        self.assertEqual(self.counters(done)["allocs"], 2)

    def test_a_child_that_comes_first(self) -> None:
        """Nothing of CUDA was used before, so each process has a pool of its own."""
        done = self.pinned("fork{", *WORDS, "}", *WORDS)
        self.assertEqual([e["allocs"] for trace in done.traces() for e in trace.of("host_stats")], [13, 13])


class Machine(Base):
    """The files of the system are made up by a preload; memory policies are the kernel's own."""

    def machine(self, *words: str, files: "dict[str, str]", **env: Any) -> "dict[str, Any]":
        root = self.folder()
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        done = self.pinned(*words, preload=f"{BIN / 'libmachine.so'} {LIB}", MACHINE_ROOT=root, **env)
        self.assertNotIn("policy: ", done.out)
        return self.counters(done)

    def test_limit_of_the_setting(self) -> None:
        """Memory beyond the limit is served, and goes back when it is freed."""
        words = [f"pin:{6 * MIB}"] * 4
        event = self.counters(self.pinned(*words, CUPOOL_HOST_LIMIT="20M"))
        self.assertEqual((event["allocs"], event["held"], event["passing"], event["bound"]), (4, 24 * MIB, 6 * MIB, 1))
        event = self.counters(self.pinned(*words, *(f"unpin:{i}" for i in range(4)), CUPOOL_HOST_LIMIT="20M"))
        self.assertEqual((event["held"], event["passing"], event["live"], event["segments_free"]), (18 * MIB, 0, 0, 1))
        self.assertEqual(self.counters(self.pinned(*words))["passing"], 0)

    def test_limit_of_a_cgroup(self) -> None:
        """An eighth of the least limit of the cgroup and of those above it, shared by the ranks of the host."""
        words = [f"pin:{6 * MIB}"] * 7
        two = {"proc/self/cgroup": "0::/job/step\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/job/memory.max": f"{256 * MIB}\n",
               "sys/fs/cgroup/job/step/memory.max": "max\n"}
        one = {"proc/self/cgroup": "7:cpu:/\n5:memory:/job\n", "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{256 * MIB}\n"}
        for files, env, fit in ((two, {}, 5), (one, {}, 5), (two, {"LOCAL_WORLD_SIZE": "2"}, 2), (two, {"CUPOOL_HOST_LIMIT": "30M"}, 5),
                                (two, {"CUPOOL_HOST_LIMIT": "1G"}, 7), ({}, {}, 7)):
            with self.subTest(files=len(files), **env):
                event = self.machine(*words, files=files, **env)
                self.assertEqual((event["held"], event["passing"]), (42 * MIB, (7 - fit) * 6 * MIB))

    NODES = {"sys/devices/system/node/online": "0-1\n"}
    DEFAULT, PREFERRED, BIND = "policy:0:0", "policy:1:1", "policy:2:1"

    def hits(self, *words: str, files: "dict[str, str]", size: int = 3 * MIB) -> int:
        """Memory is got and freed at the beginning; how many of the words `pin` get it, or what an earlier one had."""
        n = 0
        done = [f"pin:{size}", "unpin:0"]
        for word in words:
            n += word == "pin"
            done += [f"pin:{size}", f"unpin:{n}"] if word == "pin" else [word]
        return int(self.machine(*done, files=files)["hits"])

    def test_policies_are_kept_apart(self) -> None:
        for size in (3 * MIB, 5000):
            for words, hits in ((("pin",), 1), ((self.PREFERRED, "pin"), 0), ((self.BIND, "pin", self.PREFERRED, "pin"), 0),
                                ((self.PREFERRED, "pin", self.DEFAULT, "pin", self.PREFERRED, "pin"), 2), ((self.DEFAULT, "pin"), 1)):
                with self.subTest(size=size, words=words):
                    self.assertEqual(self.hits(*words, files=self.NODES, size=size), hits)

    def test_nodes_are_kept_apart(self) -> None:
        """Without a policy it is the node on which the thread runs; with one, that does not matter."""
        self.assertEqual(self.hits("setenv:MACHINE_NODE:1", "pin", files=self.NODES), 0)
        self.assertEqual(self.hits("setenv:MACHINE_NODE:1", "pin", "setenv:MACHINE_NODE:0", "pin", files=self.NODES), 1)
        self.assertEqual(self.hits("setenv:MACHINE_NODE:1", self.BIND, "pin", "setenv:MACHINE_NODE:2", "pin", files=self.NODES), 1)

    def test_one_node(self) -> None:
        """Then nothing has to be kept apart."""
        for files in ({"sys/devices/system/node/online": "0\n"}, {}):
            self.assertEqual(self.hits(self.BIND, "pin", self.DEFAULT, "pin", "setenv:MACHINE_NODE:1", "pin", files=files), 3)


class Flags(Base):
    def test_unknown_ones(self) -> None:
        """Also the one by which the library means cudaMallocHost."""
        for flags in 8, 0x10000, 0x10001:
            words = ["pin:4096", "unpin:0", f"pinflags:4096:{flags}"]
            self.assertEqual(self.pinned(*words).out, self.go(BIN / "report_shared", *words, preload=None).out)


class Decay(Base):
    def test_goes_back(self) -> None:
        """By itself, while the program does nothing; what is live stays."""
        def then(child: "subprocess.Popen[str]", cwd: Path) -> None:
            self.wait_for(lambda: any('"host_free"' in p.read_text() for p in cwd.glob("*.jsonl")))
        _, _, cwd = self.running("pin:4096", f"pin:{3 * MIB}", "unpin:1", "ready", "await:go", then=then, CUPOOL_HOST_POOL="1", CUPOOL_DECAY="0")
        [path] = cwd.glob("*.jsonl")
        trace = Trace(path)
        self.assertEqual([e["n"] for e in trace.of("host_free")], [3 * MIB])
        self.assert_fine(path)
