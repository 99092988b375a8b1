#!/usr/bin/env python3
"""Cost of recording waits in a program with endpoints or MPI: with and without DIPOLE_TRACE, in turns.

    crates/lab/scripts/wait_overhead.py 'one way ([0-9]+) ns' -- ./pingpong 200000 64
    crates/lab/scripts/wait_overhead.py '"p50_ns": *([0-9.]+)' -- mpirun -n 2 ./bench pingpong 64 1

Runs the command, whose output has the figure that the pattern finds. Prints its median without a trace, and
by the median over pairs of runs what the trace adds in percent, with the interval of that median (95 %).
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from trace_overhead import interval


def figure(arguments, traces):
    environment = {**os.environ, "DIPOLE_TRACE": traces or ""}
    done = subprocess.run(
        arguments.command, env=environment, text=True, capture_output=True, timeout=120, check=False
    )
    found = re.search(arguments.pattern, done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(f"{' '.join(arguments.command)}:\n{done.stdout[-500:]}{done.stderr[-500:]}")
    return float(found.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.pairs):
            traces = str(Path(folder) / str(number))
            order = [None, traces] if number % 2 else [traces, None]
            found = {bool(one): figure(arguments, one) for one in order}
            pairs.append((found[False], found[True]))
    shares = [100 * (traced / plain - 1) for plain, traced in pairs]
    least, most = interval(shares)
    plain = statistics.median(plain for plain, _ in pairs)
    print(f"{plain:.4g} without, traced {statistics.median(shares):+.2f} % ({least:+.2f}..{most:+.2f})")


if __name__ == "__main__":
    main()
