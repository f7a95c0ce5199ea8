# SPDX-License-Identifier: Apache-2.0
"""The parts that ddp.py and fsdp.py share: options, the ranks that torchrun starts, a network, and its training.

Not here: a program, or part of cupool, which no program needs to know of.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from typing import Iterator

try:
    import torch
    import torch.distributed as dist
except ImportError:
    sys.exit("this example needs PyTorch: pip install torch")


def options(doc: "str | None") -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--backend", default="nccl", choices=("nccl", "gloo"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    return parser.parse_args()


class Ranks:
    """The rank, and the number of ranks. Rank 0 prints for all."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@contextlib.contextmanager
def ranks(o: argparse.Namespace) -> "Iterator[Ranks]":
    missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name not in os.environ]
    if missing:
        sys.exit(f"{', '.join(missing)} not set: start this with torchrun --nproc-per-node N {os.path.basename(sys.argv[0])}")
    local = int(os.environ["LOCAL_RANK"])
    if o.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit("PyTorch finds no GPU; without one: --backend gloo --device cpu")
        if local >= torch.cuda.device_count():
            sys.exit(f"local rank {local}, but {torch.cuda.device_count()} GPUs")
        torch.cuda.set_device(local)
    elif o.backend == "nccl":
        sys.exit("NCCL is for GPUs; with --device cpu also --backend gloo")
    # Every run adds equal numbers in one order.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    dist.init_process_group(o.backend)
    try:
        yield Ranks(torch.device("cuda", local) if o.device == "cuda" else torch.device("cpu"))
    finally:
        dist.destroy_process_group()


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def network(o: argparse.Namespace) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(Block(o.width) for _ in range(o.layers)), torch.nn.Linear(o.width, 1))


def train(model: torch.nn.Module, o: argparse.Namespace, r: Ranks) -> None:
    """Prints the mean loss over ranks of each step, then the time of a step but the first two."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    numbers = torch.Generator().manual_seed(r.rank)  # every rank has its own data
    r.say(f"{r.count} ranks, {o.backend}, PyTorch {torch.__version__}")
    losses, start = [], time.monotonic()
    for step in range(o.steps):
        if step == min(2, o.steps - 1):
            r.wait()
            start = time.monotonic()
        # Batches of different lengths, as sequences have them.
        x = torch.randn(o.batch + 32 * (step % 3), o.width, generator=numbers).to(r.device)
        loss = torch.nn.functional.mse_loss(model(x).squeeze(1), x.sum(1) / o.width ** 0.5)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    r.wait()
    seconds = (time.monotonic() - start) / max(1, o.steps - min(2, o.steps - 1))
    every = torch.stack(losses)
    dist.all_reduce(every)
    for step, loss in enumerate((every / r.count).tolist()):
        r.say(f"step {step} loss {loss.hex()} ({loss:.6f})")
    r.say(f"{seconds * 1e3:.1f} ms a step")
