#!/usr/bin/env python3
"""Cost of tracing per superstep: the same job with and without DIPOLE_TRACE, in turns.

    cargo build --release -p dipole-tools
    crates/lab/scripts/trace_overhead.py [--link shm] [--ranks 2] [--pairs 15]

Prints a Markdown table: for each kind of superstep the median without a trace, and what the trace adds by
the median over pairs of jobs, with the interval of that median (95 %, by order statistics).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from math import comb
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 60


def samples(value):
    """Yields every measurement in the output of a rank, at any depth."""
    if isinstance(value, dict):
        if "what" in value and "ns" in value:
            yield value
        for part in value.values():
            yield from samples(part)


def job(arguments, traces):
    """Returns the medians of supersteps in a job, by kind and h, in ns."""
    command = [arguments.dipole, "run", "-n", str(arguments.ranks), "--env", f"DIPOLE_LINK={arguments.link}"]
    if traces:
        command += ["--env", f"DIPOLE_TRACE={traces}"]
    command += [arguments.dipole, "superstep-rank", "--seconds", str(arguments.seconds), "--samples", "20"]
    command += ["--most-bytes", str(arguments.most_bytes), "--cores", "0,1"]
    environment = {**os.environ, "DIPOLE_HOSTS": "", "DIPOLE_NID": "1"}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}:\n{done.stderr[-500:]}")
    found = {}
    for line in done.stdout.splitlines():
        for sample in samples(json.loads(line)):
            if sample["rank"] == 0 and sample["what"] in ("sync", "put", "exchange") and sample["ns"]:
                found[sample["what"], sample["bytes"]] = statistics.median(sample["ns"])
    return found


def interval(values):
    """Returns the confidence interval of the median, from the binomial distribution."""
    values, count = sorted(values), len(values)
    below, outside = 0.0, 0
    for heads in range(count // 2):
        below += comb(count, heads) / 2**count
        if below > 0.025:
            break
        outside = heads
    return values[outside], values[count - 1 - outside]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dipole", default=str(ROOT / "target/release/dipole"))
    parser.add_argument("--link", default="shm")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.02, help="of each measurement")
    parser.add_argument("--most-bytes", type=int, default=1 << 20)
    arguments = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.pairs):
            traces = str(Path(folder) / str(number))
            order = [None, traces] if number % 2 else [traces, None]
            found = {bool(one): job(arguments, one) for one in order}
            pairs.append((found[False], found[True]))
    print(f"| {arguments.ranks} ranks by {arguments.link} | without, us | traced adds, ns | % |")
    print("|---|---|---|---|")
    for kind in pairs[0][0]:
        both = [(plain[kind], traced[kind]) for plain, traced in pairs if kind in plain and kind in traced]
        added = [traced - plain for plain, traced in both]
        shares = [100 * (traced / plain - 1) for plain, traced in both]
        plain = statistics.median(plain for plain, _ in both)
        (low, high), (least, most) = interval(added), interval(shares)
        name = f"{kind[0]}, h = {kind[1]} B"
        print(f"| {name} | {plain / 1e3:.3g} | {statistics.median(added):.0f} ({low:.0f}..{high:.0f}) "
              f"| {statistics.median(shares):.1f} ({least:.1f}..{most:.1f}) |")


if __name__ == "__main__":
    main()
