"""Where scikit-learn shows, steers and composes estimators: displays, verbosity, pipelines."""

from dataclasses import replace

import pytest
from sklearn.utils import estimator_html_repr

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
    assert 'class="sk-top-container"' in shown  # scikit-learn's own
    assert f"depth: {fitted.structure_.summary}" in shown
    assert f"unseen rows: {fitted.validation_score_:.4g} nats per row" in shown
    fitted.structure_ = replace(fitted.structure_, summary="<script>1 & 2</script>")
    shown = fitted._repr_html_()  # type: ignore[operator]
    assert "&lt;script&gt;1 &amp; 2&lt;/script&gt;" in shown
    assert "<script>1 &" not in shown
    unscored = classifier(validation_fraction=0.0).fit(*classes())
    assert "nats" not in unscored._repr_html_()  # type: ignore[operator]
    assert unscored.structure_.summary in unscored._repr_html_()  # type: ignore[operator]
    assert estimator_html_repr(unscored).split("<style>")[0] in unscored._repr_html_()  # type: ignore[operator]
