"""Methods on one table: the same folds for all, arithmetic by hand, work that is kept, and what fails is told."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_diabetes, load_iris

from fathomless.app import compare as module
from fathomless.app.cli import main
from fathomless.app.compare import (
    LONG,
    compare,
    compare_in_turn,
    evaluate_split,
    method,
    methods_for,
)
from fathomless.app.comparison import Compared, Comparison
from fathomless.app.peers import PEERS, Peer
from fathomless.data.folds import fold_rows
from fathomless.data.frames import encode, fit_schema
from fathomless.data.targets import fit_labels, fit_target
from fathomless.families import registry
from fathomless.system.errors import DataError

Array = Any
FEW = ["constant", "linear", "boosting"]


def table(rows: int = 120) -> tuple[Array, Array]:
    X, y = load_diabetes(return_X_y=True)
    return X[:rows, :4], y[:rows]


def test_methods_are_compared_in_turn_and_simple_ones_first() -> None:
    X, y = table()
    found = list(compare_in_turn(X, y, task="regression", methods=["finite", *FEW[::-1]], folds=2))
    assert [{method.name for method in one.methods} for one in found] == [
        {"constant"},
        {"constant", "linear"},
        {"constant", "linear", "boosting"},
        {"constant", "linear", "boosting", "finite"},
    ]
    whole = compare(X, y, task="regression", methods=FEW, folds=2)
    scores = [of(one, "boosting").scores["log_likelihood"] for one in (found[2], found[3], whole)]
    assert scores[0] == scores[1] == scores[2]


def test_no_fit_is_started_after_the_given_minutes(tmp_path: Path) -> None:
    X, y = table()
    with pytest.raises(DataError, match="no method was finished in 1e-12 minutes; give more time"):
        compare(X, y, task="regression", methods=FEW, folds=2, minutes=1e-12, out=tmp_path)
    with pytest.raises(DataError, match="minutes=0 was given; a positive, finite number"):
        compare(X, y, task="regression", methods=FEW, folds=2, minutes=0)
    compare(X, y, task="regression", methods=["linear"], folds=2, out=tmp_path)
    for jobs in (1, 2):
        found = compare(X, y, task="regression", methods=FEW, folds=2, minutes=1e-12, jobs=jobs, out=tmp_path)
        assert [method.name for method in found.methods] == ["linear"]
        assert found.notes == ("left out after 1e-12 minutes: constant, boosting; give more to include them",)
    assert len(compare(X, y, task="regression", methods=FEW, folds=2, minutes=60, out=tmp_path).methods) == 3


def of(found: Comparison, name: str) -> Compared:
    return next(method for method in found.methods if method.name == name)


def test_groups_of_rows_share_a_fold(tmp_path: Path) -> None:
    """A target that is a noise of its group alone: rows of a known group would give it away."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(20), 6)
    X, y = rng.normal(size=(20, 2))[group], rng.normal(size=20)[group]
    found, leaked = (
        compare(X + 1e-3 * rng.normal(size=X.shape), y, task="regression", methods=["boosting"], folds=4, groups=groups)
        for groups in (group, None)
    )
    scores = [of(one, "boosting").scores["r2"].value for one in (found, leaked)]
    assert scores[0] < 0.2
    assert scores[1] > 0.5
    few = compare(X, y, task="regression", methods=["constant"], folds=5, groups=group % 3)
    assert few.folds == 3


def test_forward_folds_are_predicted_from_the_rows_before_them(tmp_path: Path) -> None:
    """The means and densities of a constant prediction are those of the rows before each block."""
    X, y = table()
    found = compare(X, y, task="regression", methods=["constant"], folds=3, order="forward")
    assert (found.rows, found.folds, found.order) == (90, 3, "forward")
    assert found.notes == ("the first 30 rows were training rows in all folds, and are not tested",)
    squares, density = [], []
    for start in (30, 60, 90):
        one = evaluate_split(
            lambda: method("constant", "regression", 0), (X[:start], y[:start]), (X[start:][:30], y[start:][:30])
        )
        density += one["log_density"]
        squares.append((y[start:][:30] - y[:start].mean()) ** 2)
    scores = of(found, "constant").scores
    assert scores["log_likelihood"].value == pytest.approx(np.mean(density))
    assert scores["rmse"].value == pytest.approx(np.mean([np.sqrt(square.mean()) for square in squares]), rel=1e-6)
    compare(X, y, task="regression", methods=["constant"], folds=3, out=tmp_path)
    with pytest.raises(DataError, match="other settings"):
        compare(X, y, task="regression", methods=["constant"], folds=3, order="forward", out=tmp_path)


