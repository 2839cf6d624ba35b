"""Unbounded depth: deployment of a trained model as networks of finite depth."""

import copy

import pytest
import torch
from torch import Tensor

from depth_models import LAWS, build, data
from fathomless.data.rows import Rows
from fathomless.families.depth import deploy
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.posterior.likelihoods import Categorical
from fathomless.system.errors import DataError, DepthError


@pytest.mark.parametrize("law", LAWS)
def test_one_pass_gives_every_finite_network(law: str) -> None:
    model, (x, _) = build(law), data()
    draws = model.draw(x)
    for depth, f in zip(model.depth_posterior(), draws.f, strict=True):
        assert torch.allclose(deploy.point_depth(model, depth)(x), f, atol=1e-12)


@pytest.mark.parametrize("eps", [0.0, 0.05, 0.3, 0.9])
@pytest.mark.parametrize("law", LAWS)
def test_compression_stays_within_eps_in_total_variation(law: str, eps: float) -> None:
    model, (x, _) = build(law), data()
    small = deploy.compress(model, eps)

    @torch.no_grad()
    def probabilities(m: UnboundedDepth) -> Tensor:
        draws = m.draw(x)
        return (draws.log_weight.exp()[:, None, None] * draws.f.softmax(-1)).sum(0)

    p, q = probabilities(model), probabilities(small)
    assert torch.allclose(p.sum(1), torch.ones(64, dtype=torch.float64))
    assert float(0.5 * (p - q).abs().sum(1).max()) <= eps + 1e-12
    assert len(small.layers) == small.depth <= model.depth
    assert set(map(int, small.heads)) == set(small.depth_posterior())
    again = copy.deepcopy(small)
    again.rebuild(small.blueprint())
    assert torch.equal(again.draw(x).f, small.draw(x).f)


def test_early_exit_gives_the_class_of_the_full_mixture() -> None:
    x, y = data(500)
    model = build("soft")
    fit(model, Categorical(3), Rows(x, y), training=Training(epochs=30, batch_size=64), seed=0)
    draws = model.draw(x)
    full = (draws.log_weight.exp()[:, None, None] * draws.f.softmax(-1)).sum(0).argmax(-1)
    label, depth = deploy.classify_early(model, x)
    assert torch.equal(label, full)
    assert int(depth.min()) < model.depth
    assert int(depth.max()) <= model.depth


def test_joined_linear_heads_equal_the_weighted_sum() -> None:
    for min_depth in (0, 1):
        model, (x, _) = build("soft", min_depth=min_depth), data()
        draws = model.draw(x)
        mean = (draws.log_weight.exp()[:, None, None] * draws.f).sum(0)
        assert torch.allclose(deploy.mean_network(model)(x), mean, atol=1e-12)


def test_deployment_refuses_what_it_cannot_do() -> None:
    model = build("soft", weights="meanfield")
    x, _ = data()
    for call in (
        lambda: deploy.mean_network(model),
        lambda: deploy.classify_early(model, x),
        lambda: deploy.point_depth(model, 1),
    ):
        with pytest.raises(DepthError, match="drawn"):
            call()
    with pytest.raises(DepthError, match="depth=40"):
        deploy.point_depth(build(), 40)
    with pytest.raises(DataError, match="eps"):
        deploy.compress(build(), 1.0)
