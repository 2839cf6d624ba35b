r"""Baseline networks, each a special case of :class:`~fathomless.families.depth.model.UnboundedDepth`.

========================================= ====================================== ==================================
function                                  depth                                  weights
========================================= ====================================== ==================================
:func:`finite_network`                    one, fixed                             point estimates
:func:`depth_uncertainty_network`         free masses on 1, …, D                 point estimates
:func:`mean_field_network`                one, fixed                             an independent Gaussian for each
:func:`matrix_normal_network`             one, fixed                             a matrix normal for each layer
:func:`dropout_network`                   one, fixed                             point estimates, random units
:func:`bayesian_network`                  a given network                        any of these posteriors
========================================= ====================================== ==================================

They differ only in the law over depth and in the layers. Training, saving, prediction and ensembles
(:class:`~fathomless.posterior.ensemble.Ensemble`) work as for every other model. With equal `seed` they have the same
initial weights.
"""

import copy
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.families.depth.model import UnboundedDepth
from fathomless.nn.architectures import Architecture
from fathomless.nn.bayesian import BayesianSlot
from fathomless.nn.layers import BayesianLayer, WeightPrior, prior_scales
from fathomless.posterior.laws import FixedDepth, FreeCategorical, UniformPrior
from fathomless.system.draws import bernoulli
from fathomless.system.errors import DataError, DataWarning

__all__ = [
    "Dropout",
    "bayesian_network",
    "depth_uncertainty_network",
    "dropout_network",
    "finite_network",
    "matrix_normal_network",
    "mean_field_network",
]


_NORMALISATIONS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


