# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/trace/: the trace file."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("the end does not say how many lines a full disk has cost", ["shim_trace"], [
        ("trace.dropped++;", ";", "trace_file_put_event")]),
    Mutant("pinned memory counts as held by the device where events are left out", ["gap", "pinned / Events.test_what_is_left_out_is_told"], [
        ('strcmp(tally->backend, TRACE_HOST) == 0 ? "host_held" : "held"', '"held"')]),
    # --- settings and the trace ---
    Mutant("trace: part of a header stays in the file", ["trace / Full.test_part_of_a_header"], [
        ("if (file_state(trace.fd, &trace.file) != -EBADF && ftruncate(trace.fd, 0))", "if (false)")]),
    Mutant("trace: lines that were lost count for the limit", ["shim_trace"], [
        ("trace.gap.written -= len;", "")]),
    Mutant("trace: a thread has the time of another one", ["records"], [
        ("if (times.last[i].tid == tid && t < times.last[i].t)", "if (t < times.last[i].t)")]),
    Mutant("a forked child keeps the lock of a trace", ["files / Runs.test_a_child_does_not_keep_it"], [
        ("file_close(trace.fd, &trace.file, /* done: */ false);", ";")]),
    Mutant("trace: what is left out is not counted", ["gap", "gaps / Limit"], [
        ("gap->events[kind] += events;", "")]),
    Mutant("trace: after a gap it is not told what is held", ["gaps / Limit"], [
        ("tally < tallies + tally_count; tally++) {", "tally < tallies; tally++) {")]),
    Mutant("trace: a gap goes on for ever", ["gap"], [
        ("gap->credit >= FULL / 2", "false")]),
    Mutant("trace: a file without a header", ["trace / Full.test_no_room_for_the_header"], [
        ("if (!header_write(&launch)) give_up(); else if", "header_write(&launch); if")]),
    Mutant("trace: an object is told with each of its frames", ["symbols / Symbols.test_the_objects_of_a_trace"], [
        ("if (seen == object.start) return i + 1;", "if (seen == object.start) { object_write(i + 1, &object); return i + 1; }")]),
    Mutant("trace: all objects lie where the file says", ["symbols / Symbols.test_inlined_functions"], [
        ("(unsigned long long)object->start, (unsigned long long)object->bias, hex", "(unsigned long long)object->start, 0ull, hex")]),
    Mutant("trace: frames do not say in which object they lie", ["symbols / Symbols.test_a_program_at_a_fixed_address", "shim_trace"], [
        ("if (object) snprintf(of,", "if (false) snprintf(of,")]),
    Mutant("trace: nothing is written behind", ["trace / Ends.test_killed_later"], [
        ('rc = own_thread_start("cupool-trace", writer, &thread, NULL);', "rc = 11; (void)writer; thread = 0;")]),
    Mutant("trace: a record is taken before it is complete", ["records"], [
        ("if (!is_complete(record, number) && !(wait", "if (false && !(wait")]),
    Mutant("trace: a record that is being written is not waited for", ["records"], [
        ("&& !(wait && complete_wait(record, number)))", ")")]),
    Mutant("trace: a record that nobody finishes is waited for again and again", ["records"], [
        ("times.stuck = number + 1;", "return false;")]),
    Mutant("trace: a record that is not taken yet is overwritten", ["records"], [
        ("memory_order_acquire)) >= (int64_t)RECORDS)", "memory_order_acquire)) > (int64_t)RECORDS)")]),
    Mutant("trace: what is recorded meanwhile is taken, too", ["records"], [
        ("number < times.end &&", "number < atomic_load(&ring.head) &&")]),
    Mutant("trace: the lines of a thread go back", ["records"], [
        ("if (times.last[i].tid == tid && t < times.last[i].t) t =", "if (false) t =")]),
    Mutant("trace: the counter's rate is taken once", ["records"], [
        ("if ((passed >= RATE_NS || !times.rated)", "if (!times.rated"),
        ("times.rated = passed >= RATE_NS;", "times.rate *= 1.1; times.rated = true;")]),
    Mutant("allocations are not written before a segment's end", ["trace / Ends"], [
        ('flush(/* wait: */ true); t = event->clock ?', 't = event->clock ?'),
        ('rc = own_thread_start("cupool-trace", writer, &thread, NULL);', "rc = 11; (void)writer; thread = 0;")]),

    # --- cupool.h ---
    Mutant("cupool.h: a mark is written as it is", ["api / Mark.test_texts"], [
        ("""c == '"' || c == '\\\\' ? "\\\\" : "",""", '"",')]),
    Mutant("cupool.h: a mark is any bytes", ["api / Mark.test_no_text_at_all"], [
        ("(text[1] < forms[i].low || text[1] > forms[i].high)", "false")]),

    Mutant("durations have another digit behind the point", ["digits"], [
        ("(unsigned long long)((ns) / 100 % 10)", "(unsigned long long)((ns) / 10 % 10)")]),

    Mutant("a gap that allocation events begin has a time from before its begin", ["shim_trace"], [
        ("if (kind == GAP_BLOCKS) t = trace.gap.reported - trace.t0;", "")]),
    Mutant("a gap that the rate began ends although the trace is full", ["gap"], [
        ("if (gap->why == GAP_RATE && over)", "if (false)")]),
    Mutant("a line that lacks its newline alone counts as lost", ["shim_trace"], [
        ("started && len && *data == '\\n'", "false")]),
    Mutant("a line that is too long does not count as lost", ["shim_trace"], [
        ("trace_file_drop();", "(void)0;")]),
    Mutant("trace: a record that waited for room counts as lost", ["shim_trace"], [
        ("if (!record) trace_file_lose();", "trace_file_lose();")]),
    Mutant("trace: a newline behind the lines is taken for theirs", ["shim_trace"], [
        ("if (started && len && *data == '\\n')", "if (started && *data == '\\n')")]),
    Mutant("trace: descriptor 0 is none", ["shim_trace"], [
        ("return trace.fd >= 0 ? trace.path : NULL;", "return trace.fd > 0 ? trace.path : NULL;")]),
    Mutant("the look at the clock leaves descriptor 0 open", ["shim_clock"], [("if (fd >= 0) {", "if (fd >= 1) {", "counter_counts")]),
    Mutant("the look at the clock leaves its descriptor open", ["shim_clock"], [("close(fd);", "", "counter_counts")]),
    Mutant("events have the kernel's clock where the counter would do", ["shim_clock"], [
        ("return true; return false; }", "return false; return false; }", "counter_counts")]),
    Mutant("events have the counter where the kernel's clock is unknown", ["shim_clock"], [
        ("if (read(fd, name, sizeof(name) - 1) < 0)", "if (read(fd, name, sizeof(name) - 1) >= 0)")]),
    Mutant("a full ring without a file is waited for", ["shim_trace"], [("while (!record && more &&", "while (!record &&")]),
    Mutant("all events are frequent ones", ["shim_trace", "gaps"], [("if (event->frequent || event->segment)", "if (true)")]),
    Mutant("nothing is said of part of a header that stays", ["shim_trace"], [
        ("log_write(LOG_WARN, \"%.300s has part of a header and is no trace\", trace.path);", ";")]),
    Mutant("a trace that is given up stays locked where a child has it", ["shim_trace"], [
        ("file_close(trace.fd, &trace.file, /* done: */ true);", "file_close(trace.fd, &trace.file, /* done: */ false);", "give_up")]),
]
