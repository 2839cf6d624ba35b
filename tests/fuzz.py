"""Fuzz the command line with damaged model folders, tables and options: it must exit with 0 or 2, without a traceback.

python tests/fuzz.py --models 10000 --tables 10000 --options 1000

``messes`` knows what is right: tables with footers, units, totals, notations, odd cells and sentinels are read as the
clean table is, or refused, or a note names what was done.

python tests/fuzz.py --messes 2000
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import openpyxl
import pyarrow.csv
import pyarrow.parquet
import torch

from fathomless import UnboundedDepthRegressor
from fathomless.app.cli import main
from fathomless.app.commands import inputs
from fathomless.app.commands.flags import flag_of
from fathomless.estimators.declaring import nested_options
from fathomless.estimators.options import options_of
from fathomless.system.errors import DataError
from fathomless.tables import files as tables

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
UNITS = ["s", "°C", "%", "m", "kg", "[-]", "mm/h", "", "1"]
FOOTERS = ["Source: statistics office", "* estimated", "n/a", "Exported by a program", "(c) 2024", "Total"]
SENTINELS = ["-999", "-9999", "1e6", "9.97e36", "99999", "-1"]
ODD = ["unknown", "<5", "5%", "$5", "1,00,000", "x", "5 kg", "2024-02-30", "k.A.", "1.234,5"]
READ_AS = re.compile(r"read as numbers with")


# ------------------------------------------------------------------------------------------------- running


def outcome(words: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and standard error."""

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
    """Return True if a case did not end with 0, or with 2 and one line of error."""
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
    """Change a JSON value at one position."""
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
    """Write a manifest with a valid checksum."""
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
    """Damage a random part of a run folder."""
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
    if random.random() < 0.3:
        lines = messy_lines(lines, random)
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


def messy_lines(lines: list[list[str]], random: Random) -> list[list[str]]:
    """Write a table in a messy format: with units, a footer, a sentinel, a total, decimal or trailing commas."""
    width = len(lines[0])
    match random.randrange(6):
        case 0:
            return [lines[0], random.choices(UNITS, k=width), *lines[1:]]
        case 1:
            place = random.randrange(width)
            return [*lines, [random.choice(FOOTERS) if i == place else "" for i in range(width)]]
        case 2:
            return [*lines, ["Total", *(str(random.randrange(10**6)) for _ in range(width - 1))]]
        case 3:
            place, sentinel = random.randrange(width), random.choice(SENTINELS)
            rows = [[*row[:place], sentinel, *row[place + 1 :]] if random.random() < 0.1 else row for row in lines[1:]]
            return [lines[0], *rows]
        case 4:
            return [lines[0], *([f'"{cell.replace(".", ",")}"' for cell in row] for row in lines[1:])]
    return [[*row, ""] for row in lines]


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
    """Return random options with valid and invalid values."""
    words = []
    for _ in range(random.choice([1, 1, 2, 3])):
        declared = options_of(UnboundedDepthRegressor)
        every = [(f.name, f) for f in declared] + [(name, inner) for name, _, _, inner in nested_options(declared)]
        name, option = random.choice([(name, f) for name, f in every if f.metadata["kind"] != "object"])
        flag = flag_of(name)
        values = [str(value) for value in NASTY if isinstance(value, int | float | str) and "\x00" not in str(value)]
        values += ["width=", "width=4,4", "width=4,x activation=relu", "width=nan,1e9"]
        if random.random() < 0.5:  # values that are mostly valid
            values = [*option.metadata["names"], "auto", "none", str(option.default)]
            values += ["width=4,8 activation=relu,tanh"] * (option.metadata["kind"] == "lists")
        words += [flag] if option.metadata["kind"] == "flag" else [flag, random.choice(values)]
    return words


# ------------------------------------------------------------------------------------------------- messes


@dataclass(frozen=True)
class Mess:
    """Table of numbers and dates with its target, as text and as the corresponding numbers."""

    cells: list[list[str]]
    values: list[list[float]]
    mark: str

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [f"c{i}" for i in range(len(self.cells[0]) - 1)] + ["y"]


