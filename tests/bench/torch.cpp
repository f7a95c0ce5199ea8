// SPDX-License-Identifier: Apache-2.0
/*
 * torch.cpp - an allocator for tests/bench/bench.c: PyTorch's, by its C++ functions, on the thread's stream.
 *
 * Nothing of Python is in it, so it measures the allocator alone. scripts/bench builds it against the PyTorch that its
 * Python finds.
 *
 * Locking: none; the allocator has its own.
 */
#include "allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <mutex>

static std::once_flag once;

int bench_open(int device, void *stream)
try {
    std::call_once(once, [] { c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count()); });
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
    c10::cuda::setCurrentCUDAStream(
        c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), static_cast<c10::DeviceIndex>(device)));
    return 0;
} catch (const std::exception &) {
    return 1;
}

int bench_take(size_t size, void **ret_block)
try {
    *ret_block = c10::cuda::CUDACachingAllocator::raw_alloc(size);
    return 0;
} catch (const std::exception &) {
    return 1;
}

int bench_give(size_t size, void *block)
try {
    (void)size;
    c10::cuda::CUDACachingAllocator::raw_delete(block);
    return 0;
} catch (const std::exception &) {
    return 1;
}
