# SPDX-License-Identifier: Apache-2.0
"""examples/checkpoint on simulated GPUs: files and state are equal byte for byte however the program is started, and a checkpoint is
complete or none, whatever fails and whenever the job is killed.

It measures nothing; tests/gpu/checkpoint prints tables.
"""

import random
import re
import shutil
import unittest
from pathlib import Path
from typing import Callable, Optional

from e2e import SOURCE
from jobs import RANKS, Base, Job

MIB = 1 << 20
SIZE = ["--size", str(4 * MIB), "--tensors", "3"]  # a tensor is several writes
STEPS = ["--steps", "10", "--every", "3", "--keep", "2"]  # saves 3, 6, 9
SAVED, LAST = [3, 6, 9], [6, 9]
LATE = {"SIMGPU_DELAY_US": "300"}
WORST = {"SIMGPU_ADVERSARY": "11"}
FRESH = ["--buffers", "fresh", "--scratch", "fresh"]
# The program's options, cupool-run's, the environment.
ROWS: "dict[str, tuple[list[str], Optional[list[str]], dict[str, str]]]" = {
    "native": (["--mode", "sync"], None, {}),
    "native, fresh": (["--mode", "sync", *FRESH], None, {}),
    "native, async": (["--mode", "async"], None, LATE),
    "native, async, fresh": (["--mode", "async", *FRESH], None, LATE),
    "one writer": (["--mode", "async", "--writers", "1"], None, WORST),
    **{f"{policy}, {mode}, {'fresh' if fresh else 'kept'}": (["--mode", mode, *fresh], [f"--free={policy}"], gpu)
       for policy, gpu in (("auto", LATE), ("ordered", WORST), ("relaxed", LATE)) for mode in ("sync", "async") for fresh in ([], FRESH)},
}
if "HOST_POOL" in (SOURCE / "shim" / "conf.def").read_text():
    ROWS.update({f"host pool, {gpu}": (["--mode", "async", *FRESH], [], {"CUPOOL_HOST_POOL": "1", **env})
                 for gpu, env in (("late", LATE), ("worst", WORST))})


def files(folder: Path) -> "dict[str, bytes]":
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def digest(job: Job) -> str:
    found, = re.findall(r"^checkpoint: state after step \d+: digest ([0-9a-f]{16})$", job.out, re.M)
    return str(found)


def saved(job: Job) -> "list[int]":
    return [int(n) for n in re.findall(r"^checkpoint: step (\d+) saved;", job.out, re.M)]


def operations(job: Job) -> int:
    return int(re.findall(r"^operations on files: (\d+)$", job.out, re.M)[0])


class CheckpointCase(Base):
    def where(self) -> Path:
        return self.folder() / "checkpoints"

    def save(self, where: Path, *args: str, options: "Optional[list[str]]" = None, rc: int = 0, **more: str) -> Job:
        return self.one("checkpoint", "--dir", str(where), *SIZE, *STEPS, *args, options=options, rc=rc, **more)

    def resume(self, where: Path, *args: str, **more: str) -> Job:
        return self.save(where, "--resume", "yes", *args, **more)

    def newest(self, where: Path) -> "Optional[int]":
        """The newest complete checkpoint. Each byte of all of them is right."""
        job = self.one("checkpoint", "--dir", str(where), "--verify", "yes", rc=0 if list(where.glob("*/manifest")) else 3)
        self.assertNotIn("damaged", job.out)
        found = re.findall(r"^checkpoint: step (\d+), \d+ shards, intact", job.out, re.M)
        return int(found[0]) if found else None

    def right(self) -> "tuple[Job, dict[str, bytes]]":
        """A run that nothing disturbs."""
        where = self.where()
        job = self.save(where, "--mode", "sync")
        self.assertEqual((saved(job), job.err), (SAVED, ""))
        return job, files(where)


