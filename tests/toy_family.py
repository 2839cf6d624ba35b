r"""Minimal family of another package: polynomials of random degree.

.. math:: p(y \mid x) = \sum_{m=0}^{M} q(m)\, p(y \mid \Phi_m(x)\, \Theta_m), \qquad
          q(m) = \frac{e^{\eta_m}}{\sum_k e^{\eta_k}}

:math:`\Phi_m` consists of 1 and the Hermite polynomials of degrees 1, …, m of every column, which are orthonormal for
normal columns; :math:`\Theta_m` is a separate linear map for every degree. The evidence bound is

.. math:: \sum_m q(m) \Big[\sum_b \log p(y_b \mid \Phi_m(x_b) \Theta_m)
          - \mathrm{KL}\big(N(\Theta_m, \tau^2) \,\|\, N(0, s^2)\big)\Big] - \mathrm{KL}(q \,\|\, \mathrm{uniform}):

The estimates of the weights have Gaussian weight decay. Each weight also has a cost that depends on its precision τ, so
that higher degrees have a larger divergence.
"""

import math
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fathomless.estimators.declaring import option
from fathomless.estimators.findings import Finding, FitSummary
from fathomless.estimators.options import LawOptions, TableOptions, VariationalOptions, documented
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.strategies import Strategy
from fathomless.estimators.tasks import Classifier, PredictedDensity, Regressor
from fathomless.estimators.variational import OneNetwork
from fathomless.families.family import Family
from fathomless.nn.layers import gaussian_divergence
from fathomless.plots.page import Group, StructureSection, TextTable, percent
from fathomless.posterior.capabilities import HasStructureLaw
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Draws
from fathomless.posterior.structure import ListedPosterior
from fathomless.system.citations import Reference
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator, fold_in


@dataclass(kw_only=True, eq=False, repr=False)
class ToyOptions(LawOptions, VariationalOptions, TableOptions):
    """Options of a polynomial of random degree.

    Parameters
    ----------
    max_degree : int
        Maximum degree M.
    weight_prior : float
        Standard deviation s of the prior of every weight.
    weight_width : float
        Standard deviation τ of the posterior of every weight.
    """

    max_degree: int = option(4, "whole", least=0)
    weight_prior: float = option(1.0, "real")
    weight_width: float = option(0.1, "real")
    structure_delay: float = option(0.3, "real", least=0)  # first train all degrees equally


FAMILY = Family(
    name="toy",
    title="a polynomial of the degree that the data ask for",
    options=ToyOptions,
    classifier="toy_family:ToyClassifier",
    regressor="toy_family:ToyRegressor",
    density="toy_family:ToyDensity",
    papers=(
        Reference("toy", "misc", ("{The toy developers}",), "On the Degrees of Polynomials", 1900, "note", "Nowhere"),
    ),
    report="toy_family:page",
    findings="toy_family:findings",
    progress={"mean_degree": "degree"},
)


