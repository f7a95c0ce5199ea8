/* SPDX-License-Identifier: Apache-2.0 */
/* nextlib.c - a plain library between a program and libcudart. It looks things up in every way that dlsym knows, so
 * that the answers with and without a preload can be compared. RTLD_NEXT is the delicate one: libc tells by the return
 * address for which object it is meant. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "nextlib.h"

void looked_up(const char *how, const char *name, void *p)
{
    const char *why = dlerror(), *file;
    Dl_info info;

    if (!p) {
        printf("%s %s: none; dlerror: %s\n", how, name, why ? why : "none");
        return;
    }
    if (!dladdr(p, &info)) {
        printf("%s %s: somewhere\n", how, name);
        return;
    }
    file = strrchr(info.dli_fname, '/');
    printf("%s %s: %s %s%s%s\n", how, name, file ? file + 1 : info.dli_fname, info.dli_sname ? info.dli_sname : "-",
           why ? "; dlerror: " : "", why ? why : "");
}

static const char *const names[] = {
    "getpid",  "malloc",           "pthread_create",      "cudaMalloc",          "cudaFree", "cuMemAlloc_v2",
    "nothing", "cuGetProcAddress", "cuGetProcAddress_v2", "cuGetProcAddress_v9", ""};

/* A call through a volatile pointer cannot become a jump: dlsym sees this library as its caller whatever the compiler
 * does. */
void library_look(void)
{
    void *(*volatile ask)(void *, const char *) = dlsym;
    void *mine = dlopen(NULL, RTLD_NOW), *libc = dlopen("libc.so.6", RTLD_NOW), *p;

    for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        p = ask(RTLD_NEXT, names[i]);
        looked_up("library next", names[i], p);
        p = ask(libc, names[i]);
        looked_up("library libc", names[i], p);
    }
    /* The main program's scope: the preload is in it, and CUDA's names are its own. */
    for (unsigned int i = 0; i < 3; i++) {
        p = ask(RTLD_DEFAULT, names[i]);
        looked_up("library default", names[i], p);
        p = ask(mine, names[i]);
        looked_up("library main", names[i], p);
    }
    p = dlvsym(libc, "getpid", "GLIBC_2.2.5");
    looked_up("library dlvsym", "getpid", p);
}
