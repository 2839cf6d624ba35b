"""Variable selection by coordinate ascent: exact evidences, monotone bounds, a published data set."""

import itertools
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logsumexp
from scipy.stats import chi2
from torch import Tensor
from torch.nn.functional import logsigmoid

from experiments import selection
from experiments.selection import Selection, average_grid, select, selections
from fathomless.system.errors import DataError

PI = 0.25


def toy(seed: int = 0, n: int = 60, d: int = 4, signal: float = 2.0) -> tuple[Tensor, Tensor]:
    """Correlated columns, of which the first matters."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64) + torch.randn(n, 1, generator=rng, dtype=torch.float64)
    return x, (torch.rand(n, generator=rng) < torch.sigmoid(0.5 + signal * x[:, 0])).double()


def orthogonal(seed: int = 0, n: int = 24, d: int = 3) -> tuple[Tensor, Tensor]:
    """Columns orthogonal to each other and to the constant, of different lengths."""
    rng = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(
        torch.cat([torch.ones(n, 1), torch.randn(n, d, generator=rng)], 1).double()
    ).Q  # the first is constant
    x = basis[:, 1:] * torch.tensor([5.0, 3.0, 4.0])[:d]
    return x, (torch.rand(n, generator=rng) < torch.sigmoid(x[:, 0] * 2)).double()


def started(
    x: Tensor, y: Tensor, runs: int = 1, seed: int = 0, slab: float = 1.0, learn: bool = False, order: str = "given"
) -> tuple[Any, Any]:
    """Problem, and runs at their start."""
    problem = selection._problem(x, y, runs, learn)
    grid = selection._grid([PI], [slab]).expand(runs, 2)
    return problem, selection._start(problem, grid, torch.Generator().manual_seed(seed), order)


def assert_equal(a: Selection, b: Selection) -> None:
    for f in fields(a):
        left, right = getattr(a, f.name), getattr(b, f.name)
        assert torch.equal(left, right) if isinstance(left, Tensor) else left == right, f.name


def quadratic_evidence(x: Tensor, y: Tensor, eta: Tensor, slab: float) -> float:
    """Log evidence where the quadratic bound stands for the logistic function: Gaussian integrals, all structures."""
    u, k = torch.cat([torch.ones(len(x), 1).double(), x], 1), y - 0.5
    d = (torch.sigmoid(eta) - 0.5) / eta
    constant = float((logsigmoid(eta) - eta / 2 + d * eta.square() / 2).sum())
    terms = []
    for structure in itertools.product([0, 1], repeat=x.shape[1]):
        z = u[:, [True, *map(bool, structure)]]
        size = sum(structure)
        precision = z.T @ (d[:, None] * z) + torch.diag(torch.tensor([0.0] + [1 / slab] * size, dtype=torch.float64))
        b = z.T @ k
        integral = (b @ torch.linalg.solve(precision, b) - torch.logdet(precision)) / 2
        prior = size * math.log(PI) + (x.shape[1] - size) * math.log(1 - PI)
        terms.append(prior + float(integral) + math.log(2 * math.pi) / 2 - size * math.log(slab) / 2)
    return constant + float(logsumexp(terms))


def exact_evidence(x: Tensor, y: Tensor, slab: float) -> float:
    """Log evidence of the logistic model: the trapezium rule over intercept and slabs, all structures."""
    grid = np.linspace(-9.0, 9.0, 91)
    step, terms = grid[1] - grid[0], []
    for structure in itertools.product([0, 1], repeat=x.shape[1]):
        size = sum(structure)
        axes = np.meshgrid(grid * 1.5, *[grid * math.sqrt(slab)] * size, indexing="ij")
        linear = axes[0][..., None] + sum(
            w[..., None] * x[:, j].numpy() for w, j in zip(axes[1:], np.flatnonzero(structure), strict=True)
        )
        log_p = -np.logaddexp(0.0, -linear * (2 * y.numpy() - 1)).sum(-1)
        log_p = log_p + sum(-np.square(w) / (2 * slab) - math.log(2 * math.pi) / 2 for w in axes[1:])
        prior = size * math.log(PI) + (x.shape[1] - size) * math.log(1 - PI)
        terms.append(prior + float(logsumexp(log_p)) + math.log(1.5) + (1 + size) * math.log(step))
    return float(logsumexp(terms))


# --- the quadratic bound


@given(st.floats(-30, 30), st.floats(-30, 30))
def test_the_quadratic_bound_is_below_log_sigmoid_and_touches_at_eta(u: float, eta: float) -> None:
    def bound(u: float) -> float:
        d = float(selection._curvature(torch.tensor(eta, dtype=torch.float64)))
        return math.log(expit(eta)) + (u - eta) / 2 - d * (u * u - eta * eta) / 2

    assert bound(u) <= math.log(expit(u)) + 1e-12
    for touch in (eta, -eta):
        assert bound(touch) == pytest.approx(math.log(expit(touch)), abs=1e-12)


def test_the_curvature_is_even_a_quarter_at_zero_and_exact_elsewhere() -> None:
    eta = torch.tensor([0.0, 1e-300, 1e-9, 1e-4, 0.5, 3.0, 50.0, 1e50], dtype=torch.float64)
    d = selection._curvature(eta)
    assert torch.equal(d, selection._curvature(-eta))
    assert d[:3].tolist() == pytest.approx([0.25] * 3, rel=1e-15)
    direct = (expit(eta[4:].numpy()) - 0.5) / eta[4:].numpy()
    assert d[4:].numpy() == pytest.approx(direct, rel=1e-14)
    assert float(d[3]) == pytest.approx(0.25 - 1e-8 / 48, rel=1e-15)  # the series


# --- the bound, against exact evidences


@pytest.mark.parametrize("slab", [0.3, 1.0, 7.0])
def test_after_a_sweep_over_orthogonal_columns_the_bound_is_the_evidence_at_that_eta(slab: float) -> None:
    """Then the posterior under the quadratic bound is a product over columns, and nothing is lost but the constant."""
    x, y = orthogonal()
    problem, runs = started(x, y, slab=slab)
    swept = selection._update_bound(problem, selection._sweep(problem, runs))
    assert float(swept.bound) == pytest.approx(quadratic_evidence(x, y, runs.eta[0], slab), abs=1e-10)


def test_with_correlated_columns_the_bound_is_below_that_evidence() -> None:
    x, y = toy(n=20, d=3)
    problem, runs = started(x, y, runs=10)
    for _ in range(5):
        swept = selection._update_bound(problem, selection._sweep(problem, runs))
        exact = [quadratic_evidence(x, y, eta, 1.0) for eta in runs.eta]
        assert (swept.bound < torch.tensor(exact, dtype=torch.float64)).all()
        runs = selection._iterate(problem, runs)


@pytest.mark.parametrize(("d", "slab"), [(1, 1.0), (1, 4.0), (2, 1.0)])
def test_the_bound_is_below_the_exact_log_evidence_and_not_far_below(d: int, slab: float) -> None:
    x, y = toy(seed=3, n=14, d=d)
    assert 0 < y.mean() < 1
    best = select(x, y, slab_variance=slab, restarts=5, generator=0)
    gap = exact_evidence(x, y, slab) - best.bound
    assert 0.0 < gap < 1.0  # nats


def test_a_learned_slab_variance_adds_its_log_prior_density() -> None:
    """A scaled inverse chi-squared law: n0 s0² / variance is chi-squared with n0 = 10 degrees of freedom."""
    x, y = toy()
    for slab in (0.2, 1.0, 5.0):
        learned, plain = started(x, y, slab=slab, learn=True)[1], started(x, y, slab=slab)[1]
        density = chi2.logpdf(10 / slab, 10) + math.log(10 / slab)  # of the logarithm
        assert float(learned.bound - plain.bound) == pytest.approx(density, abs=1e-10)


def test_the_learned_slab_variance_has_the_best_bound() -> None:
    x, y = toy()
    problem, runs = started(x, y, learn=True)
    for _ in range(500):
        runs = selection._iterate(problem, runs)
    for scale in (0.98, 1.02):
        assert selection._update_bound(problem, replace(runs, slab=runs.slab * scale)).bound < runs.bound


# --- ascent


@given(st.integers(0, 10_000), st.sampled_from([0.05, 1.0, 30.0]), st.booleans())
@settings(max_examples=25)
def test_no_sweep_lowers_the_bound(seed: int, slab: float, learn: bool) -> None:
    """Each step as it is, before any is undone; with a learned slab variance, the bound with its prior."""
    x, y = toy(seed=seed, n=30, d=5)
    problem, runs = started(x, y, runs=3, seed=seed, slab=slab, learn=learn, order="random")
    for _ in range(20):
        new = selection._iterate(problem, runs)
        assert (new.bound >= runs.bound - 1e-8).all()
        runs = new


def test_a_sweep_that_lowers_the_bound_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = toy()
    whole = select(x, y, generator=0)
    plain, calls = selection._iterate, itertools.count()

    def worse(problem: Any, runs: Any) -> Any:
        new = plain(problem, runs)
        return replace(new, bound=new.bound - 1e6) if next(calls) == 3 else new

    monkeypatch.setattr(selection, "_iterate", worse)
    cut = select(x, y, generator=0)
    assert cut.iterations == 3
    assert cut.trace == whole.trace[:4]
    assert cut.bound == cut.trace[-1]


def test_runs_end_at_rest_with_a_trace_that_never_falls() -> None:
    x, y = toy()
    for run in selections(x, y, restarts=4, learn_slab_variance=True, generator=0):
        assert run.converged
        assert list(run.trace) == sorted(run.trace)
        assert (len(run.trace), run.trace[-1]) == (run.iterations + 1, run.bound)
    cut = select(x, y, max_iterations=2, generator=0)
    assert (cut.iterations, cut.converged) == (2, False)


def test_the_learned_eta_is_a_fixed_point() -> None:
    x, y = toy()
    problem, runs = started(x, y)
    for _ in range(400):
        runs = selection._iterate(problem, runs)
    assert torch.allclose(selection._optimal_eta(problem, runs), runs.eta, rtol=1e-10)
    best = float(runs.bound)
    for scale in (0.99, 1.01):
        assert float(selection._update_terms(problem, replace(runs, eta=runs.eta * scale)).bound) < best


def test_eta_is_the_root_mean_square_of_the_linear_predictor() -> None:
    """Against draws of coefficients and intercept from the approximate posterior."""
    x, y = toy(n=8, d=2)
    problem, runs = started(x, y)
    rng, draws = np.random.default_rng(0), 100_000
    weight = np.where(
        rng.random((draws, 2)) < runs.inclusion[0].numpy(),
        rng.normal(runs.mean[0], runs.variance[0].sqrt(), (draws, 2)),
        0.0,
    )
    a, c = float(runs.a), runs.c[0].numpy()
    intercept = a * (float(problem.half.sum()) - weight @ c) + math.sqrt(a) * rng.normal(size=draws)
    square = np.square(intercept[:, None] + weight @ problem.columns.numpy())
    error = square.std(0) / math.sqrt(draws)
    assert (np.abs(square.mean(0) - selection._optimal_eta(problem, runs)[0].square().numpy()) < 4 * error).all()


# --- columns


def test_one_sweep_over_orthogonal_columns_gives_what_each_gives_alone() -> None:
    """At the first eta, which is the same for all rows; later sweeps share an eta, and so are not separate."""
    x, y = orthogonal()
    problem, runs = started(x, y)
    swept = selection._sweep(problem, runs)
    d = math.tanh(0.5) / 2
    for j in range(x.shape[1]):
        alone = selection._sweep(*started(x[:, [j]], y))
        assert float(alone.mean) == pytest.approx(float(swept.mean[0, j]), rel=1e-12)
        assert float(alone.inclusion) == pytest.approx(float(swept.inclusion[0, j]), rel=1e-12)
        s = 1 / (d * float(x[:, j].square().sum()) + 1)
        mean = s * float(x[:, j] @ (y - 0.5))
        odds = math.log(PI / (1 - PI)) + math.log(s) / 2 + mean**2 / (2 * s)
        assert (float(swept.mean[0, j]), float(swept.variance[0, j])) == pytest.approx((mean, s), rel=1e-10)
        assert float(swept.inclusion[0, j]) == pytest.approx(expit(odds), rel=1e-10)


def test_permuted_columns_updated_in_the_same_order_give_permuted_results() -> None:
    x, y = toy()
    turn = torch.tensor([2, 0, 3, 1])
    problem, runs = started(x, y)
    other = selection._problem(x[:, turn], y, 1)
    turned = selection._update_terms(other, replace(runs, inclusion=runs.inclusion[:, turn], mean=runs.mean[:, turn]))
    runs = replace(runs, order=turn[None])
    for _ in range(10):
        runs, turned = selection._iterate(problem, runs), selection._iterate(other, turned)
    assert torch.allclose(turned.inclusion, runs.inclusion[:, turn], rtol=1e-9)
    assert torch.allclose(turned.mean, runs.mean[:, turn], rtol=1e-9)
    assert float(turned.bound) == pytest.approx(float(runs.bound), rel=1e-12)


def test_shifting_columns_moves_the_intercept_alone() -> None:
    x, y = toy()
    shift = torch.tensor([3.0, -100.0, 0.5, 7.0], dtype=torch.float64)
    a, b = select(x, y, generator=0), select(x + shift, y, generator=0)
    assert torch.allclose(a.inclusion, b.inclusion, rtol=1e-6)
    assert b.bound == pytest.approx(a.bound, rel=1e-10)
    assert b.intercept == pytest.approx(a.intercept - float(shift @ (a.inclusion * a.mean)), rel=1e-5)


def test_the_intercept_of_pure_noise_is_the_log_odds() -> None:
    y = torch.tensor([1.0] * 150 + [0.0] * 50)
    run = select(torch.zeros(200, 1), y, generator=0)
    assert run.intercept == pytest.approx(math.log(3), abs=0.02)
    assert float(run.inclusion) == pytest.approx(PI, rel=1e-12)  # a constant column learns nothing


def test_a_constant_response_selects_nothing_and_drifts_towards_the_prior() -> None:
    x, _ = toy()
    short, long = (select(x, torch.ones(60), max_iterations=sweeps, generator=0) for sweeps in (50, 500))
    assert not short.selected.any()
    assert (long.mean.abs() < 0.05).all()
    assert ((long.inclusion > short.inclusion) & (long.inclusion < PI)).all()


# --- restarts and grids


def test_equal_seeds_give_equal_bytes() -> None:
    x, y = toy(d=6)
    for order in ("random", "given"):
        a, b = (selections(x, y, order=order, restarts=3, generator=5) for _ in range(2))
        for left, right in zip(a, b, strict=True):
            assert_equal(left, right)
    a, b = (select(x, y, generator=torch.Generator().manual_seed(seed)) for seed in (5, 6))
    assert a.trace != b.trace


def test_the_best_bound_is_chosen() -> None:
    x, y = toy(d=8, signal=1.0)
    runs = selections(x, y, restarts=12, generator=1)
    assert_equal(select(x, y, restarts=12, generator=1), max(runs, key=lambda run: run.bound))
    assert len({run.trace[0] for run in runs}) == 12


def test_a_column_that_matters_is_selected_and_noise_is_not() -> None:
    x, y = toy(n=400, signal=3.0)
    assert select(x, y, restarts=5, generator=0).selected.tolist() == [True, False, False, False]


def test_averaging_over_a_grid_of_one_gives_the_single_run() -> None:
    x, y = toy()
    single, mean = select(x, y, restarts=3, generator=0), average_grid(x, y, [PI], [1.0], restarts=3, generator=0)
    assert mean.weights.tolist() == [[1.0]]
    assert torch.equal(mean.inclusion, mean.runs[0].inclusion)
    assert torch.allclose(mean.inclusion, single.inclusion, atol=1e-5)  # the second round goes on a little
    assert mean.runs[0].bound == pytest.approx(single.bound, abs=1e-6)
    assert mean.runs[0].trace[0] == pytest.approx(single.bound, abs=1e-10)


def test_averages_are_weighted_by_prior_times_exponential_of_the_bound() -> None:
    x, y = toy()
    prior = np.array([[1.0, 2.0], [0.0, 3.0]])
    found = average_grid(x, y, [0.1, 0.5], [0.5, 2.0], prior, generator=0)
    assert [(r.prior_inclusion, r.slab_variance) for r in found.runs] == [
        (0.1, 0.5),
        (0.1, 2.0),
        (0.5, 0.5),
        (0.5, 2.0),
    ]
    share = prior.ravel() * np.exp([r.bound - found.runs[0].bound for r in found.runs])
    share /= share.sum()
    assert found.weights.flatten().tolist() == pytest.approx(share.tolist(), rel=1e-12)
    inclusion = share @ np.stack([r.inclusion.numpy() for r in found.runs])
    assert found.inclusion.tolist() == pytest.approx(inclusion.tolist(), rel=1e-12)


def test_points_of_a_grid_start_again_from_the_best() -> None:
    """At first, the bounds differ by the priors of the structure alone, at the best point's inclusion probabilities."""
    x, y = toy(d=6)
    runs = average_grid(x, y, [0.1, 0.25, 0.5], [1.0], restarts=2, generator=0).runs
    best = max(runs, key=lambda run: run.bound)
    for run in runs:
        log = [[math.log(p), math.log(1 - p)] for p in (run.prior_inclusion, best.prior_inclusion)]
        prior = best.inclusion * (log[0][0] - log[1][0]) + (1 - best.inclusion) * (log[0][1] - log[1][1])
        assert run.trace[0] - best.trace[0] == pytest.approx(float(prior.sum()), abs=1e-4)


