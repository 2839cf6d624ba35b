r"""Selection of columns by backward elimination within the training rows of each fold.

The importance of column c for a network with the first weight matrix W, (H, D), is the variance of its contribution to
the first layer, summed over units. With the covariance C of the features in the training rows of the network,

.. math:: v_c = \sum_h \mathrm{Var}\Bigl(\sum_{j \in c} W_{hj} x_j\Bigr) = \sum_{j, k \in c} C_{jk} (W^\top W)_{jk} .

Cross-fitted networks are trained for a short time, and each of them keeps the half of its columns with the largest
importance. This is repeated as long as the log-likelihood of the out-of-fold rows increases. The columns of a network
depend on the targets of its training rows alone. The number of columns is chosen by all out-of-fold rows.

References
----------
I. Guyon, J. Weston, S. Barnhill and V. Vapnik, "Gene Selection for Cancer Classification using Support Vector
Machines", Machine Learning 46, 2002 (recursive feature elimination).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from fathomless.data.schema import Schema
from fathomless.estimators.trials import Attempt, choose, measure_gain
from fathomless.posterior.capabilities import SelectsInputs

__all__ = ["compute_importance", "eliminate", "keep_largest", "number_columns", "share_using", "spread"]


def eliminate(
    attempts: Sequence[Attempt],
    start: Attempt,
    x: Tensor,
    inside: Sequence[Tensor],
    schema: Schema,
    train: Callable[[Mapping[str, Any], Tensor], Attempt],
    group: Tensor | None = None,
) -> list[Attempt]:
    """Halve the number of columns of each network until the out-of-fold rows are predicted worse.

    The last number is then refined once, if the networks before it are clearly better than those of the first trial.
    There is no elimination if the networks to start from are clearly worse.

    Parameters
    ----------
    attempts : sequence of Attempt
        Trials so far.
    start : Attempt
        One of these: F networks that use all columns.
    x : Tensor, shape (N, D)
        Encoded features.
    inside : sequence of F Tensors of int64
        Indices of the training rows of each network.
    schema : Schema
        Encoding of the columns.
    train : callable
        Trains networks with the options of `start` and the columns of a mask, bool, (F, columns).
    group : Tensor of int64, optional
        Group of each row of the table.

    Returns
    -------
    list of Attempt
        Networks of every round.
    """
    column = number_columns(schema)

    def reduce(attempt: Attempt, count: int) -> Attempt:
        """Train networks that use the most important ones of the columns of other networks."""
        assert attempt.kept is not None
        found = [
            compute_importance(cast(SelectsInputs, network).first_weight(), x[rows.to(x.device)], column)
            for network, rows in zip(attempt.networks, inside, strict=True)
        ]
        return train(start.options, keep_largest(torch.stack(found), attempt.kept, count))

    if not start.networks or choose([start, attempts[0]], group) is not start:
        return []
    everything = torch.ones(len(start.networks), len(schema.columns), dtype=torch.bool, device="cpu")
    rounds = [replace(start, kept=everything)]
    improves = True
    while improves and rounds[-1].networks and (count := (rounds[-1].columns + 1) // 2) < rounds[-1].columns:
        rounds.append(reduce(rounds[-1], count))
        before, after = (attempt.scores for attempt in rounds[-2:])
        improves = before is not None and after is not None and measure_gain(before, after, group)[0] > 0.0
    if not improves:
        wide, narrow = rounds[-2:]
        count = (wide.columns + narrow.columns + 1) // 2
        if narrow.columns < count < wide.columns and choose([attempts[0], wide], group) is wide:
            rounds.append(reduce(wide, count))
    return rounds[1:]


def number_columns(schema: Schema) -> Tensor:
    """Return the index of the column of each encoded feature, int64, shape (D,)."""
    counts = torch.tensor([len(column.features) for column in schema.columns], device="cpu")
    return torch.arange(len(counts), device="cpu").repeat_interleave(counts)


def compute_importance(weight: Tensor, x: Tensor, column: Tensor) -> Tensor:
    """Return the importance of each column for a network.

    Parameters
    ----------
    weight : Tensor, shape (H, D)
        First weight matrix.
    x : Tensor, shape (N, D)
        Encoded features of the training rows of the network.
    column : Tensor of int64, shape (D,)
        Index of the column of each feature, ascending.

    Returns
    -------
    float64 Tensor, shape (columns,)
        Variance of the contribution of each column to the first layer, summed over units.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 3.0], [0.0, -3.0]], device="cpu")
    >>> compute_importance(torch.tensor([[2.0, 1.0]], device="cpu"), x, torch.arange(2, device="cpu"))
    tensor([2.0000, 4.5000], dtype=torch.float64)
    """
    centred = (x - x.mean(0)).double().cpu()
    weight = weight.double().cpu()
    counts = column.unique_consecutive(return_counts=True)[1].tolist()
    parts = zip(centred.split(counts, 1), weight.split(counts, 1), strict=True)
    return torch.stack([((z.T @ z / len(x)) * (w.T @ w)).sum() for z, w in parts])


def keep_largest(importance: Tensor, kept: Tensor, count: int) -> Tensor:
    """Return a mask of the `count` kept columns with the largest importance for each network, bool, (F, columns)."""
    order = importance.masked_fill(~kept, -1.0).argsort(dim=1, descending=True, stable=True)
    return torch.zeros_like(kept).scatter(1, order[:, :count], True)


def spread(kept: Tensor, networks: int) -> Tensor:
    """Return masks (networks, D) from those of networks whose folds were merged, (F, D).

    Network k has the mask of network ⌊k F / networks⌋, whose training rows are among its own.
    """
    return kept[torch.arange(networks, device="cpu") * len(kept) // networks]


def share_using(networks: Sequence[SelectsInputs], schema: Schema) -> dict[str, float]:
    """Return the share of networks that use each column, those with a weight other than 0, by name."""
    column = number_columns(schema)
    counts = torch.zeros(len(schema.columns), dtype=torch.float64, device="cpu")
    for network in networks:
        used = (network.first_weight() != 0.0).any(0).cpu()
        counts[column[used].unique()] += 1.0
    shares = (counts / len(networks)).tolist()
    return {column.name: share for column, share in zip(schema.columns, shares, strict=True)}
