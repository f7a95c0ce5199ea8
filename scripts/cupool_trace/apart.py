# SPDX-License-Identifier: Apache-2.0
"""One piece of work for each of many files, by as many processes as there are processors.

Here: each (the results, in the order of the files). Not here: it knows nothing of traces. Nobody depends on it: where no process can be
had, or one of them ends, the work is done in this one. Results come back by pickle.
"""
from __future__ import annotations

import os
import signal
import stat
from typing import Callable, Sequence, TypeVar

from . import ahead

T = TypeVar("T")
LEAST = 8 << 20  # bytes of all files; fewer are read before another process has begun
MOST = 32  # processes
_work: list[Callable[[str], object]] = []  # of this call, for the processes that are forked from it


def _size(path: str) -> int:
    """Of a file that another process can read as well; 0: of none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process reports it
    ahead.stay_alone()


def _one(path: str) -> object:
    return _work[-1](path)


def worthwhile(paths: Sequence[str]) -> bool:
    return hasattr(os, "fork") and ahead.processors() > 1 and len(paths) > 1 and sum(map(_size, paths)) >= LEAST


def each(paths: Sequence[str], work: Callable[[str], T]) -> list[T]:
    """work(path) for each path. Its results have to be what pickle can take; an exception of one is raised here."""
    apart = [path for path in paths if _size(path)]
    done: dict[str, T] = {}
    if worthwhile(apart):
        done = _by_others(apart, work)
    return [done[path] if path in done else work(path) for path in paths]


def _by_others(paths: Sequence[str], work: Callable[[str], T]) -> dict[str, T]:
    """As many results as other processes can make."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    done: dict[str, T] = {}
    _work.append(work)
    try:
        workers = min(ahead.processors(), len(paths), MOST)
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin) as pool:
            for path, result in zip(paths, pool.map(_one, paths, chunksize=max(1, len(paths) // (4 * workers)))):
                done[path] = result  # type: ignore[assignment]
    except (OSError, BrokenProcessPool):
        pass
    finally:
        _work.pop()
    return done
