"""BSP programs: several ranks, started here as a launcher would."""

import subprocess
import sys
import unittest

from support import run_ranks

RANKS = 3

PROGRAM = """
import array, sys
from dipole import bsp

@bsp.spmd
def main(b):
    right, left = (b.rank + 1) % b.size, (b.rank - 1) % b.size
    part = array.array("d", [0.0] * 4)
    area = b.register(part)
    b.sync()
    with b.superstep():
        b.put(array.array("d", [b.rank + 0.5]), right, area, at=2)
    assert list(part) == [0, 0, left + 0.5, 0], part
    got = array.array("d", [0.0, 0.0])
    with b.superstep():
        b.get(right, area, got, at=1)
        b.put(array.array("d", [-1.0]), right, area, at=2)
    assert list(got) == [0, b.rank + 0.5], got
    with b.superstep():
        for rank in range(b.size):
            b.send({"from": b.rank}, rank, tag=("t", rank))
    for source, received in enumerate(b.messages()):
        assert received == (source, ("t", b.rank), {"from": source}), received
    assert b.allgather(b.rank ** 2) == [rank ** 2 for rank in range(b.size)]
    assert b.allreduce([b.rank], lambda one, other: one + other) == list(range(b.size))
    assert b.bcast("all" if b.rank == 1 else None, root=1) == "all"
    try:
        b.put(b"too long" * 8, right, area)
    except ValueError as error:
        assert "32" in str(error), error
    b.unregister(area)
    b.sync()
    if len(sys.argv) > 1 and b.rank == 1:
        raise RuntimeError("rank one gives up")
    b.sync()
    return b.time

print("ended", main() >= 0)
"""


def run(*words: str) -> list[tuple[int, str, str]]:
    return run_ranks(PROGRAM, [1] * RANKS, *words)


class Supersteps(unittest.TestCase):
    def test_puts_gets_messages_and_collective_calls(self):
        for status, output, errors in run():
            self.assertEqual((status, output), (0, "ended True\n"), errors)

    def test_an_exception_of_one_rank_ends_all(self):
        for rank, (status, output, errors) in enumerate(run("fail")):
            self.assertEqual((status, output), (1, ""), errors)
            self.assertEqual("rank one gives up" in errors, rank == 1, errors)

    def test_without_a_launcher_there_is_one_rank(self):
        program = "from dipole import bsp\nb = bsp.begin()\nprint(b.rank, b.size)\nb.end()\n"
        printed = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
        )
        self.assertEqual(printed.stdout, "0 1\n")


if __name__ == "__main__":
    unittest.main()
