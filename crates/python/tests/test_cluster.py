"""Functions that a cluster's ranks call: results, exceptions, interruption, loss."""

import os
import time
import unittest

import dipole
from support import PATIENCE, Peer, interrupted_after


# The ranks import this module, so they find its functions.
def square(b, number):
    totals = b.allgather(number * b.rank)
    return b.rank, totals


def fail_in_rank_one(b):
    if b.rank == 1:
        raise LookupError("not here")
    b.sync()


def wait(b):
    time.sleep(600)


def end_in_rank_zero(b):
    if b.rank == 0:
        os._exit(7)
    b.sync()


class Clusters(unittest.TestCase):
    def test_results_come_back_by_rank(self):
        with dipole.cluster(3) as cluster:
            for number in (2, 3):
                totals = [0, number, 2 * number]
                expected = [(rank, totals) for rank in range(3)]
                self.assertEqual(cluster.run(square, number), expected)

    def test_an_exception_comes_back_and_the_cluster_goes_on(self):
        with dipole.cluster(2) as cluster:
            with self.assertRaises(LookupError) as raised:
                cluster.run(fail_in_rank_one)
            self.assertIn("rank 1", raised.exception.__notes__[0])
            self.assertIn("fail_in_rank_one", raised.exception.__notes__[0])
            self.assertEqual(cluster.run(square, 1)[1], (1, [0, 1]))

    def test_a_call_can_be_interrupted(self):
        with dipole.cluster(2) as cluster:
            with interrupted_after(0.3), self.assertRaises(KeyboardInterrupt):
                cluster.run(wait)
            self.assertEqual(cluster.run(square, 1)[0], (0, [0, 1]))

    def test_a_rank_that_ends_is_reported(self):
        with dipole.cluster(2) as cluster, self.assertRaises(dipole.Error):
            cluster.run(end_in_rank_zero)

    def test_the_ranks_end_with_a_killed_program(self):
        program = """
            import time, dipole
            cluster = dipole.cluster(2)
            print(cluster._launcher.pid, flush=True)
            time.sleep(600)
        """
        with Peer(program) as peer:
            launcher = int(peer.line())
            peer.kill()
            began = time.monotonic()
            while os.path.exists(f"/proc/{launcher}"):
                self.assertLess(time.monotonic() - began, PATIENCE)
                time.sleep(0.05)


if __name__ == "__main__":
    unittest.main()
