"""Selection of columns by backward elimination in a short training."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from commands import Call
from fathomless import UnboundedDepthClassifier, UnboundedDepthRegressor, load
from fathomless.app import runs
from fathomless.data.frames import fit_schema
from fathomless.data.rows import Rows
from fathomless.data.stacked_rows import StackedRows
from fathomless.estimators.selection import compute_importance, eliminate, keep_largest, number_columns, spread
from fathomless.estimators.trials import Attempt, RowScores, join_folds
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold.crossfit import crossfit, fold_indices
from fathomless.inference.out_of_fold.search import StructureSearch
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.nn.layers import MeanField, WeightPrior
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.likelihoods import Gaussian
from fathomless.system.errors import ConvergenceWarning, DataError

OPTIONS: dict[str, Any] = {
    **{"epochs": 600, "width": 16, "cv": 6, "random_state": 0, "recalibrate": False},
    "numbers": "plain",  # a pause is in test_trials
}

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")  # fits are short


def planted(rows: int, noise: int, seed: int = 0) -> tuple[Any, Any]:
    """Return a table whose first three columns determine the target."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3 + noise))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.normal(size=rows)


@pytest.fixture(scope="module")
def fitted() -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(**OPTIONS).fit(*planted(240, 20))


def score(fit: Any, X: Any, y: Any) -> float:
    return float(fit.predict_dist(X).log_prob(torch.as_tensor(y)).mean())


