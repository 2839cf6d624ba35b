"""Parts of the spiral experiment, for as much time as there is: kinds, rotations and repetitions that you choose.

    python benchmarks/spirals.py --preset paper --kinds udn L3 L4 L5
    python benchmarks/spirals.py --kinds udn L4 L5 L6
    python benchmarks/spirals.py --kinds "udn*3" --rotations 18 20 22 24 26 28 30
    python benchmarks/spirals.py --kinds L6 --seed 1 --rotations 20 24 26 28 --change '{"temperature": 0.1}'

`fathomless reproduce spiral --full` runs all of it and judges it. For each kind: test accuracy (%) at the epoch of the
best validation accuracy, averaged over rotations, ± one standard error over repetitions; then by rotation; then the
mean depth where training ended. With --out, the scores of every network are written as JSON.
"""

import argparse
import dataclasses
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))  # the experiments of this clone
from experiments.spiral import PROTOCOLS, ROTATIONS, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PROTOCOLS), default="default")
    parser.add_argument("--kinds", nargs="+", default=["udn", "L4", "L5", "L6"])
    parser.add_argument("--rotations", nargs="+", type=int, default=list(ROTATIONS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--change", type=json.loads, default={}, help="other options of the protocol, as JSON")
    parser.add_argument("--out", type=Path, help="folder for the scores of every network")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, python {platform.python_version()}, one thread; preset {options.preset}")
    protocol = dataclasses.replace(PROTOCOLS[options.preset], **options.change)
    print(
        "rotations",
        *options.rotations,
        f"with {options.repetitions} repetitions, seed {options.seed}",
        *[f"{k}={v}" for k, v in options.change.items()],
    )
    cells = [(rotation, repetition) for rotation in options.rotations for repetition in range(options.repetitions)]
    for kind in options.kinds:
        start = time.process_time()
        early = options.preset == "paper" or kind.startswith("L")  # depth is of interest where it is learned
        found = train(kind, protocol, cells, seed=options.seed, early=early)
        seconds = time.process_time() - start

        def by(score: str, found: list[dict[str, float]] = found) -> list[list[float]]:
            return [[c[score] for c in found if c["rotation"] == rotation] for rotation in options.rotations]

        accuracy = by("accuracy")
        runs = [100.0 * statistics.mean(column) for column in zip(*accuracy, strict=True)]
        error = statistics.stdev(runs) / len(runs) ** 0.5 if len(runs) > 1 else float("nan")
        print(f"{kind:<6} {statistics.mean(runs):5.2f} ± {error:.2f}   ({seconds:.0f} s of CPU)")
        print("       accuracy", *(f"{100.0 * statistics.mean(row):5.1f}" for row in accuracy))
        print("       depth   ", *(f"{statistics.mean(row):5.1f}" for row in by("mean_depth_at_end")), flush=True)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            told = {
                "preset": options.preset,
                "change": options.change,
                "seed": options.seed,
                "kind": kind,
                "seconds": seconds,
                "networks": found,
            }
            (options.out / f"{options.preset}-{kind}.json").write_text(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
