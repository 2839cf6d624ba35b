"""Baselines and ensembles: each against a direct implementation, a closed form or enumeration."""

import copy
import csv
import math
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

from fathomless import LaplaceNetworkRegressor, SubspaceNetworkRegressor, SWAGNetworkRegressor
from fathomless.app import cli
from fathomless.app.diagnose import diagnose
from fathomless.data.rows import Rows
from fathomless.estimators.options import ClassOptions, options_of
from fathomless.families.baselines import FAMILIES
from fathomless.families.baselines.model import (
    Dropout,
    depth_uncertainty_network,
    dropout_network,
    finite_network,
    matrix_normal_network,
    mean_field_network,
)
from fathomless.families.depth import deploy
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.registry import estimator_class, families, family_of, load, options, references
from fathomless.inference.runs.run import Run
from fathomless.inference.variational.objective import elbo
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.likelihoods import Categorical
from fathomless.posterior.model import Model
from fathomless.posterior.predictive import predictive
from fathomless.system import io
from fathomless.system.errors import DataError
from quick_fits import checked

NET = MLP(inputs=2, outputs=3, width=6)
BASELINES = {
    "finite": lambda **options: finite_network(NET, 3, **options),
    "linear": lambda **options: finite_network(NET, 0, **options),
    "dun": lambda **options: depth_uncertainty_network(NET, 4, **options),
    "dun with its own heads": lambda **options: depth_uncertainty_network(NET, 4, shared_head=False, **options),
    "meanfield": lambda **options: mean_field_network(NET, 2, **options),
    "mvg": lambda **options: matrix_normal_network(NET, 2, **options),
    "dropout": lambda **options: dropout_network(NET, 3, 0.2, **options),
}
TASKS = ("classification", "regression")
KINDS: dict[str, tuple[Any, Any]] = {
    name: (estimator_class(family.tasks[TASKS[0]]), estimator_class(family.tasks[TASKS[1]]))
    for name, family in families().items()
}
EXTRA = [family.name for family in FAMILIES]

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


