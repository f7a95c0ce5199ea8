# SPDX-License-Identifier: Apache-2.0
"""A Spack package of the source tree. scripts/packages spack FOLDER writes it with its version and source, in a repository of its
own; then, with Spack 1.0 or later: spack repo add FOLDER/spack_repo/cupool && spack install cupool.
"""
from spack_repo.builtin.build_systems.meson import MesonPackage

from spack.package import *  # noqa: F401,F403 - Spack's own way


class Cupool(MesonPackage):
    """libcupool.so, which any CUDA program can be started with, unchanged: it serves cudaMalloc and cudaFree from a cached pool for
    each device. It needs neither CUDA nor a GPU to be installed; CUDA's headers are there while it is built."""

    homepage = "https://cupool.invalid"
    url = "file://@FOLDER@/cupool-@VERSION@.tar.xz"
    license("Apache-2.0")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("c", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("cuda@13:", type="build")
    depends_on("python@3.9:", type=("build", "run"))

    conflicts("platform=darwin", msg="it is preloaded by glibc's loader")
    conflicts("platform=windows", msg="it is preloaded by glibc's loader")

    def meson_args(self):
        return ["-Dtests=false", f"-Dheaders={self.spec['cuda'].prefix.include}"]

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.join("cupool-run"))("--version")
        Executable(self.prefix.bin.join("cupool-info"))("-c")
