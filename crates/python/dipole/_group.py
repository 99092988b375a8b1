"""Groups: collective calls."""

from typing import Any

from . import _dipole, _pickled

_KINDS = {"d": "f", "l": "i", "q": "i", "L": "u", "Q": "u"}


class Group(_dipole.Group):
    """Members that make collective calls together, in the same order. `addresses` lists the members'
    ports, one unused endpoint number each, the same list everywhere; `rank` is this member's place in
    it. If a member is lost, calls raise PeerGone instead of waiting for ever.
    """

    def bcast(self, value: Any = None, root: int = 0, timeout: float | None = None) -> Any:
        """Returns the object of member `root` in all members."""
        mine = _pickled.dumps(value) if self.rank == root else b""
        sent = self.broadcast_bytes(mine, root, timeout)
        return value if self.rank == root else _pickled.loads(sent, copy=True)

    def Allreduce(self, buffer: Any, op: str = "sum", timeout: float | None = None) -> None:
        """Combines the arrays of all members element by element, in place; `op` is "sum", "min" or
        "max". Elements are 64-bit integers or floats."""
        self.reduce_numbers(buffer, op, self._kind(buffer), None, timeout)

    def Reduce(
        self, buffer: Any, op: str = "sum", root: int = 0, timeout: float | None = None
    ) -> None:
        """Like `Allreduce`, but only the array of member `root` changes."""
        self.reduce_numbers(buffer, op, self._kind(buffer), root, timeout)

    @staticmethod
    def _kind(buffer: Any) -> str:
        with memoryview(buffer) as view:
            code = view.format.lstrip("@=<")
            return _KINDS.get(code, view.format) if view.itemsize == 8 else view.format

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()
