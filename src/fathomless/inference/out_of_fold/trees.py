r"""Fit of boosted trees and of their weight beside the networks, which :mod:`fathomless.posterior.trees` predicts with.

**Trees.** Ensemble k is the histogram gradient boosting of scikit-learn, trained on the rows outside fold k. The loss
is the negative log-likelihood of classes, or the squared error of numbers. Features are divided into at most 255 bins
between quantiles of all rows. The number of iterations minimises the loss of all rows under the ensembles that were not
trained on them, and is the same for all folds.

**Classes.** The exponents a and b of the logarithmic pool maximise the penalised log-likelihood of the same rows,

.. math:: \sum_i w_i \log \sum_s q_s\, p_{s,i}(y_i; a, b) - \tfrac12 (a - 1)^2 - \tfrac12 b^2 ,

with drawn networks s of weight q that were not trained on the row either. The gain is that over networks alone whose
exponent a is fitted too, so that a change of their temperature does not count. It is computed by cross-validation:
exponents that are fitted without a fold are evaluated on it. If it is below 2 nats in total, the trees are not used.

**Numbers.** Centre and scale of the trees are their out-of-fold scores and root mean square error. The laws of their
residuals and their weights are fitted with those of the networks
(:mod:`fathomless.inference.out_of_fold.recalibration`). New rows are predicted by the average of all ensembles, whose
scale is smaller.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from fathomless.inference.out_of_fold.noise import estimate_disagreement
from fathomless.posterior.trees import BoostedTrees, Nodes, class_scores, pool_classes
from fathomless.system.torch_state import enable_gradients

__all__ = ["GrownTrees", "PooledTrees", "TreeRows", "grow_trees", "pool_trees"]

Array = npt.NDArray[Any]

_RATE = 0.1  # learning rate
_LEAVES, _DEPTH = 31, 10  # largest numbers of leaves and of levels of a tree
_FIRST, _MOST = 64, 512  # iterations at first; twice as many while the loss is smallest near the end
_NEAR_END = 0.8
_MOST_COPIES = 20_000  # sum of whole sample weights up to which rows are repeated
_BINS = 255  # values of a feature between which trees split
_NARROWEST = 0.25  # least ratio of the squared errors of an average and of single ensembles
_LEAST_SCALE = 1e-3  # least scale of the residuals, in standard deviations of the target
_PRIOR = torch.tensor([1.0, 0.0], dtype=torch.float64, device="cpu")  # networks alone
_LEAST_GAIN = 2.0  # cross-validated gain in nats, summed over the rows


@dataclass(frozen=True, eq=False)
class TreeRows:
    """Rows that trees are fitted to.

    Attributes
    ----------
    x : ndarray of float64, shape (N, D)
        Encoded features.
    y : ndarray, shape (N,) of int64 or (N, T) of float64
        Classes 0, ..., C − 1; or encoded targets.
    weight : ndarray of float64, shape (N,)
        Sample weights.
    inside, outside : sequences of K ndarray of int64
        Indices of the rows that each ensemble is trained on, and of those on which it is evaluated.
    columns : ndarray of int64
        Indices of the features that the trees can use.
    """

    x: Array
    y: Array
    weight: Array
    inside: Sequence[Array]
    outside: Sequence[Array]
    columns: Array


@dataclass(frozen=True, eq=False)
class GrownTrees:
    """Trees, and their scores of rows that they were not trained on.

    Attributes
    ----------
    trees : BoostedTrees
        The trees.
    scores : Tensor of float64, shape (N, O)
        Scores of each row under the ensemble that has it in `outside`; 0 for rows that are in none.
    scale : Tensor of float64, shape (O,)
        Root mean square error of these scores, for numbers.
    narrowing : Tensor of float64, shape (O,)
        Root mean square error of the average of all ensembles, relative to `scale`.
    """

    trees: BoostedTrees
    scores: Tensor
    scale: Tensor
    narrowing: Tensor


def grow_trees(rows: TreeRows, classes: int | None, seed: int) -> GrownTrees:
    """Fit boosted trees to classes or numbers.

    Parameters
    ----------
    rows : TreeRows
        Rows.
    classes : int, optional
        Number of classes C; None for numbers.
    seed : int
        Seed of the bins of large tables.
    """
    if classes is not None:
        return _grow(rows, rows.y, classes, seed)
    grown = [_grow(rows, y, None, seed) for y in rows.y.T]
    return GrownTrees(
        _join([part.trees for part in grown], 2),
        torch.cat([part.scores for part in grown], 1),
        torch.cat([part.scale for part in grown]),
        torch.cat([part.narrowing for part in grown]),
    )


def _grow(rows: TreeRows, y: Array, classes: int | None, seed: int) -> GrownTrees:
    """Fit the trees of classes or of one target, (N,)."""
    edges = [find_edges(rows.x[:, column]) for column in rows.columns]
    boostings = [_Boosting(rows, y, inside, edges, classes, seed) for inside in rows.inside]
    used = np.concatenate(rows.outside)
    weight = _tensor(rows.weight)
    iterations = _FIRST
    while True:
        losses = torch.zeros(iterations, dtype=torch.float64, device="cpu")
        for boosting, outside in zip(boostings, rows.outside, strict=True):
            boosting.grow(iterations)
            target, start = _tensor(y[outside]), 0
            for scores in boosting.trees(iterations).stages(_tensor(rows.x[outside]), 0):
                part = slice(start, start := start + len(scores))
                losses += weight[outside[part]] @ _loss(scores, target[part], classes)
        best = int(losses.argmin()) + 1
        if best < _NEAR_END * iterations or iterations >= _MOST:
            break
        iterations = min(2 * iterations, _MOST)
    trees = _join([boosting.trees(best) for boosting in boostings], 0)
    scores = torch.zeros(len(y), trees.start.shape[1], dtype=torch.float64, device="cpu")
    ensemble = _tensor(np.repeat(np.arange(len(rows.outside)), [len(outside) for outside in rows.outside]))
    scores[used] = trees(_tensor(rows.x[used]), ensemble)
    error = math.sqrt(float(losses[best - 1]) / float(weight[used].sum()))
    scale = torch.tensor([max(error, _LEAST_SCALE)], dtype=torch.float64, device="cpu")
    narrowing = torch.ones_like(scale)
    if classes is None and trees.ensembles > 1:
        narrowing = _narrow(trees, _tensor(rows.x[used]), _tensor(y[used]), ensemble, weight[used])
    return GrownTrees(trees, scores, scale, narrowing)


def _narrow(trees: BoostedTrees, x: Tensor, y: Tensor, ensemble: Tensor, weight: Tensor) -> Tensor:
    r"""Return the root mean square error of the average of K ensembles, relative to that of single ones, (1,).

    It is :math:`\sqrt{1 - v + v / K}` with the share v of the disagreement,
    :func:`~fathomless.inference.out_of_fold.noise.estimate_disagreement`.
    """
    numbers = torch.arange(trees.ensembles, device="cpu")
    each = torch.stack([trees(x, k.expand(len(x))) for k in numbers])  # (K, N, 1)
    share = estimate_disagreement(y[:, None] - each, ensemble == numbers[:, None], weight)
    return (1.0 - share + share / trees.ensembles).clamp(_NARROWEST, 1.0).sqrt()


def _tensor(values: Array) -> Tensor:
    return torch.as_tensor(values, device="cpu")


def _loss(scores: Tensor, target: Tensor, classes: int | None) -> Tensor:
    """Return the loss of rows, (n, M), for scores (n, M, O)."""
    if classes is None:
        return (scores[..., 0] - target[:, None]).square()
    log_p = class_scores(scores).log_softmax(-1)
    return -log_p.gather(-1, target[:, None, None].expand(-1, log_p.shape[1], 1))[..., 0]


class _Boosting:
    """Boosting of scikit-learn on some of the rows, with scores also for classes that these rows do not have."""

    def __init__(
        self, rows: TreeRows, y: Array, inside: Array, edges: Sequence[Array], classes: int | None, seed: int
    ) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        # scikit-learn is given the bins, since its own quantiles of weighted rows take longer than the trees
        bins = [np.searchsorted(own, rows.x[inside, c]) for own, c in zip(edges, rows.columns, strict=True)]
        self.bins, self.edges = np.stack(bins, 1).astype(np.float64), edges
        self.y, self.weight, self.columns = y[inside], rows.weight[inside], rows.columns
        total = self.weight.sum()
        if total <= _MOST_COPIES and (self.weight == self.weight.round()).all():
            # a leaf has at least 20 rows, and equal rows of small tables were merged to one row with a weight
            copies = self.weight.astype(np.int64)
            self.bins, self.y, self.weight = (np.repeat(part, copies, 0) for part in (self.bins, self.y, self.weight))
            self.weight = np.ones(len(self.y))
        self.outputs = 1 if classes in (None, 2) else int(classes or 0)
        self.known = [0] if classes is None else np.unique(self.y).tolist()
        # scikit-learn has one score for two classes
        self.scored = [0] if classes is None else self.known[len(self.known) == 2 :] if len(self.known) > 1 else []
        if classes == 2:
            self.scored = [0 for _ in self.scored]
        kind = HistGradientBoostingRegressor if classes is None else HistGradientBoostingClassifier
        self.model = kind(
            learning_rate=_RATE,
            max_leaf_nodes=_LEAVES,
            max_depth=_DEPTH,
            early_stopping=False,
            warm_start=True,
            random_state=seed % 2**32,
        )

    def grow(self, iterations: int) -> None:
        """Train to a number of iterations."""
        if self.scored:
            self.model.set_params(max_iter=iterations).fit(self.bins, self.y, sample_weight=self.weight)

    def trees(self, iterations: int) -> BoostedTrees:
        """Return the trees of the first iterations as one ensemble."""
        start = self._start()
        leaf = np.zeros(1, dtype=[("is_leaf", bool), ("value", float)])  # the tree of a score without trees
        tables, root = [leaf], np.zeros((iterations, self.outputs), dtype=np.int64)
        count = 1
        for m in range(iterations if self.scored else 0):
            for column, tree in zip(self.scored, self.model._predictors[m], strict=True):
                root[m, column] = count
                tables.append(tree.nodes)
                count += len(tree.nodes)
        return BoostedTrees(_join_nodes(tables, self.columns, self.edges), _tensor(root)[None], start[None])

    def _start(self) -> Tensor:
        """Return the scores without trees, (O,). A class without rows has the weight of half a row."""
        start = torch.zeros(self.outputs, dtype=torch.float64, device="cpu")
        if self.scored:
            start[self.scored] = _tensor(self.model._baseline_prediction.flatten()).double()
        missing = math.log(0.5 / max(float(self.weight.sum()), 1.0))
        if self.outputs == 1:
            return start if self.scored else torch.full_like(start, missing if self.known == [0] else -missing)
        others = [c for c in range(self.outputs) if c not in self.known]
        start[others] = torch.logsumexp(start[self.known], 0) + missing
        return start


def find_edges(values: Array) -> Array:
    """Return the ascending edges between the bins of a feature.

    Parameters
    ----------
    values : ndarray of float64, shape (N,)
        Values of the feature. The bin of a value is the index of the first edge that is not below it.
    """
    distinct = np.unique(values)
    if len(distinct) > _BINS:
        levels = np.linspace(0.0, 1.0, _BINS + 1)[1:-1]
        return np.unique(np.quantile(values, levels, method="inverted_cdf"))
    low, high = distinct[:-1], distinct[1:]
    middle = 0.5 * low + 0.5 * high
    return np.where(middle < high, middle, low)


def _join_nodes(tables: Sequence[Array], columns: Array, edges: Sequence[Array]) -> Nodes:
    """Return the nodes of several trees as one table, given those of scikit-learn; the first one is a leaf.

    `columns` are the indices of the features, and `edges` those between their bins, which scikit-learn was given.
    """
    offsets = np.repeat([0, *accumulate(map(len, tables))][:-1], [len(table) for table in tables])
    leaf = np.concatenate([table["is_leaf"] for table in tables]).astype(bool)
    own = np.arange(len(leaf))

    def read(name: str, of_leaf: Any, dtype: type) -> Array:
        values = np.concatenate([np.zeros(1, dtype), *(table[name].astype(dtype) for table in tables[1:])])
        return np.where(leaf, of_leaf, values)

    feature = read("feature_idx", 0, np.int64)
    first = np.array([0, *accumulate(map(len, edges))])[:-1]  # index of the first edge of each feature
    of_bin = np.concatenate([*edges, np.zeros(1)])
    bin_number = read("num_threshold", 0.0, np.float64).astype(np.int64)
    parts = (
        np.where(leaf, 0, columns[feature]),
        np.where(leaf, 0.0, of_bin[first[feature] + bin_number]),
        np.where(leaf, own, offsets + read("left", 0, np.int64)),
        np.where(leaf, own, offsets + read("right", 0, np.int64)),
        np.where(leaf, np.concatenate([table["value"] for table in tables]), 0.0),
    )
    return Nodes(*map(_tensor, parts))


def _join(parts: Sequence[BoostedTrees], axis: int) -> BoostedTrees:
    """Join the ensembles (axis 0) or the scores (axis 2) of trees; scores with fewer iterations get leaves of 0."""
    offsets = [0, *accumulate(len(part.value) for part in parts)][:-1]
    most = max(part.iterations for part in parts)

    def link(name: str) -> Tensor:
        return torch.cat([getattr(part, name).long() + offset for part, offset in zip(parts, offsets, strict=True)])

    roots = []
    for part, offset in zip(parts, offsets, strict=True):
        root = part.root.long() + offset
        padding = root.new_full((len(root), most - part.iterations, root.shape[2]), offset)  # the first node is a leaf
        roots.append(torch.cat([root, padding], 1))
    plain = {name: torch.cat([getattr(part, name) for part in parts]) for name in ("feature", "threshold", "value")}
    nodes = Nodes(left=link("left"), right=link("right"), **plain)
    return BoostedTrees(nodes, torch.cat(roots, axis), torch.cat([part.start for part in parts], min(axis, 1)))


@dataclass(frozen=True, eq=False)
class PooledTrees:
    """Exponents of the logarithmic pool of networks and trees.

    Attributes
    ----------
    powers : Tensor of float64, shape (2,)
        Exponents a of the networks and b of the trees; 1 and 0 if the gain is below 2 nats in total.
    gain, error : float
        Cross-validated gain in log-likelihood over networks with a fitted exponent, in nats per row, and its standard
        error.
    change : float
        The same over networks with the exponent 1; 0 if the trees are not used.
    """

    powers: Tensor
    gain: float
    error: float
    change: float


@enable_gradients()
def pool_trees(
    log_p: Tensor, log_weight: Tensor, scores: Tensor, y: Tensor, fold: Tensor, weight: Tensor
) -> PooledTrees:
    """Fit the exponents of the pool.

    Parameters
    ----------
    log_p : Tensor of float64, shape (S, N, C)
        Log probabilities of drawn networks that were not trained on a row.
    log_weight : Tensor of float64, shape (S,)
        Log weights of the draws.
    scores : Tensor of float64, shape (N, O)
        Scores of trees that were not trained on a row.
    y, fold : Tensors of int64, shape (N,)
        Classes, and parts of the rows for the cross-validation.
    weight : Tensor of float64, shape (N,)
        Sample weights.
    """

    def log_likelihood(powers: Tensor, rows: Tensor) -> Tensor:
        pooled = pool_classes(log_p[:, rows], scores[rows], powers)  # (S, n, C)
        of_class = pooled.gather(-1, y[rows][None, :, None].expand(len(pooled), -1, 1))[..., 0]
        return torch.logsumexp(log_weight[:, None] + of_class, 0)

    def fit(rows: Tensor, most: float | None = None) -> Tensor:
        """Return the exponents of some rows, that of the trees at most `most`."""

        def objective(values: Array) -> tuple[float, Array]:
            powers = _tensor(np.asarray(values)).requires_grad_()
            penalty = 0.5 * (powers - _PRIOR).square().sum()
            loss = penalty - weight[rows] @ log_likelihood(powers, rows)
            (gradient,) = torch.autograd.grad(loss, powers)
            return float(loss.detach()), gradient.numpy()

        start = [1.0, 0.0] if most == 0.0 else [0.5, 0.5]
        found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None), (0.0, most)])
        return _tensor(found.x)

    gains, changes = torch.zeros(2, len(y), dtype=torch.float64, device="cpu")
    for k in fold.unique():
        held, others = (torch.nonzero(chosen).flatten() for chosen in (fold == k, fold != k))
        with_trees, alone = fit(others), fit(others, 0.0)
        with torch.no_grad():
            pooled = log_likelihood(with_trees, held)
            gains[held] = pooled - log_likelihood(alone, held)
            changes[held] = pooled - log_likelihood(_PRIOR, held)
    total = weight.sum()
    gain = float(weight @ gains / total)
    error = float((weight * (gains - gain).square()).sum().sqrt() / total)
    powers = fit(torch.arange(len(y), device="cpu"))
    if gain * float(total) < _LEAST_GAIN or float(powers[1]) == 0.0:
        return PooledTrees(_PRIOR.clone(), gain, error, 0.0)
    return PooledTrees(powers, gain, error, float(weight @ changes / total))
