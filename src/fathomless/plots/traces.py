"""Pictures of Markov chains."""

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
    """Draw what chains followed: those that are used in colour, the end of the burn-in as a line.

    Parameters
    ----------
    each : sequence of sequences of float
        What every chain followed, evenly spaced over its sweeps; what is not finite is a gap.
    sweeps, burn_in : int
        Length of a chain, and how many of its sweeps were not kept.
    used : sequence of bool
        Whether predictions use a chain.
    what : str
        Name of the quantity.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For what is no number, or no chain with a value; a chain that failed may have none.

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
        raise DataError(f"{len(each)} chains were given, {len(used)} of them used or not; give values of one or more")
    ax = start(ax, f"Chains: {what}", "sweep", what)
    told = set[bool]()
    for values, kept in sorted(zip(lines, used, strict=True), key=lambda pair: pair[1]):
        at = np.linspace(0.0, sweeps, len(values) + 1)[1:]
        label = ("used" if kept else "not used") if kept not in told else None
        told.add(kept)
        ax.plot(at, values, color=GREEN if kept else BLUE, linewidth=0.8, alpha=0.8 if kept else 0.35, label=label)
    ax.axvline(burn_in, color=INK, linewidth=0.8, linestyle="--")
    legend(ax)
    return ax
