"""Queues: objects from many producers for many consumers, in any processes."""

import contextlib
import itertools
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
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
# After which time the owner looks whether a consumer that has not confirmed an object is alive.
_CONFIRM_TIMEOUT = 0.5
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
        # Objects that consumers have not confirmed, with the time when they were sent.
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
        late = time.monotonic() - _CONFIRM_TIMEOUT
        for call, _, sent_at in [*self._sent.values()]:
            if sent_at < late and not self._answer(call, _ASK):
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


class Queue:
    """A queue of objects. The process that makes it owns it: it holds at most `maxsize` objects, any
    number if that is 0. Others get it as an argument (it can be pickled) or by
    `Queue.connect(address)`. `dpid` is the endpoint number, a free one if None.

    All calls may be made by many threads and tasks at once. Each takes `timeout=` in seconds: with 0 it
    raises WouldBlock instead of waiting, otherwise TimedOut. If the owner closes the queue they raise
    Closed, and if its process ends, PeerGone or Refused. An object that is on its way to a consumer
    whose process ends goes to the next one.
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
        self._numbers = itertools.count(1)
        # Endpoints without a call.
        self._idle: list[Endpoint] = []

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Queue.connect, (self.address,)

    def put(self, value: object, timeout: float | None = None) -> None:
        """Pickles an object and adds it. Waits while the queue is full."""
        self._call(_PUT, _pickled.dumps(value), timeout)

    def get(self, timeout: float | None = None) -> Any:
        """Removes the oldest object. Waits while the queue is empty. Unpickling runs code that the
        producer chose."""
        return _pickled.loads(self._call(_GET, b"", timeout), copy=True)

    def qsize(self) -> int:
        """Number of objects in the queue."""
        return int.from_bytes(self._call(_SIZE, b"", None), "little")

    async def async_put(self, value: object) -> None:
        """Like `put`, without blocking the event loop. If it is cancelled, nothing is added."""
        await self._async_call(_PUT, _pickled.dumps(value))

    async def async_get(self) -> Any:
        """Like `get`, without blocking the event loop. If it is cancelled, no object is lost."""
        return _pickled.loads(await self._async_call(_GET, b""), copy=True)

    def close(self) -> None:
        """In its owner, ends the queue and all calls that wait for it; objects in it are dropped. In
        others, only closes the connection."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.close()
        while self._idle:
            self._idle.pop().close()

    def _take_endpoint(self) -> Endpoint:
        try:
            return self._idle.pop()
        except IndexError:
            return Endpoint()

    def _call(self, kind: int, data: bytes, timeout: float | None) -> bytes:
        until = None if timeout is None else time.monotonic() + timeout
        endpoint, number = self._take_endpoint(), next(self._numbers)
        try:
            endpoint.Send(_HEAD.pack(kind, number) + data, to=self.address)
            while True:
                left = _PROBE_INTERVAL if until is None else until - time.monotonic()
                if left <= 0:
                    break
                try:
                    answer = endpoint.Recv(min(left, _PROBE_INTERVAL))
                except TimedOut:
                    self._probe(endpoint)
                    continue
                kind_of_answer, result = self._result(answer, number)
                if kind_of_answer == _ITEM:
                    endpoint.Send(_HEAD.pack(_CONFIRM, number), to=self.address)
                if kind_of_answer != _ASK:
                    return result
        except Error:
            endpoint.close()
            raise
        except BaseException:
            with contextlib.suppress(Error):
                self._cancel(endpoint, number, keep=False)
            raise
        else:
            result_or_none = self._cancel(endpoint, number, keep=True)
            if result_or_none is not None:
                return result_or_none
            if timeout == 0:
                raise WouldBlock(f"queue {self.address} is {'full' if kind == _PUT else 'empty'}")
            raise TimedOut(f"queue {self.address} did not answer within {timeout} s")
        finally:
            if not endpoint.closed:
                self._idle.append(endpoint)

    def _cancel(self, endpoint: Endpoint, number: int, keep: bool) -> bytes | None:
        """Cancels a call; returns its result if it came first. Without `keep`, an object that came
        goes back to the queue."""
        try:
            endpoint.Send(_HEAD.pack(_CANCEL, number), to=self.address)
            kind = _ASK
            while kind == _ASK:
                kind, result = self._result(endpoint.Recv(_CANCEL_TIMEOUT), number)
            if kind == _ITEM:
                then = _CONFIRM if keep else _RETURN
                endpoint.Send(_HEAD.pack(then, number), to=self.address)
        except BaseException:
            # An answer that comes later would be taken for that of another call.
            endpoint.close()
            raise
        return None if kind == _CANCELLED else result

    async def _async_call(self, kind: int, data: bytes) -> bytes:
        endpoint, number = self._take_endpoint(), next(self._numbers)
        try:
            await endpoint.async_Send(_HEAD.pack(kind, number) + data, self.address)
            while True:
                answer = await _loops.within(_PROBE_INTERVAL, endpoint.async_Recv)
                if answer is None:
                    self._probe(endpoint)
                    continue
                kind_of_answer, result = self._result(answer, number)
                if kind_of_answer == _ITEM:
                    endpoint.Send(_HEAD.pack(_CONFIRM, number), to=self.address)
                if kind_of_answer != _ASK:
                    return result
        except Error:
            endpoint.close()
            raise
        except BaseException:
            with contextlib.suppress(Error):
                self._cancel(endpoint, number, keep=False)
            raise
        finally:
            if not endpoint.closed:
                self._idle.append(endpoint)

    def _probe(self, endpoint: Endpoint) -> None:
        """Fails if the owner's process has ended."""
        endpoint.Send(_HEAD.pack(_PROBE, 0), to=self.address)

    def _result(self, answer: Message, number: int) -> tuple[int, bytes]:
        with answer, memoryview(answer) as view:
            kind, answered = _HEAD.unpack_from(view)
            if kind == _CLOSED:
                raise Closed(f"queue {self.address} was closed")
            # A question about an earlier call may come late.
            assert answered == number or kind == _ASK, "one call at a time on an endpoint"
            return kind, bytes(view[_HEAD.size :])

    def __enter__(self) -> "Queue":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dipole.Queue {self.address}>"
