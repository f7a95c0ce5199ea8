# SPDX-License-Identifier: Apache-2.0
"""Runs cupool-trace in a process of its own, as subprocess.run does, but a fork of this one: Python's start and the reading of the
tool's modules would take ten times as long as the tool itself, and the tests run it a thousand times.

Tests of the start of the tool, and tests that feed it, start scripts/cupool-trace instead.
"""

import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest
from pathlib import Path
from typing import Any, Callable, Optional

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "scripts" / "cupool-trace"
sys.path.insert(0, str(ROOT / "scripts"))
from cupool_trace.cli import main  # noqa: E402


def child(tool: "Callable[[list[str]], int]", args: "list[str]", env: "Optional[dict[str, str]]", out: int, err: int,
          seconds: int) -> None:
    status: Any = 1
    try:
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        signal.alarm(seconds)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, errors="backslashreplace")
        try:
            status = tool(args)
        except SystemExit as e:
            status = e.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stderr.flush()
        os._exit(status or 0)


def run(*args: object, stdin: Optional[bytes] = None, seconds: int = 60, env: "Optional[dict[str, str]]" = None,
        path: Path = TOOL, tool: "Callable[[list[str]], int]" = main) -> "subprocess.CompletedProcess[str]":
    """Another tool than cupool-trace: where it lies, and what it calls first."""
    words = [str(a) for a in args]
    # A fork has this thread only, and may find a lock taken by one that it has not.
    if stdin is not None or threading.active_count() != 1:
        command = [sys.executable, str(path), *words]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=seconds, env=env)
        return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            child(tool, words, env, out.fileno(), err.fileno(), seconds)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(words, seconds)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, status, out.read().decode(), err.read().decode())


def terminal() -> "tuple[int, int]":
    """A pseudo-terminal's two ends, for a test that needs one."""
    try:
        return pty.openpty()
    except OSError as e:  # an empty system may have no /dev/pts
        raise unittest.SkipTest(f"no pseudo-terminal: {e}")
