"""Heat that spreads over a torus, with halo exchange in supersteps.

    dipole run -n 4 python3 halo_exchange.py

Each rank has a strip of rows and one more row at each side: the halo, into which its neighbours put
their border rows.
"""

import numpy

from dipole import bsp

ROWS = 32
COLUMNS = 64
STEPS = 50

Grid = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float64]]


def spread(grid: Grid) -> Grid:
    """The inner rows after a step, from a grid with a halo."""
    inner = grid[1:-1]
    around = grid[:-2] + grid[2:] + numpy.roll(inner, 1, axis=1) + numpy.roll(inner, -1, axis=1)
    return inner + 0.1 * (around - 4 * inner)


def alone(grid: Grid) -> Grid:
    """All steps in one process."""
    for _ in range(STEPS):
        grid = spread(numpy.concatenate([grid[-1:], grid, grid[:1]]))
    return grid


@bsp.spmd
def main(b: bsp.Program) -> None:
    whole = numpy.random.default_rng(3).random((ROWS * b.size, COLUMNS))
    strip = numpy.zeros((ROWS + 2, COLUMNS))
    strip[1:-1] = whole[ROWS * b.rank : ROWS * (b.rank + 1)]
    area = b.register(strip)
    b.sync()
    above, below = (b.rank - 1) % b.size, (b.rank + 1) % b.size
    for _ in range(STEPS):
        with b.superstep():
            # Positions are elements of the neighbour's strip.
            b.put(strip[1], above, area, at=(ROWS + 1) * COLUMNS)
            b.put(strip[ROWS], below, area, at=0)
        strip[1:-1] = spread(strip)
    strips = b.allgather(strip[1:-1])
    if b.rank == 0:
        assert numpy.allclose(numpy.concatenate(strips), alone(whole))
        print(f"{STEPS} steps on {b.size} strips give what one process computes")


main()
