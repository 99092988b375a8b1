"""Queues: order, bounds, time-outs, interruption, loss, and asyncio."""

import asyncio
import pickle
import threading
import time
import unittest
from unittest import mock

import dipole
from support import PATIENCE, Peer, interrupted_after

CONSUMER = """
    import sys, dipole
    queue = dipole.Queue.connect(dipole.Address(int(sys.argv[1]), int(sys.argv[2])))
    print("ready", flush=True)
    while (task := queue.get()) is not None:
        print(task, flush=True)
"""
WORKER = """
    import sys, dipole
    queue = dipole.Queue.connect(dipole.Address(int(sys.argv[1]), int(sys.argv[2])))
    with queue.take() as task:
        print(task, flush=True)
        sys.stdin.read()
"""
OWNER = """
    import sys, dipole
    queue = dipole.Queue(1)
    print(queue.address.nid, queue.address.dpid, flush=True)
    sys.stdin.read()
"""


class Queues(unittest.TestCase):
    def test_objects_come_in_order(self):
        with dipole.Queue() as queue:
            for number in range(100):
                queue.put({"number": number})
            self.assertEqual(queue.qsize(), 100)
            other = pickle.loads(pickle.dumps(queue))
            self.assertEqual([other.get()["number"] for _ in range(100)], list(range(100)))
            queue.put(bytes(1_000_000))
            self.assertEqual(len(other.get()), 1_000_000)
            other.close()

    def test_a_full_queue_makes_producers_wait_and_an_empty_one_consumers(self):
        with dipole.Queue(2) as queue:
            for timeout, raised in ((0, dipole.WouldBlock), (0.05, dipole.TimedOut)):
                with self.assertRaises(raised):
                    queue.get(timeout)
            queue.put(1, timeout=0)
            queue.put(2, timeout=PATIENCE)
            for timeout, raised in ((0, dipole.WouldBlock), (0.05, dipole.TimedOut)):
                with self.assertRaises(raised) as caught:
                    queue.put(3, timeout)
                self.assertIn(str(queue.address), str(caught.exception))
            producer = threading.Thread(target=queue.put, args=(4,))
            producer.start()
            self.assertEqual([queue.get(PATIENCE) for _ in range(3)], [1, 2, 4])
            producer.join()
            with self.assertRaises(ValueError):
                dipole.Queue(-1)

    def test_many_producers_and_consumers(self):
        got, lock = [], threading.Lock()

        def produce(queue, first):
            for number in range(first, first + 50):
                queue.put(number)

        def consume(queue):
            while (number := queue.get(PATIENCE)) is not None:
                with lock:
                    got.append(number)

        with dipole.Queue(5) as queue:
            producers = [
                threading.Thread(target=produce, args=(queue, 50 * at)) for at in range(4)
            ]
            consumers = [threading.Thread(target=consume, args=(queue,)) for _ in range(3)]
            for thread in producers + consumers:
                thread.start()
            for thread in producers:
                thread.join()
            for _ in consumers:
                queue.put(None)
            for thread in consumers:
                thread.join()
        self.assertEqual(sorted(got), list(range(200)))

    def test_an_interrupted_call_neither_takes_nor_adds_anything(self):
        with dipole.Queue(1) as queue:
            with interrupted_after(0.05), self.assertRaises(KeyboardInterrupt):
                queue.get()
            queue.put("kept")
            with interrupted_after(0.05), self.assertRaises(KeyboardInterrupt):
                queue.put("not added")
            self.assertEqual(queue.get(PATIENCE), "kept")
            self.assertEqual(queue.qsize(), 0)

    def test_a_killed_consumer_takes_nothing_with_it_while_it_waits(self):
        with dipole.Queue() as queue:
            with Peer(CONSUMER, *queue.address) as lost, Peer(CONSUMER, *queue.address) as other:
                for consumer in (lost, other):
                    self.assertEqual(consumer.line(), "ready")
                lost.kill()
                for number in range(3):
                    queue.put(number)
                    self.assertEqual(other.line(), str(number))

    def test_the_work_of_a_killed_consumer_goes_to_the_next_one(self):
        with dipole.Queue() as queue, Peer(WORKER, *queue.address) as lost:
            queue.put("work")
            self.assertEqual(lost.line(), "work")
            with self.assertRaises(dipole.WouldBlock):
                queue.get(timeout=0)
            lost.kill()
            self.assertEqual(queue.get(PATIENCE), "work")

    def test_the_work_of_a_failed_block_goes_to_the_next_one(self):
        with dipole.Queue() as queue:
            queue.put("first")
            queue.put("second")
            with self.assertRaises(ZeroDivisionError), queue.take() as work:
                self.assertEqual(work, "first")
                1 // 0
            with queue.take(timeout=PATIENCE) as work:
                self.assertEqual(work, "first")
            self.assertEqual(queue.get(PATIENCE), "second")
            with self.assertRaises(dipole.WouldBlock), queue.take(timeout=0):
                self.fail("an object from an empty queue")

    def test_what_cannot_be_unpickled_is_dropped(self):
        with dipole.Queue() as queue:
            with mock.patch("dipole._pickled.dumps", return_value=bytes(10)):
                queue.put("broken")
            queue.put("whole")
            with self.assertRaises(Exception) as caught:
                queue.get(PATIENCE)
            self.assertNotIsInstance(caught.exception, dipole.Error)
            self.assertEqual(queue.get(PATIENCE), "whole")

    def test_long_work_does_not_disturb_later_calls(self):
        with dipole.Queue() as queue, mock.patch("dipole._queue._ASK_INTERVAL", 0.0):
            queue.put("work")
            with queue.take() as work:
                # Each call makes the owner look whether the consumer is alive.
                for _ in range(2000):
                    self.assertEqual(queue.qsize(), 0)
            self.assertEqual(work, "work")
            for number in range(3):
                queue.put(number)
                self.assertEqual(queue.get(PATIENCE), number)

    def test_calls_end_with_the_queue_and_with_its_process(self):
        ended = []

        def wait(queue):
            try:
                queue.get()
            except dipole.Error as error:
                ended.append(type(error))

        queue = dipole.Queue()
        waiting = threading.Thread(target=wait, args=(queue,))
        waiting.start()
        time.sleep(0.1)
        queue.close()
        waiting.join()
        self.assertEqual(ended, [dipole.Closed])
        with Peer(OWNER) as peer:
            other = dipole.Queue.connect(dipole.Address(*map(int, peer.line().split())))
            other.put("only")
            self.assertEqual(other.get(PATIENCE), "only")
            waiting = threading.Thread(target=wait, args=(other,))
            waiting.start()
            time.sleep(0.1)
            peer.kill()
            waiting.join()
            self.assertEqual(ended[1], dipole.PeerGone)
            # It may be opened again, but that takes too long.
            with self.assertRaises(dipole.TimedOut):
                other.get(timeout=0.1)

    def test_tasks_wait_without_blocking_each_other(self):
        async def main():
            with dipole.Queue(1) as queue:
                taking = [asyncio.create_task(queue.async_get()) for _ in range(10)]
                await asyncio.sleep(0.05)
                taking[3].cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await taking.pop(3)
                for number in range(9):
                    await queue.async_put(number)
                self.assertEqual(set(await asyncio.gather(*taking)), set(range(9)))
                await queue.async_put("last")
                putting = asyncio.create_task(queue.async_put("too many"))
                await asyncio.sleep(0.05)
                self.assertFalse(putting.done())
                self.assertEqual(await queue.async_get(), "last")
                await putting
                taken = asyncio.Event()

                async def work():
                    async with queue.async_take():
                        taken.set()
                        await asyncio.sleep(PATIENCE)

                working = asyncio.create_task(work())
                await taken.wait()
                working.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await working
                async with queue.async_take() as again:
                    self.assertEqual(again, "too many")

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
