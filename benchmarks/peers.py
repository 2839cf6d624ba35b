"""Speed, accuracy and calibration compared with similar methods of other libraries on the same rows.

    python benchmarks/peers.py                       all data sets
    python benchmarks/peers.py --sets spambase --splits 1 --out peers.json

The other methods are networks of fixed depth: a plain PyTorch loop over a DataLoader, skorch, scikit-learn's MLP, and
the baselines of this library. Every network has layers of 64 rectified units and Adam with the same learning rate.
Plain networks have three layers and early stopping on a tenth of the training rows, as fathomless has. Columns are
standardised with the training rows. Times are CPU seconds of one thread, as a ratio to those of the plain loop in the
same run. Log-likelihoods are in nats per test row, for the standardised target. A method without a density gets a
Gaussian whose standard deviation is the error on its held-out rows. ± is a standard error over splits. skorch is in the
extra ``bench``.
"""

import argparse
import copy
import itertools
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fathomless.data.datasets import load
from fathomless.estimators.values import Restarts
from fathomless.families import registry
from fathomless.posterior.metrics import expected_calibration_error
from fathomless.system.errors import ConvergenceWarning

Array = Any
WIDTH, RATE, PATIENCE, EPOCHS = 64, 5e-3, 15, 200
SETS = ("spambase", "magic_telescope", "wine_red", "concrete", "kin8nm")


@dataclass
class Score:
    """Scores of one model on one split."""

    log_likelihood: float
    error: float  # accuracy or RMSE
    calibration: float  # expected calibration error, or coverage of the central 90 % interval
    fit: float  # CPU seconds
    predict: float


def network(inputs: int, outputs: int) -> nn.Sequential:
    widths = [inputs, WIDTH, WIDTH, WIDTH]
    layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, outputs))


