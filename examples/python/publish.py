"""Publishes numbers to any number of subscribers. One that is slow loses the oldest ones and does not
delay the others.

    python3 publish.py publish 20000 2    # terminal 1; begins when there are two subscribers
    python3 publish.py subscribe 0        # others, with milliseconds of work for each number
"""

import contextlib
import sys
import time

import dipole

NEWS = dipole.Address(dipole.node_id(), 8)
# What may wait for a slow subscriber.
BACKLOG = 1000


def send(news: dipole.Endpoint, data: bytes) -> None:
    while True:
        try:
            news.Send(data)
            return
        except dipole.PeerGone as gone:
            # Reported once for each. Nothing was sent to the others either.
            print(gone, flush=True)
        except dipole.NoTarget:
            return


def admit(news: dipole.Endpoint, timeout: float | None) -> None:
    with news.Recv(timeout) as request:
        news.target(request.source)
        news.target_policy(request.source, "drop-oldest", BACKLOG)


def publish(count: int, subscribers: int) -> None:
    with dipole.Endpoint(NEWS.dpid) as news:
        for _ in range(subscribers):
            admit(news, None)
        for number in range(count):
            with contextlib.suppress(dipole.WouldBlock):
                admit(news, 0)
            send(news, number.to_bytes(8, "little"))
        print("published", flush=True)


def subscribe(nap: float) -> None:
    received = last = 0
    with dipole.Endpoint() as here:
        news = here.edge(NEWS)
        news.Send(b"")
        print("subscribed", flush=True)
        try:
            while True:
                try:
                    with here.Recv(timeout=1) as message:
                        last = int.from_bytes(message, "little")
                    received += 1
                    time.sleep(nap)
                except dipole.TimedOut:
                    news.watch()
        except dipole.PeerGone:
            print(f"received {received}, the last one was {last}")


if sys.argv[1:2] == ["publish"]:
    publish(int(sys.argv[2]), int(sys.argv[3]))
elif sys.argv[1:2] == ["subscribe"]:
    subscribe(float(sys.argv[2]) / 1000)
else:
    sys.exit(__doc__)
