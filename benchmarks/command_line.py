"""CPU seconds of commands of the command line, each measured for a whole process.

    python benchmarks/command_line.py [--runs 5] [--families depth,sparse]

A table of 442 patients is fitted once with a short training. Then every command runs several times as a separate
process with one thread, after a first run that is not counted and fills the file cache. The output is the minimum and
the median of user plus system seconds, which depend little on other work on the machine. ``import torch`` is the
reference: no command that uses a network takes less. Set PYTHONPATH to measure another version of the sources.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

FITS = {  # shortest training of each family: the measured times do not depend on it
    "graph": ["--sweeps", "40", "--states", "10", "--chains", "2"],
    "manifold": ["--candidates", "12", "--candidate-steps", "60", "--decoder-steps", "60", "--latent-steps", "30"],
}
PROGRAM = ["-m", "fathomless"]


def seconds(words: list[str], home: Path) -> float:
    """Run a program; return its CPU seconds, including those of its child processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=home, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_tables(home: Path) -> None:
    """Write patients.csv, and one.csv with its first row."""
    from fathomless.data import datasets

    data = datasets.load("diabetes")
    assert data.y is not None
    head = ",".join(data.feature_names)
    rows = [",".join(map(str, row)) for row in data.X.tolist()]
    full = [f"{row},{y}" for row, y in zip(rows, data.y.tolist(), strict=True)]
    (home / "patients.csv").write_text("\n".join([f"{head},target", *full]) + "\n", encoding="utf-8")
    (home / "one.csv").write_text(f"{head}\n{rows[0]}\n", encoding="utf-8")


def main() -> None:
    """Fit the table, then measure the commands."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--families", default="depth")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write_tables(home)
        fit = [*PROGRAM, "fit", "patients.csv", "--target", "target", "--quiet"]
        commands = {"import torch": ["-c", "import torch"], "--help": [*PROGRAM, "--help"]}
        names = args.families.split(",")
        for name in names:
            seconds([*fit, "--structure", name, "--out", name, *FITS.get(name, ["--epochs", "5"])], home)
            commands[f"predict, one row, {name}"] = [*PROGRAM, "predict", name, "one.csv"]
        commands["report"] = [*PROGRAM, "report", names[0]]
        compare = ["compare", "patients.csv", "--target", "target", "--folds", "2", "--methods", "constant,linear"]
        for i in range(
            args.runs + 1
        ):  # separate folders, because a second run into the same folder would reuse the first
            commands[f"compare, two quick methods/{i}"] = [*PROGRAM, *compare, "--out", f"compared-{i}"]
        found: dict[str, list[float]] = {}
        for name, words in commands.items():
            shown, _, part = name.partition("/")
            for _ in range(1 if part else args.runs + 1):
                found.setdefault(shown, []).append(seconds(words, home))
    for name, (_, *each) in found.items():
        print(f"{name:28} least {min(each):5.2f}  median {median(each):5.2f}", flush=True)


if __name__ == "__main__":
    main()
