#!/usr/bin/env python3
"""Compares whole TCP programs over plain TCP, with libdipole-sockets.so, and with what the kernel offers for that:
see docs/design/sockets.md §8.

value.py LIBRARY [--rounds N] [--wire]
Programs run as a user starts them: default scheduling, not pinned; first on an idle machine, then next to two endless
loops. Subjects by turns: TCP; the library at both ends; on loopback a redirection in the kernel (redirect.bpf.c, needs root,
clang, libbpf-dev and bpftool); with --wire, between two namespaces joined by a veth pair with GRO, polling of the device
(net.core.busy_poll). Prints medians, and the ratio to TCP of the medians.
"""

import argparse
import atexit
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

FOLDER = tempfile.mkdtemp(dir="/dev/shm")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
os.chmod(FOLDER, 0o755)
CGROUPS = "/sys/fs/cgroup/unified" if os.path.isdir("/sys/fs/cgroup/unified") else "/sys/fs/cgroup"
GIGABYTE = 10**9


def run(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr or done.returncode}")
    return done.stdout


def build_bpf(source):
    """Compiles programs for the kernel; returns their file, and a folder for what is loaded from it."""
    objects, files = f"{FOLDER}/programs.o", f"{FOLDER}/bpf"
    source = pathlib.Path(__file__).with_name(source)
    run("clang", "-O2", "-g", "-target", "bpf", "-I/usr/include/x86_64-linux-gnu", "-c", source, "-o", objects)
    os.mkdir(files)
    run("mount", "-t", "bpf", "bpf", files)
    atexit.register(subprocess.run, ["umount", files])
    return objects, files


class Place:
    """Where server and client run."""

    address, server, client = "127.0.0.1", [], []

    def separate(self):
        names = [f"value{os.getpid()}{end}" for end in "sc"]
        self.address = "10.78.0.1"
        for name in names:
            run("ip", "netns", "add", name)
            atexit.register(subprocess.run, ["ip", "netns", "del", name])
        run("ip", "link", "add", "so0", "netns", names[0], "type", "veth", "peer", "name", "so0", "netns", names[1])
        for name, address in zip(names, (self.address, "10.78.0.2")):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "so0")
            for device in ("lo", "so0"):
                run("ip", "-n", name, "link", "set", device, "up")
            run("ip", "netns", "exec", name, "ethtool", "-K", "so0", "gro", "on")
        self.server, self.client = (["ip", "netns", "exec", name] for name in names)


class Tcp:
    name = "TCP"

    def environment(self):
        found = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        return found | {"DIPOLE_RUNTIME_DIR": f"{FOLDER}/run"}

    def before(self):
        """Words in front of a command."""
        return []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Library(Tcp):
    name = "library"

    def __init__(self, path):
        # Where other users find it.
        self.path = shutil.copy(path, FOLDER)

    def environment(self):
        return super().environment() | {"LD_PRELOAD": self.path}


class Redirection(Tcp):
    name = "redirection"

    def __init__(self):
        objects, self.files = build_bpf("redirect.bpf.c")
        self.group = f"{CGROUPS}/value{os.getpid()}"
        run("bpftool", "prog", "loadall", objects, f"{self.files}/programs", "pinmaps", f"{self.files}/maps")
        run("bpftool", "prog", "attach", "pinned", f"{self.files}/programs/redirect", "msg_verdict", "pinned", f"{self.files}/maps/ends")
        os.mkdir(self.group)
        atexit.register(os.rmdir, self.group)
        run("bpftool", "cgroup", "attach", self.group, "cgroup_sock_ops", "pinned", f"{self.files}/programs/keep")

    def before(self):
        return ["sh", "-c", f'echo $$ > {self.group}/cgroup.procs; exec "$@"', "sh"]


class DevicePolling(Tcp):
    name = "busy polling"
    values = ("net.core.busy_read", "net.core.busy_poll")

    def __init__(self):
        atexit.register(self.set, 0)

    def set(self, microseconds):
        for value in self.values:
            run("sysctl", "-q", "-w", f"{value}={microseconds}")

    def __enter__(self):
        self.set(50)

    def __exit__(self, *_):
        self.set(0)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


class World:
    """Starts programs in a place, for one subject."""

    def __init__(self, place, subject):
        self.place, self.subject, self.port = place, subject, free_port()
        os.makedirs(f"{FOLDER}/run", mode=0o700, exist_ok=True)

    def command(self, where, words, user=None):
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        return self.subject.before() + where + become + words

    def serve(self, words, user=None):
        environment = self.subject.environment()
        if user:
            environment["DIPOLE_RUNTIME_DIR"] = f"{FOLDER}/{user}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started = subprocess.Popen(self.command(self.place.server, words, user), env=environment, **quiet)
        while not run(*self.place.server, "ss", "-Hltn", f"sport = :{self.port}"):
            if started.poll() is not None:
                sys.exit(f"{words[0]} ended with {started.returncode}")
            time.sleep(0.02)
        return started

    def ask(self, words, user=None):
        environment = self.subject.environment()
        if user:
            environment["DIPOLE_RUNTIME_DIR"] = f"{FOLDER}/{user}"
        return run(*self.command(self.place.client, words, user), env=environment)


