/* SPDX-License-Identifier: Apache-2.0 */
/* room.h - all headers of shim/context/, for tests that use most of them. It declares nothing itself. */
#ifndef CUPOOL_TESTS_SHIM_ROOM_H
#define CUPOOL_TESTS_SHIM_ROOM_H

#include "context/arrivals.h"
#include "context/backend.h"
#include "context/capture_drain.h"
#include "context/capture_gate.h"
#include "context/context_end.h"
#include "context/context_state.h"
#include "context/counters.h"
#include "context/cuda_memory.h"
#include "context/device.h"
#include "context/enter.h"
#include "context/facts.h"
#include "context/free_order.h"
#include "context/free_policy.h"
#include "context/lifetime.h"
#include "context/nccl_memory.h"
#include "context/own_stream.h"
#include "context/pins.h"
#include "context/registry.h"
#include "context/segment_driver.h"
#include "context/strict.h"
#include "context/vmm_map.h"
#include "context/vmm_memory.h"
#include "context/wait_context.h"
#include "context/wait_device.h"

#endif
