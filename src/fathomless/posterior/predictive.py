r"""The predictive distribution: a weighted set of networks, seen through a likelihood.

.. math:: p(y \mid x) = \sum_s w_s\, p(y \mid f_s(x))

Probabilities are averaged, never logits, and the variance includes the noise of the observations. The law
of total variance (for classes: the chain rule of mutual information) splits the uncertainty into what no
network can predict, what the weights leave open, and what the structure leaves open.

Everything but samples and labels is differentiable, in the inputs and in the parameters of network and likelihood, as
far as the network is; a prediction that nobody differentiates is made under ``torch.no_grad()``.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fathomless.posterior.distributions import (
    ClassPredictive,
    ContinuousPredictive,
    Labels,
    Predictive,
    Values,
    doubles,
)
from fathomless.posterior.indicators import IndicatorPredictive
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.mixtures import Classes, Component, Indicators
from fathomless.posterior.model import Draws
from fathomless.system.errors import DataError, DivergenceError

__all__ = ["concatenate", "predictive"]


def predictive(
    draws: Draws,
    likelihood: Likelihood,
    *,
    shift: Values | None = None,
    scale: Values | None = None,
    labels: Sequence[object] | Labels | None = None,
    squeeze: bool = False,
) -> ContinuousPredictive | ClassPredictive | IndicatorPredictive:
    """See drawn networks through a likelihood: their predictive distribution.

    Parameters
    ----------
    draws : Draws
        Networks evaluated on N rows. Draws of weight zero are dropped.
    likelihood : Likelihood
        The one that the networks were trained with.
    shift, scale : array_like, shape () or (T,), optional
        Change of units ``shift + scale * y`` from the standardised target; continuous targets only.
    labels : sequence of length C, optional
        Names of the classes; classes only.
    squeeze : bool
        Drop the axis of targets, for one continuous target that was given without it.

    Returns
    -------
    ContinuousPredictive, ClassPredictive or IndicatorPredictive

    Raises
    ------
    DataError
        If an option does not belong to the likelihood or has the wrong length, or its components are of another kind.
    DivergenceError
        If a network of positive weight gave a value that is not finite.

    Notes
    -----
    Gradients flow from moments, densities, probabilities and quantiles to the outputs of the draws and their weights.

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
    f, log_weight, structure, network = _weighted(draws)
    layout: dict[str, Any] = {"sampled": draws.sampled, "network": network}
    match likelihood.components(f):
        case Classes(log_p):
            if shift is not None or scale is not None or squeeze:
                raise DataError("shift, scale or squeeze was given for classes; allowed are labels: leave them out")
            return ClassPredictive(log_weight, structure, log_p, _labels(labels, log_p.shape[-1]), **layout)
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
            units = _units("shift", shift, 0.0, targets), _units("scale", scale, 1.0, targets)
            return ContinuousPredictive(log_weight, structure, component.affine(*units), squeeze, **layout)
        case other:
            raise DataError(
                f"components of {type(likelihood).__name__} returned {type(other).__name__}; allowed are Classes, "
                "Indicators or a Component (Normal, Laplace, StudentT), of fathomless.posterior.mixtures"
            )


def concatenate(chunks: Sequence[Predictive]) -> Predictive:
    """Join predictions for chunks of rows into one, in the order given.

    Raises
    ------
    DataError
        If there is no chunk, or if they do not come from the same draws of the same model: draw every chunk
        with a generator that starts at the same seed.
    """
    if not chunks:
        raise DataError("no predictions were given to concatenate; allowed is one or more")
    return chunks[0].concatenated(chunks[1:])


def _weighted(draws: Draws) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return outputs, normalised log weights, structures and networks of the draws of positive weight."""
    log_weight = doubles(draws.log_weight)
    kept = log_weight != -math.inf  # a NaN stays, and is refused below
    log_weight, structure = log_weight[kept], draws.structure.detach().cpu()[kept]
    f = draws.f[kept.to(draws.f.device)]  # (S, N, K)
    total = torch.logsumexp(log_weight, 0)
    broken = (~f.isfinite()).flatten(1).any(1)
    if broken.any() or not total.isfinite():
        raise DivergenceError(
            f"{int(broken.sum())} of {len(f)} drawn networks gave values that are not finite, and "
            f"their weights sum to exp({total.item():.4g}); allowed are finite outputs and a positive "
            "sum: check the inputs for extreme values, or train again with a smaller learning rate"
        )
    network = None if draws.network is None else draws.network.detach().cpu()[kept]
    return f, log_weight - total, structure, network


def _labels(labels: Sequence[object] | Labels | None, classes: int) -> Labels:
    if labels is None:
        return np.arange(classes)
    names = labels if isinstance(labels, np.ndarray) else np.asarray(list(labels))
    if names.shape != (classes,) or len(set(names.tolist())) < classes:
        raise DataError(
            f"{len(names)} labels were given, {len(set(names.tolist()))} of them different; allowed "
            f"is one for each of the {classes} classes"
        )
    return names


def _units(name: str, values: Values | None, default: float, targets: int) -> Tensor:
    given = doubles(default if values is None else values)
    if given.shape not in ((), (targets,)) or not given.isfinite().all():
        raise DataError(
            f"{name} was given with shape {tuple(given.shape)}; allowed are a finite number or one "
            f"for each of the {targets} targets"
        )
    if name == "scale" and not (given > 0).all():
        raise DataError(f"scale was given as {given.tolist()}; allowed are positive numbers")
    return given