class Equal(CheckpointCase):
    def test_all(self) -> None:
        right, tree = self.right()
        self.assertEqual(sorted(tree), [f"step-{n:08d}/{f}" for n in LAST for f in ("manifest", "shard-0")])
        none = self.save(self.where(), "--mode", "none")
        self.assertEqual((digest(none), saved(none)), (digest(right), []))
        for name, (args, options, env) in ROWS.items():
            where = self.where()
            job = self.save(where, *args, options=options, **env)
            self.assertEqual((digest(job), saved(job), job.err, files(where) == tree), (digest(right), SAVED, "", True), name)
            self.assertEqual(self.newest(where), 9)

    def test_resumed(self) -> None:
        right, tree = self.right()
        for name, (args, options, env) in ROWS.items():
            where = self.where()
            self.save(where, "--steps", "7", *args)
            job = self.resume(where, *args, options=options, **env)
            self.assertIn("checkpoint: goes on after step 6\n", job.out)
            self.assertEqual((digest(job), saved(job), files(where) == tree), (digest(right), [9], True), name)

    def test_nothing_is_overwritten(self) -> None:
        where = self.where()
        self.save(where)
        before = files(where)
        self.assertIn("has checkpoints; --resume yes, or another folder", self.save(where, rc=1).err)
        self.assertEqual(files(where), before)

    def test_wrong_options(self) -> None:
        for args in ["--mode", "other"], ["--every", "0"], ["--fault", "0:kill"], ["--fault", "3:E"], ["--tensors", "65"], ["--size"], ["--x", "1"]:
            self.assertTrue(self.save(self.where(), *args, rc=2).err.startswith("usage: checkpoint "), args)
        self.assertTrue(self.one("checkpoint", rc=2).err.startswith("usage: checkpoint "))


