#!/usr/bin/env python3
"""Compares TCP programs without and with libdipole-sockets.so, in turns: see docs/design/sockets.md §8.

speed.py LIBRARY KIND [ROUNDS] [--wire]; KIND is crossover, iperf3, redis, foreign, nginx, datagrams, zero-copy, or,
on the loopback alone, establish, round, calls, copies. --wire, as root: the ends are in two network namespaces joined by a veth pair,
which are removed afterwards.
Each value is printed, then the ratio of the medians. The programs must be installed.
"""

import atexit
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

WORDS = [word for word in sys.argv[1:] if word != "--wire"]
LIBRARY, KIND = WORDS[:2]
ROUNDS = int(WORDS[2]) if len(WORDS) > 2 else 5
# In memory, like the default registry.
FOLDER = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
# Addresses of server and client, and the commands that enter their namespaces.
AT, FROM, SERVER, CLIENT = "127.0.0.1", "127.0.0.1", [], []


def wire():
    global AT, FROM, SERVER, CLIENT
    names = [f"sockets{os.getpid()}{end}" for end in "ab"]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
        atexit.register(subprocess.run, ["ip", "netns", "del", name])
    subprocess.run(["ip", "link", "add", "so0", "netns", names[0], "type", "veth", "peer", "name", "so0", "netns", names[1]], check=True)
    AT, FROM = "10.78.0.1", "10.78.0.2"
    for name, address in zip(names, (AT, FROM)):
        subprocess.run(["ip", "-n", name, "addr", "add", f"{address}/24", "dev", "so0"], check=True)
        for device in ("lo", "so0"):
            subprocess.run(["ip", "-n", name, "link", "set", device, "up"], check=True)
    SERVER, CLIENT = (["ip", "netns", "exec", name] for name in names)


def environment(mode):
    """mode: None without the library, else the minimum length of writes through shared memory."""
    found = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    found["DIPOLE_RUNTIME_DIR"] = FOLDER
    if mode is not None:
        found |= {"LD_PRELOAD": os.path.abspath(LIBRARY), "DIPOLE_SOCKETS_MIN_BYTES": str(mode)}
    return found


