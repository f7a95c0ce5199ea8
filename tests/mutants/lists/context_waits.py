# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/context/: for whose work threads wait, and what begins meanwhile."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("a batch orders frees that came after it began", ["shim_order"], [
        ("if (done >= seen + 1 + (seen & 1)) {", "if (done >= seen + !(seen & 1)) {")]),
    Mutant("a free that waits on the host does so in a capture that has begun since", ["shim_order"], [
        ("slot = order_slot_take(context); beside_capture = capture_active(); }", "slot = order_slot_take(context); }")]),
    Mutant("a thread waits for the latest batch, not for its own", ["combiner"], [
        ("if (at >= seq && (!found || at < *ret_seq)) {", "if (at >= seq && (!found || at > *ret_seq)) {")]),
    Mutant("a device is not asked once the limit has passed", ["shim_waits"], [
        ("limit = limit > least ? limit : least;", "(void)least;")]),
    Mutant("a thread goes on while another waits for what was freed before the device became strict", ["shim_strict"], [
        ("if (!first[i] && atomic_load(&quiesced[i])) continue;", "if (!first[i]) continue;")]),
]
