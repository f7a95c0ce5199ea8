/* SPDX-License-Identifier: Apache-2.0 */
/* context.h - the headers of the room that other rooms use. It declares nothing itself. */
#ifndef CUPOOL_SHIM_CONTEXT_H
#define CUPOOL_SHIM_CONTEXT_H

#include "context/arrivals.h"
#include "context/counters.h"
#include "context/device.h"
#include "context/ending.h"
#include "context/lifetime.h"
#include "context/order.h"
#include "context/own_stream.h"
#include "context/registry.h"
#include "context/strict.h"
#include "context/wait.h"
#include "context/wait_device.h"

#endif
