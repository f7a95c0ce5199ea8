/* SPDX-License-Identifier: Apache-2.0 */
/* ends_deep.c - a library whose calls of the driver nobody sees, if it is loaded with RTLD_DEEPBIND. */
#include <cuda.h>

__attribute__((visibility("default"))) int deep_end_capture(CUstream stream);

int deep_end_capture(CUstream stream)
{
    CUgraph graph = NULL;
    const CUresult result = cuStreamEndCapture(stream, &graph);

    if (graph)
        cuGraphDestroy(graph);
    return (int)result;
}
