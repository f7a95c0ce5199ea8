# SPDX-License-Identifier: Apache-2.0
"""Every setting of conf.def: its visible effect with this value and with that, and without any.

How values are read, and the messages for wrong ones, are in test_settings.py; what a setting means in detail, in the test of its topic.
"""

import os
import re
import select
import signal
import socket
import subprocess
import unittest
from pathlib import Path
from typing import Any, Optional

from e2e import BIN, LIB, MIB, SIM, SOURCE, TIMEOUT, Case, Done, Trace, Word, app, station_of

NCCL_LIB = LIB.with_name("libcupool-nccl.so")
SIMNCCL = Path(os.environ["E2E_SIMNCCL"])

# NAME, type, default, choices of every row.
ROWS = re.findall(r'^CONF\(\w+, "(\w+)", (\w+), "([^"]*)", "([^"]*)",', (SOURCE / "shim" / "conf.def").read_text(), re.M)

# The result of Effects.see_NAME for a value; the first one is the default.
EFFECTS: "dict[str, dict[str, Any]]" = {
    "ENABLE": {"1": "pooled", "0": "passed through"},
    # Frees that the device waits for, of 60, and the policy with its reason. With auto the first one waits on the host: nobody saw
    # what was launched before.
    "FREE": {"auto": (59, "ordered", "default"), "ordered": (60, "ordered", "CUPOOL_FREE"), "strict": (0, "strict", "CUPOOL_FREE"),
             "relaxed": (0, "relaxed", "CUPOOL_FREE")},
    "BACKEND": {"cuda": {"cuda"}, "nccl": {"nccl"}, "vmm": {"vmm"}},
    # Is memory of the pool registered; anew for a collective after send/recv; and memory past the pool?
    "REGISTER": {"0": (False, False, False), "1": (True, True, False), "force": (True, False, False), "use": (True, True, True)},
    # Frees that share an order, of 8 MiB each, after a GiB was in use: of 64 MiB at least, 102 MiB, 205 MiB.
    "SLACK": {"10": 14, "0": 9, "20": 32},
    "HOOK": {"auto": "pooled", "runtime": "passed through"},
    # The most that is held, in MiB, and whether requests went to the driver.
    "LIMIT": {"0": (24, False), "8M": (8, True), "16384k": (16, True), "8388608": (8, True), "8MiB": (8, True), "0.5G": (24, False)},
    # The driver's allocations for twice twelve requests of pinned memory; with the limit, eight of each twelve go back at once.
    "HOST_POOL": {"0": 24, "1": 12},
    "HOST_LIMIT": {"0": 12, "8M": 20},
    "HOST_POPULATE": {"0": 0, "1": 1},
    "NEIGHBOURS": {"100": "asked", "0": "not asked"},
    # Of a block that shares a driver allocation.
    "IPC": {"10000": "a handle", "0": "no handle"},
    "DECAY": {"10": "stayed", "0": "went back", "off": "stayed"},
    # The driver's physical memory for 12 buffers of 3 sizes.
    "VMM": {"0": 12, "1": 6},
    # The contents of memory that has been used before.
    "FILL": {"off": "what was there", "native": "0x00", "0xA5": "0xa5"},
    # Driver allocations for 101 requests; was an overrun found, and memory that nobody freed?
    "DEBUG": {"0": (1, False, False), "1": (101, False, True), "guard": (1, True, True)},
    "TRACE_FILE": {"cupool.%h.r%r.%p.jsonl": "its own name", "here": "here", "off": None},
    "TRACE_EVENTS": {"segment": 0, "segment,alloc": 60},
    "TRACE_LIMIT": {"1G": False, "0": False, "20K": True},
    "TRACE_STACKS": {"0": False, "1": True},
    "STATS": {"off": [], "exit": ["exit"], "signal:USR2": ["signal"], "timer:1": ["timer"], "exit,signal:USR2": ["signal", "exit"]},
    "STATS_FILE": {"off": [], "page": ["page"]},
    "CTL": {"off": [], "ctl": ["cupool.sock"]},
    "LOG_LEVEL": {"warn": ["error", "warning"], "off": [], "error": ["error"], "info": ["error", "info", "warning"],
                  "debug": ["error", "info", "warning"]},
    "RANK": {"": None, "0": 0, "4": 4},
}


def rows_listed() -> "dict[str, list[str]]":
    """The tests of each row, by its name."""
    return {f"CUPOOL_{name}": [f"see_{name} {value or 'empty'}" for value in values] + [f"see_{name} unset"] for name, values in EFFECTS.items()}


