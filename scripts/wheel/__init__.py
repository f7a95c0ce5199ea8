# SPDX-License-Identifier: Apache-2.0
"""cupool as a Python package: the installed folder is `prefix` beside this file, and the commands are started from there.

PREFIX / "lib/libcupool.so" is the library, for LD_PRELOAD. No function is needed to use cupool: see cupool-run --help.
scripts/packages puts this file into the wheel; it is no part of a build or an installed folder.
"""
import os
import sys
from pathlib import Path
from typing import NoReturn

PREFIX = Path(__file__).resolve().parent / "prefix"


def _become(name: str) -> NoReturn:
    """The process becomes the program, so that its id, signals and exit status are the program's."""
    path = str(PREFIX / "bin" / name)
    os.execv(path, [path, *sys.argv[1:]])


def run() -> NoReturn:
    _become("cupool-run")


def info() -> NoReturn:
    _become("cupool-info")


def replay() -> NoReturn:
    _become("cupool-replay")


def _python(name: str) -> NoReturn:
    """With this Python, which need not be the one of env's PATH."""
    path = str(PREFIX / "bin" / name)
    os.execv(sys.executable, [sys.executable, path, *sys.argv[1:]])


def trace() -> NoReturn:
    _python("cupool-trace")


def ctl() -> NoReturn:
    _python("cupool-ctl")
