"""The experiments on continuous depth: their parts against closed forms and independent libraries.

Their small versions run in ``test_experiments.py``, with those of all others.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from experiments import bimodal, continuous_uci, digits, follow, landing, paths, solvers
from experiments.gaussian_process import gaussian_process
from experiments.results import Value, average_parts
from fathomless.data.rows import Rows
from fathomless.families.continuous.dynamics import MLPDynamics
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.likelihoods import Categorical, Gaussian

# -------------------------------------------------------------------------------------------------------- the toys


@pytest.mark.parametrize("name", paths.TOYS)
def test_rows_of_a_toy_lie_where_it_says_and_nowhere_else(name: str) -> None:
    toy = paths.TOYS[name]
    X, y = toy.sample(4000, 0)
    inside = sum((X[:, 0] >= a) & (X[:, 0] <= b) for a, b in toy.data)
    assert (inside == 1).all()
    z = (y - toy.truth(X[:, 0])) / toy.noise
    assert abs(z.mean()) < 4.0 / math.sqrt(4000)
    ends = sorted((*toy.data, *toy.gap, *toy.outside))
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))  # the regions have no holes


def test_the_gaussian_process_is_that_of_scikit_learn() -> None:
    X, y = paths.TOYS["cosine"].sample(40, 3)
    at = np.linspace(-1.5, 1.5, 31)
    predict, evidence = gaussian_process(X[:, 0], y)
    kernel = ConstantKernel(0.25) * RBF(0.3) + WhiteKernel(0.01)
    theirs = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0).fit(X, y)
    mean, std = theirs.predict(at[:, None], return_std=True)
    found = predict(at)
    assert evidence == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-4)
    np.testing.assert_allclose(found.mean, mean, atol=1e-3)
    np.testing.assert_allclose(found.std, std, rtol=1e-3)


def test_the_network_of_the_paper_has_one_diffusion_for_all_weights() -> None:
    net = MLPDynamics(1, 1, hidden=(64, 64), encoder="pad", augment=2, activation="swish", time="gate")
    model = follow.published_network(net, 0.5, rank=4, steps=3, seed=0)
    assert model.moving == 5132
    torch.testing.assert_close(model.scale, torch.full((5132,), 0.5 / math.sqrt(2.0)))
    usual = follow.network({"hidden": (64, 64), "encoder": "pad", "augment": 2}, 1, 1, 0)
    first = model.mean[0, : 3 * 64] * model.scale[: 3 * 64]  # the initial values do not depend on the prior
    other = usual.mean[0, : 3 * 64] * usual.scale[: 3 * 64]
    assert first.std().item() == pytest.approx(other.std().item(), rel=0.2)
    draws = model.draw(torch.zeros(2, 1), 1, torch.Generator().manual_seed(0))
    assert abs(draws.divergence["weights"].item()) < 1e-3  # free at depth 0, the prior after it


# ---------------------------------------------------------------------------------------------- the two modes


def test_the_law_with_two_modes_is_symmetric_and_close_to_that_with_its_start_held() -> None:
    true = bimodal.exact_masses()
    for cells in true.values():
        assert math.fsum(cells) == pytest.approx(1.0)
        np.testing.assert_allclose(cells, cells[::-1], atol=2e-3)
    middle = 0.5 * (bimodal.EDGES[1:] + bimodal.EDGES[:-1])
    assert abs(abs(middle[int(np.argmax(true["exact"]))]) - 5.0) < 1.0
    assert 0.5 * np.abs(np.subtract(true["exact"], true["held"])).sum() < 0.05


def test_the_prior_of_the_end_has_the_variance_of_the_process() -> None:
    left = math.exp(-0.3)
    assert bimodal._PRIOR.diffusion == pytest.approx(math.sqrt(2.0))
    assert 9.0 * left**2 + bimodal._PRIOR.scale**2 * (1.0 - left**2) == pytest.approx(9.45, abs=0.01)


# -------------------------------------------------------------------------------------------------- the landing


def test_the_log_evidence_is_that_of_a_gaussian() -> None:
    variance = 0.125 * (1.0 - math.exp(-2.0)) + 0.09
    assert stats.norm(0.7 * math.exp(-1.0), math.sqrt(variance)).logpdf(1.3) == pytest.approx(landing.LOG_EVIDENCE)


def test_gradients_are_differences_of_the_bound() -> None:
    phi = torch.tensor([0.8, 0.9, 0.2, 0.3], dtype=torch.float64)
    grads, _ = landing.gradients(phi, 10, 5, seed=1)
    h = 1e-5
    for k in range(4):
        ends = []
        for sign in (1.0, -1.0):
            moved = phi.clone()
            moved[k] += sign * h
            ends.append(landing.gradients(moved, 10, 5, seed=1)[1])
        for name in ("0", "full"):  # what is stopped in the others has no such difference
            slope = -(ends[0][name] - ends[1][name]) / (2.0 * h)
            torch.testing.assert_close(grads[name][:, k], slope, atol=1e-6, rtol=1e-6)


# ------------------------------------------------------------------------------------------- solvers, networks


@pytest.mark.parametrize("kind", ["exact", "euler"])
def test_the_divergence_tends_to_that_of_the_process(kind: str) -> None:
    found = [solvers.divergence(n, kind) for n in (10, 100, 1000, 5000)]
    assert found == sorted(found, reverse=kind == "euler")
    assert found[-1] == pytest.approx(0.929629, abs=1e-3 if kind == "euler" else 1e-6)


def test_rows_are_followed_on_the_same_paths_however_they_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [follow.network({"width": 4, "hidden": 4}, 2, 3, seed) for seed in (0, 1)]
    model = Ensemble([member.eval() for member in members])
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    whole = follow.draw_paths(model, x, 6, 8)
    monkeypatch.setattr(follow, "_CHUNK", 3)
    torch.testing.assert_close(follow.draw_paths(model, x, 6, 8).f, whole.f)
    assert whole.f.shape == (8, 7, 3)
    scores = follow.class_scores(whole, Categorical(3), torch.tensor([0, 1, 2, 0, 1, 2, 0]))
    mixture = torch.softmax(whole.f.double(), -1).mean(0)
    right = mixture[torch.arange(7), torch.tensor([0, 1, 2, 0, 1, 2, 0])].log().mean()
    assert scores["log_likelihood"] == pytest.approx(right.item(), abs=1e-6)
    assert scores["mixture_gained"] > 0.0


def test_the_bound_of_a_network_without_noise_is_its_likelihood_less_its_decay() -> None:
    model = follow.network({"path__rate": 0.0, "width": 4, "hidden": 4}, 1, 1, 0)
    x = torch.linspace(-1.0, 1.0, 9)[:, None]
    likelihood, rows = Gaussian(noise=0.5), Rows(x, x.sin())
    f = model.eval().draw(x, 1).f
    expected = likelihood.log_prob(f, rows.y).sum() - 0.5 * model.mean.square().sum()
    steps = follow.steps_of(model)
    assert follow.bound(model, likelihood, rows, steps) == pytest.approx(expected.item(), rel=1e-5)


def test_the_convolutions_have_as_many_weights_as_the_specification_says() -> None:
    assert sum(weight.size for weight in digits.convolutions(64, 10).moving) == 5008


# ------------------------------------------------------------------------------------------------------ the tables


def test_models_are_ranked_by_their_log_likelihood_on_every_table() -> None:
    def scores(table: str, *likelihoods: float) -> dict[str, Value]:
        names = ("continuous", "udn", "meanfield")
        found = {f"{table}/{n}/log_likelihood": Value(v) for n, v in zip(names, likelihoods, strict=True)}
        return found | {f"{table}/{n}/rmse": Value(-v) for n, v in zip(names, likelihoods, strict=True)}

    values = scores("a", -1.0, -2.0, -3.0) | scores("b", -2.0, -1.0, -3.0)
    found = continuous_uci._rank(values, ["a", "b"], ["continuous", "udn", "meanfield"])
    assert [found[f"rank/{n}"].value for n in ("continuous", "udn", "meanfield")] == [1.5, 1.5, 3.0]
    assert found["rank_gained_over_meanfield"].value == 1.5
    assert found["tables_near_udn"].value == 1.0


def test_repetitions_are_summed_up_and_what_is_no_number_is_left_out() -> None:
    found = {"a/b/0": {"x": 1.0, "curve": [1]}, "a/b/1": {"x": 3.0, "curve": [2]}}
    assert average_parts(found, "a/b", 2) == {"a/b/x": Value(2.0, 1.0, 2)}
