/* SPDX-License-Identifier: Apache-2.0 */
/* fake_calls.c - the scripts of fake_driver.h, and its log. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"

void fake_log_add(const char *format, ...)
{
    va_list args;

    if (fake.logged && fake.logged + 1 < sizeof(fake.log))
        fake.log[fake.logged++] = ' ';
    va_start(args, format);
    fake.logged += (size_t)vsnprintf(fake.log + fake.logged, sizeof(fake.log) - fake.logged, format, args);
    va_end(args);
    if (fake.logged >= sizeof(fake.log))
        fake.logged = sizeof(fake.log) - 1;
}

const char *fake_log(void)
{
    static char text[sizeof(fake.log)];

    memcpy(text, fake.log, sizeof(text));
    fake.log[0] = '\0';
    fake.logged = 0;
    return text;
}

bool fake_fails(size_t function)
{
    if (function < fake.fault_from || ++fake.steps != fake.fault_at)
        return false;
    fake.faulted = function;
    return true;
}

CUresult (*fake_each)(size_t function);
bool (*fake_lacks_memory)(void);

static CUresult script(size_t function)
{
    struct fake_script *script = &fake.scripts[function];
    const CUresult result = fake_each ? fake_each(function) : fake_fails(function) ? fake.fault : CUDA_SUCCESS;

    if (fake_locks_held() && !fake.comm_locked) {
        fprintf(stderr, "a lock is held over a call of the driver\n");
        abort();
    }
    script->calls++;
    if (script->before)
        script->before(script->arg);
    if (result)
        fake_log_add("!%d", (int)result);
    if (result || script->from || !script->times) {
        script->from -= !result && script->from;
        return result;
    }
    script->times--;
    return script->result;
}

CUresult fake_called(size_t function, const char *format, ...)
{
    va_list args;
    char text[128];

    va_start(args, format);
    if (fake_each && format) {
        vsnprintf(text, sizeof(text), format, args);
        fake_log_add("%s", text);
    }
    va_end(args);
    return script(function);
}

void fake_lack(size_t function)
{
    memset((char *)&fake.driver + function * sizeof(void *), 0, sizeof(void *));
}

void fake_fail_after(size_t function, unsigned int skipped, CUresult result, unsigned int times)
{
    fake.scripts[function].result = result;
    fake.scripts[function].from = skipped;
    fake.scripts[function].times = times;
}

void fake_before(size_t function, void (*before)(void *arg), void *arg)
{
    fake.scripts[function].before = before;
    fake.scripts[function].arg = arg;
}
