r"""The posterior of linear heads, given the features that a trained network computes.

For a row with features h and :math:`\varphi = (h, 1)`, a head W of shape (K, P) gives :math:`f = W \varphi`. Under
Gaussian noise of variances :math:`\sigma_t^2` and the prior N(0, 1/α) of every weight, the posterior is normal,

.. math:: A_t = \Phi^\top \Phi / \sigma_t^2 + \alpha I, \qquad m_t = A_t^{-1} \Phi^\top y_t / \sigma_t^2 ,

and f at a row has the variance :math:`\varphi^\top A_t^{-1} \varphi`. For other likelihoods it is a Laplace
approximation, whose precision has the Fisher information of f, :math:`\Lambda_i`, in place of :math:`1 / \sigma^2`:

.. math:: \sum_i s_i \, \Lambda_i \otimes \varphi_i \varphi_i^\top + \alpha I, \qquad
          \sum_i s_i \Lambda_i \otimes \varphi_i \varphi_i^\top \approx \bar \Lambda \otimes \Phi^\top S \Phi .

The Kronecker product is exact if :math:`\Lambda_i` is the same for all rows: noise of scale σ has
:math:`\Lambda = \mathrm{diag}(c / \sigma_t^2)`, with c = 1 for Gaussian and Laplace noise and (ν + 1)/(ν + 3) for
Student's t. Classes have :math:`\Lambda_i = (\mathrm{diag}\, p_i - p_i p_i^\top) / T^2`. A scale that depends on the
input has :math:`c / \sigma_t(x_i)^2`, with sums for each target and no approximation; the outputs for the scale itself
remain point estimates.

The posterior is computed from sums over rows (:class:`Statistics`), which add over chunks, streams and ranks. Each head
has one α, which maximises the evidence within [1e-4, 1e4].
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fathomless.data.rows import Rows, Stream
from fathomless.inference.runs.distributed import ranks
from fathomless.nn.gaussian_head import GaussianHead
from fathomless.posterior.capabilities import LinearHeads, missing_capability
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.likelihoods import (
    Categorical,
    ClassLikelihood,
    CumulativeLogit,
    Laplace,
    Likelihood,
    LocationScale,
    StudentT,
)
from fathomless.posterior.model import Model
from fathomless.posterior.structure import ListedPosterior
from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = [
    "HEADS",
    "HeadPosterior",
    "Statistics",
    "check_heads",
    "head_posterior",
    "head_statistics",
    "head_variance",
    "location_information",
    "maximize_evidence",
    "replace_heads_by_means",
    "set_head_posterior",
]

#: Kinds of mean of a normal head. It is the trained head, or the mean of the posterior.
HEADS = ("laplace", "conjugate")

_CHUNK = 8192  # rows evaluated at once
_LOW, _HIGH = 1e-4, 1e4  # range of the precision of the prior
_POINTS = 97  # number of grid points over its logarithm
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


@dataclass(frozen=True)
class Statistics:
    r"""Sufficient statistics of rows for the posterior of a head of K outputs; two of them add.

    Attributes
    ----------
    gram : float64 Tensor, shape (1 or K, P, P)
        :math:`\sum_i s_i \varphi_i \varphi_i^\top`. With a scale that depends on the input there is one for each
        output, whose rows are also weighted by their information.
    cross : float64 Tensor, shape (K, P)
        :math:`\sum_i s_i y_{ik} \varphi_i`, with the same weights; 0 for classes.
    information : float64 Tensor, shape (K, K)
        :math:`\sum_i s_i \Lambda_i`; with a scale that depends on the input, the sum of :math:`s_i I`.
    count : scalar float64 Tensor
        :math:`\sum_i s_i`.
    """

    gram: Tensor
    cross: Tensor
    information: Tensor
    count: Tensor

    @classmethod
    def of(cls, features: Tensor, f: Tensor, y: Tensor, weight: Tensor | None, likelihood: Likelihood) -> "Statistics":
        """Compute the sums over some rows.

        Parameters
        ----------
        features : Tensor, shape (B, P − 1)
            Inputs of the head.
        f : Tensor, shape (B, K)
            Outputs of the head.
        y : Tensor, shape (B, ...)
            Targets.
        weight : Tensor, shape (B,), optional
            Sample weights.
        likelihood : Likelihood
            Likelihood of classes, or of a location and scale.
        """
        phi = nn.functional.pad(features.double(), (0, 1), value=1.0)  # (B, P)
        s = phi.new_ones(len(phi)) if weight is None else weight.double()
        if isinstance(likelihood, Categorical):
            p = likelihood.components(f[None].detach()).log_probs[0].detach().exp().to(phi)  # (B, K)
            temperature = 1.0 if likelihood.log_temperature is None else likelihood.log_temperature.double().exp()
            information = (torch.diag(s @ p) - (s[:, None] * p).T @ p) / temperature**2
            no_cross = phi.new_zeros(p.shape[1], phi.shape[1])
            return cls(((s[:, None] * phi).T @ phi)[None], no_cross, information, s.sum())
        if isinstance(likelihood, CumulativeLogit):
            total = (s * likelihood.information(f[None].detach())[0].detach()).sum().reshape(1, 1)
            gram = ((s[:, None] * phi).T @ phi)[None]
            return cls(gram, phi.new_zeros(1, phi.shape[1]), total, s.sum())
        assert isinstance(likelihood, LocationScale)
        _, log_scale = likelihood.noise.split(f[None].double())
        c = location_information(likelihood).to(phi)
        y = y.double()
        if log_scale.ndim < 3:  # one scale for all rows
            information = s.sum() * torch.diag((c * torch.exp(-2.0 * log_scale)).expand(y.shape[1]).to(phi))
            w = s[:, None].expand_as(y)  # (B, K)
            gram = ((s[:, None] * phi).T @ phi)[None]
        else:
            w = s[:, None] * c * torch.exp(-2.0 * log_scale[0])
            information = s.sum() * torch.eye(y.shape[1]).to(phi)
            gram = torch.stack([(weights[:, None] * phi).T @ phi for weights in w.T])
        return cls(gram, (w * y).T @ phi, information, s.sum())

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(*(a + b for a, b in zip(self.tensors, other.tensors, strict=True)))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All sums, in the order of the fields."""
        return self.gram, self.cross, self.information, self.count


