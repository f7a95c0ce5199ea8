#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check-layers finds nothing in the tree, and each kind of breach that is planted in a small one."""

import os
import shlex
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPEC = spec_from_loader("check_layers", SourceFileLoader("check_layers", str(ROOT / "scripts/check-layers")))
assert SPEC and SPEC.loader
CHECKER = module_from_spec(SPEC)
sys.dont_write_bytecode = True
SPEC.loader.exec_module(CHECKER)
SOUND = {"pool/pool.h": "", "nccl_reg/nccl_reg.h": "", "shim/conf.def": "", "shim/base/log.h": "", "shim/real/real.h": '#include "base/log.h"\n',
         "shim/real/loaded.c": '#include "real/real.h"\nvoid *f(void) { return dlsym(0, "f"); }\n', "shim/serve/serve.h": "", "shim/nccl/nccl.h": "",
         "shim/exports/api.c": '#include "serve/serve.h"\n#include "base/log.h"\n', "shim/info/check_command.c": '#include "base/log.h"\n'}
BREACHES = (
    ({"shim/base/log.c": '#include "nccl/nccl.h"\n'}, "base/ includes nccl/nccl.h of a higher room"),
    ({"shim/real/caller.c": '#include <stdio.h>\n\n#include "serve/serve.h"\n'}, "shim/real/caller.c:3: real/ includes serve/serve.h of a higher room"),
    ({"shim/info/check_command.h": '#include "real/real.h"\n'}, "info/ includes real/real.h of a higher room"),
    ({"shim/exports/export.c": '#include "serve/serve.h"\n#include "info/check_command.h"\n'}, "exports/ includes info/check_command.h of a higher room"),
    ({"shim/base/output_file.c": '#include "log.h"\n'}, "log.h without its room, base/"),
    ({"shim/new.c": ""}, "a source of shim/ lies in one of its rooms"),
    ({"shim/hooks/new.c": ""}, "a source of shim/ lies in one of its rooms"),
    ({"shim/attic/old.c": '#include "base/log.h"\n'}, "attic/ includes base/log.h of a higher room"),
    ({"shim/context/pool_observer.c": '#include "nccl/nccl.h"\n'}, "context/ includes nccl/nccl.h of a higher room"),
    ({"shim/serve/serve.c": "void *f(void) { return dlopen(0, 1); }\n"}, "dlopen is for " + CHECKER.FINDER + " alone"),
    ({"pool/bins.c": '#include "base/log.h"\n'}, "pool/ includes base/log.h, which is not one of its own headers"),
    ({"nccl_reg/near.c": "#include <nccl.h>\n"}, "nccl_reg/ includes a CUDA or NCCL header, nccl.h"),
    # Circles: between two headers, through a source, through a third module, and in the plain layers.
    ({"shim/base/log.h": '#include "base/output_file.h"\n', "shim/base/output_file.h": '#include "base/log.h"\n'},
     "a circle by includes: shim/base/log -> shim/base/output_file, shim/base/output_file -> shim/base/log"),
    ({"shim/base/log.c": '#include "base/output_file.h"\n', "shim/base/output_file.h": "", "shim/base/output_file.c": '#include "base/log.h"\n'},
     "a circle by includes: shim/base/log -> shim/base/output_file, shim/base/output_file -> shim/base/log"),
    ({"shim/serve/a.h": '#include "serve/b.h"\n', "shim/serve/b.h": '#include "serve/c.h"\n', "shim/serve/c.h": "",
      "shim/serve/c.c": '#include "serve/a.h"\n'}, "shim/serve/c -> shim/serve/a"),
    ({"pool/a.h": '#include "b.h"\n', "pool/b.h": '#include "a.h"\n'}, "a circle by includes: pool/a -> pool/b, pool/b -> pool/a"),
    ({"pool/pool.h": '#include "a.h"\n', "pool/a.h": '#include "pool.h"\n'}, "a circle by includes: pool/a -> pool/pool.h, pool/pool.h -> pool/a"),
    ({"pool/pool.c": '#include "a.h"\n', "pool/a.h": '#include "pool.h"\n', "pool/a.c": '#include "b.h"\n', "pool/b.h": '#include "a.h"\n'},
     "a circle by includes: pool/a -> pool/b, pool/b -> pool/a"),
    ({"nccl_reg/a.h": '#include "b.h"\n', "nccl_reg/b.c": '#include "a.h"\n', "nccl_reg/b.h": ""}, "a circle by includes: nccl_reg/a"),
    # Sizes: SIZES has as much as is allowed.
    ({"pool/bins.c": "int a;\n" * 501}, "pool/bins.c:501: a file of 501 lines, more than 500"),
    ({"shim/base/log.c": "int b(void)\n{\n    return 0;\n}\n\nint a(void)\n{\n    {\n    }\n" + "    a();\n" * 59 + "}\n"},
     "shim/base/log.c:7: a function of 61 lines, more than 60"),
    ({f"nccl_reg/{i}.c": "int a;\n" * 151 for i in range(20)}, "the median file has 151 lines, more than 150"),
)
SIZES = {"pool/bins.c": "int a;\n" * 500, "shim/base/log.c": "int a(void)\n{\n" + "    a();\n" * 60 + "}\nint b[] = {\n" + "    1,\n" * 61 + "};\n",
         **{f"nccl_reg/{i}.c": "int a;\n" * 150 for i in range(20)}}
