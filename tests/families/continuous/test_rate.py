"""Learned rate: inferred from the data for any initial value, and unchanged without data."""

import math

import pytest
import torch

from fathomless.data.rows import Rows
from fathomless.families.continuous.dynamics import MLPDynamics
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import Brownian, OrnsteinUhlenbeck, Process, transition
from fathomless.families.continuous.solve import PathInference
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.posterior.likelihoods import Gaussian
from fathomless.system.errors import DataError

MEDIAN = 0.01


def network(start: float = 0.0, rate: float = MEDIAN) -> ContinuousDepth:
    options = PathInference(steps=4, learned=True)
    net = ContinuousDepth(MLPDynamics(1, 1, width=4, hidden=(8,)), prior=OrnsteinUhlenbeck(rate), options=options)
    assert net.drift is not None
    assert net.drift.log_speed is not None
    with torch.no_grad():
        net.drift.log_speed.fill_(start)
    return net


def learned(noise: float, start: float = 0.0, epochs: int = 700) -> float:
    x = torch.linspace(-2.0, 2.0, 256)[:, None]
    y = torch.sin(2.0 * x) + noise * torch.randn(256, 1, generator=torch.Generator().manual_seed(1))
    net = network(start)
    training = Training(epochs=epochs, batch_size=256, learning_rate=0.01, draws=2, warm_up=0.3, evaluate_every=epochs)
    fit(net, Gaussian(noise=noise), Rows(x, y), training=training)
    return net.rate


@pytest.mark.parametrize("prior", [OrnsteinUhlenbeck(0.3), Brownian(0.4)], ids=repr)
@pytest.mark.parametrize("kind", ["exact", "euler"])
def test_the_speed_of_the_clock_multiplies_rate_and_variance(prior: Process, kind: str) -> None:
    feedback, dt = torch.tensor([0.0, 0.7]).double(), torch.tensor(0.3).double()
    faster = transition(prior, feedback, dt, kind=kind, speed=torch.tensor(2.5).double())
    same: Process = OrnsteinUhlenbeck(0.75) if prior.rate else Brownian(0.4 * math.sqrt(2.5))
    plain = transition(same, feedback, dt, kind=kind)
    for name in ("decay", "turn", "gain", "noise", "prior_decay", "prior_noise", "ratio"):
        torch.testing.assert_close(getattr(faster, name), getattr(plain, name), rtol=1e-12, atol=0)


def test_without_data_the_rate_goes_back_to_its_prior() -> None:
    """The divergence has its only minimum at the median of the prior, and is that of a log-normal law."""
    net = network(start=0.2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    first = net.draw(torch.zeros(2, 1), 1, torch.Generator().manual_seed(0)).divergence["rate"]
    assert first.item() == pytest.approx(0.5 * (10.0 * 0.2 / 2.0) ** 2)  # two of the logarithm's standard deviations
    for step in range(400):
        optimizer.zero_grad()
        divergence = net.draw(torch.zeros(2, 1), 1, torch.Generator().manual_seed(step)).divergence
        sum(divergence.values(), torch.zeros(())).backward()
        optimizer.step()
    assert net.rate == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("start", [-0.15, 0.15], ids=["slow", "fast"])  # 1/4.5 and 4.5 times the median of the prior
def test_data_set_the_rate_from_any_start(start: float) -> None:
    """For a smooth function the rate becomes small from any initial value."""
    begun = MEDIAN * math.exp(10.0 * start)
    assert learned(0.03, start=start) < 0.25 * begun


@pytest.mark.parametrize("rate", [1e-5, 0.01, 1.0])
def test_a_shift_costs_the_same_at_every_rate(rate: float) -> None:
    """Half its square per unit of depth, in units of σ: T a² tanh(θΔ/2) / (θΔ) in steps of Δ."""
    net = network(rate=rate)
    assert net.drift is not None
    with torch.no_grad():
        for p in net.drift.shift:
            p.fill_(0.3)
    found = net.divergence_profile().rate
    dt = 1.0 / len(found)
    expected = 0.3**2 * math.tanh(0.5 * dt * rate) / (dt * rate)
    assert found.mean().item() == pytest.approx(net.moving * expected, rel=1e-4)


def test_a_fixed_rate_has_no_charge_and_a_learned_one_is_told() -> None:
    plain = ContinuousDepth(MLPDynamics(1, 1, width=4, hidden=(8,)), prior=OrnsteinUhlenbeck(0.2))
    assert set(plain.draw(torch.zeros(2, 1), 1, torch.Generator().manual_seed(0)).divergence) == {"weights"}
    assert plain.structure().statistics["rate"] == 0.2
    prior = Brownian(math.sqrt(2.0 * 0.2))
    brownian = ContinuousDepth(MLPDynamics(1, 1, width=4, hidden=(8,)), prior=prior)
    assert brownian.structure().statistics["rate"] == pytest.approx(0.2)
    assert network(start=0.1).structure().statistics["rate"] == pytest.approx(0.01 * math.e, rel=1e-5)


def test_a_learned_rate_cannot_be_reversed() -> None:
    with pytest.raises(DataError, match="learned rate"):
        PathInference(gradient="reversible", learned=True)
