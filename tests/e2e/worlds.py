# SPDX-License-Identifier: Apache-2.0
"""Runs of the program world and its plugins, without the library and with it.

Wherever a program can do without the library it is run without it, too, and has to say the same.
"""

from pathlib import Path

from e2e import BIN, LIB, Case, Done, Word

WORLD = BIN / "world"
CHURN = "churn:400:300000"


def module(kind: str) -> Path:
    return BIN / f"world_{kind}.so"


def load(letter: str, kind: str, flags: str = "l") -> str:
    return f"load:{letter}:{flags}:{module(kind)}"


def counted(done: Done) -> int:
    """Allocations that reached the driver; while the program could still write that down."""
    return done.counts.get("cuMemAlloc_v2", 0)


class World(Case):
    def same(self, *commands: str, preload: str = str(LIB), **more: "Word | None") -> Done:
        """Run them without and with the library; both have to say the same, and nothing on stderr."""
        if any(c.startswith("huge:") for c in commands):
            more.setdefault("CUPOOL_LOG_LEVEL", "error")  # the report of what was refused is another file's
        native = self.go(WORLD, *commands, preload=None, **more)
        done = self.go(WORLD, *commands, preload=preload, **more)
        self.assertEqual((done.out, done.err), (native.out, ""))
        return done
