# SPDX-License-Identifier: Apache-2.0
"""include/cupool.h: what a program that knows of the library can ask it, with the library, without it, and where there is
nothing to be said: before the first request, in captures and groups, in children, when the process ends.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from e2e import BIN, INFO, LIB, MIB, SIM, SOURCE, TRACE_TOOL, Case, Done, need

NCCL_LIB = LIB.with_name("libcupool-nccl.so")
SIMNCCL = os.environ["E2E_SIMNCCL"]
INCLUDE = SOURCE / "include"
ENOSYS, EINVAL, EAGAIN, ENOTSUP = -38, -22, -11, -95
NOT_THERE = [f"version {ENOSYS}", "enabled 0", f"trim {ENOSYS}", f"mark {ENOSYS}"]
COUNTERS = ("allocs hits misses frees bypassed live held peak_live peak_held segments_alloc segments_free oom order kept").split()


def stats_of(out: str) -> "list[dict[str, Any]]":
    """All that were printed; rc is what the function returned."""
    return [dict(json.loads(line.split(" ", 2)[2]), rc=int(line.split()[1])) for line in out.splitlines() if line.startswith("stats ")]


class Base(Case):
    def api(self, *words: str, **env: Any) -> Done:
        return self.go(BIN / "api_app", *words, **{"SIMGPU_DEVICES": "2", **env})

    def lines(self, *words: str, **env: Any) -> "list[str]":
        return self.api(*words, **env).out.splitlines()


class Without(Base):
    """No library: the program runs, and is told so."""

    WORDS = ("version", "enabled", "trim:-1", "mark:a", "alloc:4096", "version", "enabled", "trim:0", "mark:b")

    def test_not_preloaded(self) -> None:
        done = self.api(*self.WORDS, "stats:0", "free", preload=None)
        self.assertEqual(done.out.splitlines()[:-1], NOT_THERE * 2)
        [stats] = stats_of(done.out)
        self.assertEqual((stats["rc"], stats["allocs"]), (ENOSYS, 0))

    def test_switched_off(self) -> None:
        version = self.lines("version")[0]
        done = self.api(*self.WORDS, "stats:0", "free", CUPOOL_ENABLE="0")
        self.assertEqual(done.out.splitlines()[:-1], [version, *NOT_THERE[1:]] * 2)
        self.assertEqual(stats_of(done.out)[0]["rc"], ENOSYS)
        self.assertEqual((done.err, done.files), ("", []))

    def test_other_processes_are_not_told_of_us(self) -> None:
        """A child that has not used CUDA can; one of a process that has, cannot."""
        early = self.lines("fork{", "enabled", "alloc:4096", "stats:0", "}", "enabled")
        self.assertEqual((early[0], stats_of(early[1])[0]["allocs"], early[2]), ("enabled 1", 1, "enabled 1"))
        late = self.lines("alloc:4096", "fork{", *self.WORDS[:4], "stats:0", "}", "enabled", "free")
        self.assertEqual(late[1:4], NOT_THERE[1:])
        self.assertEqual((stats_of(late[4])[0]["rc"], late[5]), (ENOSYS, "enabled 1"))


class Header(Base):
    """It is a header of C and C++, and whatever the program is compiled to, the functions are found, or not."""

    PROGRAM = "#include <cupool.h>\n#include <stdio.h>\nint main(void) { return printf(\"%d\\n\", cupool_enabled()) != 2 || cupool_mark(\"\") > 0; }\n"
    STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wundef", "-Werror")

    def compiled(self, compiler: str, *options: str, suffix: str = ".c") -> Path:
        source, program = self.folder() / f"program{suffix}", self.folder() / "program"
        source.write_text(self.PROGRAM)
        done = subprocess.run([*shlex.split(compiler), *options, *self.STRICT, "-I", INCLUDE, source, "-o", program, "-ldl"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return program

    def test_languages(self) -> None:
        languages = [("cc", "c99", ".c"), ("cc", "c11", ".c"), ("cc", "gnu17", ".c"), ("c++", "c++11", ".cc"), ("c++", "c++17", ".cc")]
        for compiler in ("clang", "clang++"):
            if shutil.which(compiler):
                languages += [(compiler, standard, suffix) for c, standard, suffix in languages[:5] if ("++" in c) == ("++" in compiler)]
        for compiler, standard, suffix in languages:
            with self.subTest(f"{compiler} -std={standard}"):
                program = self.compiled(need(compiler), f"-std={standard}", "-Wstrict-prototypes" if suffix == ".c" else "-Wold-style-cast",
                                        suffix=suffix)
                self.assertEqual([self.go(program, preload=lib).out for lib in (None, str(LIB))], ["0\n", "1\n"])

    def test_kinds_of_code(self) -> None:
        """Where a weak reference is fixed at link time, too."""
        for options in (["-fPIE", "-pie"], ["-fno-pie", "-no-pie"], ["-fno-pie", "-no-pie", "-O2"], ["-fPIE", "-no-pie"], ["-fno-plt"],
                        ["-O2", "-Wl,-z,now"], ["-O2", "-flto", "-fvisibility=hidden"]):
            with self.subTest(" ".join(options)):
                program = self.compiled(need("cc"), *options)
                for lib, answer in ((None, "0\n"), (str(LIB), "1\n"), (str(NCCL_LIB), "1\n")):
                    self.assertEqual(self.go(program, preload=lib).out, answer)

    def test_needs_nothing(self) -> None:
        """No library of ours, and no header but the system's."""
        program = self.compiled(need("cc"))
        done = subprocess.run([need("readelf"), "-dW", program], capture_output=True, text=True, check=True)
        self.assertNotIn("cupool", done.stdout)
        self.assertEqual(set(re.findall(r"#include <(.*)>", (INCLUDE / "cupool.h").read_text())), {"errno.h", "stddef.h", "stdint.h", "dlfcn.h"})

    def test_version(self) -> None:
        words = subprocess.run([INFO, "--version"], capture_output=True, text=True, check=True).stdout.split()
        major, minor, patch = map(int, words[-1].split("."))
        self.assertEqual(self.lines("version"), [f"version {10000 * major + 100 * minor + patch}"])


