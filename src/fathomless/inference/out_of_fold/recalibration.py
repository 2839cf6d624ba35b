r"""Fit of the recalibration to out-of-fold predictions; the laws are in :mod:`fathomless.posterior.recalibration`.

**Networks.** Network k of every kind is trained on the rows outside fold k, and evaluated on fold k. The loss is the
mean of −log g(z | x). Small tables need 20 to 60 steps, and more steps overfit. The number of steps is therefore chosen
by the out-of-fold loss of all networks: it is evaluated at steps in a geometric sequence, training ends when the best
step is far behind, and continues from the best one with a decreasing learning rate. One factor of the scales of each
kind is then fitted to the out-of-fold rows, with a normal prior on its logarithm.

**Weights.** The weights q of the law of the networks and of the kinds maximise the penalised out-of-fold log-likelihood
(:mod:`~fathomless.inference.out_of_fold.stacking`), with prior probability 0.8 for the law of the networks. A tenth of
the weight is then returned to the law of the networks, so that no row can lose more than log 10 nats against it. The
gain is computed by cross-validation: weights fitted without a fold are evaluated on it. If it is below 2 nats in total,
the prediction of this target stays unchanged.

**Neighbours.** If the nearest training rows of each out-of-fold row are given, two more kinds use their targets
(:mod:`fathomless.posterior.neighbors`). A row is never its own neighbour, and neither is a row of its group. The other
rows are searched in all folds, so that the features of out-of-fold rows have the law of those of new rows. The stored
rows are part of the result only if one of these kinds has weight.

**Trees.** If boosted trees are given (:mod:`fathomless.posterior.trees`), the same kinds of laws are also fitted to the
residuals of their out-of-fold scores, divided by their root mean square. They are further parts of the mixture.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.inference.out_of_fold import stacking
from fathomless.inference.out_of_fold.trees import GrownTrees
from fathomless.posterior.fit_diagnostics import NeighborFit, RecalibrationFit, TreesFit
from fathomless.posterior.neighbors import PARTS, Neighborhoods, NeighborRows
from fathomless.posterior.recalibration import (
    KINDS,
    NEAR_KINDS,
    OF_TREES,
    LawKind,
    Recalibration,
    ResidualNetworks,
    TreeLaws,
    make_features,
    stack_targets,
)
from fathomless.system.draws import integers
from fathomless.system.recording import Replayed, set_rate, use_rate_tensors
from fathomless.system.rng import as_generator, fold_in
from fathomless.system.torch_state import enable_gradients

__all__ = ["FEWEST_ROWS", "OutOfFoldLaws", "fit_recalibration"]

FEWEST_ROWS = 30  #: number of rows below which no recalibration is fitted
_RATE, _DECAY, _NORM = 2e-3, 0.05, 2.0  # learning rate, weight decay, largest norm of the gradient of a network
_BATCH = 128  # rows of a step of each network; four times as many for tables of more than 10,000 rows
_FULL = 512  # number of rows up to which a step uses all rows
_GROWTH = 1.22  # ratio of two numbers of steps at which the loss is evaluated
_PATIENCE = (1.8, 60)  # training ends after 1.8 t + 60 steps if the loss was smallest after t
_MOST_STEPS = 1500  # twice as many for tables of more than 2,000 rows, and again for more than 10,000 rows
_LARGE, _LARGER = 2000, 10_000
_DRAWN = 32  # steps whose rows are drawn together
_COOLING = 0.35  # steps with a decreasing learning rate, relative to those before
_KAPPA = 0.25  # prior standard deviation of the log factor of the scales
_FARTHEST = 8.0  # residuals are clipped in training, but not in evaluations
_BASE_PRIOR = 0.8
_KEPT = 0.1  # weight that is returned to the law of the networks
_NEGLIGIBLE = 0.01  # smaller weights are given to the law of the networks, since every law costs time
_LEAST_GAIN = 2.0  # cross-validated gain in nats, summed over the rows


@dataclass(frozen=True)
class OutOfFoldLaws:
    """Rows with the law of networks that were not fitted to them; float64 on the CPU, in encoded units.

    Attributes
    ----------
    x : Tensor, shape (N, D)
        Encoded features.
    y, mean, std, log_density : Tensors, shape (N, T)
        Targets; mean, standard deviation and log density at the target of the law of the networks.
    fold : Tensor of int64, shape (N,)
        Fold of each row, 0, ..., K − 1.
    weight : Tensor, shape (N,)
        Sample weights.
    half : Tensor, shape (N, T), optional
        Half of the width of the cells of a target on a coarse lattice, in standard deviations. Log densities are then
        log probabilities of cells.
    near : Neighborhoods, optional
        The nearest training rows of each row, without rows of its group.
    upper : Tensor, shape (N, T), optional
        Upper bounds of censored targets; `y` then has the lower ones. They are equal if the target is known. Log
        densities of the others are log probabilities between the bounds.
    """

    x: Tensor
    y: Tensor
    mean: Tensor
    std: Tensor
    log_density: Tensor
    fold: Tensor
    weight: Tensor
    half: Tensor | None = None
    near: Neighborhoods | None = None
    upper: Tensor | None = None

    def join(self, others: "OutOfFoldLaws") -> "OutOfFoldLaws":
        """Return these rows and others; neither have cells, neighbours or bounds."""
        names = ("x", "y", "mean", "std", "log_density", "fold", "weight")
        joined: dict[str, Any] = {name: torch.cat([getattr(self, name), getattr(others, name)]) for name in names}
        return replace(self, **joined)

    @property
    def kinds(self) -> Mapping[str, LawKind]:
        """Kinds of laws that can be fitted to the rows, by name."""
        return KINDS if self.near is None else {**KINDS, **NEAR_KINDS}

    def recentre(self, trees: GrownTrees) -> "OutOfFoldLaws":
        """Return the rows with the centre and the scale of boosted trees, without log densities and neighbours."""
        half = None if self.half is None else self.half * self.std / trees.scale
        std = trees.scale.expand_as(self.std)
        return replace(self, mean=trees.scores, std=std, half=half, near=None)

    def take_target(self, target: int) -> "OutOfFoldLaws":
        """Return the rows with one of the targets."""
        column = slice(target, target + 1)
        laws = {name: getattr(self, name)[:, column] for name in ("y", "mean", "std", "log_density")}
        near = None if self.near is None else self.near.take_target(target)
        half, upper = (None if part is None else part[:, column] for part in (self.half, self.upper))
        return replace(self, half=half, upper=upper, near=near, **laws)

    @property
    def log_unit(self) -> Tensor:
        """Log of the unit of the log density of z relative to that of y, (N, T); probabilities have no unit."""
        if self.half is not None:
            return torch.zeros_like(self.std)
        log_std = self.std.log()
        return log_std if self.upper is None else torch.where(self.y == self.upper, log_std, 0.0)


@enable_gradients()
def fit_recalibration(
    rows: OutOfFoldLaws,
    step: Tensor,
    seed: int,
    neighbors: NeighborRows | None = None,
    device: torch.device | str = "cpu",
    trees: GrownTrees | None = None,
) -> tuple[Recalibration | None, tuple[RecalibrationFit, ...]]:
    """Fit the laws of the standardised residual and their weights.

    Parameters
    ----------
    rows : OutOfFoldLaws
        Out-of-fold rows.
    step : Tensor, shape (T,)
        Step of the lattice of each target; 0 for a continuous target.
    seed : int
        Seed of the initial weights and of minibatches.
    neighbors : NeighborRows, optional
        Rows in which ``rows.near`` was searched.
    device : torch.device or str
        Device on which the networks of the laws are trained. The result is on the CPU.
    trees : GrownTrees, optional
        Boosted trees with scores of the rows.

    Returns
    -------
    recalibration : Recalibration or None
        None if the cross-validated gain is too small for all targets.
    fits : tuple of T RecalibrationFit
        Weights and gain of each target; empty with fewer than 30 rows or fewer than two folds.
    """
    if len(rows.y) < FEWEST_ROWS or len(rows.fold.unique()) < 2:
        return None, ()
    of_trees = None if trees is None else rows.recentre(trees)
    networks: dict[str, list[ResidualNetworks]] = {}
    shares, fits = [], []
    for target in range(rows.y.shape[1]):
        parts = [part.take_target(target) for part in (rows, of_trees) if part is not None]
        laws, share, fit = _fit_target(parts, step[target : target + 1], fold_in(seed, target), torch.device(device))
        for name, law in laws.items():
            networks.setdefault(name, []).append(law)
        if trees is not None and fit.trees is not None:
            fit = replace(fit, trees=replace(fit.trees, iterations=trees.trees.iterations))
        shares.append(share)
        fits.append(replace(fit, neighbors=_count_repeats(rows, neighbors, target)))
    share = torch.stack(shares, 1)  # (C + 1, T)
    used = [j for j in range(len(share)) if j == 0 or bool((share[j] > 0).any())]
    if len(used) == 1:
        return None, tuple(fits)
    stacked = {name: stack_targets(laws) for j, (name, laws) in enumerate(networks.items(), 1) if j in used}
    stored = neighbors if any(name in NEAR_KINDS for name in stacked) else None
    if stored is not None:
        fits = [replace(fit, neighbors=replace(fit.neighbors, stored=True)) for fit in fits if fit.neighbors]
    by_trees = {name: stacked.pop(name) for name in [*stacked] if name.startswith(OF_TREES)}
    kept = TreeLaws(trees.trees, trees.scale, trees.narrowing, by_trees) if trees is not None and by_trees else None
    return Recalibration(stacked, share[used], step.double().cpu(), stored, kept), tuple(fits)


def _count_repeats(rows: OutOfFoldLaws, neighbors: NeighborRows | None, target: int) -> NeighborFit | None:
    """Return the share of rows whose target is that of a near row; None without neighbours."""
    if rows.near is None or neighbors is None:
        return None
    weight = rows.weight / rows.weight.sum()
    repeats = rows.near.take_target(target).repeats(rows.y[:, target : target + 1])[:, 0]
    count = neighbors.y[:, target].unique(return_counts=True)[1].double()
    others = (count - 1.0) / (count.sum() - 1.0)  # share of the other rows that have the same target
    chance = float((count * (1.0 - (1.0 - others) ** PARTS)).sum() / count.sum())
    return NeighborFit(rows=len(neighbors.y), stored=False, repeated=float((weight * repeats).sum()), chance=chance)


def _fit_target(
    parts: Sequence[OutOfFoldLaws], step: Tensor, seed: int, device: torch.device
) -> tuple[dict[str, ResidualNetworks], Tensor, RecalibrationFit]:
    """Fit the laws of one target; return their networks, the weights (C + 1,) and the diagnostics.

    `parts` are the rows with the law of the networks, and optionally with the centre and scale of trees.
    """
    rows = parts[0]
    candidates, of_y = {}, [rows.log_density]  # (N, 1) each
    for part, start in zip(parts, ("", OF_TREES), strict=False):
        for name, kind in part.kinds.items():
            fitted = _train(start + name, kind, part, step, seed, device)
            candidates[start + name] = fitted
            of_y.append(fitted[1] - part.log_unit)
    log_density = torch.cat(of_y, 1)  # (N, C + 1)
    log_density = log_density.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)  # such a law has no weight
    q, gains = _weigh(log_density, rows.fold, rows.weight)
    gain, error = _average(gains, rows.weight)
    if gain * float(rows.weight.sum()) < _LEAST_GAIN:
        q = torch.zeros_like(q)
        q[0] = 1.0
    trees = None
    if len(parts) > 1:
        own = len(rows.kinds) + 1  # laws without trees
        more = gains - _weigh(log_density[:, :own], rows.fold, rows.weight)[1]
        of_trees = _average(more, rows.weight)
        trees = TreesFit(weight=float(q[own:].sum()), gain=of_trees[0], error=of_trees[1], iterations=0, rows=len(more))
    fit = RecalibrationFit(
        weights=dict(zip(("networks", *candidates), q.tolist(), strict=True)),
        gain=gain,
        error=error,
        rows=len(rows.y),
        steps={name: steps for name, (_, _, steps) in candidates.items()},
        trees=trees,
    )
    return {name: law for name, (law, _, _) in candidates.items()}, q, fit


def _average(gains: Tensor, weight: Tensor) -> tuple[float, float]:
    """Return the weighted mean of the gains of rows, (N,), and its standard error."""
    count = float(weight.sum())
    gain = float((weight * gains).sum()) / count
    return gain, float((weight * (gains - gain).square()).sum()) ** 0.5 / count


def _weigh(log_density: Tensor, fold: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Fit the weights of the laws, (C + 1,), and the gain of each row from weights fitted without its fold, (N,)."""
    candidates = log_density.shape[1] - 1
    prior = torch.full((candidates + 1,), (1.0 - _BASE_PRIOR) / candidates, dtype=torch.float64, device="cpu")
    prior[0] = _BASE_PRIOR

    def fit(rows: Tensor) -> Tensor:
        q = (1.0 - _KEPT) * stacking.refit(log_density[rows], prior.log(), weight[rows])
        q[0] += _KEPT
        q[1:] = torch.where(q[1:] < _NEGLIGIBLE, 0.0, q[1:])
        q[0] = 1.0 - q[1:].sum()
        return q

    gains = torch.zeros_like(log_density[:, 0])
    for k in fold.unique():
        q = fit(fold != k)
        gains[fold == k] = torch.logsumexp(q.log() + log_density[fold == k], 1) - log_density[fold == k, 0]
    return fit(torch.ones_like(fold, dtype=torch.bool)), gains


