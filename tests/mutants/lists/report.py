# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/report/: statistics, out-of-memory reports, guard bytes, the background thread."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("a list of the first device has all", ["ctl_commands"], [
        ("if (request->device < 0 || request->device == device)", "if (request->device < 1 || request->device == device)")]),
    Mutant("the statistics page is locked after the end", ["shim_trace"], [
        ("file_close(atomic_load(&page.fd), &page.file, /* done: */ true);", "", "stats_page_finish")]),
    # --- the order of frees ---
    Mutant("exit ends no further than a cancelled thread", ["hang / Hang.test_exit_by_a_cancelled_thread"], [
        ("pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); while ((rc = pthread_tryjoin_np",
         "pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &cancel); while ((rc = pthread_tryjoin_np")]),
    Mutant("the timer of CUPOOL_STATS drifts", ["shim_stats"], [
        ("stats.next += stats.period * ((now - stats.next) / stats.period + 1);", "stats.next = now + stats.period;")]),
    Mutant("the hits of no requests are some", ["stats / Contexts.test_no_request_was_pooled"], [
        ("return allocs ? digits_tenths(hits * 1000, allocs) : 0;", "return digits_tenths(hits * 1000, allocs + !allocs) + !allocs;")]),
    Mutant("a request that would fit exactly meets CUPOOL_LIMIT", ["oom_report / Numbers.test_within_the_limit"], [
        ("if (limit && p->held_here + need > limit)", "if (limit && p->held_here + need >= limit)")]),
    Mutant("a background thread that is the last one waits for itself", ["background"], [
        ("jobs_end(); atomic_store(&background.state, 3);", "jobs_end();")]),
    Mutant("exit waits for a job that does not end", ["background"], [
        ("== EBUSY && now_ns() < limit)", "== EBUSY)")]),
    Mutant("guard bytes: not looked at where a free does not wait", ["hang / Hang.test_guard_bytes_are_looked_at_where_a_free_does_not_wait"], [
        ("if (entry.addr) guard_check(&entry, may_wait ? 0 : now_ns()", "if (entry.addr && may_wait) guard_check(&entry, may_wait ? 0 : now_ns()")]),

    # --- cupool-ctl ---
    Mutant("ctl: a message of another length is obeyed", ["ctl / Library.test_only_what_is_right_is_answered"], [
        ("n == (ssize_t)sizeof(*ret_request) &&", "n > 0 &&")]),
    Mutant("ctl: a message of another version is obeyed", ["ctl / Library.test_only_what_is_right_is_answered"], [
        ("ret_request->version == CTL_VERSION", "1")]),
    Mutant("ctl: others may enter the folder", ["ctl / Library.test_the_folder"], [
        ("else if (stat.st_mode & 077)", "else if (0)")]),
    Mutant("ctl: the socket stays after the end", ["ctl / Library.test_the_folder"], [
        ("if (file_is_open(&ctl.listening) && !forked) unlink(ctl.at.sun_path);", "")]),
    Mutant("ctl: work is waited for without end", ["ctl / Others.test_one_fails_in_the_second_phase"], [
        ("pause_device(device, request->flags == CTL_KEEP, until, &bytes)", "pause_device(device, request->flags == CTL_KEEP, PAUSE_NO_LIMIT, &bytes)")]),
    Mutant("ctl: a device that the process does not use", ["ctl / Commands.test_list_and_stats"], [
        ("!(ctl.known >> request->device & 1)", "0")]),

    # --- settings and the trace ---
    Mutant("statistics: nobody learns what passes the pool by", ["stats / NotPooled"], [
        ("atomic_fetch_add_explicit(&taken[kind].calls, 1, memory_order_relaxed);", "")]),

    Mutant("advice: waits on the host are not counted", ["stats / Advice"], [
        ("if (wait && !result) policy_waited_add(&context->policy);", "")]),
    Mutant("advice: memory that a scarce device takes back counts as idle", ["stats / Advice.test_memory"], [
        ("strcmp(why, \"reserve\") == 0 && conf_get()->decay.number == 0", "strcmp(why, \"reserve\") == 0")]),
    Mutant("advice: all rules but the first are left out", ["advice"], [
        ("expand(rules[i].text, &values, text, len); return true;", "expand(rules[i].text, &values, text, len); return !i;")]),
    Mutant("advice: a few refusals are enough", ["advice"], [
        ("f->refused >= REFUSED_MANY &&", "f->refused &&")]),
    Mutant("advice: also at a signal", ["stats / Advice"], [
        ("if (!why) print_advice();", "print_advice();")]),

    # --- reports ---
    Mutant("statistics: a table without rows with CUPOOL_DEBUG=1", ["stats / NotPooled"], [
        ("if (guard_on() && guard_own()) out_line(", "if (0) out_line(")]),
    Mutant("statistics: switched off, and nothing says so", ["stats / NotPooled"], [
        ("(process_is_passive() && !off)", "process_is_passive()")]),
    Mutant("out of memory: others include the pool", ["oom_report / Numbers"], [
        ("p->others = p->total - p->free - p->pool.held;", "p->others = p->total - p->free;")]),
    Mutant("out of memory: the driver is asked while a stream captures", ["oom_report / Numbers"], [
        ("if (!capture_active() && driver->", "if (driver->")]),
    Mutant("statistics replace a handler of the program", ["stats / Signal"], [
        ("is_default(&now) && sigaction(sig, &ours, &now) == 0 && is_default(&now)", "sigaction(sig, &ours, &now) == 0")]),
    Mutant("statistics: a signal wakes nobody", ["shim_stats"], [
        ("background_wake();", "", "on_signal")]),
    Mutant("the page has one half", ["live / Reader"], [
        ("(off_t)(half->seq % 2) * STATS_PAGE_HALF_SIZE", "0")]),
    Mutant("the page goes to whatever has its descriptor", ["live / Never"], [
        ("if (file_state(fd, &page.file) != -EBADF) while", "while")]),

    Mutant("job: a rank takes the pages of the others", ["job"], [
        ("path && launcher == getpid() ? opendir(path)", "path ? opendir(path)")]),
    Mutant("job: the older half is read", ["job"], [
        ("halves[i].seq > latest->seq", "halves[i].seq < latest->seq")]),
    Mutant("job: the folder stays", ["job"], [
        ("rmdir(path);", "")]),
    Mutant("job: ranks elsewhere warn", ["job"], [
        ("if (job_is_elsewhere(conf_get()->stats_file.text)) return;", "")]),

    # --- pinned memory ---
    Mutant("pinned memory has no slot in the page", ["pinned / Counters.test_in_the_page"], [
        ("half->count++; }", "}", "add_host")]),
    Mutant("out of memory: pinned memory is not named", ["pinned / OutOfMemory.test_of_a_device"], [
        ("p->pins = host_memory_stats(&p->host);", "")]),
    Mutant("out of pinned memory: nothing is said", ["pinned / OutOfMemory.test_of_pinned_memory"], [
        ("else if (result == CUDA_ERROR_OUT_OF_MEMORY) oom_report_host(size);", "")]),
    Mutant("out of pinned memory: idle memory counts as gone", ["pinned / OutOfMemory.test_while_work_is_under_way"], [
        ("is_idle = s.idle >= size;", "is_idle = false;")]),
    Mutant("the table has no row for pinned memory", ["pinned / Counters"], [
        ("if (host) print_host_row(host);", "")]),
    Mutant("the trace has no counters of pinned memory at the end", ["pinned / Counters"], [
        ("write_trace_host(NULL);", "")]),

    # --- NCCL ---
    Mutant("guard bytes: one context that is at work hides what was written in others", ["hang / Hang.test_guard_bytes_of_another_device"], [
        ("if (copy[i].context == context) copy[i].context = NULL;", "copy[i].context = NULL;")]),

    # --- that no test had noticed once ---
    Mutant("a process whose first thread has ended ends a second late", ["ends / Ends.test_the_last_thread_is_not_waited_for_long"], [
        ("atomic_store(&background.first_ends, true);", "(void)0;")]),
    Mutant("the clock outlives the program's threads", ["ends / Ends.test_the_last_thread"], [
        ("if (is_left_alone()) {", "if (is_left_alone() && 0) {")]),
    Mutant("without /proc the clock outlives the program's threads", [
        "world / Sandbox.test_no_proc_and_the_last_thread_ends_the_process"], [
        ("if (threads >= 0 && threads != 2", "if (threads != 2")]),
    Mutant("the trace's writer outlives the program's threads", ["ends / Ends.test_the_last_thread"], [
        ("trace_write_end();", "")]),
    Mutant("exit handlers of the last thread are passed through", ["ends / Ends.test_the_last_thread"], [
        ("process_bypass_end(); /* the program's", "; /* the program's")]),

    # --- neighbours ---
    Mutant("neighbours: the thread sleeps while it is asked", ["background"], [
        ("if (job->listen) count +=", "if (false) count +=")]),
    Mutant("neighbours: the thread is not woken while it listens", ["neighbours / Apart.test_exit_is_not_delayed"], [
        ("if (job->ring) job->ring();", "")]),
    Mutant("neighbours: a thread that has ended is asked", ["neighbours / Apart.test_exit"], [
        ("if (rc == 0) jobs_end();", "")]),

    Mutant("ctl: one device that is not paused keeps all from being resumed", ["ctl_commands"], [
        ("if (one == -EALREADY) continue;", "")]),
    Mutant("ctl: one device that is paused keeps all from being paused", ["ctl_commands"], [
        ("return paused && !any ? -EALREADY : 0;", "return paused ? -EALREADY : 0;")]),
    Mutant("ctl: the counters of one device are those of all", ["ctl_commands"], [
        ("if (request->device >= 0 && request->device != device) return;", "(void)request;", "say_all")]),
    Mutant("ctl: an answer that is too long is no error", ["ctl_commands"], [
        ("rc = -EMSGSIZE;", "")]),
    Mutant("a child loses the program's handler of the signal", ["stats / Signal.test_a_child_keeps_the_programs_handler"], [
        ("sigaction(sig, NULL, &now) == 0 && now.sa_handler == on_signal", "sigaction(sig, NULL, &now) == 0")]),
    Mutant("a page that is written takes a signal of the program's", ["shim_trace"], [
        ("file_quiet_end(&quiet, len != 0);", "file_quiet_end(&quiet, true);")]),
    Mutant("guard bytes: the table is changed without its lock", ["shim_guard"], [
        ("lock_take(&guard.lock); found = find(addr); if (found) { entry", "found = find(addr); if (found) { entry")]),
    Mutant("guard bytes: a context that goes takes those of all with it", ["shim_guard"], [
        ("if (guard.table[slot].context == context)", "if (true)")]),
    Mutant("guard bytes: at exit each block of a context that is at work is waited for", ["shim_guard"], [
        ("if (copy[i].context == context) copy[i].context = NULL;", ";")]),
    Mutant("a page loses a byte where a signal interrupts its write", ["shim_stats"], [
        ("n = n < 0 ? 0 : n;", "n = n < 0 ? 1 : n;", "put")]),
]
