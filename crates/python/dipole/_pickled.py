"""Objects as messages: pickle protocol 5, with their large buffers after the pickle.

A message is: number of buffers (u32), length of the pickle (u32), length of each buffer (u64), all
little-endian; the pickle; the buffers. Pickle and buffers begin at multiples of 16 bytes.
"""

import pickle
import struct
from typing import Any

_ALIGN = 16


def _padding(length: int) -> bytes:
    return bytes(-length % _ALIGN)


def dumps(value: object) -> bytes:
    """Encodes an object. Buffers such as those of NumPy arrays are copied once."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw: list[memoryview] = [buffer.raw() for buffer in buffers]
    lengths = [view.nbytes for view in raw]
    head = struct.pack(f"<II{len(raw)}Q", len(raw), len(pickled), *lengths)
    parts: list[Any] = []
    for part in [head, pickled, *raw]:
        parts.append(part)
        parts.append(_padding(len(part)))
    return b"".join(parts)


def loads(message: Any, copy: bool) -> Any:
    """Decodes an object. Without `copy`, its buffers are read-only views of the message."""
    view = memoryview(message)
    try:
        count, length = struct.unpack_from("<II", view)
        lengths = struct.unpack_from(f"<{count}Q", view, 8)
    except struct.error:
        raise ValueError("the message does not hold an object: receive it with Recv()") from None
    at = 8 + 8 * count
    pieces = []
    for length in (length, *lengths):
        at += -at % _ALIGN
        piece = view[at : at + length]
        if piece.nbytes != length:
            raise ValueError("the message holds a part of an object only")
        pieces.append(piece)
        at += length
    pickled, *buffers = pieces
    return pickle.loads(pickled, buffers=[bytearray(it) for it in buffers] if copy else buffers)
