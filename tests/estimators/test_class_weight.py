"""Class weights: equivalence to repeated rows of each class."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_sample_weight

from battery.cases import CASES, Case
from fathomless.data.streams import arrays
from fathomless.estimators import saving
from fathomless.estimators.options import options_of
from fathomless.families.depth.estimator import UnboundedDepthClassifier
from fathomless.system.errors import DataError
from quick_fits import classes, classifier

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.DataWarning"),
]
SHORT: dict[str, dict[str, Any]] = {"finite": {}, "graph": {"sweeps": 20, "states": 5}}
CLASSIFIERS = [case for case in CASES if case.plain and case.task == "classification"]  # weights enter in one place


@pytest.mark.parametrize("case", [c for c in CLASSIFIERS if c.family.name in SHORT], ids=lambda case: case.name)
def test_class_weight_is_sample_weight(case: Case) -> None:
    X, y = case.table()
    options = SHORT[case.family.name]
    by_class = case.estimator(class_weight={"mid": 3}, **options).fit(X, y)
    by_row = case.estimator(**options).fit(X, y, sample_weight=np.where(y == "mid", 3.0, 1.0))
    assert (by_class.predict_proba(X) == by_row.predict_proba(X)).all()
    assert by_class.validation_score_ == by_row.validation_score_
    assert by_class.structure_.summary == by_row.structure_.summary


def test_every_classifier_has_weights_and_costs_of_classes() -> None:
    for case in CLASSIFIERS:
        assert {"class_weight", "class_cost"} <= set(case.estimator().get_params())


def test_a_class_that_counts_more_is_more_probable() -> None:
    X, y = classes(k=2)
    heavy = classifier(epochs=60, class_weight={1: 5.0}).fit(X, y).predict_proba(X)[:, 1]
    assert heavy.mean() > classifier(epochs=60).fit(X, y).predict_proba(X)[:, 1].mean() + 0.1


def test_balanced_and_sample_weight_multiply_and_folds_see_them() -> None:
    X, y = classes(90)
    y = np.where(y == 0, "rare", "usual")
    weight = np.arange(90) % 2 + 1.0
    options: dict[str, Any] = {"cv": 3}
    fitted = classifier(class_weight="balanced", **options).fit(X, y, sample_weight=weight)
    counts = {label: weight[y == label].sum() for label in ("rare", "usual")}
    by_row = weight * np.array([weight.sum() / (2 * counts[label]) for label in y])
    again = classifier(**options).fit(X, y, sample_weight=by_row)
    assert (fitted.predict_proba(X) == again.predict_proba(X)).all()
    assert fitted.validation_score_ == again.validation_score_
    assert fitted.target_.counts == pytest.approx((67.5, 67.5))  # all rows count as many as before
    sklearn = classifier(**options).fit(X, y, sample_weight=compute_sample_weight("balanced", y))
    np.testing.assert_allclose(
        classifier(class_weight="balanced", **options).fit(X, y).predict_proba(X), sklearn.predict_proba(X), rtol=1e-9
    )


@pytest.mark.parametrize(
    "given", [{"none": 2.0}, 5.0, {0: 0.0}, {0: -1.0}, {1: float("nan")}, {2: float("inf")}], ids=str
)
def test_weights_of_other_classes_or_below_zero_are_refused(given: Any) -> None:
    with pytest.raises(
        DataError, match=r"class_weight=.* was given; (positive, finite numbers for the classes 0, 1|allowed are None)"
    ):
        classifier(class_weight=given).fit(*classes())


def test_streams_count_rows_once() -> None:
    X, y = classes()
    with pytest.raises(DataError, match="rows of a stream have equal weights"):
        classifier(class_weight="balanced").fit_stream(arrays(X, y))


def test_what_was_a_cost_stays_one_when_it_is_loaded(tmp_path: Path) -> None:
    X, y = classes()
    fitted = classifier(class_cost={0: 5.0}).fit(X, y)
    before = {name: value for name, value in fitted._options().items() if name != "class_cost"}
    before["class_weight"] = fitted._options()["class_cost"]
    now = saving.update_names(before, (option.name for option in options_of(UnboundedDepthClassifier)))
    assert saving.decode(now, {})["class_cost"] == {0: 5.0}
    assert "class_weight" not in now
    loaded = UnboundedDepthClassifier.load(fitted.save(tmp_path / "m"))
    assert (loaded.predict(X) == fitted.predict(X)).all()
