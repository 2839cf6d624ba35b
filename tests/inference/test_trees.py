"""Fit of boosted trees: equal to scikit-learn on the same rows, and pools with planted exponents."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from fathomless.inference.out_of_fold import trees
from fathomless.inference.out_of_fold.trees import TreeRows, find_edges, grow_trees, pool_trees
from fathomless.posterior.trees import class_scores, pool_classes

Array = npt.NDArray[Any]
FOLDS = 3


def table(rows: int = 240, seed: int = 0) -> tuple[Array, Array]:
    """Whole numbers, so that bins of all rows and of some rows are the same, and a step with noise."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 8, (rows, 3)).astype(float)
    return x, (x[:, 0] > 3) + 0.3 * x[:, 1] * (x[:, 2] > 4) + 0.3 * rng.normal(size=rows)


def split(x: Array, y: Array, weight: Array | None = None, columns: tuple[int, ...] = (0, 1, 2)) -> TreeRows:
    fold = np.arange(len(x)) % FOLDS
    inside, outside = ([np.flatnonzero(chosen(k)) for k in range(FOLDS)] for chosen in (fold.__ne__, fold.__eq__))
    return TreeRows(x, y, np.ones(len(x)) if weight is None else weight, inside, outside, np.array(columns))


def reference(rows: TreeRows, y: Array, k: int, iterations: int, *, classes: bool) -> Any:
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    boosting = kind(max_iter=iterations, max_leaf_nodes=31, max_depth=10, early_stopping=False)
    inside = rows.inside[k]
    return boosting.fit(rows.x[inside][:, rows.columns], y[inside], sample_weight=rows.weight[inside])


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_of_numbers_are_those_of_scikit_learn_without_the_fold(weighted: bool) -> None:
    x, y = table()
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y)) if weighted else None
    rows = split(x, np.stack([y, -(y**2)], 1), weight)
    grown = grow_trees(rows, None, seed=0)
    first = grow_trees(split(x, y[:, None], weight), None, seed=0)
    torch.testing.assert_close(grown.scores[:, :1], first.scores, rtol=1e-12, atol=1e-12)
    iterations = first.trees.iterations
    unseen = np.zeros(len(y))
    for k in range(FOLDS):
        outside = rows.outside[k]
        unseen[outside] = reference(rows, y, k, iterations, classes=False).predict(x[outside])
    np.testing.assert_allclose(grown.scores[:, 0].numpy(), unseen, rtol=1e-9, atol=1e-9)
    assert float(grown.scale[0]) == pytest.approx(np.sqrt(np.average((unseen - y) ** 2, weights=weight)))
    every = [reference(rows, y, k, iterations, classes=False).predict(x) for k in range(FOLDS)]
    np.testing.assert_allclose(grown.trees(torch.as_tensor(x))[:, 0].numpy(), np.mean(every, 0), rtol=1e-9, atol=1e-9)


def test_the_error_of_the_average_is_predicted() -> None:
    rng = np.random.default_rng(0)

    def draw(rows: int) -> tuple[Array, Array]:
        x = rng.uniform(size=(rows, 4))
        return x, np.sin(6.0 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=rows)

    ratios, predicted = [], []
    for _ in range(4):
        x, y = draw(240)
        fold = np.arange(240) % 8
        parts = [[np.flatnonzero(chosen(k)) for k in range(8)] for chosen in (fold.__ne__, fold.__eq__)]
        grown = grow_trees(TreeRows(x, y[:, None], np.ones(240), *parts, np.arange(4)), None, seed=0)
        new, target = draw(4000)
        every = [grown.trees(torch.as_tensor(new), torch.full((4000,), k))[:, 0].numpy() for k in range(8)]
        single = np.mean([(target - one) ** 2 for one in every])
        ratios.append(np.mean((target - np.mean(every, 0)) ** 2) / single)
        predicted.append(float(grown.narrowing[0]) ** 2)
    assert np.mean(ratios) < 0.97
    assert np.mean(predicted) == pytest.approx(np.mean(ratios), abs=0.05)


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_classes_are_those_of_scikit_learn_without_the_fold(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_MOST", 64)
    x, y = table()
    labels = np.digitize(y, np.quantile(y, np.linspace(0.0, 1.0, classes + 1)[1:-1]))
    rows = split(x, labels)
    grown = grow_trees(rows, classes, seed=0)
    losses = np.zeros(64)
    for k in range(FOLDS):
        outside = rows.outside[k]
        stages = [*reference(rows, labels, k, 64, classes=True).staged_predict_proba(x[outside])]
        losses += [-np.log(p[np.arange(len(outside)), labels[outside]]).sum() for p in stages]
        own = class_scores(grown.scores[outside]).softmax(-1).numpy()
        np.testing.assert_allclose(own, stages[grown.trees.iterations - 1], rtol=1e-9, atol=1e-9)
    assert grown.trees.iterations == losses.argmin() + 1


def test_there_are_more_iterations_while_the_loss_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_FIRST", 4)
    monkeypatch.setattr(trees, "_MOST", 16)
    x, y = table()
    grown = grow_trees(split(x, y[:, None]), None, seed=0)
    assert grown.trees.iterations > 12  # a rate of 0.1 needs more


def test_trees_only_read_their_columns() -> None:
    x, y = table()
    grown = grow_trees(split(x, y[:, None], columns=(1, 2)), None, seed=0)
    other = x.copy()
    other[:, 0] = 100.0
    assert torch.equal(grown.trees(torch.as_tensor(x)), grown.trees(torch.as_tensor(other)))
    assert grown.scale[0] > grow_trees(split(x, y[:, None]), None, seed=0).scale[0]


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_a_class_without_rows_in_training_has_the_weight_of_half_a_row(classes: int) -> None:
    x, y = table()
    for missing in range(classes):
        labels = np.digitize(y, np.quantile(y, np.linspace(0.0, 1.0, classes + 1)[1:-1]))
        labels[labels == missing] = (missing + 1) % classes
        labels[0] = missing  # a row of fold 0
        grown = grow_trees(split(x, labels), classes, seed=0)
        p = class_scores(grown.scores[::FOLDS]).softmax(-1)[:, missing]  # of fold 0
        assert bool((p > 0.0).all())
        assert float(p.mean()) == pytest.approx(0.5 / 160, rel=0.6)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), limit=st.integers(2, 20))
