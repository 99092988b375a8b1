#!/usr/bin/env python3
"""Short MPI messages over Dipole compared with Open MPI's own transports, alternating in one run.

    cargo build --release -p dipole-fabric
    crates/lab/scripts/mpi/figures.py                 # inside one node: Dipole, vader
    sudo crates/lab/scripts/mpi/figures.py --wire     # between two network namespaces: bpf, udp, TCP

Runs examples/mpi/figures.c, and crates/lab/scripts/mpi/fabric.c, which does without an MPI. Wants Open MPI with
libfabric (Debian: openmpi-bin libopenmpi-dev libfabric-dev). Each takes about a minute. Prints a Markdown table: medians
over the rounds, least and most in brackets. --before FOLDER measures another build, too: its
libdipole_fi.so lies there. As root inside a node ranks run under chrt -f 10.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from compare import HERE, NAMESPACES, SUBNET, join_namespaces, leave_namespaces

ROOT = HERE.parents[3]
TIMEOUT_S = 30
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            # Each rank has a core of its own, although Open MPI assumes oversubscription.
            "OMPI_MCA_mpi_yield_when_idle": "0"}
OVER_DIPOLE = {"OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi",
               "OMPI_MCA_mtl_ofi_provider_include": "dipole",
               "OMPI_MCA_btl_ofi_provider_include": "dipole"}
MPIRUN = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none"]


def output(command, environment):
    environment = {**os.environ, **OPEN_MPI, **environment}
    try:
        done = subprocess.run([str(word) for word in command], env=environment, text=True,
                              capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"nothing for {TIMEOUT_S} s from {' '.join(map(str, command))}", file=sys.stderr)
        return []
    if done.returncode != 0:
        print(f"{' '.join(map(str, command))}:\n{done.stderr[-500:]}", file=sys.stderr)
    return done.stdout.splitlines()


class Bench:
    """The programs and the place where they run."""

    def __init__(self, folder, wire, seconds):
        self.folder, self.wire, self.seconds = Path(folder), wire, seconds
        self.figures, self.fabric = self.folder / "figures", self.folder / "fabric"
        source = ROOT / "examples/mpi/figures.c"
        subprocess.run(["mpicc.openmpi", "-O3", "-o", self.figures, source, "-lm"], check=True)
        subprocess.run(["cc", "-O2", "-o", self.fabric, HERE / "fabric.c", "-lfabric"], check=True)
        hosts = [f"{node} {SUBNET}.{node}\n" for node in (1, 2)]
        (self.folder / "hosts").write_text("".join(hosts))
        self.own_core = [] if wire or os.geteuid() != 0 else ["chrt", "-f", "10"]

    def node(self, number):
        return {"DIPOLE_NID": str(number), "DIPOLE_HOSTS": str(self.folder / "hosts"),
                "DIPOLE_RUNTIME_DIR": str(self.folder / f"node{number}")}

    def provider(self, library, name):
        """A folder in which libfabric finds the provider of this build."""
        place = self.folder / name
        place.mkdir()
        (place / "libdipole-fi.so").symlink_to(Path(library).resolve())
        environment = {"FI_PROVIDER_PATH": str(place),
                       "DIPOLE_RUNTIME_DIR": str(self.folder / "runtime")}
        return environment

    def mpi(self, environment):
        """Results of the MPI program by name."""
        work = [self.figures, self.seconds, "0,1"]
        if self.wire:
            subnet = f"{SUBNET}.0/24"
            environment = dict(environment)
            for part in ("base", "tcp"):
                environment[f"PMIX_MCA_ptl_{part}_remote_connections"] = "1"
                environment[f"PMIX_MCA_ptl_{part}_if_include"] = subnet
            parts = []
            for number, name in enumerate(NAMESPACES, 1):
                where = ["ip", "netns", "exec", name] if number > 1 else []
                own = [f"{key}={value}" for key, value in self.node(number).items()]
                parts.append(["-n", "1", *where, "env", *own, *work])
            command = ["ip", "netns", "exec", NAMESPACES[0], *MPIRUN, *parts[0], ":", *parts[1]]
        else:
            command = [*self.own_core, *MPIRUN, "-n", "2", *work]
        lines = [line.split() for line in output(command, environment)]
        return {f"{line[0]}, {line[1]}": float(line[2]) for line in lines if len(line) == 4}

    def bare(self, environment):
        """Results of the provider alone."""
        found = {}
        for kind, count, key, name, scale in (
            ("pingpong", 40_000, "p50_ns", "provider alone, latency-8B, us", 1e-3),
            ("rate", 100_000, "messages_per_s", "provider alone, rate-8B, M/s", 1e-6),
        ):
            command = [*self.own_core, self.fabric, "dipole", kind, "8", count]
            if self.wire:
                for number, name_space in enumerate(NAMESPACES, 1):
                    own = [f"{key}={value}" for key, value in self.node(number).items()]
                    command.append(",".join([name_space, *own]))
            # The first packets in a new namespace may be lost.
            lines = output(command, environment) or output(command, environment)
            for line in lines:
                found[name] = json.loads(line)[key] * scale
        return found


def subjects(bench, libraries):
    """The measurements to compare, by name."""
    def over_dipole(environment):
        return lambda: {**bench.bare(environment), **bench.mpi({**environment, **OVER_DIPOLE})}

    found = {}
    for name, library in libraries.items():
        environment = bench.provider(library, f"provider-{len(found)}")
        for link in ["bpf", "udp"] if bench.wire else ["auto"]:
            label = f"Dipole, {link}{name}" if bench.wire else f"Dipole{name}"
            found[label] = over_dipole({**environment, "DIPOLE_LINK": link})
    if bench.wire:
        tcp = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self",
               "OMPI_MCA_btl_tcp_if_include": f"{SUBNET}.0/24"}
        found["Open MPI, TCP"] = lambda: bench.mpi(tcp)
    else:
        vader = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "vader,self"}
        found["Open MPI, vader"] = lambda: bench.mpi(vader)
    return found


def shown(values):
    if not values:
        return "-"
    median, least, most = (f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
                           for value in (statistics.median(values), min(values), max(values)))
    return f"{median} ({least}..{most})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wire", action="store_true", help="between two namespaces, as root")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each figure")
    parser.add_argument("--library", default=str(ROOT / "target/release/libdipole_fi.so"))
    parser.add_argument("--before", help="a folder with the libdipole_fi.so of another build")
    arguments = parser.parse_args()
    if arguments.wire and os.geteuid() != 0:
        sys.exit("--wire makes network namespaces: run it as root")
    libraries = {"": arguments.library}
    if arguments.before:
        libraries = {", before": f"{arguments.before}/libdipole_fi.so", **libraries}
    for library in libraries.values():
        if not Path(library).exists():
            sys.exit(f"{library} is not there: cargo build --release -p dipole-fabric")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, arguments.wire, arguments.seconds)
        measured = subjects(bench, libraries)
        values = {}
        try:
            if arguments.wire:
                join_namespaces()
            for _ in range(arguments.rounds):
                for subject, measure in measured.items():
                    for figure, value in measure().items():
                        values.setdefault(figure, {}).setdefault(subject, []).append(value)
        finally:
            if arguments.wire:
                leave_namespaces()
    print("| | " + " | ".join(measured) + " |")
    print("|---" * (len(measured) + 1) + "|")
    for figure, found in values.items():
        cells = [shown(found.get(subject, [])) for subject in measured]
        print(f"| {figure} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
