"""Helpers for the tests of the package."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap

PATIENCE = 60.0


@contextlib.contextmanager
def interrupted_after(seconds: float):
    """Raises KeyboardInterrupt in the main thread, as Ctrl-C does."""

    def interrupt(_number, _frame):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Peer:
    """Another Python process; killed at the end of a `with` block."""

    def __init__(self, program: str, *words: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        line = self.process.stdout.readline()
        assert line, "the peer ended"
        return line.strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


def run_ranks(program: str, nodes: list[int], *words: str) -> list[tuple[int, str, str]]:
    """Starts a rank on each of the nodes, as a launcher does. Returns status, output and errors of each.
    Several nodes have loopback addresses."""
    base = 3_000_000_000 + os.getpid() % 1_000_000 * 16
    job = {
        "DIPOLE_SIZE": str(len(nodes)),
        "DIPOLE_JOB": str(os.getpid()),
        "DIPOLE_JOB_BASE": str(base),
        "DIPOLE_RANKS": ",".join(map(str, nodes)),
    }
    with tempfile.TemporaryDirectory() as folder:
        if len(set(nodes)) > 1:
            job["DIPOLE_HOSTS"] = f"{folder}/hosts"
            with open(job["DIPOLE_HOSTS"], "w") as hosts:
                for node in sorted(set(nodes)):
                    port = 20_000 + os.getpid() * 16 % 12_000 + node
                    print(node, f"127.0.0.{node}", f"port={port}", file=hosts)
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", program, *words],
                env={
                    **os.environ,
                    **job,
                    "DIPOLE_RANK": str(rank),
                    "DIPOLE_NID": str(node),
                    "DIPOLE_RUNTIME_DIR": f"{folder}/{node}",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, node in enumerate(nodes)
        ]
        ended = []
        for process in ranks:
            output, errors = process.communicate(timeout=120)
            ended.append((process.returncode, output, errors))
    return ended


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
