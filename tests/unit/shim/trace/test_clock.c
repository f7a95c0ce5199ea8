/* SPDX-License-Identifier: Apache-2.0 */
/* test_clock.c - shim/trace/records.c: which clock events have, and how the system's word on it is read. */
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <fcntl.h>

#include "isolated.h"
#include "trace/records.h"

/* The look at the system's clock leaves no descriptor open, whichever number it gets. */
ISOLATED_CASE(test_clock_descriptor, .count = 2)
{
    int fd;

    fake_start();
    if (*state)
        close(STDIN_FILENO);
    fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && (fd == 0 || !*state));
    close(fd);
    records_start(0);
    assert_int_equal(open("/dev/null", O_RDONLY | O_CLOEXEC), fd);
}

#if defined(__x86_64__)
/* Events have the time of the processor's counter where that runs at one rate, and the kernel goes by it. */
ISOLATED_CASE(test_which_clock)
{
    static const struct {
        const char *source;
        bool counts;
    } rows[] = {
        {"tsc\n", true}, {"hyperv_clocksource_tsc_page\n", true}, {"tsc", false}, {"hpet\n", false}, {"", false}};
    const char *const place = "sys/devices/system/clocksource/clocksource0";
    char folder[] = "/tmp/cupool-test-XXXXXX", command[400];
    unsigned int a, b, c, d = 0;
    const bool rated = __get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1u << 8;

    assert_non_null(mkdtemp(folder));
    fake_start();
    fake.root = folder;
    for (size_t i = 0; i < COUNT(rows); i++) {
        snprintf(command, sizeof(command), "mkdir -p %s/%s && printf '%s' > %s/%s/current_clocksource", folder, place,
                 rows[i].source, folder, place);
        assert_int_equal(system(command), 0);
        records_start(0);
        assert_int_equal(records_clock() != atomic_load(&fake.ns), rated && rows[i].counts);
    }
    snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}
#endif
