"""HTML page of a run: warnings, predictions, calibration, uncertainty, structure, training, data and settings.

:func:`render` turns plain values into one self-contained HTML page, without scripts, fonts or network access. This
module chooses figures and texts; the markup, which escapes every text, is in ``report.html.j2``.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fathomless import plots
from fathomless.app.commands.flags import flag_of, translate_message
from fathomless.app.diagnose import TOLERATED
from fathomless.app.page.analysis import Analysis
from fathomless.app.page.glossary import TERMS
from fathomless.app.page.insights import Insights, insights
from fathomless.app.page.main_scores import (
    IN_UNITS,
    constant_scores,
    describe_coverage,
    describe_error,
    describe_rare_class,
    describe_rows,
)
from fathomless.app.page.markup import render_template
from fathomless.app.page.outcomes import TARGETS, by_target, predictions
from fathomless.app.page.widths import width_groups
from fathomless.data.schema import Column
from fathomless.data.targets import ClassLabels, TargetScale
from fathomless.estimators.base import Estimator
from fathomless.estimators.declaring import describe, nested_fields, value_of
from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.findings import Finding
from fathomless.estimators.options import options_of
from fathomless.estimators.scores import Score
from fathomless.estimators.tasks import Supervised
from fathomless.families.baselines.model import Dropout
from fathomless.families.registry import family_of
from fathomless.inference.mcmc.psis import MOST_UNRELIABLE, TRUSTED
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
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, NeighborFit, RecalibrationFit
from fathomless.posterior.recalibration import NEAR_KINDS
from fathomless.posterior.structure import GraphPosterior, InclusionPosterior, LatentPosterior, ListedPosterior

__all__ = ["Page", "render"]

_LEVELS = 8  # levels of a category that are listed
_LONG = 10  # number of rows above which a table is collapsed
_OWN = ("held-out rows", "out-of-fold rows", "training rows")  # evaluations on rows given to fit
_REPORT = "`fathomless.report(estimator, X, y, new=(X_new, y_new))`"
_LONGEST = 200  # maximum length of the value of an option, in characters
_OF_ONE_RUN = ("callbacks", "checkpoint", "random_state", "verbose", "warm_start")
_KINDS = {"numeric": "numeric", "boolean": "boolean", "category": "categorical", "date": "date", "empty": "no values"}

_SHARES = ("accuracy", "coverage_50", "coverage_90", "coverage_95")  # shown in percent


@dataclass(frozen=True)
class Page:
    """Contents of a page, as plain values.

    Attributes
    ----------
    title : str
        Name of the run.
    command : str or None
        Command that started the run.
    estimator : Estimator
        Fitted estimator.
    evaluations : sequence of Evaluation
        The first one is used for the headline and the pictures.
    findings : sequence of Finding
        Findings of :mod:`fathomless.app.diagnose`.
    data : mapping
        The data manifest: "file", "bytes", "sha256", "rows", "columns", "target names" (a sequence), "weight" (the
        column of sample weights), "notes" (a sequence of sentences). Absent entries are not shown.
    seed : int
        Seed of the run.
    versions : mapping of str to str
        Package -> version.
    citation : sequence of str
        References, as plain text.
    analysis : Analysis or None
        Comparison with simple models, importance of columns and rows with large residuals.
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
        """Name -> value of all options, including nested ones such as ``weights__chains``."""
        return self.estimator._current_options(deep=True)

    @property
    def calibrated(self) -> bool:
        """True if parameters of the likelihood were fitted to the held-out rows."""
        parameters = list(self.estimator.likelihood_.parameters())
        return self.estimator.validation_score_ is not None and bool(self.options.get("calibrate") and parameters)

    @property
    def trained(self) -> bool:
        """True if the posterior was fitted by gradients, not sampled by Markov chains."""
        return "elbo" in self.estimator.history_[-1]


