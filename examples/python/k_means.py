"""k-means in supersteps, with NumPy.

    dipole run -n 4 python3 k_means.py

Each rank has its own points; the sums of a step are exchanged as messages. All ranks get the same
centres, because all add the parts in the order of the ranks.
"""

import numpy

from dipole import bsp

POINTS = 24_000
CLUSTERS = 5
STEPS = 20


def points_of(rank: int, ranks: int) -> numpy.ndarray:
    """This rank's share of points around the corners of a pentagon."""
    random = numpy.random.default_rng(7)
    angles = 2 * numpy.pi * random.integers(0, CLUSTERS, POINTS) / CLUSTERS
    corners = 10 * numpy.stack([numpy.cos(angles), numpy.sin(angles)], axis=1)
    points = corners + random.normal(size=(POINTS, 2))
    return numpy.array_split(points, ranks)[rank]


@bsp.spmd
def main(b: bsp.Program) -> None:
    points = points_of(b.rank, b.size)
    centres = b.bcast(points[:CLUSTERS].copy() if b.rank == 0 else None)
    for _ in range(STEPS):
        distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
        nearest = distances.argmin(axis=1)
        sums = numpy.zeros((CLUSTERS, 3))
        for cluster in range(CLUSTERS):
            mine = points[nearest == cluster]
            sums[cluster] = (*mine.sum(axis=0), len(mine))
        total = b.allreduce(sums, numpy.add)
        assert total[:, 2].sum() == POINTS
        centres = total[:, :2] / numpy.maximum(total[:, 2:], 1)
    if b.rank == 0:
        print(numpy.round(centres[numpy.lexsort(centres.T)], 3))


main()
