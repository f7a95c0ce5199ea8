# SPDX-License-Identifier: Apache-2.0
"""Where a conversion goes: standard output, or a file that has its name only once it is whole.

Here: the option -o, and what must be refused before a file is harmed. Not here: it knows no format.
"""
from __future__ import annotations

import argparse
import codecs
import contextlib
import os
import sys
from typing import BinaryIO, Callable, Iterator, Optional, TextIO, cast


class CannotWrite(Exception):
    """The output cannot be had, or must not be."""


def add_argument(parser: argparse.ArgumentParser, more: str = "") -> None:
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE, replacing it, not to standard output" + more)


@contextlib.contextmanager
def binary_output(path: Optional[str], inputs: list[str], text: bool = False) -> Iterator[BinaryIO]:
    """A file to write to. If writing fails, a file that was there before is still there."""
    if path is None or path == "-":
        if not text and sys.stdout.isatty():
            raise CannotWrite("standard output is a terminal, which cannot show this; use -o FILE")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = os.path.realpath(path)
    if any(os.path.exists(i) and os.path.exists(target) and os.path.samefile(i, target) for i in inputs):
        raise CannotWrite(f"{path}: is what is to be read")
    if os.path.exists(target) and not os.path.isfile(target):  # a pipe or a device: there is nothing to keep
        with open(target, "wb") as f:
            yield f
        return
    part = f"{target}.{os.getpid()}.part"
    try:
        with open(part, "xb") as f:
            yield f
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


@contextlib.contextmanager
def text_output(path: Optional[str], inputs: list[str]) -> Iterator[TextIO]:
    """A text file to write to. It is UTF-8 in every locale: a program reads it, perhaps on another machine."""
    with binary_output(path, inputs, text=True) as raw:
        # Not a TextIOWrapper: its destructor closes the file below it, which may be standard output.
        yield cast(TextIO, codecs.getwriter("utf-8")(raw, "backslashreplace"))


def guarded(path: Optional[str], convert: Callable[[], int]) -> int:
    """Run a whole conversion: an error of its output becomes a line on stderr and exit status 2."""
    try:
        return convert()
    except CannotWrite as e:
        print(f"cupool-trace: {e}", file=sys.stderr)
    except BrokenPipeError:
        raise
    except OSError as e:  # an error of an input is a CannotRead
        print(f"cupool-trace: {path or 'standard output'}: {e.strerror or e}", file=sys.stderr)
        with contextlib.suppress(OSError):
            # Python writes unwritten bytes once more when it ends, which must not fail again.
            stdout = sys.stdout.fileno()
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return 2
