// Called by the code that third_party/pic_archives.py writes.
//
// %rax is the address of a thread-local variable's tls_index, and becomes the
// variable's offset from %fs:0 in this thread. All other registers and the flags
// keep their values: at the place of the call the compiler expected none. The
// callers know SSE alone, so the upper halves of vector registers have no values.

        .text
        .globl _muster_tls_offset
        .hidden _muster_tls_offset
        .type _muster_tls_offset, @function
_muster_tls_offset:
        .cfi_startproc
        push %rbp
        .cfi_def_cfa_offset 16
        .cfi_offset %rbp, -16
        mov %rsp, %rbp
        .cfi_def_cfa_register %rbp
        pushfq
        push %rcx
        push %rdx
        push %rsi
        push %rdi
        push %r8
        push %r9
        push %r10
        push %r11
        sub $256, %rsp
        and $-16, %rsp
        .irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movaps %xmm\i, \i*16(%rsp)
        .endr
        mov %rax, %rdi
        call __tls_get_addr@PLT
        sub %fs:0, %rax
        .irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movaps \i*16(%rsp), %xmm\i
        .endr
        lea -72(%rbp), %rsp
        pop %r11
        pop %r10
        pop %r9
        pop %r8
        pop %rdi
        pop %rsi
        pop %rdx
        pop %rcx
        popfq
        pop %rbp
        .cfi_def_cfa %rsp, 8
        ret
        .cfi_endproc
        .size _muster_tls_offset, .-_muster_tls_offset
        .section .note.GNU-stack, "", @progbits
