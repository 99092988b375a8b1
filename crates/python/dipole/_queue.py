"""Queues: objects from many producers for many consumers, in any processes."""

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from . import _loops, _pickled
from ._address import Address
from ._dipole import Message
from ._endpoint import Endpoint, Port
from ._errors import Closed, Error, TimedOut, WouldBlock

# A message is: its kind, the number of the call, and for an object its pickle.
_HEAD = struct.Struct("<QQ")
_PUT, _GET, _CANCEL, _SIZE, _CONFIRM, _RETURN, _PROBE = range(7)
_DONE, _ITEM, _CANCELLED, _CLOSED, _ASK = range(5)
# How often a call that waits looks whether the owner is alive.
_PROBE_INTERVAL = 1.0
# How often the owner looks whether a consumer that has not confirmed its object is alive.
_ASK_INTERVAL = 0.5
# How long a call waits for the answer to its cancellation.
_CANCEL_TIMEOUT = 10.0


class _Waiting:
    """A call that the owner has not answered."""

    def __init__(self, request: Message, number: int) -> None:
        self.request = request
        self.number = number

    @property
    def key(self) -> tuple[Address, int]:
        return self.request.source, self.number

    @property
    def item(self) -> memoryview:
        return memoryview(self.request)[_HEAD.size :]


class _Owner:
    """The queue itself, behind a port."""

    def __init__(self, maxsize: int, dpid: int | None) -> None:
        self._maxsize = maxsize
        self._items: deque[bytes] = deque()
        self._getters: deque[_Waiting] = deque()
        self._putters: deque[_Waiting] = deque()
        # Objects that consumers have not confirmed, with the time when they were sent or asked for.
        self._sent: dict[tuple[Address, int], tuple[_Waiting, bytes, float]] = {}
        self._lock = threading.Lock()
        self._endpoint = Endpoint()
        self._port = Port(dpid, self._handle)
        self.address = self._port.address

    def _handle(self, request: Message) -> None:
        kind, number = _HEAD.unpack_from(request)
        call = _Waiting(request, number)
        with self._lock:
            if kind == _PUT:
                self._putters.append(call)
            elif kind == _GET:
                self._getters.append(call)
            elif kind == _CANCEL:
                self._cancel(call)
            elif kind == _SIZE:
                self._answer(call, _DONE, len(self._items).to_bytes(8, "little"))
            elif kind == _CONFIRM:
                self._sent.pop(call.key, None)
            elif kind == _RETURN:
                self._take_back(call)
            self._ask()
            self._match()

    def _match(self) -> None:
        """Answers all calls that can be answered."""
        while True:
            has_room = self._maxsize == 0 or len(self._items) < self._maxsize
            if self._items and self._getters:
                item, getter = self._items.popleft(), self._getters.popleft()
                self._sent[getter.key] = getter, item, time.monotonic()
                if not self._answer(getter, _ITEM, item):
                    self._take_back(getter)
            elif self._putters and (has_room or self._getters):
                putter = self._putters.popleft()
                self._items.append(bytes(putter.item))
                self._answer(putter, _DONE)
            else:
                return

    def _take_back(self, call: _Waiting) -> None:
        sent = self._sent.pop(call.key, None)
        if sent is not None:
            self._items.appendleft(sent[1])

    def _ask(self) -> None:
        """Takes back the objects that were sent to processes which had ended."""
        now = time.monotonic()
        for call, item, asked_at in [*self._sent.values()]:
            if now - asked_at > _ASK_INTERVAL:
                self._sent[call.key] = call, item, now
                if not self._answer(call, _ASK):
                    self._take_back(call)

    def _cancel(self, call: _Waiting) -> None:
        for waiting in (self._getters, self._putters):
            for other in waiting:
                if other.key == call.key:
                    waiting.remove(other)
                    self._answer(other, _CANCELLED)
                    return

    def _answer(self, call: _Waiting, kind: int, data: bytes = b"") -> bool:
        """False if the caller is gone."""
        answer = _HEAD.pack(kind, call.number) + data
        try:
            self._endpoint.Reply(call.request, answer)
        except WouldBlock:
            # A consumer that works on its object reads nothing meanwhile.
            if kind == _ASK:
                return True
            # Too long to be copied. The port's function must not wait for the receiver.
            threading.Thread(target=self._send_long, args=(call, answer), daemon=True).start()
        except Error:
            return False
        return True

    def _send_long(self, call: _Waiting, answer: bytes) -> None:
        try:
            self._endpoint.Send(answer, to=call.request.source)
        except Error:
            with self._lock:
                self._take_back(call)
                self._match()

    def close(self) -> None:
        # First, because its function may be waiting for the lock.
        self._port.close()
        with self._lock:
            for call in (*self._getters, *self._putters):
                self._answer(call, _CLOSED)
            self._getters.clear()
            self._putters.clear()
        self._endpoint.close()


