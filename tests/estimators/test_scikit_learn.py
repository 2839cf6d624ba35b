"""Estimators in scikit-learn: displays, verbosity, pipelines."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fathomless import IndianChefsRegressor, UnboundedDepthRegressor
from fathomless.estimators import saving
from fathomless.system.errors import DataError
from quick_fits import classes, classifier, problem, regressor

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.DataWarning"),
]


def test_the_display_of_a_fitted_estimator_tells_structure_and_score() -> None:
    fitted = regressor()
    assert "nats" not in fitted._repr_html_()  # type: ignore[operator]
    shown = fitted.fit(*problem())._repr_mimebundle_()["text/html"]
    assert "sk-top-container" in shown  # scikit-learn's own
    assert f"depth: {fitted.structure_.summary}" in shown
    assert f"log-likelihood on held-out rows: {fitted.validation_score_:.4g} nats per row" in shown
    fitted.structure_ = replace(fitted.structure_, summary="<script>1 & 2</script>")
    shown = fitted._repr_html_()  # type: ignore[operator]
    assert "&lt;script&gt;1 &amp; 2&lt;/script&gt;" in shown
    assert "<script>1 &" not in shown
    unscored = classifier(validation_fraction=0.0).fit(*classes())
    assert "nats" not in unscored._repr_html_()  # type: ignore[operator]
    assert unscored.structure_.summary in unscored._repr_html_()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("estimator", "unit"),
    [
        (regressor(), "epoch"),
        (regressor(cv=3), "epoch"),
        (IndianChefsRegressor(chains=2, sweeps=40, states=5, engine="numpy", random_state=0), "numpy sweep"),
    ],
    ids=["one network", "cross-fitted", "chains"],
)
def test_verbose_shows_nothing_a_bar_or_lines(estimator: Any, unit: str, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = problem(30)
    said, predicted = {}, []
    for level in (0, 1, 2):
        predicted.append(estimator.set_params(verbose=level).fit(X, y).predict(X))
        out, said[level] = capsys.readouterr()
        assert out == ""
    assert said[0] == ""
    assert f"{unit}/s" in said[1]
    lines = said[2].splitlines()
    assert len(lines) == len(estimator.history_)
    assert lines[-1].startswith(f"{unit} {estimator.n_iter_} of {estimator.n_iter_}: ")
    assert (predicted[0] == predicted[1]).all()
    assert (predicted[0] == predicted[2]).all()
    with pytest.raises(DataError, match="verbose='much' was given"):
        estimator.set_params(verbose="much").fit(X, y)


def test_what_was_called_progress_is_verbose_when_it_is_loaded() -> None:
    assert saving.update_names({"progress": True}, UnboundedDepthRegressor().get_params()) == {"verbose": True}


def test_pipelines_that_hand_on_data_frames_keep_names_and_predictions() -> None:
    X, y = problem(40)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    pipe = make_pipeline(StandardScaler(), regressor())
    plain = clone(pipe).fit(frame, y)  # hands on an array
    framed = pipe.set_output(transform="pandas").fit(frame, y)
    assert framed[-1].feature_names_in_.tolist() == ["a", "b", "c"]
    assert framed[-1].schema_.encoded_names == ("a", "b", "c")
    np.testing.assert_allclose(framed.predict(frame), plain.predict(frame), rtol=1e-9)
    assert np.isfinite(framed.predict(frame.iloc[:3], return_std=True)[1]).all()
    with pytest.raises(ValueError, match="must be in the same order"):
        framed[-1].predict(framed[:-1].transform(frame)[["c", "b", "a"]])
