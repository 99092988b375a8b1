"""Half of the time that 64 bytes take there and back, between two processes of a node.

    dipole run -n 2 --bind python3 ping_pong.py
"""

import time

import dipole

ROUNDS = 2_000
REPEATS = 21

job = dipole.job()
endpoint = dipole.Endpoint(job.addresses[job.rank].dpid)
endpoint.target(job.addresses[1 - job.rank])
buffer = bytearray(64)


def rounds() -> None:
    for _ in range(ROUNDS):
        if job.rank == 0:
            endpoint.Send(buffer)
            endpoint.RecvInto(buffer)
        else:
            endpoint.RecvInto(buffer)
            endpoint.Send(buffer)


times = []
for _ in range(REPEATS):
    began = time.perf_counter()
    rounds()
    times.append((time.perf_counter() - began) / ROUNDS / 2 * 1e6)
if job.rank == 0:
    times = sorted(times[1:])
    print(f"one way: median {times[len(times) // 2]:.2f} us, {times[0]:.2f} to {times[-1]:.2f}")
