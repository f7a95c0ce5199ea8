# SPDX-License-Identifier: Apache-2.0
"""A training job whose memory grows until it runs out: growing.py [STEPS]. docs/tutorial.md finds the line that does it.

After each step it computes the loss of other data, to draw a curve at the end. It makes one mistake, which many programs make.
It needs PyTorch and one GPU; cupool is not mentioned here, and the ranges of NVTX are for any profiler.
"""
import sys

import torch
from torch import nn

WIDTH, LAYERS, BATCH = 2048, 8, 16384


def network():
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1)).cuda()


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    data, other = torch.randn(BATCH, WIDTH, device="cuda"), torch.randn(BATCH, WIDTH, device="cuda")
    curve = []
    for step in range(steps):
        with torch.cuda.nvtx.range("train"):
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
        with torch.cuda.nvtx.range("evaluate"):
            curve.append(model(other).square().mean())
        if step % 10 == 0:
            print(f"step {step}", flush=True)
    print("losses", [round(value.item(), 4) for value in curve[:: max(1, steps // 10)]])


if __name__ == "__main__":
    main()
