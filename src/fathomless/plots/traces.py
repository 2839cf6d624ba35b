"""Trace plots of Markov chains."""

from collections.abc import Sequence

import numpy as np

from fathomless.plots.canvas import BLUE, GREEN, INK, Axes, legend, start
from fathomless.plots.validation import floats
from fathomless.system.errors import DataError

__all__ = ["traces"]


def traces(
    each: Sequence[Sequence[float]],
    sweeps: int,
    burn_in: int,
    used: Sequence[bool],
    what: str = "log-likelihood",
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the traces of chains, with a line at the end of the burn-in; chains that are not used are paler.

    Parameters
    ----------
    each : sequence of sequences of float
        Trace of each chain, evenly spaced over its sweeps; values that are not finite are gaps.
    sweeps, burn_in : int
        Number of sweeps of a chain, and number of sweeps of its burn-in.
    used : sequence of bool
        True for each chain that predictions use.
    what : str
        Name of the traced quantity.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If a value is not a number, or no chain has a value; a chain that failed may have none.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import plots
        >>> rng = np.random.default_rng(0)
        >>> each = [rng.normal(5, 1, 80), rng.normal(3, 1, 80)]
        >>> ax = plots.traces(each, 4000, 2000, [True, False])
    """
    lines = [floats(f"chain {i}", values, gaps=True) if len(values) else np.zeros(0) for i, values in enumerate(each)]
    if not any(map(len, lines)) or len(each) != len(used):
        raise DataError(
            f"{len(each)} chains were given for {len(used)} flags `used`; give equally many, and one value or more"
        )
    ax = start(ax, f"Trace of {what}", "sweep", what)
    labelled = set[bool]()  # one entry of the legend for each kind of chain
    for values, is_used in sorted(zip(lines, used, strict=True), key=lambda pair: pair[1]):
        at = np.linspace(0.0, sweeps, len(values) + 1)[1:]
        name = "used" if is_used else "not used"
        label = None if is_used in labelled else name
        labelled.add(is_used)
        colour, alpha = (GREEN, 0.8) if is_used else (BLUE, 0.35)
        ax.plot(at, values, color=colour, linewidth=0.8, alpha=alpha, label=label)
    ax.axvline(burn_in, color=INK, linewidth=0.8, linestyle="--")
    legend(ax)
    return ax
