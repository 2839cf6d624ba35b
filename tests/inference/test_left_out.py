"""Leave-one-out laws from states of chains, against closed forms of linear regressions with known noise."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fathomless.inference.mcmc import left_out
from fathomless.inference.mcmc.left_out import leave_one_out_laws
from fathomless.posterior.left_out import LeftOutLaws, mix_left_out
from fathomless.posterior.mixtures import Mixture, Normal

ROWS, STATES, NOISE = 40, 4000, 0.8
ONE = torch.zeros(STATES, dtype=torch.int64)
EVEN = torch.zeros(STATES, dtype=torch.float64)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 3))
Y = X @ RNG.normal(size=(3, 2)) + NOISE * RNG.normal(size=(ROWS, 2))  # two targets


def posterior(kept: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (3, 2) and covariance (3, 3) of the weights, whose prior is standard normal."""
    w = (kept * counts)[:, None]
    cov = np.linalg.inv(np.eye(3) + (w * X).T @ X / NOISE**2)
    return cov @ (w * X).T @ Y / NOISE**2, cov


def refit(unit: np.ndarray, counts: np.ndarray, extra: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Predictive means and standard deviations of each row, (N, 2) each, from the rows of other units."""
    means, stds = np.empty_like(Y), np.empty_like(Y)
    for i in range(ROWS):
        centre, cov = posterior(unit != unit[i], counts)
        means[i] = X[i] @ centre
        stds[i] = math.sqrt(NOISE**2 + extra + X[i] @ cov @ X[i])
    return means, stds


def draw_weights(counts: np.ndarray, wider: float = 1.0) -> np.ndarray:
    """Exact draws of the weights given all rows, (S, 3, 2); their spread is multiplied by a factor."""
    centre, cov = posterior(np.ones(ROWS), counts)
    root = np.linalg.cholesky(cov)
    return centre + wider * np.einsum("ij,sjt->sit", root, np.random.default_rng(1).normal(size=(STATES, 3, 2)))


def check(found: LeftOutLaws, unit: np.ndarray, counts: np.ndarray) -> None:
    means, stds = refit(unit, counts)
    assert float(found.unreliable.sum()) == 0.0
    np.testing.assert_allclose(found.mean, means, atol=0.05)
    np.testing.assert_allclose(found.std, stds, rtol=0.02)
    np.testing.assert_allclose(found.log_density, stats.norm.logpdf(Y, means, stds), atol=0.08)


def laws_of(weights: np.ndarray):
    f = torch.from_numpy(np.einsum("nd,sdt->snt", X, weights))
    return lambda part: Normal(f[:, part], torch.full_like(f[:, part], NOISE))


ALONE = np.arange(ROWS)


@pytest.mark.parametrize("copies", [1.0, 3.0])
@pytest.mark.parametrize("grouped", [False, True])
def test_laws_are_those_of_refits(copies: float, grouped: bool) -> None:
    """Rows that count once or three times, and rows of one group, are left out as they were put in."""
    counts, unit = np.full(ROWS, copies), ALONE // 2 if grouped else ALONE
    if copies > 1.0 and grouped:
        counts = np.where(ALONE % 2 == 0, 2.0, 1.0)
    laws = laws_of(draw_weights(counts))
    check(leave_one_out_laws(laws, torch.from_numpy(Y), EVEN, ONE, counts=counts, unit=unit), unit, counts)


def test_states_can_have_weights() -> None:
    """Draws from a wider law with importance weights represent the same posterior."""
    counts = np.ones(ROWS)
    weights = draw_weights(counts, wider=1.3)
    centre, cov = posterior(np.ones(ROWS), counts)
    z = np.einsum("ij,sjt->sit", np.linalg.inv(np.linalg.cholesky(cov)), weights - centre)
    log_base = -0.5 * (z**2).sum((1, 2)) * (1.0 - 1.0 / 1.3**2)
    found = leave_one_out_laws(laws_of(weights), torch.from_numpy(Y), torch.from_numpy(log_base), ONE)
    check(found, ALONE, counts)


def test_weights_belong_to_states_not_to_draws_of_their_hidden_units() -> None:
    """Each draw of a state adds a hidden value to all predictions; given the state, it is integrated out."""
    hidden, draws, states, y = 0.6, 20, 2000, Y[:, :1]
    total = math.hypot(NOISE, hidden)
    means, stds = np.empty(ROWS), np.empty(ROWS)
    for i in range(ROWS):
        kept = np.delete(X, i, 0)
        cov = np.linalg.inv(np.eye(3) + kept.T @ kept / total**2)
        means[i] = X[i] @ cov @ kept.T @ np.delete(Y[:, 0], i) / total**2
        stds[i] = math.sqrt(total**2 + X[i] @ cov @ X[i])
    cov = np.linalg.inv(np.eye(3) + X.T @ X / total**2)
    weights = np.random.default_rng(2).multivariate_normal(cov @ X.T @ Y[:, 0] / total**2, cov, states)
    added = hidden * stats.norm.ppf((np.arange(draws) + 0.5) / draws)
    added *= hidden / added.std()
    f = torch.from_numpy((weights @ X.T)[:, None] + added[:, None]).flatten(0, 1)[..., None]  # (S M, N, 1)
    laws = lambda part: Normal(f[:, part], torch.full_like(f[:, part], NOISE))  # noqa: E731
    found = leave_one_out_laws(laws, torch.from_numpy(y), EVEN[:states], ONE[:states], draws=draws)
    np.testing.assert_allclose(found.mean[:, 0], means, atol=0.05)
    np.testing.assert_allclose(found.std[:, 0], stds, rtol=0.02)
    np.testing.assert_allclose(found.log_density[:, 0], stats.norm.logpdf(Y[:, 0], means, stds), atol=0.08)
    of_draws = leave_one_out_laws(laws, torch.from_numpy(y), EVEN[:1].repeat(len(f)), ONE[:1].repeat(len(f)))
    assert np.abs(of_draws.mean[:, 0].numpy() - means).max() > 0.2  # weights of single draws would be wrong


def test_parts_of_the_rows_give_the_same_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    laws = laws_of(draw_weights(np.ones(ROWS)))
    whole = leave_one_out_laws(laws, torch.from_numpy(Y), EVEN, ONE)
    monkeypatch.setattr(left_out, "_AT_ONCE", 7 * STATES)
    parts = leave_one_out_laws(laws, torch.from_numpy(Y), EVEN, ONE)
    for name in ("mean", "std", "log_density", "unreliable"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-9, atol=1e-9)


def test_structures_are_mixed_by_their_masses() -> None:
    rng = np.random.default_rng(3)
    loc, scale = torch.from_numpy(rng.normal(size=(3, 5, 1))), torch.from_numpy(rng.uniform(0.5, 2.0, (3, 5, 1)))
    y = torch.from_numpy(rng.normal(size=(5, 1)))
    laws = [
        LeftOutLaws(loc[i], scale[i], Normal(loc[i], scale[i]).log_prob(y), torch.full((5,), float(i)).double())
        for i in range(3)
    ]
    mixed = mix_left_out(laws, (0.7, 0.3, 0.0))
    exact = Mixture(torch.tensor([0.7, 0.3], dtype=torch.float64).log(), Normal(loc[:2], scale[:2]))
    torch.testing.assert_close(mixed.mean, exact.mean)
    torch.testing.assert_close(mixed.std, exact.std)
    torch.testing.assert_close(mixed.log_density, exact.log_prob(y))
    assert mixed.unreliable.tolist() == pytest.approx([0.3] * 5)