def on(core, words):
    """Runs a pinned program, with real-time priority where that is allowed; the server's core is 0."""
    allowed = os.geteuid() == 0
    where = CLIENT if core else SERVER
    return where + (["chrt", "-f", "10"] if allowed else []) + ["taskset", "-c", str(core)] + words


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def server(words, mode, port):
    started = subprocess.Popen(on(0, words), env=environment(mode), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        listening = subprocess.run(SERVER + ["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True).stdout
        if listening:
            return started
        time.sleep(0.02)


def client(words, mode):
    return subprocess.run(on(1, words), env=environment(mode), capture_output=True, text=True, check=True).stdout


def stop(started):
    started.send_signal(signal.SIGTERM)
    started.wait()


def iperf3(length, mode):
    """Returns Gbit/s, and Gbit/s per core of CPU time of both ends."""
    port = free_port()
    started = server(["iperf3", "-s", "-1", "-p", port], mode, port)
    found = json.loads(client(["iperf3", "-c", AT, "-p", port, "-l", str(length), "-n", "1G", "-J"], mode))["end"]
    started.wait()
    rate = found["sum_received"]["bits_per_second"] / 1e9
    used = found["cpu_utilization_percent"]
    return rate, rate / ((used["host_total"] + used["remote_total"]) / 100)


def processor_seconds(process):
    """Returns the CPU time of a running process."""
    with open(f"/proc/{process.pid}/stat") as file:
        words = file.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def redis(clients, pipeline, mode, length=64, alone=False):
    """Returns GET requests per second, the 99th percentile in ms, and CPU time of both ends in us per
    request (SET and GET). alone: the server runs without the library."""
    port = free_port()
    started = server(["redis-server", "--port", port, "--bind", AT, "--protected-mode", "no", "--save", "", "--dir", FOLDER], None if alone else mode, port)
    count = 3000 if length > 10000 else (300000 if pipeline > 1 else 60000 if clients > 1 else 20000)
    before = os.times().children_user + os.times().children_system
    words = ["redis-benchmark", "-h", AT, "-p", port, "-t", "set,get", "-c", str(clients), "-P", str(pipeline), "-n", str(count), "-d", str(length), "--csv"]
    found = client(words, mode)
    used = os.times().children_user + os.times().children_system - before + processor_seconds(started)
    stop(started)
    get = [line for line in found.splitlines() if line.startswith('"GET"')][0].replace('"', "").split(",")
    return float(get[1]), float(get[6]), used / (2 * count) * 1e6


def nginx(length, mode):
    """Returns requests per second."""
    port = free_port()
    with open(f"{FOLDER}/file", "wb") as file:
        file.write(os.urandom(length))
    paths = " ".join(f"{kind}_temp_path {FOLDER}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    with open(f"{FOLDER}/nginx.conf", "w") as file:
        user = "user root;" if os.geteuid() == 0 else ""
        file.write(f"{user} daemon off; pid {FOLDER}/pid; events {{}} http {{ access_log off; {paths} output_buffers 2 512k; "
                   f"server {{ listen {AT}:{port}; root {FOLDER}; sendfile off; }} }}")
    started = server(["nginx", "-e", "stderr", "-c", f"{FOLDER}/nginx.conf"], mode, port)
    found = client(["wrk", "-t1", "-c8", "-d1s", f"http://{AT}:{port}/file"], mode)
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


CALLS = r"""
/* The same calls by turns through the C library, or what is preloaded, and straight to the kernel. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
enum { BLOCKS = 301, ROUNDS = 300 };
static double times[2][BLOCKS];
static int order(const void *a, const void *b) { return *(double *)a < *(double *)b ? -1 : 1; }
int main(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    char text[64] = { 0 };
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, size) || listen(listener, 1) || getsockname(listener, (void *)&at, &size)
        || connect(one, (void *)&at, size))
        return 1;
    int other = accept(listener, 0, 0);
    for (int block = 0; block < BLOCKS; block++)
        for (int straight = 0; straight < 2; straight++) {
            struct timespec begun, ended;
            clock_gettime(CLOCK_MONOTONIC, &begun);
            for (int i = 0; i < ROUNDS; i++) {
                long sent = straight ? syscall(SYS_sendto, one, text, 64, 0, 0, 0) : send(one, text, 64, 0);
                long got = straight ? syscall(SYS_recvfrom, other, text, 64, 0, 0, 0) : recv(other, text, 64, 0);
                if (sent != 64 || got != 64)
                    return 1;
            }
            clock_gettime(CLOCK_MONOTONIC, &ended);
            times[straight][block] = ((ended.tv_sec - begun.tv_sec) * 1e9 + (ended.tv_nsec - begun.tv_nsec)) / ROUNDS / 2;
        }
    for (int straight = 0; straight < 2; straight++)
        qsort(times[straight], BLOCKS, sizeof(double), order);
    printf("%f %f\n", times[0][BLOCKS / 2], times[0][BLOCKS / 2] - times[1][BLOCKS / 2]);
    return 0;
}
"""


def calls(mode):
    """Returns the time in ns of a send or recv of 64 bytes of available data, and its excess over a system call."""
    program = f"{FOLDER}/calls"
    if not os.path.exists(program):
        subprocess.run(["cc", "-O2", "-x", "c", "-o", program, "-"], input=CALLS, text=True, check=True)
    return tuple(map(float, client([program], mode).split()))


COPIES = r"""
/* GB/s from one process's buffer to another's, by two copies through a ring and by one of the reader's. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
enum { RING = 1 << 20, PIECE = 128 << 10 };
static struct { _Alignas(64) atomic_ulong sent; _Alignas(64) atomic_ulong taken; _Alignas(64) char ring[RING]; } *shared;
static void on(int core) { cpu_set_t set; CPU_ZERO(&set); CPU_SET(core, &set); sched_setaffinity(0, sizeof set, &set); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
int main(int argc, char **argv)
{
    size_t length = atol(argv[1]), piece = length < PIECE ? length : PIECE, all = 1UL << 30;
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *buffer = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(buffer, 1, length);
    for (int once = 0; once < 2; once++) {
        shared->sent = shared->taken = 0;
        pid_t writer = fork();
        if (writer == 0) {
            on(0);
            memset(buffer, 2, length);
            for (size_t done = 0; done < all; done += once ? length : piece) {
                if (once) {
                    shared->sent = done + length;
                    while (shared->taken < done + length) ;
                } else {
                    while (done + piece - shared->taken > RING) ;
                    memcpy(shared->ring + done % RING, buffer + done % length, piece);
                    shared->sent = done + piece;
                }
            }
            pause();
        }
        on(1);
        while (!shared->sent) ;
        double begun = now();
        for (size_t done = 0; done < all; done += once ? length : piece) {
            while (shared->sent <= done) ;
            if (once) {
                struct iovec to = { buffer, length }, from = { buffer, length };
                if (process_vm_readv(writer, &to, 1, &from, 1, 0) != (ssize_t)length)
                    return 1;
                shared->taken = done + length;
            } else {
                memcpy(buffer + done % length, shared->ring + done % RING, piece);
                shared->taken = done + piece;
            }
        }
        printf("%.2f ", all / (now() - begun) / 1e9);
        fflush(stdout);
        kill(writer, SIGKILL);
        waitpid(writer, 0, 0);
    }
    return 0;
}
"""


DATAGRAMS = r"""
/* Round-trip time in us of 64 bytes over UDP on loopback: ends that sleep, and ends that poll. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void on(int core) { cpu_set_t set; CPU_ZERO(&set); CPU_SET(core, &set); sched_setaffinity(0, sizeof set, &set); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static int made(const char *own, const char *other, int which)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(40000 + which), .sin_addr.s_addr = inet_addr(own) };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(40001 - which), .sin_addr.s_addr = inet_addr(other) };
    if (bind(fd, (void *)&at, sizeof at) || connect(fd, (void *)&to, sizeof to))
        _exit(1);
    return fd;
}
int main(int argc, char **argv)
{
    char text[64] = { 0 };
    for (int flags = 0; flags <= MSG_DONTWAIT; flags += MSG_DONTWAIT) {
        int ready[2], rounds = 20000;
        if (pipe(ready))
            return 1;
        pid_t other = fork();
        on(other == 0);
        if (other == 0) {
            if (argc > 3 && setns(open(argv[3], O_RDONLY), CLONE_NEWNET))
                _exit(1);
            int end = made(argv[2], argv[1], 1);
            if (write(ready[1], "", 1) != 1)
                _exit(1);
            for (;;) {
                while (recv(end, text, 64, flags) < 0) ;
                send(end, text, 64, 0);
            }
        }
        int end = made(argv[1], argv[2], 0);
        if (read(ready[0], text, 1) != 1)
            return 1;
        double begun = now();
        for (int i = 0; i < rounds; i++) {
            send(end, text, 64, 0);
            while (recv(end, text, 64, flags) < 0) ;
        }
        printf("%.2f ", (now() - begun) / rounds * 1e6);
        fflush(stdout);
        kill(other, SIGKILL);
        waitpid(other, 0, 0);
        close(end);
    }
    return 0;
}
"""


def compiled(name, source, words, mode=None):
    """Returns the numbers that a program prints. It pins its two ends itself."""
    program = f"{FOLDER}/{name}"
    if not os.path.exists(program):
        subprocess.run(["cc", "-O2", "-x", "c", "-o", program, "-"], input=source, text=True, check=True)
    words = SERVER + [program, *words]
    return tuple(map(float, subprocess.run(words, env=environment(mode), capture_output=True, text=True, check=True).stdout.split()))


def datagrams(mode):
    """Returns round-trip times in us: ends whose calls block, and ends that poll."""
    there = [f"/run/netns/{CLIENT[-1]}"] if CLIENT else []
    return compiled(KIND, DATAGRAMS, [AT, FROM, *there], mode)


def zero_copy():
    """Streams with the kernel's ways to avoid a copy: GB/s, CPU seconds per GB of writer and reader, and the shares of
    bytes that were not copied."""
    program = f"{FOLDER}/zero_copy"
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zero_copy.c")
    subprocess.run(["cc", "-O2", "-o", program, source], check=True)
    words = SERVER + [program, FROM, *([f"/run/netns/{CLIENT[-1]}"] if CLIENT else [])]
    rounds = [subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines() for _ in range(ROUNDS)]
    for way, lines in zip(("send, recv", "MSG_ZEROCOPY", "TCP_ZEROCOPY_RECEIVE"), zip(*rounds)):
        columns = zip(*(map(float, line.split()) for line in lines))
        rate, writer, reader, uncopied, mapped = map(statistics.median, columns)
        print(f"{way:22} {rate:5.2f} GB/s, writer {writer:.3f} and reader {reader:.3f} s/GB, not copied {uncopied:.2f}, mapped {mapped:.2f}")


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
        ratios = " ".join(f"{now / before:.3f}" if before else "-" for now, before in zip(medians, base))
        what = "TCP" if mode is None else f"library from {mode}"
        values = "; ".join(", ".join(f"{value:.4g}" for value in column) for column in columns)
        print(f"{name:18} {what:20} x {ratios:18} medians {' '.join(f'{value:.4g}' for value in medians):16} all {values}", flush=True)


USUAL = [None, 32 << 10]
if "--wire" in sys.argv:
    wire()
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
elif KIND == "foreign":
    for clients, pipeline in ((1, 1), (1, 16), (50, 1), (50, 16)):
        compare(f"GET -c {clients} -P {pipeline}", lambda mode: redis(clients, pipeline, mode, alone=True), USUAL)
elif KIND == "calls":
    compare("send, recv of 64 B", calls, USUAL)
elif KIND == "copies":
    for kib in (32, 64, 128, 512, 2048, 8192):
        compare(f"{kib} KiB: ring, vm", lambda _: compiled(KIND, COPIES, [str(kib << 10)]), [None])
elif KIND == "datagrams":
    compare("waits, asks", datagrams, USUAL)
elif KIND == "zero-copy":
    zero_copy()
elif KIND == "nginx":
    for length in (64, 512 << 10):
        compare(f"wrk {length} bytes", lambda mode: nginx(length, mode), USUAL)
else:
    compare(KIND, pair, USUAL)
