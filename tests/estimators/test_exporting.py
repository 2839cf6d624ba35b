"""Exported estimators: equal predictions for any number of rows, in PyTorch and in ONNX Runtime."""

import datetime
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from battery.cases import CASES, Case, fitted
from fathomless import (
    HMC,
    ContinuousDepthRegressor,
    Heun,
    MeanFieldNetworkRegressor,
    UnboundedDepthClassifier,
    UnboundedDepthRegressor,
)
from fathomless.data.frames import encode
from fathomless.estimators import exporting
from fathomless.posterior.mixtures import Mixture, Normal, StudentT
from fathomless.system.errors import DataError
from fathomless.system.tracing import trace

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

Array = npt.NDArray[Any]
QUICK = {"epochs": 8, "width": 6, "weight_draws": 5, "random_state": 0}
SHORT: dict[str, Any] = {"chains": 2, "sweeps": 16, "states": 4, "leapfrogs": 3}
#: Every family in one task; heads of classes, which are the same for all, with networks of three kinds.
PLAIN = [
    case
    for case in CASES
    if case.plain
    and (
        case.task == "regression"
        or (case.task == "classification" and case.family.name in ("depth", "sparse", "graph"))
    )
]
_DEPTH = next(case.family for case in CASES if case.name == "depth-regression")
#: Sampled weights, whose networks are evaluated side by side.
SAMPLED = [
    Case(f"depth-hmc-{activation}", _DEPTH, "regression", {"weights": HMC(**SHORT), "activation": activation})
    for activation in ("tanh", "relu")
]


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    """Return a table with every kind of column, and gaps."""
    rng = np.random.default_rng(seed)
    first = datetime.datetime(1896, 2, 20)
    table = pd.DataFrame(
        {
            "age": rng.normal(40.0, 9.0, rows),
            "city": rng.choice(["Bonn", "Rome", "Oslo"], rows),
            "member": rng.random(rows) < 0.4,
            "since": pd.Series([first + datetime.timedelta(days=int(d)) for d in rng.integers(0, 80_000, rows)]),
        }
    )
    table.loc[::7, "age"] = np.nan
    table.loc[3::9, "since"] = pd.NaT
    return table


