"""Regressors as models of BoTorch: moments, gradients, joint samples, acquisition functions, refusals."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fathomless.estimators import botorch as module
from fathomless.system.errors import DataError
from quick_fits import classes, classifier, problem, regressor, table


@pytest.fixture(autouse=True)
def needs_botorch(request: pytest.FixtureRequest) -> None:
    if "without_the_package" not in request.node.name:
        pytest.importorskip("botorch", reason="needs the extra botorch")


@pytest.fixture(scope="module")
def one() -> Any:
    X, y = problem(60)
    return regressor(cv=2, recalibrate=False).fit(X, y)


@pytest.fixture(scope="module")
def model(one: Any) -> Any:
    pytest.importorskip("botorch", reason="needs the extra botorch")
    return one.to_botorch()


def points(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def check_moments(fit: Any, model: Any, tolerance: float) -> None:
    """Compare moments, and noise, with weighted sums over the networks of ``predict_dist``."""
    x = points(2, 4)
    law = fit.predict_dist(x.flatten(0, 1).numpy())
    weight, f = law.log_weight.exp()[:, None, None], law.network_means
    mean = (weight * f).sum(0)
    variance = (weight * (f - mean).square()).sum(0)
    posterior = model.posterior(x)
    unit = torch.as_tensor(fit.target_.spread)
    shape = posterior.mean.shape
    assert shape == (2, 4, f.shape[-1])
    assert ((posterior.mean - mean.reshape(shape)) / unit).abs().max() < tolerance
    assert ((posterior.variance - variance.reshape(shape)) / unit.square()).abs().max() < tolerance
    noisy = model.posterior(x, observation_noise=True)
    parts = getattr(law, "moments", law)  # Gaussians with the moments of a transformed target
    noise = (weight * parts.component.variance).sum(0)
    assert ((noisy.variance - posterior.variance - noise.reshape(shape)) / unit.square()).abs().max() < tolerance
    assert torch.equal(noisy.mean, posterior.mean)


def test_moments_are_weighted_sums_over_the_networks(one: Any, model: Any) -> None:
    check_moments(one, model, 1e-12)


def test_without_recalibration_the_moments_are_those_of_predictions(one: Any, model: Any) -> None:
    x = points(9)
    posterior = model.posterior(x, observation_noise=True)
    mean, std = one.predict(x.numpy(), return_std=True)
    np.testing.assert_allclose(posterior.mean[:, 0].numpy(), mean, atol=1e-12)
    np.testing.assert_allclose(posterior.variance[:, 0].sqrt().numpy(), std, rtol=1e-12)


def check_gradients(model: Any) -> None:
    def moments(x: torch.Tensor) -> torch.Tensor:
        posterior = model.posterior(x, observation_noise=True)
        return torch.cat([posterior.mean, posterior.variance])

    assert torch.autograd.gradcheck(moments, (points(2, 3).requires_grad_(),))


def test_gradients_equal_finite_differences(model: Any) -> None:
    check_gradients(model)


def test_moments_and_gradients_of_several_targets_and_columns_with_bins() -> None:
    X, y = problem(60, targets=2)
    fit = regressor(noise="input", recalibrate=False, numbers="binned", last_layer="laplace", weight_draws=3).fit(X, y)
    model = fit.to_botorch()
    check_moments(fit, model, 1e-12)
    check_gradients(model)
    assert model.num_outputs == 2
    both = model.posterior(points(4)).mean
    assert torch.equal(model.posterior(points(4), output_indices=[1]).mean, both[:, 1:])


def test_moments_of_a_transformed_target_are_in_its_units() -> None:
    X, _ = problem(120)
    fit = regressor().fit(X, np.exp(3.0 * X[:, 0]))
    assert fit.target_.transform is not None
    model = fit.to_botorch()
    check_moments(fit, model, 1e-4)  # moments by quadrature, and in closed form
    x = points(5)
    noisy = model.posterior(x, observation_noise=True)
    torch.manual_seed(0)
    draws = fit.target_.transform.transform(noisy.rsample(torch.Size([4000]))[..., 0])
    base = fit.predict_dist(x.numpy()).base.component  # in units of the transform
    weight = noisy.weights[:, None]
    mean = (weight * base.loc[..., 0]).sum(0)
    variance = (weight * ((base.loc[..., 0] - mean).square() + base.variance[..., 0])).sum(0)
    assert ((draws.mean(0) - mean).abs() < 5.0 * (variance / 4000).sqrt()).all()
    assert torch.allclose(draws.var(0), variance, rtol=0.2)


def test_a_sample_is_one_network_at_all_points(model: Any) -> None:
    posterior = model.posterior(points(2, 5))
    torch.manual_seed(0)
    draws = posterior.rsample(torch.Size([3000]))  # (3000, 2, 5, 1)
    for batch in range(2):
        distance = (draws[:, batch, None] - posterior.values[batch]).abs().amax((-2, -1))  # (3000, S)
        near, network = distance.min(1)
        assert near.max() == 0.0
        share = torch.bincount(network, minlength=len(posterior.weights)).double() / 3000
        assert torch.allclose(share, posterior.weights, atol=0.04)
    assert torch.allclose(draws.mean(0), posterior.mean, atol=0.1)
    assert torch.allclose(draws.var(0), posterior.variance, rtol=0.15)


def test_base_samples_fix_networks_and_noise(model: Any) -> None:
    x = points(2, 5)
    shape = torch.Size([2000])
    base = torch.zeros(2000, 2, dtype=torch.int64)
    first, second = (
        model.posterior(x, observation_noise=True).rsample_from_base_samples(shape, base) for _ in range(2)
    )
    assert torch.equal(first, second)
    noisy = model.posterior(x, observation_noise=True)
    assert torch.allclose(first.var(0), noisy.noise_variance[:, 0], rtol=0.35)  # tails of Student's t
    assert not torch.equal(noisy.rsample(), noisy.rsample())
    plain = model.posterior(x).rsample_from_base_samples(shape, base)
    assert torch.equal(plain, noisy.values[:, 0].expand_as(plain))


@pytest.mark.filterwarnings("ignore")  # of the optimiser of BoTorch
def test_acquisition_functions_are_optimised(model: Any) -> None:
    from botorch.acquisition import qLogExpectedImprovement, qUpperConfidenceBound
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement
    from botorch.optim import optimize_acqf

    bounds = torch.tensor([[-2.0] * 3, [2.0] * 3], dtype=torch.float64)
    pending = points(2)
    functions = [
        qLogExpectedImprovement(model, best_f=0.5, X_pending=pending),
        qLogNoisyExpectedImprovement(model, X_baseline=points(6)),
        qUpperConfidenceBound(model, beta=0.2),
    ]
    for function in functions:
        torch.manual_seed(0)
        found, value = optimize_acqf(function, bounds, q=2, num_restarts=2, raw_samples=16, options={"maxiter": 10})
        assert found.shape == (2, 3)
        assert value >= function(points(30, 2).clamp(-2.0, 2.0)).median()
    # with pending points, the improvement is of the best of all points of a network
    joint = model.posterior(torch.cat([found, pending])).values[..., 0].amax(-1)
    exact = (model.weights * (joint - 0.5).clamp_min(0.0)).sum()
    assert functions[0](found).exp().item() == pytest.approx(exact.item(), abs=0.1)


def test_a_copy_has_the_same_law(model: Any) -> None:
    assert torch.equal(copy.deepcopy(model).posterior(points(4)).mean, model.posterior(points(4)).mean)


def test_refusals_name_the_reason(model: Any) -> None:
    with pytest.raises(DataError, match="no fantasize"):
        model.fantasize(points(1), sampler=None)
    with pytest.raises(DataError, match="no condition_on_observations"):
        model.condition_on_observations(points(1), torch.zeros(1, 1))
    with pytest.raises(DataError, match="X has 2 columns; this model has 3"):
        model.posterior(torch.zeros(4, 2))
    with pytest.raises(DataError, match="as a tensor"):
        model.posterior(points(4), observation_noise=torch.ones(4, 1))
    X, y = problem(200)
    with pytest.raises(DataError, match=r"value 0 in many rows.*recalibrate=False"):
        regressor().fit(X, np.maximum(y, 0.0)).to_botorch()
    with pytest.raises(DataError, match=r"'new' \(boolean\), 'colour' \(category\), 'day' \(date\)"):
        regressor(recalibrate=False).fit(pd.DataFrame(table()), y[:70]).to_botorch()
    with pytest.raises(DataError, match="UnboundedDepthClassifier predicts classes"):
        classifier().fit(*classes()).to_botorch()


def test_without_the_package_the_error_names_the_extra(one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EnsemblePosterior", object)
    with pytest.raises(DataError, match=r"pip install 'fathomless\[botorch\]'"):
        one.to_botorch()
