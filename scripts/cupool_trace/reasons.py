# SPDX-License-Identifier: Apache-2.0
"""Sentences for the values of `why` in traces (docs/trace.md), which are single words: what happened, as a user would say it.

Not here: `why` of the event policy, which is a sentence already. Conversions for other programs keep the words.
"""
from __future__ import annotations

SAID = {
    "trim": {
        "oom": "the driver had refused a request", "limit": "CUPOOL_LIMIT was reached", "decay": "it was idle for CUPOOL_DECAY seconds",
        "excess": "with a new segment the pool would have held more than it needs", "reserve": "little was left on the device",
        "withdrawn": "other processes had a handle of it", "program": "the program called cupool_trim",
        "backend": "the program had switched the backend", "neighbour": "another process on the device asked for it",
    },
    "oom": {
        "capture": "a capture is under way, and idle memory can go back only after it", "size": "the device has less in all",
        "driver": "the driver says that it has as much", "pieces": "the free memory would suffice, but lies between live blocks",
        "limit": "CUPOOL_LIMIT is reached", "others": "memory that is not the pool's takes most of the device",
        "live": "the program's live blocks take most of the device", "unknown": "unknown",
    },
    "host_oom": {
        "busy": "what is idle would suffice, but work or a capture is under way", "driver": "the driver has no more",
    },
    "gap": {
        "limit": "CUPOOL_TRACE_LIMIT was reached", "rate": "there were too many at once", "error": "a line could not be written",
    },
}


def sentence(event: str, why: str) -> str:
    """A word that is unknown stays as it is."""
    return SAID[event].get(why, why)
