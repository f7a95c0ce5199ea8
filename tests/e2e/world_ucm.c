/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world_ucm.c - a stand-in for UCX's libucm, which watches what a process allocates. When it is loaded it puts itself
 * before cudaMalloc, cudaFree, cuMemAlloc_v2 and cuMemFree_v2, in one of UCX's ways, which WORLD_UCM names:
 *
 *   reloc    write its own functions into the relocation slots of every loaded object
 *   bistro   overwrite the first bytes of the functions that look-ups by name lead to; "driver" those of libcuda's own
 *   later    reloc, but when world_ucm_install is called
 *
 * With "driver" it also says which object it found cuMemFreeHost in, another function that UCX overwrites.
 *
 * At the end it says how many calls it saw. As in older UCX, an overwritten function is called by putting its own bytes
 * back for the time of the call: enough for one thread.
 */
#include <elf.h>
#include <link.h>
#include <sys/mman.h>

#include "../program.h"

#define JUMP 16

static int ucm_cuda_malloc(void **p, size_t n);
static int ucm_cuda_free(void *p);
static int ucm_mem_alloc(unsigned long long *p, size_t n);
static int ucm_mem_free(unsigned long long p);

enum { CUDA_MALLOC, CUDA_FREE, MEM_ALLOC, MEM_FREE, FUNCTIONS };

static struct function {
    const char *name;
    void *hook, *original;
    unsigned char saved[JUMP];
    int patched;
    unsigned long calls;
} functions[FUNCTIONS] = {{"cudaMalloc", (void *)ucm_cuda_malloc, NULL, {0}, 0, 0},
                          {"cudaFree", (void *)ucm_cuda_free, NULL, {0}, 0, 0},
                          {"cuMemAlloc_v2", (void *)ucm_mem_alloc, NULL, {0}, 0, 0},
                          {"cuMemFree_v2", (void *)ucm_mem_free, NULL, {0}, 0, 0}};

static void open_pages(void *at, size_t n, int protection)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at & ~(page - 1);

    if (mprotect((void *)from, (uintptr_t)at + n - from, protection))
        abort();
}

/* --- bistro --- */

static void jump_write(struct function *f)
{
#ifdef __x86_64__
    const unsigned char code[JUMP] = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3}; /* movabs r11; jmp r11 */
    const size_t at = 2;
#else
    const unsigned char code[JUMP] = {0x51, 0, 0, 0x58, 0x20, 0x02, 0x1f, 0xd6}; /* ldr x17, +8; br x17 */
    const size_t at = 8;
#endif

    open_pages(f->original, JUMP, PROT_READ | PROT_WRITE | PROT_EXEC);
    memcpy(f->saved, f->original, JUMP);
    memcpy(f->original, code, JUMP);
    memcpy((char *)f->original + at, &f->hook, sizeof(f->hook));
    __builtin___clear_cache((char *)f->original, (char *)f->original + JUMP);
    f->patched = 1;
}

static void jump_remove(struct function *f)
{
    memcpy(f->original, f->saved, JUMP);
    __builtin___clear_cache((char *)f->original, (char *)f->original + JUMP);
}

static struct function *enter(int which)
{
    struct function *f = &functions[which];

    f->calls++;
    if (f->patched)
        jump_remove(f);
    return f;
}

static int leave(struct function *f, int rc)
{
    if (f->patched)
        jump_write(f);
    return rc;
}

static int ucm_cuda_malloc(void **p, size_t n)
{
    struct function *f = enter(CUDA_MALLOC);

    return leave(f, ((int (*)(void **, size_t))f->original)(p, n));
}

static int ucm_cuda_free(void *p)
{
    struct function *f = enter(CUDA_FREE);

    return leave(f, ((int (*)(void *))f->original)(p));
}

static int ucm_mem_alloc(unsigned long long *p, size_t n)
{
    struct function *f = enter(MEM_ALLOC);

    return leave(f, ((int (*)(unsigned long long *, size_t))f->original)(p, n));
}

static int ucm_mem_free(unsigned long long p)
{
    struct function *f = enter(MEM_FREE);

    return leave(f, ((int (*)(unsigned long long))f->original)(p));
}

/* --- reloc --- */

static void slots_patch(const struct dl_phdr_info *info, const ElfW(Rela) * rela, size_t bytes,
                        const ElfW(Sym) * symbols, const char *strings)
{
    if (!rela || !symbols || !strings)
        return;
    for (size_t i = 0; i < bytes / sizeof(*rela); i++) {
        void **slot = (void **)(info->dlpi_addr + rela[i].r_offset);
        const unsigned long symbol = ELF64_R_SYM(rela[i].r_info);

        for (int k = 0; symbol && k < FUNCTIONS; k++) {
            if (strcmp(strings + symbols[symbol].st_name, functions[k].name) != 0 || !functions[k].original)
                continue;
            open_pages(slot, sizeof(*slot), PROT_READ | PROT_WRITE);
            *slot = functions[k].hook;
        }
    }
}

static int object_patch(struct dl_phdr_info *info, size_t size, void *self)
{
    const ElfW(Dyn) *dynamic = NULL;
    const ElfW(Rela) *jump = NULL, *rela = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    size_t jump_size = 0, rela_size = 0;

    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    if (!dynamic || strcmp(info->dlpi_name, (const char *)self) == 0 || strstr(info->dlpi_name, "vdso"))
        return 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_JMPREL)
            jump = (const ElfW(Rela) *)dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_PLTRELSZ)
            jump_size = dynamic->d_un.d_val;
        else if (dynamic->d_tag == DT_RELA)
            rela = (const ElfW(Rela) *)dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_RELASZ)
            rela_size = dynamic->d_un.d_val;
        else if (dynamic->d_tag == DT_SYMTAB)
            symbols = (const ElfW(Sym) *)dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_STRTAB)
            strings = (const char *)dynamic->d_un.d_ptr;
    }
    slots_patch(info, jump, jump_size, symbols, strings);
    slots_patch(info, rela, rela_size, symbols, strings);
    return 0;
}

/* --- */

__attribute__((visibility("default"))) void world_ucm_install(void);

static void install(const char *how)
{
    void *driver = NULL;
    Dl_info self, found;

    if (!dladdr(&functions, &self))
        abort();
    if (strcmp(how, "driver") == 0) {
        driver = dlopen("libcuda.so.1", RTLD_NOW);
        if (dladdr(dlsym(driver, "cuMemFreeHost"), &found))
            fprintf(stderr, "ucm: found in %s\n", found.dli_fname);
    }
    for (int k = 0; k < FUNCTIONS; k++) {
        struct function *f = &functions[k];

        if (driver) {
            f->original = dlsym(driver, f->name);
        } else {
            /* As libucm looks: what comes after it, else what anybody finds. */
            f->original = dlsym(RTLD_NEXT, f->name);
            if (!f->original)
                f->original = dlsym(RTLD_DEFAULT, f->name);
        }
        if (f->original && strcmp(how, "reloc") != 0)
            jump_write(f);
    }
    if (strcmp(how, "reloc") == 0)
        dl_iterate_phdr(object_patch, (void *)self.dli_fname);
}

void world_ucm_install(void)
{
    install("reloc");
}

__attribute__((constructor)) static void start(void)
{
    const char *how = getenv("WORLD_UCM");

    if (how && strcmp(how, "later") != 0)
        install(how);
}

__attribute__((destructor)) static void report(void)
{
    for (int k = 0; k < FUNCTIONS; k++)
        fprintf(stderr, "ucm: %s %lu\n", functions[k].name, functions[k].calls);
}
