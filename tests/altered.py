"""Alter each value of saved models of every family: loading raises a documented error, or the model predicts numbers.

python tests/altered.py --models 4000 --headers 400 --runs 400

One tiny model of each family and mode is fitted and saved. A copy, signed as the library signs it, has one place of its
manifest altered, the header or the numbers of its tensors (``headers``), or another JSON file of its run folder
(``runs``). A forked child loads it, predicts and saves it again, with little memory and little time.
"""

import argparse
import collections
import contextlib
import faulthandler
import hashlib
import json
import math
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parent))

import fathomless
from battery.cases import CASES, predicted
from fathomless.estimators.values import HMC as Chains
from fathomless.system.errors import FathomlessError
from fuzz import damaged_header, damaged_json, outcome, prepare, signed, wrong
from quick_fits import problem, table
from toy_family import FAMILY as TOY

SECONDS = 5  # that one case may take
MEMORY = 3 << 29  # bytes that one case may take, beside what the process has
#: What a leaf becomes.
VALUES: list[Any] = [
    *(
        0,
        -1,
        1,
        2,
        3,
        10**5,
        10**9,
        2**31,
        2**63,
        -(2**63),
        10**30,
        0.5,
        -0.0,
        1e-300,
        1e308,
        -1e308,
        math.nan,
        math.inf,
    ),
    *(
        "",
        "x",
        "0",
        "NaN",
        "a" * 10**5,
        "../../x",
        "__class__",
        "\x00\x1b[2J",
        None,
        True,
        False,
        [],
        {},
        [[[]]],
        [0] * 1000,
    ),
    *([[1, 2], [3]], {"x": 1}, {"class": "os.system", "fields": {"command": "touch pwned"}}, {"function": True}),
    {"class": "SmoothTruncation", "fields": {}},
]
HMC = {"weights": Chains(chains=2, sweeps=16, leapfrogs=3, states=4), "cv": 2, "epochs": 8, "width": 6}
SHORT = {"cv": 1, "epochs": 5, "width": 6}
#: Events that no loading causes.
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "ctypes.dlopen")

Fit = tuple[Any, Any]


# ------------------------------------------------------------------------------------------------- models


def fits() -> dict[str, Callable[[], Fit]]:
    """Return functions that fit a tiny model, by name: each case of the battery, and modes that it does not cover."""

    def of(case: Any) -> Callable[[], Fit]:
        return lambda: (case.estimator().fit(*case.table()), case.table()[0][:7])

    def depth(kind: str, y: Any, X: Any = None, **options: Any) -> Callable[[], Fit]:
        def fit() -> Fit:
            rows = problem(len(y))[0] if X is None else X
            return getattr(fathomless, kind)(random_state=0, **options).fit(rows, y), rows[:7]

        return fit

    number, frame, label = problem(60)[1], pd.DataFrame(table(60)), np.arange(60) % 2
    two = np.column_stack([number, -number])
    regressor, classifier = "UnboundedDepthRegressor", "UnboundedDepthClassifier"
    found = {case.name: of(case) for case in CASES if case.family is not TOY}
    return found | {
        "depth-hmc-regression": depth(regressor, number, **HMC),
        "depth-hmc-classification": depth(classifier, label, **HMC),
        "depth-frame": depth(regressor, number, frame, **SHORT),
        "depth-targets": depth(regressor, two, **SHORT),
        "depth-student": depth(regressor, number, likelihood="student_t", **SHORT),
        "depth-kinds": depth(
            regressor,
            number,
            candidates={"activation": ["relu", "tanh"]},
            **{**SHORT, "cv": 2},
            validation_fraction="auto",
        ),
        "depth-labels": depth(classifier, np.column_stack([label, 1 - label]), **SHORT),
        "depth-transformer": depth(regressor, number, architecture="transformer", cv=1, epochs=2, width=4),
        "sparse-temperatures": depth(
            "SparseBayesRegressor", number, temperature=(0.5, 1.0), epochs=5, width=4, weight_draws=4
        ),
        "manifold-sampled": depth(
            "ProjectedBayesRegressor",
            number,
            latent_posterior="sampled",
            candidates=12,
            candidate_steps=30,
            latent_dim=(2, 3),
            decoder_steps=30,
            latent_steps=30,
            components=3,
            width=4,
        ),
    }


def saved(home: Path, only: str = "") -> dict[str, tuple[Path, Any]]:
    """Fit and save every model; return its folder and rows for predictions, by name."""
    found = {}
    for name, fit in fits().items():
        if only in name:
            estimator, X = fit()
            found[name] = (estimator.save(home / name), X)
    return found


# ------------------------------------------------------------------------------------------------- alterations

Place = tuple[Any, ...]


