"""Cross-fitting: members see all folds but one, and what is decided is decided once for all."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fathomless.data.folds import fold_rows
from fathomless.data.rows import Rows
from fathomless.data.stacked_rows import StackedRows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold import stacking
from fathomless.inference.out_of_fold.crossfit import StackedLikelihood, crossfit, fold_indices, predict_held_out
from fathomless.inference.out_of_fold.search import StructureSearch, log_prior_of, score_structures
from fathomless.inference.runs.callbacks import Checkpoint
from fathomless.inference.runs.run import Fitted, Run
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.laws import FixedDepth, PoissonPrior
from fathomless.posterior.likelihoods import Categorical, Gaussian, Likelihood
from fathomless.posterior.model import Model
from fathomless.system import memory
from fathomless.system.errors import ConvergenceWarning, DataError, DivergenceError, PausedError

K, N = 3, 36


def table(n: int = N, seed: int = 0, classes: bool = False) -> Rows:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    y = x[:, :1] * x[:, 1:] + 0.1 * rng.normal(size=(n, 1))
    target = torch.as_tensor((y[:, 0] > 0.0).astype(np.int64)) if classes else torch.as_tensor(y)
    return Rows(torch.as_tensor(x), target)


def starts(count: int, outputs: int = 1, classes: bool = False) -> list[tuple[Model, Likelihood]]:
    net = MLP(2, outputs, 6, "tanh")
    kind: Any = (lambda: Categorical(outputs)) if classes else Gaussian
    return [
        (
            UnboundedDepth(net.layer, net.head, min_depth=0, prior=PoissonPrior(0.5), seed=seed, dtype=torch.float64),
            kind().double(),
        )
        for seed in range(count)
    ]


def folds_of(rows: Rows, members: int = K, repeats: int = 1) -> Tensor:
    return fold_rows(rows.x.numpy(), rows.y.numpy(), members, repeats, 0)


TRAINING = Training(epochs=20, evaluate_every=2)


def fitted(rows: Rows, repeats: int = 1, search: StructureSearch | None = None, **options: Any) -> tuple[Fitted, Any]:
    folds = folds_of(rows, repeats=repeats)
    search = search or StructureSearch(TRAINING.epochs, first=4)
    return crossfit(starts(K * repeats), rows, *fold_indices(folds), training=TRAINING, search=search, **options)


def test_members_share_support_law_and_epoch() -> None:
    found, _ = fitted(table())
    assert isinstance(found.model, Ensemble)
    laws = [member.depth_posterior() for member in found.model.members]  # type: ignore[operator, union-attr]
    assert len(laws) == K
    assert all(law == laws[0] for law in laws)


def test_out_of_fold_density_is_of_a_member_that_never_saw_the_row() -> None:
    """Also with two partitions, where it is the mixture of two members."""
    for repeats in (1, 2):
        rows = table()
        found, seen = fitted(rows, repeats)
        assert isinstance(found.model, Ensemble)
        folds = folds_of(rows, repeats=repeats)
        assert seen.rows.tolist() == list(range(N))
        for i in (0, 7, N - 1):
            own = [r * K + int(folds[r, i]) for r in range(repeats)]
            f = [found.model.members[k].draw(rows.x[i : i + 1]).f for k in own]  # type: ignore[operator, union-attr]
            assert torch.allclose(seen.f[:, i], torch.cat(f)[:, 0], atol=1e-12)


def test_no_row_moves_the_weights_of_the_member_it_is_out_of_fold_for() -> None:
    """Another target for it, with law and epoch given: the same bytes there, others elsewhere."""
    rows, folds = table(), folds_of(table())
    i, law = 5, {0: 0.3, 1: 0.7}
    member = int(folds[0, i])

    inside, _ = fold_indices(folds)
    other = Rows(rows.x, rows.y.clone())
    other.y[i] += 3.0
    states = []
    for one in (rows, other):
        models = starts(K)
        for model, _ in models:
            assert isinstance(model, UnboundedDepth)
            model.weigh(law)
        first = models[0][0]
        assert isinstance(first, UnboundedDepth)
        together = first.stack([model for model, _ in models[1:]])
        likelihood = StackedLikelihood([likelihood for _, likelihood in models])
        fit(together, likelihood, StackedRows.of(one, inside), training=TRAINING)
        together.unstack([model for model, _ in models])
        states.append([model.state_dict() for model, _ in models])
    for k in range(K):
        same = all(torch.equal(a, b) for a, b in zip(states[0][k].values(), states[1][k].values(), strict=True))
        assert same == (k == member)


@pytest.mark.parametrize("clip", [None, 0.02])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_cross_fitted_equals_separate_fits(optimizer: str, clip: float | None) -> None:
    """Given support, law and epoch: each member is what it is alone, up to rounding, with unequal weights too."""
    weight = torch.ones(N, dtype=torch.float64)
    weight[:6] = 5.0
    rows, training = replace(table(), weight=weight), replace(TRAINING, optimizer=optimizer, clip_norm=clip)
    inside, _ = fold_indices(folds_of(rows))
    law = {0: 0.2, 1: 0.3, 2: 0.5}
    alone = []
    for (model, likelihood), own in zip(starts(K), inside, strict=True):
        assert isinstance(model, UnboundedDepth)
        model.weigh(law)
        fit(model, likelihood, rows.take(own), training=training)
        alone.append((model.state_dict(), likelihood.state_dict()))
    models = starts(K)
    for model, _ in models:
        assert isinstance(model, UnboundedDepth)
        model.weigh(law)
    first = models[0][0]
    assert isinstance(first, UnboundedDepth)
    together, likelihood = (
        first.stack([model for model, _ in models[1:]]),
        StackedLikelihood([one for _, one in models]),
    )
    fit(together, likelihood, StackedRows.of(rows, inside), training=training)
    together.unstack([model for model, _ in models])
    for k, (state, noise) in enumerate(alone):
        for name, value in models[k][0].state_dict().items():
            assert torch.allclose(value, state[name], atol=1e-7), name
        raw = dict(likelihood.named_parameters())["each.one.noise.raw"][k]
        assert torch.allclose(raw, noise["noise.raw"], atol=1e-7)


def test_clipping_of_one_member_is_not_felt_by_others() -> None:
    """Targets far out in a fold leave the member that has not seen it as it is, to the byte; with parts kept apart."""
    rows, folds = table(), folds_of(table())
    inside, _ = fold_indices(folds)
    other = Rows(rows.x, rows.y.clone())
    other.y[folds[0] == 0] += 50.0

    def build(seed: int) -> Model:
        net, normed = MLP(2, 1, 6, "tanh"), lambda _: nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh())
        law, layer = FixedDepth((2,)), lambda depth: normed(depth) if depth == 1 else net.layer(depth)
        return UnboundedDepth(layer, net.head, law=law, seed=seed, dtype=torch.float64)

    states = []
    for one in (rows, other):
        models = [build(seed) for seed in range(K)]
        first = models[0]
        assert isinstance(first, UnboundedDepth)
        together = first.stack(models[1:])
        likelihood = StackedLikelihood([Gaussian().double() for _ in models])
        fit(together, likelihood, StackedRows.of(one, inside), training=replace(TRAINING, clip_norm=0.05))
        together.unstack(models)
        states.append([torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models])
    assert [torch.equal(a, b) for a, b in zip(*states, strict=True)] == [True, False, False]


def test_likelihoods_together_are_widened_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    f, y = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 6, 1), (6, 1)))
    each = [Gaussian(initial_noise=noise).double() for noise in (0.2, 0.5, 1.0)]
    wide = StackedLikelihood(each).widen(2.0).log_prob(f, y)
    alone = [Gaussian(initial_noise=2.0 * noise).double() for noise in (0.2, 0.5, 1.0)]
    assert torch.allclose(wide, StackedLikelihood(alone).log_prob(f, y), atol=1e-6)  # noise begins in single precision
    logits, classes = torch.randn(2, 6, 3, generator=generator), torch.tensor([0, 1, 2, 2, 1, 0])
    warm = StackedLikelihood([Categorical(3), Categorical(3)]).widen(2.0)
    assert torch.allclose(warm.log_prob(logits, classes), Categorical(3).log_prob(logits / 2.0, classes))


def test_padding_of_unequal_folds_counts_for_nothing() -> None:
    """One row more or less in a fold: the filling, whatever it holds, does not change the member."""
    rows = table(35)
    inside, _ = fold_indices(folds_of(rows))
    assert len({len(own) for own in inside}) == 2
    blocks = StackedRows.of(rows, inside)
    filled = blocks.index.clone()
    filled[blocks.weight == 0.0] = 11  # other rows as filling
    results = []
    for one in (blocks, replace(blocks, index=filled)):
        models = starts(K)
        first = models[0][0]
        assert isinstance(first, UnboundedDepth)
        together, likelihood = first.stack([m for m, _ in models[1:]]), StackedLikelihood([one for _, one in models])
        together.weigh({1: 1.0})
        fit(together, likelihood, one, training=TRAINING)
        results.append(together.state_dict())
    assert all(torch.allclose(a, results[1][name], atol=1e-10) for name, a in results[0].items())


def test_law_is_fitted_once_for_all_members() -> None:
    """It is the refit of the densities of all rows, each under the member that has not seen it."""
    rows = table()
    found, seen = fitted(rows)
    assert found.log_densities is not None
    assert len(found.log_densities.rows) == N
    assert isinstance(found.model, Ensemble)
    first = found.model.members[0]
    assert isinstance(first, UnboundedDepth)
    law = list(first.depth_posterior().values())
    q = stacking.refit(found.log_densities.log_density, log_prior_of(first, found.log_densities.numbers))
    assert torch.allclose(torch.tensor(law, dtype=torch.float64), q / q.sum(), atol=1e-6)
    assert seen.f.shape[1] == N


def test_held_rows_of_several_partitions_are_mixed() -> None:
    rows = table()
    folds = folds_of(rows, repeats=2)
    models = starts(2 * K)
    first = models[0][0]
    assert isinstance(first, UnboundedDepth)
    together, likelihood = first.stack([m for m, _ in models[1:]]), StackedLikelihood([one for _, one in models])
    together.weigh({0: 0.5, 1: 0.5})
    valid = StackedRows.of(rows, fold_indices(folds)[1])
    found, seen = score_structures(together, likelihood, valid, 1, 0), predict_held_out(together, valid, 0)
    log_p = Gaussian().double().log_prob(seen.f, seen.y)  # all noises are at their start
    for column, number in enumerate(found.numbers):
        own = seen.structure == number
        mean = torch.logsumexp(log_p[own], 0) - torch.log(torch.tensor(2.0))
        assert torch.allclose(found.log_density[:, column], mean.detach(), atol=1e-10)


@pytest.mark.filterwarnings("ignore:the posterior over structure is cut off")
@pytest.mark.parametrize("pause", [4, 12, 16])
def test_resume_is_bit_equal(tmp_path: Path, pause: int) -> None:
    """In the exploring, across a growth, and in the focus."""
    rows, folds = table(60), folds_of(table(60))

    def run(callbacks: list[Any], resume: Any = None) -> Fitted:
        search = StructureSearch(TRAINING.epochs, first=3, min_gain=-100.0 if pause > 10 else 1e9)
        return crossfit(
            starts(K), rows, *fold_indices(folds), training=TRAINING, search=search, callbacks=callbacks, resume=resume
        )[0]

    whole = run([])
    keeper = Checkpoint(tmp_path / "kept", 0.0)

    def stop(run: Run) -> None:
        run.pause = run.epoch == pause

    with pytest.raises(PausedError):
        run([stop, keeper])
    again = run([], keeper.load())
    assert whole.history == again.history
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])


class Counting(nn.Module):
    """A layer with statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.map(x))
        return y


