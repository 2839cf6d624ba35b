r"""Recalibration: laws of the standardised residual that depend on the row.

A prediction of networks with one noise scale has the mean m(x) and the standard deviation s(x). A second stage
(:mod:`fathomless.inference.out_of_fold.recalibration`) learns the law of the residual z = (y − m) / s from rows to
which the networks were not fitted. Small networks read the features x and m, and return the parameters of a density
g(z | x). There are K networks of every kind c, one for each fold of the rows, whose laws are averaged. The
predictive density is a linear pool of the law of the networks, p_b, and of the laws of the residual,

.. math:: p(y \mid x) = q_0\, p_b(y \mid x) + \sum_c q_c\,
          \frac{1}{s(x)}\, g_c\!\left(\frac{y - m(x)}{s(x)} \,\Big|\, x\right) .

Every law is a mixture of Gaussians, so moments, density and distribution function have closed forms. There are two
families: three Gaussians with free weights, and one with heavy tails, whose log scale is itself Gaussian,

.. math:: g(z) = \sum_j w_j\, N(z;\, \mu,\, \sigma^2 e^{2 \tau h_j} / c), \qquad c = \sum_j w_j e^{2 \tau h_j},

with the nodes h and weights w of five-point Gauss-Hermite quadrature. Its standard deviation is σ and its kurtosis is
about :math:`3 e^{4 \tau^2}`; for τ = 0 it is Gaussian. With q_0 = 1 the prediction is unchanged.

With the option `neighbors` there are two more kinds. Their networks also read features of the nearest training rows,
and their laws have four more Gaussians with centres :math:`(y_j - m) / s` at the targets of the four nearest rows, each
with its own scale and weight (:mod:`fathomless.posterior.neighbors`).

With the option `trees` the same kinds of laws are also fitted to the residuals of boosted trees
(:mod:`fathomless.posterior.trees`). The trees have their own centre m(x) and a constant scale s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fathomless.posterior.censoring import log_between
from fathomless.posterior.mixtures import Mixture, Normal
from fathomless.posterior.neighbors import FEATURES, PARTS, Neighborhoods, NeighborRows, describe, read_neighbors
from fathomless.posterior.stacked_networks import FEATURE_LIMIT, StackedNetworks
from fathomless.posterior.trees import BoostedTrees, read_trees
from fathomless.system.errors import DataError
from fathomless.system.torch_state import load_state

__all__ = [
    "KINDS",
    "NEAR_KINDS",
    "OF_TREES",
    "LawKind",
    "Parameters",
    "Recalibration",
    "ResidualNetworks",
    "TreeLaws",
    "make_features",
    "read_recalibration",
    "stack_targets",
]

_MEAN_LIMIT = 4.0  # predicted means, in standard deviations of the target
_LEAST_SCALE = math.log(0.03)  # log of the smallest scale of a component of z
_START_SPREAD = 0.05  # initial variance τ² of the log scale; it is between 0 and 1
_CENTRES = 0.8  # initial centres of three Gaussians are −0.8, 0 and 0.8
_START_PART = (-3.0, math.log(0.3))  # initial logit of the weight, and log scale, of a part at a near target
_NODES, _WEIGHTS = (part.tolist() for part in np.polynomial.hermite_e.hermegauss(5))


@dataclass(frozen=True)
class LawKind:
    """Kind of the law of the residual, and the size of its networks.

    Attributes
    ----------
    gaussians : int
        Number of Gaussians with free weights, or 1 for the law with heavy tails.
    hidden : int
        Width of the two hidden layers.
    features : bool
        True if the networks read x and m; False if they only read m.
    near : bool
        True if they also read the features of the nearest rows, and the law has four parts at their targets.
    """

    gaussians: int
    hidden: int
    features: bool
    near: bool = False

    @property
    def outputs(self) -> int:
        """Number of outputs: location, log scale, and logit of each Gaussian or of τ²; log scale and logit of parts."""
        return 3 * self.gaussians + (2 * PARTS if self.near else 0)

    def count_inputs(self, features: int) -> int:
        """Return the number of inputs of a network for a table with D encoded features."""
        return (features + 1 if self.features else 1) + (FEATURES if self.near else 0)


#: Kinds of laws by name: heavy tails and three Gaussians given x and m, and heavy tails given m.
KINDS: Mapping[str, LawKind] = {
    "heavy_tails": LawKind(gaussians=1, hidden=32, features=True),
    "three_gaussians": LawKind(gaussians=3, hidden=32, features=True),
    "heavy_tails_of_mean": LawKind(gaussians=1, hidden=16, features=False),
}

#: Further kinds for the option `neighbors`.
NEAR_KINDS: Mapping[str, LawKind] = {
    "heavy_tails_of_neighbors": LawKind(gaussians=1, hidden=32, features=True, near=True),
    "three_gaussians_of_neighbors": LawKind(gaussians=3, hidden=32, features=True, near=True),
}

#: Beginning of the names of laws of the residuals of boosted trees, followed by the name of a kind.
OF_TREES = "trees_"


class Parameters(NamedTuple):
    """Parameters of mixtures of J Gaussians, the laws of the residual, each (..., J)."""

    log_weight: Tensor
    loc: Tensor
    log_scale: Tensor

    def log_prob(self, z: Tensor, half: Tensor | None = None, upper: Tensor | None = None) -> Tensor:
        """Log density of z in nats, (...); or log probability of the cell from z − half to z + half.

        With `upper`, it is the log probability between z and `upper` where they differ, and one may be infinite.
        """
        if upper is not None:
            return self._log_prob_of_bounds(z, upper)
        precision = (-self.log_scale).exp()
        standard = (z[..., None] - self.loc) * precision
        if half is None:
            log_p = Normal.log_constant() - Normal.energy(standard) - self.log_scale
        else:  # in the lower tail, for a small relative error
            width = half[..., None] * precision
            upper = width - standard.abs()
            up_to = torch.special.log_ndtr(upper)
            log_p = up_to + torch.log(-torch.expm1(torch.special.log_ndtr(upper - 2.0 * width) - up_to))
        return torch.logsumexp(self.log_weight + log_p, -1)

    def _log_prob_of_bounds(self, low: Tensor, high: Tensor) -> Tensor:
        """Log density where the bounds are equal, and else log probability between them, (...)."""
        known = low == high
        density = self.log_prob(torch.where(known, low, 0.0))
        # the probabilities of known values are not used, and have finite derivatives
        bounds = torch.where(known, 0.0, low)[..., None], torch.where(known, math.inf, high)[..., None]
        between = log_between(Normal, (), bounds, self.loc, self.log_scale).to(density)
        return torch.where(known, density, torch.logsumexp(self.log_weight + between, -1))


class ResidualNetworks(StackedNetworks):
    """K networks with two hidden layers for each of T targets, which return parameters of laws of the residual.

    All networks start at the standard Gaussian, approximately: their last layer is zero.

    Parameters
    ----------
    kind : LawKind
        Kind of the law.
    networks, targets, inputs : int
        Numbers of networks K, targets T and features D.
    generator : torch.Generator, optional
        Source of the initial weights; zeros if missing.
    """

    def __init__(
        self, kind: LawKind, networks: int, targets: int, inputs: int, generator: torch.Generator | None = None
    ) -> None:
        sizes = [kind.count_inputs(inputs), kind.hidden, kind.hidden, kind.outputs]
        super().__init__((networks, targets), sizes, generator)
        self.kind = kind
        # computed here, since a recorded training step cannot read numbers
        self._mean_square = {t: _mean_square_of_centres(kind.gaussians, t) for t in (torch.float32, torch.float64)}
        self.log_factor = nn.Parameter(torch.zeros(targets, dtype=torch.float64, device="cpu"))

    def forward(self, features: Tensor) -> Tensor:
        """Return the outputs of all networks, shape (K, T, B, 3 J); for kinds with `near`, also the centres of parts.

        Parameters
        ----------
        features : Tensor, shape (K or 1, T, B, D + 1 or D + 13)
            Features of the rows, from :func:`make_features`; the last one is the predicted mean.
        """
        h = self.outputs(features[..., -self.weights[0].shape[2] :])
        if not self.kind.near:
            return h
        centres = features[..., :PARTS]
        return torch.cat([h, centres.expand(*h.shape[:-1], PARTS)], -1)

    def law(self, outputs: Tensor, least: Tensor) -> Parameters:
        """Return the parameters of the laws, each (..., T, B, J).

        Parameters
        ----------
        outputs : Tensor, shape (..., T, B, 3 J)
            Outputs of the networks.
        least : Tensor, shape (..., T, B)
            Log of the smallest scale of z in each row.
        """
        if self.kind.near:
            own, parts = outputs.split([3 * self.kind.gaussians, 3 * PARTS], -1)
            return self._add_parts(self._own_law(own, least), parts, least)
        return self._own_law(outputs, least)

    def average(self, outputs: Tensor, least: Tensor) -> Parameters:
        """Return the average of the laws of the K networks, each (T, B, K J).

        Parameters
        ----------
        outputs : Tensor, shape (K, T, B, P)
            Outputs of the networks.
        least : Tensor, shape (T, B)
            Log of the smallest scale of z in each row.
        """
        log_weight, loc, log_scale = (part.movedim(0, -2).flatten(-2) for part in self.law(outputs, least))
        return Parameters(log_weight - math.log(len(outputs)), loc, log_scale)

    def _own_law(self, outputs: Tensor, least: Tensor) -> Parameters:
        """Return the parameters of the laws without parts at near targets."""
        loc, scale, shape = outputs.unflatten(-1, (3, self.kind.gaussians)).unbind(-2)  # (..., T, B, J) each
        low = least.clamp_min(_LEAST_SCALE)[..., None]
        factor = self.log_factor[:, None, None]
        if self.kind.gaussians > 1:
            centres = torch.linspace(-_CENTRES, _CENTRES, self.kind.gaussians, dtype=loc.dtype, device=loc.device)
            unit = 0.5 * math.log(1.0 - self._mean_square[loc.dtype])
            return Parameters(shape.log_softmax(-1), loc + centres, _above(low, scale + unit + factor))
        # filled on the device: a recorded training step cannot copy numbers to it
        nodes, weights = (torch.stack([loc.new_full((), v) for v in values]) for values in (_NODES, _WEIGHTS))
        log_weight = (weights / weights.sum()).log()
        spread = (shape + math.log(_START_SPREAD / (1.0 - _START_SPREAD))).sigmoid().sqrt() * nodes
        unit_scale = spread - 0.5 * torch.logsumexp(log_weight + 2.0 * spread, -1, keepdim=True)
        log_scale = _above(low, scale + factor + unit_scale)
        return Parameters(log_weight.expand_as(log_scale), loc.expand_as(log_scale), log_scale)

    def _add_parts(self, law: Parameters, parts: Tensor, least: Tensor) -> Parameters:
        """Add parts with given centres to a law; log scales, logits and centres of parts are (..., T, B, 12)."""
        scale, logit, centre = parts.unflatten(-1, (3, PARTS)).unbind(-2)  # (..., T, B, 4) each
        start_logit, start_scale = _START_PART
        logits = torch.cat([torch.zeros_like(logit[..., :1]), logit + start_logit], -1)
        log_weight = logits.log_softmax(-1)  # of the law, and of each part
        low = least.clamp_min(_LEAST_SCALE)[..., None]
        log_scale = _above(low, scale + start_scale + self.log_factor[:, None, None])
        added = Parameters(log_weight[..., 1:], centre, log_scale)
        law = law._replace(log_weight=law.log_weight + log_weight[..., :1])
        return Parameters(*(torch.cat(pair, -1) for pair in zip(law, added, strict=True)))


def _mean_square_of_centres(count: int, dtype: torch.dtype) -> float:
    """Return the mean square of the initial centres of Gaussians, rounded as in their type."""
    return float(torch.linspace(-_CENTRES, _CENTRES, count, dtype=dtype, device="cpu").square().mean())


def _above(low: Tensor, value: Tensor) -> Tensor:
    """Return a smooth function of a value that is above `low`, and close to the value if it is far above."""
    excess = value - low
    return low + excess.clamp_min(0.0) + (-excess.abs()).exp().log1p()  # softplus, in operations that ONNX has


def stack_targets(networks: Sequence[ResidualNetworks]) -> ResidualNetworks:
    """Stack the networks of single targets, of one kind, to networks of T targets."""
    first = networks[0]
    count, _, inputs, _ = first.weights[0].shape
    stacked = ResidualNetworks(first.kind, count, len(networks), inputs - first.kind.count_inputs(0))
    states = [law.state_dict() for law in networks]
    axis = {name: 0 if name == "log_factor" else 1 for name in states[0]}
    stacked.load_state_dict({name: torch.cat([state[name] for state in states], axis[name]) for name in axis})
    return stacked


class Recalibration(nn.Module):
    """Laws of the standardised residual with their weights beside the law of the networks.

    Parameters
    ----------
    laws : mapping of str to ResidualNetworks
        Networks of each kind, by its name.
    share : Tensor, shape (C + 1, T)
        Weights q of the law of the networks and of the C kinds, for each target.
    step : Tensor, shape (T,)
        Step of the lattice of each target, in units of the encoded target; 0 for a continuous target.
    neighbors : NeighborRows, optional
        Stored training rows, for kinds with `near`.
    trees : TreeLaws, optional
        Laws around boosted trees; their weights are the last ones.
    """

    share: Tensor
    step: Tensor

    def __init__(
        self,
        laws: Mapping[str, ResidualNetworks],
        share: Tensor,
        step: Tensor,
        neighbors: NeighborRows | None = None,
        trees: "TreeLaws | None" = None,
    ) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.trees = trees
        self.laws = nn.ModuleDict(dict(laws))
        self.register_buffer("share", share)
        self.register_buffer("step", step)
        self.requires_grad_(False)

    def law_parameters(self, x: Tensor, mean: Tensor, std: Tensor, fold: Tensor | None = None) -> list[Parameters]:
        """Return the law of the targets of each kind, in units of the encoded target; parameters of shape (K J, N, T).

        It is the average of the laws of the K networks. An average of their outputs would be a K-th of the size, but
        it is a worse law if the networks differ, as after long trainings on large tables.

        Parameters
        ----------
        x : Tensor, shape (N, D)
            Encoded features.
        mean, std : Tensors, shape (N, T)
            Mean and standard deviation of the law of the networks.
        fold : Tensor of int64, shape (N,), optional
            Number of the network that was not fitted to each row. The law is that of this network, (J, N, T).

        Notes
        -----
        The search for neighbours and the trees are not differentiable: the parameters have no gradient in x through
        them.
        """
        near = None if self.neighbors is None else self.neighbors.find(x, fold)
        features, least = make_features(x, mean, std, self.step, near)
        laws = [_in_units(law, features, least, mean, std, fold) for law in self.laws.values()]
        return laws if self.trees is None else laws + self.trees.law_parameters(x, self.step, fold)

    def mixtures(
        self,
        x: Tensor,
        mean: Tensor,
        std: Tensor,
        fold: Tensor | None = None,
        units: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Mixture, ...]:
        """Return the result of :meth:`law_parameters` as mixtures, batch (N, T).

        With `units`, a shift and a scale of shape (T,), they are laws of shift + scale · y.
        """
        laws = []
        for law in self.law_parameters(x, mean, std, fold):
            # contiguous, so that sums over components have the same order in all parts of a table
            log_weight, loc, log_scale = (values.contiguous() for values in law)
            component = Normal(loc, log_scale.exp())
            laws.append(Mixture(log_weight, component if units is None else component.affine(*units)))
        return tuple(laws)


class TreeLaws(nn.Module):
    """Laws of the residuals of boosted trees, divided by a constant scale.

    Parameters
    ----------
    boosted : BoostedTrees
        Trees with T scores, in units of the encoded targets.
    scale : Tensor, shape (T,)
        Scale of the residuals of each target under a single ensemble.
    narrowing : Tensor, shape (T,)
        Scale under the average of all ensembles, relative to `scale`.
    laws : mapping of str to ResidualNetworks
        Networks of each kind, by the prefix :data:`OF_TREES` and its name.
    """

    scale: Tensor
    narrowing: Tensor

    def __init__(
        self, boosted: BoostedTrees, scale: Tensor, narrowing: Tensor, laws: Mapping[str, ResidualNetworks]
    ) -> None:
        super().__init__()
        self.boosted = boosted
        self.register_buffer("scale", scale)
        self.register_buffer("narrowing", narrowing)
        self.laws = nn.ModuleDict(dict(laws))

    def law_parameters(self, x: Tensor, step: Tensor, fold: Tensor | None) -> list[Parameters]:
        """Return the law of each kind, as :meth:`Recalibration.law_parameters` does."""
        # trees of a single network were fitted to none of its held-out rows
        mean = self.boosted(x, fold if self.boosted.ensembles > 1 else None)
        std = (self.scale if fold is not None else self.scale * self.narrowing).expand_as(mean)
        features, least = make_features(x, mean, std, step)
        return [_in_units(law, features, least, mean, std, fold) for law in self.laws.values()]


def _in_units(
    law: nn.Module, features: Tensor, least: Tensor, mean: Tensor, std: Tensor, fold: Tensor | None
) -> Parameters:
    """Return the law of the targets given that of the residual, see :meth:`Recalibration.law_parameters`."""
    assert isinstance(law, ResidualNetworks)
    outputs = law(features[None])
    if fold is None:
        of_z = law.average(outputs, least)
    else:
        of_z = law.law(outputs[fold, :, torch.arange(len(fold), device=fold.device)].movedim(0, 1), least)
    log_weight, loc, log_scale = (values.permute(2, 1, 0) for values in of_z)
    return Parameters(log_weight, mean + std * loc, std.log() + log_scale)


def make_features(
    x: Tensor, mean: Tensor, std: Tensor, step: Tensor, near: Neighborhoods | None = None
) -> tuple[Tensor, Tensor]:
    """Return the inputs of the networks, (T, N, D + 1), and the log of the smallest scale of z, (T, N).

    With nearest rows, the first 12 columns are those of :func:`~fathomless.posterior.neighbors.describe`.

    The smallest scale is that of a uniform law on a cell of the lattice of the target.
    """
    targets = mean.shape[1]
    clipped = x.double().cpu().clamp(-FEATURE_LIMIT, FEATURE_LIMIT)
    centre = mean.clamp(-_MEAN_LIMIT, _MEAN_LIMIT).T[..., None]  # (T, N, 1)
    features = torch.cat([clipped.expand(targets, *clipped.shape), centre], -1)
    if near is not None:
        features = torch.cat([describe(near, mean, std), features], -1)
    least = torch.log((step[:, None] / math.sqrt(12.0) / std.T).clamp_min(math.exp(_LEAST_SCALE)))
    return features, least


def read_recalibration(tensors: Mapping[str, Tensor], targets: int, inputs: int) -> Recalibration | None:
    """Rebuild a recalibration from its state, (name, tensor); None if there is none.

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
    known = {**KINDS, **NEAR_KINDS}
    neighbors = read_neighbors(
        {name.removeprefix("neighbors."): value for name, value in tensors.items() if name.startswith("neighbors.")},
        targets,
        inputs,
    )
    of_trees = {name: value for name, value in tensors.items() if name.startswith("trees.")}
    tensors = {
        name: value for name, value in tensors.items() if name not in of_trees and not name.startswith("neighbors.")
    }
    trees = _read_tree_laws({n.removeprefix("trees."): t for n, t in of_trees.items()}, targets, inputs)
    laws = _read_laws(tensors, known, targets, inputs)
    if (not laws and trees is None) or any(value.dtype != torch.float64 for value in tensors.values()):
        raise DataError("its recalibration has no networks in double precision")
    if any(known[name].near for name in laws) != (neighbors is not None):
        raise DataError("its recalibration has laws of neighbours without stored rows, or the reverse")
    count = 1 + len(laws) + (0 if trees is None else len(trees.laws))
    share = torch.zeros(count, targets, dtype=torch.float64, device="cpu")
    built = Recalibration(laws, share, torch.zeros(targets, dtype=torch.float64, device="cpu"))
    load_state(built, tensors, "the tensors of its recalibration do not have the shapes of its columns and targets")
    share = built.share
    if not (all(bool(value.isfinite().all()) for value in tensors.values()) and bool((share >= 0).all())):
        raise DataError("its recalibration has values that are not finite, or negative weights")
    if not bool(((share.sum(0) - 1.0).abs() < 1e-6).all()):
        raise DataError("the weights of its recalibration do not sum to 1")
    built.neighbors = neighbors
    built.trees = trees
    return built


