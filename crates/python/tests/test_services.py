"""The examples that serve other processes, and what remains when one of these is killed."""

import pathlib
import signal
import subprocess
import sys
import time
import unittest

import dipole
from support import PATIENCE, Peer

# Takes one message from a service and does nothing with it.
TAKES_ONE = """
    import sys, dipole
    here = dipole.Endpoint()
    here.edge((1, int(sys.argv[1]))).Send(b"")
    here.Recv().release()
    print("taken", flush=True)
    sys.stdin.read()
"""
EXAMPLES = pathlib.Path(__file__).parents[3] / "examples/python"


class Example:
    """An example that runs until the end of a `with` block."""

    def __init__(self, name, *words):
        command = [sys.executable, "-u", str(EXAMPLES / name), *map(str, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_raised):
        self.kill()
        self.process.stdout.close()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def output(self):
        """All that it prints until it ends by itself."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, output
        return output


def answer(here, edge, request):
    edge.Send(request, timeout=PATIENCE)
    return bytes(here.Recv(timeout=PATIENCE))


class Services(unittest.TestCase):
    def test_an_echo_service_outlives_its_clients(self):
        killed = "import dipole; e = dipole.Endpoint(); e.target((1, 7))\nwhile True: e.Send(bytes(9000))"
        with Example("echo.py", "serve") as service, dipole.Endpoint() as here:
            service.process.stdout.readline()
            edge = here.edge((1, 7))
            for _ in range(5):
                client = subprocess.Popen([sys.executable, "-c", killed])
                self.assertEqual(answer(here, edge, b"hello"), b"hello")
                time.sleep(0.2)
                client.kill()
                client.wait()
                self.assertEqual(answer(here, edge, b"again"), b"again")

    def test_the_jobs_of_a_killed_worker_are_done_by_others(self):
        count = 50
        with Example("job_queue.py", "give", count) as queue, Peer(TAKES_ONE, 9) as killed:
            killed.line()
            killed.kill()
            with Example("job_queue.py", "work") as other:
                output = queue.output()
                self.assertIn("all jobs are done", other.output())
        self.assertRegex(output, rf"job {count - 1} again: .* is gone")
        self.assertIn(str(sum(number * number for number in range(count))), output)

    def test_slow_and_killed_subscribers_do_not_delay_the_others(self):
        count = 20_000
        with Example("publish.py", "publish", count, 2) as publisher:
            with Example("publish.py", "subscribe", 0) as slow:
                self.assertEqual(slow.process.stdout.readline(), "subscribed\n")
                # It reads nothing until everything has been published.
                slow.process.send_signal(signal.SIGSTOP)
                with Peer(TAKES_ONE, 8) as killed:
                    killed.line()
                    killed.kill()
                    lines = iter(publisher.process.stdout.readline, "published\n")
                    self.assertTrue(all("is gone" in line for line in lines))
                slow.process.send_signal(signal.SIGCONT)
                publisher.output()
                words = slow.output().replace(",", "").split()
        # It has lost the oldest of those that were waiting.
        self.assertLess(int(words[1]), count)
        self.assertEqual(int(words[-1]), count - 1)

    def test_a_store_keeps_its_values_while_clients_die(self):
        killed = "import dipole, os, signal; e = dipole.Endpoint(); e.edge((1, 10)).Send(b'left=1')\n"
        killed += "os.kill(os.getpid(), signal.SIGKILL)"
        with Example("key_value.py", "serve") as store, dipole.Endpoint() as here:
            edge = here.edge((1, 10))
            self.assertEqual(answer(here, edge, b"colour=red"), b"red")
            subprocess.run([sys.executable, "-c", killed], check=False)
            self.assertEqual(answer(here, edge, b"colour"), b"red")
            self.assertEqual(answer(here, edge, b"nothing"), b"")
            with Example("key_value.py", "get", "colour") as client:
                self.assertEqual(client.output(), "red\n")
            store.kill()
            with self.assertRaises(dipole.PeerGone):
                while True:
                    edge.watch()
                    time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
