import functools
import math
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fathomless.data import datasets
from fathomless.data.frames import encode, fit_schema
from fathomless.data.targets import fit_labels
from fathomless.system.errors import DataError, FileError
from fathomless.system.io import read_json

SHIPPED = ("breast_cancer", "diabetes", "digits", "iris", "wine_recognition")


@pytest.fixture
def folder(data_folder, monkeypatch):
    """The public data sets where `load` looks for them, whichever way the folder was given."""
    monkeypatch.setenv("FATHOMLESS_DATA", str(data_folder))


@pytest.fixture
def no_folder(monkeypatch):
    monkeypatch.delenv("FATHOMLESS_DATA", raising=False)


# --- without a folder


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.usefixtures("no_folder")
def test_small_sets_need_no_folder(name):
    found = datasets.load(name)
    assert found.X.shape == (len(found.y), len(found.feature_names))
    assert found.task == ("regression" if name == "diabetes" else "classification")
    if found.class_names:
        assert np.unique(found.y).tolist() == list(range(len(found.class_names)))
    assert "scikit-learn" in found.source


@pytest.mark.parametrize("name", sorted(set(datasets.names()) - set(SHIPPED)))
@pytest.mark.usefixtures("no_folder")
def test_other_sets_say_where_to_find_them(name):
    with pytest.raises(DataError, match=r"public source is .{10,}FATHOMLESS_DATA.*breast_cancer, diabetes"):
        datasets.load(name)


def test_unknown_name_lists_the_known():
    with pytest.raises(DataError, match="'irish'; available are abalone, adult"):
        datasets.load("irish")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"no file .*boston\.npz"):
        datasets.load("boston", tmp_path)


# --- the catalogue

CATALOGUE = read_json(Path(datasets.__file__).with_name("catalogue.json"))
FIELDS = {
    "file": {"path": str, "layout": str, "source": str, "target": str, "split_column": str, "train_rows": int},
    "bundled": {"source": str, "target": str, "feature_names": list, "class_names": list},
}


def test_the_catalogue_holds_what_is_loaded_below():
    assert tuple(CATALOGUE) == datasets.names()
    assert {name for name, parts in CATALOGUE.items() if "bundled" in parts} == set(SHIPPED)
    assert {name for name, parts in CATALOGUE.items() if "file" in parts} == {*SIZES, *IMAGES}
    layouts = {parts["file"]["layout"] for parts in CATALOGUE.values() if "file" in parts}
    assert layouts == {"regression", "density", "images", "mosaics", "table", "two tables"}


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_entry_of_the_catalogue_is_well_formed(name):
    parts = CATALOGUE[name]
    assert parts
    assert set(parts) <= set(FIELDS)
    for part, fields in parts.items():
        assert {key: type(value) for key, value in fields.items()}.items() <= FIELDS[part].items()
        assert all(fields.values())
        assert len(fields["source"]) > 10
    if "file" in parts:
        path = PurePosixPath(parts["file"]["path"])
        assert path.stem.split(".")[0] == name
        assert not path.is_absolute()
        assert ".." not in path.parts
        assert ("target" in parts["file"]) >= (parts["file"]["layout"] in ("table", "two tables"))
    if len(parts) == 2:
        assert parts["bundled"]["target"] == parts["file"]["target"]


# --- with the folder: sizes and statistics as published

load_once = functools.cache(datasets.load)

SIZES = {
    "abalone": (4177, 9),
    "adult": (48842, 14),
    "bank_marketing_additional": (41188, 20),
    "boston": (506, 13),
    "cloud": (1024, 10),
    "concrete": (1030, 8),
    "energy": (768, 8),
    "faithful": (272, 2),
    "german_credit": (1000, 20),
    "iris": (150, 4),
    "kin8nm": (8192, 8),
    "lbbnn_logistic": (2000, 20),
    "letter": (20000, 16),
    "magic_telescope": (19020, 10),
    "naval": (11934, 16),
    "power": (9568, 4),
    "protein": (45730, 9),
    "spambase": (4601, 57),
    "wine_recognition": (178, 13),
    "wine_red": (1599, 11),
    "yacht": (308, 6),
    "yeast": (1484, 8),
}
IMAGES = {
    "mnist": ((70000, 28, 28), 60000, 0.1307),
    "fashion_mnist": ((70000, 28, 28), 60000, 0.2860),
    "kmnist_partial": ((17011, 28, 28), 7011, 0.1919),
    "cifar10": ((60000, 32, 32, 3), 50000, 0.4734),
}
MEANS = {"boston": 22.533, "concrete": 35.818, "energy": 22.307, "kin8nm": 0.71428, "naval": 0.975}
MEANS |= {"power": 454.37, "protein": 7.7485, "wine_red": 5.636, "yacht": 10.495}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", SIZES)
def test_tables_have_their_published_size_and_can_be_encoded(name):
    found = load_once(name)
    assert found.X.shape == SIZES[name]
    assert len(found.feature_names) == SIZES[name][1]
    schema = fit_schema(found.X)
    Z = encode(schema, found.X)
    assert Z.shape == (SIZES[name][0], schema.width)
    assert np.isfinite(Z).all()
    for train, test in found.splits:
        assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(SIZES[name][0]))
    if found.task == "classification":
        assert found.y.shape == (SIZES[name][0],)
        assert not found.class_names or np.array_equal(np.unique(found.y), np.arange(len(found.class_names)))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", MEANS)
