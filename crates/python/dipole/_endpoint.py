"""Endpoints and ports: pickled messages, asyncio and trio on top of the native classes."""

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from . import _dipole, _loops, _pickled
from ._address import Address
from ._dipole import Message
from ._errors import Closed, WouldBlock

_open_ports: "weakref.WeakSet[Port]" = weakref.WeakSet()


class Endpoint(_dipole.Endpoint):
    """Receives from any endpoint, and sends to its targets or to any address.

    Calls with a capital letter take and return bytes: any contiguous buffer in, a `Message` out,
    which `memoryview` or NumPy read in place. Calls in lower case pickle any object. Waiting calls
    release the interpreter's lock, end on KeyboardInterrupt, and take `timeout=` in seconds.

    `dpid` is the number by which others send to it; without one it gets a free number.
    """

    def __init__(self, dpid: int | None = None) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        # Under trio: the run, and its lock for the task that waits for the descriptor.
        self._turn: tuple[Any, Any] | None = None

    def send(self, value: object, to: Address | None = None, timeout: float | None = None) -> None:
        """Pickles an object and sends it to all targets, or to the address `to`."""
        self.Send(_pickled.dumps(value), to, timeout)

    def recv(self, timeout: float | None = None, *, copy: bool = True) -> Any:
        """Receives an object that was sent with `send`. Unpickling runs code that the sender chose:
        receive only from senders that you trust.

        With `copy=False`, arrays in it are read-only views of the message, which takes room of the
        endpoint as long as they live.
        """
        return self._loaded(self.Recv(timeout), copy)

    def reply(self, message: Message, value: object) -> None:
        """Pickles an object and sends it to the sender of a message."""
        self.Reply(message, _pickled.dumps(value))

    @staticmethod
    def _loaded(message: Message, copy: bool) -> Any:
        value = _pickled.loads(message, copy)
        if copy:
            message.release()
        return value

    async def async_Recv(self) -> Message:
        """Like `Recv`, without blocking the event loop. May be cancelled at any time; no message is
        lost then."""
        while True:
            try:
                return self.Recv(timeout=0)
            except WouldBlock:
                await self._readable()

    async def async_recv(self, *, copy: bool = True) -> Any:
        """Like `recv`, without blocking the event loop."""
        return self._loaded(await self.async_Recv(), copy)

    async def async_Send(self, buffer: Any, to: Address | None = None) -> None:
        """Like `Send`, without blocking the event loop. If there is no room, the message is sent by
        another thread, also when the caller is cancelled meanwhile."""
        try:
            self.Send(buffer, to, timeout=0)
        except WouldBlock:
            await _loops.in_thread(self.Send, buffer, to)

    async def async_send(self, value: object, to: Address | None = None) -> None:
        """Like `send`, without blocking the event loop."""
        await self.async_Send(_pickled.dumps(value), to)

    def __aiter__(self) -> "Endpoint":
        """Iterates over messages until the endpoint is closed."""
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.async_Recv()
        except Closed:
            raise StopAsyncIteration from None

    async def _readable(self) -> None:
        """Waits until the descriptor is readable."""
        trio = _loops.trio()
        if trio is not None:
            await self._readable_in_trio(trio)
            return
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # An earlier loop has ended, for instance that of an earlier asyncio.run().
            self._loop, self._waiters = loop, deque()
        waiter = loop.create_future()
        if not self._waiters:
            loop.add_reader(self.fileno(), self._wake)
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            if not self._waiters and not loop.is_closed() and not self.closed:
                loop.remove_reader(self.fileno())

    async def _readable_in_trio(self, trio: Any) -> None:
        run = trio.lowlevel.current_trio_token()
        if self._turn is None or self._turn[0] is not run:
            self._turn = run, trio.Lock()
        # Only one task may wait for a descriptor.
        async with self._turn[1]:
            if not self.closed:
                with contextlib.suppress(trio.ClosedResourceError):
                    await trio.lowlevel.wait_readable(self.fileno())

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return

    def close(self) -> None:
        """Closes the endpoint: what was sent still arrives, unread messages are dropped. Tasks that
        wait for a message get Closed."""
        if self._waiters and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.fileno())
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_exception(Closed("the endpoint was closed"))
            self._waiters.clear()
        trio = _loops.trio()
        if trio is not None and self._turn is not None and not self.closed:
            trio.lowlevel.notify_closing(self.fileno())
        super().close()

    def __enter__(self) -> "Endpoint":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<dipole.Endpoint {self.address}{state}>"


class Port(_dipole.Port):
    """An endpoint whose messages are passed to a function, one at a time, on a thread of the
    library: `handler(message)`. If it returns a buffer, that is sent to the message's sender, unless
    that is gone. An exception is reported by `sys.unraisablehook`, and the port goes on.
    """

    def __init__(self, dpid: int | None, handler: Callable[[Message], Any]) -> None:
        _open_ports.add(self)

    def __enter__(self) -> "Port":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def close_ports() -> None:
    """Closes all ports, before the interpreter ends and could no longer run their functions."""
    for port in list(_open_ports):
        port.close()
