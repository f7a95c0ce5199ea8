/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvtx_abi.h - the part of NVTX's binary interface that exports/nvtx.c uses, because NVTX's headers come with no other
 * package of CUDA. Source: nvtx3/nvtxDetail/nvtxTypes.h and nvtx3/nvToolsExt.h of NVTX 3.1.
 *
 * Declarations alone; no function, no lock.
 */
#ifndef CUPOOL_SHIM_EXPORTS_NVTX_ABI_H
#define CUPOOL_SHIM_EXPORTS_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

typedef void (*nvtx_pointer)(void); /* to a function of any type; to be cast */
typedef const void *nvtx_export_table(uint32_t id);

enum { NVTX_TABLE_CALLBACKS = 1 };
enum { NVTX_MODULE_CORE = 1, NVTX_MODULE_CORE2 = 5 };

/* The functions of a module that a tool can stand in for, by their numbers there. */
enum nvtx_core {
    NVTX_MARK_EX = 1,
    NVTX_MARK_A,
    NVTX_MARK_W,
    NVTX_RANGE_START_EX,
    NVTX_RANGE_START_A,
    NVTX_RANGE_START_W,
    NVTX_RANGE_END,
    NVTX_RANGE_PUSH_EX,
    NVTX_RANGE_PUSH_A,
    NVTX_RANGE_PUSH_W,
    NVTX_RANGE_POP
};
enum nvtx_core2 {
    NVTX_DOMAIN_MARK_EX = 1,
    NVTX_DOMAIN_RANGE_START_EX,
    NVTX_DOMAIN_RANGE_END,
    NVTX_DOMAIN_RANGE_PUSH_EX,
    NVTX_DOMAIN_RANGE_POP,
    NVTX_DOMAIN_REGISTER_STRING_A = 10,
    NVTX_DOMAIN_REGISTER_STRING_W,
    NVTX_DOMAIN_CREATE_A,
    NVTX_DOMAIN_CREATE_W
};

struct nvtx_callbacks {
    size_t size;
    /* The table's entries point to the pointers that NVTX's functions call through. */
    int (*get_table)(int module, nvtx_pointer ***ret_table, unsigned int *ret_size);
};

/* The return value of a push or pop where no tool keeps count. */
#define NVTX_NO_TRACKING (-2)

enum nvtx_message { NVTX_MESSAGE_NONE, NVTX_MESSAGE_ASCII, NVTX_MESSAGE_UNICODE, NVTX_MESSAGE_REGISTERED };

struct nvtx_attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type; /* enum nvtx_message */
    union {
        const char *ascii;
        const wchar_t *unicode;
        const void *registered; /* what the tool returned for it */
    } message;
};

/* A struct of another version may be shorter; then its message is not read. */
#define NVTX_ATTRIBUTES_MIN sizeof(struct nvtx_attributes)
_Static_assert(sizeof(struct nvtx_attributes) == 48, "as of NVTX 3");

#endif
