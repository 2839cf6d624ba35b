"""Time limits, in every family that has the option ``minutes``."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from battery.cases import CASES, Case, fitted, named, predicted
from battery.test_state import alike
from fathomless.families.registry import options
from fathomless.system.errors import ConvergenceWarning, DataError, PausedError

LIMITED = [case for case in CASES if "minutes" in options(case.family, case.task)]
#: One case for each family and kind of training.
KINDS = [case for case in LIMITED if case.task == "regression" and (case.plain or "cross" in case.name)]
PAUSED = {"depth", "depth-cross-fitted", "depth-elbo", "depth-average", "sparse", "continuous-cross-fitted", "finite"}


def test_families_that_are_trained_by_epochs_have_the_option() -> None:
    assert {case.family.name for case in LIMITED} >= {"depth", "sparse", "continuous", "finite", "ensemble"}
    assert not {case.family.name for case in LIMITED} & {"graph", "manifold"}


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
@pytest.mark.parametrize(**named(KINDS))
def test_a_limit_that_is_not_reached_has_no_effect(case: Case) -> None:
    X, y = case.table()
    alike(case.estimator(minutes=1e4).fit(X, y), fitted(case), X)


@pytest.mark.parametrize(**named(LIMITED))
def test_a_limit_that_is_reached_ends_the_training_with_a_warning(case: Case) -> None:
    X, y = case.table()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator = case.estimator(minutes=1e-7, epochs=500).fit(X, y)
    assert estimator.n_iter_ <= 12  # the first evaluation is after epoch 3; the search has two more epochs at least
    assert all(np.isfinite(values).all() for values in predicted(estimator, X) if values.dtype.kind == "f")
    texts = [str(one.message) for one in caught if one.category is ConvergenceWarning]
    found = [text for text in texts if text.startswith("minutes=1e-07 ")]
    assert len(found) == 1
    assert f"reduced the planned epochs from 500 to {estimator.n_iter_}" in found[0]


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
@pytest.mark.parametrize(**named([case for case in LIMITED if case.name.removesuffix("-regression") in PAUSED]))
def test_a_shortened_fit_that_was_paused_ends_where_it_was_planned(case: Case, tmp_path: Path) -> None:
    X, y = case.table()
    lengths: list[int] = []

    def shorten(run: Any) -> None:
        if run.epoch == 3:
            run.shorten(8)
        lengths.append(run.epochs)

    def pause(run: Any) -> None:
        run.pause = run.epoch == 6

    more = {"checkpoint": tmp_path, "epochs": 40}
    with pytest.raises(PausedError, match=r"after epoch 6 of 8;"):
        case.estimator(callbacks=[shorten, pause], **more).fit(X, y)
    with pytest.raises(DataError, match="belongs to a fit with other data or other options"):
        case.estimator(minutes=5.0, **more).fit(X, y)
    resumed = case.estimator(callbacks=[shorten], **more).fit(X, y)
    straight = case.estimator(callbacks=[shorten], epochs=40).fit(X, y)
    alike(resumed, straight, X)
    assert set(lengths) == {8}
