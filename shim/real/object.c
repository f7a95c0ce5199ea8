/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object.c - see object.h.
 *
 * dl_iterate_phdr would give the program headers, but it takes the loader's lock, which a constructor that waits for
 * this very request may hold. So they are read where the loader has mapped them: from the ELF header on, with which
 * the first segment of every object begins.
 *
 * Locking: none; there is no state.
 */
#include "real/object.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "real/find_object.h"

typedef ElfW(Ehdr) elf_header;
typedef ElfW(Phdr) elf_segment;
typedef ElfW(Nhdr) elf_note;

bool object_of(const void *address, struct object *ret_object)
{
    struct found_object found;

    if (!find_object(address, &found))
        return false;
    *ret_object = (struct object){.path = found.map->l_name ? found.map->l_name : "",
                                  .symbol = found.symbol,
                                  .start = (uintptr_t)found.start,
                                  .bias = found.map->l_addr};
    return true;
}

/* The program headers in the object's memory; NULL: they are not there. */
static const elf_segment *segments_of(const struct object *object, unsigned int *ret_count)
{
    const elf_header *header = (const elf_header *)object->start;
    const elf_segment *segments;
    size_t end;

    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_phentsize != sizeof(elf_segment))
        return NULL;
    end = header->e_phoff + header->e_phnum * sizeof(elf_segment);
    /* The loader maps whole pages, and none is smaller. Headers that go on beyond the first one are no linker's. */
    if (end > 4096 || header->e_phoff % sizeof(void *))
        return NULL;
    segments = (const elf_segment *)(object->start + header->e_phoff);
    *ret_count = header->e_phnum;
    return segments;
}

/* True if the loader has mapped these bytes of the file to be read. */
static bool is_mapped(const elf_segment *segments, unsigned int count, uintptr_t from, size_t size)
{
    for (unsigned int i = 0; i < count; i++)
        if (segments[i].p_type == PT_LOAD && (segments[i].p_flags & PF_R) && from >= segments[i].p_vaddr &&
            from - segments[i].p_vaddr <= segments[i].p_filesz &&
            size <= segments[i].p_filesz - (from - segments[i].p_vaddr))
            return true;
    return false;
}

/* The build id among the notes of one segment. */
static size_t id_among(const uint8_t *notes, size_t size, size_t align, uint8_t ret_id[OBJECT_ID_MAX])
{
    while (size >= sizeof(elf_note)) {
        const elf_note *note = (const elf_note *)notes;
        const size_t name = sizeof(*note), id = (name + note->n_namesz + align - 1) & ~(align - 1);
        const size_t next = (id + note->n_descsz + align - 1) & ~(align - 1);

        if (id + note->n_descsz > size)
            return 0;
        if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == sizeof(ELF_NOTE_GNU) &&
            memcmp(notes + name, ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0 && note->n_descsz <= OBJECT_ID_MAX) {
            memcpy(ret_id, notes + id, note->n_descsz);
            return note->n_descsz;
        }
        if (next >= size)
            return 0;
        notes += next;
        size -= next;
    }
    return 0;
}

size_t object_build_id(const struct object *object, uint8_t ret_id[OBJECT_ID_MAX])
{
    unsigned int count = 0;
    const elf_segment *segments = segments_of(object, &count);

    for (unsigned int i = 0; i < count; i++) {
        const elf_segment *notes = &segments[i];
        size_t len;

        if (notes->p_type != PT_NOTE || !is_mapped(segments, count, notes->p_vaddr, notes->p_filesz))
            continue;
        len = id_among((const uint8_t *)(object->bias + notes->p_vaddr), notes->p_filesz, notes->p_align == 8 ? 8 : 4,
                       ret_id);
        if (len)
            return len;
    }
    return 0;
}

/* The target of a link under /proc, as a string. False: it does not fit, or cannot be read. */
static bool link_read(const char *link, char *buf, size_t len)
{
    const int saved = errno;
    const ssize_t n = readlink(link, buf, len);

    errno = saved;
    if (n <= 0 || (size_t)n >= len)
        return false;
    buf[n] = '\0';
    return true;
}

bool object_path(const struct object *object, char *buf, size_t len)
{
    size_t used = 0;

    if (!*object->path) /* the loader has no name for the program itself */
        return link_read("/proc/self/exe", buf, len);
    if (*object->path != '/') { /* not getcwd, which may allocate */
        if (!link_read("/proc/self/cwd", buf, len))
            return false;
        used = strlen(buf);
    }
    return used + (size_t)snprintf(buf + used, len - used, "%s%s", used ? "/" : "", object->path) < len;
}
