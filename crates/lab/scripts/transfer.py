#!/usr/bin/env python3
"""Compares transfers of files with `dipole send`, nc, socat, tar and rsync, and streams without files.

    sudo crates/lab/scripts/transfer.py [--dipole target/release/dipole] [--mib 1024] [--files 5000] [--rounds 5]

Two network namespaces on a veth pair of MTU 1500; the files lie in memory (/dev/shm) on both
sides, so no disk is measured. Each time is from the start of the sender until both sides have
ended; receivers run before. All copies are compared. Within a node both sides are in one
namespace, next to a unix socket. Streams without files are `dipole bench stream` (messages of
256 KiB, as `dipole send` has them) and iperf3.

The order of the ways changes from round to round. Virtual machines return free memory to their
host, and getting it back takes longer than a transfer, so a file of the same size is written and
removed before each one. `cp` shows what writing the copy takes by itself.

The second table is about a directory of many files of 80 bytes. Prints the medians, fastest,
slowest, and CPU seconds of both sides.
"""

import argparse
import filecmp
import json
import os
import random
import resource
import shutil
import socket
import statistics
import subprocess
import tempfile
import time

NAMES = [f"transfer{os.getpid()}{side}" for side in "ab"]
ADDRESSES = ["10.98.0.1", "10.98.0.2"]


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def make():
    for name in NAMES:
        ip("netns", "add", name)
    ip("-n", NAMES[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", NAMES[1])
    for name, address in zip(NAMES, ADDRESSES):
        ip("-n", name, "address", "add", f"{address}/24", "dev", "veth0")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "veth0", "up")


def within(side, command, environment=None):
    return subprocess.Popen(
        ["ip", "netns", "exec", NAMES[side], "sh", "-c", command],
        env={**os.environ, **(environment or {})},
    )


def listens(side, port):
    """Waits until a program listens at a TCP port of a side."""
    wanted = f":{port:04X} 00000000:0000 0A"
    while True:
        listed = subprocess.run(
            ["ip", "netns", "exec", NAMES[side], "cat", "/proc/net/tcp"],
            check=True, capture_output=True, text=True,
        )
        if wanted in listed.stdout:
            return
        time.sleep(0.02)


class Peers:
    """Returns the commands that receive at side b and send from side a."""

    def __init__(self, folder, dipole):
        self.folder, self.dipole = folder, dipole
        self.original, self.copy = f"{folder}/original", f"{folder}/copy/original"
        with open(f"{folder}/hosts", "w", encoding="ascii") as hosts:
            hosts.writelines(f"{at + 1} {address}\n" for at, address in enumerate(ADDRESSES))
        with open(f"{folder}/rsyncd.conf", "w", encoding="ascii") as conf:
            conf.write(
                f"uid = root\ngid = root\nuse chroot = no\n"
                f"[copy]\npath = {folder}/copy\nread only = no\n[copies]\npath = {folder}/copies\nread only = no\n"
            )

        self.tree, self.tree_copy = f"{folder}/tree", f"{folder}/copies"

    def environment(self, side):
        return {
            "DIPOLE_NID": str(side + 1),
            "DIPOLE_HOSTS": f"{self.folder}/hosts",
            "DIPOLE_RUNTIME_DIR": f"{self.folder}/run{side}",
        }

    def by_dipole(self, link, receive=None, send=None):
        """Receives and sends the file, or runs these commands instead."""
        receive = receive or f"recv 7 --out {self.copy}"
        send = send or f"exec {self.dipole} send 2:7 {self.original}"
        sender = 1 if link == "shm" else 0
        environments = [{**self.environment(side), "DIPOLE_LINK": link} for side in (sender, 1)]
        receiver = within(1, f"{self.dipole} {receive}", environments[1])
        time.sleep(0.5)
        return receiver, lambda: within(sender, send, environments[0])

    def tree_by_dipole(self, link):
        return self.by_dipole(link, f"recv 7 --out {self.tree_copy}", f"exec {self.dipole} send 2:7 {self.tree}")

    def tree_by_tar_and_dipole(self, link):
        send = f"tar -C {self.folder} -c tree | {self.dipole} send 2:7"
        return self.by_dipole(link, f"recv 7 | tar -C {self.tree_copy} -x", send)

    def tree_by_tar_and_nc(self):
        receiver = within(1, f"nc -l -p 7000 | tar -C {self.tree_copy} -x")
        listens(1, 7000)
        return receiver, lambda: within(0, f"tar -C {self.folder} -c tree | nc -N {ADDRESSES[1]} 7000")

    def tree_by_rsync(self):
        receiver, _ = self.by_rsync()
        return receiver, lambda: within(
            0, f"exec rsync --archive --whole-file {self.tree} rsync://{ADDRESSES[1]}:7000/copies/"
        )

    def by_cp(self):
        return within(1, "exec true"), lambda: within(1, f"exec cp {self.original} {self.copy}")

    def by_unix_socket(self):
        options = "-u -b 262144"
        path = f"{self.folder}/socket"
        receiver = within(1, f"exec socat {options} UNIX-LISTEN:{path},unlink-early OPEN:{self.copy},creat,trunc")
        while not os.path.exists(path):
            time.sleep(0.02)
        return receiver, lambda: within(1, f"exec socat {options} OPEN:{self.original} UNIX-CONNECT:{path}")

    def by_nc(self):
        receiver = within(1, f"exec nc -l -p 7000 > {self.copy}")
        listens(1, 7000)
        return receiver, lambda: within(0, f"exec nc -N {ADDRESSES[1]} 7000 < {self.original}")

    def by_socat(self):
        options = "-u -b 262144"
        receiver = within(1, f"exec socat {options} TCP-LISTEN:7000,reuseaddr OPEN:{self.copy},creat,trunc")
        listens(1, 7000)
        return receiver, lambda: within(0, f"exec socat {options} OPEN:{self.original} TCP:{ADDRESSES[1]}:7000")

    def by_rsync(self):
        receiver = within(1, f"exec rsync --daemon --no-detach --config={self.folder}/rsyncd.conf --port 7000")
        listens(1, 7000)
        return receiver, lambda: within(
            0, f"exec rsync --whole-file --times {self.original} rsync://{ADDRESSES[1]}:7000/copy/"
        )


def stream_of_dipole(dipole, link):
    """Returns bytes per second of a stream without files."""
    place = "node" if link == "shm" else "veth"
    line = subprocess.run(
        [dipole, "--json", "bench", "stream", "--on", place, "--link", link, "--size", "262144",
         "--seconds", "0.5", "--rounds", "1", "--subjects", "dipole"],
        check=True, capture_output=True, text=True,
    ).stdout
    return json.loads(line.splitlines()[0])["bytes_per_s"]


def stream_of_iperf3(size):
    server = within(1, "exec iperf3 -4 --server --one-off --port 7000 >/dev/null")
    listens(1, 7000)
    client = subprocess.run(
        ["ip", "netns", "exec", NAMES[0], "iperf3", "--client", ADDRESSES[1], "--port", "7000", "--json",
         "--bytes", str(size)],
        check=True, capture_output=True, text=True,
    )
    server.wait()
    return json.loads(client.stdout)["end"]["sum_received"]["bits_per_second"] / 8


def once(way, serves):
    """Returns seconds and CPU seconds of one transfer. The receiver may keep running."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    receiver, send = way()
    began = time.monotonic()
    sender = send()
    assert sender.wait() == 0, "the sender failed"
    if serves:
        took = time.monotonic() - began
        receiver.terminate()
        receiver.wait()
    else:
        assert receiver.wait() == 0, "the receiver failed"
        took = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, cpu


def warm_memory(folder, mib):
    """Leaves memory for a copy with this machine, instead of with its host."""
    block = bytes(1 << 20)
    with open(f"{folder}/warm", "wb") as warm:
        for _ in range(mib):
            warm.write(block)
    os.unlink(f"{folder}/warm")


def one_file(peers, way, serves, mib):
    if os.path.exists(peers.copy):
        os.unlink(peers.copy)
    warm_memory(peers.folder, mib)
    taken = once(way, serves)
    assert filecmp.cmp(peers.original, peers.copy, shallow=False), "the copy differs"
    return taken


def one_tree(peers, way, serves):
    shutil.rmtree(peers.tree_copy)
    os.mkdir(peers.tree_copy)
    taken = once(way, serves)
    compared = filecmp.dircmp(peers.tree, f"{peers.tree_copy}/tree")
    same, different, failed = filecmp.cmpfiles(
        peers.tree, f"{peers.tree_copy}/tree", os.listdir(peers.tree), shallow=False
    )
    assert not (compared.left_only or compared.right_only or different or failed) and same, "the copy differs"
    return taken


def rounds_of(count, ways):
    """Runs every way once in each round, in random order. Returns what each has taken."""
    taken = {name: [] for name in ways}
    for _ in range(count):
        for name in random.sample(list(ways), len(ways)):
            taken[name].append(ways[name]())
    return taken


def file_table(peers, arguments):
    block = os.urandom(1 << 20)
    with open(peers.original, "wb") as original:
        for _ in range(arguments.mib):
            original.write(block)
    size = arguments.mib << 20
    files = {
        "dipole send, bpf link": (lambda: peers.by_dipole("bpf"), False),
        "dipole send, UDP link": (lambda: peers.by_dipole("udp"), False),
        "nc": (peers.by_nc, False),
        "socat": (peers.by_socat, False),
        "rsync (daemon)": (peers.by_rsync, True),
        "dipole send within a node": (lambda: peers.by_dipole("shm"), False),
        "socat by a unix socket": (peers.by_unix_socket, False),
        "cp": (peers.by_cp, False),
    }
    streams = {
        **{
            f"no file: dipole bench stream, {link}": lambda link=link: (size / stream_of_dipole(peers.dipole, link), None)
            for link in ("bpf", "udp", "shm")
        },
        "no file: iperf3": lambda: (size / stream_of_iperf3(size), None),
    }
    ways = {
        name: lambda way=way, serves=serves: one_file(peers, way, serves, arguments.mib)
        for name, (way, serves) in files.items()
    }
    print("| | MB/s | slowest..fastest | CPU s of both sides |\n|---|---|---|---|")
    for name, times in rounds_of(arguments.rounds, {**ways, **streams}).items():
        rates = sorted(size / took / 1e6 for took, _ in times)
        cpu = f"{statistics.median(cpu for _, cpu in times):.2f}" if times[0][1] is not None else ""
        print(f"| {name} | {statistics.median(rates):.0f} | {rates[0]:.0f}..{rates[-1]:.0f} | {cpu} |")


def tree_table(peers, arguments):
    os.mkdir(peers.tree)
    for number in range(arguments.files):
        with open(f"{peers.tree}/{number}", "wb") as file:
            file.write(os.urandom(80))
    trees = {
        "dipole send, UDP link": (lambda: peers.tree_by_dipole("udp"), False),
        "tar and dipole send, UDP link": (lambda: peers.tree_by_tar_and_dipole("udp"), False),
        "dipole send within a node": (lambda: peers.tree_by_dipole("shm"), False),
        "tar and dipole send within a node": (lambda: peers.tree_by_tar_and_dipole("shm"), False),
        "tar and nc": (peers.tree_by_tar_and_nc, False),
        "rsync (daemon)": (peers.tree_by_rsync, True),
    }
    ways = {
        name: lambda way=way, serves=serves: one_tree(peers, way, serves) for name, (way, serves) in trees.items()
    }
    print(f"\n| {arguments.files} files of 80 bytes | ms | fastest..slowest | CPU s of both sides |\n|---|---|---|---|")
    for name, times in rounds_of(arguments.rounds, ways).items():
        took = sorted(1e3 * took for took, _ in times)
        cpu = statistics.median(cpu for _, cpu in times)
        print(f"| {name} | {statistics.median(took):.0f} | {took[0]:.0f}..{took[-1]:.0f} | {cpu:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dipole", default="target/release/dipole")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for program in ("nc", "socat", "rsync", "iperf3", "ip", "tar"):
        assert shutil.which(program), f"{program} is not installed"
    folder = tempfile.mkdtemp(prefix="dipole-transfer-", dir="/dev/shm")
    try:
        make()
        peers = Peers(folder, os.path.abspath(arguments.dipole))
        os.mkdir(f"{folder}/copy")
        os.mkdir(peers.tree_copy)
        print(
            f"{arguments.mib} MiB on {socket.gethostname()}, medians of {arguments.rounds}, "
            f"load {os.getloadavg()[0]:.1f}"
        )
        file_table(peers, arguments)
        tree_table(peers, arguments)
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
