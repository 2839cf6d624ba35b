"""Give the command line damaged model folders, tables and options: it ends with exit code 0 or 2, and without a trace.

python tests/fuzz.py --models 10000 --tables 10000 --options 1000
"""

import argparse
import collections
import contextlib
import gzip
import hashlib
import io
import json
import re
import shutil
import signal
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import torch

from fathomless import UnboundedDepthRegressor
from fathomless.app.cli import main

SECONDS = 60  # that one case may take
NASTY: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 10**6, 10**9, 2**63, 10**30, 0.5, -0.0, 1e-300, 1e300),
    *("", "x", "NaN", "0", "../../x", "__import__('os').system('touch pwned')", "os.system", "\x00", "é🜂", "a" * 5000),
    *([], [1], [[]], {}, {"class": "SmoothTruncation", "fields": {}}, {"function": True}),
    {"class": "os.system", "fields": {"command": "touch pwned"}},
]
CELLS = [
    *("", " ", "NA", "?", "nan", "inf", "-inf", "1e999", "-1e308", "1e-320", "0", "-0", "007", "1_000", "1,5", "0x10"),
    *("true", "yes", "a", "unseen", "2024-02-30", "2024-02-29", "2024-01-01T00:00:00Z", "9" * 400, "A" * 9000),
    *('"', '""', 'a"b', "'", ";", "\t", "|", "é", "🜂", "\x00", "\r", "=1+1", "<b>"),
]


# ------------------------------------------------------------------------------------------------- running


def outcome(words: list[str]) -> tuple[int, str]:
    """Run one command in this process; return its exit code and what it wrote to standard error."""

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    err, out = io.StringIO(), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
            code = main(words)
    except BaseException as error:
        return -1, f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return code, err.getvalue()


def wrong(code: int, said: str) -> bool:
    """Whether a case did not end as it must: 0, or 2 with one line of error."""
    errors = [line for line in said.splitlines() if not line.startswith("note: ")]
    return code not in (0, 2) or "Traceback" in said or (code == 2) != (len(errors) == 1)


# ------------------------------------------------------------------------------------------------- damage


def damaged_bytes(data: bytes, random: Random) -> bytes:
    """Flip, cut, repeat or insert some bytes."""
    at = random.randrange(len(data) + 1)
    end = min(len(data), at + random.choice([1, 2, 8, 64, 1024]))
    match random.randrange(6):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:end] + data[at:end] + data[end:]
        case 3:
            return data[:at] + random.randbytes(end - at) + data[end:]
        case 4:
            return data[:at] + random.randbytes(random.choice([1, 3, 50])) + data[at:]
    flipped = bytearray(data)
    for _ in range(random.choice([1, 2, 10])):
        if flipped:
            flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
    return bytes(flipped)


