# Spack 1.0 or newer, in a checkout:
#   spack repo add examples/spack/spack_repo/dipole
#   spack dev-build dipole@0.1.0
# The build downloads crates. Use it with MPI programs like this:
#   spack load dipole openmpi; eval "$(dipole mpi-env openmpi)"; mpirun -n 8 ./program

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Dipole(Package):
    """Messages between the processes of a cluster without RDMA: endpoints, BSPlib, MPI, sockets."""

    license("Apache-2.0 OR MIT")

    # Its source is the checkout in which the command runs.
    version("0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.90:", type="build")

    sanity_check_is_file = [
        "bin/dipole",
        "include/dipole.h",
        "lib/libdipole.so",
        "lib/libbsp.so",
        "lib/libfabric/libdipole-fi.so",
    ]

    def install(self, spec, prefix):
        cargo = which("cargo", required=True)
        cargo("xtask", "install", "--prefix", prefix)

    def setup_run_environment(self, env):
        # Launchers load the provider for MPI from here.
        env.prepend_path("LD_LIBRARY_PATH", self.prefix.lib)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        dipole = Executable(self.prefix.bin.dipole)
        dipole("--version")
