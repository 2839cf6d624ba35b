"""The field: scores against closed forms, records of failed and interrupted runs, ranks of the report."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import field
import numpy as np
import pandas as pd
import pytest
import torch
from field import fit_and_score, plan, read, run, run_apart, score_classes, score_numbers, span
from field_report import Field, report
from field_rivals import METHODS, RIVALS, Method, is_installed
from public_tables import Declaration, Split, Table
from scipy import stats

from fathomless.app.compare import method as of_library
from fathomless.estimators.evaluation import evaluate
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.mixtures import Normal


def declare(kind: Any = "regression") -> Declaration:
    """Return the declaration of a table of no package."""
    shape = (60, 2, 1, 2)
    return Declaration(
        name="pima", kind=kind, package="", file="", sha256="", target="", shape=shape, licence="", source=""
    )


def make_table(kind: str = "regression") -> tuple[Table, list[Split]]:
    """Return a table with a column of numbers and one of categories, and two splits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    y = 3.0 * x + rng.normal(size=60)
    frame = pd.DataFrame({"x": x, "colour": np.where(x > 0.0, "red", "green").astype(object)})
    target = np.where(y > 0.0, "yes", "no") if kind == "classification" else y
    order = np.arange(60)
    return Table(declare(kind), frame, target), [
        Split(str(k), np.roll(order, k)[:40], np.roll(order, k)[40:]) for k in (0, 1)
    ]


def normal_laws(mean: Any, std: Any) -> ContinuousPredictive:
    """Return normal laws of rows."""
    one = torch.zeros(1, dtype=torch.float64)
    parts = (torch.tensor(part, dtype=torch.float64)[None, :, None] for part in (mean, std))
    return ContinuousPredictive(one, one.long(), Normal(*parts), squeeze=True)


def test_scores_of_normal_laws_are_the_closed_forms() -> None:
    rng = np.random.default_rng(0)
    y_train, y = rng.normal(3.0, 5.0, 80), rng.normal(3.0, 5.0, 50)
    mean, std = rng.normal(3.0, 1.0, 50), rng.uniform(2.0, 6.0, 50)
    found = score_numbers(normal_laws(mean, std), y_train, y)
    unit, z = y_train.std(), (y - mean) / std
    law = stats.norm(mean, std)
    low, high = law.interval(0.9)
    inside = (low <= y) & (y <= high)
    crps = std * (z * (2.0 * stats.norm.cdf(z) - 1.0) + 2.0 * stats.norm.pdf(z) - 1.0 / np.sqrt(np.pi))
    score = high - low + 20.0 * (np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0))
    assert found["log_likelihood"] == pytest.approx(law.logpdf(y).mean() + np.log(unit))
    assert found["crps"] == pytest.approx(crps.mean() / unit)
    assert found["interval_score_90"] == pytest.approx(score.mean() / unit)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)) / unit)
    assert found["coverage_90"] == inside.mean()
    assert found["thirds"] == [inside[part].mean() for part in np.array_split(np.argsort(std), 3)]
    assert score_numbers(normal_laws(mean, np.ones(50)), y_train, y)["thirds"] is None


def test_counts_are_scored_by_probabilities_of_cells_and_shares_of_atoms() -> None:
    rng = np.random.default_rng(0)
    y_train, y = (rng.poisson(6.0, rows).astype(float) for rows in (200, 50))
    law = stats.norm(6.0, 2.5)
    found = score_numbers(normal_laws(np.full(50, 6.0), np.full(50, 2.5)), y_train, y)
    assert found["atoms"] == []
    assert found["log_likelihood"] == pytest.approx(np.log(law.cdf(y + 0.5) - law.cdf(y - 0.5)).mean())
    zeros = np.where(rng.random(200) < 0.4, 0.0, np.exp(rng.normal(size=200)))
    found = score_numbers(normal_laws(np.full(2, 1.0), np.full(2, 2.0)), zeros, np.array([0.0, 1.3]))
    share = np.mean(zeros == 0.0)
    other = np.log(1.0 - share) + stats.norm(1.0, 2.0).logpdf(1.3) + np.log(zeros.std())
    assert found["atoms"] == [0.0]
    assert found["log_likelihood"] == pytest.approx(0.5 * (np.log(share) + other))


def test_a_fine_lattice_has_the_log_likelihood_of_a_density() -> None:
    rng = np.random.default_rng(0)
    smooth = rng.normal(0.0, 1000.0, 300)
    p = normal_laws(np.zeros(300), np.full(300, 1000.0))
    exact, rounded = (score_numbers(p, y, y) for y in (smooth, smooth.round()))
    assert rounded["step"] > 0.0 == exact["step"]
    assert rounded["log_likelihood"] == pytest.approx(exact["log_likelihood"], abs=1e-3)


