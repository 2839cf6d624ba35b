"""What is fitted can be saved, loaded, paused, repeated, and asked in parts: to the same bytes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator

import fathomless
from battery.cases import CASES, PREDICTIVE, Array, Case, chosen, fitted, named, predicted
from fathomless.families import registry
from fathomless.families.registry import family_of
from fathomless.posterior.predictive import concatenate
from fathomless.system.errors import PausedError

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def state(estimator: Any) -> dict[str, bytes]:
    """Return the bytes of everything that was learned."""
    parts = {"model": estimator.model_, "likelihood": estimator.likelihood_}
    named = ((f"{of}.{name}", value) for of, part in parts.items() for name, value in part.state_dict().items())
    return {name: value.numpy().tobytes() for name, value in named}


def equal(ours: Sequence[Array], theirs: Sequence[Array]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def alike(ours: Any, theirs: Any, X: Array) -> None:
    """Check that two fits are the same, bit for bit."""
    assert ours.history_ == theirs.history_
    assert ours.n_iter_ == theirs.n_iter_
    assert ours.structure_ == theirs.structure_
    assert ours.validation_score_ == theirs.validation_score_
    assert np.array_equal(ours.held_out_, theirs.held_out_)
    assert equal(predicted(ours, X), predicted(theirs, X))


@pytest.mark.parametrize(**named(CASES))
def test_what_is_loaded_is_bit_equal(case: Case, tmp_path: Path) -> None:
    estimator, (X, _) = fitted(case), case.table()
    loaded = fathomless.load(estimator.save(tmp_path / "one"))
    assert type(loaded) is type(estimator)
    assert family_of(loaded) is family_of(estimator) is case.family
    alike(loaded, estimator, X)
    if case.task != "density":
        assert equal([loaded.ood_p_values(X)], [estimator.ood_p_values(X)])
    loaded.save(tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize(**named([case for case in CASES if case.task != "density" and case.family.networks]))
def test_what_predicts_without_scikit_learn_says_the_same_bytes(case: Case, tmp_path: Path) -> None:
    estimator, (X, _) = fitted(case), case.table()
    light = registry.predictor(estimator.save(tmp_path / "one"))
    assert not isinstance(light, BaseEstimator)
    ours, theirs = light.predict_dist(X).columns(), estimator.predict_dist(X).columns()
    assert equal(list(ours.values()), list(theirs.values()))
    assert list(ours) == list(theirs)
    assert equal([light.ood_p_values(X)], [estimator.ood_p_values(X)])


@pytest.mark.parametrize(**named(CASES))
def test_a_fit_that_was_paused_ends_in_the_same_bytes(case: Case, tmp_path: Path) -> None:
    X, y = case.table()
    seen: list[int] = []

    def pause(run: Any) -> None:
        seen.append(run.epoch)
        run.pause = run.epoch == 6

    last = fitted(case).n_iter_
    with pytest.raises(PausedError, match=rf"after (epoch|sweep) 6 of {last};"):
        case.estimator(checkpoint=tmp_path / "checkpoint", callbacks=[pause]).fit(X, y)
    again = case.estimator(checkpoint=tmp_path / "checkpoint", callbacks=[lambda run: seen.append(run.epoch)])
    alike(again.fit(X, y), fitted(case), X)
    assert state(again) == state(fitted(case))
    assert seen == sorted(set(seen))  # it went on where it was
    assert {6, last} <= set(seen)


@pytest.mark.parametrize(**named([case for case in CASES if case.plain]))
def test_another_seed_gives_other_bytes(case: Case) -> None:
    """The same seed gives the same bytes: paused fits, and fits in other modes of torch, are compared with one."""
    X, y = case.table()
    other = case.estimator(random_state=4).fit(X, y)
    assert not np.array_equal(predicted(other, X)[0], predicted(fitted(case), X)[0])


@pytest.mark.parametrize(**named(CASES))
def test_the_same_networks_serve_all_rows(case: Case) -> None:
    """Neither their order nor how many come at once changes what is said of one, but for the rounding of sums."""
    estimator, (X, _) = fitted(case), case.table()
    whole, order = predicted(estimator, X), np.random.default_rng(1).permutation(len(X))
    halves = zip(predicted(estimator, X[:40]), predicted(estimator, X[40:]), strict=True)
    for pair, shuffled, known in zip(halves, predicted(estimator, X[order]), whole, strict=True):
        if known.dtype.kind == "f":
            np.testing.assert_allclose(np.concatenate(pair), known, rtol=1e-13, atol=1e-13)
            np.testing.assert_allclose(shuffled, known[order], rtol=0, atol=1e-10)
        else:
            assert np.array_equal(np.concatenate(pair), known)
            assert np.array_equal(shuffled, known[order])
    if case not in PREDICTIVE:
        return
    first, second = estimator.predict_dist(X[:40]), estimator.predict_dist(X[40:])
    assert torch.equal(first.structure, second.structure)
    assert torch.equal(first.log_weight, second.log_weight)
    assert len(concatenate([first, second])) == len(X)


@pytest.mark.parametrize(**named(CASES))
def test_predicting_changes_nothing(case: Case) -> None:
    estimator, (X, _) = fitted(case), case.table()
    before = state(estimator)
    assert equal(predicted(estimator, X), predicted(estimator, X))
    assert state(estimator) == before


#: The modes that score rows in other ways; options of posteriors change none of them.
SCORED = [case for case in chosen("regression", "density") if case.plain or "cross-fitted" in case.name]
SCORED += [case for case in chosen("regression") if case.name in ("depth-heads-regression", "depth-average-regression")]


@pytest.mark.parametrize(**named(SCORED))
def test_the_validation_score_is_in_the_units_of_the_target(case: Case) -> None:
    """A unit that is a thousand times smaller divides the density of each target column by a thousand."""
    X, y = case.table()
    plain, columns = fitted(case), 1 if case.task == "regression" else X.shape[1]
    scaled = case.estimator().fit(X, 1000.0 * y) if case.task == "regression" else case.estimator().fit(1000.0 * X)
    assert plain.validation_score_ - scaled.validation_score_ == pytest.approx(columns * math.log(1000.0), rel=1e-6)


@pytest.mark.parametrize(**named([case for case in chosen("regression") if case.plain]))
def test_several_targets_count_for_their_units_each(case: Case) -> None:
    X, y = case.table()
    both = np.stack([y, X[:, 2] - y], 1)
    plain, scaled = (case.estimator().fit(X, both * scale) for scale in ([1.0, 1.0], [1000.0, 0.1]))
    assert plain.validation_score_ - scaled.validation_score_ == pytest.approx(math.log(100.0), rel=1e-6)
    assert plain.predict(X).shape == both.shape
