"""Methods of the field: those of this library, and others with default options.

Other methods have the interface of :class:`fathomless.app.peers.Peer`: the target is standardised, its atoms are
predicted by the classifier of the same library, and columns are encoded as for this library (one-hot categories,
missing values imputed) unless the library reads categories and missing values itself, as CatBoost does. A method
without a scale gets a normal law with one standard deviation, the root mean squared error of rows that were not used
for the fit: those of five folds for CatBoost, and the validation rows of pytabkit, a fifth.
"""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from family_peers import PEERS, Boosting, Drawn
from sklearn.model_selection import KFold, train_test_split

from fathomless import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.app.compare import method as of_library
from fathomless.app.peers import Peer
from fathomless.data.frames import encode, fit_schema
from fathomless.data.targets import TargetScale, fit_target
from fathomless.posterior.distributions import NumberPredictive

Array = npt.NDArray[Any]
FOLDS = 5  #: folds of the standard deviation of CatBoost
_LEAST = 1e-9  # smallest probability or standard deviation


@dataclass(frozen=True)
class Method:
    """Package of a method, and where it is used.

    Attributes
    ----------
    package, folder : str
        Name in the package index, and the folder that is imported.
    stage : int
        0 if it is cheap, 2 if it takes minutes on small tables; earlier stages are run first on all tables.
    rows, columns : int
        Largest numbers of training rows and of columns.
    numbers_only : bool
        True if there is no such classifier.
    title : str
        What it is.
    """

    package: str
    folder: str
    stage: int
    title: str
    rows: int = 10**9
    columns: int = 10**9
    numbers_only: bool = False


_OURS = "fathomless", "fathomless"
#: All methods in the order in which they are run on a table.
METHODS = {
    "constant": Method(*_OURS, 0, "mean and standard deviation, or frequencies"),
    "linear": Method(*_OURS, 0, "Bayesian ridge or logistic regression"),
    "boosting": Method(*_OURS, 0, "histogram boosting with a held-out scale"),
    "gp": Method("scikit-learn", "sklearn", 0, "Gaussian process", 2_000, 100, True),
    "catboost": Method("catboost", "catboost", 0, "CatBoost with a mean and a variance"),
    "ngboost": Method("ngboost", "ngboost", 0, "NGBoost, normal laws"),
    "depth": Method(*_OURS, 0, "default UnboundedDepth estimator"),
    "depth-trees": Method(*_OURS, 1, "default with trees=True"),
    "bde": Method("sklearn-contrib-bde", "bde", 1, "ensemble of sampled networks"),
    "torch-uncertainty": Method("torch-uncertainty", "torch_uncertainty", 1, "Bayesian network of its examples"),
    "laplace-torch": Method("laplace-torch", "laplace", 1, "Laplace approximation of its examples"),
    "realmlp": Method("pytabkit", "pytabkit", 1, "RealMLP with a scale of validation rows"),
    "catboost-rmse": Method("catboost", "catboost", 1, "CatBoost with an out-of-fold scale", numbers_only=True),
    "boosting-stage": Method(*_OURS, 1, "histogram boosting, our second stage", numbers_only=True),
    "tabm": Method("pytabkit", "pytabkit", 2, "TabM with a scale of validation rows"),
}


def is_installed(name: str) -> bool:
    """Return whether the package of a method can be imported."""
    return importlib.util.find_spec(METHODS[name].folder) is not None


def left_out(name: str, task: str, rows: int, columns: int) -> str:
    """Return the reason for which a method is not run, or an empty string.

    Examples
    --------
    >>> left_out("gp", "regression", 2500, 3), left_out("depth", "regression", 2500, 3)
    ('left out above 2,000 rows', '')
    """
    method = METHODS[name]
    if method.numbers_only and task == "classification":
        return "for regressions only"
    if rows > method.rows:
        return f"left out above {method.rows:,} rows"
    return f"left out above {method.columns} columns" if columns > method.columns else ""


def make(name: str, task: str, seed: int) -> Any:
    """Return the estimator of a method with default options."""
    if name in ("depth", "depth-trees"):
        kind = UnboundedDepthClassifier if task == "classification" else UnboundedDepthRegressor
        return kind(random_state=seed, trees=name == "depth-trees")
    if name in RIVALS:
        return RIVALS[name](name, task, seed)
    return of_library(name, task, seed)


class CatBoost(Boosting):
    """CatBoost with its own treatment of categories and missing numbers."""

    _categories: tuple[str, ...] = ()

    def _encode(self, X: Any) -> Any:
        text = [name for name in X.columns if not pd.api.types.is_numeric_dtype(X[name])]
        self._categories = tuple(text)
        return X.assign(**{name: X[name].astype(object).where(X[name].notna(), "missing") for name in text})

    def _given(self) -> dict[str, Any]:
        return {**super()._given(), "cat_features": list(self._categories)}


