"""What a second pair of eyes would say of a fit: findings, each with what was seen and what to do about it.

Every rule is a small function of what is public about a fit. None trains anything, and none proves that a fit is good.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from fathomless.data.schema import some
from fathomless.data.targets import TargetScale
from fathomless.estimators.base import Estimator
from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.findings import Finding, FitSummary
from fathomless.estimators.preparation import FEW_ROWS
from fathomless.estimators.scores import Score
from fathomless.families.registry import family_of
from fathomless.posterior import student
from fathomless.posterior.likelihoods import Gaussian, InputNoise, LearnedNoise

__all__ = ["diagnose"]

_FEW_ROWS = 60  # below which the estimators hold out none
_FEW_IN_CLASS = 10
_FEW_STEPS = 100  # Adam moves a weight by at most the learning rate in each
_FEW_SCORES = 20
_ERRORS = 3.0  # standard errors that count as more than chance
_BEYOND = 0.5 * math.erfc(_ERRORS / math.sqrt(2.0))  # probability beyond them
_COMPARABLE = 20  # unseen rows below which nothing is said of other rows: they chose the noise and the epoch too
#: Standard errors that count as more than chance of the share of rows inside intervals of a level.
TOLERATED = {0.9: 3.0, 0.5: 3.5}
_KOLMOGOROV = 1.95  # its distance times root N exceeds this with probability 0.001
_SIMULATIONS = 4000
_CHANCE = 0.995  # quantile of the calibration error that sampling alone gives
_MATERIAL = 0.02  # shares, and nats per row and target, below which a difference does not matter
_LARGE = 0.05
_UNSEEN = ("held-out rows", "out-of-fold rows")
_OTHER_KIND = "See how they differ (units, time, place, the way they were chosen), and train on rows like them."


def diagnose(
    estimator: Estimator,
    evaluations: Sequence[Evaluation],
    *,
    training: Evaluation | None = None,
    rows: int | None = None,
    classes: Mapping[str, int] | None = None,
    linear: Score | None = None,
) -> tuple[Finding, ...]:
    """Look a fitted estimator over.

    Parameters
    ----------
    estimator : Estimator
        Fitted. Rules about its structure are those of its family.
    evaluations : sequence of Evaluation
        Of rows that the network was not trained on: held out, or new.
    training : Evaluation, optional
        Of the rows that it was trained on; without it nothing is said of overfitting.
    rows : int, optional
        How many rows were given to ``fit``; by default those of `training`.
    classes : mapping of str to int, optional
        How many of them each class has; by default as in `training`.
    linear : Score, optional
        Nats per row by which a linear model is behind on unseen rows.

    Returns
    -------
    tuple of Finding
        Problems first. Empty if nothing was found, which is NOT a proof that nothing is wrong.

    Examples
    --------
    >>> import warnings
    >>> from fathomless import UnboundedDepthRegressor
    >>> x = np.linspace(0, 1, 20)
    >>> with warnings.catch_warnings(action="ignore"):  # which say the same
    ...     hasty = UnboundedDepthRegressor(structure_from="elbo", width=4, epochs=3, random_state=0).fit(x[:, None], x)
    >>> for finding in diagnose(hasty, [], rows=20):
    ...     print(f"{finding.severity}: {finding.title}")
    problem: The training was short
    problem: Depth has not moved
    advice: No rows were held out
    """
    if training is not None:
        rows = training.rows if rows is None else rows
        if classes is None and training.confusion is not None:
            classes = dict(zip(training.labels, np.rint(training.confusion.sum(1)).astype(int).tolist(), strict=True))
    given = estimator._current_options(deep=True)
    summary = FitSummary(estimator, tuple(evaluations), training, rows, classes or {}, given, linear)
    family = family_of(estimator)
    own = [] if family.findings is None else [family.find(family.findings)]
    rules = (*_RULES, *(_OF_TRAINING if summary.trained else ()), *own)
    found = [finding for rule in rules for finding in rule(summary)]
    return tuple(sorted(found, key=lambda finding: finding.severity != "problem"))


# ------------------------------------------------------------------------------------------- the training


def _short(summary: FitSummary) -> Iterator[Finding]:
    steps = int(summary.history[-1]["step"])
    if steps < _FEW_STEPS:
        yield Finding(
            "problem",
            "The training was short",
            f"It took {steps} steps in {summary.estimator.n_iter_} epochs; some thousand steps are usual.",
            f"Raise {summary.show('epochs')}.",
        )


def _rising(summary: FitSummary) -> Iterator[Finding]:
    scores = summary.scores
    before = scores[: math.floor(0.8 * len(scores))]
    if summary.stopped or not before:
        return
    gain = max(scores) - max(before)
    if gain > _LARGE * _columns(summary.estimator):
        yield Finding(
            "problem",
            "The training ended too soon",
            f"In its last fifth the log-likelihood of the held-out rows still rose by {gain:.2g} nats per row.",
            f"Raise {summary.show('epochs')}.",
        )


def _hasty(summary: FitSummary) -> Iterator[Finding]:
    scores = summary.scores
    best = int(np.argmax(scores)) + 1 if scores else 0
    if summary.stopped and scores and (len(scores) < _FEW_SCORES or best <= 2):
        lower = f" or lower {summary.show('learning_rate')}" if best <= 2 else ""
        yield Finding(
            "advice",
            "The training stopped early",
            f"It ended after {summary.estimator.n_iter_} of {summary.epochs} epochs and {len(scores)} validation "
            f"scores. Score number {best} was the best; the fit has the state of that epoch.",
            f"Raise {summary.now('patience')}{lower}. If nothing changes, the columns may say little about the target.",
        )


# ---------------------------------------------------------------------------------------------- the rows


def _nothing_held_out(summary: FitSummary) -> Iterator[Finding]:
    share = summary.given["validation_fraction"]
    by_choice = share == type(summary.estimator).validation_fraction == 0.0  # of the family
    if by_choice or summary.estimator.validation_score_ is not None:
        return
    few = share == "auto" or share > 0.0 if summary.rows is None else summary.rows < _FEW_ROWS
    yield Finding(
        "advice",
        "No rows were held out",
        f"{f'Of fewer than {_FEW_ROWS} rows none are' if few else 'All rows were used for training'}. The last epoch "
        "was kept, whether or not it was the best, and the uncertainty was not calibrated.",
        "Collect more rows." if few else f"Raise {summary.show('validation_fraction')} to 0.1.",
    )


def _few_rows(summary: FitSummary) -> Iterator[Finding]:
    if summary.rows is not None and summary.rows < FEW_ROWS:
        yield Finding(
            "problem",
            "Hardly any rows",
            f"{summary.rows} rows were given. Fewer than {FEW_ROWS} hardly tell how far predictions are off: "
            "probabilities of new rows are too sure, and 90 % intervals may hold only 50 to 85 % of them.",
            "Collect more rows.",
        )


def _cells_far_from_the_others(summary: FitSummary) -> Iterator[Finding]:
    limits = {c.name: c.limits for c in summary.estimator.schema_.columns if c.limits is not None}
    if limits:
        name, (low, high) = next(iter(limits.items()))
        yield Finding(
            "problem",
            "A few cells lie far from all others",
            f"They are in {some(list(limits))}, and do not count for mean and scale of their columns; values of {name} "
            f"below {low:.6g} or above {high:.6g} are taken for these numbers.",
            "If such a value (-999, 1e6) means that there is none, leave the cells empty. If it is a mistake, correct "
            "it.",
        )


def _few_for_the_columns(summary: FitSummary) -> Iterator[Finding]:
    width = summary.estimator.schema_.width
    if summary.rows is not None and summary.rows < width:
        yield Finding(
            "advice",
            "Fewer rows than features",
            f"{summary.rows} rows were given, and their columns are encoded as {width:,} features.",
            f"Drop columns, lower {summary.show('max_levels')}, or collect more rows.",
        )


def _equal_rows(summary: FitSummary) -> Iterator[Finding]:
    told = summary.estimator.fit_diagnostics_.repeats
    if told is None:
        return
    share = "" if summary.rows is None else f" of {summary.rows:,}"
    equal = f"{told.rows:,}{share} rows are equal to another row, target included. "
    if told.kind == "observations":
        detail = "Chance explains that, so they are treated as observations, each assigned to a fold by itself."
    else:
        detail = "Chance does not explain that, so they are treated as copies, which stay together in every fold."
    yield Finding(
        "advice",
        "Rows are repeated",
        equal + detail,
        "If that is wrong, give groups: one number for all copies of a row, different numbers for observations.",
    )


def _few_in_a_class(summary: FitSummary) -> Iterator[Finding]:
    rare = {label: count for label, count in summary.classes.items() if count < _FEW_IN_CLASS}
    if rare:
        yield Finding(
            "advice",
            "Classes with few rows",
            f"{len(rare)} of {len(summary.classes)} classes have fewer than {_FEW_IN_CLASS} rows, at least "
            f"{min(rare.values())}: {some(list(rare))}. Their probabilities are rough, and so are scores of them.",
            "Collect more of them, or join them with others.",
        )


# -------------------------------------------------------------------------------------------- the scores


def _no_better_than_constant(summary: FitSummary) -> Iterator[Finding]:
    for found in summary.preferred_evaluations:
        ours, theirs = found.scores["log_likelihood"], found.baseline["log_likelihood"]
        gain = ours.value - theirs.value
        if gain > math.hypot(ours.error or 0.0, theirs.error or 0.0):
            continue
        of_task = {"classification": "class frequencies", "density": "means and covariances, as a normal law"}
        what = of_task.get(found.task, "mean and standard deviation")
        yield Finding(
            "advice" if gain > 0.0 else "problem",
            f"{'Hardly' if gain > 0.0 else 'No'} better than a constant prediction on {found.name}",
            f"The log-likelihood is {ours.value:.3g}{_plus_minus(ours.error)} nats per row; the {what} of these rows, "
            f"given to every row, have {theirs.value:.3g}{_plus_minus(theirs.error)}.",
            "Check that it is the right target, that no rows were shuffled against it, and that the columns can tell "
            f"of it. If training rows are predicted far better: {_against_overfitting(summary)}",
        )


def _behind_linear(summary: FitSummary) -> Iterator[Finding]:
    lead = summary.linear
    if lead is None or lead.value >= -max(2.0 * (lead.error or 0.0), _MATERIAL):
        return
    yield Finding(
        "problem",
        "A linear model predicts better",
        f"On rows that neither was fitted to, a linear model is ahead by {-lead.value:.2g}{_plus_minus(lead.error)} "
        "nats per row.",
        "Take the linear model, unless you need what it has not. With few rows or much noise a straight line can be "
        "all that the data hold; more rows change that.",
    )


def _overfitted(summary: FitSummary) -> Iterator[Finding]:
    """Compare unseen rows with those of the training, where they have no better comparison."""
    for found in summary.evaluations:
        if summary.training is None or _reference(summary, found) is not None:
            continue
        if (loss := _loss(summary.training, found)) is not None:
            yield Finding("problem", "Overfitted", f"{loss}.", _sentence(_against_overfitting(summary)))


def _unlike(summary: FitSummary) -> Iterator[Finding]:
    """Compare the rows of a file with those that the networks did not see while they were fitted."""
    for found in summary.evaluations:
        reference = _reference(summary, found)
        if reference is None or reference.rows < _COMPARABLE:
            continue
        if (loss := _loss(reference, found)) is not None:
            yield Finding(
                "problem", f"The rows of {found.name} are unlike those of the training", f"{loss}.", _OTHER_KIND
            )


def _reference(summary: FitSummary, found: Evaluation) -> Evaluation | None:
    """Return rows of the training that were held out or out of fold, as a comparison for those of a file.

    Training rows serve badly: whatever a fit gains on them by overfitting would be put down to the file.
    """
    unseen = [other for other in summary.evaluations if other.name in _UNSEEN]
    return unseen[0] if unseen and found.name not in _UNSEEN else None


def _loss(reference: Evaluation, found: Evaluation) -> str | None:
    """Say by how much rows are predicted worse than others, if it is much and beyond chance."""
    theirs, ours = (rows.scores["log_likelihood"] for rows in (reference, found))
    learned, gained = (
        rows.scores["log_likelihood"].value - rows.baseline["log_likelihood"].value for rows in (reference, found)
    )
    lost = min(learned - gained, theirs.value - ours.value)
    error, errors = _difference_error((reference, theirs.error), (found, ours.error))
    if lost <= max(errors * error, _LARGE * len(found.targets), 0.5 * learned):
        return None
    return (
        f"Over a constant prediction, {reference.name} gain {learned:.2g} nats each, and {found.name} {gained:.2g}; "
        f"the standard error of the difference is {error:.2g}"
    )


def _difference_error(*parts: tuple[Evaluation, float | None]) -> tuple[float, float]:
    """Return the standard error of a difference of means, and how many of them count as more than chance.

    These are three where both means are of many rows. The error of a mean of few rows is uncertain itself. Then it is
    the quantile of Student's law with the degrees of freedom of Welch and Satterthwaite.
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
    steps += [f"lower {summary.show(name)}" for name in ("weight_prior", "width") if name in summary.given]
    return f"{'; '.join([*steps, 'or collect more rows'])}."


