/* SPDX-License-Identifier: Apache-2.0 */
/*
 * texture.c - texture objects on linear memory, and work that reads through one.
 *
 * As on a GPU the work has the object's number, and looks up what it means when it runs. A destruction waits for
 * nothing; the next object gets the number. Formats, filters and address modes are not simulated: the work reads
 * bytes. There are no surface objects.
 *
 * Locking: everything under sim_lock().
 */
#include "sim.h"

#define OBJECTS_MAX 256

struct object {
    CUcontext ctx; /* NULL: there is none of this number */
    uint64_t addr;
    size_t size;
};

static struct object objects[OBJECTS_MAX]; /* number i + 1 */

static struct object *object_of(CUtexObject number, CUcontext ctx)
{
    struct object *o = number && number <= OBJECTS_MAX ? &objects[number - 1] : NULL;

    return o && o->ctx == ctx ? o : NULL;
}

uint64_t sim_texture_addr(CUcontext ctx, uint64_t number, size_t n)
{
    const struct object *o = object_of(number, ctx);

    return o && n <= o->size ? o->addr : 0;
}

static CUresult make(CUcontext ctx, const CUDA_RESOURCE_DESC *from, CUtexObject *ret)
{
    const size_t size = from->res.linear.sizeInBytes;
    size_t i = 0;

    if (from->resType != CU_RESOURCE_TYPE_LINEAR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!size || !sim_alloc_range(from->res.linear.devPtr, size))
        return CUDA_ERROR_INVALID_VALUE;
    while (i < OBJECTS_MAX && objects[i].ctx)
        i++;
    if (i == OBJECTS_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    objects[i] = (struct object){ctx, from->res.linear.devPtr, size};
    *ret = i + 1;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectCreate(CUtexObject *ret, const CUDA_RESOURCE_DESC *from, const CUDA_TEXTURE_DESC *texture,
                           const CUDA_RESOURCE_VIEW_DESC *view)
{
    CUcontext ctx;

    SIM_ENTER(cuTexObjectCreate);
    if (!ret || !from || !texture)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    SIM_TRY(sim_current(&ctx));
    return make(ctx, from, ret);
}

CUresult cuTexObjectDestroy(CUtexObject number)
{
    CUcontext ctx;

    SIM_ENTER(cuTexObjectDestroy);
    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    struct object *o = r == CUDA_SUCCESS ? object_of(number, ctx) : NULL;
    if (o)
        o->ctx = NULL;
    else if (r == CUDA_SUCCESS)
        r = CUDA_ERROR_INVALID_VALUE;
    return r;
}
