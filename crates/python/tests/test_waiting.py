"""Calls that wait end on time-outs, on KeyboardInterrupt, and when the peer is lost."""

import array
import asyncio
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from unittest import mock

import dipole
from support import PATIENCE, Peer, interrupted_after

SILENT = """
    import sys, dipole
    endpoint = dipole.Endpoint(int(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.read()
"""
ECHO = """
    import sys, dipole
    endpoint = dipole.Endpoint(int(sys.argv[1]))
    print("ready", flush=True)
    while True:
        with endpoint.Recv() as message:
            endpoint.Send(message, to=message.source)
"""
OWNER = """
    import sys, dipole
    endpoint = dipole.Endpoint(int(sys.argv[1]))
    region = endpoint.region(bytearray(100_000))
    print(region.key, flush=True)
    sys.stdin.read()
"""


def fill(endpoint):
    """Sends until there is no more room."""
    while True:
        try:
            endpoint.Send(bytes(1000), timeout=0)
        except dipole.WouldBlock:
            return


def send_from_child(parent, method):
    dipole.Endpoint().send(method, to=parent)


class Waits(unittest.TestCase):
    def test_each_waiting_call_ends_on_keyboard_interrupt(self):
        with Peer(SILENT, 20) as peer, dipole.Endpoint() as here:
            peer.line()
            there = dipole.Address(dipole.node_id(), 20)
            here.target(there)
            edge = here.edge(there)
            fill(here)
            # The peer does not read, so nothing is acknowledged either.
            calls = [
                here.Recv,
                here.recv,
                here.RecvMany,
                lambda: here.RecvInto(bytearray(10)),
                lambda: [here.Send(bytes(1000)) for _ in range(100_000)],
                lambda: [edge.Send(bytes(1000)) for _ in range(100_000)],
                lambda: here.send("to a missing endpoint", to=dipole.Address(dipole.node_id(), 21)),
            ]
            for call in calls:
                began = time.monotonic()
                with interrupted_after(0.05), self.assertRaises(KeyboardInterrupt):
                    call()
                self.assertLess(time.monotonic() - began, PATIENCE)

    def test_a_wait_that_keyboard_interrupt_ends_is_in_the_trace(self):
        program = """
            import signal, dipole
            from support import interrupted_after
            with dipole.Endpoint(40) as here:
                # After the first time that the library looked for signals.
                for _ in range(2):
                    try:
                        with interrupted_after(0.25):
                            here.Recv()
                    except KeyboardInterrupt:
                        pass
        """
        with tempfile.TemporaryDirectory() as traces:
            here = os.path.dirname(__file__)
            subprocess.run(
                [sys.executable, "-c", textwrap.dedent(program)],
                env={**os.environ, "DIPOLE_TRACE": traces},
                cwd=here,
                check=True,
            )
            command = ["dipole", "--json", "trace", traces]
            shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        [process] = json.loads(shown)["processes"]
        self.assertEqual(process["waits"], 2, shown)
        self.assertGreater(process["waited_ns"], 400_000_000, shown)

    def test_long_waits_are_reported_on_a_terminal(self):
        if shutil.which("script") is None:
            self.skipTest("script is not installed (Debian: bsdutils)")
        program = """
            import sys, dipole
            here = dipole.Endpoint(40)
            if sys.argv[1] == "receive":
                waits = lambda: here.Recv(timeout=4.5)
            else:
                waits = lambda: dipole.Group([(1, 41), (1, 42)], 0, timeout=4.5)
            try:
                waits()
            except dipole.Error:
                pass
        """
        for call, awaited in [
            ("receive", "message to endpoint 1:40"),
            ("join", "a process to open endpoint 1:42"),
        ]:
            with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
                file.write(textwrap.dedent(program))
                file.flush()
                command = f"{sys.executable} {file.name} {call}"
                environment = {k: v for k, v in os.environ.items() if k != "DIPOLE_LOG"}
                shown = subprocess.run(
                    ["script", "-qec", command, "/dev/null"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    env=environment,
                    text=True,
                    check=True,
                ).stdout
            self.assertRegex(shown, rf"waiting for [234] s: .*{re.escape(awaited)}")

    def test_messages_that_share_a_packet_do_not_wait_beyond_their_time(self):
        with Peer(SILENT, 25) as peer, dipole.Endpoint() as here:
            peer.line()
            here.target(dipole.Address(dipole.node_id(), 25))
            fill(here)
            with self.assertRaises(dipole.WouldBlock):
                for _ in range(100_000):
                    here.Send(bytes(1000), timeout=0, more=True)
            with self.assertRaises(dipole.TimedOut):
                for _ in range(100_000):
                    here.Send(bytes(1000), timeout=0.05, more=True)
            with interrupted_after(0.05), self.assertRaises(KeyboardInterrupt):
                for _ in range(100_000):
                    here.Send(bytes(1000), more=True)

    def test_group_calls_end_on_keyboard_interrupt(self):
        addresses = [dipole.Address(dipole.node_id(), 60 + rank) for rank in range(2)]
        with interrupted_after(0.05), self.assertRaises(KeyboardInterrupt):
            dipole.Group(addresses, 0)
        addresses = [dipole.Address(dipole.node_id(), 62 + rank) for rank in range(2)]
        program = """
            import sys, dipole
            addresses = [dipole.Address(dipole.node_id(), 62 + rank) for rank in range(2)]
            group = dipole.Group(addresses, 1)
            print("ready", flush=True)
            sys.stdin.readline()
            try:
                # The first may return before it is known that the other member gave up.
                group.barrier()
                group.barrier()
            except dipole.TimedOut:
                print("timed out", flush=True)
                sys.stdin.read()
        """
        with Peer(program) as peer, dipole.Group(addresses, 0, PATIENCE) as group:
            peer.line()
            with interrupted_after(0.05), self.assertRaises(KeyboardInterrupt):
                group.barrier()
            # The others get an error because this member did not wait any longer.
            peer.process.stdin.write("go on\n")
            peer.process.stdin.flush()
            self.assertEqual(peer.line(), "timed out")

    def test_each_group_call_ends_on_keyboard_interrupt(self):
        numbers = array.array("d", [1, 2])
        calls = [
            lambda group: group.bcast(root=1),
            lambda group: group.Bcast(numbers, root=1),
            lambda group: group.Allreduce(numbers),
            lambda group: group.Reduce(numbers),
        ]
        for number, call in enumerate(calls):
            first = 64 + 2 * number
            addresses = [dipole.Address(dipole.node_id(), first + rank) for rank in range(2)]
            with concurrent.futures.ThreadPoolExecutor() as pool:
                joining = pool.submit(dipole.Group, addresses, 1, PATIENCE)
                # The other member makes no call.
                with dipole.Group(addresses, 0, PATIENCE) as group, joining.result():
                    with interrupted_after(0.05), self.assertRaises(KeyboardInterrupt):
                        call(group)

    def test_operations_on_memory_end_on_keyboard_interrupt(self):
        with Peer(OWNER, 26) as peer, dipole.Endpoint() as here:
            key = int(peer.line())
            edge = here.edge(dipole.Address(dipole.node_id(), 26))
            self.assertEqual(edge.fetch_add(key, 0, 1), 0)
            # It answers nothing until it goes on.
            os.kill(peer.process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, peer.process.pid, os.WSTOPPED)
            edge.Put(key, 0, bytes(8))
            calls = [
                lambda: edge.Get(key, 0, bytearray(8), timeout=10 * PATIENCE),
                lambda: edge.Get(key, 0, bytearray(100_000), timeout=10 * PATIENCE),
                lambda: edge.fetch_add(key, 0, 1, timeout=10 * PATIENCE),
                lambda: edge.compare_swap(key, 0, 1, 2, timeout=10 * PATIENCE),
                edge.flush,
            ]
            for call in calls:
                with interrupted_after(0.05), self.assertRaises(KeyboardInterrupt):
                    call()
            os.kill(peer.process.pid, signal.SIGCONT)
            edge.flush(PATIENCE)

    def test_supersteps_end_on_keyboard_interrupt(self):
        program = """
            import signal, sys, time
            from dipole import bsp

            call, rank = sys.argv[1:]

            def interrupt(*_):
                raise KeyboardInterrupt

            signal.signal(signal.SIGALRM, interrupt)

            @bsp.spmd
            def main(b):
                if b.rank == 1:
                    time.sleep(600)
                if call != "begin":
                    signal.setitimer(signal.ITIMER_REAL, 0.2)
                getattr(b, call)()

            if call == "begin":
                if rank == "1":
                    time.sleep(600)
                signal.setitimer(signal.ITIMER_REAL, 0.2)
            try:
                main()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                raise
        """
        for number, call in enumerate(("begin", "sync", "end")):
            base = 3_100_000_000 + (os.getpid() * 4 + number) % 1_000_000 * 16
            job = {"SIZE": 2, "JOB": base, "JOB_BASE": base, "RANKS": "1,1"}
            job = {f"DIPOLE_{name}": str(value) for name, value in job.items()}
            with contextlib.ExitStack() as peers, self.subTest(call=call):
                ranks = []
                for rank in range(2):
                    with mock.patch.dict(os.environ, {**job, "DIPOLE_RANK": str(rank)}):
                        ranks.append(peers.enter_context(Peer(program, call, rank)))
                self.assertEqual(ranks[0].line(), "interrupted")
                self.assertNotEqual(ranks[0].process.wait(PATIENCE), 0)

    def test_time_outs_say_how_long_and_for_whom(self):
        with dipole.Endpoint() as here:
            for given in (0.0, 0.15):
                began = time.monotonic()
                with self.assertRaises(dipole.WouldBlock if given == 0 else dipole.TimedOut) as raised:
                    here.Recv(timeout=given)
                self.assertGreaterEqual(time.monotonic() - began, given)
                self.assertIn(str(here.address), str(raised.exception))
            self.assertIsInstance(raised.exception, TimeoutError)
            for wrong in (-1, float("nan"), "soon"):
                with self.assertRaises((ValueError, TypeError)):
                    here.Recv(timeout=wrong)

    def test_a_killed_peer_is_reported_with_its_address(self):
        with Peer(SILENT, 22) as peer, dipole.Endpoint() as here:
            peer.line()
            there = dipole.Address(dipole.node_id(), 22)
            here.target(there)
            here.Send(b"first")
            peer.kill()
            with self.assertRaises(ConnectionError) as raised:
                while True:
                    here.Send(bytes(1000), timeout=PATIENCE)
            self.assertIn(str(there), str(raised.exception))

    def test_processes_exchange_messages(self):
        with Peer(ECHO, 23) as peer, dipole.Endpoint() as here:
            peer.line()
            there = dipole.Address(dipole.node_id(), 23)
            for length in (0, 1, 5000, 3_000_000):
                sent = os.urandom(length)
                here.Send(sent, to=there)
                with here.Recv(PATIENCE) as message:
                    self.assertEqual(bytes(message), sent)

    def test_a_forked_child_has_a_node_of_its_own(self):
        with dipole.Endpoint() as here:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    try:
                        here.Recv(timeout=0)
                    except dipole.Closed:
                        own = dipole.Endpoint()
                        own.send("from the child", to=here.address)
                        own.close()
                        dipole.finalize()
                        status = 0
                finally:
                    os._exit(status)
            self.assertEqual(here.recv(PATIENCE), "from the child")
            self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_a_fork_while_another_thread_opens_the_node(self):
        ended = threading.Event()

        def open_and_close():
            while not ended.is_set():
                dipole.node_id()
                dipole.finalize(0)

        opening = threading.Thread(target=open_and_close)
        opening.start()
        try:
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    signal.alarm(int(PATIENCE))
                    try:
                        with dipole.Endpoint() as own:
                            own.send("alone", to=own.address)
                            os._exit(own.recv(PATIENCE) != "alone")
                    finally:
                        os._exit(2)
                self.assertEqual(os.waitpid(child, 0)[1], 0)
        finally:
            ended.set()
            opening.join()

    def test_children_of_each_start_method_send_to_their_parent(self):
        with dipole.Endpoint() as here:
            for method in ("fork", "spawn", "forkserver"):
                context = multiprocessing.get_context(method)
                child = context.Process(target=send_from_child, args=(here.address, method))
                child.start()
                self.assertEqual(here.recv(PATIENCE), method)
                child.join()
                self.assertEqual(child.exitcode, 0)

    def test_what_was_sent_before_the_end_of_the_program_arrives(self):
        program = """
            import sys, dipole
            out = dipole.Endpoint()
            for number in range(1000):
                out.send(number, to=dipole.Address(dipole.node_id(), 24))
        """
        with dipole.Endpoint(24) as here, Peer(program):
            self.assertEqual([here.recv(PATIENCE) for _ in range(1000)], list(range(1000)))


class Async(unittest.TestCase):
    def test_tasks_wait_without_blocking_each_other(self):
        async def main():
            with dipole.Endpoint() as one, dipole.Endpoint() as two:
                ticks = 0

                async def tick():
                    nonlocal ticks
                    while True:
                        await asyncio.sleep(0.001)
                        ticks += 1

                ticking = asyncio.create_task(tick())
                waiting = asyncio.create_task(one.async_recv())
                while ticks < 20:
                    await asyncio.sleep(0.001)
                self.assertFalse(waiting.done())
                await two.async_send("now", to=one.address)
                self.assertEqual(await waiting, "now")
                ticking.cancel()

        asyncio.run(main())

    def test_a_thousand_messages_between_tasks(self):
        async def main():
            with dipole.Endpoint() as one, dipole.Endpoint() as two:

                async def send():
                    for number in range(1000):
                        await two.async_send(number, to=one.address)

                sending = asyncio.create_task(send())
                got = [await one.async_recv() for _ in range(1000)]
                await sending
                self.assertEqual(got, list(range(1000)))

        asyncio.run(main())

    def test_a_cancelled_task_loses_no_message(self):
        async def main():
            with dipole.Endpoint() as one, dipole.Endpoint() as two:
                for number in range(20):
                    waiting = asyncio.create_task(one.async_recv())
                    await asyncio.sleep(0)
                    waiting.cancel()
                    two.send(number, to=one.address)
                    with self.assertRaises(asyncio.CancelledError):
                        await waiting
                    self.assertEqual(await one.async_recv(), number)

        asyncio.run(main())

    def test_closing_ends_tasks_that_wait(self):
        async def main():
            endpoint = dipole.Endpoint()

            async def iterate():
                return [bytes(message) async for message in endpoint]

            iterating = asyncio.create_task(iterate())
            endpoint.Send(b"only", to=endpoint.address)
            await asyncio.sleep(0.05)
            endpoint.close()
            self.assertEqual(await iterating, [b"only"])
            with self.assertRaises(dipole.Closed):
                await endpoint.async_Recv()

        asyncio.run(main())
        # A second loop works with new endpoints.
        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
