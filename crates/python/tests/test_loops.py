"""Endpoints and queues under other event loops: uvloop, trio, and both kinds through anyio."""

import functools
import unittest

import anyio
import dipole
import trio
import uvloop
from support import PATIENCE


async def exchange() -> list[object]:
    """Two tasks that wait for each other, and one that waits behind the other for the same endpoint."""
    got: list[object] = []
    with dipole.Endpoint() as one, dipole.Endpoint() as other:

        async def receive(count: int) -> None:
            for _ in range(count):
                got.append(await one.async_recv())

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive, 300)
                tasks.start_soon(receive, 200)
                await anyio.sleep(0.01)
                for number in range(500):
                    await other.async_send(number, to=one.address)
                    if number % 50 == 0:
                        await anyio.sleep(0.001)
    return got


async def cancel() -> None:
    with dipole.Endpoint() as one, dipole.Endpoint() as other:
        for number in range(20):
            with anyio.move_on_after(0.002):
                await one.async_Recv()
                raise AssertionError("nothing was sent")
            other.send(number, to=one.address)
            with anyio.fail_after(PATIENCE):
                assert await one.async_recv() == number


async def close() -> list[str]:
    ended: list[str] = []
    endpoint = dipole.Endpoint()

    async def iterate() -> None:
        async for message in endpoint:
            raise AssertionError(bytes(message))
        ended.append("iteration")

    async def receive() -> None:
        try:
            await endpoint.async_recv()
        except dipole.Closed:
            ended.append("call")

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(iterate)
            tasks.start_soon(receive)
            await anyio.sleep(0.02)
            endpoint.close()
    return sorted(ended)


async def send_without_room() -> int:
    """The receiver is slower than the sender, so it waits for room in another thread."""
    count, length = 200, 100_000
    with dipole.Endpoint() as one, dipole.Endpoint() as other:
        other.target(one.address)

        async def send() -> None:
            for _ in range(count):
                await other.async_Send(bytes(length))

        received = 0
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                for _ in range(count):
                    with await one.async_Recv() as message:
                        received += len(message)
    return received


async def use_queue() -> list[object]:
    taken: list[object] = []
    with dipole.Queue(maxsize=2) as queue:

        async def take() -> None:
            for _ in range(20):
                taken.append(await queue.async_get())

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take)
                for number in range(20):
                    await queue.async_put(number)
        with anyio.move_on_after(0.01):
            await queue.async_get()
            raise AssertionError("it is empty")
    return taken


LOOPS = {
    "uvloop": uvloop.run,
    "trio": lambda main: trio.run(functools.partial(as_coroutine, main)),
    "anyio on asyncio": lambda main: anyio.run(functools.partial(as_coroutine, main)),
    "anyio on uvloop": lambda main: anyio.run(
        functools.partial(as_coroutine, main), backend_options={"use_uvloop": True}
    ),
    "anyio on trio": lambda main: anyio.run(functools.partial(as_coroutine, main), backend="trio"),
}


async def as_coroutine(coroutine):
    return await coroutine


class Loops(unittest.TestCase):
    def each(self, main, expected):
        for name, run in LOOPS.items():
            with self.subTest(loop=name):
                self.assertEqual(run(main()), expected)

    def test_tasks_receive_from_one_endpoint(self):
        for name, run in LOOPS.items():
            with self.subTest(loop=name):
                self.assertEqual(sorted(run(exchange())), list(range(500)))

    def test_a_cancelled_task_loses_no_message(self):
        self.each(cancel, None)

    def test_closing_ends_tasks_that_wait(self):
        self.each(close, ["call", "iteration"])

    def test_a_task_waits_for_room(self):
        self.each(send_without_room, 20_000_000)

    def test_queues(self):
        self.each(use_queue, list(range(20)))


if __name__ == "__main__":
    unittest.main()
