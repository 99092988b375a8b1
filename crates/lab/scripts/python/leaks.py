#!/usr/bin/env python3
"""Memory, blocks and descriptors of a process before and after many messages and endpoints.

    DIPOLE_NID=1 python3 leaks.py [MESSAGES [ENDPOINTS]]      # 10^6 and 10^4

Prints a row for each quarter; a leak grows from row to row.
"""

import gc
import os
import sys

import dipole


def state() -> str:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    descriptors = len(os.listdir("/proc/self/fd"))
    return f"{resident / 2**20:.1f} MiB, {sys.getallocatedblocks()} blocks, {descriptors} descriptors"


def send_messages(count: int) -> None:
    with dipole.Endpoint() as inbox, dipole.Endpoint() as outbox:
        outbox.target(inbox.address)
        for number in range(0, count, 4):
            outbox.Send(b"x" * (number % 3000))
            inbox.Recv().release()
            outbox.send([number])
            inbox.recv()
            outbox.Send(b"answer this")
            with inbox.Recv() as message:
                inbox.reply(message, number)
            outbox.recv()


def open_endpoints(count: int) -> None:
    for _ in range(count):
        with dipole.Endpoint() as endpoint:
            endpoint.fileno()


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    messages, endpoints = (given + [1_000_000, 10_000][len(given) :])[:2]
    for work, count in ((send_messages, messages), (open_endpoints, endpoints)):
        work(count // 100)
        print(f"{count} {work.__name__}: {state()}")
        for quarter in range(1, 5):
            work(count // 4)
            print(f"  {quarter}/4: {state()}", flush=True)


if __name__ == "__main__":
    main()
