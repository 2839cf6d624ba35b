"""The fit of the recalibration to planted laws of the residual."""

import functools
import math
from typing import Any

import pytest
import torch
from scipy import stats

from fathomless.inference.out_of_fold import recalibration as recalibration_module
from fathomless.inference.out_of_fold.recalibration import FEWEST_ROWS, OutOfFoldLaws, fit_recalibration
from fathomless.posterior.neighbors import NeighborRows
from fathomless.posterior.recalibration import NEAR_KINDS, Recalibration, ResidualNetworks
from short_recalibration import limit_steps

pytestmark = pytest.mark.recalibration


def rows_of(kind: str, count: int = 300, seed: int = 0, folds: int = 5) -> tuple[OutOfFoldLaws, torch.Tensor]:
    """Rows whose base law is a standard Gaussian, and the true log density of their targets."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    if kind == "even":
        scale = torch.ones(count, 1, dtype=torch.float64)
    elif kind == "uneven":
        scale = (0.8 * x[:, :1]).exp()
    else:  # skewed: an exponential law with mean zero
        y = -torch.log(torch.rand(count, 1, generator=generator, dtype=torch.float64)) - 1.0
        return _laws(x, y, generator, folds), -(y + 1.0)
    y = scale * noise
    truth = torch.from_numpy(stats.norm.logpdf(y.numpy(), scale=scale.numpy()))
    return _laws(x, y, generator, folds), truth


def _laws(x: torch.Tensor, y: torch.Tensor, generator: torch.Generator, folds: int) -> OutOfFoldLaws:
    std = y.std() * torch.ones_like(y)
    return OutOfFoldLaws(
        x=x,
        y=y,
        mean=torch.zeros_like(y),
        std=std,
        log_density=torch.from_numpy(stats.norm.logpdf(y.numpy(), scale=std.numpy())),
        fold=torch.randperm(len(y), generator=generator) % folds,
        weight=torch.ones(len(y), dtype=torch.float64),
    )


@pytest.fixture
def fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train for a part of the steps, where two fits are compared with each other."""
    limit_steps(monkeypatch, 100)


def tensors(rows: OutOfFoldLaws) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(rows).items() if value is not None}


def fit(rows: OutOfFoldLaws, seed: int = 0) -> tuple[Recalibration | None, float]:
    recalibration, fits = fit_recalibration(rows, torch.zeros(1, dtype=torch.float64), seed)
    return recalibration, fits[0].gain


@functools.cache
def fitted(kind: str) -> tuple[OutOfFoldLaws, Recalibration | None, float]:
    """Rows of a kind, and their fit, which several tests look at."""
    rows, _ = rows_of(kind)
    return rows, *fit(rows)


def new_log_density(recalibration: Recalibration, rows: OutOfFoldLaws) -> torch.Tensor:
    terms = [rows.log_density, *(law.log_prob(rows.y) for law in recalibration.mixtures(rows.x, rows.mean, rows.std))]
    with torch.no_grad():
        return torch.logsumexp(recalibration.share.log()[:, None] + torch.stack(terms), 0)


@pytest.mark.parametrize(("kind", "closed"), [("uneven", 0.7), ("skewed", 0.5)])
def test_most_of_the_gap_to_a_planted_law_is_closed_on_new_rows(kind: str, closed: float) -> None:
    _, recalibration, gain = fitted(kind)
    assert recalibration is not None
    new, truth = rows_of(kind, 4000, seed=1)
    gap = float((truth - new.log_density).mean())
    gained = float((new_log_density(recalibration, new) - new.log_density).mean())
    assert gained > closed * gap
    assert gain == pytest.approx(gained, abs=0.15)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.usefixtures("fewer_steps")
