"""Check that a local cluster of Dask or Ray that loses one of its two workers gives the same results.

    python benchmarks/cluster.py dask --data FOLDER      where dask[distributed] is installed
    python benchmarks/cluster.py ray --data FOLDER       where ray is installed

Fast parts of all_families.py are run one after the other, and then on the cluster. When two parts are done, one worker
is killed (signal 9). If this ends the run, it is started again, and computes the parts that are missing. The output
states how many parts were computed, and how many have identical scores. A grid search and repeated splits of
scikit-learn follow in the same way, with a worker killed after five seconds.
"""

import argparse
import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from operator import eq
from pathlib import Path
from typing import TypeVar

import all_families
from joblib import parallel_config
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV, RepeatedKFold, cross_val_score

from fathomless import UnboundedDepthRegressor


@contextlib.contextmanager
def dask_cluster() -> Iterator[Callable[[], int]]:
    """Start a cluster of two workers; yield a function that returns the process of one of them."""
    from dask.distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        workers = client.run(os.getpid)
        yield lambda: int(next(iter(workers.values())))


@contextlib.contextmanager
def ray_cluster() -> Iterator[Callable[[], int]]:
    """Start a cluster of two workers; yield a function that returns the process of one of them."""
    import psutil
    import ray
    from ray.util.joblib import register_ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    register_ray()

    def find() -> int:
        processes = psutil.Process().children(recursive=True)
        return int(next(process.pid for process in processes if "PoolActor" in " ".join(process.cmdline())))

    try:
        yield find
    finally:
        ray.shutdown()


T = TypeVar("T")
CLUSTERS = {"dask": dask_cluster, "ray": ray_cluster}


def repeat(work: Callable[[], T]) -> T:
    """Do some work, and do it again if the cluster ends it with an error."""
    try:
        return work()
    except Exception as error:
        print(f"the run ended with {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
        return work()


def search() -> list[float]:
    """Return the scores of a grid search and of repeated splits."""
    X, y = load_diabetes(return_X_y=True)
    model = UnboundedDepthRegressor(epochs=40, cv=2, random_state=0)
    grid = GridSearchCV(model, {"width": [8, 16, 32]}, cv=2).fit(X, y)
    splits = cross_val_score(model, X, y, cv=RepeatedKFold(n_splits=3, n_repeats=2, random_state=0))
    return [*grid.cv_results_["mean_test_score"].tolist(), *splits.tolist()]


def main() -> None:
    """Run all parts twice and compare the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cluster", choices=CLUSTERS)
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    todo = all_families.parts(("yacht", "boston"), (0, 1), ("constant", "linear", "boosting"), [])
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder, "one.jsonl"), Path(folder, "two.jsonl")
        all_families.work(todo, args.data, one, 600)
        with CLUSTERS[args.cluster]() as find:

            def kill() -> None:
                while not two.exists() or len(two.read_text().splitlines()) < 3:  # the first line describes the machine
                    time.sleep(0.05)
                pid = find()
                os.kill(pid, signal.SIGKILL)
                print(f"killed the worker {pid} after {len(all_families.read(two)[1])} parts", flush=True)

            threading.Thread(target=kill, daemon=True).start()
            with parallel_config(args.cluster, n_jobs=2):
                repeat(lambda: all_families.work(todo, args.data, two, 600))
        scores = [
            {(p["table"], p["split"], p["method"]): p["scores"] for p in all_families.read(out)[1]}
            for out in (one, two)
        ]
        alone = search()
        with CLUSTERS[args.cluster]() as find, parallel_config(args.cluster, n_jobs=2):

            def kill_later() -> None:
                time.sleep(5.0)
                os.kill(pid := find(), signal.SIGKILL)
                print(f"killed the worker {pid} in a search", flush=True)

            threading.Thread(target=kill_later, daemon=True).start()
            found = repeat(search)
    print(f"{len(alone)} scores of a search and of splits, {sum(map(eq, alone, found))} of them identical")
    same = sum(scores[0][key] == scores[1].get(key) for key in scores[0])
    print(f"{len(todo)} parts; {len(scores[1])} computed by the cluster, {same} of them with identical scores")


if __name__ == "__main__":
    main()
