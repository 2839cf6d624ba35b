"""Page section and findings of networks of continuous depth agree with the fitted estimators."""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fathomless.app.diagnose import diagnose
from fathomless.estimators.findings import Finding
from fathomless.families.continuous import report
from fathomless.families.continuous.estimator import ContinuousDepthClassifier, ContinuousDepthRegressor
from fathomless.plots.page import StructureSection, number

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 2))
Y = X[:, 0] * X[:, 1] + 0.1 * RNG.normal(size=70)


page = functools.cache(report.page)


def fitted(**options: Any) -> ContinuousDepthRegressor:
    small = {"epochs": 3, "width": 4, "hidden": 4, "cv": 1, "weight_draws": 4, "random_state": 0}
    return ContinuousDepthRegressor().set_params(**{**small, **options}).fit(X, Y)


@pytest.fixture(scope="module")
def plain() -> ContinuousDepthRegressor:
    return fitted()


@pytest.fixture(scope="module")
def several() -> ContinuousDepthRegressor:
    return fitted(cv=2)


@pytest.fixture(scope="module")
def weighed() -> ContinuousDepthRegressor:
    return fitted(horizon="random", cv=2)


@pytest.fixture(scope="module")
def by_the_bound() -> ContinuousDepthRegressor:
    return fitted(horizon="random", structure_from="elbo")


def cells(section: StructureSection) -> dict[str, str]:
    table = section.groups[-1].table
    assert table is not None
    return {row[0]: row[1] for row in table.rows}


def titles(estimator: Any) -> dict[str, Finding]:
    return {finding.title: finding for finding in diagnose(estimator, [], rows=len(Y))}


# ------------------------------------------------------------------------------------------------- the page


@pytest.mark.parametrize("name", ["plain", "several", "weighed", "by_the_bound"])
def test_every_picture_has_words_with_its_numbers(name: str, request: pytest.FixtureRequest) -> None:
    section = page(request.getfixturevalue(name))
    figures = [*(figure for group in section.groups for figure in group.figures), *section.learning]
    assert len(figures) == (6 if name in ("weighed", "by_the_bound") else 4)
    for figure in figures:
        (label,) = re.findall(r'aria-label="([^"]*)"', figure.svg)
        assert len(re.findall(r"\d", label)) >= 2
        assert not re.search(r"\bnan\b|not a number", label)
        assert figure.caption.endswith(".")
    for text in (section.about, section.note, section.objective):
        assert text.endswith(".")


def test_the_table_has_the_numbers_of_the_estimator(plain: ContinuousDepthRegressor) -> None:
    found, told = cells(page(plain)), plain.structure_.statistics
    assert found["Divergence of the paths from their prior, nats"] == number(told["path_divergence"])
    assert found["Weight decay of the weights at depth 0, nats"] == number(told["initial_divergence"])
    assert found["Effective depth, residual layers"] == f"{plain.effective_depth_:,}"
    assert found["Steps of predictions, up to depth 1"] == "5"
    assert found["Number of weights that vary with depth"] == str(plain.model_.moving)


def test_of_several_networks_pictures_are_of_the_first_and_numbers_are_means(
    plain: ContinuousDepthRegressor, several: ContinuousDepthRegressor
) -> None:
    one, two = page(plain).groups[0], page(several).groups[0]
    assert one.table is not None
    assert two.table is not None
    assert "means over 2 networks" in two.table.caption
    assert "networks" not in one.table.caption
    assert sum("in the first of 2 networks" in figure.caption for figure in two.figures) == 2
    assert not any("networks" in figure.caption for figure in one.figures)


def test_the_same_section_comes_out_twice(several: ContinuousDepthRegressor) -> None:
    assert report.page(several) == page(several)


def test_steps_of_predictions_are_those_that_are_compared() -> None:
    figure = page(fitted(solver__predict_steps=6)).groups[0].figures[-1]
    assert "predictions with 6 steps" in figure.caption
    assert "with 48 steps on the same paths" in figure.caption
    assert ", 0 with 48" in figure.svg


