"""Laws over depth: section 8 of the method's specification, items 1 to 4, and the gradient of the divergence."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from fathomless.posterior.laws import (
    DepthLaw,
    FixedDepth,
    FreeCategorical,
    HardTruncation,
    PoissonPrior,
    QuantilePoisson,
    SmoothTruncation,
    StickBreaking,
    TruncatedPoisson,
    UniformPrior,
    depth_terms,
)
from fathomless.system.errors import DataError

SOFT, HARD = TruncatedPoisson(), QuantilePoisson()
POISSON = [
    SOFT,
    HARD,
    TruncatedPoisson(truncation=HardTruncation(0.05, 0.95)),
    TruncatedPoisson(truncation=SmoothTruncation()),
]
ALL = [*POISSON, StickBreaking(), FreeCategorical(6), FixedDepth((2, 4), (0.25, 0.75))]
RATES = [1e-6, 1e-3, 0.05, 0.5, 1.0, 3.7, 10.0, 40.0, 100.0, 1e3, 1e4]


def raw(rate: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """η of a Poisson law, softplus(η) = rate."""
    return torch.tensor([rate + math.log(-math.expm1(-rate))], dtype=dtype)


def start(law: DepthLaw, layers: int = 12) -> torch.Tensor:
    values = [law.start(k) for k in range(layers)]
    return torch.tensor([v for v in values if v is not None], dtype=torch.float64)


def masses(law: DepthLaw, eta: torch.Tensor) -> dict[int, float]:
    support = law.support(eta)
    return dict(zip(support, law.probs_and_grad(eta, support)[0].tolist(), strict=True))


@pytest.mark.parametrize("law", POISSON, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rate", RATES)
def test_masses_are_a_law_on_the_exact_support(law: DepthLaw, rate: float, dtype: torch.dtype) -> None:
    eta = raw(rate, dtype)
    support = law.support(eta)
    q, dq = law.probs_and_grad(eta, support)
    assert bool(q.isfinite().all())
    assert bool(dq.isfinite().all())
    assert float(q.min()) >= 0.0
    assert float(q.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(dq.sum().abs()) < 1e-10
    exact = float(torch.nn.functional.softplus(eta.double())[0])
    upper = law.quantile if isinstance(law, QuantilePoisson) else law.truncation.upper  # type: ignore[attr-defined]
    last = int(scipy.stats.poisson.ppf(upper, exact))
    assert support[-1] == last
    lower = 0.0 if isinstance(law, QuantilePoisson) else law.truncation.lower  # type: ignore[attr-defined]
    first = 0 if lower == 0.0 else int(np.flatnonzero(scipy.stats.poisson.cdf(np.arange(last + 1), exact) > lower)[0])
    assert list(support) == list(range(first, last + 1))


@pytest.mark.parametrize("law", [SOFT, HARD], ids=repr)
def test_depth_of_the_support_obeys_the_bounds_of_the_theorem(law: DepthLaw) -> None:
    """λ + 1 − ln 2 ≤ m ≤ 1.3 λ + 6 (equation 11, shifted by one)."""
    for rate in np.arange(0.05, 120.0, 0.37):
        m = law.support(raw(float(rate)))[-1] + 1
        assert rate + 1.0 - math.log(2.0) <= m <= 1.3 * rate + 6.0
        assert m <= 1.3 * rate + 5.0
        assert m <= rate + 1.8 + 1.645 * math.sqrt(rate)


@pytest.mark.parametrize("law", [SOFT, HARD], ids=repr)
def test_every_depth_is_a_mode_of_some_member(law: DepthLaw) -> None:
    """Depth n is a mode at λ = n − ½ (equation 12 as corrected; the paper's n + ½ has its mode at n + 1)."""
    for n in range(1, 120):
        q = np.array(list(masses(law, raw(n - 0.5)).values()))
        assert q[n - 1] >= q.max() - 1e-12
        above = np.array(list(masses(law, raw(n + 0.5)).values()))
        assert above.argmax() + 1 == n + 1


def boundary(a: int, level: float = 0.95) -> float:
    """Rate at which the support grows from a + 1 to a + 2 depths: F_a(λ) = level."""
    return float(scipy.optimize.brentq(lambda r: scipy.stats.poisson.cdf(a, r) - level, 1e-9, 200.0, xtol=1e-14))


def variation(p: dict[int, float], q: dict[int, float]) -> float:
    return 0.5 * sum(abs(p.get(k, 0.0) - q.get(k, 0.0)) for k in {*p, *q})


@pytest.mark.parametrize("a", [0, 2, 4, 7, 9, 15, 30])
def test_soft_law_is_continuous_and_hard_law_jumps_by_the_stated_mass_where_the_support_grows(a: int) -> None:
    rate, step = boundary(a), 1e-7
    below, above = raw(rate - step), raw(rate + step)
    assert SOFT.support(above)[-1] == SOFT.support(below)[-1] + 1
    assert variation(masses(SOFT, below), masses(SOFT, above)) < 5.0 * step
    p = scipy.stats.poisson.pmf(a + 1, rate)
    jump = variation(masses(HARD, below), masses(HARD, above))
    assert jump == pytest.approx(p / (0.95 + p), rel=1e-4)


@pytest.mark.parametrize("law", ALL, ids=repr)
@pytest.mark.parametrize("shift", [0.0, 0.31, 0.83, 1.4, 2.2])
def test_derivatives_match_central_differences(law: DepthLaw, shift: float) -> None:
    eta = start(law) + shift
    support = law.support(eta)
    _, dq = law.probs_and_grad(eta, support)
    for j in range(len(eta)):
        step = torch.zeros_like(eta)
        step[j] = 1e-6
        up, down = law.probs_and_grad(eta + step, support)[0], law.probs_and_grad(eta - step, support)[0]
        numeric = (up - down) / 2e-6
        assert torch.allclose(dq[:, j], numeric, atol=1e-8)


@pytest.mark.parametrize("law", ALL, ids=repr)
def test_a_shorter_support_has_a_derivative_for_every_parameter(law: DepthLaw) -> None:
    eta = start(law) + 0.31
    support = list(law.support(eta))
    support = support[:-1] or support
    q, dq = law.probs_and_grad(eta, support)
    assert dq.shape == (len(q), len(eta))
    assert len(q) == len(support)
    assert float(q.sum()) == pytest.approx(1.0, abs=1e-12)
    for j in range(len(eta)):
        step = torch.zeros_like(eta)
        step[j] = 1e-6
        up, down = law.probs_and_grad(eta + step, support)[0], law.probs_and_grad(eta - step, support)[0]
        assert torch.allclose(dq[:, j], (up - down) / 2e-6, atol=1e-8)


@pytest.mark.parametrize("rate", [0.4, 2.3, 7.7])
def test_derivatives_have_the_closed_forms_of_the_specification(rate: float) -> None:
    slope = float(torch.sigmoid(raw(rate)))
    p = scipy.stats.poisson.pmf(np.arange(60), rate)
    q, dq = SOFT.probs_and_grad(raw(rate), SOFT.support(raw(rate)))
    m = len(q)
    expected = np.array([(p[k - 1] if k else 0.0) - (p[k] if k < m - 1 else 0.0) for k in range(m)]) / 0.95
    assert np.allclose(dq[:, 0].numpy() / slope, expected, atol=1e-12)
    q, dq = HARD.probs_and_grad(raw(rate), HARD.support(raw(rate)))
    k = np.arange(len(q))
    q = q.numpy()
    assert np.allclose(dq[:, 0].numpy() / slope, q * (k - (q * k).sum()) / rate, atol=1e-12)


@pytest.mark.parametrize("law", ALL, ids=repr)
def test_a_support_that_lags_behind_keeps_a_law(law: DepthLaw) -> None:
    """Between two looks at η the support stays, and q must stay a law that is continuous in η."""
    eta = start(law)
    support = law.support(eta)
    for shift in (-0.4, 0.4):
        q, dq = law.probs_and_grad(eta + shift, support)
        assert float(q.sum()) == pytest.approx(1.0, abs=1e-12)
        assert float(q.min()) >= 0.0
        assert torch.allclose(dq.sum(0), torch.zeros(len(eta), dtype=torch.float64), atol=1e-12)


def test_stick_breaking_reaches_beyond_the_hazards_that_exist() -> None:
    law = StickBreaking(rate=3.0)
    few, many = start(law, 2), start(law, 60)
    assert list(law.support(few)) == list(law.support(many))
    assert masses(law, start(law, 60))[0] == pytest.approx(0.25 / 0.95)
    assert law.support(many - 2.0)[-1] > law.support(many)[-1]


@pytest.mark.parametrize(
    "truncation",
    [HardTruncation(), HardTruncation(0.05, 0.9), SmoothTruncation(), SmoothTruncation(0.5, 0.9)],
    ids=repr,
)
def test_truncations_rise_from_zero_to_one_and_have_their_slope(truncation: HardTruncation | SmoothTruncation) -> None:
    u = torch.linspace(0.0, 1.0, 10_001, dtype=torch.float64)
    S, slope = truncation(u)
    assert float(S[0]) == 0.0
    assert float(S[-1]) == 1.0
    assert bool((S.diff() >= 0).all())
    assert float(S.diff().max()) < 3e-4
    area = torch.trapezoid(slope, u)
    assert float(area) == pytest.approx(1.0, abs=3e-4)


def test_taper_has_no_kink() -> None:
    taper = SmoothTruncation(0.85, 0.99)
    u = torch.tensor([0.85 - 1e-9, 0.85 + 1e-9, 0.99 - 1e-9], dtype=torch.float64)
    slope = taper(u)[1]
    assert float(slope[0] - slope[1]) == pytest.approx(0.0, abs=1e-6)
    assert float(slope[2]) == pytest.approx(0.0, abs=1e-6)


@given(rate=st.floats(0.05, 30.0), prior=st.floats(0.1, 5.0))
def test_divergence_of_a_poisson_posterior_matches_the_sum(rate: float, prior: float) -> None:
    eta, law = raw(rate), HARD
    support = law.support(eta)
    log_prior = PoissonPrior(prior).log_prob(torch.tensor(list(support), dtype=torch.float64))
    q, log_q, divergence = depth_terms(law, eta, support, log_prior)
    expected = sum(
        float(a) * (math.log(a) - scipy.stats.poisson.logpmf(k, prior)) for k, a in zip(support, q, strict=True)
    )
    assert float(divergence) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert torch.allclose(log_q.exp(), q)
    assert float(divergence) >= -1e-9


@pytest.mark.parametrize("law", ALL, ids=repr)
def test_gradient_in_eta_is_the_closed_form(law: DepthLaw) -> None:
    """d/dη of Σ q g − KL(q ‖ p) is Σ ∂q (g + log p − log q); for the soft Poisson, (1/δ) Σ p_k (G(k+1) − G(k))."""
    eta = start(law)
    eta.requires_grad_(len(eta) > 0)
    support = law.support(eta)
    k = torch.tensor(list(support), dtype=torch.float64)
    g, log_prior = -((k - 2.0) ** 2), PoissonPrior(0.7).log_prob(k)
    q, log_q, divergence = depth_terms(law, eta, support, log_prior)
    value = (log_q.exp() * g).sum() + (q * g).sum() - divergence
    if len(eta) == 0:
        assert not value.requires_grad
        return
    value.backward()
    with torch.no_grad():
        _, dq = law.probs_and_grad(eta, support)
        G = 2.0 * g + log_prior - q.log()
        assert eta.grad is not None
        assert torch.allclose(eta.grad, G @ dq, atol=1e-10)
        if law == SOFT:
            p = torch.tensor(scipy.stats.poisson.pmf(k.numpy(), law.rate))  # type: ignore[attr-defined]
            slope = torch.sigmoid(eta)
            abel = (p[:-1] * (G[1:] - G[:-1])).sum() / 0.95
            assert torch.allclose(eta.grad, abel * slope, atol=1e-9)


def test_an_atom_of_mass_zero_gives_finite_terms() -> None:
    """Soft truncation lets a depth enter with mass 0, where log q is −∞."""
    law = TruncatedPoisson(rate=2.0)
    eta = raw(2.0).requires_grad_()
    longer = range(len(law.support(eta)) + 2)
    log_prior = PoissonPrior().log_prob(torch.arange(len(longer), dtype=torch.float64))
    q, log_q, divergence = depth_terms(law, eta, longer, log_prior)
    assert q[-1] == 0.0
    ((log_q.exp() * torch.arange(len(longer))).sum() - divergence).backward()
    assert eta.grad is not None
    assert bool(eta.grad.isfinite().all())


def test_priors_are_proper() -> None:
    k = torch.arange(200, dtype=torch.float64)
    for prior in (PoissonPrior(0.5), PoissonPrior(20.0), UniformPrior(7)):
        assert float(prior.log_prob(k).exp().sum()) == pytest.approx(1.0, abs=1e-9)
        assert torch.allclose(prior.log_prob(torch.arange(9)).double(), prior.log_prob(k[:9]), rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TruncatedPoisson(rate=0.0),
        lambda: TruncatedPoisson(rate=math.nan),
        lambda: QuantilePoisson(quantile=1.0),
        lambda: StickBreaking(rate=-1.0),
        lambda: HardTruncation(0.5, 0.5),
        lambda: HardTruncation(0.0, 1.0),
        lambda: SmoothTruncation(0.99, 0.9),
        lambda: FreeCategorical(0),
        lambda: FixedDepth((2, 1), (0.5, 0.5)),
        lambda: FixedDepth((1,), (0.9,)),
        lambda: FixedDepth(()),
        lambda: PoissonPrior(0.0),
    ],
)
def test_options_that_make_no_law_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match=r"allowed|needed"):
        make()