class Dropout(BayesianLayer):
    """Monte Carlo dropout of the outputs of a module, in training and in prediction.

    Each output is 0 with probability p and divided by 1 − p otherwise. In training each row has its own mask, which
    reduces the noise of gradients. In evaluation all rows share one mask, so that a draw is one network and the
    prediction of a row does not depend on other rows. The distribution of each row is the same in both cases. The
    divergence is Σ ½ θ²/s², the weight decay of the prior N(0, s²).

    Parameters
    ----------
    module : nn.Module
        Any module with one input and one output.
    rate : float
        Dropout probability p.
    prior : WeightPrior
        Prior standard deviation s of each weight.

    Raises
    ------
    DataError
        If the rate is outside 0 <= p < 1.

    References
    ----------
    Y. Gal and Z. Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016.
    """

    def __init__(self, module: nn.Module, rate: float = 0.1, prior: WeightPrior | None = None) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise DataError(f"a dropout rate of {rate} was given; 0 <= rate < 1 is allowed")
        self.module = module
        self.rate = rate
        self._prior = prior_scales(module, prior or WeightPrior())

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Apply the module and drop outputs at random."""
        y: Tensor = self.module(x)
        shape = y.shape if self.training else (1, *y.shape[1:])  # one mask for all rows
        device = y.device if generator is None else generator.device
        mask = bernoulli(torch.full(shape, 1.0 - self.rate, dtype=y.dtype, device=device), generator).to(y.device)
        parameters = dict(self.module.named_parameters())
        decay = [0.5 / scale**2 * parameters[name].square().sum() for name, scale in self._prior.items()]
        return y * mask / (1.0 - self.rate), torch.stack([y.new_zeros(()), *decay]).sum()

    def extra_repr(self) -> str:
        """Return the dropout rate for ``repr``."""
        return f"rate={self.rate}"


def finite_network(architecture: Architecture, depth: int, **options: Any) -> UnboundedDepth:
    """Build a network of fixed depth.

    Its objective is Σ log p(y | f(x)) − Σ ½ θ²/s², the log-likelihood with weight decay.

    Parameters
    ----------
    architecture : Architecture
        Layers and head.
    depth : int
        Number of layers before the head; 0 is a linear model.
    options
        Options of :class:`~fathomless.families.depth.model.UnboundedDepth`: weight_prior, seed, dtype, ...

    Examples
    --------
    >>> from fathomless.nn.architectures import MLP
    >>> finite_network(MLP(2, 1, 8), depth=3).draw(torch.zeros(5, 2)).f.shape
    torch.Size([1, 5, 1])
    """
    return UnboundedDepth(
        architecture.layer,
        architecture.head,
        law=FixedDepth((0,)),
        prior=UniformPrior(1),
        min_depth=depth,
        **options,
    )


def depth_uncertainty_network(
    architecture: Architecture, depths: int = 10, *, shared_head: bool = True, **options: Any
) -> UnboundedDepth:
    r"""Build a depth uncertainty network: free masses q on the depths 1, …, D, with a uniform prior.

    Its bound is :math:`\sum_\ell q(\ell) \sum_b \log p(y_b \mid \Omega_\ell(x_b)) - \mathrm{KL}(q \,\|\, p)`, less
    the weight decay. Each weight decays in proportion to the probability that it is used; in the paper's code all
    weights decay equally.

    Parameters
    ----------
    architecture : Architecture
        Layers and head.
    depths : int
        Number of depths D.
    shared_head : bool
        Use one head for all depths, as in the paper; their hidden states must then have the same shape.
    options
        Options of :class:`~fathomless.families.depth.model.UnboundedDepth`: weights, weight_prior, seed, dtype, ...

    References
    ----------
    J. Antorán, J. Allingham and J. M. Hernández-Lobato, "Depth Uncertainty in Neural Networks", NeurIPS 2020.

    Examples
    --------
    >>> from fathomless.nn.architectures import MLP
    >>> depth_uncertainty_network(MLP(2, 1, 8), depths=5).depth_posterior()
    {1: 0.2, 2: 0.2, 3: 0.2, 4: 0.2, 5: 0.2}
    """
    return UnboundedDepth(
        architecture.layer,
        _no_head if shared_head else architecture.head,
        shared_head=partial(architecture.head, depths) if shared_head else None,
        law=FreeCategorical(depths),
        prior=UniformPrior(depths),
        min_depth=1,
        **options,
    )


def mean_field_network(architecture: Architecture, depth: int, **options: Any) -> UnboundedDepth:
    """Build a network of fixed depth with an independent Gaussian for each weight, trained by the ELBO.

    Parameters
    ----------
    architecture, depth, options
        As for :func:`finite_network`; also weight_scale, the initial standard deviation.

    References
    ----------
    C. Blundell, J. Cornebise, K. Kavukcuoglu and D. Wierstra, "Weight Uncertainty in Neural Networks", ICML 2015.
    """
    return finite_network(architecture, depth, weights="meanfield", **options)


def matrix_normal_network(architecture: Architecture, depth: int, **options: Any) -> UnboundedDepth:
    """Build a network of fixed depth with a matrix normal posterior of each layer, trained by the ELBO.

    Parameters
    ----------
    architecture, depth, options
        As for :func:`mean_field_network`.

    References
    ----------
    C. Louizos and M. Welling, "Structured and Efficient Variational Deep Learning with Matrix Gaussian Posteriors",
    ICML 2016.
    """
    return finite_network(architecture, depth, weights="matrix", **options)


def dropout_network(architecture: Architecture, depth: int, rate: float = 0.1, **options: Any) -> UnboundedDepth:
    """Build a network of fixed depth with dropout after every layer, in training and in prediction.

    A weight draw is a set of masks, drawn from the generator of ``draw``.

    Parameters
    ----------
    architecture, depth, options
        As for :func:`finite_network`.
    rate : float
        Probability of dropping a unit.
    """
    return finite_network(_WithDropout(architecture, rate, options.get("weight_prior")), depth, **options)


def bayesian_network(network: nn.Module, weights: str = "meanfield", **options: Any) -> UnboundedDepth:
    """Return a given network as a model whose weights have a posterior, to be trained by the ELBO.

    Parameters
    ----------
    network : nn.Module
        Network with one input and one output, (N, ...) to (N, K) for K parameters of the likelihood. It is copied. Its
        weights are the initial posterior means. The means of frozen weights do not change; their standard deviations
        are trained, except with "map".
    weights : {"map", "meanfield", "matrix", "sparse"}
        Posterior: point estimates, an independent Gaussian for each weight, or a matrix normal or spike-and-slab
        posterior in linear maps and convolutions.
    options
        Options of :class:`~fathomless.families.depth.model.UnboundedDepth`: weight_prior, weight_scale (the initial
        standard deviation), seed, and dtype, by default that of the network.

    Raises
    ------
    DataError
        For other options, and if the network has no layer for the posterior.

    Warns
    -----
    DataWarning
        If other modules than normalisations keep point estimates, with "matrix" and "sparse".

    Examples
    --------
    >>> network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> model = bayesian_network(network)
    >>> model.draw(torch.zeros(5, 3), n=4, generator=torch.Generator().manual_seed(0)).f.shape
    torch.Size([4, 5, 1])
    """
    if unknown := sorted(set(options) - {"weight_prior", "weight_scale", "seed", "dtype"}):
        raise DataError(f"{unknown[0]} was given; allowed options are weight_prior, weight_scale, seed and dtype")
    if isinstance(network, BayesianLayer) and weights != "map":
        raise DataError(
            f"weights={weights!r} was given for a {type(network).__name__}, which has posteriors of its own; give "
            "weights='map', with which its other weights are point estimates"
        )
    found = (p.dtype for p in network.parameters() if p.is_floating_point())
    model = finite_network(_Given(network), 1, weights=weights, **{"dtype": next(found, torch.float32), **options})
    if weights in ("matrix", "sparse"):
        _warn_of_point_estimates(model, weights)
    return model


def _warn_of_point_estimates(model: nn.Module, weights: str) -> None:
    """Warn of trained parameters without a posterior, except those of normalisations."""
    inside = {part for slot in model.modules() if isinstance(slot, BayesianSlot) for part in slot.modules()}
    plain = {
        name.removeprefix("layers.1.module.") or type(part).__name__: sum(p.numel() for p in own)
        for name, part in model.named_modules()
        if part not in inside
        and not isinstance(part, _NORMALISATIONS)
        and (own := [p for p in part.parameters(recurse=False) if p.requires_grad])
    }
    if plain:
        warnings.warn(
            f"weights={weights!r} has a posterior in linear maps and convolutions; {sum(plain.values()):,} "
            f"parameters of {', '.join(plain)} keep point estimates. weights='meanfield' has a posterior for all",
            DataWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class _Given(Architecture):
    """Architecture with a single layer, a copy of a given network."""

    network: nn.Module

    def layer(self, depth: int) -> nn.Module:
        try:
            return copy.deepcopy(self.network)
        except RuntimeError as error:  # of tensors that are computed from parameters
            raise DataError(
                f"the network cannot be copied ({str(error).partition('.')[0]}): some of its weights are computed from "
                "others, as by torch.nn.utils.weight_norm or pruning; call remove_weight_norm or prune.remove before"
            ) from error

    def head(self, depth: int) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class _WithDropout(Architecture):
    """Architecture with dropout after every layer."""

    architecture: Architecture
    rate: float
    prior: WeightPrior | None

    def layer(self, depth: int) -> nn.Module:
        return Dropout(self.architecture.layer(depth), self.rate, self.prior)

    def head(self, depth: int) -> nn.Module:
        return self.architecture.head(depth)


def _no_head(depth: int) -> nn.Module:
    return nn.Identity()
