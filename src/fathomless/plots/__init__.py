"""Plots of a fitted network and its predictions, with matplotlib.

Each function takes arrays, mappings, rows of a history or a predictive distribution, draws on one axes, and returns
that axes. Without `ax` it opens a new figure with pyplot. :func:`figure` creates a figure that is not registered with
pyplot, for programs that draw many, and :func:`svg` converts either to text for an HTML page, in which the colours
`INK` and `GRID` can be replaced. All functions raise :class:`~fathomless.system.errors.DataError` for empty input,
shapes that do not match, and numbers that are not finite. This folder may import `system`.
"""

from fathomless.plots.calibration import confusion, coverage, pit_histogram, reliability
from fathomless.plots.canvas import GRID, INK, figure, svg
from fathomless.plots.distributions import predictive
from fathomless.plots.effects import contributions, dependence, importance
from fathomless.plots.learning import learning_curves
from fathomless.plots.predictions import (
    functions,
    interval_widths,
    intervals,
    predicted_against_observed,
    residuals,
    uncertainty_split,
)
from fathomless.plots.ranking import lift, precision_recall, roc, thresholds
from fathomless.plots.traces import traces

__all__ = [
    "GRID",
    "INK",
    "confusion",
    "contributions",
    "coverage",
    "dependence",
    "figure",
    "functions",
    "importance",
    "interval_widths",
    "intervals",
    "learning_curves",
    "lift",
    "pit_histogram",
    "precision_recall",
    "predicted_against_observed",
    "predictive",
    "reliability",
    "residuals",
    "roc",
    "svg",
    "thresholds",
    "traces",
    "uncertainty_split",
]
