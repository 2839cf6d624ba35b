"""Search over the number of latent dimensions by the log-likelihood on held-out rows.

One fold of the rows is held out. On the other rows the candidates are trained once, and a decoder and a posterior are
fitted for each number of dimensions. The number with the highest mean log-likelihood on the held-out rows is then
fitted to all rows. The weights of the best mixture, by :func:`~fathomless.inference.out_of_fold.stacking.refit` with
equal prior masses, show how clear the choice is. The search is a plan of stages, so it can be paused and resumed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.families.manifold.fit import Manifold
from fathomless.families.manifold.stages import Begin, Stage
from fathomless.inference.out_of_fold.stacking import refit
from fathomless.system.rng import as_generator, fold_in

__all__ = ["DimensionSearch", "Trial"]

_TRIAL = "trial "
_CHUNK = 4096  # rows evaluated at once
_DRAWS = 32  # draws per component


@dataclass(frozen=True)
class Trial:
    """Held-out score of a number of dimensions.

    Attributes
    ----------
    log_density : float
        Mean log-likelihood of the held-out rows, in nats per row, for standardised targets.
    weight : float
        Weight in the best mixture of all numbers of dimensions.
    """

    log_density: float
    weight: float


class DimensionSearch:
    """Plan of a fit with a search over the number of dimensions.

    Parameters
    ----------
    manifold_of : callable
        Returns the stages of a fit, given a mask of the rows to use, (N,), and the number of dimensions.
    rows : Rows
        All rows.
    held : bool Tensor, shape (N,)
        True for rows held out from the trials.
    numbers : sequence of int
        Candidate numbers of dimensions.
    seed : int
        Seed of the draws that estimate the log-likelihoods.
    """

    def __init__(
        self,
        manifold_of: Callable[[Tensor, int], Manifold],
        rows: Rows,
        held: Tensor,
        numbers: Sequence[int],
        seed: int,
    ) -> None:
        self.held = rows.take(held)
        self.seed = seed
        self.trials = {number: manifold_of(~held, number) for number in sorted(set(numbers))}
        self._whole = partial(manifold_of, torch.ones_like(held))
        self._trials: dict[int, Trial] = {}  # cache of `evaluate`

    def plan(self) -> dict[str, Begin]:
        """Return the stages by name: those of the trials, then those of the fit to all rows."""
        stages: dict[str, Begin] = {}
        for number, trial in self.trials.items():
            for name, begin in trial.plan().items():
                shared = name in trial.cycles  # all trials use the same candidates
                stages.setdefault(
                    f"{_TRIAL}{name}" if shared else f"{number} {name}", partial(self._begin_trial, number, begin)
                )
        names = next(iter(self.trials.values())).plan()
        return {**stages, **{name: partial(self._begin_final, name) for name in names}}

    def _begin_trial(self, number: int, begin: Begin, found: Mapping[str, Tensor]) -> Stage:
        return begin(_select_trial(found, number))

    def _begin_final(self, name: str, found: Mapping[str, Tensor]) -> Stage:
        return self.choose(found).plan()[name](found)

    def choose(self, found: Mapping[str, Tensor]) -> Manifold:
        """Return the stages of the fit to all rows, with the best number of dimensions."""
        trials = self.evaluate(found)
        return self._whole(max(trials, key=lambda number: trials[number].log_density))

    @torch.no_grad()
    def evaluate(self, found: Mapping[str, Tensor]) -> dict[int, Trial]:
        """Return the held-out score of each number of dimensions."""
        if not self._trials:
            table = torch.stack([self._log_density(number, found) for number in self.trials], 1)  # (N, L)
            count = self.held.weight
            weight = torch.ones_like(table[:, 0]) if count is None else count.to(table)
            masses = refit(table, torch.zeros(len(self.trials), device="cpu"), weight).tolist()
            means = (weight @ table / weight.sum()).tolist()
            self._trials = {
                number: Trial(mean, mass) for number, mean, mass in zip(self.trials, means, masses, strict=True)
            }
        return self._trials

    def _log_density(self, number: int, found: Mapping[str, Tensor]) -> Tensor:
        trial = self.trials[number]
        results = _select_trial(found, number)
        model = trial.model_of(results)
        likelihood = trial.likelihood_of(results)
        generator = as_generator(fold_in(self.seed, "trial", number))
        weights, log_weight = model.sample_weights(_DRAWS, generator)
        log_p = [
            torch.logsumexp(log_weight[:, None] + likelihood.log_prob(model.network(weights, part.x), part.y), 0)
            for part in self.held.parts(_CHUNK)
        ]
        return torch.cat(log_p).double()


def _select_trial(found: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """Return the results shared by all trials and those of one trial, under the names of a single fit."""
    return {
        name.removeprefix(prefix): value
        for prefix in (_TRIAL, f"{number} ")
        for name, value in found.items()
        if name.startswith(prefix)
    }