def test_a_drifting_level_is_found_by_forward_folds_alone() -> None:
    """The number of a row tells the level between known rows, and not that of later rows."""
    rng = np.random.default_rng(0)
    y = np.cumsum(rng.normal(size=200))
    X = np.column_stack([np.arange(200.0), rng.normal(size=200)])
    scores = [
        of(compare(X, y, task="regression", methods=["boosting"], folds=2, order=order), "boosting").scores["r2"].value
        for order in ("random", "forward")
    ]
    assert scores[0] > 0.8
    assert scores[1] < 0.0


def test_groups_are_in_one_block_of_forward_folds() -> None:
    X, y = table()
    group = np.arange(120) // 50
    found = compare(X, y, task="regression", methods=["constant"], folds=2, order="forward", groups=group)
    assert (found.rows, found.folds) == (70, 2)
    classes = (y > np.median(y)).astype(int)
    found = compare(X, classes, task="classification", methods=["linear"], folds=3, order="forward")
    assert (found.rows, len(found.methods)) == (90, 1)
    assert not found.methods[0].failed


def test_ranks_are_those_of_arithmetic_by_hand() -> None:
    X, y = table()
    found = compare(X, y, task="regression", methods=FEW, folds=3, seed=4)
    x, z = encode(fit_schema(X), X), fit_target(y).encode(y)
    dealt = fold_rows(x, z, 3, 1, 4)[0].numpy()
    log_p: dict[str, Array] = {name: [] for name in FEW}
    for k in range(3):
        train, test = dealt != k, dealt == k
        log_p["constant"].append(stats.norm(y[train].mean(), y[train].std()).logpdf(y[test]))
        for name in ("linear", "boosting"):
            peer = Peer(name, "regression", 4).fit(X[train], y[train])
            log_p[name].append(peer.predict_dist(X[test]).log_prob(y[test]).numpy())
    each = {name: np.concatenate(parts) for name, parts in log_p.items()}
    order = sorted(FEW, key=lambda name: -each[name].mean())
    assert [method.name for method in found.methods] == order
    for name in FEW:
        score, behind = of(found, name).scores["log_likelihood"], of(found, name).behind
        assert score.value == pytest.approx(each[name].mean())
        assert score.error == pytest.approx(each[name].std(ddof=1) / len(y) ** 0.5)
        apart = each[order[0]] - each[name]
        assert behind.value == pytest.approx(apart.mean())
        assert behind.error == pytest.approx(apart.std(ddof=1) / len(y) ** 0.5)
    columns = found.columns()
    assert columns["method"] == order
    assert columns["rmse"] == [of(found, name).scores["rmse"].value for name in order]
    assert (found.rows, found.folds, found.notes) == (120, 3, ())


def test_the_width_of_boosting_is_that_of_residuals_it_was_not_fitted_to() -> None:
    """Its own residuals are smaller, and the intervals have the coverage of new rows."""
    X, y = load_diabetes(return_X_y=True)
    peer = Peer("boosting", "regression", 0).fit(X[:300], y[:300])
    p = peer.predict_dist(X[300:])
    left = (p.mean.numpy() - y[300:]).std()
    assert 0.7 < float(p.std[0]) / left < 1.4
    inside = peer.predict_dist(X[:300]).mean.numpy() - y[:300]
    assert float(p.std[0]) > 1.2 * inside.std()  # it is stopped early


