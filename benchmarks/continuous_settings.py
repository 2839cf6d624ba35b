"""Selection of the default settings of continuous depth: all candidate settings on the same tables, and a rule.

    python benchmarks/continuous_settings.py --data FOLDER --out FILE [--tables yacht,boston] [--splits 0]
    python benchmarks/continuous_settings.py --summary FILE

The candidates combine point estimates or Gaussians at depth 0, drifts, temperatures and rates. The rule takes the best
mean rank by test log density among the settings that meet four conditions: an error on every table of at most 1.05
times that of a linear model; a mean coverage of 90 % intervals from 85 to 95 %; at most ten times the time of unbounded
depth; and a mean log density not below that of mean field. Lines of --out have the format of ``defaults.py``; settings
that are already in the file are not run again.
"""

import argparse
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import defaults
import numpy as np
import torch

TABLES = ("yacht", "boston", "energy", "concrete", "diabetes", "iris", "wine", "cancer")
OTHERS = ("default", "meanfield", "linear")
SETTINGS: list[dict[str, Any]] = [
    {"path__initial": initial, "path__drift": drift, "temperature": temperature, "path__rate": rate}
    for rate, temperature, drift, initial in itertools.product(
        ("learned", 0.1, 0.25, 1.0), (1.0, 0.1), ("diagonal", "lowrank", "network"), ("point", "gaussian")
    )
]


def name_of(settings: dict[str, Any]) -> str:
    """Return a short name of the settings."""
    initial, drift, rate = (settings[f"path__{name}"] for name in ("initial", "drift", "rate"))
    return f"{initial},{drift},T={settings['temperature']:g},rate={rate}"


def summary(lines: list[dict[str, Any]]) -> None:
    """Print one line for every setting, sorted by mean rank."""
    by = {(line["name"], line["table"], line["split"]): line for line in lines}
    cells = sorted({key[1:] for key in by})
    names = list(dict.fromkeys(line["name"] for line in lines))
    ours = [name for name in names if name not in OTHERS and all((name, *cell) in by for cell in cells)]
    ranked = [name for name in (*ours, *OTHERS) if all((name, *cell) in by for cell in cells)]
    values = np.array([[by[(name, *cell)]["log_likelihood"] for cell in cells] for name in ranked])
    ranks = (-values).argsort(0).argsort(0).mean(1) + 1.0
    tables = sorted({table for table, _ in cells})
    print(f"{len(cells)} splits of {len(tables)} tables; mean log density of each: {', '.join(tables)}")
    for i in ranks.argsort():
        name = ranked[i]
        worst = 0.0
        cover = []
        slow = 0.0
        ahead = []
        for cell in cells:
            own = by[(name, *cell)]
            linear, depth, field = (by.get((other, *cell)) for other in ("linear", "default", "meanfield"))
            regression = cell[0] in defaults.REGRESSION
            if linear is not None:
                error, base = ((x["error_of_mean"] if regression else 1.0 - x["error_of_mean"]) for x in (own, linear))
                worst = max(worst, error / base if base else float(error > 0.0))
            cover += [own["calibration"]] if regression else []
            slow = max(slow, own["seconds"] / depth["seconds"]) if depth else slow
            ahead += [own["log_likelihood"] - field["log_likelihood"]] if field else []
        each = [np.mean([by[(name, *cell)]["log_likelihood"] for cell in cells if cell[0] == t]) for t in tables]
        print(
            f"{name:40} rank {ranks[i]:5.2f}  error/linear at most {worst:5.2f}  cover {np.mean(cover):.3f}  "
            f"time/depth at most {slow:5.1f}  ahead of mean field {np.mean(ahead) if ahead else np.nan:7.3f}  "
            + " ".join(f"{value:7.3f}" for value in each)
        )


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--splits", default="0")
    parser.add_argument(
        "--only", default="", help="run settings whose name contains one of these words (separated by semicolons)"
    )
    parser.add_argument("--options", default="{}", help="options of all settings, as JSON")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--summary", type=Path, help="print the summary of a file of JSON lines, and exit")
    args = parser.parse_args()
    if args.summary:
        summary([json.loads(line) for line in args.summary.read_text().splitlines()])
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    given = json.loads(args.options)
    done = set()
    if args.out and args.out.exists():
        lines = [json.loads(line) for line in args.out.read_text().splitlines()]
        done = {(line["name"], line["table"], line["split"]) for line in lines}
    plans = [*((name, name, {}) for name in OTHERS), *((name_of(s), "continuous", {**s, **given}) for s in SETTINGS)]
    words = [word for word in args.only.split(";") if word]
    for (name, column, options), table, split in itertools.product(
        plans, args.tables.split(","), map(int, args.splits.split(","))
    ):
        if (name, table, split) in done or (words and not any(word in name for word in words)):
            continue
        found = defaults.score(args.data, table, split, split, column, options)
        print(f"{name:40} {table:10} {split}", *(f"{key} {value:.3f}" for key, value in found.items()), flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps({"name": name, "table": table, "split": split, **found}) + "\n")


if __name__ == "__main__":
    main()
