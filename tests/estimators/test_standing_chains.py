"""Infinite and undefined diagnostics of chains and trainings are saved as such, loaded and reported."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathomless.app import runs
from fathomless.app.commands.printing import show_json
from fathomless.estimators.values import HMC, CheckpointOptions
from fathomless.families import registry
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.families.graph.estimator import IndianChefsClassifier
from fathomless.families.graph.sampler import GraphSampler
from fathomless.families.manifold import sampling
from fathomless.families.manifold.estimator import ProjectedBayesRegressor
from fathomless.inference.mcmc.diagnostics import diagnose
from fathomless.inference.mcmc.weight_sampler import NetworkSampler
from fathomless.inference.runs.callbacks import write_history
from fathomless.system import nonfinite
from fathomless.system.errors import ConvergenceWarning

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")  # others than asked
RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=48)
SAMPLED: dict[str, Any] = {"weights": HMC(chains=2, sweeps=16, leapfrogs=2, states=4), "width": 4, "epochs": 3}
GRAPH: dict[str, Any] = {"chains": 2, "sweeps": 24, "states": 4, "networks": 4, "engine": "numpy"}
STAGES: dict[str, Any] = {"candidates": 6, "candidate_steps": 20, "latent_dim": 2, "decoder_width": 4, "width": 4}
STAGES |= {"decoder_steps": 20, "components": 2, "latent_steps": 10, "latent_posterior": "sampled"}


def kept(estimator: Any, folder: Path, title: str) -> None:
    """Check that an estimator is equal after saving and loading, and that all texts are valid JSON."""
    estimator.save(folder)
    json.loads((folder / "manifest.json").read_text(), parse_constant=pytest.fail)
    loaded = registry.load(folder)
    assert repr(loaded.fit_diagnostics_) == repr(estimator.fit_diagnostics_)  # in which nan is nan
    assert repr(loaded.history_) == repr(estimator.history_)
    again = loaded.save(folder.with_name("again"))
    for path in folder.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()
    write_history(folder, loaded.history_)
    for line in (folder / "history.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    assert title in runs.page(folder)


@pytest.mark.parametrize(("members", "words"), [(2, "have not mixed: R-hat .* above inf"), (1, "never moved")])
def test_sampled_weights_that_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: int, words: str
) -> None:
    monkeypatch.setattr(NetworkSampler, "sweep_all", lambda self, states, done, generators: list(states))
    monkeypatch.setattr(NetworkSampler, "follow", lambda self, state: {"log_likelihood": 0.0, "acceptance": 0.0})
    with pytest.warns(ConvergenceWarning, match=words):
        fitted = UnboundedDepthRegressor(**SAMPLED, cv=members, random_state=0).fit(X, Y)
    kept(fitted, tmp_path / "m", "Chains have not mixed")
    assert np.isfinite(fitted.predict(X)).all()


@pytest.mark.parametrize(("value", "rhat"), [(None, math.inf), (math.nan, math.nan), (math.inf, math.nan)])
def test_graphs_whose_chains_stand_still_or_follow_what_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float | None, rhat: float
) -> None:
    follow = GraphSampler.follow

    def followed(self: Any, state: Any) -> dict[str, float]:
        first = float(id(state) % 97) if value is None else value
        return dict.fromkeys(follow(self, state), first)

    monkeypatch.setattr(GraphSampler, "follow", followed)
    if value is None:
        monkeypatch.setattr(GraphSampler, "sweep", lambda self, state, done, generator: state)
    keeper = {"checkpoint": CheckpointOptions(tmp_path / "c", seconds=0)}
    with pytest.warns(ConvergenceWarning, match=f"have not mixed: R-hat of .* is {rhat:.2f}"):
        fitted = IndianChefsClassifier(**GRAPH, **keeper, random_state=0).fit(X, Y > 0)
    assert {repr(one.rhat) for one in fitted.diagnostics_.values()} == {repr(rhat)}
    kept(fitted, tmp_path / "m", "Chains have not converged")
    again = IndianChefsClassifier(**GRAPH, **keeper, random_state=0).fit(X, Y > 0)  # from its checkpoint
    assert repr(again.fit_diagnostics_) == repr(fitted.fit_diagnostics_)


@pytest.mark.parametrize(("components", "rhat"), [(2, "inf"), (1, "nan")])
def test_codes_that_stand_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, components: int, rhat: str) -> None:
    monkeypatch.setattr(sampling, "elliptical_slice", lambda z, value, target, generator: (z, value))
    with pytest.warns(ConvergenceWarning, match=f"R-hat of the log-likelihood .* is {rhat}"):
        fitted = ProjectedBayesRegressor(**{**STAGES, "components": components}, random_state=0).fit(X, Y)
    assert repr(fitted.sampling_["rhat"]) == rhat
    kept(fitted, tmp_path / "m", "Convergence of the chains is unknown")


def test_a_history_that_is_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def spoil(run: Any) -> None:
        run.history[-1] |= {"validation_log_likelihood": -math.inf, "odd": math.nan}
        show_json(**run.history[-1])

    net: dict[str, Any] = {"width": 4, "epochs": 4, "batch_size": 24, "random_state": 0, "patience": None}
    keeper = {"checkpoint": CheckpointOptions(tmp_path / "c", seconds=0), "cv": 1, "structure_from": "elbo"}
    fitted = UnboundedDepthRegressor(**net, **keeper, callbacks=[spoil]).fit(X, Y)
    kept(fitted, tmp_path / "m", "nats")
    again = UnboundedDepthRegressor(**net, **keeper).fit(X, Y)  # from its checkpoint
    assert repr(again.history_) == repr(fitted.history_)
    for line in capsys.readouterr().out.splitlines():
        told = json.loads(line, parse_constant=pytest.fail)
        assert (told["validation_log_likelihood"], told["odd"]) == ("-inf", "nan")


def test_marks_are_undone_and_nothing_else_is_touched() -> None:
    plain = {"a": [1.0, 2, "inf", None, True, {"b": ()}], "float": 1.0, "c": {"float": "other"}}
    assert nonfinite.decode_nonfinite(plain) == {**plain, "a": [1.0, 2, "inf", None, True, {"b": []}]}
    odd = {"a": [math.inf, {"b": -math.inf}], "c": math.nan}
    assert repr(
        nonfinite.decode_nonfinite(json.loads(json.dumps(nonfinite.encode_nonfinite(odd), allow_nan=False)))
    ) == repr(odd)
    assert diagnose([[0.0] * 4, [math.inf] * 4]).constant is False