def _train(
    name: str, kind: LawKind, rows: OutOfFoldLaws, step: Tensor, seed: int, device: torch.device
) -> tuple[ResidualNetworks, Tensor, int]:
    """Train the networks of one kind; return them, their out-of-fold log densities of z (N, T), and the steps."""
    folds = int(rows.fold.max()) + 1
    generator = as_generator(fold_in(seed, "recalibration", name))
    law = ResidualNetworks(kind, folds, rows.y.shape[1], rows.x.shape[1], generator).float()  # twice as fast
    training = _Training(law.to(device), rows, step, generator, device)
    best, state, best_step = math.inf, _copy(law), 0
    due, done = 0, 0
    most = _MOST_STEPS * (1 if len(rows.y) <= _LARGE else 2 if len(rows.y) <= _LARGER else 4)
    while done <= most and done <= _PATIENCE[0] * best_step + _PATIENCE[1]:
        if done == due:
            loss = -float((rows.weight[:, None] * training.evaluate()).sum())
            if loss < best:
                best, state, best_step = loss, _copy(law), done
            due = max(done + 1, math.ceil(_GROWTH * done)) if done else 3
        training.advance(_RATE)
        done += 1
    law.load_state_dict(state)
    training.restart()
    cooling = round(_COOLING * best_step)
    for t in range(cooling):
        training.advance(_RATE * 0.5 * (1.0 + math.cos(math.pi * (t + 0.5) / cooling)))
    if not -float((rows.weight[:, None] * training.evaluate()).sum()) <= best:  # also if it is not a number
        law.load_state_dict(state)
    law.double().requires_grad_(False)
    with torch.no_grad():
        law.log_factor.copy_(training.fit_factor())
    densities = training.evaluate()
    return law.cpu(), densities, best_step + cooling