# ---- parts


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 6), st.integers(0, 99))
def test_importance_is_the_variance_of_the_contribution(widths: list[int], units: int, seed: int) -> None:
    """The contribution of a column to each unit is computed row by row."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, sum(widths))) * rng.uniform(0.1, 3.0, sum(widths))
    weight = rng.normal(size=(units, sum(widths)))
    column = np.repeat(np.arange(len(widths)), widths)
    found = compute_importance(torch.as_tensor(weight), torch.as_tensor(x), torch.as_tensor(column))
    for c in range(len(widths)):
        contribution = x[:, column == c] @ weight[:, column == c].T
        assert found[c].item() == pytest.approx(contribution.var(0).sum())


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_the_largest_kept_columns_remain(columns: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kept = torch.as_tensor(np.stack([rng.permutation(columns) < max(1, columns - 2) for _ in range(3)]))
    count = min(count, int(kept[0].sum()))
    importance = torch.as_tensor(rng.exponential(size=(3, columns)))
    after = keep_largest(importance, kept, count)
    assert torch.equal(after.sum(1), torch.full((3,), count))
    assert bool((kept | ~after).all())
    for f in range(3):
        left_out = kept[f] & ~after[f]
        assert not left_out.any() or importance[f][left_out].max() <= importance[f][after[f]].min()


@given(st.integers(2, 20), st.integers(0, 50))
def test_masks_never_depend_on_rows_out_of_fold(networks: int, seed: int) -> None:
    """The training rows behind the mask of a network are among its own."""
    folds = torch.from_numpy(np.random.default_rng(seed).integers(0, networks, (1, 100)))
    folds[0, :networks] = torch.arange(networks)
    of_trial, _ = fold_indices(join_folds(folds))
    of_fit, _ = fold_indices(folds)
    source = spread(torch.arange(len(of_trial))[:, None], networks)[:, 0]
    for k, rows in enumerate(of_fit):
        assert bool(torch.isin(of_trial[int(source[k])], rows).all())


def test_features_of_a_column_have_its_number() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, np.nan, 4.0], "b": ["x", "y", "z", "x"], "c": [0.0, 1.0, 2.0, 3.0]})
    schema = fit_schema(table)
    names = [schema.columns[int(c)].name for c in number_columns(schema)]
    assert [full.partition(" ")[0].partition("=")[0] for full in schema.encoded_names] == names


def test_rows_of_a_network_have_its_features_alone() -> None:
    table = Rows(torch.arange(1.0, 13.0).reshape(4, 3), torch.zeros(4, 1))
    used = torch.tensor([[True, False, True], [False, True, False]])
    stacked = StackedRows.of(table, [torch.tensor([0, 1, 3]), torch.tensor([2])], used)
    (part,) = stacked.parts(100)
    assert part.x[:3].tolist() == [[1.0, 3.0], [4.0, 6.0], [10.0, 12.0]]
    assert part.x[3].tolist() == [8.0, 0.0]
    (batch,) = stacked.batches(10, torch.Generator())
    assert torch.equal(batch.x, part.x)


class Linear:
    """First map of a network, for the elimination."""

    def __init__(self, weight: Any) -> None:
        self.weight = torch.as_tensor(weight)

    def first_weight(self) -> torch.Tensor:
        return self.weight


def attempt(value: float, kept: Any = None, columns: int = 8) -> Attempt:
    """Return networks with the same score of all rows; column j of network 0 has weight j, and −j in network 1."""
    weights = torch.arange(columns).double() + 1.0
    networks: Any = [Linear(weights[None]), Linear(weights.flip(0)[None])]
    return Attempt({}, RowScores(torch.arange(5), torch.full((5,), value).double()), networks, kept)


def run_elimination(by_count: dict[int, float], start: float = 0.5, columns: int = 8) -> list[Attempt]:
    """Eliminate columns with given scores of each number of columns."""
    rng = np.random.default_rng(0)
    schema = fit_schema(pd.DataFrame(rng.normal(size=(20, columns))).add_prefix("c"))
    first, second = attempt(0.0, columns=columns), attempt(start, columns=columns)

    def train(options: Any, kept: torch.Tensor) -> Attempt:
        return attempt(by_count[int(kept[0].sum())], kept, columns)

    x = torch.cat([torch.eye(columns).repeat(4, 1), 100.0 * torch.eye(columns)])
    inside = [torch.arange(4 * columns)] * 2  # the last rows train no network
    return eliminate([first, second], second, x, inside, schema, train)


def test_columns_are_halved_until_the_score_falls() -> None:
    rounds = run_elimination({4: 0.6, 2: 0.7, 1: 0.1})
    assert [tried.columns for tried in rounds] == [4, 2, 1]
    assert rounds[0].kept is not None
    assert rounds[0].kept.tolist() == [[False] * 4 + [True] * 4, [True] * 4 + [False] * 4]
    assert [tried.columns for tried in run_elimination({4: 0.6, 2: 0.7, 1: 0.8})] == [4, 2, 1]


def test_the_number_of_columns_is_refined_once() -> None:
    assert [tried.columns for tried in run_elimination({4: 0.6, 2: 0.4, 3: 0.7})] == [4, 2, 3]
    assert [tried.columns for tried in run_elimination({4: 0.4, 6: 0.7})] == [4, 6]
    assert [tried.columns for tried in run_elimination({4: 0.0}, start=0.005)] == [4]  # no clear gain to refine


def test_nothing_is_eliminated_where_scales_of_columns_lose() -> None:
    assert run_elimination({}, start=-0.2) == []
    assert run_elimination({}, columns=1) == []


# ---- networks


def test_weights_of_inputs_are_set_to_zero() -> None:
    blocks = MLP(4, 2, 8)
    model = UnboundedDepth(blocks.layer, blocks.head, min_depth=0)
    before = model.first_weight().clone()
    used = torch.tensor([True, False, True, False])
    x = torch.randn(5, 4)
    model.keep_inputs(torch.tensor([2, 0, -1]))
    few = model.draw(torch.stack([x[:, 2], x[:, 0], torch.ones(5)], 1)).f
    model.restore_inputs()
    torch.testing.assert_close(model.draw(x).f, few)
    assert torch.equal(model.first_weight()[:, used], before[:, used])
    assert not model.first_weight()[:, ~used].any()
    changed = torch.where(used, x, torch.randn(5, 4))
    assert torch.equal(model.draw(x).f, model.draw(changed).f)


def test_networks_without_a_linear_first_map_are_refused() -> None:
    model = UnboundedDepth(lambda k: torch.nn.Identity(), lambda k: MeanField(torch.nn.Linear(3, 1)), min_depth=0)
    with pytest.raises(DataError, match="without a linear map of its inputs"):
        model.first_weight()


def test_cross_fitted_networks_train_on_their_features() -> None:
    """Networks with a mask are those of the table without the other columns, if their initial weights agree."""
    rng = np.random.default_rng(0)
    x, y = torch.as_tensor(rng.normal(size=(60, 3))).float(), torch.as_tensor(rng.normal(size=(60, 1))).float()
    inside, outside = fold_indices(torch.arange(60)[None] % 3)
    used = torch.tensor([[True, False, True]]).repeat(3, 1)

    def start(inputs: int) -> Any:
        blocks = MLP(inputs, Gaussian(1).outputs, 8)
        return [
            (UnboundedDepth(blocks.layer, blocks.head, min_depth=0, seed=seed), Gaussian(1))
            for seed in range(len(inside))
        ]

    whole, small = start(3), start(2)
    for (a, _), (b, _) in zip(whole, small, strict=True):
        values = a.state_dict()
        narrow = {
            name: value[:, used[0]] if name in ("layers.1.0.weight", "heads.0.weight") else value
            for name, value in values.items()
        }
        b.load_state_dict(narrow)
    results = []
    for starts, table, mask in ((whole, x, used), (small, x[:, used[0]], None)):
        training = Training(epochs=40, batch_size=30, evaluate_every=10)
        search = StructureSearch(40, None, first=3)
        results.append(crossfit(starts, Rows(table, y), inside, outside, used=mask, training=training, search=search))
    (fit, seen), (_, seen_small) = results
    torch.testing.assert_close(seen.f, seen_small.f, atol=1e-4, rtol=1e-4)
    for network in list_members(fit.model):
        assert isinstance(network, UnboundedDepth)
        assert not network.first_weight()[:, 1].any()


def test_a_head_built_later_has_the_kept_inputs() -> None:
    blocks = MLP(4, 2, 8)
    model = UnboundedDepth(blocks.layer, blocks.head, min_depth=0)
    model.weigh({2: 1.0}, only=True)
    model.keep_inputs(torch.tensor([3, 1]))
    model.weigh({0: 0.5, 2: 0.5})
    x = torch.randn(5, 4)
    few = model.draw(x[:, [3, 1]]).f
    model.restore_inputs()
    torch.testing.assert_close(model.draw(x).f, few)


def test_a_network_without_some_inputs_has_the_prior_of_the_whole_one() -> None:
    """The divergence of the kept inputs, and its gradient, are those of a whole network whose other weights are 0."""
    blocks = MLP(4, 2, 8)
    prior = WeightPrior(columns=True)
    model = UnboundedDepth(blocks.layer, blocks.head, min_depth=0, weight_prior=prior)
    x, gradients, divergences = torch.randn(5, 4), [], []
    model.keep_inputs(torch.tensor([3, 1]))
    for inputs in (x[:, [3, 1]], x):
        divergence = torch.stack(list(model.draw(inputs).divergence.values())).sum()
        divergences.append(divergence)
        gradients.append(torch.autograd.grad(divergence, model.layers["1"][0].weight)[0])  # type: ignore[index, union-attr]
        if len(gradients) == 1:
            model.restore_inputs()
    torch.testing.assert_close(divergences[0], divergences[1])
    torch.testing.assert_close(gradients[0], gradients[1][:, [3, 1]])
    assert not gradients[1][:, [0, 2]].any()


def test_networks_with_their_features_are_trained_again_without_one_that_diverged() -> None:
    rng = np.random.default_rng(0)
    table = Rows(torch.as_tensor(rng.normal(size=(60, 3))).float(), torch.as_tensor(rng.normal(size=(60, 1))).float())
    inside, outside = fold_indices(torch.arange(60)[None] % 4)
    used = torch.tensor([[True, False, True], [True, True, False], [False, True, True], [False, True, False]])
    blocks = MLP(3, Gaussian(1).outputs, 8)
    states = []
    for left in ([0, 1, 2, 3], [0, 1, 3]):
        starts = [(UnboundedDepth(blocks.layer, blocks.head, seed=seed), Gaussian(1)) for seed in range(4)]
        with torch.no_grad():
            next(starts[2][0].parameters()).fill_(math.nan)
        parts = [[whole[i] for i in left] for whole in (starts, inside, outside)]
        training, search = Training(epochs=10, batch_size=30), StructureSearch(10, first=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fit, _ = crossfit(parts[0], table, *parts[1:], used=used[left], training=training, search=search)
        states.append(fit.model.state_dict())
        for network, mask in zip(list_members(fit.model), used[[0, 1, 3]], strict=True):
            assert isinstance(network, UnboundedDepth)
            assert torch.equal((network.first_weight() != 0.0).any(0), mask)
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


# ---- fits


def test_planted_columns_are_selected(fitted: UnboundedDepthRegressor) -> None:
    used = fitted.columns_used_
    assert [used[name] for name in ("x0", "x1", "x2")] == [1.0, 1.0, 1.0]
    (chosen,) = [trial for trial in fitted.trials_ if trial["chosen"]]
    assert 3 <= chosen["columns"] <= 6
    assert sum(used.values()) == pytest.approx(chosen["columns"])
    without = UnboundedDepthRegressor(**OPTIONS, weight_prior="columns").fit(*planted(240, 20))
    assert without.columns_used_ == {}
    X, y = planted(1000, 20, seed=1)
    assert score(fitted, X, y) > score(without, X, y) + 0.2
    assert fitted.validation_score_ is not None
    assert fitted.validation_score_ == pytest.approx(score(fitted, X, y), abs=0.25)  # the choice does not flatter it


def test_columns_that_are_not_used_change_nothing(fitted: UnboundedDepthRegressor) -> None:
    X, _ = planted(30, 20, seed=2)
    unused = [j for j, share in enumerate(fitted.columns_used_.values()) if share == 0.0]
    assert len(unused) >= 10
    changed = X.copy()
    changed[:, unused] = np.random.default_rng(3).normal(size=(30, len(unused)))
    assert np.array_equal(fitted.predict(X), fitted.predict(changed))


def test_another_seed_selects_the_same_columns(fitted: UnboundedDepthRegressor) -> None:
    again = UnboundedDepthRegressor(**{**OPTIONS, "random_state": 7}).fit(*planted(240, 20))
    often = [{name for name, share in fit.columns_used_.items() if share > 0.5} for fit in (fitted, again)]
    assert {"x0", "x1", "x2"} <= often[0] & often[1]
    assert max(map(len, often)) <= 8


def test_a_target_without_information_does_not_gain() -> None:
    """The selected columns have the training rows of each fold, so that its out-of-fold rows stay unseen."""
    X, _ = planted(150, 40)
    y = np.random.default_rng(5).normal(size=150)
    fit = UnboundedDepthRegressor(**OPTIONS).fit(X, y)
    constant = -0.5 * np.log(2.0 * np.pi * y.var()) - 0.5
    assert fit.validation_score_ is not None
    assert fit.validation_score_ < constant + 0.03


def test_saved_fits_keep_their_columns(fitted: UnboundedDepthRegressor, tmp_path: Path) -> None:
    again = load(fitted.save(tmp_path / "model"))
    assert again.columns_used_ == fitted.columns_used_ != {}
    assert again.trials_ == fitted.trials_
    X, _ = planted(20, 20, seed=4)
    assert np.array_equal(again.predict(X), fitted.predict(X))


def test_features_of_a_category_are_kept_or_left_out_together(call: Call, tmp_path: Path) -> None:
    """The fit is that of the command line, which names the columns."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({f"n{j}": rng.choice(list("uvwxyz"), 300) for j in range(12)})
    table["town"] = rng.choice(list("abcd"), 300)
    table["size"] = rng.normal(size=300)
    effect = table["town"].map({"a": -1.5, "b": 0.0, "c": 0.5, "d": 1.5}).to_numpy()
    table["target"] = np.where(effect + np.abs(table["size"]) + 0.5 * rng.normal(size=300) > 0.8, "yes", "no")
    table.to_csv(tmp_path / "table.csv", index=False)
    options = ["--epochs", 600, "--width", 16, "--cv", 5, "--numbers", "plain", "--seed", 0]
    said = call("fit", tmp_path / "table.csv", "--target", "target", "--out", tmp_path / "run", *options)
    assert said.code == 0, said.err
    fit = runs.load(tmp_path / "run")[0]
    used = [name for name, share in fit.columns_used_.items() if share > 0.0]
    assert f"columns: the networks use {len(used)} of 14: " in said.out
    assert all(repr(name) in said.out for name in used[:10])
    assert fit.columns_used_["town"] == fit.columns_used_["size"] == 1.0
    assert min(fit.columns_used_.values()) == 0.0
    column = number_columns(fit.schema_)
    for network in list_members(fit.model_):
        assert isinstance(network, UnboundedDepth)
        used = (network.first_weight() != 0.0).any(0)
        for c in range(len(fit.schema_.columns)):
            assert len(used[column == c].unique()) == 1


