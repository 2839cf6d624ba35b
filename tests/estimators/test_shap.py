"""Contributions of columns by the package shap, and modules with a single output."""

from typing import Any

import numpy as np
import pytest
import torch

from fathomless.system.errors import DataError
from quick_fits import classes, classifier, problem, regressor

ABSENT = "needs the package shap"


@pytest.fixture(scope="module")
def grades() -> Any:
    return classifier(numbers="plain").fit(*classes())


@pytest.fixture(scope="module")
def numbers() -> Any:
    return regressor(recalibrate=False).fit(*problem(60))


def test_modules_return_one_output_if_asked(grades: Any, numbers: Any) -> None:
    X, _ = classes()
    rows = torch.as_tensor(X)
    dist = grades.predict_dist(X)
    np.testing.assert_allclose(grades.to_module(output="probabilities")(rows).numpy(), dist.probs, atol=1e-12)
    np.testing.assert_allclose(grades.to_module(output="entropy")(rows).numpy()[:, 0], dist.entropy(), atol=1e-12)
    X, _ = problem(60)
    mean, std = numbers.predict(X, return_std=True)
    rows = torch.as_tensor(X)
    np.testing.assert_allclose(numbers.to_module(output="mean")(rows).numpy()[:, 0], mean, atol=1e-12)
    np.testing.assert_allclose(numbers.to_module(output="std")(rows).numpy()[:, 0], std, atol=1e-12)
    labels = np.column_stack([X[:, 0] > 0.0, X[:, 1] > 0.0]).astype(int)
    several = classifier().fit(X, labels)
    np.testing.assert_allclose(
        several.to_module(output="entropy")(rows).numpy(), several.predict_dist(X).entropy(), atol=1e-12
    )
    far = (30.0 * rows).requires_grad_()
    entropy = several.to_module(output="entropy")(far)
    assert bool((entropy.isfinite() & (entropy >= 0.0)).all())
    entropy.sum().backward()
    assert bool(far.grad.isfinite().all())
    with pytest.raises(DataError, match="output='entropy' was given; allowed are 'mean' and 'std'"):
        numbers.to_module(output="entropy")
    with pytest.raises(DataError, match="allowed are 'probabilities' and 'entropy'"):
        grades.to_module(output="mean")


@pytest.mark.filterwarnings("ignore")  # of shap
def test_contributions_add_up_to_predictions(grades: Any) -> None:
    shap = pytest.importorskip("shap", reason=ABSENT)
    X, _ = classes()
    for explain in (shap.Explainer(grades.predict_proba, X[:20]), shap.PermutationExplainer(grades.predict_proba, X)):
        found = explain(X[:3])
        assert found.values.shape == (3, 2, 3)
        np.testing.assert_allclose(found.base_values + found.values.sum(1), grades.predict_proba(X[:3]), atol=1e-9)


@pytest.mark.filterwarnings("ignore")  # of shap
def test_contributions_to_the_uncertainty_add_up(grades: Any, numbers: Any) -> None:
    shap = pytest.importorskip("shap", reason=ABSENT)
    functions = [
        (lambda X: grades.predict_dist(X).entropy().numpy(), classes()[0]),
        (lambda X: numbers.predict_dist(X).std.numpy(), problem(60)[0]),
    ]
    for function, X in functions:
        found = shap.explainers.Permutation(function, X[:20])(X[:3])
        np.testing.assert_allclose(found.base_values + found.values.sum(1), function(X[:3]), atol=1e-9)


@pytest.mark.filterwarnings("ignore")  # of shap
def test_gradients_give_the_contributions_of_exact_values(numbers: Any) -> None:
    shap = pytest.importorskip("shap", reason=ABSENT)
    X, _ = problem(60)
    rows = torch.as_tensor(X)
    gradients = shap.GradientExplainer(numbers.to_module(output="mean"), rows[:20])
    found = np.asarray(gradients.shap_values(rows[:3], nsamples=2000, rseed=0))[..., 0]
    expected = numbers.predict(X[:3]) - numbers.predict(X[:20]).mean()
    assert np.abs(found.sum(1) - expected).max() < 0.1 * numbers.predict(X).std()