def test_a_law_without_a_density_at_some_row_has_no_weight(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """One row of one fold, so that weights fitted without this fold do not know of it."""
    rows, _ = rows_of("uneven")
    train = recalibration_module._train

    def spoiled(name: str, *given: Any) -> tuple[ResidualNetworks, torch.Tensor, int]:
        law, log_density, steps = train(name, *given)
        if name == "heavy_tails":
            log_density[3] = value
        return law, log_density, steps

    without, gain_before = fit(rows)
    monkeypatch.setattr(recalibration_module, "_train", spoiled)
    recalibration, gain = fit(rows)
    assert without is not None
    assert recalibration is not None
    assert "heavy_tails" in without.laws
    assert "heavy_tails" not in recalibration.laws
    assert float(recalibration.share.sum()) == pytest.approx(1.0)
    assert 0.0 < gain < gain_before + 0.1


@pytest.mark.usefixtures("fewer_steps")
def test_a_residual_beyond_every_law_does_not_spoil_the_others() -> None:
    """The density of one row is zero for every scale."""
    rows, _ = rows_of("uneven")
    rows.y[0], rows.log_density[0] = 1e200, -1e300
    recalibration, gain = fit(rows)
    assert math.isfinite(gain)
    assert recalibration is None or bool(recalibration.share.isfinite().all())


def test_a_correct_base_law_stays_unchanged_or_loses_little() -> None:
    used = 0
    for seed in range(6):
        rows, _ = rows_of("even", 100, seed)
        recalibration, _ = fit(rows, seed)
        if recalibration is not None:
            used += 1
            new, _ = rows_of("even", 4000, seed + 100)
            assert float((new_log_density(recalibration, new) - new.log_density).mean()) > -0.05
    assert used <= 2


@pytest.mark.usefixtures("fewer_steps")
def test_the_result_depends_on_the_seed_only_through_its_networks() -> None:
    rows, _ = rows_of("uneven", 150)
    first, _ = fit(rows, 3)
    again, _ = fit(rows, 3)
    other, _ = fit(rows, 4)
    assert first is not None
    assert again is not None
    assert other is not None
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    new, _ = rows_of("uneven", 2000, seed=1)
    difference = new_log_density(first, new).mean() - new_log_density(other, new).mean()
    assert abs(float(difference)) < 0.05


@pytest.mark.usefixtures("fewer_steps")
def test_a_weight_of_two_is_equivalent_to_two_rows() -> None:
    rows, _ = rows_of("uneven", 120)
    doubled = OutOfFoldLaws(**{name: torch.cat([value, value]) for name, value in tensors(rows).items()})
    weighted = OutOfFoldLaws(**{**vars(rows), "weight": 2.0 * rows.weight})
    for (name, value), other in zip(
        fit(doubled)[0].state_dict().items(),  # type: ignore[union-attr]
        fit(weighted)[0].state_dict().values(),  # type: ignore[union-attr]
        strict=True,
    ):
        torch.testing.assert_close(value, other, rtol=1e-2, atol=1e-3, msg=name)  # trained in single precision


@pytest.mark.usefixtures("fewer_steps")
def test_the_order_of_the_rows_has_no_effect() -> None:
    rows, _ = rows_of("uneven", 120)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(5))
    shuffled = OutOfFoldLaws(**{name: value[order] for name, value in tensors(rows).items()})
    new, _ = rows_of("uneven", 500, seed=1)
    first, second = (fit(part)[0] for part in (rows, shuffled))
    assert first is not None
    assert second is not None
    torch.testing.assert_close(new_log_density(first, new), new_log_density(second, new), rtol=0.0, atol=1e-3)


def test_targets_are_recalibrated_separately() -> None:
    even, _ = rows_of("even", 200)
    uneven, _ = rows_of("uneven", 200)
    both = OutOfFoldLaws(
        x=uneven.x,
        y=torch.cat([even.y, uneven.y], 1),
        mean=torch.zeros(200, 2, dtype=torch.float64),
        std=torch.cat([even.std, uneven.std], 1),
        log_density=torch.cat([even.log_density, uneven.log_density], 1),
        fold=uneven.fold,
        weight=uneven.weight,
    )
    recalibration, fits = fit_recalibration(both, torch.zeros(2, dtype=torch.float64), 0)
    assert recalibration is not None
    assert not fits[0].used
    assert fits[1].used
    assert recalibration.share[0].tolist()[0] == 1.0


def test_no_row_can_lose_more_than_log_ten_nats() -> None:
    rows, recalibration, _ = fitted("uneven")
    assert recalibration is not None
    far = OutOfFoldLaws(**{**vars(rows), "y": rows.y + 30.0})
    far = OutOfFoldLaws(
        **{**vars(far), "log_density": torch.from_numpy(stats.norm.logpdf(far.y.numpy(), scale=far.std.numpy()))}
    )
    assert float((new_log_density(recalibration, far) - far.log_density).min()) > -math.log(10.0) - 1e-9


def test_few_rows_or_one_fold_give_no_recalibration() -> None:
    few, _ = rows_of("uneven", FEWEST_ROWS - 1)
    one_fold, _ = rows_of("uneven", 50, folds=1)
    for rows in (few, one_fold):
        assert fit_recalibration(rows, torch.zeros(1, dtype=torch.float64), 0) == (None, ())


def test_large_tables_are_trained_in_minibatches() -> None:
    rows, _ = rows_of("uneven", 700)
    recalibration, _ = fit(rows)
    assert recalibration is not None
    new, truth = rows_of("uneven", 3000, seed=1)
    gained = (new_log_density(recalibration, new) - new.log_density).mean()
    assert float(gained) > 0.8 * float((truth - new.log_density).mean())


