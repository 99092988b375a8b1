"""Distributed arrays: against NumPy, over several ranks and nodes."""

import os
import platform
import subprocess
import sys
import tempfile
import unittest

from support import run_ranks

RESHUFFLES = """
import numpy
from dipole import bsp

TYPES = ["f8", "i4", "u1", "c16", "S3", "M8[s]", [("a", "f4"), ("b", "u1", 3)]]

def whole_array(shape, dtype, random):
    bytes_ = random.integers(1, 255, numpy.dtype(dtype).itemsize * int(numpy.prod(shape)), "u1")
    return bytes_.view(dtype).reshape(shape)

def some_blocks(shape, random):
    kinds = random.integers(0, 3, len(shape))
    sizes = random.integers(1, 9, len(shape))
    return [(None, -1, int(size))[kind] for kind, size in zip(kinds, sizes)]

@bsp.spmd
def main(b):
    # The same in all ranks.
    random = numpy.random.default_rng(11)
    for round in range(40):
        shape = tuple(map(int, random.integers(0, 30, random.integers(1, 4))))
        array = whole_array(shape, TYPES[round % len(TYPES)], random)
        x = bsp.Distributed.from_root(array if b.rank == 0 else None, some_blocks(shape, random))
        for _ in range(3):
            assert (x.shape, x.dtype) == (array.shape, array.dtype), x
            part = array[x.indices()]
            assert x.local.shape == part.shape and x.local.tobytes() == part.tobytes(), x
            before = x.local.copy()
            y = x.reshuffle(some_blocks(shape, random))
            assert x.local.tobytes() == before.tobytes()
            x = y
        gathered = x.gather()
        assert (gathered is not None) == (b.rank == 0)
        if gathered is not None:
            assert gathered.shape == shape and gathered.tobytes() == array.tobytes()
    print("reshuffled")

main()
"""

SEMANTICS = """
import numpy
from dipole import bsp

@bsp.spmd
def main(b):
    x = bsp.Distributed((12, 10), (-1, None))
    assert (x.grid, x.blocks) == ((b.size, 1), (-(-12 // b.size), 10))
    assert (x.ndim, x.size, len(x), x.dtype) == (2, 120, 12, numpy.float64)
    rows, columns = x.indices()
    x.local[:] = 10 * rows + columns
    y = numpy.sqrt(2 * x + 2) ** 2
    y /= 2
    assert numpy.allclose(y.local, x.local + 1)
    low, high = numpy.modf(x / 10)
    assert numpy.allclose(low.local * 10 + high.local * 10, x.local)
    assert (x.sum(), x.min(), x.max()) == (7140, 0, 119)
    assert (x == x.copy()).local.all()
    z = x.reshuffle((None, 3))
    assert z.grid == (1, b.size) and (z.local == 10 * z.indices()[0] + z.indices()[1]).all()
    refuses(ValueError, "reshuffle one", lambda: x + z)
    refuses(TypeError, "with numbers", lambda: x + numpy.ones((12, 10)))
    refuses(TypeError, "gather", lambda: numpy.asarray(x))
    refuses(TypeError, "", lambda: numpy.add.reduce(x))
    refuses(ValueError, "shape", lambda: bsp.Distributed((12,), (-1,), local=numpy.zeros(99)))
    refuses(ValueError, "each dimension", lambda: bsp.Distributed((12, 3), (0, 1)))
    refuses(ValueError, "bytes", lambda: bsp.Distributed((12,), (1,), dtype=object))
    refuses(ValueError, "processes", lambda: bsp.Distributed((12,), (1,), grid=(0,)))
    mine = numpy.arange(float(len(rows) * 10)).reshape(-1, 10)
    given = bsp.Distributed((12, 10), (-1, None), local=mine)
    assert numpy.shares_memory(given.local, mine) and given.local.shape == mine.shape
    numbers = bsp.Distributed((12,), (1,), local=numpy.arange(b.rank, 12, b.size, int))
    assert numbers.dtype == int
    parts = numbers.reshuffle((-1,))
    assert (parts.local == parts.indices()[0]).all()
    if b.size == 4:
        assert bsp.Distributed((9, 9), (1, 1)).grid == (2, 2)
    two = bsp.Distributed((9,), (1,), grid=(2,))
    assert two.local.shape == ([5, 4, 0, 0][b.rank],)
    # Longer than a message, fetched directly within a node.
    long = bsp.Distributed((1024, 1024), (-1, None))
    long.local[:] = numpy.add(*(i * f for i, f in zip(long.indices(), (1024, 1))))
    for _ in range(6):
        turned = long.reshuffle((None, -1))
        assert (turned.local == 1024 * turned.indices()[0] + turned.indices()[1]).all()
    try:
        bsp.Distributed((9,), (1,), grid=(99,)).gather()
    except ValueError as error:
        assert "99 processes" in str(error), error
        print("done")

def refuses(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

main()
"""

