"""Two network namespaces on a veth pair, and `dipole bench` between them."""

import json
import os
import statistics
import subprocess
import tempfile
import time

NAMES = [f"lab{os.getpid()}{side}" for side in "ab"]
ADDRESSES = ["10.98.1.1", "10.98.1.2"]
SEGMENTATION = ["tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-generic-segmentation", "tx-udp-segmentation"]


def run(*words, **options):
    return subprocess.run(words, check=True, **options)


def within(side, *words):
    return ["ip", "netns", "exec", NAMES[side], *words]


def switch(features, state):
    """Switches features of both interfaces on or off."""
    for side in [0, 1]:
        for feature in features:
            run(*within(side, "ethtool", "-K", "veth0", feature, state), capture_output=True)


class Nodes:
    """The namespaces, and a folder for the processes in them."""

    def __init__(self, dipole):
        self.dipole = os.path.abspath(dipole)

    def __enter__(self):
        for name in NAMES:
            run("ip", "netns", "add", name)
        run("ip", "-n", NAMES[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", NAMES[1])
        for side, address in enumerate(ADDRESSES):
            run("ip", "-n", NAMES[side], "address", "add", f"{address}/24", "dev", "veth0")
            for device in ["lo", "veth0"]:
                run("ip", "-n", NAMES[side], "link", "set", device, "up")
        self.place = tempfile.TemporaryDirectory()
        for side in "ab":
            os.mkdir(f"{self.place.name}/{side}", 0o700)
        with open(f"{self.place.name}/hosts", "w", encoding="ascii") as hosts:
            hosts.writelines(f"{at + 1} {address}\n" for at, address in enumerate(ADDRESSES))
        return self

    def __exit__(self, *_):
        self.place.cleanup()
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def measure(self, kind, size, subjects, link="udp", seconds=0.5, **variables):
        """Returns the lines of `dipole bench`, by subject. Each side has a core."""
        words = [["taskset", "-c", str(side), "chrt", "-f", "10", self.dipole] for side in [0, 1]]
        common = ["--hosts", f"{self.place.name}/hosts"]
        environments = [{**os.environ, **variables, "DIPOLE_RUNTIME_DIR": f"{self.place.name}/{side}"} for side in "ab"]
        server = subprocess.Popen(
            within(1, *words[1], "bench", "server", *common, "--nid", "2"),
            env=environments[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(0.5)
            output = run(
                *within(0, *words[0], "--json", "bench", kind, "--to", "2", *common, "--nid", "1"),
                "--size", str(size), "--link", link, "--seconds", str(seconds), "--rounds", "1",
                "--subjects", ",".join(subjects),
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
