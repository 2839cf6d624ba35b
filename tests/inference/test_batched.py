"""Trainings side by side: the path of each is the one that it would take alone."""

import contextlib
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from torch import nn
from torch.func import functional_call

from fathomless import Restarts, UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.data.datasets import spiral
from fathomless.data.rows import Rows
from fathomless.estimators.values import CheckpointOptions
from fathomless.estimators.variational import fit_together
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.registry import load
from fathomless.inference.runs.callbacks import Checkpoint
from fathomless.inference.variational.batched import BatchedRuns, fit_batched, log_densities
from fathomless.inference.variational.objective import log_predictive
from fathomless.inference.variational.padded import PaddedRows
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP, ConvNet
from fathomless.posterior.laws import DepthLaw, FixedDepth, QuantilePoisson, StickBreaking, TruncatedPoisson
from fathomless.posterior.likelihoods import Categorical, Gaussian, Likelihood
from fathomless.system.errors import ConvergenceWarning, DataError, DivergenceError, PausedError
from trainings import state_of

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

F = 3
NET = MLP(2, 2, 6)
SHORT = Training(epochs=24, batch_size=40, structure_rate=2.0, learning_rate=2e-2, evaluate_every=2)


def network(i: int, law: DepthLaw | None = None, **options: Any) -> UnboundedDepth:
    law = law or TruncatedPoisson(0.5 + i)
    return UnboundedDepth(NET.layer, NET.head, law=law, seed=i, dtype=torch.float64, **options)


def rows(i: int, n: int = 96, weighted: bool = False) -> Rows:
    x, y = spiral(n, rotation=3.0 * (i % F), seed=i)
    weight = 1.0 + torch.arange(n, dtype=torch.float64) % 3 if weighted else None
    return Rows(torch.as_tensor(x), torch.as_tensor(y), weight)


def furthest(a: nn.Module, b: nn.Module) -> float:
    mine, theirs = a.state_dict(), b.state_dict()
    assert list(mine) == list(theirs)
    return max((float((mine[name].double() - theirs[name].double()).abs().max()) for name in mine), default=0.0)


@pytest.mark.parametrize(
    ("law", "options"),
    [
        (TruncatedPoisson, {}),
        (QuantilePoisson, {"patience": 3}),
        (StickBreaking, {"clip_norm": 0.05}),
        (TruncatedPoisson, {"structure_delay": 5, "schedule": "one_cycle", "structure_every": 3}),
    ],
)
def test_each_member_goes_the_way_that_it_goes_alone(law: Any, options: dict[str, Any]) -> None:
    base = replace(SHORT, **options)
    trainings = [replace(base, learning_rate=r, temperature=t) for r, t in ((2e-2, 1.0), (1e-2, 0.5), (4e-2, 1.0))]
    train, valid = [rows(i) for i in range(F)], [rows(i + F) for i in range(F)]
    models = [network(i, law(0.5 + i)) for i in range(F)]
    runs = state_of(fit_batched, models, [Categorical(2)] * F, train, valid, training=trainings, seeds=[7, 8, 9])
    lengths = set()
    for i, member in enumerate(runs.members):
        alone = network(i, law(0.5 + i))
        run = state_of(fit, alone, Categorical(2), train[i], valid[i], training=trainings[i], seed=7 + i)
        assert member.epoch == run.epoch
        assert member.best.epoch == run.best.epoch
        for mine, theirs in zip(member.history, run.history, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-9)
        assert furthest(member.model, alone) < 1e-9
        assert member.model.blueprint() == alone.blueprint()
        lengths.add(run.model.depth if isinstance(run.model, UnboundedDepth) else 0)
    assert len(lengths) > 1  # they grew apart, so parts of some were missing in others
    if "patience" in options:
        assert len({member.epoch for member in runs.members}) > 1  # and some stopped before others


def test_rows_may_be_shared_and_weighted_and_the_noise_learned() -> None:
    net = MLP(2, 1, 5)
    data = rows(1, weighted=True)
    data = Rows(data.x, data.x[:, :1].sin() + 0.3 * data.y[:, None], data.weight)
    valid = Rows(data.x[:30].flip(1), data.y[:30], None)
    training = replace(SHORT, epochs=10, calibrate=True)

    def start(i: int) -> tuple[UnboundedDepth, Likelihood]:
        model = UnboundedDepth(net.layer, net.head, seed=i, dtype=torch.float64, min_depth=0)
        return model, Gaussian(noise="learned").double()

    pairs = [start(i) for i in range(F)]
    fit_batched([m for m, _ in pairs], [p for _, p in pairs], data, valid, training=training, seeds=[4, 5, 6])
    for i, (model, likelihood) in enumerate(pairs):
        alone, noise = start(i)
        fit(alone, noise, data, valid, training=training, seed=4 + i)
        assert furthest(model, alone) < 1e-9
        assert furthest(likelihood, noise) < 1e-7  # by a line search


