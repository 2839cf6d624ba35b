"""The command ``explain``: which columns drive the predictions of a run, and how."""

import argparse

from fathomless.app.commands.fitted import known_rows
from fathomless.app.commands.printing import note, show, show_json
from fathomless.system.errors import DataError

__all__ = ["explain"]


def explain(given: argparse.Namespace) -> int:
    """Shuffle columns of rows with known answers, and follow some of them."""
    import numpy as np

    from fathomless.app.commands.columns import present
    from fathomless.data.frames import take
    from fathomless.data.targets import ClassLabels
    from fathomless.estimators.base import PredictiveEstimator
    from fathomless.estimators.importance import dependence, importance
    from fathomless.plots.page import number

    estimator, manifest, X, y, _ = known_rows(given)
    if not isinstance(estimator, PredictiveEstimator):
        raise DataError(f"{given.folder} is a density, which predicts no target; explain is of runs that do")
    present([column.name for column in estimator.schema_.columns], given.column or ())
    rows = np.unique(np.linspace(0, len(X) - 1, min(len(X), given.rows)).round().astype(np.int64))
    if len(rows) < len(X):
        note(f"{len(rows):,} of {len(X):,} rows are looked at, evenly spaced (--rows changes that)")
    X, y = take(X, rows), y[rows]
    moved = importance(estimator, X, y, random_state=given.seed)
    curves = [dependence(estimator, X, name) for name in given.column or moved.columns[:3]]
    known = estimator.target_
    names = [str(label) for label in known.labels] if isinstance(known, ClassLabels) else list(manifest.targets)
    if given.json:
        show_json(
            importance=[
                {"column": name, "loss": loss, "error": error}
                for name, loss, error in zip(moved.columns, moved.loss.tolist(), moved.error.tolist(), strict=True)
            ],
            dependence=[
                {
                    "column": one.column,
                    "points": list(one.points),
                    "of": names,
                    "mean": one.mean.tolist(),
                    "lower": one.lower.tolist(),
                    "upper": one.upper.tolist(),
                    "level": one.level,
                }
                for one in curves
            ],
        )
        return 0
    width = max(map(len, moved.columns), default=0)
    show("Nats per row that are lost where a column is shuffled\n")
    for name, loss, error in zip(moved.columns, moved.loss.tolist(), moved.error.tolist(), strict=True):
        show(f"  {name:<{width}}  {loss:8.4f} ± {error:.4f}")
    for one in curves:
        for k, name in enumerate(names):
            show(f"\nAverage {name} along {one.column}, with {100 * one.level:.0f} % intervals\n")
            wide = max(len(str(point)) for point in one.points)
            for point, mean, low, high in zip(
                one.points, one.mean[:, k], one.lower[:, k], one.upper[:, k], strict=True
            ):
                show(f"  {point!s:<{wide}}  {number(float(mean)):>9}  {number(float(low))} to {number(float(high))}")
    return 0
