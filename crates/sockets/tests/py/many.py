"""Opens and closes many connections between two processes, with records both ways; neither process
may leak anything. many.py server COUNT ROUNDS, or client COUNT ROUNDS PORT.

The client prints the bytes that it read over TCP, and the total.
"""

import os
import resource
import socket
import struct
import sys

SIDE = sys.argv[1]
COUNT, ROUNDS = int(sys.argv[2]), int(sys.argv[3])
BLOCK = bytes(range(256)) * 512
INFO = struct.Struct("=6Q")
# Permitted growth of the interpreter's heap in KiB: one byte for each of 100 000 connections would be 100.
GROWTH = 4096

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def held():
    """Descriptors, shared areas, all mappings, threads, links in the directory, and KiB of memory of this process."""
    with open("/proc/self/maps") as maps:
        lines = list(maps)
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    memory = sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    areas = sum("memfd:dipole" in line for line in lines)
    folder = os.path.join(os.environ["DIPOLE_RUNTIME_DIR"], "sockets")
    files = len(os.listdir(folder)) if os.path.exists(folder) else 0
    return len(os.listdir("/proc/self/fd")), areas, len(lines), int(fields["Threads"]), files, memory


def whole(end):
    # More than one read only if the process was stopped or frozen meanwhile.
    got = end.recv(len(BLOCK), socket.MSG_WAITALL)
    while len(got) < len(BLOCK) and (more := end.recv(len(BLOCK) - len(got))):
        got += more
    assert got == BLOCK, len(got)


def exchange(end, first):
    """Enough large writes that both ends agree, and then use shared memory."""
    for _ in range(3):
        if first:
            end.sendall(BLOCK)
            whole(end)
        else:
            whole(end)
            end.sendall(BLOCK)


def by_tcp(end):
    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    return int.from_bytes(info[128:136], sys.byteorder)


def server():
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    control, _ = listener.accept()
    for _ in range(ROUNDS):
        ends = []
        for number in range(COUNT):
            control.sendall(b"a")
            ends.append(listener.accept()[0])
        for end in ends:
            exchange(end, False)
        control.sendall(b"d")
        # Half of them are closed here first, some of those with unread bytes.
        for number, end in enumerate(ends):
            if number % 2:
                end.close()
        assert control.recv(1) == b"c"
        for end in ends:
            end.close()
        ends.clear()
        end = None
        control.sendall(INFO.pack(*held()))
    control.recv(1)


def client():
    where = ("127.0.0.1", int(sys.argv[4]))
    control = socket.create_connection(where)
    first, last, carried, rounds = None, None, 0, []
    for _ in range(ROUNDS):
        ends = []
        for number in range(COUNT):
            assert control.recv(1) == b"a"
            ends.append(socket.create_connection(where))
        for number, end in enumerate(ends):
            exchange(end, True)
            carried += by_tcp(end)
            if number % 3 == 0:
                end.sendall(BLOCK)
        assert control.recv(1) == b"d"
        for end in ends:
            end.close()
        ends.clear()
        end = None
        control.sendall(b"c")
        theirs = INFO.unpack(control.recv(INFO.size))
        rounds.append((held(), theirs))
    for name, at in (("client", 0), ("server", 1)):
        # The first round is a warm-up: buffers of the interpreter, slots of connections.
        first, last = rounds[min(1, ROUNDS - 1)][at], rounds[-1][at]
        print(f"{name}: descriptors, areas, mappings, threads, files, KiB: {first} after round 2, {last} after {ROUNDS}", file=sys.stderr)
        assert first[:2] + first[3:5] == last[:2] + last[3:5] and last[1] == 0 and last[3] == 1 and last[4] == 0, name
        # The number of heap mappings varies a little.
        assert last[2] <= first[2] + 8 and last[5] <= first[5] + GROWTH, name
    print(carried, "of", ROUNDS * COUNT * 3 * len(BLOCK))


{"server": server, "client": client}[SIDE]()