def render(page: Page) -> str:
    """Return the HTML of a page.

    The same page gives the same bytes: it contains no date. It has no scripts and loads nothing. At most four targets
    have pictures.

    Parameters
    ----------
    page : Page
        Contents. Texts from data (names of columns, classes and files) are escaped wherever they appear.

    Returns
    -------
    str
        Complete document, for a file in UTF-8.
    """
    first = page.evaluations[0] if page.evaluations else None
    model = page.estimator.model_
    section = _structure(page.estimator)
    return render_template(
        "report.html.j2",
        terms=TERMS,
        names=_data_names(page),
        page=page,
        first=first,
        lede=_lede(page, first),
        findings=_findings(page),
        problems=[finding.title for finding in page.findings if finding.severity == "problem"],
        structure=page.estimator.structure_,
        section=section,
        drawn=any(isinstance(part, BayesianLayer) and not isinstance(part, Dropout) for part in model.modules()),
        point=page.trained and not model.stochastic and not isinstance(model, Ensemble),
        folded=page.estimator.fold_ is not None and not model.stochastic,
        kept=_describe_networks(page),
        insights=_insights(page),
        learning=[*(_learning_curves(page) if page.trained else ()), *section.learning],
        score=_score,
        calibration=_calibration(page, first) if first and first.calibration else None,
        predictions=predictions(first) if first and first.arrays else None,
        uncertainty=_uncertainty(first) if first and first.arrays else None,
        left_out=max(0, len(first.targets) - TARGETS) if first else 0,
        targets=_targets(page),
        columns=_columns(page.estimator.schema_.columns, page.analysis.gaps if page.analysis else {}),
        steps=_next_steps(page, first),
        options=_option_tables(page),
        long=_LONG,
    )


# ------------------------------------------------------------------------------------------- texts and numbers


def _data_names(page: Page) -> list[str]:
    """Return the names of columns, targets and classes, in which no term of the glossary is linked."""
    names = [str(column.name) for column in page.estimator.schema_.columns]
    names += [str(name) for name in page.data.get("target names", ())]
    for evaluation in page.evaluations:
        names += [evaluation.name] if evaluation.name not in _OWN else []
        names += [str(label) for label in evaluation.labels]
    return [name for name in dict.fromkeys(names) if name]


def _score(name: str, score: Score) -> tuple[str, str]:
    """Return a score and its standard error as text, shares in percent."""
    if name in _SHARES:
        value, error = format_with_error(100.0 * score.value, 100.0 * (score.error or 0.0))
        return (value, f"{error} %") if error else (percent(score.value), "")
    if name not in IN_UNITS and max(abs(score.value), score.error or 0.0) < 1e-12:
        return "0", ""  # zero up to rounding
    return format_with_error(score.value, score.error)


def _findings(page: Page) -> list[Finding]:
    """Return the findings, problems first; those of a command name the options of the command line."""
    ordered = sorted(page.findings, key=lambda finding: finding.severity != "problem")
    if page.command is None:
        return ordered
    return [replace(finding, remedy=translate_message(finding.remedy)) for finding in ordered]


