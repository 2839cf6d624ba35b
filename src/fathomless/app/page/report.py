"""One page about a run: what was learned, how well it predicts, and what to make of it.

:func:`render` turns plain values into one HTML page that needs nothing beside itself: no network, no script, no font.
Figures and the words around them are chosen here; the markup, in which every text is escaped, is in
``report.html.j2``.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fathomless import plots
from fathomless.app.commands.flags import flag_of
from fathomless.app.diagnose import TOLERATED
from fathomless.app.page.analysis import Analysis
from fathomless.app.page.insights import Insights, insights
from fathomless.app.page.markup import render_template
from fathomless.app.page.outcomes import TARGETS, by_target, predictions
from fathomless.data.schema import Column
from fathomless.data.targets import ClassLabels, TargetScale
from fathomless.estimators.base import Estimator
from fathomless.estimators.declaring import describe, nested_fields, value_of
from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.findings import Finding
from fathomless.estimators.options import options_of
from fathomless.estimators.scores import Score
from fathomless.families.baselines.model import Dropout
from fathomless.families.registry import family_of
from fathomless.nn.layers import BayesianLayer
from fathomless.plots.page import (
    Figure,
    Group,
    StructureSection,
    TextTable,
    format_count,
    format_with_error,
    join_words,
    number,
    percent,
    picture,
)
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics
from fathomless.posterior.structure import GraphPosterior, InclusionPosterior, LatentPosterior, ListedPosterior

__all__ = ["Page", "render"]

_LEVELS = 8  # categories that are spelled out
_LONG = 10  # rows from which on a table is folded
_OWN = ("held-out rows", "out-of-fold rows", "training rows")  # evaluations of rows that the fit was given
_LONGEST = 200  # characters of an option
_OF_ONE_RUN = ("callbacks", "checkpoint", "random_state", "verbose", "warm_start")
_KINDS = {"numeric": "number", "boolean": "yes or no", "category": "category", "date": "date"}

_IN_UNITS = ("rmse", "mae", "crps")  # of the target
_SHARES = ("accuracy", "coverage_50", "coverage_90", "coverage_95")  # shown in percent


@dataclass(frozen=True)
class Page:
    """Everything that a page shows, as plain values.

    Attributes
    ----------
    title : str
        Name of the run.
    command : str or None
        The command that made it.
    estimator : Estimator
        Fitted.
    evaluations : sequence of Evaluation
        The first one is that of the headline and of the pictures.
    findings : sequence of Finding
        What :mod:`fathomless.app.diagnose` found.
    data : mapping
        The data manifest: "file", "bytes", "sha256", "rows", "columns", "target names" (a sequence), "weight" (the
        column that says how often rows count), "notes" (a sequence of sentences). What is absent is left out.
    seed : int
        Seed of the run.
    versions : mapping of str to str
        Package -> version.
    citation : sequence of str
        References, as plain text.
    analysis : Analysis or None
        Simple models beside it, and what drives it.
    """

    title: str
    command: str | None
    estimator: Estimator
    evaluations: Sequence[Evaluation]
    findings: Sequence[Finding]
    data: Mapping[str, Any]
    seed: int
    versions: Mapping[str, str]
    citation: Sequence[str]
    analysis: Analysis | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Name -> value of every option, those of values among them, such as ``weights__chains``."""
        return self.estimator._current_options(deep=True)

    @property
    def calibrated(self) -> bool:
        """Whether the held-out rows also set parameters of the likelihood."""
        parameters = list(self.estimator.likelihood_.parameters())
        return self.estimator.validation_score_ is not None and bool(self.options.get("calibrate") and parameters)

    @property
    def trained(self) -> bool:
        """Whether the posterior was found by gradients, not by chains."""
        return "elbo" in self.estimator.history_[-1]


