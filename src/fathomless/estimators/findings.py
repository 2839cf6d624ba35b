"""What can be found in a fit by looking it over, and what a rule is given to look at.

The rules for every family are in :mod:`fathomless.app.diagnose`; a family registers those about its structure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fathomless.estimators.base import Estimator
from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.scores import Score
from fathomless.estimators.values import ELBO
from fathomless.inference.variational.training import automatic_epochs, automatic_structure_rate

__all__ = ["Finding", "FitSummary"]


@dataclass(frozen=True)
class Finding:
    """Something that whoever uses a fit should know.

    Attributes
    ----------
    severity : {"problem", "advice"}
        Whether results are worse, or less to be trusted, than they look; or could be better.
    title : str
        In a few words.
    detail : str
        What was seen, with numbers.
    remedy : str
        What to do, naming options and what they are now.
    """

    severity: str
    title: str
    detail: str
    remedy: str


@dataclass(frozen=True)
class FitSummary:
    """A fit and what is known of it.

    Attributes
    ----------
    estimator : Estimator
        Fitted.
    evaluations : sequence of Evaluation
        Of rows that the network was not trained on; their `arrays` hold at most 2,000 rows, evenly spaced.
    training : Evaluation or None
        Of the rows that it was trained on.
    rows : int or None
        How many rows were given to ``fit``.
    classes : mapping of str to int
        How many of them each class has.
    given : mapping
        Options of the estimator, by name, with those of its values, such as ``weights__chains``.
    linear : Score or None
        Nats per row by which a linear model is behind on rows that neither was fitted to.
    """

    estimator: Estimator
    evaluations: Sequence[Evaluation]
    training: Evaluation | None
    rows: int | None
    classes: Mapping[str, int]
    given: Mapping[str, Any]
    linear: Score | None = None

    @property
    def history(self) -> list[dict[str, float]]:
        """What happened in training."""
        return self.estimator.history_

    @property
    def trained(self) -> bool:
        """Whether the posterior was found by epochs of gradients, not by chains or in stages."""
        return "step" in self.history[-1] and "epochs" in self.given

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch."""
        return round(self.history[-1]["step"] / self.history[-1]["epoch"])

    @property
    def epochs(self) -> int:
        """Epochs that were planned."""
        epochs = self.given["epochs"]
        return automatic_epochs(self.steps_per_epoch) if epochs == "auto" else int(epochs)

    def of_law(self, name: str) -> str:
        """Return the name of an option of the law over structure, such as "rate": a nested one, or one of its own."""
        return f"structure_from__{name}" if "structure_from" in self.given else f"structure_{name}"

    @property
    def law(self) -> dict[str, Any]:
        """Options of the law over structure, by their names in :class:`~fathomless.estimators.values.ELBO`."""
        names = [f.name for f in fields(ELBO)]
        return {name: self.given[self.of_law(name)] for name in names if self.of_law(name) in self.given}

    @property
    def structure_rate(self) -> float:
        """Rate of the law over structure, relative to that of the weights."""
        rate = self.law["rate"]
        return automatic_structure_rate(self.epochs * self.steps_per_epoch) if rate == "auto" else float(rate)

    @property
    def stopped(self) -> bool:
        """Whether the training ended before the epochs that were planned."""
        return self.estimator.n_iter_ < self.epochs

    @property
    def scores(self) -> list[float]:
        """Validation scores, in order."""
        key = "validation_log_likelihood"
        return [row[key] for row in self.history if key in row]

    @property
    def judged(self) -> Sequence[Evaluation]:
        """Evaluations on rows that the network did not learn, or else on those that it did."""
        return self.evaluations or [evaluation for evaluation in (self.training,) if evaluation is not None]

    def now(self, name: str) -> str:
        """Name an option with its value."""
        automatic = {"epochs": lambda: self.epochs, self.of_law("rate"): lambda: self.structure_rate}
        value = automatic[name]() if name in automatic else self.given[name]
        shown = f"{value:.2g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)
        return f"{name} (now {shown})"