def test_counts_are_scored_by_the_probability_of_their_cells() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 1, generator=generator, dtype=torch.float64)
    rate = (0.5 + x).exp()
    y = torch.poisson(rate, generator=generator)
    std = torch.full_like(y, float((y - rate).std()))
    below = torch.from_numpy(stats.norm.cdf((y - 0.5 - rate) / std))
    base = (torch.from_numpy(stats.norm.cdf((y + 0.5 - rate) / std)) - below).clamp_min(1e-12).log()
    rows = OutOfFoldLaws(x, y, rate, std, base, torch.arange(400) % 5, torch.ones(400, dtype=torch.float64), 0.5 / std)
    recalibration, fits = fit_recalibration(rows, torch.ones(1, dtype=torch.float64), 0)
    assert recalibration is not None
    truth = torch.from_numpy(stats.poisson.logpmf(y.numpy(), rate.numpy()))
    assert fits[0].gain > 0.6 * float((truth - base).mean())
    law = recalibration.law_parameters(x, rate, std)[0]
    points = torch.arange(-130.0, 160.0, dtype=torch.float64)
    cells = [(float(p) - 0.5, float(p) + 0.5) for p in points]
    mixture = recalibration.mixtures(x, rate, std)[0]
    masses = torch.stack([mixture.cdf(high) - mixture.cdf(low) for low, high in cells])
    torch.testing.assert_close(masses.sum(0), torch.ones_like(rate), rtol=0.0, atol=1e-6)
    first = law._replace(**{name: value.permute(1, 2, 0) for name, value in law._asdict().items()})  # (N, T, J)
    exact = first.log_prob(points.expand(400, 1, -1)[..., 140], torch.full_like(rate, 0.5))
    torch.testing.assert_close(exact.exp(), masses[140], rtol=1e-6, atol=1e-12)


def near_rows(kind: str, count: int, seed: int = 0, start: int = 0) -> tuple[OutOfFoldLaws, NeighborRows]:
    """Rows with a standard Gaussian as base law; for "twins" most rows repeat target and features of another one."""
    x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y = torch.randn(2000, 1, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    if kind == "twins":
        of = torch.randint(150, (2000,), generator=torch.Generator().manual_seed(seed + 2))
        x, y = x[of] + 1e-3 * x, y[of]
    part = slice(start, start + count)
    laws = _laws(x[part], y[part], torch.Generator().manual_seed(seed + 3), 5)
    laws = OutOfFoldLaws(**{**vars(laws), "std": torch.ones_like(laws.y)})
    laws.log_density.copy_(torch.from_numpy(stats.norm.logpdf(laws.y.numpy())))
    return laws, NeighborRows(laws.x, laws.y, laws.fold, torch.arange(count))


def test_neighbours_learn_repeated_targets() -> None:
    rows, stored = near_rows("twins", 150)
    near = stored.find_others(rows.x, stored.unit)
    recalibration, fits = fit_recalibration(
        OutOfFoldLaws(**{**vars(rows), "near": near}), torch.zeros(1, dtype=torch.float64), 0, stored
    )
    assert recalibration is not None
    assert recalibration.neighbors is stored
    assert fits[0].neighbors is not None
    assert fits[0].neighbors.stored
    repeated = (stored.x[:, None] - stored.x).norm(dim=-1).fill_diagonal_(9.0).amin(1) < 0.02
    assert fits[0].neighbors.repeated == pytest.approx(float(repeated.double().mean()), abs=0.1)
    assert fits[0].neighbors.chance < 0.05
    new, _ = near_rows("twins", 1000, start=150)
    gained = float((new_log_density(recalibration, new) - new.log_density).mean())
    assert gained > 1.0
    assert fits[0].gain == pytest.approx(gained, abs=0.4)


def test_neighbours_without_information_are_not_stored() -> None:
    stored_fits = 0
    for seed in range(3):
        rows, stored = near_rows("even", 100, 10 * seed)
        near = stored.find_others(rows.x, stored.unit)
        with_near = OutOfFoldLaws(**{**vars(rows), "near": near})
        recalibration, fits = fit_recalibration(with_near, torch.zeros(1, dtype=torch.float64), seed, stored)
        assert fits[0].weights.keys() > NEAR_KINDS.keys()
        assert fits[0].neighbors is not None
        stored_fits += fits[0].neighbors.stored
        assert fits[0].neighbors.stored == (recalibration is not None and recalibration.neighbors is not None)
    assert stored_fits == 0


@pytest.mark.usefixtures("fewer_steps")
def test_other_kinds_are_the_same_with_neighbours() -> None:
    rows, stored = near_rows("even", 60)
    rows = OutOfFoldLaws(**{**vars(rows), "y": rows.y * (0.9 * rows.x[:, :1]).exp()})
    near = stored.find_others(rows.x, stored.unit)
    step = torch.zeros(1, dtype=torch.float64)
    (plain,), (with_near,) = (
        fit_recalibration(OutOfFoldLaws(**{**vars(rows), "near": given}), step, 0, stored)[1] for given in (None, near)
    )
    assert plain.neighbors is None
    assert with_near.steps.items() >= plain.steps.items()
