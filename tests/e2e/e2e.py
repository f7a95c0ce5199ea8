# SPDX-License-Identifier: Apache-2.0
"""The end-to-end tests share this: paths, starting a program with the library preloaded, reading its trace and the simulated
GPU's own count of calls.

Paths come from the environment that tests/e2e/meson.build sets.
"""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar, Union

# Programs inherit ignored signals, and nohup ignores this one.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

LIB = Path(os.environ["E2E_LIB"])
INFO = Path(os.environ["E2E_INFO"])
SIM = Path(os.environ["E2E_SIM"])
BIN = Path(os.environ["E2E_BIN"])
SOURCE = Path(os.environ["E2E_SOURCE"])
HEADERS = os.environ["E2E_HEADERS"]
SANITIZE = os.environ.get("E2E_SANITIZE", "none")
COVERAGE = os.environ.get("E2E_COVERAGE") == "true"
# Of what a process may do, prints or holds at its exit: with gcc's counters, it writes files then.
not_with_coverage = unittest.skipIf(COVERAGE, "the counters of coverage are written at exit")
sys.path.insert(0, str(SOURCE / "tests" / "scripts"))
import tool  # noqa: E402
from tool import TOOL as TRACE_TOOL  # noqa: E402,F401

# A hang is a failure, and must not wait for meson to say so. Sanitizers are slow.
TIMEOUT = 60 if SANITIZE == "none" else 120

MIB = 1 << 20
Word = Union[str, Path]
T = TypeVar("T")


def app(kind: str) -> Path:
    return BIN / f"app_{kind}"


def station_of(card: Path, number: int, device: int = 0, version: int = 1) -> str:
    """The address at which a process with a simulated card (SIMGPU_SHARED) is asked for memory."""
    uuid = b"simulated-" + struct.pack(">I", card.stat().st_ino & 0xffffffff) + f"{device:02d}".encode()
    return f"\0cupool-{version}-{os.getuid()}-{uuid.hex()}-{number}"


def full_pipe() -> tuple[int, int]:
    """The descriptors of a pipe, to read from and to write to. A write to it blocks."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    return read, write


class Trace:
    """One trace file, every line parsed. A line that is no JSON object is an error of the test, unless it is the last and cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()
        lines = self.text.split("\n")
        self.cut = lines.pop() != ""  # after the last newline there is nothing
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.header = self.lines[0]
        self.events = self.lines[1:]

    def of(self, *names: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["e"] in names]

    def total(self, key: str) -> int:
        """A counter at the end, summed over the stats lines of all devices."""
        return sum(e[key] for e in self.of("stats") if "why" not in e)

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1]["e"] == "end"


class Done:
    """A program that has run: its exit code and output, what it left in its folder, the calls that the simulated GPU counted."""

    def __init__(self, done: "subprocess.CompletedProcess[str]", cwd: Path, counts: Path) -> None:
        self.rc, self.out, self.err, self.cwd = done.returncode, done.stdout, done.stderr, cwd
        self.files = sorted(p.name for p in cwd.iterdir())
        self.counts: dict[str, int] = {}  # of all processes together
        for line in counts.read_text().split("\n") if counts.exists() else []:
            if line.count(" ") == 2:  # a program at its file size limit may have cut the last one
                _, name, n = line.split()
                self.counts[name] = self.counts.get(name, 0) + int(n)

    def traces(self) -> list[Trace]:
        return [Trace(self.cwd / f) for f in self.files if ".jsonl" in f]

    @property
    def warnings(self) -> list[str]:
        """The library's messages, without their prefix."""
        return [line.split(": ", 1)[1] for line in self.err.split("\n") if line.startswith("cupool[")]