class Stats(Base):
    def last(self, done: Done, device: int) -> "dict[str, int]":
        [event] = [e for e in self.one_trace(done).of("stats") if e["d"] == device]
        return {k: event[k] for k in COUNTERS}

    def test_those_of_the_trace(self) -> None:
        """To the byte, for each device and for all together; and those of the table at exit."""
        for env in ({}, {"CUPOOL_FREE": "relaxed"}, {"CUPOOL_LIMIT": "8M"}):
            with self.subTest(str(env)):
                done = self.api("churn:20:5000", "alloc:3000000", "alloc:100", "alloc:20000000", "device:1", "churn:3:70000", "alloc:4194304", "free",
                                "alloc:600", "device:0", "trim:0", "alloc:513", "stats:0", "stats:1", "stats:-1", CUPOOL_STATS="exit", **env)
                both = stats_of(done.out)
                self.assertEqual([s.pop("rc") for s in both], [0, 0, 0])
                for device in (0, 1):
                    self.assertEqual({k: both[device][k] for k in COUNTERS}, self.last(done, device))
                self.assertEqual(both[2], {k: v if k == "size" or k.startswith("host_") else v + both[1][k] for k, v in both[0].items()})
                self.assertGreater(both[0]["hits"], 0)
                rows = [line.split() for line in done.err.splitlines() if re.match(r"cupool: +[01] ", line)]
                self.assertEqual([(int(r[2]), int(r[4]), int(r[5]), int(r[6])) for r in rows],
                                 [(s["allocs"], s["frees"], s["bypassed"], s["segments_alloc"] + s["segments_free"]) for s in both[:2]])

    def test_before_the_first_request(self) -> None:
        done = self.api("enabled", "stats:-1", "trim:-1", "mark:a", "version")
        [stats] = stats_of(done.out)
        self.assertEqual((stats["rc"], stats["allocs"], stats["held"]), (0, 0, 0))
        self.assertEqual(done.out.splitlines()[2:4], ["trim 0", f"mark {EAGAIN}"])
        # And the library has not begun with anything: children can use it, there is no file.
        self.assertEqual((done.err, done.files, done.counts), ("", [], {}))

    def test_a_device_without_a_pool(self) -> None:
        """Device 1 has none; there is no device 77."""
        done = self.api("alloc:4096", "stats:1", "stats:77", "trim:1", "trim:77", "free")
        self.assertEqual([(s["rc"], s["allocs"]) for s in stats_of(done.out)], [(0, 0), (EINVAL, 0)])
        self.assertEqual(done.out.splitlines()[-2:], ["trim 0", f"trim {EINVAL}"])

    def test_other_versions_of_the_struct(self) -> None:
        out = self.lines("alloc:4096", "short:0", "short:8", "short:40", "long:8", "long:256", "short:224", "short:328", "free")
        self.assertEqual(out, ["size 0 0 1 1 1", "size 0 -8 1 1 1", "size 0 -40 1 1 1", "size 0 0 1 1 1", "size 0 0 1 1 1",
                               *[line.format(EINVAL) for line in ("size {} -224 1 1 17216961135462248174", "size {} -328 1 1 17216961135462248174")]])

    def test_wrong_arguments(self) -> None:
        self.assertEqual(self.lines("alloc:4096", "wrong", "free"), [f"wrong {EINVAL} {EINVAL} {EINVAL} {EINVAL}"])


