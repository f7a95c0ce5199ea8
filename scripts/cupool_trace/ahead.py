# SPDX-License-Identifier: Apache-2.0
"""Items that another process makes while this one works on those before them.

Here: made_ahead (an iterator that runs in a forked child; its items come through a pipe), and worthwhile (is a file long
enough for that?). Not here: it knows nothing of traces, and nobody depends on it: where no child can be had, or it cannot
go on, the items are made here.
"""
from __future__ import annotations

import contextlib
import itertools
import marshal
import os
import signal
import stat
import struct
from typing import Any, BinaryIO, Iterator, Optional

LEAST = 4 << 20  # bytes; a shorter file is read before anybody notices
PIPE = 1 << 20  # bytes that wait in the pipe: who sorts events takes thousands of them, and then none for a while
_HEAD = struct.Struct("=BQ")  # of a message: its kind, and how many bytes follow
_ITEM, _END, _HERE, _LOST = range(4)  # an item; those were all; the others are to be made here; no message: the child is gone
_children: set[int] = set()
_alone = False


class Lost(Exception):
    """The child ended before it was done. Somebody ended it, so its work is not begun again here."""


def processors() -> int:
    """On how many this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stay_alone() -> None:
    """From now on this process makes all items itself: others like it have the other processors."""
    global _alone
    _alone = True


def worthwhile(path: str) -> bool:
    """Is it a long file, and is there a processor for one more child?"""
    if _alone:
        return False
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size >= LEAST and hasattr(os, "fork") and len(_children) + 1 < processors()


def made_ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yields the items of `items`. Making them has side effects in this process only if no child could be had."""
    child = _start(items)
    kind, got = _HERE, 0
    if child:
        pid, pipe = child
        kind = _ITEM
        try:
            while True:
                kind, data = _receive(pipe)
                if kind != _ITEM:
                    break
                yield marshal.loads(data)
                got += 1
        finally:
            pipe.close()
            status = _finish(pid, kind == _ITEM)
        if kind == _LOST:
            raise Lost("the process that read it " + (f"was killed by signal {-status}" if status < 0 else "ended early"))
    if kind == _HERE:
        # Whatever it was: where it stops this process too, that says so as ever. marshal goes less deep than the parser of JSON may go.
        yield from itertools.islice(items, got, None)


def _start(items: Iterator[Any]) -> Optional[tuple[int, BinaryIO]]:
    """A child that makes items: its number, and where they come from. None: there is none."""
    import fcntl  # where there is no fork, there may be no such module

    this = os.getpid()
    try:
        out, into = os.pipe()
    except OSError:
        return None
    try:
        with contextlib.suppress(AttributeError, OSError):  # not everywhere, and not for everybody
            fcntl.fcntl(into, getattr(fcntl, "F_SETPIPE_SZ"), PIPE)
        pid = os.fork()
        if not pid:
            os.close(out)
            _make(items, into)
    except OSError:
        os.close(out)
        return None
    finally:
        # However a child comes here, it must not go on as if it were its parent, nor write what that has not written yet.
        if os.getpid() != this:
            os._exit(0)
        os.close(into)
    _children.add(pid)
    return pid, open(out, "rb")


def _make(items: Iterator[Any], into: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for all processes of a terminal; the parent ends this one
    with open(into, "wb") as pipe:
        last = _END
        try:
            for item in items:
                data = marshal.dumps(item)
                pipe.write(_HEAD.pack(_ITEM, len(data)) + data)
        except Exception:
            last = _HERE
        pipe.write(_HEAD.pack(last, 0))


def _receive(pipe: BinaryIO) -> tuple[int, bytes]:
    head = pipe.read(_HEAD.size)
    kind, size = _HEAD.unpack(head) if len(head) == _HEAD.size else (_LOST, 0)
    data = pipe.read(size)
    return (kind, data) if len(data) == size else (_LOST, b"")


def _finish(pid: int, kill: bool) -> int:
    """Its exit status, as subprocess has it."""
    _children.discard(pid)
    status = 0
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # who started this process may have it ignore children
        if kill:
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status
