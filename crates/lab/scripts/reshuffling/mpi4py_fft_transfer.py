"""The case of reshuffle.c that mpi4py-fft supports, with one part per rank: Pencil.transfer (MPI_Alltoallw)."""
import sys

import numpy
from mpi4py import MPI
from mpi4py_fft.pencil import Pencil, Subcomm

N, TIMES = 2048, 9
comm = MPI.COMM_WORLD
# Column-major: the slowest dimension is the second index.
before = Pencil(Subcomm(comm, [1, 0]), (N, N), axis=0)
after = before.pencil(1)
transfer = before.transfer(after, "d")
columns, rows = (numpy.arange(count) + start for count, start in zip(before.subshape, before.substart))
source = numpy.ascontiguousarray(rows[None, :] + 10000.0 * columns[:, None])
target = numpy.ones(after.subshape)
least = 1e9
for _ in range(TIMES):
    comm.Barrier()
    began = MPI.Wtime()
    transfer.forward(source, target)
    comm.Barrier()
    least = min(least, MPI.Wtime() - began)
columns, rows = (numpy.arange(count) + start for count, start in zip(after.subshape, after.substart))
if not (target == rows[None, :] + 10000.0 * columns[:, None]).all():
    sys.stderr.write("wrong\n")
    comm.Abort(1)
if comm.Get_rank() == 0:
    print(f"row-parts-to-column-parts {least:.6f}")
