"""Dask over Dipole: connections, clusters, and what happens when processes end."""

import asyncio
import os
import time
import unittest

import dask
import distributed
import joblib
import numpy
from distributed.comm import CommClosedError, connect, get_address_host, listen
from distributed.protocol import to_serialize
from support import PATIENCE, Peer

LISTENER = """
    import asyncio, os, sys
    from distributed.comm import listen

    async def main():
        async def handle(comm):
            await comm.write(await comm.read())
            await comm.write(os.getpid())
            await asyncio.sleep(3600)

        async with listen("dipole://", handle) as listener:
            print(listener.contact_address, flush=True)
            await asyncio.sleep(3600)

    asyncio.run(main())
"""


async def pair():
    """Both ends of a connection."""
    accepted = asyncio.get_running_loop().create_future()

    async def handle(comm):
        accepted.set_result(comm)

    async with listen("dipole://", handle) as listener:
        here = await connect(listener.contact_address)
        return here, await accepted


async def within(awaitable):
    return await asyncio.wait_for(awaitable, PATIENCE)


class Connections(unittest.IsolatedAsyncioTestCase):
    async def test_messages_of_all_sizes_arrive_in_order(self):
        here, there = await pair()
        sizes = [0, 1, 100, 5000, 40_000, 3_000_000, 7, 100_000, 12_000_000, 3]
        for size in sizes:
            data = numpy.arange(size, dtype="u1")
            message = {"size": size, "data": to_serialize([data, data[::-1]])}
            await here.write(message)
        for size in sizes:
            got = await within(there.read())
            self.assertEqual(got["size"], size)
            forward, backward = got["data"]
            self.assertTrue((forward == numpy.arange(size, dtype="u1")).all())
            self.assertTrue((forward == backward[::-1]).all())
            self.assertTrue(forward.flags.writeable and backward.flags.writeable)
            forward[:] = 0
        await here.close()
        await there.close()

    async def test_a_long_array_is_lent_until_it_has_been_sent(self):
        here, there = await pair()
        sent = numpy.ones(20_000_000, dtype="u1")
        await here.write({"data": to_serialize(sent)})
        got = (await within(there.read()))["data"]
        self.assertEqual(int(got.sum()), len(sent))
        self.assertFalse(numpy.shares_memory(sent, got))
        here.abort()
        there.abort()

    async def test_many_connections_to_one_listener(self):
        async def echo(comm):
            await comm.write(await comm.read())
            await comm.close()

        async with listen("dipole://", echo) as listener:

            async def client(number):
                comm = await connect(listener.contact_address)
                await comm.write({"number": number})
                self.assertEqual(await comm.read(), {"number": number})
                with self.assertRaises(CommClosedError):
                    await comm.read()

            await within(asyncio.gather(*(client(number) for number in range(50))))

    async def test_closing_ends_reads_at_both_ends(self):
        here, there = await pair()
        reads = [asyncio.ensure_future(it.read()) for it in (here, there)]
        await asyncio.sleep(0)
        await here.write("last")
        await here.close()
        self.assertEqual(await within(reads[1]), "last")
        with self.assertRaises(CommClosedError):
            await within(reads[0])
        with self.assertRaises(CommClosedError):
            await within(there.read())
        for comm in (here, there):
            self.assertTrue(comm.closed())
            with self.assertRaises(CommClosedError):
                await comm.write("?")

    async def test_a_missing_listener_ends_the_time_of_a_connection(self):
        node = (await pair())[0].local_address.rpartition(":")[0]
        with self.assertRaises(OSError):
            await connect(f"{node}:44444", timeout=0.2)

    async def test_a_killed_process_is_noticed_at_once(self):
        with Peer(LISTENER) as peer:
            comm = await connect(peer.line())
            await comm.write("hello")
            self.assertEqual(await within(comm.read()), "hello")
            self.assertEqual(await within(comm.read()), peer.process.pid)
            waiting = asyncio.ensure_future(comm.read())
            await asyncio.sleep(0)
            peer.kill()
            with self.assertRaises(CommClosedError):
                await within(waiting)
            self.assertTrue(comm.closed())

    async def test_a_process_that_calls_nothing_notices_too(self):
        with Peer(LISTENER) as peer:
            comm = await connect(peer.line())
            peer.kill()
            began = time.monotonic()
            while not comm.closed():
                self.assertLess(time.monotonic() - began, PATIENCE)
                await asyncio.sleep(0.01)
            comm.abort()

    async def test_hosts_are_named_by_number_address_or_name(self):
        async def handle(comm):
            await comm.close()

        async with listen("dipole://", handle) as listener:
            dpid = listener.contact_address.rpartition(":")[2]
            for host in ("1", "127.0.0.1", "localhost"):
                comm = await connect(f"dipole://{host}:{dpid}")
                self.assertEqual(get_address_host(comm.peer_address), "127.0.0.1")
                comm.abort()
        with self.assertRaises(ValueError):
            listen("dipole://2:0", handle)
        with self.assertRaises(RuntimeError):
            listen("dipole://", handle, require_encryption=True)


def transpose_and_sum(client):
    import dask.array

    array = dask.array.ones((600, 600), chunks=(200, 200))
    return float((array + array.T).sum().compute(scheduler=client))


class Clusters(unittest.TestCase):
    OPTIONS = {"protocol": "dipole", "threads_per_worker": 1, "dashboard_address": None}

    def setUp(self):
        silent = dask.config.set({"distributed.worker.daemon": True})
        silent.__enter__()
        self.addCleanup(silent.__exit__, None, None, None)

    def test_a_local_cluster_computes_and_survives_a_killed_worker(self):
        with (
            dask.config.set({"distributed.scheduler.allowed-failures": 0}),
            distributed.LocalCluster(n_workers=2, **self.OPTIONS) as cluster,
            distributed.Client(cluster) as client,
        ):
            self.assertTrue(cluster.scheduler_address.startswith("dipole://"))
            self.assertEqual(transpose_and_sum(client), 2 * 600 * 600)
            data = numpy.arange(1_000_000)
            [there] = client.scatter([data])
            self.assertEqual(client.submit(numpy.sum, there).result(), data.sum())
            before = client.run(os.getpid)
            self.assertEqual(len(before), 2)
            with self.assertRaises(distributed.KilledWorker):
                client.submit(os._exit, 1, retries=0).result(timeout=PATIENCE)
            self.assertEqual(transpose_and_sum(client), 2 * 600 * 600)

    def test_joblib_runs_on_the_cluster(self):
        with (
            distributed.LocalCluster(n_workers=2, **self.OPTIONS) as cluster,
            distributed.Client(cluster) as client,
            joblib.parallel_config("dask"),
        ):
            done = joblib.Parallel()(joblib.delayed(pow)(number, 2) for number in range(20))
            self.assertEqual(done, [number**2 for number in range(20)])
            self.assertEqual(len(client.run(os.getpid)), 2)

    def test_nannies_fork(self):
        with (
            dask.config.set({"distributed.worker.multiprocessing-method": "fork"}),
            distributed.LocalCluster(n_workers=1, **self.OPTIONS) as cluster,
            distributed.Client(cluster) as client,
        ):
            [(address, parent)] = client.run(os.getppid).items()
            self.assertTrue(address.startswith("dipole://"))
            self.assertEqual(parent, os.getpid())
            self.assertEqual(transpose_and_sum(client), 2 * 600 * 600)


if __name__ == "__main__":
    unittest.main()
