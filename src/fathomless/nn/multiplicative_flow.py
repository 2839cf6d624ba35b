r"""A latent vector that multiplies the slab means of a layer, which makes the posterior of its weights dependent.

z = z_K is drawn by a flow from :math:`z_0 \sim N(m, \mathrm{diag}(s^2))`, and the mean of weight (i, j) is
:math:`z_i \mu_{ij}`. The divergence then contains :math:`\log q(z) - \log q(z \mid W, \Gamma)`. The second density is
unknown. It is replaced by a normalised density r, which can only increase the expected divergence:

.. math:: \log r(z \mid W, \Gamma) = \log N(z_B; \nu, \mathrm{diag}(\tau^2))
          + \log\left|\det \frac{\partial z_B}{\partial z}\right|

with z_B the image of the same z under a second flow. ν and log τ² depend on the weights through one number,
:math:`\bar s`, the mean of :math:`g(e^\top (W \odot \Gamma))`, which is drawn locally, like the outputs of a layer.

With temperature 1 the objective is a lower bound on the evidence, in expectation over draws, if r is normalised in z,
is evaluated at the same z as q(z), and depends on weights drawn given this z. All three hold here, up to one
approximation: the sum in :math:`\bar s`, like the outputs of layers, is drawn from the normal law with its exact mean
and variance. This law is accurate for sums of many weights, but not for layers with few inputs. One evaluation is an
estimate and may be above its expectation. In evaluation mode the same expression is estimated at other draws.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathomless.nn.flows import Flow
from fathomless.system import checks
from fathomless.system.draws import normal

__all__ = ["FlowOptions", "Multiplier"]

_MOST = 20.0  # largest |log τ²|
_SQUASH: dict[str, Callable[[Tensor], Tensor]] = {
    "hardtanh": F.hardtanh,
    "tanh": torch.tanh,
    "identity": nn.Identity(),
}


@dataclass(frozen=True)
class FlowOptions:
    """Options of a multiplier.

    Attributes
    ----------
    kind : {"iaf", "coupling"}
        Kind of the steps of both flows.
    steps : int
        Number of steps K of each flow; with 0 the laws are Gaussian.
    hidden : tuple of int
        Numbers of units of the hidden layers of a step.
    squash : {"hardtanh", "tanh", "identity"}
        g; the paper uses the identity for convolutions.
    intercept : bool
        If true, ν and log τ² also have constant parts, initially such that r is as wide as q; the paper has none.
    base_mean, base_log_variance : (float, float)
        Mean and standard deviation of the initial m and log s².
    gate, shift, output : float
        Initial values of the steps; see :class:`~fathomless.nn.flows.GatedStep`. By default z is initially near 1.
    summary : float, optional
        Standard deviation of the initial vectors e, d₁ and d₂; 1/√d by default.

    References
    ----------
    C. Louizos and M. Welling, "Multiplicative Normalizing Flows for Variational Bayesian Neural Networks", ICML 2017.
    """

    kind: str = "iaf"
    steps: int = 2
    hidden: tuple[int, ...] = (50, 50)
    squash: str = "hardtanh"
    intercept: bool = True
    base_mean: tuple[float, float] = (1.0, 0.0)
    base_log_variance: tuple[float, float] = (-4.0, 0.0)
    gate: float = 2.0
    shift: float = 1.0
    output: float = 0.1
    summary: float | None = None

    def __post_init__(self) -> None:
        checks.choice("squash", self.squash, tuple(_SQUASH))


class Multiplier(nn.Module):
    """The law of z and the auxiliary density r.

    Parameters
    ----------
    d : int
        Length of z.
    options : FlowOptions
        Kind, size and initial values of the flows.
    """

    def __init__(self, d: int, options: FlowOptions) -> None:
        super().__init__()
        self.options = options

        def normal(law: tuple[float, float]) -> nn.Parameter:
            return nn.Parameter(law[0] + law[1] * torch.randn(d, device="cpu"))

        summary = (0.0, 1.0 / math.sqrt(d) if options.summary is None else options.summary)
        self.base_mean = normal(options.base_mean)
        self.base_log_variance = normal(options.base_log_variance)
        self.combine, self.centre, self.spread = normal(summary), normal(summary), normal(summary)  # e, d₁, d₂
        steps = {"gate": options.gate, "shift": options.shift, "scale": options.output}
        self.flow = Flow(d, options.kind, options.steps, options.hidden, **steps)
        self.auxiliary = Flow(d, options.kind, options.steps, options.hidden, **steps)
        if options.intercept:
            # both flows reduce the variance of z; with this value r is initially as wide as q
            shrunk = -4.0 * options.steps * math.log1p(math.exp(-options.gate))
            self.centre_intercept = normal((options.base_mean[0], 0.0))
            self.spread_intercept = normal((options.base_log_variance[0] + shrunk, 0.0))

    def forward(self, generator: torch.Generator | None = None, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Draw z, shape (d,) or (n, d); return z and log q(z), shape () or (n,)."""
        shape = self.base_mean.shape if n is None else (n, *self.base_mean.shape)
        noise = normal(self.base_mean.expand(shape), generator)
        z, log_det = self.flow(self.base_mean + (0.5 * self.base_log_variance).exp() * noise)
        log_base = -0.5 * (noise.square() + self.base_log_variance + math.log(2.0 * math.pi)).sum(-1)
        return z, log_base - log_det

    def log_auxiliary(self, z: Tensor, mean: Tensor, variance: Tensor, generator: torch.Generator | None) -> Tensor:
        r"""Estimate log r(z | W, Γ).

        Parameters
        ----------
        z : Tensor, shape (d,)
            The z for which the weights were drawn.
        mean, variance : Tensor, shape (K,)
            Moments of :math:`e^\top (W \odot \Gamma)` given z; one normal draw is made.
        """
        noise = normal(mean, generator)
        s = _SQUASH[self.options.squash](mean + variance.clamp_min(1e-12).sqrt() * noise).mean()
        nu, log_variance = self.centre * s, self.spread * s  # (d,)
        if self.options.intercept:
            nu, log_variance = nu + self.centre_intercept, log_variance + self.spread_intercept
        log_variance = log_variance.clamp(-_MOST, _MOST)
        image, log_det = self.auxiliary(z)
        distance = (image - nu).square() * (-log_variance).exp()
        log_r: Tensor = log_det - 0.5 * (distance + log_variance + math.log(2.0 * math.pi)).sum()
        return log_r

    @torch.no_grad()
    def mean(self, draws: int = 1000) -> Tensor:
        """Estimate E z, shape (d,), from the same draws in every call."""
        generator = torch.Generator().manual_seed(0)
        z, _ = self.forward(generator, draws)
        return z.mean(0)