def same(module: Any, estimator: Any, X: Any) -> None:
    """Compare a module with the estimator it was made of."""
    found = {name: value.numpy() for name, value in module(torch.from_numpy(estimator.to_numbers(X))).items()}
    dist = estimator.predict_dist(X)
    if "probabilities" in found:
        np.testing.assert_allclose(found["probabilities"], dist.probs.numpy(), atol=1e-5)
        return
    unit = estimator.target_.scale[0]
    for name, expected in (("mean", dist.mean), ("variance", dist.variance / unit)):
        np.testing.assert_allclose(found[name] / unit ** (name == "variance"), expected.numpy(), atol=1e-5 * unit)
    for place, level in enumerate((0.05, 0.5, 0.95)):
        np.testing.assert_allclose(dist.cdf(found["quantiles"][..., place]).numpy(), level, atol=1e-5)


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_a_module_says_what_the_estimator_says(case: Case) -> None:
    X, _ = case.table()
    estimator = fitted(case)
    module = estimator.to_module()
    same(module, estimator, X)
    same(module, estimator, X[:1])  # any number of rows
    assert not any(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize("case", [*PLAIN, *SAMPLED], ids=lambda case: case.name)
def test_a_module_has_the_gradients_of_its_outputs(case: Case) -> None:
    """Against finite differences in a random direction; rows with a kink of a rectified unit between may differ."""
    X, _ = case.table()
    estimator = fitted(case)
    module = estimator.to_module(output="mean" if case.task == "regression" else "probabilities")
    x = torch.from_numpy(estimator.to_numbers(X[:20])).requires_grad_()
    value = module(x)[:, 0]
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    with torch.no_grad():  # the networks compute in single precision
        change = (module(x + 1e-3 * direction) - module(x - 1e-3 * direction))[:, 0] / 2e-3
    found = (gradient * direction).sum(1)
    assert int(torch.isclose(found, change, rtol=0.02, atol=2e-3).sum()) >= 18
    assert gradient.abs().sum() > 0.1


def test_trees_do_not_split_dates_by_rounding(tmp_path: Path) -> None:
    """Cosines of mirrored days are equal, and modules have the cosines of the encoding."""
    days = pd.to_datetime("2024-01-01") + pd.to_timedelta(np.random.default_rng(0).integers(0, 400, 200), "D")
    X, y = pd.DataFrame({"day": days}), np.isin(days.day_of_week, [0, 1, 2])
    estimator = UnboundedDepthClassifier(cv=2, trees=True, **QUICK).fit(X, y)
    assert estimator.trees_ is not None
    encoded = encode(estimator.schema_, X)
    assert [len(np.unique(encoded[:, place])) for place in (3, 4)] == [7, 4]
    same(estimator.to_module(), estimator, X)
    assert estimator.export(tmp_path / "days.pt2").difference < 1e-6


@pytest.mark.parametrize(("missing", "unseen"), [("auto", "warn"), ("impute", "error"), ("error", "ignore")])
def test_a_module_encodes_every_kind_of_column(missing: str, unseen: str) -> None:
    X, new = people(90), people(200, seed=1)
    if missing == "error":
        X, new = X.dropna(), new.dropna()
    y = X["age"].fillna(30.0) + 5.0 * (X["city"] == "Rome") + X["since"].dt.day_of_year.fillna(0.0) / 50.0
    estimator = UnboundedDepthRegressor(missing=missing, unseen=unseen, cv=2, **QUICK).fit(X, y)
    module = estimator.to_module()
    same(module, estimator, new)
    numbers = estimator.to_numbers(X[1:2])
    unknown = numbers.copy()
    unknown[0, 1] = -1.0
    gap = numbers.copy()
    gap[0, 2] = np.nan
    assert not torch.isnan(module(torch.from_numpy(numbers))["mean"]).any()
    # NaN if the estimator refuses the row
    assert bool(torch.isnan(module(torch.from_numpy(unknown))["mean"]).all()) == (unseen == "error")
    assert bool(torch.isnan(module(torch.from_numpy(gap))["mean"]).all()) == (missing == "error")
    with warnings.catch_warnings(action="ignore"):
        if unseen != "error":
            elsewhere = X[1:2].assign(city="Nowhere")
            np.testing.assert_allclose(
                module(torch.from_numpy(unknown))["mean"], estimator.predict(elsewhere), rtol=1e-5
            )
        if missing != "error":
            without = X[1:2].assign(**{X.columns[2]: None})
            np.testing.assert_allclose(module(torch.from_numpy(gap))["mean"], estimator.predict(without), rtol=1e-5)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("unseen", ["ignore", "error"])
def test_other_values_of_constant_columns_are_treated_as_by_the_estimator(gaps: bool, unseen: str) -> None:
    n = 60
    day = pd.Timestamp("2024-03-05")
    rows = {"size": 5.0, "new": True, "day": day, "town": "Rome"}
    X = pd.DataFrame({"x": np.linspace(-1.0, 1.0, n), **{name: [value] * n for name, value in rows.items()}})
    X = X.astype({"new": object})
    if gaps:
        for i, name in enumerate(rows):
            X.loc[i, name] = None
    estimator = MeanFieldNetworkRegressor(missing="impute", unseen=unseen, **QUICK).fit(X, X["x"] ** 2)
    module = estimator.to_module()
    same(module, estimator, X)
    other = {"size": 1e9, "new": False, "day": day + pd.Timedelta(days=100), "town": "Oslo"}
    expected = estimator.predict(X[8:9])
    for name, value in other.items():
        changed = X[8:9].astype({name: object}).assign(**{name: [value]}).astype({name: X[name].dtype})
        found = module(torch.from_numpy(estimator.to_numbers(changed)))["mean"]
        if unseen == "error":
            assert bool(torch.isnan(found).all()), name
            with pytest.raises(DataError, match=name):
                estimator.predict(changed)
        else:
            same(module, estimator, changed)
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        without = X[8:9].astype({name: object}).assign(**{name: [None]}).astype({name: X[name].dtype})
        same(module, estimator, without)


def test_rare_and_unseen_categories_go_where_the_estimator_puts_them() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"street": [f"s{int(k)}" for k in rng.geometric(0.08, 300)], "size": rng.normal(size=300)})
    estimator = MeanFieldNetworkRegressor(max_levels=6, unseen="ignore", **QUICK).fit(
        X, X["size"] + X["street"].str.len()
    )
    X.loc[0, "street"] = "elsewhere"
    same(estimator.to_module(), estimator, X)