def render(page: Page) -> str:
    """Return the HTML of a page.

    The same page gives the same bytes: it holds no date. Nothing in it is fetched or run. Pictures are of at most four
    targets.

    Parameters
    ----------
    page : Page
        What to show. Texts from data (names of columns, classes and files) are escaped wherever they appear.

    Returns
    -------
    str
        A whole document, for a file in UTF-8.
    """
    first, model = page.evaluations[0] if page.evaluations else None, page.estimator.model_
    section = _structure(page.estimator)
    return render_template(
        "report.html.j2",
        page=page,
        first=first,
        lede=_lede(page, first),
        findings=sorted(page.findings, key=lambda finding: finding.severity != "problem"),
        structure=page.estimator.structure_,
        section=section,
        drawn=any(isinstance(part, BayesianLayer) and not isinstance(part, Dropout) for part in model.modules()),
        point=page.trained and not model.stochastic and not isinstance(model, Ensemble),
        folded=page.estimator.fold_ is not None and not model.stochastic,
        kept=_kept(page),
        insights=_insights(page),
        learning=[*(_learning(page) if page.trained else ()), *section.learning],
        score=_score,
        calibration=_calibration(first) if first and first.calibration else None,
        predictions=predictions(first) if first and first.arrays else None,
        uncertainty=_uncertainty(first) if first and first.arrays else None,
        left_out=max(0, len(first.targets) - TARGETS) if first else 0,
        targets=_targets(page),
        columns=_columns(page.estimator.schema_.columns, page.analysis.gaps if page.analysis else {}),
        steps=_next_steps(page, first),
        options=_option_tables(page),
        long=_LONG,
    )


# ------------------------------------------------------------------------------------------- words and numbers


def _score(name: str, score: Score) -> tuple[str, str]:
    """Return a score and its error as text, shares in percent."""
    if name in _SHARES:
        value, error = format_with_error(100.0 * score.value, 100.0 * (score.error or 0.0))
        return (value, f"{error} %") if error else (percent(score.value), "")
    if name not in _IN_UNITS and max(abs(score.value), score.error or 0.0) < 1e-12:
        return "0", ""  # what rounding leaves of it
    return format_with_error(score.value, score.error)


def _lede(page: Page, first: Evaluation | None) -> list[str]:
    """Say in two sentences what this is and how good it is."""
    columns = format_count(len(page.estimator.schema_.columns), "column")
    source = f"{columns} and {format_count(int(page.data['rows']), 'row')}" if "rows" in page.data else columns
    if first is None:
        return [f"{type(page.estimator).__name__}, fitted to {source}. It has not been evaluated."]
    own = {
        "held-out rows": "rows that it was not trained on",
        "out-of-fold rows": "all rows, each predicted by the networks that were not trained on it",
        "training rows": "the very rows that it was trained on",
    }
    where = f"On {own.get(first.name, f'the rows of {first.name}')}"
    if first.task == "density":
        found, normal = (one["log_likelihood"].value for one in (first.scores, first.baseline))
        return [
            f"A density of {source}.",
            f"{where}, the mean log density is {number(found)} nats, where a normal law with their means and "
            f"covariances has {number(normal)}.",
        ]
    ours, constant = first.scores, first.baseline
    if first.task == "classification":
        right, luck = percent(ours["accuracy"].value), percent(constant["accuracy"].value)
        return [
            f"A classification of {join_words(first.targets)} into {len(first.labels)} classes, from {source}.",
            f"{where}, it names the right class for {right} of them; naming the most frequent class every time would "
            f"be right for {luck}.",
        ]
    average = ", averaged over the targets" if len(first.targets) > 1 else ""
    return [
        f"A regression of {join_words(first.targets)} on {source}.",
        f"{where}, it is typically off by {number(ours['rmse'].value)} (RMSE{average}), where predicting the mean "
        f"every time would be off by {number(constant['rmse'].value)}; {percent(ours['coverage_90'].value)} of them "
        "lie in their 90 % intervals.",
    ]


# ---------------------------------------------------------------- pictures, each with the words that say the same


def _of_networks(page: Page) -> CrossFitDiagnostics:
    """Return the diagnostics of trained networks; of other inferences those of none."""
    found = page.estimator.fit_diagnostics_
    return found if isinstance(found, CrossFitDiagnostics) else CrossFitDiagnostics()


