"""Distribution of the training rows of a fit, for the p-values of new rows."""

import warnings

import numpy as np
import numpy.typing as npt
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.estimators.encoding import Task
from fathomless.estimators.preparation import Prepared
from fathomless.posterior.out_of_distribution import (
    TrainingDistribution,
    nearest_distance,
    transform_features,
    whiten,
)
from fathomless.system.rng import fold_in

__all__ = ["FEWEST_ROWS", "fit_training_distribution"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

FEWEST_ROWS = 50  #: training rows below which there are no p-values
_MOST_ROWS = 5_000  # training rows that are used
_MOST_NUMBERS = 2_500_000  # features of these rows together
_MOST_WHITENED = 512  # features up to which correlations are used
_CENTRES, _ROWS_PER_CENTRE = 256, 5  # maximum number of centres of a half; rows of a centre, on average
_ITERATIONS = 10  # of k-means


def fit_training_distribution(table: Prepared, task: Task) -> TrainingDistribution | None:
    """Return the distribution of the training rows of a table.

    None for densities, which have their own score, for inputs that are no vectors, for streams, and below 50 rows.
    Bins of columns of numbers are left out. Of large tables, a random sample of 5,000 rows is used, or fewer for more
    than 500 features.

    Parameters
    ----------
    table : Prepared
        Table of the fit.
    task : Task
        Encoding of rows and targets.
    """
    rows = table.train
    if task.density or not isinstance(rows, Rows) or rows.x.ndim != 2 or len(rows) < FEWEST_ROWS:
        return None
    features = list(table.schema.plain_features)
    generator = np.random.default_rng(fold_in(table.seed, "out of distribution"))
    most = max(FEWEST_ROWS, min(_MOST_ROWS, _MOST_NUMBERS // max(1, len(features))))
    chosen = np.sort(generator.permutation(len(rows))[:most])
    index = torch.from_numpy(chosen).to(rows.x.device)
    x = rows.x[index][:, features].double().cpu().numpy()
    mass = rows.weight if table.mass is None or table.folds is None else table.mass
    weight = np.ones(len(x)) if mass is None else mass.double().cpu().numpy()[chosen]
    if mass is rows.weight and (weight != np.rint(weight)).any():  # whole numbers are numbers of equal rows
        weight = weight * (len(weight) / weight.sum())
    half = _divide(table, chosen, generator)
    if not 0 < half.sum() < len(half):
        return None
    features_of, means, transforms, centres = torch.from_numpy(x), [], [], []
    other = torch.from_numpy(1 - half)
    distance = torch.empty(len(x), dtype=torch.float64, device="cpu")
    for h in range(2):
        mean, transform = whiten(x[half == h], weight[half == h], _MOST_WHITENED)
        u = transform_features(features_of, mean, transform)
        means.append(mean)
        transforms.append(transform)
        centres.append(_cluster(u.numpy()[half == h], fold_in(table.seed, "centres", h)))
        distance[other == h] = nearest_distance(u[other == h], centres[h])
    return TrainingDistribution(
        mean=torch.stack(means),
        transform=torch.stack(transforms),
        centres=torch.cat(centres),
        half_of_centre=torch.arange(2, device="cpu").repeat_interleave(
            torch.tensor([len(of_half) for of_half in centres], device="cpu")
        ),
        distance=distance,
        half_of_distance=other,
        weight=torch.from_numpy(weight),
    )


def _divide(table: Prepared, chosen: Ints, generator: np.random.Generator) -> Ints:
    """Return the half of each chosen row, 0 or 1; rows of a group, or of a fold, are in the same half."""
    if table.folds is not None:
        return table.folds[0].numpy()[chosen].astype(np.int64) % 2
    unit = np.arange(len(chosen)) if table.group is None else table.group.numpy()[chosen]
    _, unit = np.unique(unit, return_inverse=True)
    return (generator.permutation(unit.max() + 1) % 2)[unit]


def _cluster(u: Floats, seed: int) -> Tensor:
    """Return the centres of the clusters of rows (N, D), shape (K, D)."""
    count = int(np.clip(len(u) // _ROWS_PER_CENTRE, 1, _CENTRES))
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # fewer distinct rows than centres
        fitted = KMeans(count, init="random", n_init=1, max_iter=_ITERATIONS, random_state=seed % 2**32).fit(u)
    return torch.from_numpy(np.unique(fitted.cluster_centers_, axis=0))
