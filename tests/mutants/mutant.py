# SPDX-License-Identifier: Apache-2.0
"""How a hand-written mutant is described: a way to break the library, and which tests notice. scripts/mutate --written runs them.

Mutant(name, tests, edits): tests are names as in `meson test --list`, each with an optional " / " and an argument for it; all
of them have to fail. An edit is (old, new): old occurs exactly once in all of pool/, nccl_reg/ and shim/, whatever its white
space; where that needs too long a text, (old, new, function) names the function that it is in. Files are never named, so code
can move. Keep old short, so that an edit nearby does not break it. If the tests notice a mutant only by chance, times says how
often they may be tried. The mutants are in lists/.
"""
from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    tests: "list[str]"
    edits: "list[tuple[str, ...]]"
    times: int = 1
