"""Probit outputs for classes: one more Gibbs step, which leaves the other moves of a sweep unchanged.

Two classes have one output, y = 1 if a > 0; K > 2 classes have K outputs, y = argmax_c a_c. Given everything else, each
a is normal with variance 1 around its mean, truncated to the values that agree with the class.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from fathomless.families.graph.state import FIXED, UNITS, Floats, State, logistic

__all__ = ["latent_pass"]


def latent_pass(state: State, labels: NDArray[np.int64], generator: np.random.Generator) -> None:
    """Draw the activations of the outputs, the units with fixed precision, given the classes of the rows.

    Parameters
    ----------
    labels : (N,)
        0 or 1 for one output, else 0 ... outputs - 1.
    """
    outputs = np.flatnonzero(state.role[: state.size[UNITS]] == FIXED)
    a = state.a[outputs]
    means = a - state.e[outputs]
    if len(outputs) == 1:
        sign = np.where(labels == 1, 1.0, -1.0)
        a[0] = means[0] + sign * _tail(-sign * means[0], generator)
    else:
        rows = np.arange(len(labels))
        for place in range(len(outputs)):
            correct = labels == place
            rivals = np.where(np.arange(len(outputs))[:, None] == place, -np.inf, a).max(0)
            bound = np.where(correct, rivals, a[labels, rows])
            sign = np.where(correct, 1.0, -1.0)
            a[place] = means[place] + sign * _tail(sign * (bound - means[place]), generator)
    state.a[outputs] = a
    state.e[outputs] = a - means
    state.u[outputs] = logistic(a)


def _tail(low: Floats, generator: np.random.Generator) -> Floats:
    """Draw standard normal variables above bounds, by inverting the log tail probability, accurate in the far tail."""
    return np.asarray(-ndtri_exp(log_ndtr(-low) + np.log1p(-generator.random(len(low)))))
