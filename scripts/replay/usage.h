/* SPDX-License-Identifier: Apache-2.0 */
/* usage.h - what cupool-replay --help prints, from which its manual page is made. It has no functions. */
#ifndef CUPOOL_REPLAY_USAGE_H
#define CUPOOL_REPLAY_USAGE_H

static const char usage[] =
    "usage: cupool-replay [OPTION]... <REQUESTS\n"
    "       cupool-replay --random N [OPTION]...\n"
    "\n"
    "Runs requests for device memory through the allocator of libcupool.so, without a GPU, and prints what that "
    "takes.\n"
    "\n"
    "  --model NAME       what serves them: cupool, the default; pytorch, a model of PyTorch's caching allocator;\n"
    "                     driver, a model of cudaMalloc itself. The models follow documented rules, they are not\n"
    "                     the real thing\n"
    "  --capacity SIZE    memory of each device (default 80G)\n"
    "  --limit SIZE       as CUPOOL_LIMIT\n"
    "  --decay SECONDS    as CUPOOL_DECAY, or off (default 10); needs times in the input\n"
    "  --slack PERCENT    as CUPOOL_SLACK, with CUPOOL_FREE=relaxed; the device never catches up with the program\n"
    "  --lag N            the device is N requests and frees behind: memory that goes back arrives later\n"
    "  --break-max SIZE   most memory that packed segments may keep from going back on an empty device (default: a\n"
    "                     16th of the capacity)\n"
    "\n"
    "  --random N         make up N requests: 73 % of the steps allocate, the others free\n"
    "  --min SIZE         the smallest request that is made up (default 256)\n"
    "  --max SIZE         the largest one (default 64M)\n"
    "  --live SIZE        most bytes live at a time (default: 3/4 of the capacity)\n"
    "  --seed N           of the random numbers (default 1)\n"
    "  --uniform          sizes are distributed uniformly; else their logarithms are\n"
    "  --print            print the requests in the format of the input, and run nothing\n"
    "\n"
    "  --help             print this help\n"
    "  --version          print the version\n"
    "\n"
    "SIZE is bytes, or with K, M, G or T. The input has one of these in each line; numbers are decimal or 0x..., NS\n"
    "is nanoseconds:\n"
    "\n"
    "  a ID SIZE [DEVICE [NS]]  a request for SIZE bytes, which is called ID\n"
    "  f ID [NS]                it is freed\n"
    "  r DEVICE [NS]            the device's context is gone, with all in it\n"
    "  t NS                     time passes\n"
    "  # ...                    nothing\n";

#endif
