"""Two ends of one connection: large and small writes in both directions at once, all compared with
what was sent. Prints the bytes that TCP carried to this end, and the total."""

import os
import random
import socket
import sys
import threading

LENGTH = 6_000_000
role, port, address = sys.argv[1], int(sys.argv[2]), (sys.argv[3:] or ["127.0.0.1"])[0]
mine, theirs = (random.Random(seed).randbytes(LENGTH) for seed in (role == "server", role != "server"))

if role == "server":
    # As nginx does: the library must have read its variables before.
    os.environ.clear()
    with socket.create_server((address, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        end, _ = listener.accept()
else:
    end = socket.create_connection((address, port))

# In turns, so that both ends make large writes and reads before all data is in the kernel's buffers.
BLOCK = bytes(range(250)) * 800
for turn in range(12):
    if (turn % 2 == 0) == (role == "server"):
        end.sendall(BLOCK)
    else:
        assert end.recv(len(BLOCK), socket.MSG_WAITALL) == BLOCK


def write():
    at = 0
    sizes = [70000, 100, 131072, 200000, 5, 300000]
    while at < LENGTH:
        size = sizes[at % len(sizes)]
        end.sendall(mine[at : at + size])
        at += size
    end.shutdown(socket.SHUT_WR)


writer = threading.Thread(target=write)
writer.start()
got = bytearray()
sizes = [65536, 1, 10000, 262144]
while some := end.recv(sizes[len(got) % len(sizes)]):
    got += some
writer.join()
assert got == theirs, (len(got), len(theirs))
info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
end.close()
print(int.from_bytes(info[128:136], sys.byteorder), "of", LENGTH + 6 * len(BLOCK))
