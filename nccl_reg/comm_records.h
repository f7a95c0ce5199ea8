/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_records.h - the records of a communicator: its registrations, sorted by address, and which kinds of operations
 * have used them. Private to nccl_reg. It makes no call; registrations.h does.
 *
 * Ownership: a record belongs to its communicator's array; a pointer to one is valid until a record is inserted or
 * deleted.
 *
 * Locking: every function needs the communicator's lock. No errors, except reg_record_insert's.
 */
#ifndef CUPOOL_NCCL_REG_COMM_RECORDS_H
#define CUPOOL_NCCL_REG_COMM_RECORDS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_reg_state.h"

static inline bool holds(const struct record *record, uint64_t addr, size_t size)
{
    return addr - record->addr < record->size && size <= record->size - (addr - record->addr);
}

/* The record that holds all of a buffer; NULL: none. */
struct record *reg_record_of(const struct nccl_reg_comm *comm, uint64_t addr, size_t size);
/* The record that starts at addr; NULL: none. */
struct record *reg_record_at(const struct nccl_reg_comm *comm, uint64_t addr);
/* There must be room for one more. */
void reg_record_insert(struct nccl_reg_comm *comm, const struct record *record);
void reg_record_delete(struct nccl_reg_comm *comm, const struct record *record);
/* True if the program itself has registered memory there. */
bool reg_user_holds(const struct nccl_reg_comm *comm, uint64_t addr, size_t size);
/* True if the kinds of the operations that use this record matter. */
bool reg_kinds_matter(const struct nccl_reg_comm *comm, const struct record *record);
/* Point-to-point uses the record. */
void reg_sent_mark(struct nccl_reg_comm *comm, struct record *record);
/* NCCL finds another registration now. Operations of this thread's open group run at its end, with that
 * registration. */
void reg_sent_clear(struct record *record);
/* A buffer at addr was found in a record and prepared: enter it into the lookup cache. */
void reg_lookup_enter(struct nccl_reg_comm *comm, uint64_t addr, const struct record *record);

#endif
