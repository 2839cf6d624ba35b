r"""Exact contributions of columns to the outputs of piecewise linear networks.

A network of linear maps and rectified units is an affine function on each of the regions into which its units divide
the rows. In the region of a row x,

.. math:: f(x) = b(x) + \sum_j \beta_j(x)\, x_j, \qquad \beta_j(x) = \frac{\partial f}{\partial x_j}(x),

exactly, without a background or random walks. The contribution of a column is the sum of :math:`\beta_j x_j` over its
encoded features, which are 0 at the average of the training rows. An average of networks is affine in the same sense,
with average coefficients. Contributions with the posterior of a sparse network are zero for columns without an active
path. The decomposition is that of A. Høyheim, L. Skaaret-Lund, S. Sæbø and A. Hubin, "Explainable Bayesian deep
learning through input-skip latent binary Bayesian neural networks", 2025.

Other networks, for example with ``activation="tanh"``, are recognised by their second derivatives, and refused.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fathomless.data.frames import encode
from fathomless.data.targets import TargetScale
from fathomless.estimators.base import PredictiveEstimator
from fathomless.estimators.contributions import Contributions, Floats
from fathomless.estimators.importance import feature_spans, weighted_quantile
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.likelihoods import Categorical, CumulativeLogit, LocationScale
from fathomless.posterior.model import Draws
from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator, fold_in
from fathomless.system.torch_state import enable_gradients

__all__ = ["linear_contributions"]

_AT_ONCE = 64  # rows evaluated at once


def linear_contributions(estimator: PredictiveEstimator, X: Any, *, level: float = 0.9) -> Contributions:
    """Divide the outputs of piecewise linear networks among the columns, exactly.

    Parameters
    ----------
    estimator : PredictiveEstimator
        Fitted classifier or regressor, whose networks have the activation "relu" or "leaky_relu".
    X : array or data frame, shape (N, C)
        Rows to explain.
    level : float
        Level of the credible intervals.

    Returns
    -------
    Contributions
        `prediction` is the average output of the drawn networks. For numbers it is the location, in units of the target
        (or of its logarithm, if it has the transform), before recalibration and atoms. For classes it is the logits,
        whose mean over the classes is 0, before calibration and boosted trees. For multilabel targets it is the logit
        of each label. `base` is the intercept b(x), `values` are the contributions, and `error` is 0.

    Raises
    ------
    DataError
        If the networks are not piecewise linear, a table does not match the estimator, or classes are ordered.
    """
    checks.interval("level", level, 0.0, 1.0)
    encoded = encode(estimator.schema_, X)
    if isinstance(estimator.likelihood_, CumulativeLogit):
        raise DataError("the classes are ordered, and have no logits; use contributions")
    names, spans = zip(*feature_spans(estimator.schema_), strict=True)
    parts = [_divide(estimator, encoded[i : i + _AT_ONCE], spans, level) for i in range(0, len(encoded), _AT_ONCE)]
    prediction, values, lower, upper = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    base = prediction - values.sum(1)
    return Contributions(names, base, prediction, values, np.zeros_like(values), lower, upper, level)


def _divide(
    estimator: PredictiveEstimator, encoded: Floats, spans: Sequence[slice], level: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return average outputs (N, K), contributions of columns, and the bounds of their intervals, (N, C, K) each."""
    model = estimator.model_
    x = torch.as_tensor(encoded, dtype=list_members(model)[0].dtype).to(model.device).requires_grad_()
    with enable_gradients(), sdpa_kernel(SDPBackend.MATH):  # attention with second derivatives
        noise = as_generator(fold_in(estimator.predictor_.seed, "predict"))  # the draws of predictions
        draws: Draws = model.draw(x, estimator.weight_draws, noise)
        f = _outputs_in_units(draws.f, estimator)
        _require_piecewise_linear(f, x)
        networks = [[_multiply_slopes(f[s, :, k], x, spans) for k in range(f.shape[2])] for s in range(len(f))]
    of_networks = np.moveaxis(np.array(networks), 1, 3)  # (S, N, C, K)
    weight = draws.log_weight.detach().double().exp().cpu().numpy()
    weight = weight / weight.sum()
    output = np.einsum("s,snk->nk", weight, f.detach().cpu().numpy())
    bounds = (weighted_quantile(of_networks, weight, 0.5 + sign * level / 2) for sign in (-1, 1))
    return output, np.einsum("s,snck->nck", weight, of_networks), *bounds


def _multiply_slopes(f: Tensor, x: Tensor, spans: Sequence[slice]) -> Floats:
    """Return the products of slopes and features of an output (N,), summed over the features of columns, (N, C)."""
    slope = torch.autograd.grad(f.sum(), x, retain_graph=True, allow_unused=True)[0] if f.requires_grad else None
    products = (torch.zeros_like(x) if slope is None else slope).double() * x.detach().double()
    return cast(Floats, torch.stack([products[:, span].sum(1) for span in spans], 1).cpu().numpy())


def _outputs_in_units(f: Tensor, estimator: PredictiveEstimator) -> Tensor:
    """Return locations in units of the target, or logits whose mean over the classes is 0, in float64."""
    likelihood, f = estimator.likelihood_, f.double()
    if isinstance(likelihood, LocationScale):
        target = cast(TargetScale, estimator.target_)
        shift, scale = (torch.tensor(value, dtype=f.dtype, device=f.device) for value in (target.mean, target.scale))
        return shift + scale * f[..., : likelihood.targets]
    return f - f.mean(-1, keepdim=True) if isinstance(likelihood, Categorical) else f


def _require_piecewise_linear(f: Tensor, x: Tensor) -> None:
    """Raise an error if a second derivative of the outputs is not zero."""
    if not f.requires_grad:
        return
    different = torch.arange(1, f[:, 0].numel() + 1, dtype=f.dtype, device=f.device).view(len(f), 1, -1).sqrt()
    (slope,) = torch.autograd.grad((different * f).sum(), x, create_graph=True, allow_unused=True)
    if slope is None or not slope.requires_grad:
        return
    direction = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device=x.device).sqrt()
    (second,) = torch.autograd.grad((slope * direction).sum(), x, retain_graph=True, allow_unused=True)
    if second is not None and bool(second.any()):
        raise DataError(
            "the networks are not piecewise linear, so their outputs have no exact contributions; use Shapley values, "
            "which all networks have (the function contributions, or --row without --of linear), or rectified units if "
            "the estimator has activation='relu'"
        )
