"""Parts of the spiral experiment, with a choice of kinds, rotations and repetitions.

    python benchmarks/spirals.py --preset paper --kinds udn L3 L4 L5
    python benchmarks/spirals.py --kinds udn L4 L5 L6
    python benchmarks/spirals.py --kinds "udn*3" --rotations 18 20 22 24 26 28 30
    python benchmarks/spirals.py --kinds L6 --seed 1 --rotations 20 24 26 28 --change '{"temperature": 0.1}'

`fathomless reproduce spiral --full` runs the whole experiment and compares it with the expected values. The output for
each kind is the test accuracy (%) at the epoch of the best validation accuracy, averaged over rotations, ± one standard
error over repetitions; then the same by rotation; then the mean depth at the end of training. With --out, the scores of
every network are written as JSON.
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
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, python {platform.python_version()}, one thread; preset {args.preset}")
    protocol = dataclasses.replace(PROTOCOLS[args.preset], **args.change)
    print(
        "rotations",
        *args.rotations,
        f"with {args.repetitions} repetitions, seed {args.seed}",
        *[f"{k}={v}" for k, v in args.change.items()],
    )
    cells = [(rotation, repetition) for rotation in args.rotations for repetition in range(args.repetitions)]
    for kind in args.kinds:
        start = time.process_time()
        early = args.preset == "paper" or kind.startswith("L")  # the final depth is only needed if depth is learned
        found = train(kind, protocol, cells, seed=args.seed, early=early)
        seconds = time.process_time() - start

        def by(score: str, found: list[dict[str, float]] = found) -> list[list[float]]:
            return [[c[score] for c in found if c["rotation"] == rotation] for rotation in args.rotations]

        accuracy = by("accuracy")
        runs = [100.0 * statistics.mean(column) for column in zip(*accuracy, strict=True)]
        error = statistics.stdev(runs) / len(runs) ** 0.5 if len(runs) > 1 else float("nan")
        print(f"{kind:<6} {statistics.mean(runs):5.2f} ± {error:.2f}   ({seconds:.0f} s of CPU)")
        print("       accuracy", *(f"{100.0 * statistics.mean(row):5.1f}" for row in accuracy))
        print("       depth   ", *(f"{statistics.mean(row):5.1f}" for row in by("mean_depth_at_end")), flush=True)
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            told = {
                "preset": args.preset,
                "change": args.change,
                "seed": args.seed,
                "kind": kind,
                "seconds": seconds,
                "networks": found,
            }
            (args.out / f"{args.preset}-{kind}.json").write_text(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