def stop(pid: int) -> None:
    """Returns once no thread of the process runs."""
    os.kill(pid, signal.SIGSTOP)
    while any(") T" not in path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")):
        time.sleep(0.001)


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self) -> None:
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.tmp = Path(tmp.name).resolve()

    def env(self, preload: Optional[str] = str(LIB), **more: Optional[Word]) -> dict[str, str]:
        """A small environment of its own: nothing of who runs the tests gets in, least of all a launcher's variables. GCOV_PREFIX is of
        scripts/mutate."""
        env = {k: v for k, v in os.environ.items()
               if k in ("PATH", "HOME", "TMPDIR", "GCOV_PREFIX") or k.endswith("SAN_OPTIONS")}
        env.update(LD_LIBRARY_PATH=str(SIM), SIMGPU_DELAY_US="0")
        # The thread sanitizer sleeps for a second at the exit of each of thousands of programs, to see what threads do then; the
        # behaviour tests leave it that.
        if "thread" in SANITIZE:
            env["TSAN_OPTIONS"] = env.get("TSAN_OPTIONS", "") + ":atexit_sleep_ms=0"
        if preload:
            env["LD_PRELOAD"] = preload
        for k, v in more.items():
            if v is None:
                env.pop(k, None)
            else:
                env[k] = str(v)
        return env

    def folder(self) -> Path:
        """An empty one, of its own also where a test runs several programs at a time."""
        return Path(tempfile.mkdtemp(prefix="run", dir=self.tmp))

    def go(self, *args: Word, preload: Optional[str] = str(LIB), cwd: Optional[Path] = None, rc: Optional[int] = 0,
           timeout: float = TIMEOUT, **more: Optional[Word]) -> Done:
        """Run a program in a folder of its own. rc: what it has to exit with; None: anything."""
        cwd = cwd or self.folder()
        counts = self.tmp / f"counts-{cwd.name}"
        env = self.env(preload, **more)
        env.setdefault("SIMGPU_COUNTS", str(counts))
        done = subprocess.run([str(a) for a in args], env=env, cwd=cwd, capture_output=True, text=True, timeout=timeout,
                              errors="replace")
        result = Done(done, cwd, counts)
        if rc is not None:
            self.assertEqual(result.rc, rc, f"{[str(a) for a in args]}\n{result.out}{result.err}")
        return result

    def wait_for(self, what: "Callable[[], T]", name: str = "") -> "T":
        """Until it is true. A wait in vain is a failure."""
        limit = time.monotonic() + TIMEOUT
        while not (found := what()):
            self.assertLess(time.monotonic(), limit, f"no {name}")
            time.sleep(0.005)
        return found

    def running(self, *words: str, then: "Callable[[subprocess.Popen[str], Path], None]", rc: int = 0, stderr: int = subprocess.PIPE,
                **env: str) -> "tuple[str, str, Path]":
        """Start report.c's program, wait for its word "ready", do something to it, let it go on past "await:go"; its output, errors,
        folder."""
        cwd = self.folder()
        child = subprocess.Popen([BIN / "report_shared", *words], env=self.env(**env), cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=stderr)
        try:
            self.wait_for(lambda: (cwd / "ready").exists() or child.poll() is not None, "ready")
            then(child, cwd)
            (cwd / "go").touch()
            out, err = child.communicate(timeout=TIMEOUT)
        finally:
            child.kill()
            child.wait()
        self.assertEqual(child.returncode, rc, out + (err or ""))
        return out, err or "", cwd

    def assert_quick(self, seconds: float, run: "Callable[[], T]") -> "T":
        """It waits for nothing that long: of some tries one is quicker, however busy the machine is."""
        for _ in range(10 if SANITIZE == "none" else 1):
            before = time.monotonic()
            result = run()
            if time.monotonic() - before < seconds or SANITIZE != "none":
                return result
        self.fail(f"each of ten tries took longer than {seconds} s")

    def signal_until(self, child: "subprocess.Popen[Any]", number: int, answered: "Callable[[], object]") -> None:
        """Send a signal and wait for the answer. The thread sanitizer loses one in some tens, so there it is sent again."""
        limit = time.monotonic() + TIMEOUT
        again = 0.0
        while not answered():
            now = time.monotonic()
            self.assertLess(now, limit, "no answer to the signal")
            if not again or ("thread" in SANITIZE and now > again):
                child.send_signal(number)
                again = now + 5
            time.sleep(0.005)

    def one_trace(self, done: Done) -> Trace:
        self.assertEqual(len(done.traces()), 1, done.files)
        return done.traces()[0]

    def assert_fine(self, *traces: Path, complete: bool = True) -> None:
        """cupool-trace check has nothing to say about them, not even a warning."""
        done = tool.run("check", *(["--complete"] if complete else []), *traces)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("warning", done.stdout)


def mpirun() -> str:
    """By its name: called by a path, Open MPI's puts the libraries beside it first, and a real driver may be there."""
    need("mpirun")
    return "mpirun"


def need(program: str) -> str:
    path = shutil.which(program)
    if not path:
        raise unittest.SkipTest(f"{program} is not installed")
    return path
