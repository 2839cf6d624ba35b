"""Fit networks of unbounded depth to a spiral and to two real tables; print depths and scores, and plot the results.

make demo                      or: python examples/demo.py --out demo.png
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fathomless import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.data.datasets import spiral

INK, SAND, SEA = "#22303c", "#d9a441", "#1f7a8c"


def log_loss(probabilities: np.ndarray, y: np.ndarray) -> float:
    return float(np.log(probabilities[np.arange(len(y)), y]).mean())


def fit_spiral(axes: tuple[Axes, Axes]) -> None:
    X, y = spiral(1024, rotation=10.0, seed=0)
    X_test, y_test = spiral(1024, rotation=10.0, seed=1)
    clf = UnboundedDepthClassifier(random_state=0).fit(X, y)
    linear = LogisticRegression().fit(X, y)
    report("spiral, 1,024 points", clf, "logistic regression")
    row(
        "log-likelihood, nats per row",
        log_loss(clf.predict_proba(X_test), y_test),
        log_loss(linear.predict_proba(X_test), y_test),
    )
    row("accuracy", clf.score(X_test, y_test), linear.score(X_test, y_test))
    grid = np.stack(np.meshgrid(np.linspace(-1.1, 1.1, 160), np.linspace(-1.1, 1.1, 160)), -1)
    p = clf.predict_proba(grid.reshape(-1, 2))[:, 1].reshape(160, 160)
    axes[0].contourf(grid[..., 0], grid[..., 1], p, levels=np.linspace(0, 1, 11), cmap="BrBG", alpha=0.75)
    axes[0].scatter(X[y == 0, 0], X[y == 0, 1], s=3, color=SAND)
    axes[0].scatter(X[y == 1, 0], X[y == 1, 1], s=3, color=SEA)
    axes[0].set_aspect("equal")
    axes[0].set_xticks([-1, 0, 1])
    axes[0].set_yticks([-1, 0, 1])
    axes[0].set_title("Spiral: p(class | x) and training points")
    draw_depths(axes[1], clf, "Spiral: depth posterior")


def fit_diabetes(axes: tuple[Axes, Axes]) -> None:
    X, y = load_diabetes(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
    reg = UnboundedDepthRegressor(random_state=0).fit(X, y)
    linear = make_pipeline(StandardScaler(), BayesianRidge()).fit(X, y)
    mean, std = linear.predict(X_test, return_std=True)
    log_p = -0.5 * ((y_test - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    report("diabetes, 331 rows", reg, "Bayesian ridge")
    row("log-likelihood, nats per row", float(reg.predict_dist(X_test).log_prob(y_test).mean()), float(log_p.mean()))
    row("R²", reg.score(X_test, y_test), linear.score(X_test, y_test))
    low, high = reg.predict_interval(X_test, 0.9)
    row("coverage of 90 % intervals", float(((y_test > low) & (y_test < high)).mean()), None)
    order = np.argsort(reg.predict(X_test))
    axes[0].vlines(np.arange(len(order)), low[order], high[order], color=SEA, alpha=0.35, linewidth=2)
    axes[0].plot(np.arange(len(order)), y_test[order], "o", color=INK, markersize=3)
    axes[0].set_xlabel("test rows, sorted by predicted mean")
    axes[0].set_title("Diabetes: 90 % intervals and observed values")
    draw_depths(axes[1], reg, "Diabetes: depth posterior")


def fit_breast_cancer(axes: tuple[Axes, Axes]) -> None:
    data = load_breast_cancer()
    X, X_test, y, y_test = train_test_split(
        data.data, data.target, test_size=0.25, random_state=0, stratify=data.target
    )
    clf = UnboundedDepthClassifier(random_state=0).fit(X, y)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, y)
    report("breast cancer, 426 rows", clf, "logistic regression")
    p = clf.predict_proba(X_test)
    row("log-likelihood, nats per row", log_loss(p, y_test), log_loss(linear.predict_proba(X_test), y_test))
    row("accuracy", clf.score(X_test, y_test), linear.score(X_test, y_test))
    bins = np.linspace(0, 1, 21).tolist()
    axes[0].hist(p[y_test == 0, 1], bins=bins, color=SAND, alpha=0.8, label=str(data.target_names[0]))
    axes[0].hist(p[y_test == 1, 1], bins=bins, color=SEA, alpha=0.8, label=str(data.target_names[1]))
    axes[0].set_xlabel("predicted p(benign)")
    axes[0].set_ylabel("test rows")
    axes[0].legend(frameon=False)
    axes[0].set_title("Breast cancer: predictions by true class")
    draw_depths(axes[1], clf, "Breast cancer: depth posterior")


def draw_depths(axes: Axes, model: UnboundedDepthClassifier | UnboundedDepthRegressor, title: str) -> None:
    depths, weights = list(model.depth_posterior_), list(model.depth_posterior_.values())
    axes.bar(depths, weights, color=INK, width=0.7)
    axes.errorbar(depths, weights, list(model.depth_posterior_error_.values()), fmt="none", ecolor=SAND)
    axes.set_ylim(bottom=0)
    axes.set_xticks(depths)
    axes.set_xlabel("number of layers")
    axes.set_ylabel("weight ± one standard error")
    axes.set_title(title)


def report(name: str, model: UnboundedDepthClassifier | UnboundedDepthRegressor, peer: str) -> None:
    print(f"\n{name}: {model.structure_.summary}")
    for depth, weight in model.depth_posterior_.items():
        error = model.depth_posterior_error_[depth]
        print(f"  {depth:2d} layers {weight:6.3f} ± {error:.3f}  {'█' * round(40 * weight)}")
    print(f"  {'out-of-fold rows':<34}{'fathomless':>11}")
    row("log-likelihood, nats per row", model.validation_score_ or 0.0, None)
    print(f"  {'test rows':<34}{'fathomless':>11}  {peer}")


def row(name: str, ours: float, peer: float | None) -> None:
    print(f"  {name:<34}{ours:11.3f}  {'' if peer is None else f'{peer:.3f}'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo.png"), help="file of the picture (default: demo.png)")
    out = parser.parse_args().out
    torch.set_num_threads(1)  # small networks run fastest with one thread
    figure, axes = plt.subplots(2, 3, figsize=(13, 7.5), layout="constrained", height_ratios=(2, 1))
    for column, fit in enumerate((fit_spiral, fit_diabetes, fit_breast_cancer)):
        fit((axes[0, column], axes[1, column]))
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=110)
    print(f"\nWrote the picture to {out.resolve()}")


if __name__ == "__main__":
    main()