def damaged_json(value: Any, random: Random) -> Any:
    """Change one place of a JSON value."""
    if isinstance(value, dict) and value and random.random() < 0.95:
        key = random.choice(sorted(value))
        match random.randrange(20):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, random.choice(["x", "", "class", key + "_"]): random.choice(NASTY)}
        return {**value, key: damaged_json(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.9:
        at = random.randrange(len(value))
        match random.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case 2:
                return value[::-1]
        return [*value[:at], damaged_json(value[at], random), *value[at + 1 :]]
    if isinstance(value, int | float) and not isinstance(value, bool) and random.random() < 0.5:
        return random.choice([-value, value + 1, value - 1, value * 1000, value * 10**7, value / 2, 0])
    return random.choice(NASTY)


def signed(manifest: dict[str, Any]) -> bytes:
    """Write a manifest with the checksum that belongs to it, as a careful vandal would."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    whole = {**rest, "checksum": hashlib.sha256(text.encode()).hexdigest()}
    return json.dumps(whole, sort_keys=True, indent=1).encode()


def damaged_header(data: bytes, random: Random) -> bytes:
    """Change the header of a safetensors file, or some numbers in it."""
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    if random.random() < 0.5:
        for _ in range(random.choice([1, 4, 100])):
            at = random.randrange(0, max(1, len(body) - 8), 4)
            body[at : at + 4] = random.choice([struct.pack("<f", v) for v in (np.nan, np.inf, 1e38, -1.0, 0.0)])
    else:
        header = damaged_json(header, random)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(body)


def damage_model(folder: Path, random: Random) -> None:
    """Damage something in a run folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".html")
    manifests = [path for path in files if path.name == "manifest.json"]
    path = random.choice(files)
    kind = random.randrange(10)
    if kind == 0:
        path.write_bytes(damaged_bytes(path.read_bytes(), random))
    elif kind == 1:
        random.choice([Path.unlink, lambda p: p.write_bytes(b"")])(path)
    elif kind == 2:
        path.write_bytes(random.choice(files).read_bytes())
    elif kind == 3:
        asked = folder / "run.json"
        asked.write_text(json.dumps(damaged_json(json.loads(asked.read_text()), random)))
    elif kind <= 6:
        path = manifests[0] if random.random() < 0.8 else random.choice(manifests)  # the first is the model's own
        manifest = json.loads(path.read_text())
        for _ in range(random.choice([1, 1, 2])):
            manifest["meta"] = damaged_json(manifest["meta"], random)
        path.write_bytes(signed(manifest))
    else:
        path = manifests[0] if random.random() < 0.7 else random.choice(manifests)
        manifest = json.loads(path.read_text())
        data = damaged_header((path.parent / manifest["tensors"]["file"]).read_bytes(), random)
        digest = hashlib.sha256(data).hexdigest()
        name = f"tensors-{digest[:16]}.safetensors"
        (path.parent / name).write_bytes(data)
        manifest["tensors"] = {"file": name, "sha256": digest, "bytes": len(data)}
        path.write_bytes(signed(manifest))


def damaged_table(text: str, random: Random) -> bytes:
    """Damage a CSV table: its cells, lines, header or bytes; or write it in another format and damage that."""
    lines = [line.split(",") for line in text.splitlines()]
    for _ in range(random.choice([0, 1, 1, 3, 20])):
        row = random.choice(lines)
        match random.randrange(8):
            case 0:
                lines = [other for other in lines if other is not row] or lines
            case 1:
                lines.insert(random.randrange(len(lines)), list(row))
            case 2:
                row.append(random.choice(CELLS))
            case 3:
                row[:] = row[:-1] or row
            case 4:
                at = random.randrange(len(row))
                for other in lines[random.randrange(2) :]:
                    if at < len(other):
                        other[at] = random.choice(CELLS) if random.random() < 0.9 else other[at]
            case _:
                row[random.randrange(len(row))] = random.choice(CELLS)
    data = "\n".join(",".join(line) for line in lines).encode("utf-8", "surrogatepass")
    match random.randrange(8):
        case 0:
            return damaged_bytes(data, random)
        case 1:
            return data.replace(b",", random.choice([b";", b"\t", b"|", b", "]))
        case 2:
            packed = gzip.compress(data, mtime=0)
            return damaged_bytes(packed, random) if random.random() < 0.7 else packed
        case 3:
            return damaged_parquet(data, random)
        case 4:
            return data.decode("utf-8", "replace").encode(random.choice(["utf-16", "latin-1", "utf-8-sig"]), "replace")
    return data


def damaged_parquet(data: bytes, random: Random) -> bytes:
    """Write CSV as Parquet, if it can be read, and damage some."""
    try:
        frame = pyarrow.csv.read_csv(io.BytesIO(data))
        sink = io.BytesIO()
        pyarrow.parquet.write_table(frame, sink)
    except Exception:
        return data
    return damaged_bytes(sink.getvalue(), random) if random.random() < 0.7 else sink.getvalue()


def damaged_options(random: Random) -> list[str]:
    """Return some options with values good and bad."""
    words = []
    for _ in range(random.choice([1, 1, 2, 3])):
        option = random.choice([f for f in fields(UnboundedDepthRegressor) if f.metadata["kind"] != "object"])
        flag = "--" + option.name.replace("_", "-")
        values = [str(value) for value in NASTY if isinstance(value, int | float | str) and "\x00" not in str(value)]
        values += [*option.metadata["names"], "auto", "none", str(option.default)]
        words += [flag] if option.metadata["kind"] == "flag" else [flag, random.choice(values)]
    return words


# ------------------------------------------------------------------------------------------------- campaigns


def sample(rows: int, seed: int) -> str:
    """Return a small CSV table with numbers, a category, a date, a boolean, gaps and two targets."""
    rng = np.random.default_rng(seed)
    lines = ["a,b,kind,day,flag,height,side"]
    for i in range(rows):
        a, b = rng.normal(size=2)
        gap = "" if i % 11 == 0 else f"{b:.3f}"
        day, flag = f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}", ["true", "false"][i % 2]
        lines.append(f"{a:.3f},{gap},{'xyz'[i % 3]},{day},{flag},{a + 0.1 * i:.3f},{'left' if a < 0 else 'right'}")
    return "\n".join(lines) + "\n"


