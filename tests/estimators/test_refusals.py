"""Error messages of all estimators name the public class and its options."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import fathomless
from fathomless.estimators.options import options_of
from fathomless.estimators.tasks import Classifier, Density
from fathomless.system.errors import DataError
from quick_fits import problem, regressor

PUBLIC = [name for name in fathomless.__all__ if name.endswith(("Classifier", "Regressor", "Density"))]


def said(name: str, estimator: Any, X: Any, y: Any, **more: Any) -> str:
    """Return what a refused fit says, without whose it is."""
    with pytest.raises(ValueError, match=name) as caught:
        estimator.fit(X, y, **more)
    words = str(caught.value)
    assert re.findall(r"(?<![\w.])_[a-z]\w*", words) == []  # nothing private
    values = {one.__name__ for option in options_of(type(estimator)) for one in option.metadata["values"].values()}
    assert set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w*", words)) <= {name, "NumPy", "NaN", *values}  # and no other class
    return words.removeprefix(f"{name}: ")


@pytest.mark.parametrize("name", PUBLIC)
def test_refused_fits_name_the_public_class_and_the_option(name: str) -> None:
    kind: Any = getattr(fathomless, name)
    X, y = problem(30)
    target = (y > 0).astype(int) if issubclass(kind, Classifier) else y
    for option in options_of(kind):
        if option.metadata["kind"] in ("whole", "real", "flag", "choice"):
            words = said(name, kind(**{option.name: "no such"}), X, target)
            assert words.startswith(f"{option.name}='no such' was given; ")
    assert "non-zero" in said(name, kind(), X, target, sample_weight=np.zeros(30))
    assert "contains NaN" in said(name, kind(), np.where(X > 1.0, np.nan, X), target)
    if not issubclass(kind, Density):
        assert "they must agree" in said(name, kind(), X, target[:20])
    with pytest.raises(NotFittedError, match=name):
        kind().score_samples(X) if issubclass(kind, Density) else kind().predict(X)


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
def test_refused_predictions_name_the_public_class() -> None:
    frame = pd.DataFrame({"size": np.arange(20.0), "colour": ["red", "blue"] * 10})
    fitted = regressor(unseen="error").fit(frame, np.arange(20.0))
    for ask in (fitted.predict, fitted.predict_dist, fitted.sample_y):
        with pytest.raises(DataError, match=r"^UnboundedDepthRegressor: column 'colour' .*'green'"):
            ask(frame.assign(colour="green"))  # type: ignore[operator]
