# SPDX-License-Identifier: Apache-2.0
"""A Spack package of the source tree. scripts/packages spack writes it with its version and source, as
FOLDER/packages/cupool/package.py in a repository of its own; then: spack repo add FOLDER && spack install cupool.
"""
from spack.package import *  # noqa: F401,F403 - Spack's own way


class Cupool(MesonPackage):
    """libcupool.so, which any CUDA program can be started with, unchanged: it serves cudaMalloc and cudaFree from a cached pool for
    each device. It needs neither CUDA nor a GPU to be installed; CUDA's headers are there while it is built."""

    homepage = "https://cupool.invalid"
    url = "file://@TOP@/cupool-@VERSION@.tar.xz"
    license("Apache-2.0")

    version("@VERSION@")

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
