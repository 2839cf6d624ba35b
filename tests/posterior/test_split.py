"""The split of the uncertainty where it is estimated, and the Monte Carlo error of predictions.

Values are f_kl = μ_l + a_k + b_kl + e_klr for structures l, networks k and draws r, rows being replicates of their own,
so that a mean over rows has a Monte Carlo error that can be computed.
"""

import math
from collections.abc import Sequence

import pytest
import torch
from scipy import stats
from torch import Tensor

from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.likelihoods import Categorical, Gaussian
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.predictive import concatenate, predictive
from fathomless.posterior.structure import ListedPosterior, Structure
from fathomless.posterior.uncertainty import Uncertainty
from fathomless.system.errors import DataError

NOISE = 0.5
Q = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)
MEANS = torch.tensor([1.0, -0.5, 0.75], dtype=torch.float64)
TRUNK, OWN = 0.8, 0.6  # standard deviations of a_k and b_kl
EVEN = [1.0] * 5
UNEVEN = [4.0, 1.0, 2.0, 0.5, 1.0, 3.0]


def crossed(
    weights: Sequence[float] = EVEN,
    *,
    rows: int = 4000,
    means: Tensor = MEANS,
    repeats: int = 1,
    inner: float = 0.0,
    normal: bool = True,
    seed: int = 0,
) -> Draws:
    """Draw networks of some weights that all have the structures Q, each `repeats` times with e of scale `inner`."""
    g = torch.Generator().manual_seed(seed)
    w = torch.tensor(weights, dtype=torch.float64)
    w = w / w.sum()
    k, depths = len(w), len(Q)

    def noise(*shape: int) -> Tensor:
        """Of variance 1: normal, or bounded by √3."""
        if normal:
            return torch.randn(*shape, rows, generator=g, dtype=torch.float64)
        return math.sqrt(12.0) * (torch.rand(*shape, rows, generator=g, dtype=torch.float64) - 0.5)

    f = means[:, None] + TRUNK * noise(k, 1, 1) + OWN * noise(k, 1, depths) + inner * noise(k, repeats, depths)
    f = f.expand(k, repeats, depths, rows).flatten(0, 2)[..., None]
    mass = (w[:, None, None] * Q / repeats).expand(k, repeats, depths).flatten()
    return Draws(
        f,
        mass.log(),
        torch.arange(depths).repeat(k * repeats),
        {},
        network=torch.arange(k).repeat_interleave(repeats * depths),
    )


def nested(sizes: Sequence[int], between: float, *, rows: int, seed: int = 0) -> Draws:
    """Draw structures with means N(0, B), and several networks N(m_g, 1) for each."""
    g = torch.Generator().manual_seed(seed)
    numbers = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    means = math.sqrt(between) * torch.randn(len(sizes), rows, generator=g, dtype=torch.float64)
    f = means[numbers] + torch.randn(len(numbers), rows, generator=g, dtype=torch.float64)
    log_weight = torch.full((len(numbers),), -math.log(len(numbers)), dtype=torch.float64)
    return Draws(f[..., None], log_weight, numbers, {}, sampled=True)


def seen(draws: Draws) -> ContinuousPredictive:
    found = predictive(draws, Gaussian(noise=NOISE), squeeze=True)
    assert isinstance(found, ContinuousPredictive)
    return found


def as_classes(draws: Draws) -> Draws:
    """Let values in units of 0.1 move probability from one class of three to another."""
    p = torch.cat([0.4 + 0.1 * draws.f, 0.4 - 0.1 * draws.f, torch.full_like(draws.f, 0.2)], -1)
    return Draws(p.log(), draws.log_weight, draws.structure, {}, sampled=draws.sampled, network=draws.network)


def without_networks(draws: Draws) -> Draws:
    return Draws(draws.f, draws.log_weight, draws.structure, {}, sampled=draws.sampled)


