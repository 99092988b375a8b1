"""Arrays over the ranks of a BSP program."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy
from numpy.lib.mixins import NDArrayOperatorsMixin

from . import _dipole, bsp

Block = int | None


class Distributed(NDArrayOperatorsMixin):
    """An array of which each rank has a part.

        x = bsp.Distributed((1000, 800), (-1, None))          # whole rows, in equal parts
        x.local[:] = numpy.add(*x.indices())                  # this rank's rows
        y = numpy.sqrt(x + 1)                                 # element by element, here
        z = y.reshuffle((None, -1))                           # whole columns

    `blocks` has an entry for each dimension: so many consecutive indices go to each rank in turn; -1
    gives each rank one part, all of the same length except for the last ones; with None the dimension
    is not divided. `grid` is the number of ranks along each dimension. By default all ranks are shared
    out among the divided dimensions as evenly as possible. Ranks are numbered like the elements of a
    C array with the grid's shape. Ranks beyond the grid have empty parts.

    `local` is this rank's part: a NumPy array whose elements have the same order as in the whole. It
    may be given, and is not copied then if it has the right shape and type and no gaps.

    All ranks make the same calls. Creating an array does not communicate. Checkpoints contain it.

    Raises ValueError if the distribution is invalid or `local` does not fit it.
    """

    def __init__(
        self,
        shape: Sequence[int],
        blocks: Sequence[Block],
        *,
        grid: Sequence[int] | None = None,
        dtype: Any = None,
        local: Any = None,
    ) -> None:
        self.program: bsp.Program = bsp.current()
        if dtype is None:
            dtype = float if local is None else numpy.asarray(local).dtype
        self.dtype: numpy.dtype[Any] = numpy.dtype(dtype)
        if self.dtype.hasobject or self.dtype.itemsize == 0:
            raise ValueError(f"elements of type {self.dtype} have no bytes to distribute")
        self.shape: tuple[int, ...] = tuple(shape)
        if len(blocks) != len(self.shape) or any(block == 0 for block in blocks):
            raise ValueError(f"give a block size, -1 or None for each dimension of {self.shape}")
        self.grid: tuple[int, ...] = _grid(blocks, self.program.size) if grid is None else tuple(grid)
        self.blocks: tuple[int, ...] = tuple(
            _block(*dimension) for dimension in zip(blocks, self.shape, self.grid, strict=True)
        )
        self._layout = _dipole.Layout(self.shape, self.grid, self.blocks, self.dtype.itemsize)
        part = tuple(self._layout.part(self.program.rank))
        if local is None:
            local = numpy.zeros(part, self.dtype)
        self.local: numpy.ndarray[Any, Any] = numpy.ascontiguousarray(local, self.dtype).reshape(
            numpy.shape(local)
        )
        if self.local.shape != part:
            raise ValueError(
                f"rank {self.program.rank} has a part of shape {part}, not {self.local.shape}"
            )

    @classmethod
    def from_root(
        cls, array: Any, blocks: Sequence[Block], *, grid: Sequence[int] | None = None
    ) -> "Distributed":
        """Distributes an array of rank 0. The other ranks give None. Takes up to five supersteps."""
        program = bsp.current()
        whole = numpy.ascontiguousarray(array) if program.rank == 0 else None
        shape, dtype = program.bcast(None if whole is None else (numpy.shape(array), whole.dtype))
        nothing = numpy.zeros((0,) * len(shape), dtype)
        local = nothing if whole is None else whole.reshape(shape)
        return cls(shape, (None,) * len(shape), local=local).reshuffle(blocks, grid=grid)

    def reshuffle(
        self, blocks: Sequence[Block], *, grid: Sequence[int] | None = None
    ) -> "Distributed":
        """The same array in another distribution; this one stays as it is.

        Each element that changes its rank is sent once. Takes one or two supersteps, and two more if
        none of the last four reshuffles of the program was between the same distributions.
        """
        new = Distributed(self.shape, blocks, grid=grid, dtype=self.dtype)
        self.program.reshuffle((self._layout, new._layout), _bytes(self.local), _bytes(new.local))
        return new

    def gather(self) -> numpy.ndarray[Any, Any] | None:
        """The whole array in rank 0; None in the others. Takes up to four supersteps."""
        whole = self.reshuffle((None,) * self.ndim)
        return whole.local if self.program.rank == 0 else None

    def indices(self) -> tuple[numpy.ndarray[Any, Any], ...]:
        """The indices of this rank's elements in the whole array: for each dimension an array that
        broadcasts against `local`, as from `numpy.ogrid`."""
        each = self._layout.indices(self.program.rank)
        return numpy.ix_(*(numpy.array(indices, int) for indices in each))

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of the whole array."""
        return math.prod(self.shape)

    def copy(self) -> "Distributed":
        """An array with the same distribution and elements."""
        return self._like(self.local.copy())

    def sum(self) -> Any:
        """The sum of all elements, in all ranks. Takes a superstep, as do `min` and `max`."""
        return self._reduce(numpy.add)

    def min(self) -> Any:
        """The smallest element."""
        return self._reduce(numpy.minimum)

    def max(self) -> Any:
        """The largest element."""
        return self._reduce(numpy.maximum)

    def _reduce(self, ufunc: numpy.ufunc) -> Any:
        part = ufunc.reduce(self.local, axis=None) if self.local.size else None
        parts = [part for part in self.program.allgather(part) if part is not None]
        # Of an empty array: NumPy's result or error.
        return functools.reduce(ufunc, parts) if parts else ufunc.reduce(self.local, axis=None)

    def _like(self, local: Any) -> "Distributed":
        return Distributed(self.shape, self.blocks, grid=self.grid, local=local)

    def __array_ufunc__(self, ufunc: numpy.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", ())
        arrays = [it for it in (*inputs, *out) if isinstance(it, Distributed)]
        others = [it for it in (*inputs, *out) if not isinstance(it, Distributed)]
        if method != "__call__" or options.get("where", True) is not True:
            return NotImplemented
        if any(numpy.ndim(other) for other in others):
            raise TypeError("combine distributed arrays with numbers and with each other only")
        place = {(it.shape, it.grid, it.blocks) for it in arrays}
        if len(place) > 1:
            raise ValueError("the arrays are distributed differently: reshuffle one of them")
        local = [it.local if isinstance(it, Distributed) else it for it in inputs]
        if out:
            options["out"] = tuple(it.local for it in out)
        results = getattr(ufunc, method)(*local, **options)
        if out:
            return out if len(out) > 1 else out[0]
        if isinstance(results, tuple):
            return tuple(arrays[0]._like(result) for result in results)
        return arrays[0]._like(results)

    def __array__(self, *_arguments: Any, **_options: Any) -> Any:
        raise TypeError("the array is distributed: use its `local` part, or `gather()` it")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return (
            f"<dipole.bsp.Distributed {self.shape} {self.dtype}, "
            f"blocks {self.blocks} over a grid {self.grid}>"
        )


def _bytes(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """The memory of an array. Not all types of elements have a buffer."""
    return array.reshape(-1).view(numpy.uint8)


def _block(block: Block, extent: int, ranks: int) -> int:
    """The size of the blocks along a dimension."""
    if block is None:
        return max(1, extent)
    return block if block != -1 else max(1, -(-extent // max(1, ranks)))


def _grid(blocks: Sequence[Block], ranks: int) -> tuple[int, ...]:
    """Shares out ranks among the divided dimensions, as evenly as their prime factors allow."""
    grid = [1] * len(blocks)
    divided = [at for at, block in enumerate(blocks) if block is not None]
    if divided:
        for factor in _prime_factors(ranks):
            # The first dimension gets most.
            grid[min(divided, key=lambda at: grid[at])] *= factor
    return tuple(grid)


def _prime_factors(number: int) -> list[int]:
    """The largest first."""
    factors, factor = [], 2
    while number > 1:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor += 1
    return factors[::-1]