class Trim(Base):
    WORDS = ("alloc:3000000", "alloc:100", "device:1", "alloc:20000000", "free")

    def test_gives_back(self) -> None:
        done = self.api(*self.WORDS, "device:0", "alloc:4096", "trim:0", "trim:0", "trim:-1", "trim:-1", "stats:-1", "free")
        trims = [int(line.split()[1]) for line in done.out.splitlines() if line.startswith("trim")]
        # One of the two small ones' segments has a block again.
        self.assertEqual(trims, [4 * MIB, 0, 20 * MIB, 0])
        [stats] = stats_of(done.out)
        self.assertEqual((stats["held"], stats["idle"], stats["live"]), (2 * MIB, 0, 4096))
        trace = self.one_trace(done)
        self.assertEqual([(e["d"], e["n"]) for e in trace.of("trim") if e["why"] == "program"], [(0, 4 * MIB), (1, 20 * MIB)])
        self.assert_fine(trace.path)

    def test_pinned_memory(self) -> None:
        """It belongs to no device, so it goes with all of them; a live block stays."""
        done = self.api("alloc:3000000", "free", "pin:5000000", "trim:-1", "unpin", "trim:0", "stats:0", "trim:-1", "stats:0", CUPOOL_HOST_POOL="1")
        trims = [int(line.split()[1]) for line in done.out.splitlines() if line.startswith("trim")]
        before, after = stats_of(done.out)
        self.assertEqual(trims[:2], [4 * MIB, 0])
        self.assertGreaterEqual(trims[2], 5000000)
        self.assertEqual((before["host_idle"], after["host_idle"], after["host_held"]), (trims[2], 0, 0))

    def test_what_was_kept_goes_too(self) -> None:
        """Frees that wait for company are ordered first."""
        out = self.lines("alloc:3000000", "alloc:5000000", "free", "trim:0", "stats:0", CUPOOL_FREE="relaxed")
        self.assertEqual(out[0], f"trim {10 * MIB}")
        self.assertEqual(stats_of(out[1])[0]["held"], 0)

    def test_not_in_a_capture(self) -> None:
        done = self.api("alloc:3000000", "free", "begin", "trim:-1", "mark:in", "stats:0", "end", "trim:-1")
        self.assertEqual([line for line in done.out.splitlines() if not line.startswith("stats")], ["trim 0", "mark 0", f"trim {4 * MIB}"])
        self.assertEqual(stats_of(done.out)[0]["held"], 4 * MIB)

    def test_from_a_thread_without_a_context(self) -> None:
        out = self.lines("alloc:3000000", "free", "elsewhere{", "enabled", "trim:-1", "stats:-1", "mark:there", "}")
        self.assertEqual((out[:2], out[3]), (["enabled 1", f"trim {4 * MIB}"], "mark 0"))

    def test_not_in_a_group(self) -> None:
        for register, inside in (("1", 0), ("0", 4 * MIB)):
            done = self.go(BIN / "api_app_nccl", "alloc:3000000", "free", "comm", "group", "trim:-1", "ungroup", "uncomm", "trim:-1", preload=str(NCCL_LIB),
                           LD_LIBRARY_PATH=f"{SIMNCCL}:{SIM}", CUPOOL_REGISTER=register)
            self.assertEqual(done.out.splitlines(), [f"trim {inside}", f"trim {4 * MIB - inside}"])


