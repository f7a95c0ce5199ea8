/* SPDX-License-Identifier: Apache-2.0 */
/* own_driver.c - a program's own library that has functions of libcuda's names: a stand-in, or a wrapper. */
#define OWN(name)                                                                                                      \
    __attribute__((visibility("default"))) int name(void);                                                             \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return 4711;                                                                                                   \
    }

OWN(cuStreamSynchronize)
OWN(cuMemcpyDtoHAsync_v2)
OWN(cuCtxDestroy_v2)
OWN(cuGetProcAddress_v2)