def test_stacking_sees_no_training_density() -> None:
    """A kind that memorises its rows, as a linear map of as many columns does, gets no weight beside a constant."""
    n, generator = 60, torch.Generator().manual_seed(0)
    rows = Rows(*(torch.randn(3 * n // 2, k, generator=generator, dtype=torch.float64) for k in (n, 1)))

    class Constant(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return self.bias.expand(*x.shape[:-1], -1)

    def head(depth: int) -> nn.Module:
        return nn.Linear(n, 1) if depth else Constant(n, 1)

    both = FixedDepth((0, 1), (0.5, 0.5))
    models: list[tuple[Model, Likelihood]] = [
        (
            UnboundedDepth(lambda _: nn.Identity(), head, min_depth=0, max_depth=1, law=both, dtype=torch.float64),
            Gaussian().double(),
        )
        for _ in range(K)
    ]
    inside, outside = fold_indices(folds_of(rows))
    seen = []

    def compare(run: Run) -> None:
        fitted_to = score_structures(run.model, run.likelihood, StackedRows.of(rows, inside), 1, 0).log_density
        seen.append((float((fitted_to[:, 1] - fitted_to[:, 0]).mean()), run.history[-1]["mean_depth"]))

    search, training = StructureSearch(200, first=2), Training(epochs=200, evaluate_every=10, learning_rate=0.02)
    crossfit(models, rows, inside, outside, training=training, search=search, callbacks=[compare])
    gain, mean = seen[-1]
    assert gain > 0.3  # nats per row that it was fitted to
    assert mean < 0.01


def test_failed_member_is_left_out() -> None:
    """One of four networks diverges: the rest end as if it had never been, and its fold is judged by none."""
    rows = table()
    folds = folds_of(rows, 4)
    inside, outside = fold_indices(folds)
    broken = starts(4)
    with torch.no_grad():
        next(broken[2][0].parameters()).fill_(math.nan)
    settings: dict[str, Any] = {"training": TRAINING}
    with pytest.warns(ConvergenceWarning, match="diverged for network 2 of 4"):
        found, seen = crossfit(
            broken, rows, inside, outside, search=StructureSearch(TRAINING.epochs, first=4), **settings
        )
    keep = [0, 1, 3]
    others = [starts(4)[i] for i in keep]
    parts = [inside[i] for i in keep], [outside[i] for i in keep]
    whole, rest = crossfit(others, rows, *parts, search=StructureSearch(TRAINING.epochs, first=4), **settings)
    assert found.diverged == (2,)
    assert whole.diverged == ()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, found.model.state_dict()[name]), name
    assert torch.equal(seen.rows, rest.rows)
    assert not set(seen.rows.tolist()) & set(outside[2].tolist())


def test_memory_is_asked_for_all_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_SMALL", 0)
    monkeypatch.setattr(memory, "available", lambda: 1 << 14)
    with pytest.raises(DataError, match=r"joint training of 3 networks of .* needs .*; [012] fit: set members"):
        fitted(table())


def test_one_network_of_two_is_no_ensemble() -> None:
    rows = table()
    inside, outside = fold_indices(folds_of(rows, 2))
    broken = starts(2)
    with torch.no_grad():
        next(broken[1][0].parameters()).fill_(math.nan)
    with pytest.raises(DivergenceError, match="first tensor that is not finite"):
        crossfit(broken, rows, inside, outside, training=TRAINING, search=StructureSearch(TRAINING.epochs, first=4))


def test_more_than_two_failed_members_end_the_fit() -> None:
    rows = table()
    broken = starts(4)
    with torch.no_grad():
        for model, _ in broken[:3]:
            next(model.parameters()).fill_(math.nan)
    with pytest.raises(DivergenceError) as caught:
        crossfit(broken, rows, *fold_indices(folds_of(rows, 4)), training=TRAINING)
    assert caught.value.networks == (0, 1, 2)


def test_own_batch_norm_is_trained_in_turn() -> None:
    rows = table()
    models = [
        (UnboundedDepth(lambda _: Counting(), lambda _: nn.Linear(2, 1), min_depth=0, seed=s).double(), Gaussian())
        for s in range(K)
    ]
    pairs: list[tuple[Model, Likelihood]] = [(model, likelihood.double()) for model, likelihood in models]
    search = StructureSearch(TRAINING.epochs, first=3)
    found, _ = crossfit(pairs, rows, *fold_indices(folds_of(rows)), training=TRAINING, search=search)
    means = [value for name, value in found.model.state_dict().items() if "running_mean" in name]
    assert len(means) >= K
    assert not torch.equal(means[0], means[1])


def test_classes_have_one_temperature_for_all() -> None:
    rows = table(classes=True)
    found, seen = crossfit(
        starts(K, 2, classes=True),
        rows,
        *fold_indices(folds_of(rows)),
        training=TRAINING,
        search=StructureSearch(TRAINING.epochs, first=3),
    )
    assert isinstance(found.likelihood, Categorical)
    assert seen.f.shape[1:] == (N, 2)


def test_drawn_weights_are_refused_side_by_side() -> None:
    net = MLP(2, 1, 4)
    models: list[tuple[Model, Likelihood]] = [
        (UnboundedDepth(net.layer, net.head, weights="meanfield", seed=s, dtype=torch.float64), Gaussian().double())
        for s in range(K)
    ]
    rows = table()
    with pytest.raises(DataError, match="weights='map'"):
        crossfit(models, rows, *fold_indices(folds_of(rows)), training=TRAINING)
