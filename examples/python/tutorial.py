"""A tutorial in cells, for one process. Editors and Jupyter (with jupytext) open it as a notebook.

    python3 tutorial.py
"""

# %% [markdown]
# ## Endpoints
# An endpoint receives from any other one. Its address is the number of its node and its own.

# %%
import asyncio

import numpy

import dipole
from dipole import bsp

inbox, outbox = dipole.Endpoint(7), dipole.Endpoint()
outbox.send({"first": "light"}, to=inbox.address)
received = inbox.recv(timeout=10)
print(received)
assert received == {"first": "light"}

# %% [markdown]
# ## Buffers
# Calls with a capital letter take buffers. The message is read in place, and gives its memory back
# at the end of the block.

# %%
outbox.target(inbox.address)
outbox.Send(numpy.arange(1000.0))
with inbox.Recv(timeout=10) as message:
    total = numpy.frombuffer(message).sum()
print("the sum is", total)
assert total == 499500

# %% [markdown]
# ## Memory that others read and write
# The owner of a region sends its key to the others. They need no help from the owner afterwards.

# %%
weights = numpy.zeros(8)
with inbox.region(weights) as region:
    edge = outbox.edge(inbox.address)
    edge.Put(region.key, 2 * weights.itemsize, numpy.full(3, 0.5))
    edge.flush(timeout=10)
    copy = numpy.empty(8)
    edge.Get(region.key, 0, copy)
print(weights)
assert (copy == weights).all() and weights.sum() == 1.5

# %% [markdown]
# ## Work on arrival
# A port passes each message to a function, and sends back what it returns.

# %%
with dipole.Port(None, lambda message: bytes(message).upper()) as port:
    outbox.Send(b"work", to=port.address)
    answer = bytes(outbox.Recv(timeout=10))
print(answer)
assert answer == b"WORK"

# %% [markdown]
# ## Queues
# A queue has many producers and consumers. When it is full, producers wait.

# %%
with dipole.Queue(maxsize=2) as tasks:
    tasks.put("one")
    tasks.put("two")
    try:
        tasks.put("three", timeout=0)
    except dipole.WouldBlock as full:
        print(full)
    done = [tasks.get(), tasks.get()]
assert done == ["one", "two"]

# %% [markdown]
# ## asyncio
# Tasks wait through the endpoint's descriptor, so the event loop goes on.


# %%
async def serve(rounds: int) -> None:
    for _ in range(rounds):
        inbox.reply(question := await inbox.async_Recv(), len(question))


async def ask() -> list[int]:
    serving = asyncio.create_task(serve(3))
    lengths = []
    for text in (b"a", b"bc", b"def"):
        await outbox.async_Send(text)
        lengths.append(await outbox.async_recv())
    await serving
    return lengths


lengths = asyncio.run(ask())
print(lengths)
assert lengths == [1, 2, 3]

# %% [markdown]
# ## Supersteps
# Puts and messages take effect at the end of the superstep. Without a launcher there is one rank;
# `dipole run -n 4 python3 program.py` starts four, and `dipole.cluster(4)` does it from a notebook.


# %%
@bsp.spmd
def main(b: bsp.Program) -> float:
    part = numpy.zeros(b.size)
    area = b.register(part)
    b.sync()
    with b.superstep():
        for rank in range(b.size):
            b.put(numpy.array([b.rank + 1.0]), rank, area, at=b.rank)
    return float(part.sum())


result = main()
print("all ranks:", result)
assert result == 1

# %% [markdown]
# ## The end
# What was sent still arrives.

# %%
for endpoint in (outbox, inbox):
    endpoint.close()
dipole.finalize()
