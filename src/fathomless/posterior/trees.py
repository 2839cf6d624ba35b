r"""Boosted trees as one more structure beside the networks: option `trees`.

An ensemble of boosted trees (Friedman, *Greedy function approximation: a gradient boosting machine*, Annals of
Statistics 29, 2001) has the scores

.. math:: s(x) = s_0 + \sum_{m=1}^{M} t_m(x) ,

where each tree t_m is constant on the cells of a partition of the features. There are K ensembles, one for each fold of
the rows, and the scores of a new row are their average. Trees represent steps and interactions of columns that layers
learn slowly. They are not differentiable in x.

**Classes.** The prediction is a logarithmic pool of each drawn network, p_s, and the trees, p_t = softmax(s),

.. math:: p(c \mid x) \propto p_s(c \mid x)^a\, p_t(c \mid x)^b, \qquad a, b \ge 0 .

**Numbers.** The trees have their own laws of the standardised residual, and are a part of the linear pool of the
recalibration (:mod:`fathomless.posterior.recalibration`).

The trees and their weights are fitted in :mod:`fathomless.inference.out_of_fold.trees`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fathomless.system.errors import DataError

__all__ = [
    "BoostedTrees",
    "Nodes",
    "TensorTrees",
    "TreePool",
    "class_scores",
    "pool_classes",
    "read_tree_pool",
    "read_trees",
]

Array = npt.NDArray[Any]

_DEEPEST = 64  # levels of a tree
_AT_ONCE = 2**18  # leaves of rows and trees that are searched together
_LEAST_LOG = -1e4  # log probabilities are at least this
_INTEGERS = ("root", "feature", "left", "right")


@dataclass(frozen=True, eq=False)
class Nodes:
    """The P nodes of all trees. A row goes to the left child if its feature is at most the threshold.

    Attributes
    ----------
    feature : Tensor of int64, shape (P,)
        Index of the feature; 0 for leaves.
    threshold : Tensor of float64, shape (P,)
        Threshold; 0 for leaves.
    left, right : Tensors of int64, shape (P,)
        Children, which have larger indices; leaves have their own index.
    value : Tensor of float64, shape (P,)
        Value of a leaf.
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor


class BoostedTrees(nn.Module):
    """K ensembles of M boosted trees with O scores each.

    Parameters
    ----------
    nodes : Nodes
        Nodes of all trees.
    root : Tensor of int64, shape (K, M, O)
        Index of the root of each tree.
    start : Tensor of float64, shape (K, O)
        Scores without trees.
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    root: Tensor
    start: Tensor

    def __init__(self, nodes: Nodes, root: Tensor, start: Tensor) -> None:
        super().__init__()
        for name, tensor in {**vars(nodes), "root": root, "start": start}.items():
            self.register_buffer(name, tensor.to(torch.int32) if name in _INTEGERS else tensor.double())
        self._levels = _count_levels(self.left, self.right, self.root)

    @property
    def ensembles(self) -> int:
        """Number of ensembles K."""
        return len(self.start)

    @property
    def iterations(self) -> int:
        """Number of trees M of each score."""
        return self.root.shape[1]

    def forward(self, x: Tensor, ensemble: Tensor | None = None) -> Tensor:
        """Return the scores of rows, shape (N, O), in float64 on the CPU.

        Parameters
        ----------
        x : Tensor, shape (N, D)
            Encoded features.
        ensemble : Tensor of int64, shape (N,), optional
            Ensemble of each row; by default the scores of all ensembles are averaged.
        """
        rows, walk = x.detach().double().cpu().numpy(), self._walk()
        scores = np.zeros((len(rows), self.start.shape[1]))
        for k in range(self.ensembles):
            chosen = slice(None) if ensemble is None else np.flatnonzero(ensemble.cpu().numpy() == k)
            of_trees = [leaves.sum(1) for leaves in walk.leaves(rows[chosen], k)]
            scores[chosen] += self.start[k].numpy() + np.concatenate(of_trees)
        return torch.as_tensor(scores if ensemble is not None else scores / self.ensembles, device="cpu")

    def stages(self, x: Tensor, ensemble: int) -> Iterator[Tensor]:
        """Yield the scores of parts of rows (N, D) after each iteration of one ensemble, shape (n, M, O)."""
        for leaves in self._walk().leaves(x.double().cpu().numpy(), ensemble):
            yield self.start[ensemble] + torch.as_tensor(leaves, device="cpu").cumsum(1)

    def _walk(self) -> "_Walk":
        tables = {name: getattr(self, name).cpu().numpy() for name in (*Nodes.__dataclass_fields__, "root")}
        child = np.stack([tables["left"], tables["right"]], 1).ravel()
        feature, root, child = (table.astype(np.intp) for table in (tables["feature"], tables["root"], child))
        return _Walk(feature, root, child, tables["threshold"], tables["value"], self._levels)


class _Walk(NamedTuple):
    """Tables of nodes in NumPy, where the walk from the roots takes a third of the time."""

    feature: Array  # (P,)
    root: Array  # (K, M, O)
    child: Array  # (2 P,), left and right child of each node
    threshold: Array
    value: Array
    levels: int

    def leaves(self, x: Array, ensemble: int) -> Iterator[Array]:
        """Yield the values of the leaves of all trees of one ensemble, (n, M, O), for parts of the rows (N, D)."""
        root = self.root[ensemble].ravel()  # (M O,)
        size = max(1, _AT_ONCE // max(len(root), 1))
        for start in range(0, max(1, len(x)), size):
            part = x[start : start + size]
            first = x.shape[1] * np.arange(len(part))[:, None]  # place of the first feature of each row
            node = np.broadcast_to(root, (len(part), len(root)))
            for _ in range(self.levels):
                values = part.take(self.feature.take(node) + first)
                node = self.child.take(2 * node + (values > self.threshold.take(node)))
            yield self.value.take(node).reshape(len(part), *self.root.shape[1:])


class TensorTrees(nn.Module):
    """Scores of boosted trees by operations of PyTorch alone, for exported modules.

    They are those of :class:`BoostedTrees` up to rounding, and take more time and memory. Their gradient is zero.

    Parameters
    ----------
    trees : BoostedTrees
        Trees, whose tables become constants.
    """

    feature: Tensor
    threshold: Tensor
    value: Tensor
    root: Tensor
    child: Tensor
    start: Tensor

    def __init__(self, trees: BoostedTrees) -> None:
        super().__init__()
        self.ensembles, self.levels = trees.ensembles, trees._levels
        self.scores = trees.start.shape[1]
        tables = {"feature": trees.feature, "threshold": trees.threshold, "value": trees.value, "root": trees.root}
        tables["child"] = torch.stack([trees.left, trees.right], 1).flatten()
        for name, table in tables.items():
            plain = table.cpu() if table.is_floating_point() else table.long().cpu()
            self.register_buffer(name, plain)
        self.register_buffer("start", trees.start.mean(0).cpu())

    def forward(self, x: Tensor, ensemble: None = None) -> Tensor:
        """Return the average scores of all ensembles, shape (N, O), for encoded features (N, D)."""
        rows, start = x.double(), self.start
        for root in self.root.flatten(1):  # (M O,), one ensemble at a time
            node = root.expand(rows.shape[0], -1)
            for _ in range(self.levels):
                right = rows.gather(1, self.feature[node]) > self.threshold[node]
                node = self.child[2 * node + right.long()]
            leaves = self.value[node].unflatten(1, (-1, self.scores))  # (N, M, O)
            start = start + leaves.sum(1) / self.ensembles
        return start


def class_scores(scores: Tensor) -> Tensor:
    """Return a score for each class, shape (..., C); the trees of two classes have the log odds of class 1 alone."""
    return torch.cat([torch.zeros_like(scores), scores], -1) if scores.shape[-1] == 1 else scores


def _count_levels(left: Tensor, right: Tensor, root: Tensor) -> int:
    """Return the number of splits on the longest path from a root to a leaf.

    Raises
    ------
    DataError
        If there are more than 64.
    """
    node = root.flatten().unique()
    for level in range(_DEEPEST + 1):
        node = node[left[node] != node]
        if not len(node):
            return level
        node = torch.cat([left[node], right[node]]).unique()
    raise DataError(f"its trees have more than {_DEEPEST} levels")


class TreePool(nn.Module):
    """Boosted trees for C classes and the exponents of the logarithmic pool with the networks.

    Parameters
    ----------
    trees : BoostedTrees
        Trees with C scores, or the log odds of class 1 for two classes.
    powers : Tensor, shape (2,)
        Exponents a of the networks and b of the trees.
    """

    powers: Tensor

    def __init__(self, trees: BoostedTrees, powers: Tensor) -> None:
        super().__init__()
        self.trees = trees
        self.register_buffer("powers", powers.double())

    def pool(self, log_p: Tensor, x: Tensor, ensemble: Tensor | None = None) -> Tensor:
        """Return the log probabilities of the pool with each drawn network, shape (S, N, C).

        Parameters
        ----------
        log_p : Tensor of float64, shape (S, N, C)
            Log probabilities of the networks.
        x : Tensor, shape (N, D)
            Encoded features.
        ensemble : Tensor of int64, shape (N,), optional
            Ensemble that was not fitted to each row.
        """
        return pool_classes(log_p, self.trees(x, ensemble), self.powers)


def pool_classes(log_p: Tensor, scores: Tensor, powers: Tensor) -> Tensor:
    """Return log softmax(a log p + b s): the logarithmic pool of networks (S, N, C) and trees with scores (N, O)."""
    # the logarithm of a probability that underflows is not finite
    return (powers[0] * log_p.clamp_min(_LEAST_LOG) + powers[1] * class_scores(scores)).log_softmax(-1)


def read_trees(tensors: Mapping[str, Tensor], outputs: int, inputs: int) -> BoostedTrees:
    """Rebuild boosted trees from their state, (name, tensor).

    Parameters
    ----------
    tensors : mapping of str to Tensor
        Result of ``state_dict``.
    outputs, inputs : int
        Numbers of scores O and of encoded features D of the fit.

    Raises
    ------
    DataError
        If the tensors do not fit together.
    """
    names = [*Nodes.__dataclass_fields__, "root", "start"]
    if set(tensors) != set(names) or any(
        tensors[name].dtype != (torch.int32 if name in _INTEGERS else torch.float64) for name in names
    ):
        raise DataError("its trees have other tensors than nodes, roots and start")
    nodes = [tensors[name] for name in Nodes.__dataclass_fields__]
    root, start = tensors["root"], tensors["start"]
    count = len(nodes[0]) if nodes[0].ndim else 0
    if any(part.shape != (count,) for part in nodes) or root.ndim != 3 or start.shape != (len(root), outputs):
        raise DataError("its trees do not have the shapes of its folds and targets")
    if not len(root) or root.shape[2] != outputs:
        raise DataError("its trees do not have the shapes of its folds and targets")
    feature, threshold, left, right, value = nodes
    own = torch.arange(count, device="cpu")
    leaf = (left == own) & (right == own)
    inner = (left > own) & (right > own) & (left < count) & (right < count)
    if not (
        bool((leaf | inner).all())
        and _inside(root, count)
        and _inside(feature, max(inputs, 1))
        and all(bool(part.isfinite().all()) for part in (threshold, value, start))
    ):
        raise DataError("its trees have nodes or columns that do not exist, or values that are not finite")
    return BoostedTrees(Nodes(feature, threshold, left, right, value), root, start)


def _inside(index: Tensor, count: int) -> bool:
    return bool(((index >= 0) & (index < count)).all())


def read_tree_pool(tensors: Mapping[str, Tensor], classes: int, inputs: int) -> TreePool | None:
    """Rebuild a pool with trees from its state, (name, tensor); None if there is none.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        Result of ``state_dict``.
    classes, inputs : int
        Numbers of classes C and of encoded features D of the fit.

    Raises
    ------
    DataError
        If the tensors do not fit together.
    """
    if not tensors:
        return None
    start = "trees."
    of_trees = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
    trees = read_trees(of_trees, 1 if classes == 2 else classes, inputs)
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(start)}
    powers = rest.get("powers")
    if len(rest) != 1 or powers is None or powers.shape != (2,) or powers.dtype != torch.float64:
        raise DataError("its trees have other tensors than two exponents")
    if not bool((powers.isfinite() & (powers >= 0.0)).all()):
        raise DataError("the exponents of its trees are negative or not finite")
    return TreePool(trees, powers)
