"""Tables of few distinct rows: probabilities within the sampling error of the counts, for rows and weights."""

import math
import warnings

import numpy as np
import pytest
import torch

from fathomless import (
    ContinuousDepthClassifier,
    ProjectedBayesClassifier,
    SparseBayesRegressor,
    UnboundedDepthClassifier,
    UnboundedDepthRegressor,
)
from fathomless.app.compare import compare
from fathomless.app.diagnose import diagnose
from fathomless.families.sparse import temperature
from fathomless.posterior.fit_diagnostics import EqualRows

QUICK = {"epochs": 60, "width": 8, "random_state": 0}
FAMILIES = [
    (UnboundedDepthClassifier, {**QUICK, "cv": 5}),
    (UnboundedDepthClassifier, {**QUICK, "cv": 1}),
    (ContinuousDepthClassifier, {**QUICK, "cv": 3}),
    (
        ProjectedBayesClassifier,
        {
            "width": 8,
            "candidates": 10,
            "candidate_steps": 200,
            "decoder_steps": 60,
            "latent_steps": 60,
            "random_state": 0,
        },
    ),
]


def table(rows: int, seed: int, levels: int = 6, classes: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a column of levels as an indicator matrix, classes, and the class frequencies in each level."""
    rng = np.random.default_rng(seed)
    level = rng.integers(0, levels, rows)
    share = rng.dirichlet([0.7] * classes, levels)
    y = np.array([rng.choice(classes, p=share[k]) for k in level])
    counted = np.array([[(y[level == k] == c).mean() for c in range(classes)] for k in range(levels)])
    return np.eye(levels)[level], y, counted


@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_probabilities_are_within_the_error_of_the_counts(family: type, options: dict[str, object]) -> None:
    X, y, counted = table(600, 1)
    fitted = family(**options).fit(X, y)
    p = fitted.predict_proba(np.eye(6))
    error = np.sqrt(counted * (1.0 - counted) / 100.0)  # of a share of 100 rows
    assert (abs(p - counted) < 4.0 * error + 0.05).all(), abs(p - counted).max()
    assert fitted.fit_diagnostics_.repeats.kind == "observations"
    assert fitted.fit_diagnostics_.repeats.rows > 590


@pytest.mark.parametrize("rows", [200, 900])
def test_rows_and_counts_are_one_fit(rows: int) -> None:
    X, y, _ = table(rows, 2, levels=4)
    cells, count = np.unique(np.column_stack([X, y]), axis=0, return_counts=True)
    options = {**QUICK, "epochs": 20, "cv": 4}
    by_rows = UnboundedDepthClassifier(**options).fit(X, y)
    order = np.random.default_rng(0).permutation(len(y))
    by_order = UnboundedDepthClassifier(**options).fit(X[order], y[order])
    by_counts = UnboundedDepthClassifier(**options).fit(
        cells[:, :-1], cells[:, -1].astype(int), sample_weight=count.astype(float)
    )
    p = by_rows.predict_proba(np.eye(4))
    assert np.allclose(p, by_order.predict_proba(np.eye(4)), atol=1e-9)
    assert np.allclose(p, by_counts.predict_proba(np.eye(4)), atol=1e-9)
    assert by_rows.validation_score_ == pytest.approx(by_counts.validation_score_, abs=1e-9)


def test_the_score_of_a_contingency_table_is_that_of_fresh_rows() -> None:
    X, y, counted = table(900, 3)
    fitted = UnboundedDepthClassifier(**{**QUICK, "cv": 5}).fit(X, y)
    rng = np.random.default_rng(4)
    level = rng.integers(0, 6, 4000)
    fresh = np.array([rng.choice(3, p=counted[k]) for k in level])
    log_p = np.log(fitted.predict_proba(np.eye(6)[level]))[np.arange(4000), fresh]
    error = np.hypot(log_p.std() / np.sqrt(4000), log_p.std() / np.sqrt(900))
    assert abs(fitted.validation_score_ - log_p.mean()) < 4.0 * error


def test_ratings_have_the_deviation_of_the_data() -> None:
    rng = np.random.default_rng(2)
    X = rng.integers(0, 3, (900, 1)).astype(float)
    y = np.clip(np.round(3 + 0.5 * (X[:, 0] - 1) + rng.normal(0, 0.7, 900)), 1, 5)
    fitted = UnboundedDepthRegressor(**{**QUICK, "cv": 5}).fit(X, y)
    mean, std = fitted.predict(X, return_std=True)
    assert math.sqrt(np.square(std).mean()) == pytest.approx((y - mean).std(), rel=0.05)


def test_copies_stay_together_whatever_their_number() -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(50, 3))
    y = rng.normal(size=50)
    place = np.repeat(np.arange(50), 8)
    fitted = UnboundedDepthRegressor(**{**QUICK, "epochs": 5, "cv": 5}).fit(X[place], y[place])
    assert all(len(np.unique(fitted.fold_[0][place == i])) == 1 for i in range(50))
    assert fitted.fit_diagnostics_.repeats == EqualRows(rows=400, kind="copies")
    alone = UnboundedDepthRegressor(**{**QUICK, "epochs": 5, "cv": 1}).fit(X[place], y[place])
    held = np.zeros(400, dtype=bool)
    held[alone.held_out_] = True
    assert held.any()
    assert all(held[place == i].all() or not held[place == i].any() for i in range(50))
    titles = {finding.title: finding.detail for finding in diagnose(fitted, [], rows=400)}
    assert "400 of 400 rows are equal to another row" in titles["Duplicate rows"]


def test_groups_override_the_rule() -> None:
    X, y, _ = table(120, 6)
    groups = np.arange(120) // 4
    fitted = UnboundedDepthClassifier(**{**QUICK, "epochs": 3, "cv": 5}).fit(X, y, groups=groups)
    assert all(len(np.unique(fitted.fold_[0][groups == g])) == 1 for g in range(30))
    assert fitted.fit_diagnostics_.repeats is None
    alone = UnboundedDepthClassifier(**{**QUICK, "epochs": 3, "cv": 1}).fit(X, y, groups=groups)
    held = np.isin(np.arange(120), alone.held_out_)
    assert held.any()
    assert all(held[groups == g].all() or not held[groups == g].any() for g in range(30))


@pytest.mark.parametrize("grouped", [False, True])
def test_temperature_is_chosen_by_rows_without_a_copy_in_training(
    monkeypatch: pytest.MonkeyPatch, grouped: bool
) -> None:
    seen: dict[str, torch.Tensor] = {}
    batched, held = temperature.fit_batched, temperature.predict_held_out

    def fitted_to(models, likelihoods, rows, valid, **options):  # type: ignore[no-untyped-def]
        seen["train"] = rows.x
        return batched(models, likelihoods, rows, valid, **options)

    def judged_by(model, rows, *options):  # type: ignore[no-untyped-def]
        seen["held"] = rows.x
        return held(model, rows, *options)

    monkeypatch.setattr(temperature, "fit_batched", fitted_to)
    monkeypatch.setattr(temperature, "predict_held_out", judged_by)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(140, 4))
    y = X[:, 0] + rng.normal(size=140)
    place = np.repeat(np.arange(140), 2)
    again = X[place] + (1e-3 * rng.normal(size=(280, 4)) if grouped else 0.0)
    regressor = SparseBayesRegressor(epochs=5, width=4, random_state=0, temperature=(1.0, 0.01))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        regressor.fit(again, y[place], groups=place if grouped else None)
    encoded = {tuple(np.round(row, 2)) for row in seen["train"].numpy()}
    shared = [tuple(np.round(row, 2)) in encoded for row in seen["held"].numpy()]
    assert len(shared) == 56
    assert np.mean(shared) < 0.1


def test_methods_are_compared_on_observations() -> None:
    X, y, _ = table(300, 7)
    found = compare(X, y, task="classification", methods=["constant", "linear"], folds=3)
    scores = {one.name: one.scores["log_likelihood"].value for one in found.methods}
    assert scores["linear"] > scores["constant"] + 0.05
