"""The training loop: what a step may do, what a run can survive, what it reports."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fathomless.data.rows import Rows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold.search import StructureSearch
from fathomless.inference.runs.callbacks import Checkpoint
from fathomless.inference.runs.run import Fitted, Run, check
from fathomless.inference.variational import svi
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training, schedule
from fathomless.nn.architectures import MLP
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.laws import FixedDepth, StickBreaking, TruncatedPoisson
from fathomless.posterior.likelihoods import Categorical, Gaussian
from fathomless.posterior.model import Draws, Model
from fathomless.system.errors import DataError, DataWarning, DivergenceError, FileError
from fathomless.system.progress import Progress, Terminal
from trainings import Syncs, state_of


def rows(n: int = 128, dtype: torch.dtype = torch.float32) -> Rows:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(n, 2, generator=g, dtype=dtype)
    return Rows(x, (x[:, 0] * x[:, 1] > 0).long())


def model(**options: Any) -> UnboundedDepth:
    net = MLP(2, 2, 8)
    return UnboundedDepth(net.layer, net.head, **options)


@pytest.mark.parametrize("law", [TruncatedPoisson(), StickBreaking()], ids=repr)
@pytest.mark.parametrize("weights", ["map", "meanfield"])
@pytest.mark.parametrize("moving", [True, False])
def test_the_step_reads_nothing_back_from_the_device(law: Any, weights: str, moving: bool) -> None:
    data = rows()
    for optimizer, clip in (("adam", None), ("adam", 1.0), ("sgd", None)):
        training = Training(optimizer=optimizer, clip_norm=clip)
        run = Run(model(law=law, weights=weights), Categorical(2), training, seed=0)
        svi._set_rates(run, 1, moving)
        svi._step(run, data, len(data))  # the first step makes the optimiser's state
        run.optimizer.zero_grad()
        with Syncs() as syncs:
            svi._step(run, data, len(data))
        # the optimiser's own step counters live on the host when tensors do
        assert syncs.found == []


def test_the_detector_finds_a_read() -> None:
    with Syncs() as syncs:
        float(torch.ones(2).sum())
    assert syncs.found == ["_local_scalar_dense"]


def bytes_of(fitted: Fitted) -> dict[str, bytes]:
    state = {**fitted.model.state_dict(), **fitted.likelihood.state_dict()}
    return {name: value.detach().numpy().tobytes() for name, value in state.items()}


def kept(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all that a checkpoint holds."""
    tensors, meta = Checkpoint(folder).load() or ({}, {})
    return {**{name: value.numpy().tobytes() for name, value in tensors.items()}, "meta": json.dumps(meta).encode()}


