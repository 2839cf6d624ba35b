"""Summary of the results of all_families.py: ranks with a critical difference, tables, and a picture of the costs.

Methods are ranked by the mean log-likelihood of a table, over the splits that all ranked methods have; a method that
failed has the last rank. The null hypothesis of Friedman's test is that all methods are equal. By Nemenyi's test two
methods differ at the 5 % level if their mean ranks differ by more than the critical difference (Demšar, Journal of
Machine Learning Research 7, 2006).
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from all_families import CLASSES, OTHERS, OURS, UCI, left_out, read
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox
from scipy.stats import friedmanchisquare, rankdata, studentized_range

Floats = npt.NDArray[np.float64]
Cell = dict[int, dict[str, Any]]  # split -> part

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "benchmarks" / "results" / "families.md"
PICTURE = ROOT / "docs" / "explanation" / "families-cost.svg"
PUBLISHED = Path(__file__).parent / "published.json"
FAMILIES = ("depth", "depth-hmc", "sparse", "continuous", "graph", "manifold")
PLAIN = ("constant", "linear", "boosting", "gp")
METHODS = (*OURS, *OTHERS)


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of k methods over N tables; rank 1 is the best."""

    methods: tuple[str, ...]
    tables: tuple[str, ...]
    mean: Floats  # (k,)
    p: float  # p-value of Friedman's test
    difference: float  # critical difference of Nemenyi's test at 5 %

    def order(self) -> list[int]:
        """Return the indices of the methods from best to worst."""
        return [int(i) for i in np.argsort(self.mean, kind="stable")]


def ranks(methods: Sequence[str], tables: Sequence[str], scores: Floats) -> Ranks:
    """Rank methods by scores (N, k); higher scores are better.

    Examples
    --------
    >>> found = ranks(["a", "b", "c"], ["t", "u"], np.array([[3.0, 2.0, 1.0], [1.0, 0.5, 0.5]]))
    >>> found.mean.tolist(), round(found.difference, 3)
    ([1.0, 2.25, 2.75], 2.344)
    """
    n, k = scores.shape
    each = np.apply_along_axis(rankdata, 1, -scores)
    p = float(friedmanchisquare(*scores.T).pvalue) if n > 1 and k > 2 else math.nan
    q = float(studentized_range.ppf(0.95, k, math.inf)) / math.sqrt(2.0)
    return Ranks(tuple(methods), tuple(tables), each.mean(0), p, q * math.sqrt(k * (k + 1) / (6.0 * n)))


class Results:
    """Results by table and method."""

    def __init__(self, parts: Iterable[Mapping[str, Any]]) -> None:
        self.cells: dict[tuple[str, str], Cell] = {}
        for part in parts:
            self.cells.setdefault((part["table"], part["method"]), {})[part["split"]] = dict(part)

    def cell(self, table: str, method: str) -> Cell:
        """Return the splits of a method on a table."""
        return self.cells.get((table, method), {})

    def values(self, table: str, method: str, key: str, splits: Iterable[int] | None = None) -> list[float]:
        """Return one score, or another recorded number, for every split that did not fail."""
        of = self.cell(table, method)
        done = [of[s] for s in sorted(of if splits is None else splits) if "failed" not in of[s]]
        return [float(part["scores"][key] if key in part["scores"] else part[key]) for part in done if _has(part, key)]

    def mean(self, table: str, method: str, key: str) -> float:
        """Return the mean over splits, or nan if there are none."""
        return float(np.mean(found)) if (found := self.values(table, method, key)) else math.nan

    def restrict(self, methods: Sequence[str]) -> "Results":
        """Return the results on common splits: for each table, those of all given methods that were run on it."""
        kept = []
        for table in {table for table, _ in self.cells}:
            have = [set(cell) for method in methods if (cell := self.cell(table, method))]
            splits = set[int]().union(*have).intersection(*have)
            kept += [part for m in METHODS for split, part in self.cell(table, m).items() if split in splits]
        return Results(kept)

    def run(self, methods: Sequence[str], tables: Sequence[str]) -> list[str]:
        """Return the methods that were run on all of these tables."""
        return [m for m in methods if all(self.cell(t, m) for t in tables)]

    def rank(self, methods: Sequence[str], tables: Sequence[str]) -> Ranks:
        """Rank methods that were run on all tables."""
        scores = np.full((len(tables), len(methods)), -math.inf)
        for i, table in enumerate(tables):
            common = set.intersection(*(set(self.cell(table, method)) for method in methods))
            for j, method in enumerate(methods):
                if len(found := self.values(table, method, "log_likelihood", common)) == len(common) > 0:
                    scores[i, j] = np.mean(found)
        return ranks(methods, tables, scores)

    def best(self, table: str) -> tuple[str, float]:
        """Return the method with the highest log-likelihood on a table, with its value."""
        found = {m: value for m in METHODS if not math.isnan(value := self.mean(table, m, "log_likelihood"))}
        return max(found.items(), key=lambda one: one[1])

    def seconds(self, table: str, method: str) -> float:
        """Return the mean CPU seconds of fit and predictions."""
        return self.mean(table, method, "processor_seconds")


