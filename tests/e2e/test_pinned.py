# SPDX-License-Identifier: Apache-2.0
"""What is told of pinned memory that is pooled (CUPOOL_HOST_POOL=1): counters, and what they are read by."""
from __future__ import annotations

import json
import re
import sys
import unittest
from pathlib import Path
from typing import Any

from e2e import BIN, MIB, SOURCE, TRACE_TOOL, Case, Done, tool

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


if __name__ == "__main__":
    unittest.main()