def stop(started, how=signal.SIGTERM):
    started.send_signal(how)
    started.wait()


def redis(world, clients):
    started = world.serve(["redis-server", "--port", world.port, "--bind", world.place.address, "--protected-mode", "no",
                           "--save", "", "--dir", FOLDER])
    count = {1: 20000, 50: 60000}[clients]
    found = world.ask(["redis-benchmark", "-h", world.place.address, "-p", world.port, "-t", "get", "-c", str(clients),
                       "-n", str(count), "-d", "64", "--csv"])
    stop(started)
    return float([line for line in found.splitlines() if line.startswith('"GET"')][0].replace('"', "").split(",")[1])


def pgbench(world, clients):
    """Read-only transactions per second. The database is made once."""
    programs = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    data, user = f"{FOLDER}/data", "postgres"
    environment = Tcp().environment()
    if not os.path.isdir(data):
        for folder in (data, f"{FOLDER}/{user}"):
            os.mkdir(folder, 0o700)
            shutil.chown(folder, user, user)
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        run(*as_user, programs / "initdb", "-A", "trust", "-N", "-D", data, env=environment, cwd="/")
        with open(f"{data}/pg_hba.conf", "w", encoding="utf8") as file:
            file.write("host all all all trust\n")
    started = world.serve([str(programs / "postgres"), "-D", data, "-p", world.port, "-k", f"{FOLDER}/{user}", "-h", world.place.address], user)
    base = ["-h", world.place.address, "-p", world.port, "-U", user]
    while subprocess.run([*world.place.client, "pg_isready", "-q", *base], check=False).returncode:
        time.sleep(0.05)
    if not os.path.exists(f"{FOLDER}/filled"):
        run(*world.place.client, "pgbench", *base, "-q", "-i", "-s", "2", "postgres", env=environment)
        pathlib.Path(f"{FOLDER}/filled").touch()
    found = world.ask(["pgbench", *base, "-n", "-S", "-M", "prepared", "-c", str(clients), "-T", "2", "postgres"], user)
    stop(started, signal.SIGINT)
    return float(re.search(r"tps = ([\d.]+)", found)[1])


def nginx(world, length):
    with open(f"{FOLDER}/file", "wb") as file:
        file.write(os.urandom(length))
    paths = " ".join(f"{kind}_temp_path {FOLDER}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    with open(f"{FOLDER}/nginx.conf", "w", encoding="utf8") as file:
        file.write(f"user root; daemon off; pid {FOLDER}/pid; events {{}} http {{ access_log off; {paths} output_buffers 2 512k; "
                   f"server {{ listen {world.place.address}:{world.port}; root {FOLDER}; sendfile off; }} }}")
    started = world.serve(["nginx", "-e", "stderr", "-c", f"{FOLDER}/nginx.conf"])
    found = world.ask(["wrk", "-t1", "-c8", "-d2s", f"http://{world.place.address}:{world.port}/file"])
    stop(started)
    return float(re.search(r"Requests/sec:\s*([\d.]+)", found)[1])


def iperf3(world, length):
    started = world.serve(["iperf3", "-s", "-1", "-p", world.port])
    found = world.ask(["iperf3", "-c", world.place.address, "-p", world.port, "-l", str(length), "-t", "2", "-J"])
    started.wait()
    return json.loads(found)["end"]["sum_received"]["bits_per_second"] / GIGABYTE


PROGRAMS = [
    ("redis GET, 1 client, 1/s", lambda world: redis(world, 1)),
    ("redis GET, 50 clients, 1/s", lambda world: redis(world, 50)),
    ("pgbench -S, 1 client, 1/s", lambda world: pgbench(world, 1)),
    ("pgbench -S, 8 clients, 1/s", lambda world: pgbench(world, 8)),
    ("nginx, wrk, 64 bytes, 1/s", lambda world: nginx(world, 64)),
    ("nginx, wrk, 512 KiB, 1/s", lambda world: nginx(world, 512 << 10)),
    ("iperf3 -l 128K, Gbit/s", lambda world: iperf3(world, 128 << 10)),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wire", action="store_true")
    options = parser.parse_args()
    place = Place()
    if options.wire:
        place.separate()
    subjects = [Tcp(), Library(options.library), DevicePolling() if options.wire else Redirection()]
    for loops in (0, 2):
        print(f"next to {loops} endless loops" if loops else "idle machine", flush=True)
        busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(loops)]
        try:
            for name, measure in PROGRAMS:
                found = {subject: [] for subject in subjects}
                for _ in range(options.rounds):
                    for subject in subjects:
                        with subject:
                            found[subject].append(measure(World(place, subject)))
                base = statistics.median(found[subjects[0]])
                for subject, values in found.items():
                    median = statistics.median(values)
                    every = ", ".join(f"{value:.4g}" for value in values)
                    print(f"  {name:28} {subject.name:14} {median:10.4g}  x {median / base:5.2f}  ({every})", flush=True)
        finally:
            for loop in busy:
                loop.kill()
                loop.wait()


if __name__ == "__main__":
    main()