def objective(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(f[:, 0], y) if y.is_floating_point() else F.cross_entropy(f, y)


def fit_plain(X: Array, y: Array, classes: int, seed: int) -> Callable[[Array], Array]:
    """Train with a plain loop: a DataLoader, Adam and early stopping."""
    torch.manual_seed(seed)
    x, target = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y)
    kept, held = train_test_split(np.arange(len(y)), test_size=0.1, random_state=seed)
    net = network(X.shape[1], classes or 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    best = float("inf")
    since = 0
    state = copy.deepcopy(net.state_dict())
    loader = DataLoader(TensorDataset(x[kept], target[kept]), batch_size=256, shuffle=True)
    for _ in range(EPOCHS):
        for batch, label in loader:
            optimizer.zero_grad()
            objective(net(batch), label).backward()
            optimizer.step()
        with torch.no_grad():
            loss = float(objective(net(x[held]), target[held]))
        best, since, state = (loss, 0, copy.deepcopy(net.state_dict())) if loss < best else (best, since + 1, state)
        if since >= PATIENCE:
            break
    net.load_state_dict(state)
    return lambda new: net(torch.as_tensor(new, dtype=torch.float32)).detach()


def fit_skorch(X: Array, y: Array, classes: int, seed: int) -> Callable[[Array], Array]:
    from skorch import NeuralNet
    from skorch.callbacks import EarlyStopping
    from skorch.dataset import ValidSplit

    class Objective(nn.Module):
        def forward(self, f: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return objective(f, target)

    torch.manual_seed(seed)
    net = NeuralNet(
        network(X.shape[1], classes or 1),
        Objective,
        optimizer=torch.optim.Adam,
        lr=RATE,
        max_epochs=EPOCHS,
        batch_size=256,
        iterator_train__shuffle=True,
        train_split=ValidSplit(0.1, random_state=seed),
        callbacks=[EarlyStopping(patience=PATIENCE, load_best=True, sink=lambda _: None)],
        verbose=0,
    ).fit(np.asarray(X, dtype=np.float32), y)
    return lambda new: torch.as_tensor(net.forward(np.asarray(new, dtype=np.float32)))


def fit_mlp(X: Array, y: Array, classes: int, seed: int) -> Callable[[Array], Array]:
    kind = MLPClassifier if classes else MLPRegressor
    net = kind(
        hidden_layer_sizes=(WIDTH,) * 3,
        learning_rate_init=RATE,
        early_stopping=True,
        n_iter_no_change=PATIENCE,
        random_state=seed,
    ).fit(X, y)
    if classes:
        return lambda new: torch.as_tensor(net.predict_log_proba(new))
    return lambda new: torch.as_tensor(net.predict(new))[:, None]


POINT = {"plain loop": fit_plain, "skorch": fit_skorch, "scikit-learn MLP": fit_mlp}
OURS: dict[str, dict[str, Any]] = {
    "fathomless": {"learning_rate": RATE},
    "fathomless, 5 restarts averaged": {"learning_rate": RATE, "n_restarts": Restarts(count=5, keep="average")},
    "finite, L = 3": {"structure": "finite"},
    "dropout, L = 3": {"structure": "dropout"},
    "ensemble of 5, L = 3": {"structure": "ensemble"},
}


def score_peer(
    make: Callable[..., Callable[[Array], Array]], split: tuple[Array, ...], classes: int, seed: int
) -> Score:
    X, X_test, y, y_test = split
    start = time.process_time()
    predict = make(X, y, classes, seed)
    fitted = time.process_time()
    f = predict(X_test)
    done = time.process_time()
    target = torch.as_tensor(y_test)
    times = (fitted - start, done - fitted)
    if classes:
        log_p = f.double().log_softmax(-1)
        ece = float(expected_calibration_error(y_test, log_p.exp().numpy()))
        right = (f.argmax(-1) == target).double().mean()
        return Score(float(log_p[torch.arange(len(target)), target].mean()), float(right), ece, *times)
    kept, held = train_test_split(np.arange(len(y)), test_size=0.1, random_state=seed)
    probe = make(X[kept], y[kept], classes, seed)(X[held])[:, 0] - torch.as_tensor(y[held])
    spread = float(probe.square().mean()) ** 0.5
    residual = (f[:, 0].double() - target).numpy()
    density = -0.5 * (residual / spread) ** 2 - np.log(spread) - 0.5 * np.log(2.0 * np.pi)
    inside = np.abs(residual) < 1.6449 * spread
    return Score(float(density.mean()), float(np.sqrt(np.mean(residual**2))), float(inside.mean()), *times)


def score_ours(options: dict[str, Any], split: tuple[Array, ...], classes: int, seed: int) -> Score:
    X, X_test, y, y_test = split
    options = dict(options)
    family = registry.families()[options.pop("structure", "depth")]
    kind: Any = registry.estimator_class(family.tasks["classification" if classes else "regression"])
    start = time.process_time()
    model = kind(random_state=seed, **options).fit(X, y)
    fitted = time.process_time()
    forecast: Any = model.predict_dist(X_test)
    mean = forecast.log_probs if classes else forecast.mean
    times = (fitted - start, time.process_time() - fitted)
    log_likelihood = float(forecast.log_prob(y_test).mean())
    if classes:
        p = mean.exp().numpy()
        ece = float(expected_calibration_error(y_test, p))
        return Score(log_likelihood, float((p.argmax(1) == y_test).mean()), ece, *times)
    low, high = forecast.interval(0.9)
    inside = ((y_test >= low.numpy()) & (y_test <= high.numpy())).mean()
    return Score(log_likelihood, float(np.sqrt(np.mean((mean.numpy() - y_test) ** 2))), float(inside), *times)


def table(name: str) -> tuple[Array, Array, int]:
    """Return the columns, a standardised target or encoded classes, and the number of classes (0 for regression)."""
    data = load(name)
    X = np.asarray(data.X, dtype=np.float64)
    if data.task == "classification":
        labels, y = np.unique(np.asarray(data.y), return_inverse=True)
        return X, y, len(labels)
    y = np.asarray(data.y, dtype=np.float64)
    return X, (y - y.mean()) / y.std(), 0


def halves(X: Array, y: Array, classes: int, seed: int) -> tuple[Array, ...]:
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=seed, stratify=y if classes else None)
    mean = X.mean(0)
    scale = X.std(0) + (X.std(0) == 0.0)
    kind = np.int64 if classes else np.float32
    return ((X - mean) / scale, (X_test - mean) / scale, y.astype(kind), y_test.astype(kind))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--out", type=Path, help="file for all scores, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for kind in (SklearnConvergenceWarning, ConvergenceWarning, UserWarning):
        warnings.simplefilter("ignore", kind)
    machine = {"torch": torch.__version__, "python": platform.python_version(), "threads": 1}
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name in args.sets:
        X, y, classes = table(name)
        scores: dict[str, list[Score]] = {}
        for seed in range(args.splits):
            split = halves(X, y, classes, seed)
            for label, make in POINT.items():
                scores.setdefault(label, []).append(score_peer(make, split, classes, seed))
            for label, own in OURS.items():
                scores.setdefault(label, []).append(score_ours(own, split, classes, seed))
        results[name] = {label: [asdict(score) for score in own] for label, own in scores.items()}
        report(f"{name}: {len(X):,} rows x {X.shape[1]}", scores, bool(classes))
    if args.out is not None:
        args.out.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


def report(title: str, scores: dict[str, list[Score]], classes: bool) -> None:
    last = "accuracy, ECE" if classes else "RMSE, coverage of 90 %"
    print(f"\n{title}: log-likelihood, {last}, time of fit and of predict relative to the plain loop")
    base = scores["plain loop"]
    for label, own in scores.items():
        fit = statistics.median(a.fit / b.fit for a, b in zip(own, base, strict=True))
        predict = statistics.median(a.predict / b.predict for a, b in zip(own, base, strict=True))
        columns = [format_mean([getattr(s, key) for s in own]) for key in ("log_likelihood", "error", "calibration")]
        print(f"  {label:<32}{'   '.join(columns)}   {fit:6.2f}   {predict:6.1f}", flush=True)


def format_mean(values: list[float]) -> str:
    spread = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):8.4f} ± {spread:.4f}"


if __name__ == "__main__":
    main()