class PolynomialMixture(HasStructureLaw):
    """Polynomials of degrees 0, …, M, with a posterior over the degree.

    Parameters
    ----------
    inputs, outputs : int
        Numbers of columns D and K; without inputs all degrees are a bias.
    options : ToyOptions
        Values of M, s and τ.
    seed : int
        Seed of the initial weights.
    dtype : torch.dtype
        Data type of all parameters.
    """

    def __init__(self, inputs: int, outputs: int, options: ToyOptions, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width = options.weight_width
        self.prior = options.weight_prior
        noise = as_generator(seed)
        self.eta = nn.Parameter(torch.zeros(options.max_degree + 1, dtype=dtype))
        sizes = [1 + inputs * degree for degree in range(options.max_degree + 1)]
        maps = [0.01 * torch.randn(size, outputs, generator=noise, dtype=dtype) for size in sizes]
        self.maps = nn.ParameterList(nn.Parameter(weight) for weight in maps)

    @property
    def stochastic(self) -> bool:
        """False: weights are point estimates in predictions."""
        return False

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate the polynomials of all degrees: one draw for each, for any `n`."""
        features = _hermite(x, len(self.maps) - 1)
        f = torch.stack([features[:, : len(weight)] @ weight for weight in self.maps])  # (M + 1, B, K)
        log_q = self.eta.log_softmax(0)
        scale = self.eta.new_full((), self.width)
        divergences = [gaussian_divergence(weight, scale.expand_as(weight), self.prior) for weight in self.maps]
        divergence = {
            "weights": log_q.exp() @ torch.stack(divergences),
            "degree": log_q.exp() @ (log_q + math.log(len(log_q))),
        }
        return Draws(f, log_q, torch.arange(len(log_q), device=f.device), divergence)

    @torch.no_grad()
    def structure(self) -> ListedPosterior:
        """Return the posterior over the degree."""
        q = self.eta.double().softmax(0).tolist()
        mode = max(range(len(q)), key=q.__getitem__)
        mean = sum(degree * p for degree, p in enumerate(q))
        summary = f"most likely degree {mode} ({percent(q[mode])})"
        statistics = {"mean_degree": mean}
        names = tuple(map(str, range(len(q))))
        return ListedPosterior(
            kind="degree", names=names, probabilities=tuple(q), statistics=statistics, summary=summary
        )

    def structure_parameters(self) -> dict[str, nn.Parameter]:
        """Return the logits η of the posterior over the degree."""
        return {"eta": self.eta}


def _hermite(x: Tensor, most: int) -> Tensor:
    """Return 1 and h_1(x), …, h_most(x), (B, 1 + D most): √(k + 1) h_{k+1} = x h_k − √k h_{k−1}."""
    h = [torch.ones_like(x), x]
    for k in range(1, most):
        h.append((x * h[k] - math.sqrt(k) * h[k - 1]) / math.sqrt(k + 1))
    return torch.cat([x.new_ones(x.shape[0], 1), *h[1 : most + 1]], 1)


class _Polynomial(ToyOptions, OneNetwork, ABC):
    """Base class of the estimators of the family, which builds the model."""

    structure_every: ClassVar[int] = 1
    shown: ClassVar[Mapping[str, str]] = FAMILY.progress

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> PolynomialMixture:
        return PolynomialMixture(inputs, likelihood.outputs, self, fold_in(seed, "weights"), dtype)

    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        degrees = sum(name.startswith("model/maps.") for name in shapes) - 1
        if blueprint or degrees != self.max_degree:
            raise DataError(f"its maximum degree is {degrees}, but max_degree={self.max_degree}")

    def _strategy(self, prepared: Prepared) -> Strategy:
        return self._svi()

    def _describe(self) -> None:
        self.structure_ = self.model_.structure()


@documented
class ToyClassifier(_Polynomial, Classifier):
    """Classifier with polynomials of random degree.

    Parameters
    ----------
    {parameters}
    """


@documented
class ToyRegressor(_Polynomial, Regressor):
    """Regressor with polynomials of random degree.

    Parameters
    ----------
    {parameters}
    """


@documented
class ToyDensity(_Polynomial, PredictedDensity):
    """Density estimator without inputs, for which all degrees are a bias.

    Parameters
    ----------
    {parameters}
    """


def page(estimator: _Polynomial) -> StructureSection:
    """Return the section of the page with a table of the posterior over the degree."""
    pairs = zip(estimator.structure_.names, estimator.structure_.probabilities, strict=True)
    table = TextTable("Probability of each degree", ("Degree", "Posterior"), [(n, percent(p)) for n, p in pairs])
    return StructureSection([Group("", [], table)], about="The degree of the polynomial.")


def findings(summary: FitSummary) -> Iterator[Finding]:
    """Yield a finding if the maximum degree limits the posterior."""
    most = summary.estimator.structure_.probabilities[-1]
    if most > 0.5:
        detail = f"The posterior probability of the maximum degree is {percent(most)}."
        yield Finding("advice", "The degree is at its bound", detail, f"Raise {summary.show('max_degree')}.")
