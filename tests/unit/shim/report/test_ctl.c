/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ctl.c - shim/report/ctl.c: the commands of cupool-ctl for several devices, of which some refuse. The program's
 * view: tests/e2e/test_ctl.py.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/conf.h"
#include "base/ctl_socket.h"
#include "base/launch.h"
#include "base/log.h"
#include "cases.h"
#include "context/counters.h"
#include "context/device.h"
#include "context/lifetime.h"
#include "context/pause.h"
#include "pool.h"
#include "report/ctl.h"
#include "trace/json.h"
#include "trace/trace.h"

#define DEVICES 64

static struct {
    unsigned int devices; /* that the process uses */
    bool paused[DEVICES];
    int pause_rc[DEVICES], resume_rc[DEVICES];
    uint64_t until; /* the limit of the last pause */
    struct ctl_request request;
    bool has_request;
    int rc;
    char text[CTL_TEXT_MAX];
    size_t size;
} fake;

const struct conf *conf_get(void)
{
    static const struct conf conf;

    return &conf;
}

void log_write(enum conf_log_level level, const char *format, ...)
{
    (void)level;
    (void)format;
}

void trace_event(const char *event, const char *format, ...)
{
    (void)event;
    (void)format;
}

void launch_detect(struct launch *ret_launch)
{
    memset(ret_launch, 0, sizeof(*ret_launch));
}

void json_text(char *buf, size_t len, const char *text)
{
    snprintf(buf, len, "%s", text);
}

void context_stats_each(bool ending,
                        void (*each)(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed),
                        void *arg)
{
    struct pool_stats stats;

    memset(&stats, 0xff, sizeof(stats)); /* as many digits as there may be */
    assert_false(ending);
    for (unsigned int i = 0; i < fake.devices; i++)
        each(arg, (int)i, &stats, 0);
}

uint64_t device_yield(int device, uint64_t limit)
{
    return limit ? (uint64_t)device + 1 : 0;
}

void context_limit_set(int device, uint64_t limit)
{
    assert_true(device < DEVICES && limit);
}

bool device_is_paused(int device)
{
    return fake.paused[device];
}

int pause_check(int device, bool keep)
{
    return keep && fake.paused[device] ? -EALREADY : 0;
}

int pause_device(int device, bool keep, uint64_t limit, uint64_t *ret_bytes)
{
    fake.until = limit;
    *ret_bytes = 100;
    fake.paused[device] |= keep && !fake.pause_rc[device];
    return fake.pause_rc[device];
}

int resume_device(int device, uint64_t *ret_bytes)
{
    if (!fake.paused[device])
        return -EALREADY;
    *ret_bytes = 10;
    fake.paused[device] = fake.resume_rc[device] != 0;
    return fake.resume_rc[device];
}

const char *pause_reason(void)
{
    return "because";
}

int ctl_socket_open(const char *folder, const char **ret_why)
{
    *ret_why = folder;
    return -EACCES;
}

void ctl_socket_ring(void)
{
}

unsigned int ctl_socket_listen(struct pollfd *fds, unsigned int max)
{
    return fds ? max : 0;
}

bool ctl_socket_read(uint64_t now, struct ctl_request *ret_request)
{
    const bool has = fake.has_request;

    assert_int_equal(now, 7);
    fake.has_request = false;
    *ret_request = fake.request;
    return has;
}

bool ctl_socket_reply(int rc, const char *text, size_t size)
{
    fake.rc = rc;
    fake.size = size;
    memcpy(fake.text, text, size);
    fake.text[size < sizeof(fake.text) ? size : 0] = '\0';
    return true;
}

bool ctl_socket_is_awaited(void)
{
    return true;
}

uint64_t ctl_socket_due(void)
{
    return 0;
}

void ctl_socket_close(bool forked)
{
    (void)forked;
}

static int asked(enum ctl_command command, int device, uint32_t flags)
{
    fake.request = (struct ctl_request){.command = (uint16_t)command, .device = device, .flags = flags, .value = 1};
    fake.has_request = true;
    ctl_tick(7);
    return fake.rc;
}

static void start(unsigned int devices)
{
    memset(&fake, 0, sizeof(fake));
    fake.devices = devices;
}

static unsigned int paused(void)
{
    unsigned int bits = 0;

    for (unsigned int i = 0; i < fake.devices; i++)
        bits |= (unsigned int)fake.paused[i] << i;
    return bits;
}

/* Here and below: the devices of earlier tests are known, too. */
UNIT_CASE(test_trim)
{
    start(3);
    assert_int_equal(asked(CTL_TRIM, -1, 0), 0);
    assert_string_equal(fake.text, "{\"bytes\":6}");
    assert_int_equal(asked(CTL_LIMIT, 1, 0), 0);
    assert_string_equal(fake.text, "{\"bytes\":2}");
}