def data(n: int = 64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(5)
    x = torch.randn(n, 2, generator=g, dtype=torch.float64)
    return x, (x[:, 0] * x[:, 1] > 0).long() + (x[:, 0] > 1).long()


def decay(module: nn.Module) -> Tensor:
    return 0.5 * sum((p**2).sum() for p in module.parameters())  # type: ignore[return-value]


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unbounded(seed: int, rate: float = 2.0) -> UnboundedDepth:
    model = UnboundedDepth(NET.layer, NET.head, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for p in model.law_parameters:
            p.fill_(rate)
    model.grow()
    return model


# ---------------------------------------------------------------------------------------------- one network


def test_a_finite_network_trains_bit_for_bit_like_one_written_by_hand() -> None:
    x, y = data(256)
    model = finite_network(NET, 2, seed=1, dtype=torch.float64)
    plain = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    plain.load_state_dict(dict(zip(plain.state_dict(), model.state_dict().values(), strict=True)))
    training = Training(epochs=4, batch_size=64, schedule="constant")
    order = Run(copy.deepcopy(model), Categorical(3), training, seed=3).order
    fit(model, Categorical(3), Rows(x, y), training=training, seed=3)
    optimizer = torch.optim.Adam(plain.parameters(), lr=5e-3, eps=1e-10, fused=True)
    for _ in range(4):
        for batch in torch.randperm(256, generator=order).split(64):
            f = plain(x[batch])
            log_p = f.log_softmax(1).gather(1, y[batch, None])[:, 0]
            (-log_p.sum() / 64 + decay(plain) / 256).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(model.draw(x).f[0], plain(x))


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_a_finite_network_has_one_depth_and_pays_nothing_for_it(depth: int) -> None:
    model = finite_network(NET, depth)
    structure = model.structure()
    assert (structure.names, structure.probabilities) == ((str(depth),), (1.0,))
    assert structure.summary == f"depth {depth}, fixed"
    assert model.draw(torch.zeros(1, 2)).divergence["depth"].item() == 0.0
    assert model.grow() == 0
    assert model.structure_parameters() == {}


def test_baselines_start_from_the_same_weights() -> None:
    x = data()[0]
    plain = finite_network(NET, 3, seed=4, dtype=torch.float64)
    without = dropout_network(NET, 3, 0.0, seed=4, dtype=torch.float64)
    whole = depth_uncertainty_network(NET, 3, shared_head=False, seed=4, dtype=torch.float64)
    assert torch.equal(plain.draw(x).f, without.draw(x, 1, noise()).f)
    assert torch.equal(plain.draw(x).f[0], whole.draw(x).f[2])


@pytest.mark.parametrize("shared", [True, False])
def test_the_bound_of_a_depth_uncertainty_network_is_that_of_its_paper(shared: bool) -> None:
    """Σ_d q(d) Σ_b log p(y_b | x_b, d) − KL(q ‖ uniform), with the decay of what each depth uses."""
    x, y = data()
    model = depth_uncertainty_network(NET, 5, shared_head=shared, dtype=torch.float64)
    logits = [0.3 * i for i in range(5)]
    with torch.no_grad():
        for p, logit in zip(model.law_parameters, logits, strict=True):
            p.fill_(logit)
    got = elbo(model.draw(x), Categorical(3), y, size=len(x))
    got.value.backward()
    q = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    alpha, h = torch.softmax(q, 0), x
    expected = -(alpha * (alpha * 5).log()).sum()
    for depth in range(1, 6):
        h = model.layers[str(depth)](h)
        head = model.readout if shared else model.heads[str(depth)]
        assert head is not None
        f = head(h)
        expected = expected - alpha[depth - 1] * F.cross_entropy(f, y, reduction="sum")
        expected = expected - alpha[depth - 1 :].sum() * decay(model.layers[str(depth)])
        expected = expected - (1.0 if shared and depth == 1 else 0.0 if shared else alpha[depth - 1]) * decay(head)
    assert got.value.item() == pytest.approx(expected.item(), rel=1e-10)
    expected.backward()
    gradient = torch.stack([p.grad for p in model.law_parameters if p.grad is not None])
    assert q.grad is not None
    assert torch.allclose(gradient, q.grad, rtol=1e-8)
    assert {id(p) for p in model.parameters()} >= {id(p) for p in model.heads.parameters()}
    assert bool(list(model.heads.parameters())) is not shared


# ---------------------------------------------------------------------------------------------------- dropout


def test_dropout_has_the_mean_and_the_variance_of_its_closed_form() -> None:
    """z / (1 − p) with probability 1 − p, else 0: mean z, variance z² p / (1 − p); through a head V: V² times that."""
    p, n = 0.3, 40_000
    linear = nn.Linear(3, 4, dtype=torch.float64)
    x = torch.randn(2, 3, generator=noise(1), dtype=torch.float64)
    z = linear(x).detach()  # (2, 4)
    layer, g = Dropout(linear, p), noise(2)
    with torch.no_grad():
        drawn = torch.stack([layer(x, g)[0] for _ in range(n)])  # (n, 2, 4)
    assert ((drawn == 0) | torch.isclose(drawn, z / (1 - p))).all()
    error = (z.square() * p / (1 - p) / n).sqrt()
    assert ((drawn.mean(0) - z).abs() < 5 * error).all()
    share = (drawn == 0).double().mean(0)
    assert ((share - p).abs() < 5 * math.sqrt(p * (1 - p) / n)).all()
    v = torch.randn(4, generator=noise(3), dtype=torch.float64)
    f = drawn @ v  # (n, 2)
    variance = (z.square() * v.square()).sum(-1) * p / (1 - p)
    spread = ((f - z @ v).square() - variance).square().mean(0).sqrt() / math.sqrt(n)
    assert ((f - z @ v).square().mean(0) - variance).abs().lt(5 * spread).all()
    rows = drawn[:, 0] == 0, drawn[:, 1] == 0  # masks of two rows are independent
    both = (rows[0] & rows[1]).double().mean(0)
    assert (both - p**2).abs().lt(5 * math.sqrt(p**2 * (1 - p**2) / n)).all()


def test_dropout_charges_the_decay_of_its_prior() -> None:
    prior = WeightPrior(0.5)
    model = dropout_network(NET, 2, 0.1, weight_prior=prior, dtype=torch.float64)
    plain = finite_network(NET, 2, weight_prior=prior, dtype=torch.float64)
    x = data()[0]
    expected = plain.draw(x).divergence["weights"].item()
    assert model.draw(x, 3, noise()).divergence["weights"].item() == pytest.approx(expected, rel=1e-12)


def test_masks_come_from_the_generator_in_training_and_prediction_alike() -> None:
    x = data()[0]
    model = dropout_network(NET, 3, 0.5, dtype=torch.float64)
    before = torch.get_rng_state()
    for mode in (model.train(), model.eval()):
        f = mode.draw(x, 4, noise(7)).f
        assert f.shape == (4, len(x), 3)
        assert torch.equal(f, mode.draw(x, 4, noise(7)).f)
        assert not torch.equal(f, mode.draw(x, 4, noise(8)).f)
        assert not torch.equal(f[0], f[1])
        same = x[:1].expand(9, -1)  # a draw is one network in evaluation; in training rows have their own masks
        assert (
            torch.equal(mode.draw(same, 1, noise()).f[0, 0], mode.draw(same, 1, noise()).f[0, 8]) is not mode.training
        )
    assert torch.equal(before, torch.get_rng_state())
    assert model.stochastic


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_a_rate_of_dropout_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(DataError, match="0 <= rate < 1"):
        dropout_network(NET, 1, rate)


# ------------------------------------------------------------------------------------------------- all models


def ensembles() -> dict[str, Model]:
    return {
        "of finite networks": Ensemble([finite_network(NET, 2, seed=s, dtype=torch.float64) for s in range(3)]),
        "of unbounded depth": Ensemble([unbounded(0, 1.0), unbounded(1, 4.0)], [1.0, 3.0]),
        "of mean fields": Ensemble([mean_field_network(NET, 1, seed=s, dtype=torch.float64) for s in range(2)]),
    }


MODELS = {
    **{name: (lambda build=build: build(dtype=torch.float64)) for name, build in BASELINES.items()},
    **{f"ensemble {name}": (lambda name=name: ensembles()[name]) for name in ensembles()},
}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("name", MODELS)
def test_every_baseline_trains_and_comes_back_from_its_state(name: str, optimizer: str) -> None:
    x, y = data()
    model = MODELS[name]()
    training = Training(epochs=25, optimizer=optimizer, learning_rate=0.02, structure_optimizer="natural")
    for part in model.members if isinstance(model, Ensemble) else [model]:
        run = fit(part, Categorical(3), Rows(x, y), training=training)
        assert run.history[-1]["elbo"] > run.history[0]["elbo"]
    again = MODELS[name]()
    again.rebuild(pickle.loads(pickle.dumps(model.blueprint())))
    again.load_state_dict(model.state_dict())
    for other in (again.eval(), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        one, two = model.draw(x, 3, noise()), other.draw(x, 3, noise())
        assert torch.equal(one.f, two.f)
        assert torch.equal(one.log_weight, two.log_weight)
        assert torch.equal(one.structure, two.structure)
        assert other.structure() == model.structure()


@pytest.mark.parametrize("name", MODELS)
def test_draws_of_every_baseline_weigh_one(name: str) -> None:
    draws = MODELS[name]().draw(data()[0], 3, noise())
    assert draws.log_weight.logsumexp(0).item() == pytest.approx(0.0, abs=1e-12)
    assert len(draws.f) == len(draws.log_weight) == len(draws.structure)


# -------------------------------------------------------------------------------------------------- ensembles


def test_the_predictive_distribution_of_an_ensemble_is_the_mixture_of_its_members() -> None:
    x, y = data()
    members, weights = [unbounded(0, 1.0), unbounded(1, 3.0), unbounded(2, 6.0)], [1.0, 2.0, 5.0]
    whole = Ensemble(members, weights)
    assert whole.weights == pytest.approx([0.125, 0.25, 0.625], abs=1e-12)
    probs = torch.zeros(len(x), 3, dtype=torch.float64)
    for member, weight in zip(members, (0.125, 0.25, 0.625), strict=True):
        for depth, q in member.depth_posterior().items():
            probs += weight * q * deploy.point_depth(member, depth)(x).softmax(-1)
    got = predictive(whole.draw(x), Categorical(3), labels=[0, 1, 2])
    assert torch.allclose(got.probs, probs.detach(), atol=1e-12)  # type: ignore[attr-defined]
    # and its bound is the mean of their bounds
    bounds = [elbo(member.draw(x), Categorical(3), y, size=64).value.item() for member in members]
    mean = sum(w * bound for w, bound in zip(whole.weights, bounds, strict=True))
    assert elbo(whole.draw(x), Categorical(3), y, size=64).value.item() == pytest.approx(mean, rel=1e-10)


def test_the_structure_of_an_ensemble_is_the_mean_of_its_members() -> None:
    members = [unbounded(0, 1.0), unbounded(1, 12.0)]
    whole = Ensemble(members, [1.0, 3.0])
    structure = whole.structure()
    assert structure.names == tuple(map(str, sorted(map(int, structure.names))))  # 2 before 10
    assert len(structure.names) > 10
    first, second = (member.depth_posterior() for member in members)
    expected = [0.25 * first.get(int(name), 0.0) + 0.75 * second.get(int(name), 0.0) for name in structure.names]
    assert structure.probabilities == pytest.approx(expected, abs=1e-12)
    assert structure.kind == "depth"
    means = [member.structure().statistics["mean_depth"] for member in members]
    assert structure.statistics["mean_depth"] == pytest.approx(0.25 * means[0] + 0.75 * means[1], rel=1e-12)
    assert structure.summary.startswith("2 members, most likely depth ")
    alike = Ensemble([finite_network(NET, 3, seed=s) for s in range(5)])
    assert alike.structure().summary == "5 members, depth 3, fixed"


def test_an_ensemble_is_put_together_and_not_trained() -> None:
    """Its members' laws over structure would move as weights do."""
    x, y = data()
    with pytest.raises(DataError, match=r"members\.0, a part of the Ensemble, has a law over structure"):
        fit(Ensemble([unbounded(0, 1.0), unbounded(1, 3.0)]), Categorical(3), Rows(x, y))


def test_ensembles_that_are_none_are_refused() -> None:
    one, other = finite_network(NET, 1), finite_network(NET, 1)
    with pytest.raises(DataError, match="no members"):
        Ensemble([])
    with pytest.raises(DataError, match="Ensemble, UnboundedDepth was given"):
        Ensemble([one, Ensemble([one])])
    for weights in ([1.0], [1.0, 0.0], [1.0, math.nan]):
        with pytest.raises(DataError, match="one positive number for each"):
            Ensemble([one, other], weights)
    with pytest.raises(DataError, match="blueprint of 2 members was given to an ensemble of 1"):
        Ensemble([one]).rebuild(Ensemble([one, other]).blueprint())


# ------------------------------------------------------------------------------------------------- estimators


def table(n: int = 90) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X, X[:, 0] ** 2 + 0.1 * rng.normal(size=n), np.where(X[:, 1] > 0, "up", "down")


def test_families_register_the_options_that_their_estimators_have() -> None:
    for name, kinds in KINDS.items():
        assert len(references(name)) == 1 + len(families()[name].papers)
        for task, kind in zip(TASKS, kinds, strict=True):
            registered = {o.name: o.default for o in options(families()[name], task).values()}
            assert {o.name: o.default for o in options_of(kind)} == registered
            assert kind().get_params(deep=False) == {o.name: o.default for o in options_of(kind)}
            assert family_of(kind()) is families()[name]
        of_classes = {option.name for option in fields(ClassOptions)}
        shared = {o.name: o.default for o in options_of(kinds[0]) if o.name not in of_classes}
        assert shared.items() <= {o.name: o.default for o in options_of(kinds[1])}.items()


@pytest.mark.parametrize("task", [0, 1], ids=["classifier", "regressor"])
@pytest.mark.parametrize("name", EXTRA)
def test_a_saved_baseline_predicts_the_same_bytes(name: str, task: int, tmp_path: Path) -> None:
    X, number, label = table()
    y = (label, number)[task]
    fitted = KINDS[name][task](epochs=15, width=8, random_state=0).fit(X, y)
    loaded = load(fitted.save(tmp_path / "m"))
    assert type(loaded) is KINDS[name][task]
    assert torch.equal(fitted.predict_dist(X).log_prob(y), loaded.predict_dist(X).log_prob(y))
    assert loaded.structure_ == fitted.structure_
    assert sum(fitted.depth_posterior_.values()) == pytest.approx(1.0)  # type: ignore[attr-defined]
    depth = {finding.title for finding in diagnose(fitted, [], rows=90) if "Depth" in finding.title}
    assert depth == set() if name != "depth-uncertainty" else "Depth is at its lower bound" not in depth
    assert isinstance(fitted.model_, Ensemble) is (name == "ensemble")


QUICK: dict[str, Any] = {"epochs": 60, "learning_rate": 0.02, "width": 16}  # the checks ask for accuracy, too


# one of each mechanism: masks, drawn weights, several networks, a head of all depths, descent at a constant rate
CHECKED = [
    KINDS["dropout"][0],
    KINDS["meanfield"][1],
    KINDS["ensemble"][0],
    KINDS["depth-uncertainty"][1],
    KINDS["swag"][1],
]


@pytest.mark.filterwarnings("ignore:class_weight sums to:fathomless.system.errors.DataWarning")
@pytest.mark.filterwarnings("ignore:.* given; fewer than 12:fathomless.system.errors.DataWarning")
@parametrize_with_checks([kind(**QUICK) for kind in CHECKED])
def test_scikit_learn_finds_nothing_to_complain_about(estimator: Any, check: Any) -> None:
    checked(estimator, check, epochs=4)


def test_options_reach_the_network() -> None:
    X, number, _ = table(40)

    def model(name: str, **options: Any) -> Any:
        return KINDS[name][1](epochs=1, width=8, random_state=0, **options).fit(X, number).model_

    assert model("finite", depth=4).depth == 4
    assert len(model("depth-uncertainty", depths=3).depth_posterior()) == 3
    assert model("depth-uncertainty", depths=3, shared_head=False).readout is None
    assert {m.rate for m in model("dropout", dropout=0.4).modules() if isinstance(m, Dropout)} == {0.4}
    assert model("meanfield").depth == 2
    assert len(model("ensemble", n_restarts=2).members) == 2
    with pytest.raises(DataError, match="0 <= rate < 1"):
        model("dropout", dropout=1.0)
    X = np.random.default_rng(0).normal(size=(40, 2))
    for kind in (LaplaceNetworkRegressor, SWAGNetworkRegressor, SubspaceNetworkRegressor):
        with pytest.raises(DataError, match="n_restarts=2 was given; the weights of"):
            kind(n_restarts=2).fit(X, X[:, 0])
    with pytest.raises(DataError, match="a network of 5,000 layers was requested; up to 1,000 are allowed"):
        model("finite", depth=5000)


@pytest.mark.parametrize("name", EXTRA)
def test_every_structure_can_be_asked_for_on_the_command_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    X, number, _ = table(80)
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["a", "b", "c", "y"], *np.column_stack([X, number]).tolist()])
    words = ["--structure", name, "--epochs", "10", "--width", "8", "--quiet", "--out", "run"]
    assert cli.main(["fit", "t.csv", "--target", "y", *words]) == 0
    assert io.header("run")[0] == KINDS[name][1].__name__
    assert cli.main(["predict", "run", "t.csv", "--out", "p.csv"]) == 0
    assert len((tmp_path / "p.csv").read_text(encoding="utf-8").splitlines()) == 81
    capsys.readouterr()
    assert cli.main(["cite", "run"]) == 0
    assert capsys.readouterr().out.splitlines() == [reference.text() for reference in references(name)]
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    fixed = name != "depth-uncertainty"
    assert ("Depth 3, fixed." in text or "Depth 2, fixed." in text or "5 members, depth 3, fixed." in text) is fixed
    assert ("Mean depth by epoch" in text) is not fixed
    assert ("Predictions are averages over all depths" in text) is not fixed
    assert ("The training objective is a penalised" in text) is (name not in ("meanfield", "matrix-normal"))


def test_options_of_another_structure_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i % 7}.5\n" for i in range(20)), encoding="utf-8")
    words = ["fit", "t.csv", "--target", "y", "--structure", "finite", "--dropout", "0.2"]
    assert cli.main(words) == 2
    assert "which --structure finite does not have; it is for --structure dropout" in capsys.readouterr().err