def _lede(page: Page, first: Evaluation | None) -> list[str]:
    """Return the headline: task and data, then the main scores."""
    columns = format_count(len(page.estimator.schema_.columns), "column")
    source = f"{columns} and {format_count(int(page.data['rows']), 'row')}" if "rows" in page.data else columns
    if first is None:
        return [f"{type(page.estimator).__name__}, fitted to {source}. Not evaluated."]
    analysis = page.analysis if page.analysis and page.analysis.rows == first.name else None  # of the same rows
    peers = analysis.peers.scores if analysis and analysis.peers else {}
    rows, error = describe_rows(first), describe_error(first, peers)
    if first.task == "density":
        return [f"Density of {source}.", f"{rows}: {error}."]
    log_p, constant_log_p = (
        number(scores["log_likelihood"].value) for scores in (first.scores, constant_scores(first, peers))
    )
    kind = "Log mass" if first.on_lattice else "Log-likelihood"
    if first.atoms and not first.on_lattice:
        kind += f" (log probability at {join_words([number(atom) for atom in first.atoms])})"
    log_likelihood = f"{kind} {log_p} nats per row (constant prediction: {constant_log_p})."
    if first.task == "classification":
        return [
            f"Classification of {join_words(first.targets)} into {len(first.labels)} classes from {source}.",
            f"{rows}: {'; '.join(filter(None, [error, describe_rare_class(first)]))}. {log_likelihood}",
        ]
    censored = []
    if first.censored:
        censored = [
            f"The targets of {format_count(first.censored, 'row')} are censored. Log-likelihood, coverage and "
            "calibration include them; RMSE and the other scores of errors are those of rows with known targets."
        ]
    return [
        f"Regression of {join_words(first.targets)} on {source}.",
        *censored,
        f"{rows}: {error}, {describe_coverage(first)}. {log_likelihood}",
    ]


# ------------------------------------------------------------------------- pictures, with text alternatives


def _cross_fit_diagnostics(page: Page) -> CrossFitDiagnostics:
    """Return the diagnostics of trained networks; empty ones for other inferences."""
    diagnostics = page.estimator.fit_diagnostics_
    return diagnostics if isinstance(diagnostics, CrossFitDiagnostics) else CrossFitDiagnostics()


def _describe_networks(page: Page) -> str:
    """Describe the epoch or the sweeps from which the networks are taken."""
    if not page.trained:
        return f"Chains of {page.estimator.n_iter_:,} sweeps each. Predictions average the sampled networks."
    last = page.estimator.history_[-1]
    if "stage" in last:
        return f"{last['step']:,} steps in all stages. The curves show the steps that maximised the bound."
    scored = [row for row in page.estimator.history_ if "validation_log_likelihood" in row]
    if not scored:
        return f"No held-out rows, therefore no early stopping: the last epoch, {page.estimator.n_iter_:,}, is used."
    if isinstance(page.estimator.model_, Ensemble) and page.estimator.fold_ is None:
        return "Each network is taken from its epoch with the highest log-likelihood on the held-out rows."
    best = max(scored, key=lambda row: row["validation_log_likelihood"])
    if _cross_fit_diagnostics(page).kinds:
        return (
            f"The networks are taken from epoch {best['epoch']:,.0f}, which has the highest out-of-fold "
            "log-likelihood. The curves show means over the networks of the architecture with the largest weight."
        )
    if page.estimator.fold_ is not None:
        networks = f"{len(cast(Ensemble, page.estimator.model_).members)} networks"
        return (
            f"All {networks} are taken from epoch {best['epoch']:,.0f} of {page.estimator.n_iter_:,}, which has the "
            "highest out-of-fold log-likelihood. The curves show means over the networks."
        )
    return (
        f"The network is taken from epoch {best['epoch']:,.0f} of {page.estimator.n_iter_:,}, which has the highest "
        "log-likelihood on the held-out rows."
    )


def _insights(page: Page) -> Insights | None:
    """Return the analysis of the rows outside the training; later evaluations of files do not change it."""
    for evaluation in page.evaluations:
        if page.analysis and evaluation.name == page.analysis.rows:
            return insights(page.analysis, evaluation, evaluation.labels, join_words(evaluation.targets))
    return None


def _structure(estimator: Estimator) -> StructureSection:
    """Return the section of the family, or a table of the posterior over structure if the family has none."""
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
            tables = [TextTable("Weights kept by layer", ("Layer", "Weights", "Kept"), kept)]
        case GraphPosterior(counts=counts):
            tables = [
                TextTable(f"Number of {what}", (what, "Posterior"), [(str(n), percent(p)) for n, p in law.items()])
                for what, law in counts.items()
            ]
        case LatentPosterior(weights=weights, means=means):
            rows = [(percent(w), join_words([number(v) for v in mean])) for w, mean in zip(weights, means, strict=True)]
            tables = [TextTable("Distributions over the latent space", ("Weight", "Centre"), rows)]
        case _:
            tables = []
    return StructureSection([Group("", [], table) for table in tables])


