#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training from pinned memory: loader.py [--steps 200] [--workers 4] [--batch 16]

PyTorch's DataLoader makes batches of random sequence lengths in worker processes and pins them in a thread of its own; the
training step copies them with non_blocking=True. PyTorch's own cache of pinned memory stays on, as nearly every program has it.
The program itself takes pinned memory for each step's outputs, too (torch.empty(pin_memory=True)).

Prints a line of JSON: samples per second, the losses' sum, which has to be equal for every allocator, and PyTorch's counts of
pinned memory. The program does not know cupool.
"""
from __future__ import annotations

import argparse
import json
import time

import torch
from torch.utils.data import DataLoader, Dataset

WIDTH, LONGEST, WARM_UP = 1024, 512, 20


class Sequences(Dataset):
    """Sample i is the same in each run, whichever worker makes it; samples of one batch are equally long."""

    def __init__(self, steps: int, batch: int) -> None:
        self.count, self.batch = steps * batch, batch
        lengths = torch.Generator().manual_seed(1)
        self.lengths = torch.randint(LONGEST // 4, LONGEST + 1, (steps,), generator=lengths).tolist()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.lengths[i // self.batch]
        start = i * 7919 % 65521
        x = torch.arange(start, start + rows, dtype=torch.float32)
        return (x[:, None] * 0.001 + torch.arange(WIDTH)).sin_(), x.remainder(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(4)
    torch.manual_seed(0)
    steps = args.steps + WARM_UP
    batches = DataLoader(Sequences(steps, args.batch), args.batch, num_workers=args.workers, pin_memory=True, prefetch_factor=4)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    losses, start, samples = [], 0.0, 0
    back: list[tuple[torch.Tensor, torch.cuda.Event]] = []
    for step, (x, y) in enumerate(batches):
        if step == WARM_UP:
            torch.cuda.synchronize()
            start, samples = time.perf_counter(), 0
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        out = model(x)[..., 0]
        loss = torch.nn.functional.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        host = torch.empty(out.shape, pin_memory=True)
        host.copy_(out.detach(), non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        back.append((host, ready))
        if len(back) > 2:
            old, done = back.pop(0)
            done.synchronize()
            losses.append(float(old.double().sum()))
        samples += len(x)
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    pinned = torch.cuda.host_memory_stats()
    print(
        json.dumps(
            {
                "samples_per_second": round(samples / took, 1),
                "sum": sum(losses).hex(),
                "pinned_requests": pinned.get("num_host_alloc", 0),
                "pinned_mib": pinned.get("allocated_bytes.peak", 0) >> 20,
            }
        )
    )


if __name__ == "__main__":
    main()
