/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_message.c - see ipc_message.h. No locks and no state. */
#include "base/ipc_message.h"

#include <string.h>

static const unsigned char ticket_magic[8] = {'c', 'u', 'p', 'o', 'o', 'l', 'I', 'P'};
#define MAGIC UINT32_C(0x49706f63) /* "copI" */

/* FNV-1a: against damage, not against malice, which the random names are for. */
static uint64_t check_of(const struct ipc_ticket *ticket)
{
    const unsigned char *bytes = (const unsigned char *)ticket;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < offsetof(struct ipc_ticket, check); i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

bool ipc_name_equal(const struct ipc_name *a, const struct ipc_name *b)
{
    return memcmp(a->bytes, b->bytes, IPC_NAME_BYTES) == 0;
}

uint64_t ipc_name_hash(const struct ipc_name *name)
{
    uint64_t word;

    memcpy(&word, name->bytes, sizeof(word));
    return word;
}

void ipc_ticket_make(struct ipc_ticket *ret_ticket, int pid, const struct ipc_name *station,
                     const struct ipc_name *block)
{
    struct ipc_ticket ticket = {.version = IPC_VERSION, .pid = pid, .station = *station, .block = *block};

    memcpy(ticket.magic, ticket_magic, sizeof(ticket.magic));
    ticket.check = check_of(&ticket);
    *ret_ticket = ticket;
}

bool ipc_ticket_read(const void *handle, struct ipc_ticket *ret_ticket)
{
    memcpy(ret_ticket, handle, sizeof(*ret_ticket));
    return memcmp(ret_ticket->magic, ticket_magic, sizeof(ticket_magic)) == 0 && ret_ticket->version == IPC_VERSION &&
           ret_ticket->check == check_of(ret_ticket);
}

void ipc_request_make(struct ipc_request *ret_request, enum ipc_kind kind, uint64_t number,
                      const struct ipc_name *block)
{
    *ret_request = (struct ipc_request){
        .magic = MAGIC, .version = IPC_VERSION, .kind = (uint16_t)kind, .number = number, .block = *block};
}

bool ipc_request_read(const void *data, size_t len, struct ipc_request *ret_request)
{
    if (len != sizeof(*ret_request))
        return false;
    memcpy(ret_request, data, len);
    return ret_request->magic == MAGIC && ret_request->version == IPC_VERSION &&
           (ret_request->kind == IPC_OPEN || ret_request->kind == IPC_CLOSE);
}

void ipc_grant_begin(struct ipc_grant *ret_grant, uint64_t number, enum ipc_status status)
{
    *ret_grant = (struct ipc_grant){
        .magic = MAGIC, .version = IPC_VERSION, .kind = IPC_GRANT, .number = number, .status = (uint32_t)status};
}

/* The block lies in its segment, and the memory comes in one of the two ways. */
static bool fits_together(const struct ipc_grant *grant, bool with_descriptor)
{
    return grant->segment_size && grant->segment_size <= IPC_SEGMENT_MAX && grant->offset <= grant->segment_size &&
           grant->size && grant->size <= grant->segment_size - grant->offset &&
           grant->how == (with_descriptor ? IPC_DESCRIPTOR : IPC_NATIVE);
}

bool ipc_grant_read(const void *data, size_t len, bool with_descriptor, struct ipc_grant *ret_grant)
{
    if (len != sizeof(*ret_grant))
        return false;
    memcpy(ret_grant, data, len);
    if (ret_grant->magic != MAGIC || ret_grant->version != IPC_VERSION || ret_grant->kind != IPC_GRANT)
        return false;
    if (ret_grant->status == IPC_GRANTED)
        return fits_together(ret_grant, with_descriptor);
    return ret_grant->status <= IPC_FULL && !with_descriptor;
}
