"""Messages, buffers, regions, ports and groups within one process."""

import array
import gc
import sys
import threading
import unittest

import dipole
from support import PATIENCE, Peer, resident_bytes

CALLER = """
    import sys, dipole
    here = dipole.Endpoint()
    here.Send(b"work", to=dipole.Address(int(sys.argv[1]), int(sys.argv[2])))
    sys.stdin.read()
"""


class Messages(unittest.TestCase):
    def setUp(self):
        self.inbox, self.outbox = dipole.Endpoint(7), dipole.Endpoint()
        self.outbox.target(self.inbox.address)

    def tearDown(self):
        self.outbox.close()
        self.inbox.close()

    def test_every_kind_of_buffer_arrives_as_its_bytes(self):
        numbers = array.array("d", [1.5, -2.0])
        for given in (b"bytes", bytearray(b"array"), memoryview(b"view")[1:], numbers, b""):
            self.outbox.Send(given)
            with self.inbox.Recv(PATIENCE) as message:
                self.assertEqual(bytes(message), bytes(given))
                self.assertEqual(len(message), memoryview(given).nbytes)
                self.assertEqual(message.source, self.outbox.address)
        with self.assertRaises(BufferError):
            self.outbox.Send(memoryview(b"abcdef")[::2])
        with self.assertRaises(TypeError):
            self.outbox.Send("text")

    def test_objects_are_pickled_with_their_buffers(self):
        values = [None, {"a": [1, 2.5, "three"]}, bytearray(100_000), [bytearray(b"x"), b"y"]]
        for value in values:
            self.outbox.send(value)
            self.assertEqual(self.inbox.recv(PATIENCE), value)
        self.outbox.Send(b"\x01")
        with self.assertRaises(ValueError):
            self.inbox.recv(PATIENCE)

    def test_arrays_travel_beside_the_pickle(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("NumPy is not installed")
        sent = numpy.arange(100_000, dtype=numpy.float32).reshape(100, 1000)
        self.outbox.send({"name": "matrix", "data": sent})
        got = self.inbox.recv(PATIENCE)["data"]
        self.assertTrue((got == sent).all() and got.flags.writeable)
        self.outbox.send(sent)
        got = self.inbox.recv(PATIENCE, copy=False)
        self.assertTrue((got == sent).all() and not got.flags.writeable)

    def test_a_view_keeps_its_message_also_after_the_endpoint(self):
        self.outbox.Send(b"still here" * 10_000)
        message = self.inbox.Recv(PATIENCE)
        view = memoryview(message)
        with self.assertRaises(BufferError):
            message.release()
        del message
        self.outbox.close()
        self.inbox.close()
        del self.inbox
        gc.collect()
        self.assertEqual(bytes(view), b"still here" * 10_000)
        self.assertTrue(view.readonly)
        self.inbox = dipole.Endpoint(7)

    def test_a_released_message_is_gone(self):
        self.outbox.Send(b"short-lived")
        message = self.inbox.Recv(PATIENCE)
        message.release()
        message.release()
        self.assertIn("released", repr(message))
        for use in (bytes, len, memoryview, lambda it: it.source):
            with self.assertRaises(ValueError):
                use(message)

    def test_a_message_is_received_into_a_buffer(self):
        self.outbox.Send(b"0123456789")
        with self.assertRaises(dipole.TooLong):
            self.inbox.RecvInto(bytearray(9), PATIENCE)
        with self.assertRaises(BufferError):
            self.inbox.RecvInto(b"read-only!", PATIENCE)
        room = bytearray(12)
        self.assertEqual(self.inbox.RecvInto(room, PATIENCE), (10, self.outbox.address))
        self.assertEqual(room, b"0123456789\0\0")

    def test_many_messages_come_at_once_and_in_order(self):
        for number in range(100):
            self.outbox.Send(bytes([number]))
        got = []
        while len(got) < 100:
            got += [bytes(message)[0] for message in self.inbox.RecvMany(30, PATIENCE)]
        self.assertEqual(got, list(range(100)))

    def test_a_reply_goes_to_the_sender(self):
        self.outbox.Send(b"question")
        question = self.inbox.Recv(PATIENCE)
        self.inbox.Reply(question, b"answer")
        self.assertEqual(bytes(self.outbox.Recv(PATIENCE)), b"answer")
        self.inbox.reply(question, [1, 2])
        self.assertEqual(self.outbox.recv(PATIENCE), [1, 2])

    def test_a_policy_counts_what_it_drops(self):
        self.outbox.target_policy(self.inbox.address, "keep-latest")
        for number in range(20_000):
            self.outbox.Send(number.to_bytes(4, "little"))
        dropped = self.outbox.target_dropped(self.inbox.address)
        got = []
        while len(got) + dropped < 20_000:
            got.append(int.from_bytes(bytes(self.inbox.Recv(PATIENCE)), "little"))
        self.assertEqual(got[-1], 19_999)
        self.assertEqual(got, sorted(got))
        with self.assertRaises(ValueError):
            self.outbox.target_policy(self.inbox.address, "drop-some")
        self.outbox.untarget(self.inbox.address)
        with self.assertRaises(dipole.NoTarget):
            self.outbox.target_dropped(self.inbox.address)
        with self.assertRaises(dipole.NoTarget):
            self.outbox.Send(b"to whom?")

    def test_nothing_leaks(self):
        def some(count):
            for number in range(count):
                self.outbox.Send(b"x" * (number % 3000))
                self.inbox.Recv(PATIENCE).release()
                self.outbox.send([number])
                self.inbox.recv(PATIENCE)

        some(2000)
        messages, before = sys.getallocatedblocks(), resident_bytes()
        some(30_000)
        self.assertLess(sys.getallocatedblocks() - messages, 500)
        for _ in range(500):
            endpoint = dipole.Endpoint()
            endpoint.fileno()
            endpoint.close()
        self.assertLess(resident_bytes() - before, 30 << 20)


class Memory(unittest.TestCase):
    def test_a_region_is_read_written_and_updated(self):
        owner, peer = dipole.Endpoint(), dipole.Endpoint()
        memory = array.array("Q", [0] * 1000)
        with owner.region(memory) as region, owner, peer:
            edge = peer.edge(owner.address)
            edge.Put(region.key, 8, b"\x05" + bytes(7))
            edge.flush(PATIENCE)
            self.assertEqual(memory[1], 5)
            self.assertEqual(edge.fetch_add(region.key, 8, 2), 5)
            self.assertEqual(edge.compare_swap(region.key, 8, 7, 9), 7)
            got = bytearray(16)
            edge.Get(region.key, 0, got)
            self.assertEqual(got, bytes(8) + b"\x09" + bytes(7))
            edge.Put(region.key, 0, b"12345678", notify=77)
            notice = owner.Recv(PATIENCE)
            self.assertEqual((notice.notice, memory[0]), (77, int.from_bytes(b"12345678", "little")))
            with self.assertRaises(dipole.OperationFailed):
                edge.Get(region.key, 7999, got)
            with self.assertRaises(dipole.OperationFailed):
                edge.Get(region.key + 1, 0, got)
            self.assertEqual(len(region), 8000)
            region.close()
            with self.assertRaises(dipole.OperationFailed):
                edge.Get(region.key, 0, got)
            edge.close()
            with self.assertRaises(dipole.Closed):
                edge.Send(b"?")

    def test_rights_are_kept(self):
        owner, peer = dipole.Endpoint(), dipole.Endpoint()
        with owner, peer, owner.region(bytearray(64), rights=["get"]) as region:
            edge = peer.edge(owner.address)
            edge.Get(region.key, 0, bytearray(8))
            with self.assertRaises(dipole.OperationFailed):
                edge.Put(region.key, 0, b"x")
                edge.flush(PATIENCE)
            with self.assertRaises(PermissionError):
                edge.fetch_add(region.key, 0, 1)
        with self.assertRaises(ValueError):
            dipole.Endpoint().region(bytearray(8), rights=["all"])
        with self.assertRaises(BufferError):
            dipole.Endpoint().region(b"constant")


class Ports(unittest.TestCase):
    def test_a_port_answers_with_what_its_function_returns(self):
        seen = []

        def handler(message):
            seen.append(bytes(message))
            if message == b"":
                return None
            return bytes(message).upper() if len(message) else None

        with dipole.Port(None, handler) as port, dipole.Endpoint() as client:
            client.Send(b"", to=port.address)
            client.Send(b"work", to=port.address)
            self.assertEqual(bytes(client.Recv(PATIENCE)), b"WORK")
            self.assertEqual(seen, [b"", b"work"])

    def test_an_exception_is_reported_and_the_port_goes_on(self):
        reported = []
        before, sys.unraisablehook = sys.unraisablehook, lambda it: reported.append(it.exc_value)
        try:
            with dipole.Port(None, lambda it: 1 // len(it) and b"ok") as port:
                with dipole.Endpoint() as client:
                    client.Send(b"", to=port.address)
                    client.Send(b"1", to=port.address)
                    self.assertEqual(bytes(client.Recv(PATIENCE)), b"ok")
        finally:
            sys.unraisablehook = before
        self.assertIsInstance(reported[0], ZeroDivisionError)


    def test_an_answer_to_a_caller_that_is_gone_is_dropped(self):
        reported, asked = [], threading.Event()

        def handler(message):
            if bytes(message) == b"again":
                return b"ok"
            with dipole.Endpoint() as here:
                edge = here.edge(message.source)
                edge.Send(b"", timeout=PATIENCE)
                edge.flush(PATIENCE)
                caller.kill()
                with self.assertRaises(dipole.PeerGone):
                    while True:
                        edge.watch()
            asked.set()
            return b"too late"

        before, sys.unraisablehook = sys.unraisablehook, lambda it: reported.append(it.exc_value)
        try:
            with dipole.Port(None, handler) as port, Peer(CALLER, *port.address) as caller:
                self.assertTrue(asked.wait(PATIENCE))
                with dipole.Endpoint() as client:
                    client.Send(b"again", to=port.address)
                    self.assertEqual(bytes(client.Recv(PATIENCE)), b"ok")
        finally:
            sys.unraisablehook = before
        self.assertEqual(reported, [])


class Groups(unittest.TestCase):
    def test_members_broadcast_and_reduce(self):
        addresses = [dipole.Address(dipole.node_id(), 50 + rank) for rank in range(3)]
        results, errors = {}, []

        def member(rank):
            try:
                with dipole.Group(addresses, rank, PATIENCE) as group:
                    group.barrier(PATIENCE)
                    told = group.bcast({"root": 1} if rank == 1 else None, root=1, timeout=PATIENCE)
                    totals = array.array("d", [rank, 1.0])
                    group.Allreduce(totals, timeout=PATIENCE)
                    most = array.array("q", [rank])
                    group.Reduce(most, "max", root=2, timeout=PATIENCE)
                    with self.assertRaises(TypeError):
                        group.Allreduce(array.array("f", [1.0]))
                    results[rank] = told, list(totals), list(most), group.size
                    group.barrier(PATIENCE)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=member, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        for rank in range(3):
            most = [2] if rank == 2 else [rank]
            self.assertEqual(results[rank], ({"root": 1}, [3.0, 3.0], most, 3))


if __name__ == "__main__":
    unittest.main()