def _kept(page: Page) -> str:
    """Say which epoch's network this is."""
    if not page.trained:
        return (
            f"Chains were run for {page.estimator.n_iter_:,} sweeps each; predictions average the networks they kept."
        )
    last = page.estimator.history_[-1]
    if "stage" in last:
        return f"The stages took {last['step']:,} steps in all; the curves show those that maximised the bound."
    scored = [row for row in page.estimator.history_ if "validation_log_likelihood" in row]
    if not scored:
        return f"No rows were held out: the network is that of the last epoch, {page.estimator.n_iter_:,}."
    if isinstance(page.estimator.model_, Ensemble) and page.estimator.fold_ is None:
        return "Each member is the network of the epoch at which it scored best on the held-out rows."
    best = max(scored, key=lambda row: row["validation_log_likelihood"])
    if _of_networks(page).kinds:
        return (
            f"The curves are of the heaviest kind of network, whose networks are those of epoch {best['epoch']:,.0f}: "
            "there all rows, each under the networks that were not trained on it, scored best. Numbers are means over "
            "networks."
        )
    if page.estimator.fold_ is not None:
        networks = f"{len(cast(Ensemble, page.estimator.model_).members)} networks"
        return (
            f"All {networks} are those of epoch {best['epoch']:,.0f} of {page.estimator.n_iter_:,}, where all rows, "
            "each under the networks that were not trained on it, scored best. Numbers are means over networks."
        )
    return (
        f"The network is that of epoch {best['epoch']:,.0f} of {page.estimator.n_iter_:,}, where the held-out rows "
        "scored best."
    )


def _insights(page: Page) -> Insights | None:
    """Return what an analyst asks for, of the rows that the fit had not seen, whatever was evaluated since."""
    for one in page.evaluations:
        if page.analysis and one.name == page.analysis.rows:
            return insights(page.analysis, one, one.labels, join_words(one.targets))
    return None


def _structure(estimator: Estimator) -> StructureSection:
    """Return what the family shows of the structure, or else a table of the posterior in the form that it has."""
    family = family_of(estimator)
    if family.report is not None:
        section: StructureSection = family.find(family.report)(estimator)
        return section
    match estimator.structure_:
        case ListedPosterior(kind=kind, names=names, probabilities=masses) if len(names) > 1:
            rows = [(name, percent(p)) for name, p in zip(names, masses, strict=True)]
            tables = [TextTable("Probability of each structure", (kind, "Posterior"), rows)]
        case InclusionPosterior(rows=layers) if layers:
            kept = [(row.layer, f"{row.weights:,}", f"{row.kept:,}") for row in layers]
            tables = [TextTable("Weights kept", ("Layer", "Weights", "Kept"), kept)]
        case GraphPosterior(counts=counts):
            tables = [
                TextTable(f"Number of {what}", (what, "Posterior"), [(str(n), percent(p)) for n, p in law.items()])
                for what, law in counts.items()
            ]
        case LatentPosterior(weights=weights, means=means):
            rows = [(percent(w), join_words([number(v) for v in mean])) for w, mean in zip(weights, means, strict=True)]
            tables = [TextTable("Laws over the latent space", ("Weight", "Centre"), rows)]
        case _:
            tables = []
    return StructureSection([Group("", [], table) for table in tables])


def _learning(page: Page) -> list[Figure]:
    """Return the curves of the training."""
    last = page.estimator.history_[-1]
    none = {name: 0.0 for name in last if name.startswith("divergence_")}  # that an earlier stage may not have
    history = [none | row for row in page.estimator.history_ if "elbo" in row]
    rows = None
    if "rows" in page.data and not page.data.get("weight"):
        rows = int(page.data["rows"])
        if page.estimator.fold_ is None:
            rows -= len(page.estimator.held_out_)
        else:
            rows = round(float((page.estimator.fold_[0] != 0).sum()))
    unit, per = ("nats", 1.0) if rows is None else ("nats per row", float(rows))
    shown = ["log_likelihood", *(name for name in last if name.startswith("divergence_")), "elbo"]
    ways = [
        f"{name.replace('_', ' ')} from {number(history[0][name] / per)} to {number(last[name] / per)}"
        for name in shown
    ]
    curves = picture(
        "learning",
        partial(plots.learning_curves, history, rows=rows),
        says=f"Curves over {last['epoch']:,.0f} epochs, in {unit}: {join_words(ways)}. {_kept(page)}",
        caption="What the training maximised, here called ELBO, is the expected log-likelihood less the divergences."
        + (" Where the curves jump, it went on from its best state." if _of_networks(page).structure else ""),
    )
    return [curves]


