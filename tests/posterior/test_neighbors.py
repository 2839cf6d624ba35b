"""Nearest training rows: search and features against NumPy, laws with parts at near targets, and saved states."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from fathomless.posterior.neighbors import NEIGHBORS, PARTS, NeighborRows, describe
from fathomless.posterior.recalibration import (
    KINDS,
    NEAR_KINDS,
    Recalibration,
    ResidualNetworks,
    make_features,
    read_recalibration,
)
from fathomless.system.errors import DataError

Array = npt.NDArray[np.float64]


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stored_rows(rows: int = 60, inputs: int = 3, targets: int = 2, folds: int = 4) -> NeighborRows:
    """Rows in folds at random, in groups of two consecutive rows of one fold."""
    of_group = torch.randint(folds, (rows // 2,), generator=torch.Generator().manual_seed(9))
    unit = torch.arange(rows) // 2
    return NeighborRows(draw(0, rows, inputs), draw(1, rows, targets), of_group[unit], unit)


def brute_force(x: Array, stored: Array, left_out: npt.NDArray[np.bool_]) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return the distances and numbers of the nearest rows by a complete sort."""
    distance = np.sqrt(((x[:, None] - stored) ** 2).sum(-1))
    distance[left_out] = np.inf
    order = np.argsort(distance, 1)[:, :NEIGHBORS]
    return np.take_along_axis(distance, order, 1), order


def test_new_rows_have_the_neighbours_of_a_complete_sort() -> None:
    rows = stored_rows()
    x = draw(2, 500, 3)
    near = rows.find(x)
    distance, order = brute_force(x.numpy(), rows.x.numpy(), np.zeros((500, 60), dtype=bool))
    np.testing.assert_allclose(near.distance.numpy(), distance, rtol=1e-12)
    np.testing.assert_array_equal(near.y.numpy(), rows.y.numpy()[order])
    part = rows.find(x[100:101])
    assert torch.equal(part.distance, near.distance[100:101])


def test_training_rows_have_no_neighbours_in_their_group() -> None:
    rows = stored_rows()
    near = rows.find_others(rows.x, rows.unit)
    assert near is not None
    unit = rows.unit.numpy()
    distance, order = brute_force(rows.x.numpy(), rows.x.numpy(), unit[:, None] == unit)
    np.testing.assert_allclose(near.distance.numpy(), distance, rtol=1e-12)
    np.testing.assert_array_equal(near.y.numpy(), rows.y.numpy()[order])
    again = rows.find(rows.x, rows.fold)  # recognised by fold and features
    assert torch.equal(again.y, near.y)


def test_a_changed_copy_of_a_row_has_no_neighbours_in_its_fold() -> None:
    rows = stored_rows()
    x = rows.x + 1e-6
    near = rows.find(x, rows.fold)
    fold = rows.fold.numpy()
    _, order = brute_force(x.numpy(), rows.x.numpy(), fold[:, None] == fold)
    np.testing.assert_array_equal(near.y.numpy(), rows.y.numpy()[order])


def test_rows_that_cannot_be_told_apart_have_no_neighbours_in_their_fold() -> None:
    rows = stored_rows()
    rows.x[2:] = torch.where(rows.fold[2:, None] == rows.fold[0], rows.x[0], rows.x[2:])  # equal in different groups
    near = rows.find(rows.x[:1], rows.fold[:1])
    assert (near.distance > 0.0).all()


def test_too_few_rows_are_refused() -> None:
    one_group = NeighborRows(draw(0, 40, 2), draw(1, 40, 1), torch.zeros(40).long(), (torch.arange(40) > 30).long())
    assert one_group.find_others(one_group.x, one_group.unit) is None
    with pytest.raises(DataError, match="fewer than 16 training rows"):
        one_group.find(draw(2, 1, 2), torch.zeros(1).long())
    with pytest.raises(DataError, match="at least 17"):
        NeighborRows(draw(0, 16, 2), draw(1, 16, 1), torch.zeros(16).long(), torch.arange(16))


def test_features_are_those_of_a_loop_over_rows() -> None:
    rows = stored_rows()
    x, mean, std = draw(3, 20, 3), draw(4, 20, 2), draw(5, 20, 2).exp()
    found = describe(rows.find(x), mean, std).numpy()
    distances, order = brute_force(x.numpy(), rows.x.numpy(), np.zeros((20, 60), dtype=bool))
    for i, (d, nearest) in enumerate(zip(distances, order, strict=True)):
        for t in range(2):
            r = (rows.y.numpy()[nearest, t] - float(mean[i, t])) / float(std[i, t])
            weight = 1.0 / (d + 0.1 * d[15] + 1e-9)
            means = [r[0], r[:4].mean(), r.mean(), (weight * r).sum() / weight.sum()]
            logs = [r[:4].std(), r.std(), d[0], d[15]]
            expected = [*r[:4], *np.clip(means, -6.0, 6.0), *np.log(np.maximum(logs, 1e-3))]
            np.testing.assert_allclose(found[t, i], expected, rtol=1e-10)


