"""Dask over Dipole: addresses that begin with `dipole://`.

Dask finds `Backend` through the entry point `distributed.comm.backends`. An address is
`dipole://NID:DPID`, a node and an endpoint number. Instead of the node's number, the IP address or
name of its host works as well.
"""

import asyncio
import logging
import socket
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from distributed.comm import core, registry
from distributed.comm.addressing import parse_host_port
from distributed.comm.utils import from_frames, to_frames
from distributed.utils import ensure_memoryview

from . import _dipole
from ._errors import Error

logger = logging.getLogger("distributed.comm.dipole")

_PREFIX = "dipole://"
# Names by which a process listens at its own node.
_ANY_HOST = ("", "0.0.0.0", "::", "localhost")
# Seconds between checks that silent processes of other nodes live.
_WATCH = 1.0
# Dask splits longer frames. A message has at most 1 GiB.
_LONGEST_FRAME = 1 << 29


class _Inbox:
    """What has arrived on a channel."""

    __slots__ = ("ended", "messages", "waiter")

    def __init__(self) -> None:
        self.messages: deque[list[Any]] = deque()
        self.waiter: asyncio.Future[None] | None = None
        # Why the channel has ended.
        self.ended: str | None = None

    def wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        self.waiter = asyncio.get_running_loop().create_future()
        await self.waiter


class _Hub:
    """The channels of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.channels = _dipole.Channels()
        self.inboxes: dict[int, _Inbox] = {}
        self.listeners: dict[int, Listener] = {}
        self._loop = weakref.ref(loop)
        self._watching = False
        loop.add_reader(self.channels.fileno(), self._on_readable)

    @staticmethod
    def current() -> "_Hub":
        loop = asyncio.get_running_loop()
        hub = _hubs.get(loop)
        if hub is None:
            hub = _hubs[loop] = _Hub(loop)
        return hub

    def _on_readable(self) -> None:
        inboxes = self.inboxes
        for kind, channel, value in self.channels.poll():
            inbox = inboxes.get(channel)
            if inbox is not None:
                if kind == "data":
                    inbox.messages.append(value)
                elif kind == "ended":
                    inbox.ended = value
                inbox.wake()
            elif kind == "opened":
                self._accept(channel, *value)

    def _accept(self, channel: int, own: int, nid: int, dpid: int) -> None:
        listener = self.listeners.get(own)
        if listener is None:
            self.channels.close(channel)
            return
        self.add(channel)
        listener.accept(channel, f"{_PREFIX}{nid}:{dpid}")

    def add(self, channel: int) -> _Inbox:
        inbox = self.inboxes[channel] = _Inbox()
        self.watch()
        return inbox

    def watch(self) -> None:
        """Notices processes of other nodes that have died, as long as there are any."""
        if not self._watching:
            self._watching = True
            self._watch()

    def _watch(self) -> None:
        loop = self._loop()
        if loop is not None and not loop.is_closed() and self.channels.watch():
            self._on_readable()
            loop.call_later(_WATCH, self._watch)
        else:
            self._watching = False

    def close(self, channel: int) -> None:
        if self.inboxes.pop(channel, None) is not None:
            self.channels.close(channel)


_hubs: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Hub]" = weakref.WeakKeyDictionary()


def _close_dangling(hub: _Hub, channel: int, description: str) -> None:
    inbox = hub.inboxes.get(channel)
    if inbox is not None:
        if inbox.ended is None:
            logger.warning("Closing dangling connection in %s", description)
        hub.close(channel)


class Comm(core.Comm):  # type: ignore[misc, unused-ignore]
    """A connection of Dask over a channel."""

    def __init__(
        self, hub: _Hub, channel: int, addresses: tuple[str, str], deserialize: bool = True
    ) -> None:
        super().__init__(deserialize=deserialize)
        self._hub = hub
        self._channel = channel
        self._inbox = hub.inboxes[channel]
        self._closed = False
        self._local_addr, self._peer_addr = addresses
        self._finalizer = weakref.finalize(self, _close_dangling, hub, channel, repr(self))
        self._finalizer.atexit = False

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    async def read(self, deserializers: Any = None) -> Any:
        inbox = self._inbox
        try:
            while not inbox.messages:
                self._check_open()
                await inbox.wait()
        except BaseException:
            # As over TCP: an answer that comes later would be taken for that of the next request.
            self.abort()
            raise
        if self._closed:
            raise core.CommClosedError(f"in {self}: it was closed")
        frames = inbox.messages.popleft()
        try:
            return await from_frames(  # type: ignore[no-untyped-call, unused-ignore]
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError:
            self.abort()
            raise core.CommClosedError("aborted on truncated data") from None

    async def write(
        self, msg: Any, serializers: Any = None, on_error: str = "message"
    ) -> int:
        self._check_open()
        frames = await to_frames(  # type: ignore[no-untyped-call, unused-ignore]
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={
                "sender": self.local_info,
                "recipient": self.remote_info,
                **self.handshake_options,
            },
            frame_split_size=_LONGEST_FRAME,
        )
        self._check_open()
        try:
            try:
                return self._hub.channels.write(self._channel, frames)
            except BufferError:
                # Not contiguous.
                return self._hub.channels.write(self._channel, [*map(ensure_memoryview, frames)])
        except Error as failure:
            self.abort()
            raise core.CommClosedError(f"in {self}: {failure}") from failure
        except BaseException:
            self.abort()
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise core.CommClosedError(f"in {self}: it was closed")
        if self._inbox.ended is not None:
            raise core.CommClosedError(f"in {self}: {self._inbox.ended}")

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Ends the connection. What was written still arrives."""
        if not self._closed:
            self._closed = True
            self._finalizer.detach()
            self._hub.close(self._channel)
            self._inbox.wake()

    def closed(self) -> bool:
        return self._closed or (self._inbox.ended is not None and not self._inbox.messages)


