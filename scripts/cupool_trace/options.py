# SPDX-License-Identifier: Apache-2.0
"""Values of options: each function takes the text, or raises ArgumentTypeError with a sentence for the user.

Not here: which command has which option.
"""
from __future__ import annotations

import os
from argparse import ArgumentTypeError

LATEST = float(1 << 53) / 1e9  # seconds; nanoseconds beyond are no longer exact


def positive(text: str) -> int:
    return _whole(text, 1, "a whole number from 1 on")


def natural(text: str) -> int:
    return _whole(text, 0, "a whole number from 0 on")


def seconds(text: str) -> float:
    """Later than LATEST is LATEST."""
    return min(_number(text, "seconds from 0 on"), LATEST)


def nanoseconds(text: str) -> int:
    """Of microseconds."""
    us = _number(text, "microseconds from 0 on")
    if us >= 1e15:
        raise ArgumentTypeError(f"'{text}': more microseconds than a trace can have")
    return round(us * 1000)


def folder(text: str) -> str:
    if not os.path.isdir(text):
        raise ArgumentTypeError(f"'{text}': no such folder")
    return text


def _whole(text: str, least: int, what: str) -> int:
    try:
        n = int(text)
    except ValueError:
        n = least - 1
    if n < least:
        raise ArgumentTypeError(f"'{text}': {what} is needed")
    return n


def _number(text: str, what: str) -> float:
    try:
        n = float(text)
    except ValueError:
        n = -1.0
    if not n >= 0:  # also for what is not a number
        raise ArgumentTypeError(f"'{text}': {what} are needed")
    return n
