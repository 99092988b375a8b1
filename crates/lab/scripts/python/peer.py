"""One of two processes that exchange messages, for compare.py: peer.py PACKAGE WORK COUNT.

The first one prints the times in us as JSON: one way for "message", else until an array of 64 MiB or a
superstep is complete.
"""

import json
import multiprocessing
import os
import sys
import time

SMALL, LARGE = 64, 64 << 20
package, work, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
now = time.perf_counter_ns
times = []


def finish():
    print(json.dumps([took / 1000 for took in times]), flush=True)


def exchange(first, send, receive):
    """Messages of 64 B there and back."""
    for _ in range(count):
        begun = now()
        if first:
            send()
        receive()
        if not first:
            send()
        times.append((now() - begun) / 2)
    if first:
        finish()


def transfer(first, send, receive, confirm, confirmed):
    """An array there, and a short message back."""
    for _ in range(count):
        begun = now()
        if first:
            send()
            confirmed()
        else:
            receive()
            confirm()
        times.append(now() - begun)
    if first:
        finish()


def by_dipole():
    import dipole
    import numpy

    job = dipole.job()
    here, first = dipole.Endpoint(job.addresses[job.rank].dpid), job.rank == 0
    there = job.addresses[1 - job.rank]
    here.target(there)
    small, done = bytearray(SMALL), bytearray(1)
    if work == "message":
        exchange(first, lambda: here.Send(small), lambda: here.RecvInto(small))
    elif work == "view":
        exchange(first, lambda: here.Send(small), lambda: here.Recv().release())
    elif work == "object":
        exchange(first, lambda: here.send(small), here.recv)
    elif work == "array":
        array = numpy.ones(LARGE // 8)
        transfer(
            first,
            lambda: here.Send(array),
            lambda: here.RecvInto(array),
            lambda: here.Send(done),
            lambda: here.RecvInto(done),
        )
    elif first:
        array = numpy.ones(LARGE // 8)
        key, edge = here.recv(), here.edge(there)
        for _ in range(count):
            begun = now()
            edge.Put(key, 0, array)
            edge.flush()
            times.append(now() - begun)
        finish()
        here.Send(done)
    else:
        with here.region(numpy.ones(LARGE // 8)) as region:
            here.send(region.key)
            here.Recv()
    here.drain()


def by_supersteps():
    from dipole import bsp

    @bsp.spmd
    def main(b):
        for _ in range(count):
            begun = now()
            b.sync()
            times.append(now() - begun)
        if b.rank == 0:
            finish()

    main()


def by_mpi4py():
    import numpy
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    first, other = world.rank == 0, 1 - world.rank
    small, done = bytearray(SMALL), bytearray(1)
    if work == "message":
        exchange(first, lambda: world.Send(small, other), lambda: world.Recv(small, other))
        return
    array = numpy.ones(LARGE // 8)
    transfer(
        first,
        lambda: world.Send(array, other),
        lambda: world.Recv(array, other),
        lambda: world.Send(done, other),
        lambda: world.Recv(done, other),
    )


def in_two_processes(run):
    """Forks, with each process on its own core."""
    child = os.fork()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[bool(child) % len(cores)]})
    run(child != 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def by_pyzmq():
    place = f"ipc:///tmp/dipole-compare-{os.getpid()}"

    def run(first):
        import numpy
        import zmq

        socket = zmq.Context().socket(zmq.PAIR)
        (socket.bind if first else socket.connect)(place)
        if work == "message":
            small = bytes(SMALL)
            exchange(first, lambda: socket.send(small, copy=False), socket.recv)
        else:
            array = numpy.ones(LARGE // 8)
            transfer(
                first,
                lambda: socket.send(array, copy=False),
                lambda: socket.recv(copy=False),
                lambda: socket.send(b"x"),
                socket.recv,
            )
        socket.close()

    in_two_processes(run)


def by_pipe():
    ends = multiprocessing.Pipe()

    def run(first):
        end = ends[0 if first else 1]
        if work == "message":
            small = bytes(SMALL)
            exchange(first, lambda: end.send_bytes(small), end.recv_bytes)
        else:
            import numpy

            array = numpy.ones(LARGE // 8)
            transfer(
                first,
                lambda: end.send_bytes(memoryview(array).cast("B")),
                lambda: end.recv_bytes_into(array),
                lambda: end.send_bytes(b"x"),
                end.recv_bytes,
            )

    in_two_processes(run)


{
    "dipole": by_dipole,
    "bsp": by_supersteps,
    "mpi4py": by_mpi4py,
    "pyzmq": by_pyzmq,
    "pipe": by_pipe,
}[package]()