def _read_laws(
    tensors: Mapping[str, Tensor], known: Mapping[str, LawKind], targets: int, inputs: int
) -> dict[str, ResidualNetworks]:
    """Build the networks of the laws in a state, (name, tensor), with weights of zero."""
    names = [name for name in known if f"laws.{name}.log_factor" in tensors]
    first = tensors.get(f"laws.{names[0]}.weights.0") if names else None
    if names and (first is None or first.ndim != 4):
        raise DataError("its recalibration has no networks in double precision")
    return {name: ResidualNetworks(known[name], len(first), targets, inputs) for name in names if first is not None}


def _read_tree_laws(tensors: Mapping[str, Tensor], targets: int, inputs: int) -> TreeLaws | None:
    """Rebuild the laws around boosted trees; None if there are none."""
    if not tensors:
        return None
    boosted = {name.removeprefix("boosted."): t for name, t in tensors.items() if name.startswith("boosted.")}
    trees = read_trees(boosted, targets, inputs)
    known = {f"{OF_TREES}{name}": kind for name, kind in KINDS.items()}
    laws = _read_laws(tensors, known, targets, inputs)
    numbers = {name: value for name, value in tensors.items() if not name.startswith("boosted.")}
    if not laws or any(value.dtype != torch.float64 or not value.isfinite().all() for value in numbers.values()):
        raise DataError("its trees have no laws of their residuals in double precision")
    scale = torch.zeros(targets, dtype=torch.float64, device="cpu")
    built = TreeLaws(trees, scale, scale.clone(), laws)
    load_state(built, tensors, "the tensors of its trees do not have the shapes of its columns and targets")
    if not bool(((built.scale > 0.0) & (built.narrowing > 0.0)).all()):
        raise DataError("its trees have a scale that is not positive")
    return built.requires_grad_(False)