@pytest.mark.parametrize("likelihood", ["gaussian", "laplace", "student_t"])
def test_quantiles_of_every_law(likelihood: str) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(120, 2))
    estimator = MeanFieldNetworkRegressor(likelihood=likelihood, **QUICK).fit(X, X[:, 0] + rng.standard_t(3, 120))
    module = estimator.to_module()
    same(module, estimator, X)
    assert not [node for node in module.graph.nodes if "gamma" in str(node.target)]  # which ONNX has not
    if likelihood != "gaussian":
        return
    two = MeanFieldNetworkRegressor(likelihood=likelihood, **QUICK).fit(X, np.column_stack([X[:, 0], 3.0 * X[:, 1]]))
    assert two.to_module(levels=[0.1])(torch.from_numpy(X))["quantiles"].shape == (120, 2, 1)


@settings(max_examples=60, deadline=None)
@given(st.floats(2.01, 300.0), st.floats(-60.0, 60.0))
def test_students_distribution_function(df: float, z: float) -> None:
    law = StudentT(torch.zeros(1), torch.ones(1), torch.tensor([df]))
    found = exporting._cdf(law, torch.tensor([z], dtype=torch.float64), None).item()
    assert found == pytest.approx(float(special.stdtr(df, z)), abs=3e-6)
    ratio = exporting._gamma_ratio(torch.tensor(0.5 * df, dtype=torch.float64)).item()
    assert ratio == pytest.approx(float(special.poch(0.5 * df, 0.5)), rel=1e-11)


def test_a_table_of_students_law_is_exact_for_several_degrees_of_freedom_at_once() -> None:
    df = torch.tensor([2.05, 4.0, 200.0, 4.0], dtype=torch.float64).view(2, 1, 2)
    z = torch.linspace(-60.0, 60.0, 4001, dtype=torch.float64).view(1, -1, 1).expand(2, -1, 2)
    table, every = exporting._StudentTable(df), df.expand_as(z)
    np.testing.assert_allclose(table.below(z), special.stdtr(every.numpy(), z.numpy()), atol=1e-10)
    np.testing.assert_allclose(table.density(z), stats.t(every.numpy()).pdf(z.numpy()), rtol=1e-11)
    ends = torch.tensor([-1e300, 0.0, 1e300], dtype=torch.float64).view(1, 3, 1).expand(2, 3, 2)
    np.testing.assert_allclose(table.below(ends)[0, :, 0], [0.0, 0.5, 1.0], atol=1e-15)


def test_laws_whose_degrees_of_freedom_depend_on_the_row_have_no_table() -> None:
    df = torch.tensor([[[3.0], [4.0]]])
    assert exporting._student_table(StudentT(torch.zeros(1, 2, 1), torch.ones(1, 2, 1), df)) is None
    assert exporting._student_table(Normal(torch.zeros(1, 2, 1), torch.ones(1, 2, 1))) is None


@pytest.mark.parametrize("table", [True, False])
def test_quantiles_of_distant_modes_are_those_of_the_mixture(table: bool) -> None:
    levels, weight = [0.001, 0.3, 0.5, 0.9, 0.999], torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    law = StudentT(
        torch.tensor([-300.0, 0.0, 5.0]).view(3, 1, 1), torch.tensor([1.0, 0.01, 40.0]).view(3, 1, 1), torch.tensor(4.0)
    )
    p = torch.tensor(levels, dtype=torch.float64).view(-1, 1, 1)
    found = exporting._quantiles([(weight.view(3, 1, 1), law)], p, exporting._student_table(law) if table else None)
    below = Mixture(weight.log(), law).cdf(found)
    np.testing.assert_allclose(below.flatten(), levels, atol=1e-6)