# Sources by the object's place in a build folder, and what is said of their symbols.
OBJECTS = (
    ({"shim/libcupool-nccl.so.p/base_log": "int a(void); int b(void) { return a(); }",
      "shim/libcupool-nccl.so.p/context_own_stream": "int b(void); int a(void) { return b(); }"},
     "a circle by symbols: shim/base/log -> shim/context/own_stream, shim/context/own_stream -> shim/base/log\n"),
    ({"pool/libpool.a.p/a": "int b(void); int a(void) { return b(); }", "pool/libpool.a.p/b": "int c(void); int b(void) { return c(); }",
      "pool/libpool.a.p/c": "extern int x; int c(void) { return x; }", "pool/libpool.a.p/d": "int c(void); int x; int d(void) { return x; }"}, ""),
    ({"nccl_reg/libnccl_reg.a.p/a": "extern int x; int a(void) { return x; }", "nccl_reg/libnccl_reg.a.p/b": "int a(void); int x = 1; int b(void) { return a(); }"},
     "a circle by symbols: nccl_reg/a -> nccl_reg/b, nccl_reg/b -> nccl_reg/a\n"),
    # Values that the linker fills in make no circle as long as they are data.
    ({"shim/libcupool-nccl.so.p/base_process": "extern const int process_events[]; int a(void) { return process_events[0]; }",
      "shim/libcupool-nccl.so.p/serve_library": "int a(void); const int process_events[1] = {1}; int b(void) { return a(); }"}, ""),
    ({"shim/libcupool-nccl.so.p/base_process": "int process_events(void); int a(void) { return process_events(); }",
      "shim/libcupool-nccl.so.p/serve_library": "int a(void); int process_events(void) { return a(); }"},
     "a circle by symbols: shim/base/process -> shim/serve/library, shim/serve/library -> shim/base/process\n"),
)


class Layers(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, files: "dict[str, str]", under: str) -> Path:
        for name, text in files.items():
            path = self.folder / under / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self.folder / under

    def check(self, *args: object) -> "tuple[int, str]":
        done = subprocess.run([sys.executable, str(ROOT / "scripts/check-layers"), *map(str, args)], stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stdout

    def test_sound(self) -> None:
        self.assertEqual(self.check(self.write(SOUND, "sound")), (0, ""))
        self.assertEqual(self.check(self.write({**SOUND, **SIZES}, "sizes")), (0, ""))

    def test_breaches(self) -> None:
        for i, (files, message) in enumerate(BREACHES):
            with self.subTest(message=message):
                status, out = self.check(self.write({"shim/info/check_command.h": "", **SOUND, **files}, str(i)))
                self.assertEqual((status, len(out.splitlines())), (1, 1), out)
                self.assertIn(message, out)

    def test_objects(self) -> None:
        compiler = shlex.split(os.environ.get("CC", "cc"))
        top = self.write(SOUND, "top")
        for i, (objects, message) in enumerate(OBJECTS):
            with self.subTest(objects=objects):
                build = self.write({f"{name}.c": text for name, text in objects.items()}, f"build{i}")
                for name in objects:
                    subprocess.run([*compiler, "-c", "-o", build / f"{name}.c.o", build / f"{name}.c"], check=True)
                self.assertEqual(self.check("--objects", build, top), (1 if message else 0, message))
