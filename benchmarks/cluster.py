"""Check that a Dask cluster that loses a worker gives the same results: two local workers, one of which is killed.

    python benchmarks/cluster.py --data FOLDER      where dask[distributed] is installed

Fast parts of all_families.py are run one after the other, and then on the cluster. When two parts are done, one worker
is killed (signal 9). The output states how many parts were computed, and how many have identical scores.
"""

import argparse
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import all_families
from joblib import parallel_config


def main() -> None:
    """Run all parts twice and compare the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    from dask.distributed import Client, LocalCluster

    todo = all_families.parts(("yacht", "boston"), (0, 1), ("constant", "linear", "boosting"), [])
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder, "one.jsonl"), Path(folder, "two.jsonl")
        all_families.work(todo, args.data, one, 600)
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            workers = client.run(os.getpid)

            def kill() -> None:
                while not two.exists() or len(two.read_text().splitlines()) < 3:  # the first line describes the machine
                    time.sleep(0.05)
                address, pid = next(iter(workers.items()))
                os.kill(pid, signal.SIGKILL)
                print(
                    f"killed the worker {address}, process {pid}, after {len(all_families.read(two)[1])} parts",
                    flush=True,
                )

            threading.Thread(target=kill, daemon=True).start()
            with parallel_config("dask", n_jobs=2):
                all_families.work(todo, args.data, two, 600)
        scores = [
            {(p["table"], p["split"], p["method"]): p["scores"] for p in all_families.read(out)[1]}
            for out in (one, two)
        ]
    same = sum(scores[0][key] == scores[1].get(key) for key in scores[0])
    print(f"{len(todo)} parts; {len(scores[1])} computed by the cluster, {same} of them with identical scores")


if __name__ == "__main__":
    main()
