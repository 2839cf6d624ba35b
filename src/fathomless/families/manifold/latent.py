r"""Variational posterior over the latent space, and over the last layer of the decoder.

q(z) is a mixture of K normal distributions, :math:`\sum_k \pi_k N(m_k, L_k L_k^\top)`, with L diagonal or triangular,
and the prior N(0, I). One component has a divergence in closed form,

.. math:: \mathrm{KL} = \tfrac12 \big(\lVert L \rVert_F^2 + \lVert m \rVert^2 - D\big) - \sum_d \log L_{dd};

for several it is estimated from draws of each component, :math:`\sum_k \pi_k \overline{(\log q - \log p)(z_{k\cdot})}`,
so that the gradients of the weights are exact.

The last layer of the decoder may be random, :math:`M_{pj} \sim N(\hat M_{pj} + o_{pj}, \varsigma_{pj}^2)` in
standardised units, with a prior centred at the result of stage 2 and the variance of its reconstruction error,
:math:`\psi_p + 10^{-4}`. Given z and its features h, with :math:`\bar h = (h, 1)`,

.. math:: \tilde w_p \mid z \sim N\Big(\sum_j M_{pj} \bar h_j,\ \sum_j \varsigma_{pj}^2 \bar h_j^2\Big)

independently over p, so that M need not be drawn. With "bias" only the constant of each weight is random; with "last"
all of M is, and the prior variance is divided among its columns.
"""

import math

import torch
from torch import Tensor, nn

from fathomless.families.manifold.autoencoder import Decoder
from fathomless.nn.layers import gaussian_divergence
from fathomless.system import checks
from fathomless.system.draws import integers, normal
from fathomless.system.errors import DataError

__all__ = ["COVARIANCES", "RANDOM", "WEIGHTS", "DecoderLaw", "LatentLaw", "estimate_shares", "select_farthest"]

#: Covariances of a component of q(z).
COVARIANCES = ("diagonal", "full")
#: Weights of the components of q(z).
WEIGHTS = ("counted", "equal", "learned")
#: Random parts of the last layer of the decoder.
RANDOM = ("none", "bias", "last")

_FLOOR = 1e-4  # added to ψ
_START = 0.3  # initial ς, times the standard deviation of the prior


