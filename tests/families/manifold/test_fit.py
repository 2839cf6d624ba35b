"""The stages together: from rows to a posterior, in the same bytes after a pause, with noise from unseen rows."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fathomless.data.folds import fold_rows
from fathomless.data.rows import Rows
from fathomless.families.manifold.autoencoder import AutoencoderOptions
from fathomless.families.manifold.fit import Manifold, ManifoldConfig
from fathomless.families.manifold.latent import select_farthest
from fathomless.families.manifold.network import FlatNetwork
from fathomless.families.manifold.stages import StagedRun, run_stages
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.likelihoods import Categorical, Gaussian, Likelihood, StudentT
from fathomless.posterior.noise import LearnedNoise
from fathomless.posterior.predictive import predictive
from fathomless.system.errors import PausedError

NET = FlatNetwork(1, 1, (8,), "tanh")
QUICK = ManifoldConfig(
    candidates=20,
    candidate_steps=150,
    autoencoder=AutoencoderOptions(dimensions=3, hidden=(10,), steps=120),
    components=4,
    latent_steps=80,
)


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(rows: int = 60, scale: float = 0.1, heavy: bool = False) -> Rows:
    x = torch.linspace(-2.0, 2.0, rows, dtype=torch.float64)[:, None]
    z = torch.randn(rows, 1, generator=noise(1), dtype=torch.float64)
    if heavy:
        z = z / torch.rand(rows, 1, generator=noise(2), dtype=torch.float64).sqrt()  # t with 2 degrees of freedom
    return Rows(x, x.sin() + scale * z)


def manifold(
    rows: Rows | None = None, recipe: ManifoldConfig = QUICK, likelihood: Likelihood | None = None, **more: Any
) -> Any:
    rows = table() if rows is None else rows
    folds = fold_rows(rows.x.numpy(), rows.y.numpy(), 10, math.ceil(recipe.candidates / 10), 0)
    return Manifold(NET, likelihood or Gaussian().double(), rows, folds, recipe, seed=5, **more)


def scale_of(likelihood: Likelihood) -> float:
    assert isinstance(likelihood.noise, LearnedNoise)
    return float(likelihood.noise.log_scale().detach().exp())


def fitted(**options: Any) -> tuple[Any, dict[str, Tensor]]:
    one = manifold(**options)
    return one, run_stages(one.plan(), one.seed, rounds=5).found


def test_the_stages_find_a_posterior_that_predicts() -> None:
    one, found = fitted()
    model, likelihood = one.model_of(found), one.likelihood_of(found)
    with torch.no_grad():
        draws = model.draw(one.rows.x, 100, noise())
        p = predictive(draws, likelihood, squeeze=True)
    error = (p.mean - one.rows.x[:, 0].sin()).square().mean().sqrt()
    assert float(error) < 0.1
    assert 0.07 < scale_of(likelihood) < 0.15
    assert len(model.law.means) == 4
    assert model.decoder_law is not None or one.gate_of(found).reconstruction > 0.1


def test_noise_is_fitted_to_rows_that_networks_have_not_seen() -> None:
    """Networks with few rows fit them; the scale of the training is too small, that of unseen rows is not."""
    one, found = fitted(rows=table(24, scale=0.5), recipe=replace(QUICK, candidate_steps=1000, prior=WeightPrior(5.0)))
    own = float(found["candidates/log_noise"].mean().exp())
    fitted_scale = scale_of(one.likelihood_of(found))
    assert own < 0.75 * fitted_scale
    assert 0.3 < fitted_scale < 3.0
    assert math.isfinite(float(found["decoder/score"]))


def test_heavy_tails_are_found_if_the_law_is_free() -> None:
    rows = table(150, heavy=True)
    assert isinstance(fitted(rows=rows, free_noise=True)[0].likelihood, Gaussian)
    one, found = fitted(rows=rows, free_noise=True)
    assert isinstance(one.likelihood_of(found), StudentT)
    one, found = fitted(free_noise=True)
    assert isinstance(one.likelihood_of(found), Gaussian)


def test_a_known_noise_stays_as_it_is() -> None:
    one, found = fitted(likelihood=Gaussian(noise=0.2))
    assert not [name for name in found if "likelihood" in name]
    assert "candidates/log_noise" not in found
    assert one.likelihood_of(found).noise.scale == 0.2


def test_noise_of_the_input_is_an_output_of_the_network() -> None:
    likelihood = Gaussian(noise="input")
    rows = table()
    wide = FlatNetwork(1, likelihood.outputs, (8,), "tanh")
    folds = fold_rows(rows.x.numpy(), rows.y.numpy(), 10, 2, 0)
    one = Manifold(wide, likelihood, rows, folds, QUICK, seed=0)
    found = run_stages(one.plan(), 0, rounds=5).found
    assert one.model_of(found).draw(rows.x, 2, noise()).f.shape == (8, 60, 2)


def test_classes_get_a_temperature() -> None:
    rows = Rows(table().x, (table().x[:, 0] > 0.3).long())
    net = FlatNetwork(1, 2, (8,), "relu")
    one = Manifold(net, Categorical(2), rows, fold_rows(rows.x.numpy(), rows.y.numpy(), 10, 2, 0), QUICK, seed=0)
    found = run_stages(one.plan(), 0, rounds=5).found
    likelihood = one.likelihood_of(found)
    assert isinstance(likelihood, Categorical)
    assert likelihood.log_temperature is not None
    with torch.no_grad():
        p = predictive(one.model_of(found).draw(rows.x, 50, noise()), likelihood, labels=[0, 1])
    assert float((p.probs.argmax(1) == rows.y).double().mean()) > 0.9


def test_without_folds_there_is_a_posterior_and_no_score() -> None:
    rows = table()
    one = Manifold(NET, Gaussian().double(), rows, None, QUICK, seed=0)
    found = run_stages(one.plan(), 0, rounds=5).found
    assert math.isnan(float(found["decoder/score"]))
    own = float(found["candidates/log_noise"][found["decoder/kept"]].mean())
    assert math.log(scale_of(one.likelihood_of(found))) == pytest.approx(own, rel=1e-4)


@pytest.mark.parametrize("random", ["none", "bias", "last"])
def test_both_phases_are_kept(random: str) -> None:
    one, found = fitted(recipe=replace(QUICK, random=random))
    assert ("joint" in one.plan()) == (random != "none")
    latent = one.model_of(found, "latent")
    assert latent.decoder_law is None
    if random != "none":
        joint = one.model_of(found)
        columns = {"bias": 1, "last": 11}[random]
        open_gate = one.gate_of(found).reconstruction <= 0.1
        assert joint.blueprint()["random_columns"] == (columns if open_gate else 0)
        assert not torch.equal(joint.law.means, latent.law.means)


def test_candidates_may_be_drawn_towards_the_prior() -> None:
    """Anchored candidates keep more spread where there are no rows."""
    far = torch.tensor([[5.0]]).double()
    spread = []
    for anchored in (False, True):
        _, found = fitted(recipe=replace(QUICK, anchored=anchored, candidate_steps=600))
        spread.append(float(NET(found["decoder/weights"], far).std()))
    assert spread[1] > spread[0]


@pytest.mark.parametrize("weights", ["counted", "equal", "learned"])
def test_components_weigh_what_they_stand_for(weights: str) -> None:
    one, found = fitted(recipe=replace(QUICK, weights=weights))
    mass = one.model_of(found).law.log_weight.exp().detach()
    f = one.network(found["decoder/weights"], one.rows.x)
    chosen = select_farthest(f, 4)
    apart = ((f[:, None] - f[chosen]) ** 2).mean((2, 3))  # (R, 4)
    counted = torch.stack([(apart.argmin(1) == k).double().mean() for k in range(4)])
    assert torch.allclose(mass, counted) == (weights == "counted")
    assert torch.allclose(mass, torch.full_like(mass, 0.25)) == (weights == "equal")


@pytest.mark.parametrize("at", [3, 5, 8, 12, 17])
def test_a_fit_that_is_taken_up_again_ends_in_the_same_bytes(at: int) -> None:
    _, whole = fitted()
    kept: dict[str, Any] = {}

    def pause(run: StagedRun) -> None:
        if run.epoch == at:
            kept["state"] = {name: value.clone() for name, value in run.tensors().items()}, run.meta()
            run.pause = True

    with pytest.raises(PausedError):
        run_stages(manifold().plan(), 5, rounds=5, callbacks=[pause])
    again = run_stages(manifold().plan(), 5, rounds=5, resume=kept["state"]).found
    assert all(torch.equal(again[name], value) for name, value in whole.items())