@pytest.mark.parametrize("weighted", [False, True])
def test_in_mixed_precision_a_bound_is_summed_as_it_is_alone(weighted: bool) -> None:
    training = Training(epochs=1, learning_rate=1e-9, mixed=True, evaluate_every=1)
    data = rows(1, 3000, weighted)
    data = Rows(data.x.float(), data.y, None if data.weight is None else data.weight.float())

    def start(i: int) -> UnboundedDepth:
        return UnboundedDepth(NET.layer, NET.head, law=TruncatedPoisson(2.0), seed=i)

    runs = state_of(fit_batched, [start(0), start(1)], [Categorical(2)] * 2, data, training=training, seeds=[4, 5])
    for i, member in enumerate(runs.members):
        run = state_of(fit, start(i), Categorical(2), data, training=training, seed=4 + i)
        assert member.history[0]["log_likelihood"] == pytest.approx(run.history[0]["log_likelihood"], rel=3e-4)


def test_without_validation_rows_the_last_state_stays() -> None:
    models = [network(i) for i in range(2)]
    data = [rows(0), rows(1)]
    runs = state_of(fit_batched, models, [Categorical(2)] * 2, data, training=replace(SHORT, epochs=6))
    for i in range(2):
        alone = network(i)
        fit(alone, Categorical(2), rows(i), training=replace(SHORT, epochs=6), seed=i)
        assert furthest(models[i], alone) < 1e-9
        assert not models[i].training
    assert len(runs.history) == 3
    assert runs.history[-1]["elbo"] == pytest.approx(np.mean([m.history[-1]["elbo"] for m in runs.members]))


def test_a_part_that_is_not_in_use_keeps_its_bytes() -> None:
    models = [network(0, TruncatedPoisson(0.06)), network(1, TruncatedPoisson(4.0))]
    deep = len(models[1].layers)
    assert len(models[0].layers) < deep
    still = replace(SHORT, structure_rate=0.0, epochs=4)
    before = {name: p.clone() for name, p in network(0, TruncatedPoisson(4.0)).named_parameters()}
    seen: list[BatchedRuns] = []
    fit_batched(models, [Categorical(2)] * 2, [rows(0), rows(1)], training=still, callbacks=[seen.append])
    assert len(models[0].layers) < deep
    models[0].rebuild(models[1].blueprint())  # creates what it had no use for
    for name, p in models[0].named_parameters():
        if name.startswith(f"layers.{deep}."):
            assert torch.equal(p, before[name])


@torch.no_grad()
def test_a_joined_model_gives_what_each_of_its_models_gives() -> None:
    models = [network(0, TruncatedPoisson(0.3)), network(1, TruncatedPoisson(3.0)), network(2, TruncatedPoisson(7.0))]
    whole = models[0].merge(models[1:])
    x, y = rows(0).x, rows(0).y
    for model in models:
        own = dict(model.named_parameters())
        filled = {name: own.get(name, torch.full_like(p, 0.3)) for name, p in whole.named_parameters()}
        mixture = log_predictive(functional_call(whole, filled, (x,)), Categorical(2), y)
        assert torch.allclose(mixture, log_predictive(model.draw(x), Categorical(2), y), atol=1e-12)


def test_a_killed_set_of_trainings_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    train, valid = [rows(i) for i in range(F)], [rows(i + F) for i in range(F)]
    training = replace(SHORT, patience=4)

    def start() -> list[UnboundedDepth]:
        return [network(i) for i in range(F)]

    whole = start()
    unbroken = state_of(fit_batched, whole, [Categorical(2)] * F, train, valid, training=training)
    for epoch in (2, 10, 20):
        keeper = Checkpoint(tmp_path / str(epoch), seconds=0.0)

        def halt(runs: BatchedRuns, at: int = epoch) -> None:
            runs.pause = runs.epoch == at

        with contextlib.suppress(PausedError):
            fit_batched(start(), [Categorical(2)] * F, train, valid, training=training, callbacks=[halt, keeper])
        again = start()
        start_at = keeper.load()
        runs = state_of(fit_batched, again, [Categorical(2)] * F, train, valid, training=training, resume=start_at)
        assert runs.history == unbroken.history
        assert [m.history for m in runs.members] == [m.history for m in unbroken.members]
        for a, b in zip(whole, again, strict=True):
            assert a.blueprint() == b.blueprint()
            assert all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_a_member_that_diverges_is_given_up_and_the_others_go_on() -> None:
    trainings = [SHORT, replace(SHORT, learning_rate=1e300)]
    models = [network(0), network(1)]
    first, second = fit_batched(
        models, [Categorical(2)] * 2, [rows(0), rows(1)], [rows(2), rows(3)], training=trainings
    )
    assert not first.error
    assert "lower learning_rate" in second.error
    alone = network(0)
    fit(alone, Categorical(2), rows(0), rows(2), training=SHORT, seed=0)
    assert furthest(models[0], alone) < 1e-9
    with pytest.raises(DivergenceError, match="after epoch"):
        fit_batched([network(1)], [Categorical(2)], rows(1), training=trainings[1])


