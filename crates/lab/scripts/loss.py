#!/usr/bin/env python3
"""Measures latency and throughput over a link that loses packets, next to TCP and to the link without loss.

    sudo crates/lab/scripts/loss.py [--dipole target/release/dipole] [--loss 0.01] [--rounds 5]

Two network namespaces on a veth pair of MTU 1500 without segmentation offloads and GRO, so that the
kernel's packet filter drops single packets, at random, in both directions. Each round starts a new
`dipole bench server` on one core and measures from the other one, without loss and with it, in turn.
Prints medians over the rounds with the smallest and largest as a table, and the ratio of the medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

NAMES = [f"loss{os.getpid()}{side}" for side in "ab"]
ADDRESSES = ["10.98.1.1", "10.98.1.2"]
OFFLOADS = ["tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-generic-segmentation", "tx-udp-segmentation", "gro"]
SUBJECTS = ["dipole", "bare-tcp-spin"]


def run(*words, **options):
    return subprocess.run(words, check=True, **options)


def within(side, *words):
    return ["ip", "netns", "exec", NAMES[side], *words]


def make():
    for name in NAMES:
        run("ip", "netns", "add", name)
    run("ip", "-n", NAMES[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", NAMES[1])
    for side, address in enumerate(ADDRESSES):
        run("ip", "-n", NAMES[side], "address", "add", f"{address}/24", "dev", "veth0")
        for device in ["lo", "veth0"]:
            run("ip", "-n", NAMES[side], "link", "set", device, "up")
        for offload in OFFLOADS:
            run(*within(side, "ethtool", "-K", "veth0", offload, "off"), capture_output=True)


def lose(share):
    for side in [0, 1]:
        run(*within(side, "nft", "flush", "ruleset"))
        if share:
            hook = "{ type filter hook ingress device veth0 priority 0; }"
            drop = f"numgen random mod 100000 < {round(share * 100000)} drop"
            rules = f"add table netdev loss\nadd chain netdev loss in {hook}\nadd rule netdev loss in {drop}\n"
            run(*within(side, "nft", "-f", "-"), input=rules, text=True)


def measure(dipole, folder, kind, size):
    """Returns the lines of `dipole bench`, by subject."""
    words = [["taskset", "-c", str(side), "chrt", "-f", "10", dipole] for side in [0, 1]]
    common = ["--hosts", f"{folder}/hosts"]
    environments = [{**os.environ, "DIPOLE_RUNTIME_DIR": f"{folder}/{side}"} for side in "ab"]
    server = subprocess.Popen(
        within(1, *words[1], "bench", "server", *common, "--nid", "2"),
        env=environments[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(0.5)
        output = run(
            *within(0, *words[0], "--json", "bench", kind, "--to", "2", *common, "--nid", "1"),
            "--size", str(size), "--link", "udp", "--seconds", "0.5", "--rounds", "1",
            "--subjects", ",".join(SUBJECTS),
            env=environments[0], stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=120,
        ).stdout
    finally:
        server.terminate()
        server.wait()
    lines = [json.loads(line) for line in output.splitlines()]
    return {line["subject"]: line for line in lines if "subject" in line}


def figures(line):
    """The figures of a line with their unit."""
    if "p50_ns" in line:
        return {"us": line["p50_ns"] / 1e3, "us, p99": line["p99_ns"] / 1e3}
    return {"GB/s": line["bytes_per_s"] / 1e9}


def words_of(values):
    median, least, most = (f"{float(f'{value:.3g}'):g}" for value in (statistics.median(values), min(values), max(values)))
    return f"{median} ({least}..{most})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dipole", default="target/release/dipole")
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    dipole = os.path.abspath(given.dipole)
    made = {}
    try:
        make()
        with tempfile.TemporaryDirectory() as folder:
            for side in "ab":
                os.mkdir(f"{folder}/{side}", 0o700)
            with open(f"{folder}/hosts", "w", encoding="ascii") as hosts:
                hosts.writelines(f"{at + 1} {address}\n" for at, address in enumerate(ADDRESSES))
            for _ in range(given.rounds):
                for kind, size in [("pingpong", 16 << 10), ("pingpong", 1 << 20), ("stream", 64 << 10), ("stream", 1 << 20)]:
                    for share in [0, given.loss]:
                        lose(share)
                        for subject, line in measure(dipole, folder, kind, size).items():
                            for unit, value in figures(line).items():
                                made.setdefault((kind, size, unit, subject), {}).setdefault(share, []).append(value)
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], check=False)
    print(f"| | | without loss | {given.loss:.1%} lost | ratio |\n|---|---|---|---|---|")
    for (kind, size, unit, subject), by_share in made.items():
        without, lossy = by_share[0], by_share[given.loss]
        ratio = statistics.median(lossy) / statistics.median(without)
        print(f"| {kind} of {size >> 10} KiB, {unit} | {subject} | {words_of(without)} | {words_of(lossy)} | {ratio:.2f} |")


main()