def _has(part: Mapping[str, Any], key: str) -> bool:
    return key in part["scores"] or key in part


def find_dominated(results: Results) -> dict[str, list[str]]:
    """Return for each method those that are better and faster on all common tables, if there are at least three."""
    found: dict[str, list[str]] = {}
    for a in METHODS:
        for b in METHODS:
            both = [t for t in (*UCI, *CLASSES) if results.values(t, a, "mib") and results.values(t, b, "mib")]
            better = all(results.mean(t, b, "log_likelihood") > results.mean(t, a, "log_likelihood") for t in both)
            if (
                a != b
                and len(both) >= 3
                and better
                and all(results.seconds(t, b) < results.seconds(t, a) for t in both)
            ):
                found.setdefault(a, []).append(b)
    return found


# ----------------------------------------------------------------------------------------------- tables in Markdown


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, with numbers aligned to the right."""
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join([":--", *["--:"] * (len(head) - 1)]) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def number(value: float, digits: int = 3) -> str:
    """Return a number with a true minus sign."""
    return "" if math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def format_mean(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Return a mean and its standard error over splits, if there are several."""
    if len(values) < 2:
        return show(values[0])
    return f"{show(float(np.mean(values)))} ± {show(float(np.std(values, ddof=1)) / math.sqrt(len(values)))}"


def significant(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:.3g}".replace("-", "−")


def matrix(results: Results, tables: Sequence[str], key: str, show: Callable[[float], str], published: bool) -> str:
    """Return a table of methods by data sets; for the log-likelihood the best method that was run is bold."""
    tops = {table: results.best(table)[0] for table in tables}
    rows = []
    for method in METHODS:
        cells = []
        for table in tables:
            if found := results.values(table, method, key):
                text = format_mean(found, show)
                cells.append(f"**{text}**" if key == "log_likelihood" and tops[table] == method else text)
            elif results.cell(table, method):
                cells.append("failed")
            else:
                cells.append("–" if left_out(table, method) else "")
        if any(cells):
            rows.append([method, *cells])
    if published:
        known = json.loads(PUBLISHED.read_text())["columns"]
        for name, column in known.items():
            told = column.get(key, {})
            if told:
                shown = [" ± ".join(map(show, told[t])) if t in told else "" for t in tables]
                rows.append([f"*{name}* ({column['source']})", *shown])
    return grid(["", *(table.replace("_", " ") for table in tables)], rows)


def overview(results: Results, tables: Sequence[str]) -> str:
    """Return one line for each method: distance to the best, calibration, and cost relative to `depth`."""
    above = {table: results.best(table)[1] for table in tables}
    worse = find_dominated(results)
    rows = []
    for method in METHODS:
        own = [t for t in tables if results.values(t, method, "mib")]
        if not own:
            continue
        numbers, classes = ([t for t in own if (t in CLASSES) == kind] for kind in (False, True))
        behind = [above[t] - results.mean(t, method, "log_likelihood") for t in own]
        ratio = [
            results.seconds(t, method) / results.seconds(t, "depth") for t in own if results.seconds(t, "depth") > 0
        ]
        rows.append(
            [
                method,
                str(len(own)),
                ", ".join(t.replace("_", " ") for t in own if results.best(t)[0] == method) or "–",
                number(float(np.median(behind))),
                number(max(behind)),
                number(_average([results.mean(t, method, "coverage_90") for t in numbers])),
                number(max((max(results.values(t, method, "worst")) for t in numbers), default=math.nan), 1),
                number(_average([results.mean(t, method, "ece") for t in classes])),
                significant(math.exp(_average(np.log(ratio)))) if ratio else "",
                f"{max(max(results.values(t, method, 'mib')) for t in own):.0f}",
                ", ".join(worse.get(method, [])) or "–",
            ]
        )
    head = ["", "tables", "best on", "behind, median", "behind, most", "inside 90 %", "worst row", "ECE", "time", "MiB"]
    return grid([*head, "dominated by"], rows)