def test_a_value_is_up_to_an_edge_if_its_bin_is(values: list[float], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "_BINS", limit)
        x = np.array(values)
        edges = find_edges(x)
    assert (np.diff(edges) > 0).all()
    assert len(edges) < max(limit, 2)
    bins = np.searchsorted(edges, x)
    for i, edge in enumerate(edges):
        assert ((x <= edge) == (bins <= i)).all()
    if len(set(values)) <= limit:
        assert len(set(bins)) == len(set(values))


def planted(powers: tuple[float, float], rows: int = 4000) -> tuple[torch.Tensor, ...]:
    """Return probabilities of two draws, scores of trees, and classes drawn from their pool."""
    random = torch.Generator().manual_seed(0)
    log_p = (1.5 * torch.randn(2, rows, 3, generator=random, dtype=torch.float64)).log_softmax(-1)
    log_p[1] = (log_p[0] + 0.2 * log_p[1]).log_softmax(-1)
    log_weight = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
    scores = 1.5 * torch.randn(rows, 3, generator=random, dtype=torch.float64)
    pooled = pool_classes(log_p, scores, torch.tensor(powers, dtype=torch.float64))
    p = torch.logsumexp(log_weight[:, None, None] + pooled, 0).exp()
    return log_p, log_weight, scores, torch.multinomial(p, 1, generator=random)[:, 0]


@pytest.mark.parametrize("powers", [(0.4, 0.7), (0.0, 1.0), (1.0, 0.3)])
def test_planted_exponents_are_found(powers: tuple[float, float]) -> None:
    *laws, y = planted(powers)
    fold, weight = torch.arange(len(y)) % 5, torch.ones(len(y), dtype=torch.float64)
    found = pool_trees(*laws, y, fold, weight)
    # the Fisher information of an exponent is about the variance of the scores, 2 per row: a standard error of 0.03
    torch.testing.assert_close(found.powers, torch.tensor(powers, dtype=torch.float64), rtol=0.0, atol=0.12)
    assert found.gain > 3.0 * found.error
    assert found.change >= found.gain - found.error


@pytest.mark.parametrize("constant", [False, True])
def test_another_temperature_of_the_networks_is_no_gain_of_the_trees(constant: bool) -> None:
    log_p, log_weight, scores, y = planted((1.4, 0.0))
    scores = torch.zeros_like(scores) if constant else scores
    fold, weight = torch.arange(len(y)) % 5, torch.ones(len(y), dtype=torch.float64)
    found = pool_trees(log_p, log_weight, scores, y, fold, weight)
    assert found.powers.tolist() == [1.0, 0.0]
    assert found.gain * len(y) < 2.0
    assert found.change == 0.0


def test_whole_weights_are_copies_of_rows() -> None:
    x = np.array([[i, j] for i in range(4) for j in range(4)], dtype=float)
    y = (x[:, 0] > 1) * (x[:, 1] > 1) + 0.0
    weight = np.full(16, 12.0)
    inside = [np.arange(16)]
    few = grow_trees(TreeRows(x, y[:, None], weight, inside, inside, np.arange(2)), None, seed=0)
    many = np.repeat(np.arange(16), 12)
    every = [np.arange(192)]
    copies = TreeRows(x[many], y[many, None], np.ones(192), every, every, np.arange(2))
    grown = grow_trees(copies, None, seed=0)
    torch.testing.assert_close(few.trees(torch.as_tensor(x)), grown.trees(torch.as_tensor(x)), rtol=1e-9, atol=1e-9)
    assert float(few.scale[0]) < 0.01  # a leaf has 20 rows, not 20 distinct rows


def test_exponents_maximise_the_penalised_log_likelihood_of_weighted_rows() -> None:
    log_p, log_weight, scores, y = planted((0.4, 0.7), rows=60)
    weight = torch.rand(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = pool_trees(log_p, log_weight, scores, y, torch.arange(60) % 5, weight)

    def value(a: float, b: float) -> float:
        pooled = pool_classes(log_p, scores, torch.tensor([a, b], dtype=torch.float64))
        p = torch.logsumexp(log_weight[:, None, None] + pooled, 0)[torch.arange(60), y]
        return float(weight @ p) - 0.5 * ((a - 1.0) ** 2 + b**2)

    a, b = found.powers.tolist()
    grid = max(value(i / 50, j / 50) for i in range(100) for j in range(100))
    assert value(a, b) >= grid - 1e-6


def test_trees_without_information_are_not_used() -> None:
    log_p, log_weight, scores, y = planted((1.0, 0.0), rows=500)
    weight = torch.ones(500, dtype=torch.float64)
    found = pool_trees(log_p, log_weight, scores, y, torch.arange(500) % 5, weight)
    assert found.powers.tolist() == [1.0, 0.0]
    assert found.gain * 500 < 2.0