def test_boosting_is_stopped_by_rows_that_it_was_not_fitted_to() -> None:
    """Noise has no iterations to gain from, and a function of little noise has many."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    noise, signal = rng.normal(size=400), np.sin(3.0 * X[:, 0]) + 0.05 * rng.normal(size=400)
    new = rng.normal(size=(400, 5))
    p = Peer("boosting", "regression", 0).fit(X, noise).predict_dist(new)
    assert float(p.mean.std()) < 0.15  # about 0.4 after 100 iterations with the rate 0.1
    error = Peer("boosting", "regression", 0).fit(X, signal).predict_dist(new).mean.numpy() - np.sin(3.0 * new[:, 0])
    assert error.std() < 0.3  # of a standard deviation of 0.7
    classes = Peer("boosting", "classification", 0).fit(X, noise > 0.0)
    score = float(classes.predict_dist(new).log_prob(rng.normal(size=400) > 0.0).mean())
    assert score == pytest.approx(-np.log(2.0), abs=0.05)


def test_boosting_holds_out_whole_groups() -> None:
    """A target of each group, with rows of the group in every random part: it would be stopped too late."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(40), 10)
    X, y = rng.normal(size=(40, 3))[group] + 0.01 * rng.normal(size=(400, 3)), rng.normal(size=40)[group]
    X_new, y_new = rng.normal(size=(400, 3)), rng.normal(size=400)
    apart = Peer("boosting", "regression", 0, groups=group).fit(X, y)
    leaking = Peer("boosting", "regression", 0).fit(X, y)
    assert apart.stopped_ is not None
    assert leaking.stopped_ is not None
    assert apart.stopped_[0] < 20 < leaking.stopped_[0]
    scores = [float(peer.predict_dist(X_new).log_prob(y_new).mean()) for peer in (apart, leaking)]
    assert scores[0] > -2.0 > scores[1]
    same = Peer("boosting", "regression", 0, like=apart).fit(X[:200], y[:200])
    assert same.stopped_ == apart.stopped_


