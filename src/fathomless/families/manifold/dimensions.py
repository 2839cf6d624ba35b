"""How many dimensions the latent space has: several are tried, and rows that none has seen say which one is kept.

A fold of the rows is left out. On the others candidates are trained once, and a decoder and a posterior are found for
each number of dimensions. The mean log density of the rows left out tells the best, and a fit of it to all rows
follows; the weights of the best mixture of all, by :func:`~fathomless.inference.out_of_fold.stacking.refit` with equal
prior masses, tell how surely. All of it is one plan of stages, so it can be paused like any other.
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

__all__ = ["Dimensions", "Trial"]

_TRIAL = "trial "
_CHUNK = 4096  # rows evaluated at once
_DRAWS = 32  # points of each component


@dataclass(frozen=True)
class Trial:
    """What rows left out say of a number of dimensions.

    Attributes
    ----------
    log_density : float
        Mean of these rows, in nats, in standardised units.
    weight : float
        In the best mixture of all.
    """

    log_density: float
    weight: float


class Dimensions:
    """The plan of a fit that tries several numbers of dimensions.

    Parameters
    ----------
    manifold_of : callable
        Rows (bool of shape (N,), those that are used) and dimensions -> the stages of their fit.
    rows : Rows
        The table.
    held : bool Tensor, shape (N,)
        Rows that are left out of trials.
    numbers : sequence of int
        Those that are tried.
    seed : int
        Of the draws that are compared.
    """

    def __init__(
        self,
        manifold_of: Callable[[Tensor, int], Manifold],
        rows: Rows,
        held: Tensor,
        numbers: Sequence[int],
        seed: int,
    ) -> None:
        self.held, self.seed = rows.take(held), seed
        self.trials = {number: manifold_of(~held, number) for number in sorted(set(numbers))}
        self._whole = partial(manifold_of, torch.ones_like(held))
        self._found: dict[int, Trial] = {}

    def plan(self) -> dict[str, Begin]:
        """Return the stages by name: those of trials, then those of the fit to all rows."""
        stages: dict[str, Begin] = {}
        for number, trial in self.trials.items():
            for name, begin in trial.plan().items():
                shared = name in trial.cycles
                stages.setdefault(
                    f"{_TRIAL}{name}" if shared else f"{number} {name}", partial(self._try, number, begin)
                )
        names = next(iter(self.trials.values())).plan()
        return {**stages, **{name: partial(self._finally, name) for name in names}}

    def _try(self, number: int, begin: Begin, found: Mapping[str, Tensor]) -> Stage:
        return begin(_own(found, number))

    def _finally(self, name: str, found: Mapping[str, Tensor]) -> Stage:
        return self.chosen(found).plan()[name](found)

    def chosen(self, found: Mapping[str, Tensor]) -> Manifold:
        """Return the stages of the fit to all rows, with the dimensions of the greatest log density."""
        told = self.told(found)
        return self._whole(max(told, key=lambda number: told[number].log_density))

    @torch.no_grad()
    def told(self, found: Mapping[str, Tensor]) -> dict[int, Trial]:
        """Return what rows left out say of each number of dimensions."""
        if not self._found:
            table = torch.stack([self._log_density(number, found) for number in self.trials], 1)  # (N, L)
            count = self.held.weight
            weight = torch.ones_like(table[:, 0]) if count is None else count.to(table)
            masses = refit(table, torch.zeros(len(self.trials), device="cpu"), weight).tolist()
            means = (weight @ table / weight.sum()).tolist()
            self._found = {
                n: Trial(*each) for n, each in zip(self.trials, zip(means, masses, strict=True), strict=True)
            }
        return self._found

    def _log_density(self, number: int, found: Mapping[str, Tensor]) -> Tensor:
        trial, own = self.trials[number], _own(found, number)
        model, likelihood = trial.model_of(own), trial.likelihood_of(own)
        generator = as_generator(fold_in(self.seed, "trial", number))
        weights, log_weight = model.sample_weights(_DRAWS, generator)
        log_p = [
            torch.logsumexp(log_weight[:, None] + likelihood.log_prob(model.network(weights, part.x), part.y), 0)
            for part in self.held.parts(_CHUNK)
        ]
        return torch.cat(log_p).double()


def _own(found: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """Return what trials share, and what one of them has found, under the names of a fit."""
    return {
        name.removeprefix(prefix): value
        for prefix in (_TRIAL, f"{number} ")
        for name, value in found.items()
        if name.startswith(prefix)
    }
