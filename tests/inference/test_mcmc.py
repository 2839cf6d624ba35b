"""Diagnostics of chains against ArviZ, and the joint-distribution test on samplers that are right and wrong."""

import warnings

import numpy as np
import pytest
import scipy.stats
import torch

from fathomless.inference.mcmc.diagnostics import (
    diagnose,
    ess_bulk,
    ess_mean,
    ess_tail,
    mcse_mean,
    mcse_quantile,
    rhat,
    to_arviz,
)
from fathomless.inference.mcmc.elliptical import elliptical_slice
from fathomless.inference.mcmc.joint import joint_distribution_test
from fathomless.system.errors import DataError, DivergenceError


@pytest.fixture(scope="module")
def arviz() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a package of others says of its own future when it is imported
        return pytest.importorskip("arviz", reason="the extra `mcmc` is not installed")


def autoregressive(chains: int, draws: int, rho: float, seed: int, apart: float = 0.0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = np.empty((chains, draws))
    x[:, 0] = generator.normal(size=chains)
    for t in range(1, draws):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * generator.normal(size=chains)
    return x + apart * np.arange(chains)[:, None]


def test_elliptical_slices_leave_a_cut_normal_law_as_it_is() -> None:
    """N(0, 1) beyond 1, and NaN elsewhere, has the mean φ(1)/(1 − Φ(1)) and the variance 1 + m − m²."""
    z = torch.full((50, 1), 1.5, dtype=torch.float64)
    log_p, generator, kept = torch.zeros(50, dtype=torch.float64), torch.Generator().manual_seed(0), []

    def beyond(z: torch.Tensor) -> torch.Tensor:
        return torch.where(z[:, 0] > 1.0, 0.0, torch.nan)

    for _ in range(400):
        z, log_p = elliptical_slice(z, log_p, beyond, generator)
        kept.append(z[:, 0])
    drawn = torch.stack(kept, 1).numpy()[:, 50:]
    mean = scipy.stats.truncnorm(1.0, np.inf).mean()
    assert mean == pytest.approx(1.5251, abs=1e-4)
    assert abs(drawn.mean() - mean) < 5.0 * mcse_mean(drawn)
    square = (drawn - mean) ** 2
    assert abs(square.mean() - (1.0 + mean - mean**2)) < 5.0 * mcse_mean(square)
    with pytest.raises(DivergenceError, match="not finite"):
        elliptical_slice(z, torch.full_like(log_p, -torch.inf), beyond)


CHAINS = {
    "independent": autoregressive(4, 500, 0.0, 0),
    "slow": autoregressive(4, 501, 0.95, 1),
    "alternating": autoregressive(3, 200, -0.6, 2),
    "apart": autoregressive(4, 300, 0.5, 3, apart=0.7),
    "one": autoregressive(1, 100, 0.3, 4),
    "counts": np.floor(autoregressive(12, 250, 0.8, 5) * 2),
    "heavy": autoregressive(4, 400, 0.2, 6) ** 5,
    "short": autoregressive(2, 6, 0.0, 7),
    "trend": autoregressive(2, 50, 0.999, 8),
}


@pytest.mark.parametrize("name", CHAINS)
def test_rhat_and_ess_match_arviz(arviz: object, name: str) -> None:
    x = CHAINS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ess = {kind: arviz.ess(x, method=kind) for kind in ("bulk", "tail", "mean")}  # type: ignore[attr-defined]
        errors = [np.ravel(arviz.mcse(x, **how))[0] for how in ({}, {"method": "quantile", "prob": 0.9})]  # type: ignore[attr-defined]
        if len(x) > 1:  # theirs wants two chains
            assert rhat(x) == pytest.approx(float(arviz.rhat(x)), rel=1e-8)  # type: ignore[attr-defined]
    assert [ess_bulk(x), ess_tail(x), ess_mean(x)] == pytest.approx([float(value) for value in ess.values()], rel=1e-8)
    assert [mcse_mean(x), mcse_quantile(x, 0.9)] == pytest.approx(errors, rel=1e-8)


def test_constant_quantity_has_no_rhat() -> None:
    found = diagnose(np.full((4, 100), 3.0))
    assert found.rhat is None
    assert found.constant
    assert (found.mean, found.sd, found.mcse) == (3.0, 0.0, 0.0)


def test_chains_that_disagree_are_told() -> None:
    assert rhat(CHAINS["apart"]) > 1.1 > 1.01 > rhat(CHAINS["independent"])
    stuck = np.repeat(np.arange(4.0)[:, None], 100, 1)
    assert rhat(stuck) == np.inf


def test_monte_carlo_error_is_that_of_the_mean() -> None:
    means = [autoregressive(4, 250, 0.7, seed).mean() for seed in range(100, 300)]
    told = np.mean([mcse_mean(autoregressive(4, 250, 0.7, seed)) for seed in range(100, 150)])
    assert told == pytest.approx(np.std(means), rel=0.25)  # the error of a deviation over 200 runs is 5 %


def test_draws_that_say_nothing_are_refused() -> None:
    for wrong in (np.zeros(5), np.zeros((2, 3)), np.zeros((2, 2, 5))):
        with pytest.raises(DataError, match=r"\(chains, draws\) with at least 4"):
            rhat(wrong)
    with pytest.raises(DataError, match="1 values that are not finite"):
        ess_bulk([[0.0, 1.0, np.nan, 2.0]])


def test_arviz_gets_the_draws(arviz: object) -> None:
    data = to_arviz({"H": CHAINS["counts"]})
    assert data.posterior["H"].shape == (12, 250)
    assert (data.posterior["H"].values == CHAINS["counts"]).all()


def joint(variance: float, chains: int = 30) -> float:
    """A normal mean with five data; a right Gibbs step has the variance 1 / 6."""

    def forward(generator: np.random.Generator) -> tuple[float, np.ndarray]:
        mean = generator.normal()
        return mean, generator.normal(mean, size=5)

    return joint_distribution_test(
        forward,
        lambda state, generator: (generator.normal(state[1].sum() / 6, variance**0.5), state[1]),
        lambda state, generator: (state[0], generator.normal(state[0], size=5)),
        lambda state: {"mean": state[0], "square": state[0] ** 2, "data": state[1].mean() ** 2},
        chains,
        200,
        np.random.default_rng(0),
    ).p


def test_a_right_sampler_passes_and_a_wrong_one_does_not() -> None:
    assert joint(1 / 6) > 0.001
    assert joint(1 / 4) < 1e-5


def test_a_joint_test_that_could_not_tell_is_refused() -> None:
    with pytest.raises(DataError, match="chains=2 was given; at least 3"):
        joint(1 / 6, chains=2)
    with pytest.raises(DataError, match="the statistic 'x' was nan"):
        joint_distribution_test(
            lambda g: 0.0, lambda s, g: s, lambda s, g: s, lambda s: {"x": np.nan}, 3, 2, np.random.default_rng(0)
        )
