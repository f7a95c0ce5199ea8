# SPDX-License-Identifier: Apache-2.0
"""cupool-info on simulated machines: what it finds, and what it says that would work. A list.

Not here: --check, which is test_check. The programs and stand-ins are those of the build folder INFO_BUILD.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from cupool_trace import defaults  # noqa: E402

BUILD = Path(os.environ["INFO_BUILD"])
SIM, NCCL = BUILD / "tests/sim", BUILD / "tests/simnccl"

# Variables, libraries' folders, lines that must be there, lines that must not.
MACHINES: "list[tuple[dict[str, str], list[Path], list[str], list[str]]]" = [
    ({}, [SIM, NCCL], [rf"driver +{SIM}/libcuda\.so\.1, for CUDA 13\.0", r"GPU +0: Simulated GPU, 8\.0 GiB, compute capability 9\.0", r"GPU +1: .*",
                       rf"cudart +{SIM}/libcudart\.so\.13, 13\.0", rf"NCCL +{NCCL}/libnccl\.so\.2, 2\.28\.9",
                       r"hooks +driver: all \d+ functions that cupool intercepts are there", r"hooks +NCCL: \d+ of \d+ .*; not \w+, .* more",
                       r"policies +auto, ordered, strict, relaxed", r"backends +cuda, nccl, vmm", r"register +possible, symmetric windows too; .*",
                       r"limit +address space.*: (\d+|unlimited)", r"limit +processors for this process: \d+"], [r"GPU +2", r"GPU +none"]),
    ({"SIMGPU_DEVICES": "1", "SIMGPU_MEMORY": "141G", "SIMGPU_NAME": "NVIDIA H200 MIG 1g.18gb"}, [SIM],
     [r"GPU +0: NVIDIA H200 MIG 1g\.18gb, 141\.0 GiB, .*"], [r"GPU +1"]),
    ({"SIMGPU_DRIVER_VERSION": "12040"}, [SIM], [r"driver +.*, for CUDA 12\.4", r"policies +strict alone: the others need a driver for CUDA 12\.5 or later"], []),
    ({"SIMGPU_DEVICES": "0"}, [SIM], [r"GPU +none: cuInit returns 100"], [r"GPU +0"]),
    ({"SIMGPU_FAULT": "cuInit:1+:999"}, [SIM], [r"GPU +none: cuInit returns 999"], [r"GPU +0"]),
]


class Info(unittest.TestCase):
    def info(self, *args: str, status: int = 0, path: "Optional[list[Path]]" = None, **env: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run([BUILD / "shim/cupool-info", *args], capture_output=True, text=True, timeout=60,
                              env={**{k: v for k, v in os.environ.items() if k in ("PATH", "GCOV_PREFIX")},
                                   "LD_LIBRARY_PATH": ":".join(map(str, path or [])), **env})
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def test_machines(self) -> None:
        for env, path, there, absent in MACHINES:
            with self.subTest(env):
                done = self.info(path=path, **env)
                self.assertEqual(done.stderr, "")
                for pattern in there:
                    self.assertRegex(done.stdout, re.compile(rf"^{pattern}$", re.M))
                for pattern in absent:
                    self.assertNotRegex(done.stdout, re.compile(rf"^{pattern}", re.M))

    @unittest.skipUnless(shutil.which("cc"), "no compiler")
    def test_stubs(self) -> None:
        """A driver with few of its functions, to link with."""
        with tempfile.TemporaryDirectory() as folder:
            for source in ("int unused;", "int cuInit(unsigned flags) { return 0; }"):
                subprocess.run(["cc", "-shared", "-fPIC", "-o", f"{folder}/libcuda.so.1", "-xc", "-"], input=source, text=True, check=True)
                out = self.info(path=[Path(folder)]).stdout
                self.assertRegex(out, r"(?m)^GPU +none: this libcuda is a stub, to link with$")
            # It is asked for every function that a whole driver is asked for.
            known = re.findall(r"(?m)^hooks +driver: all (\d+) functions", self.info(path=[SIM]).stdout)
            self.assertEqual(known, re.findall(r"(?m)^hooks +driver: \d of (\d+) functions", out))

    def test_no_nccl(self) -> None:
        """The machine may have one; the loader stops at a file that is none."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "libnccl.so.2").write_text("x" * 4096)
            self.assertRegex(self.info(path=[Path(folder), SIM]).stdout, r"(?m)^backends +cuda, vmm$")

    def test_defaults_are_read(self) -> None:
        """By cupool-trace plot: every setting, also those without a default."""
        known, lines = defaults.defaults(str(BUILD / "shim/cupool-info")), self.info("--settings").stdout
        self.assertEqual(set(known), set(re.findall(r"(?m)^(CUPOOL_\w+)=", lines)))
        self.assertEqual((known["CUPOOL_FREE"], known["CUPOOL_LIMIT"], known["CUPOOL_RANK"]), ("auto", "0", ""))

    def test_without_proc(self) -> None:
        """As in some containers: the machine and the program's name come from elsewhere."""
        hidden = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
        if subprocess.run([*hidden, "true"], capture_output=True).returncode:
            self.skipTest("no namespaces")
        if subprocess.run([*hidden, BUILD / "shim/cupool-info", "--version"], capture_output=True).returncode:
            self.skipTest("it does not start without /proc: a sanitizer's")
        done = subprocess.run([*hidden, BUILD / "shim/cupool-info", "--check", BUILD / "tests/e2e/app_shared"], capture_output=True, text=True,
                              timeout=60, env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(SIM), "LD_PRELOAD": str(BUILD / "shim/libcupool.so")})
        self.assertNotIn("another machine", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^verdict +caught")
        done = subprocess.run([*hidden, BUILD / "shim/cupool-info", "--process"], capture_output=True, text=True, timeout=60,
                              env={"PATH": os.environ["PATH"], "CUPOOL_TRACE_FILE": "%e.jsonl"})
        self.assertIn("cupool-info.jsonl", done.stdout)

    def test_what_does_not_run_on_simulated_gpus(self) -> None:
        """Kernels, and NVIDIA's static cudart. Programs with the stand-ins do."""
        sources = {"kernels": "void __cudaRegisterFatBinary(void); int main(void) { __cudaRegisterFatBinary(); }",
                   "static": 'const char *names[] = {"libcuda.so.1", "cudaErrorMissingConfiguration", "cuGetExportTable"}; int main(void) { return !names[0]; }'}
        # The rest of the environment stays: a sanitizer has its options there.
        plain = {name: value for name, value in os.environ.items() if not name.startswith("SIMGPU_")}
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "libkernels.so")
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-xc", "-"], input="void __cudaRegisterFatBinary(void) {}", text=True, check=True)
            for name, source in sources.items():
                program = os.path.join(folder, name)
                subprocess.run(["cc", "-o", program, f"-Wl,-rpath,{folder}", "-xc", "-", "-xnone", library], input=source, text=True, check=True)
                for gpus, said in ({"SIMGPU_DEVICES": "2"}, True), ({}, False):
                    done = subprocess.run([BUILD / "shim/cupool-info", "--check", program], capture_output=True, text=True, timeout=60,
                                          env={**plain, "LD_LIBRARY_PATH": str(SIM), "LD_PRELOAD": str(BUILD / "shim/libcupool.so"), **gpus})
                    self.assertEqual("cannot run on simulated GPUs" in done.stdout, said, done.stdout)
                    if said:
                        self.assertNotRegex(done.stdout, r"(?m)^verdict +caught|NOT CAUGHT (?!it is linked with libasan)")

    def test_wrong_words(self) -> None:
        for args, said in ((["--nosuch"], "'--nosuch' is not understood"), (["x"], "'x' is not understood"), ([""], "'' is not understood"),
                           (["-c", "x"], "'x' is not understood"), (["--check"], "--check needs a command"),
                           (["--accepts"], "--accepts needs NAME=VALUE")):
            done = self.info(*args, status=2)
            self.assertEqual((done.stdout, done.stderr), ("", f"cupool-info: {said} (see cupool-info --help)\n"))

    def test_without_any_library(self) -> None:
        """Whatever the machine has, the report comes to its end."""
        self.assertIn("\nlimit ", self.info().stdout)

    def test_limit_of_the_control_group(self) -> None:
        """In a namespace with a /sys/fs/cgroup of its own, where the system allows one."""
        mount = "mount -t tmpfs none /sys/fs/cgroup"
        try:
            subprocess.run(["unshare", "-Urm", *mount.split()], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no namespaces")
        for text, line in ("4096", "4096"), ("max", "max"), ("", None):
            done = subprocess.run(["unshare", "-Urm", "sh", "-c", f'{mount} && echo {text} >/sys/fs/cgroup/memory.max && exec "$0"',
                                   BUILD / "shim/cupool-info"], capture_output=True, text=True, timeout=60)
            found = re.findall(r"(?m)^limit +the host's memory for this control group, bytes: (.*)$", done.stdout)
            self.assertEqual(found, [line] if line else [], done.stdout + done.stderr)

    def test_what_is_printed(self) -> None:
        machine, settings, process = r"(?m)^cudart ", r"(?m)^CUPOOL_FREE=strict$", r"(?m)^host "
        for options, there in (((), [machine]), (("-c",), [settings]), (("--settings",), [settings]), (("-a",), [machine, settings, process]),
                               (("--all",), [machine, settings, process]), (("--process",), [process])):
            out = self.info(*options, path=[SIM], CUPOOL_FREE="strict").stdout
            for pattern in (machine, settings, process):
                self.assertEqual(bool(re.search(pattern, out)), pattern in there, (options, pattern))
        for setting, line in (("", 0), ("off", 0), ("/x/%e.page", 1)):
            out = self.info("--process", CUPOOL_STATS_FILE=setting).stdout
            self.assertEqual(out.count("its statistics page: /x/cupool-info.page\n"), line, out)
            self.assertEqual(out.count("statistics page"), line, out)
        self.assertRegex(self.info("--version").stdout, r"^cupool \d+\.\d+\.\d+\n$")
        self.assertIn("CUPOOL_LIMITS (did you mean CUPOOL_LIMIT?)", self.info("-c", CUPOOL_LIMITS="1").stderr)

    def test_full_standard_output(self) -> None:
        for options in ([], ["-a"], ["--help"], ["--version"], ["--check", "true"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([BUILD / "shim/cupool-info", *options], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (2, "cupool-info: standard output: not all of it could be written\n"))

    def test_rows_of_the_manual(self) -> None:
        out = self.info("--man").stdout
        self.assertIn('.TP\n.BR CUPOOL_FREE " (auto | ordered | strict | relaxed; default: auto)"\n', out)
        self.assertIn("libcupool\\-nccl.so", out)
        self.assertNotIn("\\e", out)

    def test_accepts(self) -> None:
        for assignment, status, printed in (("CUPOOL_FREE=strict", 0, ""), ("CUPOOL_FREE=x", 1, "auto | ordered | strict | relaxed\n"), ("CUPOOL_NONE=1", 2, ""),
                                            ("CUPOOL_FREE", 2, ""), ("CUPOOL_LIMIT=5G", 0, ""), ("CUPOOL_LIMIT=5X", 1, "bytes, less than 4194304T, with K, M, G or T\n")):
            self.assertEqual(self.info("--accepts", assignment, status=status, CUPOOL_FREE="bad").stdout, printed)