def test_pictures_start_at_the_hidden_state_of_the_row_in_the_middle(plain: ContinuousDepthRegressor) -> None:
    seen = report._follow_row(plain.model_, 2)
    fixed = plain.model_.mean.detach()[0, plain.model_.moving :] * plain.model_.scale[plain.model_.moving :]
    shapes = [weight.shape for weight in plain.model_.dynamics.still]
    parts = [p.reshape(s) for p, s in zip(fixed.split([np.prod(s) for s in shapes]), shapes, strict=True)]
    h = plain.model_.dynamics.enter([p[None, None] for p in parts], torch.zeros(1, 1, 2, dtype=fixed.dtype))
    np.testing.assert_allclose(seen.hidden[:, 0].numpy(), h[0, 0].expand(len(seen.hidden), -1).numpy(), atol=1e-6)
    assert seen.grid[0] == 0.0
    assert seen.hidden.shape[:2] == seen.weights.shape[:2] == (200, len(seen.grid))


def test_the_last_hidden_state_gives_the_outputs_of_the_model(plain: ContinuousDepthRegressor) -> None:
    model, grid = plain.model_, plain.model_.grid(20)
    noise = torch.Generator().manual_seed(0)
    f, hidden, _, _ = model.follow_paths(torch.zeros(1, 2, dtype=model.dtype), 200, grid, noise, [20])
    assert f.shape == (1, 200, 1, 1)
    seen = report._follow_row(model, 2)
    np.testing.assert_allclose(seen.hidden[:, -1].numpy(), hidden[0][0, :, 0].detach().numpy(), atol=1e-5)


def test_a_network_whose_weights_do_not_move_has_no_path_of_them() -> None:
    section = page(fitted(path__rate=0.0))
    captions = " ".join(figure.caption for figure in section.groups[0].figures)
    assert len(section.groups[0].figures) == 2
    assert "Weights with the largest change" not in captions
    assert cells(section)["Number of weights that vary with depth"] == "0"


@pytest.mark.parametrize(
    "options", [{"path__prior": "brownian"}, {"encoder": "pad", "augment": 2}, {"path__drift": "both"}]
)
def test_other_processes_and_networks_have_a_page(options: dict[str, Any]) -> None:
    assert len(page(fitted(**options)).groups[0].figures) == 4


def test_classes_have_a_page() -> None:
    clf = ContinuousDepthClassifier(epochs=2, width=4, hidden=4, cv=1, random_state=0).fit(X, Y > 0)
    assert len(page(clf).groups[0].figures) == 4


def test_horizons_weighed_by_rows_have_their_errors(weighed: ContinuousDepthRegressor) -> None:
    section, found, unit = page(weighed), weighed.fit_diagnostics_.structure, weighed.model_.members[0].unit
    table = section.groups[0].table
    assert table is not None
    assert table.head == ("Horizon", "Weight", "Single", "Log density")
    assert [row[0] for row in table.rows] == [number(k * unit) for k in found.numbers]
    assert all("±" in row[1] for row in table.rows)
    mean = f"{number(found.mean * unit)} ± {number(found.mean_error * unit, 2)}"
    assert mean in section.groups[0].figures[0].caption
    assert "best log-likelihood on out-of-fold rows" in section.about


def test_horizons_of_the_bound_stand_beside_the_prior(by_the_bound: ContinuousDepthRegressor) -> None:
    section = page(by_the_bound)
    table = section.groups[0].table
    assert table is not None
    assert table.head == ("Horizon", "Posterior", "Prior")
    assert len(table.rows) == len(by_the_bound.horizon_posterior_)
    assert "out-of-fold" not in section.about
    path = [row["mean_horizon"] / 8 for row in by_the_bound.history_]
    assert f"from {number(path[0])} to {number(path[-1])}" in section.learning[0].svg


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "not a bound on the evidence"),
        ({"path__initial": "gaussian"}, "a lower bound on the log evidence"),
        ({"path__initial": "gaussian", "path__rate": "learned"}, "The rate of the prior is a point estimate."),
        ({"temperature": 0.5}, "The temperature is not 1"),
    ],
)
def test_the_page_says_what_is_bounded(options: dict[str, Any], says: str) -> None:
    assert says in page(fitted(**options)).objective


