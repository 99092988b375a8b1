"""A parameter server: workers read shared parameters and add their updates, without its help.

    dipole run -n 4 python3 parameter_server.py

Rank 0 opens an array to the others. They fetch it, compute, and add to its 64-bit counters atomically.
"""

import array

import dipole

STEPS = 1000
COUNTERS = 8

job = dipole.job()
endpoint = dipole.Endpoint(job.addresses[job.rank].dpid)
server = job.addresses[0]

if job.rank == 0:
    parameters = array.array("Q", [0] * COUNTERS)
    with endpoint.region(parameters) as region:
        for address in job.addresses[1:]:
            endpoint.send(region.key, to=address)
        for _ in job.addresses[1:]:
            assert endpoint.recv() == "done"
    assert sum(parameters) == STEPS * (job.size - 1), list(parameters)
    print("parameters:", list(parameters))
else:
    key = endpoint.recv()
    edge = endpoint.edge(server)
    copy = array.array("Q", [0] * COUNTERS)
    for step in range(STEPS):
        if step % 100 == 0:
            edge.Get(key, 0, copy)
        edge.fetch_add(key, 8 * (step % COUNTERS), 1)
    endpoint.send("done", to=server)