@dataclass(frozen=True)
class HeadPosterior:
    """The normal posterior of a head, see :class:`~fathomless.nn.gaussian_head.GaussianHead` for its form.

    Attributes
    ----------
    mean : Tensor, shape (K, P)
        Weights and bias.
    basis, mixing, scale : Tensors, shapes (1 or K, P, P), (K, K) and (K, P)
        Eigenvectors, and standard deviations along them.
    precision : float
        Prior precision α.
    """

    mean: Tensor
    basis: Tensor
    mixing: Tensor
    scale: Tensor
    precision: float

    @torch.no_grad()
    def head(self, linear: nn.Linear) -> GaussianHead:
        """Return a linear map with this posterior; outputs after the first K remain point estimates."""
        head = GaussianHead(linear, 1 if len(self.basis) == 1 else linear.out_features)
        K = len(self.mean)
        head.weight[:K] = self.mean[:, :-1].to(head.weight)
        head.bias[:K] = self.mean[:, -1].to(head.bias)
        head.basis[: len(self.basis)] = self.basis.to(head.basis)
        head.mixing[:K, :K] = self.mixing.to(head.mixing)
        head.scale[:K] = self.scale.to(head.scale)
        head.precision.fill_(self.precision)
        return head.requires_grad_(False).eval()


