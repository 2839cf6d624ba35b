r"""A posterior over a list of structures, found while its networks are trained, from rows that they are not fitted to.

A training with looks has four phases.

1. *Explore*: every structure of the support is trained alike, at a constant rate. That ends before its time only
   where the rows say that the networks overfit: when for a tenth of the planned epochs every score was clearly lower
   than the best one. A score that stands still ends nothing, since hard tables stand still for long and then fall. It
   lasts longer where learning has only begun: while the last fifth brought more than a tenth of all that was learned.
2. *Look and grow*: at every fifth of the planned epochs the posterior is fitted to the held-out rows
   (:mod:`fathomless.inference.out_of_fold.stacking`). While the last third of the support is worth more than 2 nats and
   more than two of its standard errors, the support grows by half, and exploring lasts a fifth longer.
3. *Focus*: from the best state, weights are trained under ¾ of the fitted Poisson law and ¼ of an even one, while the
   rate falls to zero; what neither law wants rests.
4. *Refit*: the posterior is fitted once more, to the state that is kept, and adopted.

So where the training starts has no say in the posterior; and the epoch that is kept is the one whose fitted mixture
predicts the held-out rows best.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.data.stacked_rows import StackedRows
from fathomless.inference.out_of_fold import stacking
from fathomless.posterior.capabilities import ListedStructure
from fathomless.posterior.likelihoods import HasWidth, Likelihood
from fathomless.posterior.model import Draws, Model
from fathomless.system import memory
from fathomless.system.errors import ConvergenceWarning
from fathomless.system.rng import as_generator, fold_in

__all__ = ["LogDensities", "StructureSearch", "score_structures"]

FIRST = 7  #: structures in the support at first
_WORTH = 2.0  # nats
_FALL = 0.01  # nats per row that a score is lower, and nats in all as for growth, where it has fallen clearly
_BEGUN = 0.1  # share of all that was learned that the last fifth brings where learning has only begun
_REST = 1e-3  # mass below which a structure rests in the focus; and that is dropped at the end
_CHUNK = 8192  # rows scored at once
_WIDER, _WIDEST = 2.0 ** (1 / 3), 16.0  # factors by which noise is widened, one after the other

#: Fits a law to L structures, by their log densities (N, L), log prior (L,) and weights (N,) or None: masses (L,).
Law = Callable[[Sequence[int], Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class LogDensities:
    """How well each structure predicts rows that its networks were not fitted to.

    Attributes
    ----------
    numbers : tuple of L int
        The structures.
    log_density : float64 Tensor, shape (N, L)
        In nats, on the CPU.
    rows : Tensor of int64, shape (N,)
        Numbers of the rows in the table.
    weight : float64 Tensor, shape (N,), optional
        How often each counts.
    """

    numbers: tuple[int, ...]
    log_density: Tensor
    rows: Tensor
    weight: Tensor | None

    @property
    def count(self) -> float:
        """Rows, each as often as it counts."""
        return float(len(self.rows) if self.weight is None else self.weight.sum())

    def score(self, q: Tensor) -> float:
        """Mean log density of a row under the mixture with weights q (L,), in nats."""
        each = torch.logsumexp(self.log_density[:, q > 0.0] + q[q > 0.0].log(), 1)
        return float((each if self.weight is None else each * self.weight).sum()) / self.count


@torch.no_grad()
def score_structures(
    model: Model, likelihood: Likelihood, valid: Rows | StackedRows, draws: int, seed: int, *, widened: bool = False
) -> LogDensities:
    """Evaluate the log predictive density of held-out rows under each structure.

    Parameters
    ----------
    model, likelihood
        Networks, one or several side by side.
    valid : Rows or Blocks
        Rows that they were not fitted to. The density of a row that several networks were not fitted to is the mean
        of theirs.
    draws : int
        Weight draws, where weights are drawn.
    seed : int
        Of these draws.
    widened : bool
        Whether the noise of the likelihood, or the temperature of classes, is widened by the one factor that suits
        these rows best. What networks have learned of it from the rows they were fitted to is too small, and it will be
        fitted anew at the end.
    """
    model.eval()
    likelihood.eval()
    numbers: list[int] = []
    each, kept = [], []
    for part in valid.parts(_CHUNK):
        drawn = model.draw(part.x, draws, as_generator(fold_in(seed, "score")))
        if not numbers:
            numbers = sorted(set(drawn.structure.tolist()))
        each.append(_by_structure(drawn, likelihood.log_prob(drawn.f, part.y), numbers))
        if widened:
            kept.append((part, drawn))
    if widened and isinstance(likelihood, HasWidth):
        each = _widened(likelihood, kept, each, numbers)
    if isinstance(valid, Rows):
        weight = None if valid.weight is None else valid.weight.double().cpu()
        return LogDensities(tuple(numbers), torch.cat(each).cpu(), torch.arange(len(valid), device="cpu"), weight)
    networks = len(valid.index)
    joined = torch.cat([part.reshape(networks, -1, len(numbers)) for part in each], 1).flatten(0, 1).cpu()  # (F·V, L)
    real = (valid.weight > 0.0).reshape(-1).cpu()
    rows, place = valid.index.reshape(-1).cpu()[real].unique(return_inverse=True)
    joined, empty = joined[real], torch.full((len(rows), len(numbers)), -math.inf, dtype=torch.float64, device="cpu")
    largest = empty.scatter_reduce(0, place[:, None].expand_as(joined), joined, "amax")
    sums = torch.zeros_like(empty).index_add(0, place, (joined - largest[place]).exp())
    mean = largest + (sums / place.bincount()[:, None]).log()
    whole = valid.table.weight
    return LogDensities(tuple(numbers), mean, rows, None if whole is None else whole.double().cpu()[rows])


def _widened(
    likelihood: HasWidth, parts: list[tuple[Rows, Draws]], each: list[Tensor], numbers: list[int]
) -> list[Tensor]:
    """Return the densities of each part under the likelihood so wide that they are best; `each` are those as it is."""

    def total(densities: list[Tensor]) -> float:
        rows = [torch.logsumexp(one, 1) for one in densities]
        pairs = zip(rows, parts, strict=True)
        return sum(
            float((row if part.weight is None else row * part.weight.reshape(-1)).sum()) for row, (part, _) in pairs
        )

    best, factor = total(each), _WIDER
    while factor <= _WIDEST:
        law = likelihood.widen(factor)
        wider = [_by_structure(drawn, law.log_prob(drawn.f, part.y), numbers) for part, drawn in parts]
        if (found := total(wider)) <= best:
            break
        each, best, factor = wider, found, factor * _WIDER
    return each


def _by_structure(drawn: Draws, log_p: Tensor, numbers: Sequence[int]) -> Tensor:
    """Return the log density of each row (B,) under each structure: the mean over its draws, (B, L)."""
    if len(drawn.structure) == len(numbers):
        return log_p.double().T
    columns = []
    for number in numbers:
        own = drawn.structure == number
        log_weight = drawn.log_weight[own].double()
        log_weight = log_weight - torch.logsumexp(log_weight, 0)
        columns.append(torch.logsumexp(log_weight[:, None] + log_p[own].double(), 0))
    return torch.stack(columns, 1)


@dataclass(eq=False)
class StructureSearch:
    """Where a training with looks is.

    Attributes
    ----------
    planned : int
        Epochs, if the support does not grow.
    law : callable, optional
        Fits a named law; the posterior is categorical by default.
    patience : int, optional
        Epochs of the focus without a better score after which the training ends; None never ends it early.
    first : int
        Structures in the support at first.
    widened : bool
        Whether scores are those of noise, or a temperature, that suits the held-out rows; see :func:`score_structures`.
    draws : int
        Weight draws of which a density is the mean, where weights are drawn; those of the training, if they are more.
    focus : float
        How long the focus lasts, as a share of the planned epochs.
    lengthen : bool
        Whether exploring may last longer where learning has only begun.
    worth : float
        Nats that the last third of a support is worth, at least, where it grows; two of its standard errors, if more.
    explored : int
        Epochs of exploring.
    focusing : bool
        Whether the focus has begun.
    q : mapping of int to float
        The posterior at the last evaluation.
    edge : float
        What the last third of the support was worth at the last look, in nats.
    grown : int
        How often the support grew.
    widest : int
        Structures in the largest support so far. It does not grow again from a better state that was found before.
    low : int, optional
        The epoch since which every score is clearly lower than the best one.
    began, reached : float, optional
        The first score, and the best one at the last look, in nats per row.
    """

    planned: int
    law: Law | None = None
    patience: int | None = None
    first: int = FIRST
    widened: bool = False
    draws: int = 16
    focus: float = 0.4
    lengthen: bool = False
    worth: float = _WORTH
    explored: int = 0
    focusing: bool = False
    q: Mapping[int, float] = field(default_factory=dict)
    edge: float = 0.0
    grown: int = 0
    widest: int = 0
    low: int | None = None
    began: float | None = None
    reached: float | None = None

    def __post_init__(self) -> None:
        if not self.focusing:  # a training that goes on from another begins with the focus
            self.explored = self.explored or max(1, round(0.6 * self.planned))

    @property
    def epochs(self) -> int:
        """Epochs of the whole training, as it is known by now."""
        return self.explored + max(1, round(self.focus * self.planned))

    def begin(self, model: ListedStructure) -> None:
        """Give every structure of the first support the same mass."""
        self._even(model, self.first, only=True)

    def factor(self, step: int, steps_per_epoch: int) -> float:
        """Return the factor of the rates at a step: 1 while exploring, then a cosine down to 0."""
        begun = self.explored * steps_per_epoch
        done = (step - begun) / (self.epochs * steps_per_epoch - begun)
        return 1.0 if done <= 0.0 else 0.5 * (1.0 + math.cos(math.pi * done))

    def due(self, epoch: int) -> bool:
        """Whether the posterior is looked at after an epoch: every fifth of the planned ones, until the focus."""
        fifths = {round(0.2 * k * self.planned) for k in range(1, 11)}
        return not self.focusing and (epoch == self.explored or (epoch in fifths and epoch < self.explored))

    def fit(self, found: LogDensities, log_prior: Tensor) -> Tensor:
        """Fit the posterior (L,) to held-out densities, from where it was."""
        if self.law is not None:
            return self.law(found.numbers, found.log_density, log_prior, found.weight)
        before = torch.tensor([self.q.get(number, 0.0) for number in found.numbers], dtype=torch.float64, device="cpu")
        start = before if bool(before.sum() > 0.0) else None
        return stacking.refit(found.log_density, log_prior, found.weight, start=start)

    def score(self, model: ListedStructure, found: LogDensities) -> float:
        """Fit the posterior, keep it, and return the score of its mixture in nats per row."""
        q = self.fit(found, prior_of(model, found.numbers))
        self.q = dict(zip(found.numbers, q.tolist(), strict=True))
        return found.score(q)

    def overfits(self, score: float, best: float, count: float, epoch: int) -> bool:
        """Whether exploring should end, since scores of `count` rows have long been clearly lower than the best one.

        Parameters
        ----------
        score, best : float
            The present score and the best one, in nats per row.
        count : float
            Rows, each as often as it counts.
        epoch : int
            Now.
        """
        if best - score <= max(_FALL, self.worth / count):
            self.low = None
        elif self.low is None:
            self.low = epoch
        return not self.focusing and self.low is not None and epoch - self.low >= 0.1 * self.planned

    def begins(self, best: float, count: float) -> bool:
        """Whether learning has only begun.

        That is so if since the last look the best score rose by more than a tenth of all that it has risen, and by
        what a support must be worth to grow.
        """
        if not self.lengthen or self.began is None or self.reached is None:
            return False
        rise = best - self.reached
        return rise * count > self.worth and rise > _BEGUN * (best - self.began)

    def pace(self, score: float, best: float, count: float, epoch: int) -> None:
        """Let exploring end early, or last a fifth longer, by how scores went; parameters as in :meth:`overfits`."""
        if self.overfits(score, best, count, epoch):
            self.explored = epoch
        elif epoch == self.explored and not self.focusing and self.begins(best, count):
            self._lengthen()
        self.began = score if self.began is None else self.began
        if self.due(epoch):
            self.reached = best

    def move(self, model: ListedStructure, found: LogDensities, epoch: int) -> int:
        """Let the support grow, or begin the focus, if it is time; return how many parts were created."""
        if not self.due(epoch):
            return 0
        log_prior, size = prior_of(model, found.numbers), len(found.numbers)
        deepest = size - 1
        self.edge, error = stacking.marginal_gain(found.log_density, log_prior, found.weight, 2 * deepest // 3 + 1)
        if self.edge > max(self.worth, 2.0 * error) and size >= self.widest:
            reach = len(model.list_structures(math.ceil(1.5 * deepest) + 1))
            if reach > size and self._lengthen():
                _ask_for_memory(model, reach / size)
                self.grown, self.widest, self.low = self.grown + 1, reach, None
                return self._even(model, reach)
            if epoch == self.explored:
                limit = "max_depth or its prior" if reach == size else f"twice the planned {self.planned} epochs"
                warnings.warn(
                    f"the posterior over structure ends at {found.numbers[-1]}, where the last third of its support is "
                    f"still worth {self.edge:.1f} nats; growth ended at {limit}. Raise that limit",
                    ConvergenceWarning,
                    stacklevel=5,
                )
        if epoch < self.explored:
            return 0
        self.focusing = True
        _, poisson, _ = stacking.poisson(found.log_density, log_prior, found.weight)
        wanted_by = torch.tensor(
            [self.q[number] for number in found.numbers], dtype=torch.float64, device="cpu"
        ).maximum(poisson)
        kept = (wanted_by >= _REST) & stacking.usable(found.log_density)
        mass = 0.75 * poisson[kept] / poisson[kept].sum().clamp(min=1e-300) + 0.25 / int(kept.sum())
        numbers = [number for number, keep in zip(found.numbers, kept.tolist(), strict=True) if keep]
        return model.weigh(dict(zip(numbers, mass.tolist(), strict=True)))

    def adopt(self, model: ListedStructure, found: LogDensities) -> LogDensities:
        """Fit the posterior to the state that is kept, drop what holds next to nothing, give it to the model."""
        q = self.fit(found, prior_of(model, found.numbers))
        order, total = q.argsort(), 0.0
        kept = q > 0.0
        for i in order.tolist():
            total += float(q[i])
            if total >= _REST:
                break
            kept[i] = False
        found = LogDensities(
            tuple(number for number, keep in zip(found.numbers, kept.tolist(), strict=True) if keep),
            found.log_density[:, kept],
            found.rows,
            found.weight,
        )
        q = q[kept] / q[kept].sum()
        self.q = dict(zip(found.numbers, q.tolist(), strict=True))
        model.weigh(self.q, only=True)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return what changes in a training."""
        return {
            "explored": self.explored,
            "focusing": self.focusing,
            "q": {str(number): mass for number, mass in self.q.items()},
            "edge": self.edge,
            "grown": self.grown,
            "widest": self.widest,
            "low": self.low,
            "began": self.began,
            "reached": self.reached,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_json` returned."""
        for name in ("explored", "focusing", "edge", "grown", "widest", "low", "began", "reached"):
            setattr(self, name, state[name])
        self.q = {int(number): mass for number, mass in state["q"].items()}

    def _lengthen(self) -> bool:
        """Let exploring last a fifth of the planned epochs longer, up to 1.6 times as many as these; say whether."""
        longer = max(1, round(0.2 * self.planned))
        if self.explored + longer + max(1, round(0.4 * self.planned)) > 2 * self.planned:
            return False
        self.explored += longer
        return True

    def _even(self, model: ListedStructure, count: int, *, only: bool = False) -> int:
        numbers = model.list_structures(count)
        return model.weigh({number: 1.0 / len(numbers) for number in numbers}, only=only)


def prior_of(model: ListedStructure, numbers: Sequence[int]) -> Tensor:
    """Return the log prior of some structures, (L,)."""
    listed = model.list_structures(numbers[-1] + 1)
    return torch.tensor([listed[number] for number in numbers], dtype=torch.float64, device="cpu")


def _ask_for_memory(model: Model, factor: float) -> None:
    """Refuse a support that is `factor` times as large: weights, gradients, two moments and the best state."""
    need = 5.0 * factor * sum(p.numel() * p.element_size() for p in model.parameters())
    memory.require(need, "a larger support of the posterior over structure", lambda _: "set max_depth")
