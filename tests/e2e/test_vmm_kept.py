# SPDX-License-Identifier: Apache-2.0
"""CUPOOL_VMM=1: virtual memory that the program takes for every buffer is kept and handed out again. The program must not notice,
and all of it is there for others when they need it."""

import json
import subprocess
import unittest
from typing import Optional

from e2e import BIN, LIB, MIB, SIM, TIMEOUT, Case, Done, Trace, Word, tool

UNIT = 2 * MIB
ON = {"CUPOOL_VMM": "1", "SIMGPU_MEMORY": "512M"}
CYCLE = ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree"]


class Base(Case):
    def run_kept(self, *words: str, rc: Optional[int] = 0, preload: Optional[str] = str(LIB), **env: str) -> Done:
        return self.go(BIN / "vmm_kept", *words, rc=rc, preload=preload, **{**ON, **env})

    def both(self, *words: str, **env: str) -> Done:
        """With the library and without: what the program sees is the same."""
        native = self.run_kept(*words, preload=None)
        done = self.run_kept(*words, **env)
        self.assertEqual(done.out, native.out)
        self.assertEqual(done.err, "")
        return done

    def made(self, done: Done) -> "list[int]":
        return [done.counts.get(name, 0) for name in CYCLE]

    def stats(self, trace: Trace) -> "dict[str, int]":
        [event] = [e for e in trace.of("vmm_stats") if "why" not in e]
        return event


class AsNatively(Base):
    def test_every_word(self) -> None:
        for words in (["loop:20"], ["sleep:4"], ["full"], ["exported"], ["captured"], ["asks"], ["errors"], ["threads"], ["forked"],
                      ["loop:3", "sleep:1", "asks", "exported", "errors", "loop:2"]):
            with self.subTest(words):
                done = self.both(*words)
                trace = self.one_trace(done)
                self.assert_fine(trace.path)

    def test_random_programs(self) -> None:
        for seed in range(1, 5):
            with self.subTest(seed):
                done = self.both(f"random:{7919 * seed}")
                stats = self.stats(self.one_trace(done))
                self.assertGreater(stats["hits"], 0)
                self.assertGreater(stats["settled"], 0)

    def test_off(self) -> None:
        """By default, and where another setting is about the same memory, every call is the driver's."""
        native = self.made(self.run_kept("loop:5", preload=None))
        self.assertEqual(self.made(self.run_kept("loop:5", CUPOOL_VMM="0")), native)
        for why in ({"CUPOOL_FILL": "native"}, {"CUPOOL_DEBUG": "guard"}, {"CUPOOL_REGISTER": "use"}, {"CUPOOL_DECAY": "0"}):
            done = self.run_kept("loop:5", **why)
            self.assertEqual(self.made(done), native, why)
            self.assertEqual(len([w for w in done.warnings if "CUPOOL_VMM=1 has no effect" in w]), 1, why)
        self.assertEqual(self.made(self.run_kept("loop:5", CUPOOL_HOOK="runtime")), native)
        self.assertEqual(self.made(self.run_kept("loop:5", CUPOOL_ENABLE="0")), native)


