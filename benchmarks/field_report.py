"""Report on the results of field.py: mean ranks, paired differences to the default, wins, scores of tables, and cost.

Methods are ranked on each table by a mean score over the splits that all ranked methods have; a method that failed has
the last rank. Only tables on which all ranked methods were run count. By Nemenyi's test two methods differ
at the 5 % level if their mean ranks differ by more than the critical difference (see ``family_summary``). A difference
of the default from a method is paired by table and split; its mean and standard error are those over tables. In the
scores of a table, ± is a standard error over splits.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from family_summary import ROOT, Ranks, draw_ranks, fill, ranks
from field_rivals import METHODS
from public_tables import TABLES

Record = dict[str, Any]
RESULTS = ROOT / "benchmarks" / "results" / "field.jsonl"
PAGE = ROOT / "docs" / "explanation" / "families.md"
PICTURE = PAGE.with_name("families-ranks.svg")
DEFAULT = "depth"
#: Methods without ranks: the Gaussian process has too few tables, and the other one is an option of the default.
UNRANKED = ("gp", "depth-trees")
#: Groups of ranked methods.
GROUPS = {
    "cheap methods": tuple(name for name, method in METHODS.items() if method.stage == 0 and name not in UNRANKED),
    "all methods of both tasks": tuple(n for n, m in METHODS.items() if n not in UNRANKED and not m.numbers_only),
    "all methods of numbers": tuple(n for n in METHODS if n not in UNRANKED),
}
NUMBERS = ("log_likelihood", "crps", "interval_score_90", "rmse", "coverage_90")
CLASSES = ("log_likelihood", "accuracy", "brier", "ece", "ece_chance", "ece_95")
LARGER = ("log_likelihood", "accuracy")  #: scores of which larger values are better


class Field:
    """Records by table, method and split."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)
        self.cells: dict[tuple[str, str], dict[int, Record]] = {}
        for record in records:
            if "left_out" not in record:
                self.cells.setdefault((record["table"], record["method"]), {})[record["split"]] = record
        known = {table for table, _ in self.cells}
        self.tables = [table for table in TABLES if table in known] + sorted(known - {*TABLES})
        self.methods = [name for name in METHODS if any(method == name for _, method in self.cells)]

    def value(self, table: str, method: str, split: int, score: str) -> float:
        """Return a score, or NaN without it."""
        found = self.cells.get((table, method), {}).get(split, {}).get("scores", {}).get(score)
        return math.nan if found is None else float(found)

    def values(self, table: str, method: str, score: str) -> list[float]:
        """Return the scores of all splits without NaN."""
        every = [self.value(table, method, split, score) for split in self.cells.get((table, method), {})]
        return [value for value in every if not math.isnan(value)]

    def is_numeric(self, table: str) -> bool:
        """Return whether the table has a numeric target."""
        return any(
            "crps" in r.get("scores", {})
            for (name, _), cell in self.cells.items()
            if name == table
            for r in cell.values()
        )

    def rank(self, methods: Sequence[str], numeric: bool | None = None, score: str = "log_likelihood") -> Ranks | None:
        """Rank methods on the tables that all of them have; None if there are no such tables or methods."""
        methods = [name for name in methods if name in self.methods]
        if len(methods) < 2:
            return None
        names, rows = [], []
        for table in self.tables:
            if numeric is not None and self.is_numeric(table) != numeric:
                continue
            common = set.intersection(*(set(self.cells.get((table, method), {})) for method in methods))
            if common:
                means = [np.mean([self.value(table, m, split, score) for split in common]) for m in methods]
                sign = 1.0 if score in LARGER else -1.0
                rows.append([-math.inf if math.isnan(mean) else sign * float(mean) for mean in means])
                names.append(table)
        return ranks(methods, names, np.array(rows)) if rows else None

    def differences(self, method: str, score: str) -> dict[str, list[float]]:
        """Return the default's score less that of a method, for every table and split that both have."""
        found = {}
        for table in self.tables:
            both = set(self.cells.get((table, DEFAULT), {})) & set(self.cells.get((table, method), {}))
            apart = [self.value(table, DEFAULT, k, score) - self.value(table, method, k, score) for k in sorted(both)]
            if kept := [value for value in apart if not math.isnan(value)]:
                found[table] = kept
        return found


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; NaN for one value."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def mean_text(values: Sequence[float], digits: int = 3) -> str:
    """Return a mean and its standard error."""
    if not values:
        return "-"
    error = standard_error(values)
    return f"{np.mean(values):.{digits}f}" + ("" if math.isnan(error) else f" ± {error:.{digits}f}")


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with columns of equal width, the first one aligned to the left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in [head, *rows]
    ]


