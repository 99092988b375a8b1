"""A queue of work: workers ask a port for tasks and send back results.

    dipole run -n 4 python3 work_queue.py

Rank 0 owns the queue, the other ranks work.
"""

import pickle
import threading

import dipole

QUEUE = 9
TASKS = 100


def own_queue(workers: int) -> None:
    tasks = iter(range(TASKS))
    results: dict[int, int] = {}
    ended = threading.Event()
    left = workers

    def handle(message: dipole.Message) -> bytes | None:
        nonlocal left
        if len(message) == 0:
            # A worker says goodbye once it knows that nothing is left to do.
            left -= 1
            if left == 0:
                ended.set()
            return None
        done = pickle.loads(message)
        if done is not None:
            results.update([done])
        return pickle.dumps(next(tasks, None))

    with dipole.Port(QUEUE, handle):
        ended.wait()
    assert results == {number: number**2 for number in range(TASKS)}
    print(f"{TASKS} tasks done by {workers} workers")


def work(queue: dipole.Address) -> None:
    with dipole.Endpoint() as endpoint:
        done = None
        while True:
            endpoint.Send(pickle.dumps(done), to=queue)
            with endpoint.Recv() as answer:
                task = pickle.loads(answer)
            if task is None:
                endpoint.Send(b"", to=queue)
                return
            done = task, task**2


job = dipole.job()
if job.rank == 0:
    own_queue(job.size - 1)
else:
    work(dipole.Address(job.addresses[0].nid, QUEUE))
