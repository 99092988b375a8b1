#!/usr/bin/env python3
"""Figure 12 of Gigabit Nectar, left and right, on this machine: see docs/design/reshuffling.md, "Figure 12".

    cargo build --release -p dipole-tools -p dipole-bsp-capi -p dipole-capi
    crates/lab/scripts/reshuffling/figure12.py [RANKS] [--rounds 3] [--target target/release]

Prints a table: medians over rounds, each the fastest of three runs, in MB/s of all ranks; and the spread of rounds.
"""
import argparse
import collections
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[3]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("ranks", type=int, nargs="?", default=2)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--target", type=pathlib.Path, default=ROOT / "target/release")
    given = arguments.parse_args()
    target = given.target.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for library in ("libbsp.so", "libdipole.so"):
            if not (target / library).exists():
                sys.exit(f"{target / library} is missing: cargo build --release -p dipole-tools -p dipole-bsp-capi -p dipole-capi")
            for link in (library, f"{library}.0"):
                (folder / link).symlink_to(target / library)
        program = folder / "figure12"
        subprocess.run(["gcc", "-std=c11", "-O2", HERE / "figure12.c", f"-I{ROOT}/include", f"-L{folder}",
                        f"-Wl,-rpath,{folder}", "-lbsp", "-ldipole", "-o", program], check=True)
        found = collections.defaultdict(list)
        for _ in range(given.rounds):
            ran = subprocess.run([target / "dipole", "run", "-n", str(given.ranks), program], check=True,
                                 stdout=subprocess.PIPE, text=True)
            for line in ran.stdout.splitlines():
                what, block, rate = line.split()
                found[what, int(block)].append(float(rate))
    rates = {key: statistics.median(values) for key, values in found.items()}
    one = {what: rate for (what, _), rate in rates.items() if what in ("copy", "tcp", "streaming")}
    print(f"{given.ranks} ranks; a bare copy {one['copy']:.0f}, one process to a TCP connection {one['tcp']:.0f}, "
          f"streaming {one['streaming']:.0f} MB/s\n")
    print("| block, B | reshuffled to 8 KiB | to the outside, reshuffled before | block by block |\n|---|---|---|---|")
    for block in sorted(block for what, block in rates if what == "with"):
        row = [rates[what, block] for what in ("reshuffled", "with", "without")]
        print(f"| {block} | " + " | ".join(f"{rate:.3g}" if rate < 100 else f"{rate:.0f}" for rate in row) + " |")
    spreads = [(max(values) - min(values)) / rates[key] for key, values in found.items()]
    print(f"\n{given.rounds} rounds; between the least and the most of them half of the values differ by less than {statistics.median(spreads):.0%}")


if __name__ == "__main__":
    main()
