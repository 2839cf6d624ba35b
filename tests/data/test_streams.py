"""Streams: each row once an epoch, what is learned as from memory, constant memory, errors."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fathomless.app import runs
from fathomless.app.cli import main
from fathomless.data import streams
from fathomless.data.frames import fit_schema
from fathomless.data.rows import Rows, Stream, concatenate
from fathomless.data.tallies import Moments
from fathomless.data.targets import ClassLabels, TargetScale, fit_labels, fit_target
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.inference.runs.run import Run
from fathomless.system import memory
from fathomless.system.errors import DataError, FileError, PausedError

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

QUICK: dict[str, Any] = {"epochs": 3, "width": 8, "random_state": 0}


def numbered(sizes: list[int], pool: int) -> Stream:
    """A stream of the numbers 0, 1, ... as inputs and targets."""
    starts = np.cumsum([0, *sizes])

    def read(i: int) -> Rows:
        y = torch.arange(int(starts[i]), int(starts[i + 1]))
        return Rows(y[:, None].float(), y)

    return Stream(read, tuple(sizes), pool)


def order_of(stream: Stream, batch_size: int, generator: torch.Generator) -> list[list[int]]:
    return [batch.y.tolist() for batch in stream.batches(batch_size, generator)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------------------- order of the rows


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    pool=st.integers(1, 100),
    batch_size=st.integers(1, 40),
)
def test_each_row_comes_once_an_epoch_in_batches_of_nearly_equal_size(
    sizes: list[int], pool: int, batch_size: int
) -> None:
    stream = numbered(sizes, pool)
    batches = order_of(stream, batch_size, seeded())
    assert sorted(row for batch in batches for row in batch) == list(range(sum(sizes)))
    assert len(batches) == stream.steps(batch_size)
    assert max(map(len, batches)) <= batch_size
    assert max(map(len, batches)) - min(map(len, batches)) <= 1


def test_the_order_follows_from_the_generator_and_differs_between_epochs() -> None:
    stream, generator = numbered([50] * 8, 120), seeded()
    state = generator.get_state()
    first, second = order_of(stream, 30, generator), order_of(stream, 30, generator)
    assert first != second
    generator.set_state(state)
    assert [order_of(stream, 30, generator), order_of(stream, 30, generator)] == [first, second]


def test_a_pool_mixes_rows_of_distant_chunks() -> None:
    stream = numbered([100] * 40, 1000)
    for batch in order_of(stream, 100, seeded()):
        assert len({row // 100 for row in batch}) >= 5  # of ten chunks, each has a tenth of the rows
    alone = order_of(numbered([100] * 40, 1), 100, seeded())
    assert max(len({row // 100 for row in batch}) for batch in alone) <= 2


def test_one_chunk_gives_the_batches_of_rows_in_memory() -> None:
    stream = numbered([103], 10)
    expected = [batch.y.tolist() for batch in stream.read(0).batches(30, seeded())]
    assert order_of(stream, 30, seeded()) == expected


def test_parts_come_in_order_and_keep_weights() -> None:
    stream = numbered([5, 0, 7], 4)
    assert [row for part in stream.parts(3) for row in part.y.tolist()] == list(range(12))
    assert (len(stream), stream.count, len(stream.first)) == (12, 12.0, 5)
    weighted = Rows(torch.zeros(2, 1), torch.zeros(2), torch.tensor([1.0, 2.0]))
    assert concatenate([weighted, weighted]).count == 6.0


@given(rows=st.integers(1, 5000), fraction=st.floats(0.0, 0.99), seed=st.integers(0, 5))
def test_held_out_rows_are_distinct_and_one_from_each_stretch(rows: int, fraction: float, seed: int) -> None:
    held = streams.choose_held_out(rows, fraction, seed)
    count = min(round(rows * fraction), rows - 1)
    assert len(held) == count
    edges = rows * np.arange(count + 1) // max(count, 1)
    assert np.all((edges[:-1] <= held) & (held < edges[1:]))


def test_held_out_rows_are_bounded_in_number() -> None:
    held = streams.choose_held_out(10**9, 0.1, 0)
    assert len(held) == 20_000
    assert len(np.unique(held)) == 20_000
    assert 9.9e8 < held[-1] < 10**9


# ------------------------------------------------------------------------------------------------- learning


@given(
    parts=st.lists(st.lists(st.floats(-1e140, 1e140), max_size=6), min_size=1, max_size=6).filter(any),
    scale=st.sampled_from([1.0, 1e-150, 1e150]),
)
def test_moments_of_parts_are_those_of_the_whole(parts: list[list[float]], scale: float) -> None:
    found = Moments()
    for part in parts:
        found = found.plus(np.array(part) * scale)
    values = np.concatenate([np.array(part) * scale for part in parts])
    size = np.abs(values).max()
    with np.errstate(over="ignore", under="ignore"):
        relative = values / size if size > 0 else values
    assert found.count == len(values)
    assert found.mean == pytest.approx(relative.mean() * size, abs=1e-14 * size)
    assert found.std == pytest.approx(relative.std() * size, abs=1e-7 * size)
    if len(set(values.tolist())) == 1:
        assert found.standard == (values[0], 1.0)


def test_moments_keep_their_digits_far_from_zero() -> None:
    values = 1e8 + np.random.default_rng(0).normal(size=10_000)
    found = Moments()
    for part in np.split(values, 100):
        found = found.plus(part)
    assert found.std == pytest.approx(values.std(), rel=1e-9)
    assert found.mean == pytest.approx(values.mean(), rel=1e-15)


def mixed(rows: int = 400, seed: int = 0) -> pa.Table:
    """A table with a column of every kind, with gaps, and targets."""
    rng = np.random.default_rng(seed)
    size = rng.normal(3.0, 2.0, rows)
    colour = rng.choice(["red", "green", "blue"], rows)
    gap = rng.random(rows) < 0.1
    price = np.sin(2 * size) + (colour == "red") + 0.1 * rng.normal(size=rows)
    return pa.table(
        {
            "id": [f"r{i}" for i in range(rows)],
            "size": pa.array(size, mask=gap),
            "late": pa.array(size, mask=np.arange(rows) < 90),  # no value in the first chunks
            "constant": np.full(rows, 0.1),
            "rooms": rng.integers(1, 30, rows),
            "colour": pa.array(colour, mask=rng.random(rows) < 0.1),
            "kind": pa.array(colour).dictionary_encode(),
            "word": [f"w{i}" for i in np.minimum(rng.geometric(0.05, rows), 150)],
            "new": pa.array(rng.random(rows) < 0.5, mask=gap),
            "built": np.datetime64("2001-02-03") + rng.integers(0, 9999, rows),
            "price": price,
            "rent": price / 7 - size,
            "grade": np.where(price > 0.4, "high", "low"),
        }
    )


def parquet(folder: Path, table: pa.Table, group: int = 50) -> str:
    path = str(folder / "big.parquet")
    pq.write_table(table, path, row_group_size=group)
    return path


def same_schema(found: Any, expected: Any) -> None:
    """Columns agree exactly, but for the rounding of means and scales."""
    assert (found.named, found.missing, found.unseen) == (expected.named, expected.missing, expected.unseen)
    for one, other in zip(found.columns, expected.columns, strict=True):
        assert (one.name, one.kind, one.levels, one.other, one.gaps) == (
            other.name,
            other.kind,
            other.levels,
            other.other,
            other.gaps,
        )
        assert (one.center, one.scale, one.fill) == pytest.approx((other.center, other.scale, other.fill), rel=1e-12)


def test_categories_of_one_row_share_a_level(tmp_path: Path) -> None:
    names = ["a"] * 5 + ["b"] * 2 + [f"c{i}" for i in range(6)] + ["zz"] * 2
    table = pa.table({"name": names, "y": np.arange(15.0)})
    schema, _ = streams.learn(streams.parquet(parquet(tmp_path, table), ["y"]), TargetScale, max_levels=5)
    assert schema.columns[0].other
    assert schema.columns[0].levels == ("a", "b", "zz")


@pytest.mark.parametrize("target", [["price"], ["price", "rent"]])
def test_what_is_learned_of_a_file_is_what_is_learned_in_memory(tmp_path: Path, target: list[str]) -> None:
    table = mixed()
    left = ["id", *({"price", "rent", "grade"} - set(target))]
    source = streams.parquet(parquet(tmp_path, table), target, drop=left)
    schema, scale = streams.learn(source, TargetScale, max_levels=40)
    X, y = table.drop_columns([*left, *target]), table.select(target)
    expected = fit_schema(X, max_levels=40)
    assert expected.columns[6].other  # a category column with more levels than are kept
    same_schema(schema, expected)
    known = fit_target(y if len(target) > 1 else y.column(0))
    assert isinstance(scale, TargetScale)
    assert scale.ndim == known.ndim == len(target)
    assert scale.mean == pytest.approx(known.mean, rel=1e-12)
    assert scale.scale == pytest.approx(known.scale, rel=1e-12)


@pytest.mark.parametrize("labels", ["text", "whole", "bool", "object"])
def test_classes_are_those_of_memory(labels: str) -> None:
    rng = np.random.default_rng(0)
    codes = np.sort(rng.integers(0, 4, 300))  # the last classes come in the last chunks alone
    y = {
        "text": np.array(["a", "bb", "ccc", "dddd"])[codes],
        "whole": codes,
        "bool": codes > 1,
        "object": np.array(["a", "bb", "ccc", "dddd"], dtype=object)[codes],
    }[labels]
    X = rng.normal(size=(300, 3)).astype(np.float32)
    schema, known = streams.learn(streams.arrays(X, y, chunk=32), ClassLabels)
    same_schema(schema, fit_schema(X))
    assert known == fit_labels(y)


def test_too_many_categories_to_be_counted_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fathomless.data.tallies._MOST", 120)
    source = streams.parquet(parquet(tmp_path, mixed()), "price")
    with pytest.raises(DataError, match=r"rows 100 to 149 of .*'id' has more than 120 categories; drop it"):
        streams.learn(source, TargetScale)


# --------------------------------------------------------------------------------------------------- fitting


def noisy(rows: int = 3000, seed: int = 0) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=rows)


def saved(folder: Path, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[str, str]:
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    return str(folder / "X.npy"), str(folder / "y.npy")


def test_a_stream_of_one_chunk_learns_what_is_learned_in_memory(tmp_path: Path) -> None:
    """The same batches in the same order; means and scales differ by rounding, and so does the rest."""
    X, y = noisy(1500)
    options = {**QUICK, "validation_fraction": 0.0, "precision": "float64"}
    source = streams.arrays(*saved(tmp_path, X, y), chunk=1500)
    streamed = UnboundedDepthRegressor(**options).fit_stream(source)
    whole = UnboundedDepthRegressor(**options).fit(X, y)
    assert streamed.history_[-1]["elbo"] == pytest.approx(whole.history_[-1]["elbo"], rel=1e-9)
    np.testing.assert_allclose(streamed.predict(X), whole.predict(X), rtol=1e-7, atol=1e-9)


def test_many_small_chunks_learn_about_as_well_as_memory_does_even_if_sorted(tmp_path: Path) -> None:
    """Pools of 128 chunks of a sorted file: within a quarter of the error. (Without a pool, half as much again.)"""
    X, y = noisy(4000)
    order = np.argsort(y[:3000])
    source = streams.arrays(*saved(tmp_path, X[order], y[order]), chunk=8, pool=1024)
    options = {**QUICK, "cv": 1, "epochs": 20, "width": 16}
    streamed = UnboundedDepthRegressor(**options).fit_stream(source)
    whole = UnboundedDepthRegressor(**options).fit(X[:3000], y[:3000])
    errors = [np.mean((model.predict(X[3000:]) - y[3000:]) ** 2) for model in (streamed, whole)]
    assert errors[0] < 1.25 * errors[1] < 0.5, errors


def test_rows_held_out_are_never_trained_on() -> None:
    X, y = noisy(900)
    source = streams.arrays(X, y, chunk=64)
    held = streams.choose_held_out(900, 0.2, 3)
    schema, target = streams.learn(source, TargetScale)
    train, valid = streams.encode_source(source, schema, target, held, torch.float64, torch.device("cpu"))
    assert valid is not None
    seen = torch.cat([batch.y for batch in train.batches(50, seeded())]).ravel().sort().values
    rest = torch.from_numpy(target.encode(np.delete(y, held))).ravel().sort().values
    assert torch.equal(seen, rest)
    assert torch.equal(valid.y, torch.from_numpy(target.encode(y[held])))
    assert [len(train.read(i)) for i in range(len(train.sizes))] == list(train.sizes)


def test_a_fit_that_is_paused_and_resumed_ends_in_the_same_bytes(tmp_path: Path) -> None:
    table = mixed().drop_columns(["id", "rent", "grade"])
    source = streams.parquet(parquet(tmp_path, table), "price", pool=100)

    def fit(name: str, *callbacks: Callable[[Run], None]) -> UnboundedDepthRegressor:
        options = {**QUICK, "epochs": 6, "batch_size": 32}
        found = UnboundedDepthRegressor(**options, checkpoint=tmp_path / name, callbacks=list(callbacks))
        return found.fit_stream(source)

    def pause(run: Run) -> None:
        run.pause = run.epoch == 3

    whole = fit("whole")
    with pytest.raises(PausedError):
        fit("halves", pause)
    resumed = fit("halves")
    assert resumed.history_ == whole.history_
    for one, other in zip(resumed.model_.state_dict().values(), whole.model_.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    parquet(tmp_path, table.slice(1))
    source = streams.parquet(str(tmp_path / "big.parquet"), "price", pool=100)
    with pytest.raises(DataError, match="other data or other options"):
        fit("halves")


def test_an_estimator_of_a_stream_is_saved_and_loaded(tmp_path: Path) -> None:
    table = mixed()
    source = streams.parquet(parquet(tmp_path, table), "grade", drop=["id", "price", "rent"])
    fitted = UnboundedDepthClassifier(**QUICK).fit_stream(source)
    loaded = UnboundedDepthClassifier.load(fitted.save(tmp_path / "model"))
    X = table.select(list(source.columns))
    assert (loaded.predict_proba(X) == fitted.predict_proba(X)).all()
    assert (loaded.held_out_ == fitted.held_out_).all()
    assert fitted.classes_.tolist() == ["high", "low"]
    assert fitted.feature_names_in_.tolist() == list(source.columns)


def test_a_warm_start_goes_on_from_a_stream() -> None:
    X, y = noisy(600)
    reg = UnboundedDepthRegressor(**QUICK, warm_start=True).fit(X, y)
    schema, before = reg.schema_, reg.history_[-1]["elbo"]
    reg.fit_stream(streams.arrays(X, y))
    assert reg.schema_ is schema
    assert reg.history_[-1]["elbo"] > before


def test_several_files_stand_for_their_rows_one_after_the_other(tmp_path: Path) -> None:
    X, y = noisy(500)
    whole = streams.arrays(X, y, chunk=64)
    parts = streams.arrays([X[:10], X[10:300], X[300:]], [y[:450], y[450:]], chunk=64)
    rows = np.array([0, 9, 10, 63, 64, 299, 300, 499])
    for one, other in zip(whole.take(rows), parts.take(rows), strict=True):
        assert (one == other).all()
    table = mixed()
    for i in range(4):
        pq.write_table(table.slice(100 * i, 100), tmp_path / f"{i}.parquet", row_group_size=30)
    expected = table.take([0, 99, 100, 399])
    for paths in (tmp_path, str(tmp_path / "*.parquet"), [tmp_path / f"{i}.parquet" for i in range(4)]):
        X_, y_ = streams.parquet(paths, "price").take(np.array([0, 99, 100, 399]))
        assert X_.to_pydict() == expected.drop_columns(["price"]).to_pydict()
        assert y_.to_pylist() == expected["price"].to_pylist()


# ---------------------------------------------------------------------------------------------------- errors


def test_files_and_arrays_that_cannot_be_streamed_are_refused(tmp_path: Path) -> None:
    X, y = noisy(100)
    (tmp_path / "t.csv").write_text("a,y\n1,2\n", encoding="utf-8")
    (tmp_path / "empty.parquet").write_bytes(b"")
    path = parquet(tmp_path, mixed())
    none = tmp_path / "none.parquet"
    pq.write_table(mixed().slice(0, 0), none)
    other = tmp_path / "other.parquet"
    pq.write_table(mixed().set_column(1, "size", pa.array(["x"] * 400)), other)
    np.savez(tmp_path / "many.npz", X=X)
    np.save(tmp_path / "objects.npy", np.array([None, "a"]), allow_pickle=True)
    (tmp_path / "empty").mkdir()
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: streams.parquet(tmp_path / "t.csv", "y"), DataError, "not a Parquet file, .* piece by piece"),
        (lambda: streams.parquet(tmp_path / "empty.parquet", "y"), FileError, "is empty"),
        (lambda: streams.parquet(tmp_path / "absent.parquet", "y"), FileError, "there is no file"),
        (lambda: streams.parquet(tmp_path / "empty", "y"), FileError, "is a folder"),
        (lambda: streams.parquet(str(tmp_path / "*.pq"), "y"), FileError, "matches no file"),
        (lambda: streams.parquet(path, "prize"), DataError, "no column 'prize'; its columns are"),
        (lambda: streams.parquet(path, "price", drop=["x"]), DataError, "no column 'x'"),
        (lambda: streams.parquet(path, mixed().column_names), DataError, "at least one feature column"),
        (lambda: streams.parquet(none, "price"), DataError, "has no rows"),
        (lambda: streams.parquet([path, other], "price"), DataError, "no column 'size' of type double"),
        (lambda: streams.parquet(path, "price", pool=0), DataError, "pool=0"),
        (lambda: streams.arrays(X, y[:50]), DataError, "X has 100 rows and y has 50"),
        (lambda: streams.arrays(X, y, chunk=0), DataError, "chunk=0"),
        (lambda: streams.arrays(X.astype(str), y), DataError, "dtype <U"),
        (lambda: streams.arrays(X[:, 0], y), DataError, r"shape \(100,\)"),
        (lambda: streams.arrays([X, X[:, :2]], [y, y]), DataError, r"shape \(100, 2\)"),
        (lambda: streams.arrays(X, y[:, None, None]), DataError, "y has parts of shape"),
        (lambda: streams.arrays(X, 3.0), DataError, "a float was given"),  # type: ignore[arg-type]
        (lambda: streams.arrays(X[:0], y[:0]), DataError, "no rows"),
        (lambda: streams.arrays(tmp_path / "many.npz", y), FileError, "archive"),
        (lambda: streams.arrays(tmp_path / "objects.npy", y), FileError, "not a .npy file of numbers"),
        (lambda: streams.arrays(tmp_path / "t.csv", y), FileError, "not a .npy file"),
        (lambda: streams.arrays(tmp_path / "absent.npy", y), FileError, "there is no file"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message):
            call()


def test_values_that_cannot_be_learned_from_are_refused_with_their_rows() -> None:
    X, y = noisy(300)
    reg = UnboundedDepthRegressor(**QUICK)
    bad = X.copy()
    bad[130, 2] = np.nan
    with pytest.raises(DataError, match=r"rows 128 to 191 of X: column 'x2' contains NaN"):
        reg.fit_stream(streams.arrays(bad, y, chunk=64))
    wrong = y.copy()
    wrong[299] = np.nan
    with pytest.raises(DataError, match=r"rows 256 to 299 of X: Input y contains NaN"):
        reg.fit_stream(streams.arrays(X, wrong, chunk=64))
    with pytest.raises(DataError, match="continuous"):
        UnboundedDepthClassifier(**QUICK).fit_stream(streams.arrays(X, y))
    with pytest.raises(DataError, match="only one class"):
        UnboundedDepthClassifier(**QUICK).fit_stream(streams.arrays(X, np.ones(300, dtype=int)))
    assert "model_" not in vars(reg)


def test_a_pool_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = noisy(300)
    monkeypatch.setattr(memory, "available", lambda: 1 << 26)
    with pytest.raises(DataError, match=r"a pool of 50,000,000 rows .* reduce pool"):
        UnboundedDepthRegressor(**QUICK).fit_stream(streams.arrays(X, y, pool=50_000_000))


# ------------------------------------------------------------------------------------------------ command line


def test_a_stream_whose_target_has_one_value_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = mixed()
    flat = table.set_column(table.column_names.index("price"), "price", pa.array([3.0] * len(table)))
    words = ["fit", parquet(tmp_path, flat), "--key", "id", "--stream", "--out", "a", "--target", "price"]
    for more in ([], ["--target", "rent"]):
        assert main([*words, *more]) == 2
        assert "target 'price' has the value 3.0 in all 400 rows" in capsys.readouterr().err


def test_the_command_line_streams_when_asked_and_when_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fathomless.app.page.report.render", lambda page: f"<html>{page.title}</html>\n")
    path = parquet(tmp_path, mixed())
    words = ["--key", "id", "--drop", "rent", "--epochs", "3", "--width", "8"]
    assert main(["fit", path, "--target", "price", "--drop", "grade", *words, "--stream", "--out", "a"]) == 0
    said = capsys.readouterr()
    assert "streamed in 8 parts, as requested" in said.err
    assert "regression on 8 columns" not in said.out
    assert "price: regression on 9 columns, 400 rows" in said.out
    assert {e.name: e.rows for e in runs.evaluations("a")} == {"held-out rows": 40, "training rows": 360}
    assert main(["evaluate", "a", path]) == 0
    assert main(["predict", "a", path, "--out", "p.csv"]) == 0
    monkeypatch.setattr(memory, "available", lambda: 100 << 10)  # the table would take 400 * 13 * 8 * 5 bytes
    monkeypatch.setattr(memory, "require", lambda *_: None)
    capsys.readouterr()
    assert main(["fit", path, "--target", "grade", "--drop", "price", *words, "--out", "b"]) == 0
    said = capsys.readouterr()
    assert "because it might need 203 KiB of memory; 100 KiB are free" in said.err
    assert "grade: classification" in said.out
    torch.set_num_threads(1)


@pytest.mark.parametrize(("target", "task"), [("few", "classification"), ("many", "regression")])
def test_the_task_of_a_stream_is_that_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], target: str, task: str
) -> None:
    monkeypatch.setattr("fathomless.app.page.report.render", lambda page: "<html></html>\n")
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.normal(size=200), "few": np.arange(200) // 20, "many": np.arange(200) // 18})
    path, out = parquet(tmp_path, table), str(tmp_path / "run")
    words = ["fit", path, "--target", target, "--epochs", "2", "--width", "4", "--out", out]
    for more in (["--stream"], ["--overwrite"]):
        assert main([*words, *more]) == 0
        assert f"target {target}: {task}, because it" in capsys.readouterr().err
    torch.set_num_threads(1)


def test_what_the_command_line_cannot_stream_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,2\n", encoding="utf-8")
    path = parquet(tmp_path, mixed())
    for words, message in (
        ([str(tmp_path / "t.csv"), "--target", "y"], "is not a Parquet file"),
        ([path, "--target", "price", "--weight", "rooms"], "a stream has no weights"),
        ([path, "--target", "prize"], "did you mean 'price'?"),
        ([path, "--target", "price", "--drop", "price"], "was given two roles"),
    ):
        assert main(["fit", *words, "--stream", "--out", str(tmp_path / "run")]) == 2
        assert message in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ memory


def test_predictions_of_a_mapped_array_are_those_of_one_in_memory(tmp_path: Path) -> None:
    X, y = noisy(500)
    reg = UnboundedDepthRegressor(**QUICK).fit(X, y)
    for dtype in (np.float64, np.float32):
        held = np.tile(X, (34, 1)).astype(dtype)
        np.save(tmp_path / "new.npy", held)
        expected = reg.predict(held)
        for mode in ("r", "c", "r+"):
            new = np.load(tmp_path / "new.npy", mmap_mode=mode)
            assert (reg.predict(new) == expected).all()
    new = np.load(tmp_path / "new.npy", mmap_mode="c")
    new[3, 0] = 7.0  # in memory alone: giving pages back must not lose it
    memory.release(new)
    assert new[3, 0] == 7.0
    with pytest.raises(ValueError, match="5 features"):
        reg.predict(np.zeros((2, 5)))


CHILD = """
    import gc, pathlib, sys
    import numpy as np, torch
    from fathomless import UnboundedDepthRegressor
    from fathomless.data import streams

    torch.set_num_threads(1)
    for folder in sys.argv[1:]:
        gc.collect()  # cycles of the fit before
        source = streams.arrays(f"{folder}/X.npy", f"{folder}/y.npy", pool=8192)
        model = UnboundedDepthRegressor(
            epochs=1, width=4, batch_size=4096, random_state=0, validation_fraction=1000 / source.rows
        ).fit_stream(source)
        new = np.load(f"{folder}/X.npy", mmap_mode="r")
        for start in range(0, len(new), 20000):
            model.predict(new[start : start + 20000])
        # the peak so far; ru_maxrss would begin with that of the parent
        print(int(pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path) -> None:
    """A file of 61 MiB takes less than 20 MiB more than one of a quarter of it.

    The allocator returns every block of 64 KiB: fragments of the heap would vary the peak by 10 to 50 MiB.
    """
    folders = {rows: tmp_path / str(rows) for rows in (20_000, 80_000)}
    for rows, folder in folders.items():
        folder.mkdir()
        for name, shape in (("X", (rows, 100)), ("y", (rows,))):
            kind = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float64, shape)
            for start in range(0, rows, 5000):
                kind[start : start + 5000] = np.random.default_rng(start).normal(size=(5000, *shape[1:]))
            kind.flush()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(CHILD), *map(str, folders.values())],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"},
    )
    small, large = map(int, done.stdout.split())
    assert large - small < 20, (small, large)
