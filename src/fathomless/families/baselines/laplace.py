r"""Laplace's approximation for all weights of a network that is linearised in them.

Around a posterior mode θ* with the prior N(0, s²/α) of each weight, the network is approximated by

.. math:: f(x) = f_{\theta^*}(x) + J(x)(\theta - \theta^*), \qquad J(x) = \partial f(x) / \partial \theta ,

so that the posterior is normal, with the precision (of generalised Gauss-Newton)

.. math:: \sum_i s_i\, J(x_i)^\top \Lambda_i J(x_i) + \alpha\, \mathrm{diag}(1/s^2)

with the Fisher information :math:`\Lambda_i` of the outputs. This is the method of
:mod:`fathomless.inference.out_of_fold.heads` for all weights, without a Kronecker approximation. With G of the rows
:math:`\Lambda_i^{1/2} J(x_i)\, \mathrm{diag}(s)` and its singular value decomposition :math:`G = U S V^\top`, a draw is

.. math:: \theta = \theta^* + s \circ \big(\alpha^{-1/2} \varepsilon - V \big(\alpha^{-1/2} - (S^2 + \alpha)^{-1/2}\big)
          V^\top \varepsilon\big), \qquad \varepsilon \sim N(0, I),

and α maximises the evidence, :math:`-\tfrac12 \alpha \lVert \theta^* / s \rVert^2 + \tfrac12 \sum_r
[\ln \alpha - \ln(S_r^2 + \alpha)]`.

References
----------
D. J. C. MacKay, "A Practical Bayesian Framework for Backpropagation Networks", Neural Computation 1992. A. Immer,
M. Korzepa and M. Bauer, "Improving Predictions of Bayesian Neural Nets via Local Linearization", AISTATS 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from fathomless.data.rows import Rows
from fathomless.inference.out_of_fold.heads import location_information, maximize_evidence
from fathomless.nn.flat import check_flattenable, flatten
from fathomless.nn.stateless import call_with
from fathomless.posterior.likelihoods import Categorical, ClassLikelihood, CumulativeLogit, Likelihood, LocationScale
from fathomless.system.draws import normal
from fathomless.system.errors import DataError

__all__ = ["LaplacePosterior", "count_uncertain_outputs", "jacobian", "laplace_posterior", "linearise"]

_CHUNK = 256  # number of rows whose Jacobians are in memory at once
_LARGEST = 8000  # maximum of min(number of weights, rows times outputs)
_NUMBERS = 2 * 10**8  # maximum number of elements of G, if rows are fewer than weights


@dataclass(frozen=True)
class LaplacePosterior:
    """Gaussian posterior of P weights around their mode.

    Attributes
    ----------
    scale : Tensor, shape (P,)
        s.
    basis : Tensor, shape (P, R)
        V.
    square : Tensor, shape (R,)
        S².
    precision : float
        α.
    """

    scale: Tensor
    basis: Tensor
    square: Tensor
    precision: float

    def deviations(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw θ − θ*, (n, P)."""
        noise = normal(self.scale, generator, (n, len(self.scale)))
        free = self.precision**-0.5
        shrunk = ((noise @ self.basis) * (free - (self.square + self.precision).rsqrt())) @ self.basis.T
        drawn: Tensor = self.scale * (free * noise - shrunk)
        return drawn

    def covariance(self) -> Tensor:
        """Return the covariance, (P, P)."""
        shrunk = (self.basis * (1.0 / self.precision - 1.0 / (self.square + self.precision))) @ self.basis.T
        return self.scale[:, None] * (torch.eye(len(shrunk)).to(shrunk) / self.precision - shrunk) * self.scale


@torch.no_grad()
def laplace_posterior(
    network: nn.Module, likelihood: Likelihood, rows: Rows, scale: Tensor, precision: float | None = None
) -> LaplacePosterior:
    """Return the posterior of the weights of a trained network.

    Parameters
    ----------
    network : nn.Module
        (B, D) -> (B, K).
    likelihood : Likelihood
        Of classes, or of a location-scale family.
    rows : Rows
        Training rows.
    scale : Tensor, shape (P,)
        Prior standard deviations s, in the order of ``network.parameters()``.
    precision : float, optional
        α; by default it maximises the evidence.

    Raises
    ------
    DataError
        If the likelihood is of another type, the network has buffers or dropout, or weights and rows are both too many.
    """
    if not isinstance(likelihood, ClassLikelihood | LocationScale):
        raise DataError(
            f"Laplace's approximation was requested with the likelihood {type(likelihood).__name__}; allowed are noise "
            "distributions with a scale, and classes"
        )
    check_flattenable(network)
    count = len(rows) * count_uncertain_outputs(likelihood)
    size = len(scale)
    wide = count < size  # decompose the smaller one of the two Gram matrices of G
    if min(count, size) > _LARGEST or (wide and count * size > _NUMBERS):
        raise DataError(
            f"Laplace's approximation was requested for {size:,} weights and {len(rows):,} rows; up to {_LARGEST:,} "
            f"weights, or {_LARGEST:,} rows times outputs with {_NUMBERS:,} numbers in all, are allowed: make the "
            "network narrower, or use last_layer='laplace'"
        )
    scale = scale.double()
    parts = []
    gram = scale.new_zeros(0, 0) if wide else scale.new_zeros(size, size)
    point = torch.zeros_like(scale, dtype=torch.bool)
    for part in rows.parts(_CHUNK):
        g, other = _weighted_jacobian(network, likelihood, part)  # (B K, P), (P,)
        g = g * scale
        point = point | other
        if wide:
            parts.append(g)
        else:
            gram.addmm_(g.T, g)
    if wide:
        whole = torch.cat(parts)
        square, left = torch.linalg.eigh(whole @ whole.T)
        nonzero = square > 1e-12 * square.max().clamp(min=1e-300)
        square = square[nonzero]
        basis = whole.T @ (left[:, nonzero] / square.sqrt())
        point &= (whole == 0.0).all(0)
    else:
        square, basis = torch.linalg.eigh(gram)
        point &= gram.diagonal() == 0.0
    square = square.clamp(min=0.0)
    mode = flatten(network).double() / scale
    fit = mode[~point].square().sum()  # weights that affect only outputs without a posterior are left out of α

    def evidence(log_alpha: Tensor) -> Tensor:
        alpha = log_alpha.exp()[:, None]
        value: Tensor = 0.5 * ((log_alpha[:, None] - (square + alpha).log()).sum(1) - alpha[:, 0] * fit)
        return value

    alpha = maximize_evidence(evidence, square) if precision is None else precision
    return LaplacePosterior(scale, basis, square, alpha)


