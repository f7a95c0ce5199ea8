#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check-layers finds nothing in the tree, and each kind of breach that is planted in a small one."""
from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOUND = {"pool/pool.h": "", "nccl_reg/nccl_reg.h": "", "shim/conf.def": "", "shim/base/log.h": "", "shim/real/real.h": '#include "base/log.h"\n',
         "shim/real/loaded.c": '#include "real/real.h"\nvoid *f(void) { return dlsym(0, "f"); }\n', "shim/serve/core.h": "",
         "shim/exports/api.c": '#include "serve/core.h"\n#include "base/log.h"\n', "shim/info/check.c": '#include "base/log.h"\n'}
BREACHES = (
    ("shim/base/log.c", '#include "real/real.h"\n', "base/ includes real/real.h of a higher room"),
    ("shim/real/caller.c", '#include <stdio.h>\n\n#include "serve/core.h"\n', "shim/real/caller.c:3: real/ includes serve/core.h of a higher room"),
    ("shim/info/check.h", '#include "real/real.h"\n', "info/ includes real/real.h of a higher room"),
    ("shim/exports/export.c", '#include "serve/core.h"\n#include "info/check.h"\n', "exports/ includes info/check.h of a higher room"),
    ("shim/base/file.c", '#include "log.h"\n', "log.h without its room, base/"),
    ("shim/new.c", "", "a source of shim/ lies in one of its rooms"),
    ("shim/attic/old.c", '#include "base/log.h"\n', "attic/ includes base/log.h of a higher room"),
    ("shim/context/observe.c", "", "nccl/nccl.h is not included any more"),
    ("shim/serve/core.c", "void *f(void) { return dlopen(0, 1); }\n", "dlopen is for shim/real/loaded.c alone"),
    ("pool/bins.c", '#include "base/log.h"\n', "pool/ includes base/log.h, which is not one of its own headers"),
    ("nccl_reg/near.c", "#include <nccl.h>\n", "nccl_reg/ includes a CUDA or NCCL header, nccl.h"),
)


class Layers(unittest.TestCase):
    def check(self, files: "dict[str, str]") -> "tuple[int, str]":
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            done = subprocess.run([sys.executable, str(ROOT / "scripts/check-layers"), folder], stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stdout

    def test_sound(self) -> None:
        self.assertEqual(self.check(SOUND), (0, ""))

    def test_breaches(self) -> None:
        for name, text, message in BREACHES:
            with self.subTest(message=message):
                status, out = self.check({"shim/info/check.h": "", **SOUND, name: text})
                self.assertEqual((status, len(out.splitlines())), (1, 1), out)
                self.assertIn(message, out)


if __name__ == "__main__":
    unittest.main()
