r"""Search for a logarithmic transform of a skewed target, by leave-one-out predictions of Gaussian processes.

A transform T is compared with no transform by the density of y that a regression of T(y) gives to rows it has not
seen, :math:`\log p(T(y_i) \mid x_i, D_{-i}) + \log T'(y_i)`. The regression is a Gaussian process with the covariance

.. math:: K = \lambda \left( K_0 + r I \right)

where :math:`K_0` is linear, or the sum of a linear covariance and a squared exponential one of a given length. Its
leave-one-out predictions have the mean :math:`y_i - \alpha_i / P_{ii}` and the variance :math:`\lambda / P_{ii}`, with
:math:`P = (K_0 + r I)^{-1}` and :math:`\alpha = P y`; the best λ has a closed form. One eigendecomposition of
:math:`K_0` serves all noise ratios r and all transforms, so that the search takes a fraction of a second.

The result is a proposal. A network with a curved mean may not need the transform that a smooth process needs, so the
estimator fits networks to both targets, and compares their out-of-fold rows.

References
----------
Snelson, Rasmussen & Ghahramani, *Warped Gaussian processes*, NeurIPS 2003.
Rasmussen & Williams, *Gaussian processes for machine learning*, MIT Press 2006, section 5.4.2.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fathomless.system.transforms import LogTransform

__all__ = ["FEWEST_ROWS", "MOST_ROWS", "Proposal", "leave_one_out", "list_transforms", "propose_transform"]

FEWEST_ROWS = 30  #: rows with other values than the atoms of a target, below which no transform is tried
MOST_ROWS = 1000  #: rows above which the laws of the residual learn a skew as well
_COMPARED = 400  # rows used by the search
_UNITS = tuple(2.0**k for k in range(-4, 3))  # units, relative to the median distance from the threshold
_LENGTHS = (0.25, 1.0, 4.0)  # squared lengths, relative to the median squared distance of two rows
_NOISE = tuple(torch.logspace(-3.0, 1.5, 12, dtype=torch.float64, device="cpu").tolist())
_LEAST_GAIN = 4.0  # nats
_LEAST_RATIO = 2.5  # gain divided by its standard error
_RANGE = 2.0  # limit of values in moments, relative to the range of the rows


class Proposal(NamedTuple):
    """A transform, and what the search expects from it.

    Attributes
    ----------
    transform : LogTransform
        The transform.
    gain, error : float
        Gain in log density over no transform by the search, and its standard error, in nats per row.
    """

    transform: LogTransform
    gain: float
    error: float


def propose_transform(x: Tensor, y: Tensor, weight: Tensor | None = None) -> Proposal | None:
    """Return the transform with the largest gain; None if the gain is below 4 nats, or 2.5 standard errors.

    Parameters
    ----------
    x : Tensor of float64, shape (N, D)
        Encoded features.
    y : Tensor of float64, shape (N,)
        Target, in its units. The search uses at most 400 rows.
    weight : Tensor of float64, shape (N,), optional
        Sample weights.
    """
    if not FEWEST_ROWS <= len(y) <= MOST_ROWS or bool((y == y[0]).all()):
        return None
    transforms = list_transforms(y)
    used = slice(None, None, math.ceil(len(y) / _COMPARED))
    total = len(y)
    x, y = x[used], y[used]
    share = torch.ones_like(y) if weight is None else weight[used]
    share = share / share.sum()
    targets = torch.stack([y, *(transform.transform(y) for transform in transforms)], 1)  # (N, C + 1)
    slopes = torch.stack([torch.zeros_like(y), *(transform.log_slope(y) for transform in transforms)], 1)
    log_density = leave_one_out(x, targets, share) + slopes
    gains = log_density[:, 1:] - log_density[:, :1]  # (N, C)
    best = int((share @ gains).argmax())
    gain = float(share @ gains[:, best])
    error = float(((share * (gains[:, best] - gain)).square().sum()).sqrt())
    if not (gain * total > _LEAST_GAIN and gain > _LEAST_RATIO * error):
        return None
    return Proposal(transforms[best], gain, error)


def list_transforms(y: Tensor) -> list[LogTransform]:
    """Return logarithms above the smallest and below the largest value, with several units."""
    transforms = []
    for sign in (1.0, -1.0):
        threshold = float(y.min() if sign > 0.0 else y.max())
        distance = (y - threshold).abs()
        middle = float(distance[distance > 0.0].median())
        for factor in _UNITS:
            limit = _RANGE * float(distance.max()) / (factor * middle)
            transforms.append(LogTransform(threshold, factor * middle, sign, limit))
    return transforms


def leave_one_out(x: Tensor, targets: Tensor, share: Tensor) -> Tensor:
    """Return the leave-one-out log densities of each target under its best Gaussian process, (N, C).

    Parameters
    ----------
    x : Tensor, shape (N, D)
        Encoded features.
    targets : Tensor, shape (N, C)
        Targets.
    share : Tensor, shape (N,)
        Weights of the rows, which sum to 1.
    """
    centred = targets - share @ targets
    best = torch.full_like(targets[0], -math.inf)
    found = torch.zeros_like(targets)
    for covariance in _covariances(x, share):
        values, vectors = torch.linalg.eigh(covariance)
        rotated = vectors.T @ centred
        for noise in _NOISE:
            inverse = 1.0 / (values.clamp_min(0.0) + noise)
            precision = (vectors.square() @ inverse)[:, None]  # (N, 1)
            residual = vectors @ (inverse[:, None] * rotated) / precision
            scale = share @ (precision * residual.square())  # (C,)
            variance = scale.clamp_min(torch.finfo(scale.dtype).tiny) / precision
            log_density = -0.5 * (residual.square() / variance + variance.log() + math.log(2.0 * math.pi))
            score = share @ log_density
            better = score > best
            best = torch.where(better, score, best)
            found = torch.where(better, log_density, found)
    return found


def _covariances(x: Tensor, share: Tensor) -> Iterator[Tensor]:
    """Yield the covariances of the processes without noise, (N, N)."""
    x = x - share @ x
    spread = (share @ x.square()).sqrt()
    x = (x / torch.where(spread > 0.0, spread, 1.0)).clamp(-6.0, 6.0)
    linear = x @ x.T / max(1, x.shape[1]) + 1.0
    yield linear
    squares = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    apart = squares[squares > 0.0]
    if len(apart):
        for length in _LENGTHS:
            yield 0.5 * linear + torch.exp(-0.5 * squares / (length * apart.median()))