@pytest.mark.parametrize("weights", ["map", "meanfield"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("law", [TruncatedPoisson(), StickBreaking()], ids=repr)
def test_a_run_resumed_from_any_checkpoint_ends_in_the_same_bytes(
    tmp_path: Path, weights: str, optimizer: str, law: Any
) -> None:
    data, valid = rows(), rows(40)
    rate = 30.0 if optimizer == "adam" else 30.0 if weights == "meanfield" else 600.0
    training = Training(
        epochs=8,
        batch_size=32,
        optimizer=optimizer,
        nesterov=optimizer == "sgd",
        averaging=1.5 if optimizer == "sgd" else 0.0,
        structure_rate=rate,
        structure_every=2,
        clip_norm=1.0,
        patience=6,
    )

    def run(callbacks: tuple[Any, ...] = (), resume: Any = None) -> Fitted:
        likelihood, seeded = Categorical(2), model(law=law, weights=weights, seed=4)
        return fit(seeded, likelihood, data, valid, training=training, seed=9, callbacks=callbacks, resume=resume)

    folders = itertools.count()

    def keep(state: Run) -> None:
        Checkpoint(tmp_path / str(next(folders)), seconds=0.0)(state)

    whole = run((keep,))
    assert len({row["deepest"] for row in whole.history}) > 1  # the network changed its depth on the way
    count = next(folders)
    for i in range(count):
        again = tmp_path / f"again-{i}"
        resumed = run((Checkpoint(again, seconds=0.0),), resume=Checkpoint(tmp_path / str(i)).load())
        assert bytes_of(resumed) == bytes_of(whole)
        assert resumed.history == whole.history
        if i < count - 1:  # the last one was at the end already
            assert kept(again) == kept(tmp_path / str(count - 1))


def linear_model() -> UnboundedDepth:
    """A linear classifier."""
    net = MLP(2, 2, 4)
    return UnboundedDepth(net.layer, net.head, law=FixedDepth((0,)), min_depth=0, seed=2)


@pytest.mark.parametrize("valid", [True, False])
def test_results_and_scores_have_the_moving_average_of_the_weights(valid: bool) -> None:
    data, held_out = rows(), rows(40)
    steps: list[dict[str, Tensor]] = []
    averages: list[dict[str, Tensor]] = []

    def follow(run: Run) -> None:  # one step in an epoch
        steps.append({name: value.clone() for name, value in run.model.state_dict().items()})
        share = max(1.0 / len(steps), 1.0 / 4.0)
        before = averages[-1] if averages else steps[-1]
        averages.append({name: old + share * (steps[-1][name] - old) for name, old in before.items()})

    training = Training(epochs=10, batch_size=len(data), schedule="constant", averaging=4.0, learning_rate=0.1)
    fitted = fit(
        linear_model(), Categorical(2), data, held_out if valid else None, training=training, callbacks=(follow,)
    )
    best = len(steps) - 1
    if valid:
        scores = [row["validation_log_likelihood"] for row in fitted.history]
        best = max(range(len(scores)), key=scores.__getitem__)
        assert fitted.score == scores[best]
        model = linear_model()
        for average, found in zip(averages, scores, strict=True):
            model.load_state_dict(average)
            log_p = model.draw(held_out.x).f[0].log_softmax(-1).gather(-1, held_out.y[:, None])
            assert found == pytest.approx(log_p.mean().item(), abs=1e-5)
    for name, value in fitted.model.state_dict().items():
        torch.testing.assert_close(value, averages[best][name])
        assert not torch.equal(value, steps[best][name])


def test_a_search_continues_from_averaged_weights_and_returns_them() -> None:
    """The state after exploring is the best average so far, and new parts are averaged too."""
    training = Training(epochs=20, batch_size=32, averaging=2.0)
    search = StructureSearch(training.epochs, first=3)
    begun: list[dict[str, Tensor]] = []

    def look(run: Run) -> None:
        assert run.averages is not None
        followed = {name.removeprefix("model/") for name in run.averages.values}
        assert {name for name, _ in run.model.named_parameters()} == followed
        if run.epoch == search.explored:
            begun.append({name: value.clone() for name, value in run.model.state_dict().items()})
            best = run.best.state
            assert all(torch.equal(best[f"model/{name}"], value) for name, value in begun[0].items())

    fitted = fit(model(), Categorical(2), rows(400), rows(100), training=training, search=search, callbacks=(look,))
    assert begun
    assert fitted.score == max(row["validation_log_likelihood"] for row in fitted.history)


def test_images_are_scored_and_calibrated_in_small_parts() -> None:
    """Large images need more memory than rows of a table; parts have at most 2²² numbers."""
    x = torch.randn(10, 1, 1024, 1024, generator=torch.Generator().manual_seed(0))
    assert [len(part) for part in Rows(x, torch.zeros(10)).parts(8192)] == [4, 4, 2]
    images = Rows(x[:, :, ::64, ::64], torch.arange(10) % 2)
    wide = Rows(images.x.repeat(1, 1, 64, 64), images.y)

    def layer(depth: int) -> nn.Module:
        return nn.Sequential(nn.AdaptiveAvgPool2d(16), nn.Flatten(), nn.Linear(256, 4))

    model = UnboundedDepth(layer, lambda depth: nn.Linear(4, 2), law=FixedDepth((0,)), seed=2)
    pooled = Rows(nn.functional.adaptive_avg_pool2d(wide.x, 16), wide.y)
    warm, same = Categorical(2, temperature=True), Categorical(2, temperature=True)
    assert svi.calibrate(model, warm, wide) == pytest.approx(svi.calibrate(model, same, pooled), abs=1e-5)
    with pytest.raises(DataError, match="0 validation rows were given"):
        svi.calibrate(model, warm, wide.take(slice(0, 0)))


def test_calibration_is_that_of_evaluation_mode_and_restores_the_modes() -> None:
    """Neither dropout nor label smoothing changes the temperature."""
    data = rows()

    def layer(depth: int) -> nn.Module:
        return nn.Sequential(nn.Linear(2 if depth == 1 else 4, 4), nn.Dropout(0.5))

    network = UnboundedDepth(layer, lambda depth: nn.Linear(4, 2), law=FixedDepth((1,)), seed=2).eval()
    plain, smoothed = Categorical(2, temperature=True), Categorical(2, temperature=True, smoothing=0.3)
    score = svi.calibrate(network, plain.eval(), data)
    assert svi.calibrate(network.train(), smoothed.train(), data) == score
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), smoothed.parameters(), strict=True))
    assert all(part.training for part in (*network.modules(), *smoothed.modules()))