def _longer(summary: FitSummary) -> str:
    """Name the option by which more is sampled, or learned from."""
    return next(name for name in ("weights__sweeps", "sweeps", "candidates", "epochs") if name in summary.given)


def _miscalibrated(summary: FitSummary) -> Iterator[Finding]:
    for found in summary.evaluations:
        if not found.calibration:  # of a density
            continue
        off = _class_calibration(found) if found.labels else _interval_calibration(found)
        if off is None:
            continue
        size, detail = off
        yield Finding(
            "problem" if size > _LARGE else "advice",
            f"Not calibrated on {found.name}",
            detail,
            _for_calibration(summary, found),
        )


def _class_calibration(found: Evaluation) -> tuple[float, str] | None:
    """Compare the calibration error with what sampling alone gives where each bin is right."""
    confidence, accuracy, count = (found.calibration[key] for key in ("confidence", "accuracy", "count"))
    share = count / found.rows
    count = np.rint(count).astype(np.int64)  # weights need not be whole
    hits = np.random.default_rng(0).binomial(count, np.clip(confidence, 0.0, 1.0), (_SIMULATIONS, len(count)))
    chance = np.abs(hits / count - confidence) @ share
    error = found.scores["ece"].value
    excess = error - float(np.median(chance))
    if error <= np.quantile(chance, _CHANCE) or excess <= _MATERIAL:
        return None
    sure, right = float(confidence @ share), float(accuracy @ share)
    return excess, (
        f"Confidence and accuracy differ by {error:.1%} on average, where chance alone gives {np.median(chance):.1%}. "
        f"The mean confidence is {sure:.1%} and the accuracy {right:.1%}: too {'sure' if sure > right else 'unsure'}."
    )


