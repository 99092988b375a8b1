#!/usr/bin/env python3
"""Compares Dipole from Python with Dipole from C and with other packages, alternating in one run.

    cargo xtask wheel --output out && python3 -m venv env
    env/bin/pip install out/dipole-*.whl numpy pyzmq mpi4py mpich 'dask[dataframe]' distributed
    env/bin/python crates/lab/scripts/python/compare.py [--rounds 5]

Each subject runs two processes on the cores of this machine. Prints a Markdown table: the median over the
rounds of each round's median and 99th percentile, and the least and most median of a round. Subjects
whose packages are missing are left out.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(sys.prefix) / "bin"
TIMEOUT_S = 120


def run(command, variables):
    """The times that a command prints; None, with a message, if it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DIPOLE_")}
    environment = {**kept, "DIPOLE_NID": "1", **variables}
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith("[")]
    if ran.returncode != 0 or not lines:
        print(f"{' '.join(map(str, command))}:\n{ran.stderr[-800:]}", file=sys.stderr)
        return None
    return json.loads(lines[-1])


def subjects(c_program):
    """Name, command without its work, and variables of each subject, by its kind."""
    job = [BIN / "dipole", "run", "-n", "2", "--bind"]
    peer = [sys.executable, HERE / "peer.py"]
    found = {
        "C": ([*job, c_program], {}),
        "Python": ([*job, *peer, "dipole"], {}),
        "pipe": ([*peer, "pipe"], {}),
    }
    if importlib.util.find_spec("zmq"):
        found["pyzmq"] = ([*peer, "pyzmq"], {})
    if importlib.util.find_spec("mpi4py"):
        # Each rank on its own core; not through MPICH's shared memory.
        mpi = [BIN / "mpiexec", "-bind-to", "core", "-n", "2", *peer, "mpi4py"]
        common = {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}
        provider = {"FI_PROVIDER": "dipole", "FI_PROVIDER_PATH": str(Path(sys.prefix) / "lib/libfabric")}
        found["mpi4py over Dipole"] = (mpi, {**common, **provider})
        found["mpi4py over TCP"] = (mpi, {**common, "FI_PROVIDER": "tcp"})
    return found


def cases(known):
    """Work, unit and repetitions, with the subjects that take part."""
    python = known["Python"]
    bsp = ([word if word != "dipole" else "bsp" for word in python[0]], {})
    views = {"Python": ("message", python), "Python, message in place": ("view", python)}
    small = {**views, "Python, pickled": ("object", python)}
    others = {name: ("message", it) for name, it in known.items() if name != "Python"}
    arrays = {name: ("array", it) for name, it in known.items()}
    yield "64 B one way", "us", 1.0, 5000, {**others, **small}
    yield "64 MiB by message", "ms", 1e3, 8, arrays
    yield "64 MiB by put", "ms", 1e3, 8, {name: ("put", known[name]) for name in ("C", "Python")}
    yield "bsp_sync", "us", 1.0, 20_000, {"C": ("sync", known["C"]), "Python": ("sync", bsp)}
    if importlib.util.find_spec("distributed") and importlib.util.find_spec("pandas"):
        for work, program, unit, scale, count in (
            ("message", "dask_comm.py", "us", 1e-6, 2000),
            ("array", "dask_comm.py", "ms", 1e-3, 60),
            ("transpose", "dask_work.py", "s", 1.0, 20),
            ("shuffle-tasks", "dask_work.py", "s", 1.0, 20),
            ("shuffle-p2p", "dask_work.py", "s", 1.0, 20),
        ):
            dask = {
                protocol: (work, ([sys.executable, HERE / program, protocol], {}))
                for protocol in ("tcp", "dipole")
            }
            yield f"Dask: {work}", unit, scale, count, dask


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        c_program = f"{folder}/peer"
        prefix = Path(sys.prefix)
        subprocess.run(
            ["cc", "-O2", "-std=c11", f"-I{prefix}/include", f"-L{prefix}/lib"]
            + [f"-Wl,-rpath,{prefix}/lib", "-o", c_program, HERE / "peer.c", "-lbsp", "-ldipole"],
            check=True,
        )
        print(f"rounds: {arguments.rounds}, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
        print("| | median | 99 % | medians of rounds |\n|---|---|---|---|")
        for name, unit, scale, count, taking_part in cases(subjects(c_program)):
            if arguments.only not in name:
                continue
            rounds = {subject: [] for subject in taking_part}
            for _ in range(arguments.rounds):
                for subject, (work, (command, variables)) in taking_part.items():
                    times = run([*command, work, str(count)], variables)
                    if times:
                        # The first ones warm up.
                        rounds[subject].append(sorted(times[len(times) // 10 + 1 :]))
            for subject, all_times in rounds.items():
                if not all_times:
                    continue
                medians = sorted(statistics.median(times) / scale for times in all_times)
                late = statistics.median(times[len(times) * 99 // 100] / scale for times in all_times)
                print(
                    f"| {name}: {subject} | {statistics.median(medians):.4g} {unit} | {late:.4g} "
                    f"| {medians[0]:.4g}..{medians[-1]:.4g} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