def test_checkpoints_without_averages_are_not_continued_with_them(tmp_path: Path) -> None:
    for first, second in ((0.0, 1.0), (1.0, 0.0)):
        keeper = Checkpoint(tmp_path / str(first), seconds=0.0)
        fit(model(), Categorical(2), rows(), training=Training(epochs=2, averaging=first), callbacks=(keeper,))
        with pytest.raises(DataError, match=f"averaging={second:g} was given, and the checkpoint was written with"):
            fit(
                model(),
                Categorical(2),
                rows(),
                training=Training(epochs=3, averaging=second),
                resume=keeper.load(),
            )


def test_indicators_of_classes_are_refused_with_advice() -> None:
    with pytest.raises(DataError, match=r"use y\.argmax\(1\)"):
        Categorical(3).log_prob(torch.zeros(1, 4, 3), torch.zeros(4, 3))


@pytest.mark.parametrize("nesterov", [True, False])
def test_steps_with_momentum_are_those_of_torch(nesterov: bool) -> None:
    data = rows()
    training = Training(
        epochs=5, batch_size=len(data), schedule="constant", optimizer="sgd", nesterov=nesterov, learning_rate=0.5
    )
    fitted = fit(linear_model(), Categorical(2), data, training=training)
    weight, bias = (p.detach().clone().requires_grad_() for p in linear_model().parameters())
    optimizer = torch.optim.SGD([weight, bias], lr=0.5, momentum=0.9, nesterov=nesterov)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(data.x @ weight.T + bias, data.y)
        (loss + 0.5 * (weight.square().sum() + bias.square().sum()) / len(data)).backward()
        optimizer.step()
    for found, expected in zip(fitted.model.parameters(), (weight, bias), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("options", [{"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.0}])
def test_nesterov_is_refused_without_momentum(options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="nesterov=True was given with optimizer="):
        Training(nesterov=True, **options)


def test_smoothed_classes_are_trained_to_finite_logits_and_scored_by_the_model() -> None:
    """With separable rows, the logits of the optimum are log((1 − ε/2) / (ε/2)) apart; the score is not smoothed."""
    x = torch.tensor([[-1.0], [1.0]]).repeat(50, 1)
    data = Rows(x, (x[:, 0] > 0).long())
    net = MLP(1, 2, 4)
    linear = UnboundedDepth(
        net.layer, net.head, law=FixedDepth((0,)), min_depth=0, weight_prior=WeightPrior(1e3), seed=2
    )
    training = Training(epochs=400, batch_size=100, learning_rate=0.05)
    fitted = fit(linear, Categorical(2, smoothing=0.2), data, training=training)
    f = linear.draw(data.x).f
    apart = (f[0, :, 1] - f[0, :, 0]) * x[:, 0]
    torch.testing.assert_close(apart, torch.full((100,), math.log(0.9 / 0.1)), atol=0.02, rtol=0.0)
    log_p = fitted.likelihood.log_prob(f, data.y)
    torch.testing.assert_close(log_p, f.log_softmax(-1).gather(-1, data.y[None, :, None])[..., 0])


def test_checkpoints_of_another_run_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    keeper = Checkpoint(tmp_path, seconds=0.0, extra={"data": "a"})
    assert keeper.load() is None
    fit(model(), Categorical(2), rows(), training=Training(epochs=1), callbacks=(keeper,))
    assert keeper.load() is not None
    with pytest.raises(DataError, match="other data or other options"):
        Checkpoint(tmp_path, extra={"data": "b"}).load()
    tensors = next(tmp_path.glob("*.safetensors"))
    tensors.write_bytes(tensors.read_bytes()[:-9])
    with pytest.raises(FileError):
        keeper.load()


def test_the_best_validation_state_is_restored() -> None:
    data, valid = rows(60), rows(50)
    labels = valid.y.clone()
    labels[::3] = 1 - labels[::3]  # noise makes the training overfit
    valid = Rows(valid.x, labels)
    run = fit(model(), Categorical(2), data, valid, training=Training(epochs=150, schedule="constant"), seed=0)
    scores = [row["validation_log_likelihood"] for row in run.history]
    assert run.score == max(scores)
    assert scores[-1] < max(scores)
    again = Run(run.model, run.likelihood, Training(), seed=0)
    assert svi.score(again, valid) == pytest.approx(max(scores), abs=1e-9)


def test_patience_stops_the_run() -> None:
    hard = rows(30)
    hard = Rows(hard.x, 1 - hard.y)
    run = state_of(fit, model(), Categorical(2), rows(40), hard, training=Training(epochs=500, patience=4), seed=0)
    assert run.epoch < 500
    assert run.best.since == 4
    assert run.epoch == run.best.epoch + 4
    assert run.result().stopped


def test_history_adds_up() -> None:
    """The bound is the log-likelihood minus its divergences, each in nats for the data set."""
    data = rows(100)
    m, likelihood = model(dtype=torch.float64), Categorical(2)
    data = Rows(data.x.double(), data.y)
    run = fit(m, likelihood, data, training=Training(epochs=3, batch_size=32, temperature=0.5), seed=0)
    for row in run.history:
        parts = row["log_likelihood"] - 0.5 * row["divergence_weights"] - row["divergence_depth"]
        assert row["elbo"] == pytest.approx(parts)
        assert row["divergence_weights"] > 0.0
        assert {"epoch", "step", "learning_rate", "mean_depth", "deepest"} <= set(row)


def test_an_epoch_of_many_steps_reports_what_one_batch_reports() -> None:
    data, told = rows(1100, torch.float64), []
    for size in (1, 1100):  # more steps than are summed at once; weights that stand still
        still = Training(epochs=1, batch_size=size, learning_rate=1e-15)
        told.append(fit(model(seed=0).double(), Categorical(2), data, training=still).history[-1])
    for name in ("elbo", "log_likelihood", "divergence_weights", "divergence_depth"):
        assert told[0][name] == pytest.approx(told[1][name], rel=1e-9)


def test_a_divergence_names_the_first_tensor_that_is_not_finite() -> None:
    data = rows()
    broken = Rows(torch.full_like(data.x, math.inf), data.y)
    with pytest.raises(DivergenceError, match="x \\(the inputs\\)"):
        fit(model(), Categorical(2), broken, training=Training(epochs=1))
    spoiled = model()
    with torch.no_grad():
        next(spoiled.layers["2"].parameters())[0, 0] = math.nan
    with pytest.raises(DivergenceError, match=r"model/layers"):
        fit(spoiled, Categorical(2), data, training=Training(epochs=1, learning_rate=1e-9))


def test_sgd_divides_by_usage_so_that_new_parts_learn() -> None:
    """With the survival preconditioner a deep layer's gradient does not carry its small weight."""
    data = rows()
    m = model(law=TruncatedPoisson(0.4), dtype=torch.float64)
    data = Rows(data.x.double(), data.y)
    run = Run(m, Categorical(2), Training(optimizer="sgd"), seed=0)
    run.optimizer.param_groups[0]["lr"] = 0.0
    svi._step(run, data, len(data))
    usage = m.use_probability()
    name = f"heads.{m.depth}.weight"
    conditioned = dict(m.named_parameters())[name].grad
    assert conditioned is not None
    conditioned = conditioned.clone()
    m.zero_grad()
    plain = Run(m, Categorical(2), Training(optimizer="sgd", precondition=False), seed=0)
    plain.optimizer.param_groups[0]["lr"] = 0.0
    svi._step(plain, data, len(data))
    gradient = dict(m.named_parameters())[name].grad
    assert gradient is not None
    assert torch.allclose(conditioned, gradient / usage[name], rtol=1e-9)
    assert float(usage[name]) < 0.1


def test_structure_waits_during_its_delay_and_obeys_its_growth_limit() -> None:
    training = Training(epochs=6, structure_rate=200.0, structure_every=1, structure_delay=3, max_growth=1)
    data = rows()
    run = fit(model(law=TruncatedPoisson(1.0), prior=None), Categorical(2), data, training=training)
    depth = [row["mean_depth"] for row in run.history]
    assert depth[0] == depth[1] == depth[2]
    assert depth[3] != depth[2]
    deepest = [row["deepest"] for row in run.history]
    assert all(b - a <= 1 for a, b in itertools.pairwise(deepest))


def test_new_parameters_join_the_groups_that_schedules_know() -> None:
    m = model()
    run = Run(m, Categorical(2), Training(), seed=0)
    with torch.no_grad():
        m.law_parameters[0].fill_(6.0)
    m.grow()
    run.register_parameters()
    assert len(run.optimizer.param_groups) == 2
    owned = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in m.parameters()} <= owned
    assert sum(len(group["params"]) for group in run.optimizer.param_groups) == len(owned)


def test_mixed_precision_keeps_the_weights_and_trains() -> None:
    data = rows(512)
    m = model()
    run = fit(m, Categorical(2), data, training=Training(epochs=30, mixed=True), seed=0)
    assert run.history[-1]["log_likelihood"] > run.history[0]["log_likelihood"]
    assert {p.dtype for p in m.layers.parameters()} == {torch.float32}


def test_batch_norm_and_regression_run(generator: torch.Generator) -> None:
    net = MLP(2, 1, 8)

    def layer(k: int) -> nn.Module:
        return nn.Sequential(*net.layer(k), nn.BatchNorm1d(8))

    x = torch.randn(90, 2, generator=generator)
    y = (x[:, :1] * 2).sin()
    m = UnboundedDepth(layer, net.head)
    fit(m, Gaussian(noise="learned"), Rows(x, y), Rows(x, y), training=Training(epochs=60, batch_size=40), seed=0)
    assert not m.training
    before = {name: value.clone() for name, value in m.state_dict().items()}
    m.draw(x)
    assert all(torch.equal(value, m.state_dict()[name]) for name, value in before.items())  # evaluation changes nothing
    mean = (m.draw(x).log_weight.exp()[:, None, None] * m.draw(x).f).sum(0)
    assert float(((mean - y) ** 2).mean().detach()) < 0.05


@pytest.mark.parametrize(("plan", "values"), [("constant", [1.0, 1.0]), ("cosine", [1.0, 0.5])])
def test_schedules_start_and_pass_their_middle(plan: str, values: list[float]) -> None:
    assert [schedule(plan, 0, 100, 1), schedule(plan, 50, 100, 1)] == pytest.approx(values)


def test_one_cycle_rises_and_falls() -> None:
    path = [schedule("one_cycle", step, 100, 1) for step in range(100)]
    assert path[0] < 0.1
    assert path.index(max(path)) == 30
    assert path[-1] < 0.01


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": math.nan},
        {"structure_rate": -1.0},
        {"optimizer": "lion"},
        {"schedule": "linear"},
    ],
    ids=str,
)
def test_options_that_are_not_allowed_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=next(iter(options))):
        Training(**options)


