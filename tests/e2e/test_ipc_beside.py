# SPDX-License-Identifier: Apache-2.0
"""CUDA IPC of pooled blocks beside what else a program does: resets of its device, handles of the driver's own, pauses, errors.
The plain cases are in test_ipc.py.
"""
from __future__ import annotations

import unittest

from ipc_process import Base, Process


class Importer(Base):
    def test_memory_at_the_address_of_a_lost_block(self) -> None:
        """A reset ends what was open. What the driver puts there afterwards is the program's."""
        a, b = Process(self), Process(self)
        a.alloc(5000)
        its = b.open(a.handle(a.alloc(3000, 1)), 3000)
        was = b(f"at {its}")
        self.assertEqual(b("reset"), 0)
        first = b.alloc(3000, 2)
        self.assertEqual(b(f"at {first}") >> 21, was >> 21)
        self.assertEqual(b.ask(f"range {first} 0"), ["0", "0", "3000"])
        self.assertEqual(b(f"context {first}"), 1)


if __name__ == "__main__":
    unittest.main()
