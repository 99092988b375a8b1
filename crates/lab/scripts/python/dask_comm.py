"""A message of Dask there and back between two processes: dask_comm.py PROTOCOL WORK COUNT.

WORK is "message", a short one, or "array", 8 MB and a short answer. Prints seconds as JSON.
"""

import asyncio
import json
import multiprocessing
import os
import sys
import time

CORES = sorted(os.sched_getaffinity(0))


def serve(protocol, addresses):
    from distributed.comm import CommClosedError, listen

    async def answer(comm):
        try:
            while True:
                await comm.read()
                await comm.write("ok")
        except CommClosedError:
            pass

    async def main():
        listener = await listen("tcp://127.0.0.1" if protocol == "tcp" else "dipole://", answer)
        addresses.put(listener.contact_address)
        await asyncio.Event().wait()

    os.sched_setaffinity(0, {CORES[-1]})
    asyncio.run(main())


async def measure(address, work, count):
    import numpy
    from distributed.comm import connect
    from distributed.protocol import to_serialize

    message = "short" if work == "message" else {"array": to_serialize(numpy.random.random(1_000_000))}
    times = []
    comm = await connect(address)
    for _ in range(count):
        begun = time.perf_counter()
        await comm.write(message)
        await comm.read()
        times.append(time.perf_counter() - begun)
    await comm.close()
    print(json.dumps(times))


if __name__ == "__main__":
    protocol, work, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    spawn = multiprocessing.get_context("spawn")
    addresses = spawn.Queue()
    server = spawn.Process(target=serve, args=(protocol, addresses), daemon=True)
    server.start()
    address = addresses.get()
    os.sched_setaffinity(0, {CORES[0]})
    asyncio.run(measure(address, work, count))
    server.kill()
