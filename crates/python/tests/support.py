"""Helpers for the tests of the package."""

import contextlib
import os
import signal
import subprocess
import sys
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


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