DIFFERENT = """
import numpy
from dipole import bsp

@bsp.spmd
def main(b):
    x = bsp.Distributed((30,), (-1,))
    x.reshuffle((1 + b.rank,))

main()
"""

INTERRUPTED = """
import os, signal, sys, time, numpy
from dipole import bsp

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)

@bsp.spmd
def main(b):
    x = bsp.Distributed((30,), (-1,))
    if b.rank == 1:
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
    else:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        x.reshuffle((1,))
    except KeyboardInterrupt:
        open(sys.argv[1], "w").close()
        print("interrupted")
        raise

main()
"""

SAVED = """
import glob, os, sys, time, numpy
from dipole import bsp

folder, marker = sys.argv[1:]

@bsp.spmd
def main(b):
    x = bsp.Distributed((100, 7), (3, None), dtype=int)
    x.local[:] = numpy.add(*x.indices())
    b.checkpoint()
    b.sync()
    is_restored = os.path.exists(marker)
    x.local[:] += 1
    b.sync()
    if not is_restored:
        if b.rank == 0:
            while len(glob.glob(folder + "/*/set-1/*.image")) < b.size:
                time.sleep(0.01)
            open(marker, "w").close()
            os._exit(3)
        b.sync()
    gathered = x.reshuffle((None, 2)).gather()
    if b.rank == 0:
        assert (gathered == 1 + numpy.add(*numpy.ogrid[:100, :7])).all()
        print("continued")

main()
"""


class Distributed(unittest.TestCase):
    def assert_all_print(self, expected: str, ended: list[tuple[int, str, str]]) -> None:
        for status, output, errors in ended:
            self.assertEqual((status, output), (0, expected + "\n"), errors)

    def test_any_reshuffle_moves_each_element_to_its_place(self):
        for nodes in ([1], [1] * 4, [1, 1, 2, 2]):
            with self.subTest(nodes=nodes):
                self.assert_all_print("reshuffled", run_ranks(RESHUFFLES, nodes))

    def test_arrays_act_like_those_of_numpy(self):
        for nodes in ([1] * 3, [1, 2, 1, 2]):
            with self.subTest(nodes=nodes):
                self.assert_all_print("done", run_ranks(SEMANTICS, nodes))

    def test_ranks_that_reshuffle_differently_fail(self):
        ended = run_ranks(DIFFERENT, [1] * 3)
        for status, _, errors in ended:
            self.assertEqual(status, 1, errors)
        self.assertIn("plans another reshuffle", "".join(errors for _, _, errors in ended))

    def test_a_reshuffle_ends_on_keyboard_interrupt(self):
        with tempfile.TemporaryDirectory() as folder:
            interrupted, other = run_ranks(INTERRUPTED, [1] * 2, f"{folder}/marker")
            self.assertEqual(interrupted[1], "interrupted\n", interrupted[2])
            self.assertEqual((other[0], other[1]), (1, ""), other[2])

    @unittest.skipIf(platform.machine() != "x86_64", "processes are saved on x86-64 only")
    def test_a_checkpoint_contains_the_array(self):
        with tempfile.TemporaryDirectory() as folder:
            checkpoints, marker = f"{folder}/checkpoints", f"{folder}/marker"
            os.mkdir(checkpoints, 0o700)
            options = ["-n", "2", "--on-loss", "restart", "--checkpoint-dir", checkpoints]
            program = [sys.executable, "-c", SAVED, checkpoints, marker]
            ran = subprocess.run(
                ["dipole", "run", *options, "--", *program],
                # Processes with further threads are not saved.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=120,
            )
            self.assertEqual((ran.returncode, ran.stdout), (0, "continued\n"), ran.stderr)

    def test_without_a_program_there_are_no_arrays(self):
        program = "from dipole import bsp\nbsp.Distributed((3,), (1,))\n"
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertIn("has not begun a BSP program", ran.stderr)


if __name__ == "__main__":
    unittest.main()
