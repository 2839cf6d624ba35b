"""Folds: every row once, equal rows and groups together, classes in proportion."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    LeavePOut,
    PredefinedSplit,
    RepeatedKFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
)

from fathomless.data.folds import check_groups, fold_rows, read_folds, split_folds
from fathomless.data.rows import Rows
from fathomless.data.stacked_rows import StackedRows
from fathomless.inference.out_of_fold.crossfit import fold_indices
from fathomless.system.errors import DataError, DataWarning


def table(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)), rng.normal(size=(n, 1))


@given(n=st.integers(6, 60), members=st.integers(2, 6), repeats=st.integers(1, 3), seed=st.integers(0, 99))
def test_every_row_is_out_of_fold_once(n: int, members: int, repeats: int, seed: int) -> None:
    x, y = table(n, seed)
    folds = fold_rows(x, y, members, repeats, seed)
    assert folds.shape == (repeats, n)
    inside, outside = fold_indices(folds)
    assert len(inside) == members * repeats
    for r in range(repeats):
        own = outside[r * members : (r + 1) * members]
        assert sorted(torch.cat(own).tolist()) == list(range(n))
        sizes = [len(rows) for rows in own]
        assert max(sizes) - min(sizes) <= 1
        for seen, unseen in zip(inside[r * members : (r + 1) * members], own, strict=True):
            assert not set(seen.tolist()) & set(unseen.tolist())
            assert len(seen) + len(unseen) == n


def test_equal_rows_share_a_fold() -> None:
    x, y = table(20)
    x, y = np.concatenate([x, x]), np.concatenate([y, y])
    folds = fold_rows(x, y, 5, 2, 0)
    assert torch.equal(folds[:, :20], folds[:, 20:])


def test_groups_share_a_fold() -> None:
    x, y = table(40)
    groups = np.arange(40) // 4
    folds = fold_rows(x, y, 5, 1, 0, groups=groups)[0]
    assert all(len(folds[groups == g].unique()) == 1 for g in range(10))
    few = fold_rows(x, y, 5, 1, 0, groups=np.arange(40) // 20)
    assert int(few.max()) == 1  # two groups make two folds
    with pytest.raises(DataError, match="one group"):
        fold_rows(x, y, 5, 1, 0, groups=np.zeros(40))
    with pytest.raises(DataError, match="groups have shape"):
        fold_rows(x, y, 5, 1, 0, groups=np.zeros(3))


def test_rare_classes_are_known_to_every_member() -> None:
    x, _ = table(50)
    y = np.array([0] * 24 + [1] * 24 + [2] * 2)
    with pytest.warns(DataWarning, match="fewer than 3 distinct rows"):
        folds = fold_rows(x, y, 4, 1, 0)
    assert folds[0, 48:].tolist() == [-1, -1]
    inside, outside = fold_indices(folds)
    for seen, unseen in zip(inside, outside, strict=True):
        assert {48, 49} <= set(seen.tolist())
        assert not {48, 49} & set(unseen.tolist())
        counts = np.bincount(y[unseen.numpy()], minlength=3)
        assert counts[0] == counts[1] == 6


def test_blocks_are_consecutive() -> None:
    x, y = table(23)
    folds = fold_rows(x, y, 4, 1, 0, blocks=True)[0]
    assert bool((folds.diff() >= 0).all())
    assert folds.bincount().tolist() == [6, 6, 6, 5]


def test_given_folds_are_taken_as_they_are() -> None:
    assert read_folds([3, 7, 7, 3], 4).tolist() == [[0, 1, 1, 0]]
    for wrong in ([0, 0, 0, 0], [0, 1], [0.5, 1.0, 2.0, 3.0]):
        with pytest.raises(DataError):
            read_folds(wrong, 4)


def test_other_seeds_give_other_folds() -> None:
    x, y = table(30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not torch.equal(fold_rows(x, y, 3, 1, 0), fold_rows(x, y, 3, 1, 1))
        assert torch.equal(fold_rows(x, y, 3, 2, 0)[0], fold_rows(x, y, 3, 1, 0)[0])


def test_batches_hold_each_row_of_each_network_once() -> None:
    x, y = table(23)
    rows = Rows(torch.as_tensor(x), torch.as_tensor(y))
    inside, _ = fold_indices(fold_rows(x, y, 4, 1, 0))
    blocks = StackedRows.of(rows, inside)
    assert blocks.count == 3 * 23
    seen = [torch.zeros(23) for _ in inside]
    place = {float(v): i for i, v in enumerate(y[:, 0])}
    order = torch.Generator().manual_seed(0)
    for batch in blocks.batches(5, order):
        assert batch.weight is not None
        for k, part in enumerate(zip(batch.y.chunk(4), batch.weight.chunk(4), strict=True)):
            for value, weight in zip(part[0][:, 0].tolist(), part[1].tolist(), strict=True):
                seen[k][place[value]] += weight
    for own, counted in zip(inside, seen, strict=True):
        assert torch.equal(torch.nonzero(counted).flatten(), own)
        assert counted.max() == 1.0


# ------------------------------------------------------------------------------------------ splitters and arrays


class Purged:
    """A splitter whose training rows are not all rows but the tested ones."""

    def split(self, X: np.ndarray, y: object = None, groups: object = None) -> list[tuple[list[int], list[int]]]:
        return [([2, 3], [0]), ([0, 3], [1, 2]), ([0, 1], [3])]

    def get_n_splits(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("splitter", "shape", "count"),
    [
        (KFold(4), (1, 24), 4),
        (KFold(3, shuffle=True, random_state=0), (1, 24), 3),
        (StratifiedKFold(2), (1, 24), 2),
        (GroupKFold(3), (1, 24), 3),
        (RepeatedKFold(n_splits=4, n_repeats=3, random_state=0), (3, 24), 4),
        (PredefinedSplit(np.arange(24) % 5), (1, 24), 5),
    ],
    ids=str,
)
def test_a_splitter_tests_every_row_once_in_each_repetition(
    splitter: KFold, shape: tuple[int, int], count: int
) -> None:
    x, y, groups = np.zeros((24, 1)), np.arange(24) % 2, np.arange(24) // 3
    folds = split_folds(splitter, x, y, groups).numpy()
    assert folds.shape == shape
    for i, (train, test) in enumerate(splitter.split(x, y, groups if isinstance(splitter, GroupKFold) else None)):
        line, fold = folds[i // count], i % count
        assert np.array_equal(np.flatnonzero(line == fold), np.sort(test))
        assert np.array_equal(np.flatnonzero(line != fold), np.sort(train))
    assert i + 1 == len(folds) * count


@pytest.mark.parametrize(
    ("splitter", "message"),
    [
        (
            TimeSeriesSplit(3),
            r"cv=TimeSeriesSplit\(.* has a split with 6 training rows and 6 test rows of 24.*Folds\(order='blocks'\)",
        ),
        (ShuffleSplit(9, random_state=0), r"cv=ShuffleSplit\(.* tests a row more than once"),
        (ShuffleSplit(1, random_state=0), r"cv=ShuffleSplit\(.* does not test every row"),
        (LeavePOut(2), "tests a row more than once"),
        (KFold(30), r"cannot split these 24 rows \(Cannot have number of splits .*\); use another"),
        (GroupKFold(3), r"cannot split these 24 rows \(The 'groups' parameter should not be None\)"),
        (StratifiedKFold(3), r"cannot split these 24 rows \(Supported target types"),
        (PredefinedSplit(np.arange(30) % 2), "cannot split these 24 rows"),
        (PredefinedSplit(np.r_[-1, np.arange(23) % 2]), "does not test every row"),
        (Purged(), "has a split with 2 training rows and 1 test rows of 24 rows"),
        (KFold, r"cv=KFold was given, which is a class; use cv=KFold\(\)"),
    ],
    ids=lambda given: given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__),
)
def test_splitters_that_cannot_be_cross_fitted_are_refused(splitter: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split_folds(splitter, np.zeros((24, 1)), np.linspace(0.0, 1.0, 24))


def test_arrays_have_one_partition_or_several() -> None:
    first, second = np.array([5, 5, 7, 7, 9, 9]), np.array([1, 2, 3, 1, 2, 3])
    assert read_folds(first, 6).tolist() == [[0, 0, 1, 1, 2, 2]]
    assert read_folds([first, second], 6).tolist() == [[0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2]]
    assert read_folds([first, second], 6, np.array([0, 1, 2, 3, 4])).shape == (2, 5)
    with pytest.raises(DataError, match="has 2 to 3 folds; all partitions must have the same number"):
        read_folds([first, (first > 5) * 1], 6)
    for wrong in (first[:5], first * 1.0, [[1, 2], [3]], [], np.zeros((1, 1, 6), dtype=int)):
        with pytest.raises(DataError, match="cv"):
            read_folds(wrong, 6)


def test_a_group_stays_in_one_fold() -> None:
    folds = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]])
    assert check_groups(folds, np.array(["a", "a", "b", "b"])) is folds
    assert check_groups(folds, None) is folds
    with pytest.raises(DataError, match="rows of one group into several folds"):
        check_groups(torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]]), np.array([3, 3, 4, 4]))
