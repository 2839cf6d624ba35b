"""Kill command-line runs at random moments, resume them, and compare every byte with a run that was never killed.

python tests/storm.py --kills 100
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np

TIMED = {"log.jsonl"}  # the one file of a run that tells times
FITS = [  # several laws, tasks and kinds of weights, depth by held-out rows and by the bound
    ["--target", "side", "--depth-law", "poisson"],
    ["--target", "height", "--weights", "meanfield", "--weight-draws", "4", "--structure-from", "elbo"],
    ["--target", "height", "--target", "x0", "--depth-law", "stick_breaking", "--precision", "float32"],
    ["--target", "side", "--depth-law", "quantile", "--validation-fraction", "0"],
]
EPOCHS = 30


def table(path: Path) -> None:
    """Write a small table with numbers, a category and gaps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    lines = ["x0,x1,x2,kind,height,side"]
    for i, row in enumerate(x):
        gap = "" if i % 17 == 0 else f"{row[2]:.4f}"
        height = np.sin(2 * row[0]) + row[1] + 0.1 * rng.normal()
        lines.append(f"{row[0]:.4f},{row[1]:.4f},{gap},{'ab'[i % 2]},{height:.4f},{'left' if row[0] < 0 else 'right'}")
    path.write_text("\n".join(lines) + "\n")


def command(words: list[str]) -> list[str]:
    """Return the command line of one fit."""
    fit = ["fit", "../table.csv", "--out", "run", "--epochs", str(EPOCHS), "--width", "6", "--batch-size", "32"]
    fit += ["--structure-rate", "1", "--patience", "none", "--checkpoint-seconds", "0", "--log-json", "--resume"]
    return [sys.executable, "-m", "fathomless.app.cli", *fit, *words]


def start(home: Path, words: list[str]) -> "subprocess.Popen[str]":
    """Start a fit in a folder of its own."""
    home.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        command(words), cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )


def contents(home: Path) -> dict[str, bytes]:
    """Return every file of a run by name, but for those that tell times."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name not in TIMED
    }


def kill_once(home: Path, words: list[str], random: Random) -> bool:
    """Start a fit and kill it somewhere: before the training, in an epoch, or while the end is being written."""
    child = start(home, words)
    assert child.stdout is not None
    place = random.choice(["start", "epoch", "epoch", "end"])
    began, epochs, due = time.monotonic(), 0, random.randint(1, 8)
    if place != "start":
        for line in child.stdout:
            event = json.loads(line)
            epochs += event["event"] == "epoch"
            if place == "end" and event.get("epoch") == EPOCHS:
                break
            if place == "epoch" and epochs >= due:
                break
    time.sleep(random.uniform(0.0, {"start": 4.0, "epoch": 0.2, "end": 2.0}[place]))
    child.send_signal(signal.SIGKILL)
    child.communicate()
    print(f"  {place:5s} {epochs:3d} epochs, {time.monotonic() - began:5.1f} s, exit {child.returncode}", flush=True)
    return child.returncode == -signal.SIGKILL


def finish(home: Path, words: list[str]) -> list[int]:
    """Let a fit run to its end; return the epochs it did."""
    child = start(home, words)
    out, err = child.communicate()
    assert child.returncode == 0, err
    events = [json.loads(line) for line in out.splitlines()]
    return [event["epoch"] for event in events if event["event"] == "epoch"]


def storm(home: Path, kills: int, seed: int = 0) -> dict[str, int]:
    """Kill fits until so many kills have hit; return what was counted.

    Raises
    ------
    AssertionError
        If a run that was killed ends in other bytes than one that was not.
    """
    random, hits, runs, resumed = Random(seed), 0, 0, 0
    table(home / "table.csv")
    for number, words in enumerate(FITS):
        finish(home / f"whole{number}", words)
    while hits < kills:
        number = runs % len(FITS)
        place = home / f"killed{runs}"
        for _ in range(min(random.randint(2, 8), kills - hits)):
            hits += kill_once(place, FITS[number], random)
        reached = finish(place, FITS[number])
        resumed += not reached or reached[0] > 1
        killed, whole = contents(place / "run"), contents(home / f"whole{number}" / "run")
        different = sorted(name for name in {*killed, *whole} if killed.get(name) != whole.get(name))
        assert not different, (number, different)
        runs += 1
        print(f"{hits} kills, {runs} runs, the same bytes", flush=True)
    return {"kills": hits, "runs": runs, "resumed": resumed}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(storm(Path(folder), given.kills, given.seed))
