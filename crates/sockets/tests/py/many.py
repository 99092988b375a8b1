"""Opens and closes connections of one process with itself, after large writes: nothing is left."""

import os
import socket
import sys

COUNT = int(sys.argv[1])
BLOCK = bytes(range(256)) * 512


def held():
    with open("/proc/self/maps") as maps:
        areas = sum("/sockets/" in line for line in maps)
    return len(os.listdir("/proc/self/fd")), areas, len(os.listdir(folder))


folder = os.path.join(os.environ["DIPOLE_RUNTIME_DIR"], "sockets")
os.makedirs(folder, mode=0o700, exist_ok=True)
listener = socket.create_server(("127.0.0.1", 0))
before = held()
carried = 0
for number in range(COUNT):
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    for _ in range(3):
        for here, there in ((one, other), (other, one)):
            here.sendall(BLOCK)
            assert there.recv(len(BLOCK), socket.MSG_WAITALL) == BLOCK
    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    carried += int.from_bytes(info[128:136], sys.byteorder)
    # Sometimes with bytes that nobody reads.
    if number % 3 == 0:
        one.sendall(BLOCK)
    one.close()
    other.close()
assert held() == before, (before, held())
print(carried, "of", COUNT * 3 * len(BLOCK))