class Kept(Base):
    def test_the_driver_is_called_once_for_each(self) -> None:
        """Six buffers, and then the same ones again."""
        done = self.both("loop:20")
        self.assertEqual(self.made(done), [6, 6, 6, 6, 0, 0, 0])
        trace = self.one_trace(done)
        stats = self.stats(trace)
        self.assertEqual((stats["hits"], stats["misses"], stats["live"], stats["settled"], stats["returned"]), (114, 6, 0, 0, 0))
        self.assertEqual((stats["kept"], stats["peak_kept"]), (12 * UNIT, 12 * UNIT))
        self.assertEqual(len(trace.of("mem_create")), 6)
        self.assertEqual(len(trace.of("mem_unmap", "mem_release", "address_free")), 0)
        summary = tool.run("summary", trace.path).stdout
        self.assertIn("120 requests, 114 of them with kept memory; 24.0 MiB kept at the end", summary)
        self.assertEqual(json.loads(tool.run("summary", "--json", trace.path).stdout)["ranks"][0]["kept"]["hits"], 114)

    def test_the_table_says_so(self) -> None:
        done = self.run_kept("loop:20", CUPOOL_STATS="exit")
        self.assertIn("virtual memory of the program's own: 120 requests, 114 of them with kept memory; MiB: 24.0 kept (most 24.0), 0.0 given "
                      "back", done.err)

    def test_addresses_that_the_program_keeps(self) -> None:
        """Its memory goes back although the cache is on: all but the last one's at once."""
        done = self.both("sleep:3")
        self.assertGreaterEqual(done.counts["cuMemUnmap"], 4 * 3)
        trace = self.one_trace(done)
        self.assertEqual(self.stats(trace)["settled"], 12)
        self.assertEqual([e["e"] for e in trace.of("mem_create", "mem_release")][:7], ["mem_create"] * 4 + ["mem_release"] * 3)

    def test_the_last_one_goes_in_time(self) -> None:
        """Without any other call of the program."""
        for before in ([], ["once:2097152"]):  # the first memory ever that is given up, or not
            trace = self.one_trace(self.run_kept(*before, "sleep_last", "nap:1500"))
            self.assertEqual(len(trace.of("mem_unmap")), 1, before)

    def test_decay(self) -> None:
        done = self.run_kept("loop:2", "nap:2500", "info", CUPOOL_DECAY="1")
        trace = self.one_trace(done)
        self.assertEqual(len(trace.of("mem_unmap")), 6)
        self.assertEqual((self.stats(trace)["kept"], self.stats(trace)["returned"]), (0, 12 * UNIT))
        self.assertEqual(done.out, "taken 0\ntaken 0\n")

    def test_no_decay(self) -> None:
        self.assertEqual(self.made(self.run_kept("loop:2", "nap:1500", CUPOOL_DECAY="off"))[4], 0)

    def test_refused_requests_get_it(self) -> None:
        """Of the pool, of the program itself, of the driver's pools; the first is served without the driver's having room."""
        done = self.both("full")
        self.assertGreater(done.counts["cuMemUnmap"], 7)
        self.assertEqual(self.made(done)[4], self.made(done)[6])

    def test_a_request_waits_for_what_is_going_back(self) -> None:
        self.both("going", SIMGPU_DELAY_US="0")

    def test_a_library_asks_from_within_the_driver(self) -> None:
        self.both("within")

    def test_a_host_function(self) -> None:
        """The driver refuses its calls; the memory is not lost by them."""
        self.assertEqual(self.made(self.both("called_back"))[4:6], [0, 0])

    def test_memory_that_the_program_retains_is_kept(self) -> None:
        self.assertEqual(self.both("retained").counts["cuMemCreate"], 1)

    def test_exported_memory_is_not_kept(self) -> None:
        self.assertEqual(self.both("exported").counts["cuMemCreate"], 2)

    def test_memory_that_a_network_card_reaches_is_not_kept(self) -> None:
        self.assertEqual(self.both("prepared").counts["cuMemCreate"], 3)

    def test_memory_that_nccl_exports_is_not_kept(self) -> None:
        self.assertEqual(self.both("by_nccl").counts["cuMemCreate"], 2)

    def test_memory_that_nccl_has_a_handle_of_is_not_kept(self) -> None:
        """It is NCCL's as long as that has the handle, and the program's next buffer is another one."""
        self.assertEqual(self.both("held_by_nccl").counts["cuMemCreate"], 2)

    def test_addresses_that_are_asked_for_again(self) -> None:
        self.assertEqual(self.made(self.both("there"))[4:], [1, 1, 2])

    def test_captures(self) -> None:
        self.assertEqual(self.made(self.both("captured")), [2, 2, 2, 2, 1, 1, 1])


    def test_trim(self) -> None:
        done = self.run_kept("loop:1", "trim", "trim")
        self.assertEqual(done.out, f"taken 0\ntrimmed {12 * UNIT}\ntrimmed 0\n")
        self.assertEqual(self.made(done), [6] * 7)

    def test_a_pause_gives_all_back(self) -> None:
        done = self.run_kept("loop:1", "pause", "trim", CUPOOL_BACKEND="vmm")
        self.assertEqual(done.out, "taken 0\npaused 0\ntrimmed 0\n")

    def test_another_device(self) -> None:
        """The driver refuses memory of a device that is not the current one, and that is all kept."""
        self.assertEqual(self.both("elsewhere").counts["cuMemUnmap"], 1)

    def test_a_context_ends(self) -> None:
        """Nothing of before is handed out: one buffer before, two after the reset, and one after the release."""
        self.assertEqual(self.both("reset").counts["cuMemCreate"], 5)


class Neighbours(Base):
    def test_another_process_gets_it(self) -> None:
        """It asks, since the driver refuses; what is kept is idle."""
        env = {**ON, "SIMGPU_SHARED": str(self.tmp / "card"), "SIMGPU_MEMORY": "256M", "CUPOOL_NEIGHBOURS": "3000"}
        one = subprocess.Popen([BIN / "vmm_kept", "once:188743680", "wait"], env=self.env(**env), cwd=self.folder(), stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
        self.addCleanup(one.kill)
        assert one.stdin and one.stdout
        self.assertEqual(one.stdout.readline(), "waits\n")
        for word in ("create:188743680", "pooled:188743680"):
            other = self.go(BIN / "vmm_kept", word, **env)
            self.assertRegex(other.out, r"^\w+ 0$")
        one.stdin.write("\n")
        one.stdin.close()
        self.assertEqual(one.wait(TIMEOUT), 0)
        one.stdout.close()


class Faults(Base):
    def test_each_call_fails(self) -> None:
        """The program's own call gets the error, or nothing shows it; wrong data never."""
        for name in [*CYCLE, "cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode"]:
            for n in (1, 2, 3, 5, 8):
                done = self.run_kept("loop:2", "sleep:1", "errors", rc=None, SIMGPU_FAULT=f"{name}:{n}:999")
                with self.subTest(name, n=n):
                    self.assertNotIn("wrong data", done.err)
                    self.assertTrue(done.rc == 0 or ": 999" in done.err, f"{done.rc} {done.err}")
                    for trace in done.traces():
                        self.assert_fine(trace.path, complete=False)

    def test_what_was_deferred_fails(self) -> None:
        """The memory is lost, with one line; later requests are the driver's."""
        for name in ("cuMemUnmap", "cuMemRelease", "cuMemAddressFree"):
            done = self.run_kept("once:2097152", "nap:1800", "loop:1", CUPOOL_DECAY="1", SIMGPU_FAULT=f"{name}:1+:999", rc=None)
            self.assertEqual(done.rc, 0, done.err)
            self.assertEqual(len([w for w in done.warnings if "kept virtual memory: the driver refuses" in w]), 1, done.err)