class Effects(Case):
    def used(self, *words: Word, kind: str = "shared", **env: str) -> "tuple[Done, Trace]":
        done = self.go(app(kind), *(words or ("churn:60:100000",)), **env)
        return done, self.one_trace(done)

    def job(self, scenario: str, **env: str) -> Trace:
        """Two ranks with the stand-in for NCCL, of a version that has the bug of send/recv first."""
        done = self.go(BIN / "nccl_app", scenario, "2", preload=str(NCCL_LIB), LD_LIBRARY_PATH=f"{SIMNCCL}:{SIM}", SIMGPU_DEVICES="2",
                       SIMNCCL_VERSION="22809", **env)
        return self.one_trace(done)

    def test_every_setting(self) -> None:
        for name, _, default, _ in ROWS:
            for value, effect in EFFECTS[name].items():
                with self.subTest(name, value=value):
                    self.assertEqual(getattr(self, f"see_{name}")({f"CUPOOL_{name}": value}), effect)
            with self.subTest(name):
                self.assertEqual(getattr(self, f"see_{name}")({}), EFFECTS[name][default])

    def test_the_table_has_all(self) -> None:
        """Every setting, every value of one that is a choice, and two that differ."""
        self.assertEqual(sorted(EFFECTS), sorted(row[0] for row in ROWS))
        for name, kind, default, choices in ROWS:
            with self.subTest(name):
                values = EFFECTS[name]
                self.assertEqual(next(iter(values)), default)
                self.assertGreaterEqual(len({repr(v) for v in values.values()}), 2)
                if kind in ("BOOL", "CHOICE"):
                    self.assertEqual(sorted(values), sorted(choices.split("|")))
                for word in re.findall(r"\boff\b", choices):
                    self.assertIn(word, values)

    def see_ENABLE(self, env: "dict[str, str]") -> str:
        return "pooled" if self.go(app("shared"), "churn:9:4096", **env).files else "passed through"

    def see_FREE(self, env: "dict[str, str]") -> "tuple[int, str, str]":
        done, trace = self.used(**env)
        [policy] = trace.of("policy")
        self.assertEqual(done.counts.get("cuCtxWaitEvent", 0), done.counts.get("cuCtxRecordEvent", 0))
        self.assertGreaterEqual(done.counts.get("cuCtxSynchronize", 0), 60 if policy["free"] == "strict" else 0)
        return done.counts.get("cuCtxWaitEvent", 0), policy["free"], policy["why"]

    def see_BACKEND(self, env: "dict[str, str]") -> "set[str]":
        return {e["b"] for e in self.job("again", **env).of("segment_alloc")}

    def see_REGISTER(self, env: "dict[str, str]") -> "tuple[bool, bool, bool]":
        pooled, mapped = self.job("kinds", CUPOOL_BACKEND="nccl", **env), self.job("mapped", **env)
        return bool(pooled.of("register")), any(e["renewed"] for e in pooled.of("nccl")), bool(mapped.of("register"))

    def see_SLACK(self, env: "dict[str, str]") -> int:
        done, _ = self.used(f"alloc:128:{8 * MIB}", "free:128", CUPOOL_FREE="relaxed", **env)
        return 128 // done.counts["cuCtxRecordEvent"]

    def see_HOOK(self, env: "dict[str, str]") -> str:
        return "pooled" if self.go(app("dlsym"), "churn:9:4096", **env).files else "passed through"

    def see_LIMIT(self, env: "dict[str, str]") -> "tuple[int, bool]":
        _, trace = self.used(f"alloc:12:{2 * MIB}", **env)
        return trace.total("peak_held") // MIB, trace.total("bypassed") > 0

    def see_HOST_POOL(self, env: "dict[str, str]") -> int:
        done = self.go(app("shared"), "alloc:1:4096", f"pinned:12:{2 * MIB}", **env)
        return done.counts.get("cuMemAllocHost_v2", 0) + done.counts.get("cuMemHostAlloc", 0)

    def see_HOST_LIMIT(self, env: "dict[str, str]") -> int:
        return self.see_HOST_POOL({"CUPOOL_HOST_POOL": "1", **env})

    def see_HOST_POPULATE(self, env: "dict[str, str]") -> int:
        done = self.go(app("shared"), "alloc:1:4096", f"pinned:1:{256 * MIB}", CUPOOL_HOST_POOL="1", **env)
        return done.counts.get("cuMemHostRegister_v2", 0)

    def see_DECAY(self, env: "dict[str, str]") -> str:
        _, trace = self.used(f"alloc:4:{8 * MIB}", "free:4", f"alloc:1:{8 * MIB}", **env)
        return "stayed" if trace.total("hits") else "went back"

    def see_VMM(self, env: "dict[str, str]") -> int:
        return self.go(BIN / "vmm_kept", "loop:2", **env).counts["cuMemCreate"]

    def see_NEIGHBOURS(self, env: "dict[str, str]") -> str:
        card = self.folder() / "card"
        card.touch()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as neighbour:
            neighbour.bind(station_of(card, 0))
            self.used("tolerate", f"alloc:2:{40 * MIB}", SIMGPU_MEMORY="64M", SIMGPU_SHARED=str(card), **env)
            return "asked" if select.select([neighbour], [], [], 0)[0] else "not asked"

    def see_IPC(self, env: "dict[str, str]") -> str:
        done = subprocess.run([BIN / "ipc_app_shared"], input="alloc 3000\nhandle 0\n", text=True, capture_output=True, timeout=TIMEOUT,
                              cwd=self.folder(), env=self.env(**env), check=True)
        return "a handle" if done.stdout.splitlines()[1].startswith("0 ") else "no handle"

    def see_FILL(self, env: "dict[str, str]") -> str:
        used = re.findall(r"^contents (\S+)$", self.used(f"alloc:1:{3 * MIB}", "free:1", f"contents:{3 * MIB}", **env)[0].out, re.M)
        return used[0] if used[0] in ("0x00", "0xa5") else "what was there"

    def see_DEBUG(self, env: "dict[str, str]") -> "tuple[int, bool, bool]":
        done = self.go(app("shared"), "overrun:1:1000", "churn:100:4096", **env)
        return done.counts["cuMemAlloc_v2"], "overrun" in done.err, "not freed" in done.err

    def see_TRACE_FILE(self, env: "dict[str, str]") -> Optional[str]:
        files = self.go(app("shared"), "churn:9:4096", **env).files
        self.assertLessEqual(len(files), 1)
        return "its own name" if files and re.fullmatch(r"cupool\..+\.rx\.\d+\.jsonl", files[0]) else files[0] if files else None

    def see_TRACE_EVENTS(self, env: "dict[str, str]") -> int:
        return len(self.used(**env)[1].of("alloc"))

    def see_TRACE_LIMIT(self, env: "dict[str, str]") -> bool:
        return bool(self.used("churn:400:3200000", CUPOOL_DECAY="0", **env)[1].of("gap"))

    def see_TRACE_STACKS(self, env: "dict[str, str]") -> bool:
        return bool(self.used("churn:9:4096", CUPOOL_TRACE_EVENTS="segment,alloc", **env)[1].of("frame"))

    def see_STATS(self, env: "dict[str, str]") -> "list[str]":
        """Why tables came, in order. One that is to come before the end is waited for."""
        path = self.folder() / "err"
        early = [why for why in ("signal", "timer") if why in env.get("CUPOOL_STATS", "")]

        def then(child: "subprocess.Popen[str]", cwd: Path) -> None:
            if "signal" in early:
                self.signal_until(child, signal.SIGUSR2, lambda: "(signal):" in path.read_text())
            self.wait_for(lambda: all(f"({why}):" in path.read_text() for why in early), "table")
        with path.open("wb") as err:
            self.running("churn:9:4096", "ready", "await:go", then=then, stderr=err.fileno(), **env)
        heads = re.findall(r"(?:^cupool: process .*\((\w+)\):\n)?^cupool: device", path.read_text(), re.M)
        return sorted({why or "exit" for why in heads}, reverse=True)

    def see_STATS_FILE(self, env: "dict[str, str]") -> "list[str]":
        return self.go(app("shared"), "churn:9:4096", CUPOOL_TRACE_FILE="off", **env).files

    def see_CTL(self, env: "dict[str, str]") -> "list[str]":
        """A socket, which stays: the program ends by _exit, since nothing comes on its input."""
        done = self.go(BIN / "pause_app", "alloc:600", "wait", CUPOOL_TRACE_FILE="off", **env)
        return [re.sub(r"-\d+", "", p.name) for folder in done.cwd.iterdir() for p in folder.iterdir()]

    def see_LOG_LEVEL(self, env: "dict[str, str]") -> "list[str]":
        done = self.go(app("shared"), "overrun:1:1000", "free:1", CUPOOL_DEBUG="guard", CUPOOL_Z="z", **env)
        return sorted(set(re.findall(r"^cupool\[\d+\]: (\w+):", done.err, re.M)))

    def see_RANK(self, env: "dict[str, str]") -> Optional[int]:
        return self.used(**env)[1].header["rank"]