def _interval_calibration(found: Evaluation) -> tuple[float, str] | None:
    """Compare coverage with its level, and the distribution of F(y) with the uniform one, for each target."""
    size, details = 0.0, []
    for t, target in enumerate(found.targets):
        level, share = max(
            (
                (level, float(np.interp(level, found.calibration["levels"], found.calibration["coverage"][:, t])))
                for level in TOLERATED
            ),
            key=lambda one: abs(one[1] - one[0]) / (TOLERATED[one[0]] * math.sqrt(one[0] * (1.0 - one[0]))),
        )
        off, chance = abs(share - level), math.sqrt(level * (1.0 - level) / found.rows)
        steps = np.cumsum(found.calibration["pit"][:, t]) / found.rows
        bend = float(np.abs(steps - np.arange(1, len(steps) + 1) / len(steps)).max())
        if off - 0.5 / found.rows > TOLERATED[level] * chance and off > _MATERIAL:  # half a row: counts are whole
            what = "narrow" if share < level else "wide"
            size = max(size, off if level > 0.5 else min(off, _LARGE))  # the middle alone is no problem
            details.append(
                f"{share:.1%} of the rows lie in their {100 * level:.0f} % intervals of {target}, which are too {what}"
            )
        elif bend > max(_KOLMOGOROV / math.sqrt(found.rows), _LARGE):
            below = float(steps[len(steps) // 2 - 1])
            size = max(size, bend)
            details.append(
                f"The distribution function at the true {target} is up to {bend:.1%} off a uniform law, with "
                f"{below:.1%} of the rows below their median"
            )
    return (size, f"{'; '.join(details)}.") if details else None


def _calibrated_otherwise(reference: Evaluation, found: Evaluation) -> bool:
    """Return True if the calibration of rows differs from that of others by more than chance."""
    each = 1.0 / reference.rows + 1.0 / found.rows
    if found.labels:
        gaps, hits = [], 0.0
        for rows in (reference, found):
            confidence, accuracy, count = (rows.calibration[key] for key in ("confidence", "accuracy", "count"))
            gaps.append(float((accuracy - confidence) @ count) / rows.rows)
            hits += float(accuracy @ count)
        share = hits / (reference.rows + found.rows)
        return abs(gaps[1] - gaps[0]) > _ERRORS * math.sqrt(share * (1.0 - share) * each) + _MATERIAL
    levels = found.calibration["levels"]
    for level, errors in TOLERATED.items():
        shares = [
            np.array([np.interp(level, levels, column) for column in rows.calibration["coverage"].T])
            for rows in (reference, found)
        ]
        middle = sum(rows.rows * share for rows, share in zip((reference, found), shares, strict=True)) / (
            reference.rows + found.rows
        )
        if (np.abs(shares[1] - shares[0]) > errors * np.sqrt(middle * (1.0 - middle) * each) + _MATERIAL).any():
            return True
    steps = [np.cumsum(rows.calibration["pit"], axis=0) / rows.rows for rows in (reference, found)]
    return bool(np.abs(steps[1] - steps[0]).max() > _KOLMOGOROV * math.sqrt(each) + _MATERIAL)


def _for_calibration(summary: FitSummary, found: Evaluation) -> str:
    reference = _reference(summary, found)
    if (
        reference is not None
        and reference.rows >= _COMPARABLE
        and (_loss(reference, found) or _calibrated_otherwise(reference, found))
    ):
        return _OTHER_KIND
    if not summary.trained and _longer(summary) in ("weights__sweeps", "sweeps"):
        return f"Raise {summary.show(_longer(summary))}, and see whether the chains agree; or collect more rows."
    if summary.trained and summary.estimator.validation_score_ is None:
        return (
            f"Raise {summary.show('validation_fraction')}: held-out rows calibrate the noise and choose the best epoch."
        )
    if not summary.given.get("calibrate", True) and not found.labels:
        return f"Set {summary.show('calibrate')}."
    others = {"noise": ("learned", "input"), "likelihood": ("gaussian", "student_t"), "weights": ("map", "meanfield")}
    steps = [
        f"{name}={other!r} (now {usual!r})"
        for name, (usual, other) in others.items()
        if summary.given.get(name) == usual or (name == "likelihood" and _found_normal(summary))
    ]
    return f"Try {' or '.join(steps)}." if steps else "Collect more rows."


def _found_normal(summary: FitSummary) -> bool:
    """Whether the law of the noise was left open, and is the normal one."""
    return summary.given.get("likelihood") == "auto" and isinstance(summary.estimator.likelihood_, Gaussian)


def _noise_at_its_floor(summary: FitSummary) -> Iterator[Finding]:
    target, evaluations = summary.estimator.target_, [*summary.preferred_evaluations]
    parts = [part for part in summary.estimator.likelihood_.children() if isinstance(part, LearnedNoise | InputNoise)]
    if not isinstance(target, TargetScale) or not parts or not evaluations:
        return
    floor = math.exp(parts[0].log_minimum)
    found = evaluations[0]
    share = np.median(np.sqrt(found.arrays["noise"]), axis=0) / np.array(target.scale)
    low = [name for name, value in zip(found.targets, share, strict=True) if value < 3.0 * floor]
    if low:
        yield Finding(
            "problem",
            "The noise is at its floor",
            f"That of {some(low)} is {share.min():.2g} standard deviations of the target, and {floor:.2g} is the least "
            "that can be learned: the columns tell the target almost exactly.",
            "See whether a column holds the answer, and drop it. If none does, set "
            f"{summary.show('noise')} to a number, in standard deviations of the target.",
        )


def _columns(estimator: Estimator) -> int:
    """How many targets a log-likelihood is of."""
    return len(estimator.target_.mean) if isinstance(estimator.target_, TargetScale) else 1


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _plus_minus(error: float | None) -> str:
    return "" if error is None else f" ± {error:.2g}"


_RULES: tuple[Callable[[FitSummary], Iterator[Finding]], ...] = (
    _no_better_than_constant,
    _behind_linear,
    _overfitted,
    _unlike,
    _miscalibrated,
    _noise_at_its_floor,
    _few_rows,
    _cells_far_from_the_others,
    _few_for_the_columns,
    _equal_rows,
    _few_in_a_class,
)
_OF_TRAINING: tuple[Callable[[FitSummary], Iterator[Finding]], ...] = (_short, _rising, _hasty, _nothing_held_out)
