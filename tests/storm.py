"""Kill commands before each of their file operations, repeat them, and compare all bytes with uninterrupted ones.

python tests/storm.py --kills 40
python tests/storm.py --kills 0 --family graph --seed 1

A child that is forked from a process which has imported everything runs a command; an audit hook counts what it does to
files, and kills it (SIGKILL) before operation number k. Then others read what is there; some repetitions are killed
too; the last one must leave the bytes of a command that was never killed. ``--kills 0`` takes every operation.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import pkgutil
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import fathomless
from fathomless.app import runs
from fathomless.app.cli import main
from fathomless.estimators.values import CheckpointOptions
from fathomless.families.depth.estimator import UnboundedDepthClassifier
from fathomless.inference.out_of_fold import recalibration
from fathomless.system.locks import LOCK
from short_recalibration import MOST_STEPS

TIMED = "log.jsonl"  # the one file of a run that tells times
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.link", "os.symlink")
HUNG = 120  # seconds
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NET = ["--width", "4", "--batch-size", "32", "--epochs", "8"]
SHORT = [*NET, "--cv", "2"]
CHAINS = ["--structure", "graph", "--sweeps", "12", "--states", "4", "--networks", "4", "--chains", "2"]
CHAINS += ["--engine", "numpy"]  # or a child compiles the sampler
HMC = ["--epochs", "3", "--cv", "2", "--weights", "hmc", "--hmc.sweeps", "16"]
HMC += ["--hmc.states", "4", "--hmc.chains", "2", "--hmc.leapfrogs", "3"]
DENSITY = ["--task", "density", "--drop", "x1", "--drop", "kind", "--drop", "side"]
STAGES = ["--candidates", "6", "--candidate-steps", "10", "--latent-dim", "2", "--decoder-width", "4"]
STAGES += ["--decoder-steps", "10", "--components", "2", "--latent-steps", "10"]


@dataclass(frozen=True)
class Scene:
    """Command to be killed, with the commands before it.

    Attributes
    ----------
    words : sequence of str
        The command.
    before : sequence of commands
        What its folder holds when it begins.
    again : str
        What is added to the command when it is repeated; commands other than ``fit`` are repeated as they are.
    pages : bool
        Whether a run is analysed and gets its page, which take most of the time of a fit that is as short.
    """

    words: Sequence[str]
    before: Sequence[Sequence[str]] = ()
    again: str = "--resume"
    pages: bool = False


def fit(*words: str) -> list[str]:
    """Return the command of a fit that writes a checkpoint at every row of its history."""
    return ["fit", "table.csv", "--out", "run", "--checkpoint.seconds", "0", "--quiet", *words]


SIDE, HEIGHT = ["--target", "side"], ["--target", "height"]
OLD = fit(*HEIGHT, *SHORT, "--seed", "5", "--drop", "side")
SCENES: dict[str, dict[str, Scene]] = {
    "depth": {
        "members": Scene(fit(*SIDE, *SHORT), pages=True),
        "vary": Scene(["vary"], again=""),
        "elbo": Scene(fit(*HEIGHT, *NET, "--weights", "meanfield", "--structure-from", "elbo", "--weight-draws", "2")),
        "heads": Scene(fit(*HEIGHT, *SHORT, "--last-layer", "laplace")),
        "replaced": Scene(fit("--target", "x0", *SHORT, "--overwrite"), [OLD], pages=True),
    },
    "hmc": {
        "": Scene(
            fit(
                *HEIGHT,
                "--width",
                "4",
                *HMC,
            )
        )
    },
    "density": {
        "": Scene(fit(*DENSITY, *CHAINS)),
        "lengthened": Scene(fit(*DENSITY, *CHAINS[:3], "80", *CHAINS[4:], "--resume"), [fit(*DENSITY, *CHAINS)]),
    },
    "graph": {"classes": Scene(fit(*SIDE, *CHAINS)), "numbers": Scene(fit(*HEIGHT, *CHAINS))},
    "sparse": {
        "": Scene(fit(*SIDE, *NET, "--structure", "sparse")),
        "temperature": Scene(fit(*HEIGHT, *NET, "--structure", "sparse", "--temperature", "1")),
    },
    "continuous": {
        "": Scene(fit(*HEIGHT, *SHORT[2:], "--structure", "continuous", "--hidden", "4", "--solver.steps", "3"))
    },
    "manifold": {"": Scene(fit(*HEIGHT, "--structure", "manifold", *STAGES))},
    "laplace": {"": Scene(fit(*SIDE, *NET, "--structure", "laplace"))},
    "swag": {"": Scene(fit(*HEIGHT, *NET, "--structure", "swag", "--passes", "8", "--networks", "4"))},
    "depth-uncertainty": {"": Scene(fit(*SIDE, *NET, "--structure", "depth-uncertainty", "--depths", "2"))},
    "ensemble": {"": Scene(fit(*HEIGHT, *NET, "--structure", "ensemble", "--n-restarts", "2"))},
    "compare": {
        "": Scene(
            ["compare", "table.csv", *SIDE, "--methods", "constant,linear,boosting", "--folds", "3", "--out", "run"],
            again="",
        )
    },
    "export": {
        "torch": Scene(["export", "run", "--format", "torch"], [OLD], "", True),
        "replaced": Scene(
            ["export", "run", "--format", "torch", "--level", "0.5"],
            [OLD, ["export", "run", "--format", "torch"]],
            "",
            True,
        ),
    },
    "evaluate": {"": Scene(["evaluate", "run", "table.csv"], [OLD], "", True)},
    "report": {"": Scene(["report", "run"], [OLD], "", True)},
    "predict": {"": Scene(["predict", "run", "table.csv", "--out", "run/said.parquet"], [OLD], "", True)},
}
LOOKS = [  # commands that read a run; what they say is compared
    ["predict", "run", "table.csv", "--out", "said.csv"],
    ["report", "run", "--out", "page.html"],
    ["evaluate", "run", "table.csv", "--json"],
]


def table(path: Path) -> None:
    """Write a small table with numbers, a category and missing values."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 2))
    lines = ["x0,x1,kind,height,side"]
    for i, row in enumerate(x):
        gap = "" if i % 17 == 0 else f"{row[1]:.4f}"
        height = np.sin(2 * row[0]) + 0.1 * rng.normal()
        lines.append(f"{row[0]:.4f},{gap},{'ab'[i % 2]},{height:.4f},{'left' if row[0] < 0 else 'right'}")
    path.write_text("\n".join(lines) + "\n")


