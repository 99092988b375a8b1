"""A distributed matrix product: blocks travel around a ring of ranks.

    dipole run -n 4 python3 matrix_product.py

Each rank has some rows of both matrices. While it multiplies with the rows of the second matrix
that it has now, these rows go on to its neighbour.
"""

import numpy

from dipole import bsp

ROWS = 60


@bsp.spmd
def main(b: bsp.Program) -> None:
    size = ROWS * b.size
    random = numpy.random.default_rng(5)
    one, other = random.random((size, size)), random.random((size, size))
    own = slice(ROWS * b.rank, ROWS * (b.rank + 1))
    left, product = one[own], numpy.zeros((ROWS, size))
    # Rows arrive in one of the two while the other is used.
    rows = [other[own].copy(), numpy.zeros((ROWS, size))]
    areas = [b.register(part) for part in rows]
    b.sync()
    for step in range(b.size):
        now, then = step % 2, 1 - step % 2
        owner = (b.rank + step) % b.size
        with b.superstep():
            b.put(rows[now], (b.rank - 1) % b.size, areas[then])
            product += left[:, ROWS * owner : ROWS * (owner + 1)] @ rows[now]
    parts = b.allgather(product)
    if b.rank == 0:
        assert numpy.allclose(numpy.concatenate(parts), one @ other)
        print(f"the product of two {size} x {size} matrices is correct")


main()
