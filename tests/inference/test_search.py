"""The posterior over structure from held-out rows: phases, growth, and what decides."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fathomless.data.rows import Rows
from fathomless.families.depth.law_fit import make_law_fit
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold import stacking
from fathomless.inference.out_of_fold.search import LogDensities, StructureSearch, log_prior_of, score_structures
from fathomless.inference.runs.run import Fitted, Run
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.posterior.laws import PoissonPrior, TruncatedPoisson
from fathomless.posterior.likelihoods import Categorical, Gaussian, Likelihood
from fathomless.system.errors import ConvergenceWarning, DataError


def rows(kind: str, n: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    truth = {"noise": 0.0 * x[:, 0], "linear": x[:, 0] - x[:, 1], "product": 2.0 * x[:, 0] * x[:, 1]}[kind]
    return Rows(torch.as_tensor(x), torch.as_tensor(truth + 0.5 * rng.normal(size=n))[:, None])


def network(start: float = 2.0, outputs: int = 1, **options: Any) -> UnboundedDepth:
    net = MLP(3, outputs, 12)
    law = TruncatedPoisson(start)
    prior = PoissonPrior(0.5)
    return UnboundedDepth(net.layer, net.head, min_depth=0, law=law, prior=prior, dtype=torch.float64, **options)


def trained(
    kind: str,
    search: StructureSearch | None = None,
    epochs: int = 120,
    model: UnboundedDepth | None = None,
    **options: Any,
) -> tuple[Fitted, UnboundedDepth]:
    model = model or network()
    likelihood: Likelihood = Gaussian().double()
    training = Training(epochs=epochs, evaluate_every=4, learning_rate=0.03)
    search = search or StructureSearch(epochs, first=5)
    found = fit(model, likelihood, rows(kind, 200), rows(kind, 120, 1), training=training, search=search, **options)
    return found, model


def test_start_does_not_matter() -> None:
    states = []
    for start in (1.0, 3.0, 8.0):
        _, model = trained("product", model=network(start))
        states.append((model.depth_posterior(), model.state_dict()))
    assert states[0][0] == states[1][0] == states[2][0]
    for name, value in states[0][1].items():
        assert all(torch.equal(value, other[name]) for _, other in states[1:])


@pytest.mark.parametrize("depths", [range(1, 9), range(3, 12), (2, 4, 5, 8)], ids=repr)
def test_a_named_law_is_that_of_the_depths_whatever_depths_are_left(depths: Sequence[int]) -> None:
    """Masses of a Poisson law over ℓ - 1, restricted: λ is the same by every pair of them."""
    log_density = torch.randn(80, len(depths), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q = make_law_fit(TruncatedPoisson(), 1)(depths, log_density, torch.zeros(len(depths), dtype=torch.float64), None)
    pairs = [(i, j) for i, j in itertools.pairwise(range(len(depths))) if min(q[i], q[j]) > 0.02 and depths[i] > 1]
    between = [depths[j] - depths[i] for i, j in pairs]
    logs = [
        (float((q[j] / q[i]).log()) + math.lgamma(depths[j]) - math.lgamma(depths[i])) / step
        for (i, j), step in zip(pairs, between, strict=True)
    ]
    assert len(logs) >= 2
    assert max(logs) - min(logs) < 1e-6


def test_noise_returns_to_shallow() -> None:
    _, model = trained("noise")
    mean = sum(depth * mass for depth, mass in model.depth_posterior().items())
    assert mean <= 1.5


def test_linear_truth_is_depth_zero() -> None:
    _, model = trained("linear")
    assert model.depth_posterior()[0] > 0.5


def test_a_product_needs_a_layer() -> None:
    _, model = trained("product")
    assert model.depth_posterior().get(0, 0.0) < 0.05


def test_growth_stops() -> None:
    search = StructureSearch(120, first=5)
    trained("noise", search)
    assert search.grown == 0
    assert search.tail_gain < 2.0
    with pytest.raises(DataError, match="search was used by another training"):
        trained("noise", search)


def test_growth_stops_on_classes_that_every_depth_separates() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    table = Rows(torch.as_tensor(x), torch.as_tensor((x[:, 0] > 0.0).astype(np.int64)))
    search = StructureSearch(120, first=5)
    training = Training(epochs=120, evaluate_every=4, learning_rate=0.03)
    fit(
        network(outputs=2),
        Categorical(2).double(),
        table.take(slice(0, 200)),
        table.take(slice(200, 300)),
        training=training,
        search=search,
    )
    assert search.grown <= 1
    assert max(search.q) < 7  # what growth brought was tried once, was not better, and was given back


class Listed:
    """Densities that only deep structures have: the deeper, the better, up to an end."""

    def __init__(self, end: int, beyond: float = 0.0) -> None:
        self.end, self.beyond, self.weighed = end, beyond, [dict[int, float]()]

    def list_structures(self, count: int) -> dict[int, float]:
        return {k: float(PoissonPrior(0.5).log_prob(torch.tensor(float(k)))) for k in range(count)}

    def weigh(self, masses: dict[int, float], *, only: bool = False) -> int:
        self.weighed.append(dict(masses))
        return 1

    def parameters(self) -> list[torch.Tensor]:
        return []

    def log_densities(self, n: int = 400) -> LogDensities:
        numbers = tuple(self.weighed[-1])
        noise = torch.randn(n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        each = [0.3 * min(k, self.end) - self.beyond * max(k - self.end, 0) for k in numbers]
        level = torch.tensor(each, dtype=torch.float64)
        return LogDensities(numbers, noise + level, torch.arange(n), None)


def walk(end: int, planned: int = 50, beyond: float = 0.0) -> tuple[StructureSearch, Any]:
    search, model = StructureSearch(planned), Listed(end, beyond)
    search.begin(model)  # type: ignore[arg-type]
    epoch = 0
    while not search.focusing:
        epoch += 1
        found = model.log_densities()
        search.score(model, found)  # type: ignore[arg-type]
        search.advance_phase(model, found, epoch)  # type: ignore[arg-type]
    return search, model


def test_growth_goes_on_while_the_edge_is_worth_it() -> None:
    """Each layer up to 6 is worth something: the support grows from 6 to 9, and there it ends."""
    search, model = walk(6)
    assert search.grown == 1
    assert max(model.weighed[-2]) == 9
    assert search.tail_gain < 2.0
    assert search.explored == 30 + 10


def test_growth_without_end_is_told() -> None:
    with pytest.warns(ConvergenceWarning, match="is cut off"):
        search, _ = walk(10**6, planned=10)
    assert search.epochs <= 2 * 10
    assert search.grown >= 3


def test_exploring_ends_where_scores_have_fallen_for_long() -> None:
    """A tenth of the planned epochs, each lower by 0.01 nats a row and 2 nats in all; a pause starts anew."""
    search = StructureSearch(100)
    fallen = {epoch: search.is_overfitting(-1.0 - 0.02 * (epoch > 5), -1.0, 400.0, epoch) for epoch in range(1, 31)}
    assert min(epoch for epoch, over in fallen.items() if over) == 16
    search = StructureSearch(100)
    for epoch in range(1, 61):  # a plateau, and scores of few rows
        assert not search.is_overfitting(-1.009, -1.0, 400.0, epoch)
        assert not search.is_overfitting(-1.09, -1.0, 20.0, epoch)
        assert not search.is_overfitting(-1.02 if epoch % 9 else -1.0, -1.0, 400.0, epoch)
    search.focusing = True
    assert not any(search.is_overfitting(-2.0, -1.0, 400.0, epoch) for epoch in range(61, 99))


def test_exploring_lasts_while_learning_has_only_begun() -> None:
    """Plateau, then a rise: a fifth more while the last fifth brought a tenth of it all, at most twice the epochs."""

    def explored(scores: list[float], count: float = 500.0) -> int:
        search, best = StructureSearch(100, lengthen=True), -math.inf
        for epoch, score in enumerate(scores, 1):
            best = max(best, score)
            search.adjust_length(score, best, count, epoch)
            if epoch == search.explored:
                break
        return search.explored

    plateau, rising = [-0.7] * 50, [-0.7 + 0.02 * i for i in range(150)]
    assert explored(plateau * 4) == 60
    assert explored(plateau + rising) == 160  # with the focus twice the planned epochs
    assert explored(plateau + [min(score, -0.3) for score in rising]) == 100  # a fifth after the rise
    assert explored([-0.7 * 0.9**i for i in range(200)]) == 60  # nearly all was learned before
    assert explored(plateau + rising, count=1.0) == 60  # 0.2 nats in all say nothing


@pytest.mark.parametrize(("focus", "epochs"), [(0.4, 100), (1.0, 160)])
def test_rates_fall_over_the_whole_focus(focus: float, epochs: int) -> None:
    search = StructureSearch(100, focus=focus)
    assert search.epochs == epochs
    assert [search.factor(3 * epoch, 3) for epoch in (0, 30, 60)] == [1.0, 1.0, 1.0]
    assert search.factor(3 * (60 + epochs) // 2, 3) == pytest.approx(0.5)
    assert search.factor(3 * epochs, 3) == pytest.approx(0.0, abs=1e-12)


def test_the_focus_starts_from_the_best_state() -> None:
    seen = []

    def compare(run: Run) -> None:
        assert run.search is not None
        if run.search.focusing and not seen:
            seen.append(run.best.epoch < run.epoch)
            for name, value in run.model.state_dict().items():
                assert torch.equal(value, run.best.state[f"model/{name}"])

    training = Training(epochs=330, evaluate_every=4, learning_rate=0.03)
    table = rows("product", 60), rows("product", 120, 1)
    fit(
        network(),
        Gaussian().double(),
        *table,
        training=training,
        search=StructureSearch(330, first=5),
        callbacks=[compare],
    )
    assert seen == [True]


def test_growth_that_brought_nothing_is_not_tried_again() -> None:
    search, model = StructureSearch(50), Listed(20)
    search.begin(model)  # type: ignore[arg-type]
    before = model.log_densities()
    assert search.advance_phase(model, before, 10)  # type: ignore[arg-type]
    assert search.widest == 10
    search.explored = 15
    search.score(model, before)  # type: ignore[arg-type]
    search.advance_phase(model, before, 15)  # type: ignore[arg-type]
    assert search.tail_gain > 2.0
    assert search.focusing


def of_seven(model: Any) -> torch.Tensor:
    """Return the densities of the first support again."""
    model.weighed.append(dict.fromkeys(range(7), 1.0 / 7.0))
    found = model.log_densities().log_density
    model.weighed.pop()
    return found


def test_the_focus_follows_the_poisson_law_and_rests_the_rest() -> None:
    search, model = walk(2, beyond=0.3)
    focus, q, log_prior = model.weighed[-1], search.q, torch.tensor(list(model.list_structures(7).values()))
    _, poisson, _ = stacking.poisson(of_seven(model), log_prior)
    assert abs(sum(focus.values()) - 1.0) < 1e-9
    assert set(focus) == {k for k in range(7) if max(q[k], float(poisson[k])) >= 1e-3}
    kept = sum(float(poisson[k]) for k in focus)
    for k, mass in focus.items():
        assert mass == pytest.approx(0.75 * float(poisson[k]) / kept + 0.25 / len(focus))
    assert search.factor(0, 1) == 1.0
    assert search.factor((search.epochs - 1), 1) < 0.05


def test_depth_at_rest_is_not_weighed() -> None:
    found, model = trained("linear")
    assert found.log_densities is not None
    assert set(found.log_densities.numbers) == set(model.depth_posterior())


def test_epoch_is_chosen_by_the_refitted_mixture() -> None:
    """Of all states that were scored, the one that is kept has the best refitted mixture."""
    seen: list[tuple[float, int]] = []
    valid = rows("product", 120, 1)

    def watch(run: Run) -> None:
        seen.append((run.history[-1]["validation_log_likelihood"], run.epoch))

    found, model = trained("product", callbacks=[watch])
    assert found.score == max(seen)[0]
    likelihood = found.likelihood
    kept = score_structures(model, likelihood, valid, 1, 0)
    q = stacking.refit(kept.log_density, log_prior_of(model, kept.numbers))
    assert kept.score(q) == pytest.approx(max(seen)[0], abs=2e-2)  # but for the depths that were dropped


@pytest.mark.filterwarnings("ignore:the posterior over structure is cut off at 2")
def test_a_fixed_list_that_ends_is_kept_inside() -> None:
    search = StructureSearch(40, first=9)
    found, model = trained("product", search, epochs=40, model=network(0.01, max_depth=2))
    assert max(model.depth_posterior()) <= 2
    assert found.log_densities is not None


def test_widened_densities_are_those_of_the_noise_that_suits_the_rows() -> None:
    """Noise that is too small by any factor has the densities of noise that is about right; too large a one stays."""
    model, valid = network(), rows("linear", 200)
    model.weigh({0: 1.0})

    def total(scale: float, *, widened: bool) -> float:
        found = score_structures(model, Gaussian(initial_noise=scale).double(), valid, 1, 0, widened=widened)
        return found.score(torch.ones(1, dtype=torch.float64))

    best = max(total(0.2 * 1.05**k, widened=False) for k in range(60))
    for scale in (0.2, 0.3, 0.45):
        assert total(scale, widened=False) < best - 0.5
        assert total(scale, widened=True) == pytest.approx(best, abs=0.5 * math.log(2.0) ** 2 / 9)  # half a step away
    assert total(5.0, widened=True) == total(5.0, widened=False)


def test_an_epoch_of_the_warm_up_may_be_the_best_one_by_rows() -> None:
    """Rows that were not fitted judge every state alike: a network that only overfits is not kept to the end of it."""
    training = Training(epochs=200, evaluate_every=4, learning_rate=0.03, warm_up=0.9)
    table, valid = rows("noise", 40), rows("noise", 200, 1)
    found = fit(network(), Gaussian().double(), table, valid, training=training, search=StructureSearch(200, first=5))
    best = max(found.history, key=lambda row: row["validation_log_likelihood"])
    assert found.score == best["validation_log_likelihood"]
    assert best["epoch"] < 0.9 * 200


def test_rows_are_needed() -> None:
    with pytest.raises(DataError, match="needs validation rows"):
        fit(network(), Gaussian().double(), rows("noise", 30), training=Training(epochs=2), search=StructureSearch(2))


def test_drawn_weights_have_densities_that_average_draws() -> None:
    model = network(weights="meanfield")
    model.weigh({0: 0.5, 1: 0.5})
    likelihood, valid = Gaussian().double(), rows("linear", 20)
    found = score_structures(model, likelihood, valid, 1, 0)
    assert found.numbers == (0, 1)
    noise = torch.Generator().manual_seed(0)
    many = model.eval().draw(valid.x, 500, noise)
    log_p = likelihood.log_prob(many.f[many.structure == 1], valid.y).detach()  # (500, N)
    mean = torch.logsumexp(log_p, 0) - np.log(500.0)
    spread = (log_p - mean).exp().std(0) * math.sqrt(1 / 16 + 1 / 500)  # relative errors of means of 16 and 500 draws
    assert bool(((found.log_density[:, 1] - mean).abs() < 5.0 * spread + 0.01).all())