def test_regression_sets_have_their_published_mean_and_splits(name):
    found = load_once(name)
    assert found.task == "regression"
    assert found.target_name
    assert found.y.mean() == pytest.approx(MEANS[name], rel=1e-4)
    assert len(found.splits) == (5 if name == "protein" else 20)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("adult", {"<=50K": 37155, ">50K": 11687}),
        ("bank_marketing_additional", {"no": 36548, "yes": 4640}),
        ("german_credit", {1: 700, 2: 300}),
        ("lbbnn_logistic", {0: 808, 1: 1192}),
        ("magic_telescope", {"g": 12332, "h": 6688}),
        ("spambase", {0: 2788, 1: 1813}),
    ],
)
def test_class_counts_are_as_published(name, counts):
    y = load_once(name).y
    labels = fit_labels(y)
    assert dict(zip(labels.labels, np.bincount(labels.encode(y)).tolist(), strict=True)) == counts


@pytest.mark.usefixtures("folder")
def test_adult_has_its_split_and_its_gaps():
    found = load_once("adult")
    train, test = found.splits[0]
    assert (len(train), len(test)) == (32561, 16281)
    assert (found.y[test] == ">50K").sum() == 3846
    gaps = [column.name for column in fit_schema(found.X).columns if column.gaps]
    assert gaps == ["workclass", "occupation", "native_country"]


@pytest.mark.usefixtures("folder")
def test_letter_has_its_usual_split():
    train, test = load_once("letter").splits[0]
    assert (train[-1], test[0], len(test)) == (15999, 16000, 4000)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["iris", "wine_recognition"])
def test_copy_in_the_folder_equals_the_one_of_scikit_learn(name, monkeypatch):
    from_folder = datasets.load(name)
    monkeypatch.delenv("FATHOMLESS_DATA")
    shipped = datasets.load(name)
    assert np.array_equal(from_folder.X, shipped.X)
    assert np.array_equal(from_folder.y, shipped.y)
    for field in ("feature_names", "class_names", "target_name", "task"):
        assert getattr(from_folder, field) == getattr(shipped, field)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "shape", "train", "mean"), [(name, *facts) for name, facts in IMAGES.items()])
def test_images_have_their_published_size_and_mean(name, shape, train, mean):
    if name == "cifar10":
        pytest.importorskip("PIL")
    found = datasets.load(name)
    assert found.task == "images"
    assert found.X.shape == shape
    assert found.X.dtype == np.uint8
    assert [len(part) for part in found.splits[0]] == [train, shape[0] - train]
    assert np.unique(found.y).tolist() == list(range(10))
    assert found.X[:train].mean() / 255 == pytest.approx(mean, abs=1e-4)


# --- toy problems

TOYS = {
    "spiral": lambda n, seed: datasets.spiral(n, 4.0, seed),
    "moons": datasets.moons,
    "rings": datasets.rings,
    "pinwheel": datasets.pinwheel,
    "gap_sine": datasets.gap_sine,
    "gap_cubic": datasets.gap_cubic,
    "cosine_gap": datasets.cosine_gap,
    "cubic": datasets.cubic,
    "heteroscedastic": datasets.heteroscedastic,
}


@settings(max_examples=10, deadline=None)
@given(n=st.integers(1, 50), seed=st.integers(0, 2**62))
@pytest.mark.parametrize("name", TOYS)
def test_toys_depend_on_their_seed_alone(name, n, seed):
    X, y = TOYS[name](n, seed)
    again = TOYS[name](n, seed)
    assert X.shape == (n, 2 if name in ("spiral", "moons", "rings", "pinwheel") else 1)
    assert y.shape == (n,)
    assert np.array_equal(X, again[0])
    assert np.array_equal(y, again[1])
    assert not np.array_equal(X, TOYS[name](n, seed + 1)[0])
    by_generator = [TOYS[name](n, torch.Generator().manual_seed(seed))[0] for _ in range(2)]
    assert np.array_equal(*by_generator)


