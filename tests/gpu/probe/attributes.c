/* SPDX-License-Identifier: Apache-2.0 */
/* attributes.c - see attributes.h. */
#include "attributes.h"

enum form { NUMBER, SIGNED, WIDE, OFFSET, SIZE, IS_PRIMARY, SAME_ID, NONE };

static const struct {
    const char *name;
    CUpointer_attribute attribute;
    enum form form;
} attributes[ATTRIBUTES] = {
    {"CONTEXT", CU_POINTER_ATTRIBUTE_CONTEXT, IS_PRIMARY},
    {"MEMORY_TYPE", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, NUMBER},
    {"DEVICE_POINTER", CU_POINTER_ATTRIBUTE_DEVICE_POINTER, OFFSET},
    {"HOST_POINTER", CU_POINTER_ATTRIBUTE_HOST_POINTER, OFFSET},
    {"SYNC_MEMOPS", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, NUMBER},
    {"BUFFER_ID", CU_POINTER_ATTRIBUTE_BUFFER_ID, SAME_ID},
    {"IS_MANAGED", CU_POINTER_ATTRIBUTE_IS_MANAGED, NUMBER},
    {"DEVICE_ORDINAL", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, SIGNED},
    {"IS_LEGACY_CUDA_IPC_CAPABLE", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, NUMBER},
    {"RANGE_START_ADDR", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, OFFSET},
    {"RANGE_SIZE", CU_POINTER_ATTRIBUTE_RANGE_SIZE, SIZE},
    {"MAPPED", CU_POINTER_ATTRIBUTE_MAPPED, NUMBER},
    {"ALLOWED_HANDLE_TYPES", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, WIDE},
    {"IS_GPU_DIRECT_RDMA_CAPABLE", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, NUMBER},
    {"ACCESS_FLAGS", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, NUMBER},
    {"MEMPOOL_HANDLE", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, WIDE},
    {"MAPPING_SIZE", CU_POINTER_ATTRIBUTE_MAPPING_SIZE, SIZE},
    {"MAPPING_BASE_ADDR", CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, OFFSET},
    {"P2P_TOKENS", CU_POINTER_ATTRIBUTE_P2P_TOKENS, NONE}, /* last: asking for it sets SYNC_MEMOPS */
};

const char *attribute_name(size_t attribute)
{
    return attributes[attribute].name;
}

void attribute_text(char *text, size_t n, size_t attribute, const struct allocation *of, CUdeviceptr at)
{
    uint64_t values[2] = {0, 0}; /* P2P_TOKENS are two */
    const CUresult result = cuPointerGetAttribute(values, attributes[attribute].attribute, at);
    const uint64_t value = values[0];

    if (result) {
        snprintf(text, n, "error %d", result);
        return;
    }
    switch (attributes[attribute].form) {
    case NUMBER:
        snprintf(text, n, "%u", (unsigned int)value);
        break;
    case SIGNED:
        snprintf(text, n, "%d", (int)value);
        break;
    case WIDE:
    case SIZE:
        snprintf(text, n, "%llu", (unsigned long long)value);
        break;
    case OFFSET:
        snprintf(text, n, value ? "%lld" : "null", (long long)(value - of->base));
        break;
    case IS_PRIMARY:
        snprintf(text, n, "%s", value == (uint64_t)(uintptr_t)of->primary ? "primary" : value ? "other" : "none");
        break;
    case SAME_ID:
        snprintf(text, n, "%s", value == of->id ? "its own" : value ? "another" : "none");
        break;
    default:
        snprintf(text, n, "yes");
    }
}

void address_range_text(char *text, size_t n, const struct allocation *of, CUdeviceptr at)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    const CUresult result = cuMemGetAddressRange(&base, &size, at);

    if (result)
        snprintf(text, n, "error %d", result);
    else
        snprintf(text, n, "%lld+%zu", (long long)(base - of->base), size);
}