def head_posterior(
    statistics: Statistics, trained: Tensor, kind: str = "laplace", precision: float | None = None
) -> HeadPosterior:
    r"""Compute the posterior of a head.

    With eigenvalues λ of :math:`\Phi^\top S \Phi` and γ of the mean information, all precisions are
    :math:`\gamma_k \lambda_j + \alpha`, and the log evidence is, up to a constant in α,

    .. math:: \tfrac12 K P \log \alpha - \tfrac12 \sum_{kj} \log(\gamma_k \lambda_j + \alpha) + \begin{cases}
        -\tfrac12 \alpha \lVert W \rVert^2 & \text{at the trained head W} \\
        \tfrac12 \sum_{kj} b_{kj}^2 / (\gamma_k \lambda_j + \alpha) & \text{at the mean of the posterior}
        \end{cases}

    for b the products of rows and targets, in the eigenbasis and times the information.

    Parameters
    ----------
    statistics : Statistics
        Sums over the rows.
    trained : Tensor, shape (K, P)
        Trained head: weights, and the bias last.
    kind : {"laplace", "conjugate"}
        Mean of the posterior: the trained head ("laplace"), or the exact mean under Gaussian noise ("conjugate").
    precision : float, optional
        Prior precision α; by default the one that maximises the evidence.
    """
    checks.choice("last_layer", kind, HEADS)
    eigenvalues, basis = torch.linalg.eigh(statistics.gram)  # (G, P), (G, P, P)
    eigenvalues = eigenvalues.clamp(min=0.0)
    information = statistics.information / statistics.count
    if bool((information == torch.diag(information.diagonal())).all()):
        strength = information.diagonal()
        mixing = torch.eye(len(information)).to(information)
    else:
        strength, mixing = torch.linalg.eigh(information)
    data = strength.clamp(min=0.0)[:, None] * eigenvalues  # (K, P) γ λ
    square = trained.double().square().sum()
    conjugate = kind == "conjugate"
    # b in the eigenbasis of the features; every noise has a diagonal information, so outputs need no rotation
    b = strength[:, None] * (basis.mT @ statistics.cross[:, :, None])[:, :, 0] if conjugate else torch.zeros_like(data)

    def evidence(log_alpha: Tensor) -> Tensor:
        alpha = log_alpha.exp()[:, None, None]
        total = data + alpha  # (points, K, P)
        fit = (b.square() / total).sum((1, 2)) if conjugate else -alpha[:, 0, 0] * square
        value: Tensor = 0.5 * (data.numel() * log_alpha - total.log().sum((1, 2)) + fit)
        return value

    alpha = maximize_evidence(evidence, data) if precision is None else precision
    total = data + alpha
    mean = (basis @ (b / total)[:, :, None])[:, :, 0] if conjugate else trained.double()
    return HeadPosterior(mean, basis, mixing, total.rsqrt(), alpha)


@torch.no_grad()
def head_statistics(model: Model, likelihood: Likelihood, rows: Rows | Stream) -> dict[int, Statistics]:
    """Compute, in one pass over the rows, the statistics for the head of every structure in use.

    With several ranks, each evaluates its share of every chunk, and the sums are added over all ranks.

    Parameters
    ----------
    model : LinearHeads
        Trained network.
    likelihood : Likelihood
        Likelihood with its present noise.
    rows : Rows or Stream
        Training rows of the network.
    """
    group = ranks()
    heads = check_heads(model, likelihood)
    assert isinstance(model, LinearHeads)
    model.eval()
    statistics: dict[int, Statistics] = {}
    for part in rows.parts(_CHUNK):
        share = group.share(part)
        if not len(share):  # one row of weight 0, so that this rank has the same tensors to add as the others
            share = replace(part.take(slice(0, 1)), weight=part.x.new_zeros(1, dtype=torch.float64))
        for number, features in model.features(share.x).items():
            sums = Statistics.of(features, heads[number](features), share.y, share.weight, likelihood)
            statistics[number] = statistics[number] + sums if number in statistics else sums
    group.add([tensor for sums in statistics.values() for tensor in sums.tensors])
    return statistics


def set_head_posterior(model: Model, likelihood: Likelihood, rows: Rows | Stream, kind: str) -> None:
    """Replace the heads of a trained network, in place, by their posterior.

    Parameters
    ----------
    model, likelihood, rows
        As for :func:`head_statistics`.
    kind : {"laplace", "conjugate"}
        As in :func:`head_posterior`.

    Raises
    ------
    DataError
        As in :func:`check_heads`.
    """
    heads = check_heads(model, likelihood, kind)
    assert isinstance(model, LinearHeads)
    posteriors = {}
    for number, statistics in head_statistics(model, likelihood, rows).items():
        linear = heads[number]
        trained = torch.cat([linear.weight, linear.bias[:, None]], 1).detach()[: len(statistics.cross)]
        posteriors[number] = head_posterior(statistics, trained, kind).head(linear)
    model.replace_heads(posteriors)


