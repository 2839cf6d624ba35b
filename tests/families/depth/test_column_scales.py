"""Scales of columns: the prior against its closed form, its marginal, and planted truths."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from fathomless import DeepEnsembleRegressor, FiniteNetworkRegressor, UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.mcmc.scales import Groups
from fathomless.nn.architectures import MLP
from fathomless.nn.layers import WeightPrior, column_decay
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.laws import FixedDepth
from fathomless.system.errors import DataError

COLUMNS = WeightPrior(columns=True)
SHORT: dict[str, Any] = {"width": 16, "cv": 3, "random_state": 0, "recalibrate": False}

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")  # fits are short


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_decay_is_that_of_students_t(scale: float) -> None:
    units, columns = 5, 3
    weight = random(units, columns)
    law = stats.multivariate_t(shape=np.eye(units) * scale**2 / (2.0 * math.sqrt(columns)), df=2)
    expected = -sum(law.logpdf(column) - law.logpdf(np.zeros(units)) for column in weight.T.numpy())
    assert column_decay(weight, scale).item() == pytest.approx(expected, rel=1e-12)


def test_the_gradient_is_weight_decay_with_the_mean_precision_of_the_sampler() -> None:
    """The conditional mean of the precision is estimated by draws; the tolerance is five of its standard errors."""
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    linear = network[0]
    assert isinstance(linear, nn.Linear)
    (gradient,) = torch.autograd.grad(column_decay(linear.weight), linear.weight)
    groups = Groups.of(network)
    weights = torch.cat([p.detach().flatten() for p in network.parameters()]).numpy()
    generator = np.random.default_rng(0)
    draws = np.array([groups.redraw(weights, generator)[:3] for _ in range(4000)])
    mean = draws.mean(0) * math.sqrt(3.0)  # precision of a weight
    error = draws.std(0) * math.sqrt(3.0) / math.sqrt(len(draws))
    found = (gradient / linear.weight).detach().numpy()
    assert np.allclose(found, found[:1], rtol=1e-10)
    assert (np.abs(found[0] - mean) < 5.0 * error).all()


def test_a_depth_is_charged_for_the_first_layer_if_it_uses_it() -> None:
    net = MLP(3, 2, 6)
    law = FixedDepth((0, 2), (0.4, 0.6))
    model = UnboundedDepth(net.layer, net.head, law=law, min_depth=0, weight_prior=COLUMNS, dtype=torch.float64)

    def gaussian(*tensors: Tensor) -> float:
        return sum(0.5 * p.square().sum().item() for p in tensors)

    first, second = (model.layers[k][0] for k in ("1", "2"))
    of_zero = gaussian(*model.heads["0"].parameters())
    of_two = column_decay(first.weight).item() + gaussian(
        first.bias, *second.parameters(), *model.heads["2"].parameters()
    )
    charged = model.draw(torch.zeros(4, 3, dtype=torch.float64)).divergence["weights"]
    assert charged.item() == pytest.approx(0.4 * of_zero + 0.6 * of_two, rel=1e-10)


class Whole(nn.Module):
    """A layer that stacked networks keep apart."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


@pytest.mark.parametrize("apart", [False, True])
def test_stacked_networks_have_the_sum_of_their_decays(apart: bool) -> None:
    net = MLP(3, 2, 4)

    def build(seed: int) -> UnboundedDepth:
        return UnboundedDepth(
            (lambda depth: Whole(3 if depth == 1 else 4)) if apart else net.layer,
            net.head,
            law=FixedDepth((1, 2), (0.5, 0.5)),
            min_depth=0,
            weight_prior=COLUMNS,
            seed=seed,
            dtype=torch.float64,
        )

    models = [build(seed) for seed in range(3)]
    x = random(12, 3)
    parts = [model.draw(block) for model, block in zip(models, x.chunk(3), strict=True)]
    stacked = models[0].stack(models[1:]).draw(x)
    together = sum(part.divergence["weights"].item() for part in parts)
    assert stacked.divergence["weights"].item() == pytest.approx(together, rel=1e-10)


