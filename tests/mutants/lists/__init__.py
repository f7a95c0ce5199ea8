# SPDX-License-Identifier: Apache-2.0
"""The hand-written mutants, one list for each room of the library: that of the code which the first edit changes; and one
for a device that is nearly full.

Where code moves to another room, its mutants still apply; they may then be moved to its list.
"""
from __future__ import annotations

from mutant import Mutant

from . import (base, context, context_again, context_driver_free, context_ends, context_free_streams,
               context_pinned, context_shared, context_waits, exports,
               hooks, info, nccl, nccl_reg, pool, pool_kept, real, report, reserve, serve, trace)

ROOMS = (pool, pool_kept, reserve, nccl_reg, hooks, base, real, trace,
         context, context_again, context_driver_free, context_ends, context_free_streams, context_pinned, context_shared, context_waits, nccl, report, serve, exports,
         info)
MUTANTS: "list[Mutant]" = [mutant for room in ROOMS for mutant in room.MUTANTS]
