r"""Search for the posterior over a list of structures, from held-out rows, while the networks are trained.

The search has four phases.

1. *Explore*: all structures of the support are trained with equal mass, at a constant learning rate. Exploring ends
   early only if the networks overfit: for a tenth of the planned epochs, every validation score has been clearly lower
   than the best one. A constant score does not end it, since on hard tables the score can be flat for long before it
   improves. Exploring is prolonged while the score is still rising: while the last fifth of the planned epochs brought
   more than a tenth of the total improvement.
2. *Expand*: at every fifth of the planned epochs the posterior is fitted to the held-out rows
   (:mod:`fathomless.inference.out_of_fold.stacking`). If the last third of the support gains more than 2 nats and more
   than two of its standard errors, the support grows by half, and exploring takes a fifth longer.
3. *Focus*: training continues from the best state, under a mixture of ¾ of the fitted Poisson law and ¼ of a uniform
   one, while the learning rate decays to zero. Structures with negligible mass under both the Poisson law and the
   fitted posterior are frozen.
4. *Refit*: the posterior is fitted again, to the best state, and given to the model.

The posterior therefore does not depend on the masses with which training starts. The epoch that is kept is the one
whose fitted mixture predicts the held-out rows best.
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
from fathomless.inference.runs.distributed import Ranks
from fathomless.posterior.capabilities import ListedStructure
from fathomless.posterior.likelihoods import HasWidth, Likelihood
from fathomless.posterior.model import Draws, Model
from fathomless.system import memory
from fathomless.system.errors import ConvergenceWarning
from fathomless.system.rng import as_generator, fold_in

__all__ = ["LogDensities", "StructureSearch", "gather_networks", "score_structures"]

FIRST = 7  #: structures in the first support
_MIN_GAIN = 2.0  # nats that the last third of a support must gain for the support to grow
_FALL = 0.01  # nats per row below the best score from which on a score counts as clearly lower
_STILL_LEARNING = 0.1  # share of the total improvement in the last fifth above which exploring is prolonged
_NEGLIGIBLE = 1e-3  # mass below which a structure is frozen in the focus phase; also the total mass dropped at the end
_CHUNK = 8192  # rows scored at once
# attributes of a search that checkpoints hold, by their keys there
_STATE = {
    "explored": "explored",
    "focusing": "focusing",
    "q": "q",
    "edge": "tail_gain",
    "grown": "grown",
    "widest": "widest",
    "low": "low_since",
    "began": "first_score",
    "reached": "previous_best",
    "focus": "focus",
}
_WIDER, _WIDEST = 2.0 ** (1 / 3), 16.0  # ratio of successive factors by which noise is widened, and their limit

#: Fit a law over L structures to log densities (N, L), log prior (L,) and sample weights (N,) or None: masses (L,).
Law = Callable[[Sequence[int], Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class LogDensities:
    """Log predictive densities of held-out rows under each structure.

    Attributes
    ----------
    numbers : tuple of L int
        The structures.
    log_density : float64 Tensor, shape (N, L)
        In nats, on the CPU.
    rows : Tensor of int64, shape (N,)
        Indices of the rows in the table.
    weight : float64 Tensor, shape (N,), optional
        Sample weights.
    """

    numbers: tuple[int, ...]
    log_density: Tensor
    rows: Tensor
    weight: Tensor | None

    @property
    def count(self) -> float:
        """Number of rows, or the sum of their sample weights."""
        return float(len(self.rows) if self.weight is None else self.weight.sum())

    def mix(self, q: Tensor) -> Tensor:
        """Log density of each row under the mixture with weights q (L,), in nats, shape (N,)."""
        return torch.logsumexp(self.log_density[:, q > 0.0] + q[q > 0.0].log(), 1)

    def score(self, q: Tensor) -> float:
        """Mean log density of a row under the mixture with weights q (L,), in nats."""
        log_mixture = self.mix(q)
        return float((log_mixture if self.weight is None else log_mixture * self.weight).sum()) / self.count


@torch.no_grad()
def score_structures(
    model: Model,
    likelihood: Likelihood,
    valid: Rows | StackedRows,
    draws: int,
    seed: int,
    *,
    widened: bool = False,
    group: Ranks | None = None,
) -> LogDensities:
    """Evaluate the log predictive density of held-out rows under each structure.

    Parameters
    ----------
    model, likelihood
        One network, or several stacked ones.
    valid : Rows or StackedRows
        Rows that the networks were not fitted to. If several networks were not fitted to a row, the density of the row
        is the mean of theirs.
    draws : int
        Number of weight draws, for families that draw weights.
    seed : int
        Seed of these draws.
    widened : bool
        If True, widen the noise of the likelihood (or raise the temperature of classes) by the one factor that
        maximises the density of these rows. Noise learned on training rows is too small, and it is fitted again at the
        end of the training.
    group : Ranks, optional
        Processes among which the networks are divided: `valid` is a share of stacked rows. The densities are those of
        all networks.
    """
    group = group or Ranks()
    counts = isinstance(valid, Rows) or valid.counts
    model.eval()
    likelihood.eval()
    numbers: list[int] = []
    densities: list[Tensor] = []
    evaluated: list[tuple[Rows, Draws]] = []
    for part in valid.parts(_CHUNK):
        drawn = model.draw(part.x, draws, as_generator(fold_in(seed, "score")))
        if not numbers:
            numbers = sorted(set(drawn.structure.tolist()))
        densities.append(_average_by_structure(drawn, likelihood.log_prob(drawn.f, part.y), numbers))
        if widened:
            evaluated.append((part, drawn))
    if widened and isinstance(likelihood, HasWidth):
        densities = _widen(
            likelihood, evaluated, densities, numbers, lambda value: group.add_number(value if counts else 0.0)
        )
    if isinstance(valid, Rows):
        weight = None if valid.weight is None else valid.weight.double().cpu()
        return LogDensities(tuple(numbers), torch.cat(densities).cpu(), torch.arange(len(valid), device="cpu"), weight)
    networks = len(valid.index)
    by_network = [part.reshape(networks, -1, len(numbers)) for part in densities]
    stacked = torch.cat(by_network, 1).flatten(0, 1)  # (F·V, L)
    if valid.whole is not None:
        stacked, valid = gather_networks(stacked, valid, group), valid.whole
    stacked = stacked.cpu()
    real = (valid.weight > 0.0).reshape(-1).cpu()  # padding has no weight
    rows, place = valid.index.reshape(-1).cpu()[real].unique(return_inverse=True)
    mean = _average_by_row(stacked[real], place, len(rows))
    table_weight = valid.table.weight
    weight = None if table_weight is None else table_weight.double().cpu()[rows]
    return LogDensities(tuple(numbers), mean, rows, weight)


def gather_networks(value: Tensor, rows: StackedRows, group: Ranks) -> Tensor:
    """Gather the values of the rows of all networks, (F·V, …), from those of a share of the networks, (H·V, …)."""
    assert rows.whole is not None
    each = rows.index.shape[1]
    gathered = value.new_zeros(len(rows.whole), *value.shape[1:])
    if rows.counts:
        gathered[rows.start * each : rows.start * each + len(value)] = value
    group.add([gathered])
    return gathered


def _average_by_row(log_density: Tensor, place: Tensor, rows: int) -> Tensor:
    """Return the log of the mean density of each row over its networks, (rows, L) from (F·V, L)."""
    shape = (rows, log_density.shape[1])
    lowest = torch.full(shape, -math.inf, dtype=torch.float64, device="cpu")
    # the largest of each row is taken out before the exponential, so that small densities do not underflow
    largest = lowest.scatter_reduce(0, place[:, None].expand_as(log_density), log_density, "amax")
    sums = torch.zeros_like(lowest).index_add(0, place, (log_density - largest[place]).exp())
    return largest + (sums / place.bincount()[:, None]).log()


def _widen(
    likelihood: HasWidth,
    evaluated: list[tuple[Rows, Draws]],
    densities: list[Tensor],
    numbers: list[int],
    total: Callable[[float], float],
) -> list[Tensor]:
    """Return the log densities of each part under the widened likelihood that maximises their sum.

    `densities` are those of the likelihood itself. The search ends at the first factor that does not improve the sum.
    `total` sums a number over processes.
    """

    def score(candidate: list[Tensor]) -> float:
        rows = [torch.logsumexp(part_density, 1) for part_density in candidate]
        pairs = zip(rows, evaluated, strict=True)
        return total(
            sum(
                float((row if part.weight is None else row * part.weight.reshape(-1)).sum()) for row, (part, _) in pairs
            )
        )

    best = score(densities)
    factor = _WIDER
    while factor <= _WIDEST:
        law = likelihood.widen(factor)
        wider = [_average_by_structure(drawn, law.log_prob(drawn.f, part.y), numbers) for part, drawn in evaluated]
        value = score(wider)
        if value <= best:
            break
        densities = wider
        best = value
        factor *= _WIDER
    return densities


def _average_by_structure(drawn: Draws, log_p: Tensor, numbers: Sequence[int]) -> Tensor:
    """Return the log density of each row (B,) under each structure, averaged over its draws, (B, L)."""
    if len(drawn.structure) == len(numbers):
        return log_p.double().T
    columns = []
    for number in numbers:
        of_structure = drawn.structure == number
        log_weight = drawn.log_weight[of_structure].double()
        log_weight = log_weight - torch.logsumexp(log_weight, 0)
        columns.append(torch.logsumexp(log_weight[:, None] + log_p[of_structure].double(), 0))
    return torch.stack(columns, 1)


@dataclass(eq=False)
class StructureSearch:
    """State and options of a structure search.

    Attributes
    ----------
    planned : int
        Number of epochs if the support does not grow.
    law : callable, optional
        Fits a named law; the posterior is categorical by default.
    patience : int, optional
        Number of epochs of the focus phase without a better score after which the training ends. None disables early
        stopping.
    first : int
        Number of structures in the first support.
    widened : bool
        If True, scores are those of noise, or a temperature, fitted to the held-out rows; see
        :func:`score_structures`.
    draws : int
        Number of weight draws that a density is averaged over, for families that draw weights. The draws of the
        training are used if they are more.
    focus : float
        Length of the focus phase, as a share of the planned epochs.
    lengthen : bool
        If True, exploring is prolonged while the score is still rising.
    min_gain : float
        Least gain in nats of the last third of a support for the support to grow. The gain must also exceed two of its
        standard errors.
    explored : int
        Number of epochs of exploring.
    focusing : bool
        True once the focus phase has begun.
    q : mapping of int to float
        Posterior at the last evaluation.
    tail_gain : float
        Gain of the last third of the support at the last check for growth, in nats.
    grown : int
        Number of times the support grew.
    widest : int
        Number of structures in the largest support so far. The support does not grow again if a best state of an
        earlier, smaller support is restored.
    low_since : int, optional
        Epoch since which every score has been clearly lower than the best one.
    first_score, previous_best : float, optional
        The first score, and the best one at the last check for growth, in nats per row.
    """

    planned: int
    law: Law | None = None
    patience: int | None = None
    first: int = FIRST
    widened: bool = False
    draws: int = 16
    focus: float = 0.4
    lengthen: bool = False
    min_gain: float = _MIN_GAIN
    explored: int = 0
    focusing: bool = False
    q: Mapping[int, float] = field(default_factory=dict)
    tail_gain: float = 0.0
    grown: int = 0
    widest: int = 0
    low_since: int | None = None
    first_score: float | None = None
    previous_best: float | None = None

    def __post_init__(self) -> None:
        if not self.focusing:  # a training that continues another one starts in the focus phase
            self.explored = self.explored or max(1, round(0.6 * self.planned))

    @property
    def epochs(self) -> int:
        """Number of epochs of the whole training, by the present plan."""
        return self.explored + max(1, round(self.focus * self.planned))

    def shorten(self, epochs: int, epoch: int) -> None:
        """Reduce the epochs of the whole training, with the same share for exploring.

        At least one more epoch of exploring, and one of the focus phase, remain.

        Parameters
        ----------
        epochs : int
            Number of epochs of the whole training.
        epoch : int
            Present epoch.
        """
        if not self.focusing:
            self.explored = min(self.explored, max(epoch + 1, round(self.explored / self.epochs * epochs)))
        self.focus = max(1, epochs - self.explored) / self.planned

    def begin(self, model: ListedStructure) -> None:
        """Give all structures of the first support the same mass."""
        self._set_uniform(model, self.first, only=True)

    def factor(self, step: int, steps_per_epoch: int) -> float:
        """Return the factor of the learning rates at a step: 1 while exploring, then a cosine down to 0."""
        begun = self.explored * steps_per_epoch
        done = (step - begun) / (self.epochs * steps_per_epoch - begun)
        return 1.0 if done <= 0.0 else 0.5 * (1.0 + math.cos(math.pi * done))

    def is_due(self, epoch: int) -> bool:
        """Return True if growth is checked after an epoch: at every fifth of the planned epochs, until the focus."""
        fifths = {round(0.2 * k * self.planned) for k in range(1, 11)}
        return not self.focusing and (epoch == self.explored or (epoch in fifths and epoch < self.explored))

    def fit(self, densities: LogDensities, log_prior: Tensor) -> Tensor:
        """Fit the posterior (L,) to held-out densities, starting from the previous one."""
        if self.law is not None:
            return self.law(densities.numbers, densities.log_density, log_prior, densities.weight)
        masses = [self.q.get(number, 0.0) for number in densities.numbers]
        before = torch.tensor(masses, dtype=torch.float64, device="cpu")
        start = before if bool(before.sum() > 0.0) else None
        return stacking.refit(densities.log_density, log_prior, densities.weight, start=start)

    def score(self, model: ListedStructure, densities: LogDensities) -> float:
        """Fit and store the posterior, and return the score of its mixture in nats per row."""
        q = self.fit(densities, log_prior_of(model, densities.numbers))
        self.q = dict(zip(densities.numbers, q.tolist(), strict=True))
        return densities.score(q)

    def is_overfitting(self, score: float, best: float, count: float, epoch: int) -> bool:
        """Return True if scores have been clearly lower than the best one for a tenth of the planned epochs.

        Parameters
        ----------
        score, best : float
            Present and best score, in nats per row.
        count : float
            Number of held-out rows, or the sum of their sample weights.
        epoch : int
            Present epoch.
        """
        if best - score <= max(_FALL, self.min_gain / count):
            self.low_since = None
        elif self.low_since is None:
            self.low_since = epoch
        return not self.focusing and self.low_since is not None and epoch - self.low_since >= 0.1 * self.planned

    def is_still_learning(self, best: float, count: float) -> bool:
        """Return True if the score is still rising, so that exploring should be prolonged.

        Since the last check for growth, the best score must have risen by more than a tenth of its total rise, and by
        more nats in total than the support must gain to grow.
        """
        if not self.lengthen or self.first_score is None or self.previous_best is None:
            return False
        rise = best - self.previous_best
        return rise * count > self.min_gain and rise > _STILL_LEARNING * (best - self.first_score)

    def adjust_length(self, score: float, best: float, count: float, epoch: int) -> None:
        """End exploring early or prolong it by a fifth, from the scores; parameters as in :meth:`is_overfitting`."""
        if self.is_overfitting(score, best, count, epoch):
            self.explored = epoch
        elif epoch == self.explored and not self.focusing and self.is_still_learning(best, count):
            self._lengthen()
        self.first_score = score if self.first_score is None else self.first_score
        if self.is_due(epoch):
            self.previous_best = best

    def advance_phase(self, model: ListedStructure, densities: LogDensities, epoch: int) -> int:
        """Expand the support or begin the focus phase, if it is due; return the number of parts created."""
        if not self.is_due(epoch):
            return 0
        log_prior = log_prior_of(model, densities.numbers)
        size = len(densities.numbers)
        deepest = size - 1
        two_thirds = 2 * deepest // 3 + 1
        self.tail_gain, error = stacking.marginal_gain(densities.log_density, log_prior, densities.weight, two_thirds)
        # the best state that was restored may have a smaller support than the largest one tried; it predicts better,
        # so the support does not grow again
        if self.tail_gain > max(self.min_gain, 2.0 * error) and size >= self.widest:
            larger = len(model.list_structures(math.ceil(1.5 * deepest) + 1))
            if larger > size and self._lengthen():
                _require_memory(model, larger / size)
                self.grown += 1
                self.widest = larger
                self.low_since = None
                return self._set_uniform(model, larger)
            if epoch == self.explored:
                limit = "max_depth or its prior" if larger == size else f"twice the planned {self.planned} epochs"
                warnings.warn(
                    f"the posterior over structure is cut off at {densities.numbers[-1]}: the last third of its "
                    f"support still gains {self.tail_gain:.1f} nats on the held-out rows, and growth is limited by "
                    f"{limit}. Raise that limit",
                    ConvergenceWarning,
                    stacklevel=5,
                )
        if epoch < self.explored:
            return 0
        return self._begin_focus(model, densities, log_prior)

    def _begin_focus(self, model: ListedStructure, densities: LogDensities, log_prior: Tensor) -> int:
        """Weigh the networks for the focus phase, and freeze structures of negligible mass."""
        self.focusing = True
        _, poisson, _ = stacking.poisson(densities.log_density, log_prior, densities.weight)
        masses = [self.q[number] for number in densities.numbers]
        largest = torch.tensor(masses, dtype=torch.float64, device="cpu").maximum(poisson)
        kept = (largest >= _NEGLIGIBLE) & stacking.usable(densities.log_density)
        # stacking weights can be close to 0 between two good structures; the smooth law and the uniform share keep such
        # structures in training, so that the refit at the end can still choose them
        mass = 0.75 * poisson[kept] / poisson[kept].sum().clamp(min=1e-300) + 0.25 / int(kept.sum())
        numbers = [number for number, keep in zip(densities.numbers, kept.tolist(), strict=True) if keep]
        return model.weigh(dict(zip(numbers, mass.tolist(), strict=True)))

    def adopt(self, model: ListedStructure, densities: LogDensities) -> LogDensities:
        """Fit the posterior to the restored best state, drop negligible structures, and give it to the model."""
        q = self.fit(densities, log_prior_of(model, densities.numbers))
        total = 0.0
        kept = q > 0.0
        for i in q.argsort().tolist():  # the smallest masses first, until their sum is no longer negligible
            total += float(q[i])
            if total >= _NEGLIGIBLE:
                break
            kept[i] = False
        densities = LogDensities(
            tuple(number for number, keep in zip(densities.numbers, kept.tolist(), strict=True) if keep),
            densities.log_density[:, kept],
            densities.rows,
            densities.weight,
        )
        q = q[kept] / q[kept].sum()
        self.q = dict(zip(densities.numbers, q.tolist(), strict=True))
        model.weigh(self.q, only=True)
        return densities

    def to_json(self) -> dict[str, Any]:
        """Return the state that changes during a training."""
        state = {key: getattr(self, name) for key, name in _STATE.items()}
        state["q"] = {str(number): mass for number, mass in self.q.items()}
        return state

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`to_json` returned."""
        for key, name in _STATE.items():
            setattr(self, name, state.get(key, getattr(self, name)))
        self.q = {int(number): mass for number, mass in state["q"].items()}

    def _lengthen(self) -> bool:
        """Prolong exploring by a fifth of the planned epochs, up to 1.6 times their number; return True if done."""
        longer = max(1, round(0.2 * self.planned))
        if self.explored + longer + max(1, round(0.4 * self.planned)) > 2 * self.planned:
            return False
        self.explored += longer
        return True

    def _set_uniform(self, model: ListedStructure, count: int, *, only: bool = False) -> int:
        """Give the first `count` structures equal mass; return the number of parts created."""
        numbers = model.list_structures(count)
        return model.weigh({number: 1.0 / len(numbers) for number in numbers}, only=only)


def log_prior_of(model: ListedStructure, numbers: Sequence[int]) -> Tensor:
    """Return the log prior of the given structures, (L,)."""
    listed = model.list_structures(numbers[-1] + 1)
    return torch.tensor([listed[number] for number in numbers], dtype=torch.float64, device="cpu")


def _require_memory(model: Model, factor: float) -> None:
    """Raise an error if a support `factor` times as large does not fit into memory."""
    # weights, gradients, two moments of Adam, and the best state
    need = 5.0 * factor * sum(p.numel() * p.element_size() for p in model.parameters())
    memory.require(need, "a larger support of the posterior over structure", lambda _: "set max_depth")