class Mark(Base):
    def marks(self, *texts: str, events: str = "segment") -> "list[str]":
        done = self.api("alloc:4096", *(f"mark:{t}" for t in texts), "free", CUPOOL_TRACE_EVENTS=events)
        self.assertEqual(done.out.splitlines(), ["mark 0"] * len(texts))
        trace = self.one_trace(done)
        self.assert_fine(trace.path)
        self.assertEqual(trace.events[-1]["dropped"], 0)
        return [e["text"] for e in trace.of("mark")]

    def test_texts(self) -> None:
        texts = ["step 1", "", "\"quoted\" \\ {%s}%n", "tab\tline\nbell\x07 del\x7f", "Schlöße 日本 🙂", "end"]
        self.assertEqual(self.marks(*texts), texts)

    def test_no_text_at_all(self) -> None:
        """Bytes that are no UTF-8: arguments of a program are any, and the trace is one of JSON all the same."""
        for raw in (b"a\xffb", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x80\x80\x80", b"\xf5\x80\x80\x80", b"\xc0\xafx\x80", b"\xf0\x9f\x99"):
            text = os.fsdecode(raw)
            expected = raw.decode("utf-8", errors="replace").replace("\ufffd", "?")
            [got] = self.marks(text)
            self.assertEqual(re.sub(r"\?+", "?", got), re.sub(r"\?+", "?", expected), raw)

    def test_long_ones_are_cut(self) -> None:
        for text in ("x" * 5000, "é" * 5000, "\"" * 5000, "\n" * 5000, "a" + "🙂" * 5000):
            [got] = self.marks(text)
            self.assertTrue(text.startswith(got), got)
            self.assertGreaterEqual(len(json.dumps(got, ensure_ascii=False).encode()), 370 if text[0] != "\n" else 128)
        self.assertEqual(self.marks("z" * 250), ["z" * 250])

    def test_in_its_place(self) -> None:
        """Also beside allocation events, which are buffered."""
        done = self.api("alloc:4096", "mark:a", "alloc:4096", "mark:b", "free", CUPOOL_TRACE_EVENTS="segment,alloc")
        order = [e.get("text", e["e"]) for e in self.one_trace(done).of("alloc", "mark", "free_requested")]
        self.assertEqual(order, ["alloc", "a", "alloc", "b", "free_requested", "free_requested"])

    def test_no_trace_is_no_error(self) -> None:
        done = self.api("alloc:4096", "mark:a", "free", CUPOOL_TRACE_FILE="off")
        self.assertEqual((done.out, done.files), ("mark 0\n", []))

    def test_readers_show_it(self) -> None:
        done = self.api("alloc:4096", "mark:epoch 7", "free")
        [path] = [t.path for t in done.traces()]
        tool = SOURCE / "scripts" / "cupool-trace"
        for command, name in (("to-perfetto", "timeline.json"), ("plot", "page.html"), ("merge", "all.jsonl"), ("to-csv", "rows.csv")):
            shown = subprocess.run([tool, command, path, "-o", self.tmp / name], capture_output=True, text=True, timeout=60)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertIn("epoch 7", (self.tmp / name).read_text())
        timeline = json.loads((self.tmp / "timeline.json").read_text())
        self.assertEqual([e["name"] for e in timeline["traceEvents"] if e["ph"] == "i"], ["policy auto", "epoch 7", "end"])


class Backend(Base):
    """Memory is of the kind that was asked for when it was got, and goes back to where it came from; the stand-ins object to
    anything else."""

    def nccl(self, *words: str, **env: Any) -> Done:
        return self.go(BIN / "api_app_nccl", *words, **{"preload": str(NCCL_LIB), "LD_LIBRARY_PATH": f"{SIMNCCL}:{SIM}", "SIMNCCL_STRICT": "1",
                                                      "SIMGPU_DEVICES": "2", **env})

    def kinds(self, done: Done, *names: str) -> "list[tuple[str, str, int]]":
        return [(e["e"].replace("segment_", ""), e["b"], e["n"] // MIB) for e in self.one_trace(done).of(*(names or ("segment_alloc", "segment_free")))]

    def test_there_and_back(self) -> None:
        done = self.nccl("alloc:3000000", "alloc:600", "churn:1:9000000", "backend:1", "alloc:3000000", "alloc:600", "churn:3:9000000", "free",
                         "backend:0", "alloc:600", "stats:0", "free", "trim:0", "stats:0",
                         CUPOOL_TRACE_EVENTS="segment,alloc")
        self.assertEqual([line for line in done.out.splitlines() if line[0] != "s"], ["backend 0", "backend 0", f"trim {2 * MIB}"])
        self.assertEqual(self.kinds(done), [
            ("alloc", "cuda", 4), ("alloc", "cuda", 2), ("alloc", "cuda", 10), ("free", "cuda", 10),
            ("alloc", "nccl", 4), ("alloc", "nccl", 2), ("alloc", "nccl", 10),
            ("free", "cuda", 2), ("free", "cuda", 4), ("free", "nccl", 4), ("free", "nccl", 2), ("free", "nccl", 10),
            ("alloc", "cuda", 2), ("free", "cuda", 2)])
        before, after = stats_of(done.out)
        self.assertEqual((before["held"], after["held"], after["live"]), (2 * MIB, 0, 0))
        self.assertEqual(done.warnings, [])
        trace = self.one_trace(done)
        self.assertEqual([e["b"] for e in trace.of("backend")], ["nccl", "cuda"])
        self.assert_fine(trace.path)
        said = subprocess.run([TRACE_TOOL, "summary", "--json", trace.path], capture_output=True, text=True, timeout=60, check=True).stdout
        device = json.loads(said)["ranks"][0]["devices"]["0"]
        keys = ("requests", "hits", "misses", "peak_held", "held_at_end", "live_at_end")
        self.assertEqual({b: [f[k] for k in keys] for b, f in device["backends"].items()},
                         {"cuda": [4, 0, 4, 16 * MIB, 0, 0], "nccl": [5, 2, 3, 16 * MIB, 0, 0]})
        self.assertEqual([device[k] for k in keys], [after[k] for k in ("allocs", "hits", "misses", "peak_held", "held", "live")])

    def test_from_nccl_at_the_start(self) -> None:
        done = self.nccl("alloc:3000000", "backend:0", "alloc:3000000", "device:1", "alloc:3000000", "free", CUPOOL_BACKEND="nccl")
        self.assertEqual([k[1] for k in self.kinds(done, "segment_alloc")], ["nccl", "cuda", "cuda"])
        self.assertEqual(self.kinds(done, "segment_free"), [("free", "nccl", 4)])

    def test_virtual_memory_and_back(self) -> None:
        """Without an NCCL, and where the device has none."""
        words = "alloc:3000000", "backend:2", "alloc:3000000", "free", "backend:0", "alloc:3000000", "free"
        done = self.api(*words)
        self.assertEqual((done.out.splitlines(), done.warnings), (["backend 0"] * 2, []))
        self.assertEqual([k[1] for k in self.kinds(done, "segment_alloc")], ["cuda", "vmm", "cuda"])
        self.assertEqual([k[1] for k in self.kinds(done, "segment_free")], ["cuda", "vmm"])
        self.assertEqual((done.counts["cuMemCreate"], done.counts["cuMemUnmap"]), (2, 1))  # the first of them asks for a fabric
        done = self.api(*words, SIMGPU_VMM="0")
        self.assertEqual((done.out.splitlines(), len(done.warnings)), ([f"backend {ENOTSUP}", "backend 0"], 1))
        self.assertEqual({k[1] for k in self.kinds(done, "segment_alloc")}, {"cuda"})

    def test_devices_that_come_later_follow(self) -> None:
        done = self.nccl("alloc:3000000", "backend:1", "device:1", "alloc:3000000", "free")
        self.assertEqual([k[1] for k in self.kinds(done, "segment_alloc")], ["cuda", "nccl"])

    def test_all_devices_follow(self) -> None:
        done = self.nccl("alloc:600", "device:1", "alloc:600", "backend:1", "alloc:600", "device:0", "alloc:600", "free")
        self.assertEqual([k[1] for k in self.kinds(done, "segment_alloc")], ["cuda", "cuda", "nccl", "nccl"])

    def test_in_a_capture(self) -> None:
        """Memory that it cannot give back now goes with a later free."""
        done = self.nccl("alloc:600", "backend:1", "backend:0", "churn:1:3000000", "begin", "backend:1", "end", "alloc:3000000", "free", "churn:1:600")
        self.assertEqual(done.out.splitlines(), ["backend 0"] * 3)
        self.assertEqual([k[1] for k in self.kinds(done, "segment_alloc")], ["cuda", "cuda", "nccl", "nccl"])
        self.assertEqual(sorted(self.kinds(done, "segment_free")), [("free", "cuda", 2), ("free", "cuda", 4)])
        done = self.nccl("alloc:600", "begin", "backend:1", "end", "free")
        self.assertEqual(done.out, f"backend {EAGAIN}\n")

    def test_registered_or_not(self) -> None:
        """Segments of both kinds are registered with a communicator, and deregistered before they go; also those that a switch in
        a group has left idle."""
        for register in ("0", "1"):
            done = self.nccl("alloc:3000000", "comm", "reduce", "backend:1", "alloc:3000000", "reduce", "group", "backend:0", "ungroup", "free",
                             "alloc:600", "reduce", "trim:0", "uncomm", "free", CUPOOL_REGISTER=register)
            self.assertEqual(sorted(k[:2] for k in self.kinds(done, "segment_free")), [("free", "cuda"), ("free", "nccl")])
            trace = self.one_trace(done)
            self.assertEqual([len(trace.of(e)) for e in ("register", "deregister")], [3 * int(register)] * 2)
            self.assertEqual(done.warnings, [])

    def test_where_it_cannot_be(self) -> None:
        for words, answers in ((["backend:1", "alloc:600", "free"], [EAGAIN]), (["alloc:600", "backend:3", "backend:-1", "free"], [EINVAL] * 2),
                               (["alloc:600", "elsewhere{", "backend:1", "backend:0", "}", "free"], [EAGAIN, 0])):
            self.assertEqual(self.nccl(*words).out.splitlines(), [f"backend {n}" for n in answers])
        self.assertEqual(self.api("alloc:600", "backend:1", preload=None).out, f"backend {ENOSYS}\n")
        # No NCCL in the process: said, and everything stays as it is.
        done = self.api("alloc:600", "backend:1", "alloc:3000000", "free")
        self.assertEqual((done.out, len(done.warnings)), (f"backend {ENOTSUP}\n", 1))
        self.assertEqual([k[1] for k in self.kinds(done, "segment_alloc")], ["cuda", "cuda"])

    def test_many_threads(self) -> None:
        """No request fails, and nothing goes back to the wrong place."""
        done = self.nccl("backends:4:400", "stats:-1", "trim:-1", "stats:-1")
        before, after = stats_of(done.out)
        self.assertEqual((before["allocs"], before["failed"], after["held"], after["live"]), (1600, 0, 0, 0))
        self.assertEqual((len(done.out.splitlines()), done.warnings), (3, []), done.out)
        self.assertEqual({k[1] for k in self.kinds(done)}, {"cuda", "nccl"})
        self.assert_fine(self.one_trace(done).path)


class Alike(Base):
    """Where ranks have to lay memory out alike, neither time nor the free memory of the device decides what goes back."""

    NCCL, CUDA, SWITCHED = {"CUPOOL_BACKEND": "nccl"}, {"CUPOOL_REGISTER": "1"}, ["alloc:600", "backend:1", "free"]
    # Program, library, first calls, settings; and whether the ranks have to agree.
    ROWS: "list[tuple[str, Path, list[str], dict[str, str], bool]]" = [
        ("api_app_nccl", NCCL_LIB, [], NCCL, True),
        ("api_app_nccl", LIB, [], NCCL, True),
        ("api_app", LIB, [], NCCL, True),  # there is no NCCL: one of another rank may have it
        ("api_app_nccl", NCCL_LIB, [], CUDA, True),
        ("api_app_nccl", NCCL_LIB, [], {"CUPOOL_REGISTER": "use"}, True),
        ("api_app_nccl", NCCL_LIB, [*SWITCHED, "device:1"], {}, True),
        ("api_app_nccl", NCCL_LIB, SWITCHED, {}, True),
        ("api_app_nccl", NCCL_LIB, [*SWITCHED, "backend:0"], {}, True),
        ("api_app_nccl", NCCL_LIB, [], {}, False),
        ("api_app", LIB, [], CUDA, False),  # this one registers nothing
    ]
    # A pool that grows; one that has all of the device; at rest for longer than CUPOOL_DECAY=1 says.
    WORDS = [f"alloc:{60 * MIB}", "free", f"alloc:{90 * MIB}", "free", f"alloc:{104 * MIB}", "churn:3:600", "free"]

    def whys(self, program: str, library: Path, first: "list[str]", env: "dict[str, str]", decay: str) -> "set[str]":
        rest = ["sleep:1200"] if decay == "1" else []
        done = self.go(BIN / program, *first, *self.WORDS, *rest, preload=str(library), LD_LIBRARY_PATH=f"{SIMNCCL}:{SIM}",
                       SIMGPU_MEMORY="256M", SIMGPU_DEVICES="2", CUPOOL_DECAY=decay, CUPOOL_LOG_LEVEL="error", **env)
        trace = self.one_trace(done)
        return ({e["why"] for e in trace.of("trim")} & {"excess", "reserve", "decay"}) | {e["e"] for e in trace.of("bound")}

    def test_nothing_goes_back_by_itself(self) -> None:
        jobs = [(*row[:4], decay) for row in self.ROWS for decay in "01"]
        with ThreadPoolExecutor(6) as pool:  # most of them sleep
            whys = list(pool.map(lambda job: self.whys(*job), jobs))
        for job, why in zip(jobs, whys):
            with self.subTest(str(job)):
                if next(row[4] for row in self.ROWS if row[:4] == job[:4]):
                    self.assertEqual(why, set())
                else:
                    self.assertIn("reserve" if job[4] == "0" else "excess", why)


class Beside(Base):
    """Other threads do not get in the way of memory."""

    def nccl(self, *words: str, **env: Any) -> Done:
        return self.go(BIN / "api_app_nccl", *words, preload=str(NCCL_LIB), LD_LIBRARY_PATH=f"{SIMNCCL}:{SIM}", SIMNCCL_STRICT="1", **env)

    def test_registrations_are_counted(self) -> None:
        done = self.nccl("alloc:3000000", "comm", "reduce", "stats:-1", "uncomm", "stats:-1", "free", "trim:-1", "stats:-1",
                         CUPOOL_BACKEND="nccl", CUPOOL_REGISTER="1")
        keys = ("nccl_segments", "nccl_registered", "nccl_deregistered", "nccl_failed", "nccl_parked")
        self.assertEqual([[s[k] for k in keys] for s in stats_of(done.out)], [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 0, 0]])
        done = self.nccl("alloc:3000000", "comm", "reduce", "stats:-1", "uncomm", "free",
                         CUPOOL_BACKEND="nccl", CUPOOL_REGISTER="1", SIMNCCL_FAIL="ncclCommRegister:1+", CUPOOL_LOG_LEVEL="error")
        self.assertEqual([[s[k] for k in keys] for s in stats_of(done.out)], [[1, 0, 0, 1, 0]])

    def test_captures(self) -> None:
        """Memory that was to go when a capture began goes all the same."""
        for backend in "cuda", "nccl", "vmm":
            done = self.nccl("comm", "captures:80", "uncomm", CUPOOL_BACKEND=backend, CUPOOL_REGISTER="1")
            self.assertEqual(done.out, "lost 0\n")
            self.assertEqual([w for w in done.warnings if "not given back" in w], [])

    def test_releases_of_the_context(self) -> None:
        """One that is not the last is nobody else's business: every request is the pool's."""
        for backend in "cuda", "nccl", "vmm":
            done = self.nccl("alloc:600", "releases:1000", "stats:0", "free", CUPOOL_BACKEND=backend)
            [stats] = stats_of(done.out)
            self.assertEqual((stats["allocs"], stats["bypassed"]), (16000 + 2, 0))


class Course(Base):
    """At any time, by anybody."""

    def test_when_the_process_ends(self) -> None:
        for words in (["atexit"], ["alloc:3000000", "free", "alloc:600", "atexit"]):
            done = self.api(*words, "mark:before")
            lines = done.out.splitlines()[1:]
            handler = stats_of(lines[0])[0]
            used = len(words) > 1
            self.assertEqual((handler["rc"], handler["held"]), (0, 6 * MIB if used else 0))
            self.assertEqual(lines[1:3], [f"trim {4 * MIB}", "mark 0"] if used else ["trim 0", f"mark {EAGAIN}"])
            # The destructor of a program comes before the library's.
            self.assertEqual((stats_of(lines[3])[0]["held"], lines[4]), (2 * MIB if used else 0, "trim 0"))
            if used:
                trace = self.one_trace(done)
                self.assertTrue(trace.ended)
                self.assertEqual([e["text"] for e in trace.of("mark")], ["before", "last", "last"])
                self.assert_fine(trace.path)

    def test_many_threads(self) -> None:
        rounds = 2000
        for env in ({}, {"CUPOOL_FREE": "relaxed"}, {"CUPOOL_TRACE_EVENTS": "segment,alloc"}):
            with self.subTest(str(env)):
                done = self.api(f"threads:4:{rounds}", "stats:-1", "trim:-1", "stats:-1", **env)
                before, after = stats_of(done.out)
                self.assertEqual((before["allocs"], before["frees"], before["failed"]), (4 * rounds, 4 * rounds, 0))
                self.assertEqual((after["held"], after["live"]), (0, 0))
                self.assertEqual(len(done.out.splitlines()), 3, done.out)
                trace = self.one_trace(done)
                self.assertGreater(len(trace.of("mark")), rounds / 8)
                self.assert_fine(trace.path)

    def test_the_example(self) -> None:
        phases = BIN.parent.parent / "examples" / "phases"
        self.assertEqual(self.go(phases, preload=None).out, "cupool is not there\n")
        done = self.go(phases)
        self.assertEqual(done.out, "loaded: 10 requests, 9 without the driver, 16 MiB held\n"
                                   "trained: 110 requests, 108 without the driver, 2 MiB held\n")
        # Of the first phase there was nothing to be marked in.
        self.assertEqual([e["text"] for e in self.one_trace(done).of("mark")], ["train"])

    def test_the_other_library(self) -> None:
        done = self.go(BIN / "api_app", "alloc:3000000", "enabled", "mark:a", "free", "trim:-1", preload=str(NCCL_LIB))
        self.assertEqual(done.out.splitlines(), ["enabled 1", "mark 0", f"trim {4 * MIB}"])
