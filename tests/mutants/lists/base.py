# SPDX-License-Identifier: Apache-2.0
"""Mutants of shim/base/: settings, log, files, launchers, the state of the process."""
from __future__ import annotations

from mutant import Mutant

MUTANTS = [
    Mutant("cupool-ctl's socket has its name before it listens", ["ctl / Others.test_one_begins"], [
        ("memcpy(strrchr(first.sun_path, '.'), \".new\", sizeof(\".new\"));", "")]),
    Mutant("files: another file system's file of the same number is taken for it", ["files_names"], [
        ("|| st.st_dev != at.st_dev || st.st_ino", "|| st.st_ino")]),
    Mutant("a child by the bare system call writes into the trace", ["vmm / Files.test_a_child"], [
        ("now == PROCESS_ACTIVE ? !process_is_foreign() : now == PROCESS_NEW", "now == PROCESS_ACTIVE || now == PROCESS_NEW")]),
    Mutant("ipc: a descriptor that does not fit is not missed", ["switch / Wrong.test_without_descriptors"], [
        ("return *ret_fd < 0 && header.msg_flags & MSG_CTRUNC ? -EMFILE : n;", "return n;")]),
    Mutant("a process that has become another program still lives", ["ipc / Held.test_until_the_importer_is_gone"], [
        ("process->stack && seen.stack && seen.stack != process->stack", "false")]),
    Mutant("a descriptor is closed where a thread may be cancelled", ["cancelled / Cancelled.test_virtual_memory"], [
        ("pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); close(fd); pthread_setcancelstate(cancel, NULL);", "(void)cancel; close(fd);")]),
    Mutant("the limits of the machine are read at the cost of errno", ["cancelled / Cancelled.test_pinned_memory"], [
        ("errno = saved; text[n > 0 ? n : 0] = '\\0';", "(void)saved; text[n > 0 ? n : 0] = '\\0';")]),
    Mutant("the limits of the machine are read where a thread may be cancelled", ["cancelled / Cancelled.test_pinned_memory"], [
        ("pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); fd = open(path,",
         "pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &cancel); fd = open(path,")]),
    Mutant("the limits of a cgroup's parents do not count", ["pinned / Machine.test_limit_of_a_cgroup"], [
        ("while (strlen(folder) > strlen(root)) { limit", "if (strlen(folder) > strlen(root)) { limit")]),
    Mutant("where /proc is missing the program has no name", ["info / Info.test_without_proc"], [
        ('n > 0 ? "exe" : program_invocation_short_name', '"exe"')]),
    # --- the order of frees ---
    Mutant("a value that is too long is copied", ["settings"], [
        ("if (strlen(text) >= CONF_TEXT_MAX)", "if (false)")]),

    # --- contexts and processes ---
    Mutant("a forked child goes on where its parent was", ["trace / Processes"], [
        ("atomic_store(&process_state, PROCESS_PASSIVE); process_events.forked();", ""), ("return getpid() != starter;", "return false;")]),

    # --- settings and the trace ---
    Mutant("a part of a setting's name is no hint", ["shim_settings"], [
        ("if (has_words(&conf_rows[i], name + prefix))", "if (false)")]),
    Mutant("any short name is near some setting", ["shim_settings"], [
        ("(own < len ? own : len)", "own")]),
    Mutant("cupool-info says nothing of a full disk", ["info / Info.test_full_standard_output"], [
        ("if (fflush(stdout) == 0 && !ferror(stdout)) return status;", "return status;")]),
    Mutant("CUPOOL_ENABLE=0 is ignored", ["settings"], [
        ("return conf_get()->enable.number && process_events.is_first();", "return process_events.is_first();")]),
    Mutant("a program that clears its environment loses its settings", ["world / Sandbox.test_a_program_that_clears"], [
        ("if (!text && value->from_env) text = value->text;", "")]),
    Mutant("the library's threads have the program's default stack", ["hang / Hang.test_a_small_default_stack"], [
        ("if (stack < STACK_MIN)", "if (0)")]),
    Mutant("CUPOOL_HOOK=runtime is ignored", ["catch"], [
        ("return process_may_start() && conf_get()->hook.number == HOOK_AUTO;", "return process_may_start();")]),
    Mutant("sizes are thousands", ["shim_settings"], [
        ("scale = 1ull << (10 * (unit - units + 1));", "scale = 1000ull << (10 * (unit - units));")]),
    Mutant("a size with anything behind it is accepted", ["fuzz_settings_random"], [
        ("if (*text || whole > ", "if (whole > ")]),
    Mutant("a file name may be a byte too long", ["fuzz_settings_random"], [
        ("if (*at + n >= len) return -ENAMETOOLONG;", "if (*at + n > len) return -ENAMETOOLONG;")]),
    Mutant("a file of somebody's is renamed", ["files / InTheWay.test_somebodys_file"], [
        ("strncmp(start, try->kind->magic, strlen(try->kind->magic)) != 0", "false")]),
    Mutant("an earlier run's file keeps the name", ["files / Runs.test_the_newest_has_the_name"], [
        ("return move_away(try) ? AGAIN : TAKEN;", "return TAKEN;")]),
    Mutant("a running process's file is renamed", ["files / AtOnce"], [
        ("if (flock(fd, LOCK_EX | LOCK_NB)) {", "if (false) {")]),
    Mutant("a renamed file takes another's place", ["files / Runs.test_the_newest_has_the_name"], [
        ("RENAME_NOREPLACE) == 0", "0u) == 0")]),
    Mutant("a pipe is waited for", ["files / InTheWay.test_no_files"], [
        ("const char *why = special(path);", "const char *why = NULL; (void)special;")]),

    # --- cupool.h ---
    Mutant("cupool.h: a forked child is told that it is served", ["api / Without"], [
        ("return process_state_get() == PROCESS_NEW &&", "return")]),

    # --- physical memory in the trace ---
    Mutant("physical memory: a child writes into its parent's trace", ["vmm / Files.test_a_child"], [
        ("(now == PROCESS_ACTIVE ? !process_is_foreign() : now == PROCESS_NEW)", "true"),
        ("atomic_store(&trace_prospect, TRACE_NONE); atomic_store(&trace_allocs_wanted, false); if (trace.fd >= 0) file_close(trace.fd, &trace.file, /* done: */ false); trace.fd = -1;",
         "atomic_store(&trace_allocs_wanted, false);")]),
    Mutant("physical memory: half of the calls are told of with CUPOOL_HOOK=runtime", ["vmm / Files.test_only_the_runtime_is_caught"], [
        ("process_hooks_driver() && (now == PROCESS_ACTIVE", "(now == PROCESS_ACTIVE")]),

    # --- neighbours ---
    Mutant("neighbours: a poll goes on once the program has closed the descriptor", ["sockets"], [
        ("fd < 0 || is_ours ? fd : socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);", "is_ours ? fd : -1;")]),
    Mutant("neighbours: a ring by a socket of its own leaves that open", ["sockets"], [
        ("if (by >= 0 && !is_ours) file_drop(by);", "")]),
    Mutant("neighbours: another user's message counts", ["neighbours / Messages.test_another_user", "fuzz_neighbours_random"], [
        ("return sender.uid == getuid() && sender.pid != getpid();", "return sender.pid != getpid();")]),
    Mutant("neighbours: the kernel is not asked who has sent a message", ["neighbours / Messages", "fuzz_neighbours_random"], [
        ("message->kind == kind && is_neighbour(&header)", "message->kind == kind")]),
    Mutant("neighbours: a longer message counts", ["neighbours / Messages.test_wrong_answers", "fuzz_neighbours_random"], [
        ("MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC", "MSG_DONTWAIT | MSG_CMSG_CLOEXEC")]),
    Mutant("neighbours: a question counts as an answer", ["neighbours / Messages.test_wrong_answers", "fuzz_neighbours_random"], [
        ("message->version == VERSION && message->kind == kind &&", "message->version == VERSION &&")]),
    Mutant("neighbours: an answer counts twice", ["neighbours / Messages.test_wrong_answers", "fuzz_neighbours_random"], [
        ("asked &= ~bit;", "")]),
    Mutant("neighbours: the answer of one that was not asked counts", ["neighbours / Messages.test_wrong_answers", "fuzz_neighbours_random"], [
        ("if (!bit) continue;", "")]),
    Mutant("neighbours: a stopped process is waited for without end", ["neighbours / Refused.test_stopped"], [
        ("answers_wait(fd, card, asked, wanted, now_ns() + wait_ns, &outcome);", "answers_wait(fd, card, asked, wanted, now_ns() + 10 * wait_ns, &outcome);")]),
    Mutant("neighbours: all have to answer, also if one has given enough", ["fuzz_neighbours_random"], [
        ("asked && (!wanted || outcome->given < wanted) &&", "asked &&")]),
    Mutant("neighbours: exit may be cancelled", ["hang / Hang.test_exit_by_a_cancelled_thread"], [
        ('syscall(SYS_sendto, by, "", (size_t)0, MSG_DONTWAIT | MSG_NOSIGNAL, &station->at, station->at_len);',
         'sendto(by, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&station->at, station->at_len);')]),
    Mutant("neighbours: a process asks itself", ["neighbours / Turns", "neighbours / Refused.test_nobody_there"], [
        ("number != own && message_send(fd", "message_send(fd")]),
    Mutant("neighbours: descriptors that come along stay", ["neighbours / Messages.test_garbage_for_a_neighbour"], [
        ("char room[CMSG_SPACE(sizeof(struct ucred))];", "char room[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(64)];")]),
    Mutant("neighbours: the program's descriptor is read", ["neighbours / Apart.test_descriptors_taken_by_the_program"], [
        ("if (fd >= 0 && file_state(fd, &station->file) == -EBADF) atomic_store(&station->fd, -1);", "(void)fd;")]),

    # --- CUDA IPC ---
    Mutant("ctl: a connection that cannot be taken keeps the thread busy", ["ctl / Library.test_no_descriptor_is_left"], [
        ("ctl.pause = errno == EAGAIN ? 0 : now + PAUSE_NS;", "")]),
    Mutant("ctl: the bell without a listener ends the process", ["ctl / Library.test_the_program_closes_one_of_our_descriptors"], [
        ("socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends)) return errno;",
         "socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends)) return errno;"),
        ("MSG_DONTWAIT | MSG_NOSIGNAL, NULL, (socklen_t)0); errno = saved; } unsigned int ctl_socket_listen",
         "MSG_DONTWAIT, NULL, (socklen_t)0); errno = saved; } unsigned int ctl_socket_listen")]),
    Mutant("ipc: a descriptor of the program's is taken for ours by its inode", ["ipc_table", "shim_vmm_memory"], [
        ("(!descriptor->mark || file_mark_of(descriptor->fd) == descriptor->mark)", "true")]),
    Mutant("ipc: our descriptors have one mark", ["ipc_table"], [
        ("(int)(1 + number % 64)", "1")]),
    Mutant("ipc: descriptors of memory have no mark", ["ipc / Messages.test_a_wrong_exporter"], [
        ("file_mark(*ret_fd, number);", "")]),
    Mutant("ipc: an open leaves its own errno", ["ipc / Bytes.test_both_ways"], [
        ("errno = saved;", "", "ipc_peer_ask")]),
    Mutant("ipc: another user's connection is taken", ["ipc / Refused.test_another_user"], [
        ("return peer.uid == geteuid();", "return true;")]),
    Mutant("ipc: a damaged ticket is redeemed", ["ipc / Messages.test_a_damaged_ticket"], [
        ("ret_ticket->version == IPC_VERSION && ret_ticket->check == check_of(ret_ticket)", "ret_ticket->version == IPC_VERSION")]),
    Mutant("ipc: a longer request counts", ["fuzz_ipc_random", "ipc / Messages.test_wrong_ones"], [
        ("if (len != sizeof(*ret_request)) return false; memcpy(ret_request, data, len);",
         "if (len < sizeof(*ret_request)) return false; memcpy(ret_request, data, sizeof(*ret_request));")]),
    Mutant("ipc: a block that leaves its segment is believed", ["ipc / Messages.test_a_wrong_exporter"], [
        ("grant->size && grant->size <= grant->segment_size - grant->offset", "grant->size")]),
    Mutant("ipc: descriptors that nobody asked for stay", ["ipc / Messages.test_descriptors_that_nobody_asked_for"], [
        ("if (fd < 0) fd = other; else close(other);", "fd = other;")]),
    Mutant("ipc: an exporter that is stopped is waited for", ["ipc / Refused.test_a_process_that_is_stopped"], [
        ("while ((now = now_ns()) < limit) { const struct timespec rest = {(time_t)((limit - now) / 1000000000), (long)((limit - now) % 1000000000)}; int n;",
         "while ((now = now_ns()) + 1) { const struct timespec rest = {1000, 0}; int n;")]),
    Mutant("ipc: a dead process that nobody has waited for counts as alive", ["ipc / Held.test_until_the_importer_is_gone"], [
        ("return (seen.state != 'Z' && seen.state != 'X') || seen.threads > 1;", "return true;")]),

    # --- arrays and messages ---
    Mutant("arrays: less room than there are elements", ["direct_table"], [
        ("realloc(array, (2 * *room + 64) * size)", "realloc(array, (*room + 64) * size)")]),
    Mutant("ipc: a block may end behind its segment", ["ipc_message"], [
        ("grant->size <= grant->segment_size - grant->offset", "grant->size <= grant->segment_size")]),

    Mutant("ipc: an importer whose first thread has ended counts as gone", ["peer_process"], [
        ("|| seen.threads > 1;", ";")]),
    Mutant("a new file is not written where the file system has no locks", ["shim_file"], [
        ("return try->busy ? AGAIN : OURS;", "return AGAIN;")]),
    Mutant("a file is written that has lost its name before the lock", ["shim_file"], [
        ("st.st_dev != at.st_dev || st.st_ino != at.st_ino", "false")]),
    Mutant("ctl: the socket goes into a folder of another user", ["ctl_socket"], [
        ("*ret_why = \"the folder is another user's\";", ";")]),
    Mutant("ctl: a crowd of peers leaves a pause behind", ["ctl_socket"], [
        ("ctl.pause = 0; for", "ctl.pause = 1; for")]),
    Mutant("neighbours: a ring is sent by a socket of the program's", ["sockets"], [
        ("is_ours = fd >= 0 && file_state(fd, &station->file) != -EBADF;", "is_ours = fd >= 0;", "neighbour_ring")]),
    Mutant("ipc: no socket without a standard input", ["sockets"], [
        ("return fd < 0 ? -errno : ipc_keep(file_aside(fd), ret);", "return fd < 1 ? -errno : ipc_keep(file_aside(fd), ret);")]),
    Mutant("the machine has what its control groups leave", ["shim_memory_limit"], [
        ("(uint64_t)sysconf(_SC_PAGESIZE), /* free: */ false)", "(uint64_t)sysconf(_SC_PAGESIZE), /* free: */ true)")]),
    Mutant("the first digit of the available memory is skipped", ["shim_memory_limit"], [
        ("strtoull(line + 13, NULL, 10)", "strtoull(line + 14, NULL, 10)")]),
]
