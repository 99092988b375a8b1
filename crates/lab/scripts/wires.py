#!/usr/bin/env python3
"""Measures messages of 4 KiB to 1 MiB over two kinds of wire, next to TCP and to bare UDP with checksums.

    sudo crates/lab/scripts/wires.py [--dipole target/release/dipole] [--rounds 3] [--mtu 1500 9000]

Two network namespaces on a veth pair. On the wire "whole" the kernel passes segments of up to 64 KiB in
one piece; on the wire "cut" segmentation offloads are off and GRO is on, so that each packet crosses
alone, as with most cards. Each round starts a new `dipole bench server` on one core and measures from
the other one, with subjects in turn. Prints medians over the rounds with the smallest and largest, and
the ratio to TCP.
"""

import argparse
import statistics

from two_nodes import SEGMENTATION, Nodes, figures, run, switch, within, words_of

TCP = "bare-tcp-spin"
# Subjects by their name in the table: the name in the benchmark, the link, and variables.
RUNS = [
    ({"udp": "dipole", "TCP": TCP, "UDP with CRC": "bare-udp-gso-crc"}, "udp", {}),
    ({"bpf": "dipole"}, "bpf", {}),
    ({"udp, kernel checksum": "dipole"}, "udp", {"DIPOLE_CHECKSUM": "kernel"}),
]
SIZES = [4 << 10, 16 << 10, 64 << 10, 1 << 20]


def round_of(nodes, wire, made):
    for kind in ["pingpong", "stream"]:
        for size in SIZES:
            for names, link, variables in RUNS:
                lines = nodes.measure(kind, size, list(names.values()), link, 0.2, **variables)
                for name, subject in names.items():
                    (unit, value), *_ = figures(lines[subject]).items()
                    made.setdefault((wire, kind, size, unit), {}).setdefault(name, []).append(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dipole", default="target/release/dipole")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mtu", type=int, nargs="+", default=[1500, 9000])
    given = parser.parse_args()
    made = {}
    with Nodes(given.dipole) as nodes:
        for _ in range(given.rounds):
            for mtu in given.mtu:
                for side in [0, 1]:
                    run(*within(side, "ip", "link", "set", "veth0", "mtu", str(mtu)))
                for wire, segmentation, gro in [("whole", "on", "off"), ("cut", "off", "on")]:
                    switch(SEGMENTATION, segmentation)
                    switch(["gro"], gro)
                    round_of(nodes, f"MTU {mtu}, {wire}", made)
    names = [name for names, *_ in RUNS for name in names]
    print(f"| | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for (wire, kind, size, unit), by_name in made.items():
        tcp = statistics.median(by_name["TCP"])
        cells = [f"{words_of(by_name[name])} {statistics.median(by_name[name]) / tcp:.2f}" for name in names]
        print(f"| {wire}, {kind} of {size >> 10} KiB, {unit} | {' | '.join(cells)} |")


main()
