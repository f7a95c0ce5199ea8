/* SPDX-License-Identifier: Apache-2.0 */
/* dlsym_x86_64.S - the exported dlsym: call the filter of dlsym.c; if it returns NULL, jump to the real dlsym with the
 * caller's return address in place. */
    .text
    .hidden cupool_dlsym_filter
    .hidden cupool_dlsym_next
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    movq 24(%rsp), %rdx /* the return address */
    call cupool_dlsym_filter
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jz 1f
    ret
1:
    movq cupool_dlsym_next(%rip), %r11
    jmpq *%r11
    .cfi_endproc
    .size dlsym, . - dlsym
    .section .note.GNU-stack, "", @progbits