class LatentLaw(nn.Module):
    """Mixture of normal distributions over the latent space.

    Parameters
    ----------
    means : Tensor, shape (K, D)
        Initial centres.
    log_scale : float
        Log of the initial standard deviations.
    covariance : {"diagonal", "full"}
        Covariance of each component.
    weights : Tensor, shape (K,), optional
        Weights of the components; equal by default.
    learned : bool
        True to learn the weights, starting from these.

    Attributes
    ----------
    points : Tensor, shape (K, n, D), optional
        Points drawn by chains, which replace the normal distributions: see :meth:`take_points`.
    """

    points: Tensor | None

    def __init__(
        self,
        means: Tensor,
        log_scale: float = -1.5,
        covariance: str = "diagonal",
        *,
        weights: Tensor | None = None,
        learned: bool = False,
    ) -> None:
        super().__init__()
        checks.choice("covariance", covariance, COVARIANCES)
        count, dimensions = means.shape
        logits = means.new_zeros(count) if weights is None else weights.to(means).log()
        self.logits = nn.Parameter(logits, requires_grad=learned)
        self.means = nn.Parameter(means.clone())
        self.log_scale = nn.Parameter(torch.full_like(means, log_scale))
        self.register_buffer("points", None)
        full = covariance == "full"
        self.below = nn.Parameter(means.new_zeros(count, dimensions, dimensions)) if full else None

    @property
    def log_weight(self) -> Tensor:
        """Log weights of the components, (K,)."""
        return self.logits.log_softmax(0)

    def factors(self) -> Tensor:
        """Return L of each component, (K, D, D), lower triangular."""
        diagonal = torch.diag_embed(self.log_scale.exp())
        return diagonal if self.below is None else diagonal + self.below.tril(-1)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n points of each component, (K, n, D)."""
        count, dimensions = self.means.shape
        if self.points is not None:
            index = integers(self.points.shape[1], (count, n), generator, self.points.device)
            return self.points.gather(1, index[..., None].expand(-1, -1, dimensions))
        noise = normal(self.means, generator, (count, n, dimensions))
        return self.means[:, None] + noise @ self.factors().mT

    def log_prob(self, z: Tensor) -> Tensor:
        """Return the log density of points (..., D): (...)."""
        deviations = z[..., None, :] - self.means  # (..., K, D)
        white = torch.linalg.solve_triangular(self.factors(), deviations[..., None], upper=False)[..., 0]
        log_p = -0.5 * white.square().sum(-1) - self.log_scale.sum(-1) - 0.5 * z.shape[-1] * math.log(2.0 * math.pi)
        return torch.logsumexp(self.log_weight + log_p, -1)

    def divergence(self, z: Tensor) -> Tensor:
        """Return KL(q(z) ‖ N(0, I)) in nats, estimated from drawn points (K, n, D) if there are several components.

        It is NaN for points drawn by chains.
        """
        if self.points is not None:
            return torch.full_like(z[0, 0, 0], math.nan)
        if len(self.means) == 1:
            squares = self.factors().square().sum() + self.means.square().sum()
            return 0.5 * (squares - self.means.shape[1]) - self.log_scale.sum()
        log_prior = -0.5 * z.square().sum(-1) - 0.5 * z.shape[-1] * math.log(2.0 * math.pi)  # (K, n)
        return self.log_weight.exp() @ (self.log_prob(z) - log_prior).mean(1)

    @torch.no_grad()
    def take_points(self, points: Tensor) -> None:
        """Replace the components by points (K, n, D) of a chain each; set centres and scales from the points."""
        self.points = points.clone()
        self.means.copy_(points.mean(1))
        self.log_scale.copy_(points.std(1).clamp(min=1e-12).log())
        if self.below is not None:
            self.below.zero_()


class DecoderLaw(nn.Module):
    """Independent normal distributions over the last layer of the decoder, or over its constants only.

    Parameters
    ----------
    decoder : Decoder
        Result of stage 2.
    random : {"bias", "last"}
        Random part.

    Attributes
    ----------
    offset, log_scale : Parameter, shape (P, 1) or (P, h + 1)
        o and log ς.
    prior_scale : Tensor, shape (P, 1)
        Standard deviation of the prior.
    """

    prior_scale: Tensor

    def __init__(self, decoder: Decoder, random: str) -> None:
        super().__init__()
        checks.choice("random", random, RANDOM[1:])
        columns = 1
        if random == "last":
            if not isinstance(decoder.last, nn.Linear):
                raise DataError(
                    "random='last' was given for a decoder with the last map 'layers' or 'chunks'; 'bias' and 'none' "
                    "are allowed"
                )
            columns = decoder.last.in_features + 1
        scale = ((decoder.residual + _FLOOR) / columns).sqrt()[:, None]
        self.register_buffer("prior_scale", scale)
        self.offset = nn.Parameter(torch.zeros(len(scale), columns).to(scale))
        self.log_scale = nn.Parameter((_START * scale).log().repeat(1, columns))

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shift of the mean of standardised weights, and their variance, (S, P) each."""
        columns = self.offset.shape[1]
        bar = torch.cat([features, torch.ones_like(features[:, :1])], 1)[:, -columns:]  # (S, columns)
        return bar @ self.offset.mT, bar.square() @ self.log_scale.mul(2.0).exp().mT

    def divergence(self) -> Tensor:
        """Return KL(q ‖ p) in nats, summed over weights."""
        return gaussian_divergence(self.offset / self.prior_scale, self.log_scale.exp() / self.prior_scale)


def select_farthest(f: Tensor, count: int) -> Tensor:
    """Return the indices of networks with different functions (farthest-point selection), starting with the first.

    Each step adds the network with the largest distance to its nearest selected network. The distance is the mean
    squared difference of outputs.

    Parameters
    ----------
    f : Tensor, shape (R, N, K)
        Outputs.
    count : int
        Number of networks to select, at most R.
    """
    flat = f.flatten(1)
    nearest = torch.full_like(flat[:, 0], math.inf)  # distance to the nearest selected network
    chosen = [0]
    for _ in range(1, min(count, len(f))):
        nearest = torch.minimum(nearest, (flat - flat[chosen[-1]]).square().mean(1))
        chosen.append(int(nearest.argmax()))
    return torch.tensor(chosen, device=f.device)


def estimate_shares(f: Tensor, chosen: Tensor) -> Tensor:
    """Return the share of all networks that are closest to each chosen network, by the distance of their outputs.

    Parameters
    ----------
    f : Tensor, shape (R, N, K)
        Outputs.
    chosen : Tensor of int64, shape (M,)
        Indices of the chosen networks.

    Returns
    -------
    Tensor, shape (M,)
        Positive shares with sum 1.
    """
    flat = f.flatten(1)
    distances = torch.stack([(flat - flat[index]).square().mean(1) for index in chosen.tolist()])  # (M, R)
    counts = torch.bincount(distances.argmin(0), minlength=len(chosen)).clamp(min=1).to(f)
    return counts / counts.sum()