def prepare(home: Path) -> dict[str, Path]:
    """Fit a classifier and a regressor that the campaigns damage."""
    (home / "data.csv").write_text(sample(90, 0))
    runs = {}
    for name, words in (("side", ["--weights", "map"]), ("height", ["--weights", "meanfield", "--weight-draws", "2"])):
        drop = {"side": "height", "height": "side"}[name]
        fit = ["fit", str(home / "data.csv"), "--target", name, "--drop", drop, "--out", str(home / name), "--quiet"]
        code, said = outcome([*fit, "--epochs", "4", "--width", "4", *words])
        if code:
            raise RuntimeError(said)
        outcome(["evaluate", str(home / name), str(home / "data.csv")])
        runs[name] = home / name
    return runs


def model_case(home: Path, runs: dict[str, Path], random: Random) -> list[str]:
    """Damage a copy of a run; return a command that uses it."""
    base = random.choice(sorted(runs.values()))
    folder = home / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    damage_model(folder, random)
    data = str(home / "data.csv")
    commands = [["predict", "RUN", data], ["evaluate", "RUN", data], ["cite", "RUN"], ["report", "RUN"]]
    words = random.choices(commands, weights=[6, 2, 1, 1])[0]  # a page takes longest
    return [str(folder) if word == "RUN" else word for word in words]


def table_case(home: Path, runs: dict[str, Path], random: Random) -> list[str]:
    """Damage a table; return a command that reads it."""
    table = home / random.choice(["case.csv", "case.parquet", "case.csv.gz"])
    table.write_bytes(damaged_table(sample(random.choice([3, 20, 70]), random.randrange(5)), random))
    match random.randrange(8):
        case 0:
            shutil.rmtree(home / "fit", ignore_errors=True)
            words = ["fit", str(table), "--target", random.choice(["side", "height"]), "--out", str(home / "fit")]
            return [*words, "--epochs", "1", "--width", "3"]
        case 1:
            return ["evaluate", str(runs[random.choice(sorted(runs))]), str(table)]
    words = ["predict", str(runs[random.choice(sorted(runs))]), str(table), "--out", str(home / "out.csv")]
    return [*words, "--unseen", "ignore"] if random.random() < 0.5 else words


def option_case(home: Path, runs: dict[str, Path], random: Random) -> list[str]:
    """Return a fit with odd options."""
    shutil.rmtree(home / "fit", ignore_errors=True)
    target = random.choice(["side", "height"])
    words = ["fit", str(home / "data.csv"), "--target", target, "--out", str(home / "fit")]
    return [*words, "--epochs", "2", "--width", "4", *damaged_options(random)]


Case = Callable[[Path, dict[str, Path], Random], list[str]]
CAMPAIGNS: dict[str, Case] = {"models": model_case, "tables": table_case, "options": option_case}


def campaign(
    name: str, count: int, seed: int, home: Path, runs: dict[str, Path], keep: Path | None = None
) -> dict[str, Any]:
    """Run so many cases of one kind in a folder that was prepared; return how they ended, and the first wrong ones."""
    codes: collections.Counter[int] = collections.Counter()
    faults: list[str] = []
    reasons: collections.Counter[str] = collections.Counter()
    for number in range(count):
        random = Random(f"{name} {seed} {number}")
        words = CAMPAIGNS[name](home, runs, random)
        code, said = outcome(words)
        codes[code] += 1
        reasons[re.sub(r"[\d'\"].*", "", said.partition("error: ")[2])[:60]] += 1
        if wrong(code, said):
            faults.append(f"{name} {seed} {number}: exit {code}: {said.strip()[:400]} <- {' '.join(words)}")
            print(faults[-1], flush=True)
            if keep is not None:
                shutil.copytree(home, keep / f"{name}-{number}", dirs_exist_ok=True)
        if number % 500 == 499:
            print(f"{name}: {number + 1} cases, {dict(codes)}, {len(faults)} wrong", flush=True)
        assert not any((place / "pwned").exists() for place in (home, Path())), "code from a file was run"
    return {"cases": count, "codes": dict(codes), "wrong": len(faults), "faults": faults[:20], "reasons": len(reasons)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in CAMPAIGNS:
        parser.add_argument(f"--{kind}", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the cases that end wrong")
    given = parser.parse_args()
    failed = 0
    for kind in CAMPAIGNS:
        if getattr(given, kind):
            with tempfile.TemporaryDirectory() as place:
                runs = prepare(Path(place))
                result = campaign(kind, getattr(given, kind), given.seed, Path(place), runs, given.keep)
            print(f"{kind}: {json.dumps(result)}", flush=True)
            failed += result["wrong"]
    sys.exit(failed > 0)
