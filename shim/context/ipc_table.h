/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_table.h - the books of an exporting process: which blocks are exported, who holds them, and which are parked:
 * freed by the program while another process holds them.
 *
 * A block enters the books with its first ticket and leaves them with its free, or, if it is held then, with its last
 * holder. Until that its memory serves no other request. A holder is a process that imports, or rather its connection.
 *
 * It makes no call of the driver, and frees no block; serve/ipc_handles.h and serve/serve.h do. It reads no
 * socket either; ipc_server.h does.
 *
 * Ownership: a segment's descriptor belongs to the books from ipc_table_add on; they close it with the segment's last
 * block. A holder belongs to the caller.
 *
 * Threads: every function may be called from any thread; those on a holder by one thread at a time. One lock, private
 * to ipc_table.c and a leaf. Errors: negative errno values.
 */
#ifndef CUPOOL_SHIM_CONTEXT_IPC_TABLE_H
#define CUPOOL_SHIM_CONTEXT_IPC_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ipc_message.h"

struct context;
struct ipc_hold;

/* The most blocks in the books. */
#ifndef IPC_BLOCKS_MAX /* its test makes do with fewer */
#define IPC_BLOCKS_MAX 65536u
#endif

/* A segment with exported blocks, as other processes get it. */
struct ipc_segment {
    uint64_t addr, size;
    uint64_t front; /* bytes in front of addr that belong to the memory */
    enum ipc_how how;
    int fd;                                 /* IPC_DESCRIPTOR */
    unsigned char handle[IPC_HANDLE_BYTES]; /* IPC_NATIVE */
    unsigned char card[16];
};

/* A process that holds blocks. All zeros: it holds none. */
struct ipc_holder {
    struct ipc_hold *first;
};

/* True if any block is in the books. */
extern atomic_uint ipc_table_blocks;
static inline bool ipc_table_any(void)
{
    return __builtin_expect(atomic_load_explicit(&ipc_table_blocks, memory_order_relaxed) != 0, 0);
}

/* The name of the block that starts at addr. False: it is not in the books. */
bool ipc_table_name(uint64_t addr, struct ipc_name *ret_block);
/* True if a block of this segment is in the books; the next one needs no description of it. */
bool ipc_table_has_segment(uint64_t segment);
/*
 * Enter a block of a context, unless it is there, and name it. segment: describes the segment, whose descriptor the
 * books take over in any case; a size of 0: the segment is in the books already. -EAGAIN: it no longer is. -ENOMEM:
 * there is no room. -EBUSY: the block is parked.
 */
int ipc_table_add(const struct context *owner, uint64_t addr, size_t size, const struct ipc_segment *segment,
                  struct ipc_name *ret_block);

/* The fate of a block that the program frees. */
enum ipc_free {
    IPC_FREE_NOW,    /* nobody holds it: it has left the books */
    IPC_FREE_PARKED, /* it is held: it stays handed out until its last holder is gone */
    IPC_FREE_AGAIN,  /* the program has freed it before */
};
enum ipc_free ipc_table_free(uint64_t addr);
/* True if the program has freed this block, which is held. */
bool ipc_table_parked(uint64_t addr);
/* The address of a parked block that nobody holds any more, and that ipc_table_take has not taken yet. False: there is
 * none. */
bool ipc_table_released(uint64_t *ret_addr);
/* Take such a block off the books; the caller then frees it. False: it has gone with its context. */
bool ipc_table_take(uint64_t addr);

/* Let a holder hold a block. *ret_fd: a descriptor of the segment that the caller closes, or -1. */
void ipc_table_grant(struct ipc_holder *holder, const struct ipc_request *request, struct ipc_grant *ret_grant,
                     int *ret_fd);
/* Take back one grant of a block. False: it has none. */
bool ipc_table_close(struct ipc_holder *holder, const struct ipc_name *block);
/* Take back all grants. */
void ipc_table_end(struct ipc_holder *holder);

/* The context is gone, or its segment at this address: their blocks leave the books, held or not. */
void ipc_table_context_gone(const struct context *owner);
void ipc_table_segment_gone(uint64_t segment);
/* In a forked child. */
void ipc_table_forget(void);

/* The blocks in the books or just leaving them, those that are held, and those that are parked, without blocks in the
 * books of which is_left_out says so (NULL: all); it takes no lock. */
struct ipc_table_counts {
    unsigned int blocks, held, parked;
};
void ipc_table_count(bool (*is_left_out)(const struct context *owner, int device), int device,
                     struct ipc_table_counts *ret_counts);

#endif
