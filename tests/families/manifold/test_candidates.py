"""Stage 1: stacked networks are what each would be alone; what unseen rows decide is decided by unseen rows."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Gamma, Normal

from fathomless.data.rows import Rows
from fathomless.families.manifold.candidates import (
    BATCH,
    CandidateStage,
    gather_out_of_fold,
    mask_unseen,
    select_candidates,
    squared_errors,
    sum_log_joint,
)
from fathomless.families.manifold.network import FlatNetwork
from fathomless.families.manifold.stages import run_stages
from fathomless.posterior.likelihoods import Categorical, Gaussian, Likelihood
from fathomless.system.errors import DivergenceError

NET = FlatNetwork(2, 1, (5,), "tanh")


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(rows: int = 30, seed: int = 0) -> Rows:
    x = torch.randn(rows, 2, generator=noise(seed), dtype=torch.float64)
    y = x[:, :1].sin() + 0.1 * torch.randn(rows, 1, generator=noise(seed + 1), dtype=torch.float64)
    return Rows(x, y)


def drawn(count: int, seed: int, net: FlatNetwork = NET) -> Tensor:
    return torch.randn(count, net.size, generator=noise(seed), dtype=torch.float64)


def stage(
    rows: Rows, unseen: Tensor, start: Tensor, anchor: Tensor | None = None, steps: int = 50, **more: object
) -> CandidateStage:
    log_noise = torch.full((len(start), 1), -1.0, dtype=torch.float64)
    scale = torch.linspace(0.5, 2.0, NET.size, dtype=torch.float64)
    anchor = torch.zeros_like(start) if anchor is None else anchor
    return CandidateStage(NET, Gaussian(noise="stated"), rows, unseen, start, anchor, scale, log_noise, steps=steps)


def trained(one: CandidateStage) -> dict[str, Tensor]:
    return {name.partition("/")[2]: value for name, value in run_stages({"s": lambda _: one}, 0).found.items()}


FOLDS = torch.stack([torch.arange(30) % 3, (torch.arange(30) // 2) % 3])


def test_every_row_is_unseen_by_one_network_of_each_partition() -> None:
    unseen = mask_unseen(FOLDS, 6)
    assert unseen.shape == (6, 30)
    assert (unseen.sum(0) == 2).all()
    assert torch.equal(unseen[4], FOLDS[1] == 1)
    assert torch.equal(mask_unseen(FOLDS, 9)[6:], unseen[:3])  # partitions come in turn
    some = FOLDS.clone()
    some[:, 3] = -1  # a row that all networks see
    assert not mask_unseen(some, 6)[:, 3].any()


def test_the_objective_is_that_of_the_formula() -> None:
    """Densities of another library; the Gamma density of the precision times the precision is that of its logarithm."""
    rows, unseen, anchor = table(), mask_unseen(FOLDS, 3), drawn(3, 5)
    one = stage(rows, unseen, drawn(3, 4), anchor)
    scale = torch.linspace(0.5, 2.0, NET.size, dtype=torch.float64)
    tau = torch.tensor(math.exp(2.0), dtype=torch.float64)
    prior = Gamma(torch.tensor(1.0).double(), torch.tensor(0.01).double())
    law = prior.log_prob(tau) + tau.log() - math.log(0.01)  # without its constant
    expected = []
    for r in range(3):
        f = NET(one.weights[r : r + 1], rows.x)[0]
        log_p = Normal(f, math.exp(-1.0)).log_prob(rows.y)[~unseen[r]].sum() * 30 / 20
        decay = 0.5 * ((one.weights[r] - anchor[r]) / scale).square().sum()
        expected.append(log_p - decay + law)
    joint = torch.stack(expected).detach()
    torch.testing.assert_close(one.log_joint(), joint)
    torch.testing.assert_close(one.loss(0.0, noise()), -joint.sum() / 30, check_dtype=False)


def test_stacked_networks_equal_networks_trained_alone() -> None:
    """After 50 steps from the same weights, to 1e-5."""
    rows, unseen, start = table(), mask_unseen(FOLDS, 6), drawn(6, 2)
    together = trained(stage(rows, unseen, start))
    for r in range(6):
        alone = trained(stage(rows, unseen[r : r + 1], start[r : r + 1]))
        for name, value in alone.items():
            torch.testing.assert_close(together[name][r : r + 1], value, rtol=0, atol=1e-5)
    assert (together["log_joint"] > stage(rows, unseen, start).log_joint()).all()


def test_a_network_that_is_not_finite_does_not_touch_the_others() -> None:
    rows, unseen, start = table(), mask_unseen(FOLDS, 3), drawn(3, 2)
    broken = start.clone()
    broken[1, 3] = math.nan
    found, whole = trained(stage(rows, unseen, broken)), trained(stage(rows, unseen, start))
    for r in (0, 2):
        assert torch.equal(found["weights"][r], whole["weights"][r])
    assert found["log_joint"][1].isnan()
    broken[0, 0] = math.inf
    with pytest.raises(DivergenceError, match="2 of 3 candidate networks"):
        trained(stage(rows, unseen, broken))


def test_rows_of_a_network_do_not_depend_on_those_it_does_not_see() -> None:
    rows, unseen, start = table(), mask_unseen(FOLDS, 3), drawn(3, 2)
    other = Rows(rows.x, torch.where(unseen[1][:, None], rows.y + 9.0, rows.y))
    one, two = trained(stage(rows, unseen, start)), trained(stage(other, unseen, start))
    assert torch.equal(one["weights"][1], two["weights"][1])
    assert not torch.equal(one["weights"][0], two["weights"][0])


def test_weights_of_rows_are_repetitions() -> None:
    rows, start = table(12), drawn(2, 2)
    times = torch.tensor([1, 2, 3] * 4)
    twice = Rows(rows.x.repeat_interleave(times, 0), rows.y.repeat_interleave(times, 0))
    folds = torch.arange(12)[None] % 2
    heavy = stage(Rows(rows.x, rows.y, times.double()), mask_unseen(folds, 2), start)
    torch.testing.assert_close(
        heavy.log_joint(), stage(twice, mask_unseen(folds.repeat_interleave(times, 1), 2), start).log_joint()
    )


def test_batches_are_unbiased() -> None:
    """The mean of 400 losses of drawn batches is the loss of all rows, within 5 standard errors."""
    rows = table(1100)
    one = stage(rows, mask_unseen(torch.arange(1100)[None] % 3, 3), drawn(3, 2))
    g = noise(3)
    with torch.no_grad():
        losses = torch.stack([one.loss(0.0, g) for _ in range(400)])
    whole = -float(one.log_joint().sum()) / 1100
    error = float(losses.std()) / 20.0
    assert abs(float(losses.mean()) - whole) < 5.0 * error
    assert error < 0.02 * abs(whole)
    assert BATCH < 1100


def test_classes_and_known_noise_have_no_scales() -> None:
    net = FlatNetwork(2, 3, (4,), "relu")
    rows = Rows(table().x, torch.arange(30) % 3)
    start = drawn(3, 0, net)
    one = CandidateStage(
        net, Categorical(3), rows, mask_unseen(FOLDS, 3), start, 0.0 * start, torch.ones(net.size).double(), steps=20
    )
    found = trained(one)
    assert set(found) == {"weights", "log_joint", "log_prior"}
    assert (
        found["log_joint"]
        > CandidateStage(
            net, Categorical(3), rows, mask_unseen(FOLDS, 3), start, 0.0 * start, torch.ones(net.size).double()
        ).log_joint()
    ).all()


# ------------------------------------------------------------------------------------------------ unseen rows


def test_errors_are_those_of_unseen_rows() -> None:
    centre = torch.tensor([[[0.0], [5.0]], [[1.0], [2.0]]])
    y, unseen = torch.tensor([[1.0], [2.0]]), torch.tensor([[True, False], [True, True]])
    torch.testing.assert_close(squared_errors(centre, y, unseen), torch.tensor([1.0, 0.0]))
    p = torch.tensor([[[0.8, 0.2], [0.5, 0.5]]])
    found = squared_errors(p, torch.tensor([0, 1]), torch.ones(1, 2, dtype=torch.bool), torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(found, torch.tensor([(3 * 0.08 + 0.5) / 4]))


def test_joint_densities_of_all_rows_do_not_depend_on_which_were_held_out() -> None:
    """Densities of another library, and weights that count as repetitions."""
    rows, start = table(), drawn(1, 3).expand(3, -1)
    found = stage(rows, mask_unseen(FOLDS, 3), start).finish()
    log_noise = found["log_noise"]
    assert float(found["log_joint"].max() - found["log_joint"].min()) > 5.0

    def joint(rows: Rows, counts: Tensor) -> Tensor:
        law: Likelihood = Gaussian(noise="stated")
        return sum_log_joint(law, NET(start, rows.x), log_noise, found["log_prior"], rows.y, counts)

    log_p = Normal(NET(start[:1], rows.x)[0], math.exp(-1.0)).log_prob(rows.y).sum()
    torch.testing.assert_close(joint(rows, torch.ones(30).double()), found["log_prior"] + log_p)
    whole = stage(rows, torch.zeros(3, 30, dtype=torch.bool), start).log_joint()
    torch.testing.assert_close(joint(rows, torch.ones(30).double()), whole)
    times = torch.tensor([0, 1, 2] * 10)
    twice = Rows(rows.x.repeat_interleave(times, 0), rows.y.repeat_interleave(times, 0))
    torch.testing.assert_close(joint(rows, times.double()), joint(twice, torch.ones(30).double()))


def test_bad_optima_are_left_out_and_the_best_comes_first() -> None:
    joint = torch.tensor([0.0, 1.0, -9.0, -9.0, math.nan, 0.5])
    errors = torch.tensor([1.0, 1.0, 1.2, 4.0, 1.0, 9.0])
    assert select_candidates(joint, errors, 100, least=2).tolist() == [1, 5, 0, 2]  # bad by both measures alone
    assert select_candidates(joint, errors, 100, least=5).tolist() == [1, 5, 0, 2, 3]
    assert select_candidates(joint, errors, 100, least=2, strict=True).tolist() == [1, 5, 0]
    assert select_candidates(joint, errors, 1000, least=2).tolist() == [1, 5, 0, 2, 3]  # N/50 nats


def test_unseen_rows_come_under_networks_that_have_not_seen_them() -> None:
    folds = torch.stack([torch.arange(6) % 2, torch.tensor([0, 0, 0, 1, 1, 1])])
    folds[:, 5] = -1
    unseen = mask_unseen(folds, 4)
    f = torch.arange(4.0)[:, None, None].expand(4, 6, 1)  # each network says its number
    held = gather_out_of_fold(f, unseen, Rows(torch.zeros(6, 1), torch.zeros(6, 1)))
    assert held.rows.tolist() == [0, 1, 2, 3, 4]
    assert held.f[..., 0].T.tolist() == [[0, 2], [1, 2], [0, 2], [1, 3], [0, 3]]
    assert float(held.log_weight.exp().sum()) == pytest.approx(1.0)
    fewer = gather_out_of_fold(f[1:], unseen[1:], Rows(torch.zeros(6, 1), torch.zeros(6, 1)))  # without network 0
    assert fewer.f[..., 0].T.tolist() == [[2, 2], [1, 2], [2, 2], [1, 3], [3, 3]]


def test_the_likelihood_of_each_network_is_its_own() -> None:
    law: Likelihood = Gaussian(noise="stated")
    rows, start = table(), drawn(3, 2)
    log_noise = torch.tensor([[-2.0], [0.0], [1.0]], dtype=torch.float64)
    one = CandidateStage(
        NET, law, rows, torch.zeros(3, 30, dtype=torch.bool), start, start, torch.ones(NET.size).double(), log_noise
    )
    f = NET(start, rows.x)
    for r in range(3):
        sigma = float(log_noise[r].exp())
        log_p = Normal(f[r], sigma).log_prob(rows.y).sum()
        assert float(one.log_joint()[r]) == pytest.approx(
            float(log_p) - 2.0 * math.log(sigma) - 0.01 / sigma**2, rel=1e-10
        )