def show_ranks(field: Field) -> list[str]:
    """Return the mean ranks of all groups, by several scores."""
    kinds: list[tuple[str, bool | None, str]] = [("all tables", None, "log_likelihood")]
    kinds += [("numbers", True, "log_likelihood"), ("numbers", True, "crps")]
    kinds += [("classes", False, "log_likelihood"), ("classes", False, "brier")]
    lines = []
    for title, methods in GROUPS.items():
        for kind, numeric, score in kinds:
            found = field.rank(methods, numeric, score)
            if found is None or (title.endswith("of numbers") and numeric is not True):
                continue
            text = ", ".join(f"{found.methods[i]} {found.mean[i]:.2f}" for i in found.order())
            p = "" if math.isnan(found.p) else f", p of Friedman's test {found.p:.1e}"
            head = f"{title}, {kind} ({len(found.tables)}), {score}"
            lines.append(f"{head}: {text}; critical difference {found.difference:.2f}{p}")
    return lines


def show_calibration(field: Field) -> list[str]:
    """Return coverage of 90 % intervals over tables, and how often a calibration error is above that by chance."""
    rows = []
    for method in field.methods:
        found = [float(np.mean(v)) for t in field.tables if (v := field.values(t, method, "coverage_90"))]
        errors = [
            r["scores"]
            for (_, m), cell in field.cells.items()
            if m == method
            for r in cell.values()
            if "ece" in r.get("scores", {})
        ]
        row = [method, "-", "-", "-", "-"]
        if found:
            away = float(np.mean(np.abs(np.array(found) - 0.9)))
            row[1:4] = [f"{np.mean(found):.3f}", f"{min(found):.3f} to {max(found):.3f}", f"{away:.3f}"]
        if errors:
            row[4] = f"{sum(e['ece'] > e['ece_95'] for e in errors)} of {len(errors)}"
        rows.append(row)
    return lines_of(["method", "coverage", "of tables", "mean |coverage - 0.9|", "ECE above 95 % of chance"], rows)


def show_differences(field: Field) -> list[str]:
    """Return the differences of the default from every method, over tables, and the counts of wins."""
    scores = ("log_likelihood", "crps", "interval_score_90", "rmse", "accuracy", "brier")
    rows = []
    for method in field.methods:
        if method == DEFAULT:
            continue
        row = [method]
        for score in scores:
            found = [float(np.mean(values)) for values in field.differences(method, score).values()]
            sign = 1.0 if score in LARGER else -1.0
            wins = sum(sign * value > 0.0 for value in found)
            row.append(f"{mean_text(found)} ({wins}:{len(found) - wins})" if found else "-")
            if score == "log_likelihood":
                row.append(f"{np.median(found):.3f}" if found else "-")
        rows.append(row)
    return lines_of(["default less", scores[0], "median", *scores[1:]], rows)


def show_best(field: Field) -> list[str]:
    """Return the method that is best beside the default, and the paired difference of the default, for each table."""
    rows, wins = [], Counter[str]()
    paired = {m: field.differences(m, "log_likelihood") for m in field.methods if m != DEFAULT}
    for table in field.tables:
        means = {m: float(np.mean(v)) for m in field.methods if (v := field.values(table, m, "log_likelihood"))}
        if not means:
            continue
        apart = {m: float(np.mean(tables[table])) for m, tables in paired.items() if len(tables.get(table, ()))}
        rival = min(apart, key=lambda name: apart[name]) if apart else "-"
        wins[DEFAULT if not apart or apart[rival] > 0.0 else rival] += 1
        shown = [f"{means[m]:.3f}" if m in means else "-" for m in (DEFAULT, "boosting", "catboost")]
        gap = f"{apart[rival]:+.3f}" if apart else "-"
        splits = len(field.cells.get((table, DEFAULT), {}))
        rows.append([table, str(splits), *shown, rival, f"{means.get(rival, math.nan):.3f}", gap])
    head = ["table", "splits", "default", "boosting", "catboost", "best other", "its value", "default less it"]
    told = ", ".join(f"{name} {count}" for name, count in wins.most_common())
    return [*lines_of(head, rows), f"largest mean log-likelihood, number of tables: {told}"]


def show_table(field: Field, table: str) -> list[str]:
    """Return the scores of every method on a table."""
    numeric = field.is_numeric(table)
    names = NUMBERS if numeric else CLASSES
    rows = []
    for method in field.methods:
        cell = field.cells.get((table, method), {})
        if not any("scores" in record for record in cell.values()):
            continue
        apart = field.differences(method, "log_likelihood").get(table, [])
        row = [method, str(len(cell)), *(mean_text(field.values(table, method, name)) for name in names)]
        if numeric:
            thirds = [r["scores"]["thirds"] for r in cell.values() if r.get("scores", {}).get("thirds")]
            row.append(" ".join(f"{value:.2f}" for value in np.mean(thirds, 0)) if thirds else "-")
        row.append("-" if method == DEFAULT else mean_text(apart))
        rows.append([*row, f"{np.mean([_seconds(r) for r in cell.values() if 'scores' in r]):.0f}"])
    first = next(r for (name, _), cell in field.cells.items() if name == table for r in cell.values())
    head = ["method", "splits", *names, *(["by thirds"] if numeric else []), "default less it", "seconds"]
    title = f"{table}: {first['rows']} training rows, {first['test_rows']} test rows, {first['columns']} columns"
    return ["", title, *lines_of(head, rows)] if rows else []