def places(value: Any, above: Place = ()) -> Iterator[Place]:
    """List the positions in a JSON value; of a long list only the first, the second and the last entry."""
    yield above
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*above, key))
    elif isinstance(value, list):
        for i in sorted({0, 1, len(value) - 1} & set(range(len(value)))):
            yield from places(value[i], (*above, i))


def at(value: Any, place: Place) -> Any:
    """Return the value at a position."""
    for key in place:
        value = value[key]
    return value


def altered(meta: Any, place: Place, random: Random) -> tuple[Any, str]:
    """Alter a copy at one position; return it with a description of the change."""
    meta = json.loads(json.dumps(meta))
    if not place:
        return damaged_json(meta, random), "somewhere"
    above, key, old = at(meta, place[:-1]), place[-1], at(meta, place)
    kind = random.randrange(12)
    if kind == 0:
        del above[key]
        done = "deleted"
    elif kind == 1 and isinstance(old, list) and old:
        above[key] = random.choice([old * 2, old[:-1], old[::-1], old * 5000, [old]])
        done = "list"
    elif kind == 2 and isinstance(old, dict):
        old[random.choice(["x", "", "save", "predict", "__class__"])] = random.choice(VALUES)
        done = "extra key"
    elif kind <= 4 and isinstance(old, int | float) and not isinstance(old, bool):
        above[key] = random.choice([-old, old + 1, old - 1, old * 1000, old * 10**7, old / 2, old * 1e200])
        done = f"{above[key]!r:.40}"
    else:
        above[key] = random.choice(VALUES)
        done = f"{above[key]!r:.40}"
    return meta, f"{'/'.join(map(str, place))} = {done}"


def write_altered(base: Path, folder: Path, manifest: Any) -> None:
    """Write a folder with an altered manifest, a valid checksum, and the original tensors."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in base.glob("tensors-*"):
        os.link(path, folder / path.name)
    with contextlib.suppress(UnicodeEncodeError):
        (folder / "manifest.json").write_bytes(signed(manifest))


def write_header(base: Path, folder: Path, random: Random) -> None:
    """Write a folder with an altered header or altered numbers in its tensors."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    manifest = json.loads((base / "manifest.json").read_text())
    data = damaged_header((base / manifest["tensors"]["file"]).read_bytes(), random)
    if random.random() < 0.1:
        data = struct.pack("<Q", random.choice([0, 1, 2**31, 2**62, 2**64 - 1, len(data)])) + data[8:]
    digest = hashlib.sha256(data).hexdigest()
    name = f"tensors-{digest[:16]}.safetensors"
    (folder / name).write_bytes(data)
    manifest["tensors"] = {"file": name, "sha256": digest, "bytes": len(data)}
    (folder / "manifest.json").write_bytes(signed(manifest))


# ------------------------------------------------------------------------------------------------- answers


@cache
def attributes(base: Path) -> frozenset[str]:
    """Return the attributes of the original model."""
    return frozenset(vars(fathomless.load(base)))


def used(base: Path, folder: Path, X: Any, again: Path) -> str:
    """Load a model, predict and save it; return "predicts", the name of an error, or a description of the failure."""
    try:
        estimator = fathomless.load(folder)
        if strange := set(vars(estimator)) - attributes(base):
            return f"wrong: sets {sorted(strange)[:3]}"
        numbers = predicted(estimator, X)
        repr(estimator)
        estimator.save(again)
    except FathomlessError as error:
        message = str(error)
        return f"{type(error).__name__}: {message}" if len(message) < 2000 else f"wrong: long message {message[:200]}"
    except BaseException as error:
        return f"wrong: {type(error).__name__}: {error}"
    bad = [one for one in map(np.asarray, numbers) if one.dtype.kind == "f" and np.isnan(one).any()]
    infinite = [one for one in map(np.asarray, numbers) if one.dtype.kind == "f" and np.isposinf(one).any()]
    return "wrong: predicts NaN" if bad else "wrong: predicts infinite numbers" if infinite else "predicts"