class _Training:
    """Training of K stacked networks, each on the rows outside its fold."""

    def __init__(
        self,
        law: ResidualNetworks,
        rows: OutOfFoldLaws,
        step: Tensor,
        generator: torch.Generator,
        device: torch.device,
    ) -> None:
        self.law = law
        self.generator = generator
        self.device = device
        features, least = make_features(rows.x, rows.mean, rows.std, step, rows.near)  # (T, N, D + 1), (T, N)
        z = ((rows.y - rows.mean) / rows.std).T  # (T, N)
        self.exact = features.to(device), least.to(device), z.to(device)
        self.exact_half = None if rows.half is None else rows.half.T.to(device)
        self.half = None if self.exact_half is None else self.exact_half.float()
        self.exact_upper = None if rows.upper is None else ((rows.upper - rows.mean) / rows.std).T.to(device)
        self.upper = None if self.exact_upper is None else _clip(self.exact_upper)
        self.features, self.least, z = self.exact[0].float(), self.exact[1].float(), self.exact[2]
        self.target = _clip(z)
        self.weight = rows.weight.to(device).float()
        folds = int(rows.fold.max()) + 1
        outside = [torch.nonzero(rows.fold == k).flatten() for k in range(folds)]
        self.inside = [torch.nonzero(rows.fold != k).flatten() for k in range(folds)]
        size = max(map(len, outside))
        self.padded = torch.stack([nn.functional.pad(rows, (0, size - len(rows))) for rows in outside]).to(device)
        self.outside = [rows.to(device) for rows in outside]
        self.full = len(rows.y) <= _FULL
        self.batch = _BATCH if len(rows.y) <= _LARGER else 4 * _BATCH
        # with few rows a step uses all of them: network k has weight zero on its own fold
        self.mask = torch.stack([(rows.fold != k).to(device).float() for k in range(folds)])[:, None] * self.weight
        self.drawn: list[Tensor] = []  # rows of the next steps, (K, B) each
        self.index = torch.zeros(folds, self.batch, dtype=torch.int64, device=device)
        self.trained = [*law.weights, *law.biases]
        self.restart()

    def restart(self) -> None:
        """Reset the moments of the optimiser."""
        self.optimizer = torch.optim.AdamW(self.trained, lr=_RATE, weight_decay=_DECAY)
        use_rate_tensors(self.optimizer, self.device)
        self.step = Replayed(self._step, self.device)

    def advance(self, rate: float) -> None:
        """Take one step of all networks."""
        if not self.full:
            self.drawn = self.drawn or self._draw_rows()
            self.index.copy_(self.drawn.pop())
        for group in self.optimizer.param_groups:
            set_rate(group, rate)
        self.step()

    def _draw_rows(self) -> list[Tensor]:
        """Draw the rows of the next steps, those of the first step last; they are moved to the device together."""
        steps = [
            [rows[integers(len(rows), (self.batch,), self.generator, rows.device)] for rows in self.inside]
            for _ in range(_DRAWN)
        ]
        return list(torch.stack([torch.stack(rows) for rows in steps[::-1]]).to(self.device))

    def _step(self) -> list[Tensor]:
        """Take one step on the drawn rows."""
        if self.full:
            features, least, z, weight = self.features[None], self.least[None], self.target[None], self.mask
            half, upper = (None if part is None else part[None] for part in (self.half, self.upper))
        else:
            index = self.index  # (K, B)
            features = self.features[:, index].transpose(0, 1)  # (K, T, B, D + 1)
            least, z = self.least[:, index].transpose(0, 1), self.target[:, index].transpose(0, 1)  # (K, T, B)
            half, upper = (None if part is None else part[:, index].transpose(0, 1) for part in (self.half, self.upper))
            weight = self.weight[index][:, None]
        log_density = self.law.law(self.law(features), least).log_prob(z, half, upper)  # (K, T, B)
        loss = -(weight * log_density).sum(-1) / weight.sum(-1)  # (K, T)
        self.optimizer.zero_grad()
        loss.sum().backward()
        self._clip_gradients()
        self.optimizer.step()
        return []

    def _clip_gradients(self) -> None:
        """Limit the norm of the gradient of each network."""
        gradients = [p.grad for p in self.trained if p.grad is not None]
        norm = torch.stack([g.square().sum((2, 3)) for g in gradients]).sum(0).sqrt()  # (K, T)
        factor = (_NORM / norm.clamp_min(_NORM))[..., None, None]
        for gradient in gradients:
            gradient.mul_(factor)

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """Return the log density of z of every row under the network that was not trained on it, (N, T)."""
        dtype = self.law.log_factor.dtype

        def by_fold(part: Tensor) -> Tensor:
            return part[:, self.padded].transpose(0, 1).to(dtype)  # (K, T, B, ...)

        features, least, z = map(by_fold, self.exact)
        half, upper = (None if part is None else by_fold(part) for part in (self.exact_half, self.exact_upper))
        by_network = self.law.law(self.law(features), least).log_prob(z, half, upper)  # (K, T, B)
        log_density = torch.zeros_like(self.exact[2])
        for k, rows in enumerate(self.outside):
            log_density[:, rows] = by_network[k, :, : len(rows)].double()
        return log_density.T.cpu()

    def fit_factor(self) -> Tensor:
        """Return the log factor of the scales that maximises the penalised out-of-fold log-likelihood, (T,).

        The maximum of a grid is refined by the parabola through its neighbours, if their values are finite. A density
        of zero at one row makes a value infinite.
        """
        grid = torch.linspace(-0.6, 0.6, 13, dtype=torch.float64, device="cpu")
        weight = self.weight.double().cpu()
        values = []
        for c in grid:
            with torch.no_grad():
                self.law.log_factor.fill_(float(c))
            values.append((weight[:, None] * self.evaluate()).sum(0) - 0.5 * (c / _KAPPA).square())
        table = torch.stack(values)  # (13, T)
        best = table.argmax(0).clamp(1, len(grid) - 2)
        before, centre, after = (table.gather(0, (best + i)[None])[0] for i in (-1, 0, 1))
        curvature = (before + after - 2.0 * centre).clamp_max(-1e-12)
        shift = (0.5 * (before - after) / curvature).clamp(-1.0, 1.0)
        return grid[best] + torch.where(curvature.isfinite(), shift, 0.0) * (grid[1] - grid[0])


def _clip(z: Tensor) -> Tensor:
    """Clip finite residuals, in single precision."""
    return torch.where(z.isinf(), z, z.clamp(-_FARTHEST, _FARTHEST)).float()


def _copy(law: ResidualNetworks) -> Mapping[str, Tensor]:
    return {name: value.clone() for name, value in law.state_dict().items()}
