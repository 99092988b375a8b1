#!/usr/bin/env python3
"""Measures latency and throughput over a link that loses packets, next to TCP and to the link without loss.

    sudo crates/lab/scripts/loss.py [--dipole target/release/dipole] [--loss 0.01] [--rounds 5]

Two network namespaces on a veth pair of MTU 1500 without segmentation offloads and GRO, so that the
kernel's packet filter drops single packets, at random, in both directions. Each round starts a new
`dipole bench server` on one core and measures from the other one, without loss and with it, in turn.
Prints medians over the rounds with the smallest and largest as a table, and the ratio of the medians.
"""

import argparse
import statistics

from two_nodes import SEGMENTATION, Nodes, figures, run, switch, within, words_of

SUBJECTS = ["dipole", "bare-tcp-spin"]


def lose(share):
    for side in [0, 1]:
        run(*within(side, "nft", "flush", "ruleset"))
        if share:
            hook = "{ type filter hook ingress device veth0 priority 0; }"
            drop = f"numgen random mod 100000 < {round(share * 100000)} drop"
            rules = f"add table netdev loss\nadd chain netdev loss in {hook}\nadd rule netdev loss in {drop}\n"
            run(*within(side, "nft", "-f", "-"), input=rules, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dipole", default="target/release/dipole")
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    made = {}
    with Nodes(given.dipole) as nodes:
        switch([*SEGMENTATION, "gro"], "off")
        for _ in range(given.rounds):
            for kind, size in [("pingpong", 16 << 10), ("pingpong", 1 << 20), ("stream", 64 << 10), ("stream", 1 << 20)]:
                for share in [0, given.loss]:
                    lose(share)
                    for subject, line in nodes.measure(kind, size, SUBJECTS).items():
                        for unit, value in figures(line).items():
                            made.setdefault((kind, size, unit, subject), {}).setdefault(share, []).append(value)
    print(f"| | | without loss | {given.loss:.1%} lost | ratio |\n|---|---|---|---|---|")
    for (kind, size, unit, subject), by_share in made.items():
        without, lossy = by_share[0], by_share[given.loss]
        ratio = statistics.median(lossy) / statistics.median(without)
        print(f"| {kind} of {size >> 10} KiB, {unit} | {subject} | {words_of(without)} | {words_of(lossy)} | {ratio:.2f} |")


main()
