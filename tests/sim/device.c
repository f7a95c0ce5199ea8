/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - cuInit and the questions about devices.
 *
 * There are SIMGPU_DEVICES equal devices that can all reach each other, with an H200's answers where a program may ask.
 * Contexts are in context.c, memory in memory.c.
 *
 * Locking: only what looks at memory in use takes sim_lock().
 */
#include "sim.h"

#include <sys/stat.h>

static bool dev_ok(CUdevice dev)
{
    return dev >= 0 && dev < sim_settings.devices;
}

CUresult cuInit(unsigned int flags)
{
    SIM_ENTER_EARLY(cuInit);
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_settings.devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    sim_initialized_set();
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    SIM_ENTER_EARLY(cuDriverGetVersion);
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = sim_settings.driver_version;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
    SIM_ENTER(cuDeviceGet);
    if (!dev)
        return CUDA_ERROR_INVALID_VALUE;
    if (!dev_ok(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *dev = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    SIM_ENTER(cuDeviceGetCount);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sim_settings.devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetName);
    if (!name || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!dev_ok(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)len, "%s", sim_settings.name);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    SIM_ENTER(cuDeviceTotalMem_v2);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!dev_ok(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = sim_settings.memory;
    return CUDA_SUCCESS;
}

static int attribute(CUdevice_attribute attr, CUdevice dev)
{
    switch ((int)attr) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
        return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        return 49152;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
        return 65536;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
        return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        return 1980000;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
        return 512;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return 132;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return dev + 1;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return 2048;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return 9;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        return 3;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
        return 1;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        return sim_vmm_supported();
    default:
        return 0;
    }
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attr, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetAttribute);
    if (!value || attr <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!dev_ok(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute(attr, dev);
    return CUDA_SUCCESS;
}

static CUresult uuid_get(CUuuid *uuid, CUdevice dev)
{
    struct stat file;
    uint32_t machine;
    char text[20];

    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!dev_ok(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    /* A card of its own for each process, or for the processes that share one. */
    machine = sim_settings.shared && stat(sim_settings.shared, &file) == 0 ? (uint32_t)file.st_ino : (uint32_t)getpid();
    snprintf(text, sizeof(text), "simulated-%c%c%c%c%02d", (char)(machine >> 24), (char)(machine >> 16),
             (char)(machine >> 8), (char)machine, dev % 100);
    memcpy(uuid->bytes, text, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetUuid, (CUuuid * uuid, CUdevice dev), uuid_get(uuid, dev))
SIM_CALL(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice dev), uuid_get(uuid, dev))

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetPCIBusId);
    if (!id || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!dev_ok(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, (size_t)len, "0000:%02x:00.0", dev + 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *id)
{
    SIM_ENTER(cuDeviceGetByPCIBusId);
    unsigned bus = 0;

    if (!dev || !id || sscanf(id, "%*x:%x:", &bus) != 1 || !dev_ok((int)bus - 1))
        return CUDA_ERROR_INVALID_VALUE;
    *dev = (int)bus - 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
    SIM_ENTER(cuDeviceCanAccessPeer);
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    if (!dev_ok(dev) || !dev_ok(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = dev != peer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attr, CUdevice dev, CUdevice peer)
{
    SIM_ENTER(cuDeviceGetP2PAttribute);
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (!dev_ok(dev) || !dev_ok(peer) || dev == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attr == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : 1;
    return CUDA_SUCCESS;
}
