"""Hamiltonian sampling of weights: its integrator, its exact steps, and whether it samples what it says."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn

from fathomless.inference.mcmc.chains import Chains, Plan, run_chains
from fathomless.inference.mcmc.diagnostics import mcse_mean
from fathomless.inference.mcmc.hmc import StepSize, leapfrog
from fathomless.inference.mcmc.joint import joint_distribution_test
from fathomless.inference.mcmc.psis import leave_one_out, smooth
from fathomless.inference.mcmc.scales import Groups, Noise, ScaledNoise, observation
from fathomless.inference.mcmc.weight_sampler import NetworkSampler, WeightState
from fathomless.nn.flat import FlatNetworks, flatten
from fathomless.posterior.likelihoods import Bernoulli, Categorical, Gaussian, Laplace, StudentT
from fathomless.system.errors import DataError, PausedError

F64 = torch.float64

# -------------------------------------------------------------------------------------------------- trajectories


def pendulum(step: float, steps: int, w: float = 0.3, p: float = 1.1, m: float = 2.0) -> tuple[float, float]:
    """Swing U = -cos w; return where it ends."""
    position, momentum = torch.tensor([[w]], dtype=F64), torch.tensor([[p]], dtype=F64)
    mass, size = torch.full((1, 1), m, dtype=F64), torch.full((1, 1), step, dtype=F64)
    leapfrog(position, momentum, lambda: -position.sin(), mass, size, steps)
    return float(position), float(momentum)


def test_hmc_energy_error_is_second_order() -> None:
    """A step half as long makes a quarter of the error of the energy."""

    def error(step: float) -> float:
        w, p = pendulum(step, round(2.0 / step))
        return abs((p * p / 4.0 - math.cos(w)) - (1.1**2 / 4.0 - math.cos(0.3)))

    assert error(0.1) / error(0.05) == pytest.approx(4.0, rel=0.05)


def test_trajectories_are_reversible() -> None:
    w, p = pendulum(0.2, 17)
    back = pendulum(0.2, 17, w, -p)
    assert back == pytest.approx((0.3, -1.1), abs=1e-12)


def test_steps_adapt_to_the_wanted_acceptance() -> None:
    """Where acceptance falls with the step as exp(-step), the held step is -log of what is wanted."""
    size = StepSize.start(5.0)
    for _ in range(3000):
        size = size.update(math.exp(-size.step), 0.7)
    assert size.freeze().step == pytest.approx(-math.log(0.7), rel=0.02)


# -------------------------------------------------------------------------------------------------- exact steps


def test_groups_are_inputs_layers_and_biases() -> None:
    groups = Groups.of(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
    assert groups.names == ("input 0", "input 1", "0.bias", "2.weight", "2.bias")
    assert groups.of_weight.tolist() == [0, 1] * 3 + [2] * 3 + [3] * 3 + [4]
    assert groups.fan_in.tolist() == [2.0**0.5] * 6 + [1.0] * 3 + [3.0] * 3 + [1.0]


def test_gibbs_of_scales_matches_quadrature() -> None:
    """Draws of α given weights have the law that prior times density of the weights has, integrated numerically."""
    groups, g = Groups.of(nn.Linear(2, 3)), np.random.default_rng(0)
    weights = np.array([0.5, -0.1, 1.2, 0.02, -0.7, 0.03, 0.4, -0.2, 0.1])
    draws = np.array([groups.redraw(weights, g) for _ in range(4000)])
    for place in range(3):
        own = (weights * groups.fan_in**0.5)[groups.of_weight == place]
        grid = np.linspace(1e-6, 40.0, 20_001)
        each = stats.norm.pdf(own[:, None], scale=grid**-0.5)
        values = stats.gamma.pdf(grid, 1.0, scale=2.0) * each.prod(0)
        cdf = integrate.cumulative_trapezoid(values, grid, initial=0.0)
        assert stats.kstest(draws[:, place], lambda a, g=grid, c=cdf: np.interp(a, g, c / c[-1])).pvalue > 1e-3


def test_degrees_of_freedom_and_precision_match_quadrature() -> None:
    """ν and τ given errors: a chain of redraws against both integrated on a grid."""
    y = torch.tensor(stats.t(3).rvs(40, random_state=1)[:, None]) * 0.5
    observed = ScaledNoise(y, torch.ones(40, dtype=F64), 4.0, free=True)
    g, zero = np.random.default_rng(2), np.zeros((40, 1))
    noise, seen = observed.start(g), []
    for _ in range(6_000):
        noise = observed.redraw(zero, noise, g)
        seen.append([math.log(float(noise.df[0]) - 2.0), math.log(float(noise.precision[0]))])
    log_df, log_tau = np.linspace(math.log(0.05), math.log(198.0), 161), np.linspace(-1.5, 4.5, 181)
    nu, tau = 2.0 + np.exp(log_df)[:, None, None], np.exp(log_tau)[None, :, None]
    rows = stats.t.logpdf(y.numpy()[:, 0] * tau**0.5, nu) + 0.5 * np.log(tau)
    prior = stats.norm.logpdf(log_df, math.log(8.0), 1.0)[:, None] + stats.gamma.logpdf(tau[..., 0], 1.0, scale=100.0)
    joint = rows.sum(-1) + prior + log_tau
    mass = np.exp(joint - joint.max())
    mass /= mass.sum()
    for column, (axis, grid) in enumerate(((1, log_df), (0, log_tau))):
        marginal = mass.sum(axis)
        draws = np.array(seen)[1000:, column].reshape(4, -1)
        assert abs(draws.mean() - marginal @ grid) < 5.0 * mcse_mean(draws) + 0.01


def test_weights_of_rows_are_repetitions() -> None:
    y, f = torch.tensor([[0.3], [-1.0]], dtype=F64), torch.tensor([[[0.1], [0.4]]], dtype=F64)
    twice, g = torch.tensor([0, 0, 1]), np.random.default_rng(0)
    for make, target in ((Gaussian, y), (lambda: StudentT(df=5.0), y), (lambda: Bernoulli(1), (y > 0).double())):
        heavy = observation(make().double(), target, torch.tensor([2.0, 1.0]))
        plain = observation(make().double(), target[twice], None)
        a, b = heavy.start(g), plain.start(g)
        if a.precision.size:
            each = np.array([[1.2], [0.7]]), np.array([[0.6], [0.6], [0.7]])
            a, b = (Noise(np.array([2.0]), np.array([5.0]), scales) for scales in each)
        assert float(heavy.log_prob(f, [a])) == pytest.approx(float(plain.log_prob(f[:, twice], [b])))
        pull = plain.force([b], f)(f[:, twice])[0, :, 0]
        assert heavy.force([a], f)(f)[0, :, 0].tolist() == pytest.approx([float(pull[0] + pull[1]), float(pull[2])])


def test_forces_are_derivatives() -> None:
    g, f = np.random.default_rng(0), torch.randn(2, 5, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 1, 0])
    numbers = torch.randn(5, 3, dtype=F64, generator=torch.Generator().manual_seed(1))
    for likelihood, y in ((Categorical(3), labels), (StudentT(3, df="learned"), numbers), (Gaussian(3), numbers)):
        observed = observation(likelihood.double(), y, torch.tensor([1.0, 2.0, 1.0, 0.5, 1.0]))
        noise = [observed.start(g) for _ in range(2)]
        moved = f.clone()
        moved[1, 3, 2] += 1e-5
        slope = (observed.log_prob(moved, noise) - observed.log_prob(f, noise))[1] / 1e-5
        assert float(slope.detach()) == pytest.approx(float(observed.force(noise, f)(f)[1, 3, 2]), abs=1e-3)


def test_laplace_noise_of_unknown_scale_is_refused() -> None:
    with pytest.raises(DataError, match="'gaussian' and 'student_t'"):
        observation(Laplace(), torch.zeros(3, 1), None)


# -------------------------------------------------------------------------------------------------- the posterior


def linear_chain(x: np.ndarray, y: np.ndarray, sweeps: int, g: np.random.Generator) -> np.ndarray:
    """Sample the linear model with the same priors by exact conditional draws alone; log α, log τ and weights."""
    groups, design = Groups.of(nn.Linear(x.shape[1], 1)), np.column_stack([x, np.ones(len(x))])
    weights, tau, seen = np.zeros(design.shape[1]), 1.0, []
    for _ in range(sweeps):
        alpha = groups.redraw(weights, g)
        square = ((y - design @ weights) ** 2).sum()
        tau = g.gamma(1.0 + 0.5 * len(y), 1.0 / (0.01 + 0.5 * square))
        root = np.linalg.cholesky(np.diag(groups.precision(alpha)) + tau * design.T @ design)
        mean = np.linalg.solve(root.T, np.linalg.solve(root, tau * design.T @ y))
        weights = mean + np.linalg.solve(root.T, g.normal(size=len(mean)))
        seen.append([*np.log(alpha), math.log(tau), *weights])
    return np.array(seen)


def test_hmc_matches_conjugate_posterior() -> None:
    """A linear network against exact draws of the same posterior: means and standard deviations of everything."""
    g = np.random.default_rng(0)
    x = g.normal(size=(30, 3))
    y = x @ [1.0, -0.5, 0.0] + 0.3 + 0.4 * g.normal(size=30)
    reference = linear_chain(x, y, 12_000, g)[2000:]
    plan = Plan(6, 1000, 0.3, 600)
    observed = ScaledNoise(torch.tensor(y[:, None]), torch.ones(30, dtype=F64), math.inf, free=False)
    sampler = NetworkSampler(nn.Linear(3, 1), torch.tensor(x), observed, leapfrogs=8, adapting=plan.first)
    run = run_chains(sampler, plan, 0)
    kept = [[[*np.log(s["alpha"]), *np.log(s["precision"]), *s["weights"]] for s in c.kept] for c in run.chains]
    found = np.array(kept)  # (chains, states, quantities)
    for place in range(found.shape[2]):
        ours, theirs = found[:, :, place], reference[:, place].reshape(5, -1)
        centre = theirs.mean()
        for a, b in ((ours, theirs), ((ours - centre) ** 2, (theirs - centre) ** 2)):
            assert abs(a.mean() - b.mean()) < 4.5 * math.hypot(mcse_mean(a), mcse_mean(b)), place


def test_scales_of_wide_layers_mix() -> None:
    """The scales of 100 weights that few rows restrict have 53 to 93 effective draws of 240 with five seeds.

    Draws given the weights alone have 5 or 6, and R-hat is 2.
    """
    x = torch.linspace(-1.0, 1.0, 6)[:, None]
    network = nn.Sequential(nn.Linear(1, 100), nn.Tanh(), nn.Linear(100, 1))
    observed = ScaledNoise(x, torch.ones(6), math.inf, free=False)
    run = run_chains(NetworkSampler(network, x, observed, leapfrogs=100, adapting=60), Plan(4, 120, 0.5, 4), 0)
    found = run.diagnose()["scale of 0.bias"]
    assert found.ess_bulk > 30.0
    assert found.rhat is not None
    assert found.rhat < 1.2


class Data:
    """A state and the targets that it is held against."""

    def __init__(self, state: WeightState, y: torch.Tensor) -> None:
        self.state, self.y = state, y


@pytest.mark.parametrize("kind", ["gaussian", "student_t", "classes"])
def test_hmc_leaves_prior_invariant(kind: str) -> None:
    """Chains that alternate a sweep and a redraw of the data keep the joint law of parameters and data."""
    x = torch.tensor([[-1.0, 0.5], [0.2, -0.3], [1.1, 0.8], [0.4, -1.2]], dtype=F64)
    network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 3 if kind == "classes" else 1)).double()
    count = torch.ones(4, dtype=F64)

    def sampler(y: torch.Tensor) -> NetworkSampler:
        if kind == "classes":
            return NetworkSampler(network, x, observation(Categorical(3), y, None), leapfrogs=5)
        heavy = kind == "student_t"
        return NetworkSampler(network, x, ScaledNoise(y, count, 4.0 if heavy else math.inf, free=heavy), leapfrogs=5)

    first = torch.zeros(4, dtype=torch.int64) if kind == "classes" else torch.zeros(4, 1, dtype=F64)

    def outputs(state: WeightState) -> torch.Tensor:
        networks = FlatNetworks(network, 1)
        networks.weights.copy_(torch.from_numpy(state.weights)[None])
        return networks(x)[0]

    def redraw(data: Data, g: np.random.Generator) -> Data:
        f = outputs(data.state)
        if kind == "classes":
            p = f.softmax(-1).numpy()
            return Data(data.state, torch.tensor([g.choice(3, p=row / row.sum()) for row in p]))
        df, scale = data.state.noise.df, data.state.noise.precision**-0.5
        z = g.normal(size=(4, 1)) if kind == "gaussian" else g.standard_t(df, size=(4, 1))
        return Data(data.state, f + torch.tensor(scale * z))

    def forward(g: np.random.Generator) -> Data:
        state = sampler(first).start(g)
        return redraw(Data(state, first), g)

    def transition(data: Data, g: np.random.Generator) -> Data:
        state = data.state
        for _ in range(2):
            state = sampler(data.y).sweep(state, 10**6, g)
        return Data(state, data.y)

    def statistics(data: Data) -> dict[str, float]:
        state, told = data.state, {}
        for place in range(5):
            told[f"alpha {place}"] = math.log(state.alpha[place])
        told["first"] = float(np.abs(state.weights[:6]).mean() > 1.0)
        told["last"] = float(np.tanh(np.abs(state.weights[-1])))
        told["square"] = float(np.tanh(state.weights**2).mean())
        if kind == "classes":
            told["equal"] = float((data.y == data.y[0]).double().mean())
        else:
            told["tau"] = math.log(float(state.noise.precision[0]))
            told["y"] = float(data.y.abs().log().mean())
        if kind == "student_t":
            told["df"] = math.log(float(state.noise.df[0]) - 2.0)
        return told

    found = joint_distribution_test(
        forward, transition, redraw, statistics, 16, 40, np.random.default_rng(5), forward_draws=1000
    )
    assert found.p > 1e-3, str(found)


def small(seed: int = 0, rows: int = 25) -> tuple[NetworkSampler, list[torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=g)
    y = x[:, :1].sin() + 0.1 * torch.randn(rows, 1, generator=g)
    networks = [nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(2)]
    observed = ScaledNoise(y, torch.ones(rows, dtype=F64), 4.0, free=True)
    return NetworkSampler(networks[0], x, observed, leapfrogs=6, adapting=20), [flatten(one) for one in networks]


def test_hmc_resume_is_bit_equal() -> None:
    """A run that is stopped after a block, taken apart and put together again, ends with the same bytes."""
    plan, held = Plan(3, 40, 0.5, 10), {}

    def begin(sampler, starts):
        return lambda k, generator: sampler.begin(starts[k % 2], generator)

    torch.manual_seed(0)
    sampler, starts = small()
    whole = run_chains(sampler, plan, 1, start=begin(sampler, starts))

    def stop(run: Chains) -> None:
        run.pause = run.epoch == 13
        if run.pause:
            held["run"] = (run.tensors(), run.meta())

    torch.manual_seed(0)
    sampler, starts = small()
    with pytest.raises(PausedError):
        run_chains(sampler, plan, 1, start=begin(sampler, starts), callbacks=[stop])
    torch.manual_seed(0)
    sampler, starts = small()
    again = run_chains(sampler, plan, 1, start=begin(sampler, starts), resume=held["run"])
    for a, b in zip(whole.chains, again.chains, strict=True):
        assert a.traces == b.traces
        for one, other in zip(a.kept, b.kept, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in one)


def test_steps_and_information_are_held_after_the_burn_in() -> None:
    sampler, starts = small()
    generators = [np.random.default_rng(k) for k in range(2)]
    states = [sampler.begin(start, g) for start, g in zip(starts, generators, strict=True)]
    for done in range(20):
        states = sampler.sweep_all(states, done, generators)
    after = sampler.sweep_all(states, 20, generators)
    for a, b in zip(states, after, strict=True):
        assert a.step == b.step
        assert np.array_equal(a.information, b.information)


def test_trajectories_that_go_astray_are_rejected_and_counted() -> None:
    sampler, starts = small()
    g = np.random.default_rng(0)
    state = sampler.begin(starts[0], g)
    wild = WeightState(state.weights, state.alpha, state.noise, StepSize.start(1e6), state.information)
    after = sampler.sweep(wild, 100, g)
    assert np.array_equal(after.weights, state.weights)
    assert after.diverged == 1
    assert after.acceptance == 0.0


# -------------------------------------------------------------------------------------------------- leave one out


@pytest.mark.parametrize("draws", [100, 400])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_psis_matches_reference(draws: int, scale: float) -> None:
    arviz = pytest.importorskip("arviz", reason="ArviZ is the reference")
    ratio = scale * np.random.default_rng(0).normal(size=draws)
    weight, shape = smooth(ratio, 0.6)
    expected, k = arviz.psislw(ratio.copy(), 0.6)
    np.testing.assert_allclose(weight, expected, atol=1e-10)
    assert shape == pytest.approx(float(k), rel=1e-9)


def test_leave_one_out_matches_refits() -> None:
    """A normal mean: densities from one posterior against those of the posteriors without each row."""
    g = np.random.default_rng(0)
    y = g.normal(size=12)
    draws = g.normal(y.sum() / 13.0, 13.0**-0.5, size=40_000)
    found, shape = leave_one_out(stats.norm.logpdf(y, draws[:, None]))
    left = (y.sum() - y) / 12.0
    np.testing.assert_allclose(found, stats.norm.logpdf(y, left, math.sqrt(1.0 + 1.0 / 12.0)), atol=0.02)
    assert shape.max() < 0.7


def test_copies_and_groups_are_left_out_together() -> None:
    """A normal mean from rows that count three times, from copies of them, and from groups of different rows."""
    g = np.random.default_rng(1)
    y = g.normal(size=30)
    draws = g.normal(3.0 * y.sum() / 91.0, 91.0**-0.5, size=40_000)
    table = stats.norm.logpdf(y, draws[:, None])
    found, shape = leave_one_out(table, counts=np.full(30, 3.0))
    left = 3.0 * (y.sum() - y) / 88.0
    np.testing.assert_allclose(found, stats.norm.logpdf(y, left, math.sqrt(1.0 + 1.0 / 88.0)), atol=0.02)
    assert shape.max() < 0.7
    unit = np.repeat(np.arange(30), 3)
    copied, of_copies = leave_one_out(np.repeat(table, 3, 1), unit=unit)
    np.testing.assert_allclose(copied, np.repeat(found, 3), atol=1e-9)
    np.testing.assert_allclose(of_copies, np.repeat(shape, 3), atol=1e-6)
    grouped, _ = leave_one_out(table, counts=np.full(30, 3.0), unit=np.arange(30) // 2)
    pair = y.reshape(15, 2).sum(1).repeat(2)
    left = 3.0 * (y.sum() - pair) / 85.0
    np.testing.assert_allclose(grouped, stats.norm.logpdf(y, left, math.sqrt(1.0 + 1.0 / 85.0)), atol=0.03)


def test_tables_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DataError, match="finite ones of shape"):
        leave_one_out(np.array([[0.0, np.nan]]))
