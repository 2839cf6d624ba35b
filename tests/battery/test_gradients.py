"""Gradients through what every family predicts, and models under the transformations of ``torch.func``."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from battery.cases import CASES, Case, chosen, fitted, named, parts, rows
from fathomless.posterior.capabilities import Mergeable
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import Predictive
from fathomless.posterior.model import Model
from fathomless.posterior.predictive import predictive

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # of log_ndtr under vmap
]

SUPERVISED = chosen("classification", "regression")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def doubled(case: Case) -> tuple[Model, Any, Tensor, Tensor]:
    """Return model and likelihood in double precision, as they are evaluated, and a few rows."""
    model, likelihood = parts(case)
    data = rows(case)
    return model.double().eval(), likelihood.double().eval(), data.x[:4].double(), data.y[:4]


def said(p: Predictive, y: Tensor) -> Tensor:
    """Return moments or probabilities, and log densities, of each row."""
    moments = [p.log_probs] if isinstance(p, ClassPredictive) else [p.mean, p.std]
    return torch.cat([*moments, p.log_prob(y)[:, None]], 1)


@pytest.mark.parametrize(**named(SUPERVISED))
def test_gradients_in_the_input_are_those_of_finite_differences(case: Case) -> None:
    """Of moments, probabilities and densities; the same networks are drawn on both sides."""
    model, likelihood, x, y = doubled(case)

    def of(x: Tensor) -> Tensor:
        return said(predictive(model(x, 4, generator()), likelihood), y)

    direction = torch.randn(x.shape, generator=generator(1), dtype=x.dtype)
    x = x.requires_grad_()
    value = of(x)
    seen = torch.randn(value.shape, generator=generator(2), dtype=x.dtype)
    (gradient,) = torch.autograd.grad(value, x, seen)
    with torch.no_grad():
        step = 1e-6 * direction
        difference = ((of(x + step) - of(x - step)) * seen).sum() / 2e-6
    assert gradient.abs().sum() > 0.0
    torch.testing.assert_close((gradient * direction).sum(), difference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(**named([case for case in SUPERVISED if case.plain]))
def test_a_density_has_gradients_in_parameters_where_there_are_any(case: Case) -> None:
    model, likelihood, x, y = doubled(case)
    p = predictive(model(x, 4, generator()), likelihood)
    free = [q for q in (*model.parameters(), *likelihood.parameters()) if q.requires_grad]
    if not free:
        return
    found = torch.autograd.grad(p.log_prob(y).sum(), free, allow_unused=True)
    assert any(g is not None and g.abs().sum() > 0.0 for g in found)


@pytest.mark.parametrize(**named([case for case in SUPERVISED if case.plain]))
def test_an_estimator_predicts_without_gradients(case: Case) -> None:
    X, _ = case.table()
    p = fitted(case).predict_dist(X[:2])
    assert not (p.probs if isinstance(p, ClassPredictive) else p.mean).requires_grad


# ------------------------------------------------------------------------------------------- torch.func


@pytest.mark.parametrize(**named(CASES))
def test_stacked_parameters_are_drawn_from_side_by_side(case: Case) -> None:
    """With one generator for all, each says what it says by itself; in training, too, and the bound has gradients."""
    model, _ = parts(case)
    if not isinstance(model, Mergeable):
        return
    x = rows(case).x[:5]
    each = [{name: (p * (1.0 + 0.1 * i)).detach() for name, p in model.named_parameters()} for i in range(3)]
    stacked = {name: torch.stack([own[name] for own in each]).requires_grad_() for name in each[0]}

    def of(model: Model, own: dict[str, Tensor]) -> tuple[Tensor, ...]:
        draws = functional_call(model, own, (x, 4, generator()))
        return draws.f, *draws.divergence.values()

    for whole in (model, model.merge([copy.deepcopy(model)])):
        for training in (False, True):
            whole.train(training)
            together = vmap(partial(of, whole), randomness="same")(stacked)
            alone = [of(model.train(training), own) for own in each]
            for both, one in zip(together, zip(*alone, strict=True), strict=True):
                torch.testing.assert_close(both, torch.stack(one))
            gradients = torch.autograd.grad(
                sum(value.sum() for value in together), list(stacked.values()), allow_unused=True
            )
            assert all(g is None or bool(g.isfinite().all()) for g in gradients)
            assert any(g is not None for g in gradients)


@pytest.mark.parametrize(**named(CASES))
def test_rows_are_evaluated_under_vmap_as_they_are_in_a_batch(case: Case) -> None:
    model, _ = parts(case)
    model, x = model.eval(), rows(case).x[:3]
    with torch.no_grad():
        whole = model(x, 4, generator()).f
        each = vmap(lambda row: model(row[None], 4, generator()).f[:, 0], out_dims=1, randomness="same")(x)
    torch.testing.assert_close(each, whole)


@pytest.mark.parametrize(**named([case for case in SUPERVISED if case.plain and case.family.name != "graph"]))
def test_the_jacobian_in_the_input_is_that_of_autograd(case: Case) -> None:
    """Not of graphs, whose normal probabilities torch evaluates one after the other under ``vmap``."""
    model, _, x, _ = doubled(case)
    x = x[:2]
    of_row = jacrev(lambda row: model(row[None], 4, generator()).f[:, 0])
    found = vmap(of_row, randomness="same")(x)  # (B, S, K, D)
    expected = torch.autograd.functional.jacobian(lambda x: model(x, 4, generator()).f.sum(1), x)  # (S, K, B, D)
    torch.testing.assert_close(found, expected.movedim(2, 0))
