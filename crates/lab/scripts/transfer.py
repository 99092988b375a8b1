#!/usr/bin/env python3
"""Compares transfers of a file with `dipole send`, nc, socat and rsync over TCP, and streams without files.

    sudo crates/lab/scripts/transfer.py [--dipole target/release/dipole] [--mib 1024] [--rounds 5]

Two network namespaces on a veth pair of MTU 1500; the file lies in memory (/dev/shm) on both
sides, so no disk is measured. Each time is from the start of the sender until both sides have
ended; receivers run before. All copies are compared. Within a node both sides are in one
namespace, beside a unix socket. Streams without files are `dipole bench stream` (messages of
256 KiB, as `dipole send` has them) and iperf3. Prints the medians, fastest, slowest, and CPU seconds
of both sides, as a table.
"""

import argparse
import filecmp
import json
import os
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
                f"uid = root\ngid = root\nuse chroot = no\n[copy]\npath = {folder}/copy\nread only = no\n"
            )

    def environment(self, side):
        return {
            "DIPOLE_NID": str(side + 1),
            "DIPOLE_HOSTS": f"{self.folder}/hosts",
            "DIPOLE_RUNTIME_DIR": f"{self.folder}/run{side}",
        }

    def by_dipole(self, link):
        sender = 1 if link == "shm" else 0
        environments = [{**self.environment(side), "DIPOLE_LINK": link} for side in (sender, 1)]
        receiver = within(1, f"exec {self.dipole} recv 7 --out {self.copy}", environments[1])
        time.sleep(0.5)
        return receiver, lambda: within(sender, f"exec {self.dipole} send 2:7 {self.original}", environments[0])

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


def once(peers, way, serves):
    """Returns seconds and CPU seconds of one transfer. The receiver may keep running."""
    if os.path.exists(peers.copy):
        os.unlink(peers.copy)
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
    assert filecmp.cmp(peers.original, peers.copy, shallow=False), "the copy differs"
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dipole", default="target/release/dipole")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for program in ("nc", "socat", "rsync", "iperf3", "ip"):
        assert shutil.which(program), f"{program} is not installed"
    folder = tempfile.mkdtemp(prefix="dipole-transfer-", dir="/dev/shm")
    try:
        make()
        os.mkdir(f"{folder}/copy")
        peers = Peers(folder, os.path.abspath(arguments.dipole))
        block = os.urandom(1 << 20)
        with open(peers.original, "wb") as original:
            for _ in range(arguments.mib):
                original.write(block)
        ways = {
            "dipole send, bpf link": (lambda: peers.by_dipole("bpf"), False),
            "dipole send, UDP link": (lambda: peers.by_dipole("udp"), False),
            "nc": (peers.by_nc, False),
            "socat": (peers.by_socat, False),
            "rsync (daemon)": (peers.by_rsync, True),
            "dipole send within a node": (lambda: peers.by_dipole("shm"), False),
            "socat by a unix socket": (peers.by_unix_socket, False),
        }
        size = arguments.mib << 20
        streams = {
            **{
                f"no file: dipole bench stream, {link}": lambda link=link: stream_of_dipole(peers.dipole, link)
                for link in ("bpf", "udp", "shm")
            },
            "no file: iperf3": lambda: stream_of_iperf3(size),
        }
        taken = {name: [] for name in ways}
        streamed = {name: [] for name in streams}
        for _ in range(arguments.rounds):
            for name, (way, serves) in ways.items():
                taken[name].append(once(peers, way, serves))
            for name, stream in streams.items():
                streamed[name].append(stream())
        print(f"{arguments.mib} MiB on {socket.gethostname()}, medians of {arguments.rounds}, load {os.getloadavg()[0]:.1f}")
        print("| | MB/s | slowest..fastest | CPU s of both sides |\n|---|---|---|---|")
        for name, times in taken.items():
            rates = sorted(size / took / 1e6 for took, _ in times)
            cpu = statistics.median(cpu for _, cpu in times)
            print(f"| {name} | {statistics.median(rates):.0f} | {rates[0]:.0f}..{rates[-1]:.0f} | {cpu:.2f} |")
        for name, rates in streamed.items():
            rates = sorted(rate / 1e6 for rate in rates)
            print(f"| {name} | {statistics.median(rates):.0f} | {rates[0]:.0f}..{rates[-1]:.0f} | |")
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