def test_a_first_layer_that_is_not_linear_has_the_gaussian_prior() -> None:
    def layer(depth: int) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3)) if depth == 1 else nn.Linear(3, 3)

    options: dict[str, Any] = {"law": FixedDepth((1,)), "min_depth": 0, "seed": 1}
    found, plain = (
        UnboundedDepth(layer, lambda _: nn.Linear(3, 1), weight_prior=prior, **options)
        for prior in (COLUMNS, WeightPrior())
    )
    x = torch.zeros(2, 3)
    assert found.draw(x).divergence["weights"].item() == plain.draw(x).divergence["weights"].item()


def planted(rows: int, noise: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3 + noise))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.normal(size=rows)


def reach(estimator: Any) -> Any:
    """Return the root mean square of the first-layer weights of each column, (networks, columns)."""
    members = [member for member in list_members(estimator.model_) if "1" in member.layers]
    return np.array([member.layers["1"][0].weight.square().mean(0).sqrt().detach().numpy() for member in members])


LONG: dict[str, Any] = {
    "width": 16,
    "recalibrate": False,
    "structure_from": "elbo",
    "validation_fraction": 0.0,
    "cv": 1,
}


@pytest.mark.parametrize("seed", [0, 1])
def test_columns_of_noise_have_small_weights_and_new_rows_gain(seed: int) -> None:
    X, y = planted(1240, 12)
    plain, columns = (
        UnboundedDepthRegressor(**LONG, depth_law=2, epochs=1500, weight_prior=prior, random_state=seed).fit(
            X[:240], y[:240]
        )
        for prior in (1.0, "columns")
    )
    size = reach(columns)
    assert size[:, 3:].max() < 0.8 * size[:, :3].min()
    assert size[:, 3:].mean() < 0.4 * size[:, :3].mean()
    assert columns.score(X[240:], y[240:]) > plain.score(X[240:], y[240:]) + 0.05


def test_without_information_all_weights_shrink() -> None:
    X, _ = planted(200, 2)
    y = np.random.default_rng(5).normal(size=200)
    fitted, plain = (
        UnboundedDepthRegressor(**LONG, depth_law=1, epochs=1500, weight_prior=prior, random_state=0).fit(X, y)
        for prior in ("columns", 1.0)
    )
    assert np.median(reach(fitted)) < 0.2 * np.median(reach(plain))


def test_candidates_classes_and_files(tmp_path: Any) -> None:
    X, y = planted(120, 2)
    both = UnboundedDepthRegressor(**SHORT, candidates={"weight_prior": (1.0, "columns")}, epochs=20).fit(X, y)
    assert [kind["options"] for kind in both.kinds_] == [{"weight_prior": 1.0}, {"weight_prior": "columns"}]
    options = {name: value for name, value in SHORT.items() if name != "recalibrate"}
    for prior in ("columns", COLUMNS, WeightPrior(0.5, columns=True)):
        fitted = UnboundedDepthClassifier(**options, weight_prior=prior, epochs=20).fit(X, y > 0.0)
        fitted.save(tmp_path / "model.fathomless")
        loaded = UnboundedDepthClassifier.load(tmp_path / "model.fathomless")
        assert loaded.get_params()["weight_prior"] == prior
        assert np.array_equal(loaded.predict_proba(X), fitted.predict_proba(X))


def test_which_other_networks_accept_it() -> None:
    X, y = planted(60, 2)
    for kind in (FiniteNetworkRegressor, DeepEnsembleRegressor):
        kind(width=8, epochs=5, random_state=0, weight_prior=COLUMNS).fit(X, y)
    with pytest.raises(DataError, match="scales for columns need point estimates"):
        UnboundedDepthRegressor(weights="meanfield", weight_prior="columns", epochs=5).fit(X, y)