def _calibration(first: Evaluation) -> dict[str, Any]:
    """Return a verdict on calibration, with its pictures."""
    if first.task == "classification":
        return _class_calibration(first)
    sentences = []
    for name, level in (("coverage_50", 0.5), ("coverage_90", 0.9)):
        score, error = first.scores[name], math.sqrt(level * (1.0 - level) / first.rows)
        far = abs(score.value - level) > TOLERATED[level] * error
        verdict = "too wide" if score.value > level else "too narrow"
        verdict = f"they are {verdict}" if far else "as stated, within sampling error"
        sentences.append(f"The {percent(level)} intervals hold {' '.join(_score(name, score))} of the rows: {verdict}.")
    return {"text": " ".join(sentences), "groups": by_target(first, _coverage)}


def _coverage(first: Evaluation, t: int, target: str) -> list[Figure]:
    counts, levels = first.calibration["pit"][:, t], first.calibration["levels"]
    shares = first.calibration["coverage"][:, t]
    bins, worst = counts / counts.sum(), int(np.argmax(np.abs(shares - levels)))
    return [
        picture(
            f"pit-{t}",
            partial(plots.pit_histogram, counts),
            says=f"Histogram of where the observed {target} falls in its predicted distribution, in {len(bins)} bins. "
            f"Each bin holds between {percent(bins.min())} and {percent(bins.max())} of the rows; "
            f"{percent(1.0 / len(bins))} is ideal.",
            caption="Where observations fall in their predicted distributions. Flat is calibrated; a hump says that "
            "the distributions are too wide, a trough that they are too narrow.",
        ),
        picture(
            f"coverage-{t}",
            partial(plots.coverage, levels, shares, rows=first.rows),
            says=f"Share of the rows whose {target} is inside its interval, against the level of the interval: "
            f"{percent(float(np.interp(0.5, levels, shares)))} at 50 %, "
            f"{percent(float(np.interp(0.9, levels, shares)))} at 90 %. Farthest from its level, at "
            f"{percent(levels[worst])}, it is {percent(shares[worst])}.",
            caption="Rows inside their intervals, at each level. On the diagonal, intervals hold what they promise.",
        ),
    ]


def _class_calibration(first: Evaluation) -> dict[str, Any]:
    confidence, accuracy, count = (first.calibration[name] for name in ("confidence", "accuracy", "count"))
    stated, right = float(np.average(confidence, weights=count)), first.scores["accuracy"].value
    verdict = "as it should be, within sampling error"
    if abs(stated - right) > 2.0 * math.sqrt(stated * (1.0 - stated) / first.rows):
        verdict = "it is too sure of itself" if stated > right else "it could be more sure of itself"
    worst = int(np.argmax(np.abs(confidence - accuracy)))
    figure = picture(
        "reliability",
        partial(plots.reliability, confidence, accuracy, count),
        says=f"Accuracy against stated confidence in {format_count(len(count), 'bin')}, from {percent(confidence[0])} "
        f"to {percent(confidence[-1])} confidence. They are farthest apart at {percent(confidence[worst])}, where the "
        f"accuracy is {percent(accuracy[worst])} over {format_count(int(count[worst]), 'row')}.",
        caption="Accuracy of rows by their stated confidence. On the diagonal, probabilities are frequencies; bins of "
        "few rows stray from it by chance.",
    )
    text = f"On average it states a confidence of {percent(stated)} and is right for {percent(right)}: {verdict}."
    return {"text": text, "groups": [Group("", [figure])]}


_ONE_PART = (
    "What weights and structure leave open is one part, networks: each sampled structure has but one independent "
    "network, so that the two cannot be told apart."
)


