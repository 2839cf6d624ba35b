"""Boosted trees: scores by walking from node to node, logarithmic pools, and refused tables of nodes."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fathomless.posterior import trees
from fathomless.posterior.trees import (
    BoostedTrees,
    Nodes,
    TreePool,
    class_scores,
    pool_classes,
    read_tree_pool,
    read_trees,
)
from fathomless.system.errors import DataError

FEATURES = 3


def grow(seed: int, ensembles: int = 2, iterations: int = 4, outputs: int = 2) -> BoostedTrees:
    """Return random trees, in which children follow their parents."""
    random = torch.Generator().manual_seed(seed)
    rows: list[tuple[int, float, int, int, float]] = []

    def add(levels: int) -> int:
        own = len(rows)
        value = float(torch.randn(1, generator=random))
        rows.append((0, 0.0, own, own, value))
        if levels and float(torch.rand(1, generator=random)) < 0.8:
            feature = int(torch.randint(FEATURES, (1,), generator=random))
            left, right = add(levels - 1), add(levels - 1)
            rows[own] = (feature, value, left, right, 0.0)
        return own

    root = torch.tensor([add(3) for _ in range(ensembles * iterations * outputs)])
    feature, threshold, left, right, value = zip(*rows, strict=True)
    nodes = Nodes(*map(torch.tensor, (feature, threshold, left, right, value)))
    start = torch.randn(ensembles, outputs, generator=random, dtype=torch.float64)
    return BoostedTrees(nodes, root.reshape(ensembles, iterations, outputs), start)


def walk(built: BoostedTrees, x: Tensor, ensemble: int) -> Tensor:
    """Return the scores of a row, (M, O), of each tree, one node after the other."""
    scores = torch.zeros(built.root.shape[1:], dtype=torch.float64)
    for m in range(scores.shape[0]):
        for o in range(scores.shape[1]):
            node = int(built.root[ensemble, m, o])
            while int(built.left[node]) != node:
                below = float(x[int(built.feature[node])]) <= float(built.threshold[node])
                node = int((built.left if below else built.right)[node])
            scores[m, o] = built.value[node]
    return scores


@given(seed=st.integers(0, 1000))
def test_scores_are_those_of_a_walk_from_the_roots(seed: int) -> None:
    built = grow(seed)
    x = torch.randn(7, FEATURES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    by_hand = torch.stack([torch.stack([walk(built, row, k) for row in x]) for k in range(2)])  # (K, N, M, O)
    scores = built.start[:, None] + by_hand.sum(2)
    torch.testing.assert_close(built(x), scores.mean(0), rtol=1e-12, atol=1e-12)
    ensemble = torch.arange(7) % 2
    torch.testing.assert_close(built(x, ensemble), scores[ensemble, torch.arange(7)], rtol=1e-12, atol=1e-12)
    stages = torch.cat([*built.stages(x, 1)])
    torch.testing.assert_close(stages, built.start[1] + by_hand[1].cumsum(1), rtol=1e-12, atol=1e-12)


def test_rows_are_searched_in_parts_with_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    built, x = grow(0), torch.randn(50, FEATURES, generator=torch.Generator().manual_seed(0))
    whole = built(x)
    monkeypatch.setattr(trees, "_AT_ONCE", 8)
    assert torch.equal(built(x), whole)
    assert built(x[:0]).shape == (0, 2)


def test_a_pool_is_a_product_of_powers() -> None:
    random = torch.Generator().manual_seed(0)
    log_p = torch.randn(4, 5, 3, generator=random, dtype=torch.float64).log_softmax(-1)
    scores = torch.randn(5, 3, generator=random, dtype=torch.float64)
    pooled = pool_classes(log_p, scores, torch.tensor([0.3, 0.6], dtype=torch.float64)).exp()
    product = log_p.exp() ** 0.3 * scores.softmax(-1) ** 0.6
    torch.testing.assert_close(pooled, product / product.sum(-1, keepdim=True))
    networks = pool_classes(log_p, scores, torch.tensor([1.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(networks, log_p)
    impossible = torch.tensor([[[0.0, -torch.inf]]], dtype=torch.float64)
    pooled = pool_classes(impossible, torch.tensor([[2.0]], dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    assert bool(pooled.isfinite().all())
    odds = torch.tensor([[0.7]], dtype=torch.float64)  # of two classes
    torch.testing.assert_close(class_scores(odds).softmax(-1)[0, 1], odds[0, 0].sigmoid())


def test_what_is_read_scores_the_same_rows() -> None:
    built, x = grow(3), torch.randn(9, FEATURES)
    assert torch.equal(read_trees(built.state_dict(), 2, FEATURES)(x), built(x))
    of_three = grow(3, outputs=3)
    pool = TreePool(of_three, torch.tensor([0.5, 0.25]))
    again = read_tree_pool(pool.state_dict(), 3, FEATURES)
    assert again is not None
    assert again.powers.tolist() == [0.5, 0.25]
    log_p = torch.zeros(1, 9, 3, dtype=torch.float64)
    assert torch.equal(again.pool(log_p, x), pool.pool(log_p, x))
    assert read_tree_pool({}, 3, FEATURES) is None


@pytest.mark.parametrize("powers", [[-0.1, 1.0], [torch.nan, 1.0], [1.0]])
def test_altered_exponents_are_refused(powers: list[float]) -> None:
    state = TreePool(grow(3, outputs=3), torch.ones(2)).state_dict()
    with pytest.raises(DataError, match="its trees"):
        read_tree_pool({**state, "powers": torch.tensor(powers, dtype=torch.float64)}, 3, FEATURES)
    with pytest.raises(DataError, match="its trees"):
        read_tree_pool({**state, "other": torch.zeros(1, dtype=torch.float64)}, 3, FEATURES)


def _loop(state: dict[str, Tensor]) -> None:
    inner = int((state["left"] != torch.arange(len(state["left"]))).nonzero()[0, 0])
    state["left"][inner] = 0 if inner else -1


ALTERED: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "a loop": _loop,
    "a child that does not exist": lambda state: state["right"].fill_(10_000),
    "a column that does not exist": lambda state: state["feature"].fill_(FEATURES),
    "a negative root": lambda state: state["root"].fill_(-1),
    "a value that is not finite": lambda state: state["value"].fill_(torch.nan),
    "a threshold that is not finite": lambda state: state["threshold"].fill_(torch.inf),
    "another type": lambda state: state.update(value=state["value"].float()),
    "another number of scores": lambda state: state.update(root=state["root"][..., :1]),
    "no ensembles": lambda state: state.update(root=state["root"][:0], start=state["start"][:0]),
    "a missing table": lambda state: state.pop("left"),
    "tables of different lengths": lambda state: state.update(value=state["value"][:-1]),
    "a number in place of a table": lambda state: state.update(feature=state["feature"][0]),
}


@pytest.mark.parametrize("change", ALTERED.values(), ids=ALTERED.keys())
def test_altered_tables_are_refused(change: Callable[[dict[str, Tensor]], object]) -> None:
    state = {name: value.clone() for name, value in grow(0).state_dict().items()}
    change(state)
    with pytest.raises(DataError, match="its trees"):
        read_trees(state, 2, FEATURES)


def test_trees_that_are_too_deep_are_refused() -> None:
    count = 2 * 65 + 1  # a comb: every node has a leaf and a deeper node
    own = torch.arange(count)
    inner = (own % 2 == 0) & (own < count - 1)
    nodes = Nodes(
        torch.zeros(count), torch.zeros(count), torch.where(inner, own + 1, own), torch.where(inner, own + 2, own), own
    )
    with pytest.raises(DataError, match="64 levels"):
        BoostedTrees(nodes, torch.zeros(1, 1, 1), torch.zeros(1, 1))