@pytest.mark.parametrize("name", ["constant", "linear"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_weight_is_a_number_of_rows(name: str, task: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = X[:, 0] + 0.3 * rng.normal(size=60)
    if task == "classification":
        y = (y > 0.0) * 1
    weight = rng.integers(1, 4, 60)
    copies = np.repeat(np.arange(60), weight)
    shared = {"schema": fit_schema(X), "target": fit_labels(y) if task == "classification" else fit_target(y)}
    weighted = Peer(name, task, 0, weight=weight.astype(float)).fit(X, y, **shared)
    repeated = Peer(name, task, 0).fit(X[copies], y[copies], **shared)
    first, other = (peer.predict_dist(X).log_prob(y).numpy() for peer in (weighted, repeated))
    np.testing.assert_allclose(first, other, atol=1e-4)


def test_boosting_ignores_rows_without_weight() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1))
    wrong = rng.random(400) < 0.3
    y = np.where(wrong, 9.0, np.sin(2.0 * X[:, 0])) + 0.1 * rng.normal(size=400)
    given = {"weight": 1.0 * ~wrong}, {}
    errors, widths = [], []
    for options in given:
        law = Peer("boosting", "regression", 0, **options).fit(X, y).predict_dist(X[~wrong])
        errors.append(float(np.abs(law.mean.numpy() - y[~wrong]).mean()))
        widths.append(float(law.std.mean()))
    assert errors[0] < 0.3 < 1.0 < errors[1]
    assert widths[0] < 0.5 < 2.0 < widths[1]  # held-out rows have weights, too


def test_methods_get_the_groups_of_their_training_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two groups and two folds there is one group in each training set, which is no information."""
    found: list[Any] = []

    class Recorded(Peer):
        def fit(self, X: Any, y: Any, *args: Any, groups: Any = None, **options: Any) -> Any:
            found.append(groups)
            return super().fit(X, y, *args, **options)

    monkeypatch.setattr(module, "method", lambda *_: Recorded("constant", "regression", 0))
    X, y = table()
    group = np.repeat(["a", "b", "c", "d"], len(y) // 4)
    compare(X, y, task="regression", methods=["finite"], folds=2, groups=group)
    assert [len(np.unique(groups)) for groups in found] == [2, 2]
    assert all(len(groups) == len(y) // 2 for groups in found)
    found.clear()
    compare(X, y, task="regression", methods=["finite"], folds=2, groups=group < "c")
    compare(X, y, task="regression", methods=["finite"], folds=2)
    assert found == [None] * 4
    found.clear()

    def without_held_out_rows(*_: Any) -> Peer:  # as infinite graphs, which refuse groups
        peer = Recorded("constant", "regression", 0)
        peer.validation_fraction = 0.0  # type: ignore[attr-defined]
        return peer

    monkeypatch.setattr(module, "method", without_held_out_rows)
    compare(X, y, task="regression", methods=["finite"], folds=2, groups=group)
    assert found == [None] * 2


def test_a_model_of_one_class_has_no_iterations_for_others() -> None:
    """The training rows of the first fold can have one class, with groups or blocks."""
    X, y = table()
    high = y > np.median(y)
    one = Peer("boosting", "classification", 0).fit(X, np.zeros(len(y), dtype=bool), target=fit_labels(high))
    assert one.stopped_ is None
    alone, other = (Peer("boosting", "classification", 0, like=like).fit(X, high) for like in (None, one))
    assert alone.stopped_ == other.stopped_ is not None


def test_boosting_of_classes_with_one_row() -> None:
    """Held-out parts can contain all rows of a class."""
    X = np.arange(8.0)[:, None]
    p = Peer("boosting", "classification", 0).fit(X, np.array(["a"] * 7 + ["b"])).predict_dist(X)
    assert p.probs.shape == (8, 2)
    assert p.probs.isfinite().all()


@pytest.mark.parametrize("name", PEERS)
def test_peers_say_probabilities_of_classes(name: str) -> None:
    X, y = load_iris(return_X_y=True)
    p = Peer(name, "classification", 0).fit(X[::2], y[::2]).predict_dist(X[1::2])
    assert p.columns()["class"].shape == (75,)
    np.testing.assert_allclose(p.probs.sum(1), 1.0)
    if name == "constant":
        np.testing.assert_allclose(p.probs.numpy(), 1.0 / 3.0)
    else:
        assert (p.predict() == y[1::2]).mean() > 0.9


def test_classes_are_compared_too_and_rare_ones_are_told() -> None:
    X, y = load_iris(return_X_y=True)
    y = np.where(np.arange(150) < 2, 7, y)  # two rows of a class of their own
    found = compare(X, y, task="classification", methods=["constant", "linear"], folds=4)
    assert found.rows == 148
    assert found.notes == ("2 rows of rare classes were training rows in all folds, and are not tested",)
    assert {"log_likelihood", "accuracy", "brier", "ece"} <= set(of(found, "linear").scores)
    assert found.methods[0].name == "linear"


def test_what_is_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table()
    whole = compare(X, y, task="regression", methods=FEW, folds=2)
    fits, own = [], Peer.fit

    def fit(self: Peer, *args: Any) -> Peer:
        fits.append(self.name)
        if len(fits) == 4:
            raise KeyboardInterrupt
        return own(self, *args)

    monkeypatch.setattr(Peer, "fit", fit)
    with pytest.raises(KeyboardInterrupt):
        compare(X, y, task="regression", methods=FEW, folds=2, out=tmp_path)
    assert len(list((tmp_path / "parts").iterdir())) == 3
    fits[:] = ["done"] * 4
    found = compare(X, y, task="regression", methods=FEW, folds=2, out=tmp_path)
    assert fits[4:] == ["linear", "boosting", "boosting"]
    assert [m.behind for m in found.methods] == [m.behind for m in whole.methods]
    with pytest.raises(DataError, match=r"other settings \(seed\)"):
        compare(X, y, task="regression", methods=FEW, folds=2, seed=1, out=tmp_path)
    with pytest.raises(DataError, match=r"other settings \(table\)"):
        compare(X[::-1], y, task="regression", methods=FEW, folds=2, out=tmp_path)


def test_processes_find_the_same() -> None:
    X, y = table(60)
    one, two = (compare(X, y, task="regression", methods=FEW[:2], folds=2, jobs=jobs) for jobs in (1, 2))
    assert [(m.name, m.scores, m.behind) for m in one.methods] == [(m.name, m.scores, m.behind) for m in two.methods]


def test_families_are_fitted_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Known(Peer):
        def __init__(self, **options: Any) -> None:
            seen.append(options)
            super().__init__("linear", "regression", 0)

    monkeypatch.setattr(registry, "estimator_class", lambda place: Known)
    X, y = table(60)
    found = compare(X, y, task="regression", methods=["sparse", "linear"], folds=2, seed=9)
    assert seen == [{"random_state": 9, "unseen": "ignore"}] * 2
    assert of(found, "sparse").scores == of(found, "linear").scores


def test_chains_over_graphs_are_left_out_of_long_tables_and_told() -> None:
    assert "graph" in methods_for("regression", LONG)[0]
    methods, notes = methods_for("regression", LONG + 1)
    assert "graph" not in methods
    assert set(PEERS) < set(methods)
    assert "graph was omitted" in notes[0]


@pytest.mark.parametrize(("options", "message"), [
    ({"methods": ["forest"]}, r"methods='forest' was given; allowed for a regression are depth, sparse"),
    ({"folds": 1}, "folds=1 was given"),
    ({"folds": 40}, "120 rows were given for 40 folds; at least 80 are needed"),
    ({"task": "density"}, "task='density' was given"),
    ({"order": "backward"}, "order='backward' was given"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(options: dict[str, Any], message: str) -> None:
    if options.get("folds") == 40:
        message = message.replace("120", "60")
    X, y = table(60)
    with pytest.raises(DataError, match=message):
        compare(X, y, **{"task": "regression", "methods": ["constant"], **options})


# ---------------------------------------------------------------------------------------------- the command


def test_the_command_ranks_tells_and_writes_a_page(
    houses_csv: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Peer.fit

    def fit(self: Peer, *args: Any) -> Peer:
        if self.name == "boosting":
            raise ValueError("too <many> trees")
        return own(self, *args)

    monkeypatch.setattr(Peer, "fit", fit)
    words = ["compare", "houses.csv", "--target", "price", "--methods", ",".join(FEW), "--folds", "2"]
    assert main(words) == 0
    said = capsys.readouterr()
    lines = [line.split()[0] for line in said.out.splitlines() if line]
    assert lines[1:4] == ["Method", "linear", "constant"]
    assert "boosting has no result: ValueError: too <many> trees" in said.err
    page = Path("runs/compare-price/compare.html").read_text(encoding="utf-8")
    assert all(name in page for name in FEW)
    assert "too &lt;many&gt; trees" in page
    assert "<script" not in page
    assert main([*words, "--order", "forward", "--out", "later"]) == 0
    assert "2 forward folds" in capsys.readouterr().out
    assert "after a fit to all rows before it" in Path("later/compare.html").read_text(encoding="utf-8")
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [method["name"] for method in told["methods"]] == ["linear", "constant", "boosting"]
    assert told["methods"][2]["behind"]["value"] is None
    assert told == {**json.loads(Path("runs/compare-price/compare.json").read_text(encoding="utf-8"))}


def test_a_command_that_is_stopped_says_how_to_go_on(
    houses_csv: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "compare_in_turn", stopped)
    assert main(["compare", "houses.csv", "--target", "price", "--folds", "2"]) == 130
    assert "To resume: fathomless compare houses.csv --target price --folds 2" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "message"), [
    (["--target", "price", "--target", "size"], "2 targets were given (--target); a comparison needs exactly one"),
    ([], "0 targets were given"),
    (["--target", "price", "--task", "density"], "densities are not compared"),
    (["--target", "price", "--folds", "1"], "2 or more folds are allowed"),
    (["--target", "price", "--methods", "trees"], "--methods trees was given"),
])  # fmt: skip
def test_words_that_cannot_be_followed_are_refused(
    houses_csv: None, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["compare", "houses.csv", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_neighbours_are_compared_beside_the_default() -> None:
    assert "depth-neighbors" not in methods_for("classification", 100)[0]
    assert "depth-trees" in methods_for("classification", 100)[0]
    assert method("depth-neighbors", "regression", 0).get_params()["neighbors"] is True
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(60, 2)), 2, 0) + 0.001 * rng.normal(size=(120, 2))
    y = np.repeat(rng.normal(size=60), 2)  # every row has a twin
    with_neighbors, plain = (
        evaluate_split(partial(method, name, "regression", 0, epochs=20, cv=4), (X, y), (X, y))
        for name in ("depth-neighbors", "depth")
    )
    assert np.mean(with_neighbors["log_density"]) > np.mean(plain["log_density"]) + 0.1
