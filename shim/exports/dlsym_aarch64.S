/* SPDX-License-Identifier: Apache-2.0 */
/* dlsym_aarch64.S - the exported dlsym: call the filter of dlsym.c; if it returns NULL, jump to the real dlsym with the
 * caller's return address in place. */
    .text
    .hidden cupool_dlsym_filter
    .hidden cupool_dlsym_next
    .globl dlsym
    .type dlsym, %function
dlsym:
    .cfi_startproc
    hint #34 /* bti c */
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    mov x29, sp
    stp x0, x1, [sp, #16]
    mov x2, x30 /* the return address */
    bl cupool_dlsym_filter
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore 30
    .cfi_restore 29
    .cfi_def_cfa_offset 0
    cbz x16, 1f
    mov x0, x16
    ret
1:
    adrp x17, cupool_dlsym_next
    ldr x17, [x17, #:lo12:cupool_dlsym_next]
    br x17
    .cfi_endproc
    .size dlsym, . - dlsym
    .section .note.GNU-stack, "", %progbits
