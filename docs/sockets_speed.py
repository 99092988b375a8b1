#!/usr/bin/env python3
"""Programs of TCP without and with libdipole-sockets.so, in turns: see docs/sockets.md §7.

sockets_speed.py LIBRARY KIND [ROUNDS]; KIND is crossover, iperf3, redis, nginx, establish or round.
Each value is printed, then the ratio of the medians. The programs must be installed.
"""

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

LIBRARY, KIND = sys.argv[1:3]
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 5
FOLDER = tempfile.mkdtemp()


def environment(mode):
    """mode: None without the library, else bytes from which on writes go through memory."""
    found = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    found["DIPOLE_RUNTIME_DIR"] = FOLDER
    if mode is not None:
        found |= {"LD_PRELOAD": os.path.abspath(LIBRARY), "DIPOLE_SOCKETS_LEAST": str(mode)}
    return found


def on(core, words):
    """A pinned program of real-time priority, where that is allowed."""
    allowed = os.geteuid() == 0
    return (["chrt", "-f", "10"] if allowed else []) + ["taskset", "-c", str(core)] + words


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def server(words, mode, port):
    started = subprocess.Popen(on(0, words), env=environment(mode), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        listening = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True).stdout
        if listening:
            return started
        time.sleep(0.02)


def client(words, mode):
    return subprocess.run(on(1, words), env=environment(mode), capture_output=True, text=True, check=True).stdout


def stop(started):
    started.send_signal(signal.SIGTERM)
    started.wait()


def iperf3(length, mode):
    """Gbit/s, and Gbit/s per core of processor time at both ends."""
    port = free_port()
    started = server(["iperf3", "-s", "-1", "-p", port], mode, port)
    found = json.loads(client(["iperf3", "-c", "127.0.0.1", "-p", port, "-l", str(length), "-n", "1G", "-J"], mode))["end"]
    started.wait()
    rate = found["sum_received"]["bits_per_second"] / 1e9
    used = found["cpu_utilization_percent"]
    return rate, rate / ((used["host_total"] + used["remote_total"]) / 100)


def redis(clients, pipeline, mode, length=64):
    """Requests a second of GET, and the 99th percentile in ms."""
    port = free_port()
    started = server(["redis-server", "--port", port, "--save", "", "--dir", FOLDER], mode, port)
    count = 2000 if length > 10000 else (40000 if pipeline > 1 or clients > 1 else 10000)
    words = ["redis-benchmark", "-p", port, "-t", "set,get", "-c", str(clients), "-P", str(pipeline), "-n", str(count), "-d", str(length), "--csv"]
    found = client(words, mode)
    stop(started)
    get = [line for line in found.splitlines() if line.startswith('"GET"')][0].replace('"', "").split(",")
    return float(get[1]), float(get[6])


def nginx(length, mode):
    """Requests a second."""
    port = free_port()
    with open(f"{FOLDER}/file", "wb") as file:
        file.write(os.urandom(length))
    paths = " ".join(f"{kind}_temp_path {FOLDER}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    with open(f"{FOLDER}/nginx.conf", "w") as file:
        user = "user root;" if os.geteuid() == 0 else ""
        file.write(f"{user} daemon off; pid {FOLDER}/pid; events {{}} http {{ access_log off; {paths} output_buffers 2 512k; "
                   f"server {{ listen 127.0.0.1:{port}; root {FOLDER}; sendfile off; }} }}")
    started = server(["nginx", "-e", "stderr", "-c", f"{FOLDER}/nginx.conf"], mode, port)
    found = client(["wrk", "-t1", "-c8", "-d1s", f"http://127.0.0.1:{port}/file"], mode)
    stop(started)
    return (float(re.search(r"Requests/sec:\s*([\d.]+)", found)[1]),)


PAIR = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
if sys.argv[1] == "establish":
    times = []
    for _ in range(300):
        begun = time.perf_counter()
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
        times.append(time.perf_counter() - begun)
        one.close(); other.close()
    print(sorted(times)[len(times) // 2] * 1e6)
else:
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    begun = time.process_time()
    for _ in range(20000):
        one.send(b"m" * 64); other.recv(64); other.send(b"m" * 64); one.recv(64)
    print((time.process_time() - begun) / 20000 * 1e6)
"""


def pair(mode):
    """Microseconds."""
    return (float(client([sys.executable, "-c", PAIR, KIND], mode)),)


def compare(name, measure, modes):
    found = {mode: [] for mode in modes}
    for _ in range(ROUNDS):
        for mode in modes:
            found[mode].append(measure(mode))
    base = None
    for mode in modes:
        columns = list(zip(*found[mode]))
        medians = [statistics.median(column) for column in columns]
        base = base or medians
        ratios = " ".join(f"{now / before:.2f}" for now, before in zip(medians, base))
        what = "TCP" if mode is None else f"library from {mode}"
        values = "; ".join(", ".join(f"{value:.4g}" for value in column) for column in columns)
        print(f"{name:18} {what:20} x {ratios:12} medians {' '.join(f'{value:.4g}' for value in medians):16} all {values}", flush=True)


USUAL = [None, 32 << 10]
if KIND == "crossover":
    for kib in (8, 16, 32, 64, 128, 256, 512, 1024):
        compare(f"iperf3 -l {kib}K", lambda mode: iperf3(kib << 10, mode), [None, 4096])
elif KIND == "iperf3":
    for kib in (16, 32, 64, 128, 1024):
        compare(f"iperf3 -l {kib}K", lambda mode: iperf3(kib << 10, mode), USUAL)
elif KIND == "redis":
    for clients, pipeline in ((1, 1), (1, 16), (50, 1), (50, 16)):
        compare(f"GET -c {clients} -P {pipeline}", lambda mode: redis(clients, pipeline, mode), USUAL)
    compare("GET 512 KiB -c 8", lambda mode: redis(8, 1, mode, 512 << 10), USUAL)
elif KIND == "nginx":
    for length in (64, 512 << 10):
        compare(f"wrk {length} bytes", lambda mode: nginx(length, mode), USUAL)
else:
    compare(KIND, pair, USUAL)
