# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace to-pytorch: the snapshot is read the way PyTorch's viewer reads it."""

import json
import os
import subprocess
import sys
import unittest
from unittest import mock

from conversions import T0, TRACES, ConvertCase, Run, of, without_allocs
from formats import Snapshot
from made_traces import BASE, MIB, TOOL, Event, ev, good, header
from tool import terminal

from cupool_trace import to_pytorch


class ToPytorch(ConvertCase):
    def snapshot(self, *args: str, status: int = 0) -> Snapshot:
        return Snapshot(self.convert("to-pytorch", *args, status=status))

    def test_state_and_history(self) -> None:
        for seed in range(5):
            run = Run(seed=seed)
            s = self.snapshot(self.write(run.events))
            self.assertEqual(s.blocks(), run.blocks[0])
            self.assertEqual({g["address"]: g["total_size"] for g in s.segments}, run.segments[0])
            self.assertEqual(s.before, [({}, {})])  # undone to the beginning nothing is left
            for action in ("alloc", "segment_alloc", "segment_free", "oom"):
                self.assertEqual(s.count(action), run.counts[action, 0])
            # Blocks that died with their context were never freed by the program, but are gone.
            self.assertEqual(s.count("free_completed"), run.counts["alloc", 0] - len(run.blocks[0]))
            self.assertGreater(s.count("free_completed"), run.counts["free_requested", 0])
            self.assertEqual(s.traces[0][-1]["action"], "snapshot")
            self.assertEqual(s.whole["allocator_settings"]["CUPOOL_FREE"], "auto")
            self.assertEqual(self.err, "")

    def test_what_the_library_wrote(self) -> None:
        s = self.snapshot(str(TRACES / "allocs.jsonl"))
        self.assertEqual((s.count("alloc"), s.count("free_completed"), s.count("oom")), (22, 17, 3))
        self.assertEqual(sum(g["total_size"] for g in s.segments), 20971520)

    def test_callers(self) -> None:
        """Innermost first, the rank last; what is freed has the rank alone, as nobody knows who freed it."""
        frame = {"t": 1, "e": "frame", "tid": 42}
        events = [header(), {**frame, "f": 3, "p": "0x10", "at": "liba.so+0x10 (f(int) (.part.0))"}, {**frame, "f": 4, "p": "0x20", "at": "app+0x20"},
                  ev(2, "segment_alloc", p=BASE, n=2 * MIB), ev(3, "alloc", p=BASE, n=512, f=[3, 4]), ev(4, "alloc", p=BASE + 512, n=512, f=[4, 9]),
                  ev(5, "alloc", p=BASE + 1024, n=512), ev(6, "free_requested", p=BASE, n=512), ev(6, "free_completed", p=BASE, n=512),
                  ev(7, "alloc", p=BASE, n=100, f=[0]), {**frame, "t": 8, "f": 9, "p": "0x30", "at": "?"}, ev(9, "end", dropped=0)]
        rank = ("app", "rank 0 (host a, pid 42)")
        a, b, c, unknown = ("liba.so", "f(int) (.part.0) +0x10"), ("app", "+0x20"), ("?", "?"), ("unknown", "?")
        path = self.write(events)
        s = self.snapshot(path)

        def frames(o: Event) -> list[tuple[str, str]]:
            return [(f["filename"], f["name"]) for f in o["frames"]]

        self.assertEqual([(e["action"], frames(e)) for e in s.traces[0]],
                         [("segment_alloc", [rank]), ("alloc", [a, b, rank]), ("alloc", [b, c, rank]), ("alloc", [rank]),
                          ("free_requested", [rank]), ("free_completed", [rank]), ("alloc", [unknown, rank]), ("snapshot", [rank])])
        self.assertEqual([frames(x) for x in s.segments[0]["blocks"]], [[unknown, rank], [b, c, rank], [rank], [rank]])
        # More stacks than are kept: those that came later have none. A deep one is cut.
        with mock.patch.multiple(to_pytorch, MOST_STACKS=2, DEEPEST=1):
            s = self.snapshot(path)
        self.assertEqual([frames(e) for e in s.traces[0] if e["action"] == "alloc"], [[a, rank], [rank], [rank], [rank]])
        # Of entries that were left out, what is not live needs no frames; the newest keep theirs.
        s = self.snapshot("--max-entries", "1", path)
        self.assertEqual([frames(e) for e in s.traces[0]], [[unknown, rank], [rank]])

    def test_callers_as_the_library_wrote_them(self) -> None:
        path = TRACES / "stacks.jsonl"
        events = [json.loads(x) for x in path.read_text().splitlines()]
        names = {e["f"]: e["at"] for e in of(events, "frame")}
        s = self.snapshot(str(path))
        got = [[f["filename"] + f["name"].rpartition(" ")[2] for f in e["frames"][:-1]] for e in s.traces[0] if e["action"] == "alloc"]
        self.assertEqual(got, [[names[f].partition(" ")[0] for f in e["f"]] for e in of(events, "alloc")])
        self.assertTrue(all(got))

    def test_times_are_of_the_wall_clock(self) -> None:
        s = self.snapshot(self.write(Run(t0_unix_ns=T0 + 123_000).events))
        first = of(Run().events, "segment_alloc")[0]
        self.assertEqual(s.traces[0][0]["time_us"], (T0 + 123_000 + first["t"]) // 1000)

    def test_segment_events_only(self) -> None:
        for events in (without_allocs(Run().events), without_allocs(good())):
            s = self.snapshot(self.write(events))
            self.assertTrue(s.segments)
            for seg in s.segments:
                block, = seg["blocks"]
                self.assertEqual((block["size"], block["state"]), (seg["total_size"], "active_allocated"))
            self.assertEqual(s.before, [({}, {})])
            self.assertEqual(s.count("alloc"), s.count("segment_alloc"))

    def test_newest_entries_are_kept(self) -> None:
        run = Run(devices=(0, 1))
        path = self.write(run.events)
        whole = self.snapshot(path)
        self.assertFalse(whole.whole["allocator_settings"]["trace_alloc_overflowed"])
        for most in (0, 1, 2, 7, 100):
            s = self.snapshot("--max-entries", str(most), path)
            self.assertEqual(s.segments, whole.segments)
            for d in (0, 1):
                self.assertEqual(s.traces[d], whole.traces[d][len(whole.traces[d]) - len(s.traces[d]):])
                free = s.count("free_completed", d)
                self.assertEqual(len(s.traces[d]) - free - 1, most)
                entries = len(whole.traces[d]) - 1 - whole.count("free_completed", d)
                self.assertIn(f"rank 0 device {d}: the oldest {entries - most} of {entries} entries were left out", self.err)
            self.assertTrue(s.whole["allocator_settings"]["trace_alloc_overflowed"])
        self.convert("to-pytorch", "--max-entries=-1", path, status=2)

    def test_devices_keep_their_numbers(self) -> None:
        run = Run(devices=(2, 5))
        s = self.snapshot(self.write(run.events))
        self.assertEqual([len(t) > 0 for t in s.traces], [False, False, True, False, False, True])
        self.assertEqual(s.blocks(5), run.blocks[5])
        # A number that no machine has is no reason for a list of that length.
        self.assertEqual(len(self.snapshot(self.write([header(), ev(1, "segment_alloc", p=BASE, n=MIB, d=1 << 60)])).traces), 1)

    def test_each_device_of_each_rank_is_a_device(self) -> None:
        s = self.snapshot(self.rank(1), self.rank(0, devices=(0, 1)))
        self.assertEqual([t[0]["frames"][0]["name"] for t in s.traces],
                         ["rank 0 (host a, pid 100)"] * 2 + ["rank 1 (host a, pid 101)"])
        self.assertEqual(s.blocks(2), Run(seed=2).blocks[0])
        self.assertIn("the viewer's device 2 is rank 1 device 0", self.err)
        self.assertEqual(s.whole["allocator_settings"]["device 2"], "rank 1 device 0")
        self.assertEqual(s.whole["allocator_settings"]["rank 1 CUPOOL_FREE"], "auto")

    def test_contradictions_do_not_reach_the_snapshot(self) -> None:
        start = good()[:5]
        for more in ([ev(230, "free_requested", p=BASE, n=512)],  # of nothing
                     [ev(230, "alloc", p=BASE + 512, n=100)],  # in another's place
                     [ev(230, "alloc", p=BASE + 2 * MIB, n=100)],  # in no segment
                     [ev(230, "alloc", p=BASE + 2 * MIB - 512, n=1000)],  # half outside
                     [ev(230, "segment_alloc", p=BASE + MIB, n=2 * MIB)],  # in another's place
                     [ev(230, "segment_free", p=BASE + MIB, n=MIB)],  # of nothing
                     [ev(230, "segment_free", p=BASE, n=2 * MIB)],  # with blocks in it
                     [ev(230, "segment_alloc", p=(1 << 64) - 512, n=512)]):  # more than fits
            s = self.snapshot(self.write([*start, *more, ev(500, "end", dropped=0)]), status=1)
            self.assertRegex(self.err, "1 event that contradict")
            self.assertEqual(s.before, [({}, {})])

    def test_not_to_a_terminal(self) -> None:
        main, side = terminal()
        try:
            done = subprocess.run([sys.executable, str(TOOL), "to-pytorch", self.write(good())], stdout=side,
                                  stderr=subprocess.PIPE)
        finally:
            os.close(side)
            os.close(main)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr.decode(), "standard output is a terminal.*use -o FILE")