def test_densities_are_those_of_the_members() -> None:
    train = [rows(i) for i in range(F)]
    found = []
    models = [network(i) for i in range(F)]

    def look(runs: BatchedRuns) -> None:
        found.append(log_densities(runs, PaddedRows.of("test", train, F).take(runs.active, slice(None))))

    fit_batched(models, [Categorical(2)] * F, train, training=replace(SHORT, epochs=2), callbacks=[look])
    for model, own, seen in zip(models, train, found[-1], strict=True):
        assert torch.allclose(log_predictive(model.draw(own.x), Categorical(2), own.y), seen, atol=1e-12)


def test_drawn_weights_go_side_by_side() -> None:
    models = [network(i, FixedDepth((1,)), weights="meanfield") for i in range(F)]
    for member in fit_batched(models, [Categorical(2)] * F, rows(0), rows(1), training=replace(SHORT, epochs=40)):
        assert member.history[-1]["elbo"] > member.history[0]["elbo"]
        assert member.history[-1]["divergence_weights"] > 0.0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"models": [network(0), network(1, min_depth=0)]}, "differ in more than seeds"),
        ({"models": [network(0), network(1, StickBreaking(1.0))]}, "differ in more than seeds"),
        ({"train": [rows(0), rows(1, n=50)]}, "sets of equal size"),
        ({"train": [rows(0)]}, "2 models and 1 sets"),
        ({"train": [rows(0), rows(1, weighted=True)]}, "sample weights in all"),
        ({"likelihoods": [Categorical(2)]}, "1 likelihoods"),
        ({"likelihoods": [Categorical(2), Categorical(3)]}, "likelihoods differ"),
        ({"seeds": [1]}, "1 seeds"),
        ({"training": [SHORT, replace(SHORT, epochs=3)]}, "differ in options other than"),
        ({"training": replace(SHORT, optimizer="sgd")}, "optimizer='sgd'"),
        ({"training": replace(SHORT, structure_optimizer="natural")}, "structure_optimizer"),
        ({"training": replace(SHORT, max_growth=1)}, "max_growth"),
        ({"models": []}, "0 models"),
    ],
)
def test_what_cannot_go_side_by_side_is_refused(change: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {
        "models": [network(0), network(1)],
        "likelihoods": [Categorical(2), Categorical(2)],
        "train": [rows(0), rows(1)],
        **change,
    }
    with pytest.raises(DataError, match=told):
        fit_batched(**given)


def test_running_statistics_are_refused() -> None:
    net = ConvNet(1, 8, 2, base=2)
    models = [UnboundedDepth(net.layer, net.head, seed=i) for i in range(2)]
    data = Rows(torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(DataError, match="norm='group'"):
        fit_batched(models, [Categorical(2)] * 2, data)


# ---- restarts of estimators


def quick(kind: Any, **options: Any) -> Any:
    return kind(**{"random_state": 0, "epochs": 30, "width": 8, "structure_from": "elbo", **options})


def test_the_best_restart_has_the_best_validation_score() -> None:
    X, y = load_diabetes(return_X_y=True)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        several = quick(UnboundedDepthRegressor, n_restarts=4).fit(X, y)
        one = quick(UnboundedDepthRegressor).fit(X, y)
    assert several.validation_score_ >= one.validation_score_  # the first start is the one alone
    assert type(several.model_) is type(one.model_)


def test_restarts_without_held_out_rows_go_by_the_bound() -> None:
    X, y = load_iris(return_X_y=True)
    several = quick(UnboundedDepthClassifier, n_restarts=3, validation_fraction=0.0, patience=None).fit(X, y)
    one = quick(UnboundedDepthClassifier, validation_fraction=0.0, patience=None).fit(X, y)
    assert several.history_[-1]["elbo"] >= one.history_[-1]["elbo"] - 1e-6
    assert several.validation_score_ is None


@pytest.mark.parametrize("kind", [UnboundedDepthRegressor, UnboundedDepthClassifier])
def test_an_average_of_restarts_predicts_the_mixture_and_comes_back_from_disk(kind: Any, tmp_path: Path) -> None:
    X, y = load_diabetes(return_X_y=True) if kind is UnboundedDepthRegressor else load_iris(return_X_y=True)
    fitted = quick(kind, n_restarts=Restarts(count=3, keep="average")).fit(X, y)
    members = fitted.model_.members
    assert len(members) == 3
    if kind is UnboundedDepthClassifier:
        x = torch.as_tensor((X - X.mean(0)) / X.std(0), dtype=fitted.model_.dtype)
        with torch.no_grad():
            each = [
                (m.draw(x).log_weight.exp() @ m.draw(x).f.softmax(-1).flatten(1)).reshape(len(X), -1) for m in members
            ]
        assert np.allclose(fitted.predict_proba(X), torch.stack(each).mean(0).numpy(), atol=1e-6)
    assert math.isclose(sum(fitted.depth_posterior_.values()), 1.0, abs_tol=1e-9)
    fitted.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert np.array_equal(again.predict(X), fitted.predict(X))
    assert again.depth_posterior_ == fitted.depth_posterior_


def test_restarts_resume_from_a_checkpoint_to_the_same_bytes(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    options = {"n_restarts": Restarts(count=3, keep="average"), "patience": 3}
    whole = quick(UnboundedDepthClassifier, **options, checkpoint=tmp_path / "a").fit(X, y)

    def halt(runs: Any) -> None:
        runs.pause = runs.epoch >= 16

    with pytest.raises(PausedError):
        quick(
            UnboundedDepthClassifier,
            **options,
            checkpoint=CheckpointOptions(tmp_path / "b", seconds=0.0),
            callbacks=[halt],
        ).fit(X, y)
    again = quick(UnboundedDepthClassifier, **options, checkpoint=tmp_path / "b").fit(X, y)
    assert np.array_equal(whole.predict_proba(X), again.predict_proba(X))
    assert whole.history_ == again.history_


def test_restarts_refuse_what_they_cannot_do() -> None:
    X, y = load_iris(return_X_y=True)
    fitted = quick(UnboundedDepthClassifier, warm_start=True).fit(X, y)
    before = fitted.predict_proba(X)
    with pytest.raises(DataError, match="warm_start"):
        fitted.set_params(n_restarts=2).fit(X, y)
    assert np.array_equal(fitted.predict_proba(X), before)
    with pytest.raises(DataError, match="n_restarts__keep='median'"):
        quick(UnboundedDepthClassifier, n_restarts=Restarts(count=2, keep="median")).fit(X, y)
    with pytest.raises(DataError, match="n_restarts=0"):
        quick(UnboundedDepthClassifier, n_restarts=0).fit(X, y)


def test_estimators_that_are_fitted_together_are_those_that_are_fitted_alone() -> None:
    X, y = load_diabetes(return_X_y=True)
    folds = [np.random.default_rng(i).permutation(len(X))[:300] for i in range(3)]

    def start() -> list[UnboundedDepthRegressor]:
        return [quick(UnboundedDepthRegressor, random_state=i, learning_rate=5e-3 * (i + 1)) for i in range(3)]

    together = start()
    fit_together(together, [(X[rows], y[rows]) for rows in folds])
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for alone, one, rows in zip(start(), together, folds, strict=True):
            alone.fit(X[rows], y[rows])
            assert np.allclose(one.predict(X), alone.predict(X), rtol=1e-8)
            assert one.depth_posterior_ == pytest.approx(alone.depth_posterior_)
            assert one.n_iter_ == alone.n_iter_
            assert np.array_equal(one.held_out_, alone.held_out_)


def test_tables_that_differ_in_size_are_not_fitted_together() -> None:
    X, y = load_diabetes(return_X_y=True)
    models = [quick(UnboundedDepthRegressor) for _ in range(2)]
    with pytest.raises(DataError, match="sets of equal size"):
        fit_together(models, [(X, y), (X[:300], y[:300])])
    with pytest.raises(DataError, match="2 estimators and 1 tables"):
        fit_together(models, [(X, y)])
    assert "model_" not in vars(models[0])
