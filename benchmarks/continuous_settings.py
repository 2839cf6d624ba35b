"""Which settings networks of continuous depth should have: every one on the same tables, and a rule that chooses.

    python benchmarks/continuous_settings.py --data FOLDER --out FILE [--tables yacht,boston] [--splits 0]
    python benchmarks/continuous_settings.py --summary FILE

Compared are point estimates and Gaussians at depth 0, drifts, temperatures and rates. The rule: the best mean rank of
test log density among settings whose error is nowhere above 1.05 times that of a linear model, whose 90 % intervals
cover 85 to 95 % on average, that take at most ten times as long as unbounded depth, and do not lose to mean field on
average. Lines of --out are those of ``defaults.py``; what is in the file already is not run again.
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


def named(settings: dict[str, Any]) -> str:
    """Name settings in one word."""
    initial, drift, rate = (settings[f"path__{name}"] for name in ("initial", "drift", "rate"))
    return f"{initial},{drift},T={settings['temperature']:g},rate={rate}"


def summary(lines: list[dict[str, Any]]) -> None:
    """Print a line for every setting, the best mean rank first."""
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
        worst, cover, slow, ahead = 0.0, [], 0.0, []
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
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--splits", default="0")
    parser.add_argument("--only", default="", help="run settings whose name has one of these words")
    parser.add_argument("--options", default="{}", help="JSON, of all settings")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--summary", type=Path, help="print what a file of JSON lines says, and end")
    asked = parser.parse_args()
    if asked.summary:
        summary([json.loads(line) for line in asked.summary.read_text().splitlines()])
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    given, done = json.loads(asked.options), set()
    if asked.out and asked.out.exists():
        lines = [json.loads(line) for line in asked.out.read_text().splitlines()]
        done = {(line["name"], line["table"], line["split"]) for line in lines}
    plans = [*((name, name, {}) for name in OTHERS), *((named(s), "continuous", {**s, **given}) for s in SETTINGS)]
    words = [word for word in asked.only.split(";") if word]
    for (name, column, options), table, split in itertools.product(
        plans, asked.tables.split(","), map(int, asked.splits.split(","))
    ):
        if (name, table, split) in done or (words and not any(word in name for word in words)):
            continue
        found = defaults.score(asked.data, table, split, split, column, options)
        print(f"{name:40} {table:10} {split}", *(f"{key} {value:.3f}" for key, value in found.items()), flush=True)
        if asked.out:
            with asked.out.open("a") as file:
                file.write(json.dumps({"name": name, "table": table, "split": split, **found}) + "\n")


if __name__ == "__main__":
    main()
