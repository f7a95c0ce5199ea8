# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/real/: finding the real functions."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    # --- the order of frees ---
    Mutant("the runtime is told the driver's own functions while ours are being found", ["hang / Hang.test_many_threads"], [
        ("if (!lock_take_within(&real.lock, FILL_WAIT_NS)) { atomic_store(&real.tried, true); return NULL; }",
         "if (!lock_try(&real.lock)) return NULL;")], 60),
    Mutant("the runtime's functions are looked for in the middle of a request", ["hang / Hang.test_a_constructor_that_waits_for_a_thread"], [
        ("driver_fill(handle); next_fill();", "driver_fill(handle); (void)next_fill;")]),

    # --- NCCL ---
    Mutant("NCCL: the program's own objects decide nothing", ["nccl / Registered.test_a_plugin_that_brings_its_own"], [
        ("copy = copy_of(loaded_handle(info.dli_fname)); return copy ? copy : copy_of(loaded_handle(\"libnccl.so.2\"));", "; return copy;")]),
]
