"""Results of the program `dipole` as Python objects."""

import importlib.util
import json
import math
import os
import tempfile
import unittest
from unittest import mock

import dipole


def exchange(b):
    for _ in range(5):
        b.allgather(bytes(1000 * (b.rank + 1)))


def profile(folder: str) -> None:
    """Costs of supersteps, as `dipole calibrate supersteps` saves them."""
    cost = {"nodes": 1, "s_mflops": 1000.0, "l_ci_ns": 1.0, "g_sd": 0.0}
    cost.update(l_ns=5000.0, g_ns_per_byte=0.25)
    costs = [{"p": ranks, **cost} for ranks in (1, 2, 4)]
    with open(f"{folder}/shm.json", "w") as file:
        json.dump({"version": 1, "link": "shm", "cost": costs}, file)


class Tools(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        environment = mock.patch.dict(os.environ, {"DIPOLE_PROFILE": self.folder})
        environment.start()
        self.addCleanup(environment.stop)

    def traced(self) -> str:
        traces = f"{self.folder}/traces"
        os.mkdir(traces)
        options = ["--env", f"DIPOLE_TRACE={traces}"]
        with dipole.cluster(2, options) as cluster:
            cluster.run(exchange)
        return traces

    def test_a_bench_is_a_table(self):
        rows = dipole.bench(
            "pingpong",
            size=64,
            on="node",
            seconds=0.02,
            rounds=1,
            subjects=["dipole", "bare-pipe-block"],
        )
        self.assertEqual([row["subject"] for row in rows], ["dipole", "bare-pipe-block"])
        self.assertTrue(all(row["size_bytes"] == 64 and row["p50_ns"] > 0 for row in rows))
        shown = rows._repr_html_()
        self.assertIn("<th>p50_ns</th>", shown)
        self.assertIn("<td>bare-pipe-block</td>", shown)
        self.assertNotIn("percentiles", shown)
        with self.assertRaises(dipole.Error) as raised:
            dipole.bench("pingpong", subjects=["carrier-pigeon"])
        self.assertIn("carrier-pigeon", str(raised.exception))

    def test_columns_are_arrays(self):
        if importlib.util.find_spec("numpy") is None:
            self.skipTest("NumPy is not installed")
        rows = dipole.Rows([{"name": "a", "ns": 1.5}, {"name": "b"}, {"name": "c", "ns": 3}])
        self.assertEqual(rows.columns, ["name", "ns"])
        self.assertEqual(rows.column("name").tolist(), ["a", "b", "c"])
        first, missing, last = rows.column("ns")
        self.assertEqual((first, math.isnan(missing), last), (1.5, True, 3))
        with self.assertRaises(KeyError):
            rows.column("us")
        if importlib.util.find_spec("pandas") is not None:
            self.assertEqual(rows.to_pandas().shape, (3, 2))

    def test_predictions_follow_the_profile(self):
        with self.assertRaises(dipole.Error) as raised:
            dipole.predict(ranks=2, h=1000)
        self.assertIn("dipole calibrate supersteps", str(raised.exception))
        profile(self.folder)
        rows = dipole.predict(ranks=[2, 4], h=1000, supersteps=10, link="shm")
        self.assertEqual([row["parameters"]["p"] for row in rows], [2, 4])
        # g h + l.
        self.assertAlmostEqual(rows[0]["superstep_ns"], 5250)
        self.assertAlmostEqual(rows[0]["ns"], 52500)

    def test_a_trace_names_lines_and_shows_figures(self):
        traces = self.traced()
        traced = dipole.trace(traces)
        self.assertEqual((traced["ranks"], traced["link"]), (2, "shm"))
        calls = traced.tables["calls"]
        here = [row for row in calls if "test_tools.py" in row["call"]]
        self.assertEqual([row["supersteps"] for row in here], [5], calls)
        self.assertIn("<iframe", traced._repr_html_())
        self.assertTrue(traced._repr_svg_().startswith("<svg"))
        self.assertEqual(dipole.trace(traces, steps=(1, 3))["supersteps"], 3)
        with self.assertRaises(dipole.Error):
            dipole.trace(f"{self.folder}/nothing")
        profile(self.folder)
        own, other = dipole.predict(trace=traces, ranks=4)
        self.assertEqual((own["p"], other["p"]), (2, 4))
        self.assertGreater(own["measured_ns"], 0)

    def test_a_report_has_tables_and_a_page(self):
        with self.assertRaises(dipole.Error):
            dipole.report()
        profile(self.folder)
        kept = f"{self.folder}/report"
        reported = dipole.report(kept, trace=self.traced())
        self.assertEqual([part["link"] for part in reported["profiles"]], ["shm"])
        self.assertEqual(len(reported.tables["costs"]), 3)
        self.assertIn("supersteps", reported.tables)
        self.assertIn("&lt;svg", reported._repr_html_())
        self.assertTrue(os.path.exists(f"{kept}/report.html"))


if __name__ == "__main__":
    unittest.main()