# --- the published data


@pytest.mark.parametrize("learn", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_best_of_twenty_restarts_finds_the_published_optimum(data_folder: Path, learn: bool) -> None:
    folder = data_folder / "lbbnn_logistic"
    x = np.loadtxt(folder / "x.csv", delimiter=",", skiprows=1)
    y = np.loadtxt(folder / "y.csv", skiprows=1)
    x = (x - x.mean(0)) / x.std(0, ddof=1)
    runs = selections(x, y, restarts=20, learn_slab_variance=learn, generator=0)
    best = max(runs, key=lambda run: run.bound)
    assert (np.flatnonzero(best.selected) + 1).tolist() == [7, 11, 13, 16, 17, 18, 19]
    assert sum(not torch.equal(run.selected, best.selected) for run in runs) > 3  # one start is not enough


# --- bad input

X, Y = torch.arange(6.0).reshape(3, 2), torch.tensor([0.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (X, Y[:2], r"\(3, 2\) and y of shape \(2,\)"),
        (X[:, 0], Y, r"\(3,\)"),
        (X[:, :0], Y, r"\(3, 0\)"),
        (X[:0], Y[:0], r"\(0, 2\)"),
        (X, Y[:, None], r"\(3, 1\)"),
        (X, Y + 1, r"y holds 2.0; allowed are 0 and 1"),
        (X, 2 * Y - 1, r"y holds -1.0"),
        (X, Y / 2, r"y holds 0.5"),
        (X * math.nan, Y, "x has values"),
        (X, Y * math.inf, "y has values"),
        (X * 1j, Y, "complex"),
        (X.double() * 1e60, Y, "standardise"),
        ([["a", "b"]] * 3, Y, "x cannot be read"),
        ([[1.0], [1.0, 2.0]], Y, "x cannot be read"),
        (X, [None, 0, 1], "y cannot be read"),
    ],
)
def test_data_that_cannot_be_used_are_refused(x: Any, y: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        select(x, y, generator=0)
    with pytest.raises(DataError, match=said):
        average_grid(x, y, [0.5], [1.0], generator=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"order": "backwards"}, "'backwards'; allowed are 'random' and 'given'"),
        ({"restarts": 0}, "restarts was given as 0"),
        ({"restarts": 10**9}, "fewer restarts"),
        ({"restarts": 2.0}, "restarts was given as 2.0"),
        ({"max_iterations": 0}, "max_iterations was given as 0"),
        ({"max_iterations": True}, "max_iterations was given as True"),
        ({"tolerance": -1e-6}, "tolerance was given as -1e-06"),
        ({"tolerance": math.nan}, "tolerance was given as nan"),
        ({"slab_variance": 0.0}, "slab_variance was given"),
        ({"slab_variance": [1.0]}, "slab_variance was given"),
        ({"slab_variance": math.inf}, "slab_variance has values"),
        ({"prior_inclusion": "often"}, "prior_inclusion cannot be read"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        select(X, Y, generator=0, **options)


@given(st.floats().filter(lambda p: not 0.0 < p < 1.0))
def test_a_prior_inclusion_outside_the_open_interval_is_refused(prior: float) -> None:
    with pytest.raises(DataError, match="prior_inclusion"):
        select(X, Y, prior_inclusion=prior, generator=0)
    with pytest.raises(DataError, match="prior_inclusion"):
        average_grid(X, Y, [0.5, prior], [1.0], generator=0)


@pytest.mark.parametrize("weights", [[1.0], [[-1.0, 2.0]], [[0.0, 0.0]], [[math.nan, 1.0]], [[1.0], [1.0]]])
def test_prior_weights_that_are_none_are_refused(weights: Any) -> None:
    with pytest.raises(DataError, match="prior_weights"):
        average_grid(X, Y, [0.5], [1.0, 2.0], weights, generator=0)


@pytest.mark.parametrize("grid", [([], [1.0]), ([0.5], []), (0.5, [1.0])])
def test_a_grid_without_points_is_refused(grid: tuple[Any, Any]) -> None:
    with pytest.raises(DataError, match=r"prior_inclusion|slab_variance"):
        average_grid(X, Y, *grid, generator=0)


@given(
    st.lists(st.lists(st.floats(-1e50, 1e50), min_size=3, max_size=3), min_size=2, max_size=6),
    st.floats(1e-40, 1e40),
    st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
)
def test_what_is_allowed_gives_finite_results(rows: list[list[float]], slab: float, prior: float) -> None:
    y = [i % 2 for i in range(len(rows))]
    for learn in (False, True):
        run = select(
            rows,
            y,
            slab_variance=slab,
            prior_inclusion=prior,
            learn_slab_variance=learn,
            max_iterations=20,
            generator=0,
        )
        assert all(map(math.isfinite, run.trace))
        assert run.inclusion.isfinite().all()
        assert run.mean.isfinite().all()
        assert ((run.inclusion >= 0) & (run.inclusion <= 1)).all()
