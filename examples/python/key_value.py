"""A key-value store.

    python3 key_value.py serve            # terminal 1
    python3 key_value.py set colour red   # terminal 2
    python3 key_value.py get colour
"""

import signal
import sys

import dipole

STORE = dipole.Address(dipole.node_id(), 10)


def serve() -> None:
    values: dict[bytes, bytes] = {}

    def handle(request: dipole.Message) -> bytes:
        key, is_new, value = bytes(request).partition(b"=")
        if is_new:
            values[key] = value
        return values.get(key, b"")

    with dipole.Port(STORE.dpid, handle):
        signal.pause()


def ask(request: str) -> str:
    with dipole.Endpoint() as here:
        store = here.edge(STORE)
        store.Send(request.encode())
        while True:
            try:
                return bytes(here.Recv(timeout=1)).decode()
            except dipole.TimedOut:
                store.watch()


if sys.argv[1:] == ["serve"]:
    serve()
elif sys.argv[1:2] == ["set"]:
    ask("=".join(sys.argv[2:]))
elif sys.argv[1:2] == ["get"]:
    print(ask(sys.argv[2]))
else:
    sys.exit(__doc__)
