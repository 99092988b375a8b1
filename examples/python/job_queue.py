"""A queue of jobs. The job of a worker that dies goes to another one.

    python3 job_queue.py give 100         # terminal 1
    python3 job_queue.py work             # any number of others
"""

import sys
import time

import dipole

QUEUE = dipole.Address(dipole.node_id(), 9)


def give(count: int) -> None:
    jobs = list(range(count))
    results: dict[int, int] = {}
    edges: dict[dipole.Address, dipole.Edge] = {}
    busy: dict[dipole.Address, int] = {}
    idle: list[dipole.Address] = []
    with dipole.Endpoint(QUEUE.dpid) as queue:
        while len(results) < count:
            try:
                with queue.Recv(timeout=0.2) as message:
                    worker = message.source
                    if message:  # a result
                        results[busy.pop(worker)] = int(bytes(message))
                    edges.setdefault(worker, queue.edge(worker))
                    idle.append(worker)
            except dipole.TimedOut:
                pass
            for worker, job in list(busy.items()):
                try:
                    edges[worker].watch()
                except dipole.PeerGone as gone:
                    print(f"job {job} again: {gone}", flush=True)
                    jobs.append(busy.pop(worker))
            while jobs and idle:
                worker = idle.pop()
                busy[worker] = jobs.pop()
                edges[worker].Send(str(busy[worker]).encode())
    print(sum(results.values()))


def work() -> None:
    with dipole.Endpoint() as here:
        queue = here.edge(QUEUE)
        queue.Send(b"")
        while True:
            try:
                with here.Recv(timeout=1) as message:
                    job = int(bytes(message))
            except dipole.TimedOut:
                queue.watch()
                continue
            time.sleep(job % 5 / 1000)
            queue.Send(str(job * job).encode())


if sys.argv[1:2] == ["give"]:
    give(int(sys.argv[2]))
elif sys.argv[1:] == ["work"]:
    try:
        work()
    except dipole.PeerGone:
        print("all jobs are done")
else:
    sys.exit(__doc__)
