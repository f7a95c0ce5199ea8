# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors through torch.multiprocessing, both ways: mp.py [ROUNDS]. Prints a line for each size with the rounds that were right.

Each round the parent sends a tensor, the child checks it, adds 1 to it in place, and sends a tensor of its own back; the parent
looks at both. With PYTORCH_NO_CUDA_MEMORY_CACHING=1, too, where PyTorch may refuse to share a tensor by itself: then no answer
comes within 60 s, which is printed. Exit status: 0 all right, 1 wrong, 2 no answer.
"""
import queue
import sys
import time

import torch
import torch.multiprocessing as mp

SIZES = (25, 75 << 10, 16 << 20)  # of 4 bytes: 100 bytes, 300 KiB, 64 MiB
LIMIT = 60


def child(to_child, to_parent):
    while True:
        item = to_child.get()
        if item is None:
            return
        value, tensor = item
        right = bool((tensor == value).all())
        tensor += 1
        torch.cuda.synchronize()
        own = torch.full((tensor.numel(),), value + 2, device="cuda", dtype=torch.float32)
        torch.cuda.synchronize()
        to_parent.put((right, own))
        del tensor, item
        to_child.get()  # the parent has read its tensor
        del own


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    mp.set_start_method("spawn")
    to_child, to_parent = mp.Queue(), mp.Queue()
    process = mp.Process(target=child, args=(to_child, to_parent), daemon=True)
    process.start()
    status = 0
    for size in SIZES:
        right, start = 0, time.monotonic()
        for i in range(rounds):
            tensor = torch.full((size,), float(i), device="cuda", dtype=torch.float32)
            torch.cuda.synchronize()
            to_child.put((float(i), tensor))
            try:
                its_right, own = to_parent.get(timeout=LIMIT)
            except queue.Empty:
                print(f"{size * 4:>10} bytes: no answer within {LIMIT} s", flush=True)
                sys.exit(2)
            right += its_right and bool((tensor == i + 1).all()) and bool((own == i + 2).all())
            del own
            to_child.put(True)
        ms = (time.monotonic() - start) / rounds * 1e3
        print(f"{size * 4:>10} bytes: {right} of {rounds} rounds right, {ms:.2f} ms each", flush=True)
        status |= right != rounds
    to_child.put(None)
    process.join(LIMIT)
    sys.exit(status)


if __name__ == "__main__":
    main()
