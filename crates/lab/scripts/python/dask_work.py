"""The transpose of an array and the shuffle of a table on two workers: dask_work.py PROTOCOL WORK COUNT.

Prints seconds as JSON.
"""

import json
import sys
import time


def number_of_tasks(dask_scheduler):
    return len(dask_scheduler.tasks)


if __name__ == "__main__":
    import dask
    import dask.array
    import dask.dataframe
    import numpy
    import pandas
    from distributed import Client, LocalCluster, wait

    protocol, work, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    dask.config.set({"dataframe.shuffle.method": "p2p" if work == "shuffle-p2p" else "tasks"})
    times = []
    with LocalCluster(protocol=protocol, **options) as cluster, Client(cluster) as client:
        if work == "transpose":
            given = dask.array.random.random((6000, 6000), chunks=1000).persist()
        else:
            rows = 200_000
            parts = [
                dask.delayed(
                    lambda seed: pandas.DataFrame(
                        {
                            "key": numpy.random.default_rng(seed).integers(0, 1000, rows),
                            **{f"v{n}": numpy.ones(rows) for n in range(8)},
                        }
                    )
                )(seed)
                for seed in range(8)
            ]
            given = dask.dataframe.from_delayed(parts).persist()
        wait(given)
        kept = client.run_on_scheduler(number_of_tasks)
        for _ in range(count):
            begun = time.perf_counter()
            if work == "transpose":
                done = (given + given.T).persist()
            else:
                done = given.shuffle("key").persist()
            wait(done)
            times.append(time.perf_counter() - begun)
            del done
            # The same work has the same keys: results that the scheduler still has are not made again.
            while client.run_on_scheduler(number_of_tasks) > kept:
                time.sleep(0.01)
    print(json.dumps(times))