def _learning_curves(page: Page) -> list[Figure]:
    """Return the curves of the training."""
    last = page.estimator.history_[-1]
    # Rows of an earlier stage lack divergences that only later stages have.
    zeros = {name: 0.0 for name in last if name.startswith("divergence_")}
    history = [zeros | row for row in page.estimator.history_ if "elbo" in row]
    # Without sample weights, the number of training rows of the first network turns sums into means per row.
    rows = None
    if "rows" in page.data and not page.data.get("weight"):
        rows = int(page.data["rows"])
        if page.estimator.fold_ is None:
            rows -= len(page.estimator.held_out_)
        else:
            rows = round(float((page.estimator.fold_[0] != 0).sum()))
    unit, per = ("nats", 1.0) if rows is None else ("nats per row", float(rows))
    shown = ["log_likelihood", *(name for name in last if name.startswith("divergence_")), "elbo"]
    changes = [
        f"{name.replace('_', ' ')} from {number(history[0][name] / per)} to {number(last[name] / per)}"
        for name in shown
    ]
    jumps = " The curves jump where the training restarted from its best state."
    curves = picture(
        "learning",
        partial(plots.learning_curves, history, rows=rows),
        says=f"Curves over {last['epoch']:,.0f} epochs, in {unit}: {join_words(changes)}. {_describe_networks(page)}",
        caption=f"Training objective (labelled ELBO) in {unit}: expected log-likelihood minus divergences."
        + (jumps if _cross_fit_diagnostics(page).structure else ""),
    )
    return [curves]


def _calibration(page: Page, first: Evaluation) -> dict[str, Any]:
    """Return the text and the pictures on calibration."""
    if first.task == "classification":
        found = _class_calibration(first)
        return {**found, "text": " ".join([found["text"], *_describe_trees(page)])}
    sentences = []
    for name, level in (("coverage_50", 0.5), ("coverage_90", 0.9)):
        score = first.scores[name]
        share = score.value
        if first.on_lattice or first.atoms:  # of intervals whose ends are not rounded to points
            share = float(np.interp(level, first.calibration["levels"], first.calibration["coverage"].mean(1)))
        error = math.sqrt(level * (1.0 - level) / first.rows)
        verdict = "consistent with the level, within sampling error"
        if abs(share - level) > TOLERATED[level] * error:
            verdict = "too wide" if share > level else "too narrow"
        coverage = " ".join(_score(name, score))
        sentences.append(f"Coverage of the {percent(level)} intervals: {coverage} ({verdict}).")
    if first.atoms:
        sentences.append(
            f"Many rows have the value {join_words([number(atom) for atom in first.atoms])}, whose probability is "
            "predicted apart from the distribution of other values. Intervals that end there contain more rows than "
            "their level; the verdicts and the pictures take this into account."
        )
    if first.on_lattice:
        sentences.append(
            "The target lies on a lattice. Intervals end at its points, and contain more rows than their level; the "
            "verdicts and the pictures take this into account."
        )
    sentences += _describe_transform(page)
    sentences += [*_describe_recalibration(page), *_describe_trees(page)]
    return {"text": " ".join(sentences), "groups": [*by_target(first, _coverage), *width_groups(first)]}


def _describe_transform(page: Page) -> list[str]:
    """Describe the comparison of the target with its logarithm."""
    fit = page.estimator.fit_diagnostics_.transform
    if fit is None:
        return []
    change = f"{number(abs(fit.gain))} nats per row {'higher' if fit.gain > 0.0 else 'lower'}"
    rest = "so it is used" if fit.used else "so it is not used"
    return [f"A logarithm of the target was tried. The log-likelihood of unseen rows is {change} with it, {rest}."]