def vary() -> int:
    """Fit candidate architectures, which the command line does not offer."""
    x = np.random.default_rng(0).normal(size=(64, 2))
    options = {"width": 4, "epochs": 8, "batch_size": 32, "cv": 2, "random_state": 0}
    kinds = {"activation": ["relu", "tanh"]}
    UnboundedDepthClassifier(
        candidates=kinds, checkpoint=CheckpointOptions("run/checkpoint", seconds=0), **options
    ).fit(x, x[:, 0] > 0).save("run")
    return 0


class Unanalysed:
    """Replacement of the analysis of a run, which is omitted."""

    peers = None

    def save(self, path: Path) -> None:
        """Write nothing."""


class Watch:
    """Audit hook that reports every operation on files below a folder, and kills the process before one of them."""

    def __init__(self, folder: str, told: int, kill: int | None, within: str) -> None:
        self.folder, self.told, self.kill, self.within, self.done, self.phase = folder, told, kill, within, 0, "start"

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Handle an event."""
        if event not in EVENTS or isinstance(arguments[0], int):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITES):
            return
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if not path.startswith(self.folder):
            return
        path = path[len(self.folder) + 1 :]
        if path.startswith(("run/checkpoint", "run/parts")):
            self.phase = "training"
        elif path.startswith(("run/tensors", "run/compare")):
            self.phase = "end"
        self.done += self.within in ("", self.phase)
        os.write(self.told, json.dumps([self.phase, event, path]).encode() + b"\n")
        if self.done == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Life:
    """End of a child: its exit status, its operations on files, and its output."""

    status: int
    operations: list[list[str]]
    said: list[list[Any]]

    @property
    def killed(self) -> bool:
        """True if it was killed."""
        return self.status == -signal.SIGKILL

    def refused(self) -> str:
        """Return the output of the first command that failed."""
        return next((err for code, _, err in self.said if code), "")


def life(
    home: Path, commands: Sequence[Sequence[str]], kill: int | None = None, pages: bool = True, within: str = ""
) -> Life:
    """Run commands in a forked child, in a folder; kill it before an operation on files, counted from 1.

    Operations are counted from the start of a phase, if one is named.
    """
    told = home.with_suffix(".told")
    handle = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.alarm(HUNG)
            os.chdir(home)
            time.perf_counter = time.monotonic = lambda: 0.0  # seconds of fits, which comparisons tell
            if not pages:
                runs.page, runs.analyse_fit = (lambda folder: "page\n"), (lambda *_, **__: Unanalysed())  # type: ignore
            sys.addaudithook(Watch(os.getcwd(), handle, kill, within))
            for words in commands:
                out, err = io.StringIO(), io.StringIO()
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    code = vary() if words == ["vary"] else main(list(words))
                os.write(handle, json.dumps({"said": [code, out.getvalue(), err.getvalue()]}).encode() + b"\n")
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    os.close(handle)
    lines = [json.loads(line) for line in told.read_bytes().splitlines()]
    operations = [line for line in lines if isinstance(line, list)]
    return Life(
        os.waitstatus_to_exitcode(status), operations, [line["said"] for line in lines if isinstance(line, dict)]
    )


def contents(home: Path) -> dict[str, bytes | None]:
    """Return every file below a folder by name, and None for every folder, without times."""
    return {
        str(path.relative_to(home)): (exported(path) if path.suffix == ".pt2" else path.read_bytes())
        if path.is_file()
        else None
        for path in sorted(home.rglob("*"))
        if path.name != TIMED
    }


def exported(path: Path) -> bytes:
    """Return the content of a PyTorch module without its graph, which torch does not write deterministically."""
    try:
        with zipfile.ZipFile(path) as parts:
            assert parts.testzip() is None
            told = [(one.filename, one.CRC) for one in parts.infolist()]
    except zipfile.BadZipFile:
        return path.read_bytes()
    return repr([one for one in told if not one[0].endswith(("models/model.json", "serialization_id"))]).encode()


def looked(home: Path, pages: bool) -> list[str | None]:
    """Return the output of commands that read a run; None if they raise an error."""
    place = home.with_name(home.name + "-looked")
    shutil.copytree(home, place)
    try:
        found = life(place, LOOKS, pages=pages)
        assert found.status == 0, found
        files = [place / words[words.index("--out") + 1] if "--out" in words else None for words in LOOKS]
        for code, _, err in found.said:
            assert code in (0, 2), (code, err)
        return [
            None if code else out if file is None else file.read_text()
            for file, (code, out, _) in zip(files, found.said, strict=True)
        ]
    finally:
        shutil.rmtree(place)


@dataclass
class Tally:
    """Counts of a scene."""

    operations: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    again: int = 0
    fallen: list[str] = field(default_factory=list)

    def line(self, name: str) -> str:
        """Return a line of the table."""
        phases = [f"{self.operations[p]:5d} {self.kills[p]:5d}" for p in ("start", "training", "end")]
        return f"{name:22s} {'  '.join(phases)}  {sum(self.kills.values()):5d} {self.again:5d} {len(self.fallen):6d}"


HEAD = f"{'':22s} {'start':>11s}  {'training':>11s}  {'end':>11s}\n{'':22s} " + "  ".join(["  ops kills"] * 3)
HEAD += "  kills again fallen"


class Storm:
    """Scene that is killed repeatedly."""

    def __init__(self, home: Path, scene: Scene, random: Random, look: bool = True) -> None:
        self.home, self.scene, self.random, self.look, self.tally = home, scene, random, look, Tally()
        self.first, self.whole = home / "first", home / "whole"
        self.first.mkdir(parents=True)
        table(self.first / "table.csv")
        self.done(life(self.first, scene.before, pages=scene.pages))
        shutil.copytree(self.first, self.whole)
        undisturbed = life(self.whole, [scene.words], pages=scene.pages)
        self.done(undisturbed)
        self.operations = undisturbed.operations
        self.tally.operations.update(phase for phase, *_ in self.operations)
        self.before, self.after = contents(self.first), contents(self.whole)
        self.fits = scene.words[0] == "fit" and look
        self.answers = [looked(place, scene.pages) for place in (self.first, self.whole)] if self.fits else []

    @staticmethod
    def done(found: Life) -> None:
        """Check that commands finished."""
        assert found.status == 0, f"exit {found.status}: {found.said}"
        assert not found.refused(), found.refused()

    def chosen(self, kills: int) -> list[int]:
        """Return indices of operations: all, or a given number, distributed evenly among the phases."""
        if not kills:
            return list(range(1, len(self.operations) + 1))
        of = {p: [i for i, (q, *_) in enumerate(self.operations, 1) if p == q] for p in self.tally.operations}
        for places in of.values():
            self.random.shuffle(places)
        taken: list[int] = []
        while len(taken) < kills:
            taken += [places.pop() for places in of.values() if places][: kills - len(taken)]
            if not any(of.values()):  # once more
                of = {"": self.random.sample(range(1, len(self.operations) + 1), len(self.operations))}
        return taken

    def run(self, kills: int, again: int = 1) -> Tally:
        """Kill before a number of operations; after each, also kill some repetitions that still run."""
        for round_, number in enumerate(self.chosen(kills)):
            if kills and sum(self.tally.kills.values()) >= kills:
                break
            place = self.home / f"killed{round_}"
            shutil.copytree(self.first, place)
            try:
                self.once(place, number, again)
            except AssertionError as error:
                self.tally.fallen.append(f"operation {number} {self.operations[number - 1]}: {error}")
                print("FELL", self.tally.fallen[-1][:2000], flush=True)
            shutil.rmtree(place, ignore_errors=True)
        return self.tally

    def once(self, place: Path, number: int, again: int) -> None:
        """Kill, check, repeat and compare."""
        words = [word for word in self.scene.words if word not in ("--overwrite", "--resume")]
        words += [self.scene.again] if self.scene.again else []
        found = life(place, [self.scene.words], kill=number, pages=self.scene.pages)
        self.count(found)
        assert found.killed, f"was not killed but ended with {found.status}: {found.refused()}"
        self.check(place)
        left = len(self.operations) - number + 8
        for _ in range(again):
            found = life(place, [words], kill=self.random.randint(1, left), pages=self.scene.pages)
            self.tally.again += found.killed
            self.count(found)
            self.check(place)
        self.finish(place, words)

    def finish(self, place: Path, words: Sequence[str]) -> None:
        """Repeat a command until it finishes, and compare."""
        found = life(place, [words], pages=self.scene.pages)
        if "differs from this one" in found.refused() and "--overwrite" in self.scene.words:
            found = life(place, [self.scene.words], pages=self.scene.pages)  # it was killed before it had begun
        self.done(found)
        ended = contents(place)
        unlike = sorted(name for name in {*ended, *self.after} if ended.get(name, b"?") != self.after.get(name, b"?"))
        assert not unlike, f"other bytes in {unlike}"

    def thin(self) -> Tally:
        """Kill once in training and once at the end; repeat and compare."""
        place, scene, (first, *words) = self.home / "killed", self.scene, self.scene.words
        shutil.copytree(self.first, place)
        middle = self.tally.operations["training"] // 2
        late = self.random.randint(1, self.tally.operations["end"] or len(self.operations))
        for number, within in ((middle, "training"), (late, "end" if middle else "")):
            again = [scene.again] * bool(scene.again and sum(self.tally.kills.values()))
            if number:
                found = life(place, [[first, *words, *again]], number, scene.pages, within)
                assert found.killed, f"was not killed but ended with {found.status}: {found.refused()}"
                self.count(found)
                self.check(place)
                words = [word for word in words if word not in ("--overwrite", "--resume")]
        self.finish(place, [first, *words, *([scene.again] if scene.again else [])])
        return self.tally

    def count(self, found: Life) -> None:
        """Count a kill."""
        if found.killed:
            self.tally.kills[found.operations[-1][0]] += 1

    def check(self, place: Path) -> None:
        """Check the files after a kill: nothing incomplete may be accepted as complete."""
        if self.fits and ((place / "run" / "manifest.json").exists() or self.random.random() < 0.2):
            said = looked(place, self.scene.pages)
            known = [
                all(one in (None, answer) for one, answer in zip(said, told, strict=True)) for told in self.answers
            ]
            assert any(known), f"a killed run is read as another one: {said} instead of {self.answers}"
        if self.scene.words[0] not in ("fit", "vary"):
            for name, content in contents(place).items():
                known = (self.before.get(name, b"?"), self.after.get(name, b"?"))
                assert name.endswith((".partial", LOCK)) or content in known, f"{name} is half done"


def prepare() -> None:
    """Import everything in advance, so that child processes start fast."""
    torch.set_num_threads(1)
    recalibration._MOST_STEPS = MOST_STEPS
    os.fsync = lambda handle: None  # a process that is killed loses nothing that it has written
    for found in pkgutil.walk_packages(fathomless.__path__, "fathomless."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    for name in ("torch._dynamo", "torch.export", "sklearn.ensemble", "sklearn.linear_model", "pyarrow.csv"):
        importlib.import_module(name)


def campaign(families: Sequence[str], kills: int, again: int, seed: int) -> int:
    """Kill scenes of families; print the counts, and return the number of failures."""
    fallen = 0
    lines = [HEAD]
    for name in families:
        scenes = SCENES[name]
        for variant, scene in scenes.items():
            began, label = time.monotonic(), f"{name} {variant}".strip()
            with tempfile.TemporaryDirectory() as folder:
                tally = Storm(Path(folder) / "storm", scene, Random(f"{seed} {label}")).run(
                    -(-kills // len(scenes)), again
                )
            lines.append(tally.line(label))
            fallen += len(tally.fallen)
            print(f"{lines[-1]}  {time.monotonic() - began:.0f} s", flush=True)
    print("\n".join(lines))
    return fallen


def thin(seed: int) -> int:
    """Kill the first scene of every family twice, without pages; print a line each, and return the number of failures.

    Exports, which take seconds each, are left to the campaign.
    """
    fallen = 0
    for name, scenes in SCENES.items():
        for variant, scene in scenes.items():
            if name == "export" or variant not in (next(iter(scenes)), "replaced"):
                continue
            with tempfile.TemporaryDirectory() as folder:
                quick = replace(scene, pages=False)
                storm = Storm(Path(folder) / "storm", quick, Random(seed), look=variant == "replaced")
                try:
                    tally, told = storm.thin(), ""
                except AssertionError as error:
                    tally, told = storm.tally, str(error)
            fallen += bool(told)
            print(json.dumps([f"{name} {variant}".strip(), sum(tally.kills.values()), told]), flush=True)
    return fallen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="of each family; 0 is every operation once")
    parser.add_argument("--family", choices=SCENES, nargs="+", default=list(SCENES))
    parser.add_argument("--again", type=int, default=1, help="repetitions that are killed too, after each kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--thin", action="store_true", help="two kills of each, for the tests")
    given = parser.parse_args()
    prepare()
    if given.thin:
        sys.exit(bool(thin(given.seed)))
    sys.exit(bool(campaign(given.family, given.kills, given.again, given.seed)))
