# SPDX-License-Identifier: Apache-2.0
"""Which settings of a trace's processes are not the default. The defaults are those that cupool-info prints, so there is no second list
of settings here; without cupool-info none is known.

Not here: settings that differ between ranks (check, overview).
"""
from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from typing import Iterable, Optional

from .check import OUTPUT_ONLY
from .schema import Event

_SETTING = re.compile(r"^(CUPOOL_\w+)=.*\n(?: +.*\n)*? +accepted: .*; default: (.*); value from: ", re.MULTILINE)


def find_program() -> Optional[str]:
    """cupool-info: beside cupool-trace where both are installed; in the source tree, in the folder that scripts/build uses."""
    here = os.path.dirname(os.path.realpath(sys.argv[0]))
    build = os.path.join(os.path.dirname(here), os.environ.get("BUILDDIR", "build"))
    beside = (os.path.join(here, "cupool-info"), os.path.join(build, "shim", "cupool-info"))
    return next((path for path in beside if os.access(path, os.X_OK)), None) or shutil.which("cupool-info")


@functools.lru_cache(maxsize=None)
def defaults(program: Optional[str]) -> dict[str, str]:
    """By setting; empty where cupool-info is not there or does not answer."""
    if not program:
        return {}
    env = {k: v for k, v in os.environ.items() if not k.startswith("CUPOOL_") and k != "LD_PRELOAD"}
    try:
        done = subprocess.run([program, "--settings"], env=env, capture_output=True, encoding="utf-8", errors="replace", timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {name: "" if value == "(none)" else value for name, value in _SETTING.findall(done.stdout)}


def changed(headers: Iterable[Event], known: dict[str, str]) -> list[str]:
    """NAME=VALUE of each setting that is not the default, and in how many processes where these differ. Settings that only say where
    output goes are left out."""
    counts: dict[str, int] = {}
    total = 0
    for h in headers:
        total += 1
        for name, value in h.get("settings", {}).items():
            if name in known and name not in OUTPUT_ONLY and str(value) != known[name]:
                text = f"{name}={value}"
                counts[text] = counts.get(text, 0) + 1
    return [text if n == total else f"{text} (in {n} of {total} processes)" for text, n in counts.items()]
