"""The split of uncertainty: it adds up for every family, and finds shares that are known."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from battery.cases import PREDICTIVE, Case, fitted, named
from fathomless.posterior.distributions import ContinuousPredictive, Uncertainty
from fathomless.posterior.likelihoods import Categorical, Gaussian
from fathomless.posterior.model import Draws
from fathomless.posterior.predictive import predictive
from fathomless.posterior.uncertainty import estimate_spread

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

NOISE = 0.5
#: Cases whose structures are a sample, each with one independent network.
ONE_PART = ("graph", "sparse-average", "depth-sparse")


def adds_up(split: Uncertainty, total: Tensor) -> None:
    """Check the sum of the parts, their signs, and the total."""
    torch.testing.assert_close(split.noise + split.weights + split.structure, split.total, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(split.total, total, rtol=1e-10, atol=1e-14)
    for part in (split.noise, split.weights, split.structure):
        assert part.shape == total.shape
        assert (part >= 0).all()


@pytest.mark.parametrize(**named(PREDICTIVE))
def test_the_parts_add_up_and_those_that_cannot_be_are_zero(case: Case) -> None:
    p = fitted(case).predict_dist(case.table()[0])
    split = p.uncertainty()
    total = p.variance if isinstance(p, ContinuousPredictive) else p.entropy()
    assert split.known == (not case.name.startswith(ONE_PART))
    if not split.known:
        torch.testing.assert_close(split.total, total, rtol=1e-10, atol=1e-14)
        assert ((split.noise > 0) & (split.noise <= split.total + 1e-9)).all()
        assert split.weights.isnan().all()
        assert split.structure.isnan().all()
        assert not [name for name in p.columns() if name.endswith(("_weights", "_structure"))]
        assert "nan" not in repr(split)
        return
    adds_up(split, total)
    for name in ("weights", "structure"):
        part = getattr(split, name)
        if name in case.closed:
            assert (part == 0).all(), f"{name} is not exactly 0"
        else:
            assert part.mean() > 0, f"{name} is 0, and it is open"
    assert split.noise.mean() > 0


DOUBTFUL = [case for case in PREDICTIVE if case.task == "regression" and not case.closed >= {"weights", "structure"}]


@pytest.mark.parametrize(**named(DOUBTFUL))
def test_doubt_grows_off_the_data(case: Case) -> None:
    """Weights and structure, on average over directions, at 2, 4 and 8 standard deviations from the mean."""
    directions = np.random.default_rng(1).normal(size=(64, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    splits = [fitted(case).predict_dist(distance * directions).uncertainty() for distance in (2.0, 4.0, 8.0)]
    near, far, farther = (float((split.total - split.noise).mean()) for split in splits)
    assert 0.0 < near < far < farther


# ------------------------------------------------------------------------------------------- known shares


def sampled_split(between: float, groups: int, rows: int, seed: int) -> Uncertainty:
    """Draw means m_g ~ N(0, B) of structures and two networks N(m_g, 1) for each, independently for every row."""
    g = torch.Generator().manual_seed(seed)
    means = math.sqrt(between) * torch.randn(groups, 1, rows, 1, generator=g, dtype=torch.float64)
    f = means + torch.randn(groups, 2, rows, 1, generator=g, dtype=torch.float64)
    log_weight = torch.full((2 * groups,), -math.log(2 * groups), dtype=torch.float64)
    numbers = torch.arange(groups).repeat_interleave(2)
    return predictive(
        Draws(f.flatten(0, 1), log_weight, numbers, {}, sampled=True), Gaussian(noise=NOISE), squeeze=True
    ).uncertainty()


@pytest.mark.parametrize("between", [0.25, 1.0, 4.0])
def test_sampled_structures_get_their_share_of_the_variance(between: float) -> None:
    """With B between structures and 1 within them the share is B / (B + 1).

    It is a ratio of sums over rows, whose Monte Carlo error is that of the residuals structure − share (structure +
    weights). A ratio of estimates from G structures of one row is off by no more than about 1 / G beside that.
    """
    groups, rows = 200, 2000
    split, true = sampled_split(between, groups, rows, seed=0), between / (between + 1.0)
    rest = split.structure + split.weights
    share = float(split.structure.sum() / rest.sum())
    error = float((split.structure - share * rest).std() / math.sqrt(rows) / rest.mean())
    assert abs(share - true) < 4.0 * error + 1.0 / groups
    assert error < 0.25 / groups**0.5  # what was found says something
    torch.testing.assert_close(split.noise, torch.full((rows,), NOISE**2, dtype=torch.float64))
    # the variance of all means is (B + 1) up to the error of a sample of structures
    spread = math.sqrt(2.0) * (between + 0.5) / math.sqrt(groups * rows)
    assert abs(float(rest.mean()) - (between + 1.0)) < 5.0 * spread + (between + 1.0) / groups


def test_structures_that_do_nothing_get_little_more_than_nothing() -> None:
    """Without anything between structures the share is what clipping at 0 leaves.

    The estimate of B is the variance of means, 1/2 ± √(2/G)/2, less half the variance within, 1 ± √(2/G): the standard
    deviation of this difference is s = G^(−1/2), and the mean of its positive part s / √(2π).
    """
    groups, rows = 200, 2000
    split = sampled_split(0.0, groups, rows, seed=1)
    share = float(split.structure.sum() / (split.structure + split.weights).sum())
    bias = 1.0 / math.sqrt(2.0 * math.pi * groups)
    assert 0.5 * bias < share < 1.5 * bias < 0.05
    assert 0.4 < float((split.structure == 0).double().mean()) < 0.6  # clipped every other time


@pytest.mark.parametrize("between", [0.0, 0.5])
@pytest.mark.parametrize("graphs", [30, 6])
def test_draws_of_one_network_are_no_networks(graphs: int, between: float) -> None:
    """Of 120 networks of several graphs, with four draws of the hidden units each: what networks differ by is weights.

    Networks of a graph differ by N(0, 1) and draws of one by N(0, 0.2), so W is 1.2; graphs differ by N(0, B).
    """
    g = torch.Generator().manual_seed(0)
    own = torch.arange(120) % graphs
    f = torch.randn(120, 1, 2000, generator=g, dtype=torch.float64)
    f = f + math.sqrt(0.2) * torch.randn(120, 4, 2000, generator=g, dtype=torch.float64)
    f = f + math.sqrt(between) * torch.randn(graphs, 1, 2000, generator=g, dtype=torch.float64)[own]
    log_weight = torch.full((480,), -math.log(480.0), dtype=torch.float64)
    numbers = own.repeat_interleave(4), torch.arange(120).repeat_interleave(4)
    found = estimate_spread(f.reshape(480, 2000), log_weight, *numbers, sampled=True)
    assert found is not None
    assert float(found.between.mean()) == pytest.approx(between, abs=0.05)
    assert float(found.within.mean()) == pytest.approx(1.2, abs=0.02)


def test_a_network_for_each_graph_tells_nothing_of_weights() -> None:
    f = torch.randn(8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_weight = torch.full((8,), -math.log(8.0), dtype=torch.float64)
    numbers = torch.arange(8) // 2, torch.arange(8) // 2
    found = estimate_spread(f, log_weight, *numbers, sampled=True)
    assert found is not None
    assert found.between.isnan().all()
    assert found.within.isnan().all()
    one = estimate_spread(f, log_weight, torch.zeros(8, dtype=torch.int64), torch.arange(8) // 2, sampled=True)
    assert one is not None
    assert (one.between == 0.0).all()  # a single graph leaves nothing to structure


def test_more_structures_leave_less_bias() -> None:
    few, many = (sampled_split(0.0, groups, 500, seed=2) for groups in (8, 512))
    shares = [float(s.structure.sum() / (s.structure + s.weights).sum()) for s in (few, many)]
    assert shares[0] / shares[1] == pytest.approx(math.sqrt(512 / 8), rel=0.5)


def test_listed_structures_have_the_closed_form() -> None:
    """Two draws m_g ± s_g of equal weight within structure g of probability q_g."""
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    mean = torch.tensor([-1.0, 0.5, 4.0], dtype=torch.float64)
    spread = torch.tensor([0.1, 2.0, 0.7], dtype=torch.float64)
    f = torch.stack([mean - spread, mean + spread]).reshape(6, 1, 1)
    weight = (0.5 * q).repeat(2)
    split = predictive(
        Draws(f, weight.log(), torch.tensor([4, 0, 9, 4, 0, 9]), {}), Gaussian(noise=NOISE), squeeze=True
    ).uncertainty()
    structure = q @ mean.square() - (q @ mean).square()
    expected = {"noise": NOISE**2, "weights": float(q @ spread.square()), "structure": float(structure)}
    for name, value in expected.items():
        assert float(getattr(split, name)) == pytest.approx(value, rel=1e-12)
    assert float(split.total) == pytest.approx(sum(expected.values()), rel=1e-12)


def test_a_sample_of_one_structure_leaves_nothing_to_structure() -> None:
    f = torch.tensor([-1.0, 1.0, 0.5], dtype=torch.float64).reshape(3, 1, 1)
    log_weight = torch.full((3,), -math.log(3), dtype=torch.float64)
    draws = Draws(f, log_weight, torch.zeros(3, dtype=torch.int64), {}, sampled=True)
    split = predictive(draws, Gaussian(noise=NOISE), squeeze=True).uncertainty()
    assert (split.structure == 0).all()
    assert (split.weights > 0).all()


def class_draws(log_p: Tensor, numbers: list[int], sampled: bool = False) -> Draws:
    count = len(log_p)
    log_weight = torch.full((count,), -math.log(count), dtype=torch.float64)
    return Draws(log_p, log_weight, torch.tensor(numbers), {}, sampled=sampled)


def sure(*classes: int) -> Tensor:
    """Return logits of networks that are sure of a class each, shape (S, 1, 3)."""
    return 400.0 * torch.eye(3, dtype=torch.float64)[list(classes)].unsqueeze(1)


@pytest.mark.parametrize(
    ("logits", "numbers", "expected"),
    [
        (sure(0, 0, 1, 1), [0, 0, 1, 1], {"structure": math.log(2)}),  # each structure is sure of a class
        (sure(0, 1, 0, 1), [0, 0, 1, 1], {"weights": math.log(2)}),  # the weights of either decide
        (0.0 * sure(0, 1, 0, 1), [0, 0, 1, 1], {"noise": math.log(3)}),  # every network says that nothing is known
        # one structure is sure of a class, the weights of the other decide: H(3/4, 1/4) in all, ½ log 2 within
        (
            sure(0, 0, 0, 1),
            [0, 0, 1, 1],
            {"weights": 0.5 * math.log(2), "structure": 1.5 * math.log(2) - 0.75 * math.log(3)},
        ),
    ],
    ids=["structure", "weights", "noise", "both"],
)
def test_listed_structures_of_classifiers_have_the_closed_form(
    logits: Tensor, numbers: list[int], expected: dict[str, float]
) -> None:
    split = predictive(class_draws(logits, numbers), Categorical(3)).uncertainty()
    for name in ("noise", "weights", "structure"):
        assert float(getattr(split, name)) == pytest.approx(expected.get(name, 0.0), abs=1e-12)
    assert float(split.total) == pytest.approx(sum(expected.values()), rel=1e-12)


@pytest.mark.parametrize(("logits", "share"), [(sure(*[0] * 20, *[1] * 20), 1.0), (sure(*[0, 1] * 20), 0.0)])
def test_sampled_structures_of_classifiers_share_as_the_variance_of_probabilities_does(
    logits: Tensor, share: float
) -> None:
    numbers = np.repeat(np.arange(20), 2).tolist()
    split = predictive(class_draws(logits, numbers, sampled=True), Categorical(3)).uncertainty()
    assert float(split.structure) == pytest.approx(share * math.log(2), abs=1e-12)
    assert float(split.weights) == pytest.approx((1.0 - share) * math.log(2), abs=1e-12)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 30.0])
def test_the_parts_of_classifiers_add_up_and_lie_between_zero_and_the_total(sampled: bool, scale: float) -> None:
    g = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(24, 50, 4, generator=g, dtype=torch.float64)
    numbers = (torch.arange(24) // 3).tolist()
    p = predictive(class_draws(logits, numbers, sampled), Categorical(4))
    split = p.uncertainty()
    adds_up(split, torch.special.entr(p.probs).sum(-1))
    for part in (split.noise, split.weights, split.structure):
        assert (part <= split.total * (1.0 + 1e-12)).all()