def _uncertainty(first: Evaluation) -> list[Group]:
    """Return the split of the uncertainty into noise, weights and structure.

    Where the last two cannot be told apart they are one part, and there is no picture.
    """
    names = ("noise", "networks") if "networks" in first.arrays else ("noise", "weights", "structure")
    n = len(first.arrays["noise"])
    parts = np.stack([first.arrays[name].reshape(n, -1) for name in names])  # (3 or 2, n, T)
    regression = first.task == "regression"
    groups = []
    for t, target in enumerate(first.targets[:TARGETS] if regression else first.targets[:1]):
        means = _mean_parts(first, parts[:, :, t].mean(1), t)
        shares = [percent(share) for share in means / max(float(means.sum()), 1e-300)]
        sizes = [number(math.sqrt(v) if regression else v) for v in (*means, float(means.sum()))]
        said = ", ".join(f"{name} {share}" for name, share in zip(names, shares, strict=True))
        figures = []
        if len(names) == 3:
            figure = picture(
                f"uncertainty-{t}",
                partial(plots.uncertainty_split, *parts[:, :, t]),
                says=f"Parts of the uncertainty of {target} in {format_count(n, 'row')}, sorted by total. On average "
                f"{said}.",
                caption=f"Shares of the {'variance' if regression else 'entropy'} of each row's prediction.",
            )
            figures = [figure]
        head = ("Part", "Standard deviation" if regression else "Entropy, nats", "Share")
        rows = list(zip((*names, "all"), sizes, (*shares, "100 %"), strict=True))
        title = "On average over rows" if len(names) == 3 else f"On average over rows. {_ONE_PART}"
        groups.append(Group(target, figures, TextTable(title, head, rows)))
    return groups


def _mean_parts(first: Evaluation, means: npt.NDArray[np.float64], t: int) -> npt.NDArray[np.float64]:
    """Average noise, weights and structure over rows; what rows are divided by is averaged before it is clipped."""
    if "between" not in first.arrays:
        return means
    n = len(first.arrays["noise"])
    between, within = (float(first.arrays[name].reshape(n, -1)[:, t].mean()) for name in ("between", "within"))
    share = max(between, 0.0) / max(max(between, 0.0) + within, 1e-300)
    rest = float(means[1:].sum())
    return np.array([means[0], rest - share * rest, share * rest])


# -------------------------------------------------------------------------- data, options, and what to do next


def _columns(columns: Sequence[Column], gaps: Mapping[str, float]) -> TextTable:
    lack = {c.name: percent(gaps[c.name]) if c.name in gaps else "yes" if c.gaps else "no" for c in columns}
    rows = [(c.name, _KINDS[c.kind], _encoding(c), lack[c.name]) for c in columns]
    return TextTable("Columns and how they are encoded", ("Column", "Kind", "Encoding", "Missing"), rows, text=4)


def _encoding(column: Column) -> str:
    """Say what training has learned of a column."""
    match column.kind:
        case "boolean":
            return "−1 or 1"
        case "date":
            day = np.datetime64(math.floor(column.fill), "D")
            return f"mean {day}, scale {number(column.scale)} days; also the time of the year and of the week"
        case "category":
            rest = "; one more for the rare and the unseen" if column.other else ""
            levels = join_words([str(v) for v in column.levels], _LEVELS)
            return f"{format_count(len(column.levels), 'level')}: {levels}{rest}"
    limits = "" if column.limits is None else "; values beyond {} and {} as these".format(*map(number, column.limits))
    return f"centre {number(column.center)}, scale {number(column.scale)}{limits}"


def _targets(page: Page) -> list[str]:
    """Describe the targets."""
    target = page.estimator.target_
    names = [str(name) for name in page.data.get("target names", ())]
    if isinstance(target, ClassLabels):
        labels = join_words([str(label) for label in target.labels], _LEVELS)
        return [f"{join_words(names) or 'y'}: {len(target.labels)} classes, {labels}"]
    assert isinstance(target, TargetScale)  # runs have no other
    names = names if len(names) == len(target.mean) else [f"y{t + 1}" for t in range(len(target.mean))]
    scales = zip(names, target.mean, target.scale, strict=True)
    return [f"{name}: mean {number(mean)}, standard deviation {number(scale)}" for name, mean, scale in scales]