def _describe_trees(page: Page) -> list[str]:
    """Return a sentence for each target with boosted trees beside the networks."""
    targets = list(page.data.get("target names", ()))
    fits = page.estimator.fit_diagnostics_.trees_of_targets
    sentences = []
    for t, fit in enumerate(fits):
        name = f" of {targets[t]}" if len(fits) > 1 and t < len(targets) else ""
        gain = f"{fit.gain:.3f} ± {fit.error:.3f} nats per row (cross-validated on {fit.rows:,} rows)"
        if fit.weight > 0.0:
            sentences.append(
                f"Boosted trees{name}: {fit.iterations} trees for each score have weight {percent(fit.weight)} in the "
                f"prediction, and raise the log-likelihood by {gain}."
            )
        else:
            sentences.append(f"Boosted trees{name} are not used: the change of the log-likelihood with them is {gain}.")
    return sentences


def _describe_recalibration(page: Page) -> list[str]:
    """Return sentences for targets with a learned law of the residual, without one for a reason, or with neighbours."""
    targets = list(page.data.get("target names", ()))
    fits = page.estimator.fit_diagnostics_.recalibration
    sentences = []
    for t, fit in enumerate(fits):
        name = f" of {targets[t]}" if len(fits) > 1 and t < len(targets) else ""
        if fit.used:
            sentences.append(
                f"Recalibration{name}: laws of the residual that depend on the row have weight "
                f"{percent(1.0 - fit.weights['networks'])} and raise the log-likelihood by {fit.gain:.3f} ± "
                f"{fit.error:.3f} nats per row (cross-validated on {fit.rows:,} rows)."
            )
        elif not fit.steps:
            sentences.append(
                f"Recalibration{name} was omitted: the leave-one-out distributions of {percent(fit.unreliable)} of the "
                f"training rows are unreliable (Pareto's k-hat above {TRUSTED}), and at most "
                f"{percent(MOST_UNRELIABLE)} are allowed. Keep more states, give more rows, or hold out rows "
                "(validation_fraction)."
            )
        if fit.neighbors is not None:
            sentences.append(_describe_neighbors(fit, fit.neighbors, name))
    return sentences


def _describe_neighbors(fit: RecalibrationFit, near: NeighborFit, name: str) -> str:
    """Return the share of rows that repeat a target, and the number of training rows in the fit."""
    weight = sum(weight for kind, weight in fit.weights.items() if kind in NEAR_KINDS)
    stored = (
        f"laws of the nearest training rows have weight {percent(weight)}, and the fit contains all {near.rows:,} "
        "training rows with their targets"
        if near.stored
        else "laws of the nearest training rows do not improve the prediction, and no training rows are stored"
    )
    return (
        f"Neighbours{name}: {percent(near.repeated)} of the rows that a network was not trained on have the same "
        f"target as one of their four nearest training rows ({percent(near.chance)} by chance); {stored}."
    )


def _coverage(first: Evaluation, t: int, target: str) -> list[Figure]:
    """Return the histogram of PIT values and the coverage of intervals of one target."""
    counts = first.calibration["pit"][:, t]
    levels = first.calibration["levels"]
    shares = first.calibration["coverage"][:, t]
    bins = counts / counts.sum()
    worst = int(np.argmax(np.abs(shares - levels)))
    return [
        picture(
            f"pit-{t}",
            partial(plots.pit_histogram, counts),
            says=f"Histogram of the predicted distribution function at the observed {target}, in {len(bins)} bins. "
            f"Each bin contains between {percent(bins.min())} and {percent(bins.max())} of the rows; "
            f"{percent(1.0 / len(bins))} is ideal.",
            caption="PIT histogram. Flat: calibrated; peak in the middle: distributions too wide; peaks at both ends: "
            "too narrow.",
        ),
        picture(
            f"coverage-{t}",
            partial(plots.coverage, levels, shares, rows=first.rows),
            says=f"Coverage of the intervals of {target} against their level: "
            f"{percent(float(np.interp(0.5, levels, shares)))} at 50 %, "
            f"{percent(float(np.interp(0.9, levels, shares)))} at 90 %. Largest difference: level "
            f"{percent(levels[worst])}, coverage {percent(shares[worst])}.",
            caption="Coverage of the prediction intervals by level. The diagonal is perfect calibration.",
        ),
    ]


