/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_object.c - shim/real/object.c: the build id of objects that are laid out here, page by page, and of the program
 * itself; the path of an object that was loaded by a relative name.
 *
 * Whole programs, their traces and their names are in tests/e2e/test_symbols.py.
 */
#include "cases.h"
#include "real/object.h"

#include <elf.h>
#include <link.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define NOTES        0x400 /* where an object's notes are */

/* The first page of an object. */
static union {
    ElfW(Ehdr) header;
    uint8_t bytes[8192];
} image __attribute__((aligned(8192)));

/* Append a note. Returns where the next one is. */
static size_t note_put(size_t at, size_t align, const char *name, unsigned int type, const void *id, size_t len)
{
    const ElfW(Nhdr) note = {.n_namesz = (unsigned int)strlen(name) + 1, .n_descsz = (unsigned int)len, .n_type = type};
    const size_t start = (sizeof(note) + note.n_namesz + align - 1) & ~(align - 1);

    memcpy(image.bytes + at, &note, sizeof(note));
    memcpy(image.bytes + at + sizeof(note), name, note.n_namesz);
    memcpy(image.bytes + at + start, id, len);
    return at + ((start + len + align - 1) & ~(align - 1));
}

/* An object with one segment that is loaded, and one of notes of this size. */
static struct object image_begin(size_t notes, size_t align)
{
    ElfW(Phdr) segments[] = {
        {.p_type = PT_NOTE, .p_vaddr = 0x10000 + NOTES, .p_filesz = notes, .p_memsz = notes, .p_align = align},
        {.p_type = PT_LOAD, .p_vaddr = 0x10000, .p_filesz = 0x1000, .p_memsz = 0x1000, .p_flags = PF_R}};

    memcpy(image.header.e_ident, ELFMAG, SELFMAG);
    image.header.e_phoff = sizeof(image.header);
    image.header.e_phnum = COUNT(segments);
    image.header.e_phentsize = sizeof(segments[0]);
    memcpy(image.bytes + sizeof(image.header), segments, sizeof(segments));
    return (struct object){
        .path = "", .start = (uintptr_t)&image, .bias = (uintptr_t)&image - 0x10000}; /* as if linked for 0x10000 */
}

static ElfW(Phdr) * segment_of(unsigned int index)
{
    return (ElfW(Phdr) *)(image.bytes + image.header.e_phoff) + index;
}

UNIT_CASE(test_ids)
{
    static const uint8_t id[40] = {0x00, 0x5a, 0xff, 0x10, 7};
    uint8_t got[OBJECT_ID_MAX];

    for (size_t align = 4; align <= 8; align += 4) {
        for (size_t len = 1; len <= 40; len++) {
            const size_t other = note_put(NOTES, align, "GNU", 5, "property", 8);
            const size_t foreign = note_put(other, align, "Go", NT_GNU_BUILD_ID, "not GNU's", 9);
            const size_t end = note_put(foreign, align, ELF_NOTE_GNU, NT_GNU_BUILD_ID, id, len);
            const struct object object = image_begin(end - NOTES, align);

            memset(got, 0xaa, sizeof(got));
            assert_int_equal(object_build_id(&object, got), len <= OBJECT_ID_MAX ? len : 0);
            if (len <= OBJECT_ID_MAX)
                assert_memory_equal(got, id, len);
        }
    }
}

/* The last note ends a byte before the place of the next one would be; an id there is none of these notes'. */
UNIT_CASE(test_behind_the_notes)
{
    static const uint8_t id[20] = {1};
    const size_t behind = note_put(NOTES, 4, "Go", NT_GNU_BUILD_ID, "abc", 3);
    const struct object object = image_begin(behind - NOTES - 1, 4);
    uint8_t got[OBJECT_ID_MAX];

    note_put(behind, 4, ELF_NOTE_GNU, NT_GNU_BUILD_ID, id, sizeof(id));
    assert_int_equal(object_build_id(&object, got), 0);
}

/* Headers that do not say where the notes are, or say so wrongly: nothing is read beyond what is mapped. */
UNIT_CASE(test_no_id)
{
    static const uint8_t id[20] = {1};
    const size_t end = note_put(NOTES, 4, ELF_NOTE_GNU, NT_GNU_BUILD_ID, id, sizeof(id));
    const struct object object = image_begin(end - NOTES, 4);
    uint8_t got[OBJECT_ID_MAX];

    assert_int_equal(object_build_id(&object, got), sizeof(id));
    segment_of(0)->p_filesz -= 1; /* the id goes on beyond the notes */
    assert_int_equal(object_build_id(&object, got), 0);
    segment_of(0)->p_filesz = 11; /* so does the head of a note */
    assert_int_equal(object_build_id(&object, got), 0);
    image_begin(end - NOTES, 4);
    segment_of(1)->p_flags = PF_X; /* mapped, and not to be read */
    assert_int_equal(object_build_id(&object, got), 0);
    image_begin(end - NOTES, 4);
    segment_of(1)->p_filesz = end - 1; /* the last byte is not in the file */
    assert_int_equal(object_build_id(&object, got), 0);
    segment_of(1)->p_filesz = end;
    assert_int_equal(object_build_id(&object, got), sizeof(id));
    segment_of(0)->p_vaddr = 0x1000; /* below all that is mapped */
    assert_int_equal(object_build_id(&object, got), 0);
    image_begin(end - NOTES, 4);
    image.header.e_ident[1] = 'e'; /* the file does not begin with its header */
    assert_int_equal(object_build_id(&object, got), 0);
    image_begin(end - NOTES, 4);
    image.header.e_phentsize = 8;
    assert_int_equal(object_build_id(&object, got), 0);
    image_begin(end - NOTES, 4);
    memcpy(image.bytes + 4096, image.bytes + image.header.e_phoff, 2 * sizeof(ElfW(Phdr)));
    image.header.e_phoff = 4096; /* a page that need not be mapped */
    assert_int_equal(object_build_id(&object, got), 0);
}

/* The program, in which this is. */
UNIT_CASE(test_program)
{
    char path[4096], exe[4096] = "";
    struct object object;

    assert_true(object_of((const void *)test_program, &object));
    assert_string_equal(object.path, "");
    assert_true(object.start <= (uintptr_t)test_program && object.bias <= (uintptr_t)test_program);
    assert_true(readlink("/proc/self/exe", exe, sizeof(exe) - 1) > 0);
    assert_true(object_path(&object, path, sizeof(path)));
    assert_string_equal(path, exe);
    assert_true(object_path(&object, path, strlen(exe) + 1));
    assert_false(object_path(&object, path, strlen(exe)));
    assert_false(object_of(NULL, &object));
}

UNIT_CASE(test_relative)
{
    const struct object relative = {.path = "./lib/x.so"}, absolute = {.path = "/lib/x.so"};
    char path[64];

    assert_int_equal(chdir("/tmp"), 0);
    assert_true(object_path(&relative, path, sizeof(path)));
    assert_string_equal(path, "/tmp/./lib/x.so");
    assert_true(object_path(&relative, path, sizeof("/tmp/./lib/x.so")));
    assert_false(object_path(&relative, path, sizeof("/tmp/./lib/x.so") - 1));
    assert_false(object_path(&relative, path, sizeof("/tmp") - 1));
    assert_true(object_path(&absolute, path, sizeof("/lib/x.so")));
    assert_string_equal(path, "/lib/x.so");
    assert_false(object_path(&absolute, path, sizeof("/lib/x.so") - 1));
}