def _next_steps(page: Page, first: Evaluation | None) -> list[str]:
    """Say what may be worth doing now; code stands between backticks."""
    given, steps = page.options, []

    def option(name: str, value: Any) -> str:
        return f"`{flag_of(name)} {value}`" if page.command else f"`{name}={value!r}`"

    if page.findings:
        steps.append("See to the warnings first: each names its remedy.")
    if all(evaluation.name in _OWN for evaluation in page.evaluations):
        command = "`fathomless evaluate RUN new.csv`" if page.command else "`fathomless.estimators.evaluation.evaluate`"
        steps.append(f"Score it on rows that had no part in the training, best of all later ones: {command}.")
    if first is not None and first.task == "regression":
        steps += _residual_hints(first, given, option)
    if given.get("weights") == "map":
        steps.append(
            f"Let the weights be uncertain too, with {option('weights', 'meanfield')}: the objective is then a bound "
            "on the evidence, and the weights get their part of the uncertainty. The training takes longer."
        )
    start = "structure_from__initial_depth"
    if start in given and _of_networks(page).structure:
        other = option("seed" if page.command else "random_state", page.seed + 1)
        steps.append(
            f"Fit again with another seed, {other}. What stays within the error bars comes from the data; what moves, "
            "from chance."
        )
    elif start in given:
        other = option("seed" if page.command else "random_state", page.seed + 1)
        first_depth = option(start, 4 if given[start] < 3 else 1)
        steps.append(
            f"Fit again with another seed and another first depth, {other} and {first_depth}. What stays comes from "
            "the data; what moves, from chance or from the training."
        )
    if page.command and first is not None and first.task == "density":
        steps.append("Draw rows: `fathomless sample RUN --rows 1000`; score others: `fathomless predict RUN new.csv`.")
    elif page.command:
        steps.append("Predict new rows, with intervals: `fathomless predict RUN new.csv --interval 0.9`.")
    return steps


def _residual_hints(first: Evaluation, given: Mapping[str, Any], option: Callable[[str, Any], str]) -> list[str]:
    """Suggest another law of the noise, where the residuals ask for one."""
    y, mean, std = (first.arrays[name] for name in ("y", "mean", "std"))
    if len(y) < 100:
        return []
    hints, z = [], (y - mean) / np.maximum(std, 1e-300)  # (n, T)
    far = float(np.mean(np.abs(z) > 3.0))
    if given.get("likelihood") in ("auto", "gaussian") and far > 0.01:
        hints.append(
            f"{percent(far)} of the rows lie more than three standard deviations off, where a normal law has 0.3 %: "
            f"try {option('likelihood', 'student_t')}."
        )
    order, third = np.argsort(mean[:, 0], kind="stable"), len(y) // 3
    low, high = (float(np.sqrt(np.mean(z[rows, 0] ** 2))) for rows in (order[:third], order[-third:]))
    if given.get("noise") == "learned" and max(low, high) > 1.5 * min(low, high) > 0.0:
        hints.append(
            f"Where the prediction is {'high' if high > low else 'low'}, misses are "
            f"{number(max(low, high) / min(low, high), 2)} times as large as at the other end: "
            f"{option('noise', 'input')} lets the noise follow the columns."
        )
    return hints


def _option_tables(page: Page) -> dict[str, TextTable]:
    """Return the options that were changed, and all of them with what they mean."""
    texts = describe(type(page.estimator))
    changed, everything = [], []
    for option in options_of(type(page.estimator)):
        value, default = _shown(page.options[option.name]), _shown(option.default)
        if value != default and option.name not in _OF_ONE_RUN:
            changed.append((option.name, value, default))
        meaning = re.sub(r":\w+:`~?([^`]*)`", lambda role: role[1].rpartition(".")[2], texts[option.name][1])
        everything.append((option.name, value, meaning.replace("`", "")))
        everything += _nested_rows(option, page.options[option.name])
    return {
        "changed": TextTable("Options that were changed", ("Option", "Value", "Default"), changed, text=3),
        "all": TextTable("All options", ("Option", "Value", "Meaning"), everything, text=3),
    }


def _nested_rows(option: Field[Any], given: Any) -> list[tuple[str, str, str]]:
    """Return a row for every option of the value that a choice stands for."""
    value = value_of(option, given)
    if value is None:
        return []
    texts, names = describe(type(value)), nested_fields(option, type(value))
    rows = ((name, getattr(value, name), texts[name][1].replace("`", "")) for name in names)
    return [(f"{option.name}__{name}", _shown(one), text) for name, one, text in rows]


def _shown(value: Any) -> str:
    """Write the value of an option, the same in every run."""
    if callable(value) or (isinstance(value, list | tuple) and any(map(callable, value))):
        return "a function"
    text = value if isinstance(value, str) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