def apart(work: Callable[[], str], scratch: Path, seconds: int = SECONDS, memory: int = MEMORY) -> tuple[str, float]:
    """Call a function in a child process with limits of memory and time; return its result or exit, and the seconds."""
    sys.stdout.flush()
    begun = time.perf_counter()
    trace, reader, writer = scratch / "trace", *os.pipe()
    child = os.fork()
    if child == 0:
        said = "wrong: child"
        try:
            os.close(reader)
            os.dup2(os.open(scratch / "noise", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            log = open(trace, "w")  # noqa: SIM115 - as long as the child lives
            faulthandler.enable(log)
            faulthandler.dump_traceback_later(seconds - 1, file=log)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            seen: list[str] = []
            sys.addaudithook(lambda event, _: seen.append(event) if event.startswith(FORBIDDEN) else None)
            said = work()
            said = f"wrong: causes {seen[:3]}" if seen else said
            os.write(writer, said.encode("utf-8", "replace")[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        where = [line.strip() for line in trace.read_text().splitlines() if "fathomless" in line][:2]
        said = f"wrong: killed by {signal.Signals(os.WTERMSIG(status)).name}: {where}"
    return said or "wrong: ended without an answer", time.perf_counter() - begun


def kind_of(said: str) -> str:
    """Return the category of an outcome."""
    return said.partition(":")[0]


def models(home: Path, count: int, seed: int, only: str = "", headers: bool = False) -> dict[str, Any]:
    """Alter a number of manifests or tensors, of all models in turn; return the outcome of each."""
    bases = saved(home, only)
    table: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in bases}
    faults, slowest = list[str](), 0.0
    folder, again = home / "altered", home / "again"
    for name, (base, X) in bases.items():
        attributes(base)
        manifest = json.loads((base / "manifest.json").read_text())
        every = [place for place in places(manifest["meta"]) if place]
        share = -(-count // len(bases))
        for number in range(share):
            random = Random(f"{name} {seed} {number}")
            if headers:
                write_header(base, folder, random)
                done = "tensors"
            else:
                place = every[number % len(every)] if share >= len(every) else random.choice(every)
                meta, done = altered(manifest["meta"], place, random)
                write_altered(base, folder, {**manifest, "meta": meta})
            said, spent = apart(lambda base=base, X=X: used(base, folder, X, again), home)
            slowest = max(slowest, spent)
            table[name][kind_of(said)] += 1
            if said.startswith("wrong"):
                faults.append(f"{name} {seed} {number}: {done}: {said[:400]}")
                print(faults[-1], flush=True)
        print(f"{name}: {share} of {len(every)} places, {dict(table[name])}", flush=True)
    return {
        "cases": sum(sum(one.values()) for one in table.values()),
        "wrong": len(faults),
        "slowest": slowest,
        "table": table,
    }


# ------------------------------------------------------------------------------------------------- run folders


def runs(home: Path, count: int, seed: int) -> dict[str, Any]:
    """Alter the JSON files of run folders other than the manifest of the model, and use the folder."""
    bases, counted, faults = prepare(home), collections.Counter[str](), list[str]()
    data, folder = home / "data.csv", home / "case"
    for number in range(count):
        random = Random(f"runs {seed} {number}")
        base = bases[random.choice(sorted(bases))]
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)
        files = sorted(p for p in folder.rglob("*.json*") if p != folder / "manifest.json" and p.is_file())
        path = random.choice(files)
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        which = random.randrange(len(lines))
        value = json.loads(lines[which])
        where = [place for place in places(value) if place]
        value, done = altered(value, random.choice(where) if where else (), random)
        lines[which] = json.dumps(value)
        path.write_text("\n".join(lines) + "\n")
        words = random.choice(
            [
                ["predict", str(folder), str(data)],
                ["evaluate", str(folder), str(data)],
                ["report", str(folder)],
                ["cite", str(folder)],
            ]
        )

        def use(words: list[str] = words) -> str:
            code, said = outcome(words)
            return f"wrong: {said[-300:]}" if wrong(code, said) else f"exit {code}"

        said, _ = apart(use, home, 60)
        counted[f"{path.name.partition('-')[0]} {words[0]} {kind_of(said)}"] += 1
        if said.startswith("wrong"):
            faults.append(f"runs {seed} {number}: {path.name}: {done}: {words[0]}: {said}")
            print(faults[-1], flush=True)
    return {"cases": count, "wrong": len(faults), "table": {"runs": counted}}


def tell(kind: str, result: Mapping[str, Any]) -> None:
    """Print the number of cases of each model, and their outcomes."""
    print(f"{kind}: {result['cases']} cases, {result['wrong']} wrong, slowest {result.get('slowest', 0.0):.1f} s")
    for name, answers in result["table"].items():
        print(f"  {name:32s}" + "  ".join(f"{answer} {n}" for answer, n in sorted(answers.items())))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("models", "headers", "runs", "seed"):
        parser.add_argument(f"--{option}", type=int, default=0)
    parser.add_argument("--only", default="", help="models whose names contain this")
    given, failed = parser.parse_args(), 0
    for kind in ("models", "headers", "runs"):
        if count := getattr(given, kind):
            with tempfile.TemporaryDirectory() as place:
                if kind == "runs":
                    result = runs(Path(place), count, given.seed)
                else:
                    result = models(Path(place), count, given.seed, given.only, kind == "headers")
            tell(kind, result)
            failed += result["wrong"]
    sys.exit(failed > 0)
