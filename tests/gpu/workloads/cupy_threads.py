#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CuPy expressions over arrays of 50 sizes, 1 KiB to 8 MiB: cupy_threads.py [--pool] [--threads 1] [--seconds 3]

Each thread has a stream of its own and goes through the sizes again and again; a round is one time through. Without --pool
CuPy's own pool is off, and every temporary array is a cudaMalloc and a cudaFree. Prints a line of JSON: rounds per second of
all threads together, and how many of them had another result than the first.

The program does not know cupool.
"""

import argparse
import json
import threading
import time

import cupy

SIZES = [int(1024 * 8192 ** (i / 49)) // 4 for i in range(50)]  # elements
WARM_UP = 5  # rounds


class Worker(threading.Thread):
    def __init__(self, line: threading.Barrier, seconds: float) -> None:
        super().__init__()
        self.line, self.seconds = line, seconds
        self.rounds = self.wrong = 0
        self.took = 0.0

    def run(self) -> None:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            arrays = [cupy.arange(n, dtype="f4") % 1009 for n in SIZES]
            first = [round_of(arrays, stream) for _ in range(WARM_UP)][0]
            self.line.wait()
            start = time.perf_counter()
            while self.took < self.seconds:
                self.wrong += round_of(arrays, stream) != first
                self.rounds += 1
                self.took = time.perf_counter() - start


def round_of(arrays: list[cupy.ndarray], stream: cupy.cuda.Stream) -> list[float]:
    parts = [((a * 2 + 1) * (a - 3)).max() for a in arrays]
    total = cupy.stack(parts)
    stream.synchronize()
    return total.get(stream=stream).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    if not options.pool:
        cupy.cuda.set_allocator(None)
    line = threading.Barrier(options.threads)
    workers = [Worker(line, options.seconds) for _ in range(options.threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if not all(w.rounds for w in workers):
        raise SystemExit("cupy_threads: a thread failed")
    print(json.dumps({"pool": options.pool, "threads": options.threads,
                      "rounds_per_s": round(sum(w.rounds / w.took for w in workers), 1), "wrong": sum(w.wrong for w in workers)}))


if __name__ == "__main__":
    main()
