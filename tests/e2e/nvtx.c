/* SPDX-License-Identifier: Apache-2.0 */
/* nvtx.c - a program with ranges and marks of NVTX of each kind, for test_nvtx.py. It prints what NVTX's functions
 * return. Built with NVTX's own header where that is there; with -DTOOL=PATH instead the library is a profiler's, which
 * says on stdout that a range was pushed. */
#ifdef TOOL

#include "../program.h"
#include "exports/nvtx_abi.h"

int InitializeInjectionNvtx2(nvtx_export_table *get_export_table);

static int push(const char *text)
{
    printf("profiler: %s\n", text);
    return 0;
}

int InitializeInjectionNvtx2(nvtx_export_table *get_export_table)
{
    const struct nvtx_callbacks *callbacks = get_export_table(NVTX_TABLE_CALLBACKS);
    nvtx_pointer **table;
    unsigned int size;

    callbacks->get_table(NVTX_MODULE_CORE, &table, &size);
    *table[NVTX_RANGE_PUSH_A] = (nvtx_pointer)push;
    return 1;
}
#else
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

static nvtxRangeId_t crossing;

static void *other_thread(void *arg)
{
    printf("push %d\n", nvtxRangePushA("thread"));
    nvtxRangeEnd(crossing);
    printf("pop %d\n", nvtxRangePop());
    return NULL;
}

static nvtxEventAttributes_t attributes(void)
{
    nvtxEventAttributes_t a = {0};

    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    return a;
}

int main(int argc, char **argv)
{
    nvtxEventAttributes_t a = attributes();
    const nvtxDomainHandle_t domain = nvtxDomainCreateA("lib\"rary");
    const nvtxDomainHandle_t wide = nvtxDomainCreateW(L"d\u00f6main");
    nvtxRangeId_t id;
    pthread_t thread;
    void *p;

    nvtxRangePushA("before the first request");
    if (cudaMalloc(&p, 4096))
        return 1;
    nvtxRangePop();
    printf("push %d\n", nvtxRangePushA("outer"));
    a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    a.message.registered = nvtxDomainRegisterStringA(domain, "registered");
    printf("push %d\n", nvtxDomainRangePushEx(domain, &a));
    printf("pop %d\n", nvtxDomainRangePop(domain));
    a.message.registered = nvtxDomainRegisterStringW(wide, L"\u20ac \U0001f600");
    id = nvtxDomainRangeStartEx(wide, &a);
    printf("start %d\n", id != 0);
    nvtxDomainMarkEx(wide, &a);
    nvtxDomainRangeEnd(wide, id);
    printf("pop %d\n", nvtxRangePop());
    crossing = nvtxRangeStartW(L"crossing");
    if (pthread_create(&thread, NULL, other_thread, NULL) == 0)
        pthread_join(thread, NULL);
    nvtxMarkA("mark \"a\"");
    nvtxMarkW(L"mark \u00fc");
    a = attributes();
    nvtxMarkEx(&a); /* without a message */
    a.messageType = NVTX_MESSAGE_TYPE_ASCII;
    a.message.ascii = "ascii";
    nvtxRangePushEx(&a);
    nvtxRangePop();
    a.messageType = NVTX_MESSAGE_TYPE_UNICODE;
    a.message.unicode = L"unicode";
    nvtxRangeEnd(nvtxRangeStartEx(&a));
    nvtxRangeEnd(nvtxRangeStartA(argc > 1 ? argv[1] : "start"));
    nvtxRangePushW(L"left open");
    return cudaFree(p) != 0;
}
#endif
