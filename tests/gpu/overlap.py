#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Send and receive beside a matrix product: torchrun --nproc-per-node 2 overlap.py [--mib 256] [--width 8192] [--rounds 20]

Each round a rank sends to the next one and receives from the one before, into memory that it allocates for the round, on NCCL's
stream, while a matrix product runs on its own. Prints milliseconds for a round of each alone and of both together.

The program does not know cupool; tests/gpu/nccl runs it natively and preloaded.
"""

import argparse
import os
import time
from typing import Callable

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = options.mib << 18
    a = torch.randn(options.width, options.width, device="cuda", dtype=torch.bfloat16)
    wrong = torch.zeros((), device="cuda")

    def begin() -> tuple[list[dist.Work], torch.Tensor, torch.Tensor]:
        sent = torch.full((count,), float(rank), device="cuda")
        received = torch.empty(count, device="cuda")
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, (rank + 1) % ranks),
                                        dist.P2POp(dist.irecv, received, (rank - 1) % ranks)])
        return works, sent, received

    def exchange(beside: Callable[[], object] = lambda: None) -> None:
        works, _sent, received = begin()
        beside()
        for work in works:
            work.wait()
        wrong.add_((received != float((rank - 1) % ranks)).sum())

    def measure(what: Callable[[], object]) -> float:
        for _ in range(3):
            what()
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(options.rounds):
            what()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3 / options.rounds

    product, network, together = measure(lambda: a @ a), measure(exchange), measure(lambda: exchange(lambda: a @ a))
    if rank == 0:
        print(f"overlap: product {product:.2f} ms, {options.mib} MiB {network:.2f} ms ({options.mib / 1024 / network * 1e3:.1f} GiB/s), "
              f"both {together:.2f} ms, {int(wrong.item())} wrong", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
