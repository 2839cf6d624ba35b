"""Findings about a fit, and the summary of a fit that the rules for findings are applied to.

The rules for all families are in :mod:`fathomless.app.diagnose`; a family registers rules about its structure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fathomless.estimators.base import Estimator
from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.importance import Importance
from fathomless.estimators.scores import Score
from fathomless.estimators.values import ELBO
from fathomless.inference.variational.training import automatic_epochs, automatic_structure_rate

__all__ = ["UNSEEN", "Finding", "FitSummary"]

#: Names of the evaluations of a fit on rows outside its training.
UNSEEN = ("held-out rows", "out-of-fold rows")


@dataclass(frozen=True)
class Finding:
    """Problem of a fit, or advice to improve it.

    Attributes
    ----------
    severity : {"problem", "advice"}
        "problem" if results are worse or less reliable than they appear; "advice" if they could be improved.
    title : str
        Short description.
    detail : str
        Observation, with numbers.
    remedy : str
        Recommended change, with the names and current values of options.
    """

    severity: str
    title: str
    detail: str
    remedy: str


@dataclass(frozen=True)
class FitSummary:
    """Summary of a fit: the estimator, its evaluations, its data and its options.

    Attributes
    ----------
    estimator : Estimator
        Fitted estimator.
    evaluations : sequence of Evaluation
        Evaluations on rows that the network was not trained on; their `arrays` have at most 2,000 rows, evenly spaced.
    training : Evaluation or None
        Evaluation on the training rows.
    rows : int or None
        Number of rows passed to ``fit``.
    classes : mapping of str to int
        Number of rows of each class.
    given : mapping
        Options of the estimator by name, including nested ones such as ``weights__chains``.
    linear : Score or None
        Difference in log-likelihood to a linear model, in nats per row, on rows that neither was fitted to; positive if
        the linear model is worse.
    importance : Importance or None
        Permutation importance of the columns on rows outside the training.
    """

    estimator: Estimator
    evaluations: Sequence[Evaluation]
    training: Evaluation | None
    rows: int | None
    classes: Mapping[str, int]
    given: Mapping[str, Any]
    linear: Score | None = None
    importance: Importance | None = None

    @property
    def unseen(self) -> Evaluation | None:
        """Evaluation on the held-out or out-of-fold rows of the fit; None for a density, or without such rows."""
        found = [evaluation for evaluation in self.evaluations if evaluation.name in UNSEEN]
        return found[0] if found and found[0].task != "density" else None

    @property
    def history(self) -> list[dict[str, float]]:
        """Training history of the estimator."""
        return self.estimator.history_

    @property
    def trained(self) -> bool:
        """True if the posterior was fitted by gradients in epochs, not by chains or in stages."""
        return "step" in self.history[-1] and "epochs" in self.given

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of an epoch."""
        return round(self.history[-1]["step"] / self.history[-1]["epoch"])

    @property
    def epochs(self) -> int:
        """Planned number of epochs."""
        epochs = self.given["epochs"]
        return automatic_epochs(self.steps_per_epoch) if epochs == "auto" else int(epochs)

    def law_option(self, name: str) -> str:
        """Return the full name of an option of the law over structure, such as "rate": nested or top-level."""
        return f"structure_from__{name}" if "structure_from" in self.given else f"structure_{name}"

    @property
    def law(self) -> dict[str, Any]:
        """Options of the law over structure, by their names in :class:`~fathomless.estimators.values.ELBO`."""
        names = [f.name for f in fields(ELBO)]
        return {name: self.given[self.law_option(name)] for name in names if self.law_option(name) in self.given}

    @property
    def structure_rate(self) -> float:
        """Learning rate of the law over structure, relative to that of the weights."""
        rate = self.law["rate"]
        return automatic_structure_rate(self.epochs * self.steps_per_epoch) if rate == "auto" else float(rate)

    @property
    def stopped(self) -> bool:
        """True if training stopped before the planned number of epochs."""
        return self.estimator.n_iter_ < self.epochs

    @property
    def scores(self) -> list[float]:
        """Validation scores, in order."""
        key = "validation_log_likelihood"
        return [row[key] for row in self.history if key in row]

    @property
    def preferred_evaluations(self) -> Sequence[Evaluation]:
        """Evaluations on rows that the network was not trained on, or on the training rows if there are none."""
        return self.evaluations or [evaluation for evaluation in (self.training,) if evaluation is not None]

    def show(self, name: str) -> str:
        """Return the name of an option with its current value, for messages."""
        automatic = {"epochs": lambda: self.epochs, self.law_option("rate"): lambda: self.structure_rate}
        value = automatic[name]() if name in automatic else self.given[name]
        if isinstance(value, float):
            text = f"{value:.2g}"
        elif isinstance(value, str):
            text = repr(value)
        else:
            text = str(value)
        return f"{name} (now {text})"