def is_mean(values: Tensor, truth: float) -> bool:
    """Whether the mean over rows is the truth, up to four of its standard errors."""
    return abs(float(values.mean()) - truth) < 4.0 * float(values.std()) / math.sqrt(len(values))


def true_spread(means: Tensor, inner: float = 0.0) -> tuple[float, float]:
    return float(Q @ (means - Q @ means).square()), TRUNK**2 + OWN**2 + inner**2


def adds_up(split: Uncertainty) -> None:
    torch.testing.assert_close(split.noise + split.weights + split.structure, split.total, rtol=1e-12, atol=0)
    for part in (split.noise, split.weights, split.structure):
        assert (part >= 0).all()


# ------------------------------------------------------------------------------------------- networks and structures


@pytest.mark.parametrize("means", [MEANS, 0.0 * MEANS], ids=["structure", "none"])
@pytest.mark.parametrize(
    ("weights", "repeats", "inner"),
    [(EVEN, 1, 0.0), ([1.0, 1.0], 1, 0.0), (UNEVEN, 1, 0.0), (EVEN, 3, 1.2), (UNEVEN, 2, 1.2)],
    ids=["even", "two", "uneven", "several draws", "uneven, several draws"],
)
def test_crossed_split_matches_truth(means: Tensor, weights: Sequence[float], repeats: int, inner: float) -> None:
    """B and W have no bias: without structure B is 0 on average, before it is clipped."""
    draws = crossed(weights, means=means, repeats=repeats, inner=inner)
    split, (between, within) = seen(draws).uncertainty(), true_spread(means, inner)
    assert split.spread is not None
    assert is_mean(split.spread.between, between)
    assert is_mean(split.spread.within, within)
    assert float(split.spread.between.std()) / math.sqrt(len(split.total)) < 0.05 * within  # it says something
    adds_up(split)
    # the ratio of sums over rows, by the delta method
    share, rest = between / (between + within), split.total - split.noise
    error = (1.0 - share) * split.spread.between - share * split.spread.within
    found = float(split.mean().structure / (split.mean().total - split.mean().noise))
    assert abs(found - max(share, 0.0)) < 4.0 * float(error.std()) / math.sqrt(len(error)) / (between + within)
    assert abs(float(rest.mean() - split.mean().structure - split.mean().weights)) < 1e-12


def test_the_closed_form_is_that_of_the_specification() -> None:
    f = torch.tensor([[1.0, 3.0, -1.0], [2.0, 2.5, 0.0], [0.5, 5.0, 1.0]], dtype=torch.float64)  # (K, L)
    k, m_l, f_k = len(f), f.mean(0), f @ Q
    m = Q @ m_l
    interaction = float(sum(Q @ ((f[i] - f_k[i]) - (m_l - m)).square() for i in range(k)) / (k - 1))
    within = float(sum(Q @ (f[i] - m_l).square() for i in range(k)) / (k - 1))
    between = float(Q @ (m_l - m).square()) - interaction / k
    mass = (Q / k).repeat(k).log()
    order = torch.tensor([4, 0, 8, 2, 6, 1, 3, 7, 5])  # in any order, by any numbers
    numbers, networks = torch.tensor([9, 2, 4]).repeat(k)[order], torch.tensor([7, 1, 3]).repeat_interleave(3)[order]
    draws = Draws(f.reshape(9, 1, 1)[order], mass[order], numbers, {}, network=networks)
    split = seen(draws).uncertainty()
    assert split.spread is not None
    assert float(split.spread.between) == pytest.approx(between, rel=1e-12)
    assert float(split.spread.within) == pytest.approx(within, rel=1e-12)
    assert float(split.structure) == pytest.approx(
        between / (between + within) * float(split.total - split.noise), rel=1e-12
    )


def test_averages_as_they_are_would_call_a_part_of_the_weights_structure() -> None:
    """By I / K, whose mean is the variance of b_kl about its mean over structures, for each network."""
    draws = crossed(means=0.0 * MEANS)
    plain = seen(without_networks(draws)).uncertainty()
    assert plain.spread is None
    assert is_mean(plain.structure, OWN**2 * float(1.0 - Q @ Q) / len(EVEN))