def test_scores_of_classes_are_those_of_their_probabilities() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1.0, 2.0, 1.5], 400)
    names = np.array(["a", "b", "c"])
    code = (rng.random((400, 1)) > probs.cumsum(1)[:, :-1]).sum(1)
    one = torch.zeros(1, dtype=torch.float64)
    p = ClassPredictive(one, one.long(), torch.tensor(np.log(probs))[None], names)
    found = score_classes(p, tuple(names), names[code])
    assert found["log_likelihood"] == pytest.approx(np.log(probs[np.arange(400), code]).mean())
    assert found["accuracy"] == np.mean(probs.argmax(1) == code)
    assert found["brier"] == pytest.approx(np.mean(((probs - np.eye(3)[code]) ** 2).sum(1)))
    assert found["ece"] < found["ece_95"]  # labels were drawn from the probabilities
    assert 0.0 < found["ece_chance"] < found["ece_95"]


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_scores_equal_those_of_evaluate(kind: str) -> None:
    table, (split, _) = make_table(kind)
    found = fit_and_score(table, split, "linear")["scores"]
    fitted = of_library("linear", kind, 0).fit(table.X.iloc[split.train], table.y[split.train])
    expected = evaluate(fitted, table.X.iloc[split.test], table.y[split.test], name="new rows").scores
    unit = 1.0 if kind == "classification" else float(table.y[split.train].astype(float).std())
    for name in {*found} & {*expected}:
        scale = unit if name in ("crps", "rmse", "interval_score_90") else 1.0
        shift = np.log(unit) if name == "log_likelihood" else 0.0
        assert found[name] == pytest.approx(expected[name].value / scale + shift), name


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the field on a synthetic table, with a rival that raises an error."""

    class Stub:
        def __init__(self, name: str, task: str, seed: int) -> None: ...

        def fit(self, X: Any, y: Any) -> None:
            raise ValueError("no fit\nfor this table")

    monkeypatch.setattr(field, "prepare", lambda name: make_table())
    monkeypatch.setitem(METHODS, "stub", Method("stub", "stub", 1, "raises an error"))
    monkeypatch.setitem(RIVALS, "stub", Stub)


@pytest.mark.usefixtures("synthetic")
def test_an_interrupted_run_is_resumed_and_failures_are_recorded(tmp_path: Path) -> None:
    out = tmp_path / "results" / "field.jsonl"
    tasks = plan(["pima"], ["stub", "linear", "constant"], [0, 1])
    first = list(run(tasks[:2], out, limit=60))
    assert [(r["split"], r["method"]) for r in first] == [(0, "constant"), (0, "linear")]
    out.write_text(out.read_text() + '{"table": "pima", "spl')  # interrupted while a line was written
    rest = list(run(tasks, out, limit=60))
    assert [(r["split"], r["method"]) for r in rest] == [(0, "stub"), (1, "constant"), (1, "linear"), (1, "stub")]
    assert rest[0]["error"] == "ValueError: no fit for this table"
    assert list(run(tasks, out, limit=60)) == []
    records = read(out)
    assert len(records) == 6
    assert all(r["fit_seconds"] >= 0.0 and r["mib"] > 0.0 and r["versions"] for r in records if "scores" in r)
    assert len({r["digest"] for r in records}) == 2
    assert "pima 0 stub: ValueError: no fit for this table" in report(records)
    changed = [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]
    changed[0]["digest"] = "other rows"
    out.write_text("".join(json.dumps(r) + "\n" for r in changed))
    assert [r["method"] for r in run(tasks, out, limit=60)] == ["constant"]


def test_no_fit_is_started_after_the_given_minutes(tmp_path: Path) -> None:
    assert list(run(plan(["pima"], ["constant"], [0]), tmp_path / "field.jsonl", minutes=-1.0)) == []


def spin() -> dict[str, Any]:
    end = time.process_time() + 30.0
    while time.process_time() < end:
        pass
    return {}


def test_a_fit_ends_at_the_limit_of_processor_time() -> None:
    assert run_apart(spin, 1) == {"error": "time limit: 1 s of processor time"}
    assert "killed" in run_apart(lambda: signal.raise_signal(signal.SIGKILL) or {}, 60)["error"]


def record(table: str, method: str, value: float | None, split: int = 0) -> dict[str, Any]:
    """Return a record with this log-likelihood, or of a failure."""
    told: dict[str, Any] = {"table": table, "split": split, "method": method, "rows": 10, "test_rows": 5, "columns": 2}
    if value is None:
        return told | {"error": "broken"}
    scores = {"log_likelihood": value, "crps": 1.0, "thirds": None}
    return told | {"scores": scores, "fit_seconds": 1.0, "predict_seconds": 1.0, "mib": 1.0}


def test_ranks_and_differences_are_those_computed_by_hand() -> None:
    values = {"t": (-3.0, -2.0, -1.0), "u": (-3.0, -1.0, -2.0), "v": (-1.0, None, -2.0)}
    methods = ("constant", "linear", "depth")
    records = [record(t, m, value) for t, row in values.items() for m, value in zip(methods, row, strict=True)]
    records += [record("t", "depth", -2.0, split=1), record("w", "depth", -9.0)]  # not common to all
    found = Field(records).rank(methods)
    assert found is not None
    assert found.tables == ("t", "u", "v")
    assert found.mean.tolist() == pytest.approx([7 / 3, 2.0, 5 / 3])  # ranks (3, 2, 1), (3, 1, 2), (1, 3, 2)
    assert found.difference == pytest.approx(2.343 * np.sqrt(3 * 4 / (6 * 3)), abs=2e-3)  # Demšar 2006, table 5
    assert Field(records).differences("linear", "log_likelihood") == {"t": [1.0], "u": [-1.0]}
    assert "depth 1.67, linear 2.00, constant 2.33" in report(records)


def test_names_and_splits_of_the_command_line() -> None:
    assert span("0-2,4") == [0, 1, 2, 4]
    assert is_installed("gp")
    assert {"constant", "linear", "boosting", "gp", "catboost", "ngboost", "depth", "bde", "tabm"} <= {*METHODS}