def test_progress_is_told_everything(capsys: pytest.CaptureFixture[str]) -> None:
    class Log(Progress):
        def __init__(self) -> None:
            self.events: list[Any] = []

        def start(self, total: int, done: int = 0) -> None:
            self.events.append(("start", total, done))

        def advance(self, done: int, values: Any) -> None:
            self.events.append(done)

        def close(self) -> None:
            self.events.append("close")

    log = Log()
    fit(model(), Categorical(2), rows(), training=Training(epochs=3), progress=log)
    assert log.events == [("start", 3, 0), 1, 2, 3, "close"]
    fit(model(), Categorical(2), rows(), training=Training(epochs=2), progress=Terminal())
    assert "2/2" in capsys.readouterr().err


def test_batches_cover_every_row_once_and_differ_by_one() -> None:
    data = Rows(torch.arange(103.0)[:, None], torch.arange(103))
    batches = list(data.batches(math.ceil(len(data) / 4), torch.Generator().manual_seed(0)))
    assert sorted(torch.cat([b.y for b in batches]).tolist()) == list(range(103))
    assert {len(b) for b in batches} <= {25, 26}
    seen: Tensor = batches[0].y
    assert seen.tolist() != list(range(len(seen)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_survives_growth(momentum: float) -> None:
    m, data = model(), rows()
    run = Run(m, Categorical(2), Training(optimizer="sgd", momentum=momentum), seed=0)
    svi._step(run, data, len(data))
    with torch.no_grad():
        m.law_parameters[0].add_(2.0)
    assert m.grow() > 0
    run.register_parameters()
    svi._step(run, data, len(data))
    newest = m.layers[str(m.depth)]
    assert all(p.grad is not None for p in newest.parameters())


def test_dropout_in_a_user_s_layer_resumes_in_the_same_bytes(tmp_path: Path) -> None:
    """Dropout reads torch's global stream; the loop lends it one that starts anew with every epoch."""
    net = MLP(2, 2, 8)

    def run(**options: Any) -> Fitted:
        m = UnboundedDepth(lambda k: nn.Sequential(*net.layer(k), nn.Dropout(0.3)), net.head, seed=1)
        torch.rand(torch.randint(9, ()).item() + 1)  # what the program drew before must not matter
        return fit(m, Categorical(2), rows(), training=Training(epochs=6, batch_size=32), seed=2, **options)

    whole = run(callbacks=[lambda state: Checkpoint(tmp_path / str(state.epoch), seconds=0.0)(state)])
    before = torch.get_rng_state()
    resumed = run(resume=Checkpoint(tmp_path / "3").load())
    assert bytes_of(resumed) == bytes_of(whole)
    torch.set_rng_state(before)


def test_the_natural_gradient_finds_the_depth_fast_and_stays_in_its_trust_region() -> None:
    data = rows(512)
    options = {"epochs": 60, "structure_every": 4, "structure_radius": 0.2}
    runs = {
        kind: fit(
            model(seed=1),
            Categorical(2),
            data,
            training=Training(structure_optimizer=kind, structure_rate=0.3 if kind == "adam" else 1.0, **options),
        )
        for kind in ("adam", "natural")
    }
    path = {kind: [row["mean_depth"] for row in run.history] for kind, run in runs.items()}
    assert abs(path["natural"][-1] - path["natural"][0]) > abs(path["adam"][-1] - path["adam"][0])
    # one look per epoch at most: a step of 0.2 standard deviations of a Poisson law of rate below 10
    assert max(abs(b - a) for a, b in itertools.pairwise(path["natural"])) < 0.2 * 10**0.5
    late = path["natural"][-6:]
    assert max(late) - min(late) < 0.2  # the schedule brings it to rest


def test_clipping_leaves_the_structure_alone() -> None:
    data = rows()
    gradients = []
    for clip in (None, 1e-6):
        m = model(dtype=torch.float64)
        run = Run(m, Categorical(2), Training(clip_norm=clip), seed=0)
        run.optimizer.param_groups[0]["lr"] = run.optimizer.param_groups[1]["lr"] = 0.0
        svi._step(run, Rows(data.x.double(), data.y), len(data))
        gradient = m.law_parameters[0].grad
        assert gradient is not None
        gradients.append(gradient.item())
    assert gradients[0] == gradients[1] != 0.0


def test_calibration_widens_noise_that_overfitting_made_too_small() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=g, dtype=torch.float64)
    y = torch.randn(60, 1, generator=g, dtype=torch.float64)
    net = MLP(5, 1, 32)
    scales, scores = [], []
    for calibrate in (False, True):
        m, likelihood = UnboundedDepth(net.layer, net.head, dtype=torch.float64), Gaussian(noise="learned").double()
        valid = Rows(x[30:], y[30:])
        # train first, so that the best state is the overfitted one
        run = fit(m, likelihood, Rows(x[:30], y[:30]), training=Training(epochs=300), seed=0)
        run = Run(m, likelihood, Training(calibrate=calibrate), seed=0)
        if calibrate:
            svi.calibrate(m, likelihood, valid)
        scales.append(likelihood.noise.log_scale().exp().item())  # type: ignore[operator, union-attr]
        scores.append(svi.score(run, valid))
    assert scales[1] > 2.0 * scales[0]
    assert scores[1] > scores[0] + 0.5


def test_a_training_that_fails_leaves_the_best_state(generator: torch.Generator) -> None:
    data, valid = rows(), rows(40)
    m = model()

    def spoil(run: Run) -> None:
        if run.epoch == 5:
            with torch.no_grad():
                run.model.law_parameters[0].fill_(math.nan)  # type: ignore[index, union-attr]

    with pytest.raises(DivergenceError, match="law_parameters"):
        fit(m, Categorical(2), data, valid, training=Training(epochs=20, structure_every=1), callbacks=(spoil,))
    assert bool(m.draw(data.x).f.isfinite().all())


def test_a_warm_up_begins_without_divergence_and_ends_at_the_temperature() -> None:
    """The first step is one at no temperature; the history tells the bound at the final one."""
    data, found = rows(), {}
    for name, options in {"warm": {"warm_up": 0.5}, "cold": {"temperature": 1e-12}, "plain": {}}.items():
        training = Training(epochs=1, batch_size=128, **options)  # type: ignore[arg-type]
        own = model(seed=1)
        found[name] = [p.detach() for p in own.parameters()], fit(own, Categorical(2), data, training=training).history
    warm, cold, plain = (
        torch.cat([p.double().flatten() for p in found[name][0]]) for name in ("warm", "cold", "plain")
    )
    torch.testing.assert_close(warm, cold, rtol=0, atol=1e-6)
    assert float((warm - plain).abs().max()) > 1e-4
    assert found["warm"][1][0]["elbo"] == found["plain"][1][0]["elbo"]


def test_no_epoch_of_the_warm_up_is_kept() -> None:
    """Held-out rows of pure noise are predicted best by the first epochs."""
    g = torch.Generator().manual_seed(0)
    noise, kept = Rows(torch.randn(64, 2, generator=g), torch.randint(2, (64,), generator=g)), []

    def keep(run: Run) -> None:
        kept.append(run.best.epoch)

    for warm_up in (0.6, 0.0):
        training = Training(epochs=20, batch_size=64, learning_rate=0.05, warm_up=warm_up)
        fit(model(seed=1), Categorical(2), noise, rows(64), training=training, callbacks=[keep])
    assert kept[19] >= 12 > kept[39] > 0


@pytest.mark.parametrize("size", [1e6, 30.0, 1e-4])
def test_targets_far_from_size_1_are_reported(size: float) -> None:
    x = torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
    net = MLP(1, 1, 4)
    with pytest.warns(DataWarning, match=r"root mean square of the targets is .*Train on \(y - y.mean"):
        fit(UnboundedDepth(net.layer, net.head), Gaussian(), Rows(x, size * x), training=Training(epochs=1))


@pytest.mark.parametrize(("size", "noise"), [(5.0, "learned"), (0.2, "learned"), (1e6, 1e5), (0.0, "learned")])
def test_targets_of_usual_size_and_known_noise_are_not_reported(size: float, noise: Any) -> None:
    x = torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
    net = MLP(1, 1, 4)
    fit(UnboundedDepth(net.layer, net.head), Gaussian(noise=noise), Rows(x, size * x), training=Training(epochs=1))


def test_what_is_no_model_likelihood_or_table_is_named() -> None:
    x, net = torch.zeros(4, 2), model()
    for given, message in (
        ((nn.Linear(2, 2), Categorical(2), rows(4)), "model is a Linear; a Model is allowed, such as bayesian_network"),
        ((net, nn.MSELoss(), rows(4)), r"likelihood=MSELoss\(\) was given; a Likelihood is allowed"),
        ((net, Categorical, rows(4)), "a Likelihood is allowed, such as Gaussian"),
        ((net, Categorical(2), x, x[:, 0].long()), r"give Rows\(x, y\)"),
        (
            (net, Categorical(2), Rows(x, x[:, 0].long(), torch.ones(4, 1))),
            r"weight has shape \(4, 1\); one number for",
        ),
    ):
        with pytest.raises(DataError, match=message):
            fit(*given)  # type: ignore[arg-type]


def test_bounds_in_the_wrong_order_are_refused() -> None:
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    net = MLP(2, 1, 4)
    with pytest.raises(
        DataError, match=r"y has 2 columns and the likelihood 1 target.* for 2 targets use Gaussian\(2\)"
    ):
        fit(UnboundedDepth(net.layer, net.head), Gaussian(), Rows(x, x))
    fit(UnboundedDepth(net.layer, net.head), Gaussian(), Rows(x, x.sort(1).values), training=Training(epochs=1))


def test_weights_of_draws_have_the_sum_one() -> None:
    class Two(Model):
        """Two networks, with a given total weight."""

        stochastic = False

        def __init__(self, total: float) -> None:
            super().__init__()
            self.map, self.total = nn.Linear(2, 2), total

        def draw(self, x: Tensor, n: int = 1, generator: Any = None) -> Draws:
            weight = torch.full((2,), self.total / 2.0, dtype=torch.float64)
            numbers = torch.arange(2)
            return Draws(self.map(x)[None].expand(2, -1, -1), weight.log(), numbers, {"weights": weight * 0.0})

        def structure(self) -> Any:
            return None

    with pytest.raises(
        DataError, match="the weights of the draws have the sum 2; log_weight must have the logsumexp 0"
    ):
        fit(Two(2.0), Categorical(2), rows(8))
    check(Two(1.0), Categorical(2), rows(8))
