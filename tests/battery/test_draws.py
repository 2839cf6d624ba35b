"""What every family promises of its draws: shapes, weights, divergences, and what a structure's number means."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from battery.cases import CASES, ROWS, TRAINED, Case, chosen, drawn, fitted, named, parts, rows
from fathomless.families.baselines.drawn import DrawnNetworks
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import OrnsteinUhlenbeck
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.variational.objective import elbo
from fathomless.nn.gaussian_head import GaussianHead
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.model import Model
from fathomless.posterior.structure import ListedPosterior

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

SPARSE = [case for case in CASES if case.name.startswith(("sparse-", "depth-sparse")) and not case.closed]
CERTAIN = [  # flows and dropout draw more than the scales of weights say
    case for case in TRAINED if case.options.get("posterior") != "flow" and case.family.name != "dropout"
]
LISTED = [case for case in TRAINED if case not in SPARSE and case.family.name != "sparse"]


def members(model: Model) -> list[Model]:
    return list(model.members) if isinstance(model, Ensemble) else [model]


@torch.no_grad()
def with_certain_weights(model: Model) -> Model:
    """Draw no weight more than e⁻⁴⁰ from its mean; what is included stays open."""
    for name, p in model.named_parameters():
        if "log_scale" in name or "log_width" in name:
            p.fill_(-40.0)
    for part in model.modules():
        if isinstance(part, GaussianHead):
            part.scale.zero_()
        if isinstance(part, DrawnNetworks):
            part.apart.zero_()
    if isinstance(model, ContinuousDepth):
        model.prior = OrnsteinUhlenbeck(rate=0.0)
    return model


@pytest.mark.parametrize(**named(CASES))
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_draws_have_the_shapes_and_types_that_they_promise(case: Case, training: bool) -> None:
    model, likelihood = parts(case)
    model.train(training)
    draws = drawn(model, case, n=6)
    count = len(draws.f)
    assert draws.f.shape == (count, ROWS, likelihood.outputs)
    assert draws.f.dtype == model.dtype
    assert draws.log_weight.shape == draws.structure.shape == (count,)
    assert draws.structure.dtype == torch.int64
    assert draws.f.isfinite().all()
    assert not draws.log_weight.isnan().any()
    if not model.stochastic:
        assert len(drawn(model, case, n=1).f) == count


@pytest.mark.parametrize(**named(CASES))
def test_the_weights_of_draws_sum_to_one(case: Case) -> None:
    draws = drawn(parts(case)[0], case)
    assert draws.log_weight.dtype == torch.float64
    assert abs(float(draws.log_weight.logsumexp(0))) < 1e-9


@pytest.mark.parametrize(**named(chosen("classification")))
def test_a_classifier_predicts_in_the_shapes_that_it_promises(case: Case) -> None:
    estimator, (X, _) = fitted(case), case.table()
    X = X[:7]
    assert estimator.classes_.tolist() == ["high", "low", "mid"]
    assert estimator.predict_proba(X).shape == estimator.predict_log_proba(X).shape == (7, 3)
    np.testing.assert_allclose(estimator.predict_proba(X).sum(1), 1.0, rtol=1e-12)
    assert estimator.predict(X).shape == (7,)
    assert estimator.sample_y(X, 5).shape == (7, 5)
    assert len(estimator.predict_dist(X)) == len(estimator.predict_dist(X).entropy()) == 7


@pytest.mark.parametrize(**named(chosen("regression")))
def test_a_regressor_predicts_in_the_shapes_that_it_promises(case: Case) -> None:
    estimator, (X, y) = fitted(case), case.table()
    X, y = X[:7], y[:7]
    mean, std = estimator.predict(X, return_std=True)
    low, high = estimator.predict_interval(X, 0.5)
    assert mean.shape == std.shape == low.shape == high.shape == estimator.predict(X).shape == (7,)
    assert (std > 0).all()
    assert (low < high).all()
    assert estimator.sample_y(X, 5).shape == (7, 5)
    assert estimator.predict_dist(X).log_prob(y).shape == (7,)


@pytest.mark.parametrize(**named(chosen("density")))
def test_a_density_scores_and_samples_in_the_shapes_that_it_promises(case: Case) -> None:
    estimator, (X, _) = fitted(case), case.table()
    assert estimator.score_samples(X[:7]).shape == (7,)
    assert estimator.sample(5).shape == (5, X.shape[1])
    assert math.isfinite(estimator.score(X))


@pytest.mark.parametrize(**named(CASES))
def test_the_structure_is_a_finite_value_with_a_summary(case: Case) -> None:
    estimator = fitted(case)
    structure = estimator.structure_
    assert structure.kind
    assert structure.summary
    assert all(math.isfinite(value) for value in structure.statistics.values())
    assert set(structure.statistics) - {"graphs"} <= set(estimator.history_[-1])  # of all states, not of the last ones
    if isinstance(structure, ListedPosterior):
        assert sum(structure.probabilities) == pytest.approx(1.0, abs=1e-12)
        assert len(structure.names) == len(structure.probabilities)


# ------------------------------------------------------------------------------------------- divergences


@pytest.mark.parametrize(**named(TRAINED))
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_divergences_are_named_finite_scalars_that_are_not_negative(case: Case, training: bool) -> None:
    model, _ = parts(case)
    draws = drawn(model.train(training), case)
    assert draws.divergence
    for name, term in draws.divergence.items():
        assert name.isidentifier()
        assert term.shape == ()
        assert term.isfinite()
        assert term >= -1e-12
        assert f"divergence_{name}" in fitted(case).history_[-1]
    assert draws.tempered <= set(draws.divergence)


@pytest.mark.parametrize(**named(CASES))
def test_the_bound_is_the_log_likelihood_less_the_divergences(case: Case) -> None:
    model, likelihood = parts(case)
    draws, y = drawn(model, case), rows(case).y
    with torch.no_grad():
        bound = elbo(draws, likelihood, y, size=ROWS)
        cold = elbo(draws, likelihood, y, size=ROWS, temperature=0.25)
        expected = float(draws.log_weight.exp() @ likelihood.log_prob(draws.f, y).sum(1))
    charged = sum(map(float, bound.divergence.values()))
    assert set(bound.divergence) == set(draws.divergence)
    assert float(bound.log_likelihood) == pytest.approx(expected, rel=1e-12)
    assert float(bound.value) == pytest.approx(expected - charged, rel=1e-12)
    spared = 0.75 * sum(float(draws.divergence[name]) for name in draws.tempered)
    assert float(cold.value - bound.value) == pytest.approx(spared, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(**named(CASES))
def test_twice_as_many_rows_double_the_log_likelihood_alone(case: Case) -> None:
    """Divergences are nats of the whole data set: neither its size nor that of the batch divides them."""
    model, likelihood = parts(case)
    draws, table = drawn(model, case), rows(case)
    with torch.no_grad():
        once, twice = (elbo(draws, likelihood, table.y, size=size) for size in (ROWS, 2 * ROWS))
        half = model.draw(table.x[::2], 8, torch.Generator().manual_seed(0))
    assert float(twice.log_likelihood) == pytest.approx(2.0 * float(once.log_likelihood), rel=1e-12)
    assert float(twice.value - once.value) == pytest.approx(float(once.log_likelihood), rel=1e-9)
    for name, term in once.divergence.items():
        assert torch.equal(twice.divergence[name], term)
        assert float(half.divergence[name]) == pytest.approx(float(term), rel=1e-12)


@pytest.mark.parametrize(**named(TRAINED))
def test_the_history_holds_the_same_bound(case: Case) -> None:
    estimator = fitted(case)
    tempered = drawn(parts(case)[0], case).tempered
    temperature = vars(estimator).get("temperature_", estimator.temperature)  # a family may choose it
    for row in estimator.history_:
        charged = sum(
            value * (temperature if name.removeprefix("divergence_") in tempered else 1.0)
            for name, value in row.items()
            if name.startswith("divergence_")
        )
        assert row["elbo"] == pytest.approx(row["log_likelihood"] - charged, rel=1e-9, abs=1e-9)


# ------------------------------------------------------------------------------------------- numbers of structures


@pytest.mark.parametrize(**named(CERTAIN))
def test_draws_of_one_number_differ_in_their_weights_alone(case: Case) -> None:
    """Once the weights are certain, each member of a mixture gives one output for each number."""
    for member in members(parts(case)[0]):
        draws = drawn(with_certain_weights(member), case, n=12)
        for number in draws.structure.unique():
            f = draws.f[draws.structure == number]
            torch.testing.assert_close(f, f[:1].expand_as(f), rtol=0, atol=1e-5)


@pytest.mark.parametrize(**named(LISTED))
def test_listed_structures_have_the_weight_that_the_posterior_says(case: Case) -> None:
    """A number is the same structure in every member, so that numbers and names are as many."""
    model, _ = parts(case)
    draws, structure = drawn(model, case), fitted(case).structure_
    assert not draws.sampled
    numbers = draws.structure.unique().tolist()
    mass = [float(draws.log_weight[draws.structure == number].exp().sum()) for number in numbers]
    assert list(map(str, numbers)) == list(structure.names) or structure.names == ("all",)
    np.testing.assert_allclose(mass, structure.probabilities, rtol=1e-9)


@pytest.mark.parametrize(**named([case for case in SPARSE if case in CERTAIN]))
def test_draws_of_other_numbers_include_other_weights(case: Case) -> None:
    """With certain weights the outputs of two numbers differ: another depth, or another inclusion of weights."""
    model, _ = parts(case)
    for member in members(model):
        draws = drawn(with_certain_weights(member), case, n=12)
        assert draws.sampled
        numbers = draws.structure.unique().tolist()
        assert len(numbers) >= 6  # two weights for each
        if isinstance(member, UnboundedDepth):  # linear networks have so few weights that two inclusions may be equal
            numbers = [number for number in numbers if number % (member.depth + 1)]
        first = torch.stack([draws.f[draws.structure == number][0] for number in numbers])
        apart = torch.cdist(*[first.flatten(1)] * 2, p=math.inf)
        assert (apart + torch.eye(len(numbers)) > 1e-5).all()


@pytest.mark.parametrize(**named(SPARSE))
def test_a_fixed_inclusion_is_no_sample(case: Case) -> None:
    """Once no inclusion is open, structures are listed again: one, or the depths."""
    model, _ = parts(case)
    for member in members(model):
        for part in member.modules():
            if type(part).__name__ == "SpikeSlabPosterior":
                part.freeze()
    draws = drawn(model, case)
    assert not draws.sampled
    if not isinstance(fitted(case).structure_, ListedPosterior):
        assert len(draws.structure.unique()) == 1


@pytest.mark.parametrize(**named([case for case in CASES if case.options.get("n_restarts")]))
def test_members_share_the_numbers_of_listed_structures_and_no_others(case: Case) -> None:
    model, _ = parts(case)
    assert isinstance(model, Ensemble)
    draws, each = drawn(model, case), [drawn(member, case) for member in members(model)]
    of_member = draws.structure.split([len(one.structure) for one in each])
    mine, theirs = (set(numbers.tolist()) for numbers in of_member)
    if draws.sampled:
        assert not mine & theirs
    else:
        assert mine == set(each[0].structure.tolist())
        assert theirs == set(each[1].structure.tolist())
        assert mine & theirs
    for own, one in zip(of_member, each, strict=True):  # what is one structure to a member is one in the average
        pairs = set(zip(own.tolist(), one.structure.tolist(), strict=True))
        assert len(pairs) == len(set(own.tolist())) == len(one.structure.unique())


@pytest.mark.parametrize(**named(CASES))
def test_the_same_generator_gives_the_same_draws_and_another_one_others(case: Case) -> None:
    model, _ = parts(case)
    once, again, other = drawn(model, case, seed=1), drawn(model, case, seed=1), drawn(model, case, seed=2)
    assert torch.equal(once.f, again.f)
    assert torch.equal(once.structure, again.structure)
    assert torch.equal(once.f, other.f) != model.stochastic
    assert torch.equal(replace(once, f=other.f).log_weight, other.log_weight)
