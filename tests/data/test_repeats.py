"""Equal rows: observations where chance explains them, copies where it does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathomless.data.duplicates import find_duplicates, split_into_pieces
from fathomless.data.frames import encode, fit_schema

Array = np.ndarray


def contingency(levels: tuple[int, ...], rows: int, classes: int, seed: int) -> tuple[Array, Array]:
    """Rows of a contingency table whose cells have shares of their own."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.integers(0, k, rows) for k in levels])
    cell = np.unique(x, axis=0, return_inverse=True)[1].ravel()
    share = rng.dirichlet([0.5] * classes, cell.max() + 1)
    return x.astype(float), np.array([rng.choice(classes, p=share[k]) for k in cell])


@pytest.mark.parametrize("rows", [200, 1000, 5000])
@pytest.mark.parametrize(("levels", "classes"), [((2, 2), 2), ((6,), 3), ((5, 4), 3), ((5, 5, 2), 2)])
def test_contingency_tables_are_observations(levels: tuple[int, ...], classes: int, rows: int) -> None:
    x, y = contingency(levels, rows, classes, rows)
    found = find_duplicates(x, y)
    assert found.observations
    cells, place, count = np.unique(np.column_stack([x, y]), axis=0, return_inverse=True, return_counts=True)
    assert found.seen == (count * (count - 1) / 2).sum()
    assert found.rows == count[count > 1].sum()
    assert len(np.unique(np.column_stack([found.unit, place.ravel()]), axis=0)) == len(cells)
    counted = find_duplicates(cells[:, :-1], cells[:, -1].astype(int), count.astype(float))  # the same table as counts
    assert counted.observations
    assert (counted.seen, counted.chance) == pytest.approx((found.seen, found.chance))


def test_columns_that_depend_on_each_other_are_observations() -> None:
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 4, 900)
    redundant = np.column_stack([cluster * (j + 1.0) for j in range(8)])
    noisy = (rng.random(900) < cluster / 4).astype(int)
    latent = rng.normal(size=900)
    binary = (latent[:, None] + 0.5 * rng.normal(size=(900, 10)) > 0).astype(float)
    for x, y in (
        (redundant, noisy),
        (redundant, (cluster > 1).astype(int)),  # nothing is left to chance
        (binary, (latent > 0).astype(int)),
        (rng.integers(0, 6, (900, 1)).astype(float), None),
    ):
        assert find_duplicates(x, x[:, 0].astype(int) % 3 if y is None else y).observations
    doses = rng.normal(size=180)[np.repeat(np.arange(180), 5)]  # a design in five replicates
    assert find_duplicates(doses[:, None], (rng.random(900) < 1 / (1 + np.exp(-doses))).astype(int)).observations


@pytest.mark.parametrize("columns", [1, 2, 6])
@pytest.mark.parametrize(("rows", "copies"), [(40, 4), (60, 50), (200, 5)])
def test_oversampled_numbers_are_copies(rows: int, copies: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    x, y = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    levels = np.column_stack([x, rng.integers(0, 2, (rows, 2))])
    often = np.repeat(np.arange(rows), copies)
    some = rng.integers(0, rows, rows * copies)  # a bootstrap
    for place in (often, some):
        for table, target in ((x, y), (x, (y > 0).astype(int)), (levels, (y > 0).astype(int))):
            found = find_duplicates(table[place], target[place])
            assert found.rows > 0
            assert not found.observations
    assert not find_duplicates(x, y, np.full(rows, float(copies))).observations
    assert find_duplicates(x, y).rows == 0


def test_columns_of_a_table_are_compared_whole() -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 40, (2000, 1))
    text = np.array([f"c{k}" for k in codes[:, 0]], dtype=object)[:, None]
    import pandas as pd

    frame = pd.DataFrame({"code": text[:, 0]})
    schema = fit_schema(frame, max_levels=50)
    y = codes[:, 0] % 2
    found = find_duplicates(encode(schema, frame), y, None, schema)
    share = np.bincount(codes[:, 0]) / 2000
    both = np.bincount(y) / 2000
    pairs = 2000 * 1999 / 2
    assert found.chance == pytest.approx(pairs * (share**2).sum() * (both**2).sum(), rel=0.05)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=40),
    st.randoms(use_true_random=False),
)
def test_order_does_not_matter(cells: list[tuple[int, int]], random: object) -> None:
    x, y = np.array([[float(a)] for a, _ in cells]), np.array([b for _, b in cells])
    order = np.random.default_rng(len(cells)).permutation(len(x))
    found, again = find_duplicates(x, y), find_duplicates(x[order], y[order])
    assert np.array_equal(found.unit[order], again.unit)
    assert (found.rows, found.seen, found.chance) == (again.rows, again.seen, again.chance)


@given(st.lists(st.floats(0.1, 40.0) | st.integers(1, 60).map(float), min_size=1, max_size=30))
def test_pieces_keep_the_weight_of_every_row(weights: list[float]) -> None:
    w = np.array(weights)
    unit = np.arange(len(w)) % 3
    own = split_into_pieces(unit, w)
    assert np.allclose(np.bincount(own.source, weights=own.weight), w)
    assert np.array_equal(own.source[own.first], np.arange(len(w)))
    assert np.bincount(own.source).tolist() == np.maximum(np.floor(w), 1).astype(int).tolist()
    assert (np.diff(unit[own.source]) >= 0).all()
    if (w == np.floor(w)).all():
        assert (own.weight == 1.0).all()


def test_large_counts_are_fewer_pieces_of_whole_weight() -> None:
    w = np.array([1e6 + 1.0, 3.0, 2e6])
    own = split_into_pieces(np.arange(3), w)
    assert len(own.source) <= 50_003
    assert np.array_equal(np.bincount(own.source, weights=own.weight), w)
    assert (own.weight == np.floor(own.weight)).all()