def _average(values: Any) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def ranking(found: Ranks) -> str:
    """Return the mean ranks with their methods, data sets and tests."""
    if len(found.methods) < 3:
        return "Fewer than three methods were run on all of these data sets."
    rows = [[found.methods[i], number(found.mean[i], 2)] for i in found.order()]
    return (
        f"{len(found.methods)} methods on {len(found.tables)} tables ({', '.join(found.tables)}). Friedman's test: "
        f"p = {found.p:.2g}. Critical difference of mean ranks: {found.difference:.2f}.\n\n"
        + grid(["", "mean rank"], rows)
    )


def rank_with_published(results: Results, tables: Sequence[str]) -> Ranks:
    """Rank the methods and the published columns that have results on all of these tables."""
    known = json.loads(PUBLISHED.read_text())["columns"]
    columns = {
        f"{n} ({c['source']})": c["log_likelihood"] for n, c in known.items() if set(tables) <= set(c["log_likelihood"])
    }
    ours = [
        m
        for m in results.run(METHODS, tables)
        if not any(math.isnan(results.mean(t, m, "log_likelihood")) for t in tables)
    ]
    scores = [
        [results.mean(t, m, "log_likelihood") for m in ours] + [column[t][0] for column in columns.values()]
        for t in tables
    ]
    return ranks([*ours, *columns], tables, np.array(scores))


def failures(results: Results) -> str:
    """Return the list of failures with their reasons."""
    lines = [
        f"- {table}, {method}, split {split}: {_reason(part['failed'])}"
        for (table, method), cell in sorted(results.cells.items())
        for split, part in sorted(cell.items())
        if "failed" in part
    ]
    return "\n".join(lines) or "No failures."


def _reason(text: str) -> str:
    """Return the reason of a failure; recorded results of earlier versions have another wording of the time limit."""
    return re.sub(r"^(stopped after [\d,]+) seconds of the processor$", r"\1 CPU seconds", text)


def counts(results: Results, tables: Sequence[str]) -> str:
    """Return the number of methods and splits for each table."""
    told = []
    for table in tables:
        splits = [len(results.cell(table, m)) for m in METHODS if results.cell(table, m)]
        told.append(f"{table.replace('_', ' ')} {len(splits)} methods, {min(splits)} to {max(splits)} splits")
    return "; ".join(told) + "."


# ----------------------------------------------------------------------------------------------------------- pictures


def colour(method: str) -> str:
    """Return the colour of a method: families, baselines, plain peers and other libraries."""
    from fathomless.plots import canvas

    if method in FAMILIES:
        return canvas.BLUE
    if method in OTHERS:
        return canvas.RUST
    return canvas.OCHRE if method in PLAIN else canvas.GREEN


def draw_ranks(found: Ranks) -> str:
    """Draw mean ranks with bars of the critical difference; methods differ if their bars do not overlap."""
    from fathomless import plots
    from fathomless.plots import canvas

    order = found.order()
    page, ax = plots.figure(5.6, 0.6 + 0.19 * len(order))
    canvas.start(ax, "Mean ranks by log-likelihood", "mean rank (1 is the best)", "")
    for height, i in enumerate(order):
        ends = found.mean[i] - found.difference / 2, found.mean[i] + found.difference / 2
        ax.plot(ends, (height, height), color=canvas.INK, linewidth=1.2)
        ax.plot([found.mean[i]], [height], "o", color=colour(found.methods[i]), markersize=5)
    ax.set_yticks(range(len(order)), [found.methods[i] for i in order])
    ax.set_xlim(0, len(order) + 1)
    ax.invert_yaxis()
    return plots.svg(page, "ranks")


