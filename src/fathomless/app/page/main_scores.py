"""Main scores of a fit as text, for the top of its page and for the terminal."""

from collections.abc import Mapping

from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.scores import Score
from fathomless.plots.page import number, percent

__all__ = [
    "IN_UNITS",
    "REFERENCES",
    "constant_scores",
    "describe_coverage",
    "describe_error",
    "describe_rare_class",
    "describe_rows",
]

_RARE = 0.1  # share of the rows below which a class is rare

#: Scores in units of the target, which can be small without being zero.
IN_UNITS = ("rmse", "mae", "crps", "interval_score_90")
#: Names of simple models beside the scores of a fit.
REFERENCES = {"linear": "linear model", "boosting": "boosting"}


def describe_rows(first: Evaluation) -> str:
    """Describe the rows of an evaluation."""
    return {
        "held-out rows": "Held-out rows (not used to train the weights)",
        "out-of-fold rows": "Out-of-fold rows (each predicted by the networks that were not trained on it)",
        "training rows": "Training rows (too optimistic for new rows)",
        "new rows": "New rows",
    }.get(first.name, f"Rows of {first.name}")


def describe_error(first: Evaluation, others: Mapping[str, Mapping[str, Score]]) -> str:
    """Return the error of a fit beside those of a constant prediction and of simple models.

    It is the accuracy for classes, the RMSE for numbers, and the mean log density without predictors.

    Parameters
    ----------
    first : Evaluation
        Scores of the fit.
    others : mapping of str to mapping
        Scores of simple models on the same rows, by their names in :data:`REFERENCES`.
    """
    name, label, constant = {
        "classification": ("accuracy", "accuracy", "most frequent class"),
        "density": ("log_likelihood", "mean log density in nats", "Gaussian with the same means and covariances"),
    }.get(first.task, ("rmse", "RMSE", "mean"))
    show = percent if first.task == "classification" else number
    average = " averaged over the targets" if first.task == "regression" and len(first.targets) > 1 else ""
    found = [(constant, constant_scores(first, others)[name])]
    found += [(text, others[key][name]) for key, text in REFERENCES.items() if name in others.get(key, {})]
    beside = ", ".join(f"{text}: {show(score.value)}" for text, score in found)
    return f"{label}{average} {show(first.scores[name].value)} ({beside})"


def constant_scores(first: Evaluation, others: Mapping[str, Mapping[str, Score]]) -> Mapping[str, Score]:
    """Return the scores of a constant prediction: fitted to other rows, as simple models are, or to the same ones."""
    return others.get("constant", first.baseline)


def describe_coverage(first: Evaluation) -> str:
    """Return the coverage of 90 % intervals; an empty text if the prediction has none."""
    coverage = first.scores.get("coverage_90")
    return "" if coverage is None else f"coverage of the 90 % intervals {percent(coverage.value)}"


def describe_rare_class(first: Evaluation) -> str:
    """Return recall and precision of the rarest class, if it has less than a tenth of the rows; else an empty text."""
    confusion = first.confusion  # true class, predicted class
    if confusion is None or not 0.0 < (share := confusion.sum(1).min() / confusion.sum()) < _RARE:
        return ""
    rarest = int(confusion.sum(1).argmin())
    count, predicted = confusion[rarest].sum(), confusion[:, rarest].sum()
    recall = percent(confusion[rarest, rarest] / count)
    other = f", precision {percent(confusion[rarest, rarest] / predicted)}" if predicted else " (never predicted)"
    return f"recall of the rarest class, {first.labels[rarest]} ({percent(share)} of the rows): {recall}{other}"