def test_given_partitions_keep_all_columns() -> None:
    """The columns of a partition could depend on rows that another one holds out."""
    X, y = planted(120, 12)
    folds = np.stack([np.arange(120) % 3, np.arange(120) // 40])
    fit = UnboundedDepthRegressor(**{**OPTIONS, "cv": folds}).fit(X, y)
    assert [trial["options"] for trial in fit.trials_] == [{"weight_prior": 1.0}, {"weight_prior": "columns"}]
    assert fit.columns_used_ == {}


@pytest.mark.parametrize("last_layer", ["laplace", "conjugate"])
def test_heads_with_a_posterior_keep_all_columns(last_layer: str) -> None:
    """Their posteriors are fitted to all features, also to those that a network would not use."""
    fit = UnboundedDepthRegressor(**{**OPTIONS, "cv": 3, "width": 4}, last_layer=last_layer).fit(*planted(100, 20))
    assert len(fit.trials_) == 2
    assert fit.columns_used_ == {}


def test_networks_that_continue_may_use_all_columns_again(fitted: UnboundedDepthRegressor, tmp_path: Path) -> None:
    again = load(fitted.save(tmp_path / "model")).set_params(cv="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again.partial_fit(*planted(100, 20, seed=6))
    assert set(again.columns_used_.values()) == {1.0}


# ---- wide tables


def wide(rows: int = 520, columns: int = 14) -> tuple[Any, Any]:
    """Return a table of classes with fewer than 50 rows for each column; two columns determine the class."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(rows, columns))
    return X, np.sin(1.5 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=rows) > 0.0


@pytest.mark.parametrize("options", [{"cv": 2}, {"cv": 1}, {"structure_from": "elbo"}, {"depth_law": 2, "cv": 2}])
def test_wide_tables_without_trials_have_bins(options: dict[str, Any]) -> None:
    fit = UnboundedDepthClassifier(width=4, epochs=2, random_state=0, **options).fit(*wide())
    assert not fit.trials_
    assert all(column.bins for column in fit.schema_.columns)


def test_columns_of_wide_tables_are_eliminated_from_plain_numbers() -> None:
    fit = UnboundedDepthClassifier(width=8, epochs=300, cv=3, random_state=0).fit(*wide())
    options = [(trial["options"]["numbers"], trial["options"]["weight_prior"]) for trial in fit.trials_]
    assert options[:3] == [("binned", 1.0), ("binned", "columns"), ("plain", "columns")]
    counts = [trial["columns"] for trial in fit.trials_ if "columns" in trial]
    assert counts[0] == 7
    rounds = [option for option, trial in zip(options, fit.trials_, strict=True) if "columns" in trial]
    assert rounds[0] == ("plain", "columns")
    (chosen,) = [trial for trial in fit.trials_ if trial["chosen"]]
    binned = chosen["options"]["numbers"] == "binned"
    assert all((column.bins is not None) == binned for column in fit.schema_.columns)