@pytest.mark.parametrize("weights", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("means", [MEANS, 0.0 * MEANS], ids=["structure", "none"])
def test_crossed_split_of_classes_matches_truth(means: Tensor, weights: Sequence[float]) -> None:
    """Two of the probabilities vary, each by a hundredth of what the value does."""
    p = predictive(as_classes(crossed(weights, means=0.5 * means, normal=False)), Categorical(3))
    split, (between, within) = p.uncertainty(), true_spread(0.5 * means)
    assert split.spread is not None
    assert is_mean(split.spread.between, 0.02 * between)
    assert is_mean(split.spread.within, 0.02 * within)
    adds_up(split)
    torch.testing.assert_close(split.total, p.entropy(), rtol=1e-12, atol=0)  # type: ignore[union-attr]


def test_single_precision_of_weights_is_no_other_law() -> None:
    draws = crossed(rows=5)
    rounded = Draws(draws.f, draws.log_weight.float() - 0.1, draws.structure, {}, network=draws.network)
    exact, found = (seen(one).uncertainty() for one in (draws, rounded))
    assert found.spread is not None
    torch.testing.assert_close(found.structure, exact.structure, rtol=1e-5, atol=0)


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
def test_what_is_not_crossed_is_split_by_averages(classes: bool) -> None:
    """One network, one structure, a network without one of the structures, or one that weighs them otherwise."""
    draws = crossed(rows=5, normal=False)
    other = draws.log_weight.clone()
    other[:2] = other[:2].flip(0)
    lacking = draws.log_weight.clone()
    lacking[1] = -math.inf
    for log_weight, structure, network in (
        (draws.log_weight, draws.structure, torch.zeros_like(draws.structure)),
        (draws.log_weight, torch.zeros_like(draws.structure), draws.network),
        (other, draws.structure, draws.network),
        (lacking, draws.structure, draws.network),
    ):
        plain = Draws(draws.f, log_weight, structure, {})
        given = Draws(draws.f, log_weight, structure, {}, network=network)
        if classes:
            found, today = (predictive(as_classes(one), Categorical(3)).uncertainty() for one in (given, plain))
        else:
            found, today = (seen(one).uncertainty() for one in (given, plain))
        assert found.spread is None
        for name in ("noise", "weights", "structure", "total"):
            assert torch.equal(getattr(found, name), getattr(today, name))


@pytest.mark.parametrize("sizes", [[2] * 8, [3, 2, 2, 2], [3, 2]], ids=["even", "odd", "few"])
@pytest.mark.parametrize("between", [0.0, 0.5, 2.0])
def test_split_of_nested_draws_matches_truth(between: float, sizes: Sequence[int]) -> None:
    """B and W of sampled structures have no bias: without any B is 0 on average, before it is clipped."""
    split = seen(nested(sizes, between, rows=8000)).uncertainty()
    assert split.spread is not None
    assert is_mean(split.spread.between, between)
    assert is_mean(split.spread.within, 1.0)
    adds_up(split)
    error = split.spread.between - between * split.spread.within
    found = float(split.mean().structure / (split.mean().structure + split.mean().weights))
    bound = 4.0 * float(error.std()) / math.sqrt(len(error)) / (between + 1.0) ** 2
    assert abs(found - between / (between + 1.0)) < bound


def of_chains(chains: Sequence[int], *, means: Tensor = MEANS, rows: int = 6000, seed: int = 3) -> Draws:
    """Draw, for each of the structures Q, so many chains of four draws that share 0.8 and vary by 0.6 about it."""
    g = torch.Generator().manual_seed(seed)
    f, mass, structure, network = [], [], [], []
    for depth, count in enumerate(chains):
        common = 0.8 * torch.randn(count, 1, rows, generator=g, dtype=torch.float64)
        own = 0.6 * torch.randn(count, 4, rows, generator=g, dtype=torch.float64)
        f.append((means[depth] + common + own).flatten(0, 1)[..., None])
        mass += [float(Q[depth]) / (4 * count)] * (4 * count)
        structure += [depth] * (4 * count)
        network += [10 * depth + k for k in range(count) for _ in range(4)]
    log_weight = torch.tensor(mass, dtype=torch.float64).log()
    return Draws(torch.cat(f), log_weight, torch.tensor(structure), {}, network=torch.tensor(network))


@pytest.mark.parametrize("means", [MEANS, torch.zeros_like(MEANS)], ids=["apart", "equal"])
def test_split_of_chains_matches_truth(means: Tensor) -> None:
    """Chains of their own for each structure, whose draws hang together: B and W have no bias."""
    split = seen(of_chains([4, 3, 5], means=means)).uncertainty()
    assert split.spread is not None
    assert is_mean(split.spread.between, float(Q @ (means - Q @ means).square()))
    assert is_mean(split.spread.within, 1.0)
    adds_up(split)


def test_a_structure_with_one_chain_counts_its_draws() -> None:
    """Nothing else can be known of its error; draws that do hang together would make it too small."""
    draws = of_chains([1, 3, 3])
    told, plain = seen(draws), seen(Draws(draws.f, draws.log_weight, draws.structure, {}))
    assert told.uncertainty().spread is not None
    assert plain.uncertainty().spread is None
    alone = seen(Draws(draws.f[:4], torch.zeros(4), draws.structure[:4], {}))
    assert bool((told.mc_error >= float(Q[0]) * alone.mc_error - 1e-12).all())


def test_mc_error_of_chains_covers() -> None:
    """Two chains of each structure and equal weights of structures would be Student's; here the variance is right."""
    p = seen(of_chains([4, 3, 5]))
    assert is_mean(p.mc_error.square() - (p.mean - Q @ MEANS).square(), 0.0)


# -------------------------------------------------------------------------------------------------- clipping


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
@pytest.mark.parametrize("sampled", [False, True], ids=["crossed", "nested"])
def test_parts_add_up_after_clipping(sampled: bool, classes: bool) -> None:
    draws = nested([2] * 6, 0.0, rows=500) if sampled else crossed(rows=500, means=0.0 * MEANS, normal=False)
    if classes:
        shrunk = Draws(
            draws.f.clamp(-3, 3), draws.log_weight, draws.structure, {}, sampled=sampled, network=draws.network
        )
        p = predictive(as_classes(shrunk), Categorical(3))
    else:
        p = seen(draws)
    split = p.uncertainty()
    assert split.spread is not None
    clipped = split.spread.between < 0
    assert 0.2 < float(clipped.double().mean()) < 0.8
    assert (split.structure[clipped] == 0).all()
    assert (split.structure[~clipped] > 0).all()
    adds_up(split)
    adds_up(split.mean())


@pytest.mark.parametrize("sampled", [False, True], ids=["crossed", "nested"])
def test_a_mean_over_rows_sums_before_it_clips(sampled: bool) -> None:
    draws = nested([2] * 6, 0.0, rows=2000) if sampled else crossed(rows=2000, means=0.0 * MEANS)
    split = seen(draws).uncertainty()
    assert split.spread is not None
    mean, spread = split.mean(), split.spread
    assert repr(mean).startswith("Uncertainty(rows=1, ")
    torch.testing.assert_close(mean.noise, split.noise.mean(0, keepdim=True))
    torch.testing.assert_close(mean.total, split.total.mean(0, keepdim=True))
    share = spread.between.sum().clamp_min(0) / (spread.between.sum().clamp_min(0) + spread.within.sum())
    torch.testing.assert_close(mean.structure, share * (mean.total - mean.noise))
    of_rows = float(split.structure.mean())
    assert float(mean.structure) < 0.5 * of_rows  # which clipping alone makes larger than 0
    some = torch.arange(2000) % 3 == 1
    for chosen in (some, some.nonzero()[:, 0], some.numpy()):
        torch.testing.assert_close(split.mean(chosen).structure, seen_rows(draws, some).mean().structure)


def seen_rows(draws: Draws, rows: Tensor) -> Uncertainty:
    part = Draws(draws.f[:, rows], draws.log_weight, draws.structure, {}, sampled=draws.sampled, network=draws.network)
    return seen(part).uncertainty()


def test_a_mean_over_rows_of_averages_is_their_mean() -> None:
    wide = without_networks(crossed(rows=40))
    wide = Draws(wide.f.view(-1, 20, 2), wide.log_weight, wide.structure, {})
    split = predictive(wide, Gaussian(2, NOISE)).uncertainty()
    for name in ("noise", "weights", "structure", "total"):
        found = getattr(split.mean(), name)
        assert found.shape == (1, 2)
        assert torch.equal(found[0], getattr(split, name).mean(0))


def test_targets_are_split_by_themselves() -> None:
    draws = crossed(rows=40)
    wide = Draws(draws.f.view(-1, 20, 2), draws.log_weight, draws.structure, {}, network=draws.network)
    found = predictive(wide, Gaussian(2, NOISE), scale=[1.0, 100.0]).uncertainty()
    plain = seen(draws).uncertainty()
    units = torch.tensor([1.0, 1e4], dtype=torch.float64)
    torch.testing.assert_close(found.structure, units * plain.structure.view(20, 2))
    assert found.spread is not None
    assert plain.spread is not None
    torch.testing.assert_close(found.spread.between, units * plain.spread.between.view(20, 2))
    alone = plain.mean(torch.arange(0, 40, 2))
    torch.testing.assert_close(found.mean().structure[:, 0], alone.structure)


# ------------------------------------------------------------------------------------------------ ensembles


class Drawn(Model):
    """A member whose draws are given."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self.draws = draws
        self.register_buffer("weight", torch.zeros(1))

    @property
    def stochastic(self) -> bool:
        """Whatever was given."""
        return True

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Return what was given."""
        return self.draws

    def structure(self) -> Structure:
        """Return one structure."""
        return ListedPosterior(kind="depth", names=("1",), probabilities=(1.0,))


def together(*each: Draws, weights: Sequence[float] | None = None) -> Draws:
    return Ensemble([Drawn(draws) for draws in each], weights).draw(torch.zeros(1, 1))


def test_ensemble_offsets_structures() -> None:
    """Of members that sample them; those that are listed are the same in every member."""
    each = [nested([2, 2, 2], 1.0, rows=3, seed=seed) for seed in range(3)]
    assert [draws.structure.tolist() for draws in each] == [[0, 0, 1, 1, 2, 2]] * 3
    whole = together(*each)
    assert whole.sampled
    pairs = whole.structure.view(9, 2)
    assert (pairs[:, 0] == pairs[:, 1]).all()
    assert len(whole.structure.unique()) == 9
    split = seen(whole).uncertainty()  # members may differ by either, and no structure has two of them
    assert not split.known
    assert split.structure.isnan().all()
    alone = seen(each[0]).uncertainty()
    assert alone.known
    listed = together(*map(listed_member, (3, 4)))
    assert not listed.sampled
    assert listed.structure.tolist() == [0, 1, 2] * 2


def listed_member(seed: int) -> Draws:
    """Return one network with all structures, which does not number itself."""
    return without_networks(crossed([1.0], rows=4, seed=seed))


def test_members_are_networks() -> None:
    each = [listed_member(seed) for seed in range(3)]
    whole = together(*each, weights=[1.0, 1.0, 2.0])
    assert whole.network is not None
    assert whole.network.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert seen(whole).uncertainty().spread is not None
    # a member that draws several networks is one still, and a single member keeps its own
    drawing = [crossed([1.0, 1.0], rows=4, seed=seed) for seed in range(2)]
    pair, alone = together(*drawing), together(drawing[0])
    assert pair.network is not None
    assert pair.network.tolist() == [0] * 6 + [1] * 6
    assert alone.network is not None
    assert alone.network.tolist() == [0, 0, 0, 1, 1, 1]
    assert together(each[0]).network is None


def test_members_that_draw_have_no_more_weight_than_members() -> None:
    """Draws of one member share its a_k and b_kl: they are no independent networks, and B would have a bias."""
    draws = crossed([1.0, 1.0, 1.0], means=0.0 * MEANS, repeats=4, inner=0.5)
    assert draws.network is not None
    each = [
        Draws(
            draws.f[mine],
            draws.log_weight[mine] + math.log(3.0),
            draws.structure[mine],
            {},
            network=torch.arange(12) // 3,
        )
        for mine in (draws.network == k for k in range(3))
    ]
    split = seen(together(*each)).uncertainty()
    assert split.spread is not None
    assert is_mean(split.spread.between, 0.0)
    assert is_mean(split.spread.within, TRUNK**2 + OWN**2 + 0.25)
    flat = Draws(draws.f, draws.log_weight, draws.structure, {}, network=torch.arange(36) // 3)
    found = seen(flat).uncertainty().spread
    assert found is not None
    assert not is_mean(found.between, 0.0)


# ------------------------------------------------------------------------------------------------ predictions


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
def test_chunks_join_with_their_networks(classes: bool) -> None:
    draws = crossed(rows=7, normal=False)

    def seen_as(one: Draws) -> ContinuousPredictive:
        return predictive(as_classes(one), Categorical(3)) if classes else seen(one)  # type: ignore[return-value]

    def part(rows: slice, network: Tensor | None) -> ContinuousPredictive:
        return seen_as(Draws(draws.f[:, rows], draws.log_weight, draws.structure, {}, network=network))

    whole = seen_as(draws)
    joined = concatenate([part(slice(0, 3), draws.network), part(slice(3, 7), draws.network)])
    assert joined.network is not None
    assert torch.equal(joined.network, whole.network)
    assert joined.uncertainty().spread is not None
    for name in ("noise", "weights", "structure", "total"):
        torch.testing.assert_close(getattr(joined.uncertainty(), name), getattr(whole.uncertainty(), name))
    torch.testing.assert_close(joined.mc_error, whole.mc_error)
    for other in (None, draws.structure):
        with pytest.raises(DataError, match="allowed are chunks"):
            concatenate([part(slice(0, 3), draws.network), part(slice(3, 7), other)])


def test_draws_without_weight_leave_with_their_network() -> None:
    draws = crossed(rows=4)
    assert draws.network is not None
    out = draws.network == 2
    log_weight = torch.where(out, -math.inf, draws.log_weight)
    f = torch.where(out[:, None, None], math.nan, draws.f)
    found = seen(Draws(f, log_weight, draws.structure, {}, network=draws.network))
    assert found.network is not None
    assert found.network.tolist() == [k for k in (0, 1, 3, 4) for _ in range(3)]
    assert found.uncertainty().spread is not None
    left = seen(Draws(draws.f[~out], draws.log_weight[~out], draws.structure[~out], {}, network=draws.network[~out]))
    torch.testing.assert_close(found.uncertainty().structure, left.uncertainty().structure)


# ------------------------------------------------------------------------------------------ Monte Carlo error


def covers(found: Tensor, error: Tensor, truth: float, df: float) -> None:
    """Check that t intervals of 90 % hold the truth in that share of the rows, up to its Monte Carlo error."""
    inside = ((found - truth).abs() <= stats.t(df).ppf(0.95) * error).double()
    assert abs(float(inside.mean()) - 0.9) < 4.0 * math.sqrt(0.9 * 0.1 / len(inside))


@pytest.mark.parametrize("repeats", [1, 3])
def test_mc_error_covers(repeats: int) -> None:
    """Of normal values (mean − truth) / error has Student's law, exactly: of networks, structures, and draws."""
    p = seen(crossed(repeats=repeats, inner=0.7 * (repeats > 1)))
    covers(p.mean, p.mc_error, float(Q @ MEANS), len(EVEN) - 1)
    p = seen(nested([1 + repeats] * 6, 0.5, rows=4000))
    covers(p.mean, p.mc_error, 0.0, 5)
    p = seen(nested([5 * repeats], 0.0, rows=4000))  # one structure: what its weights vary by
    covers(p.mean, p.mc_error, 0.0, 5 * repeats - 1)


def test_mc_error_of_unequal_weights_has_the_variance_of_the_mean() -> None:
    p = seen(crossed(UNEVEN))
    assert is_mean(p.mc_error.square() - (p.mean - Q @ MEANS).square(), 0.0)
    # structures that are listed, with draws of their own: their errors add up
    g = torch.Generator().manual_seed(1)
    numbers, spread = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2]), torch.tensor([1.0, 0.2, 3.0], dtype=torch.float64)
    f = spread[numbers][:, None] * torch.randn(9, 4000, generator=g, dtype=torch.float64)
    weight = (Q / torch.bincount(numbers))[numbers]
    p = seen(Draws(f[..., None], weight.log(), numbers, {}))
    assert is_mean(p.mc_error.square() - p.mean.square(), 0.0)
    assert is_mean(p.mc_error.square(), float((Q.square() * spread.square() / torch.bincount(numbers)).sum()))


