# SPDX-License-Identifier: Apache-2.0
"""The file name of the library that makes a call decides its treatment: every name of shim/real/caller.c, with libraries of
that name, and names that only resemble it."""

import re
import shutil
import unittest
from pathlib import Path

from e2e import BIN, SOURCE, Case, Trace

# Prefix, verdict, two file names that there are.
TABLE = [
    ("libnccl", "INSIDE", "libnccl.so.2", "libnccl-net.so"),
    ("libnvshmem", "INSIDE", "libnvshmem_host.so.3", "libnvshmem.so"),
    ("nvshmem", "INSIDE", "nvshmem_bootstrap_uid.so.3", "nvshmem_transport_ibrc.so.4"),
    ("libcufile", "INSIDE", "libcufile.so.0", "libcufile_rdma.so.1"),
    ("libcupti", "INSIDE", "libcupti.so.13", "libcupti.so.2025.3.1"),
    ("libucm", "TRANSFER", "libucm.so.0", "libucm_cuda.so.0"),
    ("libucs", "TRANSFER", "libucs.so.0", "libucs_signal.so.0"),
    ("libucp", "TRANSFER", "libucp.so.0", "libucp.so"),
    ("libuct", "TRANSFER", "libuct.so.0", "libuct_cuda.so.0"),
    ("libucc", "TRANSFER", "libucc.so.1", "libucc_mc_cuda.so"),
    ("libmpi", "TRANSFER", "libmpi.so.40", "libmpi_cxx.so.40"),
    ("libpmpi", "TRANSFER", "libpmpi.so.12", "libpmpich.so.12"),
    ("libopen-pal", "TRANSFER", "libopen-pal.so.80", "libopen-pal.so"),
    ("mca_", "TRANSFER", "mca_accelerator_cuda.so", "mca_btl_smcuda.so"),
    ("libfabric", "TRANSFER", "libfabric.so.1", "libfabric.so"),
    ("libhcoll", "TRANSFER", "libhcoll.so.1", "libhcoll_cuda.so"),
    ("libyaksa", "TRANSFER", "libyaksa.so.0", "libyaksa.so"),
    ("libgdrapi", "TRANSFER", "libgdrapi.so.2", "libgdrapi.so"),
    ("libcublas", "MATH", "libcublas.so.13", "libcublasLt.so.13"),
    ("libcudnn", "MATH", "libcudnn.so.9", "libcudnn_ops.so.9"),
    ("libcusolver", "MATH", "libcusolver.so.12", "libcusolverMg.so.12"),
    ("libcusparse", "MATH", "libcusparse.so.12", "libcusparseLt.so.0"),
    ("libcufft", "MATH", "libcufft.so.12", "libcufftw.so.12"),
    ("libcurand", "MATH", "libcurand.so.10", "libcurand.so"),
    ("libcutensor", "MATH", "libcutensor.so.2", "libcutensorMg.so.2"),
]
OTHERS = ["libmy_mpi.so", "nccl.so", "LIBNCCL.so", "libtorch_cuda.so", "libmathx.so", "libnccl/app.so", "libcudart_x.so"]

# Are its own requests pooled, why does the device's policy change, if it does, is it told that one was refused, and is memory of
# the program's that it has exported used again? A program may never say that an importer has finished.
EFFECTS = {
    "PROGRAM": (True, "mapped host memory", True, False),
    "MATH": (True, "a device other than the GPU gets access to its memory", True, True),
    "INSIDE": (False, None, False, True),
    "TRANSFER": (False, "MPI or UCX moves its memory", False, True),
}


class Callers(Case):
    def effects(self, names: "list[str]", kind: str) -> "dict[str, tuple[bool, str | None, bool, bool]]":
        """Returns the treatment of the calls of libraries of these names."""
        folder = self.folder()
        paths = [folder / name for name in names]
        for path in paths:
            path.parent.mkdir(exist_ok=True)
            shutil.copy(BIN / f"caller_{kind}.so", path)  # a link would be the same library for the loader
        done = self.go(BIN / "callers", *paths, CUPOOL_TRACE_FILE="%p.jsonl")
        found: "dict[str, tuple[bool, str | None, bool, bool]]" = {}
        for process, path in re.findall(r"^(\d+) (.+)$", done.out, re.M):
            trace = Trace(done.cwd / f"{process}.jsonl")
            why = [e["why"] for e in trace.of("policy") if e["free"] == "strict"]
            found[str(Path(path).relative_to(folder))] = (
                trace.total("allocs") == 3, why[0] if why else None, bool(trace.of("oom")), len(trace.of("segment_alloc")) == 1)
            self.assertLessEqual(len(why), 1)
        return found

    def test_pinned_memory(self) -> None:
        """The program asks for none itself before the third library's calls."""
        for name, verdict in ("libnccl.so.2", "INSIDE"), ("libucm.so.0", "TRANSFER"), ("libcublas.so.13", "MATH"), ("libapp.so", "PROGRAM"):
            with self.subTest(name):
                folder = self.folder()
                paths = [folder / "1.so", folder / "2.so", folder / name]
                for path in paths:
                    shutil.copy(BIN / "caller_driver.so", path)
                done = self.go(BIN / "callers", *paths, CUPOOL_HOST_POOL="1", CUPOOL_TRACE_FILE="%p.jsonl")
                trace = Trace(done.cwd / f"{done.out.splitlines()[-1].split()[0]}.jsonl")
                self.assertEqual(len(trace.of("host_alloc")), EFFECTS[verdict][0])

    def test_every_name(self) -> None:
        for kind in "driver", "runtime", "static":
            wanted = {name: EFFECTS[verdict] for _, verdict, *names in TABLE for name in names}
            self.assertEqual(self.effects(list(wanted), kind), wanted)

    def test_names_that_resemble_it(self) -> None:
        """One letter short, or with something in front."""
        names = {f(prefix) for prefix, *_ in TABLE for f in (lambda p: p[:-1] + ".so", lambda p: "x" + p + ".so")}
        wanted = {name: EFFECTS["PROGRAM"] for name in [*sorted(names), *OTHERS]}
        self.assertEqual(self.effects(list(wanted), "driver"), wanted)

    def test_the_table_is_the_sources(self) -> None:
        listed = re.findall(r'\{"([^"]+)", CALLER_(\w+)\}', (SOURCE / "shim" / "real" / "caller.c").read_text())
        self.assertEqual(sorted(listed), sorted((prefix, verdict) for prefix, verdict, *_ in TABLE))
