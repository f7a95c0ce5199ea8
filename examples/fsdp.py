#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small model under PyTorch's FSDP: each rank holds a part of every parameter.

Usage: torchrun --nproc-per-node 2 fsdp.py [--steps N] [--width W] [--layers L] [--batch B]
       torchrun --nproc-per-node 2 fsdp.py --backend gloo --device cpu         (no GPU)

Here: the network of ddp.py. Parameters are gathered before a block of it is used and dropped after it, gradients are added
up and scattered, so memory comes and goes with every block. What it prints is as in ddp.py.
Not here: a benchmark, or aware of cupool.
"""
from __future__ import annotations

import sys

import job  # first: it says so where PyTorch is missing

import torch


def shard(model: torch.nn.Sequential) -> torch.nn.Module:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        sys.exit(f"this example needs PyTorch 2.6 or later, for fully_shard; this is {torch.__version__}")
    for part in model:
        if isinstance(part, job.Block):
            fully_shard(part)
    return fully_shard(model)


def main() -> None:
    options = job.options(__doc__)
    with job.ranks(options) as ranks:
        torch.manual_seed(0)
        job.train(shard(job.network(options).to(ranks.device)), options, ranks)


if __name__ == "__main__":
    main()
