/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_exporter.c - see ipc_exporter.h. No locks. */
#include "context/ipc_exporter.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static struct ipc_exporter *exporters;

struct ipc_exporter *ipc_exporter_get(const struct ipc_name *station, uint64_t limit, int *ret_rc)
{
    struct ipc_exporter *exporter = exporters;

    while (exporter && !ipc_name_equal(&exporter->station, station))
        exporter = exporter->next;
    *ret_rc = 0;
    if (exporter &&
        !ipc_is_open(&exporter->socket)) /* the program has closed it; what is open stays held until we end */
        *ret_rc = ipc_connect(station, limit, &exporter->socket);
    if (exporter)
        return *ret_rc ? NULL : exporter;
    exporter = calloc(1, sizeof(*exporter));
    *ret_rc = exporter ? ipc_connect(station, limit, &exporter->socket) : -ENOMEM;
    if (*ret_rc) {
        free(exporter);
        return NULL;
    }
    exporter->station = *station;
    exporter->next = exporters;
    exporters = exporter;
    return exporter;
}

void ipc_exporter_drop(struct ipc_exporter *exporter)
{
    struct ipc_exporter **at = &exporters;

    if (exporter->uses)
        return;
    while (*at != exporter)
        at = &(*at)->next;
    *at = exporter->next;
    ipc_end(&exporter->socket);
    free(exporter);
}

/* Receive the answer to the last request. 0; -EPROTO: the exporter has sent something else. */
static int grant_receive(struct ipc_exporter *exporter, uint64_t limit, struct ipc_grant *ret_grant, int *ret_fd)
{
    struct ipc_grant raw[2];
    ssize_t n;
    int rc;

    for (;;) {
        n = ipc_receive(&exporter->socket, raw, sizeof(raw), ret_fd);
        if (n == -EAGAIN) {
            if ((rc = ipc_wait(&exporter->socket, limit)))
                return rc;
            continue;
        }
        if (n <= 0)
            return n ? (int)n : -ECONNRESET;
        rc = ipc_grant_read(raw, (size_t)n, *ret_fd >= 0, ret_grant) ? 0 : -EPROTO;
        if (!rc && ret_grant->number == exporter->number)
            return 0;
        if (*ret_fd >= 0)
            close(*ret_fd);
        *ret_fd = -1;
        if (rc) /* an answer to an earlier request, which came too late, is passed over */
            return rc;
    }
}

void ipc_exporter_close(struct ipc_exporter *exporter, const struct ipc_name *block, uint64_t limit)
{
    struct ipc_request request;

    ipc_request_make(&request, IPC_CLOSE, 0, block);
    ipc_send_by(&exporter->socket, &request, sizeof(request), limit);
}

int ipc_exporter_ask(struct ipc_exporter *exporter, const struct ipc_name *block, uint64_t limit,
                     struct ipc_grant *ret_grant, int *ret_fd)
{
    struct ipc_request request;
    int rc;

    ipc_request_make(&request, IPC_OPEN, ++exporter->number, block);
    rc = ipc_send_by(&exporter->socket, &request, sizeof(request), limit);
    if (!rc) {
        rc = grant_receive(exporter, limit, ret_grant, ret_fd);
        if (rc)
            ipc_exporter_close(exporter, block, /* limit: do not wait */ 0);
    }
    return rc;
}

void ipc_exporters_forget(void)
{
    for (struct ipc_exporter *exporter = exporters; exporter; exporter = exporter->next)
        ipc_leave(&exporter->socket);
    exporters = NULL;
}