def test_a_program_of_students_noise_is_not_much_longer_than_of_normal_noise() -> None:
    X = np.random.default_rng(1).normal(size=(60, 2))
    nodes = [
        len(MeanFieldNetworkRegressor(likelihood=law, **QUICK).fit(X, X[:, 0]).to_module().graph.nodes)
        for law in ("gaussian", "student_t")
    ]
    assert nodes[1] < 2 * nodes[0]


def test_a_file_for_onnx_runtime(tmp_path: Path) -> None:
    X = people(80)
    y = np.where(X["city"] == "Rome", "yes", "no")
    estimator = UnboundedDepthClassifier(cv=2, **QUICK).fit(X, y)
    told = estimator.export(tmp_path / "model.onnx", unit="votes")
    assert told.difference < 1e-5
    assert told.bytes == told.path.stat().st_size
    session = onnxruntime.InferenceSession(told.path, providers=["CPUExecutionProvider"])
    for rows in (1, 33):
        new = people(rows, seed=2)
        (found,) = session.run(["probabilities"], {"x": estimator.to_numbers(new)})
        np.testing.assert_allclose(found, estimator.predict_proba(new), atol=1e-5)
    meta = json.loads(session.get_modelmeta().custom_metadata_map["fathomless"])
    assert meta["classes"] == ["no", "yes"]
    assert meta["unit"] == "votes"
    assert [column["name"] for column in meta["columns"]] == list(X.columns)
    assert meta["columns"][1]["levels"] == ["Bonn", "Oslo", "Rome"]
    assert sum(meta["structure"]["probabilities"]) == pytest.approx(1.0)


def test_a_file_for_torch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    options = {"hidden": 4, "solver": Heun(steps=2), "epochs": 4, "cv": 1, "weight_draws": 2, "random_state": 0}
    estimator = ContinuousDepthRegressor(**options).fit(X, X[:, 0])
    told = estimator.export(tmp_path / "model.pt2", levels=[0.2])
    extra = {"metadata.json": ""}
    module = torch.export.load(told.path, extra_files=extra).module()
    found = module(torch.from_numpy(X[:5]))
    np.testing.assert_allclose(found["mean"].numpy(), estimator.predict(X[:5]), atol=1e-5 * estimator.target_.scale[0])
    assert json.loads(extra["metadata.json"])["levels"] == [0.2]


def test_a_fit_to_a_data_frame_of_numbers_is_exported_without_a_warning(tmp_path: Path) -> None:
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), columns=["a", "b"])
    estimator = MeanFieldNetworkRegressor(**QUICK).fit(X, X["a"])
    assert estimator.export(tmp_path / "model.pt2").difference < 1e-4  # a warning would be an error


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    estimator = MeanFieldNetworkRegressor(**QUICK).fit(X, X[:, 0])
    with pytest.raises(DataError, match=r"a name that ends with .onnx or .pt2 is allowed"):
        estimator.export(tmp_path / "model.pkl")
    with pytest.raises(DataError, match="probabilities between 0 and 1 are allowed"):
        estimator.to_module(levels=[1.0])
    with pytest.raises(DataError, match="depend on the values of the rows"):
        trace(lambda x: x * 2.0 if bool((x > 0.0).any()) else x, torch.ones(3, 2))
    with pytest.raises(DataError, match="draws random numbers for each row"):
        trace(lambda x: x + torch.randn(x.shape, generator=torch.Generator()), torch.ones(3, 2))
    for integer in (len, lambda x: int(x.shape[0])):
        with pytest.raises(DataError, match=r"for 3 rows only, .* use x.shape\[0\]"):
            trace(lambda x, n=integer: torch.cat([x, torch.zeros(n(x), 1)], 1), torch.ones(3, 2))


def test_a_program_keeps_rows_in_one_piece() -> None:
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    written = trace(lambda x: torch.cat([part.cumsum(1) for part in x.split(4)]), x[:3])
    assert torch.equal(written(x), x.cumsum(1))
    masked = trace(lambda x: x.new_zeros(2, 2).fill_diagonal_(2.0) @ x.T, x[:3])
    assert torch.equal(masked(x)[0], 2.0 * x[:, 0])
