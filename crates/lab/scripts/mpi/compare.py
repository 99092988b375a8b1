#!/usr/bin/env python3
"""Dipole compared with the MPI libraries of this machine, alternating in one run.

    cargo build --release -p dipole-tools
    crates/lab/scripts/mpi/compare.py                 # inside one node
    sudo crates/lab/scripts/mpi/compare.py --wire     # between two network namespaces

Open MPI and MPICH are taken if their compilers are there (Debian: openmpi-bin libopenmpi-dev,
mpich libmpich-dev). Prints a Markdown table: medians over the rounds, least and most in brackets. Not under real-time
priority with --wire: ranks that spin would keep the kernel's own threads from the cores.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PINGPONG_BYTES = [64, 1400, 4096, 16384, 65536, 1 << 20]
STREAM_BYTES = [64, 4096, 16384, 65536, 1 << 20]
NAMESPACES = [f"dpmpi{os.getpid()}-{node}" for node in (1, 2)]
SUBNET = "10.77.0"
TIMEOUT_S = 60


def last_json(command, environment=None):
    """The last line of JSON that a command prints; None, with a message, if it fails."""
    environment = {**os.environ, **(environment or {})}
    # Its own process group, so that the ranks end with their launcher.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment, start_new_session=True) as running:
        try:
            output, errors = running.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGTERM)
            output, errors = "", f"nothing for {TIMEOUT_S} s"
    found = []
    for line in output.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    found = [one for one in found if "p50_ns" in one or "bytes_per_s" in one]
    if not found:
        print(f"no figure from {' '.join(map(str, command))}:\n{errors[-500:]}", file=sys.stderr)
        return None
    return found[-1]


def dipole(program, link, subject="dipole"):
    def measure(kind, size, seconds):
        where = "node" if link == "shm" else "veth"
        # Successive small messages may share packets, because MPI may aggregate them as well.
        kind = "rate" if kind == "stream" and size < 1400 else kind
        words = [program, "--json", "bench", kind, "--on", where, "--link", link]
        words += ["--size", str(size), "--seconds", str(seconds), "--rounds", "3"]
        return last_json(words + ["--subjects", subject])

    return measure


def open_mpi(program, wire):
    own = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def measure(kind, size, seconds):
        work = [program, kind, str(size), str(seconds)]
        if not wire:
            run = ["mpirun.openmpi", "--mca", "pml", "ob1", "--mca", "btl", "vader,self"]
            return last_json(run + ["-n", "2", *work], own)
        subnet = f"{SUBNET}.0/24"
        # Its daemon must be reachable from the other namespace.
        known = {f"PMIX_MCA_ptl_{part}_{name}": value for part in ("base", "tcp")
                 for name, value in (("remote_connections", "1"), ("if_include", subnet))}
        run = ["ip", "netns", "exec", NAMESPACES[0], "mpirun.openmpi", "--mca", "pml", "ob1"]
        run += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", subnet]
        other = ["ip", "netns", "exec", NAMESPACES[1]]
        return last_json(run + ["-n", "1", *work, ":", "-n", "1", *other, *work], {**own, **known})

    return measure


def mpich(program, wire):
    def measure(kind, size, seconds):
        work = [program, kind, str(size), str(seconds)]
        if not wire:
            return last_json(["mpiexec.mpich", "-n", "2", *work])
        inside = [["-n", "1", "ip", "netns", "exec", name, *work] for name in NAMESPACES]
        only_tcp = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "wire"}
        return last_json(["mpiexec.mpich", *inside[0], ":", *inside[1]], only_tcp)

    return measure


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def join_namespaces():
    for name in NAMESPACES:
        ip("netns", "add", name)
    one, two = NAMESPACES
    ip("link", "add", "wire", "netns", one, "type", "veth", "peer", "name", "wire", "netns", two)
    for number, name in enumerate(NAMESPACES, 1):
        ip("-n", name, "addr", "add", f"{SUBNET}.{number}/24", "dev", "wire")
        ip("-n", name, "link", "set", "wire", "up")
        ip("-n", name, "link", "set", "lo", "up")


def leave_namespaces():
    for name in NAMESPACES:
        subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def shown(values, scale):
    values = sorted(value / scale for value in values)
    if not values:
        return "-"
    return f"{statistics.median(values):.3g} ({values[0]:.3g}..{values[-1]:.3g})"


def table(kind, sizes, subjects, arguments):
    key, scale, unit = ("p50_ns", 1e3, "us one way") if kind == "pingpong" else ("bytes_per_s", 1e9, "GB/s")
    print(f"\n| {kind}, {unit} | " + " | ".join(subjects) + " |")
    print("|---" * (len(subjects) + 1) + "|")
    for size in sizes:
        values = {name: [] for name in subjects}
        for _ in range(arguments.rounds):
            for name, measure in subjects.items():
                found = measure(kind, size, arguments.seconds)
                if found is not None:
                    values[name].append(found[key])
        cells = [shown(values[name], scale) for name in subjects]
        print(f"| {size} B | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wire", action="store_true", help="between two namespaces, as root")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--dipole", default=str(HERE.parents[3] / "target/release/dipole"))
    arguments = parser.parse_args()
    if arguments.wire and os.geteuid() != 0:
        sys.exit("--wire makes network namespaces: run it as root")
    if not Path(arguments.dipole).exists():
        sys.exit(f"{arguments.dipole} is not there: cargo build --release -p dipole-tools")
    with tempfile.TemporaryDirectory() as folder:
        libraries = {}
        for name, compiler, make in (("Open MPI", "mpicc.openmpi", open_mpi), ("MPICH", "mpicc.mpich", mpich)):
            if shutil.which(compiler) is None:
                print(f"{name} is skipped: {compiler} is not installed", file=sys.stderr)
                continue
            program = str(Path(folder) / compiler)
            subprocess.run([compiler, "-O2", "-o", program, str(HERE / "bench.c")], check=True)
            libraries[name] = make(program, arguments.wire)
        links = ["bpf", "udp"] if arguments.wire else ["shm"]
        bare = {"bare TCP": dipole(arguments.dipole, "udp", "bare-tcp-spin")} if arguments.wire else {}
        own = {f"Dipole, {link}": dipole(arguments.dipole, link) for link in links}
        try:
            if arguments.wire:
                join_namespaces()
            for kind, sizes in (("pingpong", PINGPONG_BYTES), ("stream", STREAM_BYTES)):
                table(kind, sizes, {**own, **bare, **libraries}, arguments)
        finally:
            if arguments.wire:
                leave_namespaces()


if __name__ == "__main__":
    main()