def _class_calibration(first: Evaluation) -> dict[str, Any]:
    """Return the text on mean confidence and accuracy, and the reliability diagram."""
    confidence, accuracy, count = (first.calibration[name] for name in ("confidence", "accuracy", "count"))
    mean_confidence = float(np.average(confidence, weights=count))
    mean_accuracy = first.scores["accuracy"].value
    verdict = "equal within sampling error"
    if abs(mean_confidence - mean_accuracy) > 2.0 * math.sqrt(mean_confidence * (1.0 - mean_confidence) / first.rows):
        verdict = "overconfident" if mean_confidence > mean_accuracy else "underconfident"
    worst = int(np.argmax(np.abs(confidence - accuracy)))
    figure = picture(
        "reliability",
        partial(plots.reliability, confidence, accuracy, count),
        says=f"Accuracy against confidence in {format_count(len(count), 'bin')}, from {percent(confidence[0])} to "
        f"{percent(confidence[-1])} confidence. Largest difference: confidence {percent(confidence[worst])}, accuracy "
        f"{percent(accuracy[worst])} over {format_count(int(count[worst]), 'row')}.",
        caption="Reliability diagram: accuracy by confidence. The diagonal is perfect calibration; bins with few rows "
        "deviate by chance.",
    )
    text = f"Mean confidence {percent(mean_confidence)}, accuracy {percent(mean_accuracy)}: {verdict}."
    return {"text": text, "groups": [Group("", [figure])]}


_ONE_PART = (
    "Weight and structure uncertainty are one part (networks), because each sampled structure has only one independent "
    "network."
)