@pytest.mark.parametrize("name", TOYS)
def test_toys_refuse_an_empty_sample(name):
    with pytest.raises(DataError, match="n is 0"):
        TOYS[name](0, 0)


def test_toys_refuse_negative_noise():
    with pytest.raises(DataError, match="noise is -1"):
        datasets.moons(3, 0, noise=-1.0)


@pytest.mark.parametrize("rotation", [0.0, 2.0, 10.0])
def test_spiral_without_noise_lies_on_its_curve(rotation):
    X, y = datasets.spiral(500, rotation, 0, noise=0.0)
    radius = np.hypot(*X.T)
    angle = rotation * radius * np.pi / 2
    c = 2 * y[:, None] - 1
    np.testing.assert_allclose(X, c * radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]), atol=1e-12)


def test_spiral_fills_the_disc_evenly():
    # u = sqrt(t) makes u^2 uniform: mean 1/2, standard error sqrt(1/12/n)
    X, y = datasets.spiral(20_000, 3.0, 1, noise=0.0)
    assert abs((X**2).sum(axis=1).mean() - 0.5) < 4 * math.sqrt(1 / 12 / 20_000)
    assert abs(y.mean() - 0.5) < 4 * math.sqrt(1 / 4 / 20_000)


def test_rings_and_moons_have_their_radii():
    X, y = datasets.rings(300, 0, classes=3, noise=0.0)
    np.testing.assert_allclose(np.hypot(*X.T), y + 1)
    assert set(y) == {0, 1, 2}
    X, y = datasets.moons(300, 0, noise=0.0)
    center = np.where(y[:, None], [1.0, 0.5], 0.0)
    np.testing.assert_allclose(np.hypot(*(X - center).T), 1.0)


def test_pinwheel_unbends_to_gaussians():
    n, X, arm = 20_000, *datasets.pinwheel(20_000, 0, arms=3, tangential=0.0)
    assert set(arm) == {0, 1, 2}
    radius = np.hypot(*X.T)  # |r|, as s = 0
    turned = np.arctan2(X[:, 1], X[:, 0]) - 2 * np.pi * arm / 3 - 0.25 * np.exp(radius)
    ahead = np.cos(turned)  # 1 where r > 0
    assert np.mean(ahead < 0.999) < 0.005  # P(r < 0) = 0.0004
    assert abs(radius.mean() - 1.0) < 4 * 0.3 / math.sqrt(n) + 1e-4
    assert abs(radius.std() - 0.3) < 4 * 0.3 / math.sqrt(2 * n) + 2e-4


@pytest.mark.parametrize(
    ("make", "mean", "deviation", "inside", "outside"),
    [
        (datasets.gap_sine, lambda x: np.sin(2 * x), lambda x: 0.1 + 0 * x, 1.0, 3.0),
        (datasets.gap_cubic, lambda x: x**3, lambda x: 3.0 + 0 * x, 2.0, 4.0),
        (datasets.cosine_gap, lambda x: np.cos(4 * x + 4), lambda x: 0.1 + 0 * x, 0.5, 1.0),
        (datasets.cubic, lambda x: x**3, lambda x: 3.0 + 0 * x, 1.0, 4.0),
        (datasets.heteroscedastic, lambda x: np.sin(2 * np.pi * x), lambda x: 0.05 + 0.4 * x, 0.0, 1.0),
    ],
)
def test_regressions_have_their_documented_mean_and_noise(make, mean, deviation, inside, outside):
    n = 20_000
    X, y = make(n, 0)
    x = X[:, 0]
    z = (y - mean(x)) / deviation(x)  # standard normal
    assert np.abs(x).min() >= inside
    assert np.abs(x).max() <= outside
    assert abs(z.mean()) < 4 / math.sqrt(n)
    assert abs(z.std() - 1) < 4 / math.sqrt(2 * n)
    assert abs(np.corrcoef(z**2, x)[0, 1]) < 4 / math.sqrt(n)


@pytest.mark.parametrize("n", [1, 7, 40])
def test_half_of_the_cosine_lies_to_each_side_of_its_gap(n):
    x = 4.0 * datasets.cosine_gap(n, 0)[0][:, 0] + 4.0
    assert np.sum((x >= 0.0) & (x <= 2.0)) == (n + 1) // 2
    assert np.sum((x >= 6.0) & (x <= 8.0)) == n // 2


def test_the_cubic_has_a_quarter_of_its_rows_on_each_interval():
    x = datasets.cubic(40, 0)[0][:, 0]
    for low in (-4.0, -2.0, 1.0, 3.0):
        assert np.sum((x >= low) & (x <= low + 1.0)) == 10