def _require_no_encryption(address: str, arguments: dict[str, Any]) -> None:
    if arguments.get("require_encryption"):
        raise RuntimeError(
            f"encryption required by Dask configuration, refusing communication from/to {address!r}"
        )


class Connector(core.Connector):  # type: ignore[misc, unused-ignore]
    """Connects to listeners."""

    async def connect(
        self, address: str, deserialize: bool = True, **connection_args: Any
    ) -> Comm:
        _require_no_encryption(_PREFIX + address, connection_args)
        nid, dpid = _parse(address)
        hub = _Hub.current()
        try:
            channel = hub.channels.connect((nid, dpid))
        except Error as failure:
            raise core.CommClosedError(f"connecting to {_PREFIX}{address}: {failure}") from failure
        inbox = hub.add(channel)
        try:
            await inbox.wait()
        except BaseException:
            hub.close(channel)
            raise
        if inbox.ended is not None and not inbox.messages:
            hub.close(channel)
            raise core.CommClosedError(f"connecting to {_PREFIX}{address}: {inbox.ended}")
        own = f"{_PREFIX}{_dipole.node_id()}:{hub.channels.own}"
        return Comm(hub, channel, (own, f"{_PREFIX}{nid}:{dpid}"), deserialize)


class Listener(core.BaseListener):  # type: ignore[misc, unused-ignore]
    """Accepts connections at an endpoint of this node."""

    # Dask reads it.
    prefix = _PREFIX

    def __init__(
        self,
        address: str,
        handler: Callable[[Comm], Awaitable[None]],
        deserialize: bool = True,
        allow_offload: bool = True,
        **connection_args: Any,
    ) -> None:
        super().__init__()
        _require_no_encryption(_PREFIX + address, connection_args)
        host, self._dpid = parse_host_port(address, 0)
        if host.isdecimal() and int(host) != _dipole.node_id():
            raise ValueError(f"cannot listen at node {host}: this is node {_dipole.node_id()}")
        self._handler = handler
        self._deserialize = deserialize
        self._allow_offload = allow_offload
        self._hub: _Hub | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._hub = _Hub.current()
        self._dpid = self._hub.channels.listen(self._dpid or None)
        self._hub.listeners[self._dpid] = self

    def stop(self) -> None:
        """Accepts no more connections; those that exist go on."""
        hub, self._hub = self._hub, None
        if hub is not None:
            hub.listeners.pop(self._dpid, None)
            hub.channels.stop(self._dpid)

    def accept(self, channel: int, peer: str) -> None:
        assert self._hub is not None
        comm = Comm(self._hub, channel, (self.listen_address, peer), self._deserialize)
        comm.allow_offload = self._allow_offload
        task = asyncio.get_running_loop().create_task(self._serve(comm))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, comm: Comm) -> None:
        try:
            await self.on_connection(comm)
        except core.CommClosedError:
            logger.info("Connection from %s closed before handshake completed", comm.peer_address)
            return
        await self._handler(comm)

    @property
    def listen_address(self) -> str:
        return f"{_PREFIX}{_dipole.node_id()}:{self._dpid}"

    @property
    def contact_address(self) -> str:
        return self.listen_address


class Backend(registry.Backend):  # type: ignore[misc, unused-ignore]
    """The entry point for Dask."""

    def get_connector(self) -> Connector:
        return Connector()

    def get_listener(
        self,
        loc: str,
        handle_comm: Callable[[Comm], Awaitable[None]],
        deserialize: bool,
        **connection_args: Any,
    ) -> Listener:
        return Listener(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        nid, _ = _parse(loc)
        return _dipole.node_address(nid) or str(nid)

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        return self.get_address_host(loc), _parse(loc)[1]

    def resolve_address(self, loc: str) -> str:
        nid, dpid = _parse(loc)
        return f"{nid}:{dpid}"

    def get_local_address_for(self, loc: str) -> str:
        return f"{_dipole.node_id()}:0"


def _parse(loc: str) -> tuple[int, int]:
    """Node and endpoint of `NID:DPID`, `IP:DPID` or `NAME:DPID`."""
    host, dpid = parse_host_port(loc, 0)
    if host.isdecimal():
        return int(host), int(dpid)
    if host in _ANY_HOST:
        return _dipole.node_id(), int(dpid)
    nid = _dipole.node_at(host)
    if nid is None:
        nid = _dipole.node_at(socket.gethostbyname(host))
    if nid is None:
        raise ValueError(f"no node has the address {host}: use its number, dipole://NID:{dpid}")
    return nid, int(dpid)