def _uncertainty(first: Evaluation) -> list[Group]:
    """Return the decomposition of the uncertainty into noise, weights and structure.

    If weights and structure cannot be separated they are one part, and there is no picture.
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
        summary = ", ".join(f"{name} {share}" for name, share in zip(names, shares, strict=True))
        figures = []
        if len(names) == 3:
            figure = picture(
                f"uncertainty-{t}",
                partial(plots.uncertainty_split, *parts[:, :, t]),
                says=f"Parts of the uncertainty of {target} in {format_count(n, 'row')}, sorted by total. Mean shares: "
                f"{summary}.",
                caption=f"Decomposition of the predictive {'variance' if regression else 'entropy'} of each row, "
                "sorted by total.",
            )
            figures = [figure]
        head = ("Part", "Standard deviation" if regression else "Entropy, nats", "Share")
        rows = list(zip((*names, "total"), sizes, (*shares, "100 %"), strict=True))
        title = "Mean over rows" if len(names) == 3 else f"Mean over rows. {_ONE_PART}"
        groups.append(Group(target, figures, TextTable(title, head, rows)))
    return groups


def _mean_parts(first: Evaluation, means: npt.NDArray[np.float64], t: int) -> npt.NDArray[np.float64]:
    """Average noise, weights and structure over rows.

    The variance between structures is averaged over rows before it is clipped at 0, so that its noise averages out.
    """
    if "between" not in first.arrays:
        return means
    n = len(first.arrays["noise"])
    between, within = (float(first.arrays[name].reshape(n, -1)[:, t].mean()) for name in ("between", "within"))
    share = max(between, 0.0) / max(max(between, 0.0) + within, 1e-300)
    rest = float(means[1:].sum())
    return np.array([means[0], rest - share * rest, share * rest])


# ------------------------------------------------------------------------------- data, options and next steps


def _columns(columns: Sequence[Column], gaps: Mapping[str, float]) -> TextTable:
    """Return the table of columns with their encodings and their shares of missing values."""
    missing = {}
    for column in columns:
        missing[column.name] = "yes" if column.gaps else "no"
        if column.name in gaps:
            missing[column.name] = percent(gaps[column.name])
    rows = [(c.name, _KINDS[c.kind], _encoding(c), missing[c.name]) for c in columns]
    return TextTable("Columns and their encoding", ("Column", "Type", "Encoding", "Missing values"), rows, text=4)


def _encoding(column: Column) -> str:
    """Describe the encoding of a column."""
    match column.kind:
        case "empty":
            return "ignored"
        case "boolean":
            return "−1 or 1"
        case "date":
            day = np.datetime64(math.floor(column.fill), "D")
            return f"mean {day}, scale {number(column.scale)} days; also time of year and day of week"
        case "category":
            rest = "; one more for rare and unseen levels" if column.other else ""
            levels = join_words([str(level) for level in column.levels], _LEVELS)
            return f"{format_count(len(column.levels), 'level')}: {levels}{rest}"
    limits = "" if column.limits is None else "; clipped to {} and {}".format(*map(number, column.limits))
    further = ""
    if column.bins is not None:
        spikes = f", {format_count(len(column.bins.spikes), 'frequent value')}" if column.bins.spikes else ""
        further = f"; bounded copy{spikes}, {format_count(len(column.bins.knots) - 1, 'bin')}"
    return f"centre {number(column.center)}, scale {number(column.scale)}{limits}{further}"


def _targets(page: Page) -> list[str]:
    """Describe the targets."""
    target = page.estimator.target_
    names = [str(name) for name in page.data.get("target names", ())]
    if isinstance(target, ClassLabels):
        labels = join_words([str(label) for label in target.labels], _LEVELS)
        return [f"{join_words(names) or 'y'}: {len(target.labels)} classes, {labels}"]
    assert isinstance(target, TargetScale)  # runs have no other
    names = names if len(names) == len(target.mean) else [f"y{t + 1}" for t in range(len(target.mean))]
    if (transform := target.transform) is not None:
        distance = "y - {}" if transform.sign > 0.0 else "{} - y"
        law = f"log(1 + ({distance.format(number(transform.threshold))}) / {number(transform.unit)})"
        return [f"{names[0]}: fitted on the scale {law}, which has a higher log-likelihood of unseen rows"]
    scales = zip(names, target.mean, target.scale, strict=True)
    return [f"{name}: mean {number(mean)}, standard deviation {number(scale)}" for name, mean, scale in scales]


def _next_steps(page: Page, first: Evaluation | None) -> list[str]:
    """Return suggestions for further work; code is between backticks."""
    given = page.options
    steps = []

    def option(name: str, value: Any) -> str:
        return f"`{flag_of(name)} {value}`" if page.command else f"`{name}={value!r}`"

    if page.findings:
        steps.append("Resolve the warnings first; each one names a remedy.")
    if all(evaluation.name in _OWN for evaluation in page.evaluations):
        command = "`fathomless evaluate RUN new.csv`" if page.command else _REPORT
        steps.append(f"Evaluate the model on rows outside the training, preferably later ones: {command}.")
    if isinstance(page.estimator, Supervised) and page.estimator.predictor_.training is not None:
        command = "`fathomless predict RUN new.csv --ood`" if page.command else "`ood_p_values`"
        steps.append(f"Test whether new rows are like the training rows, since others are extrapolations: {command}.")
    if first is not None and first.task == "regression":
        steps += _residual_hints(first, given, option)
    if given.get("weights") == "map":
        steps.append(
            f"Add weight uncertainty with {option('weights', 'meanfield')}. The training objective is then a bound on "
            "the evidence; the training takes longer."
        )
    start = "structure_from__initial_depth"
    if start in given and _cross_fit_diagnostics(page).structure:
        other = option("seed" if page.command else "random_state", page.seed + 1)
        steps.append(f"Repeat the fit with another seed, {other}. Changes beyond the error bars are due to chance.")
    elif start in given:
        other = option("seed" if page.command else "random_state", page.seed + 1)
        first_depth = option(start, 4 if given[start] < 3 else 1)
        steps.append(
            f"Repeat the fit with another seed and another initial depth, {other} and {first_depth}. Differences are "
            "due to chance or to the training, not to the data."
        )
    if page.command and first is not None and first.task == "density":
        steps.append("Sample rows: `fathomless sample RUN --rows 1000`. Score rows: `fathomless predict RUN new.csv`.")
    elif page.command:
        steps.append("Predict new rows with intervals: `fathomless predict RUN new.csv --interval 0.9`.")
    return steps


def _residual_hints(first: Evaluation, given: Mapping[str, Any], option: Callable[[str, Any], str]) -> list[str]:
    """Suggest another noise distribution if the standardised residuals are heavy-tailed or of unequal size."""
    y, mean, std = (first.arrays[name] for name in ("y", "mean", "std"))
    if len(y) < 100:
        return []
    hints = []
    z = (y - mean) / np.maximum(std, 1e-300)  # (n, T)
    share = float(np.mean(np.abs(z) > 3.0))
    if given.get("likelihood") in ("auto", "gaussian") and share > 0.01:
        hints.append(
            f"{percent(share)} of the residuals exceed three standard deviations (0.3 % for Gaussian noise): try "
            f"{option('likelihood', 'student_t')}."
        )
    # A fan in the residuals: compare the lowest with the highest third of the predictions.
    order = np.argsort(mean[:, 0], kind="stable")
    third = len(y) // 3
    low, high = (float(np.sqrt(np.mean(z[rows, 0] ** 2))) for rows in (order[:third], order[-third:]))
    if given.get("noise") == "learned" and max(low, high) > 1.5 * min(low, high) > 0.0:
        larger, smaller = ("high", "low") if high > low else ("low", "high")
        hints.append(
            f"Residuals are {number(max(low, high) / min(low, high), 2)} times as large for {larger} predictions as "
            f"for {smaller} ones: try {option('noise', 'input')}, noise that depends on the columns."
        )
    return hints


def _option_tables(page: Page) -> dict[str, TextTable]:
    """Return a table of the changed options, and one of all options with their meaning."""
    texts = describe(type(page.estimator))
    changed, rows = [], []
    for option in options_of(type(page.estimator)):
        value, default = _format_value(page.options[option.name]), _format_value(option.default)
        if value != default and option.name not in _OF_ONE_RUN:
            changed.append((option.name, value, default))
        meaning = re.sub(r":\w+:`~?([^`]*)`", lambda role: role[1].rpartition(".")[2], texts[option.name][1])
        rows.append((option.name, value, meaning.replace("`", "")))
        rows += _nested_rows(option, page.options[option.name])
    return {
        "changed": TextTable("Changed options", ("Option", "Value", "Default"), changed, text=3),
        "all": TextTable("All options", ("Option", "Value", "Meaning"), rows, text=3),
    }


def _nested_rows(option: Field[Any], given: Any) -> list[tuple[str, str, str]]:
    """Return a row for every nested option of the value of an option."""
    value = value_of(option, given)
    if value is None:
        return []
    texts = describe(type(value))
    names = nested_fields(option, type(value))
    rows = ((name, getattr(value, name), texts[name][1].replace("`", "")) for name in names)
    return [(f"{option.name}__{name}", _format_value(nested), text) for name, nested, text in rows]


def _format_value(value: Any) -> str:
    """Return the value of an option as text, without addresses in memory, which differ between runs."""
    if callable(value) or (isinstance(value, list | tuple) and any(map(callable, value))):
        return "a function"
    text = value if isinstance(value, str) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
