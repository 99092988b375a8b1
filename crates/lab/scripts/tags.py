#!/usr/bin/env python3
"""Cost of packet tags and encryption: `security=off`, `auth` and `encrypt` in turns.

    sudo crates/lab/scripts/tags.py [--dipole target/release/dipole] [--link udp] [--bench pingpong] [--rounds 31]
                      [--size 64] [--settings off,auth,encrypt]

Each round measures all settings once with `dipole bench ... --on veth`, in a different order.
Prints the medians, and the median and quartiles of the ratios to `off` in the same round.
A setting may be named twice (`off,off`): their ratio shows the noise of the machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dipole", default="target/release/dipole")
    parser.add_argument("--link", default="udp")
    parser.add_argument("--bench", default="pingpong", choices=["pingpong", "stream"])
    parser.add_argument("--size", default="64")
    parser.add_argument("--seconds", default="0.3")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--settings", default="off,auth,encrypt")
    return parser.parse_args()


def keys(folder, settings):
    digits = os.urandom(32).hex()
    files = []
    for index, setting in enumerate(settings):
        path = os.path.join(folder, f"{index}-{setting}")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(f"{digits}\nsecurity={setting}\n")
        files.append(path)
    return files


def measure(given, key):
    command = [given.dipole, "--json", "bench", given.bench, "--size", given.size]
    command += ["--link", given.link, "--on", "veth", "--subjects", "dipole"]
    command += ["--seconds", given.seconds, "--rounds", "1"]
    done = subprocess.run(command, env={**os.environ, "DIPOLE_KEY": key}, check=True,
                          capture_output=True, text=True)
    line = json.loads(done.stdout.splitlines()[0])
    # A time, less is better; for a stream the time per byte.
    return line["p50_ns"] if given.bench == "pingpong" else 1e9 / line["bytes_per_s"]


def main():
    given = arguments()
    settings = given.settings.split(",")
    found = [[] for _ in settings]
    with tempfile.TemporaryDirectory() as folder:
        files = keys(folder, settings)
        for turn in range(given.rounds):
            order = [(turn + step) % len(settings) for step in range(len(settings))]
            for at in order if turn % 2 else reversed(order):
                found[at].append(measure(given, files[at]))
    print(f"{given.link}, {given.bench}, {given.size} B, {given.rounds} rounds, "
          f"load {os.getloadavg()[0]:.1f}")
    for setting, own in zip(settings, found):
        low, middle, high = statistics.quantiles(
            [one / first for one, first in zip(own, found[0])], n=4)
        print(f"{setting:>8} {statistics.median(own):10.4g} ns{'/B' * (given.bench == 'stream')}, "
              f"ratio {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