class _Line:
    """A connection to the owner, for one call at a time."""

    def __init__(self, owner: Address) -> None:
        self.endpoint = Endpoint()
        # An edge fails when the owner has ended; a Send to an address would wait for a next one.
        self.edge = self.endpoint.edge(owner)
        self.number = 0

    def send(self, kind: int, data: bytes = b"", timeout: float | None = None) -> None:
        self.edge.Send(_HEAD.pack(kind, self.number) + data, timeout)

    async def async_send(self, kind: int, data: bytes) -> None:
        try:
            self.send(kind, data, timeout=0)
        except WouldBlock:
            await _loops.in_thread(self.send, kind, data)

    def result(self, answer: Message) -> tuple[int, bytes]:
        with answer, memoryview(answer) as view:
            kind, number = _HEAD.unpack_from(view)
            if kind == _CLOSED:
                raise Closed(f"queue {self.edge.target} was closed")
            # A question about an earlier call may come late.
            assert number == self.number or kind == _ASK, "one call at a time on an endpoint"
            return kind, bytes(view[_HEAD.size :])


class Queue:
    """A queue of objects. The process that makes it owns it: it holds at most `maxsize` objects, any
    number if that is 0. Others get it as an argument (it can be pickled) or by
    `Queue.connect(address)`. `dpid` is the endpoint number, a free one if None.

    All calls may be made by many threads and tasks at once. Each takes `timeout=` in seconds: with 0 it
    raises WouldBlock instead of waiting, otherwise TimedOut. If the owner closes the queue they raise
    Closed, and if its process ends, PeerGone or Refused. An object that is on its way to a consumer
    whose process ends goes to the next one. So does one that it has got with `take` and works on; one
    that `get` has returned is lost with it.
    """

    def __init__(self, maxsize: int = 0, dpid: int | None = None) -> None:
        if maxsize < 0:
            raise ValueError("maxsize must not be negative")
        self._owner: _Owner | None = _Owner(maxsize, dpid)
        self._connect(self._owner.address)

    @classmethod
    def connect(cls, address: Address) -> "Queue":
        """The queue of another process."""
        queue = cls.__new__(cls)
        queue._owner = None
        queue._connect(Address(*address))
        return queue

    def _connect(self, address: Address) -> None:
        self.address = address
        # Those without a call.
        self._idle: list[_Line] = []

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Queue.connect, (self.address,)

    def put(self, value: object, timeout: float | None = None) -> None:
        """Pickles an object and adds it. Waits while the queue is full."""
        with self._line() as line:
            self._call(line, _PUT, _pickled.dumps(value), timeout)

    def get(self, timeout: float | None = None) -> Any:
        """Removes the oldest object. Waits while the queue is empty. Unpickling runs code that the
        producer chose."""
        with self.take(timeout) as value:
            return value

    @contextlib.contextmanager
    def take(self, timeout: float | None = None) -> Iterator[Any]:
        """Like `get`, for a `with` block that works on the object. It goes to the next consumer if the
        block raises an exception or this process ends in it. If this process only cannot be reached for
        a while, both work on it."""
        with self._line() as line:
            data = self._call(line, _GET, b"", timeout)
            with self._confirming(line, data) as value:
                yield value

    def qsize(self) -> int:
        """Number of objects in the queue."""
        with self._line() as line:
            return int.from_bytes(self._call(line, _SIZE, b"", None), "little")

    async def async_put(self, value: object) -> None:
        """Like `put`, without blocking the event loop. If it is cancelled, nothing is added."""
        with self._line() as line:
            await self._async_call(line, _PUT, _pickled.dumps(value))

    async def async_get(self) -> Any:
        """Like `get`, without blocking the event loop. If it is cancelled, no object is lost."""
        async with self.async_take() as value:
            return value

    @contextlib.asynccontextmanager
    async def async_take(self) -> AsyncIterator[Any]:
        """Like `take`, without blocking the event loop. If its task is cancelled, the object goes to the
        next consumer."""
        with self._line() as line:
            data = await self._async_call(line, _GET, b"")
            with self._confirming(line, data) as value:
                yield value

    def close(self) -> None:
        """In its owner, ends the queue and all calls that wait for it; objects in it are dropped. In
        others, only closes the connection."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.close()
        while self._idle:
            self._idle.pop().endpoint.close()

    @contextlib.contextmanager
    def _line(self) -> Iterator[_Line]:
        """A connection for a call."""
        try:
            line = self._idle.pop()
        except IndexError:
            line = _Line(self.address)
        line.number += 1
        try:
            yield line
        finally:
            if not line.endpoint.closed:
                self._idle.append(line)

    @contextlib.contextmanager
    def _confirming(self, line: _Line, data: bytes) -> Iterator[Any]:
        """The object of a call, which the owner may forget at the end of the block."""
        then = _CONFIRM
        try:
            # A next consumer could not unpickle it either.
            value = _pickled.loads(data, copy=True)
            then = _RETURN
            yield value
            then = _CONFIRM
        finally:
            # The next call reports that the owner is gone.
            with contextlib.suppress(Error):
                line.send(then)

    def _call(self, line: _Line, kind: int, data: bytes, timeout: float | None) -> bytes:
        until = None if timeout is None else time.monotonic() + timeout
        try:
            # Also with a timeout of 0, the first call connects.
            line.send(kind, data, timeout or None)
            while True:
                left = _PROBE_INTERVAL if until is None else until - time.monotonic()
                if left <= 0:
                    break
                try:
                    answer = line.endpoint.Recv(min(left, _PROBE_INTERVAL))
                except TimedOut:
                    line.send(_PROBE)
                    continue
                kind_of_answer, result = line.result(answer)
                if kind_of_answer != _ASK:
                    return result
        except Error:
            line.endpoint.close()
            raise
        except BaseException:
            with contextlib.suppress(Error):
                self._cancel(line, keep=False)
            raise
        result_or_none = self._cancel(line, keep=True)
        if result_or_none is not None:
            return result_or_none
        if timeout == 0:
            raise WouldBlock(f"queue {self.address} is {'full' if kind == _PUT else 'empty'}")
        raise TimedOut(f"queue {self.address} did not answer within {timeout} s")

    async def _async_call(self, line: _Line, kind: int, data: bytes) -> bytes:
        try:
            await line.async_send(kind, data)
            while True:
                answer = await _loops.within(_PROBE_INTERVAL, line.endpoint.async_Recv)
                if answer is None:
                    line.send(_PROBE)
                    continue
                kind_of_answer, result = line.result(answer)
                if kind_of_answer != _ASK:
                    return result
        except Error:
            line.endpoint.close()
            raise
        except BaseException:
            with contextlib.suppress(Error):
                self._cancel(line, keep=False)
            raise

    @staticmethod
    def _cancel(line: _Line, keep: bool) -> bytes | None:
        """Cancels a call; returns its result if it came first. Without `keep`, an object that came
        goes back to the queue."""
        try:
            line.send(_CANCEL)
            kind = _ASK
            while kind == _ASK:
                kind, result = line.result(line.endpoint.Recv(_CANCEL_TIMEOUT))
            if kind == _ITEM and not keep:
                line.send(_RETURN)
        except BaseException:
            # An answer that comes later would be taken for that of another call.
            line.endpoint.close()
            raise
        return None if kind == _CANCELLED else result

    def __enter__(self) -> "Queue":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dipole.Queue {self.address}>"