class PlainCatBoost(CatBoost):
    """CatBoost with its default loss, the squared error, and the standard deviation of out-of-fold errors."""

    def _fit_numbers(self, x: Any, z: Array) -> Callable[[Any], tuple[Array, Array]]:
        from catboost import CatBoostRegressor

        errors = np.zeros(len(z))
        for rest, held in KFold(FOLDS, shuffle=True, random_state=self.seed).split(z):
            fitted = CatBoostRegressor(**self._given()).fit(x.iloc[rest], z[rest])
            errors[held] = z[held] - fitted.predict(x.iloc[held])
        model = CatBoostRegressor(**self._given()).fit(x, z)
        return _with_scale(model.predict, errors)


class PytabkitNetwork(Peer):
    """Network of pytabkit with default options, one split into training and validation rows, and one thread."""

    def _fit_classes(self, x: Array, z: Array) -> Callable[[Array], tuple[Array]]:
        model = self._make("Classifier", val_metric_name="cross_entropy")
        model.fit(x, z)

        def say(rows: Array) -> tuple[Array]:
            p = np.full((len(rows), int(z.max()) + 1), _LEAST)
            p[:, model.classes_] = np.clip(model.predict_proba(rows), _LEAST, None)
            return (p / p.sum(1, keepdims=True),)

        return say

    def _fit_numbers(self, x: Array, z: Array) -> Callable[[Array], tuple[Array, Array]]:
        kept, held = train_test_split(np.arange(len(z)), test_size=0.2, random_state=self.seed)
        model = self._make("Regressor")
        model.fit(x[kept], z[kept], X_val=x[held], y_val=z[held])
        return _with_scale(model.predict, z[held] - np.asarray(model.predict(x[held])).reshape(-1))

    def _make(self, task: str, **options: Any) -> Any:
        from pytabkit.models.sklearn import sklearn_interfaces

        name = {"realmlp": "RealMLP_TD", "tabm": "TabM_D"}[self.name]
        kind = getattr(sklearn_interfaces, f"{name}_{task}")
        return kind(device="cpu", n_threads=1, random_state=self.seed, **options)


class DeepEnsemble(Drawn):
    """Bayesian deep ensemble of sklearn-contrib-bde; the prediction is the mixture over members and samples."""

    def _fit_classes(self, x: Array, z: Array) -> Callable[[Array], tuple[Array]]:
        from bde import BdeClassifier

        model = BdeClassifier(seed=self.seed).fit(x.astype(np.float32), z)

        def say(rows: Array) -> tuple[Array]:
            p = np.clip(np.asarray(model.predict_proba(rows.astype(np.float32)), dtype=np.float64), _LEAST, None)
            return ((p / p.sum(-1, keepdims=True))[None],)

        return say

    def _fit_numbers(self, x: Array, z: Array) -> Callable[[Array], tuple[Array, Array]]:
        from bde import BdeRegressor

        model = BdeRegressor(seed=self.seed).fit(x.astype(np.float32), z.astype(np.float32))

        def say(rows: Array) -> tuple[Array, Array]:
            raw = np.asarray(model.predict(rows.astype(np.float32), raw=True), dtype=np.float64)
            flat = raw.reshape(-1, *raw.shape[2:])  # (members x samples, rows, 2)
            return flat[..., 0], np.logaddexp(0.0, flat[..., 1]) + 1e-6  # as its own evaluation does

        return say


class Staged:
    """Histogram boosting with the second stage of this library, learned from its out-of-fold rows; see ``laws``."""

    target_: TargetScale

    def __init__(self, name: str, task: str, seed: int) -> None:
        self.seed = seed

    def fit(self, X: Any, y: Any) -> Self:
        """Keep the training rows; the fit is part of the prediction, as in ``laws``."""
        self.schema_ = fit_schema(X, missing="impute", unseen="ignore")
        self.target_ = fit_target(y)
        self._rows = encode(self.schema_, X), np.asarray(y, dtype=np.float64)
        return self

    def predict_dist(self, X: Any) -> NumberPredictive:
        """Fit, and return the predictive distribution of rows."""
        import laws

        new = encode(self.schema_, X)
        found = laws.run_boosting(laws.Split(*self._rows, new, np.zeros(len(new)), self.seed))
        return {name: law for name, law, _, _ in found}["boosting+stage"]


RIVALS: dict[str, Callable[[str, str, int], Any]] = {
    **PEERS,
    "catboost": CatBoost,
    "catboost-rmse": PlainCatBoost,
    "bde": DeepEnsemble,
    "realmlp": PytabkitNetwork,
    "tabm": PytabkitNetwork,
    "boosting-stage": Staged,
}


def use_one_thread() -> None:
    """Limit the libraries that read their number of threads from the environment to one."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def _with_scale(predict: Callable[[Any], Any], errors: Array) -> Callable[[Any], tuple[Array, Array]]:
    """Return the function that predicts means, and the root mean square of `errors` for every row."""
    scale = max(float(np.sqrt(np.mean(np.square(errors)))), _LEAST)

    def say(rows: Any) -> tuple[Array, Array]:
        mean = np.asarray(predict(rows), dtype=np.float64).reshape(-1)
        return mean, np.full(len(mean), scale)

    return say