class Failing(CheckpointCase):
    """Moments are numbers of operations on files, one drawn from each part of a run."""

    def moments(self, n: int, first: int, last: int) -> "list[int]":
        draw, parts = random.Random(n), last + 1 - first
        return [draw.randrange(first + parts * i // n, first + parts * (i + 1) // n) for i in range(n)]

    def test_killed(self) -> None:
        right, tree = self.right()
        rows = list(ROWS.values())
        seen = set()
        for i, moment in enumerate([*self.moments(20, 1, operations(right)), *range(operations(right) - 2, operations(right) + 1)]):
            args, options, env = rows[i % len(rows)]
            where, how = self.where(), f"killed before operation {moment}, {args} {options}"
            self.save(where, *args, "--fault", f"{moment}:kill", options=options, rc=-9, **env)
            newest = self.newest(where)
            seen.add(newest)
            self.assertIn(newest, [None, *SAVED], how)
            self.assertLessEqual(len(list(where.glob("*/manifest"))), 3, how)  # the third one was being removed
            job = self.resume(where, *args, options=options, **env)
            self.assertEqual((digest(job), files(where) == tree), (digest(right), True), how)
            self.assertEqual(f"goes on after step {newest}\n" in job.out, newest is not None, how)
        self.assertEqual(seen, {None, *SAVED})

    def test_a_failing_disk(self) -> None:
        right, tree = self.right()
        rows = list(ROWS.values())
        for i, moment in enumerate(self.moments(20, 2, operations(right) - 3)):  # the last three remove a checkpoint
            error, text = (("ENOSPC", "No space left on device"), ("EIO", "Input/output error"))[i % 2]
            args, options, env = rows[i % len(rows)]
            where, how = self.where(), f"{error} at operation {moment}, {args} {options}"
            job = self.save(where, *args, "--fault", f"{moment}:{error}", options=options, rc=1, **env)
            lost, = set(SAVED) - set(saved(job))
            before = max((n for n in SAVED if n < lost), default=None)
            self.assertRegex(job.err, rf"^checkpoint: rank 0: step {lost} is not saved: \w+ .*: {text}\n", how)
            self.assertIn("there is no complete one" if before is None else f"the last complete one is step {before}\n", job.err, how)
            self.assertEqual(digest(job), digest(right), how)
            there = files(where)
            self.assertEqual({f: tree[f] == data for f, data in there.items() if f in tree}, {f: True for f in there if f in tree}, how)
            self.assertEqual(sorted({f.split("/")[0] for f in there}), [f"step-{n:08d}" for n in SAVED if n != lost], how)
            self.assertEqual(self.newest(where), max(n for n in SAVED if n != lost), how)

    def test_no_room(self) -> None:
        """A device that is full, and a folder that is none."""
        errors = {"no room": "write {}/step-00000006/shard-0.new: No space left on device",
                  "no folder": "open {}/step-00000006/shard-0.new: Not a directory"}
        right, tree = self.right()
        for name, says in errors.items():
            for options in None, ["--free=ordered"]:
                where = self.where()
                self.save(where, "--steps", "4")
                if name == "no room":
                    (where / "step-00000006").mkdir()
                    (where / "step-00000006" / "shard-0.new").symlink_to("/dev/full")
                else:
                    (where / "step-00000006").symlink_to("/dev/null")
                job = self.resume(where, options=options, rc=1)
                self.assertEqual(job.err, f"checkpoint: rank 0: step 6 is not saved: {says.format(where)}\n"
                                          "checkpoint: the last complete one is step 3\n")
                self.assertEqual((saved(job), digest(job), self.newest(where)), ([9], digest(right), 9))
                self.assertEqual(files(where / "step-00000009")["shard-0"], tree["step-00000009/shard-0"])

    def test_no_folder(self) -> None:
        where = self.where()
        where.write_text("a file")
        self.assertIn(f"mkdir {where}/in: Not a directory", self.save(where / "in", rc=1).err)
        self.assertIn(f"mkdir {where}: No space left on device", self.save(where, "--fault", "1:ENOSPC", rc=1).err)

    def test_damage(self) -> None:
        def flip(at: int) -> "Callable[[Path], None]":
            def change(folder: Path) -> None:
                data = bytearray((folder / "shard-0").read_bytes())
                data[at] ^= 4
                (folder / "shard-0").write_bytes(data)
            return change

        def cut(folder: Path) -> None:
            (folder / "shard-0").write_bytes((folder / "shard-0").read_bytes()[:-5000])

        def change_manifest(folder: Path) -> None:
            (folder / "manifest").write_text((folder / "manifest").read_text().replace("shard-0", "shard-1"))

        def other_shard(folder: Path) -> None:
            shutil.copy(folder.parent / "step-00000006" / "shard-0", folder / "shard-0")

        right, _ = self.right()
        saying: "dict[str, Callable[[Path], None]]" = {
            "a tensor is damaged": flip(4096 + 77777), "its header is damaged": flip(100), "ends too early": cut,
            "No such file": lambda folder: (folder / "shard-0").unlink(), "a shard is another's": other_shard, "": change_manifest}
        for says, damage in saying.items():
            where = self.where()
            self.save(where)
            damage(where / "step-00000009")
            out = self.one("checkpoint", "--dir", str(where), "--verify", "yes").out
            self.assertIn("checkpoint: step 6, 1 shards, intact", out)
            if says:
                self.assertIn(says, out)
            job = self.resume(where)
            self.assertIn("checkpoint: goes on after step 6\n", job.out)
            self.assertEqual((digest(job), saved(job)), (digest(right), [9]), says)


class Distributed(CheckpointCase):
    PROGRAM = ["checkpoint", "--size", str(MIB), "--tensors", "4", *STEPS]

    def ranks(self, where: Path, *args: str, options: "Optional[list[str]]" = None, fine: bool = True) -> Job:
        return self.mpirun([*self.PROGRAM, "--dir", str(where), *args], options, fine)

    def test_all(self) -> None:
        where = self.where()
        right = self.ranks(where, "--mode", "sync")
        tree = files(where)
        self.assertEqual(sorted(tree), [f"step-{n:08d}/{f}" for n in LAST for f in ("manifest", *(f"shard-{r}" for r in range(RANKS)))])
        self.assertEqual(len(set(tree.values())), len(tree), "ranks have states of their own")
        for mode, options in ("async", None), ("async", ["--free=ordered"]), ("sync", []):
            where = self.where()
            job = self.ranks(where, "--mode", mode, *FRESH, options=options)
            self.assertEqual((digest(job), saved(job), files(where) == tree), (digest(right), SAVED, True))
            self.assertIn("slowest start", job.out)

        for at, what in (5, "kill"), (25, "kill"), (13, "ENOSPC"), (16, "EIO"):  # of 27
            where, how = self.where(), f"{what} at {at}"
            job = self.ranks(where, "--fault", f"{at}:{what}", "--fault-rank", "2", options=["--free=ordered"], fine=False)
            if what != "kill":
                lost, = set(SAVED) - set(saved(job))
                self.assertRegex(job.err, rf"checkpoint: rank 2: step {lost} is not saved: .*shard-2", how)
                self.assertEqual(digest(job), digest(right), how)
            self.assertIn(self.newest(where), [None, *SAVED], how)
            again = self.ranks(where, "--resume", "yes")
            self.assertEqual((digest(again), self.newest(where)), (digest(right), 9), how)
        self.assertIn("that of another number of ranks", self.resume(where, rc=1).err)

    def test_without_mpi(self) -> None:
        self.assertIn("need MPI", self.save(self.where(), rc=1, RANK="0", WORLD_SIZE="2").err)