def show_cost(field: Field) -> list[str]:
    """Return processor seconds and memory of every method, and the numbers of failures."""
    rows = []
    for method in field.methods:
        done = [r for (_, name), cell in field.cells.items() if name == method for r in cell.values()]
        good = [r for r in done if "scores" in r]
        seconds = [_seconds(r) for r in good]
        show: Callable[[Any], str] = "{:.1f}".format
        numbers = [show(f(seconds)) if seconds else "-" for f in (np.median, np.mean, np.max, np.sum)]
        memory = f"{max(r['mib'] for r in good):.0f}" if good else "-"
        rows.append([method, str(len(good)), str(len(done) - len(good)), *numbers, memory])
    head = ["method", "fits", "failed", "median s", "mean s", "most s", "sum s", "most MiB"]
    return lines_of(head, rows)


def _seconds(record: Record) -> float:
    return float(record["fit_seconds"] + record["predict_seconds"])


def show_failures(field: Field) -> list[str]:
    """Return the failures."""
    failed = [r for cell in field.cells.values() for r in cell.values() if "error" in r]
    return [f"{r['table']} {r['split']} {r['method']}: {r['error']}" for r in failed] or ["none"]


def report(records: Sequence[Record]) -> str:
    """Return the text of the report."""
    field = Field(records)
    versions: dict[str, set[str]] = {}
    for record in records:
        for package, number in record.get("versions", {}).items():
            versions.setdefault(package, set()).add(number)
    told = ", ".join(f"{package} {'/'.join(sorted(numbers))}" for package, numbers in versions.items())
    machines = "; ".join(sorted({record["machine"] for record in records if "machine" in record}))
    parts = [
        ["python benchmarks/field.py report", told, f"{machines}, 1 thread, {datetime.now(UTC):%Y-%m-%d}"],
        [f"{len(records)} records, {len(field.tables)} tables; units and scores: python benchmarks/field.py --help"],
        ["", "MEAN RANKS", *show_ranks(field)],
        ["", "DEFAULT AND OTHERS, log-likelihood", *show_best(field)],
        ["", "DIFFERENCES, mean ± standard error over tables (default better:not better)", *show_differences(field)],
        ["", "CALIBRATION", *show_calibration(field)],
        ["", "COST", *show_cost(field)],
        ["", "FAILURES", *show_failures(field)],
        ["", "TABLES", *(line for table in field.tables for line in show_table(field, table))],
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


def summarize(field: Field) -> str:
    """Return the table of the documentation: mean differences of the default from the methods of most tables."""
    rows = []
    for method in GROUPS["cheap methods"]:
        if method == DEFAULT or method not in field.methods:
            continue
        row = [f"`{method}`"]
        for numeric, score in (
            (True, "log_likelihood"),
            (True, "crps"),
            (False, "log_likelihood"),
            (False, "accuracy"),
        ):
            apart = field.differences(method, score)
            found = [float(np.mean(v)) for t, v in apart.items() if field.is_numeric(t) == numeric]
            sign = 1.0 if score in LARGER else -1.0
            better, worse = (sum(sign * side * value > 0.0 for value in found) for side in (1.0, -1.0))
            row.append(f"{np.mean(found):+.3f} ({better}:{worse})".replace("-", "−") if found else "–")
        rows.append("| " + " | ".join(row) + " |")
    kinds = [field.is_numeric(table) for table in field.tables]
    splits = sorted({len(field.cells.get((table, DEFAULT), {})) for table in field.tables})
    told = " to ".join(dict.fromkeys([str(splits[0]), str(splits[-1])])) + " splits" if splits != [1] else "one split"
    numbers, classes = f"{sum(kinds)} regressions", f"{len(kinds) - sum(kinds)} classifications"
    head = [
        f"Differences of the default from other methods, means over {numbers} and {classes} with {told} each,",
        "and in brackets the numbers of tables on which the default is better and worse. Negative differences of the",
        "CRPS and positive ones of other scores favour the default.",
        "",
        "| default less | log-likelihood, numbers | CRPS, numbers | log-likelihood, classes | accuracy |",
        "|:--|--:|--:|--:|--:|",
    ]
    return "\n".join([*head, *rows])


def write(records: Sequence[Record], path: Path) -> None:
    """Print the report and write it to a file; fill the table of the page, and draw the picture of the ranks."""
    text = report(records)
    path.write_text(text)
    sys.stdout.write(text)
    if path != RESULTS.with_suffix(".txt"):
        return
    field = Field(records)
    PAGE.write_text(fill(PAGE.read_text(), {"field": summarize(field)}))
    found = field.rank(GROUPS["cheap methods"])
    if found is not None:
        PICTURE.write_text(draw_ranks(found) + "\n")
