#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small model under PyTorch's DistributedDataParallel.

Usage: torchrun --nproc-per-node 2 ddp.py [--steps N] [--width W] [--layers L] [--batch B]
       torchrun --nproc-per-node 2 ddp.py --backend gloo --device cpu          (no GPU)

Here: each rank has a copy of a residual network and batches of its own; gradients are added up over ranks by NCCL. Prints
each step's loss as a hexadecimal number, all its bits: two runs computed the same if these lines are the same. Then the time of
a step. Not here: a benchmark, or aware of cupool. PyTorch has a cache of its own; to have the memory from cupool instead,
switch that off: PYTORCH_NO_CUDA_MEMORY_CACHING=1.
"""
from __future__ import annotations

import job  # first: it says so where PyTorch is missing

import torch
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    options = job.options(__doc__)
    with job.ranks(options) as ranks:
        torch.manual_seed(0)  # all ranks begin with the same parameters
        model = job.network(options).to(ranks.device)
        model = DistributedDataParallel(model, device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None)
        job.train(model, options, ranks)


if __name__ == "__main__":
    main()