def test_mc_error_of_class_probabilities_covers() -> None:
    """Many networks, for the central limit theorem; probabilities are linear in the values, which are bounded."""
    draws = as_classes(crossed([1.0] * 40, means=0.5 * MEANS, normal=False, rows=3000))
    p = predictive(draws, Categorical(3))
    assert p.mc_error.shape == p.probs.shape == (3000, 3)  # type: ignore[union-attr]
    shift = 0.05 * float(Q @ MEANS)
    for c, truth in ((0, 0.4 + shift), (1, 0.4 - shift)):
        covers(p.probs[:, c], p.mc_error[:, c], truth, 39)  # type: ignore[union-attr]
    assert p.mc_error[:, 2].max() < 1e-12


def test_exact_sums_have_no_monte_carlo_error() -> None:
    draws = crossed([1.0], rows=4)
    for network in (draws.network, None):
        p = seen(Draws(draws.f, draws.log_weight, draws.structure, {}, network=network))
        assert p.mc_error.shape == (4,)
        assert (p.mc_error == 0).all()
    wide = Draws(draws.f.view(3, 2, 2), draws.log_weight, draws.structure, {})
    assert predictive(wide, Gaussian(2, NOISE)).mc_error.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_monte_carlo_error_is_in_units_of_the_target_and_falls_with_the_draws() -> None:
    few, many = (crossed([1.0] * k, rows=300) for k in (10, 160))
    moved = predictive(few, Gaussian(noise=NOISE), shift=3.0, scale=10.0, squeeze=True)
    torch.testing.assert_close(moved.mc_error, 10.0 * seen(few).mc_error)
    ratio = float(seen(few).mc_error.square().mean() / seen(many).mc_error.square().mean())
    assert ratio == pytest.approx(16.0, rel=4.0 * math.sqrt(2.0 / (9 * 300)))


def test_rows_that_overflow_do_not_hide_the_parts_of_others() -> None:
    """The parts that are known depend on the model, and not on the rows beside."""
    parts = {"noise": torch.ones(2, 1), "weights": torch.tensor([[1.0], [math.nan]])}
    total = torch.tensor([[3.0], [math.inf]])
    apart = Uncertainty(**parts, structure=torch.tensor([[1.0], [math.nan]]), total=total)
    assert apart.known
    assert not Uncertainty(**parts, structure=torch.full((2, 1), math.nan), total=total).known