def random_recalibration(targets: int = 2) -> Recalibration:
    laws = {}
    for j, (name, kind) in enumerate({**KINDS, **NEAR_KINDS}.items()):
        laws[name] = ResidualNetworks(kind, 3, targets, 3, torch.Generator().manual_seed(j))
        for i, parameter in enumerate(laws[name].parameters()):
            parameter.data += 0.3 * draw(100 * j + i, *parameter.shape)
    share = draw(7, len(laws) + 1, targets).softmax(0)
    return Recalibration(laws, share, torch.zeros(targets, dtype=torch.float64), stored_rows(targets=targets))


def test_laws_with_parts_integrate_to_one() -> None:
    recalibration = random_recalibration()
    x, mean = draw(3, 5, 3), draw(4, 5, 2)
    t = torch.linspace(-10.0, 10.0, 40_001, dtype=torch.float64)
    grid = t.sinh()  # reaches heavy tails; the smallest scale is 0.03
    for law in recalibration.mixtures(x, mean, torch.ones_like(mean)):
        torch.testing.assert_close(law.log_weight.logsumexp(0), torch.zeros_like(mean), rtol=0.0, atol=1e-12)
        density = law.take(slice(0, 1)).log_prob(grid[:, None, None]).exp()
        total = torch.trapezoid(density[:, 0] * t.cosh()[:, None], t, dim=0)
        inside = (law.cdf(float(grid[-1])) - law.cdf(float(grid[0])))[0]  # tails may be heavy
        torch.testing.assert_close(total, inside, rtol=0.0, atol=1e-6)
        assert float(inside.min()) > 0.99


def test_parts_are_centred_at_the_targets_of_the_four_nearest_rows() -> None:
    recalibration = random_recalibration()
    x, mean, std = draw(3, 5, 3), draw(4, 5, 2), draw(5, 5, 2).exp()
    assert recalibration.neighbors is not None
    near = recalibration.neighbors.find(x).y[:, :PARTS].permute(1, 0, 2)  # (4, N, T)
    for fold in (None, torch.tensor([0, 1, 2, 0, 1])):
        laws = recalibration.law_parameters(x, mean, std, fold)
        if fold is not None:
            near = recalibration.neighbors.find(x, fold).y[:, :PARTS].permute(1, 0, 2)
        for law in laws[len(KINDS) :]:
            torch.testing.assert_close(law.loc[-PARTS:], near)


@pytest.mark.parametrize("name", list(NEAR_KINDS))
def test_untrained_laws_are_almost_standard_gaussian(name: str) -> None:
    law = ResidualNetworks(NEAR_KINDS[name], 1, 1, 3, torch.Generator().manual_seed(0)).requires_grad_(False)
    rows = stored_rows(targets=1)
    mean, std = torch.zeros(50, 1, dtype=torch.float64), torch.ones(50, 1, dtype=torch.float64)
    features, least = make_features(draw(3, 50, 3), mean, std, torch.zeros(1), rows.find(draw(3, 50, 3)))
    parameters = law.law(law(features[None])[0], least)
    z = draw(4, 1, 50)
    gauss = -0.5 * z.square() - 0.5 * math.log(2.0 * math.pi)
    assert float((gauss - parameters.log_prob(z)).mean()) < 0.12
    assert float(parameters.log_weight[..., -PARTS:].exp().sum(-1).max()) < 0.2


def test_a_saved_state_gives_the_same_laws() -> None:
    recalibration = random_recalibration()
    state = recalibration.state_dict()
    again = read_recalibration(state, 2, 3)
    assert again is not None
    x, mean, std = draw(3, 5, 3), draw(4, 5, 2), draw(5, 5, 2).exp()
    for old, new in zip(recalibration.mixtures(x, mean, std), again.mixtures(x, mean, std), strict=True):
        assert torch.equal(old.log_prob(mean), new.log_prob(mean))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("neighbors.x", None),
        ("neighbors.x", torch.zeros(60, 2)),
        ("neighbors.y", torch.zeros(60, 2)),
        ("neighbors.y", torch.full((60, 2), math.nan, dtype=torch.float64)),
        ("neighbors.unit", torch.full((60,), 60)),
        ("neighbors.fold", torch.zeros(60)),
    ],
)
def test_altered_states_are_refused(name: str, value: Tensor | None) -> None:
    state = random_recalibration().state_dict()
    if value is None:
        del state[name]
    else:
        state[name] = value
    with pytest.raises(DataError, match="neighbours of its recalibration"):
        read_recalibration(state, 2, 3)


def test_laws_of_neighbours_need_stored_rows() -> None:
    state = random_recalibration().state_dict()
    alone = {name: value for name, value in state.items() if not name.startswith("neighbors.")}
    with pytest.raises(DataError, match="without stored rows"):
        read_recalibration(alone, 2, 3)