def draw_cost(results: Results, found: Ranks) -> str:
    """Draw mean ranks by CPU seconds, over the tables on which a method did not fail."""
    from fathomless import plots
    from fathomless.plots import canvas

    page, ax = plots.figure(5.6, 4.2)
    canvas.start(ax, "Mean rank and computation time", "CPU seconds (geometric mean)", "mean rank")
    spots = []
    for method, rank in zip(found.methods, found.mean, strict=True):
        taken = [s for t in found.tables if not math.isnan(s := results.seconds(t, method))]
        spots.append((math.exp(_average(np.log(np.maximum(taken, 1e-3)))), float(rank)))
        ax.plot(*spots[-1], "o", color=colour(method), markersize=5)
    ax.set_xscale("log")
    ax.margins(x=0.12)
    ax.invert_yaxis()
    page.canvas.draw()
    taken_up = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in ax.transData.transform(spots)]
    for method, spot in zip(found.methods, spots, strict=True):
        taken_up.append(_place_label(ax, method, spot, taken_up))
    return plots.svg(page, "cost")


def _place_label(ax: Axes, text: str, spot: tuple[float, float], taken_up: Sequence[Bbox]) -> Bbox:
    """Write a name next to its point, at the position with the least overlap."""
    from fathomless.plots import canvas

    sides = [(6, 0), (-6, 0), (5, 5), (5, -5), (-5, 5), (-5, -5), (0, 7), (0, -7)]
    tried = []
    for x, y in sides:
        across = {1: "left", 0: "center", -1: "right"}[int(np.sign(x))]
        upright = {1: "bottom", 0: "center", -1: "top"}[int(np.sign(y))]
        note = ax.annotate(text, spot, (x, y), textcoords="offset points", ha=across, va=upright)
        note.set(fontsize=7, color=canvas.INK)
        box = note.get_window_extent()
        tried.append((sum(box.overlaps(other) for other in taken_up), note, box))
    least = min(tried, key=lambda one: one[0])
    for one in tried:
        if one is not least:
            one[1].remove()
    return least[2]


# --------------------------------------------------------------------------------------------------------------- page


def write(path: Path) -> None:
    """Fill the generated parts of the page, and draw the picture of the costs."""
    machines, parts = read(path)
    every = [m for m in METHODS if m not in ("gp", "graph", "depth-hmc")]  # these are not run on all tables
    results = Results(parts).restrict(every)
    begun = [t for t in (*UCI, *CLASSES) if results.cell(t, "depth")]
    first = results.rank(results.run(every, begun), begun)
    numbers, classes = ([t for t in begun if (t in CLASSES) == kind] for kind in (False, True))
    blocks = {
        "counts": counts(results, begun),
        "overview": overview(results, begun),
        "ranks": ranking(first),
        "published": ranking(rank_with_published(results, [t for t in begun if t in UCI])),
        "numbers": matrix(results, numbers, "log_likelihood", number, True),
        "classes": matrix(results, classes, "log_likelihood", number, False),
        "rmse": matrix(results, numbers, "rmse", significant, True),
        "accuracy": matrix(results, classes, "accuracy", number, False),
        "crps": matrix(results, numbers, "crps", significant, False),
        "coverage": matrix(results, numbers, "coverage_90", number, False),
        "ece": matrix(results, classes, "ece", number, False),
        "seconds": matrix(results, begun, "processor_seconds", significant, False),
        "mib": matrix(results, begun, "mib", lambda value: f"{value:.0f}", False),
        "failed": failures(results),
        "sources": "\n".join(f"- {k}: {v}." for k, v in json.loads(PUBLISHED.read_text())["sources"].items()),
        "machines": "\n".join(f"- {_describe(machine)}" for machine in machines),
    }
    PAGE.write_text(fill(PAGE.read_text(), blocks))
    PICTURE.write_text(draw_cost(results, first) + "\n")


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """Insert blocks between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.

    Raises
    ------
    ValueError
        If the marks of a block are missing.

    Examples
    --------
    >>> fill("a <!-- begin b -->old<!-- end b --> c", {"b": "new"}).split()
    ['a', '<!--', 'begin', 'b', '-->', 'new', '<!--', 'end', 'b', '-->', 'c']
    """
    for name, block in blocks.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if not 0 <= text.find(begin) < text.find(end):
            raise ValueError(f"the page lacks {begin} or {end}; add both marks at the place of the block")
        head, rest = text.split(begin)[0], text.split(end)[1]
        text = f"{head}{begin}\n\n{block}\n\n{end}{rest}"
    return text


def _describe(told: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in told["versions"].items())
    return (
        f"{told['cores']} cores of an {told['processor']}, Python {told['python']}; {versions}; one thread per method"
    )
