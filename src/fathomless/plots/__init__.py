"""Pictures of a fitted network and its predictions, drawn with matplotlib.

Each function takes plain arrays, mappings or rows of a history, draws on one axes, and returns that axes. Without
`ax` it opens a figure of its own through pyplot; :func:`figure` gives one that pyplot does not know, for programs that
draw many, and :func:`svg` turns either into text that can stand in a page, where the colours `INK` and `GRID` can be
replaced. All functions raise :class:`~fathomless.system.errors.DataError` for empty input, shapes that do not match,
and numbers that are not finite. This folder may import `system`.
"""

from fathomless.plots.calibration import confusion, coverage, pit_histogram, reliability
from fathomless.plots.canvas import GRID, INK, figure, svg
from fathomless.plots.effects import dependence, importance
from fathomless.plots.learning import learning_curves
from fathomless.plots.predictions import (
    functions,
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
    "coverage",
    "dependence",
    "figure",
    "functions",
    "importance",
    "intervals",
    "learning_curves",
    "lift",
    "pit_histogram",
    "precision_recall",
    "predicted_against_observed",
    "reliability",
    "residuals",
    "roc",
    "svg",
    "thresholds",
    "traces",
    "uncertainty_split",
]