# ----------------------------------------------------------------------------------------------- the doctor


OWN = {
    "Posterior over weight paths equals the prior",
    "Almost no posterior uncertainty within a network",
    "Too few solver steps in predictions",
    "Weight prior is too wide for the depth",
    "Horizon was inferred from a conditional bound",
    "Horizon posterior did not change in training",
}


def test_nothing_is_said_of_an_ordinary_fit() -> None:
    estimator = fitted(epochs=20)
    estimator.effective_depth_ = 5
    assert not OWN & set(titles(estimator))


def test_paths_that_did_not_move_are_found() -> None:
    estimator = fitted(epochs=1, learning_rate=1e-7)
    finding = titles(estimator)["Posterior over weight paths equals the prior"]
    assert finding.severity == "advice"
    assert "set path__rate (now 'learned') to a smaller number" in finding.remedy


@pytest.mark.parametrize("options", [{"path__rate": 0.0}, {"path__rate": 1e-6}])
def test_weights_that_are_known_are_found(options: dict[str, Any]) -> None:
    found = titles(fitted(**options))
    finding = found["Almost no posterior uncertainty within a network"]
    assert f"Set path__rate (now {options['path__rate']:.2g}) to a larger number" in finding.remedy
    assert "path__initial='gaussian'" in finding.remedy
    assert "Posterior over weight paths equals the prior" not in found


def test_weights_that_are_the_same_at_every_depth_may_be_uncertain() -> None:
    assert not OWN & set(titles(fitted(path__rate=0.0, path__initial="gaussian"))) - {
        "Too few solver steps in predictions"
    }


@pytest.mark.parametrize(("needed", "steps", "said"), [(16, None, True), (16, 16, False), (4, None, False)])
def test_too_few_steps_are_found(needed: int, steps: int | None, said: bool) -> None:
    estimator = fitted(solver__predict_steps=steps)
    estimator.effective_depth_ = needed
    found = titles(estimator)
    assert ("Too few solver steps in predictions" in found) == said
    if said:
        assert (
            f"Raise solver__predict_steps (now None) to {needed}" in found["Too few solver steps in predictions"].remedy
        )


def test_a_prior_that_explodes_is_found() -> None:
    with pytest.warns(match="grow without bound"):
        estimator = fitted(weight_prior=4.0, path__initial="gaussian")
    assert titles(estimator)["Weight prior is too wide for the depth"].remedy == "Lower weight_prior (now 4)."


def test_a_horizon_of_a_bound_that_is_given_its_start_is_found(
    by_the_bound: ContinuousDepthRegressor, weighed: ContinuousDepthRegressor
) -> None:
    title = "Horizon was inferred from a conditional bound"
    assert titles(by_the_bound)[title].severity == "advice"
    assert title not in titles(weighed)
    assert title not in titles(fitted(horizon="random", structure_from="elbo", path__initial="gaussian"))


def test_a_horizon_that_did_not_move_is_found(set_path: Callable[..., Any]) -> None:
    still, moving = set_path([8.0, 8.01, 8.0]), set_path([8.0, 6.0, 4.0])
    assert titles(still)["Horizon posterior did not change in training"].severity == "problem"
    assert "its initial value, depth 1." in titles(still)["Horizon posterior did not change in training"].detail
    assert "Horizon posterior did not change in training" not in titles(moving)


@pytest.fixture
def set_path() -> Callable[..., Any]:
    """Function that fits by the bound and replaces the history of the mean horizon."""

    def make(path: list[float]) -> ContinuousDepthRegressor:
        estimator = fitted(horizon="random", structure_from="elbo")
        last = estimator.history_[-1]
        estimator.history_ = [{**last, "mean_horizon": mean} for mean in path]
        return estimator

    return make


def test_every_finding_ends_in_sentences(by_the_bound: ContinuousDepthRegressor) -> None:
    for finding in titles(by_the_bound).values():
        assert finding.detail.endswith(".")
        assert finding.remedy.endswith(".")
