"""An echo service with asyncio, and a client that measures it.

    python3 echo.py serve         # terminal 1
    python3 echo.py measure       # terminal 2
"""

import asyncio
import contextlib
import sys
import time

import dipole

SERVICE = 7
ROUNDS = 10_000


async def serve() -> None:
    with dipole.Endpoint(SERVICE) as service:
        print("serving at", service.address, flush=True)
        async for message in service:
            # A client that has ended, or does not read its answers, gets none.
            with contextlib.suppress(dipole.PeerGone, dipole.WouldBlock):
                service.Reply(message, message)


def measure() -> None:
    service = dipole.Address(dipole.node_id(), SERVICE)
    with dipole.Endpoint() as client:
        client.target(service)
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            client.Send(b"x" * 64)
            client.Recv(timeout=10).release()
            times.append(time.perf_counter() - began)
        times.sort()
        print(f"there and back: median {times[ROUNDS // 2] * 1e6:.1f} us")


if sys.argv[1:] == ["serve"]:
    asyncio.run(serve())
elif sys.argv[1:] == ["measure"]:
    measure()
else:
    sys.exit(__doc__)