def clean_mess(random: Random, mark: str) -> Mess:
    """Draw a table with columns of 0 to 4 decimals, and at least one decimal in each row."""
    digits = [random.choice([0, 1, 2, 3, 3, 4]) for _ in range(random.randrange(1, 5))]
    digits.append(random.choice([1, 2, 4]))
    size = [random.choice([1, 10, 500, 10**5]) for _ in digits]
    rows = random.choice([12, 40, 130])
    values = [[round(random.uniform(-n, n), d) for n, d in zip(size, digits, strict=True)] for _ in range(rows)]
    cells = [[f"{v:.{d}f}".replace(".", mark) for v, d in zip(row, digits, strict=True)] for row in values]
    return Mess(cells, values, mark)


def write_mess(path: Path, names: list[str], cells: list[list[str]], random: Random, mark: str) -> None:
    """Write cells as CSV with a random delimiter, as JSON lines of text, or as a sheet of text."""
    form = random.choice(["csv", "csv", "csv", "jsonl", "xlsx"])
    if form == "jsonl":
        rows = [{k: v for k, v in zip(names, row, strict=True) if v or random.random() < 0.5} for row in cells]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif form == "xlsx":
        book = openpyxl.Workbook()
        for line in (names, *cells):
            book.active.append(line)
        book.save(path)
    else:
        delimiter = random.choice([",", ";", "\t", "|"] if mark == "." else [",", ";", ";", "\t"])
        lines = [[f'"{c}"' if delimiter in c or random.random() < 0.1 else c for c in row] for row in (names, *cells)]
        end = random.choice(["", "", delimiter])
        hint = f"sep={delimiter}\n" if random.random() < 0.2 else ""
        path.write_text(hint + "".join(delimiter.join(row) + end + "\n" for row in lines), encoding="utf-8")


def mess_fault(home: Path, random: Random) -> str | None:
    """Read a messy table as ``fit`` does and another as ``predict`` does; return silent errors."""
    mess = clean_mess(random, random.choice([".", ","]))
    cells, odd, width = [list(row) for row in mess.cells], None, len(mess.names)
    if random.random() < 0.4:
        place, column = random.randrange(len(cells)), random.randrange(width)
        odd = (mess.names[column], random.choice([*ODD, "1,5" if mess.mark == "." else "1.5"]), place)
        cells[place][column] = odd[1]
    above, below = 0, random.randrange(3)
    for _ in range(below):
        place = random.randrange(width)
        cells.append([random.choice(FOOTERS) if i == place else "" for i in range(width)])
    if random.random() < 0.3 and width > 1:
        words = random.sample([unit for unit in UNITS if unit not in ("", "1")], 2)
        units = [*words, *random.choices(UNITS, k=width - 2)]
        cells.insert(0, random.sample(units, width))
        above = 1
    path = home / "mess"
    write_mess(path, mess.names, cells, random, mess.mark)
    found = inputs.read(inputs.FitRequest(str(path), ["y"], task="auto"))
    X, y = found.take(np.arange(found.rows))
    told = " ".join(found.notes)
    truth = np.array(mess.values)
    for name in mess.names:
        column = np.array(y if name == "y" else X[name].to_pylist() if name in X.column_names else [], dtype=object)
        own = truth[:, mess.names.index(name)]
        if odd is not None and odd[0] == name:
            named = name in told and odd[1] in told and f"row {odd[2] + above + 1}" in told
            if not named and not (name == "y" and "without a target" in told) and not READ_AS.search(told):
                return f"{name} with {odd[1]!r} in row {odd[2] + above + 1} is not told: {found.notes}"
            continue
        lost = odd is not None and odd[0] == "y" and len(column) == len(own) - 1
        own = np.delete(own, odd[2]) if lost and odd is not None else own
        if len(column) != len(own) or not all(isinstance(v, int | float) for v in column.tolist()):
            return f"{name} is no column of numbers, or has other rows: {column[:5]}, {found.notes}"
        told_mark = "(--decimal sets the mark)" in told and ambiguous(mess)
        if not np.array_equal(column.astype(float), own) and not told_mark:
            return f"{name} has other values: {column[:5]} for {own[:5]}, {found.notes}"
    return None if odd is not None else mess_fault_at_prediction(home, mess, found.notation, random)


