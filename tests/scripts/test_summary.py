# SPDX-License-Identifier: Apache-2.0
"""Tests of cupool-trace summary, run as users run it: as a program, on small traces written here."""

import copy
import json
import random
import re
import unittest
import unittest.mock

from made_traces import BASE, MIB, Case, Event, ev, good, header

from cupool_trace import replay, schema, summary


class Summary(Case):
    def test_figures(self) -> None:
        got = self.summary(self.write(good()))
        rank = got["ranks"][0]
        self.assertEqual((rank["rank"], rank["host"], rank["pid"], rank["exe"], rank["complete"]), (0, "a", 42, "app", True))
        dev = rank["devices"]["0"]
        expected = {"from_stats": True, "requests": 4, "hits": 2, "misses": 2, "hit_rate": 0.5, "peak_live": 64 * MIB + 1536,
                    "peak_held": 66 * MIB, "held_at_end": 2 * MIB, "segments_alloc": 2, "segments_free": 1, "segments_live": 1,
                    "driver_calls": 3, "driver_us": 450.5, "segment_us": 100, "saved_us": 200, "live_at_end": 1536,
                    "cached_at_end": 2 * MIB - 1536, "waste": 2 * MIB - 1536, "rounding": 0, "oom": 1, "trims": 1, "trimmed": 64 * MIB, "ipc_ok": 0, "ipc_refused": 1}
        self.assertEqual({k: dev[k] for k in expected}, expected)
        alike = ("hits", "saved_us", "peak_live", "peak_held", "waste", "driver_calls")
        self.assertEqual({k: dev["backends"]["cuda"][k] for k in alike}, {k: dev[k] for k in alike})
        self.assertEqual([s["n"] for s in dev["largest_segments"]], [64 * MIB, 2 * MIB])
        self.assertEqual(dev["policy"], [{"t": 100, "free": "ordered", "why": "default"}])
        self.assertEqual(dev["oom_moments"], [{"t": 300, "n": 900 * MIB, "held": 2 * MIB, "live": 1536}])

    def test_text(self) -> None:
        out = self.run_tool("summary", self.write(good())).stdout
        for pattern in (r"^0 +a +42 +app +complete", r"^0 +0 +cuda +auto +4 +2 +2 +50.0% +~200 us +64.0 MiB +66.0 MiB +2.0 MiB +2 +3 +450 us +1 +1$",
                        r"^rank 0 device 0: free policy auto \(ordered so far\) from 0.000 s: default$",
                        r"about 200 us saved: 2 hits at 100.0 us each, the median of what it took to get a segment from cuda",
                        r"2.0 MiB wasted when most was held; when most was live, 0 B of it was rounding; 1.5 KiB live and 2.0 MiB cached at the end",
                        r"out of memory at 0.000 s: 900.0 MiB asked for, 2.0 MiB held, 1.5 KiB live",
                        r"1 request for an IPC handle refused",
                        r"largest segments 64.0 MiB, 2.0 MiB; 1 live at the end \(2.0 MiB\)", r"1 trim gave back 64.0 MiB"):
            self.assertRegex(out, re.compile(pattern, re.M))
        self.assertNotIn("~", out.replace("~200 us", ""))

    def test_free_policy(self) -> None:
        """A trace names the state of the device; with CUPOOL_FREE=auto the policy is auto in each of them."""
        later = ev(150, "policy", free="strict", why="managed memory")
        for setting, more, column, lines in (
                ("auto", [later], "auto, strict", ["auto (ordered) from 0.000 s: default", "auto, strict from 0.000 s: managed memory"]),
                ("ordered", [], "ordered", ["ordered from 0.000 s: default"])):
            events = good()
            events[0]["settings"]["CUPOOL_FREE"] = setting
            events[2:2] = more
            out = self.run_tool("summary", self.write(events)).stdout
            self.assertRegex(out, re.compile(rf"^0 +0 +cuda +{column}  +4 ", re.M))
            self.assertEqual(re.findall(r"(?m)^rank 0 device 0: free policy (.*)$", out), lines)

    def test_ranks_that_share_a_device(self) -> None:
        """By its UUID, on one host; without one each rank's device counts."""
        for uuids, hosts, count in (("uu", "aa", "1 device"), ("uv", "aa", "2 devices"), ("uu", "ab", "2 devices"), ("  ", "aa", "2 devices")):
            paths = []
            for rank, (uuid, host) in enumerate(zip(uuids, hosts)):
                events = good()
                events[0].update(rank=rank, host=host)
                events[1:1] = [ev(50, "device", d=0, name="GPU", uuid=uuid)] if uuid != " " else []
                paths.append(self.write(events, f"{rank}.jsonl"))
            self.assertRegex(self.run_tool("summary", *paths).stdout, rf"^2 processes of app on \d hosts?, {count}; ")

    def test_time_saved_is_measured_or_not_said(self) -> None:
        """Only from what segments took: other times there say nothing of it."""
        events = good()
        events[2]["us"], events[8]["us"], events[12]["us"], events[13]["us"] = 30, 50, 7000, 9000
        dev = self.summary(self.write(events))["ranks"][0]["devices"]["0"]
        self.assertEqual((dev["segment_us"], dev["saved_us"]), (30, 60))
        events = [e for e in good() if e.get("e") != "segment_alloc"]
        path = self.write(events)
        dev = self.summary(path)["ranks"][0]["devices"]["0"]
        self.assertEqual((dev["hits"], dev["segment_us"], dev["saved_us"]), (2, None, None))
        out = self.run_tool("summary", path).stdout
        self.assertNotIn("saved:", out)
        self.assertRegex(out, r"50.0% +- +64.0 MiB")

    def test_ranks_that_did_alike_saved_alike(self) -> None:
        """However long one of their few calls took: the first, which waits for the driver to start, or one among 16 at a time."""
        paths = []
        for rank in range(16):
            events = good()
            events[0]["rank"], events[2]["us"], events[8]["us"] = rank, 4000 * rank + 43726.9, 20 + rank
            paths.append(self.write([events[0], *events[1:]], f"{rank}.jsonl"))
        got = self.summary(*paths)
        self.assertEqual({r["devices"]["0"]["saved_us"] for r in got["ranks"]}, {2 * 35.0})
        self.assertEqual(got["total"]["saved_us"], 16 * 2 * 35.0)

    def test_waste_needs_allocation_events(self) -> None:
        """Of segments alone it is not known; the hits are, from the stats line, and with them the time saved."""
        events = [e for e in good() if e.get("e") not in ("alloc", "free_requested", "free_completed")]
        events[0]["events"] = "segment"
        path = self.write(events)
        dev = self.summary(path)["ranks"][0]["devices"]["0"]
        self.assertEqual([dev[k] for k in ("waste", "rounding", "live_at_end", "cached_at_end")], [None] * 4)
        self.assertEqual((dev["held_at_end"], dev["saved_us"]), (2 * MIB, 200))
        self.assertNotIn("wasted", self.run_tool("summary", path).stdout)

    def test_waste(self) -> None:
        """The segment that made held greatest was got for a block that comes after it, and perhaps after one of another thread."""
        a, b = BASE, BASE + 4 * MIB
        start = [header(), ev(1, "segment_alloc", p=a, n=4 * MIB), ev(2, "alloc", p=a, n=MIB + 1), ev(3, "segment_alloc", p=b, n=4 * MIB)]
        for more, waste in (([], 7 * MIB - 512), ([ev(4, "alloc", p=b, n=3 * MIB)], 4 * MIB - 512),
                            ([ev(4, "alloc", p=a + 2 * MIB, n=MIB, tid=7), ev(5, "alloc", p=b, n=3 * MIB)], 3 * MIB - 512),
                            ([ev(4, "alloc", p=b, n=3 * MIB), ev(5, "alloc", p=a + 2 * MIB, n=MIB)], 4 * MIB - 512)):
            dev = self.summary(self.write([*start, *more, ev(9, "end", dropped=0)]))["ranks"][0]["devices"]["0"]
            self.assertEqual((dev["waste"], dev["rounding"]), (waste, 511))

    def test_backends(self) -> None:
        """Each one's figures are those of a trace with its events alone."""
        for seed in range(10):
            r = random.Random(seed)
            events: list[Event] = [header()]
            segments: dict[int, tuple[int, str]] = {}
            live: dict[int, tuple[int, int]] = {}  # block: its request, its segment
            owner = {}
            for t in range(1, 400):
                x, k = r.random(), 64 * MIB * r.randrange(8) + BASE
                if k not in segments:
                    n, backend = MIB * r.randrange(1, 9), r.choice(["cuda", "nccl"]) if segments else "cuda"
                    segments[k] = n, backend
                    one = ev(t, "segment_alloc", p=k, n=n, b=backend, us=r.randrange(100))
                elif x < 0.05 and not any(at == k for _, at in live.values()):
                    backend = segments.pop(k)[1]
                    one = ev(t, "segment_free", p=k, n=n_of[k], b=backend)
                elif live and x < 0.4:
                    p = r.choice(list(live))
                    n, k = live.pop(p)
                    backend = segments[k][1]
                    one = ev(t, "free_requested", p=p, n=n)
                else:
                    p, n = k + 65536 * r.randrange(16), r.randrange(1, 60000)
                    if p in live:
                        continue
                    live[p] = n, k
                    backend = segments[k][1]
                    one = ev(t, "alloc", p=p, n=n)
                n_of = {at: size for at, (size, _) in segments.items()}
                events.append(one)
                owner[id(one)] = backend
            dev = self.figures(events)
            self.assertEqual(list(dev["backends"]), ["cuda", "nccl"])
            for backend, found in dev["backends"].items():
                alone = self.figures([header(), *(e for e in events[1:] if owner[id(e)] == backend)])
                self.assertEqual(found, alone["backends"][backend])
                self.assertEqual(found, {k: alone[k] for k in found})
            for key in ("requests", "segments_alloc", "segments_free", "driver_calls", "held_at_end", "live_at_end", "saved_us"):
                self.assertAlmostEqual(dev[key], sum(f[key] for f in dev["backends"].values()), 2)

    def figures(self, events: list[Event]) -> Event:
        rank = replay.Rank(self.write(events))
        self.assertEqual(rank.problems.kept, [])
        return summary.device_summary(rank, rank.replay.devices[0])

    def test_backends_are_rows(self) -> None:
        events = good()
        events[8]["b"] = events[12]["b"] = "nccl"
        out = self.run_tool("summary", self.write(events)).stdout
        for pattern in (r"^0 +0 +all +auto +4 +2 +2 ", r"^0 +0 +cuda +~3 +~2 +~1 +~66.7% +~200 us +1.5 KiB +2.0 MiB +2.0 MiB +1 +1 +100 us$",
                        r"^0 +0 +nccl +~1 +~0 +~1 +~0.0% +~0 us +64.0 MiB +64.0 MiB +0 B +1 +2 +350 us$"):
            self.assertRegex(out, re.compile(pattern, re.M))
        self.assertIn("2 hits at 100.0 us each, the median of what it took to get a segment from cuda", out)

    def test_out_of_memory_says_what_was_free(self) -> None:
        events = good()
        events[14].update(why="pieces", idle=0, pending=512, holes=3 * MIB, largest=MIB, device_free=5 * MIB, device_total=80 * MIB)
        path = self.write(events)
        moment, = self.summary(path)["ranks"][0]["devices"]["0"]["oom_moments"]
        self.assertEqual(moment, {"t": 300, "n": 900 * MIB, "held": 2 * MIB, "live": 1536, "idle": 0, "pending": 512, "holes": 3 * MIB,
                                  "largest": MIB, "device_free": 5 * MIB, "why": "pieces"})
        self.assertIn("live; free: 5.0 MiB on the device, 3.0 MiB between live blocks, 512 B kept back, 1.0 MiB in the largest piece; why: the free memory would suffice, but lies between live blocks",
                      self.run_tool("summary", path).stdout)
        self.broken_values(events)

    def broken_values(self, events: list[Event]) -> None:
        events[14]["holes"] = "many"
        self.check(events, 1, r":15: oom: holes is 'many', not a number of bytes")

    def test_segments_that_died_with_their_context_were_no_driver_call(self) -> None:
        events = good()
        events[12]["why"] = "context"
        self.assertEqual(self.summary(self.write(events))["ranks"][0]["devices"]["0"]["driver_calls"], 2)

    def called(self) -> list[Event]:
        """Three places in the program; the peak is when c has just got its block, and then others come and go."""
        a, b = BASE, BASE + 64 * MIB
        return [
            header(),
            ev(1, "segment_alloc", p=a, n=64 * MIB), ev(2, "segment_alloc", p=b, n=64 * MIB),
            {"t": 3, "e": "frame", "tid": 42, "f": 5, "p": "0x10", "at": "libx.so+0x10 (make)"},
            ev(4, "alloc", p=a, n=MIB, f=[5]),
            {"t": 5, "e": "frame", "tid": 42, "f": 6, "p": "0x18", "at": "libx.so+0x18 (make)"},
            ev(6, "alloc", p=a + MIB, n=2 * MIB, f=[6]),  # the same function, another line of it
            {"t": 7, "e": "frame", "tid": 42, "f": 7, "p": "0x20", "at": "app+0x20"},
            ev(8, "alloc", p=b, n=8 * MIB, f=[7]), ev(9, "alloc", p=b + 8 * MIB, n=1000, f=[0]), ev(10, "alloc", p=b + 16 * MIB, n=512),
            ev(11, "free_requested", p=a, n=MIB), ev(12, "free_requested", p=b, n=8 * MIB),
            ev(13, "alloc", p=a, n=MIB, f=[5]),
            ev(14, "segment_free", p=b, n=64 * MIB, why="context"),
            ev(20, "end", dropped=0)]

    def test_callers(self) -> None:
        path = self.write(self.called())
        expected = [{"caller": "app+0x20", "stack": ["app+0x20"], "live_at_peak": 8 * MIB, "live_at_end": 0, "requests": 1},
                    {"caller": "libx.so (make)", "stack": ["libx.so (make)"], "live_at_peak": 3 * MIB, "live_at_end": 3 * MIB, "requests": 3},
                    {"caller": "unknown", "stack": ["unknown"], "live_at_peak": 1024, "live_at_end": 0, "requests": 1}]
        self.assertEqual(self.summary(path)["ranks"][0]["devices"]["0"]["callers"], expected)
        out = self.run_tool("summary", path).stdout
        self.assertIn("rank 0 device 0: 3 callers, by what they held when most was live\n", out)
        for pattern in (r"^app\+0x20 +8.0 MiB +0 B +1$", r"^libx.so \(make\) +3.0 MiB +3.0 MiB +3$", r"^unknown +1.0 KiB +0 B +1$"):
            self.assertRegex(out, re.compile(pattern, re.M))
        # Without stacks nothing is said of them.
        self.assertNotIn("caller", self.run_tool("summary", self.write(good())).stdout)

    def test_ranks_of_one_gpu(self) -> None:
        def rank(number: int, uuid: str) -> str:
            return self.write([header(rank=number), ev(1, "device", d=0, name="GPU", uuid=uuid), *good()[1:]], f"r{number}.jsonl")

        paths = [rank(0, "11-aa"), rank(1, "22-bb"), rank(2, "11-aa")]
        out = self.run_tool("summary", *paths).stdout
        self.assertIn("rank 0 device 0: GPU, 11-aa, which is rank 2 device 0 too\n", out)
        self.assertIn("rank 1 device 0: GPU, 22-bb\n", out)
        self.assertEqual([r["devices"]["0"]["uuid"] for r in json.loads(self.run_tool("summary", "--json", *paths).stdout)["ranks"]], ["11-aa", "22-bb", "11-aa"])

    def test_callers_behind_an_allocator(self) -> None:
        """All requests come from one place there, so it is those who called it that are told apart, by what only they have."""
        names = {1: "pool.so+0x1", 2: "ops.so+0x2", 3: "ops.so+0x3", 4: "app+0x4", 5: "app+0x5", 6: "blas.so+0x6"}
        stacks = [[1, 2, 4], [1, 2, 5], [1, 3, 5], [1, 3, 5], [6, 3, 5], [1, 2]]
        events = [header(), *({"t": 1, "e": "frame", "tid": 42, "f": f, "p": "0x1", "at": at} for f, at in names.items()),
                  ev(2, "segment_alloc", p=BASE, n=64 * MIB), *(ev(3 + i, "alloc", p=BASE + i * MIB, n=MIB, f=f) for i, f in enumerate(stacks))]
        with unittest.mock.patch.object(replay, "MOST_STACKS", 4):
            rank = replay.Rank(self.write(events))
        few = summary.callers(rank, rank.replay.devices[0])
        self.assertEqual([(c["caller"], c["requests"]) for c in few][:2], [("pool.so+0x1 for ops.so+0x3", 2), ("blas.so+0x6", 1)])
        self.assertIn(("unknown", 1), [(c["caller"], c["requests"]) for c in few])
        every = self.summary(self.write(events))["ranks"][0]["devices"]["0"]["callers"]
        self.assertEqual({c["caller"]: c["live_at_peak"] // MIB for c in every}, {
            "pool.so+0x1 for app+0x4": 1, "pool.so+0x1 for app+0x5": 1, "pool.so+0x1 for ops.so+0x3": 2, "blas.so+0x6": 1,
            "pool.so+0x1 for ops.so+0x2": 1})
        self.assertEqual([c["stack"] for c in every if c["caller"] == "pool.so+0x1 for app+0x5"], [["pool.so+0x1", "ops.so+0x2", "app+0x5"]])

    def test_callers_whenever_the_peak_is(self) -> None:
        """Against what adding up at every moment finds."""
        for seed in range(20):
            r = random.Random(seed)
            events: list[Event] = [header(), ev(1, "segment_alloc", p=BASE, n=64 * MIB)]
            live: dict[int, tuple[int, int]] = {}
            most, held = 0, [0] * 4
            requests = [0] * 4
            for t in range(2, 300):
                p = BASE + 65536 * r.randrange(40)
                if p in live:
                    events.append(ev(t, "free_requested", p=p, n=live.pop(p)[0]))
                    continue
                n, f = 512 * r.randrange(1, 129), r.randrange(1, 4)
                live[p] = n, f
                requests[f] += 1
                events.append(ev(t, "alloc", p=p, n=n, f=[f, 1]))
                if sum(size for size, _ in live.values()) > most:
                    most = sum(size for size, _ in live.values())
                    held = [sum(size for size, who in live.values() if who == f) for f in range(4)]
            events[1:1] = [{"t": 0, "e": "frame", "tid": 42, "f": f, "p": "0x1", "at": str(f)} for f in range(1, 4)]
            rank = replay.Rank(self.write(events))
            dev = summary.device_summary(rank, rank.replay.devices[0])
            self.assertEqual(dev["peak_live"], most)
            self.assertEqual({c["caller"]: (c["live_at_peak"], c["requests"]) for c in dev["callers"]}, {str(f): (held[f], requests[f]) for f in range(1, 4)})

    def test_registrations(self) -> None:
        """Memory that two communicators have counts once, and goes with the last of them, undone or ended."""
        at = {"p": BASE, "n": 2 * MIB, "us": 1.5, "ok": 1, "d": 0}
        more = {**at, "p": BASE + 2 * MIB, "n": 4 * MIB}
        nccl = dict.fromkeys(schema.NCCL, 0)
        events = [header(), ev(1, "comm_init", d=0, comm="0x1", rank=0, ranks=2, nccl=22809), ev(1, "comm_init", d=0, comm="0x2", rank=0, ranks=2, nccl=22809),
                  ev(2, "register", comm="0x1", **at), ev(3, "register", comm="0x2", **at), ev(4, "register", comm="0x2", **more),
                  ev(5, "register", comm="0x1", **{**more, "ok": 0}), ev(6, "deregister", comm="0x1", **at)]
        end = [ev(7, "comm_destroy", d=0, comm="0x2", ok=0), ev(8, "nccl", **{**nccl, "ops": 9, "mixed": 2, "quarantined": MIB}), ev(9, "end", dropped=0)]
        keys = ("registrations", "deregistrations", "registrations_refused", "communicators", "peak_registered", "registered_at_end")
        path = self.write([*events, *end])
        for content, left in ((events, 6 * MIB), ([*events, *end], 0)):
            rank, = self.summary(self.write(content))["ranks"]
            self.assertEqual([rank["devices"]["0"][k] for k in keys], [3, 1, 1, 2, 6 * MIB, left])
        self.assertEqual(rank["nccl"]["ops"], 9)
        done = self.run_tool("summary", path)
        self.assertIn("registered with 2 NCCL communicators: 6.0 MiB at most, 0 B at the end; 3 registrations, 1 undone, 1 refused", done.stdout)
        self.assertIn("rank 0: 9 NCCL operations; 2 with one buffer in registered memory and one outside\n", done.stdout)
        self.assertIn("rank 0: 1.0 MiB can never go back", done.stdout)
        self.assertNotIn("registered with", self.run_tool("summary", self.write(good())).stdout)
        # The pool had no part in it, so nothing of it is missing, and there is nothing to say of it.
        self.assertNotIn("no stats line", done.stdout + self.check([*events, *end], 0))
        # Memory that is registered anew with what lies beside it overlaps what it was registered with before.
        anew = [ev(5, "register", comm="0x2", **{**at, "p": BASE - MIB, "n": 4 * MIB}), ev(6, "deregister", comm="0x2", **{**at, "p": BASE - MIB, "n": 4 * MIB})]
        for content, most, left in (([*events, anew[0]], 7 * MIB, 7 * MIB), ([*events, *anew], 7 * MIB, 6 * MIB), ([*events, *anew, *end], 7 * MIB, 0)):
            rank, = self.summary(self.write(content))["ranks"]
            self.assertEqual([rank["devices"]["0"][k] for k in keys[-2:]], [most, left])
        self.assertNotRegex(done.stdout, r"requests +hits")

    def test_two_ranks_two_devices_and_totals(self) -> None:
        second = copy.deepcopy(good())
        second[0].update(rank=1, local_rank=1, pid=43)
        other = [{**e, "d": 1} if "d" in e else e for e in good()[1:-1]]
        second[1:1] = other
        a, b = self.write(second, "b.jsonl"), self.write(good(), "a.jsonl")
        got = self.summary(a, b)
        self.assertEqual([r["rank"] for r in got["ranks"]], [0, 1])
        self.assertEqual(list(got["ranks"][1]["devices"]), ["0", "1"])
        self.assertEqual((got["total"]["requests"], got["total"]["hit_rate"], got["total"]["peak_held"]), (12, 0.5, 66 * MIB))
        self.assertRegex(self.run_tool("summary", a, b).stdout, re.compile(r"^all +12 +6 +6 +50.0% +~600 us", re.M))

    def test_problems_are_mentioned(self) -> None:
        done = self.run_tool("summary", self.write(good()[1:]))
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 problem; see cupool-trace check", done.stdout)

    def test_no_event_at_all(self) -> None:
        done = self.run_tool("summary", self.write([header(None)]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("pid 42: no event on any device", done.stdout)
