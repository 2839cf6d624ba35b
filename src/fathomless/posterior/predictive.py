r"""Predictive distributions of a weighted set of networks with a likelihood.

.. math:: p(y \mid x) = \sum_s w_s\, p(y \mid f_s(x))

Probabilities are averaged, not logits, and the variance includes the observation noise. The law of total variance (for
classes: the chain rule of mutual information) decomposes the uncertainty into parts of noise, weights and structure.

Results other than samples and labels are differentiable in the inputs and in the parameters of network and likelihood,
if the network is. Use ``torch.no_grad()`` if no gradients are needed.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import (
    ContinuousPredictive,
    Labels,
    NumberPredictive,
    Predictive,
    Values,
    to_double,
)
from fathomless.posterior.indicators import IndicatorPredictive
from fathomless.posterior.lattice import LatticePredictive
from fathomless.posterior.likelihoods import Likelihood, cell_of
from fathomless.posterior.mixtures import Classes, Component, Indicators
from fathomless.posterior.model import Draws
from fathomless.posterior.transformed import TransformedPredictive
from fathomless.system.errors import DataError, DivergenceError
from fathomless.system.transforms import LogTransform

__all__ = ["concatenate", "predictive"]


def predictive(
    draws: Draws,
    likelihood: Likelihood,
    *,
    shift: Values | None = None,
    scale: Values | None = None,
    labels: Sequence[object] | Labels | None = None,
    squeeze: bool = False,
    lattice: tuple[float, float] | None = None,
    transform: LogTransform | None = None,
) -> NumberPredictive | ClassPredictive | IndicatorPredictive:
    """Compute the predictive distribution of drawn networks with a likelihood.

    Parameters
    ----------
    draws : Draws
        Networks evaluated on N rows. Draws of weight zero are dropped.
    likelihood : Likelihood
        Likelihood that the networks were trained with.
    shift, scale : array_like, shape () or (T,), optional
        Change of units ``shift + scale * y`` from the standardised target, for continuous targets.
    labels : sequence of length C, optional
        Names of the classes, for classification.
    squeeze : bool
        Drop the axis of targets, for a single continuous target.
    lattice : (float, float), optional
        Step and offset of the lattice of a single target, in its units. The prediction is a law on the lattice if the
        likelihood has cells, or the target has a transform.
    transform : LogTransform, optional
        Transform of a single target; `shift` and `scale` are then units of the transformed target.

    Returns
    -------
    ContinuousPredictive, TransformedPredictive, LatticePredictive, ClassPredictive or IndicatorPredictive

    Raises
    ------
    DataError
        If an option does not fit the likelihood or has the wrong length, or if its components have an unknown type.
    DivergenceError
        If a network of positive weight has an output that is not finite.

    Notes
    -----
    Moments, densities, probabilities and quantiles are differentiable in the outputs of the draws and their weights.

    Examples
    --------
    >>> from fathomless.posterior.likelihoods import Gaussian
    >>> f = torch.tensor([-1.0, 1.0]).reshape(2, 1, 1)
    >>> draws = Draws(f, torch.tensor([0.5, 0.5]).log(), torch.tensor([1, 2]), {})
    >>> p = predictive(draws, Gaussian(noise=1.0), shift=10.0, scale=2.0, squeeze=True)
    >>> p
    ContinuousPredictive(rows=1, draws=2, structures=2)
    >>> p.mean, p.variance
    (tensor([10.], dtype=torch.float64), tensor([8.], dtype=torch.float64))
    """
    f, log_weight, structure, network = _select_draws(draws)
    layout: dict[str, Any] = {"sampled": draws.sampled, "network": network}
    match likelihood.components(f):
        case Classes(log_p):
            if shift is not None or scale is not None or squeeze:
                raise DataError("shift, scale or squeeze was given for classes; allowed is labels: leave them out")
            return ClassPredictive(log_weight, structure, log_p, _check_labels(labels, log_p.shape[-1]), **layout)
        case Indicators(logit):
            if shift is not None or scale is not None or squeeze or labels is not None:
                raise DataError("shift, scale, squeeze or labels were given for columns of 0 and 1: leave them out")
            return IndicatorPredictive(log_weight, structure, logit, **layout)
        case Component() as component:
            if labels is not None:
                raise DataError("labels were given for a continuous target; allowed are shift and scale")
            targets = component.loc.shape[-1]
            if squeeze and targets != 1:
                raise DataError(f"squeeze was given for {targets} targets; allowed is 1: leave it out")
            shifts = _check_units("shift", shift, 0.0, targets)
            scales = _check_units("scale", scale, 1.0, targets)
            law = ContinuousPredictive(log_weight, structure, component.affine(shifts, scales), squeeze, **layout)
            p = law if transform is None else TransformedPredictive.of(law, transform)
            on_lattice = lattice is not None and (transform is not None or cell_of(likelihood) is not None)
            return LatticePredictive.of(p, *lattice) if lattice is not None and on_lattice else p
        case other:
            raise DataError(
                f"components of {type(likelihood).__name__} returned {type(other).__name__}; allowed are Classes, "
                "Indicators or a Component (Normal, Laplace, StudentT), of fathomless.posterior.mixtures"
            )


def concatenate(chunks: Sequence[Predictive]) -> Predictive:
    """Concatenate predictions for chunks of rows, in their order.

    Raises
    ------
    DataError
        If there is no chunk, or if chunks are not from the same draws of the same model. Use a generator with the same
        seed for every chunk.
    """
    if not chunks:
        raise DataError("no predictions were given to concatenate; give one or more")
    return chunks[0].concatenate(chunks[1:])


def _select_draws(draws: Draws) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return outputs, normalised log weights, structures and networks of the draws of positive weight."""
    log_weight = to_double(draws.log_weight)
    kept = log_weight != -math.inf  # NaN is kept here and raises an error below
    log_weight = log_weight[kept]
    structure = draws.structure.detach().cpu()[kept]
    f = draws.f[kept.to(draws.f.device)]  # (S, N, K)
    total = torch.logsumexp(log_weight, 0)
    broken = (~f.isfinite()).flatten(1).any(1)
    if broken.any() or not total.isfinite():
        raise DivergenceError(
            f"{int(broken.sum())} of {len(f)} drawn networks have outputs that are not finite, and "
            f"their weights sum to exp({total.item():.4g}); allowed are finite outputs and a positive "
            "sum: check the inputs for extreme values, or train again with a smaller learning rate"
        )
    network = None if draws.network is None else draws.network.detach().cpu()[kept]
    return f, log_weight - total, structure, network


def _check_labels(labels: Sequence[object] | Labels | None, classes: int) -> Labels:
    if labels is None:
        return np.arange(classes)
    names = labels if isinstance(labels, np.ndarray) else np.asarray(list(labels))
    if names.shape != (classes,) or len(set(names.tolist())) < classes:
        raise DataError(
            f"{len(names)} labels were given, {len(set(names.tolist()))} of them distinct; allowed "
            f"is one for each of the {classes} classes"
        )
    return names


def _check_units(name: str, values: Values | None, default: float, targets: int) -> Tensor:
    units = to_double(default if values is None else values)
    if units.shape not in ((), (targets,)) or not units.isfinite().all():
        raise DataError(
            f"{name} was given with shape {tuple(units.shape)}; allowed are a finite number or one "
            f"for each of the {targets} targets"
        )
    if name == "scale" and not (units > 0).all():
        raise DataError(f"scale was given as {units.tolist()}; allowed are positive numbers")
    return units