def ambiguous(mess: Mess) -> bool:
    """Return True if a table is valid with both decimal marks: all cells have three decimals or none."""
    return all(re.fullmatch(r"-?\d+|-?[1-9]\d{0,2}[.,]\d{3}", cell) for row in mess.cells for cell in row)


def mess_fault_at_prediction(home: Path, mess: Mess, notation: Mapping[str, str], random: Random) -> str | None:
    """Read another table of the same columns in the same or another notation: values are correct, or an error."""
    mark = random.choice([".", ","])
    swap = str.maketrans({mess.mark: mark})
    rows = random.sample(range(len(mess.cells)), random.choice([1, 2, 10]))
    cells = [[cell.translate(swap) for cell in mess.cells[i]] for i in rows]
    path = home / "mess"
    write_mess(path, mess.names, cells, random, mark)
    try:
        pieces = list(tables.batches(path, dict.fromkeys(mess.names, "numeric"), rows=4, notation=notation))
    except DataError as error:
        return None if re.search(r"is ambiguous|with a decimal (point|comma) \(", str(error)) else str(error)
    whole = pyarrow.concat_tables(pieces)
    for i, name in enumerate(mess.names):
        found, own = np.array(whole[name].to_pylist(), dtype=float), np.array([mess.values[j][i] for j in rows])
        if not np.array_equal(found, own):
            return f"prediction reads {name} as {found[:5]} for {own[:5]}, with {notation}, of {mark}"
    return None


def messes(count: int, seed: int, home: Path) -> dict[str, Any]:
    """Read a number of messy tables; return the number of refused ones, and the first silent errors."""
    refused, faults, reasons = 0, list[str](), collections.Counter[str]()
    for number in range(count):
        try:
            fault = mess_fault(home, Random(f"messes {seed} {number}"))
        except DataError as error:
            fault, refused = None, refused + 1
            reasons[re.sub(r"[\d'\"].*", "", str(error).rpartition("header: ")[2])[:60]] += 1
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        if fault is not None:
            faults.append(f"messes {seed} {number}: {fault}")
            print(faults[-1][:600], flush=True)
    return {"cases": count, "refused": refused, "wrong": len(faults), "faults": faults[:20], "reasons": dict(reasons)}


# ------------------------------------------------------------------------------------------------- campaigns


def sample(rows: int, seed: int) -> str:
    """Return a small CSV table with numbers, a category, a date, a boolean, missing values and two targets."""
    rng = np.random.default_rng(seed)
    lines = ["a,b,kind,day,flag,height,side"]
    for i in range(rows):
        a, b = rng.normal(size=2)
        gap = "" if i % 11 == 0 else f"{b:.3f}"
        day, flag = f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}", ["true", "false"][i % 2]
        lines.append(f"{a:.3f},{gap},{'xyz'[i % 3]},{day},{flag},{a + 0.1 * i:.3f},{'left' if a < 0 else 'right'}")
    return "\n".join(lines) + "\n"


def prepare(home: Path) -> dict[str, Path]:
    """Fit a classifier and a regressor for the campaigns."""
    (home / "data.csv").write_text(sample(90, 0))
    runs = {}
    for name, words in (("side", ["--cv", "2"]), ("height", ["--weights", "meanfield", "--weight-draws", "2"])):
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
    """Return a fit with random options."""
    shutil.rmtree(home / "fit", ignore_errors=True)
    target = random.choice(["side", "height"])
    words = ["fit", str(home / "data.csv"), "--target", target, "--out", str(home / "fit")]
    return [*words, "--epochs", "2", "--width", "4", *damaged_options(random)]


Case = Callable[[Path, dict[str, Path], Random], list[str]]
CAMPAIGNS: dict[str, Case] = {"models": model_case, "tables": table_case, "options": option_case}


def campaign(
    name: str, count: int, seed: int, home: Path, runs: dict[str, Path], keep: Path | None = None
) -> dict[str, Any]:
    """Run a number of cases of one kind in a prepared folder; return their outcomes, and the first failures."""
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
    for kind in (*CAMPAIGNS, "messes"):
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
    if given.messes:
        with tempfile.TemporaryDirectory() as place:
            result = messes(given.messes, given.seed, Path(place))
        print(f"messes: {json.dumps(result)}", flush=True)
        failed += result["wrong"]
    sys.exit(failed > 0)