def linearise(network: nn.Module, x: Tensor, deviations: Tensor, outputs: int | None = None) -> Tensor:
    """Return f(x) + J(x) δ for deviations δ (S, P): outputs (S, B, K).

    With `outputs`, deviations affect only that number of leading outputs; the others remain f(x).

    Examples
    --------
    >>> network, x = nn.Linear(2, 1), torch.ones(3, 2, device="cpu")
    >>> (linearise(network, x, torch.tensor([[1.0, 1.0, 0.5]], device="cpu")) - network(x)).shape
    torch.Size([1, 3, 1])
    """
    parts = []
    for part in x.split(_CHUNK):
        f = network(part)
        moved = (jacobian(network, part)[:, :outputs] @ deviations.T).movedim(2, 0)  # (S, B, outputs)
        moved = nn.functional.pad(moved, (0, f.shape[1] - moved.shape[2])) if moved.shape[2] < f.shape[1] else moved
        parts.append(f + moved)
    return torch.cat(parts, 1)


def jacobian(network: nn.Module, x: Tensor) -> Tensor:
    """Return the Jacobian J of each row, (B, K, P), in the order of ``network.parameters()``."""
    parameters = dict(network.named_parameters())

    def f(values: dict[str, Tensor], row: Tensor) -> Tensor:
        output: Tensor = call_with(network, values, row[None])[0]
        return output

    # built once here; jacrev would build its own basis
    basis = torch.eye(network(x[:1]).shape[1], dtype=x.dtype, device=x.device)

    def derivative(row: Tensor) -> dict[str, Tensor]:
        (gradients,) = vmap(vjp(lambda values: f(values, row), parameters)[1])(basis)
        return gradients  # type: ignore[no-any-return]

    gradients = vmap(derivative)(x)
    return torch.cat([gradients[name].flatten(2) for name in parameters], 2)


def count_uncertain_outputs(likelihood: Likelihood) -> int:
    """Return the number of leading outputs with a posterior; a scale that depends on the input has none."""
    return likelihood.targets if isinstance(likelihood, LocationScale) else likelihood.outputs


@torch.no_grad()
def _weighted_jacobian(network: nn.Module, likelihood: Likelihood, part: Rows) -> tuple[Tensor, Tensor]:
    """Return Λ^½ J of some rows, (B K, P), in double precision, and a mask of weights that affect other outputs, (P,).

    Rows are weighted by their sample weights.
    """
    outputs = network(part.x)
    derivative = jacobian(network, part.x).double()
    if isinstance(likelihood, Categorical):
        p = likelihood.components(outputs[None]).log_probs[0].exp().to(derivative)
        temperature = 1.0 if likelihood.log_temperature is None else float(likelihood.log_temperature.exp())
        root = (torch.diag_embed(p.sqrt()) - p.sqrt()[:, :, None] * p[:, None]) / temperature  # root' root = Λ
        g: Tensor = root @ derivative
    elif isinstance(likelihood, CumulativeLogit):
        g = likelihood.information(outputs[None])[0].sqrt()[:, None, None] * derivative
    else:
        assert isinstance(likelihood, LocationScale)
        log_scale = likelihood.noise.split(outputs[None].double())[1]
        root = (location_information(likelihood).to(derivative).sqrt() * torch.exp(-log_scale)).expand(
            1, len(outputs), likelihood.targets
        )[0]
        g = root[:, :, None] * derivative[:, : likelihood.targets]
    if part.weight is not None:
        g = part.weight.to(g).sqrt()[:, None, None] * g
    return g.flatten(0, 1), (derivative[:, count_uncertain_outputs(likelihood) :] != 0.0).any(1).any(0)
