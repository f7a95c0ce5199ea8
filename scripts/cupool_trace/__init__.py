# SPDX-License-Identifier: Apache-2.0
"""Reads the traces that libcupool.so writes (docs/trace.md). Standard library only; run it through cupool-trace.

Layers, each using only those before it: schema (the keys of events), reader (file -> events), ranges and callers (live
addresses, and the stacks that hold them), replay (events -> live ranges and counters), text (figures -> tables), source
(several files, event by event), lives (events -> steps without contradictions), output (where a conversion goes),
one module per command, cli (the table of commands). To add a command: a module with HELP, DESCRIPTION, add_arguments(parser)
and run(args), and a row in cli.COMMANDS; FILES and JSON, if it has them, say what files it takes and whether it has --json.
Commands that need whole files use replay.load; those that need single events source.Sources.
"""
VERSION = "0.1.0"
