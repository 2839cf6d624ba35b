r"""Conformal p-values of the hypothesis that a row is from the distribution of the training rows.

The training rows are divided into two halves h. The mean and covariance of each half give the whitened features
:math:`u_h(x) = T_h (z - m_h)` of a row x, and k-means gives up to 256 centres :math:`c_{hk}` of each half, means of
five rows or more on average. The distance of a row from a half is :math:`d_h(x) = \min_k |u_h(x) - c_{hk}|`. Training
row i of the other half has the distance :math:`d_{h(i)}(x_i)`. The p-value of a new row is

.. math:: p(x) = \frac{1 + \sum_i w_i\, 1\{d_{h(i)}(x_i) \ge d_{h(i)}(x)\}}{1 + \sum_i w_i}.

With one half this is the conformal p-value of Bates, Candès, Lei, Romano and Sesia, *Testing for outliers with
conformal p-values*, Annals of Statistics 51, 149 (2023), for which :math:`P(p \le \alpha) \le \alpha` if the new row
and the training rows are exchangeable: the half that the distance is measured from has no part in the calibration. For
the average over both halves the bound is :math:`2 \alpha` (Vovk and Wang, Biometrika 107, 791, 2020). On tables the
probability was below :math:`\alpha` (``benchmarks/outliers.py``).

A p-value says nothing on the target, and all columns count alike, whether the networks use them or not.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fathomless.system.errors import DataError

__all__ = [
    "OOD_LEVEL",
    "TrainingDistribution",
    "nearest_distance",
    "read_training_distribution",
    "transform_features",
    "whiten",
]

Floats = npt.NDArray[np.float64]

OOD_LEVEL = 0.05  #: p-value up to which rows count as unlike the training rows

_AT_ONCE = 2**22  # distances computed at once
_LEAST = 1e-6  # smallest variance of a whitened direction, relative to the largest
_ROUNDING = 1e-9  # relative, of distances that count as equal
_NAMES = {
    "mean": 2,
    "transform": 3,
    "centres": 2,
    "half_of_centre": 1,
    "distance": 1,
    "half_of_distance": 1,
    "weight": 1,
}


class TrainingDistribution(nn.Module):
    """Centres of the training rows, and the distances of training rows from them.

    Parameters
    ----------
    mean : Tensor, shape (2, D)
        Weighted mean of the features in each half.
    transform : Tensor, shape (2, D, D) or (2, D, 1)
        Matrix that whitens the features of each half, or a scale of each feature.
    centres : Tensor, shape (K, D)
        Whitened centres of both halves.
    half_of_centre : Tensor of int64, shape (K,)
        Half of each centre, 0 or 1.
    distance : Tensor, shape (N,)
        Distance of each training row from the centres of the half that does not contain it.
    half_of_distance : Tensor of int64, shape (N,)
        That half.
    weight : Tensor, shape (N,)
        Weights of the training rows, which are 1 without sample weights.
    """

    mean: Tensor
    transform: Tensor
    centres: Tensor
    half_of_centre: Tensor
    distance: Tensor
    half_of_distance: Tensor
    weight: Tensor

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name in _NAMES:
            self.register_buffer(name, tensors[name])

    def p_values(self, features: Tensor) -> Floats:
        """Return the p-values of rows, shape (B,), between 0 and 1.

        Parameters
        ----------
        features : Tensor, shape (B, D)
            Features on the CPU, in the data type of the training rows: rows of the table then have ties with these.
        """
        at_least = torch.ones(len(features), dtype=torch.float64, device="cpu")
        for half in range(2):
            own = self.half_of_distance == half
            distance, order = self.distance[own].sort()
            from_here = self.weight[own][order].flip(0).cumsum(0).flip(0)  # weight of this distance and of larger ones
            from_here = torch.cat([from_here, from_here.new_zeros(1)])
            u = transform_features(features.double(), self.mean[half], self.transform[half])
            new = nearest_distance(u, self.centres[self.half_of_centre == half])
            new = new - _ROUNDING * (1.0 + new)
            at_least += from_here[torch.searchsorted(distance, new)]
        p: Floats = (at_least / (1.0 + self.weight.sum())).clamp_max(1.0).numpy()  # a sum may be rounded up
        return p


def transform_features(features: Tensor, mean: Tensor, transform: Tensor) -> Tensor:
    """Return whitened features (B, D), given features (B, D) and the result of :func:`whiten`."""
    centred = features - mean
    return centred @ transform if len(transform) == transform.shape[1] else centred * transform[:, 0]


def nearest_distance(u: Tensor, centres: Tensor) -> Tensor:
    """Return the Euclidean distance of each row (B, D) from the nearest of the centres (K, D), shape (B,)."""
    parts = u.split(max(1, _AT_ONCE // len(centres)))
    exact = "donot_use_mm_for_euclid_dist"  # products of matrices are inexact for small distances
    return torch.cat([torch.cdist(part, centres, compute_mode=exact).amin(1) for part in parts])


def whiten(features: Floats, weight: Floats, most: int) -> tuple[Tensor, Tensor]:
    r"""Return the weighted mean (D,) of features (N, D), and a transform to uncorrelated ones of variance 1.

    The transform is (D, D), from the covariance :math:`(1 - \lambda) S + \lambda\, \mathrm{diag}(S)` with
    :math:`\lambda = D / (D + N)`: as if D further rows had uncorrelated features. Above `most` features it is a scale
    of each feature, (D, 1). Directions in which the training rows do not vary have 10^-6 of the largest variance.
    """
    total = float(weight.sum())
    mean = weight @ features / total
    z = features - mean
    variance = weight @ np.square(z) / total
    if z.shape[1] > most:
        return torch.as_tensor(mean, device="cpu"), torch.as_tensor(_scale(variance)[:, None], device="cpu")
    share = z.shape[1] / (z.shape[1] + len(z))
    covariance = (1.0 - share) * (z.T * weight) @ z / total + share * np.diag(variance)
    variances, axes = np.linalg.eigh(covariance)
    return torch.as_tensor(mean, device="cpu"), torch.as_tensor(axes * _scale(variances), device="cpu")


def _scale(variance: Floats) -> Floats:
    """Return the scales of directions with these variances, (D,)."""
    largest = variance.max(initial=0.0)
    return 1.0 / np.sqrt(np.maximum(variance, _LEAST * (largest if largest > 0.0 else 1.0)))


def read_training_distribution(tensors: dict[str, Tensor], width: int) -> TrainingDistribution | None:
    """Rebuild a value from its saved tensors; None if there are none.

    Parameters
    ----------
    tensors : dict of str to Tensor
        State of a :class:`TrainingDistribution`.
    width : int
        Number of features D.

    Raises
    ------
    DataError
        If they are inconsistent.
    """
    if not tensors:
        return None
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if set(shapes) != set(_NAMES) or any(len(shapes[name]) != axes for name, axes in _NAMES.items()):
        raise DataError("its distribution of the training rows has other tensors than this version writes")
    rows, centres = shapes["distance"], shapes["centres"]
    consistent = (
        shapes["mean"] == (2, width)
        and shapes["transform"] in ((2, width, width), (2, width, 1))
        and centres == (*shapes["half_of_centre"], width)
        and rows == shapes["half_of_distance"] == shapes["weight"]
    )
    halves = [tensors[name] for name in ("half_of_centre", "half_of_distance")]
    numbers = [tensor for name, tensor in tensors.items() if not name.startswith("half")]
    if (
        not consistent
        or not all(half.dtype == torch.int64 and sorted(set(half.tolist())) == [0, 1] for half in halves)
        or not all(tensor.dtype == torch.float64 and bool(tensor.isfinite().all()) for tensor in numbers)
        or bool((tensors["weight"] <= 0.0).any())
        or not bool(tensors["weight"].sum().isfinite())
        or bool((tensors["distance"] < 0.0).any())
    ):
        raise DataError("its distribution of the training rows was altered")
    return TrainingDistribution(**tensors)
