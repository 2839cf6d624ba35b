"""Command ``explain``: permutation importance and partial dependence of a run."""

import argparse

from fathomless.app.commands.fitted import known_rows
from fathomless.app.commands.printing import note, show, show_json
from fathomless.system.errors import DataError

__all__ = ["explain"]


def explain(given: argparse.Namespace) -> int:
    """Compute permutation importance and partial dependence on rows with known targets."""
    import numpy as np

    from fathomless.app.commands.columns import check_columns
    from fathomless.data.censoring import is_known, read_bounds
    from fathomless.data.frames import take
    from fathomless.data.targets import ClassLabels
    from fathomless.estimators.base import PredictiveEstimator
    from fathomless.estimators.importance import dependence, importance
    from fathomless.plots.page import number

    estimator, manifest, X, y, _, censored = known_rows(given)
    if not isinstance(estimator, PredictiveEstimator):
        raise DataError(f"{given.folder} is a density, which predicts no target; explain needs a run with a target")
    if censored is not None:
        known = np.flatnonzero(is_known(read_bounds(y, censored)))
        note(f"using the {len(known):,} of {len(X):,} rows whose target is not censored")
        X, y = take(X, known), y[known]
    check_columns([column.name for column in estimator.schema_.columns], given.column or ())
    rows = np.unique(np.linspace(0, len(X) - 1, min(len(X), given.rows)).round().astype(np.int64))
    if len(rows) < len(X):
        note(f"using {len(rows):,} of {len(X):,} rows, evenly spaced (--rows changes that)")
    X, y = take(X, rows), y[rows]
    permuted = importance(estimator, X, y, random_state=given.seed)
    losses = list(zip(permuted.columns, permuted.loss.tolist(), permuted.error.tolist(), strict=True))
    curves = [dependence(estimator, X, name) for name in given.column or permuted.columns[:3]]
    target = estimator.target_
    names = [str(label) for label in target.labels] if isinstance(target, ClassLabels) else list(manifest.targets)
    if given.json:
        show_json(
            importance=[{"column": name, "loss": loss, "error": error} for name, loss, error in losses],
            dependence=[
                {
                    "column": curve.column,
                    "points": list(curve.points),
                    "of": names,
                    "mean": curve.mean.tolist(),
                    "lower": curve.lower.tolist(),
                    "upper": curve.upper.tolist(),
                    "level": curve.level,
                }
                for curve in curves
            ],
        )
        return 0
    width = max(map(len, permuted.columns), default=0)
    show("Permutation importance: decrease of the log-likelihood, nats per row, ± standard error\n")
    for name, loss, error in losses:
        show(f"  {name:<{width}}  {loss:8.4f} ± {error:.4f}")
    for curve in curves:
        wide = max(len(str(point)) for point in curve.points)
        for k, name in enumerate(names):
            show(f"\nPartial dependence on {curve.column}: average {name}, {100 * curve.level:.0f} % intervals\n")
            bands = zip(curve.points, curve.mean[:, k], curve.lower[:, k], curve.upper[:, k], strict=True)
            for point, mean, low, high in bands:
                show(f"  {point!s:<{wide}}  {number(float(mean)):>9}  {number(float(low))} to {number(float(high))}")
    return 0
