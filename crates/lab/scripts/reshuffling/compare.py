#!/usr/bin/env python3
"""Compares reshuffling of a matrix with ScaLAPACK's pdgemr2d and mpi4py-fft, in turns: on this node, and, as
root, between two network namespaces, where their Open MPI sends by TCP.

    cargo build --release -p dipole-tools -p dipole-bsp-capi
    crates/lab/scripts/reshuffling/compare.py [ROUNDS] [--target target/release]

wants gcc, libscalapack-openmpi-dev, mpirun.openmpi, python3-mpi4py-fft (which has the first of the cases) and, for the second
part, ip. The namespaces are removed.
Each line: milliseconds, medians of the rounds (each the fastest of nine runs) with their spread, and the median of the rounds' ratios;
"of stream" is the time that as many bytes took by one bsp_put, against that of the reshuffling.
"""
import argparse
import functools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[3]
MPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ob1"]


def run(*command, **more):
    return subprocess.run([str(part) for part in command], check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def results(text):
    """Returns name, seconds and remarks."""
    lines = [line.split() for line in text.splitlines() if "-to-" in line]
    return {line[0]: [float(part) for part in line[1::2]] for line in lines}


def spread(seconds):
    return f"{statistics.median(seconds) * 1e3:.2f} ({min(seconds) * 1e3:.2f}-{max(seconds) * 1e3:.2f})"


def compare(title, rounds, ours, *theirs):
    """`ours` and `theirs` are functions that run a program; `theirs` have names."""
    all_rounds = []
    for _ in range(rounds):
        all_rounds.append((results(ours()), *(results(run()) for _, run in theirs)))
    print(f"\n{title}\n{'':>28} {'dipole, ms':>20} {'of memcpy':>10} {'of stream':>10}", *(f"{name + ', ms':>24} {'faster by':>10}" for name, _ in theirs))
    for name in all_rounds[0][0]:
        mine = [one[0][name] for one in all_rounds]
        line = f"{name:>28} {spread([m[0] for m in mine]):>20}"
        for at in (1, 2):
            line += f" {statistics.median(m[at] / m[0] for m in mine):>10.2f}"
        for which in range(1, len(all_rounds[0])):
            other = [one[which][name][0] for one in all_rounds if name in one[which]]
            if other:
                line += f" {spread(other):>24} {statistics.median(o / m[0] for m, o in zip(mine, other)):>10.2f}"
        print(line, flush=True)


def peers(programs):
    found = [("pdgemr2d", [programs["pdgemr2d"]])]
    if subprocess.run(["/usr/bin/python3", "-c", "import mpi4py_fft"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        found.append(("mpi4py-fft", ["/usr/bin/python3", HERE / "mpi4py_fft_transfer.py"]))
    else:
        print("SKIPPED: mpi4py-fft is not installed (python3-mpi4py-fft)")
    return found


def between_namespaces(rounds, dipole, programs, folder):
    names = [f"reshuffle{os.getpid()}{end}" for end in "ab"]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "re0", "netns", names[0], "type", "veth", "peer", "name", "re0", "netns", names[1])
        for number, name in enumerate(names, 1):
            run("ip", "-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "re0")
            for device in ("lo", "re0"):
                run("ip", "-n", name, "link", "set", device, "up")
        hosts = folder / "hosts"
        hosts.write_text("".join(f"{n} 10.77.0.{n} slots=1 ssh={name} runtime={folder}/node{n}\n" for n, name in enumerate(names, 1)))
        shell = folder / "shell"
        # Both launchers use this instead of ssh to enter the other namespace.
        shell.write_text('#!/bin/sh\nwhile :; do case "$1" in -o) shift 2;; -*) shift;; *) break;; esac; done\n'
                         'case "$1" in 10.77.0.1) n=' + names[0] + ';; 10.77.0.2) n=' + names[1] + ';; *) n=$1;; esac\n'
                         'shift\nexec ip netns exec "$n" sh -c "$*"\n')
        shell.chmod(0o755)
        inside = ["ip", "netns", "exec", names[0]]
        environment = dict(os.environ, DIPOLE_NID="1", DIPOLE_RUNTIME_DIR=str(folder / "node1"))
        for link in ("auto", "udp"):
            compare(
                f"between two namespaces, link {link}, compared with Open MPI over TCP", rounds,
                lambda: run(*inside, dipole, "run", "-n", 2, "--hosts", hosts, "--rsh", shell, programs["reshuffle"],
                            env=dict(environment, DIPOLE_LINK=link)),
                *((name, functools.partial(
                    run, *inside, *MPI, "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "10.77.0.0/24",
                    "--mca", "oob_tcp_if_include", "10.77.0.0/24", "--mca", "plm_rsh_agent", shell,
                    "--host", "10.77.0.1:1,10.77.0.2:1", "-n", 2, *words)) for name, words in peers(programs)))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("rounds", type=int, nargs="?", default=5)
    arguments.add_argument("--target", type=pathlib.Path, default=ROOT / "target/release")
    given = arguments.parse_args()
    target = given.target.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        library = target / "libbsp.so"
        if not library.exists():
            sys.exit(f"{library} is missing: cargo build --release -p dipole-tools -p dipole-bsp-capi")
        for link in ("libbsp.so", "libbsp.so.0"):
            (folder / link).symlink_to(library)
        programs = {name: folder / name for name in ("reshuffle", "pdgemr2d")}
        run("gcc", "-std=c11", "-O2", HERE / "reshuffle.c", f"-I{ROOT}/include", f"-L{folder}", f"-Wl,-rpath,{folder}",
            "-lbsp", "-o", programs["reshuffle"])
        run("mpicc.openmpi", "-std=c11", "-O2", HERE / "pdgemr2d.c", "-lscalapack-openmpi", "-o", programs["pdgemr2d"])
        compare("on one node, compared with Open MPI through shared memory (vader)", given.rounds,
                lambda: run(target / "dipole", "run", "-n", 2, programs["reshuffle"]),
                *((name, functools.partial(run, *MPI, "--mca", "btl", "self,vader", "-n", 2, *words)) for name, words in peers(programs)))
        if os.geteuid() == 0:
            between_namespaces(given.rounds, target / "dipole", programs, folder)
        else:
            print("SKIPPED: between namespaces: needs root")


if __name__ == "__main__":
    main()
