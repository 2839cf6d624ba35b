"""Fit of the probabilities of the atoms of a target; the law is in :mod:`fathomless.posterior.hurdle`.

There are K networks, one for each fold of the rows. Network k is trained on the rows outside fold k, and evaluated on
fold k. The loss is the mean of −log P(atom or other value | x). Training starts at the shares of the atoms, and the
number of steps is that with the smallest out-of-fold loss of all networks. With columns that do not predict the atoms,
the probabilities stay near the shares.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fathomless.posterior.fit_diagnostics import HurdleFit
from fathomless.posterior.hurdle import AtomNetworks
from fathomless.system.draws import integers
from fathomless.system.rng import as_generator, fold_in
from fathomless.system.torch_state import enable_gradients

__all__ = ["AtomRows", "fit_atoms"]

_RATE, _DECAY = 2e-3, 0.05  # learning rate and weight decay
_BATCH = 512  # rows of a step; all rows up to this number
_GROWTH = 1.22  # ratio of two numbers of steps at which the loss is evaluated
_PATIENCE = (1.8, 60)  # training ends after 1.8 t + 60 steps if the loss was smallest after t
_MOST_STEPS = 3000
_SMOOTHING = 0.5  # rows that are added to each atom, and to the other values, for the shares


@dataclass(frozen=True)
class AtomRows:
    """Rows with the number of their atom.

    Attributes
    ----------
    x : Tensor of float64, shape (N, D)
        Encoded features.
    number : Tensor of int64, shape (N,)
        Number 1, ..., A of the atom, and 0 for other values.
    fold : Tensor of int64, shape (N,)
        Fold of each row, 0, ..., K − 1; −1 for rows that all networks are trained on.
    weight : Tensor of float64, shape (N,)
        Sample weights.
    """

    x: Tensor
    number: Tensor
    fold: Tensor
    weight: Tensor


@enable_gradients()
def fit_atoms(rows: AtomRows, atoms: tuple[float, ...], seed: int) -> tuple[AtomNetworks, HurdleFit]:
    """Fit the probabilities of the atoms.

    Parameters
    ----------
    rows : AtomRows
        All rows of the fit.
    atoms : tuple of A float
        The atoms.
    seed : int
        Seed of the initial weights and of minibatches.
    """
    counts = torch.zeros(len(atoms) + 1, dtype=torch.float64, device="cpu").index_add(0, rows.number, rows.weight)
    log_share = ((counts + _SMOOTHING) / (counts + _SMOOTHING).sum()).log()
    folds = int(rows.fold.max()) + 1
    generator = as_generator(fold_in(seed, "atoms"))
    networks = AtomNetworks(folds, rows.x.shape[1], log_share, generator)
    optimizer = torch.optim.AdamW(networks.parameters(), lr=_RATE, weight_decay=_DECAY)
    best, state, best_step = _evaluate(networks, rows), _copy(networks), 0
    first = best
    done, due = 0, 3
    while done < _MOST_STEPS and done <= _PATIENCE[0] * best_step + _PATIENCE[1]:
        _advance(networks, rows, optimizer, generator)
        done += 1
        if done == due:
            loss = _evaluate(networks, rows)
            if float(loss.sum()) < float(best.sum()):
                best, state, best_step = loss, _copy(networks), done
            due = max(done + 1, math.ceil(_GROWTH * done))
    networks.load_state_dict(state)
    networks.requires_grad_(False)
    total, unseen = float(rows.weight.sum()), float(rows.weight[rows.fold >= 0].sum())
    return networks, HurdleFit(
        atoms=atoms,
        shares=tuple((counts[1:] / total).tolist()),
        log_probability=-float(best.sum()) / unseen,
        gain=float((first - best).sum()) / unseen,
        rows=len(rows.x),
        steps=best_step,
    )


def _advance(
    networks: AtomNetworks, rows: AtomRows, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> None:
    """Take one step of all networks, on all rows or on a random part of them."""
    x, number, fold, weight = rows.x, rows.number, rows.fold, rows.weight
    if len(x) > _BATCH:
        index = integers(len(x), (_BATCH,), generator, x.device)
        x, number, fold, weight = x[index], number[index], fold[index], weight[index]
    outside = torch.stack([fold != k for k in range(len(networks.weights[0]))])  # network k leaves fold k out
    used = outside * weight  # (K, N)
    log_p = networks(x).log_softmax(-1).gather(-1, number.expand(len(used), -1)[..., None])[..., 0]
    loss = -(used * log_p).sum(1) / used.sum(1).clamp_min(1e-12)
    optimizer.zero_grad()
    loss.sum().backward()
    optimizer.step()


@torch.no_grad()
def _evaluate(networks: AtomNetworks, rows: AtomRows) -> Tensor:
    """Return −log P of each row, times its weight, under the network that was not trained on it, (N,).

    It is 0 for rows that all networks are trained on.
    """
    log_p = networks.log_mass(rows.x, rows.fold.clamp_min(0))  # (A + 1, N)
    return -rows.weight * (rows.fold >= 0) * log_p.gather(0, rows.number[None])[0]


def _copy(networks: AtomNetworks) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in networks.state_dict().items()}
