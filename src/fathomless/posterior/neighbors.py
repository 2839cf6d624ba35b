r"""Nearest training rows: their targets as features and as parts of laws of the standardised residual.

The recalibration (:mod:`fathomless.posterior.recalibration`) can use the 16 training rows that are nearest to a row,
option `neighbors`. Let :math:`r_j = (y_j - m) / s` be the standardised difference of the target of the j-th nearest row
from the mean of the law of the networks, and :math:`d_j` its distance. There are eight features: :math:`r_1`, the means
of the first 4 and of all 16 of r, their mean with weights :math:`1 / (d_j + d_{16} / 10)`, the logarithms of their
standard deviations among 4 and 16, and :math:`\log d_1` and :math:`\log d_{16}`. Means are clipped to ±6, and
logarithms are at least log 0.001. The values :math:`r_1, …, r_4` are also the centres of four parts of a law. These
parts describe rows that repeat the target of a near row, such as replicates of one experiment.

**Distances** are Euclidean, between encoded rows. Numbers and dates are in standard deviations. Two categories of a
column have the squared distance 2, true and false 4, and a missing and a known value at least 1. All columns have the
same weight, and sample weights have no effect. The search is exact, in double precision. It compares a row with every
stored row, so its time is proportional to their product, and its memory is bounded. Ties are broken by the order of the
stored rows, which is random.

**Privacy and size.** A fit with neighbours contains its encoded training rows and their targets, and so does a saved
file: (D + T + 2) numbers for each row. They can be decoded with the schema of the file.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fathomless.system.errors import DataError

__all__ = ["FEATURES", "NEIGHBORS", "PARTS", "NeighborRows", "Neighborhoods", "describe", "read_neighbors"]

NEIGHBORS = 16  #: number of nearest rows
PARTS = 4  #: number of nearest rows whose targets are centres of parts of a law
FEATURES = 8  #: number of features
_LIMIT = 6.0  # largest feature that is a mean
_LEAST = 1e-3  # smallest distance and standard deviation in a feature
_EQUAL = 1e-6  # relative difference of equal targets, which may be in single precision
_AT_ONCE = 1 << 20  # distances in memory


class Neighborhoods(NamedTuple):
    """The nearest rows of N rows, in ascending order of distance.

    Attributes
    ----------
    y : Tensor of float64, shape (N, 16, T)
        Encoded targets of the nearest rows.
    distance : Tensor of float64, shape (N, 16)
        Distances of encoded rows.
    """

    y: Tensor
    distance: Tensor

    def take_target(self, target: int) -> "Neighborhoods":
        """Return the neighbourhoods with one of the targets."""
        return self._replace(y=self.y[..., target : target + 1])

    def repeats(self, y: Tensor) -> Tensor:
        """Return True for each target (N, T) that one of the four nearest rows has too, up to rounding."""
        return (self.y[:, :PARTS] - y[:, None]).abs().le(_EQUAL * (1.0 + y[:, None].abs())).any(1)


def describe(near: Neighborhoods, mean: Tensor, std: Tensor) -> Tensor:
    """Return the centres of four parts and the eight features of each row, shape (T, N, 12).

    Parameters
    ----------
    near : Neighborhoods
        Nearest rows.
    mean, std : Tensors, shape (N, T)
        Mean and standard deviation of the law of the networks, in units of the encoded target.
    """
    # contiguous, so that sums over neighbours have the same order in all parts of a table
    r = ((near.y - mean[:, None]) / std[:, None]).permute(2, 0, 1).contiguous()  # (T, N, 16)
    d = near.distance
    weight = 1.0 / (d + 0.1 * d[:, -1:] + 1e-9)
    few = r[..., :PARTS]
    means = [r[..., 0], few.mean(-1), r.mean(-1), (weight * r).sum(-1) / weight.sum(-1)]
    spreads = [part.std(-1, correction=0) for part in (few, r)]
    distances = [d[:, i].expand(len(r), -1) for i in (0, -1)]
    features = [value.clamp(-_LIMIT, _LIMIT) for value in means]
    features += [value.clamp_min(_LEAST).log() for value in (*spreads, *distances)]
    return torch.cat([few, torch.stack(features, -1)], -1)


class NeighborRows(nn.Module):
    """Stored training rows, which are searched for the nearest ones.

    Parameters
    ----------
    x : Tensor, shape (M, D)
        Encoded features.
    y : Tensor of float64, shape (M, T)
        Encoded targets.
    fold : Tensor of int64, shape (M,)
        Fold of each row in the first partition; −1 for rows in no fold.
    unit : Tensor of int64, shape (M,)
        Number of the group of each row, or of the row of which it is a copy.

    Raises
    ------
    DataError
        If there are fewer than 17 rows.
    """

    x: Tensor
    y: Tensor
    fold: Tensor
    unit: Tensor

    def __init__(self, x: Tensor, y: Tensor, fold: Tensor, unit: Tensor) -> None:
        super().__init__()
        if len(x) <= NEIGHBORS:
            raise DataError(f"{len(x)} rows were given as neighbours; at least {NEIGHBORS + 1} are needed")
        for name, value in (("x", x), ("y", y), ("fold", fold), ("unit", unit)):
            self.register_buffer(name, value)

    def find(self, x: Tensor, fold: Tensor | None = None) -> Neighborhoods:
        """Return the nearest rows of new rows, or of out-of-fold rows.

        An out-of-fold row is not its own neighbour, and neither are the other rows of its group. It is recognised by
        its fold and its features. If exactly one group of the fold has a row with equal features, this group is left
        out, and otherwise the whole fold.

        Parameters
        ----------
        x : Tensor, shape (N, D)
            Encoded features.
        fold : Tensor of int64, shape (N,), optional
            Fold of each row; None for new rows.

        Raises
        ------
        DataError
            If an out-of-fold row has fewer than 16 neighbours.
        """
        return self._search(x, None if fold is None else lambda part, distance: self._left_out(fold[part], distance))

    def find_others(self, x: Tensor, unit: Tensor) -> Neighborhoods | None:
        """Return the nearest rows outside the group of each row; None if a row has fewer than 16.

        Parameters
        ----------
        x : Tensor, shape (N, D)
            Encoded features.
        unit : Tensor of int64, shape (N,)
            Group of each row.
        """
        if len(self.unit) - int(self.unit.unique(return_counts=True)[1].max()) < NEIGHBORS:
            return None
        return self._search(x, lambda part, _: unit[part, None] == self.unit)

    def _left_out(self, fold: Tensor, distance: Tensor) -> Tensor:
        """Return True for the stored rows that are no neighbours of out-of-fold rows, (n, M)."""
        inside = fold[:, None] == self.fold
        equal = inside & (distance == 0.0)
        highest = torch.where(equal, self.unit, -1).amax(1)
        lowest = torch.where(equal, self.unit, len(self.unit)).amin(1)
        return torch.where((lowest == highest)[:, None], self.unit == highest[:, None], inside)

    @torch.no_grad()
    def _search(self, x: Tensor, left_out: Callable[[slice, Tensor], Tensor] | None) -> Neighborhoods:
        """Return the nearest rows, without those for which a function of rows and distances (n, M) is True."""
        query, stored = x.cpu().double(), self.x.double()
        size = max(1, _AT_ONCE // len(stored))
        found, places = [], []
        for start in range(0, len(query), size):
            part = slice(start, start + size)
            # differences, not products: equal rows have distance zero
            distance = torch.cdist(query[part], stored, compute_mode="donot_use_mm_for_euclid_dist")
            if left_out is not None:
                distance = distance.masked_fill(left_out(part, distance), math.inf)
            nearest = distance.topk(NEIGHBORS, largest=False)
            found.append(nearest.values)
            places.append(nearest.indices)
        if not found:
            return Neighborhoods(self.y.new_zeros(0, NEIGHBORS, self.y.shape[1]), query.new_zeros(0, NEIGHBORS))
        if not bool(torch.cat(found).isfinite().all()):
            raise DataError(
                f"a row was given with a fold outside which there are fewer than {NEIGHBORS} training rows; predict it "
                "without fold, or fit with neighbors=False"
            )
        return Neighborhoods(self.y[torch.cat(places)], torch.cat(found))


def read_neighbors(tensors: Mapping[str, Tensor], targets: int, inputs: int) -> NeighborRows | None:
    """Rebuild stored rows from their state, (name, tensor); None if there are none.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        Result of ``state_dict``.
    targets, inputs : int
        Numbers of targets T and of encoded features D of the fit.

    Raises
    ------
    DataError
        If the tensors do not fit together.
    """
    if not tensors:
        return None
    if set(tensors) != {"x", "y", "fold", "unit"}:
        raise DataError("the neighbours of its recalibration have other tensors than x, y, fold and unit")
    x, y, fold, unit = (tensors[name] for name in ("x", "y", "fold", "unit"))
    rows = len(x) if x.ndim else 0
    shapes = [tuple(value.shape) for value in (x, y, fold, unit)]
    types = [x.is_floating_point(), y.dtype == torch.float64, fold.dtype == torch.int64, unit.dtype == torch.int64]
    if shapes != [(rows, inputs), (rows, targets), (rows,), (rows,)] or not all(types):
        raise DataError("the neighbours of its recalibration do not have the shapes of its columns and targets")
    if not (bool(x.isfinite().all()) and bool(y.isfinite().all())):
        raise DataError("the neighbours of its recalibration have values that are not finite")
    if rows and not bool(((unit >= 0) & (unit < rows)).all()):
        raise DataError("the neighbours of its recalibration have groups that do not exist")
    return NeighborRows(x, y, fold, unit)
