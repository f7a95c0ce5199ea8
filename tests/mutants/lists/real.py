# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/real/: finding the real functions."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    # --- the order of frees ---
    Mutant("the runtime is told the driver's own functions while ours are being found", ["hang / Hang.test_many_threads"], [
        ("if (!lock_take_within(&real.lock, FILL_WAIT_NS)) { atomic_store(&real.tried, true); return NULL; }",
         "if (!lock_try(&real.lock)) return NULL;")], 60),
    Mutant("callers: a class is remembered while a library goes", ["caller"], [
        ("if (!atomic_load(&unloading) && atomic_load(&generation) == now)", "if (atomic_load(&generation) == now)")]),
    Mutant("a dlclose without the real one has another answer", ["caller"], [("return -1;", "return 1;", "dlclose")]),
    Mutant("the runtime's functions are looked for in the middle of a request", ["hang / Hang.test_a_constructor_that_waits_for_a_thread"], [
        ("driver_fill(handle); next_fill();", "driver_fill(handle); (void)next_fill;")]),

    # --- several cudarts ---
    Mutant("cudarts: the second one's functions are looked for in the middle of a call",
           ["world / Plugins.test_a_thread_that_calls_the_second_cudart"], [("next_fill_or(cudart_fill(caller));", "(void)cudart_fill; next_fill_or(NULL);")], 60),
    Mutant("cudarts: a function that the first one lacks is looked for in the middle of a call",
           ["world / Plugins.test_a_thread_that_calls_the_second_cudart"], [
        ("!look_for(i) && others)", "!look_for(i) && false)")], 60),
    Mutant("cudarts: what the first one lacks none has", ["world / Versions.test_a_function_that_the_first_cudart_lacks"], [
        ("= !first || cudart_at(first) ? own_name(caller) : NULL;", "= first && cudart_at(first) ? own_name(caller) : NULL;")]),
    Mutant("cudarts: another preload in between is passed by", ["world / Versions.test_a_preload_in_front_of_two_cudarts"], [
        ("= !first || cudart_at(first) ? own_name(caller) : NULL;", "= own_name(caller);")]),
    Mutant("cudarts: each call walks over all objects", ["hang / Hang.test_a_walk_over_all_objects_that_waits_for_a_thread"], [
        ("if (known) return known->functions[symbol]; handle = several_cudarts()",
         "handle = several_cudarts() && !known ? loaded_handle(name) : NULL; if (known) return known->functions[symbol]; handle = several_cudarts()")], 60),

    # --- NCCL ---
    Mutant("NCCL: the program's own objects decide nothing", ["nccl / Registered.test_a_plugin_that_brings_its_own"], [
        ("copy = copy_of(loaded_handle(info.dli_fname)); return copy ? copy : copy_of(loaded_handle(\"libnccl.so.2\"));", "; return copy;")]),

    # --- objects ---
    Mutant("object: a build id that goes on beyond its notes is read", ["object"], [
        ("if (id + note->n_descsz > size) return 0;", ";")]),
    Mutant("object: any tool's note of this number is the build id", ["object"], [
        ("note->n_namesz == sizeof(ELF_NOTE_GNU) &&", "true &&"), ("memcmp(notes + name, ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0 &&", "true &&")]),
    Mutant("object: a long build id overruns the buffer", ["object"], [
        ("&& note->n_descsz <= OBJECT_ID_MAX) {", ") {")]),
    Mutant("object: notes are aligned to four bytes, always", ["object"], [
        ("notes->p_align == 8 ? 8 : 4", "4")]),
    Mutant("object: notes that are not mapped are read", ["object"], [
        ("!is_mapped(segments, count, notes->p_vaddr, notes->p_filesz)", "false")]),
    Mutant("object: program headers behind the first page are read", ["object"], [
        ("end > 4096 ||", "false ||")]),
    Mutant("object: a relative path stays so", ["object"], [
        ("if (*object->path != '/') {", "if (false) {")]),
    Mutant("frames: offsets are counted from where the object lies", ["symbols / Symbols.test_a_program_at_a_fixed_address"], [
        ("(size_t)((uintptr_t)address - object.bias)", "(size_t)((uintptr_t)address - object.start)")]),
    Mutant("an older glibc's look-up has no name of the function", ["find_object-old-glibc"], [
        (".symbol = info.dli_sname", ".symbol = NULL")]),
    Mutant("two copies of the library both work", ["world_preloads / Copies"], [
        ("copies.is_second = first && first != &cupool_copy;", "")]),
    Mutant("a copy of the library that does nothing is not named", ["world_preloads / Copies"], [
        ("copies.next = info.dli_fname;", "")]),
    Mutant("the search for copies leaves an error of the loader", ["world_preloads / Copies"], [
        ("dlerror(); /* a name that was not found would be the next error that the program asks for */", "")]),
    Mutant("a copy of the library takes a program that refers to it for another copy", ["world_preloads / Copies"], [
        ('static const char name[] = "cupool_copy";', 'static const char name[] = "cupool_lib_version";')]),
]