UNIT_CASE(test_pause_of_all)
{
    start(3);
    assert_int_equal(asked(CTL_PAUSE, -1, CTL_KEEP), 0);
    assert_string_equal(fake.text, "{\"bytes\":300}");
    assert_int_equal(paused(), 7);
    assert_int_equal(asked(CTL_PAUSE, -1, CTL_KEEP), -EALREADY);
    assert_string_equal(fake.text, "it is paused");
    assert_int_equal(paused(), 7);
    assert_int_equal(asked(CTL_RESUME, -1, 0), 0);
    assert_string_equal(fake.text, "{\"bytes\":30}");
    assert_int_equal(paused(), 0);
    assert_int_equal(asked(CTL_PAUSE, 1, 0), -EINVAL); /* neither keep nor discard */
    assert_int_equal(asked(CTL_PAUSE, 3, CTL_KEEP), -ENODEV);
    assert_int_equal(paused(), 0);
}

/* One is paused already: the others are then. */
UNIT_CASE(test_pause_of_the_rest)
{
    start(3);
    fake.paused[1] = true;
    fake.pause_rc[1] = -EALREADY;
    assert_int_equal(asked(CTL_PAUSE, -1, CTL_KEEP), 0);
    assert_string_equal(fake.text, "{\"bytes\":200}");
    assert_int_equal(paused(), 7);
}

/* One device refuses: those before it run again, and what that one has does not change. */
UNIT_CASE(test_pause_of_all_but_one)
{
    start(4);
    fake.pause_rc[2] = -EBUSY;
    fake.paused[2] = fake.paused[3] = true; /* as if since the check */
    fake.resume_rc[0] = -EIO;
    fake.request.flags = CTL_DISCARD;
    assert_int_equal(asked(CTL_CHECK, 0, CTL_DISCARD), 0);
    fake.paused[2] = fake.paused[3] = false;
    assert_int_equal(asked(CTL_PAUSE, -1, CTL_KEEP), -EBUSY);
    assert_string_equal(fake.text, "device 2: because");
    assert_int_equal(paused(), 1); /* the driver did not give the first one's memory back */
    fake.resume_rc[0] = 0;
    fake.pause_rc[2] = 0;
    fake.paused[0] = false;
    assert_int_equal(asked(CTL_PAUSE, 2, CTL_KEEP), 0);
    fake.pause_rc[2] = -EBUSY;
    assert_int_equal(asked(CTL_PAUSE, -1, CTL_DISCARD), -EBUSY);
    assert_int_equal(paused(), 4);
}

UNIT_CASE(test_resume_of_some)
{
    start(4);
    fake.paused[1] = fake.paused[3] = true;
    assert_int_equal(asked(CTL_RESUME, -1, 0), 0);
    assert_string_equal(fake.text, "{\"bytes\":20}");
    assert_int_equal(asked(CTL_RESUME, -1, 0), -EALREADY);
    assert_string_equal(fake.text, "it is not paused");
    fake.paused[1] = fake.paused[3] = true;
    fake.resume_rc[1] = -ENOMEM;
    assert_int_equal(asked(CTL_RESUME, -1, 0), -ENOMEM);
    assert_string_equal(fake.text, "device 1: because");
    assert_int_equal(paused(), 2);
}

/* An answer that is too long is none, rather than half of one. */
UNIT_CASE(test_too_long)
{
    start(2);
    assert_int_equal(asked(CTL_STATS, -1, 0), 0);
    assert_true(fake.size && fake.text[fake.size - 1] == '}');
    start(DEVICES);
    assert_int_equal(asked(CTL_STATS, -1, 0), -EMSGSIZE);
    assert_int_equal(fake.size, 0);
    assert_int_equal(asked(CTL_LIST, -1, 0), 0);
}

/* A list of one device has no other, be it the first; and all counters of one. */
UNIT_CASE(test_list_of_one)
{
    for (int i = 0; i < 6; i++) {
        const int device = i / 2;
        char begin[32];

        start(3);
        assert_int_equal(asked(i % 2 ? CTL_STATS : CTL_LIST, device, 0), 0);
        snprintf(begin, sizeof(begin), "{\"device\":%d,", device);
        assert_non_null(strstr(fake.text, begin));
        assert_ptr_equal(strstr(fake.text, "\"device\":"), strstr(fake.text, begin) + 1);
        assert_null(strstr(strstr(fake.text, begin) + 2, "\"device\":"));
    }
}
