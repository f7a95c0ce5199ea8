# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/info/: what cupool-info says of a machine and of a program."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("info: a machine with GPUs is said to have none", ["info / Info.test_machines"], [
        ("if (error || !machine.devices)", "if (error || machine.devices)")]),
    Mutant("info: the first function of a library is not looked for", ["info / Info.test_stubs"], [
        ("for (size_t i = 0; i < count; i++) {", "for (size_t i = 1; i < count; i++) {", "print_hooks")]),
    Mutant("info: a hyphen is a backslash in the manual", ["info / Info.test_rows_of_the_manual"], [
        ("printf(*c == '-' ?", "printf(*c != '-' ?")]),
    Mutant("check: env is lost before what it splits", ["check / Chains.test_env_splits"], [
        ("put_in_front(1, &text);", "put_in_front(0, &text);")]),
    Mutant("check: a library that is not found has no name", ["check / Chains.test_a_loader_that_lists_what_it_does_not_find"], [
        ("line + strspn(line, \" \\t\"));", "line - strspn(line, \" \\t\"));")]),
    Mutant("check: a cudart that a wheel has renamed is none", ["check / Reach.test_shared_in_a_wheel"], [
        ("\"libcudart-\", 10)", "\"libcudart-\", 11)")]),
    Mutant("check: every program is said to be linked statically", ["check / Reach.test_shared"], [
        ("file->bits == 64 && !file->interp ?", "file ?")]),
    Mutant("check: more words than there is room for", ["check / Chains.test_longer_than_there_is_room_for"], [
        ("if (check.argc + n > ARGS_MAX)", "if (check.argc - n > ARGS_MAX)")]),
    Mutant("a program with kernels is caught on simulated GPUs", ["info / Info.test_what_does_not_run_on_simulated_gpus"], [
        ('elf_symbol(&file, "__cudaRegisterFatBinary") == ELF_UNDEFINED', 'false')]),
    Mutant("NVIDIA's static cudart is caught on simulated GPUs", ["info / Info.test_what_does_not_run_on_simulated_gpus"], [
        ('(reach->static_in == path && elf_contains(&file, "cuGetExportTable"))', 'false')]),
]
