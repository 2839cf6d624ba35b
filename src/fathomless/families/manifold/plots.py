"""Plots of posteriors over a latent space of weights, and of the predictions of their modes."""

import numpy as np
import numpy.typing as npt

from fathomless.plots.canvas import BLUE, GREEN, Axes, start
from fathomless.plots.validation import floats
from fathomless.posterior.structure import LatentPosterior
from fathomless.system.errors import DataError

__all__ = ["latent", "modes"]

_ROUND = np.stack([np.cos(np.linspace(0.0, 2.0 * np.pi, 61)), np.sin(np.linspace(0.0, 2.0 * np.pi, 61))])


def latent(posterior: LatentPosterior, *, ax: Axes | None = None) -> Axes:
    """Draw the components of the latent posterior as ellipses of one standard deviation, in their principal plane.

    The dashed circle is the prior N(0, I). A latent space of one dimension is drawn on a line.

    Parameters
    ----------
    posterior : LatentPosterior
        Components with weights, centres and standard deviations.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If there are no components, or a number is not finite.

    Examples
    --------
    .. plot::

        >>> from fathomless.families.manifold import plots
        >>> from fathomless.posterior.structure import LatentPosterior
        >>> laws = {"weights": (0.6, 0.4), "means": ((1.0, 0.2), (-0.8, 0.5)), "scales": ((0.2, 0.3), (0.3, 0.1))}
        >>> ax = plots.latent(LatentPosterior(kind="latent", **laws))
    """
    weights = floats("weights", posterior.weights, 0.0)
    centres = np.asarray(posterior.means, dtype=np.float64)
    scales = np.asarray(posterior.scales, dtype=np.float64)
    if centres.ndim != 2 or not np.isfinite(centres).all() or not np.isfinite(scales).all():
        raise DataError(
            f"centres of shape {centres.shape} were given; finite values of shape (components, dimensions) are needed"
        )
    directions = _plane(centres, weights)
    at = centres @ directions.T  # (K, 2)
    axes = np.sqrt((np.square(scales)[:, None] * np.square(directions)[None]).sum(-1))
    ax = start(ax, "The latent space", "first direction", "second direction")
    ax.plot(*_ROUND, color=BLUE, linewidth=0.9, linestyle="--", label="prior")
    for centre, size, weight in zip(at, axes, weights, strict=True):
        share = 0.25 + 0.75 * weight / weights.max()
        ax.plot(*(centre[:, None] + size[:, None] * _ROUND), color=GREEN, linewidth=1.2, alpha=share)
        ax.scatter(centre[0], centre[1], s=12 + 60 * weight, color=GREEN, alpha=share, linewidths=0)
    reach = 1.1 * max(1.0, float((np.abs(at).max(1) + axes.max(1)).max()))
    ax.set_xlim(-1.4 * reach, 1.4 * reach)  # figures are 1.4 times as wide as high, so that circles are round
    ax.set_ylim(-reach, reach)
    return ax


def modes(
    grid: npt.ArrayLike, values: npt.ArrayLike, weights: npt.ArrayLike, name: str = "x", *, ax: Axes | None = None
) -> Axes:
    """Draw the functions at the centres of the components along one column; opacity grows with the weight.

    Parameters
    ----------
    grid : array_like, shape (G,)
        Values of the column.
    values : array_like, shape (M, G)
        Predictions of each mode.
    weights : array_like, shape (M,)
        Weights of the modes.
    name : str
        Name of the column.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If shapes do not agree, or a number is not finite.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless.families.manifold import plots
        >>> x = np.linspace(-2, 2, 40)
        >>> ax = plots.modes(x, [np.sin(x), x - 0.2 * x**3], [0.7, 0.3], "age")
    """
    x = floats("grid", grid)
    share = floats("weights", weights, 0.0)
    functions = np.asarray(values, dtype=np.float64)
    if functions.shape != (len(share), len(x)) or not len(share) or not np.isfinite(functions).all():
        raise DataError(
            f"values of shape {functions.shape} were given for {len(share)} modes and {len(x)} grid points; finite "
            "values of shape (modes, points) are needed"
        )
    ax = start(ax, "Modes of functions", name, "prediction")
    for mode, weight in zip(functions, share, strict=True):
        ax.plot(x, mode, color=GREEN, linewidth=1.2, alpha=float(0.2 + 0.7 * weight / share.max()))
    return ax


def _plane(centres: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return two orthogonal directions of largest variance, (2, D); the second is 0 in one dimension."""
    deviations = (centres - weights @ centres / weights.sum()) * np.sqrt(weights)[:, None]
    # the small multiple of the identity completes the basis if there are few components
    axes = np.linalg.svd(np.concatenate([deviations, 1e-9 * np.eye(centres.shape[1])]), full_matrices=False)[2][:2]
    signs = np.where(axes[np.arange(len(axes)), np.abs(axes).argmax(1)] < 0.0, -1.0, 1.0)  # largest entry positive
    plane = np.zeros((2, centres.shape[1]))
    plane[: len(axes)] = axes * signs[:, None]
    return plane
