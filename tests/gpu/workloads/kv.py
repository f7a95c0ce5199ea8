#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The allocations of an inference server without paged attention: kv.py [--steps 1500] [--check 100] [--seed 0]

24 requests are served at a time. Each has K and V of 16 layers, and torch.cat makes each of these 768 tensors 4 KiB longer at
every step. Prompts have random lengths (64 KiB to 12 MiB a tensor), a finished request makes room for a new one. Each layer of a
step has a matrix product and the attention of one request, so that results depend on what is in the tensors.

Prints a line of JSON: tokens per second (a token is one request's step); most bytes of K and V, of all that PyTorch's
allocator had handed out and of what it had reserved (with its cache off it counts neither), and of the device's used memory as
NVML has it, less what a bare context uses, in MiB; and a checksum of all tensors after --check steps, which is the same for
every allocator. No other program should use the card.

The program does not know cupool, and is no server. Environment variables choose the allocator.
"""

import argparse
import ctypes
import json
import os
import random
import time

import torch

REQUESTS, LAYERS, WIDTH = 24, 16, 2048  # a row of WIDTH halves is 4 KiB
SHORTEST, LONGEST, MOST_NEW = 16, 3072, 256  # rows
WARM_UP = 10  # steps that no time is taken of
MIB = 2**20


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Device:
    """The used memory of the first visible GPU, past whatever intercepts CUDA."""

    def __init__(self) -> None:
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.handle = ctypes.c_void_p()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        self.must(self.nvml.nvmlInit_v2())
        if visible.isdigit():
            self.must(self.nvml.nvmlDeviceGetHandleByIndex_v2(int(visible), ctypes.byref(self.handle)))
        else:
            self.must(self.nvml.nvmlDeviceGetHandleByUUID(visible.encode(), ctypes.byref(self.handle)))
        self.start = self.most = self.used()

    @staticmethod
    def must(status: int) -> None:
        if status:
            raise SystemExit(f"kv: NVML: error {status}")

    def used(self) -> int:
        memory = Memory()
        self.must(self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory)))
        return memory.used

    def sample(self) -> None:
        self.most = max(self.most, self.used())


class Request:
    """Its remaining steps and, for each layer, K and V."""

    def __init__(self, rng: random.Random) -> None:
        rows = rng.randint(SHORTEST, LONGEST)
        self.left = rng.randint(1, MOST_NEW)
        self.cache = [[torch.randn(rows, WIDTH, device="cuda", dtype=torch.half) for _ in "kv"] for _ in range(LAYERS)]

    def size(self) -> int:
        return 2 * LAYERS * self.cache[0][0].nbytes


def step(requests: list[Request], weights: list[torch.Tensor], x: torch.Tensor, number: int) -> torch.Tensor:
    seen = number % REQUESTS
    for layer, weight in enumerate(weights):
        x = torch.tanh(x @ weight)
        for i, request in enumerate(requests):
            row, pair = x[i : i + 1], request.cache[layer]
            for j in range(2):
                pair[j] = torch.cat((pair[j], row))
        k, v = requests[seen].cache[layer]
        x = x + torch.softmax(x[seen : seen + 1] @ k.T / WIDTH**0.5, dim=1) @ v
    return x


def checksum(requests: list[Request]) -> str:
    sums = [t.view(torch.int16).sum(dtype=torch.int64) for r in requests for pair in r.cache for t in pair]
    total = 0
    for value in torch.stack(sums).tolist():
        total = (total * 1000003 + value) % 2**64
    return f"{total:016x}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--check", type=int, default=100, help="the step after which the checksum is taken")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.cuda.synchronize()  # creates the context
    device = Device()
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    weights = [torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.half) / WIDTH**0.5 for _ in range(LAYERS)]
    x = torch.randn(REQUESTS, WIDTH, device="cuda", dtype=torch.half)
    requests = [Request(rng) for _ in range(REQUESTS)]
    live, result, start = 0, "none", 0.0
    for number in range(options.steps):
        if number == WARM_UP:
            torch.cuda.synchronize()
            start = time.perf_counter()
        x = step(requests, weights, x, number)
        live = max(live, sum(r.size() for r in requests))
        if number % 10 == 0:
            device.sample()
        if number + 1 == options.check:
            result = checksum(requests)
        for i, request in enumerate(requests):
            request.left -= 1
            if request.left == 0:
                request.cache.clear()  # its memory is free before the new one's is taken
                requests[i] = Request(rng)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    device.sample()
    print(json.dumps({
        "steps": options.steps, "tokens_per_s": round(REQUESTS * (options.steps - WARM_UP) / seconds), "live_mib": round(live / MIB),
        "allocated_mib": round(torch.cuda.max_memory_allocated() / MIB),
        "reserved_mib": round(torch.cuda.max_memory_reserved() / MIB), "device_mib": round((device.most - device.start) / MIB),
        "checksum": result}))


if __name__ == "__main__":
    main()
