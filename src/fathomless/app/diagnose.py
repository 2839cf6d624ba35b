"""Automatic checks of a fitted estimator: findings with title, detail and remedy.

Every rule is a small function of the public attributes of a fit. No rule trains a model. The absence of findings does
not prove that a fit is good.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fathomless.app.row_order import find_last_rows, find_ordered_rows
from fathomless.data.schema import some
from fathomless.data.targets import TargetScale
from fathomless.estimators.base import Estimator
from fathomless.estimators.conditional import OWN, ConditionalCoverage
from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.findings import UNSEEN, Finding, FitSummary
from fathomless.estimators.importance import Importance
from fathomless.estimators.preparation import FEW_ROWS
from fathomless.estimators.scores import Score
from fathomless.families.registry import family_of
from fathomless.posterior import student
from fathomless.posterior.likelihoods import Gaussian
from fathomless.posterior.noise import InputNoise, LearnedNoise
from fathomless.posterior.out_of_distribution import OOD_LEVEL

__all__ = ["TRAINING_FILE", "diagnose"]

Array = npt.NDArray[Any]

_FEW_ROWS = 60  # the estimators hold out no rows of fewer
_FEW_IN_CLASS = 10
_FEW_STEPS = 100  # a step of Adam changes a weight by at most the learning rate
_FEW_SCORES = 20
_ERRORS = 3.0  # number of standard errors of a significant difference
_BEYOND = 0.5 * math.erfc(_ERRORS / math.sqrt(2.0))  # one-sided probability beyond them
_COMPARABLE = 20  # minimum number of rows of a reference: fewer rows also chose noise and epoch, and are no comparison
#: End of the name of an evaluation on the file of the fit.
TRAINING_FILE = " (training file)"
#: Number of standard errors of a significant difference between coverage and level, by level.
TOLERATED = {0.9: 3.0, 0.5: 3.5}
_KOLMOGOROV = 1.95  # the Kolmogorov distance times root N exceeds this with probability 0.001
_SIMULATIONS = 4000
_CHANCE = 0.995  # quantile of the calibration error under perfect calibration
_MATERIAL = 0.02  # smallest relevant difference, of shares and of nats per row and target
_LARGE = 0.05
_FEW_SCORED = 10  # rows of an evaluation below which it is not compared with a constant prediction
_SHIFTED = 0.25  # decrease of the log-likelihood of a file, as a share of the gain over a constant prediction
_UNEVEN = math.sqrt(2.0)  # ratio of the sizes of errors that an error of the mean as large as the noise would explain
_DETERMINED = 0.99  # accuracy, or coefficient of determination, of a target that the columns determine
_ERROR = 0.1  # its error relative to that of a constant prediction
_ALONE = (0.2, 0.05)  # largest importance of all other columns, in nats per row and relative to that of this column
_WITHOUT = 0.03  # importance of a column without effect, relative to the gain over a constant prediction
_MANY_COLUMNS = 0.25  # smallest reported share of such columns
_SHOWN = 3  # number of variables in a finding on the width of the intervals
_SHIFT_REMEDY = "Compare these rows with the training rows (units, time, place, selection), and train on similar rows."


def _find_training_file(evaluation: Evaluation) -> Finding:
    """Return the finding of an evaluation on the file of the fit."""
    return Finding(
        "problem",
        "Scores of training rows",
        f"The run was fitted to {evaluation.name.removesuffix(TRAINING_FILE)} (the same checksum). The scores of this "
        "file are better than those of new rows.",
        "Use the scores that the fit reports, of rows outside the training, or evaluate a file of other rows.",
    )


def diagnose(
    estimator: Estimator,
    evaluations: Sequence[Evaluation],
    *,
    training: Evaluation | None = None,
    rows: int | None = None,
    classes: Mapping[str, int] | None = None,
    linear: Score | None = None,
    importance: Importance | None = None,
) -> tuple[Finding, ...]:
    """Check a fitted estimator for common problems.

    Parameters
    ----------
    estimator : Estimator
        Fitted estimator. The rules about its structure are those of its family.
    evaluations : sequence of Evaluation
        Evaluations on rows outside the training: held-out, out-of-fold or new rows. Those on the file of the fit, whose
        names end with :data:`TRAINING_FILE`, have a finding of their own and are not checked.
    training : Evaluation, optional
        Evaluation on the training rows; without it overfitting is not checked.
    rows : int, optional
        Number of rows that were given to ``fit``; by default that of `training`.
    classes : mapping of str to int, optional
        Number of rows of each class; by default as in `training`.
    linear : Score, optional
        Mean log density of the fit minus that of a linear model on the same unseen rows, in nats per row.
    importance : Importance, optional
        Permutation importance of the columns on unseen rows.

    Returns
    -------
    tuple of Finding
        Findings, problems first. An empty tuple does NOT prove that the fit is good.

    Examples
    --------
    >>> import warnings
    >>> from fathomless import UnboundedDepthRegressor
    >>> x = np.linspace(0, 1, 20)
    >>> with warnings.catch_warnings(action="ignore"):  # the warnings have the same content as the findings
    ...     hasty = UnboundedDepthRegressor(structure_from="elbo", width=4, epochs=3, random_state=0).fit(x[:, None], x)
    >>> for finding in diagnose(hasty, [], rows=20):
    ...     print(f"{finding.severity}: {finding.title}")
    problem: Short training
    problem: Depth posterior did not change in training
    advice: No held-out rows
    """
    if training is not None:
        rows = training.rows if rows is None else rows
        if classes is None and training.confusion is not None:
            classes = dict(zip(training.labels, np.rint(training.confusion.sum(1)).astype(int).tolist(), strict=True))
    given = estimator._current_options(deep=True)
    on_training_file = [evaluation for evaluation in evaluations if evaluation.name.endswith(TRAINING_FILE)]
    others = tuple(evaluation for evaluation in evaluations if not evaluation.name.endswith(TRAINING_FILE))
    summary = FitSummary(estimator, others, training, rows, classes or {}, given, linear, importance)
    family = family_of(estimator)
    family_rules = [] if family.findings is None else [family.find(family.findings)]
    rules = (*_RULES, *(_OF_TRAINING if summary.trained else ()), *family_rules)
    findings = [*map(_find_training_file, on_training_file), *(found for rule in rules for found in rule(summary))]
    return tuple(sorted(findings, key=lambda finding: finding.severity != "problem"))


# ------------------------------------------------------------------------------------------- the training


def _short_training(summary: FitSummary) -> Iterator[Finding]:
    steps = int(summary.history[-1]["step"])
    if steps < _FEW_STEPS:
        yield Finding(
            "problem",
            "Short training",
            f"{steps} steps in {summary.estimator.n_iter_} epochs; a few thousand steps are usual.",
            f"Raise {summary.show('epochs')}.",
        )


def _ended_before_convergence(summary: FitSummary) -> Iterator[Finding]:
    scores = summary.scores
    before = scores[: math.floor(0.8 * len(scores))]
    if summary.stopped or not before:
        return
    gain = max(scores) - max(before)
    if gain > _LARGE * _count_targets(summary.estimator):
        yield Finding(
            "problem",
            "Training ended before convergence",
            f"The log-likelihood of the held-out rows rose by {gain:.2g} nats per row in the last fifth of the epochs.",
            f"Raise {summary.show('epochs')}.",
        )


def _stopped_after_few_epochs(summary: FitSummary) -> Iterator[Finding]:
    scores = summary.scores
    best = int(np.argmax(scores)) + 1 if scores else 0
    if summary.stopped and scores and (len(scores) < _FEW_SCORES or best <= 2):
        lower = f" or lower {summary.show('learning_rate')}" if best <= 2 else ""
        yield Finding(
            "advice",
            "Early stopping after few epochs",
            f"The training ended after {summary.estimator.n_iter_} of {summary.epochs} epochs and {len(scores)} "
            f"validation scores. Score number {best} was the best, and its network was kept.",
            f"Raise {summary.show('patience')}{lower}. If nothing changes, the columns may have little information on "
            "the target.",
        )


# ---------------------------------------------------------------------------------------------- the rows


def _no_held_out_rows(summary: FitSummary) -> Iterator[Finding]:
    share = summary.given["validation_fraction"]
    by_choice = share == type(summary.estimator).validation_fraction == 0.0  # of the family
    if by_choice or summary.estimator.validation_score_ is not None:
        return
    few = share == "auto" or share > 0.0 if summary.rows is None else summary.rows < _FEW_ROWS
    yield Finding(
        "advice",
        "No held-out rows",
        f"{f'No rows are held out of fewer than {_FEW_ROWS}' if few else 'All rows were used for training'}. The last "
        "epoch was kept without early stopping, and the uncertainty was not calibrated.",
        "Collect more rows." if few else f"Raise {summary.show('validation_fraction')} to 0.1.",
    )


def _few_rows(summary: FitSummary) -> Iterator[Finding]:
    if summary.rows is not None and summary.rows < FEW_ROWS:
        yield Finding(
            "problem",
            "Very few rows",
            f"{summary.rows} rows. With fewer than {FEW_ROWS} rows the size of the errors is hardly known: predicted "
            "probabilities are overconfident, and the coverage of 90 % intervals may be only 50 to 85 %.",
            "Collect more rows.",
        )


def _outliers(summary: FitSummary) -> Iterator[Finding]:
    limits = {c.name: c.limits for c in summary.estimator.schema_.columns if c.limits and not c.constant}
    if limits:
        name, (low, high) = next(iter(limits.items()))
        yield Finding(
            "problem",
            "Extreme outliers in columns",
            f"Columns with outliers: {some(list(limits))}. The outliers are excluded from the mean and scale of their "
            f"column and clipped; limits of {name}: {low:.6g} and {high:.6g}.",
            "If such a value (-999, 1e6) stands for a missing value, leave the cells empty. If it is an error, correct "
            "it.",
        )


def _fewer_rows_than_features(summary: FitSummary) -> Iterator[Finding]:
    width = summary.estimator.schema_.plain.width  # bins add no information to a column
    if summary.rows is not None and summary.rows < width:
        yield Finding(
            "advice",
            "Fewer rows than features",
            f"{summary.rows} rows; the columns are encoded as {width:,} features.",
            f"Drop columns, lower {summary.show('max_levels')}, or collect more rows.",
        )


def _duplicate_rows(summary: FitSummary) -> Iterator[Finding]:
    duplicates = summary.estimator.fit_diagnostics_.repeats
    if duplicates is None:
        return
    total = "" if summary.rows is None else f" of {summary.rows:,}"
    count = f"{duplicates.rows:,}{total} rows are equal to another row, including the target. "
    if duplicates.kind == "observations":
        detail = "So many are expected by chance; they are treated as observations and assigned to folds separately."
    else:
        detail = "More than expected by chance; they are treated as copies and assigned to the same fold."
    yield Finding(
        "advice",
        "Duplicate rows",
        count + detail,
        "If this is wrong, give groups: one number for all copies of a row, different numbers for observations.",
    )


def _few_in_a_class(summary: FitSummary) -> Iterator[Finding]:
    rare = {label: count for label, count in summary.classes.items() if count < _FEW_IN_CLASS}
    if rare:
        yield Finding(
            "advice",
            "Classes with few rows",
            f"{len(rare)} of {len(summary.classes)} classes have fewer than {_FEW_IN_CLASS} rows (minimum "
            f"{min(rare.values())}): {some(list(rare))}. Their probabilities and scores are imprecise.",
            "Collect more rows of these classes, or merge them with others.",
        )


# -------------------------------------------------------------------------------------------- the scores


def _no_better_than_constant(summary: FitSummary) -> Iterator[Finding]:
    for evaluation in summary.preferred_evaluations:
        if evaluation.rows < _FEW_SCORED:  # the constant prediction is fitted to the same rows
            continue
        fit, constant = evaluation.scores["log_likelihood"], evaluation.baseline["log_likelihood"]
        gain = fit.value - constant.value
        paired = evaluation.gain
        error = math.hypot(fit.error or 0.0, constant.error or 0.0) if paired is None else paired.error or 0.0
        if gain > error:
            continue
        predictions = {
            "classification": "the class frequencies",
            "density": "a Gaussian with the means and covariances",
        }
        prediction = predictions.get(evaluation.task, "the mean and standard deviation")
        yield Finding(
            "advice" if gain > 0.0 else "problem",
            f"{'Hardly' if gain > 0.0 else 'No'} better than a constant prediction on {evaluation.name}",
            f"Log-likelihood {fit.value:.3g}{_plus_minus(fit.error)} nats per row; {prediction} of these rows: "
            f"{constant.value:.3g}{_plus_minus(constant.error)}.",
            "Check that the target is the right one, that targets and rows are in the same order, and that the columns "
            "have information on the target. If the scores of the training rows are much better: "
            f"{_against_overfitting(summary)}",
        )


def _behind_linear(summary: FitSummary) -> Iterator[Finding]:
    lead = summary.linear
    if lead is None or lead.value >= -max(2.0 * (lead.error or 0.0), _MATERIAL):
        return
    yield Finding(
        "problem",
        "A linear model predicts better",
        "The log-likelihood of a linear model on rows outside the training is "
        f"{-lead.value:.2g}{_plus_minus(lead.error)} nats per row higher.",
        "Use the linear model, unless you need the uncertainties of this fit. With few rows or large noise a network "
        "may not find more than a linear effect; collect more rows.",
    )


def _determined_by_one_column(summary: FitSummary) -> Iterator[Finding]:
    """Report a column that determines the target by itself, as a copy of the target does."""
    found, unseen = summary.importance, summary.unseen
    if found is None or len(found.columns) < 2 or unseen is None:
        return
    name = "accuracy" if unseen.task == "classification" else "r2"
    score, constant = (scores[name].value for scores in (unseen.scores, unseen.baseline))
    others = float(np.maximum(found.loss[1:], 0.0).sum())
    error = min(1.0 - _DETERMINED, _ERROR * (1.0 - constant))
    if error <= 0.0 or 1.0 - score > error or others > min(_ALONE[0], _ALONE[1] * found.loss[0]):
        return
    label = "accuracy" if name == "accuracy" else "R²"
    yield Finding(
        "problem",
        "One column determines the target",
        f"Permuting {found.columns[0]!r} lowers the log-likelihood by {found.loss[0]:.2g} nats per row; the effects of "
        f"all other columns have a sum of {others:.2g}. The {label} on {unseen.name} is {score:.4g}.",
        f"Check that {found.columns[0]!r} is known when predictions are made, and is not computed from the target. "
        "Otherwise drop the column, and fit again.",
    )


def _columns_without_importance(summary: FitSummary) -> Iterator[Finding]:
    """Report columns whose importance is near zero, by its upper limit of two standard errors."""
    found, unseen = summary.importance, summary.unseen
    if found is None or unseen is None:
        return
    gain = unseen.scores["log_likelihood"].value - unseen.baseline["log_likelihood"].value
    if gain <= 0.0:
        return
    limit = min(_MATERIAL * _count_targets(summary.estimator), _WITHOUT * gain)
    used = getattr(summary.estimator, "columns_used_", {})  # the networks leave out the others
    losses = zip(found.columns, found.loss + 2.0 * found.error, strict=True)
    without = [name for name, high in losses if high < limit and used.get(name, 1.0) > 0.0]
    if len(without) >= _MANY_COLUMNS * len(found.columns):
        yield Finding(
            "advice",
            "Columns without importance",
            f"{len(without)} of {len(found.columns)} columns have no measurable importance. Permuting one of them "
            f"lowers the log-likelihood by less than {limit:.2g} nats per row (upper limit of two standard errors): "
            f"{some(without)}.",
            "Fit again without them, and keep the fit with the higher log-likelihood of unseen rows. A column that "
            "repeats another one has no importance of its own: do not drop both.",
        )


def _most_weight_of_trees(summary: FitSummary) -> Iterator[Finding]:
    """Report that boosted trees predict most of a target, and the layers the smaller part."""
    fits = summary.estimator.fit_diagnostics_.trees_of_targets
    heavy = [fit for fit in fits if fit.weight > 0.5]
    if not heavy:
        return
    binned = any(column.bins is not None for column in summary.estimator.schema_.columns)
    other = "" if binned else f", or try bins, which show steps ({summary.show('numbers')})"
    most = max(heavy, key=lambda fit: fit.gain)
    of_targets = f" for {len(heavy)} of {len(fits)} targets" if len(fits) > 1 else ""
    yield Finding(
        "advice",
        "Boosted trees have most of the weight",
        f"The weight of the trees is {most.weight:.0%}{of_targets}, and their gain {most.gain:.3f} nats per row. The "
        "target depends on steps or interactions of columns that the layers do not represent. The posterior over "
        "structure describes the networks alone.",
        f"Keep the trees{other}.",
    )


def _overfitting(summary: FitSummary) -> Iterator[Finding]:
    """Compare rows outside the training with the training rows, if there is no better reference."""
    recalibration = summary.estimator.recalibration_
    if recalibration is not None and recalibration.neighbors is not None:
        return  # a training row is its own nearest neighbour, and the difference is no overfitting
    if any(fit.weight > 0.0 for fit in summary.estimator.fit_diagnostics_.trees_of_targets):
        return  # trees are always closer to their training rows, and unseen rows set their weight
    for evaluation in summary.evaluations:
        if summary.training is None or _reference(summary, evaluation) is not None:
            continue
        if summary.estimator.fold_ is not None and evaluation.name not in UNSEEN:
            continue  # all networks but one were trained on a training row, and the difference is no overfitting
        if (loss := _loss(summary.training, evaluation)) is not None:
            yield Finding("problem", "Overfitting", f"{loss}.", _sentence(_against_overfitting(summary)))


def _distribution_shift(summary: FitSummary) -> Iterator[Finding]:
    """Compare the rows of a file with the held-out or out-of-fold rows of the fit."""
    for evaluation in summary.evaluations:
        reference = _reference(summary, evaluation)
        if reference is None or reference.rows < _COMPARABLE:
            continue
        if (loss := _loss(reference, evaluation, share=_SHIFTED)) is not None:
            yield Finding("problem", f"Distribution shift on {evaluation.name}", f"{loss}.", _SHIFT_REMEDY)


def _unlike_training_rows(summary: FitSummary) -> Iterator[Finding]:
    """Report a file with more rows unlike the training rows than chance gives."""
    for evaluation in summary.evaluations:
        share = evaluation.ood_share
        if share is None or evaluation.name in (*UNSEEN, "training rows"):
            continue
        error = math.sqrt(OOD_LEVEL * (1.0 - OOD_LEVEL) / evaluation.rows)
        if share > 2.0 * OOD_LEVEL + _ERRORS * error:
            yield Finding(
                "problem",
                f"Rows unlike the training rows on {evaluation.name}",
                f"{share:.1%} of the {evaluation.rows:,} rows have a p-value up to {OOD_LEVEL} for the hypothesis that "
                f"they are from the distribution of the training rows; at most about {OOD_LEVEL:.0%} are expected.",
                "Their predictions are extrapolations: fathomless predict --ood has the p-value of each row. Check "
                "units and encodings of the columns, or collect training rows like these.",
            )


def _reference(summary: FitSummary, evaluation: Evaluation) -> Evaluation | None:
    """Return the held-out or out-of-fold rows as the reference for the rows of a file; otherwise None.

    Training rows are no reference: overfitting raises their score, and the difference would be attributed to the file.
    """
    unseen = [other for other in summary.evaluations if other.name in UNSEEN]
    return unseen[0] if unseen and evaluation.name not in UNSEEN else None


def _loss(reference: Evaluation, evaluation: Evaluation, share: float = 0.5) -> str | None:
    """Return a text on the decrease of the log-likelihood against a reference, if it is large and significant.

    It is large if it exceeds a share of the gain over a constant prediction, and 0.05 nats for each target. The gain
    is compared as well as the log-likelihood itself. A file whose targets vary more or less than those of the reference
    has another log-likelihood even if it is predicted equally well.
    """
    rows = (reference, evaluation)
    expected, observed = (part.scores["log_likelihood"] for part in rows)
    expected_gain, gain = (part.scores["log_likelihood"].value - part.baseline["log_likelihood"].value for part in rows)
    loss = min(expected_gain - gain, expected.value - observed.value)
    error, errors = _difference_error((reference, expected.error), (evaluation, observed.error))
    if loss <= max(errors * error, _LARGE * len(evaluation.targets), share * expected_gain):
        return None
    return (
        f"Gain over a constant prediction, in nats per row: {expected_gain:.2g} on {reference.name}, {gain:.2g} on "
        f"{evaluation.name}; standard error of the difference {error:.2g}"
    )


def _difference_error(*parts: tuple[Evaluation, float | None]) -> tuple[float, float]:
    """Return the standard error of a difference of means, and the number of standard errors of a significant one.

    This number is three if both means are of many rows. The error of a mean of few rows is itself uncertain; the number
    is then the quantile of Student's t with the degrees of freedom of Welch and Satterthwaite.
    """
    squares = [(error or 0.0) ** 2 for _, error in parts]
    rest = sum(square**2 / max(rows.rows - 1, 1) for square, (rows, _) in zip(squares, parts, strict=True))
    if rest == 0.0:
        return math.sqrt(sum(squares)), _ERRORS
    beyond, df = (torch.tensor(value, dtype=torch.float64) for value in (_BEYOND, sum(squares) ** 2 / rest))
    return math.sqrt(sum(squares)), -float(student.icdf(beyond, df))


def _against_overfitting(summary: FitSummary) -> str:
    if not summary.trained:
        return f"raise {summary.show(_longer(summary))}, or collect more rows."
    steps = []
    if summary.estimator.validation_score_ is None:
        steps.append(f"raise {summary.show('validation_fraction')}")
    elif summary.given["patience"] is None:
        steps.append(f"set {summary.show('patience')}")
    if "weight_prior" in summary.given:
        prior = summary.show("weight_prior")
        named = isinstance(summary.given["weight_prior"], str)  # "auto" or "columns"
        steps.append(f"set {prior} to a small number, such as 0.3" if named else f"lower {prior}")
    if "width" in summary.given:
        steps.append(f"lower {summary.show('width')}")
    return f"{'; '.join([*steps, 'or collect more rows'])}."


def _longer(summary: FitSummary) -> str:
    """Return the option that lengthens the sampling or the training."""
    return next(name for name in ("weights__sweeps", "sweeps", "candidates", "epochs") if name in summary.given)


def _poor_calibration(summary: FitSummary) -> Iterator[Finding]:
    for evaluation in summary.evaluations:
        if not evaluation.calibration:  # of a density
            continue
        error = _class_calibration(evaluation) if evaluation.labels else _interval_calibration(evaluation)
        if error is None:
            continue
        size, detail = error
        yield Finding(
            "problem" if size > _LARGE else "advice",
            f"Poor calibration on {evaluation.name}",
            detail,
            _calibration_remedy(summary, evaluation),
        )


def _class_calibration(evaluation: Evaluation) -> tuple[float, str] | None:
    """Compare the calibration error with its distribution under perfect calibration, by simulation."""
    confidence, accuracy, count = (evaluation.calibration[key] for key in ("confidence", "accuracy", "count"))
    share = count / evaluation.rows
    count = np.rint(count).astype(np.int64)  # sample weights need not be integers
    hits = np.random.default_rng(0).binomial(count, np.clip(confidence, 0.0, 1.0), (_SIMULATIONS, len(count)))
    chance = np.abs(hits / count - confidence) @ share
    error = evaluation.scores["ece"].value
    excess = error - float(np.median(chance))
    if error <= np.quantile(chance, _CHANCE) or excess <= _MATERIAL:
        return None
    mean_confidence = float(confidence @ share)
    mean_accuracy = float(accuracy @ share)
    verdict = "overconfident" if mean_confidence > mean_accuracy else "underconfident"
    return excess, (
        f"Expected calibration error {error:.1%} ({np.median(chance):.1%} under perfect calibration). Mean confidence "
        f"{mean_confidence:.1%}, accuracy {mean_accuracy:.1%}: {verdict}."
    )


def _interval_calibration(evaluation: Evaluation) -> tuple[float, str] | None:
    """Compare coverage with its level, and the distribution of F(y) with the uniform one, for each target."""
    size = 0.0
    details = []
    for t, target in enumerate(evaluation.targets):
        level, coverage = _worst_coverage(evaluation, t)
        difference = abs(coverage - level)
        error = math.sqrt(level * (1.0 - level) / evaluation.rows)
        steps = np.cumsum(evaluation.calibration["pit"][:, t]) / evaluation.rows
        distance = float(np.abs(steps - np.arange(1, len(steps) + 1) / len(steps)).max())
        # Half a row is subtracted, since numbers of rows are integers (continuity correction).
        if difference - 0.5 / evaluation.rows > TOLERATED[level] * error and difference > _MATERIAL:
            # Wrong 50 % intervals alone are advice, never a problem.
            size = max(size, difference if level > 0.5 else min(difference, _LARGE))
            details.append(
                f"Coverage of the {100 * level:.0f} % intervals of {target}: {coverage:.1%}, too "
                f"{'narrow' if coverage < level else 'wide'}"
            )
        elif distance > max(_KOLMOGOROV / math.sqrt(evaluation.rows), _LARGE):
            size = max(size, distance)
            details.append(
                f"The PIT values of {target} differ from a uniform distribution by up to {distance:.1%}; "
                f"{float(steps[len(steps) // 2 - 1]):.1%} of the rows lie below the predicted median"
            )
    return (size, f"{'; '.join(details)}.") if details else None


def _row_dependent_width(summary: FitSummary) -> Iterator[Finding]:
    """Find variables on which the size of the errors depends while the width of the intervals does not follow."""
    for evaluation in summary.evaluations:
        found = [one for one in evaluation.conditional if one.p < 2.0 * _BEYOND and _is_uneven(one)]
        if not found:
            continue
        found.sort(key=lambda one: one.p)
        lowest = [min(one.groups, key=lambda group: group.coverage) for one in found]
        # certain beyond two standard errors of the coverage of the group
        certain = [0.9 - g.coverage - 2.0 * math.sqrt(0.9 * 0.1 / g.rows) > _LARGE for g in lowest]
        several = len(evaluation.targets) > 1
        yield Finding(
            "problem" if any(certain) else "advice",
            f"Row-dependent width on {evaluation.name}",
            " ".join(_describe_width(one, several) for one in found[:_SHOWN]),
            _width_remedy(summary),
        )


def _is_uneven(found: ConditionalCoverage) -> bool:
    """Return True if coverage and size of the errors differ more than errors of the mean below the noise explain."""
    coverages = [group.coverage for group in found.groups]
    sizes = [group.size for group in found.groups]
    return max(coverages) - min(coverages) > _LARGE and max(sizes) > _UNEVEN * min(sizes)


def _describe_width(found: ConditionalCoverage, several: bool) -> str:
    """Return the coverage in the group with the smallest and the largest errors relative to the intervals."""
    smallest, largest = (choose(found.groups, key=lambda group: group.size) for choose in (min, max))
    name = f"the {found.variable}" if found.variable in OWN else found.variable
    of_target = f" of {found.target}" if several else ""
    wide, narrow = ("too wide" if group.coverage > 0.9 else "too narrow" for group in (smallest, largest))
    return (
        f"The size of the errors{of_target} relative to the intervals depends on {name}: the 90 % intervals cover "
        f"{smallest.coverage:.1%} of the {smallest.rows:,.0f} rows with {found.variable} {smallest.label} ({wide}), "
        f"and {largest.coverage:.1%} of the {largest.rows:,.0f} rows with {largest.label} ({narrow})."
    )


def _width_remedy(summary: FitSummary) -> str:
    if summary.given.get("noise") == "learned":
        plain = summary.given.get("recalibrate") is False or summary.given.get("likelihood") != "auto"
        first = "Set recalibrate=True and likelihood='auto', or try" if plain else "Collect more rows, or try"
        return f"{first} noise='input' (now {summary.given['noise']!r}): noise that depends on the columns."
    return (
        "Do not rely on the intervals of single rows; add columns that have information on the size of the errors, or "
        "collect more rows."
    )


def _worst_coverage(evaluation: Evaluation, t: int) -> tuple[float, float]:
    """Return the level whose coverage differs most, in units of its tolerance, and the coverage."""
    levels, shares = evaluation.calibration["levels"], evaluation.calibration["coverage"][:, t]
    coverages = [(level, float(np.interp(level, levels, shares))) for level in TOLERATED]

    def excess(pair: tuple[float, float]) -> float:
        level, coverage = pair
        return abs(coverage - level) / (TOLERATED[level] * math.sqrt(level * (1.0 - level)))

    return max(coverages, key=excess)


def _calibration_differs(reference: Evaluation, evaluation: Evaluation) -> bool:
    """Return True if the calibration on rows differs significantly from that on a reference."""
    both = (reference, evaluation)
    variance = 1.0 / reference.rows + 1.0 / evaluation.rows
    if evaluation.labels:
        gaps = []
        hits = 0.0
        for rows in both:
            confidence, accuracy, count = (rows.calibration[key] for key in ("confidence", "accuracy", "count"))
            gaps.append(float((accuracy - confidence) @ count) / rows.rows)
            hits += float(accuracy @ count)
        share = hits / (reference.rows + evaluation.rows)
        return abs(gaps[1] - gaps[0]) > _ERRORS * math.sqrt(share * (1.0 - share) * variance) + _MATERIAL
    levels = evaluation.calibration["levels"]
    for level, errors in TOLERATED.items():
        shares = [
            np.array([np.interp(level, levels, column) for column in rows.calibration["coverage"].T]) for rows in both
        ]
        pooled = sum(rows.rows * share for rows, share in zip(both, shares, strict=True)) / (
            reference.rows + evaluation.rows
        )
        if (np.abs(shares[1] - shares[0]) > errors * np.sqrt(pooled * (1.0 - pooled) * variance) + _MATERIAL).any():
            return True
    steps = [np.cumsum(rows.calibration["pit"], axis=0) / rows.rows for rows in both]
    return bool(np.abs(steps[1] - steps[0]).max() > _KOLMOGOROV * math.sqrt(variance) + _MATERIAL)


def _calibration_remedy(summary: FitSummary, evaluation: Evaluation) -> str:
    reference = _reference(summary, evaluation)
    if (
        reference is not None
        and reference.rows >= _COMPARABLE
        and (_loss(reference, evaluation) or _calibration_differs(reference, evaluation))
    ):
        return _SHIFT_REMEDY
    if not summary.trained and _longer(summary) in ("weights__sweeps", "sweeps"):
        return f"Raise {summary.show(_longer(summary))} and check that the chains agree; or collect more rows."
    if summary.trained and summary.estimator.validation_score_ is None:
        return (
            f"Raise {summary.show('validation_fraction')}: held-out rows calibrate the noise and choose the best epoch."
        )
    if not summary.given.get("calibrate", True) and not evaluation.labels:
        return f"Set {summary.show('calibrate')}."
    others = {"noise": ("learned", "input"), "likelihood": ("gaussian", "student_t"), "weights": ("map", "meanfield")}
    if summary.given.get("trees") or summary.given.get("neighbors"):
        del others["likelihood"]  # they require likelihood="auto"
    steps = [
        f"{name}={other!r} (now {usual!r})"
        for name, (usual, other) in others.items()
        if summary.given.get(name) == usual or (name == "likelihood" and _is_automatic_gaussian(summary))
    ]
    return f"Try {' or '.join(steps)}." if steps else "Collect more rows."


def _is_automatic_gaussian(summary: FitSummary) -> bool:
    """Return True if the likelihood was chosen automatically and is Gaussian."""
    return summary.given.get("likelihood") == "auto" and isinstance(summary.estimator.likelihood_, Gaussian)


def _noise_at_lower_bound(summary: FitSummary) -> Iterator[Finding]:
    target, evaluations = summary.estimator.target_, [*summary.preferred_evaluations]
    parts = [part for part in summary.estimator.likelihood_.children() if isinstance(part, LearnedNoise | InputNoise)]
    if not isinstance(target, TargetScale) or not parts or not evaluations:
        return
    minimum = math.exp(parts[0].log_minimum)
    evaluation = evaluations[0]
    noise = np.median(np.sqrt(evaluation.arrays["noise"]), axis=0) / np.array(target.spread)
    low = [name for name, value in zip(evaluation.targets, noise, strict=True) if value < 3.0 * minimum]
    if low:
        yield Finding(
            "problem",
            "Noise at its lower bound",
            f"Noise of {some(low)}: {noise.min():.2g} standard deviations of the target (minimum {minimum:.2g}). The "
            "columns determine the target almost exactly.",
            "Check for a column that contains the target (leakage), and drop it. If there is none, set "
            f"{summary.show('noise')} to a number, in standard deviations of the target.",
        )


def _count_targets(estimator: Estimator) -> int:
    """Return the number of targets whose log densities are summed in a log-likelihood."""
    return len(estimator.target_.mean) if isinstance(estimator.target_, TargetScale) else 1


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _plus_minus(error: float | None) -> str:
    return "" if error is None else f" ± {error:.2g}"


_RULES: tuple[Callable[[FitSummary], Iterator[Finding]], ...] = (
    _no_better_than_constant,
    _behind_linear,
    _determined_by_one_column,
    _columns_without_importance,
    _most_weight_of_trees,
    _overfitting,
    _distribution_shift,
    _unlike_training_rows,
    _poor_calibration,
    _row_dependent_width,
    _noise_at_lower_bound,
    _few_rows,
    find_ordered_rows,
    find_last_rows,
    _outliers,
    _fewer_rows_than_features,
    _duplicate_rows,
    _few_in_a_class,
)
_OF_TRAINING: tuple[Callable[[FitSummary], Iterator[Finding]], ...] = (
    _short_training,
    _ended_before_convergence,
    _stopped_after_few_epochs,
    _no_held_out_rows,
)
