#!/usr/bin/env python3
"""What would redis gain between two nodes if its requests and answers travelled over Dipole? An experiment, as root.

between_nodes.py LIBDIPOLE [--rounds N] [--link bpf|udp]
LIBDIPOLE is the folder of libdipole.so. Server and client are in two namespaces joined by a veth pair and use TCP
sockets; the kernel hands what they write to forward.c, which sends it over Dipole (forward.bpf.c, needs clang,
libbpf-dev, bpftool). Prints GET requests per second over TCP, and with forwarders that sleep or spin.
"""

import argparse
import atexit
import os
import pathlib
import statistics
import subprocess
import sys
import time

from value import CGROUPS, FOLDER, build_bpf, run

HERE = pathlib.Path(__file__).parent
INCLUDE = HERE.parents[3] / "include"
NAMES = [f"between{os.getpid()}{end}" for end in "sc"]
ADDRESSES = ["10.79.0.1", "10.79.0.2"]


def at(end, *words):
    return ["ip", "netns", "exec", NAMES[end], *words]


def join_nodes():
    for name in NAMES:
        run("ip", "netns", "add", name)
        atexit.register(subprocess.run, ["ip", "netns", "del", name])
    run("ip", "link", "add", "be0", "netns", NAMES[0], "type", "veth", "peer", "name", "be0", "netns", NAMES[1])
    for end in range(2):
        run("ip", "-n", NAMES[end], "addr", "add", f"{ADDRESSES[end]}/24", "dev", "be0")
        for device in ("lo", "be0"):
            run("ip", "-n", NAMES[end], "link", "set", device, "up")
    with open(f"{FOLDER}/hosts", "w", encoding="utf8") as file:
        file.writelines(f"{end + 1} {ADDRESSES[end]}\n" for end in range(2))


def load(end, objects, files):
    """Programs and maps of one node, and the cgroup whose connections they take."""
    pins, group = f"{files}/{end}", f"{CGROUPS}/between{os.getpid()}{end}"
    os.mkdir(pins)
    run("bpftool", "prog", "loadall", objects, f"{pins}/programs", "pinmaps", f"{pins}/maps")
    for program, sockets in (("from_program", "programs"), ("from_forwarder", "forwarders")):
        run("bpftool", "prog", "attach", "pinned", f"{pins}/programs/{program}", "msg_verdict", "pinned", f"{pins}/maps/{sockets}")
    os.mkdir(group)
    atexit.register(os.rmdir, group)
    run("bpftool", "cgroup", "attach", group, "cgroup_sock_ops", "pinned", f"{pins}/programs/keep")
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"], f"{pins}/maps/forwarders"


def redis(clients, before, ends):
    """GET requests per second."""
    server = subprocess.Popen([*before[0], *at(0, "redis-server", "--port", "7000", "--bind", ADDRESSES[0], "--protected-mode", "no",
                                               "--save", "", "--dir", FOLDER)], stdout=subprocess.DEVNULL)
    while not run(*at(0, "ss", "-Hltn", "sport = :7000")):
        time.sleep(0.02)
    count = {1: 20000, 50: 60000}[clients]
    # The client's ports number the connections.
    run(*at(1, "sysctl", "-q", "-w", f"net.ipv4.ip_local_port_range=20000 {20000 + ends - 1}"))
    words = ["redis-benchmark", "-h", ADDRESSES[0], "-p", "7000", "-t", "get", "-c", str(clients), "-n", str(count), "-d", "64", "--csv"]
    try:
        found = run(*before[1], *at(1, *words), timeout=60)
    finally:
        server.terminate()
        server.wait()
    return float([line for line in found.splitlines() if line.startswith('"GET"')][0].replace('"', "").split(",")[1])


def forwarders(link, maps, ends, spins):
    started = []
    for end in range(2):
        environment = os.environ | {"LD_LIBRARY_PATH": FOLDER, "DIPOLE_LINK": link, "DIPOLE_NID": str(end + 1),
                                    "DIPOLE_HOSTS": f"{FOLDER}/hosts", "DIPOLE_RUNTIME_DIR": f"{FOLDER}/run{end}"}
        os.makedirs(f"{FOLDER}/run{end}", mode=0o700, exist_ok=True)
        words = at(end, f"{FOLDER}/forward", maps[end], str(2 - end), str(ends), *(["spin"] if spins else []))
        started.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE))
    for one in started:
        if not one.stdout.readline():
            sys.exit("a forwarder did not start")
    return started


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("libdipole")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--link", default="bpf")
    options = parser.parse_args()
    join_nodes()
    objects, files = build_bpf("forward.bpf.c")
    run("cc", "-O2", f"-I{INCLUDE}", "-o", f"{FOLDER}/forward", HERE / "forward.c", f"-L{options.libdipole}", "-ldipole")
    os.symlink(os.path.abspath(f"{options.libdipole}/libdipole.so"), f"{FOLDER}/libdipole.so.0")
    before, maps = zip(*(load(end, objects, files) for end in range(2)))
    ends = 1000
    for clients in (1, 50):
        found = {"TCP": [], "forwarders that sleep": [], "forwarders that spin": []}
        for _ in range(options.rounds):
            for name, values in found.items():
                if name == "TCP":
                    values.append(redis(clients, ([], []), ends))
                    continue
                running = forwarders(options.link, maps, ends, "spin" in name)
                try:
                    values.append(redis(clients, before, ends))
                finally:
                    for one in running:
                        one.kill()
                        one.wait()
        base = statistics.median(found["TCP"])
        for name, values in found.items():
            every = ", ".join(f"{value:.0f}" for value in values)
            print(f"GET 64 B, {clients} clients, {name:22} {statistics.median(values):8.0f}/s x {statistics.median(values) / base:.2f} ({every})", flush=True)


main()
