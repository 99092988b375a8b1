"""A cluster for notebooks and scripts: functions run by all ranks of a job, results come back."""

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import _functions, _program
from ._endpoint import Endpoint
from ._errors import Error, TimedOut

# How long ranks may take to end after a request.
_END_TIMEOUT = 10.0
# How often the launcher is looked at while results are awaited.
_LOOK = 0.5


class RankFailed(Error):
    """A rank of the cluster ended without a result."""


class Cluster:
    """Ranks that `dipole run` has started. Use it in a `with` block, or call `close()`."""

    def __init__(self, ranks: int, options: Sequence[str] = ()) -> None:
        if ranks < 1:
            raise ValueError("a cluster needs at least one rank")
        self.ranks = ranks
        self._options = list(options)
        self._endpoint = Endpoint()
        self._launcher: subprocess.Popen[bytes] | None = None
        self._addresses: list[Any] = []
        self._calls = 0
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
        """Calls `function(b, *arguments, **options)` in every rank, where `b` is its
        `dipole.bsp.Program`. Returns the results by rank. If ranks raise exceptions, the first one is
        raised here, with the rank and its traceback as notes, and the ranks are started anew.

        Functions of a notebook or of `__main__` need the package cloudpickle.
        """
        if self._launcher is None:
            self._start()
        self._calls += 1
        call = _functions.dumps((function, arguments, options))
        try:
            for address in self._addresses:
                self._endpoint.send(("call", self._calls, call), to=address)
            results: dict[int, Any] = {}
            while len(results) < self.ranks:
                kind, number, rank, value = self._answer()
                if number != self._calls:
                    continue
                if kind == "raised":
                    raise self._exception(rank, *value)
                results[rank] = pickle.loads(value)
        except BaseException:
            # Other ranks may wait for each other.
            self._stop()
            raise
        return [results[rank] for rank in range(self.ranks)]

    @staticmethod
    def _exception(rank: int, pickled: bytes, traceback: str) -> BaseException:
        raised: BaseException
        try:
            raised = pickle.loads(pickled)
        except Exception:
            raised = RankFailed("a rank raised an exception that cannot be pickled")
        raised.add_note(f"in rank {rank} of the cluster:\n{traceback}")
        return raised

    def _answer(self) -> Any:
        """The next message of a rank. Fails if the launcher has ended."""
        while True:
            try:
                return self._endpoint.recv(timeout=_LOOK)
            except TimedOut:
                pass
            status = self._launcher.poll() if self._launcher else 0
            if status is not None:
                # What was sent before its end comes first.
                with contextlib.suppress(TimedOut):
                    return self._endpoint.recv(timeout=_LOOK)
                raise RankFailed(f"the ranks have ended with status {status}; see their output")

    def _start(self) -> None:
        here = self._endpoint.address
        worker = [sys.executable, "-m", "dipole._worker", str(here.nid), str(here.dpid)]
        command = [_program.path(), "run", "-n", str(self.ranks), *self._options, "--", *worker]
        # Rank 0 ends when this pipe is closed, also if this process is killed.
        self._launcher = subprocess.Popen(command, stdin=subprocess.PIPE)
        ready: dict[int, Any] = {}
        while len(ready) < self.ranks:
            kind, _, rank, address = self._answer()
            if kind == "ready":
                ready[rank] = address
        self._addresses = [ready[rank] for rank in range(self.ranks)]

    def _stop(self) -> None:
        """Ends the ranks, whatever they do."""
        launcher, self._launcher = self._launcher, None
        if launcher is None:
            return
        launcher.terminate()
        try:
            launcher.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
        if launcher.stdin is not None:
            launcher.stdin.close()

    def close(self) -> None:
        """Ends the ranks."""
        if self._launcher is not None:
            try:
                for address in self._addresses:
                    self._endpoint.send(("end", 0, b""), to=address, timeout=_END_TIMEOUT)
                self._launcher.wait(_END_TIMEOUT)
            except (Error, subprocess.TimeoutExpired):
                pass
        self._stop()
        self._endpoint.close()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def cluster(ranks: int, options: Sequence[str] = ()) -> Cluster:
    """Starts `ranks` Python processes by `dipole run`, which takes `options`, for instance
    `["--hosts", "hosts"]`."""
    return Cluster(ranks, options)
