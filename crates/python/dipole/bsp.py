"""Programs that compute, communicate and synchronise in supersteps (BSPlib).

    from dipole import bsp

    @bsp.spmd
    def main(b):
        part = numpy.zeros(1)
        area = b.register(part)
        b.sync()
        with b.superstep():
            b.put(numpy.array([b.rank]), (b.rank + 1) % b.size, area)
        print(f"{b.rank} got {part[0]}")

    main()

`dipole run -n 4 python3 prog.py` starts four ranks; without a launcher there is one. Puts, gets and
messages of a superstep take effect at its end. An exception in one rank ends the whole program.
"""

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import _dipole, _pickled
from ._errors import Closed, PeerGone

if TYPE_CHECKING:
    from ._distributed import Distributed

__all__ = ["Area", "Distributed", "Program", "Received", "begin", "current", "spmd"]

_Result = TypeVar("_Result")


class Area(NamedTuple):
    """Memory that all ranks have registered, each its own part."""

    number: int
    memory: Any
    itemsize: int


class Received(NamedTuple):
    """A message of the superstep before."""

    source: int
    tag: Any
    value: Any


class Program:
    """This rank of a BSP program. `rank` counts from 0 to `size - 1`."""

    def __init__(self, native: _dipole.Bsp) -> None:
        self._native = native
        self.rank: int = native.rank
        self.size: int = native.size
        # Code and instruction of the last call of `sync`.
        self._last_sync: tuple[types.CodeType, int] | None = None

    @property
    def time(self) -> float:
        """Seconds since the program began."""
        return self._native.time()

    def register(self, memory: Any) -> Area:
        """Makes a writable buffer, such as a NumPy array, this rank's part of an area. All ranks
        register the same areas in the same order; their parts may differ in length. Others reach it
        from the next superstep on."""
        with memoryview(memory) as view:
            itemsize = view.itemsize
        return Area(self._native.register(memory), memory, itemsize)

    def unregister(self, area: Area) -> None:
        """Removes an area from the next superstep on, as all ranks do in the same order."""
        self._native.unregister(area.number)

    def put(self, buffer: Any, to: int, area: Area, at: int = 0) -> None:
        """Writes a buffer to rank `to`'s part of an area, from element `at` on, at the end of the
        superstep. The bytes are copied now."""
        self._native.put(buffer, to, area.number, at * area.itemsize)

    def get(self, of: int, area: Area, buffer: Any, at: int = 0) -> None:
        """Fills a buffer from rank `of`'s part of an area, from element `at` on, as it is at the end
        of the superstep before any put takes effect."""
        self._native.get(of, area.number, at * area.itemsize, buffer)

    def send(self, value: object, to: int, tag: object = None) -> None:
        """Pickles an object and sends it to a rank, which finds it among its `messages()` in the
        next superstep."""
        self._native.send(_pickled.dumps((self.rank, tag, value)), to)

    def messages(self) -> Iterator[Received]:
        """Takes the messages that were sent to this rank in the superstep before, in the order of
        their senders' ranks."""
        while (message := self._native.receive()) is not None:
            yield Received(*_pickled.loads(message, copy=True))

    def sync(self) -> None:
        """Ends the superstep: returns when all ranks have ended it and everything has arrived."""
        caller = _caller()
        place = caller.f_code, caller.f_lasti
        if place == self._last_sync:
            # In a loop, finding the line again would take longer than a superstep.
            self._native.sync()
        else:
            self._native.sync((caller.f_code.co_filename, caller.f_lineno))
            self._last_sync = place

    def reshuffle(
        self, layouts: tuple[_dipole.Layout, _dipole.Layout], source: Any, target: Any
    ) -> None:
        """Moves an array between two distributions, for `Distributed`."""
        caller = _caller()
        self._last_sync = None
        place = caller.f_code.co_filename, caller.f_lineno
        self._native.reshuffle(layouts, source, target, place)

    def checkpoint(self) -> None:
        """Requests a checkpoint of the program at the end of the superstep, with all its arrays. Needs
        `dipole run --checkpoint-dir`; raises ValueError otherwise."""
        self._native.checkpoint()

    @contextlib.contextmanager
    def superstep(self) -> Iterator[None]:
        """A superstep as a block: `sync()` at its end."""
        yield
        self.sync()

    def allgather(self, value: _Result) -> list[_Result]:
        """The objects of all ranks, by rank. Takes one superstep, without other messages in it."""
        for rank in range(self.size):
            self.send(value, rank)
        self.sync()
        return [received.value for received in self.messages()]

    def allreduce(self, value: _Result, op: Callable[[_Result, _Result], _Result]) -> _Result:
        """Combines the objects of all ranks in the order of their ranks. Takes one superstep."""
        return functools.reduce(op, self.allgather(value))

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        """The object of rank `root`. Takes one superstep."""
        if self.rank == root:
            for rank in range(self.size):
                self.send(value, rank)
        self.sync()
        [received] = self.messages()
        return received.value

    def end(self) -> None:
        """Ends the last superstep and the program."""
        self._native.end()

    def abort(self) -> bool:
        """Ends the program because of an error of this rank. False if another rank reports one."""
        return self._native.abort()


_OWN_FILES = {__file__, contextlib.__file__, __file__.replace("bsp.py", "_distributed.py")}


def _caller() -> types.FrameType:
    """The program's call."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename in _OWN_FILES and frame.f_back is not None:
        frame = frame.f_back
    return frame


def __getattr__(name: str) -> Any:
    # Needs NumPy, which programs without such arrays need not have.
    if name == "Distributed":
        from ._distributed import Distributed

        return Distributed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_current: Program | None = None


def current() -> Program:
    """The program that this process has begun. Raises Closed if it has not."""
    if _current is None:
        raise Closed("the process has not begun a BSP program")
    return _current


def begin(max_ranks: int | None = None) -> Program | None:
    """Begins the program together with the other processes of the job. At most `max_ranks` of them
    take part, as rank 0 says; the others get None."""
    global _current
    native = _dipole.Bsp.begin(max_ranks)
    _current = None if native is None else Program(native)
    return _current


def spmd(function: Callable[..., _Result]) -> Callable[..., _Result | None]:
    """Makes a function that all ranks run, with the `Program` as its first argument. It returns
    None in surplus processes. If it raises an exception in one rank, all ranks end: that rank with
    the exception, the others with status 1."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> _Result | None:
        program = begin()
        if program is None:
            return None
        try:
            result = function(program, *arguments, **options)
            with contextlib.suppress(Closed):
                program.end()
            return result
        except BaseException as raised:
            reports = program.abort()
            if reports or not isinstance(raised, PeerGone):
                raise
            sys.exit(1)

    return run