def replace_heads_by_means(model: Model) -> None:
    """Replace the normal heads of a network, or of all members of an ensemble, by their means."""
    for member in list_members(model):
        if isinstance(member, LinearHeads) and any(isinstance(part, GaussianHead) for part in member.modules()):
            heads = member.heads_in_use()
            member.replace_heads({k: head.mean_map() for k, head in heads.items() if isinstance(head, GaussianHead)})


@torch.no_grad()
def head_variance(model: LinearHeads, x: Tensor) -> Tensor:
    """Return the variance of the outputs, (B, K), due to normal heads, averaged over structures."""
    posterior = model.structure()
    features = model.features(x)
    assert isinstance(posterior, ListedPosterior)
    weight = dict(zip(map(int, posterior.names), posterior.probabilities, strict=True))
    heads = {number: head for number, head in model.heads_in_use().items() if isinstance(head, GaussianHead)}
    return torch.stack([weight[number] * head.variance(features[number]) for number, head in heads.items()]).sum(0)


def check_heads(model: Model, likelihood: Likelihood, kind: str = "laplace") -> dict[int, nn.Linear]:
    """Check that the heads of a network can have a posterior; return them by structure.

    Raises
    ------
    DataError
        If heads are not linear or are shared, weights are drawn, or the likelihood has neither a scale nor classes; for
        "conjugate" also if the mean of the posterior has no closed form under the likelihood.
    """
    if not isinstance(model, LinearHeads):
        raise missing_capability(model, LinearHeads, f"last_layer={kind!r}", "set last_layer='point'")
    heads = model.heads_in_use()
    linear = {number: head for number, head in heads.items() if type(head) is nn.Linear and head.bias is not None}
    if len(linear) < len(heads):
        kinds = sorted({type(head).__name__ for number, head in heads.items() if number not in linear})
        raise DataError(
            f"last_layer={kind!r} was given for heads of type {', '.join(kinds)}; nn.Linear with a bias, and "
            "weights='map', are needed: set last_layer='point'"
        )
    if not isinstance(likelihood, ClassLikelihood | LocationScale):
        raise DataError(
            f"last_layer={kind!r} was given with {type(likelihood).__name__} as likelihood; allowed are noise with a "
            "scale and classes: set last_layer='point'"
        )
    if kind == "conjugate" and isinstance(likelihood, ClassLikelihood | Laplace):
        raise DataError(
            f"last_layer='conjugate' was given with {type(likelihood).__name__} as likelihood, under which the mean of "
            "a head has no closed form; last_layer='laplace' keeps the trained head as the mean"
        )
    return linear


def location_information(likelihood: LocationScale) -> Tensor:
    """Return the Fisher information of the location of a noise with scale 1, shape () or (T,)."""
    if isinstance(likelihood, StudentT):
        df = likelihood.df().detach().double()
        return (df + 1.0) / (df + 3.0)
    return torch.ones((), dtype=torch.float64, device="cpu")


def maximize_evidence(evidence: Callable[[Tensor], Tensor], like: Tensor) -> float:
    """Return the α that maximises the evidence: on a grid, then by golden section around the best point.

    `evidence` takes log α, (points,); the computation is on the device and in the type of `like`.
    """
    grid = torch.linspace(math.log(_LOW), math.log(_HIGH), _POINTS, dtype=torch.float64, device=like.device)
    best = int(evidence(grid).argmax())
    left, right = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, _POINTS - 1)])
    for _ in range(40):
        inner, outer = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
        low, high = evidence(like.new_tensor([inner, outer])).tolist()
        left, right = (left, outer) if low >= high else (inner, right)
    return math.exp(min(max(0.5 * (left + right), math.log(_LOW)), math.log(_HIGH)))
